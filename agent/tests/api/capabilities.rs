//! Capabilities of this host, also while LVM hangs. Nobody waits for LVM, the last known values are
//! reported with their age, and exports that the kernel serves can still be granted and revoked.

use std::time::{Duration, Instant};

use mooring_agent::config::Config;
use mooring_api::v1;
use mooring_api::v1::report::What;
use tokio_stream::StreamExt;
use tonic::Streaming;

use crate::boot::make_in;
use crate::rig::*;
use crate::switch::Switch;

/// Shorter than LVM's time limit of two minutes. An answer waits for LVM for two seconds, and a
/// busy machine may need many more for several answers.
const SOON: Duration = Duration::from_mins(1);

/// LVM's first report command, as the switch logs it.
fn report(agent: &Agent) -> String {
    agent.switch.log().into_iter().find(|call| call.starts_with("lvm vgs")).expect("LVM was asked")
}

fn next(agent: &Agent, reports: &mut Streaming<v1::Report>) -> What {
    agent.wait(async { reports.next().await.unwrap().unwrap().what.unwrap() })
}

fn first(agent: &Agent, reports: &mut Streaming<v1::Report>) -> Vec<What> {
    std::iter::from_fn(|| Some(next(agent, reports)).filter(|what| !matches!(what, What::Synced(_))))
        .collect()
}

/// Returns the next report of this host's capabilities.
fn next_said(agent: &Agent, reports: &mut Streaming<v1::Report>) -> v1::Capabilities {
    loop {
        if let What::Capabilities(seen) = next(agent, reports) {
            return seen;
        }
    }
}

fn silence(seen: &v1::Capabilities) -> Option<&str> {
    seen.problems.iter().find(|problem| problem.object == "LVM").map(|problem| problem.text.as_str())
}

#[test]
fn an_lvm_that_hangs_holds_up_nothing_that_the_kernel_serves() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let before = agent.capabilities();
    assert_eq!((before.pools_age_ms, silence(&before)), (0, None));
    assert_eq!((before.pools.len(), before.pools[0].provisioned_bytes), (1, SIZE));

    agent.switch.pause_before(&report(&agent));
    let began = Instant::now();
    // A look that had begun earlier may still answer the first question.
    let mut asked = std::iter::repeat_with(|| agent.capabilities()).take(100);
    let seen = asked.find(|seen| silence(seen).is_some()).expect("an LVM that is said to hang");
    let told = |pools: &[v1::Pool]| -> Vec<v1::Pool> {
        pools.iter().map(|pool| v1::Pool { health: None, ..pool.clone() }).collect()
    };
    assert_eq!(told(&seen.pools), told(&before.pools), "as they were seen last");
    let degraded = v1::HealthLevel::Degraded;
    let health = seen.pools[0].health.clone().unwrap();
    assert_eq!((health.level(), health.reasons[0].code.as_str()), (degraded, "lvm_silent"));
    assert_eq!(seen.health.as_ref().unwrap().level(), degraded, "what the kernel serves goes on");
    assert!(seen.pools_age_ms > 0 && !seen.pools_unknown && seen.multiattach, "{seen:?}");
    let text = silence(&seen).expect("a problem").to_owned();
    for word in ["does not answer since 2", "Z, and the pools are as they were at 2", "dmsetup info"] {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    let mut reports = agent.watch();
    let told = first(&agent, &mut reports);
    assert!(matches!(&told[0], What::Capabilities(seen) if silence(seen).is_some()), "{:?}", told[0]);
    agent.make(put_export(&v, 2, &[("host1", RW), ("host2", RO)]));
    assert!(agent.make(put_export(&v, 3, &[("host2", RO)]))[0].proven);
    assert_eq!(node.reach(&v), ["host2 ro"]);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    // However often the agent is asked, only one call of LVM waits. The text does not change,
    // because callers may store it.
    let again = agent.capabilities();
    assert_eq!(silence(&again), Some(text.as_str()));
    assert!(again.pools_age_ms > seen.pools_age_ms);

    agent.switch.forget_log();
    agent.switch.go_on();
    let told = next_said(&agent, &mut reports);
    assert_eq!((told.pools_age_ms, silence(&told)), (0, None), "news without a question");
    let calls = agent.switch.log().iter().filter(|call| call.starts_with("lvm vgs")).count();
    assert!(calls <= 2, "the one that hung, and one for all who asked meanwhile: {calls}");
    assert_eq!(agent.capabilities(), before);
}

