//! Queries of lists: the keys that filter and sort each collection, and the pages. Pure: the front
//! makes a [`ListQuery`] of a query string, and the store makes SQL of a [`ListQuery`].
//!
//! What must never happen here: a key that is also SQL and comes from a request; a filter for
//! everybody on facts that only admins see.

use std::collections::BTreeMap;
use std::time::SystemTime;

use mooring_model::VolumeId;

/// The most entries of one page: Cinder's `osapi_max_limit`.
pub const PAGE_MAX: u64 = 1_000;

/// The most conditions of one list; each pair of a dictionary and each time is one. A volume has at
/// most 128 pairs, and the databases refuse an expression of some thousand conditions.
pub const CONDITIONS_MAX: usize = 256;

/// The type of a key's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A UUID; any other text matches nothing.
    Id,
    /// A whole number.
    Number,
    /// A boolean.
    Truth,
    /// A time.
    Time,
    /// The users' own keys of a volume.
    Metadata,
    /// The extra specs of a type.
    Specs,
    /// A field that no object has here: nothing matches.
    Nobody,
    /// A boolean that is true for all.
    Always,
    /// A boolean that is false for all.
    Never,
    /// A volume's type, by its name or its id.
    Type,
    /// A volume's host: `NAME`, `NAME@lvm` or `NAME@lvm#POOL`.
    Host,
}

/// A key of a collection.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// The key's name for clients.
    pub name: &'static str,
    /// The column of the table.
    pub(crate) column: &'static str,
    /// The type of its values.
    pub kind: Kind,
    /// `true` if a row may have no value.
    pub(crate) nullable: bool,
    /// `true` if not only admins may filter by it.
    pub everybody: bool,
    /// `true` if lists can be sorted by it.
    pub sorts: bool,
}

/// A collection that can be listed.
#[derive(Debug)]
pub struct Collection {
    /// The name in `GET /resource_filters`.
    pub resource: &'static str,
    /// The name of one object in a 404.
    pub one: &'static str,
    pub(crate) table: &'static str,
    /// The condition that selects the collection's rows of the table; empty for all rows.
    pub(crate) only: &'static str,
    /// The condition that limits rows to a project's; `{}` stands for the project.
    pub(crate) scope: &'static str,
    /// The keys for filters and sorting.
    pub keys: &'static [Key],
}

const fn key(name: &'static str, column: &'static str, kind: Kind) -> Key {
    Key { name, column, kind, nullable: false, everybody: false, sorts: true }
}

const fn nothing(name: &'static str, kind: Kind) -> Key {
    Key { sorts: false, ..key(name, "", kind) }
}

impl Key {
    const fn opt(self) -> Self {
        Self { nullable: true, ..self }
    }

    const fn open(self) -> Self {
        Self { everybody: true, ..self }
    }

    const fn unsorted(self) -> Self {
        Self { sorts: false, ..self }
    }
}

/// `/volumes`.
pub static VOLUMES: Collection = Collection {
    resource: "volume",
    one: "Volume",
    table: "volumes",
    only: "snapshot_of IS NULL",
    scope: "project = {}",
    keys: &[
        key("name", "name", Kind::Text).opt().open(),
        key("status", "status", Kind::Text).open(),
        key("metadata", "metadata", Kind::Metadata).open().unsorted(),
        key("bootable", "bootable", Kind::Truth).open(),
        nothing("migration_status", Kind::Nobody).open(),
        key("availability_zone", "zone", Kind::Text).open(),
        nothing("group_id", Kind::Nobody).open(),
        key("size", "COALESCE(grows_from, size_gib)", Kind::Number).open(),
        key("created_at", "created_us", Kind::Time).open(),
        key("updated_at", "updated_us", Kind::Time).opt().open(),
        nothing("consumes_quota", Kind::Always).open(),
        key("display_name", "name", Kind::Text).opt(),
        key("id", "id", Kind::Id),
        key("description", "description", Kind::Text).opt().unsorted(),
        key("display_description", "description", Kind::Text).opt().unsorted(),
        key("volume_type_id", "type_id", Kind::Id),
        key("multiattach", "multiattach", Kind::Truth).unsorted(),
        key("attach_status", "attach_status", Kind::Text).unsorted(),
        key("user_id", "user_id", Kind::Text).unsorted(),
        key("volume_type", "type_id", Kind::Type).unsorted(),
        key("snapshot_id", "source_snapshot", Kind::Id).opt().unsorted(),
        key("source_volid", "source_volume", Kind::Id).opt().unsorted(),
        nothing("encrypted", Kind::Never),
        key("host", "agent_id", Kind::Host).unsorted(),
        key("os-vol-host-attr:host", "agent_id", Kind::Host).unsorted(),
    ],
};

/// `/attachments`.
pub static ATTACHMENTS: Collection = Collection {
    resource: "attachment",
    one: "Attachment",
    table: "attachments",
    only: "",
    scope: "project = {}",
    keys: &[
        key("volume_id", "volume_id", Kind::Id).open(),
        key("status", "status", Kind::Text).open(),
        key("instance_id", "instance", Kind::Id).opt().open(),
        key("attach_status", "status", Kind::Text).open(),
        key("id", "id", Kind::Id),
        key("attached_host", "host", Kind::Text).opt(),
        key("attach_mode", "mode", Kind::Text),
        key("created_at", "created_us", Kind::Time),
    ],
};

