//! Makes a login by hand through the kernel's requests, with CHAP.

use std::net::TcpStream;
use std::time::Duration;

use super::super::chap::{digest, hex, unhex};
use super::super::pdu::{Pair, Pdu, opcode, pairs, text, value};
use super::super::*;
use crate::{IscsiEvent, IscsiEvents, IscsiKernel, IscsiParam, StopMode};

pub(super) const INITIATOR: &str = "iqn.2026-01.lab:host1";
pub(super) const TARGET: &str = "iqn.2026-01.lab.storage:t0";
pub(super) const ISID: [u8; 6] = [0x80, 1, 2, 3, 4, 5];
pub(super) const SERIAL: &str = "11112222-3333-4444-5555-666677778888";
pub(super) const SIZE: u64 = 1 << 20;
/// Waits that always end by an event.
pub(super) const LONG: Duration = Duration::from_secs(20);

/// Failure of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    Status(u8, u8),
    Error(u32),
    Proof,
    Silence,
}

pub(super) fn target() -> FakeTarget {
    let target = FakeTarget::start(TARGET).unwrap();
    target.set_disk(1, FakeDisk::new(SERIAL, SIZE));
    target.allow(INITIATOR, Acl::default());
    target
}

pub(super) fn with_chap(mutual: bool) -> FakeTarget {
    let target = target();
    let mutual = mutual.then(|| Credentials::new("target", "abcdefabcdef"));
    target.allow(
        INITIATOR,
        Acl { chap: Some(Credentials::new("user", "secretsecret")), mutual, read_only: false },
    );
    target
}

/// Stand-in for a daemon: it has a stream of events, and dies when it is dropped.
pub(super) struct Driver {
    pub(super) host: FakeHost,
    pub(super) events: FakeIscsiEvents,
    pub(super) socket: Option<TcpStream>,
    pub(super) isid: [u8; 6],
    pub(super) wait: Duration,
    /// CHAP algorithm, secret, and the target's secret.
    pub(super) chap: Option<(u8, &'static str, Option<&'static str>)>,
}

