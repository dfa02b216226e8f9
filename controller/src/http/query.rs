//! Query strings, and the common parts of lists: `limit`, `marker`, `offset`, `sort`, the link to
//! the next page.
//!
//! What must never happen here: a page without a bound; a wrong number taken as none; a key that is
//! given twice and used once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::SystemTime;

use axum::extract::Query as Parsed;
use axum::http::Uri;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use uuid::Uuid;

use super::context::Ctx;
use super::fault::Fault;
use super::schema;
use super::version::Version;
use crate::list::{CONDITIONS_MAX, Collection, Filter, Key, Kind, ListQuery, Order, PAGE_MAX, Test, UNKNOWN};
use crate::schedule::capabilities::BACKEND;

/// Keys that every list knows.
const COMMON: [&str; 9] =
    ["limit", "marker", "offset", "sort", "sort_key", "sort_dir", "all_tenants", "with_count", "project_id"];

/// The pairs of a query string, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads the query string. Refuses text that is not UTF-8.
    pub(super) fn of(uri: &Uri) -> Result<Self, Fault> {
        let Parsed(pairs) = Parsed::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|_| Fault::bad_request("The query string is malformed."))?;
        if pairs.iter().any(|(key, value)| key.contains('\u{fffd}') || value.contains('\u{fffd}')) {
            return Err(Fault::bad_request("The query string is not UTF-8."));
        }
        if pairs.iter().any(|(key, value)| key.contains('\0') || value.contains('\0')) {
            return Err(Fault::bad_request("The query string has a NUL character."));
        }
        let mut seen = BTreeSet::new();
        if let Some((twice, _)) = pairs.iter().find(|(key, _)| !seen.insert(key)) {
            let shown = short(twice);
            return Err(Fault::bad_request(format!("The query string says '{shown}' twice.")));
        }
        Ok(Self(pairs))
    }

    /// All pairs, in order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Reads a boolean; `false` if it is missing.
    pub(super) fn flag(&self, key: &str) -> Result<bool, Fault> {
        match self.get(key) {
            None => Ok(false),
            Some(text) => truth(key, text),
        }
    }

    /// Reads a count.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, Fault> {
        let Some(text) = self.get(key) else { return Ok(None) };
        match text.parse::<i128>() {
            Ok(number) if number < 0 => Err(Fault::bad_request(format!("{key} param must be positive"))),
            Ok(number) => Ok(Some(u64::try_from(number).unwrap_or(u64::MAX))),
            Err(_) => Err(Fault::bad_request(format!("{key} param must be an integer"))),
        }
    }

    /// Refuses keys beside these. For our own lists, whose clients know all of their keys.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Fault> {
        match self.0.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) => {
                let shown = short(key);
                Err(Fault::bad_request(format!(
                    "The query string says '{shown}', which this list does not know."
                )))
            }
        }
    }

    /// Returns `true` if a list that is no [`Collection`]'s may answer: it knows these keys and the
    /// common ones. Others are refused from the version of strict filters on; below it the list is
    /// empty.
    pub(super) fn knows(&self, known: &[&str], version: Version) -> Result<bool, Fault> {
        let unknown: Vec<_> = self
            .pairs()
            .map(|(key, _)| key)
            .filter(|key| !known.contains(key) && !COMMON.contains(key))
            .map(short)
            .collect();
        if !unknown.is_empty() && version >= Version::STRICT_FILTERS {
            return Err(unknown_filters(&unknown));
        }
        Ok(unknown.is_empty())
    }

    /// Reads the query for a list of this collection. Keys that the collection lacks, or that only
    /// admins may filter by, are refused from the version `strict` on. Below it, as in Cinder, an
    /// admin's find nothing, and those of others are dropped. The same holds for a type's extra
    /// specs before the version that has that filter.
    pub(super) fn list(
        &self,
        of: &'static Collection,
        ctx: &Ctx,
        strict: Version,
    ) -> Result<ListQuery, Fault> {
        let mut query = ListQuery {
            all_projects: ctx.all_projects()?,
            project: self.get("project_id").filter(|_| ctx.caller.admin).map(str::to_owned),
            limit: self.number("limit")?.unwrap_or(PAGE_MAX).min(PAGE_MAX),
            offset: self.number("offset")?.unwrap_or(0),
            marker: self.get("marker").map(str::to_owned),
            count: ctx.version >= Version::COUNT && self.flag("with_count")?,
            ..ListQuery::default()
        };
        let mut unknown = Vec::new();
        for (name, value) in &self.0 {
            let (plain, part) = match name.strip_suffix('~') {
                Some(plain) if ctx.version >= Version::LIKE_FILTERS => (plain, true),
                _ => (name.as_str(), false),
            };
            if COMMON.contains(&plain) {
                continue;
            }
            match of.key(plain).filter(|key| key.everybody || ctx.caller.admin) {
                Some(key) => query.filters.extend(tests(key, value, part, ctx)?),
                None => unknown.push(short(plain)),
            }
        }
        if !unknown.is_empty() {
            if ctx.version >= strict {
                return Err(unknown_filters(&unknown));
            }
            query.filters.extend(ctx.caller.admin.then_some(Filter { key: &UNKNOWN, test: Test::Nothing }));
        }
        bounded(&query.filters)?;
        for (name, down) in self.orders()? {
            let Some(key) = of.key(name).filter(|key| key.sorts) else {
                let shown = short(name);
                return Err(Fault::invalid_input(format!("Sort key supplied is invalid: {shown}")));
            };
            query.sort.push((key, down));
        }
        Ok(query)
    }

    /// The query for the page after this one; `None` unless this page is full.
    pub(super) fn next<T>(
        &self,
        query: &ListQuery,
        items: &[T],
        id: impl Fn(&T) -> String,
    ) -> Option<String> {
        let full = u64::try_from(items.len()) == Ok(query.limit);
        items.last().filter(|_| full).map(|last| self.after(&id(last)))
    }

    /// The keys to sort by, each with `true` if the last comes first.
    pub(super) fn orders(&self) -> Result<Vec<(&str, bool)>, Fault> {
        let direction = |text: &str| match text {
            "desc" => Ok(true),
            "asc" => Ok(false),
            _ => Err(Fault::invalid_input("Sort direction supplied is invalid: want asc or desc")),
        };
        if let Some(sort) = self.get("sort") {
            if self.get("sort_key").is_some() || self.get("sort_dir").is_some() {
                return Err(Fault::bad_request(
                    "The 'sort_key' and 'sort_dir' parameters cannot be used with 'sort'.",
                ));
            }
            return sort
                .split(',')
                .map(|item| match item.trim().split_once(':') {
                    Some((key, text)) => Ok((key, direction(text)?)),
                    None => Ok((item.trim(), true)),
                })
                .collect();
        }
        match (self.get("sort_key"), self.get("sort_dir")) {
            (None, None) => Ok(Vec::new()),
            (key, text) => Ok(vec![(key.unwrap_or("created_at"), direction(text.unwrap_or("desc"))?)]),
        }
    }

    /// This query with another marker.
    fn after(&self, marker: &str) -> String {
        let kept = self.0.iter().filter(|(key, _)| key != "marker" && key != "offset");
        let mut parts: Vec<_> =
            kept.map(|(key, value)| format!("{}={}", encoded(key), encoded(value))).collect();
        parts.push(format!("marker={}", encoded(marker)));
        parts.join("&")
    }
}

