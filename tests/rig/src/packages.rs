//! Debian packages that the rig and the other tests need on this machine.
//!
//! What must never happen here: a failure deep in a build because a tool is missing. All tools are
//! checked first; for root they are installed, other users get one line to run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A program (or a file) and the package that brings it.
const NEEDED: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mmdebstrap", "mmdebstrap"),
    ("nbdkit", "nbdkit"),
    ("mke2fs", "e2fsprogs"),
    ("depmod", "kmod"),
    ("setpriv", "util-linux"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("lz4", "lz4"),
    ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
];

/// Finds a program in PATH, or in Debian's folders for administrators.
pub fn find(program: &str) -> Option<PathBuf> {
    if program.starts_with('/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    dirs.extend(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    dirs.into_iter().map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Programs for users other than root: mmdebstrap then works in a user namespace, whose ids these
/// set up.
const NEEDED_BY_USERS: &[(&str, &str)] = &[("newuidmap", "uidmap")];

/// The packages whose programs are missing.
pub fn missing(root: bool, exists: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let users = if root { &[] } else { NEEDED_BY_USERS };
    NEEDED.iter().chain(users).filter(|(program, _)| !exists(program)).map(|(_, package)| *package).collect()
}

/// The one line for a user who may not install packages.
pub fn message(what: &str, packages: &[&str]) -> String {
    format!(
        "{what} needs Debian packages that are not installed; run: sudo apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    )
}

/// Checks that everything is installed that the rig needs.
pub fn ensure() -> Result<()> {
    let root = nix::unistd::geteuid().is_root();
    install("the rig", || missing(root, |program| find(program).is_some()))
}

/// Checks that nothing is missing that `what` needs; for root it is installed.
pub fn install(what: &str, missing: impl Fn() -> Vec<&'static str>) -> Result<()> {
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() || !Path::new("/usr/bin/apt-get").exists() {
        bail!(message(what, &packages));
    }
    eprintln!("{what}: installing {}", packages.join(" "));
    apt_get(&["update", "-qq"])?;
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(&packages);
    apt_get(&install)?;
    let still = missing();
    if still.is_empty() { Ok(()) } else { bail!(message(what, &still)) }
}

/// Checks that PostgreSQL is installed: tests start servers of their own.
pub fn ensure_postgresql() -> Result<()> {
    install(
        "the store's tests on PostgreSQL",
        || if has_postgresql() { Vec::new() } else { vec!["postgresql"] },
    )
}

/// Checks that a bus can be started: tests run fakes of systemd and logind on it.
pub fn ensure_dbus() -> Result<()> {
    install(
        "tests over D-Bus",
        || {
            if find("dbus-daemon").is_some() { Vec::new() } else { vec!["dbus-daemon"] }
        },
    )
}

/// Checks that systemd's own checker of units is there.
pub fn ensure_systemd_analyze() -> Result<()> {
    install("checking the units", || {
        if find("systemd-analyze").is_some() { Vec::new() } else { vec!["systemd"] }
    })
}

/// Looks where Debian keeps PostgreSQL's programs: in a folder for each version, outside of PATH.
fn has_postgresql() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin/postgres")).any(|program| program.exists())
}

fn apt_get(args: &[&str]) -> Result<()> {
    let out = Command::new("/usr/bin/apt-get")
        // Another may be at work: the daily updates of a machine that has just booted, or a second
        // run of ours.
        .args(["-o", "DPkg::Lock::Timeout=300"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .context("start apt-get")?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        bail!("apt-get {} failed ({}): {}", args.join(" "), out.status, text.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_missing_when_everything_exists() {
        assert!(missing(true, |_| true).is_empty());
        assert!(missing(false, |_| true).is_empty());
        assert_eq!(missing(false, |program| program != "newuidmap"), ["uidmap"]);
    }

    #[test]
    fn the_message_is_one_line_that_can_be_run() {
        let packages = missing(true, |program| program != "qemu-system-x86_64" && program != "depmod");
        assert_eq!(packages, ["qemu-system-x86", "kmod"]);
        let text = message("the rig", &packages);
        assert!(
            text.ends_with("run: sudo apt-get install -y --no-install-recommends qemu-system-x86 kmod"),
            "{text}"
        );
        assert!(!text.contains('\n'));
    }

    #[test]
    fn absolute_paths_are_looked_at_as_they_are() {
        assert!(find("/proc/version").is_some());
        assert!(find("/no/such/program").is_none());
        assert!(find("no-such-program-anywhere").is_none());
    }
}
