//! Makes rows from what agents store. Pure: asks nothing and writes nothing.
//!
//! A volume is taken over only if the data kept beside its specs explains them: the export that its
//! rows want must equal the export that its agent stores, to the last grant and secret. Otherwise
//! the volume is named and left as it is.
//!
//! What must never happen here: a guess that would change a grant; a secret in a note.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use mooring_api::{Message, reports, v1};
use mooring_model::{
    AgentId, AttachmentId, Cache, Chap, ExistingLv, ExportReport, ExportSpec, FcGrant, InitiatorSlot, Iqn,
    Lun, LvName, Mode, Phase, PoolName, Stamp, VolumeId, VolumeReport, Wwpn,
};
use serde_json::json;
use uuid::Uuid;

use super::ask::Heard;
use super::{AgentReport, RebuildError};
use crate::domain::{AttachStatus, AttachmentStatus, Hints, HostImage, VolumeStatus, VolumeType};
use crate::error::Refusal;
use crate::flow::seen::seen_mode;
use crate::flow::volume_specs::{self, GIB};
use crate::initiators::{HostPorts, Initiators};
use crate::kept::{KeptAttachment, KeptExport, KeptType, KeptVolume};
use crate::rules::{Operation, tuning};
use crate::service::ZONE_DEFAULT;
use crate::store::{
    Abort, Access, AttachmentRow, Connector, KeptOperations, Kind, Nexus, SpecContent, SpecRow, VolumeRow,
    time_of,
};

/// Everything that is to be written.
#[derive(Debug)]
pub(super) struct Found {
    /// An epoch above everything that any agent stores.
    pub(super) epoch: u64,
    pub(super) types: Vec<FoundType>,
    pub(super) volumes: Vec<FoundVolume>,
    pub(super) reports: Vec<AgentReport>,
    pub(super) notes: Vec<String>,
}

/// A volume type, as its volumes keep it.
#[derive(Debug)]
pub(super) struct FoundType {
    pub(super) of: VolumeType,
    pub(super) projects: Vec<String>,
}

/// A volume with everything that belongs to it.
#[derive(Debug)]
pub(super) struct FoundVolume {
    pub(super) row: VolumeRow,
    pub(super) attachments: Vec<AttachmentRow>,
    pub(super) nexuses: Vec<(Iqn, Nexus)>,
    /// Credentials that hosts know beside those of `nexuses`: they were being rotated.
    pub(super) rotations: Vec<(Iqn, Chap)>,
    /// Slots of the Fibre Channel ports that reach the volume.
    pub(super) slots: BTreeMap<Wwpn, InitiatorSlot>,
    /// The specs that the agents store, unchanged.
    pub(super) specs: Vec<(Kind, SpecRow)>,
    /// Hosts that store a connection whose access is gone at the target.
    pub(super) revoked: BTreeSet<AgentId>,
    /// `true`: the specs of these rows differ from what the agents store, because a change was
    /// under way.
    pub(super) is_outdated: bool,
    /// Attachments without data beside the export: there were too many.
    bare: BTreeSet<AttachmentId>,
    kept: KeptVolume,
}

type Connections<'a> = BTreeMap<VolumeId, Vec<(AgentId, &'a v1::ConnectionStatus)>>;

/// Answers of all agents together.
struct All<'a> {
    heard: &'a [Heard],
    connections: Connections<'a>,
    now: SystemTime,
}

