//! Tree `/sys` of a fake host, as far as it shows iSCSI sessions and their disks: real folders
//! below `devices`, links to them below `class` and `block`, derived from the kernel's state at
//! every call.
//!
//! What must never happen here: a path or a value that 6.1 would not show.

use std::collections::BTreeSet;

use nix::errno::Errno;

use super::FakeHost;
use super::scsi::minor;
use super::state::{Connection, ConnectionState, Kernel, ScsiDisk, Session, SessionState, TargetState};
use crate::{Entry, EntryKind, Holder, IscsiParam, Tree, TreeError, TreeOp, TreePath};

/// Object at a path.
enum Node {
    Dir(Vec<Entry>),
    File(Result<Vec<u8>, Errno>),
    /// A link to this path of the tree.
    Link(String),
}

/// Effect of a write.
enum Action {
    Scan(u32),
    Delete(u32, u64),
    Rescan(u32, u64),
    State(u32, u64),
    RecoveryTimeout(u32),
}

const SESSION_ATTRIBUTES: [(&str, IscsiParam); 4] = [
    ("targetname", IscsiParam::TargetName),
    ("initiatorname", IscsiParam::InitiatorName),
    ("ifacename", IscsiParam::IfaceName),
    ("tpgt", IscsiParam::Tpgt),
];

const SESSION_NUMBERS: [(&str, IscsiParam); 11] = [
    ("initial_r2t", IscsiParam::InitialR2tEn),
    ("max_outstanding_r2t", IscsiParam::MaxR2t),
    ("immediate_data", IscsiParam::ImmDataEn),
    ("first_burst_len", IscsiParam::FirstBurst),
    ("max_burst_len", IscsiParam::MaxBurst),
    ("data_pdu_in_order", IscsiParam::PduInorderEn),
    ("data_seq_in_order", IscsiParam::DataseqInorderEn),
    ("erl", IscsiParam::Erl),
    ("fast_abort", IscsiParam::FastAbort),
    ("abort_tmo", IscsiParam::AbortTmo),
    ("lu_reset_tmo", IscsiParam::LuResetTmo),
];

const CONNECTION_NUMBERS: [(&str, IscsiParam); 6] = [
    ("max_recv_dlength", IscsiParam::MaxRecvDlength),
    ("max_xmit_dlength", IscsiParam::MaxXmitDlength),
    ("header_digest", IscsiParam::HdrdgstEn),
    ("data_digest", IscsiParam::DatadgstEn),
    ("ping_tmo", IscsiParam::PingTmo),
    ("recv_tmo", IscsiParam::RecvTmo),
];

fn dirs(names: &[&str]) -> Node {
    entries(names.iter().map(|name| ((*name).to_owned(), EntryKind::Dir)))
}

fn entries(all: impl IntoIterator<Item = (String, EntryKind)>) -> Node {
    Node::Dir(all.into_iter().map(|(name, kind)| Entry { name, kind }).collect())
}

fn files<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<(String, EntryKind)> {
    names.into_iter().map(|name| (name.to_owned(), EntryKind::File)).collect()
}

fn line(value: impl std::fmt::Display) -> Node {
    Node::File(Ok(format!("{value}\n").into_bytes()))
}

/// Parses the number after a prefix.
fn numbered<T: std::str::FromStr>(name: &str, prefix: &str) -> Option<T> {
    name.strip_prefix(prefix)?.parse().ok()
}

impl Kernel {
    /// Lists the links of a class folder: name and target.
    fn class(&self, class: &str) -> Option<Vec<(String, String)>> {
        let live = || self.sessions.values();
        let home = |session: &Session| format!("devices/platform/host{}", session.ids.host);
        let links = match class {
            "iscsi_session" => live()
                .map(|session| {
                    let name = format!("session{}", session.ids.sid);
                    (name.clone(), format!("{}/{name}/iscsi_session/{name}", home(session)))
                })
                .collect(),
            "iscsi_connection" => live()
                .filter(|session| session.connection.is_some())
                .map(|session| {
                    let (sid, home) = (session.ids.sid, home(session));
                    let name = format!("connection{sid}:0");
                    (name.clone(), format!("{home}/session{sid}/{name}/iscsi_connection/{name}"))
                })
                .collect(),
            "iscsi_host" | "scsi_host" => live()
                .map(|session| {
                    let name = format!("host{}", session.ids.host);
                    (name.clone(), format!("{}/{class}/{name}", home(session)))
                })
                .collect(),
            "block" => live()
                .flat_map(|session| session.disks.iter().map(move |(lun, disk)| (session, lun, disk)))
                .filter_map(|(session, lun, disk)| {
                    let name = disk.block.clone()?;
                    let path = format!("{}/block/{name}", session.path(*lun));
                    Some((name, path.trim_start_matches('/').to_owned()))
                })
                .collect(),
            "iscsi_transport" => vec![("tcp".to_owned(), "devices/virtual/iscsi_transport/tcp".to_owned())],
            _ => return None,
        };
        Some(links)
    }

