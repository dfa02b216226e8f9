//! Answers of commands: the stable JSON. `display` renders the same for people.
//!
//! Field names never change their meaning; fields are only added. An unknown field is `null`; times
//! are RFC 3339 in UTC; sizes and counts are numbers.
//!
//! What must never happen here: a secret; a type of the wire (its names are not ours to keep).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;

use mooring_api::v1;
use mooring_model::{Cause, VolumeId};
use serde::Serialize;

use crate::capabilities::Capabilities;
use crate::error::{Exit, Failure};
use crate::problem::Problem;
use crate::select::name_of;
use crate::text::{list, mode, plain, some, time};

/// A command's answer, and whether the requested state is reached.
pub(crate) struct Reply<T> {
    /// The exit code of the command.
    pub exit: Exit,
    /// The answer that is printed.
    pub answer: T,
}

impl<T> Reply<T> {
    /// Makes the reply for a reached state.
    pub(crate) fn ok(answer: T) -> Self {
        Self { exit: Exit::Ok, answer }
    }

    /// Makes the reply for a state that is reached (`true`), or accepted and not reached yet.
    pub(crate) fn when(done: bool, answer: T) -> Self {
        Self { exit: if done { Exit::Ok } else { Exit::Pending }, answer }
    }
}

/// Renders an answer: JSON (pretty, or one line of a stream), or text.
pub(crate) fn render<T: Serialize + Display>(json: bool, line: bool, answer: &T) -> Result<String, Failure> {
    let encode = if line { serde_json::to_string } else { serde_json::to_string_pretty };
    if !json {
        return Ok(plain(&format!("{answer}\n")));
    }
    encode(answer)
        .map(|text| text + "\n")
        .map_err(|error| Failure::Answer(format!("it cannot be encoded: {error}")))
}

/// Prints the answer of a reply, and returns its exit code.
pub(crate) fn print<T: Serialize + Display>(json: bool, reply: &Reply<T>) -> Result<Exit, Failure> {
    // The command is done whether or not its answer can be written.
    let _ = write_out(&render(json, false, &reply.answer)?)?;
    Ok(reply.exit)
}

/// Writes to standard output. A reader that has gone (`mooring volume list | head -1`) is no error:
/// the result is `Break`.
pub(crate) fn write_out(text: &str) -> Result<ControlFlow<()>, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(Failure::Output(error)),
    }
}

fn phase(phase: v1::Phase) -> &'static str {
    match phase {
        v1::Phase::Unspecified => "unknown",
        v1::Phase::Creating => "creating",
        v1::Phase::Ready => "ready",
        v1::Phase::Deleting => "deleting",
        v1::Phase::Gone => "gone",
        v1::Phase::Failed => "failed",
        v1::Phase::Orphan => "orphan",
    }
}

/// Isolation of a volume.
#[derive(Debug, Serialize)]
pub(crate) struct Cut {
    /// `in_force`: no command reaches the disk. `pending`: requested, and not in force yet.
    pub state: &'static str,
    /// Time of the request; `null`: it was taken back.
    pub since: Option<String>,
}

impl Cut {
    pub(crate) fn of_wire(spec: Option<&v1::VolumeSpec>, report: &v1::VolumeReport) -> Option<Self> {
        let us = spec.map_or(0, |spec| spec.cut_us);
        let state = match report.cut() {
            v1::CutState::InForce => "in_force",
            v1::CutState::Pending => "pending",
            // An agent of a release that does not say.
            v1::CutState::Unspecified if us != 0 => "pending",
            v1::CutState::Unspecified => return None,
        };
        Some(Self { state, since: time(us) })
    }
}

/// The state of a volume.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeState {
    pub id: String,
    pub phase: &'static str,
    pub group: Option<String>,
    pub size_bytes: u64,
    pub device: Option<String>,
    /// Bytes zeroed so far, while zeroing is at work.
    pub zeroed_bytes: Option<u64>,
    /// Isolation from its disk; `null`: it is not isolated.
    pub cut: Option<Cut>,
    pub problems: Vec<Problem>,
}

impl VolumeState {
    fn of_report(id: &str, report: &v1::VolumeReport) -> Self {
        Self {
            id: id.to_owned(),
            phase: phase(report.phase()),
            group: some(&report.group),
            size_bytes: report.size_bytes,
            device: some(&report.device),
            zeroed_bytes: report.zeroed_bytes,
            cut: Cut::of_wire(None, report),
            problems: list(&report.problems, Problem::of_wire),
        }
    }
}

