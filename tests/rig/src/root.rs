//! The root file system of the VMs: Debian packages, packed into one read-only image that all VMs
//! share.
//!
//! What must never happen here: a service that the guest starts by itself. No package's daemon is
//! started (PID 1 is ours, unless a VM boots as Debian does), LVM activates nothing by itself, and
//! names that must be unique per VM are written at boot.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::image::{key_of, remove, run, tool};

/// Installed packages. open-iscsi and targetcli-fb are peers to compare with, not parts of the
/// product.
const PACKAGES: &[&str] = &[
    "bubblewrap",
    "dbus",
    "dmsetup",
    "e2fsprogs",
    "ethtool",
    "fcoe-utils",
    "fio",
    "iproute2",
    "iputils-ping",
    "kmod",
    "libiscsi-bin",
    "lsscsi",
    "lvm2",
    "multipath-tools",
    "nvme-cli",
    "open-iscsi",
    "procps",
    "qemu-utils",
    "sg3-utils",
    "strace",
    "systemd",
    "targetcli-fb",
    "thin-provisioning-tools",
    "udev",
    "util-linux",
    "xfsprogs",
];

const MIRROR: &str = "http://deb.debian.org/debian";
const SECURITY: &str = "http://deb.debian.org/debian-security";

/// LVM's settings for tests: only our disks are scanned; nothing is activated or watched behind a
/// scenario's back.
const LVM_CONF: &str = r#"# Written by the rig. What is not here has lvm's default.
devices {
	use_devicesfile = 0
	# The VM's own disks and what is stacked on them, never a disk that came over iSCSI.
	global_filter = [ "a|^/dev/vd[c-z]$|", "a|^/dev/mapper/|", "r|.*|" ]
}
global {
	event_activation = 0
	use_lvmpolld = 0
}
activation {
	udev_sync = 1
	udev_rules = 1
	monitoring = 0
}
backup {
	archive = 0
}
"#;

/// Runs inside mmdebstrap's namespace, where the tree has its right owners. `$1` is the tree, `$2`
/// this folder.
const CUSTOMIZE: &str = r#"#!/bin/sh
set -eu
root=$1 work=$2
cp "$work/lvm.conf" "$root/etc/lvm/lvm.conf"
printf 'defaults {\n\tfind_multipaths strict\n}\n' > "$root/etc/multipath.conf"
: > "$root/etc/machine-id"
: > "$root/etc/fstab"
rm -f "$root/etc/resolv.conf" "$root/etc/iscsi/initiatorname.iscsi"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/log/*
rm -rf "$root"/usr/lib/modules
mkdir -p "$root/usr/lib/modules" "$root/var/log" "$root/var/target/pr"
# /proc and others are mounted in the tree while hooks run; a plain bind mount shows it without them.
bind=$(mktemp -d)
mount --bind "$root" "$bind"
status=0
mke2fs -q -t ext4 -O ^has_journal -m 0 -E root_owner=0:0 -d "$bind" "$work/root.ext4" 2048M || status=$?
umount "$bind"
rmdir "$bind"
chmod 0644 "$work/root.ext4"
exit $status
"#;

fn setting(name: &str, default: &str) -> String {
    std::env::var(name).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned())
}

/// The Debian mirror, and the mirror for security updates; `MOORING_RIG_MIRROR` and
/// `MOORING_RIG_SECURITY` change them.
pub(crate) fn mirrors() -> (String, String) {
    (setting("MOORING_RIG_MIRROR", MIRROR), setting("MOORING_RIG_SECURITY", SECURITY))
}

/// Lines for apt: a release of Debian with its updates.
pub fn sources_of(release: &str) -> Vec<String> {
    let (mirror, security) = mirrors();
    vec![
        format!("deb {mirror} {release} main"),
        format!("deb {mirror} {release}-updates main"),
        format!("deb {security} {release}-security main"),
    ]
}

/// The line for apt: a release's backports.
pub(crate) fn backports(release: &str) -> String {
    format!("deb {} {release}-backports main", mirrors().0)
}

/// The usual packages, and these beside them, as mmdebstrap reads them.
fn include(more: &[&str]) -> String {
    [PACKAGES, more].concat().join(",")
}

/// A short hash of the inputs of a release's image with these packages beside the usual ones.
pub(crate) fn key(release: &str, more: &[&str]) -> String {
    key_of(&[&include(more), &sources_of(release).join("\n"), LVM_CONF, CUSTOMIZE])
}

/// Makes `root.ext4` of a Debian release in `work`, with these packages beside the usual ones.
pub(crate) fn build(work: &Path, release: &str, more: &[&str]) -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        return bootstrap(work, release, more);
    }
    // Without root, mmdebstrap's hooks run under a subordinate id, which may not enter a home
    // folder.
    let open = std::env::temp_dir().join(format!("mooring-root-{}", std::process::id()));
    fs::create_dir(&open).with_context(|| format!("make {}", open.display()))?;
    let built = fs::set_permissions(&open, fs::Permissions::from_mode(0o777))
        .context("open the work folder")
        .and_then(|()| bootstrap(&open, release, more))
        .and_then(|()| {
            let mut copy = Command::new("cp");
            copy.arg("--sparse=always").arg(open.join("root.ext4")).arg(work.join("root.ext4"));
            run(&mut copy).map(drop)
        });
    remove(&open)?;
    built
}

fn bootstrap(work: &Path, release: &str, more: &[&str]) -> Result<()> {
    fs::write(work.join("lvm.conf"), LVM_CONF).context("write lvm.conf")?;
    fs::write(work.join("customize"), CUSTOMIZE).context("write the customize hook")?;
    let mut mmdebstrap = tool("mmdebstrap");
    mmdebstrap.args(["--quiet", "--variant=minbase", "--architectures=amd64"]);
    mmdebstrap.args(["--aptopt=APT::Install-Recommends \"false\"", "--aptopt=Acquire::Languages \"none\""]);
    for path in ["doc", "info", "locale", "man"] {
        mmdebstrap.arg(format!("--dpkgopt=path-exclude=/usr/share/{path}/*"));
    }
    mmdebstrap.arg(format!("--include={}", include(more)));
    mmdebstrap.arg(format!("--customize-hook=sh '{0}/customize' \"$1\" '{0}'", work.display()));
    mmdebstrap.args([release, "/dev/null"]).args(sources_of(release));
    run(&mut mmdebstrap)
        .map(drop)
        .context("make the guest's root from Debian packages (is the mirror reachable?)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_packages_make_another_image_and_leave_the_usual_one() {
        assert_eq!(include(&[]), PACKAGES.join(","));
        assert!(include(&["sanlock"]).ends_with(",sanlock"));
        assert_ne!(key("bookworm", &["sanlock"]), key("bookworm", &[]));
        assert_ne!(key("trixie", &[]), key("bookworm", &[]));
    }
}