    fn node(&self, path: &[&str]) -> Option<Node> {
        match path {
            [] => Some(dirs(&["block", "class", "devices"])),
            ["class"] => Some(dirs(&[
                "block",
                "iscsi_connection",
                "iscsi_host",
                "iscsi_session",
                "iscsi_transport",
                "scsi_host",
            ])),
            ["block"] | ["class", _] => {
                let links = self.class(path.last()?)?;
                Some(entries(links.into_iter().map(|(name, _)| (name, EntryKind::Link))))
            }
            ["block", name] | ["class", _, name] => {
                let links = self.class(path[path.len() - 2])?;
                links.into_iter().find(|(link, _)| link == name).map(|(_, target)| Node::Link(target))
            }
            ["devices"] => Some(dirs(&["platform", "virtual"])),
            ["devices", "virtual"] => Some(dirs(&["iscsi_transport"])),
            ["devices", "virtual", "iscsi_transport"] => Some(dirs(&["tcp"])),
            ["devices", "virtual", "iscsi_transport", "tcp"] => Some(entries(files(["caps", "handle"]))),
            ["devices", "virtual", "iscsi_transport", "tcp", "handle"] => {
                Some(line(18_446_604_435_732_824_064_u64))
            }
            ["devices", "virtual", "iscsi_transport", "tcp", "caps"] => Some(line("0x39")),
            ["devices", "platform"] => {
                let hosts = self.sessions.values().map(|session| format!("host{}", session.ids.host));
                Some(entries(hosts.map(|name| (name, EntryKind::Dir))))
            }
            ["devices", "platform", host, rest @ ..] => {
                let host: u32 = numbered(host, "host")?;
                let session = self.sessions.values().find(|session| session.ids.host == host)?;
                self.below_host(session, rest)
            }
            _ => None,
        }
    }

    fn below_host(&self, session: &Session, path: &[&str]) -> Option<Node> {
        let (host, sid) = (format!("host{}", session.ids.host), format!("session{}", session.ids.sid));
        let home = format!("devices/platform/{host}");
        match path {
            [] => Some(dirs(&["iscsi_host", "scsi_host", &sid])),
            ["iscsi_host" | "scsi_host"] => Some(dirs(&[&host])),
            ["scsi_host", name] if *name == host => {
                let mut all = files(["proc_name", "scan", "state"]);
                all.insert(0, ("device".to_owned(), EntryKind::Link));
                Some(entries(all))
            }
            ["scsi_host", name, attribute] if *name == host => match *attribute {
                "device" => Some(Node::Link(home)),
                "proc_name" => Some(line("iscsi_tcp")),
                "scan" => Some(Node::File(Err(Errno::EACCES))),
                "state" => Some(line("running")),
                _ => None,
            },
            ["iscsi_host", name] if *name == host => Some(entries([("device".to_owned(), EntryKind::Link)])),
            ["iscsi_host", name, "device"] if *name == host => Some(Node::Link(home)),
            [name, rest @ ..] if *name == sid => self.below_session(session, rest),
            _ => None,
        }
    }

    fn below_session(&self, session: &Session, path: &[&str]) -> Option<Node> {
        let sid = format!("session{}", session.ids.sid);
        let home = format!("devices/platform/host{}/{sid}", session.ids.host);
        let connection = format!("connection{}:0", session.ids.sid);
        let target = format!("target{}:0:0", session.ids.host);
        match path {
            [] => {
                let mut names = vec!["iscsi_session"];
                names.extend(session.connection.is_some().then_some(connection.as_str()));
                names.extend((!session.disks.is_empty()).then_some(target.as_str()));
                names.sort_unstable();
                Some(dirs(&names))
            }
            ["iscsi_session"] => Some(dirs(&[&sid])),
            ["iscsi_session", name] if *name == sid => Some(session_entries()),
            ["iscsi_session", name, "device"] if *name == sid => Some(Node::Link(home)),
            ["iscsi_session", name, attribute] if *name == sid => session_attribute(session, attribute),
            [name, rest @ ..] if *name == connection => {
                let live = session.connection.as_ref()?;
                match rest {
                    [] => Some(dirs(&["iscsi_connection"])),
                    ["iscsi_connection"] => Some(dirs(&[&connection])),
                    ["iscsi_connection", name] if *name == connection => Some(connection_entries()),
                    ["iscsi_connection", name, "device"] if *name == connection => {
                        Some(Node::Link(format!("{home}/{connection}")))
                    }
                    ["iscsi_connection", name, attribute] if *name == connection => {
                        connection_attribute(session, live, attribute)
                    }
                    _ => None,
                }
            }
            [name, rest @ ..] if *name == target && !session.disks.is_empty() => {
                self.below_target(session, rest)
            }
            _ => None,
        }
    }

