//! Lists, and sums over many rows. A page costs a handful of statements, however long the list is.
//!
//! What must never happen here: another project's row in a list for a caller who is no admin; a
//! statement per row.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mooring_model::VolumeId;
use uuid::Uuid;

use super::view::{self, Secrets};
use super::{Refusal, Service, text_limit, told, volumes};
use crate::domain::{
    Attachment, Caller, HostUsage, Message, MetadataChange, StorageHost, Volume, VolumeName, VolumeType,
    VolumesSummary,
};
use crate::flow::place::zone_of;
use crate::flow::{Facts, volume_specs};
use crate::list::{Filter, ListQuery, Page, Test, UNKNOWN};
use crate::schedule::capabilities::BACKEND;
use crate::store::{Abort, AgentRow, Db};

/// The query, limited to the caller's project. Only an admin may ask for all projects (project
/// `None`). An admin who names another project and does not ask for all finds nothing.
pub(super) fn seen_by(caller: &Caller, mut query: ListQuery) -> ListQuery {
    if !(caller.admin && query.all_projects) {
        let other = query.project.as_ref().is_some_and(|project| *project != caller.project);
        if caller.admin && other {
            query.filters.push(Filter { key: &UNKNOWN, test: Test::Nothing });
        }
        query.project = Some(caller.project.clone());
    }
    query
}

pub(super) fn found<T>(
    kind: &'static str,
    query: &ListQuery,
    page: Option<Vec<T>>,
) -> Result<Vec<T>, Refusal> {
    page.ok_or_else(|| {
        let what = query.marker.iter().flat_map(|marker| marker.chars()).take(64).collect();
        Refusal::NotFound { kind, what }
    })
}

fn volumes_page(facts: &Facts, db: &Db<'_>, query: &ListQuery) -> Result<Page<Volume>, Abort> {
    let rows = found("Volume", query, db.volume_page(query)?)?;
    let ids: Vec<VolumeId> = rows.iter().map(|row| row.id).collect();
    let mut attached = db.attached_to(&ids)?;
    let kinds: BTreeSet<Uuid> = rows.iter().map(|row| row.type_id).collect();
    let kinds: HashMap<Uuid, VolumeType> =
        db.types_by_id(&kinds)?.into_iter().map(|kind| (kind.id, kind)).collect();
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        let kind = kinds.get(&row.type_id).cloned().ok_or_else(|| view::without_type(row.id))?;
        let attachments = attached.remove(&row.id).unwrap_or_default();
        items.push(view::volume_of(facts, row, kind, attachments));
    }
    let count = if query.count { Some(db.volume_count(query)?) } else { None };
    Ok(Page { items, count })
}

fn attachments_page(
    facts: &Facts,
    db: &Db<'_>,
    query: &ListQuery,
    secrets: Secrets,
) -> Result<Page<Attachment>, Abort> {
    let rows = found("Attachment", query, db.attachment_page(query)?)?;
    let ids: BTreeSet<VolumeId> = rows.iter().map(|row| row.volume).collect();
    let volumes = db.volumes_by_id(&ids.into_iter().collect::<Vec<_>>())?;
    // Count grants as granted that are reported and not stored yet. Few attachments are coming at
    // once.
    let mut shown = BTreeSet::new();
    for row in &rows {
        let sees = match volumes.get(&row.volume).filter(|_| row.is_coming()) {
            Some(volume) => facts.sees_grant(db, volume.agent, row)?,
            None => row.is_granted(),
        };
        shown.extend(sees.then_some(row.id));
    }
    let connected: Vec<_> =
        rows.iter().filter(|row| row.wants_grant() && shown.contains(&row.id)).map(|row| row.id).collect();
    let nexuses = db.nexuses_of(&connected)?;
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        let volume = volumes.get(&row.volume);
        let volume =
            volume.ok_or_else(|| Refusal::NotFound { kind: "Volume", what: row.volume.to_string() })?;
        let (nexus, shown) = (nexuses.get(&row.id), shown.contains(&row.id));
        items.push(view::attachment_of(facts, volume, row, shown, nexus, secrets));
    }
    Ok(Page { items, count: None })
}

/// Applies a change to the metadata of a volume or a snapshot. 404 for the removal of a key that is
/// not there.
pub(super) fn metadata_after(
    id: VolumeId,
    metadata: &mut BTreeMap<String, String>,
    change: &MetadataChange,
) -> Result<(), Refusal> {
    match change {
        MetadataChange::Merge(new) => metadata.extend(new.clone()),
        MetadataChange::Replace(new) => metadata.clone_from(new),
        MetadataChange::Remove(key) => {
            if metadata.remove(key).is_none() {
                let shown: String = key.chars().take(super::TEXT_CHARS_MAX).collect();
                let what = format!("{id} has no metadata with key {shown}");
                return Err(Refusal::NotFound { kind: "Metadata", what });
            }
        }
    }
    Ok(())
}

