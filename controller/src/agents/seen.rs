//! Last reports of volumes, kept small: for each of a hundred thousand volumes the bytes of the
//! wire format, decoded when somebody asks. As values they would be some thirty allocations per
//! volume.
//!
//! What must never happen here: a report that is decoded to something other than what it was.

use mooring_api::{Message, reports, v1};
use mooring_model::{
    Cause, ExportReport, FcGrantReport, Generation, GrantReport, Initiator, Naa, Receipt, SessionReport,
    Stamp, VolumeId, VolumeReport, Wwpn,
};
use tokio::time::Instant;

use super::words::clean;

/// The last known state of one volume, by its storage agent.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenVolume {
    /// The stamp of the volume's spec that the agent stores.
    pub(crate) volume_stamp: Option<Stamp>,
    /// The stamp of the export's spec that the agent stores.
    pub(crate) export_stamp: Option<Stamp>,
    /// The volume's last report.
    pub(crate) volume: Option<VolumeReport>,
    /// The export's last report.
    pub(crate) export: Option<ExportReport>,
    /// Receipts that came by themselves and are not stored yet.
    pub(crate) receipts: Vec<Receipt>,
}

impl SeenVolume {
    /// Converts this volume's status from the wire.
    pub(crate) fn of(id: VolumeId, status: &v1::VolumeStatus) -> Self {
        Self {
            volume_stamp: reports::stamp(status.volume_stamp.as_ref()),
            export_stamp: reports::stamp(status.export_stamp.as_ref()),
            volume: reports::volume_of(status.volume.as_ref(), id),
            export: reports::export_of(status.export.as_ref(), id),
            receipts: status.receipts.iter().filter_map(reports::receipt).collect(),
        }
    }
}

/// The way in which a report came.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Heard {
    /// Through the stream of reports, in the order in which the agent made them.
    Reported,
    /// In the answer to a call that began at this moment: later reports of the agent may have come
    /// before the answer.
    Answered(Instant),
}

impl Heard {
    /// Returns `true` if another report was taken after this one was asked for.
    fn is_overtaken(self, last: Option<Instant>) -> bool {
        matches!(self, Self::Answered(asked) if last > Some(asked))
    }
}

/// The compact form of [`SeenVolume`]. Callers pass the volume's id: most names contain it, and the
/// kept form contains it nowhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept {
    /// The stamp of the volume's spec that the agent stores.
    pub(crate) volume_stamp: Option<Stamp>,
    /// The stamp of the export's spec that the agent stores.
    pub(crate) export_stamp: Option<Stamp>,
    volume: Option<Box<[u8]>>,
    /// The time of the volume's last report.
    volume_at: Option<Instant>,
    export: Option<Box<[u8]>>,
    /// The generation of the export's report.
    generation: Option<Generation>,
    /// The time of the export's last report.
    export_at: Option<Instant>,
    /// The time from which only a look that begins later shows the sessions. `None`: a look has.
    outdated: Option<Instant>,
    /// An initiator could be logged in and is not.
    pub(super) quiet: bool,
    /// Only few volumes at a time have any of this.
    moved: Option<Box<Moved>>,
}

/// Values that only a change of an export brings.
#[derive(Debug, Clone, Default)]
struct Moved {
    put_at: Option<Instant>,
    receipts: Vec<Receipt>,
    proven_at: Option<Generation>,
}

/// State of a session that is logged in, as LIO names it.
const LOGGED_IN: &str = "LOGGED_IN";

/// Returns the sessions of a grant that are logged in.
pub(crate) fn logged_in(grant: &GrantReport) -> impl Iterator<Item = &SessionReport> {
    grant.sessions.iter().filter(|session| session.state == LOGGED_IN)
}

/// Returns the grants of a report over Fibre Channel: one for each initiator port at each target
/// port.
pub(crate) fn fc_grants(report: &ExportReport) -> impl Iterator<Item = &FcGrantReport> {
    report.fc.iter().flat_map(|port| &port.grants)
}

