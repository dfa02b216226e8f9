//! The one place where observations are forgotten, by the reason for which they are stale.
//!
//! With the feature `faults` each reason can be switched off: `MOORING_AGENT_KEEP_STALE` names one.
//! A run with a reason switched off shows which check sees that its observations are used although
//! they are stale. The tests of this module run each row of the table in docs/simulation.md so.
//!
//! What must never happen here: an established fact; a reason that is switched off in a shipped
//! package.

use super::Knowledge;

/// A reason for which observations are stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stale {
    /// Somebody has changed the volume's LV: LVM shows it otherwise than before.
    LvDrifted,
    /// LVM could not be queried, and not only for now.
    LvmFailed,
    /// A look of a sweep did not show the LV ready.
    LvNotReady,
    /// A pass left the LV not ready, or a newer spec came meanwhile.
    VolumeNotReady,
    /// A look for late volumes showed nothing new: the next pass asks LVM itself.
    LateInVain,
    /// Admission took a spec of the volume, or its tombstone.
    VolumeSpec,
    /// A sender sent an export's spec once more: it asks for a whole look.
    ExportAskedAgain,
    /// A sweep asks for a whole look: drift is found by nothing less.
    Swept,
    /// A pass takes what is known for a narrow look: only its success puts it back.
    Narrowed,
    /// A step of ours on the volume follows: LVM may show half of the step meanwhile.
    VolumeStep,
    /// A step of a whole pass follows.
    Step,
    /// A step of a narrow pass follows.
    NarrowStep,
    /// A call beside the pass has changed the kernel.
    BesidePass,
    /// Somebody else has changed the export in the kernel's tree, which was watched.
    ExportDrifted,
    /// A look beside all passes found the export otherwise than the last pass left it.
    FoundOtherwise,
    /// Somebody, or a step of ours, changed the export in the kernel's tree before it counted as
    /// watched.
    ExportTold,
    /// A whole look failed, or not all the folders that it read could be watched.
    OtherFolders,
    /// A pass of the export ended with problems: LVM is asked before the next try.
    ExportFailed,
    /// A pass over the volume has begun.
    PassBegun,
}

impl Stale {
    /// Every reason, with the name by which it is switched off.
    pub const ALL: [(Self, &str); 19] = [
        (Self::LvDrifted, "lv-drifted"),
        (Self::LvmFailed, "lvm-failed"),
        (Self::LvNotReady, "lv-not-ready"),
        (Self::VolumeNotReady, "volume-not-ready"),
        (Self::LateInVain, "late-in-vain"),
        (Self::VolumeSpec, "volume-spec"),
        (Self::ExportAskedAgain, "export-asked-again"),
        (Self::Swept, "swept"),
        (Self::Narrowed, "narrowed"),
        (Self::VolumeStep, "volume-step"),
        (Self::Step, "step"),
        (Self::NarrowStep, "narrow-step"),
        (Self::BesidePass, "beside-pass"),
        (Self::ExportDrifted, "export-drifted"),
        (Self::FoundOtherwise, "found-otherwise"),
        (Self::ExportTold, "export-told"),
        (Self::OtherFolders, "other-folders"),
        (Self::ExportFailed, "export-failed"),
        (Self::PassBegun, "pass-begun"),
    ];

    /// The reason of this name. `None` if no reason has it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == name).map(|(reason, _)| reason)
    }
}

/// An observation that can be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Observation {
    Ready,
    /// The looks at work that show whether the LV is ready. The observation before them stays.
    LooksForReady,
    Looked,
    KeptLook,
    Known,
    Unchanged,
}

impl Stale {
    /// The observations that this reason can falsify.
    const fn falsifies(self) -> &'static [Observation] {
        use Observation::{KeptLook, Known, Looked, LooksForReady, Ready, Unchanged};
        match self {
            Self::LvDrifted | Self::ExportAskedAgain | Self::Swept => &[Known],
            // The narrow pass takes what is known, and puts back what follows from it.
            Self::Narrowed => &[],
            Self::VolumeStep => &[LooksForReady, Looked],
            Self::LvmFailed | Self::LvNotReady | Self::VolumeNotReady | Self::ExportFailed => &[Ready],
            Self::LateInVain => &[Looked],
            Self::PassBegun => &[KeptLook],
            Self::VolumeSpec => &[Ready, Looked],
            Self::NarrowStep | Self::ExportTold | Self::OtherFolders => &[Unchanged],
            Self::Step | Self::BesidePass | Self::ExportDrifted | Self::FoundOtherwise => &[Known, Unchanged],
        }
    }
}

impl Knowledge {
    /// Forgets the observations that are stale for this reason.
    pub(in crate::engine) fn forget(&mut self, reason: Stale) {
        if is_kept(reason) {
            return;
        }
        let now = self.now.advance();
        for observation in reason.falsifies() {
            match observation {
                Observation::Ready => self.ready.forget(now),
                Observation::LooksForReady => self.ready.refuse_looks(now),
                Observation::Looked => self.looked.forget(now),
                Observation::KeptLook => self.kept_look.forget(now),
                Observation::Known => self.known.forget(now),
                Observation::Unchanged => self.unchanged.forget(now),
            }
        }
    }
}

#[cfg(not(feature = "faults"))]
pub(super) const fn is_kept(_reason: Stale) -> bool {
    false
}

#[cfg(feature = "faults")]
pub(super) fn is_kept(reason: Stale) -> bool {
    use std::sync::OnceLock;

    static KEPT: OnceLock<Option<Stale>> = OnceLock::new();
    let kept = KEPT.get_or_init(|| {
        let name = std::env::var("MOORING_AGENT_KEEP_STALE").ok().filter(|name| !name.is_empty())?;
        eprintln!("mooring-agent: keeps what is stale because of {name}, as asked");
        // A run that keeps nothing would show nothing, and look like a success.
        Some(Stale::named(&name).unwrap_or_else(|| std::process::abort()))
    });
    *kept == Some(reason)
}

#[cfg(test)]
mod tests;
