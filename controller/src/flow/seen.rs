//! What the report of an export says of its nexuses.
//!
//! What must never happen here: a mode that one port of several does not enforce.

use std::collections::BTreeSet;

use mooring_model::{ExportReport, FcGrantReport, Initiator, Mode, Wwpn};

use crate::rules;
use crate::store::{AttachmentRow, VolumeRow};

/// What the target allows an initiator. Over Fibre Channel what all ports that serve allow it: `None` while they differ.
pub(crate) fn seen_mode(report: &ExportReport, initiator: &Initiator) -> Option<Mode> {
    match initiator {
        Initiator::Iscsi(iqn) => report.grants.iter().find(|grant| &grant.initiator == iqn)?.seen,
        Initiator::Fc(wwpn) => {
            let ports = report.fc.iter().filter(|port| port.serves);
            let grant = |grants: &[FcGrantReport]| {
                grants.iter().find(|grant| grant.initiator == *wwpn).and_then(|grant| grant.seen)
            };
            let mut seen = ports.map(|port| grant(&port.grants));
            let first = seen.next().flatten();
            first.filter(|_| seen.all(|other| other == first))
        }
    }
}

/// What a nexus is to be allowed, by all of its attachments.
pub(crate) fn wanted_mode(rows: &[AttachmentRow], initiator: &Initiator) -> Option<Mode> {
    let has = |row: &&AttachmentRow| row.initiator.as_ref().is_some_and(|own| own.has(initiator));
    let sharing = rows.iter().filter(|row| row.grant_wanted).filter(has);
    rules::effective_mode(sharing.map(|row| row.mode))
}

/// The report shows what is wanted of every initiator of this attachment now. `rows`: all of its volume.
pub(super) fn is_seen(report: &ExportReport, row: &AttachmentRow, rows: &[AttachmentRow]) -> bool {
    let seen = |initiator: Initiator| {
        let wanted = wanted_mode(rows, &initiator);
        wanted.is_some() && seen_mode(report, &initiator) == wanted
    };
    report.generation >= row.wished_at
        && row.initiator.as_ref().is_some_and(|initiators| initiators.each().all(seen))
}

/// A volume is where it was: nobody needs to be told another place.
pub(super) fn is_same_place(volume: &VolumeRow, report: &ExportReport) -> bool {
    volume.target.as_ref() == Some(&report.target)
        && volume.naa.as_ref() == Some(&report.naa)
        && volume.portals == report.portals
        && fc_ports(volume, report) == volume.fc_ports
}

/// The ports that show a volume over Fibre Channel. While nobody has it over that, those that showed it last.
pub(super) fn fc_ports(volume: &VolumeRow, report: &ExportReport) -> BTreeSet<Wwpn> {
    if report.fc.is_empty() {
        return volume.fc_ports.clone();
    }
    report.fc.iter().filter(|port| port.serves).map(|port| port.port.wwpn).collect()
}

#[cfg(test)]
mod tests {
    use mooring_model::{Counters, FcPortReport, Generation, Lun, Naa};

    use super::*;

    fn wwpn(number: u64) -> Wwpn {
        Wwpn::from_u64(number).unwrap()
    }

    /// A port that serves, with what it allows these initiators.
    fn port(number: u64, seen: &[(u64, Option<Mode>)]) -> FcPortReport {
        let grant = |(initiator, seen): &(u64, Option<Mode>)| FcGrantReport {
            initiator: wwpn(*initiator),
            lun: Lun(1),
            wanted: Mode::ReadOnly,
            seen: *seen,
            logged_in: true,
            counters: Counters::default(),
        };
        let port = format!("fc/{}", wwpn(number)).parse().unwrap();
        FcPortReport { port, serves: true, grants: seen.iter().map(grant).collect() }
    }

    fn report(fc: Vec<FcPortReport>) -> ExportReport {
        ExportReport {
            volume: mooring_model::VolumeId::from_u128(1),
            generation: Generation::ZERO,
            target: "iqn.2026-11.dev.mooring:x".parse().unwrap(),
            naa: Naa::of_serial("1"),
            portals: Vec::new(),
            in_force: true,
            grants: Vec::new(),
            fc,
            reservations: None,
            kept_reservations: None,
            problems: Vec::new(),
            looked: None,
            unlisted_sessions: None,
            stuck: None,
        }
    }

    #[test]
    fn a_mode_is_seen_when_every_port_that_serves_enforces_it() {
        use Mode::{ReadOnly, ReadWrite};
        let (ro, rw) = (Some(ReadOnly), Some(ReadWrite));
        let deaf = FcPortReport { serves: false, ..port(13, &[(1, None)]) };
        for (ports, seen) in [
            (vec![], None),
            (vec![port(11, &[])], None),
            (vec![port(11, &[(2, ro)])], None),
            (vec![port(11, &[(1, ro), (2, rw)])], ro),
            (vec![port(11, &[(1, None)])], None),
            (vec![port(11, &[(1, ro)]), port(12, &[(1, ro)])], ro),
            // Not everywhere yet: neither the narrower mode nor the wider one is true.
            (vec![port(11, &[(1, ro)]), port(12, &[(1, rw)])], None),
            (vec![port(11, &[(1, rw)]), port(12, &[(1, ro)])], None),
            (vec![port(11, &[(1, ro)]), port(12, &[])], None),
            (vec![port(11, &[(1, ro)]), deaf.clone()], ro),
            (vec![deaf], None),
        ] {
            assert_eq!(seen_mode(&report(ports.clone()), &wwpn(1).into()), seen, "{ports:?}");
        }
    }
}
