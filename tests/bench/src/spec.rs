//! The specs of benchmarks: the same volumes and exports, whether a client sends them or a store is
//! filled with them.

use mooring_api::v1;
use mooring_model::VolumeId;

/// The id of a volume of the benchmark. The number varies the first byte, so that HBAs vary as with
/// random ids, and the first 25 digits, from which the NAA is made.
pub fn volume(number: u32) -> VolumeId {
    VolumeId::from_u128((u128::from(number % 256) << 120) | (u128::from(number) << 32))
}

/// The spec of a volume.
pub fn volume_spec(group: &str, size_bytes: u64) -> v1::VolumeSpec {
    v1::VolumeSpec {
        group: group.to_owned(),
        size_bytes,
        provisioning: v1::Provisioning::Thick.into(),
        ..Default::default()
    }
}

fn grant(host: usize) -> v1::Grant {
    let side = v1::ChapSide { user: "user".to_owned(), secret: "secret-of-twelve".to_owned() };
    v1::Grant {
        initiator: format!("iqn.2026-01.bench.load:host{host}"),
        lun: 1,
        mode: v1::Mode::ReadWrite.into(),
        chap: Some(v1::Chap { initiator: Some(side), mutual: None }),
        attachment_ids: Vec::new(),
        barrier: String::new(),
    }
}

/// The spec of an export to this many hosts.
pub fn export_spec(hosts: usize) -> v1::ExportSpec {
    let derived = v1::export_identity::Kind::Derived(v1::DerivedIdentity {});
    v1::ExportSpec {
        identity: Some(v1::ExportIdentity { kind: Some(derived) }),
        portals: vec!["10.10.0.10:3260".to_owned()],
        grants: (0..hosts).map(grant).collect(),
        fc: None,
        tuning: Vec::new(),
    }
}
