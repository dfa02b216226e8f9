//! Makes, connects and completes attachments.

mod complete;
mod place;

use std::collections::BTreeSet;

use mooring_model::limit::{ATTACHMENTS_PER_CONNECTION_MAX, GRANTS_PER_EXPORT_MAX};
use mooring_model::{AgentId, AttachmentId, Cache, Mode, VolumeId};
use serde_json::{Map, Value};
use tokio::time::Instant;
use uuid::Uuid;

pub(super) use complete::complete;
pub(super) use place::client_place;
use place::native_place;

use super::view::{self, Secrets};
use super::{Refusal, SecretsOnGet, Service, Wait, again, fence, not_in_review, told, volumes};
use crate::domain::{
    AttachViolation, Attachment, AttachmentStatus, Caller, ConnectorViolation, FcFault, NewAttachment,
    NewConnector, RuleViolation, Transport, VolumeStatus,
};
use crate::flow::Facts;
use crate::flow::volume_specs::{self, SpecChanges};
use crate::initiators::Initiators;
use crate::permits;
use crate::policy::Target;
use crate::rules::transport::{self, Offer};
use crate::rules::types::Specs;
use crate::rules::{self, Existing};
use crate::store::{Abort, AttachmentRow, Connector, Db, VolumeRow, numbers};

/// The host that connects, and how it may do so.
#[derive(Clone)]
pub(super) struct Place {
    /// The names under which the host could log in; [`chosen`] picks among them.
    pub(super) offer: Offer,
    host: Option<String>,
    mountpoint: Option<String>,
    native: Option<AgentId>,
    /// The reason why Fibre Channel is not offered, for an error that has to explain it.
    without_fc: Option<FcFault>,
    /// `true` if the host's name is only the word of the user who made the call.
    claimed: bool,
    /// `true` if the caller sees the hosts: refusals name agents and fences then.
    reads_hosts: bool,
    /// The cache flag of the call. `None` if the call names none.
    cache: Option<Cache>,
    pub(super) connector: Option<Map<String, Value>>,
}

/// Outcome of a transaction that connects.
pub(super) enum Step<T> {
    /// The transaction has written all.
    Done(T),
    /// Nothing was written: something of this volume must end first.
    Busy(VolumeId, String),
}

/// An attachment whose connection has begun.
pub(super) struct Begun {
    pub(super) attachment: Attachment,
    pub(super) spec_changes: SpecChanges,
    /// The volume's revision before the transaction.
    pub(super) revision: u64,
    /// Mode to enforce before the answer; only an attachment that was already granted has one.
    pub(super) enforces: Option<Mode>,
}

impl Place {
    /// The device path at which the server sees the volume.
    pub(super) fn mountpoint(&self) -> Option<&str> {
        self.mountpoint.as_deref()
    }

    /// The connector as a row has it.
    pub(super) fn kept_connector(&self) -> Option<Connector> {
        self.connector.as_ref().map(Connector::of)
    }

    /// `true` if this place is on the given host. A place without a host matches every host.
    pub(super) fn is_on(&self, host: Option<&str>) -> bool {
        self.host.is_none() || self.host.as_deref() == host
    }
}

/// The attachment with this id. "Not found" if this caller may not see it.
pub(super) fn find(db: &Db<'_>, caller: &Caller, id: AttachmentId) -> Result<AttachmentRow, Abort> {
    let found = db.attachment(id)?.filter(|row| caller.admin || row.project == caller.project);
    Ok(found.ok_or_else(|| not_found(id))?)
}

/// The attachment with this id, for a caller who reads it: the policy for reads applies.
pub(super) fn look(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: AttachmentId,
) -> Result<AttachmentRow, Abort> {
    let row = find(db, caller, id)?;
    let target = Target::of(&row.project);
    if facts.policies().allows("mooring:attachment_get", caller, &target) {
        return Ok(row);
    }
    Err(not_found(id).into())
}

pub(super) fn not_found(id: AttachmentId) -> Refusal {
    Refusal::NotFound { kind: "Attachment", what: id.to_string() }
}

