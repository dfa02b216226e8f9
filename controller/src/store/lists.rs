//! Lists: SQL made of a [`ListQuery`], with one text for both databases.
//!
//! A page begins at the place of its marker's row in the list's order (keyset paging), so the cost
//! of a page does not grow with its place. A missing value sorts as the empty text or as 0: the
//! databases disagree about NULL.
//!
//! What must never happen here: a value in a statement's text; a list without a bound; a statement
//! per entry.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mooring_model::{AgentId, AttachmentId, Chap, ChapSide, VolumeId};
use mooring_systemd::sealing::SealError;
use serde_json::Value as Json;
use uuid::Uuid;

use super::attachments::{self, AttachmentRow, Nexus};
use super::sql::{Row, SqlError, Value, values};
use super::volumes::{self, VolumeRow};
use super::{Db, messages, types};
use crate::domain::{Attached, HostUsage, Message, VolumeName, VolumeType};
use crate::list::{
    ATTACHMENTS, Collection, Filter, Key, Kind, ListQuery, MESSAGES, Order, SNAPSHOTS, TYPES, Test, VOLUMES,
};

/// The number of ids that one statement looks up. Always this number (or one), so that the
/// statement stays prepared; the last chunk repeats an id.
const CHUNK: usize = 250;

/// Characters allowed in keys of metadata, beside letters and digits.
const METADATA_KEY_EXTRA: &str = "-_:. /";

/// A statement under construction.
#[derive(Default)]
struct Statement {
    text: String,
    values: Vec<Value>,
}

impl Statement {
    /// Keeps a value, and returns its placeholder.
    fn bind(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("?{}", self.values.len())
    }
}

/// One sort criterion: an expression, and `true` if the greatest comes first.
type Place = (String, bool);

fn sort_expression(key: &Key) -> String {
    match (key.nullable, key.kind) {
        (false, _) => key.column.to_owned(),
        (true, Kind::Number | Kind::Truth | Kind::Time) => format!("COALESCE({}, 0)", key.column),
        (true, _) => format!("COALESCE({}, '')", key.column),
    }
}

/// The whole order: the requested keys, then age, then id. Without a request, the newest is first.
fn places(query: &ListQuery) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    for (key, down) in &query.sort {
        let column = sort_expression(key);
        if places.iter().all(|(other, _)| *other != column) {
            places.push((column, *down));
        }
    }
    let down = places.first().is_none_or(|(_, down)| *down);
    for last in ["created_us", "id"] {
        if places.iter().all(|(column, _)| column != last) {
            places.push((last.to_owned(), down));
        }
    }
    places
}

/// A pair of metadata as its column holds it: compact JSON with sorted keys. A quote inside a text
/// is written with a backslash, and no key has a quote, a comma or a brace: what follows `{` or `,`
/// like this is that pair.
fn metadata_pair(key: &str, value: &str) -> Option<[String; 2]> {
    let known = |c: char| c.is_ascii_alphanumeric() || METADATA_KEY_EXTRA.contains(c);
    if key.is_empty() || !key.chars().all(known) {
        return None;
    }
    let pair = format!("{}:{}", Json::from(key), Json::from(value));
    Some([format!("{{{pair}"), format!(",{pair}")])
}

/// A condition "the column contains this part", case-sensitive in both databases. Their LIKEs
/// disagree about case, and their functions about names.
fn contains(statement: &mut Statement, column: &str, part: impl Into<Value>) -> String {
    let part = statement.bind(part);
    format!("REPLACE({column}, {part}, '') <> {column}")
}

/// A condition "the volume is on a pool of this agent". A volume without a place is on none.
fn on_host(statement: &mut Statement, column: &str, agent: &str, pool: Option<&str>) -> String {
    let agent = statement.bind(agent);
    let own = pool.map(|pool| format!(" AND pool = {}", statement.bind(pool))).unwrap_or_default();
    format!("({column} = (SELECT agent_id FROM agents WHERE name = {agent}) AND pool <> ''{own})")
}

