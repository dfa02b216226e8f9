//! The work of a channel: runs a command, writes a file, reads a file.
//!
//! What must never happen here: a daemon that a command leaves behind and that keeps the command's
//! channel open (it may hold our end of stdout for ever). So a command ends when its process does,
//! plus a short time for what is still in the pipes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, MutexGuard};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use mooring_guest::wire::{CHUNK, Ended, Kind, Put, Spawn};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::server::{Channels, Port, lock};

/// Search path of commands.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Time in which output may still arrive after the process has ended.
const DRAIN: Duration = Duration::from_millis(250);

/// Most chunks of a file that wait in memory.
const FILE_QUEUE: usize = 64;

/// The receiver of a channel's input.
pub(crate) enum Input {
    /// A running command: its process group, and its stdin until that is closed.
    Command(Pid, Option<Sender<Vec<u8>>>),
    /// A file that is being written.
    File(SyncSender<Vec<u8>>),
}

/// Starts a command; its threads report on it.
pub(crate) fn spawn(channel: u32, spawn: &Spawn, port: &Port, channels: &Channels) -> Result<()> {
    let (program, args) = spawn.argv.split_first().context("an empty command was asked for")?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .env("TERM", "dumb");
    command.envs(spawn.env.iter().map(|(k, v)| (k, v))).current_dir(spawn.cwd.as_deref().unwrap_or("/root"));
    command.stdin(if spawn.stdin { Stdio::piped() } else { Stdio::null() });
    // A process group of its own: a timeout then ends the children as well.
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().with_context(|| format!("start {program}"))?;
    let pid = child.id();
    let stdin = child.stdin.take().map(feed);
    lock(channels).insert(channel, Input::Command(Pid::from_raw(pid.cast_signed()), stdin));
    port.send(channel, Kind::Started, pid.to_string().as_bytes());
    let (done, drained) = mpsc::channel();
    let truncated = Arc::new(AtomicBool::new(false));
    if let Some(out) = child.stdout.take() {
        pump(out, channel, Kind::Stdout, spawn.limit, port, &truncated, done.clone());
    }
    if let Some(err) = child.stderr.take() {
        pump(err, channel, Kind::Stderr, spawn.limit, port, &truncated, done);
    }
    let (port, channels) = (port.clone(), Arc::clone(channels));
    thread::spawn(move || finish(child, channel, &drained, &truncated, &port, &channels));
    Ok(())
}

/// Feeds stdin in a thread of its own: a command that does not read it must not stop the others.
fn feed(mut stdin: ChildStdin) -> Sender<Vec<u8>> {
    let (sender, chunks) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        for chunk in chunks {
            if chunk.is_empty() || stdin.write_all(&chunk).is_err() {
                return;
            }
        }
    });
    sender
}

/// Sends one output to the rig, up to the limit. Reads on after that, so that no process blocks or
/// gets SIGPIPE.
fn pump(
    mut from: impl Read + Send + 'static,
    channel: u32,
    kind: Kind,
    limit: u64,
    port: &Port,
    truncated: &Arc<AtomicBool>,
    done: Sender<()>,
) {
    let (port, truncated) = (port.clone(), Arc::clone(truncated));
    thread::spawn(move || {
        let mut left = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut buffer = vec![0u8; CHUNK];
        while let Ok(n) = from.read(&mut buffer) {
            if n == 0 {
                break;
            }
            let take = n.min(left);
            left -= take;
            if take < n {
                truncated.store(true, Ordering::Relaxed);
            }
            if take > 0 {
                port.send(channel, kind, buffer.get(..take).unwrap_or_default());
            }
        }
        let _ = done.send(());
    });
}

