//! Operations of a row on a tree, with a record of the objects that it made, so that all of them go
//! again.

use std::cell::RefCell;
use std::fmt::Display;
use std::path::Path;

use nix::errno::Errno;

use super::{Answer, Env};
use crate::{Tree, TreeError, TreePath};

/// HBA, targets and initiators of the contract: names that nobody else uses.
pub(super) const HBA: &str = "core/iblock_99001";
pub(super) const TARGET: &str = "iqn.2026-11.dev.mooring.contract:a";
const TARGET2: &str = "iqn.2026-11.dev.mooring.contract:b";

/// An initiator of the contract.
pub(super) const HOST: &str = "iqn.2026-11.dev.mooring.contract:host1";

/// A portal of the contract: on the loopback, so that nothing of the machine's own is disturbed.
pub(super) const PORTAL: &str = "127.0.0.1:33260";

enum Made {
    Dir(TreePath),
    Link(TreePath),
    Enabled(TreePath),
    File(std::path::PathBuf),
}

/// A row at work: operations on the tree with a record of the made objects.
pub struct Script<'a> {
    tree: &'a dyn Tree,
    pub(super) env: &'a Env,
    made: RefCell<Vec<Made>>,
}

/// Steps of a preparation: an error is the preparation's.
impl<'a> Script<'a> {
    pub(super) fn new(tree: &'a dyn Tree, env: &'a Env) -> Self {
        Self { tree, env, made: RefCell::new(Vec::new()) }
    }

    fn note(&self, made: Made) {
        self.made.borrow_mut().push(made);
    }

    pub(super) fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree.mkdir(path)?;
        self.note(Made::Dir(path.clone()));
        Ok(())
    }

    pub(super) fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        self.tree.symlink(target, link)?;
        self.note(Made::Link(link.clone()));
        Ok(())
    }

    pub(super) fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree.rmdir(path)
    }

    pub(super) fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        self.tree.unlink(path)
    }

    pub(super) fn write(&self, path: &TreePath, value: impl Display) -> Result<(), TreeError> {
        self.tree.write(path, value.to_string().as_bytes())?;
        if path.name() == "enable" && path.parent().name().starts_with("tpgt_") {
            self.note(Made::Enabled(path.clone()));
        }
        Ok(())
    }

    pub(super) fn read(&self, path: &TreePath) -> Result<String, TreeError> {
        Ok(String::from_utf8_lossy(&self.tree.read(path)?).into_owned())
    }
}

/// Operations under test: their errno is the answer. They return `Result` all the same, because a
/// row ends with one of them.
#[expect(clippy::unnecessary_wraps, reason = "the tail of a row, which returns a Result")]
impl Script<'_> {
    pub(super) fn try_mkdir(&self, path: &TreePath) -> Result<Answer, TreeError> {
        Ok(answer(self.mkdir(path)))
    }

    pub(super) fn try_rmdir(&self, path: &TreePath) -> Result<Answer, TreeError> {
        Ok(answer(self.tree.rmdir(path)))
    }

    pub(super) fn try_symlink(&self, target: &TreePath, link: &TreePath) -> Result<Answer, TreeError> {
        Ok(answer(self.symlink(target, link)))
    }

    pub(super) fn try_unlink(&self, path: &TreePath) -> Result<Answer, TreeError> {
        Ok(answer(self.tree.unlink(path)))
    }

    pub(super) fn try_write(&self, path: &TreePath, value: impl Display) -> Result<Answer, TreeError> {
        Ok(answer(self.write(path, value)))
    }

    pub(super) fn try_read(&self, path: &TreePath) -> Result<Answer, TreeError> {
        Ok(self.read(path).map_err(|error| error.errno))
    }

    pub(super) fn try_list(&self, path: &TreePath) -> Result<Answer, TreeError> {
        let names = |entries: Vec<crate::Entry>| {
            entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>().join(" ")
        };
        Ok(self.tree.list(path).map(names).map_err(|error| error.errno))
    }

    pub(super) fn try_read_link(&self, path: &TreePath) -> Result<Answer, TreeError> {
        Ok(self.tree.read_link(path).map(|target| target.as_str().to_owned()).map_err(|error| error.errno))
    }

    /// Writes an attribute and reads it back.
    pub(super) fn write_read(&self, path: &TreePath, value: impl Display) -> Result<Answer, TreeError> {
        self.write(path, value)?;
        self.try_read(path)
    }
}

