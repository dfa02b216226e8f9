//! The daemon's socket: versions, watchers, and clients that are wrong, slow or too many.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use mooring_connectors::client::{Client, ClientError, SessionEvent};
use mooring_connectors::sessiond::CONNECTIONS_MAX;
use mooring_connectors::wire::{Answer, End, ErrorKind, LINE_BYTES_MAX, Request, SessionState};
use mooring_model::{Cure, VolumeId};
use proptest::prelude::*;

use crate::sessiond_common::{PATIENCE, Rig, SECRET, log, next_event};

const HELLO: &str = r#"{"request":"hello","protocol_min":1,"protocol_max":1,"software":"test"}"#;

/// A client that sends arbitrary lines.
struct Raw {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Raw {
    fn connect(rig: &Rig) -> Self {
        let stream = UnixStream::connect(rig.folder().join("sessiond.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Self { stream, lines }
    }

    fn greeted(rig: &Rig) -> Self {
        let mut raw = Self::connect(rig);
        assert!(matches!(raw.ask(HELLO), Some(Answer::Hello { protocol: 1, .. })));
        raw
    }

    /// Sends a line and returns the answer; `None` if the daemon has closed the connection.
    fn ask(&mut self, line: &str) -> Option<Answer> {
        // If the daemon has closed already, the read shows it.
        let _ = self.stream.write_all(format!("{line}\n").as_bytes());
        self.answer()
    }

    fn answer(&mut self) -> Option<Answer> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }
}

fn kind(answer: Option<Answer>) -> ErrorKind {
    match answer {
        Some(Answer::Error { kind, text }) => {
            assert!(!text.is_empty() && !text.contains(SECRET), "{text}");
            kind
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn hello_comes_first_and_agrees_on_a_version() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let client = rig.client();
    assert_eq!((client.welcome().protocol, client.welcome().pid), (1, std::process::id()));
    // A newer client that still speaks this version.
    let newer = HELLO.replace("\"protocol_max\":1", "\"protocol_max\":7");
    assert!(matches!(Raw::connect(&rig).ask(&newer), Some(Answer::Hello { protocol: 1, .. })));
    for (wrong, want) in [
        (
            HELLO.replace("\"protocol_min\":1,\"protocol_max\":1", "\"protocol_min\":2,\"protocol_max\":3"),
            ErrorKind::Protocol,
        ),
        (
            HELLO.replace("\"protocol_min\":1,\"protocol_max\":1", "\"protocol_min\":0,\"protocol_max\":0"),
            ErrorKind::Protocol,
        ),
        (
            HELLO.replace("\"protocol_min\":1,\"protocol_max\":1", "\"protocol_min\":3,\"protocol_max\":1"),
            ErrorKind::Protocol,
        ),
        (r#"{"request":"list"}"#.to_owned(), ErrorKind::Protocol),
        ("GET / HTTP/1.1".to_owned(), ErrorKind::Invalid),
    ] {
        let mut raw = Raw::connect(&rig);
        assert_eq!(kind(raw.ask(&wrong)), want, "{wrong}");
        assert_eq!(raw.answer(), None, "and is closed");
    }
}

#[test]
fn wrong_requests_are_answered_and_harm_nobody() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let sid = rig.attach().sid;
    let spec = serde_json::to_value(Request::Ensure { session: rig.spec(), wait_ms: 0 }).unwrap();
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut spec = spec.clone();
        change(&mut spec["session"]);
        spec.to_string()
    };
    let mut raw = Raw::greeted(&rig);
    for (line, want) in [
        (String::new(), ErrorKind::Invalid),
        ("{".to_owned(), ErrorKind::Invalid),
        ("[1,2]".to_owned(), ErrorKind::Invalid),
        ("\u{0}\u{1}\u{7f}".to_owned(), ErrorKind::Invalid),
        (r#"{"request":"format"}"#.to_owned(), ErrorKind::Unknown),
        (format!(r#"{{"request":"get","volume":"{SECRET}"}}"#), ErrorKind::Invalid),
        (HELLO.to_owned(), ErrorKind::Invalid),
        (with(&|spec| spec["portals"] = serde_json::json!([])), ErrorKind::Invalid),
        (with(&|spec| spec["portals"] = serde_json::json!(["0.0.0.0:3260"])), ErrorKind::Invalid),
        (with(&|spec| spec["portals"] = vec!["10.0.0.1:1"; 17].into()), ErrorKind::Invalid),
        (with(&|spec| spec["lun"] = 256.into()), ErrorKind::Invalid),
        (with(&|spec| spec["naa"] = "6001".into()), ErrorKind::Invalid),
        (with(&|spec| spec["recovery_timeout_s"] = 0.into()), ErrorKind::Invalid),
        (
            with(&|spec| spec["chap"]["secret"] = format!("{SECRET} \u{0}TargetName=x").into()),
            ErrorKind::Invalid,
        ),
        (with(&|spec| spec["chap"]["user"] = "".into()), ErrorKind::Invalid),
        (with(&|spec| spec["target"] = "not an iqn".into()), ErrorKind::Invalid),
    ] {
        assert_eq!(kind(raw.ask(&line)), want, "{line:?}");
    }
    // The connection goes on, and so does the session. Unknown fields are skipped.
    let newer = r#"{"request":"list","since":7}"#;
    let Some(Answer::Sessions { sessions }) = raw.ask(newer) else { panic!() };
    assert_eq!((sessions.len(), sessions[0].sid, sessions[0].state), (1, sid, SessionState::LoggedIn));
    assert_eq!(rig.target.seen().len(), 1);
    assert!(!log().contains(SECRET));
}

#[test]
fn a_line_without_an_end_ends_the_connection_alone() {
    let rig = Rig::new();
    let _daemon = rig.start();
    rig.attach();
    let mut raw = Raw::greeted(&rig);
    let sender = raw.stream.try_clone().unwrap();
    let sent = std::thread::spawn(move || {
        let block = vec![b'x'; 65536];
        let mut bytes = 0;
        while bytes < 16 * LINE_BYTES_MAX && (&sender).write_all(&block).is_ok() {
            bytes += block.len();
        }
        bytes
    });
    // The daemon tells the reason, if that arrives before the reset of the connection.
    if let Some(answer) = raw.answer() {
        assert_eq!(kind(Some(answer)), ErrorKind::Invalid);
        assert_eq!(raw.answer(), None);
    }
    assert!(sent.join().unwrap() < 4 * LINE_BYTES_MAX);
    assert_eq!(rig.client().list().unwrap().len(), 1);
}

#[test]
fn slow_and_silent_clients_hold_up_nobody() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let mut half = Raw::greeted(&rig);
    half.stream.write_all(br#"{"request":"#).unwrap();
    let _silent = Raw::connect(&rig);
    rig.attach();
    // The daemon answers the slow client when its line is complete.
    assert!(matches!(half.ask(r#""list"}"#), Some(Answer::Sessions { .. })));
}

#[test]
fn one_client_too_many_is_told_so() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let many: Vec<_> = (0..CONNECTIONS_MAX).map(|_| Raw::greeted(&rig)).collect();
    let mut last = Raw::connect(&rig);
    assert_eq!(kind(last.answer()), ErrorKind::Machine);
    let error = Client::connect(rig.dir.path(), "test").unwrap_err();
    assert!(matches!(error.cure(), Cure::Operator | Cure::Retry), "{error}");
    drop(many);
    // A place becomes free as soon as the daemon notices the closed connection.
    let until = std::time::Instant::now() + PATIENCE;
    while Client::connect(rig.dir.path(), "test").is_err() {
        assert!(std::time::Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_watcher_is_told_everything_that_changes() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let mut empty = rig.client().watch().unwrap();
    assert_eq!(empty.next(PATIENCE).unwrap(), Some(SessionEvent::Synced));
    let status = rig.attach();
    let mut watch = rig.client().watch().unwrap();
    let Some(SessionEvent::Session(first)) = watch.next(PATIENCE).unwrap() else { panic!() };
    assert_eq!((first.volume, first.sid), (rig.volume, status.sid));
    assert_eq!(watch.next(PATIENCE).unwrap(), Some(SessionEvent::Synced));
    rig.target.cut_all();
    for state in [SessionState::Recovering, SessionState::LoggedIn] {
        for watch in [&mut watch, &mut empty] {
            next_event(
                watch,
                |event| matches!(event, SessionEvent::Session(status) if status.state == state),
            );
        }
    }
    rig.client().end(rig.volume, End::Logout, PATIENCE).unwrap();
    next_event(
        &mut watch,
        |event| matches!(event, SessionEvent::Session(s) if s.state == SessionState::Ending),
    );
    next_event(&mut watch, |event| *event == SessionEvent::Gone(rig.volume));
}

#[test]
fn a_daemon_that_is_not_there_is_named_with_its_cure() {
    let rig = Rig::new();
    let error = Client::connect(rig.dir.path(), "test").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("sessiond.sock: systemctl status mooring-sessiond"), "{text}");
    assert_eq!(error.cure(), Cure::Retry);
    let daemon = rig.start();
    let mut client = rig.client();
    daemon.kill();
    assert!(matches!(client.list(), Err(ClientError::Broken { .. })));
    // The socket of a dead daemon is no obstacle.
    let _daemon = rig.restart();
    assert_eq!(rig.client().list().unwrap(), []);
    assert_eq!(rig.client().get(VolumeId::random()).unwrap(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes on the socket: the daemon answers others as before.
    #[test]
    fn any_bytes(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..12), greeted: bool) {
        let rig = Rig::new();
        let daemon = rig.start();
        let mut raw = if greeted { Raw::greeted(&rig) } else { Raw::connect(&rig) };
        for piece in pieces {
            if raw.stream.write_all(&piece).is_err() {
                break;
            }
        }
        drop(raw);
        prop_assert_eq!(rig.client().list().unwrap(), vec![]);
        prop_assert!(!daemon.death.happened());
    }
}