/// A volume, its export and its receipts.
#[derive(Debug, Serialize)]
pub(crate) struct Volume {
    #[serde(flatten)]
    pub state: VolumeState,
    pub name: Option<String>,
    /// EPOCH.COUNTER of its spec; `null` for an orphan.
    pub generation: Option<String>,
    /// `null`: it is not exported.
    pub export: Option<Export>,
    /// Receipts, newest first.
    pub receipts: Vec<Receipt>,
}

impl Volume {
    pub(crate) fn of_status(status: &v1::VolumeStatus) -> Self {
        let stamp = status.volume_stamp.as_ref();
        let report = status.volume.clone().unwrap_or_default();
        let mut state = VolumeState::of_report(&status.volume_id, &report);
        state.cut = Cut::of_wire(status.volume_spec.as_ref(), &report);
        Self {
            state,
            name: name_of(&status.volume_opaque),
            generation: generation(stamp.and_then(|stamp| stamp.generation.as_ref())),
            export: Export::of_status(status),
            receipts: list(&status.receipts, Receipt::of_wire),
        }
    }
}

fn generation(generation: Option<&v1::Generation>) -> Option<String> {
    generation.map(|generation| format!("{}.{}", generation.epoch, generation.counter))
}

/// `volume list`.
#[derive(Debug, Serialize)]
pub(crate) struct Volumes {
    pub volumes: Vec<Volume>,
}

/// `volume create`.
#[derive(Debug, Serialize)]
pub(crate) struct Created {
    /// `true`: the volume exists and can be used.
    pub done: bool,
    pub name: String,
    pub volume: VolumeState,
}

impl Created {
    pub(crate) fn new(done: bool, id: VolumeId, name: &str, report: &v1::VolumeReport) -> Self {
        let volume = VolumeState::of_report(&id.to_string(), report);
        Self { done, name: name.to_owned(), volume }
    }
}

/// `volume delete`.
#[derive(Debug, Serialize)]
pub(crate) struct Deleted {
    /// `true`: the volume and its data are gone.
    pub done: bool,
    pub volume_id: String,
    pub name: Option<String>,
    pub phase: &'static str,
    pub problems: Vec<Problem>,
}

impl Deleted {
    pub(crate) fn new(
        done: bool,
        id: VolumeId,
        name: Option<String>,
        report: Option<&v1::VolumeReport>,
    ) -> Self {
        Self {
            done,
            volume_id: id.to_string(),
            name,
            phase: if done { "gone" } else { report.map_or("unknown", |report| phase(report.phase())) },
            problems: report.map_or_else(Vec::new, |report| list(&report.problems, Problem::of_wire)),
        }
    }
}

/// A live session.
#[derive(Debug, Serialize)]
pub(crate) struct Session {
    pub initiator: String,
    pub isid: String,
    /// The target's number of it; `null` in the controller's answers.
    pub id: Option<u64>,
    pub addresses: Vec<String>,
    /// `null` in the controller's answers.
    pub state: Option<String>,
    /// Commands that the target has taken and not answered yet.
    pub in_flight: u32,
}

impl Session {
    fn of_wire(session: &v1::Session) -> Self {
        Self {
            initiator: session.initiator.clone(),
            isid: session.isid.clone(),
            id: Some(session.id),
            addresses: session.addresses.clone(),
            state: Some(session.state.clone()),
            in_flight: session.in_flight,
        }
    }
}

/// User names of a grant's credentials. Only the agent and the host know the secrets.
#[derive(Debug, Serialize)]
pub(crate) struct ChapNames {
    pub user: String,
    pub mutual_user: Option<String>,
}

/// One initiator that may reach the volume.
#[derive(Debug, Serialize)]
pub(crate) struct Grant {
    pub initiator: String,
    pub lun: u32,
    /// `rw` or `ro` in the spec; `null` for a nexus that exists without a grant.
    pub wanted: Option<&'static str>,
    /// The mode that the kernel enforces; `null` while the nexus is not complete.
    pub seen: Option<&'static str>,
    /// `null`: no CHAP, or (in `watch`) not reported.
    pub chap: Option<ChapNames>,
    pub attachments: Vec<String>,
    pub sessions: Vec<Session>,
    pub commands: u64,
    pub read_mib: u64,
    pub written_mib: u64,
}

