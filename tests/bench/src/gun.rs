//! An iSCSI session in user space that sends PDUs which no kernel's initiator would send, several
//! at a time, and counts the answers. The login is that of our own initiator, without CHAP.
//!
//! What must never happen here: an endless wait for an answer; a session that counts as alive after
//! the target ended it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_connectors::iscsi::scsi::{self, Numbers};
use mooring_connectors::iscsi::{Isid, Login, LoginConfig, LoginStep};
use mooring_host::HEADER_BYTES;
use mooring_model::Iqn;

use crate::shots::Shot;

/// Time limit for an answer. Some of these commands have none, and a late one costs a login.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Time limit for a connection and its login.
const LOGIN_WITHIN: Duration = Duration::from_secs(20);
/// Commands in flight at once.
const WINDOW: usize = 24;
/// CDB bytes in a header; the others are in an additional segment.
const CDB_BYTES: usize = 16;

/// The two ends of a login.
#[derive(Debug, Clone)]
pub struct Door {
    /// The portal.
    pub portal: SocketAddr,
    /// The target.
    pub target: Iqn,
    /// The initiator.
    pub initiator: Iqn,
    /// The LUN.
    pub lun: u8,
}

/// Counts of the commands' results.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Commands that were sent.
    pub sent: u64,
    /// GOOD.
    pub good: u64,
    /// CHECK CONDITION.
    pub checked: u64,
    /// RESERVATION CONFLICT.
    pub conflicts: u64,
    /// Other results.
    pub others: u64,
    /// PDUs that the target rejected.
    pub rejected: u64,
    /// Commands without an answer in time.
    pub unanswered: u64,
    /// Commands that were answered more than once.
    pub twice: u64,
    /// Times that the target ended the connection.
    pub dropped: u64,
}

/// One session.
#[derive(Debug)]
pub struct Gun {
    door: Door,
    stream: TcpStream,
    command: u32,
    expected: u32,
    tag: u32,
    /// Commands without an answer, with the data for a target that asks for them.
    flying: BTreeMap<u32, Vec<u8>>,
    /// The results so far.
    pub tally: Tally,
}

/// A target's PDU.
struct Came {
    header: [u8; HEADER_BYTES],
    data: Vec<u8>,
}

impl Came {
    fn word(&self, at: usize) -> u32 {
        word(&self.header, at)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn receive(stream: &mut TcpStream) -> io::Result<Came> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let length = usize::from(header[5]) << 16 | usize::from(header[6]) << 8 | usize::from(header[7]);
    let mut data = vec![0; usize::from(header[4]) * 4 + length.next_multiple_of(4)];
    stream.read_exact(&mut data)?;
    data.truncate(usize::from(header[4]) * 4 + length);
    Ok(Came { header, data })
}

fn padded(mut header: Vec<u8>, data: &[u8]) -> Vec<u8> {
    header.extend(data);
    header.resize(header.len().next_multiple_of(4), 0);
    header
}

fn log_in(door: &Door) -> Result<(TcpStream, u32)> {
    let mut stream = TcpStream::connect_timeout(&door.portal, LOGIN_WITHIN).context("connect")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOGIN_WITHIN))?;
    let isid: Isid = "80f0220000f0".parse()?;
    let config = LoginConfig {
        initiator: &door.initiator,
        target: &door.target,
        tpg: 1,
        isid,
        chap: None,
        alias: None,
    };
    let (mut login, mut step) = Login::start(config, 0, &mut |_| {});
    loop {
        match step {
            LoginStep::Send { header, data } => {
                stream.write_all(&padded(header.to_vec(), &data))?;
                let came = receive(&mut stream).context("wait for the login's answer")?;
                step = login.receive(&came.header, &came.data)?;
            }
            LoginStep::Done(negotiated) => {
                stream.set_read_timeout(Some(ANSWER_WITHIN))?;
                return Ok((stream, negotiated.exp_stat_sn));
            }
            LoginStep::Redirect { address, .. } => bail!("the target sends us to {address:?}"),
        }
    }
}

