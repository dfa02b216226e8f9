//! The state of an export's nexuses, by the agent's report.
//!
//! What must never happen here: a mode that one of several ports does not enforce.

use std::collections::BTreeSet;

use mooring_model::{AgentId, ExportReport, FcGrantReport, Initiator, Mode, Wwpn};

use super::Facts;
use crate::rules;
use crate::store::{Abort, AttachmentRow, Db, VolumeRow};

/// Returns the mode that the target allows an initiator. Over Fibre Channel: the mode that all
/// serving ports allow it. `None`: no access, or the ports differ.
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

/// Returns the mode that a nexus should have, by all attachments that share it. `None`: no access.
pub(crate) fn wanted_mode(rows: &[AttachmentRow], initiator: &Initiator) -> Option<Mode> {
    let has = |row: &&AttachmentRow| row.initiator.as_ref().is_some_and(|own| own.has(initiator));
    let sharing = rows.iter().filter(|row| row.wants_grant()).filter(has);
    rules::effective_mode(sharing.map(|row| row.mode))
}

/// Returns `true` if the report shows the wanted mode for every initiator of this attachment.
/// `rows`: all attachments of its volume.
pub(super) fn is_seen(report: &ExportReport, row: &AttachmentRow, rows: &[AttachmentRow]) -> bool {
    let seen = |initiator: Initiator| {
        let wanted = wanted_mode(rows, &initiator);
        wanted.is_some() && seen_mode(report, &initiator) == wanted
    };
    report.generation >= row.in_spec_since
        && row.initiator.as_ref().is_some_and(|initiators| initiators.each().all(seen))
}

impl Facts {
    /// Returns `true` if the storage agent's last report shows the grant that this attachment waits
    /// for. For a client's attachment, this is the meaning of "granted".
    pub(crate) fn sees_grant(&self, db: &Db<'_>, agent: AgentId, row: &AttachmentRow) -> Result<bool, Abort> {
        if row.initiator.is_some() && !row.is_coming() {
            return Ok(row.is_granted());
        }
        self.shows_grant(db, agent, row)
    }

    /// Returns `true` if the storage agent's last report shows the access of this attachment's
    /// nexus as it is wanted now, with its mode.
    pub(crate) fn shows_grant(
        &self,
        db: &Db<'_>,
        agent: AgentId,
        row: &AttachmentRow,
    ) -> Result<bool, Abort> {
        if row.initiator.is_none() {
            return Ok(false);
        }
        let Ok(agent) = self.agents.up(agent) else { return Ok(false) };
        let Some(report) = agent.export(row.volume) else { return Ok(false) };
        Ok(is_seen(&report, row, &db.attachments_of(row.volume)?))
    }
}

/// Returns `true` if a volume is still at the place that is stored: nobody needs to learn another
/// one.
pub(super) fn is_same_place(volume: &VolumeRow, report: &ExportReport) -> bool {
    volume.target.as_ref() == Some(&report.target)
        && volume.naa.as_ref() == Some(&report.naa)
        && volume.portals == report.portals
        && fc_ports(volume, report) == volume.fc_ports
}

/// Returns the ports that show a volume over Fibre Channel. While no grant uses that transport: the
/// ports that showed it last.
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

    /// A port that serves, with the modes that it allows these initiators.
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
            // Not on every port yet: neither the narrower mode nor the wider one is in force.
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
