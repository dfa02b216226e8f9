//! Settings of a volume type for the iSCSI sessions of its volumes' exports: extra specs such as
//! `mooring:header_digest` and `mooring:max_burst`. Each is a name of [`TuningKey`] behind
//! Mooring's own prefix.
//!
//! What must never happen here: a value stored that no agent takes; a key with Mooring's own prefix
//! stored although it has no meaning: after a misspelt digest, an operator would believe that there
//! is one.

use mooring_model::{Tuning, TuningKey, TuningValue};

use super::cache::CACHE;
use super::types::{MIXED_MODES, Specs, boolean, cut_short, is_boolean};
use crate::domain::{RuleViolation, SpecViolation, TuningFault};

/// Mooring's own prefix of extra specs. Keys with it choose no pool.
pub const PREFIX: &str = "mooring:";

/// Returns the extra spec that sets this key.
pub fn spec_of(key: TuningKey) -> String {
    format!("{PREFIX}{key}")
}

/// Reads one value. A flag may have the spelling of the API, or be a yes or no.
fn parse(key: TuningKey, text: &str) -> Result<TuningValue, TuningFault> {
    let plain = if key.is_flag() {
        let yes = is_boolean(text).or_else(|| boolean(text)).ok_or(TuningFault::NoFlag)?;
        if yes { "yes" } else { "no" }
    } else {
        text
    };
    key.parse(plain).map_err(TuningFault::NotAllowed)
}

/// Gives every value its one spelling, and refuses a value that no agent would take.
pub fn normalise(specs: &mut Specs) -> Result<(), RuleViolation> {
    for (spec, value) in specs.iter_mut().filter(|(spec, _)| *spec != MIXED_MODES && *spec != CACHE) {
        let Some(name) = spec.strip_prefix(PREFIX) else { continue };
        let key: TuningKey =
            name.parse().map_err(|_| RuleViolation::Spec(SpecViolation::Unknown { key: cut_short(spec) }))?;
        let found = parse(key, value).map_err(|why| {
            RuleViolation::Spec(SpecViolation::BadTuning { key, value: cut_short(value), why })
        })?;
        *value = match (key.is_flag(), found.number()) {
            (true, 0) => "<is> False".to_owned(),
            (true, _) => "<is> True".to_owned(),
            (false, _) => found.text(key),
        };
    }
    Ok(())
}

fn read(specs: &Specs) -> Tuning {
    let said = |key: TuningKey| Some((key, parse(key, specs.get(&spec_of(key))?).ok()?));
    TuningKey::ALL.into_iter().filter_map(said).collect()
}

/// Returns the settings of a type. A value that makes no sense is left out: a type may be older
/// than a rule about types.
pub fn of(specs: &Specs) -> Tuning {
    let tuning = read(specs);
    let wrong = tuning.check().err().map(|(key, _)| key);
    tuning.iter().filter(|(key, _)| Some(*key) != wrong).collect()
}

/// Checks that the settings do not contradict each other.
pub fn check(specs: &Specs) -> Result<(), RuleViolation> {
    read(specs)
        .check()
        .map_err(|(key, why)| RuleViolation::Spec(SpecViolation::TuningContradicts { key, why }))
}