fn change_metadata(
    facts: &Facts,
    db: &Db<'_>,
    caller: &Caller,
    id: VolumeId,
    change: &MetadataChange,
    only_if: Option<&BTreeMap<String, String>>,
) -> Result<BTreeMap<String, String>, Abort> {
    let mut row = volumes::find(facts, db, caller, id)?;
    if only_if.is_some_and(|known| *known != row.metadata) {
        let text = format!("The metadata of volume {id} has changed since it was read.");
        return Err(Refusal::Changed(text).into());
    }
    let mut metadata = row.metadata.clone();
    metadata_after(id, &mut metadata, change)?;
    volumes::may_update(facts, caller, &row, false, Some(&metadata))?;
    volumes::check_metadata(&metadata)?;
    row.metadata = metadata;
    db.update_volume(&row)?;
    volume_specs::renew_unless_in_review(db, &row)?;
    Ok(row.metadata)
}

impl Service {
    /// One page of volumes.
    pub async fn volumes(&self, caller: &Caller, query: ListQuery) -> Result<Page<Volume>, Refusal> {
        self.may("volume:get_all", caller)?;
        let (facts, query) = (self.facts.clone(), seen_by(caller, query));
        let read = move |db: &Db<'_>| volumes_page(&facts, db, &query);
        self.store.read("list volumes", read).await
    }

    /// One page of volumes, by name only.
    pub async fn volume_names(&self, caller: &Caller, query: ListQuery) -> Result<Page<VolumeName>, Refusal> {
        self.may("volume:get_all", caller)?;
        let query = seen_by(caller, query);
        let read = move |db: &Db<'_>| {
            let items = found("Volume", &query, db.volume_name_page(&query)?)?;
            let count = if query.count { Some(db.volume_count(&query)?) } else { None };
            Ok(Page { items, count })
        };
        self.store.read("list volumes", read).await
    }

    /// Number and total size of the volumes; with `metadata`, also their keys and values.
    pub async fn volumes_summary(
        &self,
        caller: &Caller,
        query: ListQuery,
        metadata: bool,
    ) -> Result<VolumesSummary, Refusal> {
        self.may("volume:get_all", caller)?;
        let query = seen_by(caller, query);
        let read = move |db: &Db<'_>| {
            let (count, size_gib) = db.volume_sums(&query)?;
            let mut summary = VolumesSummary { count, size_gib, metadata: BTreeMap::new() };
            let all = if metadata { db.metadata_of(&query)? } else { Vec::new() };
            for (key, value) in all.into_iter().flatten() {
                summary.metadata.entry(key).or_default().insert(value);
            }
            Ok(summary)
        };
        self.store.read("sum volumes up", read).await
    }

    /// Changes a volume's metadata. One transaction reads and writes it, so that of two changes at
    /// once none is lost. `only_if`: the call is refused as `Changed` unless the metadata is this.
    pub async fn change_metadata(
        &self,
        caller: &Caller,
        id: VolumeId,
        change: MetadataChange,
        only_if: Option<BTreeMap<String, String>>,
    ) -> Result<BTreeMap<String, String>, Refusal> {
        let (facts, caller) = (self.facts.clone(), caller.clone());
        let write = move |db: &Db<'_>| change_metadata(&facts, db, &caller, id, &change, only_if.as_ref());
        let metadata = self.store.write("change a volume's metadata", write).await?;
        self.flow.go(id, &BTreeSet::new());
        Ok(metadata)
    }

    /// One page of attachments. An admin who names a volume gets the attachments of all projects.
    pub async fn attachments(&self, caller: &Caller, query: ListQuery) -> Result<Page<Attachment>, Refusal> {
        self.may("mooring:attachment_get_all", caller)?;
        let mut query = query;
        let of_one = |test: &Test| matches!(test, Test::Text(_));
        query.all_projects |=
            query.filters.iter().any(|filter| filter.key.name == "volume_id" && of_one(&filter.test));
        let (query, secrets) = (seen_by(caller, query), self.secrets_for(caller));
        let facts = self.facts.clone();
        let read = move |db: &Db<'_>| attachments_page(&facts, db, &query, secrets);
        self.store.read("list attachments", read).await
    }

    /// One page of volume types: those that the caller may use; for admins all.
    pub async fn types(&self, caller: &Caller, query: ListQuery) -> Result<Page<VolumeType>, Refusal> {
        self.may("volume_extension:type_get_all", caller)?;
        let query = seen_by(caller, ListQuery { all_projects: true, ..query });
        let read = move |db: &Db<'_>| {
            let items = found("Volume type", &query, db.type_page(&query)?)?;
            Ok(Page { items, count: None })
        };
        self.store.read("list types", read).await
    }

    /// One page of the messages of the caller's project.
    pub async fn messages(&self, caller: &Caller, query: ListQuery) -> Result<Page<Message>, Refusal> {
        self.may("message:get_all", caller)?;
        let query = seen_by(caller, query);
        let own = self.reads_agents(caller);
        let read = move |db: &Db<'_>| {
            let items = found("Message", &query, db.message_page(&query)?)?;
            Ok(Page { items: items.into_iter().map(|one| told::message(one, own)).collect(), count: None })
        };
        self.store.read("list messages", read).await
    }

    /// One message. 404 for another project's message.
    pub async fn message(&self, caller: &Caller, id: Uuid) -> Result<Message, Refusal> {
        self.may("message:get", caller)?;
        let project = (!caller.admin).then(|| caller.project.clone());
        let read =
            move |db: &Db<'_>| Ok(db.message(id, project.as_deref())?.ok_or_else(|| no_message(id))?);
        let message = self.store.read("read a message", read).await?;
        Ok(told::message(message, self.reads_agents(caller)))
    }

    /// Deletes a message.
    pub async fn delete_message(&self, caller: &Caller, id: Uuid) -> Result<(), Refusal> {
        self.may("message:delete", caller)?;
        let project = (!caller.admin).then(|| caller.project.clone());
        let write = move |db: &Db<'_>| {
            db.message(id, project.as_deref())?.ok_or_else(|| no_message(id))?;
            Ok(db.delete_message(id)?)
        };
        self.store.write("delete a message", write).await
    }

    /// The storage agents. Admins only.
    pub async fn storage_hosts(&self, caller: &Caller) -> Result<Vec<StorageHost>, Refusal> {
        self.may("volume_extension:hosts", caller)?;
        let facts = self.facts.clone();
        let read = move |db: &Db<'_>| {
            let host = |row: AgentRow| {
                let agent = facts.agents.named(&row.name)?;
                Some(StorageHost {
                    name: format!("{}@{BACKEND}", row.name),
                    zone: zone_of(&agent).to_owned(),
                    up: agent.is_up(),
                    enabled: !row.disabled,
                    heard_at: agent.state().last_report.max(row.heard_at),
                })
            };
            Ok(db.agents()?.into_iter().filter(serves).filter_map(host).collect())
        };
        self.store.read("list storage hosts", read).await
    }

    /// The use of a storage agent by each project. Admins only.
    pub async fn storage_host(&self, caller: &Caller, name: &str) -> Result<Vec<HostUsage>, Refusal> {
        self.may("volume_extension:hosts", caller)?;
        text_limit("host", name)?;
        let name = name.to_owned();
        let read = move |db: &Db<'_>| {
            let plain = name.split('@').next().unwrap_or_default();
            let host = db.agents()?.into_iter().find(|row| row.name == plain);
            let host = host.ok_or_else(|| Refusal::NotFound { kind: "Host", what: name.clone() })?;
            Ok(db.usage_on(host.id)?)
        };
        self.store.read("read a storage host", read).await
    }
}

