//! Opens a session with a target in user space: over TCP, without the kernel's initiator, so that
//! no disk of it ever appears on this machine. Such a session lives for a few commands. A storage
//! node's agent clears and preempts persistent reservations with it (decision 44).
//!
//! What must never happen here: a session without mutual CHAP; a command that is sent again
//! although it may have been done; waiting without an end.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mooring_host::{
    HEADER_BYTES, PrCommand, PrError, PrNexus, PrSession, PrSessions, dial, dial_here, drop_connection,
};
use mooring_model::{Iqn, Secret};

use crate::clock;
use crate::iscsi::scsi::{self, Ended, NO_TAG, Numbers, Said};
use crate::iscsi::{
    Credentials, Isid, Login, LoginConfig, LoginStep, Negotiated, discovery_request, logout_request,
};

/// Initiator name of the test of a portal: no ACL has it.
const KNOCKS: &str = "iqn.2026-11.dev.mooring:knock";

/// Operation code of PERSISTENT RESERVE OUT.
const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
/// Bytes of its parameter list.
const PARAMETERS: u8 = 24;
type Parameters = [u8; PARAMETERS as usize];
/// Maximum number of unit attentions to read before one command. LIO keeps one for each event.
const ATTENTIONS_MAX: usize = 16;
/// Maximum number of PDUs that the target may send beside an answer, for one command.
const ASIDES_MAX: usize = 16;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Opens sessions in user space.
#[derive(Debug, Clone, Copy, Default)]
pub struct DirectSessions;

impl PrSessions for DirectSessions {
    fn open(&self, nexus: &PrNexus, until: Instant) -> Result<Box<dyn PrSession>, PrError> {
        let open = || -> Result<Direct, Cause> {
            let stream = dial(nexus.portal, left(until))?;
            let mut link = Link { stream, until, header_digest: false, data_digest: false };
            let negotiated = log_in(&mut link, nexus)?;
            link.header_digest = negotiated.transfer.header_digest;
            link.data_digest = negotiated.transfer.data_digest;
            Ok(Direct {
                link,
                lun: nexus.lun,
                immediate: negotiated.transfer.immediate_data,
                numbers: Numbers { tag: 1, command: 0, expected: negotiated.exp_stat_sn },
            })
        };
        let failed = |source| PrError::Login { target: nexus.target.clone(), portal: nexus.portal, source };
        Ok(Box::new(open().map_err(failed)?))
    }

