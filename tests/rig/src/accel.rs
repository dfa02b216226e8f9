//! The choice between KVM and emulation.
//!
//! A `/dev/kvm` proves nothing: on some machines it exists and the guest hangs at its first
//! instructions. So our kernel is booted once with a short limit. The result is remembered until
//! the machine or the kernel changes.
//!
//! What must never happen here: a test run that waits for a KVM that does not work.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::image::Images;
use crate::process::Guarded;
use crate::qemu;

/// The execution of the VMs' processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// On the machine's own processors.
    Kvm,
    /// In software.
    Tcg,
}

impl Accel {
    /// The choice, in words for messages.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "software emulation",
        }
    }
}

/// Time limit for the whole probe boot, up to the first line of our PID 1.
const LIMIT: Duration = Duration::from_secs(8);
/// Time limit for the kernel's first output, which comes within milliseconds if KVM works.
const SILENCE: Duration = Duration::from_secs(3);
/// Line that PID 1 prints in a probe boot.
const ALIVE: &str = "mooring-guest: alive";

#[derive(Serialize, Deserialize)]
struct Answer {
    key: String,
    accel: Accel,
}

/// Chooses, and returns the reason in words.
pub(crate) fn choose(dir: &Path, images: &Images, initramfs: &[u8]) -> Result<(Accel, String)> {
    match std::env::var("MOORING_RIG_ACCEL").unwrap_or_default().as_str() {
        "" => {}
        "kvm" => return Ok((Accel::Kvm, "MOORING_RIG_ACCEL says so".to_owned())),
        "tcg" => return Ok((Accel::Tcg, "MOORING_RIG_ACCEL says so".to_owned())),
        other => bail!("MOORING_RIG_ACCEL is {other:?}; it may be kvm or tcg, or not be set"),
    }
    if let Err(e) = fs::File::options().read(true).write(true).open("/dev/kvm") {
        return Ok((Accel::Tcg, format!("/dev/kvm cannot be opened: {e}")));
    }
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let key = format!("{} {} {}", images.vmlinux.display(), images.guest.display(), boot_id.trim());
    let cache = dir.join("accel.json");
    let known = fs::read(&cache).ok().and_then(|bytes| serde_json::from_slice::<Answer>(&bytes).ok());
    let accel = match known {
        Some(answer) if answer.key == key => answer.accel,
        _ => {
            let accel = if probe(dir, images, initramfs)? { Accel::Kvm } else { Accel::Tcg };
            let new = dir.join(format!("accel.json.{}", std::process::id()));
            fs::write(&new, serde_json::to_vec(&Answer { key, accel })?)
                .context("write what the KVM probe found")?;
            fs::rename(&new, &cache).context("keep what the KVM probe found")?;
            accel
        }
    };
    let why = match accel {
        Accel::Kvm => "a probe boot worked",
        Accel::Tcg => "/dev/kvm is there, but a probe boot with it did not get through",
    };
    Ok((accel, why.to_owned()))
}

/// Boots our kernel with KVM. Returns `true` if it reached PID 1 in time.
fn probe(dir: &Path, images: &Images, initramfs: &[u8]) -> Result<bool> {
    let start = Instant::now();
    let pid = std::process::id();
    let console = dir.join(format!("probe-{pid}.console"));
    let initrd = dir.join(format!("probe-{pid}.initramfs"));
    fs::write(&initrd, initramfs).context("write the probe's initramfs")?;
    fs::write(&console, "").context("make the probe's console")?;
    let mut command = qemu::base(Accel::Kvm)?;
    command.args(["-m", "512", "-smp", "1", "-kernel"]).arg(&images.vmlinux).arg("-initrd").arg(&initrd);
    command.args(["-append", "console=ttyS0 earlyprintk=ttyS0,115200 panic=-1 mooring.probe=1"]);
    command.args([
        "-chardev",
        &format!("file,id=console,path={}", qemu::escape(&console)),
        "-serial",
        "chardev:console",
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut qemu = Guarded::spawn(command).context("start QEMU for the KVM probe")?;
    let mut works = false;
    while !works && start.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(20));
        let said = fs::read(&console).unwrap_or_default();
        works = String::from_utf8_lossy(&said).contains(ALIVE);
        let silent = said.is_empty() && start.elapsed() > SILENCE;
        if !works && (silent || qemu.ended().is_some()) {
            break;
        }
    }
    qemu.kill();
    for file in [console, initrd] {
        let _ = fs::remove_file(file);
    }
    let result = if works { "works" } else { "does not work" };
    eprintln!(
        "rig: probed /dev/kvm: it {result} ({:.1} s; remembered until the next boot)",
        start.elapsed().as_secs_f64()
    );
    Ok(works)
}
