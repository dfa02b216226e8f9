//! `cargo xtask vm`: runs the rig by hand.
//!
//! `vm up` holds the VMs in the foreground and listens on a socket in its run folder; the other
//! verbs are short calls to it. A call is one JSON line, the answer is JSON lines until one that
//! ends it.
//!
//! What must never happen here: a verb that waits for a missing rig; VMs that survive `vm up`.

use std::fs;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use mooring_rig::options::workspace_root;
use mooring_rig::{Cut, Kernel, Networks, Rig, RigOptions, Seen, alive, image, run_root, selfcheck};
use serde::{Deserialize, Serialize};

const SOCKET: &str = "control.sock";

/// Arguments of `cargo xtask vm`.
#[derive(Debug, Args)]
pub(crate) struct VmArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Args)]
struct Which {
    /// The rig, if several are up (`vm up --rig NAME` names it).
    #[arg(long, value_name = "NAME")]
    rig: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Build the VMs' images: root file system, kernel, PID 1. Kept in `$XDG_CACHE_HOME/mooring` or
    /// ~/.cache/mooring; a second build takes seconds.
    Build {
        /// The kernel: stable, backports, cloud, or next (of the next Debian release, with its
        /// root).
        #[arg(long, value_name = "KERNEL", default_value = "stable", value_parser = parse_kernel)]
        kernel: Kernel,
        /// Build root file system and kernel again from Debian's present packages.
        #[arg(long)]
        refresh: bool,
    },
    /// Boot N VMs (storage, host1, host2, ...) and hold them in the foreground until ctrl-C or
    /// `vm down`.
    ///
    /// Addresses: storage is 10.10.0.10 on eth0 and 10.20.0.10 on eth1, host1 ends in .11, and so
    /// on. The data disks of storage are /dev/vdc and /dev/vdd. `MOORING_RIG_ACCEL=tcg|kvm`
    /// overrides the choice of the accelerator.
    #[command(
        after_help = "Then, in another terminal:\n  cargo xtask vm run storage -- lsblk\n  cargo xtask vm shell host1\n  cargo xtask vm cut host1 && cargo xtask vm heal host1\n  cargo xtask vm down"
    )]
    Up {
        /// Number of VMs, including storage.
        #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
        count: u8,
        /// The rig's name; several rigs can be up at once.
        #[arg(long, value_name = "NAME", default_value = "rig")]
        rig: String,
        /// The kernel: stable, backports, cloud or next.
        #[arg(long, value_name = "KERNEL", default_value = "stable", value_parser = parse_kernel)]
        kernel: Kernel,
    },
    /// Run a command in a VM, with its output and exit status (124 after a timeout).
    #[command(after_help = "Example: cargo xtask vm run storage --timeout 10 -- sh -c 'pvs; vgs'")]
    Run {
        /// The VM.
        vm: String,
        #[command(flatten)]
        which: Which,
        /// Kill the command after this many seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        timeout: u64,
        /// Pass our standard input to it, up to its end.
        #[arg(long)]
        stdin: bool,
        /// The command and its arguments.
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// Copy a file into a VM, with its permissions.
    Push {
        /// The VM.
        vm: String,
        /// The local file.
        local: PathBuf,
        /// The path in the VM.
        remote: String,
        #[command(flatten)]
        which: Which,
    },
    /// Cut a VM's power: QEMU is killed. The data disks keep everything written.
    Kill(One),
    /// Turn a VM on again, with its disks unchanged.
    Boot(One),
    /// Cut a VM off from its networks: silently, or with a visible loss of the link.
    Cut {
        /// The VM.
        vm: String,
        /// Let the VM see that its link is down; otherwise its frames are dropped silently.
        #[arg(long)]
        carrier: bool,
        /// Only this network: 0 (eth0) or 1 (eth1).
        #[arg(long, value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1))]
        net: Option<u8>,
        #[command(flatten)]
        which: Which,
    },
    /// End all cuts of a VM.
    Heal(One),
    /// Print the console output of a VM's kernels, over all its boots.
    Log(One),
    /// Open a simple shell in a VM, line by line; it keeps the folder, not variables. End it with
    /// ctrl-D.
    Shell(One),
    /// Boot three VMs and check the rig's promises: commands, files, networks, cuts, power, LVM,
    /// LIO, consoles.
    Check {
        /// The kernel: stable, backports, cloud or next.
        #[arg(long, value_name = "KERNEL", default_value = "stable", value_parser = parse_kernel)]
        kernel: Kernel,
    },
    /// End the VMs of a rig, wherever its `vm up` runs.
    Down(Which),
}

