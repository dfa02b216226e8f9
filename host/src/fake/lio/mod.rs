//! Fake of `/sys/kernel/config/target` that answers as Linux 6.1 does: every errno of lio.md, b;
//! the text of every attribute (lio-tree.txt); write protection and its gaps (c, m); calls that
//! wait for I/O in flight, and the calls that wait behind them (d).
//!
//! What must never happen: an answer that is kinder than the kernel's. Where the kernel's answer
//! was not observed, the code says so.

mod acl;
mod core;
mod fabric;
mod fc;
mod model;
mod path;
mod read;
mod reservations;
mod tables;

use std::sync::MutexGuard;

use nix::errno::Errno;

use self::path::{Dir, Found, Owner};
use self::tables::{Attr, Mode, Rule};
use super::session::InFlight;
use super::state::{Handle, Machine};
use crate::{Entry, EntryKind, KernelTree, Tree, TreeError, TreeOp, TreePath};

pub(super) use self::acl::{credentials, mutual_credentials};
pub use self::core::naa;
pub(super) use self::fabric::portal_address;
pub(super) use self::fc::FabricKind;
pub(super) use self::model::{Acl, AclKey, Counters, Lio, LunKey, TargetKey, Tpg, TpgKey};
pub use self::reservations::PrOut;

/// configfs hands at most one page less a byte to an attribute by one `write(2)`.
const WRITE_BYTES_MAX: usize = 4095;

/// LIO tree of a [`FakeMachine`](super::FakeMachine); clones share one tree.
#[derive(Debug, Clone)]
pub struct FakeLio {
    handle: Handle,
}

/// I/O that still has to end before a call may return.
#[derive(Debug, Default)]
struct Drain {
    /// Commands of these sessions.
    sessions: Vec<u64>,
    /// Commands on this LUN.
    lun: Option<LunKey>,
}

impl Drain {
    fn waits_for(&self, command: &InFlight) -> bool {
        self.sessions.contains(&command.session) || self.lun.as_ref() == Some(&command.lun)
    }
}

impl FakeLio {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Takes the machine's lock as soon as no waiting call holds a folder that this operation
    /// needs.
    fn enter(&self, op: TreeOp, path: &TreePath, stat: bool) -> MutexGuard<'_, Machine> {
        let mut machine = self.handle.lock();
        while machine.lio.is_blocked(op, path, stat) {
            machine = self.handle.wait(machine);
        }
        machine
    }

    /// Waits until I/O has drained, holding a folder meanwhile.
    fn drain<'a>(
        &'a self,
        mut machine: MutexGuard<'a, Machine>,
        drain: &Drain,
        hold: Option<(&TreePath, Option<&str>)>,
    ) -> MutexGuard<'a, Machine> {
        if !machine.in_flight.iter().any(|command| drain.waits_for(command)) {
            return machine;
        }
        let held = hold.map(|(folder, victim)| (folder.as_str().to_owned(), victim.map(str::to_owned)));
        machine.lio.locked.extend(held.clone());
        while machine.in_flight.iter().any(|command| drain.waits_for(command)) {
            machine = self.handle.wait(machine);
        }
        if let Some(at) = machine.lio.locked.iter().position(|lock| Some(lock) == held.as_ref()) {
            machine.lio.locked.remove(at);
        }
        machine
    }

    /// Ends an operation: unlocks the machine, wakes all waiting threads, names the object in an
    /// error.
    fn leave<T>(
        &self,
        mut machine: MutexGuard<'_, Machine>,
        op: TreeOp,
        path: &TreePath,
        result: Result<T, Errno>,
    ) -> Result<T, TreeError> {
        if result.is_ok() {
            machine.folders.tell(op, path);
        }
        drop(machine);
        self.handle.wake();
        result.map_err(|errno| TreeError {
            op,
            root: KernelTree::TARGET.to_owned(),
            path: path.clone(),
            errno,
        })
    }
}