/// Reads the answers of all agents.
pub(super) fn read(heard: &[Heard], now: SystemTime) -> Result<Found, RebuildError> {
    let name = |agent: &Heard| AgentReport { name: agent.entry.name.clone(), ..AgentReport::default() };
    let mut reports: Vec<_> = heard.iter().map(name).collect();
    let mut claims: BTreeMap<VolumeId, Vec<(usize, &v1::VolumeStatus)>> = BTreeMap::new();
    for (index, agent) in heard.iter().enumerate() {
        for status in &agent.volumes {
            let Ok(id) = status.volume_id.parse() else { continue };
            match claim(id, status) {
                Claim::Wanted => claims.entry(id).or_default().push((index, status)),
                Claim::Left(note) => reports[index].notes.push(format!("volume {id}: {note}")),
                Claim::Outdated => return Err(RebuildError::Outdated(agent.entry.name.clone())),
            }
        }
    }
    let all = All { heard, connections: connections(heard), now };
    let mut taken = BTreeSet::new();
    let mut numbers = Numbers::default();
    let mut volumes = Vec::new();
    for (id, claims) in &claims {
        let [(index, status)] = claims[..] else {
            let names: Vec<_> = claims.iter().map(|(index, _)| heard[*index].entry.name.as_str()).collect();
            for (index, _) in claims {
                reports[*index].notes.push(format!(
                    "volume {id}: {} all keep it, and which one is right is not known: it stays as it is, everywhere",
                    names.join(" and ")
                ));
            }
            continue;
        };
        let read = all.volume(&heard[index], *id, status);
        let read = read.and_then(|volume| numbers.take(volume)).and_then(|volume| alone(volume, &mut taken));
        match read {
            Ok(volume) => {
                reports[index].volumes += 1;
                reports[index].attachments += volume.attachments.len();
                reports[index].notes.extend(all.unknown_hosts(&volume));
                volumes.push(volume);
            }
            Err(why) => {
                reports[index].notes.push(format!("volume {id}: {why}: it stays as it is, with its grants"));
            }
        }
    }
    all.count_connections(&volumes, &mut reports);
    let (types, notes) = types(&volumes);
    Ok(Found { epoch: newest_epoch(heard).saturating_add(1), types, volumes, reports, notes })
}

enum Claim {
    /// The agent has a spec of the volume: it is to be taken over.
    Wanted,
    /// Nothing can be taken over, for this reason.
    Left(String),
    /// The agent's release reports too little.
    Outdated,
}

fn claim(id: VolumeId, status: &v1::VolumeStatus) -> Claim {
    let own = status.volume.as_ref().filter(|report| report.volume_id.parse() == Ok(id));
    let report = own.cloned().unwrap_or_default();
    match (&status.volume_stamp, &status.volume_spec, report.phase()) {
        (Some(_), Some(_), _) => Claim::Wanted,
        (_, None, v1::Phase::Orphan) => Claim::Left(format!(
            "an orphan in group {}, {} bytes: data of ours without a spec; whose it is is not known",
            report.group, report.size_bytes
        )),
        (_, _, v1::Phase::Deleting | v1::Phase::Gone) => {
            Claim::Left("it is being deleted; its agent goes on with that".to_owned())
        }
        (Some(_), None, _) => Claim::Outdated,
        (None, _, _) => Claim::Left("no spec of it is kept".to_owned()),
    }
}

fn connections(heard: &[Heard]) -> Connections<'_> {
    let mut all = Connections::new();
    for agent in heard {
        for status in &agent.connections {
            if let Ok(volume) = status.volume_id.parse() {
                all.entry(volume).or_default().push((agent.id, status));
            }
        }
    }
    all
}

/// Returns the newest epoch that any agent stores, also for what is not taken over.
fn newest_epoch(heard: &[Heard]) -> u64 {
    let epoch = |stamp: &v1::Stamp| stamp.generation.map_or(0, |generation| generation.epoch);
    let volumes = heard.iter().flat_map(|agent| &agent.volumes);
    let stamps = volumes.flat_map(|status| status.volume_stamp.iter().chain(&status.export_stamp));
    let connections = heard.iter().flat_map(|agent| &agent.connections);
    let listed = stamps.chain(connections.filter_map(|status| status.stamp.as_ref())).map(epoch);
    // Tombstones of objects that are gone are not listed, but the hello counts them.
    listed.chain(heard.iter().map(|agent| agent.hello.newest_epoch)).max().unwrap_or(0)
}

/// Checks that an attachment has one volume, and a server one attachment of a volume on a host.
fn alone(volume: FoundVolume, taken: &mut BTreeSet<AttachmentId>) -> Result<FoundVolume, String> {
    let ids: BTreeSet<_> = volume.attachments.iter().map(|row| row.id).collect();
    if let Some(id) = ids.intersection(taken).next() {
        return Err(format!("attachment {id} is one of another volume, too"));
    }
    let mut places = BTreeSet::new();
    for row in &volume.attachments {
        if let (Some(instance), Some(host)) = (row.instance, &row.host)
            && !places.insert((instance, host))
        {
            return Err(format!("server {instance} has two attachments on host {host}"));
        }
    }
    taken.extend(ids);
    Ok(volume)
}

