//! The id of a new volume that its creator chooses.

use mooring_model::{ClusterId, VolumeId};
use sha2::{Digest, Sha256};
use uuid::Builder;

/// The most characters of a request key.
const CHARS_MAX: usize = 64;

/// A creator's choice of the id of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedId {
    /// This id, which no volume has ever had. For admins, unless a policy says otherwise.
    Given(VolumeId),
    /// The id that follows from this key: the request can be repeated, and makes one volume.
    Key(RequestKey),
}

/// A client's name for one request, 1 to 64 characters. Each project has its own keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey(String);

impl RequestKey {
    /// Makes a key; `None` if the text is empty or too long.
    pub fn new(text: &str) -> Option<Self> {
        (1..=CHARS_MAX).contains(&text.chars().count()).then(|| Self(text.to_owned()))
    }

    /// The text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The volume that this key stands for in a project. No key leads to an id of another project.
    pub fn volume(&self, cluster: ClusterId, project: &str) -> VolumeId {
        let mut hash = Sha256::new();
        hash.update(b"mooring volume by request key\0");
        hash.update(cluster.as_bytes());
        // The lengths, so that no text runs into the next.
        for text in [project, &self.0] {
            hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(text.as_bytes());
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        VolumeId::from_u128(Builder::from_custom_bytes(bytes).into_uuid().as_u128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_key_has_one_to_64_characters() {
        assert_eq!(RequestKey::new(""), None);
        assert!(RequestKey::new("ä").is_some() && RequestKey::new(&"ä".repeat(64)).is_some());
        assert_eq!(RequestKey::new(&"a".repeat(65)), None);
    }

    #[test]
    fn request_key_names_one_volume_for_each_project_and_cluster() {
        let id = |cluster, project, key| {
            RequestKey::new(key).unwrap().volume(ClusterId::from_u128(cluster), project)
        };
        // The value never changes: a client may repeat a request to a controller of the next
        // release.
        assert_eq!(id(1, "p", "k").to_string(), "34599a33-8fc4-8268-b97d-5acad542b78a");
        assert_eq!(id(1, "p", "k"), id(1, "p", "k"));
        for other in [id(1, "p", "l"), id(1, "q", "k"), id(2, "p", "k")] {
            assert_ne!(other, id(1, "p", "k"));
        }
        assert_ne!(id(1, "ab", "c"), id(1, "a", "bc"));
    }
}
