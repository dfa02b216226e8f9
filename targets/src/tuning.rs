//! Maps the session parameters of a spec to attributes of its portal group, and to the kernel's
//! words.
//!
//! All of them hold for later objects only: `param` is copied when a connection logs in, and
//! `default_cmdsn_depth` when an ACL is made. So they are written to a live portal group as well,
//! and no existing session notices (lio.md, p). The depth of an existing ACL is left alone: another
//! one would drop its sessions.
//!
//! What must never happen here: a look at, or a write to, a parameter that no spec sets.

use std::collections::BTreeMap;

use mooring_host::{Tree, TreeError, TreePath};
use mooring_model::{ExportNames, Tuning, TuningKey, TuningValue};

use crate::layout;

/// Returns the attribute of a portal group that holds this parameter.
pub fn path(names: &ExportNames, key: TuningKey) -> TreePath {
    let (folder, name) = match key {
        TuningKey::HeaderDigest => ("param", "HeaderDigest"),
        TuningKey::DataDigest => ("param", "DataDigest"),
        TuningKey::QueueDepth => ("attrib", "default_cmdsn_depth"),
        TuningKey::MaxBurst => ("param", "MaxBurstLength"),
        TuningKey::FirstBurst => ("param", "FirstBurstLength"),
        // The kernel names it from the initiator's view: this attribute is what the target declares
        // as its own limit (lio.md, p).
        TuningKey::MaxRecvSegment => ("param", "MaxXmitDataSegmentLength"),
        TuningKey::ImmediateData => ("param", "ImmediateData"),
        TuningKey::InitialR2t => ("param", "InitialR2T"),
        TuningKey::MaxOutstandingR2t => ("param", "MaxOutstandingR2T"),
    };
    layout::tpg(names).join(folder).join(name)
}

/// Returns `true` if no spec decides this parameter: [`TPG_PARAMS`](layout::TPG_PARAMS) does.
pub(crate) fn is_settled(key: TuningKey) -> bool {
    key == TuningKey::ImmediateData
}

/// Formats a value as the kernel writes it.
pub fn text(key: TuningKey, value: TuningValue) -> String {
    match key {
        TuningKey::HeaderDigest | TuningKey::DataDigest => match value.text(key).as_str() {
            "none" => "None",
            "crc32c" => "CRC32C",
            _ => "CRC32C,None",
        }
        .to_owned(),
        TuningKey::ImmediateData => "No".to_owned(),
        TuningKey::InitialR2t => if value.number() == 0 { "No" } else { "Yes" }.to_owned(),
        _ => value.number().to_string(),
    }
}

pub(crate) fn why(key: TuningKey) -> &'static str {
    match key {
        TuningKey::QueueDepth => "as the export is tuned: of ACLs that are made from here on",
        _ => "as the export is tuned: of logins from here on",
    }
}

/// Reads the kernel's values of all parameters that the spec sets.
pub(crate) fn read(
    tree: &dyn Tree,
    names: &ExportNames,
    said: &Tuning,
) -> Result<BTreeMap<TuningKey, String>, TreeError> {
    let said = said.iter().filter(|(key, _)| !is_settled(*key));
    said.map(|(key, _)| Ok((key, tree.read_text(&path(names, key))?))).collect()
}
