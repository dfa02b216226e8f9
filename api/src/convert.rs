//! Conversion between wire and model. Arriving data is checked here, once; errors name the field.

use std::fmt::Display;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mooring_model as model;
use mooring_model::{
    BackstoreName, ByteSize, Chap, ChapSide, Cure, Digest, ExistingLv, ExportIdentity, ExportSpec,
    FcExportSpec, FcGrant, Generation, Grant, ImageSource, InitiatorSlot, LvName, Mode, Phase, Provisioning,
    Revert, Secret, Source, SpecError, Stamp, Tuning, TuningKey, TuningValue, VolumeId, VolumeKind,
    VolumeSpec,
};

use crate::field::{lun, parse, target};
use crate::{image, v1};

/// Checks an arriving stamp.
pub fn stamp_from_wire(stamp: Option<&v1::Stamp>) -> Result<Stamp, SpecError> {
    let stamp = stamp.ok_or_else(|| SpecError::new("stamp", "is missing"))?;
    let generation =
        stamp.generation.as_ref().ok_or_else(|| SpecError::new("stamp.generation", "is missing"))?;
    let generation = Generation { epoch: generation.epoch, counter: generation.counter };
    if generation == Generation::ZERO {
        return Err(SpecError::new("stamp.generation", "0.0 stands for 'never': start with counter 1"));
    }
    let digest = Digest::new(stamp.digest.clone()).ok_or_else(|| {
        SpecError::new("stamp.digest", format!("has {} bytes; want 16 to 64", stamp.digest.len()))
    })?;
    Ok(Stamp { generation, digest })
}

/// Converts a generation for the wire.
pub fn generation_to_wire(generation: Generation) -> v1::Generation {
    v1::Generation { epoch: generation.epoch, counter: generation.counter }
}

/// Converts a stamp for the wire.
pub fn stamp_to_wire(stamp: &Stamp) -> v1::Stamp {
    v1::Stamp {
        generation: Some(generation_to_wire(stamp.generation)),
        digest: stamp.digest.as_bytes().to_vec(),
    }
}

/// Checks an arriving volume's spec.
pub fn volume_from_wire(id: VolumeId, spec: &v1::VolumeSpec) -> Result<VolumeSpec, SpecError> {
    let provisioning = match spec.provisioning() {
        v1::Provisioning::Thick => Provisioning::Thick,
        v1::Provisioning::Thin => Provisioning::Thin,
        v1::Provisioning::Unspecified => {
            return Err(SpecError::new("provisioning", "is missing or unknown: want THICK or THIN"));
        }
    };
    let kind = match v1::VolumeKind::try_from(spec.kind) {
        Ok(v1::VolumeKind::Unspecified | v1::VolumeKind::Volume) => VolumeKind::Volume,
        Ok(v1::VolumeKind::Snapshot) => VolumeKind::Snapshot,
        Err(_) => return Err(SpecError::new("kind", "is unknown: want VOLUME or SNAPSHOT")),
    };
    let (source, image) = spec.source.as_ref().map_or(Ok((None, None)), source_from_wire)?;
    let spec = VolumeSpec {
        kind,
        source,
        image,
        takes: spec.takes.as_ref().map(takes_from_wire).transpose()?,
        revert: spec.revert.as_ref().map(revert_from_wire).transpose()?,
        upload: spec.upload.as_ref().map(image::upload_from_wire).transpose()?,
        cut: cut_from_wire(spec.cut_us)?,
        ..VolumeSpec::new(id, parse("group", &spec.group)?, ByteSize(spec.size_bytes), provisioning)
    };
    spec.check()?;
    Ok(spec)
}

fn source_from_wire(source: &v1::VolumeSource) -> Result<(Option<Source>, Option<ImageSource>), SpecError> {
    use v1::volume_source::Of;
    match &source.of {
        Some(Of::VolumeId(id)) => Ok((Some(Source::Volume(parse("source.volume_id", id)?)), None)),
        Some(Of::SnapshotId(id)) => Ok((Some(Source::Snapshot(parse("source.snapshot_id", id)?)), None)),
        Some(Of::Image(image)) => Ok((None, Some(image::from_wire(image)?))),
        None => Err(SpecError::new(
            "source",
            "names no source that this release knows: neither a volume, a snapshot nor an image",
        )),
    }
}

