//! The opaque data that agents store beside each spec, without reading it: enough to rebuild this
//! database from the agents.
//!
//! The data are JSON, so that every release reads every other's: keys are only ever added, and a
//! missing key means "unknown". Agents accept a limited size. If the data do not fit, only what
//! cannot be known otherwise is written, with the mark `truncated`.
//!
//! What must never happen here: more than agents accept; a secret (it stands in the spec); anything
//! momentary, or independent of the spec: the spec would be sent anew for it.

use std::collections::BTreeMap;

use mooring_model::limit::OPAQUE_BYTES_MAX;
use mooring_model::{AgentId, AttachmentId, Cache, Mode, Source, VolumeId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::domain::VolumeType;
use crate::store::{AttachmentRow, Connector, VolumeRow, micros};

/// The data beside a volume's spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptVolume {
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) project: String,
    pub(crate) user: String,
    /// The name of the volume's type.
    #[serde(rename = "type")]
    pub(crate) type_name: Option<String>,
    pub(crate) type_id: Uuid,
    pub(crate) size_gib: u32,
    pub(crate) multiattach: bool,
    #[serde(default)]
    pub(crate) metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) bootable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) readonly: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// The time of creation, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created_us: Option<i64>,
    /// The rest of the volume's type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) volume_type: Option<KeptType>,
    /// The volume of which this is a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot_of: Option<VolumeId>,
    /// The volume that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source_volume: Option<VolumeId>,
    /// The snapshot that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source_snapshot: Option<VolumeId>,
    /// `true` if something did not fit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) truncated: bool,
}

/// The data of a type, beside its name and id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptType {
    pub(crate) description: Option<String>,
    pub(crate) is_public: bool,
    pub(crate) extra_specs: BTreeMap<String, String>,
    /// The projects that may use the type, if it is private.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) projects: Vec<String>,
}

/// The data beside an export's spec: the attachments with a grant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptExport {
    pub(crate) attachments: Vec<KeptAttachment>,
    /// `true` if something did not fit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) truncated: bool,
}

/// The data of one attachment, beside its grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptAttachment {
    pub(crate) id: AttachmentId,
    pub(crate) instance: Option<Uuid>,
    pub(crate) mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) native: Option<AgentId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mountpoint: Option<String>,
    /// The client's connector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connector: Option<Map<String, Value>>,
    /// The time of creation, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created_us: Option<i64>,
    /// `true` if only a user named the attachment's host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) claimed: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) cache: Cache,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The first of these that agents accept; `None` if there is none.
fn first_fitting<T: Serialize>(tiers: impl IntoIterator<Item = T>) -> Option<Vec<u8>> {
    let encoded = tiers.into_iter().filter_map(|tier| serde_json::to_vec(&tier).ok());
    encoded.into_iter().find(|bytes| bytes.len() <= OPAQUE_BYTES_MAX)
}

impl KeptVolume {
    /// The data of this row. `projects` are those that may use its type, if that is private.
    pub(crate) fn of(row: &VolumeRow, volume_type: Option<VolumeType>, projects: Vec<String>) -> Self {
        let (type_name, kept_type) = volume_type
            .map(|of| {
                let VolumeType { name, description, is_public, extra_specs, .. } = of;
                (name, KeptType { description, is_public, extra_specs, projects })
            })
            .unzip();
        Self {
            name: row.name.clone(),
            description: row.description.clone(),
            project: row.project.clone(),
            user: row.user.clone(),
            type_name,
            type_id: row.type_id,
            size_gib: row.spec_gib(),
            multiattach: row.multiattach,
            metadata: row.metadata.clone(),
            bootable: row.bootable,
            readonly: row.readonly,
            zone: Some(row.zone.clone()),
            created_us: Some(micros(row.created_at)),
            volume_type: kept_type,
            snapshot_of: row.snapshot_of,
            source_volume: row.made_from_volume(),
            source_snapshot: row.made_from_snapshot(),
            truncated: false,
        }
    }

    /// The data for agents. Too large ones are shortened: first by the metadata, then by the type's
    /// extra specs.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let few = Self { metadata: BTreeMap::new(), truncated: true, ..self.clone() };
        let fewer = Self { description: None, volume_type: None, ..few.clone() };
        first_fitting([self, &few, &fewer]).unwrap_or_default()
    }

    /// Reads an agent's data; `None` if they make no sense.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The source of the volume's contents.
    pub(crate) fn source(&self) -> Option<Source> {
        let volume = self.snapshot_of.or(self.source_volume).map(Source::Volume);
        volume.or(self.source_snapshot.map(Source::Snapshot))
    }
}