#[derive(Debug, Args)]
struct One {
    /// The VM.
    vm: String,
    #[command(flatten)]
    which: Which,
}

fn parse_kernel(text: &str) -> Result<Kernel, String> {
    match text {
        "stable" => Ok(Kernel::Stable),
        "backports" => Ok(Kernel::Backports),
        "cloud" => Ok(Kernel::Cloud),
        "next" => Ok(Kernel::Next),
        _ => Err("the kernels are stable, backports, cloud and next".to_owned()),
    }
}

/// A verb's request to the process that holds the rig.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Request {
    Run { vm: String, argv: Vec<String>, timeout: u64, stdin: Option<String> },
    Push { vm: String, local: PathBuf, remote: String, mode: u32 },
    Kill { vm: String },
    Boot { vm: String },
    Cut { vm: String, carrier: bool, net: Option<u8> },
    Heal { vm: String },
    Log { vm: String },
    Check { vm: String },
    Down,
}

/// The answer to a request; bytes are written as characters U+0000 to U+00FF.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Reply {
    Stdout(String),
    Stderr(String),
    Note(String),
    Done(u8),
    Error(String),
}

fn to_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn to_bytes(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect()
}

/// Carries out `cargo xtask vm ...`.
pub(crate) fn run(args: VmArgs) -> Result<ExitCode> {
    match args.verb {
        Verb::Build { kernel, refresh } => build(kernel, refresh),
        Verb::Up { count, rig, kernel } => up(usize::from(count), &rig, kernel),
        Verb::Run { vm, which, timeout, stdin, command } => {
            let mut input = Vec::new();
            if stdin {
                io::stdin().read_to_end(&mut input).context("read stdin")?;
            }
            let stdin = stdin.then(|| to_text(&input));
            ask(&which, &Request::Run { vm, argv: command, timeout, stdin })
        }
        Verb::Push { vm, local, remote, which } => {
            let local = fs::canonicalize(&local).with_context(|| format!("find {}", local.display()))?;
            let mode = fs::metadata(&local).context("look at the file")?.permissions().mode() & 0o7777;
            ask(&which, &Request::Push { vm, local, remote, mode })
        }
        Verb::Kill(One { vm, which }) => ask(&which, &Request::Kill { vm }),
        Verb::Boot(One { vm, which }) => ask(&which, &Request::Boot { vm }),
        Verb::Cut { vm, carrier, net, which } => ask(&which, &Request::Cut { vm, carrier, net }),
        Verb::Heal(One { vm, which }) => ask(&which, &Request::Heal { vm }),
        Verb::Log(One { vm, which }) => ask(&which, &Request::Log { vm }),
        Verb::Shell(One { vm, which }) => shell(&which, &vm),
        Verb::Check { kernel } => selfcheck::run(kernel).map(|()| ExitCode::SUCCESS),
        Verb::Down(which) => down(&which),
    }
}