fn takes_from_wire(takes: &v1::ExistingLv) -> Result<ExistingLv, SpecError> {
    let name =
        LvName::existing(&takes.name).map_err(|error| SpecError::new("takes.name", error.to_string()))?;
    Ok(ExistingLv { name, uuid: takes.uuid.clone() })
}

fn cut_from_wire(us: i64) -> Result<Option<SystemTime>, SpecError> {
    let us = u64::try_from(us).map_err(|_| SpecError::new("cut_us", "is before 1970"))?;
    Ok(UNIX_EPOCH.checked_add(Duration::from_micros(us)).filter(|_| us > 0))
}

fn revert_from_wire(revert: &v1::Revert) -> Result<Revert, SpecError> {
    Ok(Revert {
        snapshot: parse("revert.snapshot_id", &revert.snapshot_id)?,
        id: parse("revert.revert_id", &revert.revert_id)?,
    })
}

/// Checks an arriving export's spec.
pub fn export_from_wire(volume: VolumeId, spec: &v1::ExportSpec) -> Result<ExportSpec, SpecError> {
    let portals = spec
        .portals
        .iter()
        .enumerate()
        .map(|(i, text)| parse(format_args!("portals[{i}]"), text))
        .collect::<Result<Vec<_>, _>>()?;
    let grants = spec
        .grants
        .iter()
        .enumerate()
        .map(|(i, grant)| grant_from_wire(i, grant))
        .collect::<Result<Vec<_>, _>>()?;
    let identity = identity_from_wire(spec.identity.as_ref())?;
    let fc = spec.fc.as_ref().map(fc_from_wire).transpose()?.unwrap_or_default();
    let tuning = tuning_from_wire(&spec.tuning)?;
    let spec = ExportSpec { volume, identity, portals, grants, fc, tuning };
    spec.check()?;
    Ok(spec)
}

/// Checks the tuning of an export's sessions.
pub fn tuning_from_wire(said: &[v1::Tuning]) -> Result<Tuning, SpecError> {
    let mut tuning = Tuning::default();
    for (i, one) in said.iter().enumerate() {
        let key: TuningKey = parse(format_args!("tuning[{i}].name"), &one.name)?;
        if tuning.get(key).is_some() {
            return Err(SpecError::new(format!("tuning[{i}].name"), format!("{key} is listed twice")));
        }
        let wrong = |why| SpecError::new(format!("tuning[{i}].value"), format!("{key}: {why}"));
        tuning.say(key, key.parse(&one.value).map_err(wrong)?);
    }
    Ok(tuning)
}

fn identity_from_wire(identity: Option<&v1::ExportIdentity>) -> Result<ExportIdentity, SpecError> {
    use v1::export_identity::Kind;
    match identity.and_then(|identity| identity.kind.as_ref()) {
        None => Err(SpecError::new("identity", "is missing: want derived or recorded")),
        Some(Kind::Derived(_)) => Ok(ExportIdentity::Derived),
        Some(Kind::Recorded(recorded)) => Ok(ExportIdentity::Recorded {
            iqn: target("identity.recorded.iqn", &recorded.iqn)?,
            tpg: u16::try_from(recorded.tpg)
                .map_err(|_| SpecError::new("identity.recorded.tpg", "is more than 65535"))?,
            lun: lun("identity.recorded.lun", recorded.lun)?,
            serial: recorded.serial.clone(),
            lv: recorded.lv.clone(),
            backstore: BackstoreName {
                hba: recorded.backstore_hba.clone(),
                name: recorded.backstore_name.clone(),
            },
            model_alias: recorded.model_alias,
        }),
    }
}

pub(crate) fn mode_from_wire(field: impl Display, mode: v1::Mode) -> Result<Mode, SpecError> {
    match mode {
        v1::Mode::ReadOnly => Ok(Mode::ReadOnly),
        v1::Mode::ReadWrite => Ok(Mode::ReadWrite),
        v1::Mode::Unspecified => {
            Err(SpecError::new(field.to_string(), "is missing or unknown: want READ_ONLY or READ_WRITE"))
        }
    }
}

