//! A network: an Ethernet switch in this process, one port per VM.
//!
//! QEMU connects each network card to a unix socket (`-netdev stream`): a frame is its length (u32,
//! big endian) and its bytes. This needs no root, no bridge, and no name in the machine's own
//! network.
//!
//! What must never happen here: a VM that does not read and delays the others. Every port has a
//! bounded queue, and a frame that finds it full is dropped, as on a wire. A port that is cut drops
//! everything silently in both directions: to the VM this is a cable that was cut somewhere far
//! away.

use std::collections::HashMap;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result};

use crate::lock;

/// Most frames that may wait for one port.
const QUEUE: usize = 1024;
/// The smallest and largest frame: an Ethernet header, and QEMU's largest buffer.
const FRAME: std::ops::RangeInclusive<usize> = 14..=69_632;
/// Most bytes that are written at once when frames are waiting.
const BATCH: usize = 256 * 1024;

type Mac = [u8; 6];

#[derive(Default)]
struct Port {
    cut: AtomicBool,
    dropped: AtomicU64,
    /// The queue of frames for this port; `None` while nothing is plugged in.
    out: Mutex<Option<SyncSender<Arc<[u8]>>>>,
}

impl Port {
    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    fn deliver(&self, frame: &Arc<[u8]>) {
        let sent = !self.is_cut()
            && lock(&self.out).as_ref().is_some_and(|out| out.try_send(Arc::clone(frame)).is_ok());
        if !sent {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One network.
#[derive(Clone)]
pub struct Switch {
    ports: Arc<[Port]>,
    learned: Arc<Mutex<HashMap<Mac, usize>>>,
}

impl Switch {
    /// Makes a switch with this many empty ports.
    pub fn new(ports: usize) -> Self {
        Self { ports: (0..ports).map(|_| Port::default()).collect(), learned: Arc::default() }
    }

    /// Plugs a VM into a port, and unplugs the one before it.
    pub fn plug(&self, port: usize, stream: UnixStream) -> Result<()> {
        let (sender, frames) = mpsc::sync_channel(QUEUE);
        let slot = self.ports.get(port).with_context(|| format!("the switch has no port {port}"))?;
        let writer = stream.try_clone().context("duplicate a network socket")?;
        *lock(&slot.out) = Some(sender);
        let switch = self.clone();
        thread::Builder::new().name(format!("net-in-{port}")).spawn(move || switch.read(port, stream))?;
        thread::Builder::new().name(format!("net-out-{port}")).spawn(move || write(writer, &frames))?;
        Ok(())
    }

    /// Cuts a port silently, or ends the cut.
    pub fn cut(&self, port: usize, cut: bool) {
        if let Some(port) = self.ports.get(port) {
            port.cut.store(cut, Ordering::SeqCst);
        }
    }

    /// Number of dropped frames for this port, or from it while it was cut.
    pub fn dropped(&self, port: usize) -> u64 {
        self.ports.get(port).map_or(0, |port| port.dropped.load(Ordering::Relaxed))
    }

    fn read(&self, port: usize, stream: UnixStream) {
        let mut stream = BufReader::with_capacity(BATCH, stream);
        let mut length = [0u8; 4];
        while stream.read_exact(&mut length).is_ok() {
            let length = u32::from_be_bytes(length) as usize;
            if !FRAME.contains(&length) {
                eprintln!("rig: a VM sent a network frame of {length} bytes: its port is closed");
                break;
            }
            let mut frame = vec![0u8; length];
            if stream.read_exact(&mut frame).is_err() {
                break;
            }
            self.forward(port, &frame.into());
        }
    }

    /// Forwards a frame that came in at this port.
    fn forward(&self, from: usize, frame: &Arc<[u8]>) {
        let Some(source) = self.ports.get(from) else { return };
        if source.is_cut() {
            source.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (Some(to), Some(sender)) = (mac_at(frame, 0), mac_at(frame, 6)) else { return };
        let target = {
            let mut learned = lock(&self.learned);
            learned.insert(sender, from);
            if to[0] & 1 == 1 { None } else { learned.get(&to).copied() }
        };
        match target {
            Some(port) if port == from => {}
            Some(port) => {
                if let Some(port) = self.ports.get(port) {
                    port.deliver(frame);
                }
            }
            // Send to all: broadcast, multicast, or an unknown address.
            None => {
                for (_, port) in self.ports.iter().enumerate().filter(|(index, _)| *index != from) {
                    port.deliver(frame);
                }
            }
        }
    }
}

fn mac_at(frame: &[u8], at: usize) -> Option<Mac> {
    frame.get(at..at + 6)?.try_into().ok()
}

/// Writes the frames of one port, as many at once as are waiting.
fn write(mut stream: UnixStream, frames: &Receiver<Arc<[u8]>>) {
    let mut batch = Vec::with_capacity(BATCH);
    while let Ok(frame) = frames.recv() {
        batch.clear();
        append(&mut batch, &frame);
        while batch.len() < BATCH
            && let Ok(frame) = frames.try_recv()
        {
            append(&mut batch, &frame);
        }
        if stream.write_all(&batch).is_err() {
            return;
        }
    }
}

fn append(batch: &mut Vec<u8>, frame: &[u8]) {
    if let Ok(length) = u32::try_from(frame.len()) {
        batch.extend_from_slice(&length.to_be_bytes());
        batch.extend_from_slice(frame);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::{Duration, Instant};

    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 1];
    const B: Mac = [2, 0, 0, 0, 0, 2];
    const ALL: Mac = [0xff; 6];

    /// A limit for what must come.
    const PATIENCE: Duration = Duration::from_secs(30);
    /// A wait for what must not come.
    const QUIET: Duration = Duration::from_millis(300);

    fn frame(to: Mac, from: Mac, text: &str) -> Vec<u8> {
        [&to[..], &from[..], &[0x08, 0x00], text.as_bytes()].concat()
    }

    fn send(to: &mut UnixStream, frame: &[u8]) {
        let mut bytes = Vec::new();
        append(&mut bytes, frame);
        to.write_all(&bytes).unwrap();
    }

    fn receive(from: &mut UnixStream) -> io::Result<Vec<u8>> {
        let mut length = [0u8; 4];
        from.read_exact(&mut length)?;
        let mut frame = vec![0u8; u32::from_be_bytes(length) as usize];
        from.read_exact(&mut frame)?;
        Ok(frame)
    }

    /// Says whether nothing comes.
    fn is_quiet(from: &mut UnixStream) -> bool {
        from.set_read_timeout(Some(QUIET)).unwrap();
        let heard = receive(from);
        from.set_read_timeout(Some(PATIENCE)).unwrap();
        heard.is_err()
    }

    fn network(ports: usize) -> (Switch, Vec<UnixStream>) {
        let switch = Switch::new(ports);
        let ends = (0..ports).map(|port| plugged(&switch, port)).collect();
        (switch, ends)
    }

    fn plugged(switch: &Switch, port: usize) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        switch.plug(port, theirs).unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        ours
    }

    #[test]
    fn unknown_goes_to_all_and_known_to_one() {
        let (_switch, mut ends) = network(3);
        let hello = frame(ALL, A, "hello");
        send(&mut ends[0], &hello);
        assert_eq!(receive(&mut ends[1]).unwrap(), hello);
        assert_eq!(receive(&mut ends[2]).unwrap(), hello);
        let answer = frame(A, B, "answer");
        send(&mut ends[1], &answer);
        assert_eq!(receive(&mut ends[0]).unwrap(), answer);
        assert!(is_quiet(&mut ends[2]), "the third port sees no frame for the first");
    }

    #[test]
    fn a_cut_port_neither_sends_nor_receives_until_it_is_healed() {
        let (switch, mut ends) = network(3);
        switch.cut(1, true);
        send(&mut ends[1], &frame(ALL, B, "from the cut port"));
        send(&mut ends[0], &frame(ALL, A, "to all"));
        assert_eq!(receive(&mut ends[2]).unwrap(), frame(ALL, A, "to all"));
        assert!(is_quiet(&mut ends[1]));
        // The frame of each direction is dropped while the port is cut.
        let began = Instant::now();
        while switch.dropped(1) < 2 {
            assert!(began.elapsed() < PATIENCE, "{} dropped", switch.dropped(1));
            thread::sleep(Duration::from_millis(1));
        }
        switch.cut(1, false);
        send(&mut ends[1], &frame(ALL, B, "again"));
        assert_eq!(receive(&mut ends[0]).unwrap(), frame(ALL, B, "again"));
    }

    #[test]
    fn a_port_that_does_not_read_loses_frames_and_holds_nobody_up() {
        let (switch, mut ends) = network(3);
        let big = frame(ALL, A, &"x".repeat(8000));
        for _ in 0..QUEUE * 3 {
            send(&mut ends[0], &big);
            receive(&mut ends[2]).unwrap();
        }
        assert!(switch.dropped(1) > 0);
    }

    #[test]
    fn a_vm_that_boots_again_takes_its_port_over() {
        let (switch, mut ends) = network(2);
        ends[1] = plugged(&switch, 1);
        send(&mut ends[0], &frame(ALL, A, "who is there"));
        assert!(receive(&mut ends[1]).is_ok());
        send(&mut ends[1], &frame(A, B, "me again"));
        assert!(receive(&mut ends[0]).is_ok());
    }

    #[test]
    fn impossible_frames_close_only_their_port() {
        let (_switch, mut ends) = network(3);
        ends[0].write_all(&u32::MAX.to_be_bytes()).unwrap();
        ends[0].write_all(&[0; 64]).ok();
        send(&mut ends[1], &frame(ALL, B, "still here"));
        assert_eq!(receive(&mut ends[2]).unwrap(), frame(ALL, B, "still here"));
    }
}