impl KeptExport {
    /// The data of a volume's attachments.
    pub(crate) fn of(rows: &[AttachmentRow]) -> Self {
        let kept = |row: &AttachmentRow| KeptAttachment {
            id: row.id,
            instance: row.instance,
            mode: row.mode,
            host: row.host.clone(),
            project: Some(row.project.clone()),
            native: row.native,
            mountpoint: row.mountpoint.clone(),
            connector: row.connector.as_ref().map(Connector::map),
            created_us: Some(micros(row.created_at)),
            claimed: row.claimed,
            cache: row.cache,
        };
        let granted = rows.iter().filter(|row| row.wants_grant());
        Self { attachments: granted.map(kept).collect(), truncated: false }
    }

    /// The data for agents. Too large ones are shortened: first by what clients sent, then by
    /// everything that is not in the spec. In the end only the mark `truncated` is left.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        if let Some(all) = first_fitting([self]) {
            return all;
        }
        let each = |change: fn(&KeptAttachment) -> KeptAttachment| Self {
            attachments: self.attachments.iter().map(change).collect(),
            truncated: true,
        };
        let few = each(|one| KeptAttachment { connector: None, mountpoint: None, ..one.clone() });
        let fewer = each(|one| KeptAttachment {
            instance: one.instance,
            created_us: one.created_us,
            claimed: one.claimed,
            cache: one.cache,
            ..KeptAttachment::bare(one.id, one.mode)
        });
        let none = Self { attachments: Vec::new(), truncated: true };
        first_fitting([few, fewer, none]).unwrap_or_default()
    }

    /// Reads an agent's data; `None` if they make no sense.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

