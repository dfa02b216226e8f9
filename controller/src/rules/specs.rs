//! Comparison of extra specs with capabilities.
//!
//! A key without a scope, or in the scope `capabilities`, names a capability; further parts of the
//! key (`a:b`) go into maps. Keys in other scopes are for other parts. The value is a requirement:
//! an operator and its operands, or a plain text that the capability must equal. A capability that
//! is a list satisfies a requirement if any of its elements does.
//!
//! | Operator | The capability … |
//! |---|---|
//! | `=` `>=` | is a number of at least this (`=` is the older name) |
//! | `==` `!=` `<=` | as a number, equals, differs, is at most this |
//! | `s==` `s!=` `s<` `s<=` `s>` `s>=` | as a text, compares so, by code points |
//! | `<in>` | is a text that contains this |
//! | `<is>` | is true when this is, and not otherwise; any word for yes is true, everything else is false |
//! | `<or> a <or> b` | is one of these texts |
//! | `<all-in> a b` | is a list with all of these elements |
//!
//! What must never happen here: a match by a missing capability; a panic or a match by a value of
//! another kind than the operator compares; a key in another scope that is looked at although
//! another part decides it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::types;

/// The capabilities of a pool, by their keys in the API.
pub type Capabilities = Map<String, Value>;

/// The extra spec that names a type's availability zones, separated by commas. It is in a scope of
/// its own.
pub const ZONES: &str = "RESKEY:availability_zones";

/// Returns the reason why capabilities do not satisfy extra specs: the first key in order. `None`:
/// they do.
pub fn unsatisfied(capabilities: &Capabilities, specs: &BTreeMap<String, String>) -> Option<String> {
    specs.iter().find_map(|(key, requirement)| {
        let path = path(key)?;
        match find(capabilities, &path) {
            None => Some(format!("it has no capability {}", shown(&path.join(":")))),
            Some(value) if satisfies(value, requirement) => None,
            Some(value) => Some(format!(
                "its {} is {}, and {} is wanted",
                shown(&path.join(":")),
                shown(&value.to_string()),
                shown(requirement)
            )),
        }
    })
}

/// Returns the availability zones that a type is bound to. `None`: any zone.
pub fn zones(specs: &BTreeMap<String, String>) -> Option<Vec<&str>> {
    let zones: Vec<_> = specs.get(ZONES)?.split(',').map(str::trim).filter(|zone| !zone.is_empty()).collect();
    (!zones.is_empty()).then_some(zones)
}

/// Returns the parts of a key that names a capability. `None`: it names something else.
fn path(key: &str) -> Option<Vec<&str>> {
    let mut parts: Vec<_> = key.split(':').collect();
    if parts.first() == Some(&"capabilities") {
        parts.remove(0);
        return Some(parts);
    }
    (parts.len() == 1).then_some(parts)
}

fn find<'a>(capabilities: &'a Capabilities, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(capabilities.get(*first)?, |value, part| value.as_object()?.get(*part))
}

/// Returns `true` if a capability satisfies a requirement.
pub fn satisfies(value: &Value, requirement: &str) -> bool {
    match value {
        Value::Array(list) => {
            if let Some(wanted) = operands(requirement, "<all-in>") {
                let mut wanted = wanted.peekable();
                return wanted.peek().is_some() && wanted.all(|word| list.iter().any(|one| one == word));
            }
            list.iter().any(|one| satisfies_one(one, requirement))
        }
        one => satisfies_one(one, requirement),
    }
}

/// Returns the words after this operator. `None`: the requirement has another operator.
fn operands<'a>(requirement: &'a str, operator: &str) -> Option<impl Iterator<Item = &'a str> + use<'a>> {
    let mut words = requirement.split_whitespace();
    (words.next() == Some(operator)).then_some(words)
}

fn satisfies_one(value: &Value, requirement: &str) -> bool {
    let mut words = requirement.split_whitespace();
    let operator = words.next().unwrap_or_default();
    let text = value.as_str();
    let Some(operator) = Operator::from_word(operator) else {
        return text == Some(requirement);
    };
    // Words after the first one are ignored, except by `<or>`.
    let Some(word) = words.next() else { return false };
    match operator {
        Operator::Number(holds) => match (number(value), word.parse::<f64>()) {
            (Some(have), Ok(want)) => holds(have, want),
            _ => false,
        },
        Operator::Text(holds) => text.is_some_and(|text| holds(text, word)),
        // A value that is no text differs from every text.
        Operator::OtherText => !value.is_null() && text != Some(word),
        Operator::In => text.is_some_and(|text| text.contains(word)),
        Operator::Is => !value.is_null() && truth(value) == (types::boolean(word) == Some(true)),
        // The words between the values are ignored: they are `<or>` in a well-formed spec.
        Operator::Or => text == Some(word) || words.skip(1).step_by(2).any(|word| text == Some(word)),
        Operator::AllIn => std::iter::once(word).chain(words).all(|word| text == Some(word)),
    }
}

enum Operator {
    Number(fn(f64, f64) -> bool),
    Text(fn(&str, &str) -> bool),
    OtherText,
    In,
    Is,
    Or,
    AllIn,
}

impl Operator {
    fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "=" | ">=" => Self::Number(|have, want| have >= want),
            "<=" => Self::Number(|have, want| have <= want),
            "==" => Self::Number(|have, want| have.partial_cmp(&want) == Some(std::cmp::Ordering::Equal)),
            "!=" => Self::Number(|have, want| have.partial_cmp(&want) != Some(std::cmp::Ordering::Equal)),
            "s==" => Self::Text(|have, want| have == want),
            "s!=" => Self::OtherText,
            "s<" => Self::Text(|have, want| have < want),
            "s<=" => Self::Text(|have, want| have <= want),
            "s>" => Self::Text(|have, want| have > want),
            "s>=" => Self::Text(|have, want| have >= want),
            "<in>" => Self::In,
            "<is>" => Self::Is,
            "<or>" => Self::Or,
            "<all-in>" => Self::AllIn,
            _ => return None,
        })
    }
}

/// Reads a capability as a number. A boolean is 0 or 1, as in Python. `None`: it is no number.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(yes) => Some(f64::from(u8::from(*yes))),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns `true` if a capability says yes.
fn truth(value: &Value) -> bool {
    match value {
        Value::Bool(yes) => *yes,
        Value::Number(number) => number.to_string() == "1",
        Value::String(text) => types::boolean(text) == Some(true),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}
