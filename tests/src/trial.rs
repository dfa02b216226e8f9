//! One trial of the most important promise, over any transport: the victim's state, and the verb
//! that forces it off its volumes.
//!
//! What must never happen here: a state of the victim that one of the verbs is never tried on.

use std::fmt::{self, Display, Formatter};

use anyhow::Result;
use mooring_rig::{Cut as Link, Networks, Vm};

use crate::control::Control;
use crate::site::Site;
use crate::slow::{self, Cut};

/// Number of states of a victim.
pub const STATES: u32 = 3;

/// The state of the host that is forced off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// Alive.
    Alive,
    /// Without a network.
    Cut,
    /// Without power.
    Off,
}

impl Victim {
    /// The state in the round with this number, from 0: they come in turn.
    pub const fn of(round: u32) -> Self {
        match round % STATES {
            0 => Self::Alive,
            1 => Self::Cut,
            _ => Self::Off,
        }
    }

    /// Brings the victim into this state.
    pub fn befall(self, vm: &Vm) -> Result<()> {
        match self {
            Self::Alive => Ok(()),
            Self::Cut => vm.cut(Link::Silent, Networks::Both),
            Self::Off => vm.power_cut(),
        }
    }
}

/// Returns `true` if the backend is slow in the round with this number: it is slow for all states
/// of the victim, and then for none.
pub const fn is_slow(round: u32) -> bool {
    (round / STATES).is_multiple_of(2)
}

/// The way in which a victim is forced off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Each attachment by itself.
    ForceDetach,
    /// The whole host at once.
    Fence,
}

impl Verb {
    /// The verb of the round with this number: each state of the victim has both within six rounds,
    /// and each with both backends within twelve.
    pub const fn of(round: u32) -> Self {
        if (round + round / (2 * STATES)).is_multiple_of(2) { Self::ForceDetach } else { Self::Fence }
    }

    /// Path of the receipt in the command's output.
    pub const fn receipt(self) -> &'static str {
        match self {
            Self::ForceDetach => "receipt",
            Self::Fence => "fence",
        }
    }

    /// Forces a host off everything that it has: attachments with their LVs. Repeats that while it
    /// is pending. Returns for each the last answer, and how many stamps landed after it.
    pub fn take_off<'h>(
        self,
        site: &Site,
        host: &str,
        held: impl Iterator<Item = (&'h str, String)>,
    ) -> Result<Vec<(String, u64)>> {
        let answer = "/run/fence-answer";
        let first = match self {
            Self::ForceDetach => "true".to_owned(),
            Self::Fence => {
                let fence = ["--json", "host", "fence", host, "--reason", "trial"];
                let fence = Control::repeated(&Control::words(&fence).join(" "));
                // A refused one prints the reason in place of an answer.
                format!("{fence} >{answer} 2>{answer}.why || cat {answer}.why >>{answer}")
            }
        };
        let cut = |(attachment, device): (&str, String)| {
            let words = match self {
                Self::ForceDetach => Control::repeated(&Control::force_words(attachment)),
                Self::Fence => format!("cat {answer}"),
            };
            Cut { words, device }
        };
        slow::landed_after_each(site, &first, &held.map(cut).collect::<Vec<_>>())
    }

    /// Lets the host have them again.
    pub fn undo(self, control: &Control<'_>, host: &str) -> Result<()> {
        match self {
            Self::ForceDetach => Ok(()),
            Self::Fence => control.json(&["host", "unfence", host]).map(|_| ()),
        }
    }
}

impl Display for Verb {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ForceDetach => "force-detached",
            Self::Fence => "fenced",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VICTIMS: [Victim; 3] = [Victim::Alive, Victim::Cut, Victim::Off];
    const VERBS: [Verb; 2] = [Verb::ForceDetach, Verb::Fence];

    #[test]
    fn each_state_has_both_verbs_within_six_and_both_backends_within_twelve() {
        for first in [0, 6, 12, 18] {
            for victim in VICTIMS {
                for verb in VERBS {
                    let is = |round: &u32| Victim::of(*round) == victim && Verb::of(*round) == verb;
                    assert!((first..first + 6).any(|round| is(&round)), "{victim:?} {verb:?} from {first}");
                    let mut backends: Vec<_> = (first..first + 12).filter(is).map(is_slow).collect();
                    backends.sort_unstable();
                    assert_eq!(backends, [false, true], "{victim:?} {verb:?} from {first}");
                }
            }
        }
    }

    #[test]
    fn of_a_soak_each_state_has_as_much_of_each_verb() {
        for victim in VICTIMS {
            for verb in VERBS {
                let is = |round: &u32| Victim::of(*round) == victim && Verb::of(*round) == verb;
                assert_eq!((0..60).filter(is).count(), 10, "{victim:?} {verb:?}");
            }
        }
    }
}