#[test]
fn an_agent_that_starts_while_lvm_hangs_serves_what_the_kernel_serves() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let report = report(&agent);
    agent.crash();

    let began = Instant::now();
    let switch = Switch::new(&node.fake, None);
    switch.pause_before(&report);
    let agent = node.start_on(switch);
    let mut reports = agent.watch();
    let told = first(&agent, &mut reports);
    assert!(!told.iter().any(|what| matches!(what, What::Capabilities(_))), "nothing is known: {told:?}");
    assert!(told.iter().any(|what| matches!(what, What::Volume(report) if report.volume_id == v)));
    let seen = agent.capabilities();
    assert!(seen.pools_unknown && seen.pools.is_empty(), "{seen:?}");
    assert!(silence(&seen).is_some_and(|text| text.contains("nothing is known of the volume groups")));
    // Several changes follow, because none may lose the volume's thread to LVM.
    agent.make(put_export(&v, 2, &[("host1", RW), ("host2", RO)]));
    assert!(agent.make(put_export(&v, 3, &[("host2", RO)]))[0].proven);
    assert_eq!(node.reach(&v), ["host2 ro"]);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());

    agent.switch.go_on();
    eventually("LVM's answer", || {
        let seen = agent.capabilities();
        !seen.pools_unknown && silence(&seen).is_none() && seen.pools.len() == 1
    });
    eventually("the volume is seen again", || {
        agent.get(&v).unwrap().volume.is_some_and(|volume| volume.phase() == v1::Phase::Ready)
    });
}

#[test]
fn a_change_is_told_without_a_question() {
    let node = Node::with("resync_seconds = 3600");
    let agent = node.start();
    let mut reports = agent.watch();
    let told = first(&agent, &mut reports);
    let What::Capabilities(before) = &told[0] else { panic!("{told:?}") };
    assert_eq!(before.health.as_ref().unwrap().level(), v1::HealthLevel::Ok, "{before:?}");
    assert!(before.multiattach && before.persistent_reservations == Some(true));

    let module = node.dir.path().join("sys/module/iscsi_target_mod");
    // The agent also takes the module's folder in configfs as proof that the module is there, so
    // both go.
    node.fake.unload_configfs();
    std::fs::remove_dir(&module).unwrap();
    // A look between the two changes sees only one of them.
    let seen = loop {
        let seen = next_said(&agent, &mut reports);
        if seen.health.as_ref().unwrap().level() == v1::HealthLevel::Failed {
            break seen;
        }
    };
    assert!(!seen.multiattach && !seen.transports[0].ready);
    let row = seen.modules.iter().find(|row| row.name == "iscsi_target_mod").unwrap();
    assert_eq!(row.remedy, "modprobe iscsi_target_mod");
}

#[test]
fn a_disk_that_begins_to_take_discards_is_reported_with_its_deletions() {
    let node = Node::with_both("resync_seconds = 1", "wipe = \"discard\"\n");
    let agent = node.start();
    let mut reports = agent.watch();
    let told = first(&agent, &mut reports);
    let What::Capabilities(before) = &told[0] else { panic!("{told:?}") };
    assert_eq!(before.pools[0].wipe(), v1::Wipe::Zero, "it takes none: {before:?}");
    node.fake.lvm().set_discards("vg0", true);
    assert_eq!(next_said(&agent, &mut reports).pools[0].wipe(), v1::Wipe::Discard);
}

#[test]
fn what_targets_offer_is_read_from_one_of_them() {
    let (node, v) = (Node::with("resync_seconds = 1"), volume(1));
    let agent = node.start();
    let digests = |seen: &v1::Capabilities| seen.transports[0].digests.clone();
    assert_eq!(digests(&agent.capabilities()), None, "there is no target to be looked at");
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    eventually("the digests are seen", || digests(&agent.capabilities()).is_some());
    let seen = digests(&agent.capabilities()).unwrap();
    assert_eq!((seen.header.as_str(), seen.data.as_str()), ("CRC32C,None", "CRC32C,None"));
    assert!(seen.target.ends_with(&v), "{seen:?}");
}

#[test]
fn a_store_that_is_gone_fails_everything_new() {
    let node = Node::with("resync_seconds = 3600");
    let agent = node.start();
    assert_eq!(agent.capabilities().persistent_reservations_kept, Some(true));
    for entry in std::fs::read_dir(&node.config.state_dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::remove_file(path).unwrap();
        }
    }
    let seen = agent.capabilities();
    let level = |health: &Option<v1::Health>| health.as_ref().unwrap().level();
    let failed = v1::HealthLevel::Failed;
    assert_eq!((level(&seen.health), level(&seen.pools[0].health)), (failed, failed), "{seen:?}");
    assert_eq!(seen.health.unwrap().reasons[0].code, "store_lost");
    assert_eq!((seen.persistent_reservations, seen.persistent_reservations_kept), (Some(true), Some(false)));
}

