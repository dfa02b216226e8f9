//! Tests a target's answers to logins, good and bad.

use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::super::pdu::value;
use super::super::*;
use super::driver::*;
use crate::{IscsiEvent, IscsiKernel, StopMode};

#[test]
fn a_login_negotiates_as_lio_does() {
    let (host, target) = (FakeHost::new(), target());
    let mut driver = Driver::new(&host);
    let sid = driver.create();
    driver.bind(sid, &target);
    let answer = driver.login(sid).unwrap();
    for (key, agreed) in [
        ("TargetPortalGroupTag", "1"),
        ("HeaderDigest", "None"),
        ("InitialR2T", "Yes"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "262144"),
        ("FirstBurstLength", "65536"),
        ("DefaultTime2Wait", "2"),
        ("MaxRecvDataSegmentLength", "262144"),
        ("X-lab.new", "NotUnderstood"),
    ] {
        assert_eq!(value(&answer, key), Some(agreed), "{key}");
    }
    assert_eq!(value(&answer, "InitiatorName"), None);
    let [session] = target.sessions().try_into().unwrap();
    assert_eq!((session.initiator.as_str(), session.isid), (INITIATOR, ISID));
    let [seen] = target.seen().try_into().unwrap();
    assert_eq!(seen.end, Some(LoginEnd::LoggedIn(session.tsih)));
    assert_eq!(seen.requests, 1);
}

#[test]
fn chap_is_checked_both_ways() {
    for algorithm in [5, 6, 7] {
        for mutual in [false, true] {
            let (host, target) = (FakeHost::new(), with_chap(mutual));
            let mut driver = Driver::new(&host);
            driver.chap = Some((algorithm, "secretsecret", mutual.then_some("abcdefabcdef")));
            driver.attach(&target).unwrap();
            assert_eq!(target.sessions().len(), 1);
            let log = format!("{:?}", target.seen());
            assert!(log.contains("CHAP_R") && !log.contains("0x"), "no response or challenge in {log}");
            driver.chap = Some((algorithm, "wrongwrong12", None));
            assert_eq!(driver.attach(&target), Err(Lost::Status(2, 1)));
            assert_eq!(target.seen().last().unwrap().end, Some(LoginEnd::Refused(2, 1)));
        }
    }
    assert!(!format!("{:?}", Credentials::new("user", "secretsecret")).contains("secretsecret"));
}

#[test]
fn the_known_answer_of_chap() {
    use super::super::chap::{digest, hex};
    // Computed with coreutils: printf '\x07secret\x00\x11' | md5sum, sha1sum, sha256sum.
    let of = |algorithm| hex(&digest(algorithm, 7, "secret", &[0x00, 0x11]).unwrap());
    assert_eq!(of(5), MD5);
    assert_eq!(of(6), SHA1);
    assert_eq!(of(7), SHA256);
    assert_eq!(digest(8, 7, "secret", &[]), None);
}

const MD5: &str = "0x756c165560f0813fd423aba355138bfa";
const SHA1: &str = "0x004335213b98b4d9e8d57fdb10cf8119058219d6";
const SHA256: &str = "0x578295257dbbd9afaa84ca43524b4a4dfbc3c5a0bbe272dbd6363b5fe6a7f0e8";

#[test]
fn refusals_are_lios() {
    let host = FakeHost::new();
    let attach = |target: &FakeTarget| Driver::new(&host).attach(target);
    // Straight into the operational stage where CHAP is demanded.
    assert_eq!(attach(&with_chap(false)), Err(Lost::Status(2, 1)));
    let stranger = FakeTarget::start(TARGET).unwrap();
    assert_eq!(attach(&stranger), Err(Lost::Status(2, 2)));
    let other = FakeTarget::start("iqn.2026-01.lab.storage:other").unwrap();
    other.allow(INITIATOR, Acl::default());
    assert_eq!(attach(&other), Err(Lost::Status(2, 3)));
    let off = target();
    off.set_enabled(false);
    assert_eq!(attach(&off), Err(Lost::Status(3, 1)));
    off.set_enabled(true);
    assert!(attach(&off).is_ok());
    // CHAP offered where none is configured.
    let mut driver = Driver::new(&host);
    driver.chap = Some((7, "secretsecret", None));
    assert_eq!(driver.attach(&target()), Err(Lost::Status(2, 1)));
    for status in [(2, 6), (3, 2), (1, 1)] {
        let target = target();
        target.behave(|behaviour| behaviour.refuse = Some(status));
        assert_eq!(attach(&target), Err(Lost::Status(status.0, status.1)));
    }
}