/// Returns `true` if a host's port is logged in at a target port, for this volume or another one:
/// over Fibre Channel nothing shows for which.
pub(crate) fn fc_logged_in(report: &ExportReport, wwpn: Wwpn) -> bool {
    fc_grants(report).any(|grant| grant.initiator == wwpn && grant.logged_in)
}

/// Returns `true` if a report shows a session of this initiator. A session counts in every state:
/// one that is just starting or ending does not prove an absence.
pub(crate) fn has_session(report: &ExportReport, initiator: &Initiator) -> bool {
    match initiator {
        Initiator::Iscsi(iqn) => {
            report.grants.iter().any(|grant| grant.initiator == *iqn && !grant.sessions.is_empty())
        }
        Initiator::Fc(wwpn) => fc_logged_in(report, *wwpn),
    }
}

/// Returns `true` if a report shows an initiator that could be logged in and is not; whether it
/// should be does not matter. A host's missing port counts even if the host is logged in through
/// another port: a report does not say which ports belong to one host.
fn is_quiet(report: &ExportReport) -> bool {
    let quiet = |grant: &GrantReport| grant.seen.is_some() && logged_in(grant).next().is_none();
    let quiet_fc = |grant: &FcGrantReport| grant.seen.is_some() && !fc_logged_in(report, grant.initiator);
    report.looked.is_some() && (report.grants.iter().any(quiet) || fc_grants(report).any(quiet_fc))
}

/// Stands for the volume's id at the end of a name. No name contains this character.
const ID: char = '\0';

fn shorten(name: &mut String, id: &str) {
    if name.ends_with(id) {
        name.truncate(name.len() - id.len());
        name.push(ID);
    }
}

fn lengthen(name: &mut String, id: &str) {
    if name.ends_with(ID) {
        name.pop();
        name.push_str(id);
    }
}

fn packed(report: &impl Message) -> Box<[u8]> {
    report.encode_to_vec().into_boxed_slice()
}

fn packed_volume(report: &VolumeReport) -> Box<[u8]> {
    let mut report = v1::VolumeReport::from(report);
    let id = std::mem::take(&mut report.volume_id);
    shorten(&mut report.device, &id);
    clean(&mut report.problems);
    packed(&report)
}

fn packed_export(report: &ExportReport) -> Box<[u8]> {
    let mut report = v1::ExportReport::from(report);
    let id = std::mem::take(&mut report.volume_id);
    shorten(&mut report.target, &id);
    if report.naa == Naa::of_serial(&id).as_str() {
        report.naa.clear();
    }
    clean(&mut report.problems);
    for grant in &mut report.grants {
        for session in grant.sessions.iter_mut().filter(|session| session.initiator == grant.initiator) {
            session.initiator.clear();
        }
    }
    packed(&report)
}

impl Kept {
    /// Packs what is known from one list or answer.
    pub(super) fn new(seen: SeenVolume) -> Self {
        let mut kept = Self {
            volume_stamp: seen.volume_stamp,
            export_stamp: seen.export_stamp,
            export_at: Some(Instant::now()),
            ..Self::default()
        };
        if !seen.receipts.is_empty() {
            kept.moved().receipts = seen.receipts;
        }
        if let Some(report) = seen.volume {
            kept.see_volume(&report, Heard::Reported);
        }
        if let Some(report) = seen.export {
            kept.see_export(&report, Heard::Reported);
        }
        kept
    }

    fn moved(&mut self) -> &mut Moved {
        self.moved.get_or_insert_default()
    }

    /// Takes a report of the volume. `false`: another report came after this one was asked for, and
    /// nothing shows which of the two is later.
    pub(super) fn see_volume(&mut self, report: &VolumeReport, heard: Heard) -> bool {
        if heard.is_overtaken(self.volume_at) {
            return false;
        }
        self.volume_at = Some(Instant::now());
        self.volume = Some(packed_volume(report));
        true
    }