impl Grant {
    fn new(report: &v1::GrantReport, spec: Option<&v1::Grant>) -> Self {
        let chap = spec.and_then(|spec| spec.chap.as_ref()).map(|chap| ChapNames {
            user: chap.initiator.as_ref().map(|side| side.user.clone()).unwrap_or_default(),
            mutual_user: chap.mutual.as_ref().map(|side| side.user.clone()),
        });
        Self {
            initiator: report.initiator.clone(),
            lun: report.lun,
            wanted: mode(report.wanted()),
            seen: mode(report.seen()),
            chap,
            attachments: spec.map(|spec| spec.attachment_ids.clone()).unwrap_or_default(),
            sessions: list(&report.sessions, Session::of_wire),
            commands: report.commands,
            read_mib: report.read_mib,
            written_mib: report.written_mib,
        }
    }

    /// Makes a grant that is in the spec and not in the kernel yet.
    fn wanted(spec: &v1::Grant) -> Self {
        let report = v1::GrantReport {
            initiator: spec.initiator.clone(),
            lun: spec.lun,
            wanted: spec.mode,
            ..Default::default()
        };
        Self::new(&report, Some(spec))
    }
}

/// A kernel call that has not returned.
#[derive(Debug, Serialize)]
pub(crate) struct Stuck {
    pub step: String,
    pub since_ms: u64,
}

/// A grant over one Fibre Channel port.
#[derive(Debug, Serialize)]
pub(crate) struct FcGrant {
    /// `fc/20:00:…`
    pub port: String,
    pub initiator: String,
    pub lun: u32,
    pub wanted: Option<&'static str>,
    /// The mode that the kernel enforces; `null` while the nexus is not complete.
    pub seen: Option<&'static str>,
    /// `true`: the target holds a login of the initiator, for this volume or another.
    pub logged_in: bool,
    pub commands: u64,
    pub read_mib: u64,
    pub written_mib: u64,
}

impl FcGrant {
    fn new(port: &str, report: &v1::FcGrantReport) -> Self {
        Self {
            port: port.to_owned(),
            initiator: report.initiator.clone(),
            lun: report.lun,
            wanted: mode(report.wanted()),
            seen: mode(report.seen()),
            logged_in: report.logged_in,
            commands: report.commands,
            read_mib: report.read_mib,
            written_mib: report.written_mib,
        }
    }
}

/// An export as its agent reports it.
#[derive(Debug, Serialize)]
pub(crate) struct Export {
    pub volume_id: String,
    /// EPOCH.COUNTER of the spec that the agent works on.
    pub generation: Option<String>,
    pub target: Option<String>,
    pub naa: Option<String>,
    pub portals: Vec<String>,
    /// Tuning of iSCSI sessions in the spec.
    pub tuning: BTreeMap<String, String>,
    /// `true`: the kernel shows everything that is in the spec.
    pub in_force: bool,
    pub grants: Vec<Grant>,
    /// Grants over Fibre Channel, one for each port and initiator.
    pub fibre_channel: Vec<FcGrant>,
    /// Sessions at the target beyond those of its grants; `null`: unknown.
    pub unlisted_sessions: Option<u32>,
    pub problems: Vec<Problem>,
    pub stuck: Option<Stuck>,
}

impl Export {
    fn of_status(status: &v1::VolumeStatus) -> Option<Self> {
        let specs = status.export_spec.as_ref().map_or(&[][..], |spec| &spec.grants);
        let report = match (&status.export, &status.export_spec) {
            (Some(report), _) => report.clone(),
            // In the spec, and the agent has not looked yet.
            (None, Some(_)) => v1::ExportReport { volume_id: status.volume_id.clone(), ..Default::default() },
            (None, None) => return None,
        };
        let said = status.export_spec.iter().flat_map(|spec| &spec.tuning);
        let tuning = said.map(|one| (one.name.clone(), one.value.clone())).collect();
        Some(Self { tuning, ..Self::new(&report, specs) })
    }

