//! Checks of bodies' form, in Cinder's words: clients show them to people, and some parse them.
//!
//! What must never happen here: a wrong value taken for a right one; an answer that repeats an
//! unbounded input.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::fault::Fault;
use crate::auth::project_ok;

/// The longest name, description, key and value, in characters.
pub(super) const TEXT_MAX: usize = 255;

/// The most characters of a wrong value that an answer repeats.
const SHOWN_MAX: usize = 1_024;

/// The spellings of a boolean, in the API's words.
const BOOLEANS: &str = "[True, 'True', 'TRUE', 'true', '1', 'ON', 'On', 'on', 'YES', 'Yes', 'yes', 'y', 't', \
                        False, 'False', 'FALSE', 'false', '0', 'OFF', 'Off', 'off', 'NO', 'No', 'no', 'n', 'f']";

/// A value as Python shows it in a list.
pub(super) fn python(value: &Value) -> String {
    let text = match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| format!("{}: {}", quoted(key), python(value));
            format!("{{{}}}", map.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    };
    bounded(&text)
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut shown = String::from(quote);
    for c in text.chars().take(SHOWN_MAX) {
        match c {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if c == quote => shown.extend(['\\', c]),
            c => shown.push(c),
        }
    }
    shown.push(quote);
    shown
}

fn bounded(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// The fault "Invalid input for field/attribute …".
pub(super) fn invalid(field: &str, value: &Value, why: impl std::fmt::Display) -> Fault {
    let shown = match value {
        Value::String(text) => bounded(text),
        other => python(other),
    };
    let field = bounded(field);
    Fault::bad_request(format!("Invalid input for field/attribute {field}. Value: {shown}. {why}"))
}

fn not_a(field: &str, value: &Value, types: &str) -> Fault {
    invalid(field, value, format!("{} is not of type {types}", python(value)))
}

/// Reads the object under the one key of a body.
pub(super) fn body<'a>(body: &'a Value, key: &'static str) -> Result<Fields<'a>, Fault> {
    let Value::Object(map) = body else {
        return Err(Fault::bad_request(format!("{} is not of type 'object'", python(body))));
    };
    let Some(value) = map.get(key) else {
        return Err(Fault::bad_request(format!("'{key}' is a required property")));
    };
    Fields::of(key, value)
}

/// Reads a body that is the object itself.
pub(super) fn whole(body: &Value) -> Result<Fields<'_>, Fault> {
    match body {
        Value::Object(map) => Ok(Fields { name: "body", whole: body, map }),
        other => Err(Fault::bad_request(format!("{} is not of type 'object'", python(other)))),
    }
}

/// An object whose fields are being read.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    name: &'a str,
    whole: &'a Value,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Reads the object under a key.
    pub(super) fn of(name: &'a str, value: &'a Value) -> Result<Self, Fault> {
        match value {
            Value::Object(map) => Ok(Self { name, whole: value, map }),
            other => Err(not_a(name, other, "'object'")),
        }
    }

    /// The object itself.
    pub(super) fn map(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// The field; `None` if it is missing or null.
    pub(super) fn some(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A fault of the object as a whole.
    pub(super) fn wrong(&self, why: impl std::fmt::Display) -> Fault {
        invalid(self.name, self.whole, why)
    }

    /// Refuses an object without fields.
    pub(super) fn not_empty(&self) -> Result<(), Fault> {
        if self.map.is_empty() {
            return Err(self.wrong("{} is not valid under any of the given schemas"));
        }
        Ok(())
    }

    /// Refuses unknown keys.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Fault> {
        let unknown: Vec<_> =
            self.map.keys().filter(|key| !known.contains(&key.as_str())).map(|key| quoted(key)).collect();
        match &unknown[..] {
            [] => Ok(()),
            [one] => Err(self.wrong(format!("Additional properties are not allowed ({one} was unexpected)"))),
            several => {
                let list = bounded(&several.join(", "));
                Err(self.wrong(format!("Additional properties are not allowed ({list} were unexpected)")))
            }
        }
    }

    /// Refuses an object without this key.
    pub(super) fn required(&self, key: &str) -> Result<&'a Value, Fault> {
        self.map.get(key).ok_or_else(|| self.wrong(format!("'{key}' is a required property")))
    }

    /// Reads a name or description of a volume: any text, or null.
    pub(super) fn label(&self, key: &str) -> Result<Option<String>, Fault> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => {
                let count = text.chars().count();
                if count > TEXT_MAX {
                    let why = format!("{key} has {count} characters, more than {TEXT_MAX}.");
                    return Err(Fault::invalid_input(why));
                }
                without_nul(key, text)?;
                Ok(Some(text.trim().to_owned()))
            }
            Some(other) => Err(not_a(key, other, "'string', 'null'")),
        }
    }

    /// Reads a text of at most [`TEXT_MAX`] characters, or null if `nullable`.
    pub(super) fn text(&self, key: &str, shortest: usize, nullable: bool) -> Result<Option<&'a str>, Fault> {
        let types = if nullable { "'string', 'null'" } else { "'string'" };
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::Null) if nullable => Ok(None),
            Some(value @ Value::String(text)) => {
                if text.chars().count() > TEXT_MAX {
                    return Err(invalid(key, value, format!("{} is too long", python(value))));
                }
                if text.len() < shortest {
                    return Err(invalid(key, value, format!("{} should be non-empty", python(value))));
                }
                without_nul(key, text)?;
                Ok(Some(text))
            }
            Some(other) => Err(not_a(key, other, types)),
        }
    }

    /// Reads a boolean in any of its spellings.
    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, Fault> {
        let Some(value) = self.map.get(key) else { return Ok(None) };
        let known = match value {
            Value::Bool(value) => Some(*value),
            Value::String(text) => boolean(text),
            _ => None,
        };
        match known {
            Some(value) => Ok(Some(value)),
            None => Err(invalid(key, value, format!("{} is not one of {BOOLEANS}", python(value)))),
        }
    }

    /// Reads a UUID; see [`id`]. `None` if it is missing or, if `nullable`, null.
    pub(super) fn uuid(&self, key: &str, nullable: bool) -> Result<Option<Uuid>, Fault> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::Null) if nullable => Ok(None),
            Some(value @ Value::String(text)) => match id(text) {
                Some(id) => Ok(Some(id)),
                None if nullable => {
                    let why = format!("{} is not valid under any of the given schemas", python(value));
                    Err(invalid(key, value, why))
                }
                None => Err(invalid(key, value, format!("{} is not a 'uuid'", python(value)))),
            },
            Some(other) if nullable => {
                let why = format!("{} is not valid under any of the given schemas", python(other));
                Err(invalid(key, other, why))
            }
            Some(other) => Err(not_a(key, other, "'string'")),
        }
    }

    /// Reads an object of texts. Its keys consist of letters, digits, `-_:.` and the characters of
    /// `extra`.
    pub(super) fn texts(&self, key: &str, extra: &str) -> Result<Option<BTreeMap<String, String>>, Fault> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => texts(key, value, extra).map(Some),
        }
    }
}

