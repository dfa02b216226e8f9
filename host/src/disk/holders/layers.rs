//! Finds the layers that must go before a disk can: swap areas, mounts and devices on top of it, in
//! the order in which they can go.
//!
//! What must never happen here: a mount or a device named that is not on the disk; the root file
//! system named.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::super::kernel::Failure;
use super::super::{Layers, Top};
use super::{Machine, Mount, entries, name_of, text, unescape, unless_gone};

impl Machine {
    /// Finds the present layers of this disk; none if the disk has gone.
    pub(in crate::disk) fn layers(&self, disk: u64) -> Result<Layers, Failure> {
        let loops = self.loops()?;
        let stacked = match self.stacked(disk, &loops) {
            Err(failure) if failure.errno == Errno::ENODEV => return Ok(Layers::default()),
            stacked => stacked?,
        };
        let mounts = self.mounted_on(&stacked)?;
        let mut layers = Layers { swaps: self.swaps_on(&stacked, &mounts)?, ..Layers::default() };
        for (number, folder) in stacked.iter().filter(|(number, _)| **number != disk) {
            let on_loop = loops.iter().any(|(_, backing)| backing == number);
            if !folder.join("partition").exists() && !on_loop && entries(&folder.join("holders"))?.is_empty()
            {
                layers.tops.push(top(folder)?);
            }
        }
        layers.mounts = mounts;
        Ok(layers)
    }

    /// Lists the mount points of these devices in this process's namespace, with all mounts below
    /// them. The latest mount comes first.
    fn mounted_on(&self, stacked: &BTreeMap<u64, PathBuf>) -> Result<Vec<PathBuf>, Failure> {
        let bytes = unless_gone(fs::read(self.proc.join("self/mountinfo")))?.unwrap_or_default();
        let mut found: Vec<PathBuf> = Vec::new();
        for mount in bytes.split(|byte| *byte == b'\n').filter_map(Mount::parse) {
            // A file system over several disks (btrfs) has a number of its own, but names one of
            // them as its source.
            let number = || (self.number)(&mount.source).filter(|_| mount.source.is_absolute());
            let ours = stacked.contains_key(&mount.number)
                || number().is_some_and(|number| stacked.contains_key(&number));
            let below = found.iter().any(|point| mount.point.starts_with(point));
            if (ours || below) && mount.point != Path::new("/") {
                found.push(mount.point);
            }
        }
        found.reverse();
        Ok(found)
    }

    /// Lists swap areas that are one of these devices, or a file below one of these points.
    fn swaps_on(
        &self,
        stacked: &BTreeMap<u64, PathBuf>,
        mounts: &[PathBuf],
    ) -> Result<Vec<PathBuf>, Failure> {
        let bytes = unless_gone(fs::read(self.proc.join("swaps")))?.unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n').skip(1);
        let areas = lines.filter_map(|line| line.split(u8::is_ascii_whitespace).next().map(unescape));
        let ours = |area: &PathBuf| {
            (self.number)(area).is_some_and(|number| stacked.contains_key(&number))
                || mounts.iter().any(|point| area.starts_with(point))
        };
        Ok(areas.filter(ours).collect())
    }
}