/// Fibre Channel numbers that were taken over, by agent. None may belong to two volumes or two
/// ports.
#[derive(Default)]
struct Numbers {
    slots: BTreeMap<(AgentId, Wwpn), InitiatorSlot>,
    ports: BTreeMap<(AgentId, InitiatorSlot), Wwpn>,
    luns: BTreeSet<(AgentId, Wwpn, Lun)>,
}

impl Numbers {
    fn take(&mut self, volume: FoundVolume) -> Result<FoundVolume, String> {
        let agent = volume.row.agent;
        for (port, slot) in &volume.slots {
            let own = self.slots.get(&(agent, *port)).is_some_and(|known| known != slot);
            let other = self.ports.get(&(agent, *slot)).is_some_and(|known| known != port);
            if own || other {
                return Err(format!("port {port} has slot {slot} there, and another volume says otherwise"));
            }
        }
        let of_row = |row: &AttachmentRow| Some((row.initiator.as_ref()?.ports()?.clone(), row.lun?));
        let luns: BTreeSet<_> = volume
            .attachments
            .iter()
            .filter_map(of_row)
            .flat_map(|(ports, lun)| ports.iter().map(|port| (agent, port, lun)).collect::<Vec<_>>())
            .collect();
        if let Some((_, port, lun)) = luns.intersection(&self.luns).next() {
            return Err(format!("LUN {lun} of port {port} is another volume's, too"));
        }
        for (port, slot) in &volume.slots {
            self.slots.insert((agent, *port), *slot);
            self.ports.insert((agent, *slot), *port);
        }
        self.luns.extend(luns);
        Ok(volume)
    }
}

/// Returns the name of the pool that a spec is for.
fn pool_of(spec: &v1::VolumeSpec) -> String {
    let thin = spec.provisioning() == v1::Provisioning::Thin;
    spec.group.parse().map_or_else(|_| spec.group.clone(), |group| PoolName { group, thin }.to_string())
}

fn spec_row(stamp: Stamp, body: Option<Vec<u8>>, opaque: &[u8]) -> SpecRow {
    let content = SpecContent { body, opaque: opaque.to_vec(), hard: false, digest: stamp.digest.clone() };
    SpecRow { stamp, content, settled: false }
}

