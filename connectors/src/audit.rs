//! Names the users of a disk on this host for the model, and judges how they use it. Pure.
//!
//! What must never happen here: a user that is passed over because its kind is new.

use std::collections::BTreeSet;

use mooring_host::{DiskAccess, DiskUser, Holder, User};
use mooring_model::{self as model, Cure, DiskUserKind, Problem};

/// Problem of a disk whose cache is off while a user goes through the page cache.
pub const BUFFERED_IO: &str = "buffered_io";

/// Problem of a disk whose cache is off and that carries something which one host alone can use.
pub const UNSHARED_FILESYSTEM: &str = "unshared_filesystem";

/// File systems that several hosts can mount at once from one disk, as they lock each other out.
/// All others of the kernel keep the data that they have read, and write over the data of other
/// hosts.
const SHARED_FILESYSTEMS: [&str; 2] = ["gfs2", "ocfs2"];

/// Maximum number of users that a problem names; the rest are counted.
const NAMED_MAX: usize = 3;

/// Returns `true` if several hosts can mount a file system of this kind at once.
fn is_made_for_sharing(filesystem: &str) -> bool {
    SHARED_FILESYSTEMS.contains(&filesystem)
}

/// Returns `true` for a process of udev, by its name. udev looks at each new disk and at each that
/// was closed after a write, and closes it again by itself. Its workers have this name since
/// systemd 250; their parent had it before.
pub fn is_udev(name: &str) -> bool {
    matches!(name.trim_matches(['(', ')']), "udev-worker" | "systemd-udevd")
}

fn access_of(access: DiskAccess) -> model::DiskAccess {
    match access {
        DiskAccess::Direct => model::DiskAccess::Direct,
        DiskAccess::Buffered => model::DiskAccess::Buffered,
        DiskAccess::Mapped => model::DiskAccess::Mapped,
    }
}

/// Names a holder for people.
pub fn holder_name(holder: &Holder) -> String {
    match holder {
        Holder::Process { pid, name } => format!("{name} (pid {pid})"),
        Holder::Mount(path) => format!("the file system mounted on {}", path.display()),
        Holder::Swap => "swap".to_owned(),
        Holder::Device(name) => format!("the device {name}"),
        Holder::Unknown => "somebody who cannot be named (the kernel, or another namespace)".to_owned(),
    }
}

pub(crate) fn holder_names(holders: &[Holder]) -> Vec<String> {
    holders.iter().map(holder_name).collect()
}

/// Converts a user to the wire's form.
pub fn disk_user(user: &DiskUser) -> model::DiskUser {
    let blank = model::DiskUser {
        device: user.device.clone(),
        kind: DiskUserKind::Swap,
        name: String::new(),
        pid: None,
        access: None,
        filesystem: None,
    };
    match &user.user {
        User::Process { pid, name, access } => model::DiskUser {
            kind: DiskUserKind::Process,
            name: name.clone(),
            pid: Some(*pid),
            access: Some(access_of(*access)),
            ..blank
        },
        User::Mount { point, filesystem } => model::DiskUser {
            kind: DiskUserKind::Mount,
            name: point.display().to_string(),
            filesystem: Some(filesystem.clone()),
            ..blank
        },
        User::Swap => blank,
        User::Device { name, access } => model::DiskUser {
            kind: DiskUserKind::Device,
            name: name.clone(),
            access: Some(access_of(*access)),
            ..blank
        },
    }
}

/// Describes how a user goes through the page cache; `None` if it does not.
fn buffered(user: &DiskUser) -> Option<String> {
    let device = &user.device;
    match &user.user {
        User::Process { access: DiskAccess::Direct, .. }
        | User::Device { access: DiskAccess::Direct, .. }
        | User::Mount { .. }
        | User::Swap => None,
        User::Process { name, .. } if is_udev(name) => None,
        User::Process { pid, name, access: DiskAccess::Buffered } => {
            Some(format!("{name} (pid {pid}) has {device} open without O_DIRECT"))
        }
        User::Process { pid, name, access: DiskAccess::Mapped } => {
            Some(format!("{name} (pid {pid}) has {device} mapped, and mapped pages cannot be dropped"))
        }
        User::Device { name, access: DiskAccess::Buffered | DiskAccess::Mapped } => {
            Some(format!("{name} reads and writes {device} through the page cache"))
        }
    }
}

