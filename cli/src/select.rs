//! Volumes by id or by name. Names are for people: they travel as opaque data that only this
//! program reads.
//!
//! What must never happen here: an ambiguous name that picks one of several volumes.

use std::fmt;
use std::str::FromStr;

use mooring_api::v1;
use mooring_model::VolumeId;
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::session::Session;

/// Longest name, in bytes: names appear in tables.
const NAME_BYTES_MAX: usize = 128;

/// A volume's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeName(String);

/// A text that is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a volume name: {why}")]
pub struct VolumeNameError {
    text: String,
    why: &'static str,
}

impl FromStr for VolumeName {
    type Err = VolumeNameError;

    fn from_str(text: &str) -> Result<Self, VolumeNameError> {
        let wrong = |why| Err(VolumeNameError { text: text.chars().take(64).collect(), why });
        if text.is_empty() || text.len() > NAME_BYTES_MAX {
            return wrong("want 1 to 128 bytes");
        }
        if text.trim() != text || text.chars().any(char::is_control) {
            return wrong("no control characters, and no blanks at its ends");
        }
        if looks_like_an_id(text) {
            return wrong("it looks like an id");
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns `true` for a UUID, or a text that was meant as one.
fn looks_like_an_id(text: &str) -> bool {
    text.len() >= 30 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// A volume as a command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeRef {
    /// By its id.
    Id(VolumeId),
    /// By its name.
    Name(VolumeName),
}

impl FromStr for VolumeRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<VolumeId>() {
            Ok(id) => Ok(Self::Id(id)),
            // A mistyped id is reported as such, not as an unknown name.
            Err(error) if looks_like_an_id(text) => Err(error.to_string()),
            Err(_) => text.parse().map(Self::Name).map_err(|error: VolumeNameError| error.to_string()),
        }
    }
}

/// This program's part of a volume's opaque data. A controller may add more; other keys are left
/// alone.
#[derive(Serialize, Deserialize)]
struct Opaque {
    name: String,
}

/// The opaque data of a volume that this program makes.
pub(crate) fn opaque_of(name: &VolumeName) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(&Opaque { name: name.0.clone() })
        .map_err(|error| Failure::Answer(format!("the name cannot be encoded: {error}")))
}

/// The name in a volume's opaque data; `None`: it has none.
pub(crate) fn name_of(opaque: &[u8]) -> Option<String> {
    serde_json::from_slice::<Opaque>(opaque).ok().map(|opaque| opaque.name)
}

/// The volumes of this name that are not gone.
pub(crate) fn named<'a>(volumes: &'a [v1::VolumeStatus], name: &VolumeName) -> Vec<&'a v1::VolumeStatus> {
    let gone = |status: &v1::VolumeStatus| {
        status.volume.as_ref().is_some_and(|report| report.phase() == v1::Phase::Gone)
    };
    volumes
        .iter()
        .filter(|status| !gone(status) && name_of(&status.volume_opaque).as_deref() == Some(&name.0))
        .collect()
}

/// The volume that is meant, with its status.
pub(crate) async fn find(
    session: &Session,
    volume: &VolumeRef,
) -> Result<(VolumeId, v1::VolumeStatus), Failure> {
    let name = match volume {
        VolumeRef::Id(id) => return Ok((*id, session.get(*id).await?)),
        VolumeRef::Name(name) => name,
    };
    let volumes = session.list().await?;
    match named(&volumes, name)[..] {
        [] => Err(Failure::NotFound(format!("no volume of this agent is named {name:?}", name = name.0))),
        [status] => Ok((id_of(status)?, status.clone())),
        ref several => {
            let ids: Vec<_> = several.iter().map(|status| status.volume_id.as_str()).collect();
            Err(Failure::Usage(format!(
                "{} volumes are named {:?}; say which one by its id: {}",
                several.len(),
                name.0,
                ids.join(", ")
            )))
        }
    }
}

/// The id in an answer of the agent.
pub(crate) fn id_of(status: &v1::VolumeStatus) -> Result<VolumeId, Failure> {
    status.volume_id.parse().map_err(|error: mooring_model::ParseIdError| Failure::Answer(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_do_not_mix() {
        for good in ["data", "my data", "größe", "deadbeef", "b0c1d2e3-backup"] {
            assert_eq!(good.parse::<VolumeRef>(), Ok(VolumeRef::Name(good.parse().unwrap())), "{good}");
        }
        let id = "b0c1d2e3-0001-4002-8003-00000000000a";
        assert_eq!(id.parse::<VolumeRef>(), Ok(VolumeRef::Id(id.parse().unwrap())));
        for bad in [
            "",
            " data",
            "data\n",
            "a\u{1b}[31m",
            "b0c1d2e3-0001-4002-8003-0000000000",
            "b0c1d2e300014002800300000000000a",
        ] {
            assert!(bad.parse::<VolumeRef>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(129).parse::<VolumeName>().is_err());
    }

    #[test]
    fn the_name_survives_a_controllers_additions() {
        assert_eq!(name_of(br#"{"name":"data","project":"p"}"#).as_deref(), Some("data"));
        assert_eq!(name_of(&opaque_of(&"dä\"ta".parse().unwrap()).unwrap()).as_deref(), Some("dä\"ta"));
        for none in [&b""[..], b"{}", b"\xff", b"[1]"] {
            assert_eq!(name_of(none), None);
        }
    }
}