impl All<'_> {
    fn volume(&self, agent: &Heard, id: VolumeId, status: &v1::VolumeStatus) -> Result<FoundVolume, String> {
        let corrupt = || "what is kept beside its spec cannot be read".to_owned();
        let kept = KeptVolume::from_bytes(&status.volume_opaque).ok_or_else(corrupt)?;
        let stamp = reports::stamp(status.volume_stamp.as_ref()).ok_or("its stamp cannot be read")?;
        let spec = status.volume_spec.as_ref().ok_or("its spec is missing")?;
        if spec.size_bytes != u64::from(kept.size_gib) * GIB {
            return Err(format!(
                "its spec says {} bytes, and beside it stand {} GiB",
                spec.size_bytes, kept.size_gib
            ));
        }
        let mut specs =
            vec![(Kind::Volume, spec_row(stamp, Some(spec.encode_to_vec()), &status.volume_opaque))];
        let seen = reports::export_of(status.export.as_ref(), id);
        let mut row = self.row(agent, id, status, &kept, spec);
        if let Some(seen) = &seen {
            row.target = Some(seen.target.clone());
            row.naa = Some(seen.naa.clone());
            row.portals.clone_from(&seen.portals);
            row.fc_ports = seen.fc.iter().filter(|port| port.serves).map(|port| port.port.wwpn).collect();
        }
        let mut found = FoundVolume {
            row,
            attachments: Vec::new(),
            nexuses: Vec::new(),
            rotations: Vec::new(),
            slots: BTreeMap::new(),
            specs: Vec::new(),
            revoked: BTreeSet::new(),
            is_outdated: false,
            bare: BTreeSet::new(),
            kept,
        };
        if let Some(stamp) = reports::stamp(status.export_stamp.as_ref()) {
            let body = status.export_spec.as_ref().map(Message::encode_to_vec);
            specs.push((Kind::Export, spec_row(stamp.clone(), body, &status.export_opaque)));
            // A tombstone belongs to a delete that had begun, and whose second half was never sent.
            found.is_outdated = status.export_spec.is_none();
            if let Some(spec) = &status.export_spec {
                let export = mooring_api::export_from_wire(id, spec)
                    .map_err(|error| format!("its export makes no sense: {error}"))?;
                self.attachments(&mut found, &export, &stamp, seen.as_ref(), &status.export_opaque)?;
            }
        }
        found.specs = specs;
        self.connections_of(&mut found);
        Ok(found)
    }

    fn row(
        &self,
        agent: &Heard,
        id: VolumeId,
        status: &v1::VolumeStatus,
        kept: &KeptVolume,
        spec: &v1::VolumeSpec,
    ) -> VolumeRow {
        let report = reports::volume_of(status.volume.as_ref(), id);
        let (operation, fault) = operation(report.as_ref(), status.export_stamp.is_some());
        let grows_from = report.as_ref().and_then(|report| grows_from(report, kept.size_gib));
        let operation = operation.or(grows_from.map(|_| Operation::Extending));
        let zone = kept.zone.as_deref().or(agent.entry.zone.as_deref()).unwrap_or(ZONE_DEFAULT);
        let mut row = VolumeRow {
            id,
            name: kept.name.clone(),
            description: kept.description.clone(),
            size_gib: kept.size_gib,
            type_id: kept.type_id,
            multiattach: kept.multiattach,
            operation,
            status: VolumeStatus::Available,
            attach_status: AttachStatus::Detached,
            project: kept.project.clone(),
            user: kept.user.clone(),
            metadata: kept.metadata.clone(),
            agent: agent.id,
            pool: pool_of(spec),
            target: None,
            naa: None,
            portals: Vec::new(),
            fc_ports: BTreeSet::new(),
            review: None,
            created_at: kept.created_us.map_or(self.now, time_of),
            updated_at: None,
            fault,
            bootable: kept.bootable,
            readonly: kept.readonly,
            zone: zone.to_owned(),
            reserved: 0,
            reserved_until: None,
            holds: 0,
            holds_until: None,
            said_status: None,
            hints: Hints::default(),
            tried: Vec::new(),
            grows_from,
            snapshot_of: kept.snapshot_of,
            source: kept.source(),
            taken: false,
            kept: KeptOperations::default(),
        };
        if row.operation.is_some() {
            row.hints.image = image_of(agent, spec);
        }
        row.note_isolation(spec.cut_us);
        if let Some(takes) = spec.takes.as_ref().filter(|_| row.operation.is_some()) {
            managing(&mut row, takes);
        }
        row
    }

    /// Makes the attachments of an export, from its grants and the data kept beside them.
    fn attachments(
        &self,
        found: &mut FoundVolume,
        export: &ExportSpec,
        stamp: &Stamp,
        seen: Option<&ExportReport>,
        opaque: &[u8],
    ) -> Result<(), String> {
        let kept = KeptExport::from_bytes(opaque).ok_or("what is kept beside its export cannot be read")?;
        let truncated = kept.truncated;
        let mut kept: BTreeMap<_, _> = kept.attachments.into_iter().map(|one| (one.id, one)).collect();
        for grant in &export.grants {
            let chap =
                grant.chap.clone().ok_or_else(|| format!("{} is granted without CHAP", grant.initiator))?;
            found.nexuses.push((grant.initiator.clone(), Nexus(chap)));
        }
        for grant in granted(export)? {
            let one = match kept.remove(&grant.attachment) {
                Some(one) => one,
                None if truncated => {
                    found.bare.insert(grant.attachment);
                    KeptAttachment::bare(grant.attachment, grant.mode)
                }
                None => return Err(format!("nothing is kept of its attachment {}", grant.attachment)),
            };
            let mut row = self.attachment(&found.row, &grant, one, seen);
            row.in_spec_since = stamp.generation;
            found.is_outdated |= row.native.is_some() && !self.is_heard(row.native);
            found.attachments.push(row);
        }
        found.slots = export.fc.grants.iter().map(|grant| (grant.initiator, grant.slot)).collect();
        if let Some(id) = kept.keys().next() {
            return Err(format!("attachment {id} is kept beside its export, and has no grant in it"));
        }
        found.attachments.sort_by_key(|row| (row.created_at, row.id));
        let none = || Abort::from(Refusal::Internal("no credentials".to_owned()));
        let nexuses: BTreeMap<_, _> = found.nexuses.iter().map(|(of, nexus)| (of, nexus)).collect();
        let own = volume_specs::export_spec(
            export.volume,
            &found.attachments,
            |initiator| nexuses.get(initiator).map(|nexus| nexus.0.clone()).ok_or_else(none),
            |port| found.slots.get(&port).copied().ok_or_else(none),
            // No other place stores the barriers: they stay.
            &export.grants.iter().filter_map(|of| Some((of.initiator.clone(), of.barrier?))).collect(),
        );
        // Session settings follow from the type alone, and its change may have been under way.
        let own = own.map(|own| ExportSpec { tuning: export.tuning.clone(), ..own });
        let volume_type = found.kept.volume_type.as_ref();
        found.is_outdated |=
            volume_type.is_some_and(|of| !tuning::of(&of.extra_specs).is_same(&export.tuning));
        if own.ok().map(sorted) != Some(sorted(export.clone())) {
            return Err(
                "what is kept of its attachments does not make the grants that its agent keeps".to_owned()
            );
        }
        Ok(())
    }

    fn is_heard(&self, agent: Option<AgentId>) -> bool {
        agent.is_some_and(|id| self.heard.iter().any(|agent| agent.id == id))
    }

    /// Returns the spec of a host's connection to a volume. `None`: the host stores none.
    fn connection(&self, volume: VolumeId, host: AgentId) -> Option<&v1::ConnectionSpec> {
        let of = self.connections.get(&volume)?.iter().find(|(agent, _)| *agent == host)?;
        of.1.spec.as_ref()
    }

    fn attachment(
        &self,
        volume: &VolumeRow,
        grant: &Granted,
        kept: KeptAttachment,
        seen: Option<&ExportReport>,
    ) -> AttachmentRow {
        let id = kept.id;
        let has =
            |host: AgentId| self.connection(volume.id, host).is_some_and(|spec| has_attachment(spec, id));
        // Where the kept data is missing, the agent that has the connection shows that its host is
        // native.
        let ours = || {
            let by_name =
                |agent: &&Heard| agent.initiator.as_ref().is_some_and(|own| grant.initiators == *own);
            self.heard.iter().find(by_name).map(|agent| agent.id).filter(|host| has(*host))
        };
        let native = kept.native.or_else(ours);
        let name = |id| self.heard.iter().find(|agent| agent.id == id).map(|agent| agent.entry.name.clone());
        // The configuration may name the host differently now.
        let host = native.and_then(name).or(kept.host);
        // A host without the connection was about to get it, or has given it up.
        let connected = native.is_some_and(|host| has(host) || !self.is_heard(native));
        let enters = native.is_some() && !connected;
        let granted = seen
            .is_some_and(|seen| grant.initiators.each().all(|one| seen_mode(seen, &one) == Some(grant.mode)));
        let said = || {
            let said = match &grant.initiators {
                Initiators::Iscsi(iqn) => json!({ "initiator": iqn, "host": host }),
                Initiators::Fc(ports) => json!({ "wwpns": ports.iter().collect::<Vec<_>>(), "host": host }),
            };
            said.as_object().cloned().unwrap_or_default()
        };
        let connector = native.is_none().then(|| Connector::of(&kept.connector.unwrap_or_else(said)));
        let project = kept.project.unwrap_or_else(|| volume.project.clone());
        AttachmentRow {
            instance: kept.instance,
            mode: kept.mode,
            status: if enters { AttachmentStatus::Attaching } else { AttachmentStatus::Attached },
            connector,
            initiator: Some(grant.initiators.clone()),
            lun: grant.lun,
            host,
            mountpoint: kept.mountpoint,
            native,
            access: Access::rebuilt(!enters && granted, connected),
            claimed: kept.claimed,
            cache: kept.cache,
            ..AttachmentRow::reserved(id, volume.id, &project, kept.created_us.map_or(self.now, time_of))
        }
    }

    /// Reads the connections of the hosts that were heard.
    fn connections_of(&self, found: &mut FoundVolume) {
        for (host, status) in self.connections.get(&found.row.id).into_iter().flatten() {
            let Some(stamp) = reports::stamp(status.stamp.as_ref()) else { continue };
            let body = status.spec.as_ref().map(Message::encode_to_vec);
            found.specs.push((Kind::Connection(*host), spec_row(stamp, body, &status.opaque)));
            let Some(spec) = &status.spec else { continue };
            let rotation = rotation(found, spec);
            found.rotations.extend(rotation);
            let granted = match &spec.fc {
                None => found.nexuses.iter().any(|(initiator, _)| initiator.as_str() == spec.initiator),
                Some(route) => found.slots.keys().any(|port| port.to_string() == route.port),
            };
            if !granted {
                found.revoked.insert(*host);
            }
            let has: BTreeMap<_, _> = spec
                .attachments
                .iter()
                .map(|attachment| (attachment.attachment_id.clone(), attachment.cache_off))
                .collect();
            let mut wanted = BTreeMap::new();
            let of_host = |row: &&mut AttachmentRow| row.native == Some(*host) && row.wants_path();
            for row in found.attachments.iter_mut().filter(of_host) {
                let id = row.id.to_string();
                if let Some(off) = has.get(&id).filter(|_| found.bare.contains(&row.id)) {
                    row.cache = mooring_api::cache_from_wire(*off);
                }
                wanted.insert(id, row.cache == Cache::Off);
            }
            found.is_outdated |= wanted != has;
        }
    }

    fn unknown_hosts(&self, volume: &FoundVolume) -> Vec<String> {
        let unknown = |row: &&AttachmentRow| row.native.is_some() && !self.is_heard(row.native);
        let text = |row: &AttachmentRow| {
            let host = row.host.as_deref().unwrap_or("a host without a name");
            format!("attachment {}: its host, {host}, was not heard; it is taken for attached there", row.id)
        };
        volume.attachments.iter().filter(unknown).map(text).collect()
    }

    fn count_connections(&self, volumes: &[FoundVolume], reports: &mut [AgentReport]) {
        let known: BTreeSet<_> = volumes.iter().map(|volume| volume.row.id).collect();
        for (agent, report) in self.heard.iter().zip(reports) {
            for status in &agent.connections {
                let id = &status.volume_id;
                if status.stamp.is_none() {
                    report
                        .notes
                        .push(format!("connection to volume {id}: a session of ours that no spec names"));
                } else if id.parse().is_ok_and(|id| known.contains(&id)) {
                    report.connections += usize::from(status.spec.is_some());
                } else {
                    report.notes.push(format!(
                        "connection to volume {id}: its volume is not taken over: it stays as it is"
                    ));
                }
            }
        }
    }
}

