//! Reads the kernel's iSCSI sessions from sysfs: their owners and their states.
//!
//! Attributes of a session that is just going answer with ENOENT, ENODEV or ENOTCONN; an attribute
//! that was never set reads `(null)`: all of these are `None` here.
//!
//! What must never happen here: a session taken for ours that is not.

use mooring_host::{Errno, Tree, TreeError, TreePath};
use mooring_model::{Portal, VolumeId};

use crate::device::session_target;

/// Creator that the kernel shows for a session that was made over our socket: its port id
/// 0xFFFFFFFF as a signed number. Sessions of hardware initiators, which the kernel makes by
/// itself, read alike.
const CREATOR: &str = "-1";
/// Driver of our sessions.
const DRIVER: &str = "iscsi_tcp";
/// Prefix of the volume in `ifacename`.
pub(crate) const MARK: &str = "mooring-";

/// `iscsi_session/…/state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SessionAttr {
    /// `LOGGED_IN`.
    LoggedIn,
    /// `FAILED`: its devices are blocked.
    Failed,
    /// `FREE`: never logged in, or given up after the recovery time.
    Free,
    /// Another word, or not readable.
    Unknown,
}

/// `iscsi_connection/…/state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConnectionAttr {
    /// There is no connection.
    Absent,
    /// `down`: made, or stopped for good.
    Down,
    /// `bound`: it has a socket and is not started.
    Bound,
    /// `up`.
    Up,
    /// `failed`.
    Failed,
    /// Another word, or not readable.
    Unknown,
}

/// `iscsi_session/…/target_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TargetAttr {
    /// `ALLOCATED`: never scanned. Also where a kernel lacks the attribute.
    Allocated,
    /// `SCANNED`.
    Scanned,
    /// `UNBINDING` or `UNBOUND`: its devices are going or gone.
    Unbound,
}

/// A session as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelView {
    /// Number of the session, `session<sid>`.
    pub sid: u32,
    /// Number of the SCSI host, `host<host>`.
    pub host: u32,
    /// Volume that its `ifacename` names.
    pub volume: Option<VolumeId>,
    /// The session has no name at all and was made over a socket like ours, by the driver of ours:
    /// the daemon died between making and naming it.
    pub unnamed: bool,
    /// Name of the target.
    pub target: Option<String>,
    /// Portal of the login.
    pub portal: Option<Portal>,
    /// State of the session.
    pub session: SessionAttr,
    /// State of the connection.
    pub connection: ConnectionAttr,
    /// State of the devices.
    pub targets: TargetAttr,
    /// The session has at least one disk.
    pub devices: bool,
}

fn session_path(sid: u32) -> TreePath {
    TreePath::new("class/iscsi_session").join(format_args!("session{sid}"))
}

fn connection_path(sid: u32) -> TreePath {
    TreePath::new("class/iscsi_connection").join(format_args!("connection{sid}:0"))
}

/// Path of the folder of one LUN's SCSI device.
pub(crate) fn unit_path(host: u32, sid: u32, lun: u16) -> TreePath {
    session_target(host, sid).join(format_args!("{host}:0:0:{lun}"))
}

/// Turns the error of an object that is missing or going into `None`.
fn gone_is_none<T>(result: Result<T, TreeError>) -> Result<Option<T>, TreeError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error)
            if matches!(error.errno, Errno::ENOENT | Errno::ENODEV | Errno::ENOTCONN | Errno::ENXIO) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn attribute(sys: &dyn Tree, path: &TreePath, name: &str) -> Result<Option<String>, TreeError> {
    let text = gone_is_none(sys.read_text(&path.join(name)))?;
    Ok(text.filter(|text| !text.is_empty() && text != "(null)"))
}

/// Reads the state of a session and its connection; `None` when there is no such session.
pub(crate) fn state(sys: &dyn Tree, sid: u32) -> Result<Option<(SessionAttr, ConnectionAttr)>, TreeError> {
    let Some(session) = gone_is_none(sys.read_text(&session_path(sid).join("state")))? else {
        return Ok(None);
    };
    let session = match session.as_str() {
        "LOGGED_IN" => SessionAttr::LoggedIn,
        "FAILED" => SessionAttr::Failed,
        "FREE" => SessionAttr::Free,
        _ => SessionAttr::Unknown,
    };
    let connection = match gone_is_none(sys.read_text(&connection_path(sid).join("state")))?.as_deref() {
        None => ConnectionAttr::Absent,
        Some("down") => ConnectionAttr::Down,
        Some("bound") => ConnectionAttr::Bound,
        Some("up") => ConnectionAttr::Up,
        Some("failed") => ConnectionAttr::Failed,
        Some(_) => ConnectionAttr::Unknown,
    };
    Ok(Some((session, connection)))
}