    fn below_target(&self, session: &Session, path: &[&str]) -> Option<Node> {
        let Some((address, rest)) = path.split_first() else {
            let all = session.disks.keys().map(|lun| (session.address(*lun), EntryKind::Dir));
            return Some(entries(all));
        };
        let lun = numbered(address, &format!("{}:0:0:", session.ids.host))?;
        let disk = session.disks.get(&lun)?;
        match rest {
            [] => {
                let mut all =
                    files(["delete", "rescan", "state", "timeout", "type", "vpd_pg80", "vpd_pg83", "wwid"]);
                all.extend(disk.block.is_some().then(|| ("block".to_owned(), EntryKind::Dir)));
                all.sort();
                Some(entries(all))
            }
            ["state"] => Some(line(session.disk_state(disk))),
            ["delete" | "rescan"] => Some(Node::File(Err(Errno::EACCES))),
            ["timeout"] => Some(line(30)),
            ["type"] => Some(line(0)),
            ["vpd_pg80"] => Some(Node::File(Ok(disk.page_80.clone()))),
            ["vpd_pg83"] => Some(Node::File(Ok(disk.page_83.clone()))),
            ["wwid"] => Some(line(wwid(disk))),
            ["block"] => Some(dirs(&[disk.block.as_deref()?])),
            ["block", name, rest @ ..] if Some(*name) == disk.block.as_deref() => {
                let home = session.path(lun).trim_start_matches('/').to_owned();
                self.below_block(disk, name, &home, rest)
            }
            _ => None,
        }
    }

    fn below_block(&self, disk: &ScsiDisk, name: &str, home: &str, path: &[&str]) -> Option<Node> {
        let above: BTreeSet<String> = self
            .holders
            .get(&disk.sequence)
            .into_iter()
            .flat_map(|held| &held.by)
            .filter_map(|holder| match holder {
                Holder::Device(device) => Some(device.clone()),
                _ => None,
            })
            .collect();
        match path {
            [] => {
                let mut all = files(["dev", "diskseq", "removable", "ro", "size"]);
                all.push(("device".to_owned(), EntryKind::Link));
                all.push(("holders".to_owned(), EntryKind::Dir));
                all.sort();
                Some(entries(all))
            }
            ["dev"] => Some(line(format!("8:{}", minor(name)))),
            ["device"] => Some(Node::Link(home.to_owned())),
            ["diskseq"] => Some(line(disk.sequence)),
            ["holders"] => Some(entries(above.into_iter().map(|name| (name, EntryKind::Link)))),
            ["holders", device] if above.contains(*device) => {
                Some(Node::Link(format!("devices/virtual/block/{device}")))
            }
            ["removable"] => Some(line(0)),
            ["ro"] => Some(line(u8::from(disk.read_only()))),
            ["size"] => Some(line(disk.size / 512)),
            _ => None,
        }
    }

    /// Resolves a path to its canonical form: links are followed in the middle, and at the end if
    /// `follow_last`.
    fn resolve(&self, path: &TreePath, follow_last: bool) -> Result<(Vec<String>, Node), Errno> {
        let mut canonical: Vec<String> = Vec::new();
        let names: Vec<&str> = path.as_str().split('/').filter(|name| !name.is_empty()).collect();
        for (at, name) in names.iter().enumerate() {
            canonical.push((*name).to_owned());
            let last = at + 1 == names.len();
            match self.at(&canonical)? {
                Node::Link(target) if !last || follow_last => {
                    canonical = target.split('/').map(str::to_owned).collect();
                }
                Node::File(_) if !last => return Err(Errno::ENOTDIR),
                _ => {}
            }
        }
        let node = self.at(&canonical)?;
        Ok((canonical, node))
    }