fn has_attachment(spec: &v1::ConnectionSpec, id: AttachmentId) -> bool {
    let id = id.to_string();
    spec.attachments.iter().any(|attachment| attachment.attachment_id == id)
}

/// Sorts an export, so that two exports with the same content are equal.
fn sorted(mut spec: ExportSpec) -> ExportSpec {
    spec.grants.iter_mut().for_each(|grant| grant.attachments.sort());
    spec.grants.sort_by(|a, b| a.initiator.cmp(&b.initiator));
    spec.fc.grants.iter_mut().for_each(|grant| grant.attachments.sort());
    spec.fc.grants.sort_by_key(|grant| grant.initiator);
    spec
}

/// Access that one attachment is granted.
struct Granted {
    attachment: AttachmentId,
    initiators: Initiators,
    /// Mode of the nexus.
    mode: Mode,
    lun: Option<Lun>,
}

/// Returns the grants of an export, by attachment. Over Fibre Channel, an attachment has a grant
/// for each port of its host.
fn granted(export: &ExportSpec) -> Result<Vec<Granted>, String> {
    let mut all = Vec::new();
    let some = |initiator: &dyn std::fmt::Display, attachments: &[AttachmentId]| match attachments {
        [] => Err(format!("{initiator} is granted without an attachment")),
        _ => Ok(()),
    };
    for grant in &export.grants {
        some(&grant.initiator, &grant.attachments)?;
        let initiators = Initiators::Iscsi(grant.initiator.clone());
        let of = |id: &AttachmentId| Granted {
            attachment: *id,
            initiators: initiators.clone(),
            mode: grant.mode,
            lun: None,
        };
        all.extend(grant.attachments.iter().map(of));
    }
    let mut over_fc: BTreeMap<AttachmentId, Vec<&FcGrant>> = BTreeMap::new();
    for grant in &export.fc.grants {
        some(&grant.initiator, &grant.attachments)?;
        for id in &grant.attachments {
            over_fc.entry(*id).or_default().push(grant);
        }
    }
    for (attachment, grants) in over_fc {
        let luns: BTreeSet<_> = grants.iter().map(|grant| grant.lun).collect();
        let (Some(lun), 1) = (luns.first(), luns.len()) else {
            return Err(format!("attachment {attachment} has several LUNs"));
        };
        let Some(ports) = HostPorts::new(grants.iter().map(|grant| grant.initiator)) else { continue };
        // If a host shares only some of its ports with another attachment, modes may differ: the
        // attachment's own mode is kept beside the export.
        let mode = grants.iter().map(|grant| grant.mode).max().unwrap_or(Mode::ReadOnly);
        all.push(Granted { attachment, initiators: Initiators::Fc(ports), mode, lun: Some(*lun) });
    }
    Ok(all)
}