fn grant_from_wire(index: usize, grant: &v1::Grant) -> Result<Grant, SpecError> {
    let at = |field: &str| format!("grants[{index}].{field}");
    let chap = grant.chap.as_ref().map(|chap| chap_from_wire(&at("chap"), chap)).transpose()?;
    let attachments = grant
        .attachment_ids
        .iter()
        .enumerate()
        .map(|(i, text)| parse(format_args!("grants[{index}].attachment_ids[{i}]"), text))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Grant {
        initiator: parse(at("initiator"), &grant.initiator)?,
        lun: lun(at("lun"), grant.lun)?,
        mode: mode_from_wire(at("mode"), grant.mode())?,
        chap,
        attachments,
        barrier: Some(grant.barrier.as_str())
            .filter(|text| !text.is_empty())
            .map(|text| parse(at("barrier"), text))
            .transpose()?,
    })
}

fn fc_from_wire(fc: &v1::FcExport) -> Result<FcExportSpec, SpecError> {
    let ports = fc.ports.iter().enumerate().map(|(i, text)| parse(format_args!("fc.ports[{i}]"), text));
    let grants = fc.grants.iter().enumerate().map(|(i, grant)| fc_grant_from_wire(i, grant));
    Ok(FcExportSpec { ports: ports.collect::<Result<_, _>>()?, grants: grants.collect::<Result<_, _>>()? })
}

fn fc_grant_from_wire(index: usize, grant: &v1::FcGrant) -> Result<FcGrant, SpecError> {
    let at = |field: &str| format!("fc.grants[{index}].{field}");
    let slot = u16::try_from(grant.slot).ok().and_then(InitiatorSlot::new);
    let attachments = grant.attachment_ids.iter().enumerate();
    let attachments =
        attachments.map(|(i, text)| parse(format_args!("fc.grants[{index}].attachment_ids[{i}]"), text));
    Ok(FcGrant {
        initiator: parse(at("initiator"), &grant.initiator)?,
        slot: slot
            .ok_or_else(|| SpecError::new(at("slot"), format!("is {}: want 1 to 65535", grant.slot)))?,
        lun: lun(at("lun"), grant.lun)?,
        mode: mode_from_wire(at("mode"), grant.mode())?,
        attachments: attachments.collect::<Result<_, _>>()?,
    })
}

fn fc_to_wire(fc: &FcExportSpec) -> v1::FcExport {
    let grant = |grant: &FcGrant| v1::FcGrant {
        initiator: grant.initiator.to_string(),
        slot: u32::from(grant.slot.get()),
        lun: u32::from(grant.lun.0),
        mode: v1::Mode::from(grant.mode).into(),
        attachment_ids: grant.attachments.iter().map(ToString::to_string).collect(),
    };
    v1::FcExport {
        ports: fc.ports.iter().map(ToString::to_string).collect(),
        grants: fc.grants.iter().map(grant).collect(),
    }
}

pub(crate) fn chap_from_wire(field: &str, chap: &v1::Chap) -> Result<Chap, SpecError> {
    let side =
        |side: &v1::ChapSide| ChapSide { user: side.user.clone(), secret: Secret::new(side.secret.clone()) };
    let initiator =
        chap.initiator.as_ref().ok_or_else(|| SpecError::new(format!("{field}.initiator"), "is missing"))?;
    Ok(Chap { initiator: side(initiator), mutual: chap.mutual.as_ref().map(side) })
}

pub(crate) fn chap_to_wire(chap: &Chap) -> v1::Chap {
    let side =
        |side: &ChapSide| v1::ChapSide { user: side.user.clone(), secret: side.secret.expose().to_owned() };
    v1::Chap { initiator: Some(side(&chap.initiator)), mutual: chap.mutual.as_ref().map(side) }
}

fn tuning_to_wire((key, value): (TuningKey, TuningValue)) -> v1::Tuning {
    v1::Tuning { name: key.name().to_owned(), value: value.text(key) }
}

