//! One VM: its power, its cables, its commands and files.
//!
//! What must never happen here: an operation on a VM that is off and does nothing. Each reports
//! that the VM is off.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_guest::wire::{Hello, KEPT, Kind, Put, Spawn};
use serde_json::json;

use crate::accel::Accel;
use crate::console::{self, Finding};
use crate::cpio::Archive;
use crate::image::Images;
use crate::link::{End, Link};
use crate::lock;
use crate::options::{NETWORKS, VmSpec, address};
use crate::process::Guarded;
use crate::qemu;
use crate::qmp::Qmp;
use crate::room;
use crate::running::{Output, Running, shorten};
use crate::switch::Switch;
use crate::volatile;
use crate::waited::WaitRanOut;

/// Time limit of a command in [`Vm::run`].
pub const COMMAND_LIMIT: Duration = Duration::from_mins(4);
/// Time limit of a boot on a machine that also does other work.
const BOOT_LIMIT: Duration = Duration::from_mins(5);
/// Time limit for QEMU to connect its sockets.
const CONNECT_LIMIT: Duration = Duration::from_mins(2);
/// Time that a transfer may stall at its end.
const TRANSFER_LIMIT: Duration = Duration::from_mins(5);
/// Most bytes of stdout, and of stderr, that are kept.
const OUTPUT_LIMIT: u64 = 16 << 20;

/// The kind of a network cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Frames vanish; the VM sees its link up and gets no answer.
    Silent,
    /// The VM sees its link go down.
    Carrier,
}

/// The networks to cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Networks {
    /// Both networks.
    Both,
    /// One network: 0 is `eth0`, 1 is `eth1`.
    Only(usize),
}

impl Networks {
    fn list(self) -> Result<Vec<usize>> {
        match self {
            Self::Both => Ok((0..NETWORKS).collect()),
            Self::Only(net) if net < NETWORKS => Ok(vec![net]),
            Self::Only(net) => bail!("there is no network {net}; there are 0 (eth0) and 1 (eth1)"),
        }
    }
}

/// State of a VM that is on.
struct Live {
    /// Dropped first: the disks must not fail under a guest that still runs.
    qemu: Guarded,
    /// Processes that serve the volatile disks.
    _disks: Vec<Guarded>,
    qmp: Qmp,
    link: Arc<Link>,
}

/// State shared by all VMs of a rig.
pub(crate) struct Shared {
    pub(crate) images: Images,
    pub(crate) programs: Option<PathBuf>,
    pub(crate) accel: Accel,
    pub(crate) dir: PathBuf,
    pub(crate) initramfs: PathBuf,
    pub(crate) hosts: String,
    pub(crate) switches: Vec<Switch>,
}

/// Finds an unused loopback port for each of these. QEMU takes them some moments later, and keeps
/// them over boots.
fn free_ports(wanted: &[u16]) -> Result<Vec<(u16, u16)>> {
    let held = wanted
        .iter()
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<std::io::Result<Vec<_>>>()
        .context("find a free loopback port")?;
    let port = |socket: &TcpListener| socket.local_addr().map(|address| address.port());
    let outside = held.iter().map(port).collect::<std::io::Result<Vec<_>>>().context("read a port")?;
    Ok(outside.into_iter().zip(wanted.iter().copied()).collect())
}

/// One VM of a rig.
pub struct Vm {
    spec: VmSpec,
    index: usize,
    /// Ports of this machine's loopback, each with the guest's port.
    forwarded: Vec<(u16, u16)>,
    shared: Arc<Shared>,
    live: Mutex<Option<Live>>,
    /// Held during a whole boot, so that two threads do not boot one VM.
    booting: Mutex<()>,
    /// Links that are down (`true`); they stay down over a boot.
    carrier_cut: Mutex<[bool; NETWORKS]>,
    allowed: Mutex<Vec<String>>,
    console_seen: AtomicUsize,
    /// The archive of [`Vm::keep`]; `None` if nothing is kept.
    kept: Mutex<Option<Vec<u8>>>,
}

