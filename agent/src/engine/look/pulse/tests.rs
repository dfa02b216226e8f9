//! Tests of what the pulse concludes from its looks, and of how much it looks at in a turn.

use std::collections::BTreeSet;
use std::time::Duration;

use mooring_host::CallerChanges;
use mooring_host::fake::FakeMachine;
use mooring_model::{
    Digest, ExportIdentity, ExportSpec, FcExportSpec, Generation, Grant, LUN_DEFAULT, Mode, Stamp, Tuning,
};

use super::*;
use crate::engine::cell::{KeptSpec, SpecKind};
use crate::engine::counts::LOGGED_IN;
use crate::engine::testing::{self, HOST, Node};

fn at(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(second)
}

fn session(id: u64, state: &str) -> SessionReport {
    SessionReport {
        initiator: HOST.parse().unwrap(),
        isid: "00023d000001".to_owned(),
        id,
        addresses: vec!["10.0.0.7".to_owned()],
        state: state.to_owned(),
        in_flight: 0,
        since: None,
    }
}

fn seen(second: u64, before: Option<&Lives>, sessions: Vec<SessionReport>, commands: u64) -> Lives {
    let live = Live { sessions, counters: Counters { commands, ..Counters::default() } };
    Lives::new(at(second), before, BTreeMap::from([(HOST.to_owned(), live)]), BTreeMap::new())
}

fn since(lives: &Lives) -> Vec<Option<SystemTime>> {
    lives.sessions(HOST).iter().map(|session| session.since).collect()
}

#[test]
fn a_session_is_there_since_it_was_seen_first() {
    let first = seen(10, None, vec![session(1, "LOGGED_IN")], 0);
    assert_eq!(since(&first), [Some(at(10))]);
    let busy = SessionReport { in_flight: 7, ..session(1, "LOGGED_IN") };
    let same = seen(11, Some(&first), vec![busy], 5);
    assert_eq!((since(&same), same.differs(&first)), (vec![Some(at(10))], false));
    // The kernel gives a number once: a new login is another session, whatever its ISID.
    let anew = seen(12, Some(&same), vec![session(2, "LOGGED_IN")], 5);
    assert_eq!((since(&anew), anew.differs(&same)), (vec![Some(at(12))], true));
    let failed = seen(13, Some(&anew), vec![session(2, "FAILED")], 5);
    assert_eq!((since(&failed), failed.differs(&anew)), (vec![Some(at(12))], true));
    let gone = seen(14, Some(&failed), Vec::new(), 5);
    assert!(gone.differs(&failed) && !gone.differs(&gone.clone()));
}

#[test]
fn activity_is_what_was_seen_to_move() {
    let active = |lives: &Lives| lives.iscsi[HOST].counters.active;
    let first = seen(10, None, Vec::new(), 100);
    assert_eq!(active(&first), None, "before somebody looked");
    let idle = seen(11, Some(&first), Vec::new(), 100);
    assert_eq!(active(&idle), None);
    let busy = seen(12, Some(&idle), Vec::new(), 101);
    assert_eq!(active(&busy), Some(at(12)));
    assert_eq!(active(&seen(13, Some(&busy), Vec::new(), 101)), Some(at(12)));
    // The kernel made the mapped LUN anew, and counts from 0.
    assert_eq!(active(&seen(14, Some(&busy), Vec::new(), 3)), Some(at(14)));
}

#[test]
fn what_was_taken_away_is_forgotten() {
    let mut lives = seen(10, None, vec![session(1, "LOGGED_IN")], 7);
    let other: mooring_model::Iqn = "iqn.2026-01.lab:host2".parse().unwrap();
    lives.forget(&other.into());
    assert_eq!(lives.sessions(HOST).len(), 1);
    let ours: mooring_model::Iqn = HOST.parse().unwrap();
    lives.forget(&ours.into());
    assert!(lives.sessions(HOST).is_empty() && lives.iscsi.is_empty());
}

