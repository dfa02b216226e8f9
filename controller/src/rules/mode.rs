//! Rules of write access: the mode of an attachment, and of the nexus that it shares.
//!
//! What must never happen here: a mode wider than the requested one; writes to a volume whose flag
//! says read only.

use std::collections::BTreeMap;

use mooring_model::{AttachmentId, Mode};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::Existing;
use super::types;
use crate::domain::{AttachViolation, ConnectorViolation, RuleViolation};
use crate::initiators::Initiators;

/// Returns the mode of a new attachment: the argument, else the connector's, else that of a sibling
/// of the same server, else ro for a volume whose `readonly` flag is set, else rw.
///
/// A volume with the flag is never written: a request for rw is refused, and a sibling's rw is not
/// inherited.
pub fn mode(
    argument: Option<Mode>,
    connector: Option<&Map<String, Value>>,
    instance: Option<Uuid>,
    existing: &[Existing],
    readonly: bool,
) -> Result<Mode, RuleViolation> {
    let asked = match argument {
        Some(mode) => Some(mode),
        None => of_connector(connector)?,
    };
    if let Some(mode) = asked {
        if readonly && mode == Mode::ReadWrite {
            return Err(RuleViolation::Attach(AttachViolation::ReadOnlyVolume));
        }
        return Ok(mode);
    }
    let sibling = existing.iter().find(|other| instance.is_some() && other.instance == instance);
    let widest = if readonly { Mode::ReadOnly } else { Mode::ReadWrite };
    Ok(sibling.map_or(widest, |sibling| sibling.mode.min(widest)))
}

/// The mode that a connector names.
pub fn of_connector(connector: Option<&Map<String, Value>>) -> Result<Option<Mode>, RuleViolation> {
    // Clients send a missing mode as JSON null or as its text.
    match connector.and_then(|connector| connector.get("mode")) {
        Some(Value::String(word)) if word != "null" => {
            word.parse().map(Some).map_err(|error: mooring_model::ParseModeError| {
                RuleViolation::Connector(ConnectorViolation::Mode { why: Some(error.to_string()) })
            })
        }
        None | Some(Value::Null | Value::String(_)) => Ok(None),
        Some(_) => Err(RuleViolation::Connector(ConnectorViolation::Mode { why: None })),
    }
}

/// Returns the mode of a nexus: rw if any of its attachments is rw. `None` without attachments.
pub fn effective_mode(modes: impl IntoIterator<Item = Mode>) -> Option<Mode> {
    modes.into_iter().max()
}

/// Checks that an attachment of this mode may share its nexus. The target enforces one mode per
/// nexus, so that ro beside rw is served as rw. That is allowed, and reported, unless the type is
/// strict: extra spec `mooring:mixed_modes` = `<is> False`. `own`: the attachment itself, if it
/// exists already.
pub fn may_mix(
    specs: &BTreeMap<String, String>,
    own: Option<AttachmentId>,
    initiator: &Initiators,
    mode: Mode,
    existing: &[Existing],
) -> Result<(), RuleViolation> {
    if !types::is_strict(specs) {
        return Ok(());
    }
    let shares = |other: &&Existing| Some(other.id) != own && other.shares(initiator) && other.is_live();
    match existing.iter().filter(shares).find(|other| other.mode != mode) {
        None => Ok(()),
        Some(other) => Err(RuleViolation::Attach(AttachViolation::MixedModes {
            other: other.id,
            other_mode: other.mode,
            initiator: initiator.clone(),
            mode,
        })),
    }
}