/// Returns a volume's operation and fault. A volume that ever had an export spec was there:
/// whatever is wrong with it now, it is never made again.
fn operation(report: Option<&VolumeReport>, exported: bool) -> (Option<Operation>, Option<String>) {
    if exported {
        return (None, None);
    }
    match report.map(|report| (report.phase, &report.problems)) {
        Some((Phase::Ready, _)) => (None, None),
        Some((Phase::Failed, problems)) => {
            let text = problems
                .iter()
                .map(|it| format!("{}: {}", it.object, it.text))
                .collect::<Vec<_>>()
                .join("; ");
            (Some(Operation::Error), Some(text))
        }
        Some(_) | None => (Some(Operation::Creating), None),
    }
}

/// Restores the manage operation of a volume whose logical volume was not seen to be taken over
/// yet.
fn managing(row: &mut VolumeRow, takes: &v1::ExistingLv) {
    let Ok(name) = LvName::existing(&takes.name) else { return };
    row.set_takes(&ExistingLv { name, uuid: takes.uuid.clone() });
    row.operation = row.operation.map(|operation| match operation {
        Operation::Error => Operation::ErrorManaging,
        Operation::Creating => Operation::Managing,
        other => other,
    });
}

/// Returns the image of a volume whose copy was not seen to be complete yet. `None`: there is none.
fn image_of(agent: &Heard, spec: &v1::VolumeSpec) -> Option<HostImage> {
    let image = mooring_api::image_from_wire(spec.source.as_ref()?)?;
    Some(HostImage { host: agent.entry.name.clone(), image })
}