#[tokio::test]
async fn a_look_at_sessions_that_ends_late_brings_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), 1, 1);
    let cell = engine.cell(VolumeId::from_u128(1));
    let begin = || cell.state().knowledge.begin_look();
    let learn = |began, lives: Lives| cell.state().knowledge.learn_lives(Seen::new(began, lives));
    let sessions = || cell.state().knowledge.lives().map(|lives| lives.sessions(HOST).len());
    let logged_in = || seen(10, None, vec![session(1, LOGGED_IN)], 7);
    // A look beside it began later, and ended first.
    let (earlier, later) = (begin(), begin());
    assert!(learn(later, seen(11, None, Vec::new(), 7)));
    assert!(!learn(earlier, logged_in()));
    assert_eq!(sessions(), Some(0));
    assert!(learn(begin(), logged_in()), "the control: nothing has happened since it began");
    assert_eq!(sessions(), Some(1));
    // The nexus ends after the look has read it.
    let began = begin();
    let ours: mooring_model::Iqn = HOST.parse().unwrap();
    cell.state().knowledge.nexus_ended(&ours.into());
    assert!(!learn(began, logged_in()));
    assert_eq!(sessions(), Some(0));
}

/// Makes an engine that was not started, with so many volumes, each granted to so many hosts.
fn engine(dir: &std::path::Path, volumes: u128, hosts: usize) -> Engine {
    let engine = testing::engine(dir, &FakeMachine::new());
    let grant = |host: usize| Grant {
        initiator: format!("iqn.2026-01.lab:host{host}").parse().unwrap(),
        lun: LUN_DEFAULT,
        mode: Mode::ReadWrite,
        chap: None,
        attachments: Vec::new(),
        barrier: None,
    };
    for volume in (1..=volumes).map(VolumeId::from_u128) {
        let spec = ExportSpec {
            volume,
            identity: ExportIdentity::Derived,
            portals: Vec::new(),
            grants: (0..hosts).map(grant).collect(),
            fc: FcExportSpec::default(),
            tuning: Tuning::default(),
        };
        let stamp = Stamp { generation: Generation::ZERO.next(), digest: Digest::of_sha256([1; 32]) };
        let kept_spec = KeptSpec { stamp, kind: SpecKind::Spec(spec), opaque: Vec::new() };
        engine.cell(volume).state().set_export(kept_spec);
    }
    engine
}

/// One second's work does not depend on the number of volumes, and every volume has its turn.
#[tokio::test]
async fn a_turn_is_bounded_and_turns_go_round() {
    for (volumes, hosts, turns) in [(1_u128, 2, 1), (10, 2, 1), (100, 2, 4), (1_000, 2, 32), (30, 100, 30)] {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path(), volumes, hosts);
        let mut seen = BTreeSet::new();
        for _ in 0..turns {
            let turn = engine.turn();
            assert!(turn.len() * hosts < GRANTS_PER_SECOND + hosts, "{} of {volumes}", turn.len());
            seen.extend(turn.iter().map(|cell| cell.id));
        }
        assert_eq!(seen.len() as u128, volumes, "{volumes} volumes of {hosts} hosts in {turns} turns");
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(engine(dir.path(), 5, 0).turn().is_empty(), "nobody is granted anything");
}

fn changes(come: &[&str], gone: &[&str]) -> CallerChanges {
    let ips = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect();
    CallerChanges { come: ips(come), gone: ips(gone), standing: 0 }
}

/// Notes a look at all volumes that found no session, but for one session of each `logged_in`
/// volume.
fn look_at_all(engine: &Engine, logged_in: &[VolumeId]) {
    for cell in engine.cells() {
        let sessions: Vec<_> =
            logged_in.iter().filter(|id| **id == cell.id).map(|_| session(1, LOGGED_IN)).collect();
        cell.state().knowledge.set_lives(Some(seen(10, None, sessions, 0)));
    }
}

fn note(engine: &Engine, come: &[&str], gone: &[&str]) {
    lock(&engine.shared.look_memory.pulse).recent.note(Instant::now(), at(9), Ok(changes(come, gone)));
}

fn first_of_turn(engine: &Engine, count: usize) -> Vec<VolumeId> {
    engine.turn().iter().take(count).map(|cell| cell.id).collect()
}

const HERE: &str = "10.0.0.7";