/// Neither for what this host can do, nor at the start, where a volume is stored from the time
/// when there was a group, nor for a plan.
#[test]
fn an_agent_without_groups_asks_lvm_for_nothing() {
    let (mut node, v) = (Node::new(), volume(1));
    let asked = |node: &Node| {
        let log = node.fake.lvm().log();
        log.iter().filter(|line| line.starts_with("vgs") || line.starts_with("lvs")).count()
    };
    // Control: with a group LVM is asked each time.
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    node.fake.lvm().clear_log();
    assert_eq!(agent.capabilities().pools.len(), 1);
    let capabilities = asked(&node);
    agent.plan(&v);
    assert!(0 < capabilities && capabilities < asked(&node));
    agent.crash();

    let text = format!(
        "state_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\nresync_seconds = 3600\n[host]\n",
        node.dir.path().display()
    );
    node.config = Config::parse(&text, "agent.toml").unwrap();
    node.fake.lvm().clear_log();
    let agent = node.start();
    assert!(agent.capabilities().pools.is_empty());
    agent.plan(&v);
    assert!(agent.get(&v).is_ok(), "the volume is stored still");
    assert_eq!(asked(&node), 0, "{:?}", node.fake.lvm().log());
}

/// A node with a second group, `vg1`, and these settings of the agent.
fn two_groups(settings: &str) -> Node {
    let node = Node::with(&format!("{settings}[[groups]]\nname = \"vg1\"\n"));
    node.fake.add_vg("vg1", 1024 * MIB);
    node
}

/// The others report as ever and take new volumes; its own volumes are as they were seen last.
#[test]
fn a_group_that_lvm_cannot_read_takes_no_other_with_it() {
    let node = two_groups("resync_seconds = 1\n");
    let (agent, lvm) = (node.start(), node.fake.lvm());
    make_in(&agent, "vg0", 0..1);
    make_in(&agent, "vg1", 1..2);
    let phase = |n: u8| agent.get(&volume(n)).unwrap().volume.unwrap().phase();
    let is_unusable = || {
        let health = agent.capabilities().health.unwrap();
        health.reasons.iter().any(|reason| reason.code == "group_unusable")
    };
    let looks = || lvm.log().iter().filter(|line| line.starts_with("lvs")).count();
    lvm.set_sick("vg1", Some("  Failed to read metadata of vg1.\n"));
    eventually("it is said of the group", is_unusable);
    let before = looks();
    eventually("all volumes are looked at", || looks() >= before + 3);
    make_in(&agent, "vg0", 2..3);
    assert_eq!([phase(0), phase(1), phase(2)], [v1::Phase::Ready; 3]);
    let pools: Vec<_> = agent.capabilities().pools.into_iter().map(|pool| pool.name).collect();
    assert_eq!(pools, ["vg0"]);
    // The control: an LVM that answers nobody takes every volume with it.
    lvm.set_broken(Some("  broken\n"));
    let all_are = |wanted: v1::Phase| (0..3).all(|n| phase(n) == wanted);
    eventually("no volume is called ready", || all_are(v1::Phase::Failed));
    lvm.set_broken(None);
    lvm.set_sick("vg1", None);
    eventually("all are ready again", || !is_unusable() && all_are(v1::Phase::Ready));
}

/// A pass asks LVM by the volume's name; a resync asks for whole groups.
#[test]
fn a_group_that_lvm_cannot_read_wakes_no_volume_that_is_gone() {
    let node = two_groups("resync_seconds = 1\n");
    let (agent, lvm) = (node.start(), node.fake.lvm());
    agent.make(put_volume(&volume(1), 1));
    agent.make(delete_volume(&volume(1), 2));
    let looks =
        |word: &str| lvm.log().iter().filter(|line| line.starts_with("lvs") && line.contains(word)).count();
    let look = |times: usize| {
        let before = looks("lvs");
        eventually("all volumes are looked at", || looks("lvs") >= before + times);
    };
    look(2);
    lvm.set_sick("vg1", Some("  Failed to read metadata of vg1.\n"));
    let of_it = looks(&volume(1));
    look(4);
    assert_eq!(looks(&volume(1)), of_it, "nothing says that it is there again");
}

