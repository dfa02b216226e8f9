//! Query strings, and what lists have in common: `limit`, `marker`, `offset`, `sort`, the link to the next page.
//!
//! What must never happen here: a page without a bound; a number that is wrong and taken as none.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::time::SystemTime;

use axum::extract::Query as Parsed;
use axum::http::Uri;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::fault::Fault;
use super::schema;
use super::version::Version;

/// Most entries of one page.
const PAGE_MAX: usize = 1_000;

/// Keys that every list knows.
const COMMON: [&str; 9] =
    ["limit", "marker", "offset", "sort", "sort_key", "sort_dir", "all_tenants", "with_count", "project_id"];

/// The pairs of a query string, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads the query string; text that is not UTF-8 is refused.
    pub(super) fn of(uri: &Uri) -> Result<Self, Fault> {
        let Parsed(pairs) = Parsed::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|_| Fault::bad_request("The query string is malformed."))?;
        if pairs.iter().any(|(key, value)| key.contains('\u{fffd}') || value.contains('\u{fffd}')) {
            return Err(Fault::bad_request("The query string is not UTF-8."));
        }
        Ok(Self(pairs))
    }

    /// The last value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// A boolean; missing is false.
    pub(super) fn flag(&self, key: &str) -> Result<bool, Fault> {
        match self.get(key) {
            None => Ok(false),
            Some(text) => schema::boolean(text).ok_or_else(|| {
                let shown: String = text.chars().take(64).collect();
                Fault::bad_request(format!("Value '{shown}' for '{key}' is not a boolean."))
            }),
        }
    }

    /// A count.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, Fault> {
        let Some(text) = self.get(key) else { return Ok(None) };
        match text.parse::<i128>() {
            Ok(number) if number < 0 => Err(Fault::bad_request(format!("{key} param must be positive"))),
            Ok(number) => Ok(Some(u64::try_from(number).unwrap_or(u64::MAX))),
            Err(_) => Err(Fault::bad_request(format!("{key} param must be an integer"))),
        }
    }

    /// The pairs that are no common keys. Those that `known` does not name are dropped, and refused since 3.31.
    pub(super) fn filters(&self, known: &[&str], version: Version) -> Result<Vec<(&str, &str)>, Fault> {
        let mut filters = Vec::new();
        let mut unknown = Vec::new();
        for (key, value) in &self.0 {
            let plain = match key.strip_suffix('~') {
                Some(plain) if version >= Version::LIKE_FILTERS => plain,
                _ => key,
            };
            if COMMON.contains(&plain) {
                continue;
            }
            if known.contains(&plain) {
                filters.push((key.as_str(), value.as_str()));
            } else {
                unknown.push(plain.chars().take(64).collect::<String>());
            }
        }
        if unknown.is_empty() || version < Version::STRICT_FILTERS {
            return Ok(filters);
        }
        let list = unknown.join(", ");
        Err(Fault::bad_request(format!("Invalid filters {list} are found in query options.")))
    }

    /// The page that is asked for.
    pub(super) fn page(&self) -> Result<Page, Fault> {
        let number =
            |key| Ok::<_, Fault>(self.number(key)?.map(|n| usize::try_from(n).unwrap_or(usize::MAX)));
        Ok(Page {
            limit: number("limit")?.unwrap_or(PAGE_MAX).min(PAGE_MAX),
            offset: number("offset")?.unwrap_or(0),
            marker: self.get("marker").map(str::to_owned),
        })
    }

    /// Sorts by `sort=key:dir,…` or `sort_key`/`sort_dir`. Without either nothing is moved. `cell` says what a key is.
    pub(super) fn sort<T>(
        &self,
        items: &mut [T],
        cell: impl Fn(&T, &str) -> Option<Cell>,
        keys: &[&str],
    ) -> Result<(), Fault> {
        let orders = self.orders()?;
        if let Some((key, _)) = orders.iter().find(|(key, _)| !keys.contains(key)) {
            let shown: String = key.chars().take(64).collect();
            return Err(Fault::invalid_input(format!("Sort key supplied is invalid: {shown}")));
        }
        items.sort_by(|a, b| {
            for (key, descending) in &orders {
                let order = cell(a, key).cmp(&cell(b, key));
                let order = if *descending { order.reverse() } else { order };
                if order != Ordering::Equal {
                    return order;
                }
            }
            Ordering::Equal
        });
        Ok(())
    }

    fn orders(&self) -> Result<Vec<(&str, bool)>, Fault> {
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

/// What a list is sorted by.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cell {
    Text(String),
    Number(u64),
    Time(SystemTime),
}

/// A page that is asked for.
#[derive(Debug)]
pub(super) struct Page {
    limit: usize,
    offset: usize,
    marker: Option<String>,
}