    fn new(report: &v1::ExportReport, specs: &[v1::Grant]) -> Self {
        let spec_of = |initiator: &str| specs.iter().find(|spec| spec.initiator == initiator);
        let mut grants = list(&report.grants, |grant| Grant::new(grant, spec_of(&grant.initiator)));
        let unseen = specs.iter().filter(|spec| report.grants.iter().all(|g| g.initiator != spec.initiator));
        grants.extend(unseen.map(Grant::wanted));
        Self {
            volume_id: report.volume_id.clone(),
            generation: generation(report.generation.as_ref()),
            target: some(&report.target),
            naa: some(&report.naa),
            portals: report.portals.clone(),
            tuning: BTreeMap::new(),
            in_force: report.in_force,
            grants,
            fibre_channel: report
                .fc
                .iter()
                .flat_map(|port| port.grants.iter().map(|grant| FcGrant::new(&port.port, grant)))
                .collect(),
            unlisted_sessions: report.unlisted_sessions,
            problems: list(&report.problems, Problem::of_wire),
            stuck: report
                .stuck
                .as_ref()
                .map(|stuck| Stuck { step: stuck.step.clone(), since_ms: stuck.since_ms }),
        }
    }
}

/// The record of a revoke.
#[derive(Debug, Serialize)]
pub(crate) struct Receipt {
    pub volume_id: String,
    pub initiator: String,
    pub attachments: Vec<String>,
    pub generation: Option<String>,
    /// `false`: the kernel had nothing to remove. `null` while unproven.
    pub nexus_removed: Option<bool>,
    pub sessions_cut: Vec<Session>,
    /// `true`: no command of this nexus lands any more.
    pub proven: bool,
    /// Commands that may still land while it is unproven. `null`: any number may.
    pub may_still_land: Option<u32>,
    pub began: Option<String>,
    /// `null` while unproven.
    pub ended: Option<String>,
    pub took_us: Option<i64>,
    /// The initiator's hold of the volume's reservation when the revoke began.
    pub held_reservation: Option<String>,
    /// The cause: `revoke`, a reservation while its grant stands (`reservation`,
    /// `reservation_kept_out`), or a forgotten storage node (`forgotten`).
    pub cause: String,
}

impl Receipt {
    /// Returns `true` if it can never be proven: its storage node was forgotten.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.cause == Cause::Forgotten.to_string()
    }

    fn of_wire(receipt: &v1::Receipt) -> Self {
        let ended = (receipt.ended_us != 0).then_some(receipt.ended_us);
        Self {
            volume_id: receipt.volume_id.clone(),
            initiator: receipt.initiator.clone(),
            attachments: receipt.attachment_ids.clone(),
            generation: generation(receipt.generation.as_ref()),
            nexus_removed: receipt.proven.then_some(receipt.nexus_removed),
            sessions_cut: list(&receipt.sessions_cut, Session::of_wire),
            proven: receipt.proven,
            may_still_land: (!receipt.uncounted).then_some(receipt.may_still_land),
            began: time(receipt.began_us),
            ended: ended.and_then(time),
            took_us: ended.map(|ended| ended.saturating_sub(receipt.began_us)),
            held_reservation: receipt.reservation().map(|held| held.to_string()),
            cause: receipt.why().to_string(),
        }
    }
}

/// Durations of the parts of a change.
#[derive(Debug, Serialize)]
pub(crate) struct Timing {
    pub durable_us: u64,
    /// `null`: the kernel did not show it by the deadline.
    pub seen_us: Option<u64>,
}

/// `export grant`.
#[derive(Debug, Serialize)]
pub(crate) struct Granted {
    /// `true`: the kernel shows the grant.
    pub done: bool,
    pub volume_id: String,
    pub name: Option<String>,
    pub generation: Option<String>,
    pub target: Option<String>,
    pub portals: Vec<String>,
    pub naa: Option<String>,
    pub grant: Grant,
    pub problems: Vec<Problem>,
    pub stuck: Option<Stuck>,
    pub timing: Option<Timing>,
}

