//! Space on the disk of the machine that runs the VMs: their disks are files that grow as the
//! guests write.
//!
//! What must never happen here: a rig that begins where its VMs would be stopped later for lack of
//! space, which looks like a hanging guest.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// Bytes that must be free when a rig begins. The largest scenario writes about half as much, and
/// two run beside each other.
pub const NEEDED: u64 = 3 << 30;

/// Bytes that this user may still write where this folder is.
pub fn free(dir: &Path) -> Result<u64> {
    let stat = nix::sys::statvfs::statvfs(dir)
        .with_context(|| format!("ask how much is free under {}", dir.display()))?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

/// Fails if too little space is free.
pub(crate) fn check(dir: &Path) -> Result<()> {
    enough(free(dir)?, dir)
}

fn enough(free: u64, dir: &Path) -> Result<()> {
    if free < NEEDED {
        bail!(
            "{} (of {}), and VMs need {}: make room first (old build folders: `cargo clean`)",
            words(free),
            dir.display(),
            gib(NEEDED),
        );
    }
    Ok(())
}

/// The free space, in words.
pub(crate) fn told(dir: &Path) -> String {
    free(dir).map_or_else(|error| format!("{error:#}"), words)
}

fn words(free: u64) -> String {
    format!("{} are free on the disk of this machine", gib(free))
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_room_is_refused_with_figures() {
        let dir = Path::new("/srv/rig");
        assert!(enough(NEEDED, dir).is_ok());
        let error = enough(NEEDED - 1, dir).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "3.0 GiB are free on the disk of this machine (of /srv/rig), and VMs need 3.0 GiB"
            ),
            "{error}"
        );
        let error = enough(300 << 20, dir).unwrap_err().to_string();
        assert!(error.starts_with("0.3 GiB are free"), "{error}");
    }

    #[test]
    fn what_is_free_can_be_asked_of_any_folder() {
        assert!(free(Path::new("/proc/self")).is_ok());
        let error = format!("{:#}", free(Path::new("/nowhere")).unwrap_err());
        assert!(error.contains("/nowhere"), "{error}");
    }
}
