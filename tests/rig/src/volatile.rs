//! Data disks with a cache that a power cut empties. `nbdkit` keeps the guest's writes in a file
//! without a name, and writes them to the disk's own file when the guest flushes. It is killed with
//! the VM, and everything unflushed is lost with it.
//!
//! A real disk may have written some of that. This one is the worst case that is allowed: it keeps
//! only what was flushed.
//!
//! What must never happen here: a server that outlives its VM, or ends in an orderly way: both
//! could write unflushed data.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::image::tool;
use crate::options::VmSpec;
use crate::process::Guarded;

/// Time limit for it to listen.
const LISTENS_WITHIN: Duration = Duration::from_mins(1);

/// The path in the run folder at which QEMU finds a disk.
pub(crate) fn socket(vm: &str, disk: usize) -> String {
    format!("{vm}.data{disk}.nbd")
}

/// Serves every data disk of this VM from its file, with an empty cache.
pub(crate) fn serve(dir: &Path, spec: &VmSpec) -> Result<Vec<Guarded>> {
    (0..spec.disks.len()).map(|disk| serve_one(dir, &spec.name, disk)).collect()
}

fn serve_one(dir: &Path, vm: &str, disk: usize) -> Result<Guarded> {
    let socket = socket(vm, disk);
    // Remove the socket of the boot before, whose server was killed.
    drop(std::fs::remove_file(dir.join(&socket)));
    let log = std::fs::File::create(dir.join(format!("{socket}.log"))).context("make nbdkit's log")?;
    let mut command = tool("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command.arg(crate::packages::find("nbdkit").context("nbdkit is not installed")?);
    command.args(["--foreground", "--unix", &socket, "--filter=cache", "file", &format!("{vm}.data{disk}")]);
    // Use blocks of 4 KiB, so that a flush writes no unflushed neighbours.
    command.args(["cache=writeback", "cache-min-block-size=4K"]);
    command.env("TMPDIR", dir).current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut server = Guarded::spawn(command).context("start nbdkit")?;
    let began = Instant::now();
    while !dir.join(&socket).exists() {
        let ended = server.ended();
        if ended.is_some() || began.elapsed() > LISTENS_WITHIN {
            let said = std::fs::read_to_string(dir.join(format!("{socket}.log"))).unwrap_or_default();
            let how = ended.map_or_else(|| "it does not listen".to_owned(), |status| status.to_string());
            bail!("nbdkit for data disk {disk} of {vm}: {how}: {}", said.trim());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(server)
}
