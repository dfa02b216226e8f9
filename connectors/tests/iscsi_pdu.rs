//! PDUs beside the login: logout, and what a target sends unasked.
#![allow(clippy::unwrap_used, reason = "tests")]

use mooring_connectors::iscsi::{
    AsyncEvent, LogoutOutcome, Opcode, logout_request, opcode, parse_async, parse_logout_response,
};

fn header(bytes: &[(usize, u8)]) -> [u8; 48] {
    let mut header = [0; 48];
    for (at, byte) in bytes {
        header[*at] = *byte;
    }
    header
}

#[test]
fn a_logout_closes_the_session() {
    assert_eq!(logout_request(), header(&[(0, 0x46), (1, 0x80)]));
}

#[test]
fn logout_answers() {
    for (response, want) in [
        (0, LogoutOutcome::Closed),
        (1, LogoutOutcome::ConnectionNotFound),
        (2, LogoutOutcome::Unsupported),
        (3, LogoutOutcome::CleanupFailed),
        (4, LogoutOutcome::Other(4)),
        (255, LogoutOutcome::Other(255)),
    ] {
        let header = header(&[(0, 0x26), (1, 0x80), (2, response), (40, 1), (41, 2), (43, 9)]);
        let got = parse_logout_response(&header).unwrap();
        assert_eq!((got.outcome, got.time2wait, got.time2retain), (want, 0x0102, 9));
    }
    let error = parse_logout_response(&header(&[(0, 0x23)])).unwrap_err();
    assert_eq!(error.to_string(), "the target sent a PDU of kind LoginResponse where LogoutResponse was due");
}

#[test]
fn kinds() {
    for (byte, want) in [
        (0x20, Opcode::NopIn),
        (0x23, Opcode::LoginResponse),
        (0x63, Opcode::LoginResponse),
        (0x24, Opcode::TextResponse),
        (0x26, Opcode::LogoutResponse),
        (0x32, Opcode::Async),
        (0x3f, Opcode::Reject),
        (0x21, Opcode::Other(0x21)),
    ] {
        assert_eq!(opcode(&header(&[(0, byte)])), want, "{byte:#x}");
    }
}

#[test]
fn async_events() {
    let event = |number: u8, data: &[u8]| {
        let at = [(0, 0x32), (36, number), (37, 8), (38, 0), (39, 3), (40, 0), (41, 5), (42, 1), (43, 0)];
        parse_async(&header(&at), data).unwrap()
    };
    assert_eq!(event(1, &[]), AsyncEvent::RequestLogout { within_s: 256 });
    assert_eq!(event(2, &[]), AsyncEvent::DropConnection { connection: 3, wait_s: 5, retain_s: 256 });
    assert_eq!(event(3, &[]), AsyncEvent::DropSession { wait_s: 5, retain_s: 256 });
    assert_eq!(event(4, &[]), AsyncEvent::Renegotiate { within_s: 256 });
    for other in [5, 254, 255] {
        assert_eq!(event(other, &[]), AsyncEvent::Other { event: other, vendor_code: 8 });
    }
    assert_eq!(parse_async(&header(&[(0, 0x26)]), &[]), None);
}

#[test]
fn scsi_events_have_sense_data() {
    let event = |data: &[u8]| parse_async(&header(&[(0, 0x32)]), data).unwrap();
    let mut fixed = vec![0, 18, 0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x3f, 0x0e, 0, 0, 0, 0];
    assert_eq!(event(&fixed), AsyncEvent::Scsi { sense: Some((0x3f, 0x0e)) });
    assert!(event(&fixed).luns_changed());
    let descriptor = [0, 8, 0x72, 6, 0x3f, 0x0e, 0, 0, 0, 0];
    assert!(event(&descriptor).luns_changed());
    let resized = [0, 8, 0x72, 6, 0x2a, 0x09, 0, 0, 0, 0];
    assert!(!event(&resized).luns_changed());
    fixed[1] = 19;
    for bad in
        [&fixed[..], &[], &[0], &[0, 0], &[0, 1, 0x70], &[0, 3, 0x72, 6, 0x3f], &[0, 4, 0x7f, 0, 0x3f, 0x0e]]
    {
        assert_eq!(event(bad), AsyncEvent::Scsi { sense: None }, "{bad:?}");
    }
}