pub(super) fn volume_of(db: &Db<'_>, row: &AttachmentRow) -> Result<VolumeRow, Abort> {
    let volume = db.volume(row.volume)?;
    Ok(volume.ok_or_else(|| Refusal::NotFound { kind: "Volume", what: row.volume.to_string() })?)
}

fn view_one(facts: &Facts, db: &Db<'_>, row: AttachmentRow, secrets: Secrets) -> Result<Attachment, Abort> {
    let volume = volume_of(db, &row)?;
    view::attachment_now(facts, db, &volume, row, secrets)
}

/// Refuses a second path from one host to the volume: its attachments share one connection. An
/// enrolled host shares its port's disk with no other client: that client could remove the disk.
fn one_way(
    row: &AttachmentRow,
    place: &Place,
    initiators: &Initiators,
    rows: &[AttachmentRow],
) -> Result<(), Refusal> {
    let others = || rows.iter().filter(|other| other.id != row.id && other.has_grant());
    let native = place.native.and_then(|host| others().find(|other| other.native == Some(host)));
    if let Some((other, used)) = native.and_then(|other| Some((other, other.initiator.as_ref()?)))
        && used != initiators
    {
        return Err(Refusal::Conflict(format!(
            "attachment {} of the same host reaches the volume as {used}, and a host has one path to a volume: ask for that \
             path, or detach it first",
            other.id
        )));
    }
    let stranger = |other: &&AttachmentRow| {
        initiators.ports().is_some()
            && other.native != place.native
            && other.initiator.as_ref().is_some_and(|of| of.meets(initiators))
    };
    match others().find(stranger) {
        None => Ok(()),
        Some(other) => {
            let whose =
                if other.native.is_some() { "an enrolled host" } else { "a client of the Block Storage API" };
            Err(Refusal::Conflict(format!(
                "attachment {} of {whose} already reaches this volume through port {initiators}, and both would share one disk \
                 on the host: detach that one first",
                other.id
            )))
        }
    }
}

/// Refuses an initiator's name that another host has already. Targets cannot tell two machines with
/// one name (a cloned image) apart: each gets the access of both.
fn one_host(
    facts: &Facts,
    db: &Db<'_>,
    volume: &VolumeRow,
    initiators: &Initiators,
    place: &Place,
) -> Result<(), Abort> {
    let Some(host) = place.host.as_deref().filter(|_| !facts.options.shared_initiators) else {
        return Ok(());
    };
    match db.other_host(initiators, host, volume.id, place.claimed)? {
        None => Ok(()),
        Some(_) => Err(Refusal::OtherHost(format!(
            "{initiators} is in use by another host than {host}, and a target cannot tell two hosts with one initiator name \
             apart: give each machine an initiator name of its own (cloned images share it), or name the host as before"
        ))
        .into()),
    }
}

/// The input of the rules: the attachments, and one more for what `os-reserve` has promised.
pub(super) fn existing_of(rows: &[AttachmentRow], promised: u32) -> Vec<Existing> {
    let promise = Existing {
        id: AttachmentId::from_u128(0),
        status: AttachmentStatus::Attaching,
        instance: None,
        mode: super::MODE_DEFAULT,
        initiator: None,
        host: None,
        wants_grant: false,
    };
    let promises = std::iter::repeat_n(promise, usize::from(promised > 0));
    rows.iter().map(AttachmentRow::existing).chain(promises).collect()
}