fn build(kernel: Kernel, refresh: bool) -> Result<ExitCode> {
    let start = Instant::now();
    let images = image::ensure(&workspace_root(), kernel, refresh)?;
    println!("kernel {}", images.release);
    for path in [&images.root, &images.modules, &images.vmlinux, &images.guest] {
        println!("{}", path.display());
    }
    println!("ready in {:.1} s; next: cargo xtask vm up 3", start.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

fn up(count: usize, name: &str, kernel: Kernel) -> Result<ExitCode> {
    if let Some((_, dir)) = rigs()?.into_iter().find(|(rig, _)| rig == name) {
        bail!(
            "a rig named {name} is up already ({}); choose another --rig NAME, or end it: cargo xtask vm down --rig {name}",
            dir.display()
        );
    }
    let rig = Arc::new(Rig::up(RigOptions::standard(count.saturating_sub(1)).named(name).kernel(kernel))?);
    let listener = listen(rig.dir())?;
    for vm in rig.vms() {
        println!("{:<8} {}  {}", vm.name(), vm.ip(0), vm.ip(1));
    }
    let option = if name == "rig" { String::new() } else { format!(" --rig {name}") };
    println!("In another terminal: cargo xtask vm run{option} storage -- lsblk");
    println!(
        "                     cargo xtask vm shell{option} storage    (cargo xtask vm --help shows more)"
    );
    println!("End it with ctrl-C here, or there with: cargo xtask vm down{option}");
    let down = Arc::new(AtomicBool::new(false));
    while !down.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).context("make a socket wait")?;
                let (rig, down) = (Arc::clone(&rig), Arc::clone(&down));
                thread::spawn(move || {
                    // An error here means that the caller is gone, and nobody is left to report to.
                    let _ = serve(&rig, stream, &down);
                });
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(10)),
            Err(e) => return Err(e).context("wait for callers"),
        }
    }
    let checked = rig.check_consoles();
    drop(rig);
    checked.map(|()| ExitCode::SUCCESS)
}

fn listen(dir: &Path) -> Result<UnixListener> {
    let folder = fs::File::open(dir).with_context(|| format!("open {}", dir.display()))?;
    let listener = UnixListener::bind(short(&folder)).context("listen for callers")?;
    listener.set_nonblocking(true).context("make a socket not wait")?;
    Ok(listener)
}

/// A unix socket's path may have only 107 bytes, so it is named through the open folder.
fn short(folder: &fs::File) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd())
}

fn serve(rig: &Rig, stream: UnixStream, down: &AtomicBool) -> Result<()> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    reader.read_line(&mut line)?;
    let request: Request = serde_json::from_str(&line)?;
    let gone = Arc::new(AtomicBool::new(false));
    let seen_gone = Arc::clone(&gone);
    // A caller sends nothing after its line; the end of its stream means that it was interrupted.
    thread::spawn(move || {
        let _ = reader.read_line(&mut String::new());
        seen_gone.store(true, Ordering::SeqCst);
    });
    let mut answer = Answer(stream);
    match carry_out(rig, &request, &mut answer, &gone, down) {
        Ok(code) => answer.send(&Reply::Done(code)),
        Err(e) => answer.send(&Reply::Error(format!("{e:#}"))),
    }
}

struct Answer(UnixStream);

impl Answer {
    fn send(&mut self, reply: &Reply) -> Result<()> {
        let mut line = serde_json::to_vec(reply)?;
        line.push(b'\n');
        self.0.write_all(&line).context("answer the caller")
    }
}