/// Converts an export's spec for the wire, including secrets.
pub fn export_to_wire(spec: &ExportSpec) -> v1::ExportSpec {
    use v1::export_identity::Kind;
    let kind = match &spec.identity {
        ExportIdentity::Derived => Kind::Derived(v1::DerivedIdentity {}),
        ExportIdentity::Recorded { iqn, tpg, lun, serial, lv, backstore, model_alias } => {
            Kind::Recorded(v1::RecordedIdentity {
                iqn: iqn.to_string(),
                tpg: u32::from(*tpg),
                lun: u32::from(lun.0),
                serial: serial.clone(),
                lv: lv.clone(),
                backstore_hba: backstore.hba.clone(),
                backstore_name: backstore.name.clone(),
                model_alias: *model_alias,
            })
        }
    };
    let grant = |grant: &Grant| v1::Grant {
        initiator: grant.initiator.to_string(),
        lun: u32::from(grant.lun.0),
        mode: v1::Mode::from(grant.mode).into(),
        chap: grant.chap.as_ref().map(chap_to_wire),
        attachment_ids: grant.attachments.iter().map(ToString::to_string).collect(),
        barrier: grant.barrier.map_or_else(String::new, |id| id.to_string()),
    };
    v1::ExportSpec {
        identity: Some(v1::ExportIdentity { kind: Some(kind) }),
        portals: spec.portals.iter().map(ToString::to_string).collect(),
        grants: spec.grants.iter().map(grant).collect(),
        fc: Some(&spec.fc).filter(|fc| **fc != FcExportSpec::default()).map(fc_to_wire),
        tuning: spec.tuning.iter().map(tuning_to_wire).collect(),
    }
}

impl From<&VolumeSpec> for v1::VolumeSpec {
    fn from(spec: &VolumeSpec) -> Self {
        let provisioning = match spec.provisioning {
            Provisioning::Thick => v1::Provisioning::Thick,
            Provisioning::Thin => v1::Provisioning::Thin,
        };
        // Kinds that every agent knows leave the field unset, so that the digest of an old volume's
        // spec stays the same.
        let kind = match spec.kind {
            VolumeKind::Volume => v1::VolumeKind::Unspecified,
            VolumeKind::Snapshot => v1::VolumeKind::Snapshot,
        };
        let source = spec.source.map(|source| v1::VolumeSource {
            of: Some(match source {
                Source::Volume(id) => v1::volume_source::Of::VolumeId(id.to_string()),
                Source::Snapshot(id) => v1::volume_source::Of::SnapshotId(id.to_string()),
            }),
        });
        let image = spec.image.as_ref().map(image::to_wire);
        Self {
            group: spec.group.to_string(),
            size_bytes: spec.size.0,
            provisioning: provisioning.into(),
            kind: kind.into(),
            source: source.or(image),
            takes: spec.takes.as_ref().map(|takes| v1::ExistingLv {
                name: takes.name.as_str().to_owned(),
                uuid: takes.uuid.clone(),
            }),
            revert: spec.revert.map(|revert| v1::Revert {
                snapshot_id: revert.snapshot.to_string(),
                revert_id: revert.id.to_string(),
            }),
            upload: spec.upload.as_ref().map(image::upload_to_wire),
            cut_us: spec.cut.map_or(0, micros),
        }
    }
}

impl From<Mode> for v1::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::ReadOnly => Self::ReadOnly,
            Mode::ReadWrite => Self::ReadWrite,
        }
    }
}

impl From<Cure> for v1::Cure {
    fn from(cure: Cure) -> Self {
        match cure {
            Cure::Retry => Self::Retry,
            Cure::FixSpec => Self::FixSpec,
            Cure::Operator => Self::Operator,
            Cure::Bug => Self::Bug,
        }
    }
}

impl v1::HealthLevel {
    /// The level in lower case, as in metrics and `--json`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
            Self::Unspecified => "unknown",
        }
    }
}

impl v1::Wipe {
    /// The word in the agent's configuration. `None`: the agent does not say.
    pub const fn word(self) -> Option<&'static str> {
        match self {
            Self::None => Some("none"),
            Self::Zero => Some("zero"),
            Self::Discard => Some("discard"),
            Self::Unspecified => None,
        }
    }
}

impl From<Phase> for v1::Phase {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Creating => Self::Creating,
            Phase::Ready => Self::Ready,
            Phase::Deleting => Self::Deleting,
            Phase::Gone => Self::Gone,
            Phase::Failed => Self::Failed,
            Phase::Orphan => Self::Orphan,
        }
    }
}