#[test]
fn a_group_that_lvm_hangs_at_takes_no_other_with_it() {
    let node = two_groups("resync_seconds = 1\n");
    let (agent, lvm) = (node.start(), node.fake.lvm());
    make_in(&agent, "vg0", 0..1);
    make_in(&agent, "vg1", 1..2);
    let phase = |n: u8| agent.get(&volume(n)).unwrap().volume.unwrap().phase();
    let is_said = || {
        let problems = agent.capabilities().problems;
        problems
            .iter()
            .any(|problem| problem.object == "volume group vg1" && problem.text.contains("does not return"))
    };
    lvm.set_group_hanging("vg1", true);
    eventually("it is said of the group", is_said);
    make_in(&agent, "vg0", 2..3);
    assert_eq!([phase(0), phase(1), phase(2)], [v1::Phase::Ready; 3]);
    let pools: Vec<_> = agent.capabilities().pools.into_iter().map(|pool| pool.name).collect();
    assert_eq!(pools, ["vg0"]);
    lvm.set_group_hanging("vg1", false);
    eventually("it is asked again", || !is_said() && agent.capabilities().pools.len() == 2);
    make_in(&agent, "vg1", 3..4);
    // The control: beside an LVM that comes to no end at any group, no volume can be made.
    lvm.set_hanging(true);
    assert!(agent.put_volume(put_volume(&volume(4), 1)).is_err());
    lvm.set_hanging(false);
}

/// Otherwise each pass would wait for LVM's time limit.
#[test]
fn a_look_at_a_volume_asks_for_no_other_group_that_hangs() {
    let node = two_groups("");
    let (agent, lvm) = (node.start(), node.fake.lvm());
    let asks = |volume: v1::PutVolumeRequest| {
        lvm.clear_log();
        agent.make(volume);
        lvm.log().iter().any(|line| line.starts_with("vgs") && line.contains("vg1"))
    };
    lvm.set_group_hanging("vg1", true);
    let mut n = 0;
    // The first look finds that the group hangs. The look of the start may come between.
    eventually("the group is left out", || {
        n += 1;
        !asks(put_volume(&volume(n), 1))
    });
    // Its own volumes ask for it.
    lvm.set_group_hanging("vg1", false);
    let spec = v1::VolumeSpec { group: "vg1".to_owned(), ..volume_spec(SIZE) };
    assert!(asks(put_volume_spec(&volume(100), 1, spec)));
    // The control: a group that does not hang is asked for.
    assert!(asks(put_volume(&volume(101), 1)));
}

/// A deletion is done once the pass that found the volume's own LV has removed it.
#[test]
fn a_deletion_waits_for_no_sick_group_but_the_volumes_own() {
    let node = two_groups("resync_seconds = 1\n");
    let (agent, lvm) = (node.start(), node.fake.lvm());
    let (in_vg0, in_vg1, orphan, moved) = (volume(1), volume(2), volume(3), volume(4));
    agent.make(put_volume(&in_vg0, 1));
    agent.make(put_volume(&moved, 1));
    agent.make(put_volume_spec(&in_vg1, 1, v1::VolumeSpec { group: "vg1".to_owned(), ..volume_spec(SIZE) }));
    assert!(lvm.add_volume("vg0", &format!("mooring-{orphan}"), SIZE, &["mooring"]));
    lvm.set_sick("vg1", Some("  Failed to read metadata of vg1.\n"));
    agent.make(delete_volume(&in_vg0, 2));
    let report = |id: &str| agent.get(id).unwrap().volume.unwrap();
    assert_eq!(report(&in_vg0).phase(), v1::Phase::Gone);
    assert_eq!(agent.plan(&in_vg0), v1::PlanResponse::default());
    // The control: the LV may lie in the sick group. It does; nobody knows the LV; somebody has
    // taken it away from its group.
    lvm.lose_volume("vg0", &format!("mooring-{moved}"));
    for (id, generation) in [(&in_vg1, 2), (&orphan, 1), (&moved, 2)] {
        let answer = agent.put_volume(delete_volume(id, generation)).unwrap();
        assert!(!answer.done, "{answer:?}");
        let told = report(id);
        assert_eq!(told.phase(), v1::Phase::Deleting, "{told:?}");
        assert!(told.problems[0].text.contains("it is not known whether its data is gone"), "{told:?}");
    }
    // A new volume would hide the old LV.
    let again = agent.put_volume(put_volume(&in_vg1, 3)).unwrap_err();
    assert!(again.message().contains("still being deleted"), "{again:?}");
    lvm.set_sick("vg1", None);
    for id in [&in_vg1, &orphan, &moved] {
        eventually("it is gone, too", || report(id).phase() == v1::Phase::Gone);
    }
    assert!([&in_vg0, &in_vg1, &orphan].iter().all(|id| !node.lvs().contains(*id)), "{}", node.lvs());
    // The control: after a restart nobody knows the group.
    lvm.set_sick("vg1", Some("  Failed to read metadata of vg1.\n"));
    agent.crash();
    let agent = node.start();
    let phase = || agent.get(&in_vg0).unwrap().volume.unwrap().phase();
    eventually("it waits for the sick group", || phase() == v1::Phase::Deleting);
}
