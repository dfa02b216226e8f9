//! SCSI-3 persistent reservations of a volume, as the target keeps them for its initiators.
//!
//! What must never happen here: a key that is rounded; a type that SPC-4 does not have.

use std::fmt;
use std::time::SystemTime;

use crate::Initiator;

/// The type of a persistent reservation (SPC-4, PERSISTENT RESERVE OUT, TYPE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReservationType {
    /// Only the holder writes.
    WriteExclusive,
    /// Only the holder reads and writes.
    ExclusiveAccess,
    /// Only registered initiators write.
    WriteExclusiveRegistrantsOnly,
    /// Only registered initiators read and write.
    ExclusiveAccessRegistrantsOnly,
    /// As [`Self::WriteExclusiveRegistrantsOnly`]; all registered initiators hold it.
    WriteExclusiveAllRegistrants,
    /// As [`Self::ExclusiveAccessRegistrantsOnly`]; all registered initiators hold it.
    ExclusiveAccessAllRegistrants,
}

impl ReservationType {
    /// All types.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// The type's number in SCSI commands.
    pub fn code(self) -> u8 {
        match self {
            Self::WriteExclusive => 1,
            Self::ExclusiveAccess => 3,
            Self::WriteExclusiveRegistrantsOnly => 5,
            Self::ExclusiveAccessRegistrantsOnly => 6,
            Self::WriteExclusiveAllRegistrants => 7,
            Self::ExclusiveAccessAllRegistrants => 8,
        }
    }

    /// The type with this number; `None` if SPC-4 has none.
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns `true` if every registered initiator holds it.
    pub fn is_held_by_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }
}

impl fmt::Display for ReservationType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteExclusive => "write exclusive",
            Self::ExclusiveAccess => "exclusive access",
            Self::WriteExclusiveRegistrantsOnly => "write exclusive, registrants only",
            Self::ExclusiveAccessRegistrantsOnly => "exclusive access, registrants only",
            Self::WriteExclusiveAllRegistrants => "write exclusive, all registrants",
            Self::ExclusiveAccessAllRegistrants => "exclusive access, all registrants",
        })
    }
}

/// One initiator port that has registered a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The initiator.
    pub initiator: Initiator,
    /// Initiator session id, 12 hexadecimal digits; `None` over Fibre Channel, or where the target
    /// does not distinguish sessions.
    pub isid: Option<String>,
    /// The registered key.
    pub key: u64,
}

/// The holder of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationHolder {
    /// The initiator.
    pub initiator: Initiator,
    /// As in [`Registration`].
    pub isid: Option<String>,
    /// The type. `None`: the older RESERVE(6) or RESERVE(10) of SPC-2, which ends with its session.
    pub kind: Option<ReservationType>,
    /// Time when the agent first saw it; `None`: the agent does not say.
    pub since: Option<SystemTime>,
}

impl ReservationHolder {
    /// Returns `true` if it ends with its session: a RESERVE(6) or RESERVE(10) does, a persistent
    /// reservation does not.
    pub fn ends_with_its_session(&self) -> bool {
        self.kind.is_none()
    }

    /// Returns `true` if two views show one reservation: holder, ISID and type are equal. The times
    /// of the views do not count.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.initiator, &self.isid, self.kind) == (&other.initiator, &other.isid, other.kind)
    }
}

/// Registrations and reservation of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reservations {
    /// The target's counter of changes (PRGENERATION). It starts from 0 again with the storage
    /// node.
    pub generation: u32,
    /// The registrations.
    pub registrations: Vec<Registration>,
    /// The kernel's list was cut at one page: there may be more registrations.
    pub truncated: bool,
    /// The holder; `None`: the volume is not reserved.
    pub holder: Option<ReservationHolder>,
    /// They survive a loss of power (APTPL): the agent keeps them and restores them.
    pub durable: bool,
    /// Kept registrations that the kernel does not have back.
    pub lost: Vec<Registration>,
}

impl Reservations {
    /// Returns `true` if nothing is registered, reserved or lost.
    pub fn is_empty(&self) -> bool {
        self.registrations.is_empty() && self.holder.is_none() && self.lost.is_empty()
    }