#[tokio::test(start_paused = true)]
async fn whose_connection_has_ended_is_looked_at_first() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), 1_000, 2);
    let (near, far) = (VolumeId::from_u128(3), VolumeId::from_u128(900));
    look_at_all(&engine, &[near, far]);
    note(&engine, &[], &[]);
    assert_eq!(engine.turn().len(), GRANTS_PER_SECOND / 2, "nobody has gone");
    // A connection of another host has ended.
    note(&engine, &[], &["10.0.0.8"]);
    assert!(!first_of_turn(&engine, usize::MAX).contains(&far));
    note(&engine, &[], &[HERE]);
    for _ in 0..3 {
        assert_eq!(first_of_turn(&engine, 2), [near, far], "until the session is gone");
    }
    engine.cell(far).state().knowledge.set_lives(Some(seen(11, None, Vec::new(), 0)));
    assert_eq!(first_of_turn(&engine, 1), [near]);
    assert!(!first_of_turn(&engine, usize::MAX).contains(&far));
    // The host's session stays, so its connection was another one.
    tokio::time::advance(Duration::from_secs(31)).await;
    note(&engine, &[], &[]);
    let turns: Vec<_> = (0..5).flat_map(|_| first_of_turn(&engine, usize::MAX)).collect();
    assert!(!turns.contains(&near), "it is looked at by its turn");
    // A session that is ending is looked at until it has ended, whatever connections have gone.
    let ending = Live { sessions: vec![session(1, "FAILED")], counters: Counters::default() };
    let lives = Lives::new(at(12), None, BTreeMap::from([(HOST.to_owned(), ending)]), BTreeMap::new());
    engine.cell(far).state().knowledge.set_lives(Some(lives));
    note(&engine, &[], &["10.0.0.8"]);
    for _ in 0..3 {
        assert_eq!(first_of_turn(&engine, 1), [far]);
        tokio::time::advance(Duration::from_secs(31)).await;
        note(&engine, &[], &[]);
    }
}

#[tokio::test(start_paused = true)]
async fn where_somebody_is_missing_is_looked_first_when_somebody_comes() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), 1_000, 1);
    let missing = VolumeId::from_u128(700);
    for cell in engine.cells().iter().filter(|cell| cell.id != missing) {
        let here = Live { sessions: vec![session(1, LOGGED_IN)], counters: Counters::default() };
        let all = BTreeMap::from([("iqn.2026-01.lab:host0".to_owned(), here)]);
        cell.state().knowledge.set_lives(Some(Lives::new(at(10), None, all, BTreeMap::new())));
    }
    engine.cell(missing).state().knowledge.set_lives(Some(seen(10, None, Vec::new(), 0)));
    note(&engine, &[], &[]);
    assert!(!first_of_turn(&engine, usize::MAX).contains(&missing));
    note(&engine, &["10.0.0.9"], &[]);
    for _ in 0..3 {
        let turn = first_of_turn(&engine, usize::MAX);
        assert_eq!((turn[0], turn.len()), (missing, 1 + GRANTS_PER_SECOND), "and the others in their turn");
    }
    tokio::time::advance(Duration::from_secs(31)).await;
    assert!(
        !first_of_turn(&engine, usize::MAX).contains(&missing),
        "whoever came is there, or will not log in"
    );
    // No session is known yet: the agent has just started.
    for cell in engine.cells() {
        cell.state().knowledge.set_lives(None);
    }
    lock(&engine.shared.look_memory.pulse).recent = Recent::default();
    note(&engine, &[], &[]);
    assert!(first_of_turn(&engine, usize::MAX).len() >= SOON_PER_SECOND);
}

