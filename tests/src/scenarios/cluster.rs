//! Cluster software of Debian on a shared volume: two hosts with agents attach the same volume.
//!
//! What must never happen here: a host that is refused something without the control, in which the
//! same call succeeds or the other host's does.

use std::time::Duration;

use anyhow::Result;
use mooring_rig::RigOptions;

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::Evidence;
use crate::native::text;
use crate::site::{Programs, Site};

pub(super) mod fence_scsi;
pub(super) mod lvmlockd;
pub(super) mod ocfs2;
pub(super) mod sanlock;

/// Debian's cluster software, in an image of its own.
pub const PACKAGES: &[&str] = &["fence-agents", "lvm2-lockd", "ocfs2-tools", "sanlock"];

/// Time limit of a call of cluster software, which waits for leases by itself.
const PATIENT: Duration = Duration::from_mins(6);

/// Two hosts with a shared volume.
struct Pair<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    volume: String,
    /// The attachments' ids, that of host1 first.
    attachments: Vec<String>,
    /// The disk on each host, that of host1 first.
    disks: Vec<Disk<'a>>,
}

type Acts = fn(&mut Pair<'_>) -> Result<()>;

fn run(name: &str, programs: &Programs, acts: Acts) -> Result<()> {
    let mut options = RigOptions::standard(2).named(name).forward(PORT).packages(PACKAGES);
    for host in options.vms.iter_mut().skip(1) {
        host.memory_mib = 768;
    }
    let site = Site::up(options, programs)?;
    let result = scenes(&site, acts);
    site.end(result)
}

fn scenes(site: &Site, acts: Acts) -> Result<()> {
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.shared_type()?;
    let volume = control.volume("data", Some("shared"))?;
    let (mut attachments, mut disks) = (Vec::new(), Vec::new());
    for host in ["host1", "host2"] {
        let live = control.attach(&volume, host, "rw")?;
        attachments.push(text(&live, "id")?.to_owned());
        disks.push(Disk::new(site.rig.vm(host)?, text(&live, "device_path")?));
    }
    let mut pair = Pair { site, control, evidence: Evidence::default(), volume, attachments, disks };
    let result = acts(&mut pair);
    if result.is_err() {
        pair.control.print_logs();
    }
    result?;
    agent.kill()?;
    drop(agent.wait()?);
    Ok(())
}
