//! The login phase against a scripted target: the PDUs that are sent, the meaning of every answer,
//! and that only a proven login succeeds.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::iscsi_common;

use crate::iscsi_common::*;
use mooring_connectors::iscsi::{
    Authentication, Credentials, Isid, Login, LoginConfig, LoginError, LoginFailure, LoginStep, Negotiated,
    PDUS_MAX, params_before_login,
};
use mooring_host::IscsiParam;
use mooring_model::{Chain, Cure, Secret};

/// Runs a login with a target that makes no mistake.
fn run(chap: Option<Credentials>, algorithm: u32) -> (Vec<Sent>, Negotiated) {
    let (mut login, mut step) = start(chap);
    let mut sent = Vec::new();
    loop {
        match &step {
            LoginStep::Done(done) => return (sent, *done),
            other => sent.push(Sent::of(other)),
        }
        let last = sent.last().unwrap();
        step = right_answer(last, algorithm)
            .stat_sn(100 + u32::try_from(sent.len()).unwrap())
            .give(&mut login)
            .unwrap();
    }
}

/// Runs a login with a faultless target until a PDU has this key. Returns the login and that PDU.
fn at(chap: Option<Credentials>, key: &str) -> (Login, Sent) {
    let (mut login, mut step) = start(chap);
    loop {
        let sent = Sent::of(&step);
        if sent.keys().iter().any(|name| name == key) {
            return (login, sent);
        }
        step = right_answer(&sent, 7).give(&mut login).unwrap();
    }
}

#[test]
fn without_credentials_one_exchange_is_enough() {
    let (sent, done) = run(None, 7);
    assert_eq!(sent.len(), 1);
    let mut want = [0; 48];
    want[..2].copy_from_slice(&[0x43, 0x87]);
    want[6..8].copy_from_slice(&u16::try_from(sent[0].data.len()).unwrap().to_be_bytes());
    want[8..14].copy_from_slice(&[0x80, 1, 2, 3, 4, 5]);
    assert_eq!(sent[0].header, want);
    let text = String::from_utf8(sent[0].data.clone()).unwrap().replace('\0', "\n");
    assert_eq!(
        text,
        "InitiatorName=iqn.2026-11.dev.mooring:host.a0000000-1111-4222-8333-444444444444\n\
         TargetName=iqn.2026-11.dev.mooring:b0000000-1111-4222-8333-444444444444\nSessionType=Normal\n\
         HeaderDigest=None,CRC32C\nDataDigest=None,CRC32C\nDefaultTime2Wait=2\nDefaultTime2Retain=0\nIFMarker=No\nOFMarker=No\n\
         ErrorRecoveryLevel=0\nInitialR2T=No\nImmediateData=Yes\nMaxBurstLength=16776192\nFirstBurstLength=262144\n\
         MaxOutstandingR2T=1\nMaxConnections=1\nDataPDUInOrder=Yes\nDataSequenceInOrder=Yes\n\
         MaxRecvDataSegmentLength=262144\n"
    );
    assert_eq!((done.tsih, done.exp_stat_sn, done.authentication), (TSIH, 102, Authentication::None));
}

