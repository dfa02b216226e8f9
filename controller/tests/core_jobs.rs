//! Long work of the storage agents: shown as it is now, limited at once, and unknown where an agent
//! does not answer.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support::{Rig, admin, member, new_volume};
use mooring_api::v1;
use mooring_controller::http::in_words;
use mooring_controller::service::Refusal;
use mooring_model::{ByteSize, JobKind, VolumeId};

const MIB: u64 = 1 << 20;

fn job(volume: &str) -> v1::Job {
    v1::Job {
        volume_id: volume.to_owned(),
        kind: v1::JobKind::Zero.into(),
        done_bytes: 300 * MIB,
        total_bytes: 1024 * MIB,
        rate_bytes: Some(100 * MIB),
        since_us: 1_795_000_000_000_000,
        resumed_bytes: 0,
        limited: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_told_with_their_volumes_and_their_storage_nodes() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    assert_eq!(rig.service.jobs(&admin()).await.unwrap().jobs, []);
    let unknown = VolumeId::from_u128(9);
    let newer = v1::Job { kind: 99, ..job(&VolumeId::from_u128(8).to_string()) };
    rig.storage.state().knobs.jobs.now = vec![job(&volume.to_string()), job(&unknown.to_string()), newer];
    let seen = rig.service.jobs(&admin()).await.unwrap();
    let mut told: Vec<_> = seen.jobs.iter().map(|job| (job.seen.volume, job.volume_name.is_some())).collect();
    told.sort();
    let mut expected = [(volume, true), (unknown, false)];
    expected.sort();
    assert_eq!(
        told, expected,
        "what nobody here knows is told, too; a kind of a newer agent is not guessed at"
    );
    let one = seen.jobs.iter().find(|job| job.seen.volume == volume).unwrap();
    assert_eq!((one.seen.kind, one.seen.parts(), one.seen.seconds_left()), (JobKind::Zero, 2_929, Some(8)));
    assert_eq!(one.host.as_deref(), Some("storage"));
    assert_eq!(seen.hosts.iter().map(|host| host.host.as_str()).collect::<Vec<_>>(), ["storage"]);
    let user = member("0123456789abcdef");
    assert!(matches!(rig.service.jobs(&user).await, Err(Refusal::Forbidden(_))));
    let refused = rig.service.limit_jobs(&user, "storage", None).await;
    assert!(matches!(refused, Err(Refusal::Forbidden(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_says_its_own_job_while_it_is_made() {
    let rig = Rig::new(0).await;
    rig.storage.state().knobs.pending = true;
    let volume = rig.service.create_volume(&admin(), new_volume()).await.unwrap().id;
    rig.storage.state().knobs.jobs.now = vec![job(&volume.to_string())];
    let state = rig.service.volume_state(&admin(), volume).await.unwrap();
    let seen = state.job.unwrap();
    assert_eq!((seen.seen.volume, seen.host.as_deref()), (volume, Some("storage")));
    // Another volume's job is not shown, and a ready volume is not asked about.
    rig.storage.state().knobs.jobs.now = vec![job(&VolumeId::from_u128(9).to_string())];
    assert_eq!(rig.service.volume_state(&admin(), volume).await.unwrap().job, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_set_at_its_agent_and_what_nobody_answers_is_unknown() {
    let rig = Rig::new(0).await;
    let set = rig.service.limit_jobs(&admin(), "storage", Some(ByteSize(50 * MIB))).await.unwrap();
    assert_eq!((set.host.as_str(), set.limit), ("storage", Some(ByteSize(50 * MIB))));
    assert_eq!(rig.storage.state().knobs.jobs.limit, 50 * MIB);
    assert_eq!(rig.service.jobs(&admin()).await.unwrap().hosts[0].limit, Some(ByteSize(50 * MIB)));
    let refused = rig.service.limit_jobs(&admin(), "storage", Some(ByteSize(1))).await.map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Invalid(text)) if text.contains("too little")), "{refused:?}");
    let nobody = rig.service.limit_jobs(&admin(), "nobody", None).await;
    assert!(matches!(nobody, Err(Refusal::NotFound { kind: "Host", .. })));
    assert_eq!(rig.service.limit_jobs(&admin(), "storage", None).await.unwrap().limit, None);
    assert_eq!(rig.storage.state().knobs.jobs.limit, 0);

    // An older agent, and one that does not answer, are not "no jobs".
    rig.storage.state().knobs.jobs.unknown = true;
    let seen = rig.service.jobs(&admin()).await.unwrap();
    assert!(seen.hosts[0].problem.as_ref().unwrap().contains("storage"), "{seen:?}");
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    let seen = rig.service.jobs(&admin()).await.unwrap();
    assert!(seen.hosts[0].problem.as_ref().unwrap().contains("is down"), "{seen:?}");
    let limited = rig.service.limit_jobs(&admin(), "storage", None).await;
    assert!(matches!(limited, Err(Refusal::Unavailable(_))), "{limited:?}");
}