/// Refuses a further attachment that the rules forbid, and asks the policy for bootable multiattach
/// volumes. Called in the transaction that inserts the attachment, so that two calls at a time see
/// each other.
pub(super) fn may_reserve(
    facts: &Facts,
    caller: &Caller,
    volume: &VolumeRow,
    existing: &[Existing],
    instance: Option<Uuid>,
) -> Result<(), Abort> {
    not_in_review(volume)?;
    super::isolate::not_isolated(volume)?;
    if let Some(said) = volume.said_status.filter(|said| said.is_error()) {
        return Err(Refusal::from(RuleViolation::Attach(AttachViolation::NotAttachable {
            volume: volume.id,
            multiattach: volume.multiattach,
            status: said,
            announced: volume.reserved,
        }))
        .into());
    }
    let held = volume.is_held();
    rules::may_attach(volume.id, volume.multiattach, volume.operation, existing, instance, held)
        .map_err(|violation| violation.with_announced(volume.reserved))?;
    if rules::bootable_multiattach(volume.multiattach, volume.bootable, existing) {
        let target = volumes::target(volume);
        facts.policies().check("volume:multiattach_bootable_volume", caller, &target)?;
    }
    Ok(())
}

/// The access that must end before this place can be taken, in words. An access that is being taken
/// away is never given back half-way.
fn ends_first(
    rows: &[AttachmentRow],
    own: &AttachmentRow,
    initiators: &Initiators,
    place: &Place,
) -> Option<String> {
    let others = || rows.iter().filter(|other| other.id != own.id);
    // Each port counts by itself: another attachment may keep one of them and not the other.
    let going = initiators.each().find_map(|one| {
        let nexus = || others().filter(|other| other.initiator.as_ref().is_some_and(|of| of.has(&one)));
        let kept = nexus().any(AttachmentRow::wants_grant);
        nexus().find(|other| !kept && other.has_grant())
    });
    let replaced = others().find(|other| {
        own.instance.is_some()
            && other.instance == own.instance
            && place.host.is_some()
            && other.host == place.host
            && other.status == AttachmentStatus::Detaching
    });
    going
        .or(replaced)
        .map(|other| format!("the access of {initiators} is being taken away for attachment {}", other.id))
}

/// The names under which a host is granted a volume, over a transport that host, type and storage
/// node all allow.
fn chosen(
    facts: &Facts,
    volume: &VolumeRow,
    specs: &Specs,
    place: &Place,
    rows: &[AttachmentRow],
) -> Result<Initiators, Refusal> {
    let agent = facts.agents.by_id(volume.agent);
    let served = agent.and_then(|agent| agent.served());
    let name =
        if place.reads_hosts { facts.agents.name_of(volume.agent) } else { "of the volume".to_owned() };
    let mut offer = place.offer.clone();
    if let Some(host) = place.native {
        // Without an explicit transport, reuse the one that this host already has.
        let used = rows.iter().find(|other| other.native == Some(host) && other.has_grant());
        offer.asked = offer.asked.or_else(|| used?.initiator.as_ref().map(Transport::of));
    }
    transport::choose(&offer, specs, &name, served.as_ref()).map_err(|mut violation| {
        if let RuleViolation::Connector(ConnectorViolation::NoCommonTransport { without_fc, .. }) =
            &mut violation
        {
            *without_fc = place.without_fc.clone().map(Box::new);
        }
        violation.into()
    })
}

/// Refuses more attachments of one host, or more initiators, than a volume can have. `sharing`: the
/// host's other attachments; `granted`: the initiators that have access; `new`: those to come.
fn has_room(
    id: VolumeId,
    initiators: &Initiators,
    sharing: usize,
    granted: usize,
    new: usize,
) -> Result<(), Refusal> {
    if sharing >= ATTACHMENTS_PER_CONNECTION_MAX {
        return Err(Refusal::Invalid(format!(
            "Invalid volume: {initiators} has {ATTACHMENTS_PER_CONNECTION_MAX} attachments of volume {id}, the most of one \
             host: detach one first"
        )));
    }
    if new > 0 && granted + new > GRANTS_PER_EXPORT_MAX {
        return Err(Refusal::Invalid(format!(
            "Invalid volume: Volume {id} is granted to {granted} initiators, this host has {new} more, and the most of one \
             volume is {GRANTS_PER_EXPORT_MAX}: detach one first"
        )));
    }
    Ok(())
}