    /// Takes a report of the export, unless a report of a newer generation is known. If one of this
    /// generation came after this one was asked for, takes its sessions only, if they are from a
    /// later look: each change yields both an answer and a report. Returns `true` if it says
    /// anything new.
    pub(super) fn see_export(&mut self, report: &ExportReport, heard: Heard) -> bool {
        let generation = Some(report.generation);
        if self.generation > generation {
            return false;
        }
        if self.generation == generation && heard.is_overtaken(self.export_at) {
            return self.see_sessions(report);
        }
        self.export_at = Some(Instant::now());
        let new = packed_export(report);
        let news = self.export.as_ref() != Some(&new);
        self.generation = Some(report.generation);
        self.export = Some(new);
        self.quiet = is_quiet(report);
        news
    }

    /// Takes the sessions, counters and logins of a report whose look at them is later than the
    /// kept one. Returns `true` if it is.
    fn see_sessions(&mut self, report: &ExportReport) -> bool {
        let Some(mut kept) = self.export(report.volume) else { return false };
        if report.looked <= kept.looked {
            return false;
        }
        (kept.looked, kept.unlisted_sessions) = (report.looked, report.unlisted_sessions);
        for grant in &mut kept.grants {
            if let Some(seen) = report.grants.iter().find(|seen| seen.initiator == grant.initiator) {
                (grant.sessions, grant.counters) = (seen.sessions.clone(), seen.counters);
            }
        }
        for port in &mut kept.fc {
            let Some(seen) = report.fc.iter().find(|seen| seen.port == port.port) else { continue };
            for grant in &mut port.grants {
                if let Some(seen) = seen.grants.iter().find(|seen| seen.initiator == grant.initiator) {
                    (grant.logged_in, grant.counters) = (seen.logged_in, seen.counters);
                }
            }
        }
        self.export = Some(packed_export(&kept));
        self.quiet = is_quiet(&kept);
        true
    }

    /// Returns the last report of the volume, which has this id.
    pub(crate) fn volume(&self, id: VolumeId) -> Option<VolumeReport> {
        let mut report = v1::VolumeReport::decode(self.volume.as_deref()?).ok()?;
        report.volume_id = id.to_string();
        lengthen(&mut report.device, &report.volume_id);
        reports::volume(&report)
    }

    /// Returns the last report of the export of the volume with this id.
    pub(crate) fn export(&self, id: VolumeId) -> Option<ExportReport> {
        let mut report = v1::ExportReport::decode(self.export.as_deref()?).ok()?;
        report.volume_id = id.to_string();
        lengthen(&mut report.target, &report.volume_id);
        if report.naa.is_empty() {
            Naa::of_serial(&report.volume_id).as_str().clone_into(&mut report.naa);
        }
        for grant in &mut report.grants {
            for session in grant.sessions.iter_mut().filter(|session| session.initiator.is_empty()) {
                session.initiator.clone_from(&grant.initiator);
            }
        }
        reports::export(&report)
    }

    /// Makes what is known of the sessions count as outdated until a look begins after this moment.
    pub(super) fn outdate_export(&mut self) {
        self.outdated = Some(Instant::now());
    }

    /// Returns `true` if a look that was asked for at this moment shows what was outdated.
    pub(super) fn is_renewed_by(&self, asked: Instant) -> bool {
        self.outdated.is_some_and(|outdated| outdated <= asked)
    }

    /// Notes that such a look has ended.
    pub(super) fn renew_export(&mut self) {
        self.outdated = None;
    }

    /// Returns the time of the export's last report. `None` if there is none, or it is outdated:
    /// reports that come by themselves change nothing in that, for most are made without a look at
    /// the sessions.
    pub(super) fn export_at(&self) -> Option<Instant> {
        self.export_at.filter(|_| self.outdated.is_none())
    }

    /// Notes that the agent stores this spec of the export now. `proven`: all receipts of the spec
    /// came with the answer, proven.
    pub(super) fn took_export(&mut self, stamp: Stamp, proven: bool) {
        let moved = self.moved();
        moved.proven_at = proven.then_some(stamp.generation);
        moved.put_at = Some(Instant::now());
        self.export_stamp = Some(stamp);
    }