fn condition(statement: &mut Statement, filter: &Filter) -> String {
    const NEVER: &str = "1 = 0";
    let column = filter.key.column;
    match &filter.test {
        Test::Nothing => NEVER.to_owned(),
        Test::Part(part) if part.is_empty() => "1 = 1".to_owned(),
        Test::Part(part) => contains(statement, column, part),
        Test::Text(text) => format!("{column} = {}", statement.bind(text)),
        Test::Number(number) => format!("{column} = {}", statement.bind(*number)),
        Test::Time(order, time) => {
            let operator = match order {
                Order::Before => "<",
                Order::NotAfter => "<=",
                Order::At => "=",
                Order::NotAt => "<>",
                Order::NotBefore => ">=",
                Order::After => ">",
            };
            format!("{column} {operator} {}", statement.bind(*time))
        }
        Test::Type { name, id } => {
            let (name, id) = (statement.bind(name), statement.bind(id));
            format!("{column} IN (SELECT id FROM volume_types WHERE name = {name} OR id = {id})")
        }
        Test::Host { agent, pool } => on_host(statement, column, agent, pool.as_deref()),
        Test::Pairs(pairs) if filter.key.kind == Kind::Specs => all(pairs, |key, value| {
            let (key, value) = (statement.bind(key), statement.bind(value));
            format!(
                "EXISTS (SELECT 1 FROM extra_specs WHERE type_id = volume_types.id AND key = {key} AND \
                     value = {value})"
            )
        }),
        Test::Pairs(pairs) => all(pairs, |key, value| match metadata_pair(key, value) {
            None => NEVER.to_owned(),
            Some([first, later]) => {
                let first = contains(statement, column, first);
                let later = contains(statement, column, later);
                format!("({first} OR {later})")
            }
        }),
    }
}

fn all(pairs: &BTreeMap<String, String>, mut one: impl FnMut(&str, &str) -> String) -> String {
    let conditions: Vec<_> = pairs.iter().map(|(key, value)| one(key, value)).collect();
    if conditions.is_empty() { "1 = 1".to_owned() } else { conditions.join(" AND ") }
}

/// The condition that limits a collection to what the caller's project sees.
fn scope(statement: &mut Statement, of: &Collection, project: Option<&str>) -> Option<String> {
    project.map(|project| of.scope.replace("{}", &statement.bind(project)))
}

fn only(of: &Collection) -> impl Iterator<Item = String> {
    (!of.only.is_empty()).then(|| of.only.to_owned()).into_iter()
}

fn conditions(statement: &mut Statement, of: &Collection, query: &ListQuery) -> Vec<String> {
    let mut all: Vec<String> = only(of).chain(scope(statement, of, query.project.as_deref())).collect();
    for filter in &query.filters {
        all.push(condition(statement, filter));
    }
    all
}

/// The condition "stands after these values". If all criteria go one way, this is a row comparison,
/// which an index can follow.
fn after(statement: &mut Statement, places: &[Place], marker: Vec<Value>) -> String {
    let marker: Vec<String> = marker.into_iter().map(|value| statement.bind(value)).collect();
    let sign = |down: bool| if down { "<" } else { ">" };
    let down = places.first().is_some_and(|(_, down)| *down);
    if places.iter().all(|(_, other)| *other == down) {
        let columns: Vec<&str> = places.iter().map(|(column, _)| column.as_str()).collect();
        return format!("({}) {} ({})", columns.join(", "), sign(down), marker.join(", "));
    }
    let mut ways = Vec::new();
    for (index, ((column, down), value)) in places.iter().zip(&marker).enumerate() {
        let mut same: Vec<String> = places
            .iter()
            .zip(&marker)
            .take(index)
            .map(|((column, _), value)| format!("{column} = {value}"))
            .collect();
        same.push(format!("{column} {} {value}", sign(*down)));
        ways.push(format!("({})", same.join(" AND ")));
    }
    format!("({})", ways.join(" OR "))
}

fn filtered(statement: &mut Statement, conditions: &[String]) {
    if !conditions.is_empty() {
        statement.text.push_str(" WHERE ");
        statement.text.push_str(&conditions.join(" AND "));
    }
}

