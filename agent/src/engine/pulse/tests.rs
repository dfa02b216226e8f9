//! What the pulse makes of what it sees, and how much it looks at in a turn.

use std::collections::BTreeSet;
use std::time::Duration;

use mooring_host::fake::FakeMachine;
use mooring_model::{
    Digest, ExportIdentity, ExportSpec, FcExportSpec, Generation, Grant, LUN_DEFAULT, Mode, Stamp, Tuning,
};

use super::*;
use crate::engine::cell::{Wish, WishKind};
use crate::engine::testing;

const HOST: &str = "iqn.2026-01.lab:host1";

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
    // The kernel gives a number once: a login anew is another session, whatever its ISID.
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
    // The mapped LUN was made anew, and counts from 0.
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

/// An engine that was not started, with so many volumes, each granted to so many hosts.
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
        let wish = Wish { stamp, kind: WishKind::Spec(spec), opaque: Vec::new() };
        engine.cell(volume).state().export = Some(wish);
    }
    engine
}

/// What a second takes does not depend on the number of volumes, and everybody has his turn.
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
