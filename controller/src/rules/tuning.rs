//! What a volume type says about the sessions of its volumes' exports, over iSCSI: extra specs `mooring:header_digest`,
//! `mooring:max_burst` and so on, a name of [`TuningKey`] behind the house's own prefix.
//!
//! What must never happen here: a value written that no agent takes; a name of the house's own prefix that means nothing, and
//! is written all the same: whoever misspells a digest would believe that there is one.

use mooring_model::{Tuning, TuningKey, TuningValue};

use super::cache::CACHE;
use super::types::{MIXED_MODES, Specs, boolean, cut_short, is_boolean};
use crate::domain::{RuleViolation, SpecViolation};

/// The house's own prefix of extra specs. Keys with it choose no pool.
pub const PREFIX: &str = "mooring:";

/// The extra spec that sets this.
pub fn spec_of(key: TuningKey) -> String {
    format!("{PREFIX}{key}")
}

/// Reads one value. Of a flag in the spelling of the API, or yes and no.
fn parse(key: TuningKey, text: &str) -> Result<TuningValue, String> {
    if !key.is_flag() {
        return key.parse(text);
    }
    let yes = is_boolean(text).or_else(|| boolean(text));
    let yes = yes.ok_or_else(|| "want '<is> True' or '<is> False'".to_owned())?;
    key.parse(if yes { "yes" } else { "no" })
}

/// Gives every value its one spelling, and refuses what no agent would take.
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

/// What a type says. What makes no sense is unsaid: a type may be older than a rule about types.
pub fn of(specs: &Specs) -> Tuning {
    let tuning = read(specs);
    let wrong = tuning.check().err().map(|(key, _)| key);
    tuning.iter().filter(|(key, _)| Some(*key) != wrong).collect()
}

/// Whether all of it can stand together.
pub fn check(specs: &Specs) -> Result<(), RuleViolation> {
    read(specs)
        .check()
        .map_err(|(key, why)| RuleViolation::Spec(SpecViolation::TuningContradicts { key, why }))
}