impl Db<'_> {
    /// The sort values of the marker's row; `None` if the caller sees no such row.
    fn marker(
        &self,
        of: &Collection,
        query: &ListQuery,
        places: &[Place],
    ) -> Result<Option<Vec<Value>>, SqlError> {
        let mut statement = Statement::default();
        let columns: Vec<&str> = places.iter().map(|(column, _)| column.as_str()).collect();
        statement.text = format!("SELECT {} FROM {}", columns.join(", "), of.table);
        let id = statement.bind(query.marker.as_deref());
        let mut conditions = vec![format!("id = {id}")];
        conditions.extend(only(of));
        conditions.extend(scope(&mut statement, of, query.project.as_deref()));
        filtered(&mut statement, &conditions);
        let read = |row: &mut Row| (0..places.len()).map(|index| row.get(index)).collect();
        self.one(&statement.text, &statement.values, read)
    }

    /// A page of a collection; `None` if the marker names no row. The query's `project` is the
    /// caller's.
    fn page<T>(
        &self,
        of: &Collection,
        columns: &str,
        query: &ListQuery,
        map: impl Fn(&mut Row) -> Result<T, SqlError>,
    ) -> Result<Option<Vec<T>>, SqlError> {
        let places = places(query);
        let marker = match &query.marker {
            None => None,
            Some(_) => match self.marker(of, query, &places)? {
                None => return Ok(None),
                found => found,
            },
        };
        let mut statement =
            Statement { text: format!("SELECT {columns} FROM {}", of.table), values: Vec::new() };
        let mut conditions = conditions(&mut statement, of, query);
        conditions.extend(marker.map(|marker| after(&mut statement, &places, marker)));
        filtered(&mut statement, &conditions);
        let order = |(column, down): &Place| format!("{column} {}", if *down { "DESC" } else { "ASC" });
        let order: Vec<_> = places.iter().map(order).collect();
        let limit = statement.bind(query.limit);
        // A client may ask for a page behind the last row.
        let offset = statement.bind(i64::try_from(query.offset).unwrap_or(i64::MAX));
        let rest = format!(" ORDER BY {} LIMIT {limit} OFFSET {offset}", order.join(", "));
        statement.text.push_str(&rest);
        self.all(&statement.text, &statement.values, map).map(Some)
    }

    /// The number of rows in a list, regardless of page and marker.
    fn count(&self, of: &Collection, query: &ListQuery) -> Result<u64, SqlError> {
        let mut statement =
            Statement { text: format!("SELECT COUNT(*) FROM {}", of.table), values: Vec::new() };
        let conditions = conditions(&mut statement, of, query);
        filtered(&mut statement, &conditions);
        Ok(self.one(&statement.text, &statement.values, |row| row.get(0))?.unwrap_or(0))
    }

    /// The number of volumes in a list.
    pub(crate) fn volume_count(&self, query: &ListQuery) -> Result<u64, SqlError> {
        self.count(&VOLUMES, query)
    }

    /// A page of volumes.
    pub(crate) fn volume_page(&self, query: &ListQuery) -> Result<Option<Vec<VolumeRow>>, SqlError> {
        self.page(&VOLUMES, volumes::COLUMNS, query, volumes::volume)
    }

    /// A page of snapshots.
    pub(crate) fn snapshot_page(&self, query: &ListQuery) -> Result<Option<Vec<VolumeRow>>, SqlError> {
        self.page(&SNAPSHOTS, volumes::COLUMNS, query, volumes::volume)
    }

    /// The number of snapshots in a list.
    pub(crate) fn snapshot_count(&self, query: &ListQuery) -> Result<u64, SqlError> {
        self.count(&SNAPSHOTS, query)
    }

    /// A page of volumes by name only.
    pub(crate) fn volume_name_page(&self, query: &ListQuery) -> Result<Option<Vec<VolumeName>>, SqlError> {
        self.page(&VOLUMES, "id, name", query, |row| Ok(VolumeName { id: row.parsed(0)?, name: row.get(1)? }))
    }

    /// A page of attachments.
    pub(crate) fn attachment_page(&self, query: &ListQuery) -> Result<Option<Vec<AttachmentRow>>, SqlError> {
        self.page(&ATTACHMENTS, attachments::COLUMNS, query, attachments::attachment)
    }

    /// A page of types.
    pub(crate) fn type_page(&self, query: &ListQuery) -> Result<Option<Vec<VolumeType>>, SqlError> {
        let Some(plain) = self.page(&TYPES, types::COLUMNS, query, types::plain)? else { return Ok(None) };
        self.with_all_specs(plain).map(Some)
    }

    /// Types by their ids.
    pub(crate) fn types_by_id(&self, ids: &BTreeSet<Uuid>) -> Result<Vec<VolumeType>, SqlError> {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        let mut plain = Vec::new();
        self.in_chunks(
            &format!("SELECT {} FROM volume_types WHERE id IN", types::COLUMNS),
            "",
            &ids,
            |row| {
                plain.push(types::plain(row)?);
                Ok(())
            },
        )?;
        self.with_all_specs(plain)
    }

    fn with_all_specs(&self, plain: Vec<types::Plain>) -> Result<Vec<VolumeType>, SqlError> {
        let mut specs: HashMap<String, BTreeMap<String, String>> = HashMap::new();
        let ids: Vec<_> = plain.iter().map(|(id, ..)| id.to_string()).collect();
        self.in_chunks("SELECT type_id, key, value FROM extra_specs WHERE type_id IN", "", &ids, |row| {
            specs.entry(row.get(0)?).or_default().insert(row.get(1)?, row.get(2)?);
            Ok(())
        })?;
        let with_specs = |(id, name, description, is_public): types::Plain| VolumeType {
            extra_specs: specs.remove(&id.to_string()).unwrap_or_default(),
            id,
            name,
            description,
            is_public,
        };
        Ok(plain.into_iter().map(with_specs).collect())
    }

    /// A page of messages.
    pub(crate) fn message_page(&self, query: &ListQuery) -> Result<Option<Vec<Message>>, SqlError> {
        self.page(&MESSAGES, messages::COLUMNS, query, messages::message)
    }

    /// Looks up many ids, a chunk with each statement.
    fn in_chunks(
        &self,
        before: &str,
        after: &str,
        ids: &[String],
        mut each: impl FnMut(&mut Row) -> Result<(), SqlError>,
    ) -> Result<(), SqlError> {
        let size = if ids.len() == 1 { 1 } else { CHUNK };
        let marks: Vec<String> = (1..=size).map(|number| format!("?{number}")).collect();
        let sql = format!("{before} ({}) {after}", marks.join(", "));
        for chunk in ids.chunks(size) {
            let last = chunk.last().into_iter().cycle();
            let values: Vec<Value> = chunk.iter().chain(last).take(size).map(Value::from).collect();
            self.sql.each(&sql, &values, &mut each)?;
        }
        Ok(())
    }

    /// The attachments of these volumes, oldest first.
    pub(crate) fn attached_to(&self, ids: &[VolumeId]) -> Result<HashMap<VolumeId, Vec<Attached>>, SqlError> {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        let before = "SELECT volume_id, id, instance, mode, status, host, mountpoint, attached_us FROM attachments \
                      WHERE volume_id IN";
        let mut found: HashMap<VolumeId, Vec<Attached>> = HashMap::new();
        self.in_chunks(before, "ORDER BY created_us, id", &ids, |row| {
            let volume: VolumeId = row.parsed(0)?;
            found.entry(volume).or_default().push(Attached {
                id: row.parsed(1)?,
                instance: row.parsed_opt(2)?,
                mode: row.parsed(3)?,
                status: attachments::status(row, 4)?,
                attached_host: row.get(5)?,
                mountpoint: row.get(6)?,
                attached_at: row.time_opt(7)?,
            });
            Ok(())
        })?;
        Ok(found)
    }

    /// Volumes by their ids.
    pub(crate) fn volumes_by_id(&self, ids: &[VolumeId]) -> Result<HashMap<VolumeId, VolumeRow>, SqlError> {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        let mut found = HashMap::new();
        self.in_chunks(&format!("SELECT {} FROM volumes WHERE id IN", volumes::COLUMNS), "", &ids, |row| {
            let volume = volumes::volume(row)?;
            found.insert(volume.id, volume);
            Ok(())
        })?;
        Ok(found)
    }

    /// The credentials of attachments' nexuses. Leaves out those that do not open, so that they do
    /// not hide the others.
    pub(crate) fn nexuses_of(&self, ids: &[AttachmentId]) -> Result<HashMap<AttachmentId, Nexus>, SqlError> {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        let before = "SELECT a.id, n.chap_user, n.secret, n.volume_id, n.initiator FROM attachments a JOIN nexuses n \
                      ON n.volume_id = a.volume_id AND n.initiator = a.initiator WHERE a.id IN";
        let mut found = HashMap::new();
        self.in_chunks(before, "", &ids, |row| {
            let (volume, name): (String, String) = (row.get(3)?, row.get(4)?);
            let secret = match self.open_secret(&volume, &name, &row.get::<String>(2)?) {
                Ok(secret) => secret,
                Err(SqlError::Seal(error @ (SealError::Changed(_) | SealError::Clear(_)))) => {
                    tracing::error!(%error, "an attachment is listed without its credentials");
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let initiator = ChapSide { user: row.get(1)?, secret };
            found.insert(row.parsed(0)?, Nexus(Chap { initiator, mutual: None }));
            Ok(())
        })?;
        Ok(found)
    }

    /// The number of volumes in a list, and their sum in GiB.
    pub(crate) fn volume_sums(&self, query: &ListQuery) -> Result<(u64, u64), SqlError> {
        let text = "SELECT COUNT(*), CAST(COALESCE(SUM(size_gib), 0) AS BIGINT) FROM volumes";
        let mut statement = Statement { text: text.to_owned(), values: Vec::new() };
        let conditions = conditions(&mut statement, &VOLUMES, query);
        filtered(&mut statement, &conditions);
        let sums = self.one(&statement.text, &statement.values, |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(sums.unwrap_or_default())
    }

    /// The metadata of a list's volumes, each distinct set once.
    pub(crate) fn metadata_of(&self, query: &ListQuery) -> Result<Vec<BTreeMap<String, String>>, SqlError> {
        let text = "SELECT DISTINCT metadata FROM volumes";
        let mut statement = Statement { text: text.to_owned(), values: Vec::new() };
        let conditions = conditions(&mut statement, &VOLUMES, query);
        filtered(&mut statement, &conditions);
        self.all(&statement.text, &statement.values, |row| row.json(0))
    }

    /// The use of an agent's storage by each project.
    pub(crate) fn usage_on(&self, agent: AgentId) -> Result<Vec<HostUsage>, SqlError> {
        let sql = "SELECT project, COUNT(*), COUNT(snapshot_of), CAST(COALESCE(SUM(size_gib), 0) AS BIGINT), \
                   CAST(COALESCE(SUM(CASE WHEN snapshot_of IS NULL THEN 0 ELSE size_gib END), 0) AS BIGINT) FROM volumes \
                   WHERE agent_id = ?1 GROUP BY project ORDER BY project";
        self.all(sql, &values![agent], |row| {
            let (all, snapshots, gib, snapshots_gib): (u64, u64, u64, u64) =
                (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
            Ok(HostUsage {
                project: row.get(0)?,
                volumes: all.saturating_sub(snapshots),
                size_gib: gib.saturating_sub(snapshots_gib),
                snapshots,
                snapshots_gib,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;
    use crate::clock::Clock;
    use crate::store::{Store, testing};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

        /// The metadata filter finds the volumes that a look at each volume finds, whatever the
        /// texts are.
        #[test]
        fn metadata_is_found_as_pairs(
            volumes in prop::collection::vec(btree_map("[ab:]{1,2}", "[ab,:{}\"\\\\é\n]{0,4}", 0..4), 1..12),
            asked in btree_map("[ab:]{1,2}|[a\"{,]{1,3}", "[ab,:{}\"\\\\é\n]{0,4}", 0..2),
            of in any::<prop::sample::Index>(),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(crate::store::Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap();
            // One existing pair is added: chance alone would find little.
            let known: BTreeMap<_, _> = of.get(&volumes).clone().into_iter().take(1).collect();
            for asked in [asked, known] {
                let key = VOLUMES.key("metadata").unwrap();
                let filters = vec![Filter { key, test: Test::Pairs(asked.clone()) }];
                let query = ListQuery { filters, all_projects: true, ..ListQuery::default() };
                let wanted = volumes
                    .iter()
                    .filter(|has| asked.iter().all(|(key, value)| has.get(key) == Some(value)))
                    .count();
                let kept = volumes.clone();
                let found = store.prepare("look", move |db| {
                    db.run("DELETE FROM volumes", &[])?;
                    for (number, metadata) in (1..).zip(&kept) {
                        testing::insert_volume(db, VolumeId::from_u128(number), AgentId::from_u128(1), metadata)?;
                    }
                    Ok(db.volume_count(&query)?)
                });
                prop_assert_eq!(found.unwrap(), wanted as u64);
            }
        }
    }
}