/// Reads an object of texts; see [`Fields::texts`].
pub(super) fn texts(name: &str, value: &Value, extra: &str) -> Result<BTreeMap<String, String>, Fault> {
    let Value::Object(map) = value else { return Err(not_a(name, value, "'object', 'null'")) };
    let known = |c: char| c.is_ascii_alphanumeric() || "-_:.".contains(c) || extra.contains(c);
    let mut texts = BTreeMap::new();
    for (key, item) in map {
        if key.is_empty() || key.len() > TEXT_MAX || !key.chars().all(known) {
            let why = format!(
                "{} does not match any of the regexes: '^[a-zA-Z0-9-_:.{extra}]{{1,255}}$'",
                bounded(&quoted(key))
            );
            return Err(invalid(name, value, why));
        }
        let Value::String(text) = item else {
            // The API's words name null, although it is not allowed.
            let types = if item.is_null() { "'string'" } else { "'string', 'null'" };
            return Err(not_a(key, item, types));
        };
        if text.chars().count() > TEXT_MAX {
            return Err(invalid(key, item, format!("{} is too long", python(item))));
        }
        without_nul(key, text)?;
        texts.insert(key.clone(), text.clone());
    }
    Ok(texts)
}

/// Refuses a NUL: it ends a text for many programs, and no client means it.
fn without_nul(field: &str, text: &str) -> Result<(), Fault> {
    if text.contains('\0') {
        return Err(Fault::invalid_input(format!("{} contains a NUL character.", bounded(field))));
    }
    Ok(())
}

/// Reads a UUID: 36 characters with hyphens, or its 32 digits alone, which Cinder takes too.
/// Answers have the first form.
pub(super) fn id(text: &str) -> Option<Uuid> {
    matches!(text.len(), 32 | 36).then(|| Uuid::try_parse(text).ok()).flatten()
}

/// Reads the id of an object of this kind from an address. Any other text names none of them.
pub(super) fn id_of(kind: &'static str, text: &str) -> Result<Uuid, Fault> {
    id(text).ok_or_else(|| Fault::not_found(kind, text.chars().take(64).collect::<String>()))
}

/// Reads a project's id. There is no list of projects: any text of the right form names one.
pub(super) fn project_id(text: &str) -> Result<&str, Fault> {
    if project_ok(text) {
        return Ok(text);
    }
    let shown: String = text.chars().take(64).collect();
    Err(Fault::bad_request(format!("{shown:?} is not a project's id")))
}

/// Reads a boolean in any of its spellings.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "True" | "TRUE" | "true" | "1" | "ON" | "On" | "on" | "YES" | "Yes" | "yes" | "y" | "t" => Some(true),
        "False" | "FALSE" | "false" | "0" | "OFF" | "Off" | "off" | "NO" | "No" | "no" | "n" | "f" => {
            Some(false)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_shown_as_python_does() {
        for (value, shown) in [
            (json!(null), "None"),
            (json!(true), "True"),
            (json!(1.5), "1.5"),
            (json!("it's"), "\"it's\""),
            (json!("a\nb"), "'a\\nb'"),
            (json!([1, "x"]), "[1, 'x']"),
            (json!({ "k": false }), "{'k': False}"),
        ] {
            assert_eq!(python(&value), shown);
        }
    }

    #[test]
    fn what_is_repeated_is_bounded() {
        let long = json!("ä".repeat(1_000_000));
        assert!(python(&long).chars().count() <= SHOWN_MAX + 1);
        let fault = format!("{:?}", invalid(&"k".repeat(100_000), &long, "no"));
        assert!(fault.chars().count() < 3 * SHOWN_MAX);
    }
}