    fn at(&self, canonical: &[String]) -> Result<Node, Errno> {
        let names: Vec<&str> = canonical.iter().map(String::as_str).collect();
        self.node(&names).ok_or(Errno::ENOENT)
    }

    /// Returns the effect of a write to this file.
    fn action(&self, path: &TreePath) -> Result<Action, Errno> {
        let (canonical, node) = self.resolve(path, true)?;
        if matches!(node, Node::Dir(_)) {
            return Err(Errno::EISDIR);
        }
        let names: Vec<&str> = canonical.iter().map(String::as_str).collect();
        let ["devices", "platform", host, rest @ ..] = names.as_slice() else { return Err(Errno::EACCES) };
        let host: u32 = numbered(host, "host").ok_or(Errno::ENOENT)?;
        let sid = |name: &str| numbered(name, "session").ok_or(Errno::EACCES);
        let lun = |name: &str| numbered(name, &format!("{host}:0:0:")).ok_or(Errno::EACCES);
        match rest {
            ["scsi_host", _, "scan"] => Ok(Action::Scan(host)),
            [name, _, address, "delete"] => Ok(Action::Delete(sid(name)?, lun(address)?)),
            [name, _, address, "rescan"] => Ok(Action::Rescan(sid(name)?, lun(address)?)),
            [name, _, address, "state"] => Ok(Action::State(sid(name)?, lun(address)?)),
            [name, "iscsi_session", _, "recovery_tmo"] => Ok(Action::RecoveryTimeout(sid(name)?)),
            _ => Err(Errno::EACCES),
        }
    }

    fn set_disk_state(&mut self, sid: u32, lun: u64, text: &str) -> Result<(), Errno> {
        let session = self.sessions.get_mut(&sid).ok_or(Errno::ENODEV)?;
        // The kernel (6.1) compares with the line feed that `echo` adds: without one it knows no
        // word.
        let offline = match text.split_once('\n') {
            Some(("offline", _)) => true,
            Some(("running", _)) => false,
            _ => return Err(Errno::EINVAL),
        };
        // A disk that is offline stays so whatever its session does; a blocked one cannot be set.
        let (blocked, disk) = (session.state != SessionState::LoggedIn, session.disks.get_mut(&lun));
        let disk = disk.ok_or(Errno::ENODEV)?;
        if blocked && !disk.offline {
            return Err(Errno::EINVAL);
        }
        disk.offline = offline;
        Ok(())
    }

    fn set_recovery_timeout(&mut self, sid: u32, text: &str) -> Result<(), Errno> {
        let session = self.sessions.get_mut(&sid).ok_or(Errno::ENODEV)?;
        if session.state != SessionState::LoggedIn {
            return Err(Errno::EBUSY);
        }
        session.recovery_timeout = match text {
            "off" => -1,
            number => number.parse().map_err(|_| Errno::EINVAL)?,
        };
        session.recovery_overridden = true;
        Ok(())
    }
}

impl ScsiDisk {
    pub(super) fn read_only(&self) -> bool {
        self.write_protected || self.set_read_only
    }
}