fn unknown_filters(names: &[String]) -> Fault {
    Fault::bad_request(format!("Invalid filters {} are found in query options.", names.join(", ")))
}

fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Refuses more conditions than a database accepts in one statement.
fn bounded(filters: &[Filter]) -> Result<(), Fault> {
    let asked: usize = filters.iter().map(Filter::conditions).sum();
    if asked <= CONDITIONS_MAX {
        return Ok(());
    }
    let text = format!(
        "The filters have {asked} conditions (pairs and times count one each): at most {CONDITIONS_MAX}."
    );
    Err(Fault::bad_request(text))
}

/// The conditions that one pair of the query string means.
fn tests(key: &'static Key, value: &str, part: bool, ctx: &Ctx) -> Result<Vec<Filter>, Fault> {
    let one = |test| Ok(vec![Filter { key, test }]);
    match key.kind {
        Kind::Text if part => one(Test::Part(value.to_owned())),
        Kind::Id if part => one(Test::Part(value.to_ascii_lowercase())),
        Kind::Text => one(Test::Text(value.to_owned())),
        Kind::Id => one(Uuid::try_parse(value).map_or(Test::Nothing, |id| Test::Text(id.to_string()))),
        _ if part => one(Test::Nothing),
        Kind::Number => one(value.parse().map_or(Test::Nothing, Test::Number)),
        // "Both": for admins who search types.
        Kind::Truth if matches!(value, "None" | "none") => Ok(Vec::new()),
        Kind::Truth => one(Test::Number(truth(key.name, value)?.into())),
        Kind::Always if truth(key.name, value)? => Ok(Vec::new()),
        Kind::Never if !truth(key.name, value)? => Ok(Vec::new()),
        Kind::Always | Kind::Never | Kind::Nobody => one(Test::Nothing),
        Kind::Type => {
            let id = Uuid::try_parse(value).map_or_else(|_| value.to_owned(), |id| id.to_string());
            one(Test::Type { name: value.to_owned(), id })
        }
        Kind::Host => one(on_host(value)),
        Kind::Time if ctx.version < Version::TIME_FILTERS => one(Test::Nothing),
        Kind::Time => {
            let moments = moments(key.name, value)?;
            Ok(moments
                .into_iter()
                .map(|(order, time)| Filter { key, test: Test::Time(order, time) })
                .collect())
        }
        // Unknown before that version.
        Kind::Specs if ctx.version < Version::TYPE_FILTERS => {
            Ok(if ctx.caller.admin { vec![Filter { key, test: Test::Nothing }] } else { Vec::new() })
        }
        Kind::Metadata | Kind::Specs => {
            let wrong = || {
                let text = format!("{}: want a dictionary as {{'key': 'value'}}", key.name);
                Fault::bad_request(text)
            };
            one(Test::Pairs(dictionary(value).ok_or_else(wrong)?))
        }
    }
}

