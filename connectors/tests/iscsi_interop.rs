//! The login phase over TCP against the fake target. Both were written independently, so agreement
//! means that both read the standard in one way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::iscsi_common::*;
use mooring_connectors::iscsi::{
    Authentication, Credentials, Isid, Login, LoginConfig, LoginError, LoginFailure, LoginStep, Negotiated,
};
use mooring_host::IscsiParam;
use mooring_host::fake::FakeTarget;
use mooring_host::fake::initiator::{Acl, Credentials as TargetCredentials, TargetProof};
use mooring_model::Secret;

/// Deadline that no passing test reaches.
const DEADLINE: Duration = Duration::from_secs(20);

/// A target that lets our initiator in with both secrets.
fn target_with_acl() -> FakeTarget {
    let target = FakeTarget::start(target().as_str()).unwrap();
    let side = |user: &str, secret: &str| Some(TargetCredentials::new(user, secret));
    let acl = Acl { chap: side(USER, SECRET), mutual: side(TARGET_USER, TARGET_SECRET), ..Acl::default() };
    target.allow(initiator().as_str(), acl);
    target
}

fn open_target() -> FakeTarget {
    let target = FakeTarget::start(target().as_str()).unwrap();
    target.allow(initiator().as_str(), Acl::default());
    target
}

/// Sends a PDU and reads the answer, as the kernel would; `None` if the connection was closed.
fn exchange(stream: &mut TcpStream, sent: &Sent) -> Option<(Header, Vec<u8>)> {
    let mut bytes = [&sent.header[..], &sent.data].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    stream.write_all(&bytes).ok()?;
    let mut header = [0; 48];
    stream.read_exact(&mut header).ok()?;
    let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    let mut data = vec![0; length.next_multiple_of(4)];
    stream.read_exact(&mut data).ok()?;
    data.truncate(length);
    Some((header, data))
}