/// Returns the cached designator, as udev and people see it.
fn wwid(disk: &ScsiDisk) -> String {
    let naa = disk.page_83.get(8..24).unwrap_or_default();
    naa.iter().fold("naa.".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn session_entries() -> Node {
    let names = SESSION_ATTRIBUTES.iter().chain(&SESSION_NUMBERS).map(|(name, _)| *name);
    let mut all = files(names.chain(["creator", "recovery_tmo", "state", "target_state"]));
    all.push(("device".to_owned(), EntryKind::Link));
    all.sort();
    entries(all)
}

fn session_attribute(session: &Session, attribute: &str) -> Option<Node> {
    match attribute {
        "creator" => return Some(line(session.creator)),
        "recovery_tmo" => {
            let seconds = session.recovery_timeout;
            return Some(if seconds < 0 { line("off") } else { line(seconds) });
        }
        "state" => {
            return Some(line(match session.state {
                SessionState::Free => "FREE",
                SessionState::LoggedIn => "LOGGED_IN",
                SessionState::Failed => "FAILED",
            }));
        }
        "target_state" => {
            return Some(line(match session.target_state {
                TargetState::Allocated => "ALLOCATED",
                TargetState::Scanned => "SCANNED",
                TargetState::Unbinding => "UNBINDING",
                TargetState::Unbound => "UNBOUND",
            }));
        }
        _ => {}
    }
    if let Some((_, param)) = SESSION_NUMBERS.iter().find(|(name, _)| *name == attribute) {
        return Some(line(session.param(*param).unwrap_or("0")));
    }
    let (_, param) = SESSION_ATTRIBUTES.iter().find(|(name, _)| *name == attribute)?;
    let unset = if *param == IscsiParam::Tpgt { "0" } else { "(null)" };
    Some(line(session.param(*param).unwrap_or(unset)))
}

fn connection_entries() -> Node {
    let text =
        ["address", "exp_statsn", "local_port", "persistent_address", "persistent_port", "port", "state"];
    let mut all = files(CONNECTION_NUMBERS.iter().map(|(name, _)| *name).chain(text));
    all.push(("device".to_owned(), EntryKind::Link));
    all.sort();
    entries(all)
}

fn connection_attribute(session: &Session, connection: &Connection, attribute: &str) -> Option<Node> {
    let of_socket = |value: Option<String>| match value {
        Some(value) => line(value),
        None => Node::File(Err(Errno::ENOTCONN)),
    };
    let socket = connection.socket.as_ref();
    Some(match attribute {
        "state" => line(match connection.state {
            ConnectionState::Down => "down",
            ConnectionState::Bound => "bound",
            ConnectionState::Up => "up",
            ConnectionState::Failed => "failed",
        }),
        "address" => of_socket(socket.map(|socket| socket.peer.ip().to_string())),
        "port" => of_socket(socket.map(|socket| socket.peer.port().to_string())),
        "local_port" => of_socket(socket.map(|socket| socket.local.port().to_string())),
        "exp_statsn" => line(connection.status_number),
        "persistent_address" => line(session.param(IscsiParam::PersistentAddress).unwrap_or("(null)")),
        "persistent_port" => line(session.param(IscsiParam::PersistentPort).unwrap_or("0")),
        other => {
            let (_, param) = CONNECTION_NUMBERS.iter().find(|(name, _)| *name == other)?;
            line(session.param(*param).unwrap_or("0"))
        }
    })
}

fn failed(op: TreeOp, path: &TreePath) -> impl FnOnce(Errno) -> TreeError {
    let path = path.clone();
    move |errno| TreeError { op, root: "/sys".to_owned(), path, errno }
}

impl Tree for FakeHost {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        Err(failed(TreeOp::Mkdir, path)(Errno::EPERM))
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        Err(failed(TreeOp::Rmdir, path)(Errno::EPERM))
    }

    fn symlink(&self, _target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        Err(failed(TreeOp::Symlink, link)(Errno::EPERM))
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        Err(failed(TreeOp::Unlink, path)(Errno::EPERM))
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        let raw = String::from_utf8_lossy(value);
        let text = raw.trim_end_matches(['\n', '\0']).to_owned();
        let act = || {
            let action = {
                let kernel = self.inner.lock();
                if self.process.is_dead() {
                    return Err(Errno::ECANCELED);
                }
                kernel.action(path)?
            };
            match action {
                Action::Scan(host) => self.scan(host, &text),
                Action::Delete(sid, lun) => {
                    self.delete(sid, lun);
                    Ok(())
                }
                Action::Rescan(sid, lun) => {
                    self.rescan(sid, lun);
                    Ok(())
                }
                Action::State(sid, lun) => self.inner.change(|kernel| kernel.set_disk_state(sid, lun, &raw)),
                Action::RecoveryTimeout(sid) => {
                    self.inner.change(|kernel| kernel.set_recovery_timeout(sid, &text))
                }
            }
        };
        act().map_err(failed(TreeOp::Write, path))
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        let read = match self.inner.lock().resolve(path, true) {
            Ok((_, Node::File(value))) => value,
            Ok(_) => Err(Errno::EISDIR),
            Err(errno) => Err(errno),
        };
        read.map_err(failed(TreeOp::Read, path))
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        let listed = match self.inner.lock().resolve(path, true) {
            Ok((_, Node::Dir(mut all))) => {
                all.sort();
                Ok(all)
            }
            Ok(_) => Err(Errno::ENOTDIR),
            Err(errno) => Err(errno),
        };
        listed.map_err(failed(TreeOp::List, path))
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        let target = match self.inner.lock().resolve(path, false) {
            Ok((_, Node::Link(target))) => Ok(TreePath::new(&target)),
            Ok(_) => Err(Errno::EINVAL),
            Err(errno) => Err(errno),
        };
        target.map_err(failed(TreeOp::ReadLink, path))
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        Ok(matches!(self.inner.lock().resolve(path, true), Ok((_, Node::Dir(_)))))
    }
}
