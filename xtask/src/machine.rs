//! Facts that make runs on different machines comparable.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use mooring_rig::{Kernel, image, room};
use mooring_tests::clients;

/// A fixed piece of work for one processor, independent of our builds.
const WORK: &str = "head -c 1073741824 /dev/zero | sha256sum";

/// Describes the build folder before the run: complete (warm), empty (cold), or which part exists.
pub(crate) fn cache(root: &Path) -> String {
    let images = Kernel::ALL.iter().all(|kernel| image::is_warm(root, *kernel));
    let parts = [
        ("programs", crate::stages::target(root).join("debug/mooring-agent").exists()),
        ("VM images", images),
        ("clients", clients::is_warm()),
    ];
    told(&parts)
}

fn told(parts: &[(&str, bool)]) -> String {
    let warm = |(_, warm): &(&str, bool)| *warm;
    if parts.iter().all(warm) {
        return "cache: warm".to_owned();
    }
    if !parts.iter().any(warm) {
        return "cache: cold".to_owned();
    }
    let each: Vec<_> =
        parts.iter().map(|(name, warm)| format!("{name} {}", if *warm { "warm" } else { "cold" })).collect();
    format!("cache: mixed ({})", each.join(", "))
}

/// Describes the free space for the programs and the VMs' disks.
pub(crate) fn room(root: &Path) -> String {
    match room::free(root) {
        Ok(free) => format!("free on the disk: {} MiB", free >> 20),
        Err(error) => format!("free on the disk: {error:#}"),
    }
}

/// Measures how long the fixed piece of work takes now.
pub(crate) fn speed() -> String {
    let began = Instant::now();
    let ended = Command::new("sh").args(["-c", WORK]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    match ended {
        Ok(status) if status.success() => {
            format!("fixed work ({WORK}): {:.2} s", began.elapsed().as_secs_f64())
        }
        _ => format!("fixed work ({WORK}): could not be run"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_cold_warm_or_told_by_its_parts() {
        assert_eq!(told(&[("a", true), ("b", true)]), "cache: warm");
        assert_eq!(told(&[("a", false), ("b", false)]), "cache: cold");
        assert_eq!(told(&[("a", true), ("b", false)]), "cache: mixed (a warm, b cold)");
    }
}