#[test]
fn a_target_that_cheats_in_chap_is_seen_through() {
    type Cheat = fn(&mut Behaviour);
    let cheats: [Cheat; 4] = [
        |behaviour| behaviour.proof = TargetProof::Missing,
        |behaviour| behaviour.proof = TargetProof::Wrong,
        |behaviour| behaviour.proof = TargetProof::Reflected,
        |behaviour| behaviour.downgrade = true,
    ];
    for cheat in cheats {
        let (host, target) = (FakeHost::new(), with_chap(true));
        target.behave(cheat);
        let mut driver = Driver::new(&host);
        driver.chap = Some((7, "secretsecret", Some("abcdefabcdef")));
        assert_eq!(driver.attach(&target), Err(Lost::Proof));
    }
    let (host, target) = (FakeHost::new(), with_chap(false));
    target.behave(|behaviour| behaviour.algorithms = vec![5]);
    let mut driver = Driver::new(&host);
    driver.chap = Some((7, "secretsecret", None));
    assert_eq!(driver.attach(&target), Err(Lost::Status(2, 1)));
}

#[test]
fn odd_but_legal_answers_still_log_in() {
    type Oddity = fn(&mut Behaviour);
    let oddities: [Oddity; 4] = [
        |behaviour| behaviour.split = true,
        |behaviour| behaviour.continue_bit = true,
        |behaviour| behaviour.refuse_transits = 3,
        |behaviour| behaviour.extra_keys = vec![("X-com.example".to_owned(), "1".to_owned())],
    ];
    for (at, oddity) in oddities.into_iter().enumerate() {
        let (host, target) = (FakeHost::new(), target());
        target.behave(oddity);
        Driver::new(&host).attach(&target).unwrap();
        let requests = target.seen()[0].requests;
        assert_eq!(requests, [1, 2, 4, 1][at]);
    }
    let (host, target) = (FakeHost::new(), target());
    target.behave(|behaviour| {
        behaviour.forced_keys.insert("FirstBurstLength".to_owned(), "1024".to_owned());
        behaviour.extra_keys = vec![("MaxConnections".to_owned(), "1".to_owned())];
    });
    target.set_tpgt(Some(7));
    let mut driver = Driver::new(&host);
    let sid = driver.create();
    driver.bind(sid, &target);
    let answer = driver.login(sid).unwrap();
    let of = |key| value(&answer, key);
    assert_eq!((of("FirstBurstLength"), of("MaxConnections")), (Some("1024"), Some("1")));
    assert_eq!(of("TargetPortalGroupTag"), Some("7"));
}

#[test]
fn a_redirect_carries_its_address() {
    let (host, target) = (FakeHost::new(), target());
    target.behave(|behaviour| behaviour.redirect = Some((2, "192.0.2.1:3260,1".to_owned())));
    let mut driver = Driver::new(&host);
    let sid = driver.create();
    driver.bind(sid, &target);
    assert_eq!(driver.login(sid), Err(Lost::Status(1, 2)));
    host.stop_connection(sid, StopMode::Recover).unwrap();
    driver.bind(sid, &target);
    let mut pdu = Pdu::new(0x43);
    pdu.header[1] = 0x87;
    pdu.set(8, &ISID);
    pdu.data = b"InitiatorName=x\0".to_vec();
    host.send_pdu(sid, &pdu.header, &pdu.data).unwrap();
    let event = driver.until(|event| matches!(event, IscsiEvent::Pdu { .. }));
    let IscsiEvent::Pdu { data, .. } = event else { unreachable!() };
    assert_eq!(data, b"TargetAddress=192.0.2.1:3260,1\0");
}

#[test]
fn broken_answers_break_the_connection() {
    let (host, target) = (FakeHost::new(), target());
    target.behave(|behaviour| behaviour.garbage_at = Some(1));
    assert_eq!(Driver::new(&host).attach(&target), Err(Lost::Error(1006)));
    assert_eq!(host.session_state(1).as_deref(), Some("FAILED"));
    target.behave(|behaviour| (behaviour.garbage_at, behaviour.close_after) = (None, Some(0)));
    let mut driver = Driver::new(&host);
    let sid = driver.create();
    host.bind_connection(sid, &TcpStream::connect(target.address()).unwrap()).unwrap();
    driver.until(|event| matches!(event, IscsiEvent::ConnectionError { error: 1020, .. }));
    assert_eq!(host.session_state(sid).as_deref(), Some("FAILED"));
    // A Reject ends in the kernel: nobody is told.
    target.behave(|behaviour| (behaviour.close_after, behaviour.reject_at) = (None, Some(1)));
    let mut driver = Driver::new(&host);
    driver.wait = Duration::from_millis(50);
    assert_eq!(driver.attach(&target), Err(Lost::Silence));
    // And an opcode that the kernel does not know.
    target.behave(|behaviour| {
        behaviour.reject_at = None;
        behaviour.tamper = Some(std::sync::Arc::new(|_, pdu| pdu.header[0] = 0x3e));
    });
    assert_eq!(Driver::new(&host).attach(&target), Err(Lost::Error(1005)));
}