impl Vm {
    pub(crate) fn new(spec: VmSpec, index: usize, shared: &Arc<Shared>) -> Result<Self> {
        for (disk, bytes) in spec.disks.iter().enumerate() {
            let path = shared.dir.join(format!("{}.data{disk}", spec.name));
            let file = fs::File::create(&path).with_context(|| format!("make {}", path.display()))?;
            file.set_len(*bytes).with_context(|| format!("make {} {bytes} bytes large", path.display()))?;
        }
        let forwarded = free_ports(&spec.forward)?;
        Ok(Self {
            spec,
            index,
            forwarded,
            shared: Arc::clone(shared),
            live: Mutex::default(),
            booting: Mutex::default(),
            carrier_cut: Mutex::default(),
            allowed: Mutex::default(),
            console_seen: AtomicUsize::new(0),
            kept: Mutex::default(),
        })
    }

    /// The VM's name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The VM's address on a network.
    pub fn ip(&self, network: usize) -> IpAddr {
        address(self.index, network)
    }

    /// The local address that leads to a forwarded TCP port of the guest.
    pub fn forwarded(&self, port: u16) -> Result<SocketAddr> {
        let found = self.forwarded.iter().find(|(_, inside)| *inside == port);
        let (outside, _) =
            found.with_context(|| format!("port {port} of {} is not forwarded", self.name()))?;
        Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, *outside)))
    }

    /// The data disks, as the guest names them.
    pub fn data_disks(&self) -> Vec<String> {
        (b'c'..=b'z')
            .take(self.spec.disks.len())
            .map(|letter| format!("/dev/vd{}", char::from(letter)))
            .collect()
    }

    /// The file behind a data disk; change it only while the VM is off.
    pub fn data_disk_file(&self, disk: usize) -> PathBuf {
        self.shared.dir.join(format!("{}.data{disk}", self.spec.name))
    }

    /// Returns `true` if the VM is on and answers.
    pub fn is_up(&self) -> bool {
        lock(&self.live).as_mut().is_some_and(|live| live.qemu.ended().is_none() && !live.link.is_gone())
    }

    /// The process id of the VM's QEMU; `None` while it is off.
    pub fn qemu_pid(&self) -> Option<u32> {
        lock(&self.live).as_ref().map(|live| live.qemu.id())
    }

    /// Turns the VM on, with its disks unchanged, and waits until it accepts commands.
    pub fn boot(&self) -> Result<()> {
        let _one_boot = lock(&self.booting);
        if self.is_up() {
            bail!("{} is up already", self.name());
        }
        *lock(&self.live) = None;
        let link = self.start().with_context(|| format!("start {}", self.name()))?;
        if link.wait_hello(BOOT_LIMIT).is_none() {
            let what = format!(
                "{} to boot; the end of its console:\n{}",
                self.name(),
                shorten(&self.console(), 1500)
            );
            if link.is_gone() {
                bail!("its kernel or PID 1 gave up on the way of {what}");
            }
            return Err(WaitRanOut::new(what, BOOT_LIMIT).into());
        }
        Ok(())
    }

    fn start(&self) -> Result<Arc<Link>> {
        let shared = &self.shared;
        let name = self.name();
        let listen = |suffix: &str| listen(&shared.dir, &format!("{name}.{suffix}"));
        let (qmp, rig) = (listen("qmp")?, listen("rig")?);
        let nets = (0..NETWORKS).map(|net| listen(&format!("net{net}"))).collect::<Result<Vec<_>>>()?;
        let initramfs = self.initramfs()?;
        let boot = qemu::Boot {
            spec: &self.spec,
            index: self.index,
            images: &shared.images,
            programs: shared.programs.as_deref(),
            accel: shared.accel,
            initramfs: &initramfs,
            dir: &shared.dir,
            hosts: &shared.hosts,
            forwarded: &self.forwarded,
        };
        let disks = if self.spec.volatile { volatile::serve(&shared.dir, &self.spec)? } else { Vec::new() };
        let mut qemu = Guarded::spawn(qemu::command(&boot)?).context("start QEMU")?;
        let mut accept = |listener: &UnixListener| self.accept(listener, &mut qemu);
        let qmp = accept(&qmp)?;
        let link = Link::start(accept(&rig)?)?;
        for (net, (listener, switch)) in nets.iter().zip(&shared.switches).enumerate() {
            let stream = accept(listener).with_context(|| format!("connect network {net}"))?;
            switch.plug(self.index, stream)?;
        }
        let mut qmp = Qmp::start(qmp)?;
        for (net, _) in lock(&self.carrier_cut).iter().enumerate().filter(|(_, cut)| **cut) {
            set_link(&mut qmp, net, false)?;
        }
        *lock(&self.live) = Some(Live { qemu, _disks: disks, qmp, link: Arc::clone(&link) });
        Ok(link)
    }

    /// The initramfs: the common one, and behind it the files that this VM keeps.
    fn initramfs(&self) -> Result<PathBuf> {
        let common = &self.shared.initramfs;
        let kept = lock(&self.kept);
        let Some(kept) = kept.as_ref() else { return Ok(common.clone()) };
        let mut archive = Archive::default();
        archive.file(KEPT, 0o600, kept)?;
        let mut bytes = fs::read(common).with_context(|| format!("read {}", common.display()))?;
        bytes.extend(archive.finish()?);
        let path = self.shared.dir.join(format!("{}.initramfs", self.name()));
        fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Waits for QEMU to connect a socket, or to give up.
    fn accept(&self, listener: &UnixListener, qemu: &mut Guarded) -> Result<UnixStream> {
        let deadline = Instant::now() + CONNECT_LIMIT;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).context("make a socket wait")?;
                    return Ok(stream);
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e).context("wait for QEMU to connect"),
            }
            let log = || {
                fs::read_to_string(self.shared.dir.join(format!("{}.qemu", self.name()))).unwrap_or_default()
            };
            if let Some(status) = qemu.ended() {
                bail!("QEMU ended at once ({status}): {}", shorten(log().trim(), 1500));
            }
            if Instant::now() > deadline {
                let what = format!("QEMU to connect its sockets: {}", log().trim());
                return Err(WaitRanOut::new(what, CONNECT_LIMIT).into());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Cuts the VM's power: QEMU is killed. Everything that the guest had written to its disks
    /// stays, flushed or not; on volatile disks only what it had flushed.
    pub fn power_cut(&self) -> Result<()> {
        match lock(&self.live).take() {
            Some(mut live) => {
                live.qemu.kill();
                Ok(())
            }
            None => bail!("{} is off already", self.name()),
        }
    }

    /// The reason why QEMU has stopped the VM: a stopped VM answers nothing, and its clock stands.
    /// `None`: it runs, is off, or QEMU does not answer either.
    pub(crate) fn stopped(&self) -> Option<String> {
        let stopped = lock(&self.live).as_mut()?.qmp.stopped().ok().flatten()?;
        let name = self.name();
        let room = room::told(&self.shared.dir);
        Some(format!("QEMU has stopped {name}: {stopped}; {room}"))
    }

    /// Waits until the VM has turned itself off. `false`: it has not within this time.
    pub fn wait_off(&self, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let mut live = lock(&self.live);
            let Some(running) = live.as_mut() else { bail!("{} is off already", self.name()) };
            if running.qemu.ended().is_some() {
                *live = None;
                return Ok(true);
            }
            drop(live);
            if Instant::now() > deadline {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Turns the VM off, if it is on.
    pub(crate) fn off(&self) {
        drop(lock(&self.live).take());
    }

    /// Cuts the VM off from networks. The cut survives a power cut and a boot, until [`Vm::heal`].
    pub fn cut(&self, cut: Cut, networks: Networks) -> Result<()> {
        for net in networks.list()? {
            match cut {
                Cut::Silent => self.silence(net, true),
                Cut::Carrier => self.carrier(net, false)?,
            }
        }
        Ok(())
    }

    /// Ends every cut.
    pub fn heal(&self) -> Result<()> {
        for net in 0..NETWORKS {
            self.silence(net, false);
            let was_cut = lock(&self.carrier_cut).get(net).copied().unwrap_or_default();
            if was_cut {
                self.carrier(net, true)?;
            }
        }
        Ok(())
    }

    fn silence(&self, net: usize, cut: bool) {
        if let Some(switch) = self.shared.switches.get(net) {
            switch.cut(self.index, cut);
        }
    }

    fn carrier(&self, net: usize, up: bool) -> Result<()> {
        if let Some(cut) = lock(&self.carrier_cut).get_mut(net) {
            *cut = !up;
        }
        match lock(&self.live).as_mut() {
            Some(live) => set_link(&mut live.qmp, net, up),
            None => Ok(()), // remembered for the next boot
        }
    }

    /// Number of frames that a network has dropped at this VM's port.
    pub fn frames_dropped(&self, network: usize) -> u64 {
        self.shared.switches.get(network).map_or(0, |switch| switch.dropped(self.index))
    }

    fn link(&self) -> Result<Arc<Link>> {
        let live = lock(&self.live);
        let link = live.as_ref().map(|live| Arc::clone(&live.link)).filter(|link| !link.is_gone());
        link.with_context(|| format!("{} is off", self.name()))
    }

    /// The guest's message when it was ready.
    pub fn hello(&self) -> Result<Hello> {
        self.link()?.wait_hello(Duration::ZERO).with_context(|| format!("{} is not ready", self.name()))
    }

    /// Makes a command; the program is searched in the guest's PATH.
    pub fn command<I, S>(&self, argv: I) -> Command<'_>
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        let argv = argv.into_iter().map(Into::into).collect();
        let spawn = Spawn { argv, limit: OUTPUT_LIMIT, ..Spawn::default() };
        Command { vm: self, spawn, stdin: None, timeout: None }
    }

    /// Runs a command to its end.
    pub fn run(&self, argv: &[&str]) -> Result<Output> {
        self.command(argv.iter().copied()).run()
    }

    /// Runs a script with `sh -euc`.
    pub fn sh(&self, script: &str) -> Result<Output> {
        self.command(["sh", "-euc", script]).run()
    }

    /// Copies a file into the VM.
    pub fn push(&self, local: &Path, remote: &str, mode: u32) -> Result<()> {
        use std::io::Read;
        let mut file = fs::File::open(local).with_context(|| format!("open {}", local.display()))?;
        let mut buffer = vec![0; 1 << 20];
        self.put(remote, mode, |channel| {
            loop {
                let n = file.read(&mut buffer).with_context(|| format!("read {}", local.display()))?;
                if n == 0 {
                    return Ok(());
                }
                channel.data(buffer.get(..n).unwrap_or_default())?;
            }
        })
    }

    /// Writes a file in the VM; attributes below `/sys` and `/proc` as well.
    pub fn write(&self, remote: &str, bytes: &[u8], mode: u32) -> Result<()> {
        self.put(remote, mode, |channel| channel.data(bytes))
    }

    fn put(
        &self,
        remote: &str,
        mode: u32,
        send: impl FnOnce(&crate::link::Channel) -> Result<()>,
    ) -> Result<()> {
        let what = || format!("write {remote} on {}", self.name());
        let put = serde_json::to_vec(&Put { path: remote.to_owned(), mode })?;
        let channel = self.link()?.open(Kind::Put, &put).with_context(what)?;
        send(&channel).and_then(|()| channel.end_of_data()).with_context(what)?;
        self.transferred(&channel).map(drop).with_context(what)
    }

    /// Keeps files and folders over boots, in the place of those that were kept before. Each boot
    /// finds their present content before any program of Debian runs; whatever else is in the root
    /// goes with a boot, because it is in memory.
    pub fn keep(&self, paths: &[&str]) -> Result<()> {
        const AT: &str = "/run/kept.tar";
        let below = paths.iter().map(|path| path.trim_start_matches('/'));
        let argv = ["tar", "-c", "-f", AT, "-C", "/"].into_iter().chain(below);
        self.command(argv).run()?.ok()?;
        let archive = self.read(AT)?;
        *lock(&self.kept) = Some(archive);
        Ok(())
    }

    /// Copies a file out of the VM.
    pub fn pull(&self, remote: &str, local: &Path) -> Result<()> {
        fs::write(local, self.read(remote)?).with_context(|| format!("write {}", local.display()))
    }

    /// Reads a file of the VM.
    pub fn read(&self, remote: &str) -> Result<Vec<u8>> {
        let what = || format!("read {remote} on {}", self.name());
        let channel = self.link()?.open(Kind::Get, remote.as_bytes()).with_context(what)?;
        self.transferred(&channel).with_context(what)
    }

    fn transferred(&self, channel: &crate::link::Channel) -> Result<Vec<u8>> {
        let mut state = channel.wait(Some(Instant::now() + TRANSFER_LIMIT), |_| false);
        match &state.end {
            Some(End::Ended(_)) => Ok(std::mem::take(&mut state.stdout)),
            Some(End::Failed(why)) => bail!("{why}"),
            Some(End::Gone) => bail!("{} went away meanwhile", self.name()),
            None => Err(WaitRanOut::new("its end", TRANSFER_LIMIT).into()),
        }
    }

    /// The console output of all its kernels, over all its boots.
    pub fn console(&self) -> String {
        let bytes = fs::read(self.shared.dir.join(format!("{}.console", self.name()))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Allows failures in the console that contain this text, until [`Vm::forget_console`].
    pub fn allow_console(&self, text: &str) {
        lock(&self.allowed).push(text.to_owned());
    }

    /// Begins a new scenario: the console's present content is not scanned again, and allowances
    /// end.
    pub fn forget_console(&self) {
        self.console_seen.store(self.console().len(), Ordering::SeqCst);
        lock(&self.allowed).clear();
    }

    /// The failures in the VM's console.
    pub fn console_findings(&self) -> Vec<Finding> {
        console::scan(
            self.name(),
            &self.console(),
            self.console_seen.load(Ordering::SeqCst),
            &lock(&self.allowed),
        )
    }
}

fn set_link(qmp: &mut Qmp, net: usize, up: bool) -> Result<()> {
    qmp.execute("set_link", &json!({ "name": format!("nic{net}"), "up": up })).map(drop)
}

/// Makes a socket in the run folder. A unix socket's path may have only 107 bytes, so it is named
/// through the open folder.
pub(crate) fn listen(dir: &Path, name: &str) -> Result<UnixListener> {
    use std::os::fd::AsRawFd;
    match fs::remove_file(dir.join(name)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("remove old {name}"));
        }
        _ => {}
    }
    let folder = fs::File::open(dir).with_context(|| format!("open {}", dir.display()))?;
    let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
    let listener =
        UnixListener::bind(path).with_context(|| format!("listen on {}", dir.join(name).display()))?;
    listener.set_nonblocking(true).context("make a socket not wait")?;
    Ok(listener)
}

/// A command for a VM.
#[must_use = "nothing is run before run() or spawn()"]
pub struct Command<'a> {
    vm: &'a Vm,
    spawn: Spawn,
    stdin: Option<Vec<u8>>,
    timeout: Option<Duration>,
}