#[test]
fn chap_with_each_algorithm_and_direction() {
    for algorithm in [5, 6, 7] {
        for (chap, want) in [(one_way(), Authentication::OneWay), (mutual(), Authentication::Mutual)] {
            let both_ways = want == Authentication::Mutual;
            let (sent, done) = run(Some(chap), algorithm);
            assert_eq!(done.authentication, want);
            let stages: Vec<_> = sent.iter().map(Sent::stages).collect();
            assert_eq!(stages, [(0, None), (0, None), (0, Some(1)), (1, Some(3))]);
            assert_eq!(sent.iter().map(Sent::exp_stat_sn).collect::<Vec<_>>(), [0, 102, 103, 104]);
            assert_eq!(value(&sent[0].data, "AuthMethod"), "CHAP");
            assert_eq!(pairs(&sent[1].data), [("CHAP_A".to_owned(), "7,6,5".to_owned())]);
            let response = hash(algorithm, 77, SECRET, CHALLENGE);
            let mut want = vec![("CHAP_N", USER.to_owned()), ("CHAP_R", hex(&response))];
            if both_ways {
                // The challenge is as long as the hash, from the login's own random bytes.
                let challenge: Vec<u8> = (2..).take(response.len()).collect();
                want.extend([("CHAP_I", "1".to_owned()), ("CHAP_C", hex(&challenge))]);
            }
            let got = pairs(&sent[2].data);
            assert_eq!(got, want.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_challenge_in_base64_is_the_same() {
    let (mut login, _) = at(Some(one_way()), "CHAP_A");
    let data = text(&[("CHAP_A", "0x7"), ("CHAP_I", "0x4D"), ("CHAP_C", "0bYSBjaGFsbGVuZ2U=")]);
    let sent = Sent::of(&Answer::new(0, data).give(&mut login).unwrap());
    assert_eq!(value(&sent.data, "CHAP_R"), hex(&hash(7, 77, SECRET, b"a challenge")));
}

#[test]
fn each_login_has_its_own_challenge() {
    let challenge = |seed: u8| {
        let (initiator, target) = (initiator(), target());
        let config = LoginConfig {
            initiator: &initiator,
            target: &target,
            tpg: TPG,
            isid: isid(),
            chap: Some(mutual()),
            alias: None,
        };
        let mut calls = 0;
        let (mut login, _) = Login::start(config, 0, &mut |bytes| {
            calls += 1;
            bytes.fill(seed);
        });
        assert_eq!(calls, 1);
        Answer::new(0, text(METHOD)).give(&mut login).unwrap();
        let sent = Sent::of(&iscsi_common::challenge(7).give(&mut login).unwrap());
        (value(&sent.data, "CHAP_I"), value(&sent.data, "CHAP_C"))
    };
    assert_eq!(challenge(3), ("3".to_owned(), hex(&[3; 32])));
    assert_eq!(challenge(4), ("4".to_owned(), hex(&[4; 32])));
}

#[test]
fn every_status_has_its_kind() {
    use LoginFailure::{Credentials, Fatal, Forbidden, NotFound, Protocol, Unavailable};
    for (class, detail, kind, cure) in [
        (0, 1, Protocol, Cure::Operator),
        (1, 0, Protocol, Cure::Operator),
        (1, 3, Protocol, Cure::Operator),
        (2, 0x00, Fatal, Cure::Operator),
        (2, 0x01, Credentials, Cure::FixSpec),
        (2, 0x02, Forbidden, Cure::Operator),
        (2, 0x03, NotFound, Cure::Operator),
        (2, 0x04, NotFound, Cure::Operator),
        (2, 0x05, Fatal, Cure::Operator),
        (2, 0x06, Fatal, Cure::Operator),
        (2, 0x07, Fatal, Cure::Operator),
        (2, 0x08, Fatal, Cure::Operator),
        (2, 0x09, Fatal, Cure::Operator),
        (2, 0x0a, Fatal, Cure::Operator),
        (2, 0x0b, Fatal, Cure::Operator),
        (2, 0xff, Fatal, Cure::Operator),
        (3, 0x00, Unavailable, Cure::Retry),
        (3, 0x01, Unavailable, Cure::Retry),
        (3, 0x02, Unavailable, Cure::Retry),
        (3, 0xff, Unavailable, Cure::Retry),
        (4, 0x00, Protocol, Cure::Operator),
        (255, 255, Protocol, Cure::Operator),
    ] {
        for chap in [None, Some(one_way()), Some(mutual())] {
            let (mut login, _) = start(chap);
            let error = Answer::status(class, detail).give(&mut login).unwrap_err();
            assert_eq!(error, LoginError::Refused { class, detail });
            assert_eq!((error.kind(), error.cure()), (kind, cure), "{class:02x}{detail:02x}");
            assert!(error.to_string().contains(&format!("{class:02x}{detail:02x}")), "{error}");
        }
    }
}

#[test]
fn a_redirect_names_its_address() {
    for (detail, temporary) in [(1, true), (2, false)] {
        let mut answer = Answer::status(1, detail);
        answer.data = text(&[("TargetAddress", "10.20.0.10:3261,1")]);
        let (mut login, _) = start(Some(one_way()));
        match answer.give(&mut login).unwrap() {
            LoginStep::Redirect { address, temporary: is } => {
                assert_eq!((address.to_string().as_str(), is), ("10.20.0.10:3261", temporary));
                assert_eq!(address.portal(), Some("10.20.0.10:3261".parse().unwrap()));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(answer.give(&mut login), Err(LoginError::Ended));
    }
    for data in [text(&[]), text(&[("TargetAddress", "")]), text(&[("TargetAddress", "[x]:1")])] {
        let (mut login, _) = start(None);
        let mut answer = Answer::status(1, 1);
        answer.data = data;
        assert_eq!(answer.give(&mut login).unwrap_err().kind(), LoginFailure::Protocol);
    }
}

#[test]
fn bad_credentials_prove_nothing() {
    let with = |user: &str, secret: &str, mutual: Option<(&str, &str)>| Credentials {
        user: user.to_owned(),
        secret: Secret::new(secret),
        mutual: mutual.map(|(user, secret)| (user.to_owned(), Secret::new(secret))),
        other_mutual: None,
    };
    let long = "x".repeat(256);
    for bad in [
        with("", SECRET, None),
        with(USER, "", None),
        with("a\0CHAP_X=1", SECRET, None),
        with(&long, SECRET, None),
        with(USER, &long, None),
        with(USER, SECRET, Some(("", TARGET_SECRET))),
        with(USER, SECRET, Some((TARGET_USER, ""))),
        with(USER, SECRET, Some((TARGET_USER, SECRET))),
    ] {
        let (mut login, _) = start(Some(bad));
        let error = Answer::new(0, text(METHOD)).give(&mut login).unwrap_err();
        assert_eq!(error.kind(), LoginFailure::Credentials, "{error}");
    }
}

#[test]
fn a_target_must_prove_itself_when_asked_to() {
    let lio_one_way = Vec::new();
    let name_only = text(&[("CHAP_N", TARGET_USER)]);
    let response_only = text(&[("CHAP_R", "0x00")]);
    let (_, sent) = at(Some(mutual()), "CHAP_R");
    let proof_of = |secret: &str| proof(&sent, 7, secret);
    let renamed = {
        let response = value(&proof_of(TARGET_SECRET), "CHAP_R");
        text(&[("CHAP_N", "target-b"), ("CHAP_R", &response)])
    };
    let cut = {
        let response = value(&proof_of(TARGET_SECRET), "CHAP_R");
        text(&[("CHAP_N", TARGET_USER), ("CHAP_R", &response[..response.len() - 2])])
    };
    for (data, want, kind) in [
        (lio_one_way, "did not prove itself", LoginFailure::Downgrade),
        (name_only, "did not prove itself", LoginFailure::Downgrade),
        (response_only, "lacks CHAP_N", LoginFailure::Protocol),
        (renamed, "as \"target-b\"", LoginFailure::Downgrade),
        (cut, "proof is wrong", LoginFailure::Downgrade),
        (proof_of("another-secret-1"), "proof is wrong", LoginFailure::Downgrade),
        (proof_of(SECRET), "reflects", LoginFailure::Downgrade),
    ] {
        let (mut login, _) = at(Some(mutual()), "CHAP_R");
        let error = Answer::new(0, data).transit(1).give(&mut login).unwrap_err();
        assert!(error.to_string().contains(want), "{error} for {want}");
        assert_eq!(error.kind(), kind, "{error}");
    }
    let (mut login, _) = at(Some(mutual()), "CHAP_R");
    assert!(Answer::new(0, proof_of(TARGET_SECRET)).transit(1).give(&mut login).is_ok(), "the control");
}

#[test]
fn our_own_challenge_is_not_answered() {
    // With the "random" bytes of `start`, our challenge is 02 03 …; one-way CHAP has no challenge
    // of ours to reflect.
    for (algorithm, bytes) in [(5, 16), (6, 20), (7, 32)] {
        let ours: Vec<u8> = (2..).take(bytes).collect();
        let data = text(&[("CHAP_A", &algorithm.to_string()), ("CHAP_I", "1"), ("CHAP_C", &hex(&ours))]);
        let (mut login, _) = at(Some(mutual()), "CHAP_A");
        let error = Answer::new(0, data.clone()).give(&mut login).unwrap_err();
        assert!(error.to_string().contains("reflects"), "{error}");
        let (mut login, _) = at(Some(one_way()), "CHAP_A");
        assert!(Answer::new(0, data).give(&mut login).is_ok());
    }
}

#[test]
fn a_target_may_prove_itself_before_it_goes_on() {
    let (mut login, sent) = at(Some(mutual()), "CHAP_R");
    let asks = Sent::of(&Answer::new(0, proof(&sent, 7, TARGET_SECRET)).give(&mut login).unwrap());
    assert_eq!((asks.stages(), asks.data.len()), ((0, Some(1)), 0));
    let offers = Sent::of(&Answer::new(0, Vec::new()).transit(1).give(&mut login).unwrap());
    assert_eq!(offers.stages(), (1, Some(3)));
}

#[test]
fn keys_that_the_target_proposes_are_answered() {
    let (mut login, _) = start(Some(one_way()));
    let data = text(&[("AuthMethod", "CHAP"), ("X-com.example.key", "1")]);
    let sent = Sent::of(&Answer::new(0, data).give(&mut login).unwrap());
    assert_eq!(value(&sent.data, "X-com.example.key"), "NotUnderstood");
    assert_eq!(value(&sent.data, "CHAP_A"), "7,6,5");

    let (mut login, _) = start(None);
    let data = text(&[("TaskReporting", "FastAbort"), ("iSCSIProtocolLevel", "2")]);
    let sent = Sent::of(&Answer::new(1, data).give(&mut login).unwrap());
    assert_eq!(sent.stages(), (1, Some(3)));
    assert_eq!(sent.keys(), ["TaskReporting", "iSCSIProtocolLevel"]);
    assert!(pairs(&sent.data).iter().all(|(_, value)| value == "NotUnderstood"));
    assert!(matches!(Answer::new(1, text(PARAMETERS)).transit(3).give(&mut login), Ok(LoginStep::Done(_))));
}

#[test]
fn a_long_text_of_ours_goes_in_pieces() {
    let keys: Vec<String> = (0..700).map(|n| format!("X-{n}")).collect();
    let pairs_: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "1")).collect();
    let (mut login, _) = start(None);
    let mut step = Answer::new(1, text(&pairs_)).give(&mut login).unwrap();
    let mut joined = Vec::new();
    let mut pieces = 0;
    loop {
        let sent = Sent::of(&step);
        pieces += 1;
        joined.extend_from_slice(&sent.data);
        assert!(sent.data.len() <= 8192);
        if !sent.continues() {
            assert!(sent.transit());
            break;
        }
        assert!(!sent.transit(), "T and C exclude each other");
        let mut early = login_copy(&pairs_);
        let error = Answer::new(1, text(&[("A", "1")])).give(&mut early).unwrap_err();
        assert_eq!(error.kind(), LoginFailure::Protocol, "an answer in the middle of our text");
        step = Answer::new(1, Vec::new()).give(&mut login).unwrap();
    }
    assert_eq!(pieces, 2);
    assert_eq!(
        pairs(&joined),
        keys.iter().map(|key| (key.clone(), "NotUnderstood".to_owned())).collect::<Vec<_>>()
    );
    assert!(matches!(Answer::new(1, Vec::new()).transit(3).give(&mut login), Ok(LoginStep::Done(_))));
}

/// A login in the middle of a long text of ours.
fn login_copy(pairs: &[(&str, &str)]) -> Login {
    let (mut login, _) = start(None);
    Answer::new(1, text(pairs)).give(&mut login).unwrap();
    login
}

#[test]
fn a_split_answer_may_end_the_stage_that_its_request_asked_for() {
    let all = text(PARAMETERS);
    let (one, two) = all.split_at(100);
    let (mut login, _) = start(None);
    let blank = Sent::of(&Answer::new(1, one.to_vec()).continues().give(&mut login).unwrap());
    assert_eq!((blank.stages(), blank.data.len()), ((1, None), 0));
    let done = Answer::new(1, two.to_vec()).transit(3).give(&mut login).unwrap();
    let (mut login, _) = start(None);
    assert_eq!(done, Answer::new(1, all.clone()).transit(3).give(&mut login).unwrap());

    let (mut login, _) = start(Some(one_way()));
    Answer::new(0, text(METHOD)).continues().give(&mut login).unwrap();
    let error = Answer::new(0, Vec::new()).transit(1).give(&mut login).unwrap_err();
    assert_eq!(error.kind(), LoginFailure::Protocol, "this request did not ask");
}

#[test]
fn a_target_that_never_ends_is_left() {
    for (chap, answer) in [
        (None, Answer::new(1, Vec::new())),
        (None, Answer::new(1, text(&[("X-a", "1")]))),
        (None, Answer::new(1, Vec::new()).continues()),
        (Some(one_way()), Answer::new(0, Vec::new()).continues()),
    ] {
        let (mut login, _) = start(chap);
        let error = (1..=PDUS_MAX).find_map(|n| answer.give(&mut login).err().map(|error| (n, error)));
        assert_eq!(error, Some((PDUS_MAX, LoginError::Endless)));
    }
    let (mut login, _) = start(None);
    let full = Answer::new(1, vec![b'a'; 8192]).continues();
    let error = (0..PDUS_MAX).find_map(|_| full.give(&mut login).err()).unwrap();
    assert!(matches!(error, LoginError::Text(_)), "{error}");
}

#[test]
fn lengths_are_checked() {
    let (header, data) = Answer::new(1, text(PARAMETERS)).transit(3).bytes();
    for (length, ok) in
        [(0, true), (data.len(), true), (data.len() + 1, false), (8193, false), (0x00ff_ffff, false)]
    {
        let (mut login, _) = start(None);
        let mut header = header;
        header[5..8].copy_from_slice(&u32::try_from(length).unwrap().to_be_bytes()[1..]);
        assert_eq!(login.receive(&header, &data).is_ok(), ok, "{length}");
    }
    let (mut login, _) = start(None);
    let (header_of_too_much, too_much) = Answer::new(1, vec![0; 8193]).bytes();
    assert_eq!(login.receive(&header_of_too_much, &too_much).unwrap_err().kind(), LoginFailure::Protocol);
    let (mut login, _) = start(None);
    assert!(Answer::new(1, vec![0; 8192]).give(&mut login).is_ok(), "as much as may come");
    let (mut login, _) = start(None);
    let mut padded = data.clone();
    padded.extend([0, 0, 0]);
    assert!(matches!(login.receive(&header, &padded), Ok(LoginStep::Done(_))), "padding is not text");
    let (mut login, _) = start(None);
    let mut with_ahs = header;
    with_ahs[4] = 1;
    assert_eq!(login.receive(&with_ahs, &data).unwrap_err().kind(), LoginFailure::Protocol);
}

#[test]
fn an_alias_is_sent_when_it_can_be() {
    for (alias, sent) in [(Some("host1"), true), (None, false), (Some(""), false), (Some("a\0b"), false)] {
        let (initiator, target) = (initiator(), target());
        let config = LoginConfig {
            initiator: &initiator,
            target: &target,
            tpg: TPG,
            isid: isid(),
            chap: None,
            alias: alias.map(str::to_owned),
        };
        let (_, step) = Login::start(config, 9, &mut |_| panic!("nothing random is needed"));
        let first = Sent::of(&step);
        assert_eq!(first.keys().iter().any(|key| key == "InitiatorAlias"), sent, "{alias:?}");
        assert_eq!(first.exp_stat_sn(), 9);
    }
}

#[test]
fn the_kernel_gets_the_agreement() {
    let (_, done) = run(Some(mutual()), 7);
    let params: Vec<_> = done.params();
    let want = [
        (IscsiParam::MaxRecvDlength, "262144"),
        (IscsiParam::MaxXmitDlength, "262144"),
        (IscsiParam::HdrdgstEn, "0"),
        (IscsiParam::DatadgstEn, "0"),
        (IscsiParam::InitialR2tEn, "1"),
        (IscsiParam::MaxR2t, "1"),
        (IscsiParam::ImmDataEn, "1"),
        (IscsiParam::FirstBurst, "65536"),
        (IscsiParam::MaxBurst, "262144"),
        (IscsiParam::PduInorderEn, "1"),
        (IscsiParam::DataseqInorderEn, "1"),
        (IscsiParam::Erl, "0"),
        (IscsiParam::ExpStatsn, "105"),
        (IscsiParam::Tpgt, "1"),
    ];
    assert_eq!(params, want.map(|(param, value)| (param, value.to_owned())));

    let portal = "10.10.0.10:3261".parse().unwrap();
    let before = params_before_login(&target(), portal, &initiator(), "mooring-x", 120);
    let text: Vec<String> = before.iter().map(|(param, value)| format!("{param:?}={value}")).collect();
    assert_eq!(
        text.join(" "),
        "IfaceName=mooring-x TargetName=iqn.2026-11.dev.mooring:b0000000-1111-4222-8333-444444444444 \
         InitiatorName=iqn.2026-11.dev.mooring:host.a0000000-1111-4222-8333-444444444444 \
         PersistentAddress=10.10.0.10 PersistentPort=3261 SessRecoveryTmo=120 FastAbort=1 AbortTmo=15 LuResetTmo=30 \
         TgtResetTmo=30 PingTmo=5 RecvTmo=5"
    );
}

#[test]
fn nothing_shows_a_secret() {
    let mut shown = vec![format!("{:?} {:#?}", mutual(), one_way())];
    let (mut login, mut step) = start(Some(mutual()));
    for _ in 0..4 {
        shown.push(format!("{login:?} {step:?} {login:#?} {step:#?}"));
        step = right_answer(&Sent::of(&step), 7).give(&mut login).unwrap();
    }
    assert!(matches!(step, LoginStep::Done(_)));
    assert!(format!("{login:?}").contains("chap: None"), "the secrets are gone with the end of the login");
    for data in [Vec::new(), text(&[("CHAP_N", TARGET_USER), ("CHAP_R", &hex(&[0; 32]))])] {
        let (mut login, _) = at(Some(mutual()), "CHAP_R");
        let error = Answer::new(0, data).transit(1).give(&mut login).unwrap_err();
        shown.push(format!("{error:?} {} {login:?}", Chain(&error)));
    }
    let same = Credentials { mutual: Some(("t".to_owned(), Secret::new(SECRET))), ..one_way() };
    let (mut login, _) = start(Some(same));
    let error = Answer::new(0, text(METHOD)).give(&mut login).unwrap_err();
    shown.push(format!("{error:?} {}", Chain(&error)));
    let response = hex(&hash(7, 77, SECRET, CHALLENGE));
    for text in shown {
        for secret in [SECRET, TARGET_SECRET, &response[2..]] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn sessions_over_two_portals_have_two_ids() {
    let id = |portal: &str| Isid::of(&initiator(), &target(), portal.parse().unwrap());
    assert_eq!(id("10.10.0.10"), id("10.10.0.10:3260"));
    assert_ne!(id("10.10.0.10"), id("10.20.0.10"));
}