/// Returns `true` if there is such a session, in any state.
pub(crate) fn exists(sys: &dyn Tree, sid: u32) -> Result<bool, TreeError> {
    sys.is_dir(&session_path(sid))
}

/// Returns `true` if a session has lost its devices for good, or is gone itself.
pub(crate) fn is_unbound(sys: &dyn Tree, sid: u32) -> Result<bool, TreeError> {
    match attribute(sys, &session_path(sid), "target_state")? {
        Some(state) => Ok(state == "UNBOUND"),
        // The kernel lacks the attribute, unless there is no session.
        None => Ok(!exists(sys, sid)?),
    }
}

/// Lists the numbers of all sessions, also foreign ones.
fn sids(sys: &dyn Tree) -> Result<Vec<u32>, TreeError> {
    let entries = gone_is_none(sys.list(&TreePath::new("class/iscsi_session")))?.unwrap_or_default();
    let mut sids: Vec<u32> =
        entries.iter().filter_map(|entry| entry.name.strip_prefix("session")?.parse().ok()).collect();
    sids.sort_unstable();
    Ok(sids)
}

/// Finds the SCSI host of a session: its link leads to `…/host<H>/session<S>/…`. `None` if the
/// session is gone.
fn host_of(sys: &dyn Tree, sid: u32) -> Result<Option<u32>, TreeError> {
    let link = gone_is_none(sys.read_link(&session_path(sid)))?;
    Ok(link.and_then(|path| {
        path.as_str().split('/').rev().find_map(|name| name.strip_prefix("host")?.parse().ok())
    }))
}

/// Looks at all sessions that are ours or could be.
pub fn views(sys: &dyn Tree) -> Result<Vec<KernelView>, TreeError> {
    let mut views = Vec::new();
    for sid in sids(sys)? {
        if let Some(view) = view(sys, sid)? {
            views.push(view);
        }
    }
    Ok(views)
}

/// Looks at one session; `None` if it is foreign or gone.
pub(crate) fn view(sys: &dyn Tree, sid: u32) -> Result<Option<KernelView>, TreeError> {
    let path = session_path(sid);
    let name = attribute(sys, &path, "ifacename")?;
    let volume = name.as_deref().and_then(|name| name.strip_prefix(MARK)?.parse().ok());
    if name.is_some() && volume.is_none() {
        return Ok(None);
    }
    let target = attribute(sys, &path, "targetname")?;
    let (Some(host), Some((session, connection))) = (host_of(sys, sid)?, state(sys, sid)?) else {
        return Ok(None);
    };
    let driver =
        attribute(sys, &TreePath::new("class/scsi_host").join(format_args!("host{host}")), "proc_name")?;
    let creator = attribute(sys, &path, "creator")?;
    let ours = creator.as_deref() == Some(CREATOR) && driver.as_deref() == Some(DRIVER);
    let unnamed = name.is_none() && target.is_none() && ours;
    if volume.is_none() && !unnamed {
        return Ok(None);
    }
    let targets = match attribute(sys, &path, "target_state")?.as_deref() {
        Some("SCANNED") => TargetAttr::Scanned,
        Some("UNBINDING" | "UNBOUND") => TargetAttr::Unbound,
        _ => TargetAttr::Allocated,
    };
    let connected = connection_path(sid);
    let portal = match (
        attribute(sys, &connected, "persistent_address")?,
        attribute(sys, &connected, "persistent_port")?,
    ) {
        // An IPv6 address stands there without brackets.
        (Some(address), Some(port)) if address.contains(':') => format!("[{address}]:{port}").parse().ok(),
        (Some(address), Some(port)) => format!("{address}:{port}").parse().ok(),
        _ => None,
    };
    let units = gone_is_none(sys.list(&session_target(host, sid)))?.unwrap_or_default();
    let devices = units.iter().any(|entry| entry.name.starts_with(&format!("{host}:0:0:")));
    Ok(Some(KernelView { sid, host, volume, unnamed, target, portal, session, connection, targets, devices }))
}

/// Finds the kernel's name of a LUN's disk (`sda`); `None` if there is no disk.
pub(crate) fn disk(sys: &dyn Tree, host: u32, sid: u32, lun: u16) -> Result<Option<String>, TreeError> {
    let entries = gone_is_none(sys.list(&unit_path(host, sid, lun).join("block")))?.unwrap_or_default();
    Ok(entries.into_iter().map(|entry| entry.name).next())
}