impl Gun {
    /// Logs in.
    pub fn load(door: Door) -> Result<Self> {
        let (stream, expected) = log_in(&door)?;
        Ok(Self {
            door,
            stream,
            // The login request had number 0, and uses none up.
            command: 0,
            expected,
            tag: 1,
            flying: BTreeMap::new(),
            tally: Tally::default(),
        })
    }

    /// Sends a command. If it must be alone in flight, waits for the commands before it, and for
    /// its own end.
    pub fn shoot(&mut self, shot: &Shot) -> Result<()> {
        self.tally.sent += 1;
        let alone = shot.goes_alone();
        let most = if alone { 0 } else { WINDOW - 1 };
        let sent = self.settle(most).and_then(|()| self.send(shot));
        let rejected = self.tally.rejected;
        let ended = sent.and_then(|()| if alone { self.settle(0) } else { Ok(()) });
        // The data after a rejected PDU's header are taken for the next PDU.
        let lost = self.tally.rejected > rejected && !shot.immediate.is_empty();
        if ended.is_err() || lost {
            self.again()?;
        }
        Ok(())
    }

    /// Waits for all answers.
    pub fn rest(&mut self) -> Result<()> {
        if self.settle(0).is_err() {
            self.again()?;
        }
        Ok(())
    }

    /// Reads the disk's first block, as a read-only host can: this shows that the refusals came
    /// from a working target.
    pub fn reads(&mut self) -> Result<()> {
        self.rest()?;
        for _ in 0..8 {
            let before = self.tally.good;
            let mut cdb = vec![0; 10];
            (cdb[0], cdb[8]) = (0x28, 1);
            let shot = Shot {
                cdb,
                reads: true,
                writes: false,
                ends: true,
                expected: 512,
                immediate: Vec::new(),
                unsolicited: Vec::new(),
                content: Vec::new(),
            };
            self.shoot(&shot)?;
            self.rest()?;
            if self.tally.good > before {
                return Ok(());
            }
        }
        bail!("the disk can't be read any more: {:?}", self.tally)
    }