/// The condition that a host in the API's words means: `NAME`, `NAME@lvm` or `NAME@lvm#POOL`. There
/// is nothing on another back end.
fn on_host(text: &str) -> Test {
    let (host, pool) = text.split_once('#').map_or((text, None), |(host, pool)| (host, Some(pool)));
    let agent = match host.split_once('@') {
        Some((agent, BACKEND)) => agent,
        None if pool.is_none() => host,
        _ => return Test::Nothing,
    };
    Test::Host { agent: agent.to_owned(), pool: pool.map(str::to_owned) }
}

fn truth(name: &str, text: &str) -> Result<bool, Fault> {
    schema::boolean(text).ok_or_else(|| {
        let shown = short(text);
        Fault::bad_request(format!("Value '{shown}' for '{name}' is not a boolean."))
    })
}

/// Conditions on a time: `gt:2026-11-21T10:00:00,lt:…`; operators gt, gte, eq, neq, lt, lte.
fn moments(name: &str, text: &str) -> Result<Vec<(Order, SystemTime)>, Fault> {
    let wrong = || {
        let shown: String = text.chars().take(100).collect();
        Fault::bad_request(format!(
            "Invalid value for {name}: {shown}: want gt:TIME, gte, eq, neq, lt or lte."
        ))
    };
    text.split(',')
        .map(|item| {
            let (operator, value) = item.split_once(':').ok_or_else(wrong)?;
            let order = match operator {
                "gt" => Order::After,
                "gte" => Order::NotBefore,
                "eq" => Order::At,
                "neq" => Order::NotAt,
                "lt" => Order::Before,
                "lte" => Order::NotAfter,
                _ => return Err(wrong()),
            };
            Ok((order, instant(value).ok_or_else(wrong)?.into()))
        })
        .collect()
}

/// Reads `{'key': 'value', …}`, as Python writes dictionaries of texts, or JSON of equal content.
fn dictionary(text: &str) -> Option<BTreeMap<String, String>> {
    if let Ok(map) = serde_json::from_str(text) {
        return Some(map);
    }
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let mut map = BTreeMap::new();
    while !rest.is_empty() {
        let (key, after) = literal(rest)?;
        let (value, after) = literal(after.trim_start().strip_prefix(':')?.trim_start())?;
        map.insert(key.to_owned(), value.to_owned());
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some(map)
}

/// Reads a quoted text without escapes. Returns it and the rest.
fn literal(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('u').unwrap_or(text);
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let (inside, after) = text.get(1..)?.split_once(quote)?;
    (!inside.contains('\\')).then_some((inside, after))
}

/// Reads a time with its zone; without a zone it is in UTC.
fn instant(text: &str) -> Option<Timestamp> {
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Some(instant);
    }
    let naive: DateTime = text.parse().ok()?;
    TimeZone::UTC.to_timestamp(naive).ok()
}

