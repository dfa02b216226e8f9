//! Volumes by id or by name. Names are for people: they travel as opaque data that only this
//! program reads.
//!
//! What must never happen here: an ambiguous name that picks one of several volumes.

use mooring_api::v1;
use mooring_model::VolumeId;
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::session::Session;
use crate::volume_ref::{VolumeName, VolumeRef};

/// This program's part of a volume's opaque data. A controller may add more; other keys are left
/// alone.
#[derive(Serialize, Deserialize)]
struct Opaque {
    name: String,
}

/// The opaque data of a volume that this program makes.
pub(crate) fn opaque_of(name: &VolumeName) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(&Opaque { name: name.to_string() })
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
        .filter(|status| !gone(status) && name_of(&status.volume_opaque).as_deref() == Some(name.as_str()))
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
        [] => {
            Err(Failure::NotFound(format!("no volume of this agent is named {name:?}", name = name.as_str())))
        }
        [status] => Ok((id_of(status)?, status.clone())),
        ref several => {
            let ids: Vec<_> = several.iter().map(|status| status.volume_id.as_str()).collect();
            Err(Failure::Usage(format!(
                "{} volumes are named {:?}; say which one by its id: {}",
                several.len(),
                name.as_str(),
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
    fn the_name_survives_a_controllers_additions() {
        assert_eq!(name_of(br#"{"name":"data","project":"p"}"#).as_deref(), Some("data"));
        assert_eq!(name_of(&opaque_of(&"dä\"ta".parse().unwrap()).unwrap()).as_deref(), Some("dä\"ta"));
        for none in [&b""[..], b"{}", b"\xff", b"[1]"] {
            assert_eq!(name_of(none), None);
        }
    }
}
