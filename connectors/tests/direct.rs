//! A session in user space with a target over TCP, which logs it in with mutual CHAP and answers
//! its commands.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::iscsi_common::*;
use mooring_connectors::DirectSessions;
use mooring_connectors::iscsi::scsi::crc32c;
use mooring_host::{PrCommand, PrError, PrNexus, PrSession, PrSessions};

const WAIT: Duration = Duration::from_secs(20);

/// A target's properties, and its answers to commands, in order.
#[derive(Clone, Copy)]
struct Target {
    /// `true` if the target demands digests.
    digests: bool,
    /// `true` if the target takes data with the command.
    immediate: bool,
    /// The target's secret.
    secret: &'static str,
    answers: &'static [Say],
}

/// Reaction of a target to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Say {
    Status(u8),
    UnitAttention,
    /// Sends a NOP-In that wants an answer before GOOD.
    Nop,
    /// Sends GOOD for another task, and nothing else.
    Astray,
    /// Sends a wrong digest.
    Garbled,
    Hang,
}

const GOOD: Target =
    Target { digests: false, immediate: true, secret: TARGET_SECRET, answers: &[Say::Status(0)] };

struct Wire {
    stream: TcpStream,
    digests: bool,
}

impl Wire {
    fn digest(&mut self, of: &[u8]) {
        let mut digest = [0; 4];
        if self.digests {
            self.stream.read_exact(&mut digest).unwrap();
            assert_eq!(digest, crc32c(of));
        }
    }

    /// Receives one PDU; `None` if the connection has ended.
    fn receive(&mut self) -> Option<Sent> {
        let mut header = [0; 48];
        self.stream.read_exact(&mut header).ok()?;
        self.digest(&header);
        let length = usize::from(header[6]) << 8 | usize::from(header[7]);
        let mut data = vec![0; length.next_multiple_of(4)];
        self.stream.read_exact(&mut data).ok()?;
        if length > 0 {
            self.digest(&data);
        }
        data.truncate(length);
        Some(Sent { header, data })
    }

    fn send(&mut self, header: &Header, data: &[u8]) {
        let mut padded = data.to_vec();
        padded.resize(data.len().next_multiple_of(4), 0);
        self.stream.write_all(header).unwrap();
        if self.digests {
            self.stream.write_all(&crc32c(header)).unwrap();
        }
        self.stream.write_all(&padded).unwrap();
        if self.digests && !padded.is_empty() {
            self.stream.write_all(&crc32c(&padded)).unwrap();
        }
    }
}

fn word(header: &Header, at: usize) -> u32 {
    u32::from_be_bytes(header[at..at + 4].try_into().unwrap())
}

fn pdu(opcode: u8, tag: u32, stat_sn: u32, data: usize) -> Header {
    let mut header = [0; 48];
    (header[0], header[1], header[7]) = (opcode, 0x80, u8::try_from(data).unwrap());
    header[16..20].copy_from_slice(&tag.to_be_bytes());
    header[24..28].copy_from_slice(&stat_sn.to_be_bytes());
    header
}

impl Target {
    fn answer_login(self, sent: &Sent) -> Answer {
        let mut answer = right_answer(sent, 7);
        if sent.keys().iter().any(|key| key == "CHAP_R") {
            answer.data = proof(sent, 7, self.secret);
        }
        let mut words = String::from_utf8(answer.data.clone()).unwrap();
        if self.digests {
            words = words.replace("Digest=None", "Digest=CRC32C");
        }
        if !self.immediate {
            words = words.replace("ImmediateData=Yes", "ImmediateData=No");
        }
        answer.data = words.into_bytes();
        answer.header[8..14].copy_from_slice(&sent.header[8..14]);
        answer
    }