    fn knock(&self, portal: SocketAddr, until: Instant) -> io::Result<()> {
        let own: Iqn = KNOCKS.parse().map_err(io::Error::other)?;
        let isid = Isid::of(&own, &own, portal.to_string().parse().map_err(io::Error::other)?);
        let stream = dial_here(portal, left(until))?;
        let mut link = Link { stream, until, header_digest: false, data_digest: false };
        let (header, data) = discovery_request(&own, isid);
        let mut answer = [0; HEADER_BYTES];
        let answered = link.send(&header, &data).and_then(|()| link.fill(&mut answer));
        drop_connection(link.stream);
        match answered {
            // A read that reaches its time limit has one of these kinds, depending on the system.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(io::ErrorKind::TimedOut.into())
            }
            // A closed connection is an answer, too.
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(clock::instant())
}

/// Makes the error of an unexpected answer.
fn wrong(what: impl Into<String>) -> Cause {
    what.into().into()
}

fn log_in(link: &mut Link, nexus: &PrNexus) -> Result<Negotiated, Cause> {
    let (initiator, target): (Iqn, Iqn) = (nexus.initiator.parse()?, nexus.target.parse()?);
    let (user, secret) = nexus.chap.clone();
    let (mutual, proof) = nexus.mutual.clone();
    let credentials = Credentials {
        user,
        secret: Secret::new(secret),
        mutual: Some((mutual, Secret::new(proof))),
        other_mutual: None,
    };
    let config = LoginConfig {
        initiator: &initiator,
        target: &target,
        tpg: nexus.tpg,
        isid: Isid::of(&initiator, &target, nexus.portal.to_string().parse()?),
        chap: Some(credentials),
        alias: None,
    };
    let mut random = true;
    let (mut login, mut step) = Login::start(config, 0, &mut |bytes| {
        random &= getrandom::fill(bytes).is_ok();
    });
    if !random {
        return Err(wrong("this machine gives no random bytes for CHAP"));
    }
    loop {
        match step {
            LoginStep::Send { header, data } => {
                link.send(&header, &data)?;
                let (header, data) = link.receive()?;
                step = login.receive(&header, &data)?;
            }
            LoginStep::Done(negotiated) => return Ok(negotiated),
            LoginStep::Redirect { .. } => {
                return Err(wrong("it redirects, which a target of ours never does"));
            }
        }
    }
}

/// A TCP connection that carries PDUs until a time limit.
struct Link {
    stream: TcpStream,
    until: Instant,
    header_digest: bool,
    data_digest: bool,
}

impl Link {
    fn left(&self) -> io::Result<Duration> {
        let left = left(self.until);
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    fn send(&mut self, header: &[u8; HEADER_BYTES], data: &[u8]) -> io::Result<()> {
        let mut bytes = header.to_vec();
        if self.header_digest {
            bytes.extend(scsi::crc32c(header));
        }
        if !data.is_empty() {
            let mut padded = data.to_vec();
            padded.resize(data.len().next_multiple_of(4), 0);
            bytes.extend(&padded);
            if self.data_digest {
                bytes.extend(scsi::crc32c(&padded));
            }
        }
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(&bytes)
    }

    /// Reads with the time that is left at each read: a peer that sends byte by byte gains nothing.
    fn fill(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn digest(&mut self, wanted: bool, of: &[u8]) -> Result<(), Cause> {
        let mut digest = [0; 4];
        if wanted {
            self.fill(&mut digest)?;
            if digest != scsi::crc32c(of) {
                return Err(wrong("a PDU of the target came with a wrong digest"));
            }
        }
        Ok(())
    }

    /// Receives the next PDU. The data come without padding.
    fn receive(&mut self) -> Result<([u8; HEADER_BYTES], Vec<u8>), Cause> {
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header)?;
        let (more, bytes) =
            scsi::lengths(&header).ok_or_else(|| wrong("the target sends more data than was asked for"))?;
        let mut whole = vec![0; HEADER_BYTES + more];
        whole[..HEADER_BYTES].copy_from_slice(&header);
        self.fill(&mut whole[HEADER_BYTES..])?;
        self.digest(self.header_digest, &whole)?;
        let mut data = vec![0; bytes.next_multiple_of(4)];
        if bytes > 0 {
            self.fill(&mut data)?;
            self.digest(self.data_digest, &data)?;
        }
        data.truncate(bytes);
        Ok((header, data))
    }
}

/// A session of one connection, with one command at a time.
struct Direct {
    link: Link,
    lun: u8,
    immediate: bool,
    numbers: Numbers,
}

/// Encodes the command and its parameter list (SPC-4, 6.16). Types are those of one logical unit
/// (scope 0).
fn encode(command: &PrCommand) -> ([u8; 10], Parameters) {
    let (action, kind, own, other, durable) = match *command {
        // The kernel wants no key from an initiator that is not registered yet, and ignores the key
        // of one that is.
        PrCommand::Register { key, durable } => (6, 0, 0, key, durable),
        PrCommand::Clear { key } => (3, 0, key, 0, false),
        PrCommand::Preempt { key, victim, kind, abort } => (4 + u8::from(abort), kind, key, victim, false),
    };
    let mut parameters = Parameters::default();
    parameters[..8].copy_from_slice(&own.to_be_bytes());
    parameters[8..16].copy_from_slice(&other.to_be_bytes());
    parameters[20] = u8::from(durable);
    let cdb = [PERSISTENT_RESERVE_OUT, action, kind, 0, 0, 0, 0, 0, PARAMETERS, 0];
    (cdb, parameters)
}

impl Direct {
    /// Sends one command once, and waits for its end.
    fn command(&mut self, cdb: &[u8], data: &Parameters) -> Result<Ended, Cause> {
        let numbers = self.numbers;
        let bytes = u16::from(PARAMETERS);
        let immediate = if self.immediate { bytes } else { 0 };
        let header = scsi::write_command(self.lun, cdb, bytes, immediate, numbers);
        self.link.send(&header, &data[..usize::from(immediate)])?;
        self.numbers.command = numbers.command.wrapping_add(1);
        self.numbers.tag = numbers.tag.wrapping_add(1);
        for _ in 0..ASIDES_MAX {
            let (header, came) = self.link.receive()?;
            match scsi::read(&header, &came) {
                Said::Ended { tag, number, how } if tag == numbers.tag => {
                    self.numbers.expected = number.wrapping_add(1);
                    return Ok(how);
                }
                Said::Ready { tag, asked, offset: 0, bytes: whole }
                    if tag == numbers.tag && whole == u32::from(bytes) && immediate == 0 =>
                {
                    let numbers = Numbers { expected: self.numbers.expected, ..numbers };
                    self.link.send(&scsi::data_out(self.lun, bytes, asked, numbers), data)?;
                }
                Said::Nop { asked: NO_TAG } => {}
                Said::Nop { asked } => self.link.send(&scsi::nop_out(asked, self.numbers), &[])?,
                other => return Err(wrong(format!("the target sends {other:?} in the middle of a command"))),
            }
        }
        Err(wrong("the target sends messages, but not the end of the command"))
    }
}

impl PrSession for Direct {
    fn send(&mut self, command: &PrCommand) -> Result<(), PrError> {
        let (cdb, parameters) = encode(command);
        for _ in 0..ATTENTIONS_MAX {
            let refused = match self.command(&cdb, &parameters).map_err(PrError::Broken)? {
                Ended::Good => return Ok(()),
                Ended::UnitAttention => continue,
                Ended::Conflict => return Err(PrError::Conflict),
                Ended::Check { key, code: (code, qualifier) } => {
                    format!("sense key {key:x}h, code {code:02x}h/{qualifier:02x}h")
                }
                Ended::Status(status) => format!("status {status:02x}h"),
                Ended::Failed(response) => format!("response {response:02x}h"),
            };
            return Err(PrError::Refused(refused));
        }
        Err(PrError::Refused("the target answers each attempt with a unit attention".to_owned()))
    }

    fn close(mut self: Box<Self>) -> Result<(), PrError> {
        let header = scsi::with_numbers(logout_request(), self.numbers);
        let mut log_out = || -> Result<(), Cause> {
            self.link.send(&header, &[])?;
            for _ in 0..ASIDES_MAX {
                let (header, came) = self.link.receive()?;
                if scsi::read(&header, &came) == Said::LoggedOut {
                    return Ok(());
                }
            }
            Err(wrong("the target does not answer the logout"))
        };
        let done = log_out().map_err(PrError::Broken);
        drop_connection(self.link.stream);
        done
    }
}
