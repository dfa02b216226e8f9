//! Random sequences of requests and faults: after each one the status of a volume is the derived
//! one, each attachment's row is one of the table of decision 78, and an attachment that was
//! acknowledged as detached has no grant. Once all agents are up and nothing is held, every row
//! comes to rest.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeSet;

use crate::support;

use crate::support::{LONG, ON_POSTGRES, Rig, admin, client, native, reserve, until};
use mooring_controller::domain::{
    AttachAction, AttachStatus, AttachmentStatus, Caller, VolumeState, VolumeStatus,
};
use mooring_controller::rules;
use mooring_controller::service::{Refusal, Wait, Way};
use mooring_model::{AttachmentId, Mode, VolumeId};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy)]
enum Event {
    Reserve,
    Client(u32),
    Native(usize, Mode),
    Update(usize, u32),
    Complete(usize),
    Delete(usize, bool),
    StorageDown(bool),
    HostDown(usize, bool),
    Holders(usize, bool),
    Unproven(bool),
    Lingers(bool),
    Restart,
    Promise(bool),
    Announce(bool),
    Open(u32),
    Say(u128),
    Close(u32),
    Widen(usize),
    Part,
}

fn event() -> impl Strategy<Value = Event> {
    let mode = prop_oneof![Just(Mode::ReadOnly), Just(Mode::ReadWrite)];
    prop_oneof![
        2 => Just(Event::Reserve),
        3 => (1_u32..4).prop_map(Event::Client),
        4 => (0_usize..2, mode).prop_map(|(host, mode)| Event::Native(host, mode)),
        2 => (any::<usize>(), 1_u32..4).prop_map(|(n, c)| Event::Update(n, c)),
        3 => any::<usize>().prop_map(Event::Complete),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(n, force)| Event::Delete(n, force)),
        1 => any::<bool>().prop_map(Event::StorageDown),
        1 => (0_usize..2, any::<bool>()).prop_map(|(host, down)| Event::HostDown(host, down)),
        1 => (0_usize..2, any::<bool>()).prop_map(|(host, held)| Event::Holders(host, held)),
        1 => any::<bool>().prop_map(Event::Unproven),
        1 => any::<bool>().prop_map(Event::Lingers),
        1 => Just(Event::Restart),
        2 => any::<bool>().prop_map(Event::Promise),
        2 => any::<bool>().prop_map(Event::Announce),
        2 => (1_u32..4).prop_map(Event::Open),
        2 => (1_u128..3).prop_map(Event::Say),
        1 => (1_u32..4).prop_map(Event::Close),
        1 => any::<usize>().prop_map(Event::Widen),
        1 => Just(Event::Part),
    ]
}

fn check(state: &VolumeState) {
    let volume = &state.volume;
    let mut statuses: Vec<_> = volume.attachments.iter().map(|attachment| attachment.status).collect();
    let live = statuses.iter().filter(|status| {
        !matches!(status, AttachmentStatus::ErrorAttaching | AttachmentStatus::ErrorDetaching)
    });
    let announced = state.holds > 0 && state.reserved == 0 && live.count() == 1;
    // A reservation counts as an attaching attachment.
    statuses.extend((state.reserved > 0).then_some(AttachmentStatus::Attaching));
    let mut expected = rules::derive(None, statuses.iter().copied());
    if announced && expected.0 == VolumeStatus::InUse {
        expected = (VolumeStatus::Detaching, AttachStatus::Attached);
    }
    assert_eq!((volume.status, volume.attach_status), expected, "{statuses:?} {state:?}");
}

/// Legal rows of attachments by the constraint of the database, which is made from the table: each
/// is status, access and `moving`.
fn legal(rig: &Rig) -> BTreeSet<String> {
    let sql = if ON_POSTGRES {
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'attachments'::regclass"
    } else {
        "SELECT sql FROM sqlite_master WHERE name = 'attachments'"
    };
    let text = rig.texts(sql).join("\n");
    let table = text.split('\'').find(|part| part.starts_with(" reserved.0.0 "));
    let table = table.unwrap_or_else(|| panic!("no table: {text}"));
    table.split_whitespace().map(str::to_owned).collect()
}

/// Long enough for an answer when all is well, and short enough for a test to wait.
const BRIEF: Wait = Wait(std::time::Duration::from_millis(60));

