//! Several controllers on one database: each answers, one drives each agent, and one that dies or
//! sleeps does no harm. The second controller is the program itself, in tests that kill it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{LONG, Rig, SHORT, admin, client, native, pg, set_clock, until};
use mooring_api::v1;
use mooring_controller::domain::{
    AttachAction, AttachmentStatus, IsolationChange, NewAttachment, NewFence, VolumeStatus,
};
use mooring_controller::list::ListQuery;
use mooring_controller::rules;
use mooring_controller::service::{Refusal, Service};
use mooring_model::{AttachmentId, Mode, VolumeId};

/// The program, on the rig's database.
struct Program {
    child: Child,
    address: SocketAddr,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(rig: &Rig) -> Self {
        let config = rig.path("controller.toml");
        std::fs::write(&config, rig.configuration()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_mooring-controller"))
            .args(["--no-auth", "--config"])
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        let address = loop {
            let start = seen.len();
            assert!(log.read_line(&mut seen).unwrap() > 0, "it ended: {seen}");
            if let Some((_, rest)) = seen[start..].split_once("listening address=") {
                break rest.split_whitespace().next().unwrap().parse().unwrap();
            }
        };
        // Later lines must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, address }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Asks the program. Returns the answer's code and body; `None` if the connection ended without
    /// one.
    fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        ask(self.address, method, path, body)
    }

    /// Asks for a native attachment, without waiting for the answer.
    fn attach_later(&self, id: AttachmentId, volume: VolumeId, host: &str) -> std::thread::JoinHandle<()> {
        let body =
            serde_json::json!({ "attachment": { "id": id, "volume": volume, "host": host, "mode": "rw" } });
        let (address, body) = (self.address, body.to_string());
        std::thread::spawn(move || drop(ask(address, "POST", "/mooring/v1/attachments", &body)))
    }
}

fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let code = answer.split(' ').nth(1)?.parse().ok()?;
    Some((code, answer.split_once("\r\n\r\n")?.1.to_owned()))
}

/// Number of agents that each live controller drives.
fn shares(rig: &Rig) -> Vec<usize> {
    let sql = "SELECT (SELECT count(*) FROM leases WHERE holder = id) FROM controllers \
               WHERE until_us > extract(epoch FROM clock_timestamp()) * 1000000 ORDER BY 1";
    rig.psql(sql).lines().map(|line| line.parse().unwrap()).collect()
}

