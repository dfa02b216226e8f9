//! Arbitrary input from a peer: the login never panics, never succeeds without its proof, and reads
//! a split text like a whole one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::iscsi_common::*;
use mooring_connectors::iscsi::{
    Assembly, Authentication, Credentials, LoginResponse, LoginStep, TEXT_BYTES_MAX, TargetAddress, Text,
    decode_binary, encode_binary, opcode, parse_async, parse_logout_response,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Cases per law: proptest's default (256), or `PROPTEST_CASES`.
fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn header() -> impl Strategy<Value = Header> {
    let bytes = prop::collection::vec(any::<u8>(), 48).prop_map(|bytes| Header::try_from(bytes).unwrap());
    (bytes, prop::sample::select(vec![0x20, 0x23, 0x24, 0x26, 0x32, 0x3f, 0xff]), any::<bool>(), 0..64_u8)
        .prop_map(|(mut header, opcode, plain, length)| {
            header[0] = opcode;
            if plain {
                header[4..8].copy_from_slice(&[0, 0, 0, length]);
            }
            header
        })
}

fn some_chap() -> impl Strategy<Value = Option<Credentials>> {
    prop_oneof![Just(None), Just(Some(one_way())), Just(Some(mutual()))]
}

/// Keys and values with a meaning, mixed with others.
fn some_text() -> impl Strategy<Value = Vec<u8>> {
    let key = prop::sample::select(vec![
        "AuthMethod",
        "CHAP_A",
        "CHAP_I",
        "CHAP_C",
        "CHAP_N",
        "CHAP_R",
        "HeaderDigest",
        "MaxBurstLength",
        "InitialR2T",
        "TargetPortalGroupTag",
        "TargetAddress",
        "X-a",
        "",
    ]);
    let value = prop_oneof![
        prop::sample::select(vec![
            "CHAP",
            "None",
            "CRC32C",
            "Yes",
            "No",
            "1",
            "5",
            "7",
            "512",
            "0x01",
            "0bAQ==",
            "0x",
            "target-a",
            "user-a",
            "Reject",
            "NotUnderstood",
            "Irrelevant",
            "10.0.0.1:3260",
            "[::1]:3260,1",
            "",
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,12}",
    ];
    let pairs = prop::collection::vec((key, value), 0..5).prop_map(|pairs| {
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (*key, value.as_str())).collect();
        text(&pairs)
    });
    prop_oneof![3 => pairs, 1 => prop::collection::vec(any::<u8>(), 0..80)]
}

/// One answer of the target.
#[derive(Debug, Clone)]
enum Move {
    /// Answer that keeps to the protocol, with this CHAP algorithm.
    Right(u32),
    /// Right answer with one changed byte in the header.
    Header(usize, u8),
    /// Right header with another text.
    Text(Vec<u8>),
    /// Right text with another T bit and next stage.
    Flags(u8),
    /// Right PDU without its data.
    Empty,
    /// Arbitrary PDU.
    Any(Header, Vec<u8>),
}

fn some_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        12 => prop::sample::select(vec![5, 6, 7]).prop_map(Move::Right),
        1 => (0..48_usize, any::<u8>()).prop_map(|(at, byte)| Move::Header(at, byte)),
        1 => some_text().prop_map(Move::Text),
        1 => any::<u8>().prop_map(Move::Flags),
        1 => Just(Move::Empty),
        1 => (header(), prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(header, data)| Move::Any(header, data)),
    ]
}

/// Progress of the login as an observer of the bytes sees it.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "notes of a test")]
struct Seen {
    offered_method: bool,
    method: bool,
    proof_sent: Option<Sent>,
    target_proven: bool,
    security_left: bool,
    asked_for_the_end: bool,
    full_feature: bool,
}