fn carry_out(
    rig: &Rig,
    request: &Request,
    answer: &mut Answer,
    gone: &AtomicBool,
    down: &AtomicBool,
) -> Result<u8> {
    let start = Instant::now();
    match request {
        Request::Run { vm, argv, timeout, stdin } => {
            let mut command =
                rig.vm(vm)?.command(argv.iter().map(String::as_str)).timeout(Duration::from_secs(*timeout));
            if let Some(text) = stdin {
                command = command.stdin(to_bytes(text));
            }
            return stream_run(command, Duration::from_secs(*timeout), answer, gone);
        }
        Request::Push { vm, local, remote, mode } => {
            rig.vm(vm)?.push(local, remote, *mode)?;
            let bytes = fs::metadata(local).map_or(0, |meta| meta.len());
            let seconds = start.elapsed().as_secs_f64();
            answer.send(&Reply::Note(format!("{bytes} bytes in {seconds:.2} s")))?;
        }
        Request::Kill { vm } => {
            rig.vm(vm)?.power_cut()?;
            answer.send(&Reply::Note(format!("{vm} is off; its disks stay: cargo xtask vm boot {vm}")))?;
        }
        Request::Boot { vm } => {
            rig.vm(vm)?.boot()?;
            answer
                .send(&Reply::Note(format!("{vm} is ready after {:.1} s", start.elapsed().as_secs_f64())))?;
        }
        Request::Cut { vm, carrier, net } => {
            let networks = net.map_or(Networks::Both, |net| Networks::Only(usize::from(net)));
            rig.vm(vm)?.cut(if *carrier { Cut::Carrier } else { Cut::Silent }, networks)?;
            answer.send(&Reply::Note(format!("{vm} is cut off; end it with: cargo xtask vm heal {vm}")))?;
        }
        Request::Heal { vm } => rig.vm(vm)?.heal()?,
        Request::Log { vm } => answer.send(&Reply::Stdout(to_text(rig.vm(vm)?.console().as_bytes())))?,
        Request::Check { vm } => drop(rig.vm(vm)?),
        Request::Down => {
            answer.send(&Reply::Note(format!("rig {} is going down", rig.name())))?;
            down.store(true, Ordering::SeqCst);
        }
    }
    Ok(0)
}

/// Runs a command and passes its output on while it runs.
fn stream_run(
    command: mooring_rig::Command<'_>,
    limit: Duration,
    answer: &mut Answer,
    gone: &AtomicBool,
) -> Result<u8> {
    let start = Instant::now();
    let running = command.spawn()?;
    let mut seen = Seen::default();
    loop {
        let new = running.progress(&mut seen, Duration::from_millis(200));
        if !new.stdout.is_empty() {
            answer.send(&Reply::Stdout(to_text(&new.stdout)))?;
        }
        if !new.stderr.is_empty() {
            answer.send(&Reply::Stderr(to_text(&new.stderr)))?;
        }
        if gone.load(Ordering::SeqCst) {
            running.kill()?;
            bail!("the caller went away");
        }
        if new.ended || start.elapsed() > limit {
            let out = running.wait()?;
            if out.status.code().is_none() {
                answer.send(&Reply::Note(format!("{}: {}", out.command, out.status)))?;
            }
            return Ok(out.status.shell_code());
        }
    }
}