    /// Serves one session. Returns the header and data of every command that came.
    fn serve(self, listener: &TcpListener) -> Vec<Sent> {
        let mut wire = Wire { stream: listener.accept().unwrap().0, digests: false };
        let mut stat_sn = 100;
        loop {
            let Some(sent) = wire.receive() else { return Vec::new() };
            let last = sent.stages() == (1, Some(3));
            let (header, data) = self.answer_login(&sent).stat_sn(stat_sn).bytes();
            stat_sn += 1;
            wire.send(&header, &data);
            if last {
                break;
            }
        }
        wire.digests = self.digests;
        let mut commands = Vec::new();
        let mut answers = self.answers.iter();
        while let Some(mut sent) = wire.receive() {
            assert_eq!(sent.exp_stat_sn(), stat_sn, "{sent:?}");
            let tag = word(&sent.header, 16);
            if sent.header[0] == 0x46 {
                wire.send(&pdu(0x26, tag, stat_sn, 0), &[]);
                return commands;
            }
            assert_eq!((sent.header[0], sent.header[1], sent.header[9]), (0x01, 0xa1, 1));
            assert_eq!(word(&sent.header, 24), u32::try_from(commands.len()).unwrap(), "CmdSN");
            if !self.immediate {
                assert!(sent.data.is_empty());
                let mut ready = pdu(0x31, tag, stat_sn, 0);
                ready[20..24].copy_from_slice(&77_u32.to_be_bytes());
                ready[44..48].copy_from_slice(&24_u32.to_be_bytes());
                wire.send(&ready, &[]);
                let data = wire.receive().unwrap();
                assert_eq!((data.header[0], word(&data.header, 16), word(&data.header, 20)), (5, tag, 77));
                sent.data = data.data;
            }
            commands.push(sent);
            match answers.next().copied().unwrap_or(Say::Status(0)) {
                Say::Status(status) => {
                    let mut end = pdu(0x21, tag, stat_sn, 0);
                    end[3] = status;
                    wire.send(&end, &[]);
                }
                Say::UnitAttention => {
                    let sense = [0, 18, 0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x2a, 3, 0, 0, 0, 0];
                    let mut end = pdu(0x21, tag, stat_sn, sense.len());
                    end[3] = 2;
                    wire.send(&end, &sense);
                }
                Say::Nop => {
                    let mut nop = pdu(0x20, u32::MAX, stat_sn, 0);
                    nop[20..24].copy_from_slice(&55_u32.to_be_bytes());
                    wire.send(&nop, &[]);
                    let answer = wire.receive().unwrap();
                    assert_eq!((answer.header[0], word(&answer.header, 20)), (0x40, 55));
                    wire.send(&pdu(0x21, tag, stat_sn, 0), &[]);
                }
                Say::Astray => wire.send(&pdu(0x21, tag + 1, stat_sn, 0), &[]),
                Say::Garbled => {
                    let header = pdu(0x21, tag, stat_sn, 0);
                    wire.stream.write_all(&header).unwrap();
                    wire.stream.write_all(&[0; 4]).unwrap();
                }
                // Waits until the other side gives up.
                Say::Hang => {
                    drop(wire.receive());
                    return commands;
                }
            }
            stat_sn += 1;
        }
        commands
    }

    fn start(self) -> (PrNexus, JoinHandle<Vec<Sent>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let nexus = PrNexus {
            portal: listener.local_addr().unwrap(),
            target: target().to_string(),
            tpg: TPG,
            initiator: initiator().to_string(),
            chap: (USER.to_owned(), SECRET.to_owned()),
            mutual: (TARGET_USER.to_owned(), TARGET_SECRET.to_owned()),
            lun: 1,
        };
        (nexus, std::thread::spawn(move || self.serve(&listener)))
    }

    fn open(self) -> (Box<dyn PrSession>, JoinHandle<Vec<Sent>>) {
        let (nexus, served) = self.start();
        (DirectSessions.open(&nexus, Instant::now() + WAIT).unwrap(), served)
    }
}

const PREEMPT: PrCommand = PrCommand::Preempt { key: 0x1122, victim: u64::MAX, kind: 5, abort: true };