    /// Returns `true` if this initiator holds the reservation, alone or with all registered ones.
    pub fn is_held_by(&self, initiator: &Initiator) -> bool {
        let Some(holder) = &self.holder else { return false };
        let all = holder.kind.is_some_and(ReservationType::is_held_by_all);
        holder.initiator == *initiator
            || (all && self.registrations.iter().any(|one| one.initiator == *initiator))
    }

    /// This initiator's hold of the reservation; `None` if it holds nothing.
    pub fn held_by(&self, initiator: &Initiator) -> Option<HeldReservation> {
        let holder = self.holder.as_ref().filter(|_| self.is_held_by(initiator))?;
        Some(HeldReservation { kind: holder.kind })
    }
}

/// An initiator's hold of a volume's reservation. The target removes it with the initiator's
/// access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeldReservation {
    /// The type; `None`: the older RESERVE(6).
    pub kind: Option<ReservationType>,
}

impl HeldReservation {
    /// The reservation's fate when the initiator loses its access, in words.
    pub fn end(self) -> &'static str {
        if self.kind.is_some_and(ReservationType::is_held_by_all) {
            "it loses its part with its access, and the reservation ends with the last registrant"
        } else {
            "the reservation is released with its access"
        }
    }
}

impl fmt::Display for HeldReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => kind.fmt(f),
            None => f.write_str("RESERVE(6)"),
        }
    }
}

/// An operator's removal of a volume's reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationsChange {
    /// Removes every registration and the reservation.
    Clear,
    /// Removes the registrations with one key, and the reservation if one of them holds it.
    Preempt {
        /// The key.
        key: u64,
        /// The commands that those initiators have in flight are aborted first.
        abort: bool,
    },
}

/// The reservations before and after such a change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReservationsChanged {
    /// State before the change; `None`: there were none.
    pub before: Option<Reservations>,
    /// State after it, as the kernel shows it; `None`: there are none.
    pub now: Option<Reservations>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: &str = "the reservation is released with its access";

    #[test]
    fn codes_are_those_of_scsi() {
        let codes: Vec<u8> = ReservationType::ALL.into_iter().map(ReservationType::code).collect();
        assert_eq!(codes, [1, 3, 5, 6, 7, 8]);
        for code in 0..=u8::MAX {
            assert_eq!(
                ReservationType::of_code(code).map(ReservationType::code),
                codes.contains(&code).then_some(code)
            );
        }
    }

    #[test]
    fn of_all_registrants_everybody_holds_it() {
        let [a, b, c]: [Initiator; 3] =
            ["iqn.2026-01.lab:a", "iqn.2026-01.lab:b", "iqn.2026-01.lab:c"].map(|name| name.parse().unwrap());
        let of = |initiator: &Initiator| Registration { initiator: initiator.clone(), isid: None, key: 1 };
        let holder = |kind| {
            Some(ReservationHolder {
                initiator: a.clone(),
                isid: None,
                kind: ReservationType::of_code(kind),
                since: None,
            })
        };
        let mut all = Reservations {
            registrations: vec![of(&a), of(&b)],
            holder: holder(5),
            ..Reservations::default()
        };
        assert_eq!([&a, &b, &c].map(|one| all.is_held_by(one)), [true, false, false]);
        assert_eq!(all.held_by(&b), None);
        let alone = all.held_by(&a).unwrap();
        assert_eq!((alone.to_string().as_str(), alone.end()), ("write exclusive, registrants only", ALONE));
        all.holder = holder(7);
        assert_eq!([&a, &b, &c].map(|one| all.is_held_by(one)), [true, true, false]);
        assert_ne!(all.held_by(&b).unwrap().end(), ALONE, "the others hold it on");
        all.holder.as_mut().unwrap().kind = None;
        let old = all.held_by(&a).unwrap();
        assert_eq!((old.to_string().as_str(), old.end()), ("RESERVE(6)", ALONE));
        assert_eq!(all.held_by(&b), None);
        all.holder = None;
        assert!(!all.is_held_by(&a) && !all.is_empty());
    }
}
