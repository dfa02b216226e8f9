//! The large world: volumes, their attachments, and their agents' state, all generated from
//! numbers. The database is filled from here, and the light agents answer from here: both agree on
//! each volume, as after a normal life.

use mooring_api::v1;
use mooring_model::{AgentId, AttachmentId, Naa, VolumeId};
use serde_json::json;

/// The project of everything.
pub const PROJECT: &str = "0123456789abcdef0123456789abcdef";

/// The generation of every spec.
pub const GENERATION: v1::Generation = v1::Generation { epoch: 1, counter: 1 };

/// Size of the world.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct World {
    /// Volumes
    #[arg(long, default_value_t = 100_000)]
    pub volumes: u32,
    /// Attachments, spread over all volumes in turn
    #[arg(long, default_value_t = 250_000)]
    pub attachments: u32,
    /// Storage agents, each with its share of the volumes
    #[arg(long, default_value_t = 1_000)]
    pub agents: u32,
}

/// Spreads ids over their first digits, like random ids: pages of an index are met in no order.
fn spread(number: u32, kind: u128) -> u128 {
    (u128::from(number.wrapping_mul(2_654_435_761)) << 96)
        | (0x4000_8000 << 48)
        | (kind << 32)
        | u128::from(number)
}

/// One attachment.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// The attachment's id.
    pub id: AttachmentId,
    /// The host.
    pub host: String,
    /// The host's initiator name.
    pub initiator: String,
}

impl Attachment {
    /// Makes the attachment with this number.
    fn of(world: &World, number: u32) -> Self {
        let host = format!("compute{:04}", (number / world.volumes) * 331 + number % 331);
        let initiator = format!("iqn.2026-01.org.example:{host}");
        Self { id: attachment_id(number), host, initiator }
    }
}

/// The id of a volume.
pub fn volume_id(number: u32) -> VolumeId {
    VolumeId::from_u128(spread(number, 1))
}

/// The id of an attachment.
pub fn attachment_id(number: u32) -> AttachmentId {
    AttachmentId::from_u128(spread(number, 2))
}

/// The id of an agent.
pub fn agent_id(number: u32) -> AgentId {
    AgentId::from_u128(spread(number, 3))
}

/// The agent's name in the configuration.
pub fn agent_name(number: u32) -> String {
    format!("storage{number:04}")
}

/// The file name of an agent's socket.
pub fn socket(number: u32) -> String {
    format!("{number}.sock")
}

/// The spec of the volume itself.
pub fn volume_spec() -> v1::VolumeSpec {
    v1::VolumeSpec {
        group: "vg0".to_owned(),
        size_bytes: 10 << 30,
        provisioning: v1::Provisioning::Thick.into(),
        ..Default::default()
    }
}

/// The portal of every agent.
pub const PORTAL: &str = "10.0.0.1:3260";

/// The name of a volume's target.
pub fn target(number: u32) -> String {
    format!("iqn.2026-11.dev.mooring:{}", volume_id(number))
}

/// The NAA of the volume's disk.
pub fn naa(number: u32) -> String {
    Naa::of_serial(&volume_id(number).to_string()).as_str().to_owned()
}

/// The data stored with the volume's spec for a rebuild.
pub fn volume_opaque(number: u32) -> Vec<u8> {
    json!({ "name": format!("volume-{number}"), "project": PROJECT, "size_gib": 10 }).to_string().into_bytes()
}

/// A secret as long as a real one.
pub fn secret(number: u32) -> String {
    format!("s{number:032}")
}

impl World {
    /// The agent of a volume.
    pub fn agent_of(&self, volume: u32) -> u32 {
        volume % self.agents
    }

    /// The numbers of an agent's volumes.
    pub fn volumes_of(&self, agent: u32) -> impl Iterator<Item = u32> {
        (agent..self.volumes).step_by(self.agents as usize)
    }

