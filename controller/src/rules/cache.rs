//! The cache flag of attachments: the flag that a volume type sets, and the one in force of
//! several.
//!
//! What must never happen here: two hosts that cache a shared volume because nobody said anything.
//! Attachments that are older than the flag stay on until somebody turns them off.

use mooring_model::Cache;

use super::types::{self, Specs, cut_short};
use crate::domain::{RuleViolation, SpecViolation};

/// The extra spec with the cache flag of attachments that name none: `on` or `off`.
pub const CACHE: &str = "mooring:cache";

/// Returns the flag of an attachment that names none: the type's; without one, off for volumes that
/// hosts share, and on for others.
pub fn of_type(specs: &Specs) -> Cache {
    let said = specs.get(CACHE).and_then(|word| word.parse().ok());
    said.unwrap_or(if types::is_multiattach(specs) { Cache::Off } else { Cache::On })
}

/// Returns the flag in force on a disk that these attachments share: the stricter one. `None`
/// without attachments.
pub fn effective(caches: impl IntoIterator<Item = Cache>) -> Option<Cache> {
    caches.into_iter().max()
}

/// Gives the extra spec its one spelling, and refuses other words.
pub fn normalise(specs: &mut Specs) -> Result<(), RuleViolation> {
    let Some(spec) = specs.get_mut(CACHE) else { return Ok(()) };
    let word: Result<Cache, _> = spec.trim().to_ascii_lowercase().parse();
    let cache =
        word.map_err(|_| RuleViolation::Spec(SpecViolation::NoCacheFlag { value: cut_short(spec) }))?;
    *spec = cache.to_string();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(pairs: &[(&str, &str)]) -> Specs {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn shared_volumes_are_not_cached_unless_their_type_says_so() {
        let shared = ("multiattach", "<is> True");
        for (said, of) in [
            (&[][..], Cache::On),
            (&[shared], Cache::Off),
            (&[shared, (CACHE, "on")], Cache::On),
            (&[(CACHE, "off")], Cache::Off),
            (&[(CACHE, "on")], Cache::On),
            // The type is older than the rule about its values.
            (&[shared, (CACHE, "maybe")], Cache::Off),
        ] {
            assert_eq!(of_type(&specs(said)), of, "{said:?}");
        }
    }

    #[test]
    fn a_types_word_is_on_or_off() {
        for (written, kept) in [("on", "on"), (" Off ", "off"), ("OFF", "off")] {
            let mut found = specs(&[(CACHE, written)]);
            normalise(&mut found).unwrap();
            assert_eq!(found[CACHE], kept);
        }
        for wrong in ["", "none", "<is> True", "0"] {
            let refused = normalise(&mut specs(&[(CACHE, wrong)])).unwrap_err();
            assert_eq!(refused, RuleViolation::Spec(SpecViolation::NoCacheFlag { value: wrong.to_owned() }));
        }
    }
}
