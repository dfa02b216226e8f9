//! The part of `/sys` that the agent uses: `scan`, `delete`, `rescan`, and the folders of disks.

use mooring_host::{Entry, EntryKind, Errno, Tree, TreeError, TreeOp, TreePath};

use super::door::Door;
use super::{READ_AHEAD_DEFAULT, Sdev, State};

fn fail(op: TreeOp, path: &TreePath, errno: Errno) -> TreeError {
    TreeError { op, root: "/sys".to_owned(), path: path.clone(), errno }
}

/// Parses `devices/platform/host<H>/session<S>/target<H>:0:0[/<H>:0:0:<lun>[/rest]]`.
fn parse(path: &TreePath) -> Option<(u32, u32, Option<u16>, String)> {
    let rest = path.as_str().strip_prefix("devices/platform/host")?;
    let mut parts = rest.splitn(5, '/');
    let host: u32 = parts.next()?.parse().ok()?;
    let sid: u32 = parts.next()?.strip_prefix("session")?.parse().ok()?;
    if parts.next()? != format!("target{host}:0:0") {
        return None;
    }
    let lun = match parts.next() {
        None => None,
        Some(unit) => Some(unit.strip_prefix(&format!("{host}:0:0:"))?.parse().ok()?),
    };
    Some((host, sid, lun, parts.next().unwrap_or_default().to_owned()))
}

impl State {
    fn scan(&mut self, number: u32, lun: u16) {
        let (no_blocks, next) = (self.no_blocks, self.number());
        let Some(host) = self.hosts.get_mut(&number) else { return };
        let unit = self.targets.get(&host.volume).and_then(|target| target.unit.clone());
        let (Some(unit), 1, false) = (unit, lun, host.sdevs.contains_key(&lun)) else { return };
        let name = format!("sd{next}");
        let sdev = Sdev { block: !no_blocks, ..Sdev::of(&unit, name.clone(), u64::from(next) + 5000) };
        host.sdevs.insert(lun, sdev);
        if !no_blocks {
            self.uevent("add", number, &name);
        }
    }

    fn write(&mut self, path: &TreePath, value: &str) -> Result<(), Errno> {
        if let Some(host) = path.as_str().strip_prefix("class/scsi_host/host") {
            let host: u32 =
                host.strip_suffix("/scan").and_then(|host| host.parse().ok()).ok_or(Errno::ENOENT)?;
            let Some(lun) = value.strip_prefix("0 0 ").and_then(|lun| lun.parse().ok()) else {
                self.violate(format!("a scan of {value:?}"));
                return Err(Errno::EINVAL);
            };
            if !self.hosts.contains_key(&host) {
                return Err(Errno::ENOENT);
            }
            self.scan(host, lun);
            return Ok(());
        }
        let (host, sid, Some(lun), rest) = parse(path).ok_or(Errno::ENOENT)? else {
            return Err(Errno::ENOENT);
        };
        let scsi = self.hosts.get(&host).filter(|host| host.sid == sid).ok_or(Errno::ENOENT)?;
        let (volume, sdev) = (scsi.volume, scsi.sdevs.get(&lun).cloned().ok_or(Errno::ENOENT)?);
        match rest.as_str() {
            "delete" => {
                if !sdev.holders.is_empty() {
                    self.violate(format!("{} was deleted while held", sdev.name));
                }
                for link in self.links_to(&sdev.name) {
                    self.violate(format!("{} was deleted before {}", sdev.name, link.display()));
                }
                self.delete(host, lun);
                Ok(())
            }
            "rescan" => {
                let unit = self.targets.get(&volume).and_then(|target| target.unit.clone());
                let sdev = self.hosts.get_mut(&host).and_then(|host| host.sdevs.get_mut(&lun));
                if let (Some(unit), Some(sdev)) = (unit, sdev) {
                    (sdev.size, sdev.protected) = (unit.size, unit.protected);
                    // With the disk's limits the kernel sets this anew (6.11 and newer).
                    sdev.read_ahead = READ_AHEAD_DEFAULT;
                }
                Ok(())
            }
            _ => Err(Errno::EACCES),
        }
    }
}

impl Tree for Door {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        Err(fail(TreeOp::Mkdir, path, Errno::EPERM))
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        Err(fail(TreeOp::Rmdir, path, Errno::EPERM))
    }

    fn symlink(&self, _: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        Err(fail(TreeOp::Symlink, link, Errno::EPERM))
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        Err(fail(TreeOp::Unlink, path, Errno::EPERM))
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        let text = String::from_utf8_lossy(value).into_owned();
        self.act(format!("write {path} = {text}"), || {
            self.world().change(|state| State::write(state, path, &text))
        })
        .and_then(|result| result)
        .map_err(|errno| fail(TreeOp::Write, path, errno))
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        self.look().map_err(|errno| fail(TreeOp::Read, path, errno))?;
        let state = self.world().lock();
        let seen = parse(path).filter(|(_, _, _, rest)| rest == "state").and_then(|(host, sid, lun, _)| {
            let host = state.hosts.get(&host).filter(|host| host.sid == sid)?;
            host.sdevs.get(&lun?).map(|_| b"running\n".to_vec())
        });
        seen.ok_or_else(|| fail(TreeOp::Read, path, Errno::ENOENT))
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        self.look().map_err(|errno| fail(TreeOp::List, path, errno))?;
        let state = self.world().lock();
        let names = parse(path).and_then(|(host, sid, lun, rest)| {
            let scsi = state.hosts.get(&host).filter(|host| host.sid == sid)?;
            match (lun, rest.as_str()) {
                (None, "") => {
                    Some(scsi.sdevs.keys().map(|lun| format!("{host}:0:0:{lun}")).collect::<Vec<_>>())
                }
                (Some(lun), "block") => {
                    scsi.sdevs.get(&lun).filter(|sdev| sdev.block).map(|sdev| vec![sdev.name.clone()])
                }
                _ => None,
            }
        });
        let names = names.ok_or_else(|| fail(TreeOp::List, path, Errno::ENOENT))?;
        Ok(names.into_iter().map(|name| Entry { name, kind: EntryKind::Dir }).collect())
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        Err(fail(TreeOp::ReadLink, path, Errno::ENOENT))
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        self.look().map_err(|errno| fail(TreeOp::Read, path, errno))?;
        let state = self.world().lock();
        Ok(parse(path).is_some_and(|(host, sid, lun, rest)| {
            let scsi = state.hosts.get(&host).filter(|host| host.sid == sid);
            scsi.is_some_and(|scsi| rest.is_empty() && lun.is_none_or(|lun| scsi.sdevs.contains_key(&lun)))
        }))
    }
}