impl KeptAttachment {
    /// An attachment of which only the grant is known.
    pub(crate) const fn bare(id: AttachmentId, mode: Mode) -> Self {
        Self {
            id,
            instance: None,
            mode,
            host: None,
            project: None,
            native: None,
            mountpoint: None,
            connector: None,
            created_us: None,
            claimed: false,
            cache: Cache::On,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn any_type()(
            description in option::of(".{0,255}"), is_public in any::<bool>(),
            extra_specs in btree_map("[a-z:]{1,40}", ".{0,255}", 0..40), projects in vec("[0-9a-f]{32}", 0..5),
        ) -> KeptType {
            KeptType { description, is_public, extra_specs, projects }
        }
    }

    prop_compose! {
        fn any_volume()(
            name in option::of(".{0,255}"), description in option::of(".{0,255}"), project in ".{1,64}", user in ".{1,64}",
            type_name in option::of(".{1,255}"), type_id in any::<u128>(), size_gib in 1..u32::MAX,
            flags in any::<[bool; 2]>(), readonly in option::of(any::<bool>()),
            zone in option::of(".{1,255}"), created_us in option::of(0..i64::MAX), volume_type in option::of(any_type()),
            // Up to the most that users may set, and beyond the size that agents accept.
            metadata in btree_map(".{1,255}", ".{0,255}", 0..150),
            sources in any::<[Option<u128>; 3]>(),
        ) -> KeptVolume {
            let [snapshot_of, source_volume, source_snapshot] = sources.map(|id| id.map(VolumeId::from_u128));
            KeptVolume {
                snapshot_of, source_volume, source_snapshot,
                name, description, project, user, type_name, type_id: Uuid::from_u128(type_id), size_gib,
                multiattach: flags[0], metadata, bootable: flags[1], readonly, zone, created_us, volume_type,
                truncated: false,
            }
        }
    }

    prop_compose! {
        fn any_attachment()(
            id in any::<u128>(), instance in option::of(any::<u128>()), writes in any::<bool>(),
            host in option::of(".{1,255}"), project in option::of(".{1,64}"), native in option::of(any::<u128>()),
            mountpoint in option::of(".{1,64}"), created_us in option::of(0..i64::MAX),
            connector in option::of(btree_map("[a-z_]{1,20}", ".{0,80}", 0..6)), claimed in any::<bool>(), off in any::<bool>(),
        ) -> KeptAttachment {
            let value = |of: BTreeMap<String, String>| of.into_iter().map(|(key, text)| (key, text.into())).collect();
            KeptAttachment {
                id: AttachmentId::from_u128(id), instance: instance.map(Uuid::from_u128),
                mode: if writes { Mode::ReadWrite } else { Mode::ReadOnly }, host, project,
                native: native.map(AgentId::from_u128), mountpoint, connector: connector.map(value), created_us, claimed,
                cache: if off { Cache::Off } else { Cache::On },
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn a_volume_is_read_as_it_was_written_and_never_more_than_agents_take(volume in any_volume()) {
            let bytes = volume.to_bytes();
            prop_assert!(!bytes.is_empty() && bytes.len() <= OPAQUE_BYTES_MAX);
            let read = KeptVolume::from_bytes(&bytes).unwrap();
            if read.truncated {
                // The identity is never left out.
                let who = |of: &KeptVolume| (of.name.clone(), of.project.clone(), of.user.clone(), of.type_id);
                prop_assert_eq!(who(&read), who(&volume));
                prop_assert!(serde_json::to_vec(&volume).unwrap().len() > OPAQUE_BYTES_MAX);
            } else {
                prop_assert_eq!(read, volume);
            }
        }

        #[test]
        fn attachments_are_read_as_they_were_written(some in vec(any_attachment(), 0..6), times in 1_usize..400) {
            let attachments: Vec<_> = some.iter().cycle().take(some.len() * times).cloned().collect();
            let export = KeptExport { attachments, truncated: false };
            let bytes = export.to_bytes();
            prop_assert!(!bytes.is_empty() && bytes.len() <= OPAQUE_BYTES_MAX);
            let read = KeptExport::from_bytes(&bytes).unwrap();
            if read.truncated {
                prop_assert!(serde_json::to_vec(&export).unwrap().len() > OPAQUE_BYTES_MAX);
                for (read, written) in read.attachments.iter().zip(&export.attachments) {
                    prop_assert_eq!((read.id, read.instance, read.mode), (written.id, written.instance, written.mode));
                    prop_assert!(read.cache == written.cache);
                }
            } else {
                prop_assert_eq!(read, export);
            }
        }

        #[test]
        fn what_others_wrote_is_read_or_not_and_nothing_else(bytes in vec(any::<u8>(), 0..200)) {
            // Neither panics.
            let _ = (KeptVolume::from_bytes(&bytes), KeptExport::from_bytes(&bytes));
        }
    }

    /// As many pairs as users may set, each as long as it may be, are more than agents take.
    #[test]
    fn the_most_metadata_is_left_out_and_nothing_else() {
        let volume = |pairs: usize| {
            let first = br#"{"name":"v","description":"d","project":"p","user":"u","type":"t",
                "type_id":"00000000-0000-4000-8000-000000000001","size_gib":1,"multiattach":true}"#;
            let pair = |number: usize| (format!("{number:0>255}"), "v".repeat(255));
            let metadata = (0..pairs).map(pair).collect();
            KeptVolume { metadata, ..KeptVolume::from_bytes(first).unwrap() }
        };
        let bare = KeptVolume { truncated: true, ..volume(0) };
        assert_eq!(KeptVolume::from_bytes(&volume(128).to_bytes()), Some(bare));
        // The control: what fits is kept whole.
        assert_eq!(KeptVolume::from_bytes(&volume(100).to_bytes()), Some(volume(100)));
    }

    #[test]
    fn what_the_first_release_wrote_is_read() {
        let volume = br#"{"name":"v","description":null,"project":"p","user":"u","type":"t",
            "type_id":"00000000-0000-4000-8000-000000000001","size_gib":1,"multiattach":true,"metadata":{"a":"b"}}"#;
        let volume = KeptVolume::from_bytes(volume).unwrap();
        assert_eq!(
            (volume.type_name.as_deref(), volume.created_us, volume.volume_type),
            (Some("t"), None, None)
        );
        let export =
            br#"{"attachments":[{"id":"00000000-0000-4000-8000-000000000002","instance":null,"mode":"rw"}]}"#;
        assert_eq!(KeptExport::from_bytes(export).unwrap().attachments[0].mode, Mode::ReadWrite);
        let none = KeptExport::from_bytes(br#"{"attachments":[],"truncated":true}"#).unwrap();
        assert!(none.truncated && none.attachments.is_empty());
    }
}
