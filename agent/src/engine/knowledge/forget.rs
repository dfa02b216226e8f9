//! The one place where observations are forgotten, by the reason for which they are stale.
//!
//! With the feature `faults` each reason can be switched off: `MOORING_AGENT_KEEP_STALE` names one, or [`keep_stale`] does in a
//! test. A run with a reason switched off shows which check sees that its observations are used although they are stale.
//!
//! What must never happen here: an established fact; a reason that is switched off in a shipped package.

use super::Knowledge;

/// A reason for which observations are stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stale {
    /// Somebody has changed the volume's LV: LVM shows it otherwise than before.
    LvDrifted,
    /// LVM shows the volume otherwise than its device did at the start.
    LvContradicted,
    /// LVM could not be queried, and not only for now.
    LvmFailed,
    /// A look of a sweep did not show the LV ready.
    LvNotReady,
    /// A pass left the LV not ready, or a newer spec came meanwhile.
    VolumeNotReady,
    /// A look for late volumes showed nothing new: the next pass asks LVM itself.
    LateInVain,
    /// A spec of the volume, or its tombstone, was taken.
    VolumeSpec,
    /// An export's spec was sent once more: its sender asks for a whole look.
    ExportAskedAgain,
    /// A sweep asks for a whole look: drift is found by nothing less.
    Swept,
    /// A pass uses what is known for a narrow look: only its success puts it back.
    Narrowed,
    /// A step of a whole pass follows.
    Step,
    /// A step of a narrow pass follows.
    NarrowStep,
    /// A call beside the pass has changed the kernel.
    BesidePass,
    /// Somebody else has changed the export in the kernel's tree.
    ExportDrifted,
    /// A pass of the export ended with problems: LVM is asked before the next try.
    ExportFailed,
    /// The export was taken out of the kernel for a revert.
    Reverting,
}

impl Stale {
    /// Every reason, with the name by which it is switched off.
    pub const ALL: [(Self, &str); 16] = [
        (Self::LvDrifted, "lv-drifted"),
        (Self::LvContradicted, "lv-contradicted"),
        (Self::LvmFailed, "lvm-failed"),
        (Self::LvNotReady, "lv-not-ready"),
        (Self::VolumeNotReady, "volume-not-ready"),
        (Self::LateInVain, "late-in-vain"),
        (Self::VolumeSpec, "volume-spec"),
        (Self::ExportAskedAgain, "export-asked-again"),
        (Self::Swept, "swept"),
        (Self::Narrowed, "narrowed"),
        (Self::Step, "step"),
        (Self::NarrowStep, "narrow-step"),
        (Self::BesidePass, "beside-pass"),
        (Self::ExportDrifted, "export-drifted"),
        (Self::ExportFailed, "export-failed"),
        (Self::Reverting, "reverting"),
    ];

    /// The reason of this name. `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == name).map(|(reason, _)| reason)
    }
}

impl Knowledge {
    /// Forgets the observations that are stale for this reason.
    pub(in crate::engine) fn forget(&mut self, reason: Stale) {
        if is_kept(reason) {
            return;
        }
        match reason {
            Stale::LvDrifted => {
                self.known = None;
                self.contradicted = self.ready.is_none();
            }
            Stale::LvContradicted => self.contradicted = true,
            Stale::LvmFailed | Stale::LvNotReady | Stale::VolumeNotReady | Stale::ExportFailed => {
                self.ready = None;
            }
            Stale::LateInVain => self.looked = None,
            Stale::VolumeSpec => {
                self.ready = None;
                self.looked = None;
            }
            // `Narrowed` is taken by `take_known`.
            Stale::ExportAskedAgain | Stale::Swept | Stale::Narrowed | Stale::Reverting => self.known = None,
            Stale::Step | Stale::NarrowStep => self.watched.end(),
            Stale::BesidePass => {
                self.known = None;
                self.watched.end();
            }
            Stale::ExportDrifted => {
                if self.watched.end_told() {
                    self.known = None;
                }
            }
        }
    }
}

#[cfg(not(feature = "faults"))]
pub(super) const fn is_kept(_reason: Stale) -> bool {
    false
}

#[cfg(feature = "faults")]
pub(super) use switch::is_kept;
#[cfg(feature = "faults")]
pub use switch::keep_stale;

#[cfg(feature = "faults")]
mod switch {
    use std::sync::{Mutex, OnceLock, PoisonError};

    use super::Stale;

    /// The reason that is switched off from the start of the process, by its name.
    const KEEP_STALE: &str = "MOORING_AGENT_KEEP_STALE";

    fn kept() -> &'static Mutex<Option<Stale>> {
        static KEPT: OnceLock<Mutex<Option<Stale>>> = OnceLock::new();
        KEPT.get_or_init(|| {
            let name = std::env::var(KEEP_STALE).ok().filter(|name| !name.is_empty());
            Mutex::new(name.map(|name| {
                eprintln!("mooring-agent: keeps what is stale because of {name}, as asked");
                // A run that keeps nothing would show nothing, and look good.
                Stale::named(&name).unwrap_or_else(|| std::process::abort())
            }))
        })
    }

    /// Switches one reason off in this process, in the place of the one before; `None` switches none off.
    pub fn keep_stale(reason: Option<Stale>) {
        *kept().lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    pub(in super::super) fn is_kept(reason: Stale) -> bool {
        *kept().lock().unwrap_or_else(PoisonError::into_inner) == Some(reason)
    }
}