    /// Makes a new session: the old one is over, or an answer did not come.
    fn again(&mut self) -> Result<()> {
        self.flying.clear();
        let began = Instant::now();
        loop {
            match log_in(&self.door) {
                Ok((stream, expected)) => {
                    (self.stream, self.expected) = (stream, expected);
                    self.command = 0;
                    return Ok(());
                }
                Err(error) if began.elapsed() > LOGIN_WITHIN => return Err(error.context("log in again")),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    fn send(&mut self, shot: &Shot) -> io::Result<()> {
        let tag = self.tag;
        self.tag = (self.tag + 1) & 0x7fff_ffff;
        let mut header = [0; HEADER_BYTES];
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        header[0] = 0x01;
        header[1] = bit(shot.ends, 0x80) | bit(shot.reads, 0x40) | bit(shot.writes, 0x20) | 1;
        let (first, more) = shot.cdb.split_at(shot.cdb.len().min(CDB_BYTES));
        let mut segment = Vec::new();
        if !more.is_empty() {
            let length = u16::try_from(more.len() + 1).unwrap_or(u16::MAX);
            segment.extend(length.to_be_bytes());
            segment.extend([1, 0]);
            segment.extend(more);
            segment.resize(segment.len().next_multiple_of(4), 0);
            header[4] = u8::try_from(segment.len() / 4).unwrap_or(u8::MAX);
        }
        let length = u32::try_from(shot.immediate.len()).unwrap_or(u32::MAX).to_be_bytes();
        header[5..8].copy_from_slice(&length[1..]);
        header[9] = self.door.lun;
        header[20..24].copy_from_slice(&shot.expected.to_be_bytes());
        header[32..32 + first.len()].copy_from_slice(first);
        let header = scsi::with_numbers(header, self.numbers(tag));
        self.command = self.command.wrapping_add(1);
        let mut whole = header.to_vec();
        whole.extend(segment);
        let mut whole = padded(whole, &shot.immediate);
        if !shot.unsolicited.is_empty() {
            let offset = u32::try_from(shot.immediate.len()).unwrap_or(0);
            whole.extend(self.data_out(tag, scsi::NO_TAG, 0, offset, &shot.unsolicited));
        }
        self.flying.insert(tag, shot.content.clone());
        self.stream.write_all(&whole)
    }

    fn numbers(&self, tag: u32) -> Numbers {
        Numbers { tag, command: self.command, expected: self.expected }
    }

    fn data_out(&self, tag: u32, asked: u32, number: u32, offset: u32, data: &[u8]) -> Vec<u8> {
        let bytes = u16::try_from(data.len()).unwrap_or(u16::MAX);
        let mut header = scsi::data_out(self.door.lun, bytes, asked, self.numbers(tag));
        header[36..40].copy_from_slice(&number.to_be_bytes());
        header[40..44].copy_from_slice(&offset.to_be_bytes());
        padded(header.to_vec(), &data[..usize::from(bytes).min(data.len())])
    }

    /// Takes answers until at most this many commands are without one. An error: the connection is
    /// of no more use.
    fn settle(&mut self, most: usize) -> io::Result<()> {
        while self.flying.len() > most {
            match receive(&mut self.stream) {
                Ok(came) => self.take(&came)?,
                Err(error) => {
                    let late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                    self.tally.unanswered += self.flying.len() as u64;
                    self.tally.dropped += u64::from(!late);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, came: &Came) -> io::Result<()> {
        let (kind, tag) = (came.header[0] & 0x3f, came.word(16));
        let ends = matches!(kind, 0x21 | 0x3f) || (kind == 0x25 && came.header[1] & 1 == 1);
        if ends {
            self.expected = came.word(24).wrapping_add(1);
        }
        match kind {
            0x21 | 0x25 if ends => self.ended(tag, came.header[3]),
            // The data segment is the header of the rejected PDU.
            0x3f => {
                self.tally.rejected += 1;
                self.flying.remove(&word(&came.data, 16));
                if self.flying.is_empty() {
                    self.command = came.word(28);
                }
            }
            0x31 => return self.give(came),
            0x20 if came.word(20) != scsi::NO_TAG => {
                let answer = scsi::nop_out(came.word(20), self.numbers(scsi::NO_TAG));
                return self.stream.write_all(&answer);
            }
            // The target will end the connection, or has ended a command without naming it.
            0x32 => return Err(ErrorKind::ConnectionReset.into()),
            _ => {}
        }
        if ends && self.flying.is_empty() {
            self.command = came.word(28);
        }
        Ok(())
    }

    fn ended(&mut self, tag: u32, status: u8) {
        if self.flying.remove(&tag).is_none() {
            self.tally.twice += 1;
            return;
        }
        match status {
            0x00 => self.tally.good += 1,
            0x02 => self.tally.checked += 1,
            0x18 => self.tally.conflicts += 1,
            _ => self.tally.others += 1,
        }
    }

    /// Sends data that the target asks for.
    fn give(&mut self, came: &Came) -> io::Result<()> {
        let (tag, asked, offset, bytes) = (came.word(16), came.word(20), came.word(40), came.word(44));
        let content = self.flying.get(&tag).cloned().unwrap_or_default();
        let mut data: Vec<u8> =
            content.iter().copied().cycle().skip(offset as usize).take(bytes as usize).collect();
        data.resize(bytes as usize, 0);
        let mut sent = 0_u32;
        let pieces: Vec<&[u8]> = data.chunks(8192).collect();
        for (number, piece) in pieces.iter().enumerate() {
            let mut pdu = self.data_out(tag, asked, u32::try_from(number).unwrap_or(0), offset + sent, piece);
            if number + 1 < pieces.len() {
                // More of this burst follows.
                pdu[1] &= 0x7f;
            }
            self.stream.write_all(&pdu)?;
            sent += u32::try_from(piece.len()).unwrap_or(0);
        }
        Ok(())
    }
}
