//! Ends of the agent's process at any moment, and reboots of the host: acknowledged specs are
//! reached again, and nothing that is right is changed.

use mooring_api::v1;
use mooring_connectors::fake::Kill;

use crate::rig::*;

#[test]
fn a_restart_changes_nothing() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    agent.make(agent.put(2, 1, &[(2, RO)]));
    agent.make(tombstone(2, 2, false));
    let sid = agent.report(1).session.unwrap().sid;
    agent.crash();
    let agent = site.start();
    eventually("it is ready", || agent.report(1).phase() == v1::ConnectionPhase::Ready);
    eventually("it is gone", || agent.report(2).phase() == v1::ConnectionPhase::Gone);
    assert_eq!(agent.door.changes(), 0, "{:?}", agent.door.log());
    assert_eq!(agent.report(1).session.unwrap().sid, sid);
    assert_eq!(site.world.logins(), 2);
}

#[test]
fn a_host_without_its_database_goes_on_under_its_old_name_without_a_login() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    let put = agent.put(1, 1, &[(1, RW)]);
    agent.make(put.clone());
    let (initiator, sid) = (agent.initiator(), agent.report(1).session.unwrap().sid);
    let id = initiator.rsplit('.').next().unwrap().to_owned();
    agent.crash();
    std::fs::remove_dir_all(&site.config.state_dir).unwrap();
    let agent = site.start();
    assert_ne!(agent.initiator(), initiator);
    let refused = agent.try_put(put.clone()).unwrap_err();
    assert!(refused.message().contains(&agent.initiator()), "{refused}");
    let mut client = agent.agent_client();
    let adopt = v1::AdoptRequest { sender: put.sender.clone(), agent_id: id };
    agent.wait(async move { client.adopt(adopt).await }).unwrap();
    assert_eq!(agent.initiator(), initiator);
    let report = agent.make(put.clone());
    assert_eq!((report.session.unwrap().sid, site.world.logins()), (sid, 1));
    site.assert_attached(1, 1);
    // A sender that asks for secrets gets them back.
    let Some(v1::put_connection_request::Wish::Spec(spec)) = put.wish else { panic!("a spec") };
    assert_eq!(agent.list_asking(true)[0].spec.as_ref(), Some(&spec));
    assert!(agent.list()[0].spec.clone().unwrap().chap.unwrap().initiator.unwrap().secret.is_empty());
}

#[test]
fn after_a_reboot_the_store_attaches_again() {
    let site = Site::exporting(&[1, 2, 3]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    agent.make(agent.put(2, 1, &[(2, RO), (3, RO)]));
    agent.make(agent.put(3, 1, &[(4, RW)]));
    agent.make(tombstone(3, 2, true));
    agent.crash();
    site.world.reboot();
    assert_eq!(site.path_of(1), None);
    // sessiond comes up later than the agent.
    site.world.set_sessiond(false);
    let agent = site.start();
    site.world.set_sessiond(true);
    eventually("they are ready", || {
        [1, 2].iter().all(|n| agent.report(*n).phase() == v1::ConnectionPhase::Ready)
    });
    site.assert_attached(1, 1);
    site.assert_attached(3, 2);
    assert_eq!(site.world.is_read_only(volume(2)), Some(true));
    site.assert_nothing_left(3);
}

/// Sends a spec until it is acknowledged as reached, or the process is dead. `true` if it was
/// acknowledged.
fn send(agent: &Agent, put: &v1::PutConnectionRequest) -> bool {
    let (mut client, put, door) = (agent.client(), put.clone(), agent.door.clone());
    let put = agent.spawn(async move { client.put_connection(put).await });
    eventually("an answer, or the end", || put.is_finished() || door.is_dead());
    if door.is_dead() {
        return false;
    }
    assert!(agent.wait(put).unwrap().unwrap().into_inner().done, "acknowledged and not true");
    true
}

/// A request, and the disk's state when it is reached: `true` if the disk refuses writes, and its
/// read-ahead in sectors; `None` for no disk.
type Step = (fn(&Agent) -> v1::PutConnectionRequest, Option<(bool, u32)>);

/// Read-ahead of an untouched disk, in sectors.
const AHEAD: u32 = 256;

/// A request for attachments with the cache off.
fn put_uncached(agent: &Agent, counter: u64, attachments: &[(u8, v1::Mode)]) -> v1::PutConnectionRequest {
    let mut spec = agent.spec(1, attachments);
    spec.attachments.iter_mut().for_each(|path| path.cache_off = true);
    put_spec(1, counter, spec)
}

/// Runs a connection's life with one kill. `false` if the process was never killed, because it had
/// nothing left to do.
fn run(kill: Kill, reboots: bool) -> bool {
    let site = Site::exporting(&[1]);
    let mut agent = site.start_with(Some(kill));
    let mut killed = false;
    let steps: [Step; 7] = [
        (|agent| agent.put(1, 1, &[(1, RO)]), Some((true, AHEAD))),
        (|agent| agent.put(1, 2, &[(1, RO), (2, RW)]), Some((false, AHEAD))),
        (|agent| put_uncached(agent, 3, &[(1, RO), (2, RO)]), Some((true, 0))),
        (|agent| put_uncached(agent, 4, &[(2, RO)]), Some((true, 0))),
        (|agent| agent.put(1, 5, &[(2, RO)]), Some((true, AHEAD))),
        (|_| tombstone(1, 6, false), None),
        (|agent| agent.put(1, 7, &[(3, RW)]), Some((false, AHEAD))),
    ];
    for (put, disk) in steps {
        while !send(&agent, &put(&agent)) {
            assert!(!killed, "killed once");
            killed = true;
            agent.crash();
            if reboots {
                site.world.reboot();
            }
            agent = site.start();
        }
        let seen = site.world.is_read_only(volume(1)).zip(site.world.read_ahead(volume(1)));
        assert_eq!(seen, disk, "{kill:?}");
    }
    site.assert_attached(3, 1);
    assert_eq!((site.path_of(1), site.path_of(2)), (None, None), "{kill:?}");
    site.assert_lawful();
    if killed {
        agent.make(tombstone(1, 8, true));
        site.assert_nothing_left(1);
    }
    killed
}

fn at_every_step(kill: fn(u64) -> Kill, reboots: bool) {
    let mut steps = 0;
    while run(kill(steps + 1), reboots) {
        steps += 1;
    }
    println!("killed at each of {steps} steps");
    assert!(steps >= 20, "a connection's life has more steps than {steps}");
}

#[test]
fn killed_before_every_step_the_successor_ends_as_specified() {
    at_every_step(Kill::Before, false);
}

#[test]
fn killed_after_every_step_the_successor_ends_as_specified() {
    at_every_step(Kill::After, false);
}

#[test]
fn killed_with_the_whole_machine_at_every_step_it_ends_as_specified() {
    at_every_step(Kill::After, true);
}