impl Tree for FakeLio {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        let mut machine = self.enter(TreeOp::Mkdir, path, false);
        let result = machine.make(path);
        self.leave(machine, TreeOp::Mkdir, path, result)
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        let mut machine = self.enter(TreeOp::Rmdir, path, false);
        let result = match machine.lio.removable(path) {
            Ok(owner) => {
                let drain = Drain { sessions: machine.begin_removal(&owner), lun: None };
                machine = self.drain(machine, &drain, Some((&path.parent(), Some(path.name()))));
                machine.remove(&owner);
                Ok(())
            }
            Err(errno) => Err(errno),
        };
        self.leave(machine, TreeOp::Rmdir, path, result)
    }

    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        let mut machine = self.enter(TreeOp::Symlink, link, false);
        let result = machine.lio.link(target, link);
        self.leave(machine, TreeOp::Symlink, link, result)
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        let mut machine = self.enter(TreeOp::Unlink, path, false);
        let result = match machine.lio.find(path, false) {
            Ok(Found::Link(Dir { owner: Owner::Lun(key), .. }, ..)) => {
                // As the kernel: every initiator loses the LUN first, then its commands in flight
                // drain, then the link goes.
                machine.lio.unmap_everywhere(&key);
                let drain = Drain { sessions: Vec::new(), lun: Some(key.clone()) };
                machine = self.drain(machine, &drain, Some((&path.parent(), None)));
                if let Some(lun) = machine.lio.lun_mut(&key) {
                    lun.link = None;
                }
                Ok(())
            }
            Ok(Found::Link(Dir { owner: Owner::Mapped(key), .. }, name, _)) => {
                machine.lio.unlink_mapped(&key, &name);
                Ok(())
            }
            Ok(Found::Dir(_)) => Err(Errno::EISDIR),
            Ok(_) => Err(Errno::EPERM),
            Err(errno) => Err(errno),
        };
        self.leave(machine, TreeOp::Unlink, path, result)
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        let mut machine = self.enter(TreeOp::Write, path, false);
        let result = match machine.put(path, value) {
            Ok(drain) => {
                machine = self.drain(machine, &drain, None);
                Ok(())
            }
            Err(errno) => Err(errno),
        };
        self.leave(machine, TreeOp::Write, path, result)
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        let machine = self.enter(TreeOp::Read, path, false);
        let result = match machine.lio.find(path, true) {
            Ok(Found::Attr(_, attr)) if attr.mode == Mode::WriteOnly => Err(Errno::EACCES),
            Ok(Found::Attr(dir, attr)) => machine.get(&dir, attr),
            Ok(_) => Err(Errno::EISDIR),
            Err(errno) => Err(errno),
        };
        self.leave(machine, TreeOp::Read, path, result)
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        let machine = self.enter(TreeOp::List, path, false);
        let result = match machine.lio.find(path, true) {
            Ok(Found::Dir(dir)) => Ok(machine.lio.entries(&dir)),
            Ok(_) => Err(Errno::ENOTDIR),
            Err(errno) => Err(errno),
        };
        self.leave(machine, TreeOp::List, path, result)
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        let machine = self.enter(TreeOp::ReadLink, path, false);
        let result = match machine.lio.find(path, false) {
            Ok(Found::Link(_, _, target)) => Ok(target),
            Ok(_) => Err(Errno::EINVAL),
            Err(errno) => Err(errno),
        };
        self.leave(machine, TreeOp::ReadLink, path, result)
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        let machine = self.enter(TreeOp::Read, path, true);
        let result = match machine.lio.find(path, true) {
            Ok(found) => Ok(matches!(found, Found::Dir(_))),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        };
        self.leave(machine, TreeOp::Read, path, result)
    }
}

impl Lio {
    /// Returns `true` if there is a folder, also while a waiting call holds it.
    pub(super) fn has_folder(&self, path: &TreePath) -> bool {
        matches!(self.find(path, true), Ok(Found::Dir(_)))
    }

    /// Returns `true` if a waiting call holds a folder that this operation needs (lio.md, d; each
    /// of these was observed on Linux 6.1). It follows the kernel's path walk: a name that is not
    /// cached, or lies in the folder that goes, needs the folder's lock.
    fn is_blocked(&self, op: TreeOp, path: &TreePath, stat: bool) -> bool {
        self.locked.iter().any(|(folder, victim)| {
            let folder = TreePath::new(folder);
            if *path == folder {
                return op == TreeOp::List;
            }
            if !path.is_within(&folder) {
                return false;
            }
            let Some(below) = path.as_str().strip_prefix(folder.as_str()) else { return false };
            let below = below.trim_start_matches('/');
            let (first, deeper) = below.split_once('/').map_or((below, false), |(first, _)| (first, true));
            let changes = matches!(op, TreeOp::Mkdir | TreeOp::Rmdir | TreeOp::Symlink | TreeOp::Unlink);
            if changes && !deeper {
                return true;
            }
            if victim.as_deref() == Some(first) {
                return deeper || !stat;
            }
            !matches!(self.find(&folder.join(first), false), Ok(Found::Dir(_)))
        })
    }