/// The rigs that are up, by name and run folder.
fn rigs() -> Result<Vec<(String, PathBuf)>> {
    let root = run_root(&workspace_root());
    let mut found = Vec::new();
    for entry in fs::read_dir(&root).into_iter().flatten() {
        let entry = entry.with_context(|| format!("list {}", root.display()))?;
        let folder = entry.file_name().to_string_lossy().into_owned();
        let Some((name, pid)) = folder.rsplit_once('-') else { continue };
        let up = pid.parse().is_ok_and(alive) && entry.path().join(SOCKET).exists();
        if up {
            found.push((name.to_owned(), entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

fn find(which: &Which) -> Result<PathBuf> {
    let rigs = rigs()?;
    let names = || rigs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    match (&which.rig, rigs.as_slice()) {
        (_, []) => bail!("no rig is up; start one in another terminal: cargo xtask vm up 3"),
        (None, [(_, dir)]) => Ok(dir.clone()),
        (None, _) => bail!("several rigs are up ({}); say which with --rig NAME", names()),
        (Some(name), _) => {
            let found = rigs.iter().find(|(rig, _)| rig == name);
            found
                .map(|(_, dir)| dir.clone())
                .with_context(|| format!("no rig named {name} is up; up are: {}", names()))
        }
    }
}

fn ask(which: &Which, request: &Request) -> Result<ExitCode> {
    let dir = find(which)?;
    call(&dir, request, &mut |bytes| io::stderr().write_all(bytes)).map(ExitCode::from)
}

/// Asks the rig to go down, and returns once it is gone, so that a new one can start at once.
fn down(which: &Which) -> Result<ExitCode> {
    let dir = find(which)?;
    let code = call(&dir, &Request::Down, &mut |bytes| io::stderr().write_all(bytes))?;
    let start = Instant::now();
    while dir.exists() {
        if start.elapsed() > Duration::from_secs(20) {
            bail!("the rig did not go down within 20 s; see the terminal of `cargo xtask vm up`");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(ExitCode::from(code))
}

/// Calls the rig, and passes its answers on; `stderr` takes the command's error output.
fn call(dir: &Path, request: &Request, stderr: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<u8> {
    let folder = fs::File::open(dir).with_context(|| format!("open {}", dir.display()))?;
    let mut stream =
        UnixStream::connect(short(&folder)).context("reach the rig (is `cargo xtask vm up` still there?)")?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line).context("ask the rig")?;
    for line in BufReader::new(stream).lines() {
        let line = line.context("read the rig's answer")?;
        match serde_json::from_str(&line).context("understand the rig's answer")? {
            Reply::Stdout(text) => {
                let mut out = io::stdout().lock();
                out.write_all(&to_bytes(&text)).and_then(|()| out.flush()).context("write to stdout")?;
            }
            Reply::Stderr(text) => stderr(&to_bytes(&text)).context("write to stderr")?,
            Reply::Note(text) => eprintln!("{text}"),
            Reply::Done(code) => return Ok(code),
            Reply::Error(why) => bail!(why),
        }
    }
    bail!("the rig ended before it had answered")
}

/// Runs a line in the shell's folder, and prints to stderr, after a zero byte, the folder in which
/// it ends.
const SHELL: &str = r#"cd -- "$1" || exit; trap 'printf "\0%s\0" "$PWD" >&2' EXIT; eval "$2""#;

fn shell(which: &Which, vm: &str) -> Result<ExitCode> {
    let dir = find(which)?;
    call(&dir, &Request::Check { vm: vm.to_owned() }, &mut |_| Ok(()))?;
    let interactive = io::stdin().is_terminal();
    let mut folder = "/root".to_owned();
    let mut code = 0;
    loop {
        if interactive {
            eprint!("{vm}:{folder}# ");
        }
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line).context("read stdin")? == 0 || line.trim() == "exit" {
            return Ok(ExitCode::from(code));
        }
        let argv = ["sh", "-c", SHELL, "sh", &folder, line.trim_end()].map(str::to_owned).to_vec();
        let request = Request::Run { vm: vm.to_owned(), argv, timeout: 3600, stdin: None };
        let mut tail: Option<Vec<u8>> = None;
        let result = call(&dir, &request, &mut |bytes| {
            let at = if tail.is_some() { Some(0) } else { bytes.iter().position(|byte| *byte == 0) };
            let (text, rest) = bytes.split_at(at.unwrap_or(bytes.len()));
            if at.is_some() {
                tail.get_or_insert_default().extend_from_slice(rest);
            }
            io::stderr().write_all(text)
        });
        match result {
            Ok(status) => code = status,
            Err(e) => eprintln!("{e:#}"),
        }
        if let Some(tail) = tail {
            String::from_utf8_lossy(&tail).trim_matches('\0').clone_into(&mut folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_way_through_json() {
        let bytes: Vec<u8> = (0..=255).collect();
        let json = serde_json::to_string(&Reply::Stdout(to_text(&bytes))).unwrap();
        match serde_json::from_str(&json).unwrap() {
            Reply::Stdout(text) => assert_eq!(to_bytes(&text), bytes),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn kernels_have_names() {
        assert_eq!(parse_kernel("backports"), Ok(Kernel::Backports));
        assert_eq!(parse_kernel("cloud"), Ok(Kernel::Cloud));
        assert!(parse_kernel("newest").is_err());
    }
}
