//! A creator's hints about a volume's place, as the database keeps them with the volume.
//!
//! What must never happen here: a hint that is kept and not read.

use serde_json::{Map, Value, json};

use crate::domain::{Hints, HostImage};

/// The key of the image that the volume is copied from.
const IMAGE: &str = "image";

impl Hints {
    /// The hints as JSON.
    pub(super) fn kept(&self) -> Map<String, Value> {
        let mut kept = Map::new();
        for (key, ids) in [("same_host", &self.same_host), ("different_host", &self.different_host)] {
            if !ids.is_empty() {
                kept.insert(key.to_owned(), ids.iter().map(ToString::to_string).collect());
            }
        }
        if let Some(zone) = &self.zone {
            kept.insert("availability_zone".to_owned(), json!(zone));
        }
        if let Some(HostImage { host, image }) = &self.image {
            kept.insert(IMAGE.to_owned(), json!({ "host": host, "image": image }));
        }
        kept
    }

    /// Reads hints. Unknown keys say nothing.
    pub(super) fn from_kept(kept: &Map<String, Value>) -> Self {
        let ids = |key: &str| {
            let ids = kept.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            ids.iter().filter_map(|id| id.as_str()?.parse().ok()).collect()
        };
        Self {
            same_host: ids("same_host"),
            different_host: ids("different_host"),
            zone: kept.get("availability_zone").and_then(Value::as_str).map(str::to_owned),
            image: kept.get(IMAGE).and_then(|kept| {
                let image = serde_json::from_value(kept["image"].clone()).ok()?;
                Some(HostImage { host: kept["host"].as_str()?.to_owned(), image })
            }),
        }
    }
}