/// The beginning of a key or value, for a refusal.
fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::Caller;
    use crate::http::audit::Notes;
    use crate::list::COLLECTIONS;

    fn query(text: &str) -> Query {
        Query::of(&format!("/x?{text}").parse().unwrap()).unwrap()
    }

    fn ctx(admin: bool, version: Version, query: Query) -> Ctx {
        let caller = Caller {
            project: "p".to_owned(),
            user: "u".to_owned(),
            roles: Vec::new(),
            admin,
            service: false,
            request: "req".to_owned(),
        };
        let (base, address, path) = ("http://x".into(), "/v3/volumes".into(), "/volumes".into());
        let (policies, notes) = (Arc::default(), Notes::default());
        Ctx { caller, version, base, address, path, query, policies, notes }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A filter that nobody knows never leads to the whole list, but before 3.31 for those who
        /// are no admins.
        #[test]
        fn an_admins_filter_is_applied_or_refused_or_finds_nothing(
            of in prop::sample::select(COLLECTIONS.to_vec()),
            name in "[a-z_]{1,9}|host|encrypted|user_id|status|extra_specs|name|project_id|marker|limit|sort",
            value in "[a-z0-9@:]{1,9}",
            admin in any::<bool>(),
            version in prop::sample::select(vec![
                Version::ATTACHMENTS, Version::STRICT_FILTERS, Version::LIKE_FILTERS, Version::TIME_FILTERS,
            ]),
        ) {
            let ctx = ctx(admin, version, query(&format!("{name}={}", encoded(&value))));
            let answer = ctx.query.list(of, &ctx, Version::STRICT_FILTERS);
            if COMMON.contains(&name.as_str()) {
                // Pages and orders leave nothing out, and which projects are seen is the service's.
                if let Ok(asked) = answer {
                    prop_assert!(asked.filters.is_empty(), "{name} is a filter");
                    prop_assert_eq!(asked.project, (admin && name == "project_id").then_some(value));
                }
                return Ok(());
            }
            let known = of.key(&name).filter(|key| key.everybody || admin);
            match (answer, known) {
                (Ok(asked), Some(key)) => {
                    // The whole list is right for what all have, and for both values of a boolean.
                    let is_whole = matches!(key.kind, Kind::Truth | Kind::Always | Kind::Never)
                        || (key.kind == Kind::Specs && !admin);
                    prop_assert!(is_whole || !asked.filters.is_empty(), "{name} is dropped");
                }
                (Ok(asked), None) => {
                    prop_assert!(version < Version::STRICT_FILTERS, "{name} is dropped");
                    let nothing = asked.filters.iter().any(|filter| filter.test == Test::Nothing);
                    prop_assert_eq!(nothing, admin);
                }
                (Err(_), known) => {
                    prop_assert!(known.is_some() || version >= Version::STRICT_FILTERS, "{name} is refused");
                }
            }
        }
    }

    #[test]
    fn hosts_are_read_in_three_forms() {
        let on = |agent: &str, pool: Option<&str>| Test::Host {
            agent: agent.to_owned(),
            pool: pool.map(str::to_owned),
        };
        for (text, wanted) in [
            ("s1", on("s1", None)),
            ("s1@lvm", on("s1", None)),
            ("s1@lvm#vg0", on("s1", Some("vg0"))),
            ("s1@ceph", Test::Nothing),
            ("s1@ceph#vg0", Test::Nothing),
            ("s1#vg0", Test::Nothing),
        ] {
            assert_eq!(on_host(text), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_said_twice_or_has_a_nul_is_refused() {
        for wrong in ["a=1&a=2", "a=1&b=2&a=1", "a=%00", "%00=1", "name=%FF"] {
            assert!(Query::of(&format!("/x?{wrong}").parse().unwrap()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_next_page_keeps_the_question() {
        let asked = query("limit=2&name=a%20b&marker=x&offset=7");
        let limit = ListQuery { limit: 2, ..ListQuery::default() };
        let next = asked.next(&limit, &[1, 2], i32::to_string).unwrap();
        assert_eq!(next, "limit=2&name=a%20b&marker=2");
        assert_eq!(asked.next(&limit, &[1], i32::to_string), None);
        let none = ListQuery { limit: 0, ..ListQuery::default() };
        assert_eq!(asked.next(&none, &[], i32::to_string), None);
    }

    #[test]
    fn conditions_on_times() {
        let day = SystemTime::UNIX_EPOCH + Duration::from_hours(24);
        assert_eq!(moments("created_at", "gte:1970-01-02T00:00:00Z").unwrap(), [(Order::NotBefore, day)]);
        let two = moments("created_at", "gt:1970-01-01T00:00:00,lt:1970-01-02").unwrap();
        assert_eq!(two, [(Order::After, SystemTime::UNIX_EPOCH), (Order::Before, day)]);
        for wrong in ["", "1970-01-01", "xx:1970-01-01T00:00:00", "gt:yesterday"] {
            assert!(moments("created_at", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dictionaries_of_both_languages() {
        let one = BTreeMap::from([("multiattach".to_owned(), "<is> True".to_owned())]);
        for text in [
            "{'multiattach': '<is> True'}",
            "{ \"multiattach\":\"<is> True\" }",
            "{u'multiattach': u'<is> True',}",
        ] {
            assert_eq!(dictionary(text), Some(one.clone()), "{text}");
        }
        assert_eq!(dictionary("{}"), Some(BTreeMap::new()));
        for wrong in ["", "x", "{", "{'a'}", "{'a': 1}", "{'a': 'b' 'c': 'd'}", "{'a': 'b\\''}", "{ä: 'b'}"]
        {
            assert_eq!(dictionary(wrong), None, "{wrong}");
        }
    }
}