/// Objects that rows need.
impl Script<'_> {
    pub(super) fn hba(&self) -> Result<TreePath, TreeError> {
        let path = TreePath::new(HBA);
        self.mkdir(&path)?;
        Ok(path)
    }

    /// Makes a backstore that is not configured.
    pub(super) fn bare_store(&self) -> Result<TreePath, TreeError> {
        let path = self.hba()?.join("vol");
        self.mkdir(&path)?;
        Ok(path)
    }

    /// Makes an enabled backstore on a device.
    pub(super) fn store_on(&self, device: &Path) -> Result<TreePath, TreeError> {
        let path = self.bare_store()?;
        self.write(&path.join("control"), control(device))?;
        self.write(&path.join("wwn").join("vpd_unit_serial"), "11112222-3333-4444-5555-666677778888")?;
        self.write(&path.join("enable"), 1)?;
        Ok(path)
    }

    pub(super) fn store(&self) -> Result<TreePath, TreeError> {
        self.store_on(&self.env.device)
    }

    /// Returns the iSCSI fabric, and makes it if it does not exist.
    pub(super) fn fabric(&self) -> Result<TreePath, TreeError> {
        let path = TreePath::new("iscsi");
        match self.mkdir(&path) {
            Err(error) if error.errno != Errno::EEXIST => Err(error),
            _ => Ok(path),
        }
    }

    pub(super) fn target(&self) -> Result<TreePath, TreeError> {
        let path = self.fabric()?.join(TARGET);
        self.mkdir(&path)?;
        Ok(path)
    }

    pub(super) fn tpg(&self) -> Result<TreePath, TreeError> {
        let path = self.target()?.join("tpgt_1");
        self.mkdir(&path)?;
        Ok(path)
    }

    /// Makes a group of another target.
    pub(super) fn other_tpg(&self) -> Result<TreePath, TreeError> {
        let path = self.fabric()?.join(TARGET2);
        self.mkdir(&path)?;
        self.mkdir(&path.join("tpgt_1"))?;
        Ok(path.join("tpgt_1"))
    }

    /// Makes a LUN without its link.
    pub(super) fn bare_lun(&self, tpg: &TreePath) -> Result<TreePath, TreeError> {
        let path = tpg.join("lun").join("lun_1");
        self.mkdir(&path)?;
        Ok(path)
    }

    /// Makes a LUN of a backstore in a group.
    pub(super) fn lun(&self, tpg: &TreePath, store: &TreePath) -> Result<TreePath, TreeError> {
        let path = self.bare_lun(tpg)?;
        self.symlink(store, &path.join("store"))?;
        Ok(path)
    }

    pub(super) fn acl(&self, tpg: &TreePath) -> Result<TreePath, TreeError> {
        let path = tpg.join("acls").join(HOST);
        self.mkdir(&path)?;
        Ok(path)
    }

    /// Makes a mapped LUN without its link.
    pub(super) fn bare_mapped(&self, tpg: &TreePath) -> Result<TreePath, TreeError> {
        let path = self.acl(tpg)?.join("lun_1");
        self.mkdir(&path)?;
        Ok(path)
    }

    /// Makes store, group, LUN and mapped LUN, linked, and returns them in this order.
    pub(super) fn export(&self) -> Result<[TreePath; 4], TreeError> {
        let store = self.store()?;
        let tpg = self.tpg()?;
        let lun = self.lun(&tpg, &store)?;
        let mapped = self.bare_mapped(&tpg)?;
        self.symlink(&lun, &mapped.join("lun"))?;
        Ok([store, tpg, lun, mapped])
    }

    /// Records a file that an operation made outside the tree.
    pub(super) fn file_was_made(&self, path: &Path) {
        self.note(Made::File(path.to_owned()));
    }

    /// Removes all recorded objects, newest first. Returns the errors of those that cannot be
    /// removed.
    pub(super) fn clean_up(self) -> Vec<TreeError> {
        let mut left = Vec::new();
        for made in self.made.into_inner().into_iter().rev() {
            let removed = match &made {
                Made::Dir(path) => self.tree.rmdir(path),
                Made::Link(path) => self.tree.unlink(path),
                Made::Enabled(path) => self.tree.write(path, b"0"),
                Made::File(path) => {
                    // A file that a fake made does not exist.
                    let _ = std::fs::remove_file(path);
                    Ok(())
                }
            };
            // ENOENT: the row has removed it itself.
            left.extend(removed.err().filter(|error| error.errno != Errno::ENOENT));
        }
        left
    }
}

fn answer(result: Result<(), TreeError>) -> Answer {
    result.map(|()| String::new()).map_err(|error| error.errno)
}

/// Returns the `control` line of an iblock backstore.
pub(super) fn control(device: &Path) -> String {
    format!("udev_path={}", device.display())
}

impl std::fmt::Debug for Script<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script")
            .field("env", self.env)
            .field("made", &self.made.borrow().len())
            .finish_non_exhaustive()
    }
}