#[test]
fn an_answer_that_is_held_back_comes_when_released() {
    let (host, target) = (FakeHost::new(), target());
    target.behave(|behaviour| behaviour.stall_at = Some(1));
    let thread = {
        let (host, target) = (host.clone(), target.clone());
        std::thread::spawn(move || Driver::new(&host).attach(&target))
    };
    assert!(target.wait_for(|target| target.seen().first().is_some_and(|seen| seen.requests == 1)));
    assert_eq!(target.sessions(), []);
    target.behave(|behaviour| behaviour.stall_at = None);
    assert!(thread.join().unwrap().is_ok());
    target.behave(|behaviour| behaviour.stall_at = Some(1));
    let thread = {
        let (host, target) = (host.clone(), target.clone());
        std::thread::spawn(move || Driver::new(&host).attach(&target))
    };
    assert!(target.wait_for(|target| target.seen().get(1).is_some_and(|seen| seen.requests == 1)));
    target.revoke(INITIATOR);
    target.cut_all();
    assert_eq!(thread.join().unwrap(), Err(Lost::Error(1020)));
    assert_eq!(target.sessions(), []);
}

#[test]
fn the_port_stays_while_nobody_listens() {
    let (host, target) = (FakeHost::new(), target());
    let mut driver = Driver::new(&host);
    driver.attach(&target).unwrap();
    let address = target.address();
    target.stop_listening();
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(target.sessions().len(), 1, "sessions live on");
    target.listen().unwrap();
    TcpStream::connect(address).unwrap().shutdown(Shutdown::Both).unwrap();
    assert_eq!(target.address(), address);
}

#[test]
fn the_same_isid_ends_the_older_session() {
    let (host, target) = (FakeHost::new(), target());
    let mut driver = Driver::new(&host);
    let old = driver.attach(&target).unwrap();
    let new = driver.attach(&target).unwrap();
    assert!(host.wait_for(|host| host.session_state(old).as_deref() == Some("FAILED")));
    assert_eq!(target.sessions().len(), 1);
    driver.isid = [0x80, 9, 9, 9, 9, 9];
    driver.attach(&target).unwrap();
    assert_eq!(target.sessions().len(), 2);
    assert_eq!(host.session_state(new).as_deref(), Some("LOGGED_IN"));
}

proptest::proptest! {
    /// An initiator that does not know the secret may send anything: no session, and no panic.
    #[test]
    fn nobody_gets_in_without_the_secret(
        requests in proptest::collection::vec(
            (
                0_u8..=255,
                proptest::collection::vec(0..PHRASES.len(), 0..5),
                proptest::collection::vec(0_u8..=255, 0..3),
            ),
            1..8,
        ),
    ) {
        let acl = Acl { chap: Some(Credentials::new("user", "secretsecret")), ..Acl::default() };
        let settings = super::super::target::Settings {
            name: TARGET.to_owned(),
            tpgt: Some(1),
            enabled: true,
            acls: [(INITIATOR.to_owned(), acl)].into(),
            behaviour: Behaviour { continue_bit: requests.len() > 6, ..Behaviour::default() },
        };
        let mut login = super::super::target_login::Login::new(1);
        for (at, (flags, phrases, noise)) in requests.into_iter().enumerate() {
            let mut pdu = Pdu::new(0x43);
            pdu.header[1] = flags;
            let first = if at == 0 { PHRASES[..3].concat() } else { String::new() };
            let words: String = phrases.into_iter().map(|phrase| PHRASES[phrase]).collect();
            pdu.data = [first.as_bytes(), words.as_bytes()].concat();
            if noise.len() == 2 {
                pdu.data.extend(noise);
            }
            let verdict = login.answer(&settings, &pdu);
            proptest::prop_assert!(!matches!(verdict, super::super::target_login::Verdict::Done(_)));
        }
    }
}

const PHRASES: [&str; 13] = [
    "InitiatorName=iqn.2026-01.lab:host1\0",
    "TargetName=iqn.2026-01.lab.storage:t0\0",
    "SessionType=Normal\0",
    "AuthMethod=CHAP\0",
    "AuthMethod=None,CHAP\0",
    "AuthMethod=None\0",
    "CHAP_A=5\0",
    "CHAP_A=\0",
    "CHAP_N=user\0",
    "CHAP_R=0x00000000000000000000000000000000\0",
    "CHAP_R=0x\0",
    "CHAP_I=300\0CHAP_C=0x0\0",
    "InitialR2T=No\0FirstBurstLength=-1\0",
];

#[test]
fn bytes_that_are_no_pdu_do_a_target_no_harm() {
    use std::io::{Read, Write};
    let (host, target) = (FakeHost::new(), target());
    for bytes in [vec![0xff; 48], vec![0x43; 500], vec![0; 48], b"GET / HTTP/1.1\r\n\r\n".repeat(10)] {
        let mut stream = TcpStream::connect(target.address()).unwrap();
        stream.write_all(&bytes).unwrap();
        // The connection may have been reset already.
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        // A reset is an answer, too.
        let _ = stream.read_to_end(&mut answer);
    }
    Driver::new(&host).attach(&target).unwrap();
    assert_eq!(target.sessions().len(), 1);
}