impl Page {
    /// Cuts the page out of the whole list, and says how the next one is asked for when this one is full. A marker that
    /// is not in the list is a 404 in the words of `kind`.
    pub(super) fn cut<T>(
        &self,
        items: Vec<T>,
        id: impl Fn(&T) -> String,
        kind: &'static str,
        query: &Query,
    ) -> Result<(Vec<T>, Option<String>), Fault> {
        let after = match &self.marker {
            None => 0,
            Some(marker) => match items.iter().position(|item| &id(item) == marker) {
                Some(place) => place.saturating_add(1),
                None => return Err(Fault::not_found(kind, marker.chars().take(64).collect::<String>())),
            },
        };
        let skip = after.saturating_add(self.offset);
        let page: Vec<T> = items.into_iter().skip(skip).take(self.limit).collect();
        let full = page.len() == self.limit;
        let next = page.last().filter(|_| full).map(|last| query.after(&id(last)));
        Ok((page, next))
    }
}

/// A condition on a time: `gt:2026-11-21T10:00:00,lt:…`; operators gt, gte, eq, neq, lt, lte.
pub(super) fn time_matches(key: &str, text: &str, time: Option<SystemTime>) -> Result<bool, Fault> {
    let wrong = || {
        let shown: String = text.chars().take(100).collect();
        Fault::bad_request(format!(
            "Invalid value for {key}: {shown}: want gt:TIME, gte, eq, neq, lt or lte."
        ))
    };
    let mut all = true;
    for item in text.split(',') {
        let (operator, value) = item.split_once(':').ok_or_else(wrong)?;
        let wanted = instant(value).ok_or_else(wrong)?;
        let order = time.and_then(|time| Timestamp::try_from(time).ok()).map(|time| time.cmp(&wanted));
        all &= match operator {
            "gt" => order == Some(Ordering::Greater),
            "gte" => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            "eq" => order == Some(Ordering::Equal),
            "neq" => order.is_some_and(|order| order != Ordering::Equal),
            "lt" => order == Some(Ordering::Less),
            "lte" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            _ => return Err(wrong()),
        };
    }
    Ok(all)
}

/// A time with its zone, or without one: then UTC.
fn instant(text: &str) -> Option<Timestamp> {
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Some(instant);
    }
    let naive: DateTime = text.parse().ok()?;
    TimeZone::UTC.to_timestamp(naive).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn query(text: &str) -> Query {
        Query::of(&format!("/x?{text}").parse().unwrap()).unwrap()
    }

    #[test]
    fn pages_follow_each_other_and_end() {
        let all: Vec<u32> = (0..7).collect();
        let mut asked = query("limit=3&name=a%20b");
        let mut seen = Vec::new();
        loop {
            let (page, next) =
                asked.page().unwrap().cut(all.clone(), u32::to_string, "Volume", &asked).unwrap();
            seen.extend(page);
            let Some(next) = next else { break };
            assert!(next.starts_with("limit=3&name=a%20b&marker="), "{next}");
            asked = query(&next);
        }
        assert_eq!(seen, all);
    }

    #[test]
    fn wrong_numbers_and_markers_are_refused() {
        for wrong in ["limit=-1", "limit=x", "limit=", "offset=-1", "offset=1.5"] {
            assert!(query(wrong).page().is_err(), "{wrong}");
        }
        assert!(
            query("limit=0")
                .page()
                .unwrap()
                .cut(vec![1], i32::to_string, "Volume", &query(""))
                .unwrap()
                .0
                .is_empty()
        );
        let asked = query("marker=9");
        assert!(asked.page().unwrap().cut(vec![1], i32::to_string, "Volume", &asked).is_err());
        let huge = query("limit=99999999999999999999999&offset=99999999999999999999");
        assert!(huge.page().unwrap().cut(vec![1], i32::to_string, "Volume", &huge).unwrap().0.is_empty());
    }

    #[test]
    fn conditions_on_times() {
        let time = Some(SystemTime::UNIX_EPOCH + Duration::from_hours(24));
        for (text, matches) in [
            ("gt:1970-01-01T00:00:00", true),
            ("gt:1970-01-02T00:00:00", false),
            ("gte:1970-01-02T00:00:00Z", true),
            ("gt:1970-01-01T00:00:00,lt:1970-01-03", true),
            ("neq:1970-01-02T00:00:00", false),
        ] {
            assert_eq!(time_matches("created_at", text, time).unwrap(), matches, "{text}");
        }
        for wrong in ["", "1970-01-01", "xx:1970-01-01T00:00:00", "gt:yesterday"] {
            assert!(time_matches("created_at", wrong, time).is_err(), "{wrong}");
        }
    }
}