/// Connects an attachment to its place, and adds its grant to the specs. `Some`: nothing was
/// changed, and the text names what must end first.
pub(super) fn connect(
    facts: &Facts,
    db: &Db<'_>,
    volume: &VolumeRow,
    specs: &Specs,
    row: &mut AttachmentRow,
    place: Place,
    rows: &[AttachmentRow],
) -> Result<Option<String>, Abort> {
    super::has_no_twin(db, volume)?;
    let initiators = chosen(facts, volume, specs, &place, rows)?;
    fence::forbids(db, &initiators, place.host.as_deref(), place.reads_hosts)?;
    if let Some(why) = ends_first(rows, row, &initiators, &place) {
        return Ok(Some(why));
    }
    one_host(facts, db, volume, &initiators, &place)?;
    one_way(row, &place, &initiators, rows)?;
    let existing: Vec<_> =
        rows.iter().filter(|other| other.id != row.id).map(AttachmentRow::existing).collect();
    // An attachment that has ended holds nothing: no nexus, and no place in the limits.
    let there: Vec<_> =
        existing.into_iter().filter(|other| other.wants_grant || !other.is_leaving()).collect();
    rules::may_connect(Some(row.id), row.instance, &initiators, place.host.as_deref(), &there)?;
    let nexuses: BTreeSet<_> =
        there.iter().filter_map(|other| other.initiator.as_ref()).flat_map(Initiators::each).collect();
    let new = initiators.each().filter(|one| !nexuses.contains(one)).count();
    let sharing = there.iter().filter(|other| other.shares(&initiators)).count();
    has_room(volume.id, &initiators, sharing, nexuses.len(), new)?;
    if sharing > 0 {
        rules::may_mix(specs, Some(row.id), &initiators, row.mode, &there)?;
    }
    // A connect that could not go on now is not begun.
    facts.agents.up(volume.agent).map_err(Refusal::Unavailable)?;
    row.lun = match &initiators {
        Initiators::Iscsi(iqn) => {
            volume_specs::nexus(db, volume.id, iqn, place.native.is_some())?;
            None
        }
        Initiators::Fc(ports) => Some(numbers::take(db, volume, ports)?),
    };
    row.initiator = Some(initiators);
    row.connector = place.kept_connector();
    row.host = place.host;
    row.mountpoint = place.mountpoint;
    row.native = place.native;
    row.claimed = place.claimed;
    row.cache = place.cache.unwrap_or(row.cache);
    row.connected();
    Ok(None)
}

/// The extra specs of a volume's type.
pub(super) fn specs_of(db: &Db<'_>, volume: &VolumeRow) -> Result<Specs, Abort> {
    Ok(db.extra_specs(volume.type_id)?)
}

/// A new attachment row, reserved.
pub(super) fn new_row(
    db: &Db<'_>,
    volume: &VolumeRow,
    specs: &Specs,
    instance: Option<Uuid>,
    id: AttachmentId,
) -> AttachmentRow {
    let cache = rules::cache::of_type(specs);
    // An admin's attachment of another project's volume belongs to that project.
    AttachmentRow { instance, cache, ..AttachmentRow::reserved(id, volume.id, &volume.project, db.now) }
}

/// Refuses a repeated request whose id exists with other properties: each id is made once.
fn says_the_same(kept: &AttachmentRow, new: &NewAttachment, place: Option<&Place>) -> Result<(), Refusal> {
    let id = kept.id;
    if let Some(mode) = new.mode.filter(|mode| *mode != kept.mode) {
        return Err(Refusal::Conflict(format!(
            "attachment {id} is there with mode {}, and this call asks for {mode}: change it with PUT \
             /mooring/v1/attachments/{id}/mode, or choose another id",
            kept.mode
        )));
    }
    if let Some(cache) = place.and_then(|place| place.cache).filter(|cache| *cache != kept.cache) {
        return Err(Refusal::Conflict(format!(
            "attachment {id} is there with cache {}, and this call asks for {cache}: change it with PUT \
             /mooring/v1/attachments/{id}/cache, or choose another id",
            kept.cache
        )));
    }
    let asked = place.and_then(|place| place.offer.asked).zip(kept.initiator.as_ref());
    match asked.filter(|(asked, used)| *asked != Transport::of(used)) {
        None => Ok(()),
        Some((asked, used)) => Err(Refusal::Conflict(format!(
            "attachment {id} is there, as {used}, and this call asks for {}: detach it first, or choose another id",
            asked.spellings()[0]
        ))),
    }
}