impl From<&model::Problem> for v1::Problem {
    fn from(problem: &model::Problem) -> Self {
        Self {
            object: problem.object.clone(),
            text: problem.text.clone(),
            cure: v1::Cure::from(problem.cure).into(),
        }
    }
}

impl From<&model::VolumeReport> for v1::VolumeReport {
    fn from(report: &model::VolumeReport) -> Self {
        Self {
            volume_id: report.id.to_string(),
            phase: v1::Phase::from(report.phase).into(),
            group: report.group.clone(),
            size_bytes: report.size.0,
            device: report.device.clone().unwrap_or_default(),
            zeroed_bytes: report.zeroed.map(|size| size.0),
            problems: report.problems.iter().map(Into::into).collect(),
            reverted_id: report.reverted.map(|revert| revert.to_string()).unwrap_or_default(),
            uploaded_id: report.uploaded.map(|upload| upload.to_string()).unwrap_or_default(),
            cut: match report.cut {
                model::Cut::No => v1::CutState::Unspecified,
                model::Cut::Pending => v1::CutState::Pending,
                model::Cut::InForce => v1::CutState::InForce,
            }
            .into(),
        }
    }
}

impl From<model::JobKind> for v1::JobKind {
    fn from(kind: model::JobKind) -> Self {
        match kind {
            model::JobKind::Zero => Self::Zero,
            model::JobKind::Grow => Self::Grow,
            model::JobKind::Wipe => Self::Wipe,
            model::JobKind::Discard => Self::Discard,
            model::JobKind::Import => Self::Import,
            model::JobKind::Export => Self::Export,
        }
    }
}

impl From<&model::JobReport> for v1::Job {
    fn from(job: &model::JobReport) -> Self {
        Self {
            volume_id: job.volume.to_string(),
            kind: v1::JobKind::from(job.kind).into(),
            done_bytes: job.done.0,
            total_bytes: job.total.0,
            rate_bytes: job.rate.map(|rate| rate.0),
            since_us: micros(job.since),
            resumed_bytes: job.resumed.0,
            limited: job.limited,
        }
    }
}

/// Converts a job; `None` if its kind is newer than this program, or it names no volume.
pub fn job_from_wire(job: &v1::Job) -> Option<model::JobReport> {
    let kind = match job.kind() {
        v1::JobKind::Zero => model::JobKind::Zero,
        v1::JobKind::Grow => model::JobKind::Grow,
        v1::JobKind::Wipe => model::JobKind::Wipe,
        v1::JobKind::Discard => model::JobKind::Discard,
        v1::JobKind::Import => model::JobKind::Import,
        v1::JobKind::Export => model::JobKind::Export,
        v1::JobKind::Unspecified => return None,
    };
    let since = Duration::from_micros(u64::try_from(job.since_us).unwrap_or(0));
    Some(model::JobReport {
        volume: job.volume_id.parse().ok()?,
        kind,
        done: model::ByteSize(job.done_bytes.min(job.total_bytes)),
        total: model::ByteSize(job.total_bytes),
        rate: job.rate_bytes.map(model::ByteSize),
        since: UNIX_EPOCH.checked_add(since)?,
        resumed: model::ByteSize(job.resumed_bytes.min(job.done_bytes)),
        limited: job.limited,
    })
}

impl From<&model::SessionReport> for v1::Session {
    fn from(session: &model::SessionReport) -> Self {
        Self {
            initiator: session.initiator.to_string(),
            isid: session.isid.clone(),
            id: session.id,
            addresses: session.addresses.clone(),
            state: session.state.clone(),
            in_flight: session.in_flight,
            since_us: session.since.map_or(0, micros),
        }
    }
}

impl From<&model::GrantReport> for v1::GrantReport {
    fn from(grant: &model::GrantReport) -> Self {
        Self {
            initiator: grant.initiator.to_string(),
            lun: u32::from(grant.lun.0),
            wanted: v1::Mode::from(grant.wanted).into(),
            seen: grant.seen.map_or(v1::Mode::Unspecified, v1::Mode::from).into(),
            sessions: grant.sessions.iter().map(Into::into).collect(),
            commands: grant.counters.commands,
            read_mib: grant.counters.read_mib,
            written_mib: grant.counters.written_mib,
            active_us: grant.counters.active.map_or(0, micros),
            barrier: grant.barrier.map_or_else(String::new, |id| id.to_string()),
        }
    }
}

