//! Opens the partitions of a disk: the page cache of each is its own, and is reached through its
//! own node only.
//!
//! What must never happen here: a partition that is passed over while the kernel has it; another
//! device taken for one.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::super::kernel::Failure;
use super::{Machine, name_of, parse_number, text};

impl Machine {
    /// Opens the partitions of a disk by `open`, which also returns the number of the opened
    /// device. Their nodes are beside the disk's, under the names that the kernel gives them.
    /// ENODEV when the disk has gone; a partition that has gone meanwhile is left out.
    pub(in crate::disk) fn partitions<T>(
        &self,
        disk: u64,
        node: &Path,
        open: impl Fn(&Path) -> io::Result<(T, u64)>,
    ) -> Result<Vec<T>, Failure> {
        let mut opened = Vec::new();
        for (number, folder) in self.parts(disk)?.into_iter().filter(|(number, _)| *number != disk) {
            let node = node.with_file_name(name_of(&folder));
            let failure = match open(&node) {
                Ok((part, found)) if found == number => {
                    opened.push(part);
                    continue;
                }
                Ok(_) => Errno::ESTALE.into(),
                Err(error) => Failure::from(error),
            };
            let is_there = text(&folder.join("dev"))?.as_deref().and_then(parse_number) == Some(number);
            if is_there {
                return Err(Failure { detail: format!(": partition {}", node.display()), ..failure });
            }
        }
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::makedev;

    use super::super::tests::Fixture;
    use super::*;

    /// The "devices" of a machine made of files hold their numbers.
    fn opened(fixture: &Fixture, meanwhile: impl Fn(&Path)) -> Result<Vec<String>, Failure> {
        let open = |node: &Path| {
            meanwhile(node);
            let number = parse_number(&fs::read_to_string(node)?).unwrap();
            Ok((name_of(node), number))
        };
        fixture.machine().partitions(makedev(8, 16), &fixture.at("dev/sdb"), open)
    }

    #[test]
    fn every_partition_of_the_disk_is_opened_and_nothing_else() {
        let fixture = Fixture::new();
        assert_eq!(opened(&fixture, |_| ()).unwrap(), ["sdb1"]);
        fixture.put("sys/devices/sdb/sdb2/partition", "2\n");
        fixture.put("sys/devices/sdb/sdb2/dev", "259:3\n");
        fixture.put("dev/sdb2", "259:3");
        assert_eq!(opened(&fixture, |_| ()).unwrap(), ["sdb1", "sdb2"]);
        let none = fixture.machine().partitions(makedev(8, 0), &fixture.at("dev/sda"), |_| Ok(((), 0)));
        assert_eq!(none.unwrap(), []);
    }

    #[test]
    fn a_partition_that_cannot_be_opened_fails_unless_it_has_gone() {
        let fixture = Fixture::new();
        let error = opened(&fixture, |node| fs::remove_file(node).unwrap()).unwrap_err();
        assert_eq!((error.errno, error.detail.ends_with("dev/sdb1")), (Errno::ENOENT, true), "{error:?}");
        // Another device has its name.
        fixture.put("dev/sdb1", "8:0");
        assert_eq!(opened(&fixture, |_| ()).unwrap_err().errno, Errno::ESTALE);
        let gone = |_: &Path| drop(fs::remove_dir_all(fixture.at("sys/devices/sdb/sdb1")));
        assert_eq!(opened(&fixture, gone).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_disk_that_has_gone_is_an_error() {
        let fixture = Fixture::new();
        fs::remove_file(fixture.at("sys/dev/block/8:16")).unwrap();
        assert_eq!(opened(&fixture, |_| ()), Err(Errno::ENODEV.into()));
    }
}