/// Tells the kind of a device on top, which decides how it is taken down.
fn top(folder: &Path) -> Result<Top, Failure> {
    let name = name_of(folder);
    if let Some(map) = text(&folder.join("dm/name"))? {
        return Ok(Top::Map(map.trim_end().to_owned()));
    }
    Ok(match &name {
        md if md.starts_with("md") => Top::Raid(name),
        file if file.starts_with("loop") => Top::Loop(name),
        _ => Top::Other(name),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    const DISK: u64 = 8 << 8 | 16;

    /// Adds a device on top of another one to the fixture.
    fn on_top(fixture: &Fixture, name: &str, number: &str, below: &str) {
        fixture.put(&format!("dev/{name}"), number);
        fixture.put(&format!("sys/devices/{name}/dev"), &format!("{number}\n"));
        fs::create_dir(fixture.at(&format!("sys/devices/{name}/holders"))).unwrap();
        fixture.link(&format!("sys/devices/{name}"), &format!("sys/block/{name}"));
        fixture.link(&format!("sys/devices/{name}"), &format!("sys/dev/block/{number}"));
        if !below.is_empty() {
            fixture.link(&format!("sys/devices/{name}"), &format!("sys/devices/{below}/holders/{name}"));
        }
    }

    #[test]
    fn a_disk_without_anything_on_it_has_no_layers() {
        let fixture = Fixture::new();
        assert_eq!(fixture.machine().layers(DISK).unwrap(), Layers::default());
        assert_eq!(
            fixture.machine().layers(8 << 8 | 32).unwrap(),
            Layers::default(),
            "there is no such disk"
        );
    }

    #[test]
    fn mounts_go_in_the_order_in_which_they_can() {
        let fixture = Fixture::new();
        let lines = [
            "22 1 8:0 / / rw - ext4 /dev/root rw",
            "23 22 0:20 / /proc rw - proc proc rw",
            "30 22 8:17 / /data rw - ext4 /dev/sdb1 rw",
            "31 30 0:40 / /data/tmp\\040dir rw - tmpfs tmpfs rw",
            "32 22 8:0 / /database rw - ext4 /dev/sda rw",
            "33 22 8:17 /sub /bind rw - ext4 /dev/sdb1 rw",
        ];
        fixture.put("proc/self/mountinfo", &format!("{}\n", lines.join("\n")));
        let layers = fixture.machine().layers(DISK).unwrap();
        let mounts = ["/bind", "/data/tmp dir", "/data"].map(PathBuf::from);
        assert_eq!(layers, Layers { mounts: mounts.into(), ..Layers::default() });
    }

    #[test]
    fn the_root_is_never_named_even_on_such_a_disk() {
        let fixture = Fixture::new();
        fixture.put(
            "proc/self/mountinfo",
            "22 1 8:17 / / rw - ext4 /dev/sdb1 rw\n23 22 0:20 / /proc rw - proc proc rw\n",
        );
        assert_eq!(fixture.machine().layers(DISK).unwrap(), Layers::default());
    }

    #[test]
    fn only_the_topmost_devices_are_named() {
        let fixture = Fixture::new();
        on_top(&fixture, "md127", "9:127", "sdb/sdb1");
        on_top(&fixture, "dm-0", "253:0", "md127");
        fixture.put("sys/devices/dm-0/dm/name", "vg-data\n");
        let tops = |fixture: &Fixture| fixture.machine().layers(DISK).unwrap().tops;
        assert_eq!(tops(&fixture), [Top::Map("vg-data".into())]);
        on_top(&fixture, "loop0", "7:0", "");
        fixture
            .put("sys/devices/loop0/loop/backing_file", &format!("{}\n", fixture.at("dev/dm-0").display()));
        assert_eq!(tops(&fixture), [Top::Loop("loop0".into())]);
        fs::remove_file(fixture.at("sys/block/loop0")).unwrap();
        fs::remove_file(fixture.at("sys/devices/md127/holders/dm-0")).unwrap();
        assert_eq!(tops(&fixture), [Top::Raid("md127".into())]);
    }

    #[test]
    fn swap_on_the_disk_and_in_its_file_systems_is_named() {
        let fixture = Fixture::new();
        fixture.put("proc/self/mountinfo", "30 22 8:17 / /data rw - ext4 /dev/sdb1 rw\n");
        let device = fixture.at("dev/sdb1");
        let text = format!(
            "Filename\tType\n{} partition\t8\n/data/swap\\040file file\t8\n/swap file\t8\n",
            device.display()
        );
        fixture.put("proc/swaps", &text);
        assert_eq!(fixture.machine().layers(DISK).unwrap().swaps, [device, "/data/swap file".into()]);
    }
}