/// Describes a use that one host alone can make of a disk; `None` for every other use.
fn unshared(user: &DiskUser) -> Option<String> {
    let device = &user.device;
    match &user.user {
        User::Mount { point, filesystem } if !is_made_for_sharing(filesystem) => {
            Some(format!("{filesystem} of {device} is mounted on {}", point.display()))
        }
        User::Swap => Some(format!("{device} is a swap area")),
        User::Mount { .. } | User::Process { .. } | User::Device { .. } => None,
    }
}

/// Returns `true` if a user is wrong on a disk whose page cache is off.
pub fn is_wrong(user: &DiskUser) -> bool {
    buffered(user).is_some() || unshared(user).is_some()
}

fn problem(object: &str, users: &[String], cure: &str) -> Option<Problem> {
    let named = users.get(..users.len().min(NAMED_MAX))?;
    let more = users.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| Problem {
        object: object.to_owned(),
        text: format!("{}{more}: {cure}", named.join("; ")),
        cure: Cure::Operator,
    })
}

/// Returns the problems of a disk whose page cache is off, by its users.
pub fn problems(users: &BTreeSet<DiskUser>) -> Vec<Problem> {
    let through: Vec<_> = users.iter().filter_map(buffered).collect();
    let alone: Vec<_> = users.iter().filter_map(unshared).collect();
    let direct = "this host may read old blocks, or write one over a newer one; have it use O_DIRECT";
    let shared = "as soon as another host writes, it reads old blocks and destroys new ones; use GFS2 or OCFS2, or attach the volume to one host only";
    [problem(BUFFERED_IO, &through, direct), problem(UNSHARED_FILESYSTEM, &alone, shared)]
        .into_iter()
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, access: DiskAccess) -> DiskUser {
        DiskUser { device: "sda".into(), user: User::Process { pid, name: "dd".into(), access } }
    }

    fn udev() -> DiskUser {
        let user = User::Process { pid: 9, name: "(udev-worker)".into(), access: DiskAccess::Buffered };
        DiskUser { device: "sda".into(), user }
    }

    fn mount(filesystem: &str) -> DiskUser {
        let user = User::Mount { point: "/data".into(), filesystem: filesystem.into() };
        DiskUser { device: "sda1".into(), user }
    }

    fn device(access: DiskAccess) -> DiskUser {
        DiskUser { device: "sda".into(), user: User::Device { name: "loop0".into(), access } }
    }

    fn swap() -> DiskUser {
        DiskUser { device: "sda2".into(), user: User::Swap }
    }

    fn objects(users: &[DiskUser]) -> Vec<String> {
        problems(&users.iter().cloned().collect()).into_iter().map(|problem| problem.object).collect()
    }

    #[test]
    fn each_kind_of_user_is_judged() {
        use DiskAccess::{Buffered, Direct, Mapped};
        for (user, wanted) in [
            (process(1, Direct), None),
            (process(1, Buffered), Some(BUFFERED_IO)),
            (process(1, Mapped), Some(BUFFERED_IO)),
            (udev(), None),
            (device(Direct), None),
            (device(Buffered), Some(BUFFERED_IO)),
            (mount("gfs2"), None),
            (mount("ocfs2"), None),
            (mount("ext4"), Some(UNSHARED_FILESYSTEM)),
            (mount("xfs"), Some(UNSHARED_FILESYSTEM)),
            (mount("btrfs"), Some(UNSHARED_FILESYSTEM)),
            (mount("bcachefs"), Some(UNSHARED_FILESYSTEM)),
            (swap(), Some(UNSHARED_FILESYSTEM)),
        ] {
            assert_eq!(objects(std::slice::from_ref(&user)), Vec::from_iter(wanted), "{user:?}");
            assert_eq!(is_wrong(&user), wanted.is_some(), "{user:?}");
        }
    }

    #[test]
    fn a_problem_names_three_and_counts_the_rest() {
        let users = (1..=5).map(|pid| process(pid, DiskAccess::Buffered)).collect();
        let found = problems(&users);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].text.contains("dd (pid 3) has sda open without O_DIRECT, and 2 more: "),
            "{}",
            found[0]
        );
        assert!(!found[0].text.contains("pid 4"), "{}", found[0]);
    }

    #[test]
    fn users_keep_what_is_known_of_them() {
        let found = disk_user(&process(7, DiskAccess::Mapped));
        assert_eq!((found.pid, found.access), (Some(7), Some(model::DiskAccess::Mapped)));
        let found = disk_user(&mount("xfs"));
        assert_eq!((found.name.as_str(), found.filesystem.as_deref()), ("/data", Some("xfs")));
        assert_eq!((found.kind, found.pid), (DiskUserKind::Mount, None));
        assert_eq!(disk_user(&swap()).kind, DiskUserKind::Swap);
    }
}