    /// A volume's attachments.
    pub fn attachments_of(&self, volume: u32) -> impl Iterator<Item = (u32, Attachment)> + '_ {
        let numbers = (volume..self.attachments).step_by(self.volumes as usize);
        numbers.map(|number| (number, Attachment::of(self, number)))
    }

    /// The spec of a volume's export.
    pub fn export_spec(&self, volume: u32) -> v1::ExportSpec {
        let derived = v1::export_identity::Kind::Derived(v1::DerivedIdentity {});
        let grant = |(number, attachment): (u32, Attachment)| v1::Grant {
            initiator: attachment.initiator,
            lun: 1,
            mode: v1::Mode::ReadWrite.into(),
            chap: Some(v1::Chap {
                initiator: Some(v1::ChapSide { user: format!("host-{number:016}"), secret: secret(number) }),
                mutual: None,
            }),
            attachment_ids: vec![attachment.id.to_string()],
            barrier: String::new(),
        };
        v1::ExportSpec {
            identity: Some(v1::ExportIdentity { kind: Some(derived) }),
            portals: Vec::new(),
            grants: self.attachments_of(volume).map(grant).collect(),
            fc: None,
            tuning: Vec::new(),
        }
    }

    /// The data stored with the export's spec for a rebuild.
    pub fn export_opaque(&self, volume: u32) -> Vec<u8> {
        let one = |(_, attachment): (u32, Attachment)| json!({ "id": attachment.id, "host": attachment.host, "mode": "rw", "project": PROJECT });
        json!({ "attachments": self.attachments_of(volume).map(one).collect::<Vec<_>>() })
            .to_string()
            .into_bytes()
    }

    /// The agent's report on a volume's export: every grant with a session.
    pub fn export_report(&self, volume: u32, commands: u64) -> v1::ExportReport {
        let grant = |(number, attachment): (u32, Attachment)| v1::GrantReport {
            lun: 1,
            wanted: v1::Mode::ReadWrite.into(),
            seen: v1::Mode::ReadWrite.into(),
            sessions: vec![v1::Session {
                initiator: attachment.initiator.clone(),
                isid: format!("00023d{number:06x}"),
                id: number.into(),
                addresses: vec!["10.0.0.77".to_owned()],
                state: "LOGGED_IN".to_owned(),
                in_flight: 0,
                since_us: 1_790_000_000_000_000,
            }],
            initiator: attachment.initiator,
            commands,
            read_mib: 10,
            written_mib: 20,
            active_us: 1_790_000_001_000_000,
            barrier: String::new(),
        };
        v1::ExportReport {
            volume_id: volume_id(volume).to_string(),
            generation: Some(GENERATION),
            target: target(volume),
            naa: naa(volume),
            portals: vec![PORTAL.to_owned()],
            in_force: true,
            grants: self.attachments_of(volume).map(grant).collect(),
            problems: Vec::new(),
            stuck: None,
            fc: Vec::new(),
            looked_us: 1_790_000_002_000_000,
            unlisted_sessions: None,
            reservations: None,
            kept_reservations: None,
        }
    }

    /// The agent's stored specs and reports of a volume.
    pub fn status(&self, volume: u32) -> v1::VolumeStatus {
        let id = volume_id(volume).to_string();
        let spec = volume_spec();
        let export = self.export_spec(volume);
        let (opaque, export_opaque) = (volume_opaque(volume), self.export_opaque(volume));
        let stamp = |digest: mooring_model::Digest| v1::Stamp {
            generation: Some(GENERATION),
            digest: digest.as_bytes().to_vec(),
        };
        v1::VolumeStatus {
            volume: Some(v1::VolumeReport {
                volume_id: id.clone(),
                phase: v1::Phase::Ready.into(),
                group: spec.group.clone(),
                size_bytes: spec.size_bytes,
                device: format!("/dev/vg0/mooring-{id}"),
                zeroed_bytes: Some(spec.size_bytes),
                problems: Vec::new(),
                reverted_id: String::new(),
                uploaded_id: String::new(),
                cut: 0,
            }),
            volume_stamp: Some(stamp(mooring_api::digest(&spec, &opaque))),
            volume_opaque: opaque,
            export: Some(self.export_report(volume, 1)),
            export_stamp: Some(stamp(mooring_api::digest(&export, &export_opaque))),
            export_opaque,
            volume_spec: None,
            export_spec: None,
            receipts: Vec::new(),
            looked_now: Some(true),
            volume_id: id,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_volume_has_one_agent_and_every_attachment_one_volume() {
        let world = World { volumes: 100, attachments: 250, agents: 7 };
        let all: BTreeSet<_> = (0..7).flat_map(|agent| world.volumes_of(agent)).collect();
        assert_eq!(all, (0..100).collect());
        assert!((0..100).all(|volume| world.volumes_of(world.agent_of(volume)).any(|own| own == volume)));
        let all: BTreeSet<_> =
            (0..100).flat_map(|volume| world.attachments_of(volume)).map(|(_, one)| one.id).collect();
        assert_eq!(all.len(), 250);
    }

    #[test]
    fn the_hosts_of_a_volume_differ() {
        let world = World { volumes: 1_000, attachments: 2_500, agents: 7 };
        for volume in 0..1_000 {
            let hosts: BTreeSet<_> = world.attachments_of(volume).map(|(_, one)| one.host).collect();
            assert_eq!(hosts.len(), world.attachments_of(volume).count(), "volume {volume}");
        }
    }
}