impl Seen {
    fn answer(&mut self, header: &Header, data: &[u8]) {
        let get = |key: &str| {
            let keys = String::from_utf8_lossy(data).into_owned();
            keys.split('\0')
                .filter_map(|pair| pair.split_once('='))
                .find(|(name, _)| *name == key)
                .map(|(_, value)| value.to_owned())
        };
        let transit = header[1] & 0x80 != 0;
        self.method |= self.offered_method && get("AuthMethod").as_deref() == Some("CHAP");
        if let Some(sent) =
            self.proof_sent.as_ref().filter(|sent| sent.keys().iter().any(|key| key == "CHAP_C"))
        {
            let (name, response) = (get("CHAP_N"), get("CHAP_R"));
            let wanted = [5, 6, 7].map(|algorithm| value(&proof(sent, algorithm, TARGET_SECRET), "CHAP_R"));
            self.target_proven |= name.as_deref() == Some(TARGET_USER)
                && response.is_some_and(|response| wanted.contains(&response));
        }
        self.security_left |= transit && header[1] & 0x0f == 0x01 && self.proof_sent.is_some();
        self.full_feature = transit && header[1] & 0x0f == 0x07 && self.asked_for_the_end;
    }

    fn sent(&mut self, sent: &Sent) {
        let keys = sent.keys();
        self.asked_for_the_end |= sent.stages() == (1, Some(3));
        self.offered_method |= keys.iter().any(|key| key == "AuthMethod");
        if keys.iter().any(|key| key == "CHAP_R") {
            self.proof_sent = Some(sent.clone());
        }
    }
}

