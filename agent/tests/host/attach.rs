//! Attaching: one connection per volume, its mode, its paths, and what it costs.

use mooring_api::v1;

use crate::rig::*;

#[test]
fn an_attach_is_a_session_a_verified_disk_and_a_path() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    let answer = agent.try_put(agent.put(1, 1, &[(1, RW)])).unwrap();
    assert!(answer.done, "{answer:?}");
    let (report, timing) = (answer.report.unwrap(), answer.timing.unwrap());
    assert_eq!((report.phase(), report.mode()), (v1::ConnectionPhase::Ready, RW));
    let session = report.session.unwrap();
    assert!(session.logged_in && session.portal == PORTAL && session.isid.len() == 12, "{session:?}");
    let disk = report.disk.unwrap();
    assert_eq!(Some(disk.path), site.world.disk_of(volume(1)).map(|name| format!("/dev/{name}")));
    assert!(!disk.read_only && disk.size_bytes == SIZE && disk.sequence > 0);
    assert_eq!(report.paths[0].path, site.attachment_path(1).display().to_string());
    site.assert_attached(1, 1);
    assert!(timing.durable_us > 0 && timing.login_us > 0 && timing.device_us > 0, "{timing:?}");
    assert_eq!(agent.door.changes(), 5, "{:?}", agent.door.log());

    let status = agent.get(1).unwrap();
    assert_eq!(
        (status.opaque.as_slice(), status.stamp.unwrap().generation.unwrap().counter),
        (&b"opaque"[..], 1)
    );
    site.assert_lawful();
}

#[test]
fn hello_says_under_which_name_this_host_logs_in() {
    let site = Site::new();
    let agent = site.start();
    let mut client = agent.agent_client();
    let request = v1::HelloRequest { protocol_min: 1, protocol_max: 1, software: String::new() };
    let hello = agent.wait(async move { client.hello(request).await }).unwrap().into_inner();
    assert_eq!(hello.initiator, format!("iqn.2026-11.dev.mooring:host.{}", hello.agent_id));
    assert!(hello.groups.is_empty() && hello.portals.is_empty());
}

#[test]
fn attachments_of_one_volume_share_a_connection() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    let read_only = || site.world.is_read_only(volume(1));
    assert_eq!(agent.make(agent.put(1, 1, &[(1, RO)])).mode(), RO);
    assert_eq!(read_only(), Some(true));
    // The connection is read-write if any attachment is.
    let report = agent.make(agent.put(1, 2, &[(1, RO), (2, RW)]));
    assert_eq!((report.mode(), report.paths.len(), read_only()), (RW, 2, Some(false)));
    site.assert_attached(1, 1);
    site.assert_attached(2, 1);
    // One attachment goes, and takes only its own path.
    let report = agent.make(agent.put(1, 3, &[(1, RO)]));
    assert_eq!((report.mode(), report.paths.len(), read_only()), (RO, 1, Some(true)));
    assert_eq!(site.path_of(2), None);
    site.assert_attached(1, 1);
    assert_eq!(site.world.logins(), 1);
    site.assert_lawful();
}

#[test]
fn many_volumes_at_once() {
    let all: Vec<u8> = (1..=20).collect();
    let site = Site::exporting(&all);
    let agent = site.start();
    let puts: Vec<_> = all
        .iter()
        .map(|n| {
            let (mut client, put) = (agent.client(), agent.put(*n, 1, &[(*n, RW)]));
            agent
                .spawn(async move { client.put_connection(put).await.map(|answer| answer.into_inner().done) })
        })
        .collect();
    for put in puts {
        assert!(agent.wait(put).unwrap().unwrap());
    }
    for n in &all {
        site.assert_attached(*n, *n);
    }
    assert_eq!(agent.list().len(), 20);
    assert_eq!(agent.door.changes(), 100, "the cost of one does not grow with the others");
    site.assert_lawful();
}

#[test]
fn the_same_again_changes_nothing() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    let put = agent.put(1, 1, &[(1, RW)]);
    agent.make(put.clone());
    let changes = agent.door.changes();
    agent.make(put);
    assert_eq!(agent.door.changes(), changes);
}
