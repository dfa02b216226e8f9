//! Compares a recorded value with one of ours. Pure.
//!
//! In a recorded value, `<name>` stands for a value that is made at run time: the same name for the
//! same value.
//!
//! What must never happen here: a placeholder that takes two values in one scenario; an error's
//! wording that is compared (it may differ).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// The values of a scenario, by the names of their placeholders.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<String, String>);

/// A piece of a recorded text.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Name(&'a str),
}

/// Words in angle brackets that are no placeholders.
const WORDS: [&str; 2] = ["<is>", "<br />"];

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let (mut rest, mut from) = (text, 0);
    while let Some(at) = rest[from..].find('<').map(|at| at + from) {
        let Some(end) = rest[at..].find('>').map(|end| at + end + 1) else { break };
        if WORDS.contains(&&rest[at..end]) {
            from = end;
            continue;
        }
        found.push(Piece::Text(&rest[..at]));
        found.push(Piece::Name(&rest[at + 1..end - 1]));
        (rest, from) = (&rest[end..], 0);
    }
    found.push(Piece::Text(rest));
    found.retain(|piece| *piece != Piece::Text(""));
    found
}

/// Returns `true` if a text has the form that a placeholder's name demands.
fn fits(name: &str, text: &str) -> bool {
    let digits = |text: &str, template: &str| {
        text.len() == template.len()
            && text.chars().zip(template.chars()).all(|(seen, want)| match want {
                '0' => seen.is_ascii_digit(),
                'x' => seen.is_ascii_hexdigit(),
                other => seen == other,
            })
    };
    let uuid = || digits(text, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx");
    match name {
        "time" => digits(text, "0000-00-00T00:00:00.000000"),
        "uuid" => uuid(),
        "project" => !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-'),
        "base" => text.starts_with("http://"),
        "request id" => text.strip_prefix("req-").is_some(),
        name if name.starts_with("type name") => !text.is_empty(),
        _ => uuid(),
    }
}

/// Placeholders that may have another value at each mention.
const LOOSE: [&str; 3] = ["time", "uuid", "request id"];

impl Names {
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Fills the values into a recorded text; the error is a name without a value.
    pub(crate) fn fill(&self, text: &str) -> Result<String, String> {
        let fill = |piece| match piece {
            Piece::Text(text) => Ok(text.to_owned()),
            Piece::Name(name) => self.0.get(name).cloned().ok_or_else(|| name.to_owned()),
        };
        pieces(text).into_iter().map(fill).collect()
    }

    /// Fills the values into every text of a value.
    pub(crate) fn fill_value(&self, value: &Value) -> Result<Value, String> {
        Ok(match value {
            Value::String(text) => Value::String(self.fill(text)?),
            Value::Array(items) => {
                items.iter().map(|item| self.fill_value(item)).collect::<Result<_, _>>()?
            }
            Value::Object(map) => {
                let filled = map.iter().map(|(key, value)| Ok((self.fill(key)?, self.fill_value(value)?)));
                Value::Object(filled.collect::<Result<Map<_, _>, String>>()?)
            }
            other => other.clone(),
        })
    }

    /// Returns `true` if a text matches the recorded one; learns the values of new names.
    fn matches(&mut self, recorded: &str, seen: &str) -> bool {
        let (pieces, mut rest, mut learnt) = (pieces(recorded), seen, Vec::new());
        let mut at = 0;
        while at < pieces.len() {
            let known = match pieces[at] {
                Piece::Text(text) => Some(text.to_owned()),
                Piece::Name(name) if LOOSE.contains(&name) => None,
                Piece::Name(name) => self.0.get(name).cloned(),
            };
            if let Some(known) = known {
                let Some(after) = rest.strip_prefix(&known) else { return false };
                rest = after;
            } else if let Piece::Name(name) = pieces[at] {
                // It ends where the next text begins.
                let end = match pieces.get(at + 1) {
                    Some(Piece::Text(next)) => rest.find(next),
                    _ => Some(rest.len()),
                };
                let Some(end) = end else { return false };
                if !fits(name, &rest[..end]) {
                    return false;
                }
                if !LOOSE.contains(&name) {
                    learnt.push((name, &rest[..end]));
                }
                rest = &rest[end..];
            }
            at += 1;
        }
        if rest.is_empty() {
            for (name, value) in learnt {
                self.set(name, value);
            }
        }
        rest.is_empty()
    }

    /// Every difference, as `where: what`.
    pub(crate) fn compare(&mut self, at: &str, recorded: &Value, seen: &Value, found: &mut Vec<String>) {
        match (recorded, seen) {
            (Value::Object(recorded), Value::Object(seen)) => self.compare_maps(at, recorded, seen, found),
            (Value::Array(recorded), Value::Array(seen)) => {
                if recorded.len() != seen.len() {
                    found.push(format!("{at}: {} entries, recorded {}", seen.len(), recorded.len()));
                }
                for (index, (recorded, seen)) in recorded.iter().zip(seen).enumerate() {
                    self.compare(&format!("{at}[{index}]"), recorded, seen, found);
                }
            }
            (Value::String(recorded), Value::String(seen)) if self.matches(recorded, seen) => {}
            (recorded, seen) if recorded == seen => {}
            (recorded, seen) => found.push(format!("{at}: {seen}, recorded {recorded}")),
        }
    }

    fn compare_maps(
        &mut self,
        at: &str,
        recorded: &Map<String, Value>,
        seen: &Map<String, Value>,
        found: &mut Vec<String>,
    ) {
        let below = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
        // A fault has its code and a text, whose wording is nobody's contract.
        let fault = recorded.contains_key("code") && recorded.contains_key("message");
        let keys: BTreeSet<_> = recorded.keys().chain(seen.keys()).collect();
        for key in keys {
            match (recorded.get(key), seen.get(key)) {
                (Some(_), Some(seen)) if fault && key == "message" => {
                    if seen.as_str().is_none_or(str::is_empty) {
                        found.push(format!("{}: no text", below(key)));
                    }
                }
                (Some(recorded), Some(seen)) => self.compare(&below(key), recorded, seen, found),
                (Some(recorded), None) => found.push(format!("{}: missing, recorded {recorded}", below(key))),
                (None, _) => found.push(format!("{}: not recorded", below(key))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn differences(recorded: &Value, seen: &Value) -> Vec<String> {
        let mut found = Vec::new();
        Names::default().compare("", recorded, seen, &mut found);
        found
    }

    #[test]
    fn names_stand_for_one_value() {
        let (a, b) = ("11111111-2222-4333-8444-555555555555", "21111111-2222-4333-8444-555555555555");
        let recorded =
            json!({ "id": "<vol1>", "href": "<base>/v3/<project>/volumes/<vol1>", "spec": "<is> True" });
        let ours = |id: &str, at: &str, spec: &str| json!({ "id": id, "href": format!("http://localhost:1/v3/ab/volumes/{at}"), "spec": spec });
        assert_eq!(differences(&recorded, &ours(a, a, "<is> True")), Vec::<String>::new());
        assert_eq!(differences(&recorded, &ours(a, b, "<is> True")).len(), 1);
        assert_eq!(differences(&recorded, &ours(a, a, "True")).len(), 1);
        assert_eq!(differences(&recorded, &ours("x", a, "<is> True")).len(), 1);
    }

    #[test]
    fn everything_else_is_compared() {
        let recorded = json!({ "a": null, "b": [1], "c": { "code": 404, "message": "x" }, "t": "<time>" });
        let same = json!({ "a": null, "b": [1], "c": { "code": 404, "message": "y" }, "t": "2026-01-01T00:00:00.000000" });
        assert_eq!(differences(&recorded, &same), Vec::<String>::new());
        let other =
            json!({ "b": [1, 2], "c": { "code": 400, "message": "" }, "d": 1, "t": "2026-01-01T00:00:00Z" });
        let found = differences(&recorded, &other);
        let starts =
            ["a: missing", "b: 2 entries", "c.code: 400", "c.message: no text", "d: not recorded", "t: "];
        assert_eq!(found.len(), starts.len(), "{found:?}");
        assert!(found.iter().zip(starts).all(|(found, start)| found.starts_with(start)), "{found:?}");
    }
}