struct Run {
    rig: Rig,
    volume: VolumeId,
    ids: Vec<AttachmentId>,
    legal: BTreeSet<String>,
}

impl Run {
    fn check_rows(&self) {
        let sql = "SELECT status || '.' || access || '.' || moving || '|' || access || '|' || \
                   CASE WHEN native IS NULL THEN 'client' ELSE 'native' END || '|' || id FROM attachments";
        for row in self.rig.texts(sql) {
            let [words, access, of, _] = row.split('|').collect::<Vec<_>>()[..] else { panic!("{row}") };
            assert!(self.legal.contains(words), "no legal row: {row}");
            // Only a native host has a path, and its path is wanted as soon as its grant is in
            // force.
            let wanted = match access.parse::<u8>().unwrap() {
                20 => "client",
                access if access % 10 > 0 => "native",
                _ => of,
            };
            assert_eq!(of, wanted, "no legal row: {row}");
        }
    }

    async fn delete(&self, id: AttachmentId, force: bool, wait: Wait) -> Result<(), Refusal> {
        let answer = self.rig.service.delete_attachment(&admin(), id, force, wait).await;
        if let Ok((receipt, _)) = &answer
            && receipt.receipt.as_ref().is_none_or(|receipt| receipt.proof == mooring_model::Proof::Proven)
        {
            let state = self.rig.storage.state();
            let spec = state.exports.get(&self.volume.to_string()).and_then(|export| export.spec.clone());
            for grant in spec.unwrap_or_default().grants {
                assert!(!grant.attachment_ids.contains(&id.to_string()), "{id} is detached and has a grant");
            }
        }
        answer.map(drop)
    }

    /// One of the older calls, as the compute service makes it.
    async fn act(&self, action: AttachAction) {
        let caller = Caller { service: true, ..admin() };
        let _ = self.rig.service.attach_action(&caller, self.volume, action, BRIEF).await;
    }

    async fn step(&mut self, event: Event) {
        let pick = |n: usize| (!self.ids.is_empty()).then(|| self.ids[n % self.ids.len()]);
        let (service, volume) = (self.rig.service.clone(), self.volume);
        // Refusals are answers, too.
        match event {
            Event::Reserve => {
                let made = service.create_attachment(&admin(), reserve(volume), BRIEF).await;
                self.ids.extend(made.map(|made| made.id));
            }
            Event::Client(n) => {
                let id = AttachmentId::random();
                let mut new = client(volume, n);
                new.id = Some(id);
                let _ = service.create_attachment(&admin(), new, BRIEF).await;
                self.ids.push(id);
            }
            Event::Native(host, mode) => {
                let new = native(volume, &format!("host{}", host + 1), mode);
                self.ids.extend(service.create_attachment(&admin(), new, BRIEF).await.map(|made| made.id));
            }
            Event::Update(n, c) => {
                if let Some(id) = pick(n) {
                    let _ = service.update_attachment(&admin(), id, support::connector(c), BRIEF).await;
                }
            }
            Event::Complete(n) => {
                if let Some(id) = pick(n) {
                    let _ = service.complete_attachment(&admin(), id).await;
                }
            }
            Event::Delete(n, force) => {
                if let Some(id) = pick(n) {
                    let _ = self.delete(id, force, BRIEF).await;
                }
            }
            Event::StorageDown(down) => self.rig.storage.set_down(down),
            Event::HostDown(host, down) => self.rig.hosts[host].set_down(down),
            Event::Holders(host, held) => {
                let holder = held.then(|| "dd (pid 1)".to_owned());
                self.rig.hosts[host].state().knobs.holders = holder.into_iter().collect();
            }
            Event::Unproven(yes) if yes => self.rig.storage.state().knobs.unproven = true,
            Event::Unproven(_) => self.rig.storage.prove(),
            Event::Lingers(yes) => self.rig.storage.state().knobs.lingers = yes,
            Event::Restart => {
                drop(service);
                self.rig.restart_on("state", false).await;
            }
            Event::Promise(true) => self.act(AttachAction::Reserve).await,
            Event::Promise(false) => self.act(AttachAction::Unreserve).await,
            Event::Announce(true) => self.act(AttachAction::BeginDetaching).await,
            Event::Announce(false) => self.act(AttachAction::RollDetaching).await,
            Event::Open(c) => {
                self.act(AttachAction::InitializeConnection { connector: support::connector(c) }).await;
            }
            Event::Say(server) => {
                let instance = Some(uuid::Uuid::from_u128(server));
                let mountpoint = "/dev/vdb".to_owned();
                self.act(AttachAction::Attach { instance, host: None, mountpoint, mode: None }).await;
            }
            Event::Close(c) => {
                self.act(AttachAction::TerminateConnection { connector: Some(support::connector(c)) }).await;
            }
            Event::Widen(n) => {
                if let Some(id) = pick(n) {
                    let _ = service.detach(&admin(), id, Way::Widened, BRIEF).await;
                }
            }
            Event::Part => self.act(AttachAction::Detach { attachment: None, force: false }).await,
        }
    }