    fn entries(&self, dir: &Dir) -> Vec<Entry> {
        let folder = |name: String| Entry { name, kind: EntryKind::Dir };
        let mut entries: Vec<Entry> = dir
            .shape
            .attrs
            .iter()
            .chain(self.later(dir))
            .map(|attr| Entry { name: attr.name.to_owned(), kind: EntryKind::File })
            .collect();
        entries.extend(dir.shape.parts.iter().map(|part| folder(part.name.to_owned())));
        entries.extend(self.children(dir).into_iter().map(folder));
        entries.extend(self.links(dir).into_iter().map(|(name, _)| Entry { name, kind: EntryKind::Link }));
        entries.sort();
        entries
    }

    /// Checks that a folder may be removed now.
    fn removable(&self, path: &TreePath) -> Result<Owner, Errno> {
        let dir = match self.find(path, false)? {
            Found::Dir(dir) => dir,
            Found::Attr(..) | Found::Link(..) => return Err(Errno::ENOTDIR),
        };
        if !dir.is_object() || dir.owner == Owner::Root {
            return Err(Errno::EPERM);
        }
        let has_children = |part: &str| {
            let shape = dir.shape.part(part).unwrap_or(dir.shape);
            !self.children(&Dir { owner: dir.owner.clone(), part: part.to_owned(), shape }).is_empty()
        };
        match &dir.owner {
            Owner::Store(key) if !self.exports(key).is_empty() => return Err(Errno::EBUSY),
            Owner::Lun(key) if self.is_mapped(key) => return Err(Errno::EBUSY),
            Owner::Lun(key) if self.lun(key).is_some_and(|lun| lun.link.is_some()) => {
                return Err(Errno::ENOTEMPTY);
            }
            Owner::Mapped(key) if self.mapped(key).is_some_and(|mapped| !mapped.links.is_empty()) => {
                return Err(Errno::ENOTEMPTY);
            }
            Owner::Tpg(_) if ["acls", "lun", "np"].into_iter().any(has_children) => {
                return Err(Errno::ENOTEMPTY);
            }
            _ if has_children("") => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        Ok(dir.owner)
    }

    fn link(&mut self, target: &TreePath, link: &TreePath) -> Result<(), Errno> {
        let Found::Dir(folder) = self.find(&link.parent(), true)? else { return Err(Errno::ENOTDIR) };
        if link.name().len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        if link.as_str().is_empty() || self.step(&folder, link.name()).is_some() {
            return Err(Errno::EEXIST);
        }
        if !folder.is_object() || !matches!(folder.owner, Owner::Lun(_) | Owner::Mapped(_)) {
            return Err(Errno::EPERM);
        }
        let Found::Dir(target) = self.find(target, true)? else { return Err(Errno::ENOTDIR) };
        match &folder.owner {
            Owner::Lun(key) => self.link_lun(key, link.name(), &target),
            Owner::Mapped(key) => self.link_mapped(key, link.name(), &target),
            _ => Err(Errno::EPERM),
        }
    }
}

impl Machine {
    fn make(&mut self, path: &TreePath) -> Result<(), Errno> {
        if path.as_str().is_empty() {
            return if self.lio.present { Err(Errno::EEXIST) } else { Err(Errno::ENOENT) };
        }
        let Found::Dir(folder) = self.lio.find(&path.parent(), true)? else { return Err(Errno::ENOTDIR) };
        let name = path.name();
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        if self.lio.step(&folder, name).is_some() {
            return Err(Errno::EEXIST);
        }
        match (&folder.owner, folder.part.as_str()) {
            (Owner::Root, "") => self.lio.make_fabric(name),
            (Owner::Root, "core") => self.lio.make_hba(name),
            (Owner::Hba(hba), "") => self.lio.make_store(hba, name),
            (Owner::Fabric(kind), "") => self.make_target(*kind, name),
            (Owner::Target(target), "") => self.lio.make_tpg(target, name),
            (Owner::Tpg(tpg), "np") => self.make_portal(tpg, name),
            (Owner::Tpg(tpg), "lun") => self.lio.make_lun(tpg, name),
            (Owner::Tpg(tpg), "acls") => self.make_acl(tpg, name),
            (Owner::Acl(acl), "") => self.lio.make_mapped(acl, name),
            _ => Err(Errno::EPERM),
        }
    }

