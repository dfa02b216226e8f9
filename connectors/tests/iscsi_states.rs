//! Every state of the login against every kind of answer, in one table, so that a review sees each
//! changed cell.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fmt::Write as _;

use crate::iscsi_common::*;
use mooring_connectors::iscsi::{Credentials, Login, LoginError, LoginFailure, LoginStep};

const STATES: [&str; 7] = [
    "method",
    "algorithm",
    "proof one-way",
    "proof mutual",
    "parameters without chap",
    "parameters one-way",
    "parameters mutual",
];

/// A login in this state, and the PDU that it sent last.
fn at(state: &str) -> (Login, Sent) {
    let (chap, steps): (Option<Credentials>, usize) = match state {
        "method" => (Some(mutual()), 0),
        "algorithm" => (Some(mutual()), 1),
        "proof one-way" => (Some(one_way()), 2),
        "proof mutual" => (Some(mutual()), 2),
        "parameters without chap" => (None, 0),
        "parameters one-way" => (Some(one_way()), 3),
        "parameters mutual" => (Some(mutual()), 3),
        other => panic!("{other}"),
    };
    let (mut login, mut step) = start(chap);
    let mut sent = Sent::of(&step);
    for _ in 0..steps {
        step = right_answer(&sent, 7).give(&mut login).unwrap();
        if let LoginStep::Send { .. } = &step {
            sent = Sent::of(&step);
        }
    }
    (login, sent)
}

/// Answers of each kind. `stage` is the login's present stage, `sent` the PDU that it sent last.
fn answers(stage: u8, sent: &Sent) -> Vec<(&'static str, Answer)> {
    let next = if stage == 0 { 1 } else { 3 };
    let with = |pairs: &[(&str, &str)]| Answer::new(stage, text(pairs));
    let right = right_answer(sent, 7);
    let mut all = vec![
        ("the right one", right.clone()),
        ("the right one, T=0", right.clone().byte(1, stage << 2)),
        ("the right one, T=1", right.clone().transit(next)),
        ("nothing", with(&[])),
        ("nothing, T=1", with(&[]).transit(next)),
        ("nothing, C=1", with(&[]).continues()),
        ("T=1 and C=1", with(&[]).transit(next).continues()),
        ("T=1, next stage 0", with(&[]).byte(1, 0x80 | stage << 2)),
        ("T=1, next stage 1", with(&[]).byte(1, 0x81 | stage << 2)),
        ("T=1, next stage 2", with(&[]).byte(1, 0x82 | stage << 2)),
        ("T=1, next stage 3", with(&[]).transit(3).byte(1, 0x83 | stage << 2)),
        ("stage 0", Answer::new(0, right.data.clone())),
        ("stage 1", Answer::new(1, right.data.clone())),
        ("stage 2", Answer::new(2, right.data.clone())),
        ("stage 3", Answer::new(3, right.data.clone())),
        ("version 1", right.clone().byte(3, 1)),
        ("another session id", right.clone().byte(13, 0)),
        ("TSIH 0", right.clone().byte(14, 0).byte(15, 0)),
        ("a text response", right.clone().byte(0, 0x24)),
        ("a reject", right.clone().byte(0, 0x3f)),
        ("portal group 2", with(&[("TargetPortalGroupTag", "2")])),
        ("an unknown key", with(&[("X-a", "1")])),
        ("an unknown key, T=1", with(&[("X-a", "1")]).transit(next)),
        ("a key of ours", with(&[("InitiatorName", "iqn.2026-01.lab:x")])),
        ("no text", Answer::new(stage, b"nonsense\0".to_vec())),
        ("AuthMethod=CHAP", with(&[("AuthMethod", "CHAP")])),
        ("AuthMethod=None", with(&[("AuthMethod", "None")])),
        ("AuthMethod=None, T=1", with(&[("AuthMethod", "None")]).transit(next)),
        ("AuthMethod=Reject", with(&[("AuthMethod", "Reject")])),
        ("AuthMethod=CHAP,None", with(&[("AuthMethod", "CHAP,None")])),
        ("CHAP_A=5", challenge(5).byte(1, stage << 2)),
        ("CHAP_A=8", with(&[("CHAP_A", "8"), ("CHAP_I", "1"), ("CHAP_C", "0x01")])),
        ("CHAP_A=Reject", with(&[("CHAP_A", "Reject")])),
        ("no CHAP_A", with(&[("CHAP_I", "1"), ("CHAP_C", "0x01")])),
        ("no CHAP_I", with(&[("CHAP_A", "7"), ("CHAP_C", "0x01")])),
        ("no CHAP_C", with(&[("CHAP_A", "7"), ("CHAP_I", "1")])),
        ("CHAP_I=256", with(&[("CHAP_A", "7"), ("CHAP_I", "256"), ("CHAP_C", "0x01")])),
        ("CHAP_C odd", with(&[("CHAP_A", "7"), ("CHAP_I", "1"), ("CHAP_C", "0x012")])),
        ("a challenge, T=1", challenge(7).byte(1, 0x80 | stage << 2 | next)),
        ("CHAP_N alone, T=1", with(&[("CHAP_N", TARGET_USER)]).transit(next)),
        ("CHAP_R wrong, T=1", with(&[("CHAP_N", TARGET_USER), ("CHAP_R", "0x00")]).transit(next)),
        ("HeaderDigest=CRC32", with(&[("HeaderDigest", "CRC32")])),
        ("ImmediateData=Reject", with(&[("ImmediateData", "Reject")])),
        ("parameters, T=1", with(PARAMETERS).transit(next)),
        ("FirstBurst > MaxBurst", {
            with(&[("MaxBurstLength", "512"), ("FirstBurstLength", "1024")]).transit(next)
        }),
    ];
    for (name, class, detail) in [
        ("status 0101, no address", 1, 1),
        ("status 0201", 2, 1),
        ("status 0202", 2, 2),
        ("status 0301", 3, 1),
    ] {
        all.push((name, Answer::status(class, detail)));
    }
    let mut moved = Answer::status(1, 1);
    moved.data = text(&[("TargetAddress", "10.20.0.10")]);
    all.push(("status 0101", moved));
    all
}