/// Returns the size of a volume that is there and smaller than wanted: its growth was under way.
/// `None`: it was not growing.
fn grows_from(report: &VolumeReport, wanted_gib: u32) -> Option<u32> {
    let gib = u32::try_from(report.size.0 / GIB).ok().filter(|gib| (1..wanted_gib).contains(gib));
    gib.filter(|_| report.phase == Phase::Ready)
}

/// Returns the secrets that a host knows beside those of its grant: a rotation was under way. Which
/// of the two was to come is not known. The target keeps the secrets that it has, and the host
/// drops the others.
fn rotation(found: &FoundVolume, spec: &v1::ConnectionSpec) -> Option<(Iqn, Chap)> {
    let kept = mooring_api::connection_from_wire(found.row.id, spec).ok()?;
    let (own, other) = (kept.chap?, kept.other_chap?);
    let (initiator, nexus) = found.nexuses.iter().find(|(initiator, _)| *initiator == kept.initiator)?;
    Some((initiator.clone(), if nexus.0 == own { other } else { own }))
}

/// Returns the types of these volumes, each as its newest volume keeps it.
fn types(volumes: &[FoundVolume]) -> (Vec<FoundType>, Vec<String>) {
    let mut newest: BTreeMap<Uuid, &FoundVolume> = BTreeMap::new();
    let mut notes = Vec::new();
    let mut differ = BTreeSet::new();
    for volume in volumes {
        let rank = |of: &FoundVolume| (of.kept.volume_type.is_some(), of.row.created_at);
        let known = newest.entry(volume.row.type_id).or_insert(volume);
        let says = |of: &FoundVolume| (of.kept.type_name.clone(), of.kept.volume_type.clone());
        if says(known) != says(volume) {
            differ.insert(volume.row.type_id);
        }
        if rank(volume) > rank(known) {
            *known = volume;
        }
    }
    let mut names = BTreeSet::new();
    let mut types = Vec::new();
    for (id, volume) in newest {
        let kept = &volume.kept;
        let mut name = kept.type_name.clone().unwrap_or_else(|| id.to_string());
        if !names.insert(name.clone()) {
            notes.push(format!("type {id} was called {name}, as another one: it is called {id} now"));
            name = id.to_string();
        }
        if differ.contains(&id) {
            notes.push(format!(
                "type {name} was changed after some of its volumes: it is as its newest volume has it"
            ));
        }
        let kept = kept.volume_type.clone().unwrap_or_else(|| {
            notes.push(format!(
                "type {name}: its extra specs are not kept, but for multiattach: set them again"
            ));
            let shared = kept.multiattach.then(|| ("multiattach".to_owned(), "<is> True".to_owned()));
            let extra_specs = shared.into_iter().collect();
            KeptType { description: None, is_public: true, extra_specs, projects: Vec::new() }
        });
        let KeptType { description, is_public, extra_specs, projects } = kept;
        types.push(FoundType { of: VolumeType { id, name, description, is_public, extra_specs }, projects });
    }
    (types, notes)
}