async fn until_shares(rig: &Rig, want: &[usize]) {
    until("the shares", async || {
        let seen = shares(rig);
        // Each look is a program of its own.
        tokio::time::sleep(Duration::from_millis(100)).await;
        if seen == want { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

async fn until_up(service: &Service) {
    until("all agents", async || {
        let hosts = service.hosts(&admin()).await.map_err(|refusal| refusal.to_string())?;
        if hosts.iter().all(|host| host.up) { Ok(()) } else { Err(format!("{hosts:?}")) }
    })
    .await;
}

/// Asks until there is an answer: an agent may be without a driver for a moment, and the database
/// away. The id makes all calls one request.
async fn insist(service: Service, new: NewAttachment) {
    let limit = Instant::now() + LONG.0;
    loop {
        match service.create_attachment(&admin(), new.clone(), SHORT).await {
            Ok(made) => return assert_eq!(Some(made.id), new.id),
            Err(Refusal::Unavailable(why)) => assert!(Instant::now() < limit, "{why}"),
            Err(other) => panic!("{other}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn attach(id: AttachmentId, volume: VolumeId, host: &str) -> NewAttachment {
    NewAttachment { id: Some(id), ..native(volume, host, Mode::ReadWrite) }
}

/// Asserts the state when no work is open: the status is derived, and the grants are those of the
/// attachments.
async fn settled(rig: &Rig, service: &Service, volume: VolumeId, want: &[AttachmentId]) {
    until("what must hold", async || {
        let seen = service.volume(&admin(), volume).await.map_err(|refusal| refusal.to_string())?;
        let listed = service.attachments(&admin(), ListQuery::attachments_of(volume)).await;
        let listed = listed.map_err(|refusal| refusal.to_string())?.items;
        let ids: BTreeSet<_> = seen.attachments.iter().map(|attachment| attachment.id).collect();
        let statuses: Vec<_> = seen.attachments.iter().map(|attachment| attachment.status).collect();
        let derived = rules::derive(None, statuses.iter().copied());
        assert_eq!((seen.status, seen.attach_status), derived, "{statuses:?}");
        let wanted: BTreeSet<_> = listed
            .iter()
            .filter_map(|attachment| attachment.initiator.as_ref())
            .map(ToString::to_string)
            .collect();
        let granted: BTreeSet<_> = rig.storage.granted(volume).into_iter().collect();
        let attached = statuses.iter().all(|status| *status == AttachmentStatus::Attached);
        if ids == want.iter().copied().collect() && attached && granted == wanted && seen.fault.is_none() {
            Ok(())
        } else {
            Err(format!("{seen:?} {granted:?}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_share_the_agents_and_either_answers() {
    let rig = Rig::new(3).await;
    let other = rig.another();
    other.start();
    until_shares(&rig, &[2, 2]).await;
    until_up(&rig.service).await;
    until_up(&other).await;
    let both = [&rig.service, &other];
    let volume = rig.volume(true).await;
    let mut ids = Vec::new();
    for (number, host) in ["host1", "host2", "host3"].into_iter().enumerate() {
        let new = native(volume, host, Mode::ReadWrite);
        let made = both[number % 2].create_attachment(&admin(), new, LONG).await.unwrap();
        ids.push(made.id);
        // The controller that was not asked sees the attachment come.
        let asked = both[(number + 1) % 2];
        until("the attachment", async || {
            let live = asked.live(&admin(), made.id, None, LONG).await.unwrap();
            let done = live.attachment.status == AttachmentStatus::Attached && live.session == Some(true);
            if done && live.device_path.is_some() { Ok(()) } else { Err(format!("{live:?}")) }
        })
        .await;
    }
    // A client's request waits on one controller for the grant that another one sees.
    for service in both {
        let made = service.create_attachment(&admin(), client(volume, 7), LONG).await.unwrap();
        assert!(made.connection_info.is_some());
        service.complete_attachment(&admin(), made.id).await.unwrap();
        let asked = Instant::now();
        service.delete_attachment(&admin(), made.id, true, LONG).await.unwrap();
        assert!(asked.elapsed() < Duration::from_secs(4), "a note came, not the slow look");
    }
    for (number, id) in ids.iter().enumerate() {
        let (receipt, _) =
            both[(number + 1) % 2].delete_attachment(&admin(), *id, false, LONG).await.unwrap();
        assert_eq!(receipt.receipt.unwrap().attachments, [*id]);
    }
    settled(&rig, &rig.service, volume, &[]).await;
    // An agent that goes down is down for both, with the reason; and later up again for both.
    rig.hosts[0].set_down(true);
    for service in both {
        until("the agent down", async || {
            let hosts = service.hosts(&admin()).await.unwrap();
            let host = hosts.iter().find(|host| host.name == "host1").unwrap();
            if !host.up && host.why_down.is_some() { Ok(()) } else { Err(format!("{host:?}")) }
        })
        .await;
        let refused =
            service.create_attachment(&admin(), native(volume, "host1", Mode::ReadWrite), SHORT).await;
        assert!(matches!(refused, Err(Refusal::Unavailable(_))), "{refused:?}");
    }
    rig.hosts[0].set_down(false);
    until_up(&rig.service).await;
    until_up(&other).await;
    // One stops: the other drives all agents at once.
    let began = Instant::now();
    other.stop().await;
    until_shares(&rig, &[4]).await;
    until_up(&rig.service).await;
    assert!(began.elapsed() < Duration::from_secs(6), "it gave its leases back");
    rig.attach(volume, "host1", Mode::ReadWrite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_killed_is_replaced() {
    let rig = Rig::new(3).await;
    for (killed_at, storage_mine) in [(0, false), (1, true), (3, false), (5, true)] {
        let mut program = Program::start(&rig);
        until_shares(&rig, &[2, 2]).await;
        until_up(&rig.service).await;
        let volume = rig.volume(true).await;
        let leaving = rig.attach(volume, "host3", Mode::ReadWrite).await.attachment.id;
        let before = *rig.world.puts.borrow();
        // One request goes to the controller that dies, and one to the one that stays.
        let ids = [AttachmentId::random(), AttachmentId::random()];
        let asked = program.attach_later(ids[0], volume, "host1");
        if storage_mine {
            rig.service.create_attachment(&admin(), attach(ids[1], volume, "host2"), SHORT).await.unwrap();
        }
        let mut puts = rig.world.puts.subscribe();
        // Fewer puts may come: the dying controller may not get that far.
        let _ =
            tokio::time::timeout(Duration::from_secs(2), puts.wait_for(|puts| *puts >= before + killed_at))
                .await;
        program.child.kill().unwrap();
        program.child.wait().unwrap();
        asked.join().unwrap();
        let killed = Instant::now();
        // A client without an answer asks the other controller: with the same id it is the same
        // attachment.
        insist(rig.service.clone(), attach(ids[0], volume, "host1")).await;
        insist(rig.service.clone(), attach(ids[1], volume, "host2")).await;
        rig.until_attached(ids[0]).await;
        rig.until_attached(ids[1]).await;
        settled(&rig, &rig.service, volume, &[leaving, ids[0], ids[1]]).await;
        assert!(killed.elapsed() < Duration::from_secs(15), "a few seconds: {:?}", killed.elapsed());
        for id in [leaving, ids[0], ids[1]] {
            rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap();
        }
        settled(&rig, &rig.service, volume, &[]).await;
        until_shares(&rig, &[4]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_slept_past_its_lease_does_no_harm() {
    let rig = Rig::new(3).await;
    let program = Program::start(&rig);
    until_shares(&rig, &[2, 2]).await;
    until_up(&rig.service).await;
    let volume = rig.volume(true).await;
    let first = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    // In the middle of work: its next step is still to come when it wakes.
    let id = AttachmentId::random();
    let asked = program.attach_later(id, volume, "host2");
    std::thread::sleep(Duration::from_millis(15));
    program.signal("-STOP");
    until_shares(&rig, &[4]).await;
    until_up(&rig.service).await;
    insist(rig.service.clone(), attach(id, volume, "host2")).await;
    rig.until_attached(id).await;
    // Meanwhile the state changes: its memory is out of date.
    rig.service.delete_attachment(&admin(), first, false, LONG).await.unwrap();
    rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap();
    let third = rig.attach(volume, "host3", Mode::ReadWrite).await.attachment.id;
    rig.until_quiet().await;
    let before = *rig.world.puts.borrow();
    program.signal("-CONT");
    asked.join().unwrap();
    // It takes part again, as a new controller.
    until_shares(&rig, &[2, 2]).await;
    until_up(&rig.service).await;
    settled(&rig, &rig.service, volume, &[third]).await;
    let seen = rig.service.volume(&admin(), volume).await.unwrap();
    assert_eq!(seen.status, VolumeStatus::InUse);
    assert_eq!(*rig.world.puts.borrow(), before, "nothing old was sent");
    let (code, body) = program.ask("GET", "/mooring/v1/hosts", "").unwrap();
    assert_eq!(code, 200, "{body}");
    assert!(!body.contains("in review"), "{body}");
    // The controller works.
    let id = AttachmentId::random();
    program.attach_later(id, volume, "host1").join().unwrap();
    rig.until_attached(id).await;
    settled(&rig, &rig.service, volume, &[third, id]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_goes_and_comes_back_in_the_middle() {
    // The server lives as long as the process: other tests in it have their own.
    let server: &'static pg::Server = Box::leak(Box::new(pg::Server::new()));
    let rig = Rig::on(server, 3).await;
    let other = rig.another();
    other.start();
    until_shares(&rig, &[2, 2]).await;
    until_up(&rig.service).await;
    until_up(&other).await;
    let both = [&rig.service, &other];
    let volume = rig.volume(true).await;
    for round in 0..4_usize {
        let ids = [AttachmentId::random(), AttachmentId::random()];
        let asked: Vec<_> = (0..2)
            .map(|number| {
                let new = attach(ids[number], volume, ["host1", "host2"][number]);
                tokio::spawn(insist(both[number].clone(), new))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(7 * round as u64)).await;
        tokio::task::spawn_blocking(move || {
            if round % 2 == 0 {
                server.kill();
            } else {
                server.stop();
            }
            if round == 3 {
                // Longer than the leases.
                std::thread::sleep(Duration::from_secs(8));
            }
            server.start();
        })
        .await
        .unwrap();
        for asked in asked {
            asked.await.unwrap();
        }
        until_up(&rig.service).await;
        until_up(&other).await;
        rig.until_attached(ids[0]).await;
        rig.until_attached(ids[1]).await;
        settled(&rig, both[round % 2], volume, &ids).await;
        for id in ids {
            until("the detach", async || {
                match both[(round + 1) % 2].delete_attachment(&admin(), id, false, LONG).await {
                    Ok(_) | Err(Refusal::NotFound { .. }) => Ok(()),
                    Err(refusal) => Err(refusal.to_string()),
                }
            })
            .await;
        }
        settled(&rig, &rig.service, volume, &[]).await;
    }
}

/// A controller that is not started sends no notes: each of its writes is as if its note were lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_sent_although_its_note_was_lost() {
    let rig = Rig::new(1).await;
    let mute = rig.another();
    let (volume, other) = (rig.volume(false).await, rig.volume(false).await);
    let made = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let mode_of = |id: VolumeId| {
        let state = rig.storage.state();
        state.exports[&id.to_string()].spec.as_ref().map(|spec| spec.grants[0].mode())
    };
    assert_eq!(mode_of(volume), Some(v1::Mode::ReadWrite));
    let pending = mute.set_mode(&admin(), made, Mode::ReadOnly, SHORT).await;
    assert!(pending.is_err(), "nobody was told: {pending:?}");
    mute.set_isolation(&admin(), other, IsolationChange::Isolate { force: false }).await.unwrap();
    until("the mode at the storage agent", async || match mode_of(volume) {
        Some(v1::Mode::ReadOnly) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    until("the mode at the host", async || {
        let state = rig.hosts[0].state();
        let spec = state.connections[&volume.to_string()].spec.clone().unwrap();
        if spec.attachments[0].mode() == v1::Mode::ReadOnly { Ok(()) } else { Err(format!("{spec:?}")) }
    })
    .await;
    until("the cut at the storage agent", async || {
        let state = rig.storage.state();
        let spec = state.volumes[&other.to_string()].spec.clone().unwrap();
        if spec.cut_us != 0 { Ok(()) } else { Err(format!("{spec:?}")) }
    })
    .await;
}

/// The controller that announced the detach is gone, and so is its timer.
#[tokio::test(flavor = "multi_thread")]
async fn an_announced_detach_ends_after_a_restart() {
    let mut rig = Rig::quiet_with(0, |options| options.hold = Duration::from_secs(1));
    rig.up().await;
    let volume = rig.volume(false).await;
    let act = async |rig: &Rig, action| rig.service.attach_action(&admin(), volume, action, LONG).await;
    let attach = AttachAction::Attach {
        instance: Some(uuid::Uuid::from_u128(7)),
        host: None,
        mountpoint: "/dev/vdb".to_owned(),
        mode: None,
    };
    act(&rig, attach).await.unwrap();
    act(&rig, AttachAction::BeginDetaching).await.unwrap();
    set_clock(-7_200);
    rig.restart().await;
    rig.until_volume(volume, VolumeStatus::InUse).await;
}

/// Gives the storage agent a volume that this database does not know, with the grants of another.
async fn unknown_copy(rig: &Rig, of: VolumeId) -> VolumeId {
    let copy = VolumeId::random();
    {
        let mut state = rig.storage.state();
        let (volume, export) =
            (state.volumes[&of.to_string()].clone(), state.exports[&of.to_string()].clone());
        state.volumes.insert(copy.to_string(), volume);
        state.exports.insert(copy.to_string(), export);
    }
    // The agent lists its volumes to a controller that connects.
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    rig.storage.set_down(false);
    rig.until_host("storage", |host| host.up).await;
    copy
}

/// One of the two controllers does not drive the storage agent, and its database does not say that
/// the agent serves the volume.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_asked_of_any_controller_reaches_a_volume_that_no_row_knows() {
    let rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    for host in ["host1", "host2"] {
        rig.attach(volume, host, Mode::ReadWrite).await;
    }
    let copy = unknown_copy(&rig, volume).await;
    let other = rig.another();
    other.start();
    until_shares(&rig, &[1, 2]).await;
    for (service, host, left) in [(&rig.service, "host1", 1), (&other, "host2", 0)] {
        until_up(service).await;
        let fence = service.fence_host(&admin(), host, NewFence::default(), LONG).await.unwrap();
        assert!(fence.is_proven() && fence.exports.iter().any(|export| export.volume == copy), "{fence:?}");
        assert_eq!(rig.storage.granted(copy).len(), left, "{host}");
    }
}

/// The storage agent answers no look, and only one of the controllers has its reports.
#[tokio::test(flavor = "multi_thread")]
async fn no_controller_denies_a_session_at_an_agent_that_it_could_not_ask() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let other = rig.another();
    other.start();
    until_shares(&rig, &[1, 1]).await;
    until_up(&rig.service).await;
    until_up(&other).await;
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    rig.storage.state().knobs.gate_of_looks = Some(std::sync::Arc::clone(&gate));
    let session = async |service: &Service| {
        let all = service.live_all(&admin()).await.unwrap();
        all.into_iter().find(|live| live.attachment.id == id).unwrap().session
    };
    let mut both = [session(&rig.service).await, session(&other).await];
    both.sort_unstable();
    assert_eq!(both, [None, Some(true)]);
    gate.close();
    // The control: an answer shows the session to both.
    for service in [&rig.service, &other] {
        assert_eq!(service.live(&admin(), id, None, LONG).await.unwrap().session, Some(true));
    }
}