/// The attachment that an earlier, equal request has made: found by its id, or by its properties if
/// the request has no id. A client that lost the answer can ask only with the same request.
fn repeated(
    db: &Db<'_>,
    caller: &Caller,
    new: &NewAttachment,
    place: Option<&Place>,
) -> Result<Option<AttachmentRow>, Abort> {
    let Some(id) = new.id else {
        let Some(place) = place.filter(|place| place.native.is_none() && new.instance.is_some()) else {
            return Ok(None);
        };
        let connector = place.kept_connector();
        let same = |row: &AttachmentRow| {
            row.status == AttachmentStatus::Attaching
                && row.instance == new.instance
                && row.initiator.as_ref().is_some_and(|own| place.offer.covers(own))
                && row.connector == connector
                && new.mode.is_none_or(|mode| mode == row.mode)
        };
        return Ok(db.attachments_of(new.volume)?.into_iter().find(same));
    };
    // The sentence is the same for every holder of the id, and tells nothing of them.
    let id_is_taken = || Refusal::Conflict(format!("the id {id} is or was an attachment's: choose another"));
    if let Some(kept) = db.attachment(id)? {
        // Nothing may be learnt of another project's attachment.
        let same = (caller.admin || kept.project == caller.project)
            && kept.volume == new.volume
            && kept.instance == new.instance
            && match (&kept.initiator, place) {
                (Some(own), Some(place)) => {
                    place.offer.covers(own) || (place.native.is_some() && kept.native == place.native)
                }
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
        if same {
            says_the_same(&kept, new, place)?;
            return Ok(Some(kept));
        }
        return Err(id_is_taken().into());
    }
    if db.detached(id)?.is_some() {
        return Err(id_is_taken().into());
    }
    Ok(None)
}

/// Turns each refusal of a reserve into 400: clients take 409 for a failure of the server.
pub(super) fn as_invalid(abort: Abort) -> Abort {
    match abort {
        Abort::Refused(refusal) => refusal.into_invalid().into(),
        store @ Abort::Store(_) => store,
    }
}

fn create(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    new: &NewAttachment,
    place: Option<Place>,
) -> Result<Step<Begun>, Abort> {
    let revision = facts.revision(new.volume);
    let volume = volumes::find(facts, db, caller, new.volume)?;
    facts.policies().check("volume:attachment_create", caller, &volumes::target(&volume))?;
    if let Some(kept) = repeated(db, caller, new, place.as_ref())? {
        let attachment = view::attachment_now(facts, db, &volume, kept, Secrets::Shown)?;
        let spec_changes = SpecChanges::default();
        return Ok(Step::Done(Begun { attachment, spec_changes, revision, enforces: None }));
    }
    let before = db.attachments_of(volume.id)?;
    let existing = existing_of(&before, volume.reserved);
    may_reserve(facts, caller, &volume, &existing, new.instance)?;
    let connector = place.as_ref().and_then(|place| place.connector.as_ref());
    let id = new.id.unwrap_or_else(AttachmentId::random);
    let specs = specs_of(db, &volume)?;
    let mut row = new_row(db, &volume, &specs, new.instance, id);
    row.mode = rules::mode(new.mode, connector, new.instance, &existing, volume.readonly == Some(true))?;
    row.mode_asked = new.mode.is_some();
    if let Some(place) = place {
        row.attaching();
        let connected = connect(facts, db, &volume, &specs, &mut row, place, &before);
        if let Some(why) = connected.map_err(|why| as_invalid(told::of_connect(facts, caller, why)))? {
            return Ok(Step::Busy(volume.id, why));
        }
    }
    let mut changed = [row];
    let spec_changes = volume_specs::apply_to(db, &volume, before, &mut changed, &BTreeSet::new())?;
    let [row] = changed;
    let attachment = view::attachment(facts, db, &volume, row, Secrets::Shown)?;
    Ok(Step::Done(Begun { attachment, spec_changes, revision, enforces: None }))
}

/// Gives a reserved attachment its place.
fn update(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: AttachmentId,
    place: Place,
) -> Result<Step<Begun>, Abort> {
    let mut row = find(db, caller, id)?;
    let revision = facts.revision(row.volume);
    facts.policies().check("volume:attachment_update", caller, &Target::of(&row.project))?;
    let volume = volumes::find(facts, db, caller, row.volume)?;
    if let Some(initiator) = row.initiator.as_ref().filter(|_| row.has_grant()) {
        if row.native.is_none() && place.offer.covers(initiator) && row.host == place.host && !row.is_going()
        {
            return again::connector(facts, db, &volume, row, &place, revision);
        }
        let text = format!("attachment {id} is connected already, to {initiator}: detach it first");
        return Err(Refusal::Conflict(text).into());
    }
    if row.is_going() {
        let text = format!("attachment {id} is {}: it cannot be connected", row.status);
        return Err(Refusal::Conflict(text).into());
    }
    not_in_review(&volume)?;
    if !volume.is_served() || volume.said_status.is_some_and(VolumeStatus::is_error) {
        let text = format!("Invalid volume: Volume {} has status {}", volume.id, volume.status);
        return Err(Refusal::Conflict(text).into());
    }
    if let Some(connector) = place.connector.as_ref().filter(|connector| connector.contains_key("mode"))
        && !row.mode_asked
    {
        // A `null` mode names none: the attachment keeps the mode of its creation.
        let own = Existing { instance: Some(Uuid::nil()), ..row.existing() };
        let readonly = volume.readonly == Some(true);
        row.mode = rules::mode(None, Some(connector), own.instance, std::slice::from_ref(&own), readonly)?;
    }
    let before = db.attachments_of(volume.id)?;
    let specs = specs_of(db, &volume)?;
    let connected = connect(facts, db, &volume, &specs, &mut row, place, &before);
    if let Some(why) = connected.map_err(|why| told::of_connect(facts, caller, why))? {
        return Ok(Step::Busy(volume.id, why));
    }
    row.attaching();
    let mut changed = [row];
    let spec_changes = volume_specs::apply_to(db, &volume, before, &mut changed, &BTreeSet::new())?;
    let [row] = changed;
    let attachment = view::attachment(facts, db, &volume, row, Secrets::Shown)?;
    Ok(Step::Done(Begun { attachment, spec_changes, revision, enforces: None }))
}

/// State of a wait for a grant.
enum Waited {
    Granted,
    Failed(String),
    Waits,
}

fn waited(seen: &Attachment) -> Waited {
    match seen.status {
        _ if seen.connection_info.is_some() => Waited::Granted,
        AttachmentStatus::Reserved | AttachmentStatus::Attaching => Waited::Waits,
        AttachmentStatus::Attached if seen.fault.is_none() => Waited::Waits,
        AttachmentStatus::Attached
        | AttachmentStatus::ErrorAttaching
        | AttachmentStatus::ErrorDetaching
        | AttachmentStatus::Detaching => {
            Waited::Failed(seen.fault.clone().unwrap_or_else(|| "it is being detached".to_owned()))
        }
    }
}

impl Service {
    /// One attachment. 404 for another project's attachment.
    pub async fn attachment(&self, caller: &Caller, id: AttachmentId) -> Result<Attachment, Refusal> {
        let (facts, owner, secrets) = (self.facts.clone(), caller.clone(), self.secrets_for(caller));
        let read = move |db: &Db<'_>| view_one(&facts, db, look(&facts, db, &owner, id)?, secrets);
        self.store.read_one("read an attachment", read).await
    }

    /// Refuses a native attachment to a host on which this caller may not attach. The text is equal
    /// for every name, so that it does not tell which hosts exist. A volume that the caller may not
    /// see is 404 first.
    async fn may_attach_natively(
        &self,
        caller: &Caller,
        volume: VolumeId,
        host: &str,
    ) -> Result<(), Refusal> {
        let mapped = self.facts.options.native_hosts.get(&caller.project);
        if mapped.is_some_and(|hosts| hosts.contains(host)) {
            return Ok(());
        }
        let may = self.facts.policies().check("mooring:attach_native", caller, &Target::own(caller));
        if may.is_err() {
            self.volume(caller, volume).await?;
        }
        may
    }

    pub(super) async fn attachment_with(
        &self,
        caller: &Caller,
        id: AttachmentId,
        secrets: Secrets,
    ) -> Result<Attachment, Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let read = move |db: &Db<'_>| view_one(&facts, db, find(db, &caller, id)?, secrets);
        self.store.read_one("read an attachment", read).await
    }

    /// The secrets that a caller gets who only reads.
    pub(super) fn secrets_for(&self, caller: &Caller) -> Secrets {
        let all = self.facts.options.secrets_on_get == SecretsOnGet::All;
        if all || caller.admin || caller.service { Secrets::Shown } else { Secrets::Hidden }
    }

    /// Makes an attachment:
    ///
    /// - without a connector: reserved;
    /// - with a client's connector: answers when the agent reports the grant (with the connection
    ///   info), or `Pending`;
    /// - native: answers at once (`attaching`); the controller drives both agents and completes it.
    ///
    /// While the same host's access is being taken away, the call first waits for that to end. A
    /// volume whose status allows no attachment is `Invalid`, as in the Block Storage API; an
    /// isolated volume is `Conflict`.
    pub async fn create_attachment(
        &self,
        caller: &Caller,
        mut new: NewAttachment,
        wait: Wait,
    ) -> Result<Attachment, Refusal> {
        let arrived = Instant::now();
        let connector = std::mem::replace(&mut new.connector, NewConnector::None);
        let place = match connector {
            NewConnector::None => None,
            NewConnector::Client(connector) => Some(client_place(&self.facts, caller, connector)?),
            NewConnector::Native { host, transport, cache } => {
                self.may_attach_natively(caller, new.volume, &host).await?;
                Some(native_place(&self.facts, caller, &host, transport, cache)?)
            }
        };
        let client = place.as_ref().is_some_and(|place| place.native.is_none());
        let chosen = new.id.is_some();
        let (facts, owner) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| create(&facts, db, &owner, &new, place.clone());
        let begun = self.begin_connect("make an attachment", write, arrived, wait).await?;
        let made = begun.attachment.clone();
        if !client || made.connection_info.is_some() {
            self.started(&begun, arrived);
            return Ok(made);
        }
        match self.granted(caller, begun, arrived, wait).await {
            Err(Refusal::Conflict(why)) => {
                // The client never learns the id of this attachment.
                if !chosen {
                    self.abandon(caller, made.id).await;
                }
                Err(Refusal::Invalid(format!("Invalid volume: {why}")))
            }
            answer => answer,
        }
    }

    /// Gives a reserved attachment its connector, as `create_attachment` does with a client's. The
    /// same connector again gets the same answer. Another connector of the same host is applied.
    pub async fn update_attachment(
        &self,
        caller: &Caller,
        id: AttachmentId,
        connector: Map<String, Value>,
        wait: Wait,
    ) -> Result<Attachment, Refusal> {
        let arrived = Instant::now();
        let place = client_place(&self.facts, caller, connector)?;
        let (facts, owner) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| update(&facts, db, &owner, id, place.clone());
        let begun = self.begin_connect("connect an attachment", write, arrived, wait).await?;
        if begun.attachment.connection_info.is_some() {
            return self.connected_again(caller, begun, arrived + wait.0).await;
        }
        self.granted(caller, begun, arrived, wait).await
    }

    /// Repeats a transaction that connects until nothing stands in its way, or the time is over.
    pub(super) async fn begin_connect<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Fn(&Db<'_>) -> Result<Step<T>, Abort> + Clone + Send + 'static,
        arrived: Instant,
        wait: Wait,
    ) -> Result<T, Refusal> {
        let left = wait.0.saturating_sub(arrived.elapsed());
        let deadline = tokio::time::Instant::now() + left;
        let mut changes = None;
        loop {
            match (self.store.write(op, work.clone()).await?, &mut changes) {
                (Step::Done(begun), _) => return Ok(begun),
                (Step::Busy(volume, _), None) => changes = Some(self.flow.follow(volume)),
                (Step::Busy(_, why), Some(changes)) => {
                    if permits::until(deadline, changes.changed()).await.is_err() {
                        return Err(Refusal::Pending(format!("{why}: ask again when that is done")));
                    }
                }
            }
        }
    }

    /// Wakes the jobs that carry out a new attachment. Returns the revision of the volume after
    /// which a change is news.
    fn started(&self, begun: &Begun, arrived: Instant) -> u64 {
        let volume = begun.attachment.volume;
        self.facts.start_clock(begun.attachment.id, arrived);
        let now = self.flow.touch(volume);
        if begun.spec_changes.storage || begun.attachment.initiator.is_some() {
            self.flow.wake(volume, &begun.spec_changes.hosts);
        }
        if now == begun.revision + 1 { now } else { begun.revision }
    }

    /// Waits until the agent reports an attachment's grant.
    pub(super) async fn granted(
        &self,
        caller: &Caller,
        begun: Begun,
        arrived: Instant,
        wait: Wait,
    ) -> Result<Attachment, Refusal> {
        let (id, volume) = (begun.attachment.id, begun.attachment.volume);
        let left = wait.0.saturating_sub(arrived.elapsed());
        let deadline = Instant::now() + left;
        let known = self.started(&begun, arrived);
        let (mut changes, mut news) = self.flow.follow_from(volume, known);
        loop {
            let late = !news && permits::until(deadline, changes.changed()).await.is_err();
            news = false;
            // A caller who may connect the attachment gets the secrets for it.
            let seen = self.attachment_with(caller, id, Secrets::Shown).await?;
            match waited(&seen) {
                Waited::Granted => {
                    if seen.status == AttachmentStatus::Attached {
                        self.facts.stop_clock(id);
                    }
                    return Ok(seen);
                }
                Waited::Failed(why) => {
                    let why = self.why_for(caller, seen.status, why);
                    return Err(Refusal::Conflict(format!("attachment {id} is not connected: {why}")));
                }
                Waited::Waits if late => {
                    let why = self.waits_for(caller, self.why_waits(volume).await);
                    return Err(Refusal::Pending(format!(
                        "attachment {id} is not granted yet: {why}; it goes on, ask again"
                    )));
                }
                Waited::Waits => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_of_a_volume_has_its_own_text() {
        const MOST: usize = GRANTS_PER_EXPORT_MAX;
        let id = VolumeId::from_u128(1);
        let host: Initiators = "iqn.2026-01.lab:host1".parse().unwrap();
        let said = |sharing, granted, new| match has_room(id, &host, sharing, granted, new) {
            Ok(()) => String::new(),
            Err(Refusal::Invalid(text)) => text,
            Err(other) => format!("{other:?}"),
        };
        for (sharing, granted, new) in [(63, MOST, 0), (0, MOST, 0), (0, MOST - 1, 1), (0, MOST - 2, 2)] {
            assert_eq!(said(sharing, granted, new), "", "{sharing} {granted} {new}");
        }
        assert_eq!(
            said(64, 1, 0),
            format!(
                "Invalid volume: iqn.2026-01.lab:host1 has 64 attachments of volume {id}, the most of one host: detach one \
                 first"
            )
        );
        for (granted, new) in [(MOST, 1), (MOST - 1, 2)] {
            assert_eq!(
                said(0, granted, new),
                format!(
                    "Invalid volume: Volume {id} is granted to {granted} initiators, this host has {new} more, and the most \
                     of one volume is {MOST}: detach one first"
                )
            );
        }
    }
}