fn outcome(result: &Result<LoginStep, LoginError>) -> String {
    match result {
        Ok(LoginStep::Done(done)) => format!("done, authentication {:?}", done.authentication),
        Ok(LoginStep::Redirect { address, temporary }) => {
            format!("redirect to {address}, temporary {temporary}")
        }
        Ok(step) => {
            let sent = Sent::of(step);
            let (stage, next) = sent.stages();
            let next = next.map_or_else(String::new, |next| format!("→{next}"));
            let keys = match sent.keys() {
                keys if keys.len() > 4 => "all parameters".to_owned(),
                keys => format!("[{}]", keys.join(" ")),
            };
            format!("send {stage}{next} {keys}")
        }
        Err(error) => format!("{:?}: {error}", error.kind()),
    }
}

#[test]
fn every_state_against_every_answer() {
    let mut table = String::new();
    for state in STATES {
        let (login, sent) = at(state);
        writeln!(table, "## {state} (waits for {})", login.waits_for()).unwrap();
        let stage = u8::from(state.starts_with("parameters"));
        for (name, answer) in answers(stage, &sent) {
            let (mut login, _) = at(state);
            let result = answer.give(&mut login);
            writeln!(table, "{name} | {}", outcome(&result)).unwrap();
            // A login that has ended stays ended.
            if !matches!(result, Ok(LoginStep::Send { .. })) {
                let after = right_answer(&sent, 7).give(&mut login);
                assert_eq!(after, Err(LoginError::Ended), "{state}, {name}");
                assert_eq!(LoginError::Ended.kind(), LoginFailure::Protocol);
            }
        }
        table.push('\n');
    }
    insta::assert_snapshot!(table);
}
