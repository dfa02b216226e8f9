//! Placement of volumes: several agents and pools, the last reports, hints and zones, and the next
//! attempts for a volume that its first pool could not make.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::support::{Fake, Rig, admin, cured, member, new_volume, until};
use mooring_api::v1;
use mooring_controller::clock::Clock;
use mooring_controller::domain::{Hints, HostChange, NewVolume, PoolFilter, Volume, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::service::{Refusal, ServiceOptions};
use mooring_model::VolumeId;
use tonic::{Code, Status};

const GIB: u64 = 1 << 30;

fn pool(name: &str, free_gib: u64) -> v1::Pool {
    v1::Pool {
        name: name.to_owned(),
        total_bytes: 100 * GIB,
        free_bytes: free_gib * GIB,
        extent_bytes: 4 << 20,
        thick: true,
        volumes: 0,
        ..v1::Pool::default()
    }
}

/// Agents `host1`, `host2` … each with a pool `vg0` of this many free GiB; `storage` has none.
async fn rig(free_gib: &[u64], tune: impl Fn(&mut ServiceOptions) + Send + Sync + 'static) -> Rig {
    let rig = Rig::quiet_with(free_gib.len(), tune);
    rig.storage.state().pools.clear();
    for (host, free) in rig.hosts.iter().zip(free_gib) {
        host.state().pools = vec![pool("vg0", *free)];
    }
    rig.up().await;
    rig
}

fn same(_: &mut ServiceOptions) {}

fn sized(size_gib: u32) -> NewVolume {
    NewVolume { size_gib: Some(size_gib), ..new_volume() }
}

async fn create(rig: &Rig, new: NewVolume) -> Result<Volume, Refusal> {
    rig.service.create_volume(&admin(), new).await
}

/// The agent of a volume, as it is now.
async fn host_of(rig: &Rig, id: VolumeId) -> String {
    rig.service.volume(&admin(), id).await.unwrap().place.host.unwrap()
}

fn no_room() -> Status {
    cured(Code::ResourceExhausted, "volume group vg0: no room is left", "operator")
}

fn has(agent: &Fake, id: VolumeId) -> bool {
    agent.state().volumes.get(&id.to_string()).is_some_and(|volume| volume.spec.is_some())
}

fn calls(agent: &Fake, id: VolumeId) -> Vec<String> {
    let of_it = |call: &String| call.contains(&id.to_string());
    agent.state().calls.iter().filter(|call| of_it(call)).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_emptier_pool_is_chosen_and_an_agent_that_is_down_last() {
    let rig = rig(&[10, 50], same).await;
    let first = create(&rig, sized(1)).await.unwrap();
    assert_eq!(first.place.host.as_deref(), Some("host2@lvm#vg0"));
    rig.until_volume(first.id, VolumeStatus::Available).await;
    rig.hosts[1].set_down(true);
    rig.until_host("host2", |host| !host.up).await;
    assert_eq!(create(&rig, sized(1)).await.unwrap().place.host.as_deref(), Some("host1@lvm#vg0"));
    // A volume that fits nowhere else waits for that agent.
    let large = create(&rig, sized(20)).await.unwrap();
    assert_eq!(large.place.host.as_deref(), Some("host2@lvm#vg0"));
    assert_eq!(large.status, VolumeStatus::Creating);
}

/// More pools that take nothing new than there are attempts, each with more free data than the pool
/// that takes the volume.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_takes_nothing_new_costs_no_attempt() {
    // The control: one part less, and the thin pools come first.
    for (metadata, chosen) in [(9_000, "host4@lvm#vg0"), (8_999, "host1@lvm#vg0:thin")] {
        let rig = Rig::quiet_with(4, same);
        rig.storage.state().pools.clear();
        let (data_used, metadata_used) = (Some(100), Some(metadata));
        let thin = v1::Pool { thick: false, data_used, metadata_used, ..pool("vg0:thin", 90) };
        for host in &rig.hosts[..3] {
            host.state().pools = vec![thin.clone()];
        }
        rig.hosts[3].state().pools = vec![pool("vg0", 10)];
        rig.up().await;
        let made = create(&rig, sized(1)).await.unwrap();
        assert_eq!(made.place.host.as_deref(), Some(chosen));
        rig.until_volume(made.id, VolumeStatus::Available).await;
        assert_eq!(host_of(&rig, made.id).await, chosen);
        let asked = rig.hosts.iter().filter(|host| !calls(host, made.id).is_empty()).count();
        assert_eq!(asked, 1, "{metadata}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn types_choose_agents_and_pools_by_their_configured_names() {
    let rig = Rig::quiet_with(3, |options| {
        let names = [("host1", "slow"), ("host2", "fast"), ("host2#vg1", "archive")];
        let names = names.map(|(place, name)| (place.to_owned(), name.to_owned()));
        options.scheduler.backend_names = BTreeMap::from(names);
    });
    rig.storage.state().pools.clear();
    rig.hosts[0].state().pools = vec![pool("vg0", 90)];
    rig.hosts[1].state().pools = vec![pool("vg0", 50), pool("vg1", 20)];
    rig.hosts[2].state().pools = vec![pool("vg1", 10)];
    rig.up().await;
    for (name, want) in [
        ("slow", "host1@lvm#vg0"),
        ("fast", "host2@lvm#vg0"),
        ("archive", "host2@lvm#vg1"),
        ("lvm", "host3@lvm#vg1"),
    ] {
        let specs = BTreeMap::from([("volume_backend_name".to_owned(), name.to_owned())]);
        rig.service.create_type(&admin(), name, None, true, specs).await.unwrap();
        let new = NewVolume { volume_type: Some(name.to_owned()), ..sized(1) };
        assert_eq!(create(&rig, new).await.unwrap().place.host.as_deref(), Some(want), "{name}");
    }
    for (host, name) in [("host1@lvm", "slow"), ("host2@lvm", "fast"), ("host3@lvm", "lvm")] {
        let shown = rig.service.capabilities(&admin(), host).await.unwrap();
        assert_eq!(shown["volume_backend_name"], name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_space_is_promised_once() {
    let rig = rig(&[10], same).await;
    // The agent makes no volume, and its report shows no use of space.
    rig.hosts[0].state().knobs.pending = true;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let service = rig.service.clone();
        asked.spawn(async move { service.create_volume(&admin(), sized(3)).await });
    }
    let answers = asked.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3);
    for refused in answers.into_iter().filter_map(Result::err) {
        assert!(matches!(&refused, Refusal::Invalid(text) if text.contains("capacity")), "{refused}");
    }
    // Made, and no report yet: the space is still promised.
    rig.hosts[0].state().knobs.pending = false;
    let all = ListQuery { all_projects: true, ..ListQuery::default() };
    for volume in rig.service.volumes(&admin(), all).await.unwrap().items {
        rig.hosts[0].publish(&volume.id.to_string());
        rig.until_volume(volume.id, VolumeStatus::Available).await;
    }
    assert!(create(&rig, sized(3)).await.is_err());
    assert!(create(&rig, sized(1)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_shows_the_space_ends_the_promise() {
    let rig = rig(&[10], same).await;
    let made = create(&rig, sized(6)).await.unwrap();
    rig.until_volume(made.id, VolumeStatus::Available).await;
    assert!(create(&rig, sized(6)).await.is_err(), "the report is older than the volume");
    // Other volumes were removed meanwhile: a new report shows it, and includes the new volume
    // already.
    rig.hosts[0].state().pools = vec![pool("vg0", 8)];
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    rig.hosts[0].set_down(false);
    rig.until_host("host1", |host| host.up).await;
    assert!(create(&rig, sized(8)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_pools_to_those_only_who_may_list_them() {
    let rig = rig(&[10], same).await;
    let told = create(&rig, sized(20)).await.unwrap_err().to_string();
    assert!(told.contains("host1@lvm#vg0") && told.contains("20 GiB"), "{told}");
    let user = member("0123456789abcdef0123456789abcdef");
    let hidden = rig.service.create_volume(&user, sized(20)).await.map_err(in_words).unwrap_err();
    assert!(
        matches!(&hidden, Refusal::Invalid(text) if text == "No valid backend was found: capacity (1 refused)"),
        "{hidden}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_switch_it_is_accepted_and_ends_in_an_error() {
    let rig = rig(&[10], |options| options.scheduler.fast_fail = false).await;
    let made = create(&rig, sized(20)).await.unwrap();
    assert_eq!((made.status, made.place.host), (VolumeStatus::Error, None));
    let messages = sql(
        &rig,
        "SELECT COUNT(*) FROM messages WHERE resource_id = ?1 AND event = 'VOLUME_VOLUME_001_002'",
        made.id,
    );
    assert_eq!(messages, 1);
    assert!(calls(&rig.hosts[0], made.id).is_empty());
    rig.service.delete_volume(&admin(), made.id).await.unwrap();
    assert!(matches!(rig.service.volume(&admin(), made.id).await, Err(Refusal::NotFound { .. })));
    let made = create(&rig, sized(20)).await.unwrap();
    rig.service.force_delete_volume(&admin(), made.id, false).await.unwrap();
    assert!(matches!(rig.service.volume(&admin(), made.id).await, Err(Refusal::NotFound { .. })));
}

/// A number from the database, past the service.
fn sql(rig: &Rig, query: &str, id: VolumeId) -> i64 {
    let db = rusqlite::Connection::open(rig.path("state").join("mooring-controller.db")).unwrap();
    db.query_row(query, [id.to_string()], |row| row.get(0)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_report_nobody_knows() {
    for fast_fail in [true, false] {
        let rig = Rig::quiet_with(1, move |options| options.scheduler.fast_fail = fast_fail);
        let refused = create(&rig, sized(1)).await.unwrap_err();
        assert!(matches!(refused, Refusal::Unavailable(_)), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_and_words_of_operators_outlive_a_restart() {
    let mut rig = rig(&[10, 50], same).await;
    let service = &rig.service;
    service
        .change_service(
            &admin(),
            "cinder-volume",
            "host2@lvm",
            HostChange::Disable(Some("a disk".to_owned())),
        )
        .await
        .unwrap();
    assert_eq!(create(&rig, sized(1)).await.unwrap().place.host.as_deref(), Some("host1@lvm#vg0"));
    rig.hosts.iter().for_each(|host| host.set_down(true));
    rig.restart_on("state", false).await;
    let refused = create(&rig, sized(20)).await.unwrap_err().to_string();
    assert!(refused.contains("disabled: a disk"), "{refused}");
    let services = rig.service.services(&admin()).await.unwrap();
    let second = services.iter().find(|service| service.host == "host2@lvm").unwrap();
    assert!(second.disabled && !second.up && second.heard_at.is_some(), "{second:?}");
    assert_eq!(second.disabled_reason.as_deref(), Some("a disk"));
    rig.service.change_host(&admin(), "host2", HostChange::Enable).await.unwrap();
    rig.service.change_host(&admin(), "host1", HostChange::Drain).await.unwrap();
    assert_eq!(create(&rig, sized(1)).await.unwrap().place.host.as_deref(), Some("host2@lvm#vg0"));
    rig.service.change_host(&admin(), "host2", HostChange::Drain).await.unwrap();
    let refused = create(&rig, sized(1)).await.unwrap_err().to_string();
    assert!(refused.contains("is being emptied"), "{refused}");
    let host = rig.service.change_host(&admin(), "host2", HostChange::Undrain).await.unwrap();
    assert!(!host.drained && !host.disabled);
    assert!(create(&rig, sized(1)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_known_services_are_changed_and_by_admins() {
    let rig = rig(&[10], same).await;
    for (binary, host) in [
        ("cinder-volume", "nosuch@lvm"),
        ("cinder-volume", "host1"),
        ("cinder-volume", "host1@lvm#vg0"),
        ("cinder-backup", "host1@lvm"),
        ("", "host1@lvm"),
    ] {
        let refused =
            rig.service.change_service(&admin(), binary, host, HostChange::Enable).await.unwrap_err();
        assert!(matches!(refused, Refusal::NotFound { kind: "Service", .. }), "{binary} {host}: {refused}");
    }
    let services = rig.service.services(&admin()).await.unwrap();
    let hosts: Vec<_> = services.iter().map(|service| (service.binary, service.host.as_str())).collect();
    assert_eq!(hosts, [("cinder-volume", "host1@lvm"), ("cinder-scheduler", "mooring-controller")]);
    let operator = admin();
    let disable = HostChange::Disable(None);
    let scheduler = rig.service.change_service(&operator, "cinder-scheduler", "mooring-controller", disable);
    assert!(matches!(scheduler.await, Err(Refusal::Invalid(_))));
    let user = member("0123456789abcdef0123456789abcdef");
    for refused in [
        rig.service.change_host(&user, "host1", HostChange::Drain).await.map(drop),
        rig.service.change_service(&user, "cinder-volume", "host1@lvm", HostChange::Enable).await,
        rig.service.services(&user).await.map(drop),
        rig.service.pools(&user, PoolFilter::default()).await.map(drop),
        rig.service.capabilities(&user, "host1@lvm").await.map(drop),
    ] {
        assert!(matches!(refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    }
}

fn zoned(options: &mut ServiceOptions) {
    for agent in &mut options.agents {
        agent.zone = match agent.name.as_str() {
            "host1" => Some("a".to_owned()),
            "host2" => Some("b".to_owned()),
            _ => None,
        };
    }
}

fn hinted(hints: Hints) -> NewVolume {
    NewVolume { hints, ..new_volume() }
}

fn in_zone(zone: &str) -> NewVolume {
    hinted(Hints { zone: Some(zone.to_owned()), ..Hints::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn zones_of_requests_types_and_agents() {
    let rig = rig(&[10, 50, 90], zoned).await;
    for (zone, host) in [("a", "host1@lvm#vg0"), ("b", "host2@lvm#vg0"), ("nova", "host3@lvm#vg0")] {
        let made = create(&rig, in_zone(zone)).await.unwrap();
        assert_eq!((made.place.zone.as_str(), made.place.host.as_deref()), (zone, Some(host)));
    }
    assert_eq!(
        create(&rig, new_volume()).await.unwrap().place.zone,
        "nova",
        "the emptiest pool, in any zone"
    );
    let unknown = create(&rig, in_zone("c")).await.map_err(in_words).unwrap_err();
    assert!(
        matches!(&unknown, Refusal::Invalid(text) if text == "Availability zone 'c' is invalid."),
        "{unknown}"
    );
    let specs = BTreeMap::from([("RESKEY:availability_zones".to_owned(), "a, b".to_owned())]);
    rig.service.create_type(&admin(), "bound", None, true, specs).await.unwrap();
    let bound = |new: NewVolume| NewVolume { volume_type: Some("bound".to_owned()), ..new };
    assert_eq!(create(&rig, bound(new_volume())).await.unwrap().place.zone, "b");
    assert_eq!(create(&rig, bound(in_zone("a"))).await.unwrap().place.zone, "a");
    assert!(
        create(&rig, bound(in_zone("nova"))).await.unwrap_err().to_string().contains("availability zone")
    );
    // A zone is available when one of its agents is up and enabled.
    let zones = async || {
        let zones = rig.service.zones(&admin()).await.unwrap();
        zones.into_iter().map(|zone| (zone.name, zone.available)).collect::<BTreeMap<_, _>>()
    };
    let all =
        |a, b, nova| BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b), ("nova".to_owned(), nova)]);
    assert_eq!(zones().await, all(true, true, true));
    rig.service.change_host(&admin(), "host1", HostChange::Disable(None)).await.unwrap();
    rig.hosts[1].set_down(true);
    rig.until_host("host2", |host| !host.up).await;
    assert_eq!(zones().await, all(false, false, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_zone_is_for_those_who_name_none() {
    let rig = rig(&[10, 50], |options| {
        zoned(options);
        options.scheduler.default_zone = Some("a".to_owned());
    })
    .await;
    assert_eq!(create(&rig, new_volume()).await.unwrap().place.zone, "a");
    assert_eq!(create(&rig, in_zone("b")).await.unwrap().place.zone, "b");
    let specs = BTreeMap::from([("RESKEY:availability_zones".to_owned(), "b".to_owned())]);
    rig.service.create_type(&admin(), "bound", None, true, specs).await.unwrap();
    let bound = NewVolume { volume_type: Some("bound".to_owned()), ..new_volume() };
    assert_eq!(create(&rig, bound).await.unwrap().place.zone, "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_name_the_callers_volumes() {
    let rig = rig(&[10, 50], same).await;
    let there = create(&rig, new_volume()).await.unwrap();
    assert_eq!(there.place.host.as_deref(), Some("host2@lvm#vg0"));
    let away =
        create(&rig, hinted(Hints { different_host: vec![there.id], ..Hints::default() })).await.unwrap();
    assert_eq!(away.place.host.as_deref(), Some("host1@lvm#vg0"));
    let beside = create(&rig, hinted(Hints { same_host: vec![away.id], ..Hints::default() })).await.unwrap();
    assert_eq!(beside.place.host.as_deref(), Some("host1@lvm#vg0"));
    let both = Hints { different_host: vec![there.id, away.id], ..Hints::default() };
    assert!(create(&rig, hinted(both)).await.unwrap_err().to_string().contains("affinity"));
    // An unknown id, and one of another project: the same answer.
    let user = member("0123456789abcdef0123456789abcdef");
    let unknown = VolumeId::from_u128(0xdead);
    for id in [unknown, there.id] {
        for hints in [
            Hints { same_host: vec![id], ..Hints::default() },
            Hints { different_host: vec![id], ..Hints::default() },
        ] {
            let refused =
                rig.service.create_volume(&user, hinted(hints)).await.map_err(in_words).unwrap_err();
            let text = format!("Invalid input received: scheduler hints: volume {id} could not be found.");
            assert!(matches!(&refused, Refusal::Invalid(found) if *found == text), "{refused}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_refuses_is_followed_by_the_next_one() {
    let rig = rig(&[10, 50, 90], same).await;
    rig.hosts[2].state().knobs.refuse_volume = Some(no_room());
    rig.hosts[1].state().knobs.fail_volumes = true;
    let made = create(&rig, new_volume()).await.unwrap();
    assert_eq!(made.place.host.as_deref(), Some("host3@lvm#vg0"));
    let seen = rig.until_volume(made.id, VolumeStatus::Available).await;
    assert_eq!(seen.place.host.as_deref(), Some("host1@lvm#vg0"));
    assert_eq!(seen.fault, None);
    let placement = rig.service.placement(&admin(), made.id).await.unwrap();
    let tried: Vec<_> = placement.tried.iter().map(|(pool, _)| pool.as_str()).collect();
    assert_eq!(tried, ["host3@lvm#vg0", "host2@lvm#vg0"]);
    assert!(placement.tried[0].1.contains("no room is left"), "{placement:?}");
    assert!(placement.tried[1].1.contains("a disk is missing"), "{placement:?}");
    // Only the last pool has the volume, and each of the others got its tombstone.
    let having: Vec<_> = rig.hosts.iter().map(|host| has(host, made.id)).collect();
    assert_eq!(having, [true, false, false]);
    for host in &rig.hosts[1..] {
        assert!(calls(host, made.id).last().unwrap().starts_with("delete"), "{:?}", calls(host, made.id));
    }
    let messages = sql(
        &rig,
        "SELECT COUNT(*) FROM messages WHERE resource_id = ?1 AND event = 'VOLUME_VOLUME_008_001'",
        made.id,
    );
    assert_eq!(messages, 2);
    let named =
        sql(&rig, "SELECT COUNT(*) FROM messages WHERE resource_id = ?1 AND text LIKE '%host%vg0%'", made.id);
    assert_eq!(named, 0, "users read messages, and pools are the operator's");
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_bounded_and_the_last_pool_keeps_its_spec() {
    let rig = rig(&[10, 50, 70, 90], same).await;
    for host in &rig.hosts {
        host.state().knobs.refuse_volume = Some(no_room());
    }
    let made = create(&rig, new_volume()).await.unwrap();
    let seen = rig.until_volume(made.id, VolumeStatus::Error).await;
    assert!(seen.fault.unwrap().contains("no room is left"));
    assert_eq!(rig.service.placement(&admin(), made.id).await.unwrap().tried.len(), 3);
    assert!(calls(&rig.hosts[0], made.id).is_empty(), "the fourth is not asked");
    assert_eq!(host_of(&rig, made.id).await, "host2@lvm#vg0");
    rig.service.delete_volume(&admin(), made.id).await.unwrap();
    until("its end", async || match rig.service.volume(&admin(), made.id).await {
        Err(Refusal::NotFound { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cure_by_waiting_is_no_reason_to_move() {
    let rig = rig(&[10, 50], same).await;
    rig.hosts[1].state().knobs.refuse_volume = Some(cured(Code::FailedPrecondition, "busy", "retry"));
    let made = create(&rig, new_volume()).await.unwrap();
    until("two refusals", async || {
        let calls = calls(&rig.hosts[1], made.id);
        if calls.len() >= 2 { Ok(()) } else { Err(format!("{calls:?}")) }
    })
    .await;
    assert_eq!(host_of(&rig, made.id).await, "host2@lvm#vg0");
    rig.hosts[1].state().knobs.refuse_volume = None;
    rig.until_volume(made.id, VolumeStatus::Available).await;
    assert!(calls(&rig.hosts[0], made.id).is_empty());
}

/// A volume whose first agent failed to make it, and has not reported that it is gone there.
async fn leaving(rig: &Rig) -> VolumeId {
    rig.hosts[1].state().knobs.fail_volumes = true;
    rig.hosts[1].state().knobs.lose_deletes = true;
    let made = create(rig, new_volume()).await.unwrap().id;
    until("the first failure", async || {
        let tried = rig.service.placement(&admin(), made).await.unwrap().tried;
        if tried.len() == 1 { Ok(()) } else { Err(format!("{tried:?}")) }
    })
    .await;
    made
}

#[tokio::test(flavor = "multi_thread")]
async fn no_second_pool_before_the_first_has_said_that_nothing_is_there() {
    let mut rig = rig(&[10, 50], same).await;
    let made = leaving(&rig).await;
    assert!(has(&rig.hosts[1], made), "it may have something of it");
    assert!(calls(&rig.hosts[0], made).is_empty());
    // Neither a rename nor a restart of the controller sends its spec there again, or elsewhere.
    let name = Some(Some("renamed".to_owned()));
    rig.service.update_volume(&admin(), made, name, None, None).await.unwrap();
    rig.restart().await;
    rig.hosts[1].set_down(true);
    rig.until_host("host2", |host| !host.up).await;
    rig.restart_on("state", false).await;
    rig.until_host("host1", |host| host.up).await;
    let seen = rig.service.volume(&admin(), made).await.unwrap();
    assert_eq!((seen.status, seen.place.host.as_deref()), (VolumeStatus::Creating, Some("host2@lvm#vg0")));
    assert!(calls(&rig.hosts[0], made).is_empty());
    // The agent reports it, and the placement goes on.
    rig.hosts[1].state().knobs.lose_deletes = false;
    rig.hosts[1].set_down(false);
    let seen = rig.until_volume(made, VolumeStatus::Available).await;
    assert_eq!((seen.place.host.as_deref(), seen.name.as_deref()), (Some("host1@lvm#vg0"), Some("renamed")));
    assert!(!has(&rig.hosts[1], made) && has(&rig.hosts[0], made));
    let volume_specs = calls(&rig.hosts[1], made).iter().filter(|call| call.starts_with("volume")).count();
    assert_eq!(volume_specs, 1, "its spec was sent there once: {:?}", calls(&rig.hosts[1], made));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_any_call_a_volume_ends_at_one_pool() {
    for killed_at in 0..=4 {
        let mut rig = rig(&[10, 50], same).await;
        rig.hosts[1].state().knobs.refuse_volume = Some(no_room());
        let before = *rig.world.puts.borrow();
        let made = create(&rig, new_volume()).await.unwrap().id;
        // A refusal, a tombstone, the volume at the next pool, its export.
        let mut puts = rig.world.puts.subscribe();
        puts.wait_for(|puts| *puts >= before + killed_at).await.unwrap();
        rig.restart().await;
        let seen = rig.until_volume(made, VolumeStatus::Available).await;
        assert_eq!(seen.place.host.as_deref(), Some("host1@lvm#vg0"), "killed at {killed_at}");
        assert!(has(&rig.hosts[0], made) && !has(&rig.hosts[1], made), "killed at {killed_at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_of_one_agent_follow_each_other_too() {
    let rig = rig(&[10], same).await;
    rig.hosts[0].state().pools = vec![pool("vg0", 90), pool("vg1", 10)];
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    rig.hosts[0].set_down(false);
    rig.until_host("host1", |host| host.up && host.pools.len() == 2).await;
    rig.hosts[0].state().knobs.refuse_volume = Some(no_room());
    let made = create(&rig, new_volume()).await.unwrap();
    until("the next pool", async || {
        let host = host_of(&rig, made.id).await;
        if host == "host1@lvm#vg1" { Ok(()) } else { Err(host) }
    })
    .await;
    rig.hosts[0].state().knobs.refuse_volume = None;
    let seen = until("an end", async || {
        let volume = rig.service.volume(&admin(), made.id).await.unwrap();
        if volume.status == VolumeStatus::Creating { Err(format!("{volume:?}")) } else { Ok(volume) }
    })
    .await;
    assert_eq!(seen.place.host.as_deref(), Some("host1@lvm#vg1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_an_agent_exports_is_never_taken_away_by_an_older_database() {
    let mut rig = rig(&[10, 50], same).await;
    rig.hosts[1].state().knobs.pending = true;
    let made = create(&rig, new_volume()).await.unwrap().id;
    until("the spec", async || {
        if has(&rig.hosts[1], made) { Ok(()) } else { Err(()) }.map_err(|()| String::new())
    })
    .await;
    let target = rig.path("old");
    std::fs::create_dir(&target).unwrap();
    std::os::unix::fs::PermissionsExt::set_mode(
        &mut std::fs::metadata(&target).unwrap().permissions(),
        0o700,
    );
    let from = rusqlite::Connection::open(rig.path("state").join("mooring-controller.db")).unwrap();
    from.execute("VACUUM INTO ?1", [target.join("mooring-controller.db").to_str().unwrap()]).unwrap();
    drop(from);
    rig.hosts[1].state().knobs.pending = false;
    rig.hosts[1].publish(&made.to_string());
    rig.until_volume(made, VolumeStatus::Available).await;
    until("the export", async || {
        let calls = calls(&rig.hosts[1], made);
        if calls.iter().any(|call| call.starts_with("export")) { Ok(()) } else { Err(format!("{calls:?}")) }
    })
    .await;
    // By the old state the volume is being made, and the agent has lost a disk.
    rig.hosts[1].state().knobs.fail_volumes = true;
    rig.restart_on("old", true).await;
    rig.until_host("host2", |host| {
        host.problems.iter().any(|text| text.contains("of the export, and this database"))
    })
    .await;
    assert!(has(&rig.hosts[1], made));
    assert!(calls(&rig.hosts[0], made).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_never_sent_to_an_agent_that_stays_down_goes_elsewhere() {
    let minutes = Arc::new(AtomicU64::new(0));
    let ahead = Arc::clone(&minutes);
    let tune = move |options: &mut ServiceOptions| {
        let (ahead, began) = (Arc::clone(&ahead), Instant::now());
        let later = move || began.elapsed() + Duration::from_secs(60 * ahead.load(Ordering::Relaxed));
        options.clock = Clock::with_monotonic(SystemTime::now, later);
    };
    let mut rig = rig(&[10, 50, 70], tune).await;
    // One volume is on its way to an agent that takes it and goes down; the other one was never
    // sent.
    rig.hosts[2].state().knobs.pending = true;
    let sent = create(&rig, sized(60)).await.unwrap();
    until("the spec", async || if has(&rig.hosts[2], sent.id) { Ok(()) } else { Err(String::new()) }).await;
    for host in &rig.hosts[1..] {
        host.set_down(true);
    }
    rig.until_host("host2", |host| !host.up).await;
    rig.until_host("host3", |host| !host.up).await;
    let unsent = create(&rig, sized(40)).await.unwrap();
    assert_eq!(unsent.place.host.as_deref(), Some("host2@lvm#vg0"));
    rig.hosts[0].state().pools = vec![pool("vg0", 90)];
    rig.restart_on("state", false).await;
    // Time before the start does not count. From then on each look counts two minutes more.
    let seen = until("another place", async || {
        rig.hosts[0].set_down(true);
        rig.until_host("host1", |host| !host.up).await;
        rig.hosts[0].set_down(false);
        rig.until_host("host1", |host| host.up).await;
        minutes.fetch_add(2, Ordering::Relaxed);
        let seen = rig.service.volume(&admin(), unsent.id).await.unwrap();
        if seen.status == VolumeStatus::Available { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
    .await;
    assert_eq!(seen.place.host.as_deref(), Some("host1@lvm#vg0"));
    assert!(calls(&rig.hosts[1], unsent.id).is_empty());
    assert_eq!(host_of(&rig, sent.id).await, "host3@lvm#vg0", "it may have something of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_hangs_holds_up_nobody_else() {
    let rig = Rig::quiet_with(1, |options| {
        let hung = options.agents[1].address.to_string().replace("host1.sock", "hung.sock");
        options.agents.push(mooring_controller::service::AgentEntry {
            name: "hung".to_owned(),
            address: hung.parse().unwrap(),
            ..options.agents[1].clone()
        });
    });
    // The socket takes connections and never answers.
    let silent = tokio::net::UnixListener::bind(rig.path("hung.sock")).unwrap();
    rig.up().await;
    let volume = tokio::time::timeout(Duration::from_secs(5), rig.volume(false)).await.unwrap();
    let attached = rig.attach(volume, "host1", mooring_model::Mode::ReadWrite);
    tokio::time::timeout(Duration::from_secs(5), attached).await.unwrap();
    rig.until_host("hung", |host| host.why_down.is_some()).await;
    drop(silent);
}

/// The keys of `/capabilities/{host}`, sorted: those of the API's reference.
const CAPABILITY_KEYS: [&str; 11] = [
    "description",
    "display_name",
    "driver_version",
    "namespace",
    "pool_name",
    "properties",
    "replication_targets",
    "storage_protocol",
    "vendor_name",
    "visibility",
    "volume_backend_name",
];

#[tokio::test(flavor = "multi_thread")]
async fn pools_and_capabilities_are_the_last_reports_with_our_numbers() {
    let rig = rig(&[10, 50], |options| options.scheduler.reserved_percentage = 5).await;
    let made = create(&rig, sized(3)).await.unwrap();
    rig.until_volume(made.id, VolumeStatus::Available).await;
    let pools = async |filter: PoolFilter| rig.service.pools(&admin(), filter).await.unwrap();
    let all = pools(PoolFilter::default()).await;
    assert_eq!(
        all.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(),
        ["host1@lvm#vg0", "host2@lvm#vg0"]
    );
    for (key, value) in [
        ("allocated_capacity_gb", serde_json::json!(3.0)),
        ("total_volumes", serde_json::json!(1)),
        ("free_capacity_gb", serde_json::json!(50.0)),
        ("total_capacity_gb", serde_json::json!(100.0)),
        ("provisioned_capacity_gb", serde_json::json!(53.0)),
        ("reserved_percentage", serde_json::json!(5)),
        ("multiattach", serde_json::json!(true)),
        ("driver_version", serde_json::json!("fake")),
        ("backend_state", serde_json::json!("up")),
    ] {
        assert_eq!(all[1].capabilities[key], value, "{key}");
    }
    let equal = |key: &str, value: &str| PoolFilter {
        volume_type: None,
        equal: vec![(key.to_owned(), value.to_owned())],
    };
    for (filter, count) in [
        (equal("name", "host1@lvm#vg0"), 1),
        (equal("name", "nosuch"), 0),
        (equal("multiattach", "true"), 2),
        (equal("total_volumes", "1"), 1),
        (equal("nosuch", "1"), 0),
        (PoolFilter { volume_type: Some(rig.shared_type().await), equal: Vec::new() }, 2),
    ] {
        assert_eq!(pools(filter.clone()).await.len(), count, "{filter:?}");
    }
    let specs = BTreeMap::from([("total_volumes".to_owned(), ">= 1".to_owned())]);
    rig.service.create_type(&admin(), "busy", None, true, specs).await.unwrap();
    assert_eq!(pools(PoolFilter { volume_type: Some("busy".to_owned()), equal: Vec::new() }).await.len(), 1);
    let unknown = PoolFilter { volume_type: Some("nosuch".to_owned()), equal: Vec::new() };
    assert!(matches!(rig.service.pools(&admin(), unknown).await, Err(Refusal::NotFound { .. })));
    let capabilities = rig.service.capabilities(&admin(), "host2@lvm").await.unwrap();
    assert_eq!(capabilities["driver_version"], "fake");
    // The schemas of clients allow these keys and no others.
    let mut keys: Vec<_> = capabilities.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, CAPABILITY_KEYS);
    // The control: the report's age stands in the pools.
    assert!(all[1].capabilities["mooring_report_age_seconds"].as_u64().unwrap() < 60);
    for unknown in ["nosuch", "nosuch@lvm", "host2", "host2@lvm#vg0", "storage@lvm"] {
        let refused = rig.service.capabilities(&admin(), unknown).await.unwrap_err();
        assert!(matches!(refused, Refusal::NotFound { kind: "Service", .. }), "{unknown}: {refused}");
    }
}
