//! Extra specs of volume types: the allowed values, and their meaning for the control plane itself.
//!
//! What must never happen here: two readings of one spec. `multiattach` is written in one spelling
//! and read in one place; the scheduler's laxer operators (`rules::specs`) only choose a pool by
//! it.

use std::collections::BTreeMap;

use super::{cache, tuning};
use crate::domain::{RuleViolation, SpecViolation};

/// The extra spec that lets hosts share a type's volumes.
pub const MULTIATTACH: &str = "multiattach";

/// The extra spec that forbids ro beside rw in one nexus: `<is> False` makes a type strict.
pub const MIXED_MODES: &str = "mooring:mixed_modes";

/// The extra spec with the encryption of volumes at their hosts.
pub const ENCRYPTION: &str = "encryption";

/// The extra spec with a type's smallest volume, in GiB.
pub const SIZE_MIN: &str = "provisioning:min_vol_size";

/// The extra spec with a type's largest volume, in GiB.
pub const SIZE_MAX: &str = "provisioning:max_vol_size";

/// Extra specs.
pub type Specs = BTreeMap<String, String>;

/// Reads a boolean in any spelling that clients of the API use. `None`: the text is no boolean.
pub fn boolean(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// Reads the boolean after `<is>`, in any spelling. `None`: the text is not of that form.
pub(super) fn is_boolean(spec: &str) -> Option<bool> {
    let mut words = spec.split_whitespace();
    let (operator, value) = (words.next()?, words.next()?);
    (operator.eq_ignore_ascii_case("<is>") && words.next().is_none()).then(|| boolean(value))?
}

/// Returns `true` if a type's volumes may be attached more than once: exactly `<is> True`, in any
/// spelling of its letters and blanks. Anything else is no. This is the only place that reads the
/// spec.
pub fn is_multiattach(specs: &Specs) -> bool {
    specs.get(MULTIATTACH).is_some_and(|spec| {
        let mut words = spec.split_whitespace();
        let is = words.next().is_some_and(|word| word.eq_ignore_ascii_case("<is>"));
        let yes = words.next().is_some_and(|word| word.eq_ignore_ascii_case("true"));
        is && yes && words.next().is_none()
    })
}

/// Returns `true` if a type refuses ro beside rw in one nexus.
pub fn is_strict(specs: &Specs) -> bool {
    specs.get(MIXED_MODES).is_some_and(|spec| is_boolean(spec) == Some(false))
}

/// Returns `true` if a type's volumes are encrypted at their hosts. Anything but a plain no is a
/// yes.
pub fn is_encrypted(specs: &Specs) -> bool {
    specs.get(ENCRYPTION).is_some_and(|spec| {
        let no = is_boolean(spec).or_else(|| boolean(spec)) == Some(false);
        !spec.trim().is_empty() && !no
    })
}

/// Returns the extra specs as they are stored. A boolean that this control plane reads itself gets
/// its one spelling. A value that one reader would take for a no and another for a yes is refused.
pub fn normalise(mut specs: Specs) -> Result<Specs, RuleViolation> {
    for key in [MULTIATTACH, MIXED_MODES] {
        let Some(spec) = specs.get_mut(key) else { continue };
        *spec = match is_boolean(spec) {
            Some(true) => "<is> True".to_owned(),
            Some(false) => "<is> False".to_owned(),
            None => {
                return Err(RuleViolation::Spec(SpecViolation::NoBoolean { key, value: cut_short(spec) }));
            }
        };
    }
    for key in [SIZE_MIN, SIZE_MAX] {
        limit(&specs, key)?;
    }
    cache::normalise(&mut specs)?;
    tuning::normalise(&mut specs)?;
    Ok(specs)
}

/// Checks that extra specs do not contradict each other. Every path that writes any passes the
/// whole set, as it would be after the change.
pub fn check_specs(specs: &Specs) -> Result<(), RuleViolation> {
    let cacheable = specs.get("cacheable").is_some_and(|spec| {
        let last = spec.split_whitespace().next_back().unwrap_or_default();
        boolean(last) == Some(true)
    });
    // Two hosts with a cache each would read data that the other has overwritten.
    if cacheable && is_multiattach(specs) {
        return Err(RuleViolation::Spec(SpecViolation::CacheableAndShared));
    }
    check_encryption(specs).map_err(|_| RuleViolation::Spec(SpecViolation::TypeEncryptedAndShared))?;
    tuning::check(specs)?;
    if let (Some(least), Some(most)) = (limit(specs, SIZE_MIN)?, limit(specs, SIZE_MAX)?)
        && least > most
    {
        return Err(RuleViolation::Spec(SpecViolation::SizesCrossed { least, most }));
    }
    Ok(())
}

/// Refuses a type whose volumes are both shared and encrypted. Also called when a volume is
/// created: a type may be older than the rule.
pub fn check_encryption(specs: &Specs) -> Result<(), RuleViolation> {
    if is_multiattach(specs) && is_encrypted(specs) {
        return Err(RuleViolation::Spec(SpecViolation::EncryptedAndShared));
    }
    Ok(())
}

/// Checks that a volume of this size may have this type.
pub fn check_size(specs: &Specs, type_name: &str, size_gib: u32) -> Result<(), RuleViolation> {
    let type_name = || type_name.to_owned();
    if let Some(least) = limit(specs, SIZE_MIN)?.filter(|least| size_gib < *least) {
        return Err(RuleViolation::Spec(SpecViolation::TooSmall { size_gib, least, type_name: type_name() }));
    }
    if let Some(most) = limit(specs, SIZE_MAX)?.filter(|most| size_gib > *most) {
        return Err(RuleViolation::Spec(SpecViolation::TooLarge { size_gib, most, type_name: type_name() }));
    }
    Ok(())
}

fn limit(specs: &Specs, key: &'static str) -> Result<Option<u32>, RuleViolation> {
    let Some(spec) = specs.get(key) else { return Ok(None) };
    let wrong = |_| RuleViolation::Spec(SpecViolation::NoSize { key, value: cut_short(spec) });
    spec.trim().parse().map(Some).map_err(wrong)
}

/// Shortens a text of a request for an answer.
pub(super) fn cut_short(text: &str) -> String {
    text.chars().take(80).collect()
}
