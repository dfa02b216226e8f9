//! Tests that need a hand inside of the store: a file system that is full. Everything else is
//! tested from outside.

use mooring_host::fake::FakeMachine;

use super::*;

const VOLUME: &str = "01a0b1c2-d3e4-4f50-8a61-72830194a5b6";

fn stamp(counter: u64) -> v1::Stamp {
    v1::Stamp { generation: Some(v1::Generation { epoch: 1, counter }), digest: vec![1; 32] }
}

fn sender() -> v1::Sender {
    v1::Sender { cluster_id: "6a1f1dbe-2f5c-4a8e-9d57-0f3c1a7b9e11".to_owned() }
}

fn put_volume() -> Request<v1::PutVolumeRequest> {
    let provisioning = v1::Provisioning::Thick.into();
    let spec =
        v1::VolumeSpec { group: "vg0".to_owned(), size_bytes: 8 << 20, provisioning, ..Default::default() };
    Request::new(v1::PutVolumeRequest {
        sender: Some(sender()),
        volume_id: VOLUME.to_owned(),
        stamp: Some(stamp(1)),
        wish: Some(v1::put_volume_request::Wish::Spec(spec)),
        ..v1::PutVolumeRequest::default()
    })
}

fn put_export(counter: u64, hosts: &[&str]) -> Request<v1::PutExportRequest> {
    let grant = |host: &&str| v1::Grant {
        initiator: format!("iqn.2026-01.lab.{host}"),
        lun: 1,
        mode: v1::Mode::ReadWrite.into(),
        ..v1::Grant::default()
    };
    let derived = v1::export_identity::Kind::Derived(v1::DerivedIdentity {});
    let spec = v1::ExportSpec {
        identity: Some(v1::ExportIdentity { kind: Some(derived) }),
        portals: Vec::new(),
        grants: hosts.iter().map(grant).collect(),
        fc: None,
        tuning: Vec::new(),
    };
    Request::new(v1::PutExportRequest {
        sender: Some(sender()),
        volume_id: VOLUME.to_owned(),
        stamp: Some(stamp(counter)),
        wish: Some(v1::put_export_request::Wish::Spec(spec)),
        opaque: vec![0; 60_000],
        ..v1::PutExportRequest::default()
    })
}

fn service(dir: &std::path::Path, fake: &FakeMachine) -> (Service, watch::Sender<bool>) {
    let engine = crate::engine::testing::engine(dir, fake);
    let (stop, stopped) = watch::channel(false);
    (Service::new(engine, stopped), stop)
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_full_file_system_nothing_is_acknowledged_and_nothing_is_lost() {
    let (dir, fake) = (tempfile::tempdir().unwrap(), FakeMachine::new());
    fake.add_vg("vg0", 64 << 20);
    let (service, _stop) = service(dir.path(), &fake);
    service.engine.start().await;
    assert!(service.put_volume(put_volume()).await.unwrap().into_inner().done);
    assert!(service.put_export(put_export(1, &["host1"])).await.unwrap().into_inner().done);
    let before = mooring_host::dump(&fake.lio());

    service.engine.store().limit_pages(0);
    let mut change = put_export(2, &["host2"]);
    change.get_mut().opaque = vec![0; 65_536];
    let refused = service.put_export(change).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert_eq!(refused.metadata().get(mooring_api::CURE_KEY).unwrap(), "operator");
    assert!(refused.message().contains("is full; free some space") && refused.message().contains(VOLUME));
    assert_eq!(mooring_host::dump(&fake.lio()), before, "nobody was revoked, nobody was granted");
    let state = service.engine.status(VOLUME.parse().unwrap()).await.unwrap();
    assert_eq!(state.export_spec.unwrap().0.generation.counter, 1);
    assert!(state.receipts.is_empty());

    // Space again: the same change is accepted.
    service.engine.store().limit_pages(100_000);
    let answer = service.put_export(put_export(2, &["host2"])).await.unwrap().into_inner();
    assert!(answer.done && answer.receipts[0].proven);
}