#[cfg(test)]
mod tests {
    use mooring_model::{ByteSize, Cure, Problem};

    use super::*;

    fn report(phase: Phase) -> VolumeReport {
        let problem =
            Problem { object: "vg0".to_owned(), text: "a disk is gone".to_owned(), cure: Cure::Operator };
        VolumeReport {
            id: VolumeId::from_u128(1),
            phase,
            group: "vg0".to_owned(),
            size: ByteSize(GIB),
            device: None,
            zeroed: None,
            problems: vec![problem],
            reverted: None,
            uploaded: None,
            cut: mooring_model::Cut::No,
        }
    }

    #[test]
    fn what_was_ever_exported_is_there_whatever_its_agent_says_now() {
        use Phase::{Creating, Deleting, Failed, Gone, Orphan, Ready};
        for phase in [Creating, Ready, Deleting, Gone, Failed, Orphan] {
            assert_eq!(operation(Some(&report(phase)), true), (None, None), "{phase}");
        }
        assert_eq!(operation(None, true), (None, None));
        // A volume is made again, perhaps elsewhere, only if nobody can ever have written to it,
        // and not if it failed for a reason.
        assert_eq!(operation(Some(&report(Ready)), false).0, None);
        assert_eq!(operation(Some(&report(Creating)), false).0, Some(Operation::Creating));
        let (failed, why) = operation(Some(&report(Failed)), false);
        assert_eq!((failed, why.as_deref()), (Some(Operation::Error), Some("vg0: a disk is gone")));
    }

    #[test]
    fn what_is_smaller_than_it_is_wanted_was_growing() {
        let seen = |phase, bytes| VolumeReport { size: ByteSize(bytes), ..report(phase) };
        assert_eq!(grows_from(&seen(Phase::Ready, GIB), 3), Some(1));
        assert_eq!(grows_from(&seen(Phase::Ready, 3 * GIB), 3), None);
        // Rounded up to whole extents; or not there.
        assert_eq!(grows_from(&seen(Phase::Ready, 3 * GIB + 4096), 3), None);
        assert_eq!(grows_from(&seen(Phase::Creating, 0), 3), None);
    }

    #[test]
    fn an_agent_that_returns_no_specs_counts_as_outdated_not_as_empty() {
        let stamp = Some(v1::Stamp::default());
        let spec = Some(v1::VolumeSpec::default());
        let (id, other) = (VolumeId::from_u128(1), VolumeId::from_u128(2));
        let of_volume =
            |of: VolumeId, phase: v1::Phase, stamp: &Option<v1::Stamp>, spec: &Option<v1::VolumeSpec>| {
                let mut volume = v1::VolumeReport { volume_id: of.to_string(), ..Default::default() };
                volume.set_phase(phase);
                let (volume, volume_stamp, volume_spec) = (Some(volume), stamp.clone(), spec.clone());
                claim(id, &v1::VolumeStatus { volume, volume_stamp, volume_spec, ..Default::default() })
            };
        let status = |phase, stamp: &_, spec: &_| of_volume(id, phase, stamp, spec);
        for phase in [v1::Phase::Ready, v1::Phase::Creating, v1::Phase::Failed, v1::Phase::Unspecified] {
            assert!(matches!(status(phase, &stamp, &spec), Claim::Wanted));
            assert!(matches!(status(phase, &stamp, &None), Claim::Outdated));
            assert!(matches!(status(phase, &None, &None), Claim::Left(_)));
        }
        for phase in [v1::Phase::Orphan, v1::Phase::Deleting, v1::Phase::Gone] {
            assert!(matches!(status(phase, &stamp, &None), Claim::Left(_)));
            assert!(matches!(status(phase, &None, &None), Claim::Left(_)));
            // Another volume's report is no reason to leave this one.
            assert!(matches!(of_volume(other, phase, &stamp, &None), Claim::Outdated));
        }
    }
}