fn finish(
    mut child: Child,
    channel: u32,
    drained: &Receiver<()>,
    truncated: &AtomicBool,
    port: &Port,
    channels: &Channels,
) {
    let status = child.wait();
    for _ in 0..2 {
        if drained.recv_timeout(DRAIN) == Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    lock(channels).remove(&channel);
    match status {
        Ok(status) => port.ended(
            channel,
            &Ended {
                code: status.code(),
                signal: status.signal(),
                truncated: truncated.load(Ordering::Relaxed),
            },
        ),
        Err(e) => port.failed(channel, &format!("wait for the command: {e}")),
    }
}

/// Writes a file beside its place and renames it, so that a running program can be replaced.
pub(crate) fn put(channel: u32, put: Put, port: &Port, channels: &Channels) {
    let (sender, chunks) = mpsc::sync_channel(FILE_QUEUE);
    lock(channels).insert(channel, Input::File(sender));
    let (port, channels) = (port.clone(), Arc::clone(channels));
    thread::spawn(move || {
        let result = receive(&put, &chunks);
        lock(&channels).remove(&channel);
        match result {
            Ok(()) => port.ended(channel, &Ended { code: Some(0), ..Ended::default() }),
            Err(e) => port.failed(channel, &format!("{e:#}")),
        }
    });
}

fn receive(put: &Put, chunks: &Receiver<Vec<u8>>) -> Result<()> {
    let path = Path::new(&put.path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    }
    // Kernel attributes are written in place: a rename would be refused there.
    let special = path.starts_with("/sys") || path.starts_with("/proc") || path.starts_with("/dev");
    let target = if special { path.to_path_buf() } else { path.with_added_extension("mooring-new") };
    let mut file = if special { File::options().write(true).open(&target) } else { File::create(&target) }
        .with_context(|| format!("open {}", target.display()))?;
    for chunk in chunks {
        if chunk.is_empty() {
            break;
        }
        file.write_all(&chunk).with_context(|| format!("write {}", target.display()))?;
    }
    drop(file);
    if special {
        return Ok(());
    }
    fs::set_permissions(&target, fs::Permissions::from_mode(put.mode))
        .with_context(|| format!("set the mode of {}", path.display()))?;
    fs::rename(&target, path).with_context(|| format!("put {} in its place", path.display()))
}

/// Sends a file, read until its end, because kernel files have no length.
pub(crate) fn get(channel: u32, path: &str, port: &Port) {
    let send = || -> Result<()> {
        let mut file = File::open(path).with_context(|| format!("open {path}"))?;
        let mut buffer = vec![0u8; CHUNK];
        loop {
            let n = file.read(&mut buffer).with_context(|| format!("read {path}"))?;
            if n == 0 {
                return Ok(());
            }
            port.send(channel, Kind::Stdout, buffer.get(..n).unwrap_or_default());
        }
    };
    match send() {
        Ok(()) => port.ended(channel, &Ended { code: Some(0), ..Ended::default() }),
        Err(e) => port.failed(channel, &format!("{e:#}")),
    }
}

/// Passes bytes to a channel's stdin or file. Bytes for a channel that has ended are dropped: it
/// ended while they travelled.
pub(crate) fn data(channel: u32, bytes: Vec<u8>, channels: &Channels) {
    let mut open: MutexGuard<'_, HashMap<u32, Input>> = lock(channels);
    match open.get_mut(&channel) {
        Some(Input::Command(_, stdin)) => {
            let end = bytes.is_empty();
            if let Some(sender) = stdin {
                let _ = sender.send(bytes);
            }
            if end {
                *stdin = None;
            }
        }
        Some(Input::File(sender)) => {
            let sender = sender.clone();
            // This may wait for the disk, so release the lock first.
            drop(open);
            let _ = sender.send(bytes);
        }
        None => {}
    }
}

/// Sends a signal to the process group of a channel's command.
pub(crate) fn signal(channel: u32, number: u8, channels: &Channels) {
    if let Some(Input::Command(group, _)) = lock(channels).get(&channel)
        && let Ok(signal) = Signal::try_from(i32::from(number))
    {
        let _ = killpg(*group, signal);
    }
}
