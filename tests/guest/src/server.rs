//! Takes frames from the port and hands each channel its own.
//!
//! What must never happen here: one slow command that delays another. So the reading thread only
//! moves bytes into queues, and the channels' threads do all work. (One exception, for the sake of
//! memory: more than 4 MiB for a file whose file system hangs. Push large files to the root or to
//! /tmp.)

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_guest::wire::{self, Ended, Frame, Hello, Kind, Put, Spawn};

use crate::work::{self, Input};

/// The connection to the rig, shared by all channels.
#[derive(Clone)]
pub(crate) struct Port(Arc<Mutex<File>>);

/// Takes a lock. It is only ever held for one write, so a panic leaves no state that would stop us.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    pub(crate) fn send(&self, channel: u32, kind: Kind, payload: &[u8]) {
        if let Err(e) = wire::write_frame(&mut *lock(&self.0), channel, kind, payload) {
            eprintln!("mooring-guest: cannot write to the rig: {e}");
        }
    }

    pub(crate) fn ended(&self, channel: u32, ended: &Ended) {
        match serde_json::to_vec(ended) {
            Ok(json) => self.send(channel, Kind::Ended, &json),
            Err(e) => self.failed(channel, &format!("encode the end of the command: {e}")),
        }
    }

    pub(crate) fn failed(&self, channel: u32, why: &str) {
        self.send(channel, Kind::Failed, why.as_bytes());
    }
}

/// The open channels, by number.
pub(crate) type Channels = Arc<Mutex<HashMap<u32, Input>>>;

/// Serves the rig until the port closes.
pub(crate) fn serve() -> Result<()> {
    let path = find_port()?;
    let file = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("open {}", path.display()))?;
    let port = Port(Arc::new(Mutex::new(file.try_clone().context("duplicate the port")?)));
    let hello = Hello {
        name: fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        uptime: uptime(),
    };
    port.send(0, Kind::Hello, &serde_json::to_vec(&hello)?);
    let channels = Channels::default();
    let mut reader = BufReader::with_capacity(wire::CHUNK, file);
    while let Some(frame) = wire::read_frame(&mut reader)? {
        dispatch(frame, &port, &channels);
    }
    bail!("the rig closed the port")
}

fn dispatch(frame: Frame, port: &Port, channels: &Channels) {
    let Frame { channel, kind, payload } = frame;
    let result = match kind {
        Kind::Spawn => serde_json::from_slice::<Spawn>(&payload)
            .map_err(anyhow::Error::from)
            .and_then(|spawn| work::spawn(channel, &spawn, port, channels)),
        Kind::Put => serde_json::from_slice::<Put>(&payload)
            .map_err(anyhow::Error::from)
            .map(|put| work::put(channel, put, port, channels)),
        Kind::Get => {
            let port = port.clone();
            thread::spawn(move || work::get(channel, &String::from_utf8_lossy(&payload), &port));
            Ok(())
        }
        Kind::Data => {
            work::data(channel, payload, channels);
            Ok(())
        }
        Kind::Signal => {
            work::signal(channel, payload.first().copied().unwrap_or(9), channels);
            Ok(())
        }
        Kind::Hello | Kind::Started | Kind::Stdout | Kind::Stderr | Kind::Ended | Kind::Failed => {
            Err(anyhow::anyhow!("the rig sent {kind:?}, which only a guest may send"))
        }
    };
    if let Err(e) = result {
        port.failed(channel, &format!("{e:#}"));
    }
}

fn uptime() -> f64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split_whitespace().next().and_then(|s| s.parse().ok()).unwrap_or_default()
}

/// Finds the port, which appears when its driver has been probed, possibly a moment after the
/// module was loaded.
fn find_port() -> Result<PathBuf> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_mins(1) {
        for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim() == wire::PORT_NAME {
                return Ok(PathBuf::from("/dev").join(entry.file_name()));
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    bail!("no virtio port named {} appeared", wire::PORT_NAME)
}