impl From<&model::FcPortReport> for v1::FcPortReport {
    fn from(report: &model::FcPortReport) -> Self {
        let grant = |grant: &model::FcGrantReport| v1::FcGrantReport {
            initiator: grant.initiator.to_string(),
            lun: u32::from(grant.lun.0),
            wanted: v1::Mode::from(grant.wanted).into(),
            seen: grant.seen.map_or(v1::Mode::Unspecified, v1::Mode::from).into(),
            logged_in: grant.logged_in,
            commands: grant.counters.commands,
            read_mib: grant.counters.read_mib,
            written_mib: grant.counters.written_mib,
            active_us: grant.counters.active.map_or(0, micros),
        };
        Self {
            port: report.port.to_string(),
            serves: report.serves,
            grants: report.grants.iter().map(grant).collect(),
        }
    }
}

impl From<&model::ExportReport> for v1::ExportReport {
    fn from(report: &model::ExportReport) -> Self {
        Self {
            volume_id: report.volume.to_string(),
            generation: Some(generation_to_wire(report.generation)),
            target: report.target.to_string(),
            naa: report.naa.to_string(),
            portals: report.portals.iter().map(ToString::to_string).collect(),
            in_force: report.in_force,
            grants: report.grants.iter().map(Into::into).collect(),
            problems: report.problems.iter().map(Into::into).collect(),
            stuck: report.stuck.as_ref().map(Into::into),
            fc: report.fc.iter().map(Into::into).collect(),
            looked_us: report.looked.map_or(0, micros),
            unlisted_sessions: report.unlisted_sessions,
            reservations: report.reservations.as_ref().map(Into::into),
            kept_reservations: report.kept_reservations.clone(),
        }
    }
}

impl From<&model::Reservations> for v1::Reservations {
    fn from(seen: &model::Reservations) -> Self {
        let registration = |one: &model::Registration| v1::Registration {
            initiator: one.initiator.to_string(),
            isid: one.isid.clone().unwrap_or_default(),
            key: one.key,
        };
        Self {
            generation: seen.generation,
            registrations: seen.registrations.iter().map(registration).collect(),
            truncated: seen.truncated,
            holder: seen.holder.as_ref().map(|holder| v1::ReservationHolder {
                initiator: holder.initiator.to_string(),
                isid: holder.isid.clone().unwrap_or_default(),
                r#type: holder.kind.map_or(0, |kind| kind.code().into()),
                since_us: holder.since.map_or(0, micros),
            }),
            durable: seen.durable,
            lost: seen.lost.iter().map(registration).collect(),
        }
    }
}