/// `/types`.
pub static TYPES: Collection = Collection {
    resource: "volume_type",
    one: "Volume type",
    table: "volume_types",
    only: "",
    scope: "(is_public = 1 OR EXISTS (SELECT 1 FROM type_projects WHERE type_id = volume_types.id AND \
            type_projects.project = {}))",
    keys: &[
        key("is_public", "is_public", Kind::Truth).open(),
        key("extra_specs", "", Kind::Specs).open().unsorted(),
        key("id", "id", Kind::Id),
        key("name", "name", Kind::Text),
        key("description", "description", Kind::Text).opt(),
        key("created_at", "created_us", Kind::Time),
    ],
};

/// `/messages`.
pub static MESSAGES: Collection = Collection {
    resource: "message",
    one: "Message",
    table: "messages",
    only: "",
    scope: "project = {}",
    keys: &[
        key("resource_uuid", "resource_id", Kind::Text).opt().open(),
        key("resource_type", "resource_kind", Kind::Text).open(),
        key("event_id", "event", Kind::Text).open(),
        key("request_id", "request", Kind::Text).open(),
        key("message_level", "level", Kind::Text).open(),
        key("id", "id", Kind::Id),
        key("created_at", "created_us", Kind::Time),
        key("guaranteed_until", "expires_us", Kind::Time),
    ],
};

/// `/snapshots`.
pub static SNAPSHOTS: Collection = Collection {
    resource: "snapshot",
    one: "Snapshot",
    table: "volumes",
    only: "snapshot_of IS NOT NULL",
    scope: "project = {}",
    keys: &[
        key("name", "name", Kind::Text).opt().open(),
        key("status", "status", Kind::Text).open(),
        key("volume_id", "snapshot_of", Kind::Id).open(),
        key("metadata", "metadata", Kind::Metadata).open().unsorted(),
        key("availability_zone", "zone", Kind::Text).open().unsorted(),
        nothing("consumes_quota", Kind::Always).open(),
        key("display_name", "name", Kind::Text).opt(),
        key("id", "id", Kind::Id),
        key("created_at", "created_us", Kind::Time),
        key("updated_at", "updated_us", Kind::Time).opt(),
    ],
};

/// All collections of objects.
pub static COLLECTIONS: [&Collection; 5] = [&VOLUMES, &SNAPSHOTS, &ATTACHMENTS, &TYPES, &MESSAGES];

/// The key of a filter that no collection has; only [`Test::Nothing`] goes with it.
pub static UNKNOWN: Key = nothing("", Kind::Nobody);

impl Collection {
    /// A key by its name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// A comparison of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// `lt`.
    Before,
    /// `lte`.
    NotAfter,
    /// `eq`.
    At,
    /// `neq`.
    NotAt,
    /// `gte`.
    NotBefore,
    /// `gt`.
    After,
}

/// The condition on a row's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// The value is this text.
    Text(String),
    /// The value contains this text.
    Part(String),
    /// The value is this number; booleans are 0 and 1.
    Number(i64),
    /// The value is a time in this order to that one.
    Time(Order, SystemTime),
    /// The value has all of these pairs.
    Pairs(BTreeMap<String, String>),
    /// The type has this name or this id.
    Type {
        /// The name.
        name: String,
        /// The id, or any text that is none.
        id: String,
    },
    /// The volume is on a pool of this agent.
    Host {
        /// The agent's name.
        agent: String,
        /// The only pool that counts; `None` for all.
        pool: Option<String>,
    },
    /// No row matches.
    Nothing,
}

/// One condition of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The key.
    pub key: &'static Key,
    /// The condition.
    pub test: Test,
}

impl Filter {
    /// Counts the conditions that the databases see.
    pub fn conditions(&self) -> usize {
        match &self.test {
            Test::Pairs(pairs) => pairs.len(),
            _ => 1,
        }
    }
}

/// The query of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// `true` for all projects (admins), `false` for the caller's.
    pub all_projects: bool,
    /// The only project, if there is one (admins, with all projects).
    pub project: Option<String>,
    /// The conditions, which must all hold.
    pub filters: Vec<Filter>,
    /// The keys to sort by, each with `true` if the greatest comes first. Age and id follow, so
    /// that every place in a list is unique.
    pub sort: Vec<(&'static Key, bool)>,
    /// The most entries of the page.
    pub limit: u64,
    /// The number of entries to leave out before the page.
    pub offset: u64,
    /// The entry after which the page begins.
    pub marker: Option<String>,
    /// `true` to count all entries, regardless of page and marker.
    pub count: bool,
}

impl Default for ListQuery {
    fn default() -> Self {
        Self {
            all_projects: false,
            project: None,
            filters: Vec::new(),
            sort: Vec::new(),
            limit: PAGE_MAX,
            offset: 0,
            marker: None,
            count: false,
        }
    }
}

impl ListQuery {
    /// The attachments of one volume, of whatever project.
    pub fn attachments_of(volume: VolumeId) -> Self {
        let key = ATTACHMENTS.keys.iter().find(|key| key.name == "volume_id");
        let filters = key.map(|key| Filter { key, test: Test::Text(volume.to_string()) });
        Self { all_projects: true, filters: filters.into_iter().collect(), ..Self::default() }
    }
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The page's entries.
    pub items: Vec<T>,
    /// The number of entries regardless of page and marker, if it was requested.
    pub count: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_what_has_no_column_is_not_sorted() {
        for collection in COLLECTIONS {
            for (index, key) in collection.keys.iter().enumerate() {
                assert!(collection.keys[..index].iter().all(|other| other.name != key.name), "{key:?}");
                assert!(!key.sorts || !key.column.is_empty(), "{key:?}");
            }
        }
    }

    #[test]
    fn what_only_admins_see_is_no_filter_for_others() {
        for name in ["attached_host", "user_id", "host", "os-vol-host-attr:host"] {
            for collection in COLLECTIONS {
                assert!(collection.key(name).is_none_or(|key| !key.everybody));
            }
        }
    }
}