/// Logs in, and gives the connection, which is the session, to the caller.
fn log_in(at: &FakeTarget, chap: Option<Credentials>) -> Result<(Negotiated, TcpStream), LoginError> {
    let mut stream = TcpStream::connect(at.address()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let (initiator, target) = (initiator(), target());
    let config = LoginConfig {
        initiator: &initiator,
        target: &target,
        tpg: TPG,
        isid: Isid::of(&initiator, &target, at.address().to_string().parse().unwrap()),
        chap,
        alias: Some("host1".to_owned()),
    };
    let (mut login, mut step) = Login::start(config, 0, &mut |bytes| getrandom::fill(bytes).unwrap());
    loop {
        match step {
            LoginStep::Done(done) => return Ok((done, stream)),
            LoginStep::Redirect { address, temporary } => {
                panic!("redirect to {address}, temporary {temporary}")
            }
            LoginStep::Send { header, data } => {
                let answer = exchange(&mut stream, &Sent { header, data });
                let (header, data) =
                    answer.unwrap_or_else(|| panic!("no answer, waits for {}", login.waits_for()));
                step = login.receive(&header, &data)?;
            }
        }
    }
}

fn refused(at: &FakeTarget, chap: Option<Credentials>) -> LoginError {
    match log_in(at, chap) {
        Err(error) => error,
        Ok((done, _)) => panic!("logged in: {done:?}"),
    }
}

#[test]
fn logins_without_credentials() {
    let target = open_target();
    let (done, _stream) = log_in(&target, None).unwrap();
    assert_eq!(done.authentication, Authentication::None);
    assert!(done.transfer.initial_r2t && done.transfer.immediate_data);
    assert_eq!((done.transfer.max_burst, done.transfer.first_burst), (262_144, 65_536));
    assert_eq!(done.transfer.max_xmit_segment, 262_144);
    let sessions = target.sessions();
    assert_eq!(sessions.len(), 1);
    assert_eq!((sessions[0].initiator.as_str(), sessions[0].tsih), (initiator().as_str(), done.tsih));
    assert_eq!(sessions[0].isid[0], 0x80);
    assert_eq!(target.seen()[0].requests, 1, "one exchange");
}

#[test]
fn logins_with_each_algorithm_and_direction() {
    for algorithms in [vec![5], vec![6], vec![7], vec![5, 6, 7]] {
        let target = target_with_acl();
        target.behave(|behaviour| behaviour.algorithms.clone_from(&algorithms));
        let (done, _) = log_in(&target, Some(one_way())).unwrap();
        assert_eq!(done.authentication, Authentication::OneWay, "{algorithms:?}");
        let (done, _) = log_in(&target, Some(mutual())).unwrap();
        assert_eq!(done.authentication, Authentication::Mutual, "{algorithms:?}");
    }
}

#[test]
fn a_login_again_replaces_the_session() {
    let target = target_with_acl();
    let (first, _one) = log_in(&target, Some(mutual())).unwrap();
    let (second, _two) = log_in(&target, Some(mutual())).unwrap();
    assert_ne!(first.tsih, second.tsih);
    assert!(target.wait_for(|target| target.sessions().len() == 1), "the same ISID: one session");
    assert_eq!(target.sessions()[0].tsih, second.tsih);
}

#[test]
fn refusals() {
    let wrong_secret = Credentials { secret: Secret::new("another-secret-1"), ..one_way() };
    let wrong_user = Credentials { user: "user-b".to_owned(), ..one_way() };
    let target = target_with_acl();
    for chap in [Some(wrong_secret), Some(wrong_user), None] {
        assert_eq!(refused(&target, chap).kind(), LoginFailure::Credentials);
    }
    target.set_enabled(false);
    assert_eq!(refused(&target, Some(mutual())).kind(), LoginFailure::Unavailable);
    target.set_enabled(true);
    target.revoke(initiator().as_str());
    assert_eq!(refused(&target, Some(mutual())).kind(), LoginFailure::Forbidden);
    let other = FakeTarget::start("iqn.2026-11.dev.mooring:other").unwrap();
    assert_eq!(refused(&other, Some(mutual())).kind(), LoginFailure::NotFound);
    let open = open_target();
    assert_eq!(refused(&open, Some(one_way())).kind(), LoginFailure::Credentials, "it has no secret of ours");
    open.set_tpgt(Some(2));
    assert_eq!(refused(&open, None).kind(), LoginFailure::WrongTarget);
    open.set_tpgt(None);
    assert!(log_in(&open, None).is_ok(), "a target that names no portal group is believed");
}

#[test]
fn targets_that_do_not_prove_themselves() {
    let target = target_with_acl();
    target.behave(|behaviour| behaviour.proof = TargetProof::Missing);
    assert!(refused(&target, Some(mutual())).to_string().contains("did not prove itself"));
    assert!(log_in(&target, Some(one_way())).is_ok(), "nobody asked it to");
    target.behave(|behaviour| behaviour.proof = TargetProof::Wrong);
    assert!(refused(&target, Some(mutual())).to_string().contains("proof is wrong"));
    target.behave(|behaviour| behaviour.proof = TargetProof::Reflected);
    assert_eq!(refused(&target, Some(mutual())).kind(), LoginFailure::Downgrade);
    target.behave(|behaviour| (behaviour.proof, behaviour.downgrade) = (TargetProof::Right, true));
    for chap in [one_way(), mutual()] {
        let error = refused(&target, Some(chap));
        assert!(error.to_string().contains("does not want CHAP"), "{error}");
        assert_eq!(error.kind(), LoginFailure::Downgrade);
    }
    target.behave(|behaviour| behaviour.downgrade = false);
    assert!(log_in(&target, Some(mutual())).is_ok(), "the control");
    assert!(target.wait_for(|target| target.sessions().is_empty()), "and none is left");
}

#[test]
fn odd_but_legal_targets() {
    for chap in [None, Some(one_way()), Some(mutual())] {
        let target = if chap.is_some() { target_with_acl() } else { open_target() };
        let (plain, _) = log_in(&target, chap.clone()).unwrap();
        target.behave(|behaviour| {
            behaviour.continue_bit = true;
            behaviour.split = true;
            behaviour.extra_keys = vec![("X-com.example.a".to_owned(), "1".to_owned())];
        });
        let (done, _) = log_in(&target, chap.clone()).unwrap();
        assert_eq!((done.transfer, done.authentication), (plain.transfer, plain.authentication));
        target.behave(|behaviour| (behaviour.continue_bit, behaviour.refuse_transits) = (false, 2));
        let (done, _) = log_in(&target, chap).unwrap();
        assert_eq!((done.transfer, done.authentication), (plain.transfer, plain.authentication));
    }
}

/// The target's digests are the ones that are agreed on; the kernel has them before the connection
/// starts.
#[test]
fn the_target_decides_about_digests() {
    let agreed = |digests: [&str; 2]| {
        let target = open_target();
        target.behave(|behaviour| behaviour.digests = digests.map(str::to_owned));
        let (done, _) = log_in(&target, None).unwrap();
        let params = done.params();
        let set = |of: IscsiParam| params.iter().find(|(param, _)| *param == of).unwrap().1.clone();
        (set(IscsiParam::HdrdgstEn), set(IscsiParam::DatadgstEn))
    };
    let texts = |header: &str, data: &str| (header.to_owned(), data.to_owned());
    assert_eq!(agreed(["CRC32C,None", "CRC32C,None"]), texts("0", "0"), "its order says nothing: ours does");
    assert_eq!(agreed(["CRC32C", "CRC32C,None"]), texts("1", "0"));
    assert_eq!(agreed(["None", "CRC32C"]), texts("0", "1"));
    assert_eq!(agreed(["CRC32C", "CRC32C"]), texts("1", "1"));
    // The control: a target with no digest in common refuses.
    let target = open_target();
    target.behave(|behaviour| behaviour.digests[1] = "SHA".to_owned());
    refused(&target, None);
}

#[test]
fn answers_that_were_not_offered() {
    for (key, value) in
        [("HeaderDigest", "CRC32"), ("MaxBurstLength", "16777215"), ("ErrorRecoveryLevel", "2")]
    {
        let target = open_target();
        target.behave(|behaviour| behaviour.forced_keys = [(key.to_owned(), value.to_owned())].into());
        let error = refused(&target, None);
        assert_eq!(error.kind(), LoginFailure::Protocol);
        assert!(error.to_string().contains(key), "{error}");
    }
}