    /// Waits until every row is at rest: nothing moves but connections that their clients have not
    /// completed.
    async fn rests(&self) {
        let moving = "SELECT status || ' ' || access || ' ' || id FROM attachments \
                      WHERE moving = 1 AND NOT (status = 'attaching' AND access = 20)";
        until("the rest of all attachments", async || match self.rig.texts(moving) {
            rows if rows.is_empty() => Ok(()),
            rows => Err(format!("{rows:?}")),
        })
        .await;
    }

    /// All is well again: everything can be detached, and then nothing is left.
    async fn end(self) {
        self.rig.storage.set_down(false);
        self.rig.storage.state().knobs.lingers = false;
        self.rig.storage.prove();
        for host in &self.rig.hosts {
            host.set_down(false);
            host.state().knobs.holders.clear();
        }
        for name in &self.rig.names {
            self.rig.until_host(name, |host| host.up).await;
        }
        self.rests().await;
        self.check_rows();
        let mut silent = 0;
        loop {
            let volume = self.rig.service.volume(&admin(), self.volume).await.unwrap();
            let Some(first) = volume.attachments.first() else { break };
            match self.delete(first.id, false, LONG).await {
                Ok(()) | Err(Refusal::NotFound { .. }) => {}
                // An earlier refusal that comes late: the disk's holder is gone now.
                Err(Refusal::Conflict(text)) if text.contains("held open") => {}
                // The storage agent is up, and has not reported this export yet.
                Err(Refusal::Conflict(text)) if text.contains("does not say whether a session is live") => {
                    silent += 1;
                    assert!(silent < 500, "{text}");
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                Err(refusal) => panic!("{refusal}: {first:?} {:?}", self.rig.storage.state().calls),
            }
        }
        loop {
            let state = self.rig.service.volume_state(&admin(), self.volume).await.unwrap();
            match (state.reserved, state.holds) {
                (0, 0) => break,
                (0, _) => self.act(AttachAction::RollDetaching).await,
                _ => self.act(AttachAction::Unreserve).await,
            }
        }
        self.rig.until_volume(self.volume, VolumeStatus::Available).await;
        until("the end of all grants", async || {
            let left = self.rig.storage.granted(self.volume);
            let hosts = self.rig.hosts.iter().filter(|host| {
                let state = host.state();
                state.connections.get(&self.volume.to_string()).is_some_and(|kept| kept.spec.is_some())
            });
            let hosts = hosts.count();
            if left.is_empty() && hosts == 0 { Ok(()) } else { Err(format!("{left:?} {hosts} connections")) }
        })
        .await;
    }
}

async fn run(shared: bool, events: Vec<Event>) {
    let rig = Rig::new(2).await;
    let volume = rig.volume(shared).await;
    let legal = legal(&rig);
    let mut run = Run { rig, volume, ids: Vec::new(), legal };
    for event in events {
        run.step(event).await;
        let state = run.rig.service.volume_state(&admin(), volume).await.unwrap();
        check(&state);
        run.check_rows();
        let live =
            state.volume.attachments.iter().filter(|one| one.status != AttachmentStatus::ErrorAttaching);
        let servers: Vec<_> = live.map(|one| one.instance).collect();
        // One server may stand twice: on the host that it leaves, and on the one where it arrives.
        let moves = servers.iter().all(|server| server.is_some() && *server == servers[0]);
        assert!(shared || servers.len() <= 1 || moves, "a plain volume of two owners: {state:?}");
    }
    run.end().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 40, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_the_status_is_the_derivation(
        shared in any::<bool>(),
        events in proptest::collection::vec(event(), 1..30),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(shared, events));
    }
}
