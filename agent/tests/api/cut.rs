//! Isolation of a volume from its disk, and its end: immediate, also behind a call that hangs,
//! after a reboot, and after a kill at every step.

use mooring_api::v1;
use mooring_host::fake::{IoRefusal, SessionId};
use tonic::Code;

use crate::rig::*;
use crate::switch::Kill;

/// Time of the request, in microseconds since 1970.
const SINCE: i64 = 1_790_000_000_000_000;

const CUT: v1::CutState = v1::CutState::InForce;
const PENDING: v1::CutState = v1::CutState::Pending;
const NOT: v1::CutState = v1::CutState::Unspecified;

fn cut(id: &str, counter: u64) -> v1::PutVolumeRequest {
    put_volume_spec(id, counter, v1::VolumeSpec { cut_us: SINCE, ..volume_spec(SIZE) })
}

fn state(agent: &Agent, id: &str) -> v1::CutState {
    agent.get(id).unwrap().volume.unwrap().cut()
}

fn says(agent: &Agent, id: &str, words: &str) -> bool {
    let report = agent.get(id).unwrap().volume.unwrap();
    report.problems.iter().any(|problem| problem.text.contains(words))
}

fn dmsetup(node: &Node, args: &[&str]) -> String {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let timeout = std::time::Duration::from_secs(1);
    let command = mooring_host::Command { program: "/sbin/dmsetup", args, timeout };
    let output = mooring_host::Commands::run(&node.fake.lvm(), &command).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the table in force, and the table that waits.
fn tables(node: &Node, id: &str) -> (&'static str, &'static str) {
    let path = device(id).display().to_string();
    let word = |table: &str| match table.split(' ').nth(2) {
        Some("error") => "error",
        Some("linear") => "linear",
        _ => "none",
    };
    (word(&dmsetup(node, &["table", &path])), word(&dmsetup(node, &["table", "--inactive", &path])))
}

/// Attaches a volume to host1, and returns the session.
fn attached(node: &Node, id: &str) -> SessionId {
    let agent = node.start();
    agent.make(put_volume(id, 1));
    agent.make(put_export(id, 1, &[("host1", RW)]));
    let session = node.login(id, "host1").unwrap();
    agent.crash();
    session
}

#[test]
fn a_cut_volume_answers_with_errors_at_once_and_others_notice_nothing() {
    let (node, v, w) = (Node::new(), volume(1), volume(2));
    let (one, other) = (attached(&node, &v), attached(&node, &w));
    let agent = node.start();
    node.fake.write(one, 1).unwrap();
    agent.make(cut(&v, 2));
    assert_eq!((state(&agent, &v), tables(&node, &v)), (CUT, ("error", "none")));
    assert_eq!(node.fake.write(one, 1), Err(IoRefusal::Failed));
    assert_eq!(node.fake.read(one, 1), Err(IoRefusal::Failed));
    assert_eq!(node.fake.landed(device(&v)), 1, "nothing reaches the disk");
    // The volume's session and grant stay, and so do those of other volumes.
    assert!(node.fake.is_live(one));
    assert_eq!(node.reach(&v), ["host1 rw"]);
    node.fake.write(other, 1).unwrap();
    assert_eq!((state(&agent, &w), agent.plan("")), (NOT, v1::PlanResponse::default()));
    // A repeated request changes nothing; grants may come and go.
    agent.make(cut(&v, 2));
    agent.make(put_export(&v, 2, &[("host1", RW), ("host2", RO)]));
    agent.make(put_export(&v, 3, &[("host1", RW)]));
    agent.make(put_volume(&v, 3));
    assert_eq!((state(&agent, &v), tables(&node, &v)), (NOT, ("linear", "none")));
    node.fake.write(one, 1).unwrap();
    assert_eq!(node.fake.landed(device(&v)), 2);
    assert_eq!(agent.plan(""), v1::PlanResponse::default());
}

#[test]
fn it_is_cut_while_a_call_of_its_volume_hangs() {
    let (node, v) = (Node::new(), volume(1));
    let one = attached(&node, &v);
    let agent = node.start();
    let rmdir = format!("rmdir iscsi/{}/tpgt_1/acls/{}", target(&v), iqn("host2"));
    agent.make(put_export(&v, 2, &[("host1", RW), ("host2", RW)]));
    agent.switch.pause_before(&rmdir);
    assert!(!agent.put_export(brief(put_export(&v, 3, &[("host1", RW)]))).unwrap().done);
    assert_eq!(agent.switch.paused().as_deref(), Some(rmdir.as_str()));
    // The change succeeds long before its deadline, because it does not wait for the call that
    // hangs.
    agent.make(cut(&v, 2));
    assert_eq!(node.fake.write(one, 1), Err(IoRefusal::Failed));
    agent.make(put_volume(&v, 3));
    node.fake.write(one, 1).unwrap();
    agent.switch.go_on();
    eventually("it goes on", || agent.get(&v).unwrap().export.unwrap().in_force);
}

#[test]
fn what_is_in_flight_below_is_waited_for_and_said() {
    let (node, v, w) = (Node::new(), volume(1), volume(2));
    let one = attached(&node, &v);
    let agent = node.start();
    node.fake.hold(device(&v));
    node.fake.start_write(one, 1).unwrap();
    let begun = agent.begin(cut(&v, 2));
    eventually("it is said", || says(&agent, &v, "have not returned"));
    assert_eq!(state(&agent, &v), PENDING);
    agent.assert_not_done(begun);
    agent.make(put_volume(&w, 1));
    node.fake.release(device(&v));
    eventually("it is cut", || state(&agent, &v) == CUT);
    assert_eq!((node.fake.write(one, 1), node.fake.landed(device(&v))), (Err(IoRefusal::Failed), 1));
    assert_eq!(agent.get(&v).unwrap().volume.unwrap().problems, []);
}

#[test]
fn withdrawn_while_it_waits_no_table_stays_behind() {
    let (node, v) = (Node::new(), volume(1));
    let one = attached(&node, &v);
    let agent = node.start();
    node.fake.hold(device(&v));
    node.fake.start_write(one, 1).unwrap();
    let begun = agent.begin(cut(&v, 2));
    eventually("the control: there is one to stay", || tables(&node, &v) == ("linear", "error"));
    agent.assert_not_done(begun);
    agent.make(put_volume(&v, 3));
    assert_eq!((state(&agent, &v), tables(&node, &v)), (NOT, ("linear", "none")));
    node.fake.release(device(&v));
    node.fake.write(one, 1).unwrap();
}

#[test]
fn nothing_is_done_to_a_volume_that_is_cut() {
    let (node, v, s) = (Node::with_group("thin_pool = \"256MiB\"\n"), volume(1), volume(2));
    let thin = || v1::VolumeSpec { provisioning: v1::Provisioning::Thin.into(), ..volume_spec(SIZE) };
    let agent = node.start();
    agent.make(put_volume_spec(&v, 1, thin()));
    agent.make(put_volume_spec(&v, 2, v1::VolumeSpec { cut_us: SINCE, ..thin() }));
    let words = ["is cut off", "uncut"];
    let refused =
        |put| assert_refused(agent.put_volume(put), Code::FailedPrecondition, "fix_spec", &words[..1]);
    refused(delete_volume(&v, 3));
    refused(put_volume_spec(&v, 3, v1::VolumeSpec { size_bytes: 2 * SIZE, cut_us: SINCE, ..thin() }));
    let of = v1::VolumeSource { of: Some(v1::volume_source::Of::VolumeId(v.clone())) };
    let snapshot =
        v1::VolumeSpec { kind: v1::VolumeKind::Snapshot.into(), source: Some(of.clone()), ..thin() };
    refused(put_volume_spec(&s, 1, snapshot.clone()));
    refused(put_volume_spec(&s, 1, v1::VolumeSpec { source: Some(of), ..thin() }));
    assert_eq!((state(&agent, &v), tables(&node, &v).0), (CUT, "error"));
    // A snapshot cannot be isolated, nor can a volume together with a revert.
    let wrong = v1::VolumeSpec { cut_us: SINCE, ..snapshot.clone() };
    assert_eq!(agent.put_volume(put_volume_spec(&s, 1, wrong)).unwrap_err().code(), Code::InvalidArgument);
    agent.make(put_volume_spec(&v, 3, thin()));
    agent.make(put_volume_spec(&s, 1, snapshot));
    agent.make(delete_volume(&s, 2));
    agent.make(delete_volume(&v, 4));
    node.assert_nothing_left(&v);
}

#[test]
fn after_a_reboot_it_is_cut_before_anybody_reaches_it() {
    let (node, v) = (Node::new(), volume(1));
    attached(&node, &v);
    let agent = node.start();
    agent.make(cut(&v, 2));
    agent.crash();
    for autoactivation in [true, false] {
        node.fake.set_autoactivation(autoactivation);
        node.fake.reboot();
        assert_ne!(tables(&node, &v).0, "error", "the control: LVM activates its own table");
        let agent = node.start();
        eventually("it is served", || node.reach(&v) == ["host1 rw"]);
        let log = agent.switch.log();
        let at = |what: &str| {
            log.iter().position(|call| call.contains(what)).unwrap_or_else(|| panic!("{what}: {log:#?}"))
        };
        assert!(at("wipe_table") < at(&format!("write iscsi/{}/tpgt_1/enable", target(&v))), "{log:#?}");
        assert_eq!(tables(&node, &v), ("error", "none"));
        eventually("it is said", || state(&agent, &v) == CUT);
        let one = node.login(&v, "host1").unwrap();
        assert_eq!(node.fake.write(one, 1), Err(IoRefusal::Failed));
    }
}

#[test]
fn what_somebody_puts_back_is_cut_again() {
    let (node, v) = (Node::with("resync_seconds = 1\n"), volume(1));
    attached(&node, &v);
    let agent = node.start();
    agent.make(cut(&v, 2));
    let args = ["lvchange", "--refresh", &format!("vg0/mooring-{v}")].map(str::to_owned).to_vec();
    let timeout = std::time::Duration::from_secs(1);
    let refresh = mooring_host::Command { program: "/sbin/lvm", args, timeout };
    mooring_host::Commands::run(&node.fake.lvm(), &refresh).unwrap();
    let cuts = || agent.switch.log().iter().filter(|call| call.contains("wipe_table")).count();
    eventually("it is cut again", || cuts() == 2 && tables(&node, &v).0 == "error");
    eventually("it is said", || state(&agent, &v) == CUT);
}

#[test]
fn without_dmsetup_it_is_said_what_is_missing() {
    let (node, v) = (Node::new(), volume(1));
    attached(&node, &v);
    let agent = node.start();
    node.fake.lvm().set_missing(true);
    let begun = agent.begin(cut(&v, 2));
    eventually("it is said", || says(&agent, &v, "dmsetup is not installed"));
    assert_eq!(state(&agent, &v), PENDING);
    agent.assert_not_done(begun);
    node.fake.lvm().set_missing(false);
    eventually("it is cut", || state(&agent, &v) == CUT);
}

/// Sends the start or the end of an isolation to an agent that is killed at one of its calls.
/// `false` if the agent was not killed.
fn killed(kill: Kill, cuts: bool, reboots: bool) -> bool {
    let (node, v) = (Node::new(), volume(1));
    attached(&node, &v);
    let (before, next) = if cuts { (put_volume(&v, 2), cut(&v, 3)) } else { (cut(&v, 2), put_volume(&v, 3)) };
    let agent = node.start();
    agent.make(before);
    agent.crash();
    let agent = node.start_with(Some(kill));
    let mut alive = agent.is_up();
    if alive {
        let (mut client, mut died, put) = (agent.client(), agent.switch.died(), next.clone());
        alive = agent.wait(async move {
            tokio::select! {
                biased;
                _ = died.wait_for(|died| *died) => false,
                answer = client.put_volume(put) => answer.unwrap().into_inner().done,
            }
        });
    }
    let agent = if alive {
        agent
    } else {
        agent.crash();
        if reboots {
            node.fake.reboot();
        }
        let agent = node.start();
        agent.make(next);
        agent
    };
    let want = if cuts { ("error", "none") } else { ("linear", "none") };
    assert_eq!(tables(&node, &v), want, "{kill:?}");
    assert_eq!(state(&agent, &v), if cuts { CUT } else { NOT }, "{kill:?}");
    eventually("it is served", || node.reach(&v) == ["host1 rw"]);
    !alive
}

fn at_every_step(kill: fn(u64) -> Kill, cuts: bool, reboots: bool) {
    let mut steps = 0;
    while killed(kill(steps + 1), cuts, reboots) {
        steps += 1;
    }
    println!("killed at each of {steps} steps");
    assert!(steps > 0, "nothing was done");
}

#[test]
fn killed_at_every_step_it_ends_isolated_as_its_spec_says() {
    at_every_step(Kill::Before, true, false);
    at_every_step(Kill::After, true, false);
    at_every_step(Kill::After, true, true);
}

#[test]
fn killed_at_every_step_its_isolation_ends_as_its_spec_says() {
    at_every_step(Kill::Before, false, false);
    at_every_step(Kill::After, false, false);
    at_every_step(Kill::After, false, true);
}