    /// Returns the time at which the export's spec was last sent.
    pub(super) fn put_at(&self) -> Option<Instant> {
        self.moved.as_ref()?.put_at
    }

    /// Keeps a receipt that came by itself. `false`: it came with an answer already.
    pub(super) fn see_receipt(&mut self, receipt: Receipt) -> bool {
        let moved = self.moved();
        // A receipt that was not caused by a revocation, for a nexus cut while its grant stays,
        // comes with no answer.
        let news = moved.proven_at != Some(receipt.generation) || receipt.cause != Cause::Revoke;
        if news {
            moved.receipts.push(receipt);
        }
        news
    }

    pub(super) fn receipt_since(&self, initiator: &Initiator, since: Generation) -> Option<&Receipt> {
        let mut receipts = self.moved.iter().flat_map(|moved| &moved.receipts);
        receipts.find(|it| it.initiator == *initiator && it.generation >= since)
    }

    pub(super) fn take_receipts(&mut self) -> Vec<Receipt> {
        self.moved.as_mut().map(|moved| std::mem::take(&mut moved.receipts)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use mooring_model::{
        ByteSize, Counters, Cure, FcPortReport, LUN_DEFAULT, Mode, Phase, Problem, Registration,
        ReservationHolder, ReservationType, Reservations, StuckStep,
    };

    use super::*;

    fn problem() -> Problem {
        Problem { object: "o".to_owned(), text: "t".to_owned(), cure: Cure::Operator }
    }

    fn reservations() -> Reservations {
        let registration = |key| Registration {
            initiator: "iqn.2026-01.lab:a".parse().unwrap(),
            isid: Some("800123450001".to_owned()),
            key,
        };
        let holder = ReservationHolder {
            initiator: "20:00:52:54:00:14:00:0b".parse().unwrap(),
            isid: None,
            kind: ReservationType::of_code(8),
            since: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(7)),
        };
        Reservations {
            generation: 3,
            registrations: vec![registration(u64::MAX)],
            truncated: true,
            holder: Some(holder),
            durable: true,
            lost: vec![registration(7)],
        }
    }

    fn volume() -> VolumeReport {
        VolumeReport {
            id: VolumeId::from_u128(7),
            phase: Phase::Ready,
            group: "vg0".to_owned(),
            size: ByteSize(1 << 30),
            device: Some("/dev/vg0/x".to_owned()),
            zeroed: Some(ByteSize(5)),
            problems: vec![problem()],
            reverted: None,
            uploaded: None,
            cut: mooring_model::Cut::InForce,
        }
    }

    fn export(counter: u64) -> ExportReport {
        let initiator: mooring_model::Iqn = "iqn.2026-01.lab:host1".parse().unwrap();
        let session = SessionReport {
            initiator: initiator.clone(),
            isid: "00023d000001".to_owned(),
            id: 4,
            addresses: vec!["10.0.0.7".to_owned()],
            state: "LOGGED_IN".to_owned(),
            in_flight: 2,
            since: Some(SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001)),
        };
        let grant = |seen| GrantReport {
            initiator: initiator.clone(),
            lun: LUN_DEFAULT,
            wanted: Mode::ReadWrite,
            seen,
            sessions: vec![session.clone()],
            counters: Counters { commands: 1, read_mib: 2, written_mib: 3, active: None },
            barrier: None,
        };
        ExportReport {
            volume: VolumeId::from_u128(7),
            generation: Generation { epoch: 1, counter },
            target: "iqn.2026-11.dev.mooring:x".parse().unwrap(),
            naa: Naa::of_serial("00000000-0000-0000-0000-000000000007"),
            portals: vec!["10.0.0.1:3260".parse().unwrap()],
            in_force: true,
            grants: vec![grant(Some(Mode::ReadOnly)), grant(None)],
            fc: Vec::new(),
            reservations: Some(reservations()),
            kept_reservations: Some("a line".to_owned()),
            problems: vec![problem()],
            stuck: Some(StuckStep { step: "s".to_owned(), since: Duration::from_millis(9) }),
            looked: Some(SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_002)),
            unlisted_sessions: Some(1),
        }
    }

    fn grant(seen: Option<Mode>, logged_in: bool) -> FcGrantReport {
        FcGrantReport {
            initiator: "20:00:52:54:00:14:00:0b".parse().unwrap(),
            lun: LUN_DEFAULT,
            wanted: Mode::ReadWrite,
            seen,
            logged_in,
            counters: Counters::default(),
        }
    }

    fn port(number: u8, grant: FcGrantReport) -> FcPortReport {
        FcPortReport {
            port: format!("fc/20:00:52:54:00:14:00:{number:02x}").parse().unwrap(),
            serves: true,
            grants: vec![grant],
        }
    }

    #[test]
    fn what_is_kept_is_what_was_said() {
        let id = VolumeId::from_u128(7);
        let seen = SeenVolume { volume: Some(volume()), export: Some(export(2)), ..SeenVolume::default() };
        let mut kept = Kept::new(seen);
        assert_eq!((kept.volume(id), kept.export(id)), (Some(volume()), Some(export(2))));
        // A repeated report is no news, an older one is not taken, a newer one is.
        let heard = Heard::Reported;
        assert!(!kept.see_export(&export(2), heard));
        assert!(!kept.see_export(&export(1), heard));
        assert_eq!(kept.export(id), Some(export(2)));
        assert!(kept.see_export(&export(3), heard));
        assert!(kept.see_export(&ExportReport { in_force: false, ..export(3) }, heard));
        assert!(!kept.export(id).unwrap().in_force);
        assert_eq!((Kept::default().volume(id), Kept::default().export(id)), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_dropped_when_a_report_came_since_it_was_asked_for() {
        let id = VolumeId::from_u128(7);
        let creating = VolumeReport { phase: Phase::Creating, ..volume() };
        let later = ExportReport { in_force: false, ..export(2) };
        let mut kept = Kept::default();
        let asked = Heard::Answered(Instant::now());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(kept.see_volume(&volume(), Heard::Reported) && kept.see_export(&later, Heard::Reported));
        // Nothing shows which report of a volume is later; the generation of an export's report
        // does.
        assert!(!kept.see_volume(&creating, asked) && !kept.see_export(&export(2), asked));
        assert_eq!((kept.volume(id), kept.export(id)), (Some(volume()), Some(later)));
        assert!(kept.see_export(&export(3), asked));
        // An answer to a question that is asked after the last report is taken.
        tokio::time::advance(Duration::from_millis(1)).await;
        let asked = Heard::Answered(Instant::now());
        assert!(kept.see_volume(&creating, asked) && !kept.see_export(&export(3), asked));
        assert_eq!((kept.volume(id), kept.export(id)), (Some(creating), Some(export(3))));
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_of_a_look_are_taken_though_a_report_without_one_came_first() {
        let id = VolumeId::from_u128(7);
        let look = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let with = |looked, logged_in: bool| {
            let fc = vec![port(1, grant(Some(Mode::ReadWrite), logged_in))];
            let mut report = ExportReport { looked, fc, ..export(2) };
            report.grants.truncate(1);
            if !logged_in {
                report.grants[0].sessions.clear();
            }
            report
        };
        let mut kept = Kept::default();
        let asked = Heard::Answered(Instant::now());
        tokio::time::advance(Duration::from_millis(1)).await;
        // A pass reports what it has made, with the sessions of an earlier look.
        let of_pass = ExportReport { in_force: false, ..with(look(1), false) };
        assert!(kept.see_export(&of_pass, Heard::Reported) && kept.quiet);
        assert!(kept.see_export(&with(look(2), true), asked) && !kept.quiet);
        let seen = kept.export(id).unwrap();
        assert_eq!(seen, ExportReport { in_force: false, ..with(look(2), true) });
        // An answer without a later look changes nothing.
        for earlier in [None, look(1), look(2)] {
            assert!(!kept.see_export(&with(earlier, false), asked));
        }
        assert_eq!(kept.export(id), Some(seen));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_outdated_is_so_until_a_look_that_began_later() {
        let mut kept = Kept::default();
        kept.see_export(&export(2), Heard::Reported);
        assert!(kept.export_at().is_some());
        let before = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        kept.outdate_export();
        assert!(kept.export_at().is_none() && !kept.is_renewed_by(before));
        // A pass reports what it has made, and has not looked at the sessions.
        kept.see_export(&ExportReport { in_force: false, ..export(2) }, Heard::Reported);
        assert!(kept.export_at().is_none());
        assert!(kept.is_renewed_by(Instant::now()));
        kept.renew_export();
        assert!(kept.export_at().is_some() && !kept.is_renewed_by(Instant::now()));
    }

    #[test]
    fn who_could_be_there_and_is_not() {
        let quiet = |change: fn(&mut ExportReport)| {
            let mut report = export(2);
            change(&mut report);
            Kept::new(SeenVolume { export: Some(report), ..SeenVolume::default() }).quiet
        };
        assert!(!quiet(|_| {}));
        assert!(quiet(|report| report.grants[0].sessions.clear()));
        assert!(quiet(|report| report.grants[0].sessions[0].state = "FAILED".to_owned()));
        assert!(!quiet(|report| report.grants[1].sessions.clear()), "its nexus is not complete");
        assert!(
            !quiet(|report| {
                report.grants[0].sessions.clear();
                report.looked = None;
            }),
            "nobody has looked"
        );
    }

    #[test]
    fn over_fibre_channel_somebody_is_there_who_is_at_one_port() {
        let (whole, there, away) = (Some(Mode::ReadWrite), true, false);
        for (one, two, quiet) in [
            (grant(whole, there), grant(whole, there), false),
            (grant(whole, there), grant(whole, away), false),
            (grant(whole, away), grant(whole, away), true),
            // One port with a complete nexus is enough to be logged in at.
            (grant(None, away), grant(whole, away), true),
            (grant(None, away), grant(None, away), false),
        ] {
            let fc = vec![port(1, one), port(2, two)];
            let report = ExportReport { grants: Vec::new(), fc, ..export(2) };
            assert_eq!(is_quiet(&report), quiet, "{report:?}");
            assert!(!is_quiet(&ExportReport { looked: None, ..report }), "nobody has looked");
        }
    }

    /// A name that follows from the id is restored, and any other name is kept as it was.
    #[test]
    fn names_come_back_whole() {
        let id = VolumeId::from_u128(7);
        let usual = ExportReport {
            target: format!("iqn.2026-11.dev.mooring:{id}").parse().unwrap(),
            naa: Naa::of_serial(&id.to_string()),
            ..export(2)
        };
        let other = ExportReport { naa: Naa::of_serial("recorded"), ..export(2) };
        let stranger = {
            let mut report = usual.clone();
            report.grants[0].sessions[0].initiator = "iqn.2026-01.lab:another".parse().unwrap();
            report
        };
        let sizes = [usual, other, stranger].map(|report| {
            let seen = SeenVolume { export: Some(report.clone()), ..SeenVolume::default() };
            let kept = Kept::new(seen);
            assert_eq!(kept.export(id), Some(report.clone()));
            (kept.export.unwrap().len(), packed(&v1::ExportReport::from(&report)).len())
        });
        assert!(sizes[0].0 + 150 < sizes[0].1, "{sizes:?}");
        for device in [Some(format!("/dev/vg0/mooring-{id}")), Some("/dev/vg0/x".to_owned()), None] {
            let report = VolumeReport { device, ..volume() };
            let kept = Kept::new(SeenVolume { volume: Some(report.clone()), ..SeenVolume::default() });
            assert_eq!(kept.volume(id), Some(report));
        }
    }
}