fn keys(list: &[(&str, &str)]) -> Vec<Pair> {
    list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

impl Driver {
    pub(super) fn new(host: &FakeHost) -> Self {
        let events = host.events();
        Self { host: host.clone(), events, socket: None, isid: ISID, wait: LONG, chap: None }
    }

    pub(super) fn create(&self) -> u32 {
        let session = self.host.create_session(128, 32).unwrap();
        self.host.create_connection(session.sid).unwrap();
        session.sid
    }

    pub(super) fn bind(&mut self, sid: u32, target: &FakeTarget) {
        let socket = TcpStream::connect(target.address()).unwrap();
        self.host.bind_connection(sid, &socket).unwrap();
        self.socket = Some(socket);
        self.host.set_param(sid, IscsiParam::IfaceName, "mooring-x").unwrap();
        self.host.set_param(sid, IscsiParam::TargetName, TARGET).unwrap();
    }

    /// Creates a session and logs it in.
    pub(super) fn attach(&mut self, target: &FakeTarget) -> Result<u32, Lost> {
        let sid = self.create();
        self.bind(sid, target);
        self.login(sid).map(|_| sid)
    }

    pub(super) fn recover(&mut self, sid: u32, target: &FakeTarget) -> Result<(), Lost> {
        self.host.stop_connection(sid, StopMode::Recover).unwrap();
        // Events of the connection that is over.
        while self.events.next(Duration::ZERO).unwrap().is_some() {}
        self.bind(sid, target);
        self.login(sid).map(|_| ())
    }

    pub(super) fn destroy(&mut self, sid: u32) {
        self.host.stop_connection(sid, StopMode::Terminate).unwrap();
        self.socket = None;
        self.host.destroy_connection(sid).unwrap();
        self.host.destroy_session(sid).unwrap();
        self.until(|event| matches!(event, IscsiEvent::Destroyed(ids) if ids.sid == sid));
    }

    pub(super) fn until(&mut self, wanted: impl Fn(&IscsiEvent) -> bool) -> IscsiEvent {
        loop {
            let event = self.events.next(LONG).unwrap().expect("no event within 20 s");
            if wanted(&event) {
                return event;
            }
        }
    }

    /// Sends one request of a login and returns its answer, with halves of the C bit joined.
    pub(super) fn exchange(&mut self, sid: u32, flags: u8, list: &[Pair]) -> Result<(u8, Vec<Pair>), Lost> {
        let (mut bytes, mut request) = (Vec::new(), text(list));
        loop {
            let mut pdu = Pdu::new(0x40 | opcode::LOGIN);
            pdu.header[1] = flags;
            pdu.set(8, &self.isid);
            pdu.data = std::mem::take(&mut request);
            self.host.send_pdu(sid, &pdu.header, &pdu.data).map_err(|_| Lost::Silence)?;
            let (header, data) = loop {
                match self.events.next(self.wait).unwrap() {
                    None => return Err(Lost::Silence),
                    Some(IscsiEvent::Pdu { sid: of, header, data, .. }) if of == sid => break (header, data),
                    Some(IscsiEvent::ConnectionError { sid: of, error, .. }) if of == sid => {
                        return Err(Lost::Error(error));
                    }
                    Some(_) => {}
                }
            };
            if header[36] != 0 {
                return Err(Lost::Status(header[36], header[37]));
            }
            bytes.extend(data);
            if header[1] & 0x40 == 0 {
                return Ok((header[1], pairs(&bytes).unwrap()));
            }
        }
    }

    /// Runs a login up to START. Returns the operational answer.
    pub(super) fn login(&mut self, sid: u32) -> Result<Vec<Pair>, Lost> {
        let mut first =
            keys(&[("InitiatorName", INITIATOR), ("TargetName", TARGET), ("SessionType", "Normal")]);
        if let Some(chap) = self.chap {
            self.authenticate(sid, std::mem::take(&mut first), chap)?;
        }
        first.extend(keys(&[
            ("HeaderDigest", "None"),
            ("InitialR2T", "No"),
            ("ImmediateData", "Yes"),
            ("MaxBurstLength", "16776192"),
            ("FirstBurstLength", "262144"),
            ("DefaultTime2Wait", "0"),
            ("MaxRecvDataSegmentLength", "262144"),
            ("X-lab.new", "1"),
        ]));
        let (mut flags, answer) = self.exchange(sid, 0x87, &first)?;
        while flags & 0x80 == 0 {
            (flags, _) = self.exchange(sid, 0x87, &[])?;
        }
        self.host.start_connection(sid).map_err(|_| Lost::Silence)?;
        Ok(answer)
    }

    fn authenticate(
        &mut self,
        sid: u32,
        mut first: Vec<Pair>,
        (algorithm, secret, theirs): (u8, &str, Option<&str>),
    ) -> Result<(), Lost> {
        first.extend(keys(&[("AuthMethod", "CHAP")]));
        let (_, answer) = self.exchange(sid, 0x00, &first)?;
        if value(&answer, "AuthMethod") != Some("CHAP") {
            return Err(Lost::Proof);
        }
        let (_, answer) = self.exchange(sid, 0x00, &keys(&[("CHAP_A", &format!("9,{algorithm}"))]))?;
        assert_eq!(value(&answer, "CHAP_A"), Some(algorithm.to_string().as_str()));
        let id = value(&answer, "CHAP_I").unwrap().parse().unwrap();
        let challenge = unhex(value(&answer, "CHAP_C").unwrap()).unwrap();
        let response = hex(&digest(algorithm, id, secret, &challenge).unwrap());
        let mut proof = keys(&[("CHAP_N", "user"), ("CHAP_R", &response)]);
        if theirs.is_some() {
            proof.extend(keys(&[("CHAP_I", "7"), ("CHAP_C", "0x00112233")]));
        }
        let (flags, answer) = self.exchange(sid, 0x81, &proof)?;
        assert_eq!(flags, 0x81, "the security stage ends");
        let Some(theirs) = theirs else { return Ok(()) };
        let wanted = digest(algorithm, 7, theirs, &[0x00, 0x11, 0x22, 0x33]).unwrap();
        let good = value(&answer, "CHAP_N") == Some("target")
            && value(&answer, "CHAP_R").and_then(unhex).as_ref() == Some(&wanted);
        if good { Ok(()) } else { Err(Lost::Proof) }
    }
}