    fn begin_removal(&mut self, owner: &Owner) -> Vec<u64> {
        match owner {
            Owner::Acl(key) => {
                if let Some(acl) = self.lio.acl_mut(key) {
                    acl.dying = true;
                }
                self.cut_sessions(|session| session.is_of_acl(key))
            }
            Owner::Tpg(key) => {
                if let Some(tpg) = self.lio.tpg_mut(key) {
                    tpg.enabled = false;
                }
                let mut waits = self.logins_wait_for(key);
                waits.extend(self.cut_sessions(|session| session.tpg == *key));
                waits
            }
            // The kernel restarts the portal's login thread, and waits until that is done
            // (`iscsit_reset_np_thread`).
            Owner::Portal(key, name) => {
                let portal = self.lio.tpg(key).and_then(|tpg| tpg.portals.get(name));
                portal.map(|portal| self.login_waits_for(portal.address)).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    fn remove(&mut self, owner: &Owner) {
        match owner {
            Owner::Root => {}
            Owner::Hba(hba) => drop(self.lio.hbas.remove(hba)),
            Owner::Store(key) => self.remove_store(key),
            Owner::Fabric(kind) => drop(self.lio.fabrics.remove(kind)),
            Owner::Target(key) => {
                if let Some(fabric) = self.lio.fabrics.get_mut(&key.fabric) {
                    fabric.targets.remove(&key.name);
                }
            }
            Owner::Tpg(key) => {
                if let Some(target) = self.lio.target_mut(&key.target) {
                    target.tpgs.remove(&key.tpg);
                }
            }
            Owner::Portal(key, name) => {
                if let Some(tpg) = self.lio.tpg_mut(key) {
                    tpg.portals.remove(name);
                }
            }
            Owner::Lun(key) => {
                if let Some(tpg) = self.lio.tpg_mut(&key.tpg) {
                    tpg.luns.remove(&key.lun);
                }
            }
            Owner::Acl(key) => {
                if let Some(tpg) = self.lio.tpg_mut(&key.tpg) {
                    tpg.acls.remove(&key.initiator);
                }
            }
            Owner::Mapped(key) => {
                if let Some(acl) = self.lio.acl_mut(&key.acl) {
                    acl.mapped.remove(&key.lun);
                }
            }
        }
    }

    fn put(&mut self, path: &TreePath, value: &[u8]) -> Result<Drain, Errno> {
        let (dir, attr) = match self.lio.find(path, true)? {
            Found::Attr(dir, attr) => (dir, attr),
            Found::Dir(_) | Found::Link(..) => return Err(Errno::EISDIR),
        };
        if attr.mode == Mode::ReadOnly {
            return Err(Errno::EACCES);
        }
        // configfs refuses a write of no bytes, and shortens a long one: the part that came through
        // takes effect all the same, and a tree that wants whole writes answers EIO.
        if value.is_empty() {
            return Err(Errno::EFAULT);
        }
        if let Some((first, _)) = value.split_at_checked(WRITE_BYTES_MAX).filter(|(_, rest)| !rest.is_empty())
        {
            return self.put_value(&dir, attr, first).and(Err(Errno::EIO));
        }
        self.put_value(&dir, attr, value)
    }

    fn put_value(&mut self, dir: &Dir, attr: &'static Attr, value: &[u8]) -> Result<Drain, Errno> {
        if matches!(attr.rule, Rule::Own) {
            return self.put_own(dir, attr.name, value);
        }
        // Nothing of a LUN can be written while it has no backstore.
        if matches!(&dir.owner, Owner::Lun(key) if self.lio.store_of(key).is_none()) {
            return Err(Errno::ENODEV);
        }
        let exported = match &dir.owner {
            Owner::Store(key) => !self.lio.exports(key).is_empty(),
            _ => false,
        };
        if let Some(text) = judge(&attr.rule, value, exported)? {
            self.lio.values_mut(&dir.owner).ok_or(Errno::ENOENT)?.set(&dir.part, attr.name, text);
            self.after_write(dir, attr.name);
        }
        Ok(Drain::default())
    }

    fn put_own(&mut self, dir: &Dir, name: &str, value: &[u8]) -> Result<Drain, Errno> {
        match &dir.owner {
            Owner::Root => self.lio.put_root(&dir.part, name, value).map(|()| Drain::default()),
            Owner::Store(key) => self.put_store(key, &dir.part, name, value).map(|()| Drain::default()),
            Owner::Tpg(key) if dir.is_object() && name == tables::PORT_ID.name => {
                self.lio.put_port_id(key, value).map(|()| Drain::default())
            }
            Owner::Tpg(key) if dir.is_object() => self.enable_tpg(key, value),
            Owner::Acl(key) if dir.is_object() => self.put_depth(key, value),
            Owner::Acl(_) if name == "nopin_timeout" => {
                let seconds = number(value)?;
                if seconds > 60 || (1..3).contains(&seconds) {
                    return Err(Errno::EINVAL);
                }
                let values = self.lio.values_mut(&dir.owner).ok_or(Errno::ENOENT)?;
                values.set(&dir.part, name, seconds.to_string());
                Ok(Drain::default())
            }
            Owner::Tpg(_) | Owner::Acl(_) | Owner::Fabric(_) => {
                self.lio.put_auth(dir, name, value).map(|()| Drain::default())
            }
            Owner::Mapped(key) => self.lio.put_write_protect(key, value).map(|()| Drain::default()),
            // `iser`, `cxgbit` and the ALUA group of a LUN are not modelled: writes to them are
            // refused.
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Judges a value by its rule: the text to store, `None` for "accepted and ignored".
fn judge(rule: &Rule, value: &[u8], exported: bool) -> Result<Option<Vec<u8>>, Errno> {
    let line = value.strip_suffix(b"\n").unwrap_or(value);
    match rule {
        Rule::Own | Rule::Free => Ok(Some(line.to_vec())),
        Rule::Tag if value.len() >= tables::TAG_BYTES => Err(Errno::EINVAL),
        Rule::Tag if value.starts_with(b"NULL") => Ok(Some(Vec::new())),
        Rule::Tag => Ok(Some(value.to_vec())),
        Rule::Ignored => Ok(None),
        Rule::Refused(errno) => Err(*errno),
        Rule::Flag => match number(value)? {
            flag @ 0..=1 => Ok(Some(flag.to_string().into_bytes())),
            _ => Err(Errno::EINVAL),
        },
        Rule::Bool => Ok(Some(if flag(value)? { b"1" } else { b"0" }.to_vec())),
        Rule::Range(least, most) => match number(value)? {
            n if n < *least || n > *most => Err(Errno::EINVAL),
            n => Ok(Some(n.to_string().into_bytes())),
        },
        Rule::Word(words) => {
            let known = words.iter().find(|word| word.as_bytes() == line).ok_or(Errno::EINVAL)?;
            Ok(Some(known.as_bytes().to_vec()))
        }
        Rule::List(words) => {
            let known = |part: &[u8]| words.iter().any(|word| word.as_bytes() == part);
            if line.split(|byte| *byte == b',').all(known) {
                Ok(Some(line.to_vec()))
            } else {
                Err(Errno::EINVAL)
            }
        }
        Rule::Unexported(_) if exported => Err(Errno::EINVAL),
        Rule::Unexported(inner) => judge(inner, value, exported),
    }
}

/// Parses a yes or no as `kstrtobool` does: by its first characters.
fn flag(value: &[u8]) -> Result<bool, Errno> {
    match value.strip_suffix(b"\n").unwrap_or(value) {
        [b'y' | b'Y' | b'1', ..] | [b'o' | b'O', b'n' | b'N', ..] => Ok(true),
        [b'n' | b'N' | b'0', ..] | [b'o' | b'O', b'f' | b'F', ..] => Ok(false),
        _ => Err(Errno::EINVAL),
    }
}

/// Parses a number as `kstrtoul` does with base 0: decimal, `0x` hexadecimal or `0` octal, one `+`
/// before and one newline after it, nothing else.
fn number(value: &[u8]) -> Result<u64, Errno> {
    let line = value.strip_suffix(b"\n").unwrap_or(value);
    let text = std::str::from_utf8(line).map_err(|_| Errno::EINVAL)?;
    let text = text.strip_prefix('+').unwrap_or(text);
    let (digits, base) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return Err(Errno::EINVAL);
    }
    u64::from_str_radix(digits, base).map_err(|_| Errno::ERANGE)
}