/// Plays the moves. Returns who was authenticated if the login was completed, otherwise `None`.
fn play(chap: Option<&Credentials>, moves: &[Move]) -> Option<Authentication> {
    let (mut login, mut step) = start(chap.cloned());
    let mut seen = Seen::default();
    let mut algorithm = 7;
    for one in moves {
        let sent = Sent::of(&step);
        seen.sent(&sent);
        if let Move::Right(number) = one {
            // The algorithm is chosen only once.
            if sent.keys().iter().any(|key| key == "CHAP_A") {
                algorithm = *number;
            }
        }
        let (mut header, mut data) = right_answer(&sent, algorithm).bytes();
        match one {
            Move::Right(_) => {}
            Move::Header(at, byte) => header[*at] = *byte,
            Move::Text(text) => {
                data.clone_from(text);
                header[5..8].copy_from_slice(&[0, 0, u8::try_from(text.len()).unwrap()]);
            }
            Move::Flags(flags) => header[1] = *flags,
            Move::Empty => {
                data.clear();
                header[5..8].fill(0);
            }
            Move::Any(any, bytes) => (header, data) = (*any, bytes.clone()),
        }
        seen.answer(&header, &data);
        match login.receive(&header, &data) {
            Ok(LoginStep::Done(done)) => {
                assert!(seen.full_feature, "{seen:?}");
                match chap {
                    None => assert_eq!(done.authentication, Authentication::None),
                    Some(Credentials { mutual, .. }) => {
                        assert!(seen.method && seen.security_left && seen.proof_sent.is_some(), "{seen:?}");
                        let want =
                            if mutual.is_some() { Authentication::Mutual } else { Authentication::OneWay };
                        assert_eq!(done.authentication, want);
                        assert!(mutual.is_none() || seen.target_proven, "{seen:?}");
                    }
                }
                return Some(done.authentication);
            }
            Ok(LoginStep::Redirect { .. }) | Err(_) => {
                let (header, data) = right_answer(&sent, algorithm).bytes();
                assert!(login.receive(&header, &data).is_err(), "an ended login goes on");
                return None;
            }
            Ok(next) => step = next,
        }
    }
    None
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_bytes_are_survived(
        chap in some_chap(), pdus in prop::collection::vec((header(), some_text()), 1..8),
    ) {
        let (mut login, _) = start(chap);
        for (header, data) in &pdus {
            let _ = (opcode(header), parse_async(header, data), parse_logout_response(header));
            let _ = LoginResponse::parse(header, data);
            if let Ok(LoginStep::Done(_)) = login.receive(header, data) {
                panic!("done with noise");
            }
        }
    }

    #[test]
    fn texts_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600), plain in some_text()) {
        let _ = Text::parse(&bytes);
        if let Ok(text) = Text::parse(&plain) {
            prop_assert_eq!(Text::parse(&text.encode()).unwrap(), text);
        }
        let lossy = String::from_utf8_lossy(&bytes).into_owned();
        let _ = (lossy.parse::<TargetAddress>(), decode_binary(&lossy, 64), decode_binary(&format!("0x{lossy}"), 64));
        let _ = decode_binary(&format!("0b{lossy}"), 64);
    }

    #[test]
    fn binary_values_come_back(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        prop_assert_eq!(&decode_binary(&encode_binary(&bytes), 200).unwrap(), &bytes);
        prop_assert_eq!(decode_binary(&encode_binary(&bytes), bytes.len() - 1).is_err(), true);
    }

    #[test]
    fn done_is_proven(chap in some_chap(), moves in prop::collection::vec(some_move(), 1..12)) {
        play(chap.as_ref(), &moves);
    }

    #[test]
    fn a_split_text_is_the_same(cuts in prop::collection::btree_set(1..300_usize, 0..10), security in any::<bool>()) {
        let chap = || security.then(mutual);
        let (mut whole, step) = start(chap());
        let (mut split, _) = start(chap());
        let right = right_answer(&Sent::of(&step), 7).byte(1, u8::from(!security) << 2);
        let stage = u8::from(!security);
        let want = right.give(&mut whole).unwrap();

        let ends: Vec<_> = cuts.into_iter().filter(|cut| *cut < right.data.len()).chain([right.data.len()]).collect();
        let mut from = 0;
        let mut got = None;
        for end in ends {
            let piece = Answer::new(stage, right.data[from..end].to_vec());
            from = end;
            if end == right.data.len() {
                got = Some(piece.give(&mut split).unwrap());
            } else {
                let empty = Sent::of(&piece.continues().give(&mut split).unwrap());
                prop_assert_eq!((empty.stages(), empty.continues(), empty.data.len()), ((stage, None), false, 0));
            }
        }
        prop_assert_eq!(Sent::of(&got.unwrap()), Sent::of(&want));
        if !security {
            let end = Answer::new(1, Vec::new()).transit(3);
            prop_assert_eq!(end.give(&mut split).unwrap(), end.give(&mut whole).unwrap());
        }
    }

    #[test]
    fn an_assembly_is_a_parse(
        bytes in prop::collection::vec(some_text(), 1..4).prop_map(|texts| texts.concat()), at in any::<prop::sample::Index>(),
    ) {
        let (one, two) = bytes.split_at(at.index(bytes.len() + 1));
        let mut assembly = Assembly::default();
        prop_assert_eq!(assembly.push(one, true), Ok(None));
        prop_assert_eq!(assembly.push(two, false), Text::parse(&bytes).map(Some));
        prop_assert_eq!(assembly.push(&vec![0; TEXT_BYTES_MAX + 1], true).is_err(), true);
    }
}

/// The control of the law above: with such moves, logins of all three kinds succeed, and most do
/// not.
#[test]
fn done_happens() {
    let mut runner = TestRunner::deterministic();
    let mut done = [0; 3];
    let mut not_done = 0;
    for _ in 0..2000 {
        let chap = some_chap().new_tree(&mut runner).unwrap().current();
        let moves = prop::collection::vec(some_move(), 1..12).new_tree(&mut runner).unwrap().current();
        match play(chap.as_ref(), &moves) {
            Some(authentication) => done[authentication as usize] += 1,
            None => not_done += 1,
        }
    }
    assert!(done.iter().all(|count| *count > 50) && not_done > 50, "{done:?} {not_done}");
}