#[test]
fn commands_and_their_parameters_reach_the_target() {
    for digests in [false, true] {
        for immediate in [true, false] {
            let target = Target { digests, immediate, answers: &[Say::UnitAttention, Say::Nop], ..GOOD };
            let (mut session, served) = target.open();
            session.send(&PrCommand::Register { key: 0x1122, durable: true }).unwrap();
            session.send(&PREEMPT).unwrap();
            session.send(&PrCommand::Clear { key: 0x1122 }).unwrap();
            session.close().unwrap();
            let commands = served.join().unwrap();
            let cdb = |at: usize| commands[at].header[32..42].to_vec();
            let data = |at: usize| -> (u64, u64, u8) {
                let data = &commands[at].data;
                let key = |at: usize| u64::from_be_bytes(data[at..at + 8].try_into().unwrap());
                assert_eq!(data.len(), 24);
                (key(0), key(8), data[20])
            };
            // The target did not do a command that met a unit attention, so the session sends it
            // again.
            assert_eq!(commands.len(), 4);
            for at in [0, 1] {
                assert_eq!(cdb(at), [0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0]);
                assert_eq!(data(at), (0, 0x1122, 1));
            }
            assert_eq!((cdb(2), data(2)), (vec![0x5f, 5, 5, 0, 0, 0, 0, 0, 24, 0], (0x1122, u64::MAX, 0)));
            assert_eq!((cdb(3), data(3)), (vec![0x5f, 3, 0, 0, 0, 0, 0, 0, 24, 0], (0x1122, 0, 0)));
        }
    }
}

#[test]
fn what_a_target_refuses_is_said() {
    let (mut session, served) = Target { answers: &[Say::Status(0x18), Say::Status(8)], ..GOOD }.open();
    assert!(matches!(session.send(&PREEMPT), Err(PrError::Conflict)));
    let busy = session.send(&PREEMPT).unwrap_err();
    assert!(busy.to_string().contains("status 08h"), "{busy}");
    session.close().unwrap();
    assert_eq!(served.join().unwrap().len(), 2);
}

#[test]
fn what_is_not_an_answer_breaks_the_session() {
    for (digests, say) in [(false, Say::Astray), (true, Say::Garbled)] {
        let answers: &'static [Say] = if say == Say::Astray { &[Say::Astray] } else { &[Say::Garbled] };
        let (mut session, served) = Target { digests, answers, ..GOOD }.open();
        assert!(matches!(session.send(&PREEMPT), Err(PrError::Broken(_))), "{say:?}");
        drop(session);
        assert_eq!(served.join().unwrap().len(), 1, "it is not sent again");
    }
}

#[test]
fn a_target_that_does_not_answer_has_its_time() {
    let (nexus, served) = Target { answers: &[Say::Hang], ..GOOD }.start();
    // The login is in this time, too.
    let mut session = DirectSessions.open(&nexus, Instant::now() + Duration::from_secs(5)).unwrap();
    assert!(matches!(session.send(&PREEMPT), Err(PrError::Broken(_))));
    drop(session);
    assert_eq!(served.join().unwrap().len(), 1);
}

#[test]
fn a_target_that_does_not_prove_itself_gets_no_command() {
    let (nexus, served) = Target { secret: "another-of-a-1234", ..GOOD }.start();
    let error = DirectSessions.open(&nexus, Instant::now() + WAIT).err().unwrap();
    assert!(matches!(error, PrError::Login { .. }) && !format!("{nexus:?} {error:?}").contains(SECRET));
    assert_eq!(served.join().unwrap().len(), 0);
}

/// Knocks at a portal that answers a login, that hangs up, that takes the connection and is silent,
/// and that is absent.
#[test]
fn a_knock_tells_a_silent_portal_from_one_that_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let portal = listener.local_addr().unwrap();
    let served = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut wire = Wire { stream, digests: false };
        let asked = wire.receive().unwrap();
        let mut answer = [0; 48];
        answer[0] = 0x23;
        wire.stream.write_all(&answer).unwrap();
        drop(listener.accept().unwrap());
        let silent = listener.accept().unwrap();
        (asked, listener, silent)
    });
    DirectSessions.knock(portal, Instant::now() + WAIT).unwrap();
    DirectSessions.knock(portal, Instant::now() + WAIT).expect("hanging up is an answer");
    let begun = Instant::now();
    let error = DirectSessions.knock(portal, begun + Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert!(begun.elapsed() < WAIT);
    let (asked, listener, silent) = served.join().unwrap();
    // Operational stage, on to the full feature phase; a discovery session, and no target.
    assert_eq!(asked.header[..2], [0x43, 0x87]);
    let text = String::from_utf8(asked.data).unwrap();
    assert!(text.contains("SessionType=Discovery") && !text.contains("TargetName"), "{text}");
    drop((listener, silent));
    let error = DirectSessions.knock(portal, Instant::now() + WAIT).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}