impl From<&model::StuckStep> for v1::StuckStep {
    fn from(stuck: &model::StuckStep) -> Self {
        Self {
            step: stuck.step.clone(),
            since_ms: u64::try_from(stuck.since.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

pub(crate) fn micros(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use mooring_model::Lun;

    use super::*;

    fn volume() -> VolumeId {
        VolumeId::from_u128(7)
    }

    fn export() -> ExportSpec {
        ExportSpec {
            volume: volume(),
            identity: ExportIdentity::Derived,
            portals: vec!["10.0.0.1:3260".parse().unwrap()],
            grants: vec![Grant {
                initiator: "iqn.2026-01.lab:host1".parse().unwrap(),
                lun: Lun(1),
                mode: Mode::ReadOnly,
                chap: Some(Chap {
                    initiator: ChapSide { user: "u".into(), secret: Secret::new("secret-of-twelve") },
                    mutual: Some(ChapSide { user: "m".into(), secret: Secret::new("another-of-twelve") }),
                }),
                attachments: vec![model::AttachmentId::from_u128(9)],
                barrier: Some(model::BarrierId::from_u128(11)),
            }],
            fc: FcExportSpec {
                ports: vec!["fc/20:00:52:54:00:14:00:0a".parse().unwrap()],
                grants: vec![FcGrant {
                    initiator: "20:00:52:54:00:14:00:0b".parse().unwrap(),
                    slot: InitiatorSlot::new(7).unwrap(),
                    lun: Lun(255),
                    mode: Mode::ReadOnly,
                    attachments: vec![model::AttachmentId::from_u128(10)],
                }],
            },
            tuning: TuningKey::ALL.into_iter().map(|key| (key, key.kernel_default())).collect(),
        }
    }

    /// An export without tuning is encoded as before there was tuning, so its digest stays the
    /// same.
    #[test]
    fn an_export_that_is_not_tuned_is_encoded_as_ever() {
        let plain = export_to_wire(&ExportSpec { tuning: Tuning::default(), ..export() });
        assert!(plain.tuning.is_empty());
        assert_ne!(crate::digest(&plain, &[]), crate::digest(&export_to_wire(&export()), &[]), "the control");
    }

    #[test]
    fn an_export_survives_the_wire() {
        assert_eq!(export_from_wire(volume(), &export_to_wire(&export())).unwrap(), export());
    }

    /// An adopted export: it keeps its names, and LUN 0.
    fn adopted() -> ExportSpec {
        let mut spec = export();
        spec.identity = ExportIdentity::Recorded {
            iqn: "iqn.2010-10.org.openstack:volume-1".parse().unwrap(),
            tpg: 2,
            lun: Lun(0),
            serial: "5a0c".into(),
            lv: "volume-1".into(),
            backstore: BackstoreName {
                hba: "iblock_0".into(),
                name: "iqn.2010-10.org.openstack:volume-1".into(),
            },
            model_alias: true,
        };
        spec.grants[0].lun = Lun(0);
        spec
    }

    #[test]
    fn an_adopted_export_survives_the_wire() {
        assert_eq!(export_from_wire(volume(), &export_to_wire(&adopted())).unwrap(), adopted());
        let mut derived = export_to_wire(&adopted());
        derived.identity = export_to_wire(&export()).identity;
        assert_eq!(export_from_wire(volume(), &derived).unwrap_err().field, "grants[0].lun");
        for lv in ["", "a/b", "a@b", ".."] {
            let mut spec = adopted();
            let ExportIdentity::Recorded { lv: name, .. } = &mut spec.identity else { panic!("recorded") };
            lv.clone_into(name);
            assert_eq!(export_from_wire(volume(), &export_to_wire(&spec)).unwrap_err().field, "identity");
        }
    }

    fn fc(spec: &mut v1::ExportSpec) -> &mut v1::FcExport {
        spec.fc.as_mut().unwrap()
    }

    #[test]
    fn errors_say_which_field() {
        let check = |change: fn(&mut v1::ExportSpec), field: &str| {
            let mut spec = export_to_wire(&export());
            change(&mut spec);
            assert_eq!(export_from_wire(volume(), &spec).unwrap_err().field, field);
        };
        check(|s| s.identity = None, "identity");
        check(|s| s.portals = vec!["10.0.0.1:0".into()], "portals[0]");
        check(|s| s.portals.push("10.0.0.1:3260".into()), "portals");
        check(|s| s.grants[0].initiator = "host1".into(), "grants[0].initiator");
        check(|s| s.grants[0].lun = 70_000, "grants[0].lun");
        check(|s| s.grants[0].mode = 77, "grants[0].mode");
        check(|s| s.grants[0].attachment_ids = vec!["x".into()], "grants[0].attachment_ids[0]");
        check(|s| s.grants[0].chap.as_mut().unwrap().initiator = None, "grants[0].chap.initiator");
        check(
            |s| {
                s.grants[0].chap.as_mut().unwrap().mutual.as_mut().unwrap().secret =
                    "secret-of-twelve".into();
            },
            "grants[0].chap.mutual.secret",
        );
        check(|s| s.grants.push(s.grants[0].clone()), "grants[1].initiator");
        check(|s| s.tuning[1].name = "x".into(), "tuning[1].name");
        check(|s| s.tuning[1].name = "header_digest".into(), "tuning[1].name");
        check(|s| s.tuning[2].value = "513".into(), "tuning[2].value");
        check(|s| s.tuning[4].value = "262145".into(), "tuning.first_burst");
        check(|s| fc(s).ports[0] = "fc".into(), "fc.ports[0]");
        check(|s| fc(s).ports.push("qla2xxx/20:00:52:54:00:14:00:0a".into()), "fc.ports");
        check(|s| fc(s).grants[0].initiator = "iqn.2026-01.lab:host1".into(), "fc.grants[0].initiator");
        check(|s| fc(s).grants[0].slot = 0, "fc.grants[0].slot");
        check(|s| fc(s).grants[0].slot = 65_536, "fc.grants[0].slot");
        check(|s| fc(s).grants[0].lun = 256, "fc.grants[0].lun");
        check(|s| fc(s).grants[0].mode = 0, "fc.grants[0].mode");
        check(|s| fc(s).grants[0].attachment_ids[0].clear(), "fc.grants[0].attachment_ids[0]");
        for secret in ["short", "with a newline\n", "NULL"] {
            let mut spec = export_to_wire(&export());
            spec.grants[0].chap.as_mut().unwrap().initiator.as_mut().unwrap().secret = secret.into();
            let error = export_from_wire(volume(), &spec).unwrap_err();
            assert!(
                error.field.starts_with("grants[0].chap") && !error.to_string().contains(secret.trim())
                    || secret == "NULL"
            );
        }
    }

    #[test]
    fn volume_sizes_have_limits() {
        let spec = |size_bytes| v1::VolumeSpec {
            group: "vg0".into(),
            size_bytes,
            provisioning: 1,
            ..Default::default()
        };
        assert!(volume_from_wire(volume(), &spec(4 << 20)).is_ok());
        for wrong in [0, 1, (4 << 20) + 1, u64::MAX, u64::MAX - 511] {
            assert_eq!(volume_from_wire(volume(), &spec(wrong)).unwrap_err().field, "size", "{wrong}");
        }
        assert_eq!(
            volume_from_wire(volume(), &v1::VolumeSpec { provisioning: 9, ..spec(4 << 20) })
                .unwrap_err()
                .field,
            "provisioning"
        );
        assert_eq!(
            volume_from_wire(volume(), &v1::VolumeSpec { group: "../x".into(), ..spec(4 << 20) })
                .unwrap_err()
                .field,
            "group"
        );
    }

    #[test]
    fn an_lv_to_be_taken_is_checked_and_comes_through() {
        let takes = |name: &str, uuid: &str| v1::VolumeSpec {
            group: "vg0".to_owned(),
            size_bytes: 4 << 20,
            provisioning: v1::Provisioning::Thick.into(),
            takes: Some(v1::ExistingLv { name: name.to_owned(), uuid: uuid.to_owned() }),
            ..Default::default()
        };
        let good = takes("data", "LlIhCw-6uUF-Aw7u-f1w7-Il0J-LbiF-yTPvnC");
        let spec = volume_from_wire(volume(), &good).unwrap();
        assert_eq!(v1::VolumeSpec::from(&spec), good);
        for (bad, field) in [
            (takes("a/b", "x"), "takes.name"),
            (takes("--config", "x"), "takes.name"),
            (takes("a", ""), "takes.uuid"),
            (takes("a", "x y"), "takes.uuid"),
            (
                v1::VolumeSpec {
                    kind: v1::VolumeKind::Snapshot.into(),
                    provisioning: v1::Provisioning::Thin.into(),
                    ..good
                },
                "takes",
            ),
        ] {
            assert_eq!(volume_from_wire(volume(), &bad).unwrap_err().field, field);
        }
    }

    #[test]
    fn stamps_are_checked() {
        assert_eq!(stamp_from_wire(None).unwrap_err().field, "stamp");
        let stamp = |epoch, counter, length| v1::Stamp {
            generation: Some(v1::Generation { epoch, counter }),
            digest: vec![1; length],
        };
        assert!(stamp_from_wire(Some(&stamp(0, 1, 32))).is_ok());
        assert_eq!(stamp_from_wire(Some(&stamp(0, 0, 32))).unwrap_err().field, "stamp.generation");
        for length in [0, 15, 65] {
            assert_eq!(stamp_from_wire(Some(&stamp(1, 1, length))).unwrap_err().field, "stamp.digest");
        }
    }
}