impl Command<'_> {
    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.spawn.argv.push(arg.into());
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.spawn.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Sets the working directory; the default is `/root`.
    pub fn cwd(mut self, dir: &str) -> Self {
        self.spawn.cwd = Some(dir.to_owned());
        self
    }

    /// Sets the content of stdin. Push large data as a file instead.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Keeps stdin open for [`Running::write_stdin`].
    pub fn stdin_open(mut self) -> Self {
        self.spawn.stdin = true;
        self
    }

    /// Sets the time limit. The default is [`COMMAND_LIMIT`] for [`Command::run`], and none for
    /// [`Command::spawn`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Sets how many bytes of stdout, and of stderr, are kept; the default is 16 MiB.
    pub fn output_limit(mut self, bytes: u64) -> Self {
        self.spawn.limit = bytes;
        self
    }

    /// Runs the command to its end. A status other than 0 is no error here: see [`Output::ok`].
    pub fn run(mut self) -> Result<Output> {
        self.timeout.get_or_insert(COMMAND_LIMIT);
        self.spawn()?.wait()
    }

    /// Starts the command.
    pub fn spawn(mut self) -> Result<Running> {
        let line = self.spawn.argv.join(" ");
        let command = shorten(line.trim(), 300);
        let keep_open = self.spawn.stdin;
        self.spawn.stdin |= self.stdin.is_some();
        let what = || format!("run {command} on {}", self.vm.name());
        let start = Instant::now();
        let link = self.vm.link().with_context(what)?;
        let channel = link.open(Kind::Spawn, &serde_json::to_vec(&self.spawn)?).with_context(what)?;
        if let Some(bytes) = &self.stdin {
            channel.data(bytes).with_context(what)?;
            if !keep_open {
                channel.end_of_data().with_context(what)?;
            }
        }
        Ok(Running::new(self.vm.name(), command, channel, start, self.timeout))
    }
}