impl Granted {
    pub(crate) fn new(
        status: &v1::VolumeStatus,
        wanted: &v1::Grant,
        response: &v1::PutExportResponse,
    ) -> Self {
        let report = response.report.clone().unwrap_or_default();
        let export = Export::new(&report, std::slice::from_ref(wanted));
        let grant = export.grants.into_iter().find(|grant| grant.initiator == wanted.initiator);
        Self {
            done: response.done,
            volume_id: status.volume_id.clone(),
            name: name_of(&status.volume_opaque),
            generation: export.generation,
            target: export.target,
            portals: export.portals,
            naa: export.naa,
            grant: grant.unwrap_or_else(|| Grant::wanted(wanted)),
            problems: export.problems,
            stuck: export.stuck,
            timing: response.timing.as_ref().map(|timing| Timing {
                durable_us: timing.durable_us,
                seen_us: (timing.seen_us != 0).then_some(timing.seen_us),
            }),
        }
    }
}

/// `export revoke`.
#[derive(Debug, Serialize)]
pub(crate) struct Revoked {
    pub volume_id: String,
    pub name: Option<String>,
    pub initiator: String,
    /// `false`: it was not granted (any more) when the command arrived.
    pub was_granted: bool,
    /// The receipt of this revoke, or of the initiator's last one.
    pub receipt: Option<Receipt>,
    pub problems: Vec<Problem>,
    pub stuck: Option<Stuck>,
}

impl Revoked {
    pub(crate) fn new(
        status: &v1::VolumeStatus,
        initiator: &str,
        was_granted: bool,
        receipt: Option<&v1::Receipt>,
        report: Option<&v1::ExportReport>,
    ) -> Self {
        let export = report.map(|report| Export::new(report, &[]));
        let (problems, stuck) = export.map_or((Vec::new(), None), |export| (export.problems, export.stuck));
        Self {
            volume_id: status.volume_id.clone(),
            name: name_of(&status.volume_opaque),
            initiator: initiator.to_owned(),
            was_granted,
            receipt: receipt.map(Receipt::of_wire),
            problems,
            stuck,
        }
    }
}

/// `export show`.
#[derive(Debug, Serialize)]
pub(crate) struct ExportShown {
    pub volume_id: String,
    pub name: Option<String>,
    /// `null`: the volume is not exported.
    pub export: Option<Export>,
    /// Receipts, newest first.
    pub receipts: Vec<Receipt>,
}

impl ExportShown {
    pub(crate) fn of_status(status: &v1::VolumeStatus) -> Self {
        Self {
            volume_id: status.volume_id.clone(),
            name: name_of(&status.volume_opaque),
            export: Export::of_status(status),
            receipts: list(&status.receipts, Receipt::of_wire),
        }
    }
}

/// One planned step.
#[derive(Debug, Serialize)]
pub(crate) struct PlannedStep {
    pub volume_id: String,
    pub step: String,
    pub why: String,
}

/// `plan`.
#[derive(Debug, Serialize)]
pub(crate) struct Planned {
    pub steps: Vec<PlannedStep>,
    /// Obstacles that the agent leaves alone, and who can remove them.
    pub blocked: Vec<Problem>,
}

impl Planned {
    pub(crate) fn of_response(response: &v1::PlanResponse) -> Self {
        let step = |step: &v1::PlannedStep| PlannedStep {
            volume_id: step.volume_id.clone(),
            step: step.step.clone(),
            why: step.why.clone(),
        };
        Self { steps: list(&response.steps, step), blocked: list(&response.blocked, Problem::of_wire) }
    }
}

/// One report of `watch`.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Event {
    Volume {
        volume: VolumeState,
    },
    Export {
        export: Export,
    },
    Receipt {
        receipt: Receipt,
    },
    Agent {
        agent: Capabilities,
    },
    /// Everything known was reported; changes follow.
    Synced,
}

impl Event {
    pub(crate) fn of_report(what: &v1::report::What) -> Self {
        use v1::report::What;
        match what {
            What::Volume(report) => {
                Self::Volume { volume: VolumeState::of_report(&report.volume_id, report) }
            }
            What::Export(report) => Self::Export { export: Export::new(report, &[]) },
            What::Receipt(receipt) => Self::Receipt { receipt: Receipt::of_wire(receipt) },
            What::Capabilities(wire) => Self::Agent { agent: Capabilities::of_wire(wire) },
            What::Synced(_) => Self::Synced,
        }
    }
}

/// One line of `watch`.
#[derive(Debug, Serialize)]
pub(crate) struct EventLine {
    /// Time when this program received it.
    pub at: String,
    #[serde(flatten)]
    pub event: Event,
}