/// `true` if the agent has reported pools.
fn serves(row: &AgentRow) -> bool {
    row.capabilities.as_ref().is_some_and(|seen| !seen.pools.is_empty())
}

fn no_message(id: Uuid) -> Refusal {
    Refusal::NotFound { kind: "Message", what: id.to_string() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mooring_model::{AgentId, AttachmentId};

    use super::*;
    use crate::service::ServiceOptions;
    use crate::store::testing;

    fn service(dir: &tempfile::TempDir) -> Service {
        Service::open(ServiceOptions::new(dir.path().join("state"))).unwrap()
    }

    /// A page of ten volumes costs as many statements as one of a thousand, but for the chunks of
    /// its attachments.
    #[test]
    fn statements_per_page() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(&dir);
        let store = &service.store;
        let fill = |db: &Db<'_>| {
            for number in 0..1_001 {
                let id = VolumeId::from_u128(number + 1);
                testing::insert_volume(db, id, AgentId::from_u128(1), &BTreeMap::new())?;
                for attachment in 0..3 {
                    testing::insert_attachment(db, AttachmentId::from_u128(10 * number + attachment), id)?;
                }
            }
            Ok(())
        };
        store.prepare("fill", fill).unwrap();
        let counted = |limit: u64, marker: Option<VolumeId>| {
            let marker = marker.map(|id| id.to_string());
            let query = ListQuery { limit, marker, count: true, ..ListQuery::default() };
            store
                .read_blocking(|db| {
                    let ((volumes, statements), attachments) = (
                        testing::counted(db, |db| volumes_page(&service.facts, db, &query).unwrap()),
                        testing::counted(db, |db| {
                            attachments_page(&service.facts, db, &query, Secrets::Hidden)
                        })
                        .1,
                    );
                    Ok((volumes.items.len(), statements, attachments))
                })
                .unwrap()
        };
        // Statements of a volume page: the page, four chunks of attachments, the type with its
        // specs, the count. Statements of an attachment page: the page, and the 334 volumes of a
        // thousand attachments, of which none is connected.
        assert_eq!(counted(1_000, None), (1_000, 8, 1 + 2));
        assert_eq!(counted(10, None).1, 5);
        assert_eq!(counted(10, Some(VolumeId::from_u128(500))).1, 6, "and the marker's row");
    }
}