/// A look at an unused volume is one read while no connection comes or goes. Otherwise, and now and
/// then, it is a whole look.
#[tokio::test(start_paused = true)]
async fn a_quiet_volume_is_one_read() {
    let dir = tempfile::tempdir().unwrap();
    let full = |at| Some(Full { at, commands: 7, quick: 0 });
    let lives = |full, state: &str, in_flight| {
        let session = SessionReport { in_flight, ..session(1, state) };
        Lives { full, ..seen(10, None, vec![session], 0) }
    };
    let engine = engine(dir.path(), 1, 1);
    let quiet = |lives: &Lives| lives.quiet(&lock(&engine.shared.look_memory.pulse).recent).is_some();
    let early = Instant::now();
    assert!(!quiet(&lives(full(early), LOGGED_IN, 0)), "nobody is followed");
    note(&engine, &[], &[]);
    tokio::time::advance(Duration::from_secs(29)).await;
    assert!(!quiet(&lives(full(Instant::now()), LOGGED_IN, 0)), "who came before is not known");
    tokio::time::advance(Duration::from_secs(1)).await;
    let settled = Instant::now();
    assert!(quiet(&lives(full(settled), LOGGED_IN, 0)));
    assert!(!quiet(&lives(full(early), LOGGED_IN, 0)) && !quiet(&lives(None, LOGGED_IN, 0)));
    assert!(!quiet(&lives(full(settled), LOGGED_IN, 1)) && !quiet(&lives(full(settled), "FAILED", 0)));
    let worn = Full { quick: FULL_EVERY, ..full(settled).unwrap() };
    assert!(!quiet(&lives(Some(worn), LOGGED_IN, 0)));
    for (come, gone) in [(&[HERE][..], &[][..]), (&[], &[HERE])] {
        note(&engine, come, gone);
        assert!(!quiet(&lives(full(settled), LOGGED_IN, 0)));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(
            quiet(&lives(full(Instant::now()), LOGGED_IN, 0)) && !quiet(&lives(full(settled), LOGGED_IN, 0))
        );
    }
    lock(&engine.shared.look_memory.pulse).recent.note(
        Instant::now(),
        at(9),
        Err(std::io::ErrorKind::Other.into()),
    );
    assert!(!quiet(&lives(full(Instant::now()), LOGGED_IN, 0)), "they cannot be listed");
}

/// A new connection leads to a login, and the number of commands to a nexus's counters. A quick
/// look reads nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn logins_are_seen_by_their_connections_and_work_by_its_commands() {
    let node = Node::with(Mode::ReadWrite);
    node.resync();
    let (engine, cell) = (&node.engine, &node.cell);
    let known = || {
        let lives = cell.state().knowledge.lives().cloned().unwrap_or_default();
        (lives.sessions(HOST).len(), lives.iscsi.get(HOST).map_or(0, |live| live.counters.commands))
    };
    let quick = || cell.state().knowledge.lives().and_then(|lives| lives.full).map(|full| full.quick);
    let rest = || {
        engine.follow_callers();
        lock(&engine.shared.look_memory.pulse).recent.settle();
    };
    rest();
    for looks in 0..3 {
        engine.feel(cell);
        assert_eq!((known(), quick()), ((0, 0), Some(looks)));
    }
    let looked = cell.state().knowledge.lives().unwrap().at;
    let session = node.log_in();
    // The control: nobody has listed connections, so the time of the look stays.
    node.fake.write(session, 1).unwrap();
    engine.feel(cell);
    assert_eq!((known(), quick()), ((0, 0), Some(3)));
    assert_eq!(cell.state().knowledge.lives().unwrap().at, looked);
    engine.follow_callers();
    assert_eq!(lock(&engine.shared.look_memory.pulse).recent.standing(), Some(1));
    assert_eq!(engine.turn().len(), 1);
    engine.feel(cell);
    assert_eq!((known(), quick()), ((1, 1), Some(0)));
    rest();
    engine.feel(cell);
    assert_eq!((known(), quick()), ((1, 1), Some(1)));
    node.fake.write(session, 1).unwrap();
    engine.feel(cell);
    assert_eq!((known(), quick()), ((1, 2), Some(0)));
    engine.feel(cell);
    assert_eq!(quick(), Some(1));
    node.fake.logout(session);
    engine.feel(cell);
    assert_eq!((known(), quick()), ((1, 2), Some(2)), "the control: nobody has said that somebody went");
    engine.follow_callers();
    engine.feel(cell);
    assert_eq!((known(), lock(&engine.shared.look_memory.pulse).recent.standing()), ((0, 2), Some(0)));
}
