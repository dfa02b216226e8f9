//! Operations of a plan: each is one call on one object of the tree.
//!
//! What must never happen here: the text of a secret. [`Op`] prints secrets as `***`, in `Display`
//! and in `Debug`.

use std::fmt;

use mooring_host::TreePath;
use mooring_model::{Secret, Step};

use crate::layout::Place;

/// The exact bytes to write to an attribute. A newline would become part of a credential (lio.md,
/// a).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text that may be printed.
    Plain(String),
    /// A text that may not be printed.
    Secret(Secret),
}

impl Value {
    /// Returns the bytes for the kernel.
    pub fn expose(&self) -> &[u8] {
        match self {
            Self::Plain(text) => text.as_bytes(),
            Self::Secret(secret) => secret.expose().as_bytes(),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Plain(text.to_owned())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(text) => write!(f, "{text}"),
            Self::Secret(secret) => write!(f, "{secret}"),
        }
    }
}

/// The place where a mapped LUN leads, for an operation that touches no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeadsTo {
    /// The LUN behind the mapped LUN.
    pub lun: TreePath,
    /// The backstore that this LUN shows under our link. `None`: the LUN's own name says whose it
    /// is.
    pub backstore: Option<TreePath>,
}

impl fmt::Display for LeadsTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.lun)?;
        self.backstore.as_ref().map_or(Ok(()), |backstore| write!(f, " -> {backstore}"))
    }
}

/// One call on one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Makes a folder; an existing one is accepted.
    Mkdir {
        /// The folder.
        path: TreePath,
    },
    /// Removes a folder; a missing one is accepted. For an ACL it returns when the initiator's
    /// commands have drained.
    Rmdir {
        /// The folder.
        path: TreePath,
    },
    /// Removes a folder that is shared with other exports, if it is empty; one in use stays.
    Prune {
        /// The folder.
        path: TreePath,
    },
    /// Makes a link.
    Link {
        /// Object to point to.
        target: TreePath,
        /// Path of the link.
        link: TreePath,
    },
    /// Removes a link; a missing one is accepted.
    Unlink {
        /// The link.
        path: TreePath,
    },
    /// Writes an attribute.
    Write {
        /// The attribute.
        path: TreePath,
        /// The bytes.
        value: Value,
    },
    /// Reads an attribute; the plan goes on only if the text is exactly this.
    Expect {
        /// The attribute.
        path: TreePath,
        /// The text, without its final newline.
        value: String,
    },
    /// Writes a hint. If it is out of range for this device (EINVAL), or the device cannot follow
    /// it (ENOSYS), the kernel's own value stays.
    Advise {
        /// The attribute.
        path: TreePath,
        /// The bytes.
        value: Value,
    },
    /// Writes an attribute that older kernels lack; does nothing where it is missing.
    WriteIfThere {
        /// The attribute.
        path: TreePath,
        /// The bytes.
        value: Value,
    },
    /// Removes the link of a mapped LUN that leads there, whatever the link's name; does nothing to
    /// one that leads elsewhere, or nowhere.
    UnlinkIf {
        /// The mapped LUN.
        path: TreePath,
        /// The place where it has to lead.
        leads_to: LeadsTo,
    },
    /// Makes a mapped LUN that leads there read-only; does nothing to one that leads elsewhere, or
    /// nowhere.
    ProtectIf {
        /// The mapped LUN.
        path: TreePath,
        /// The place where it has to lead.
        leads_to: LeadsTo,
        /// The tag of the ACL if the newer spec asks for a barrier; else `None`. If the mapped LUN
        /// is writable, the tag's name of a barrier is taken first: a barrier that was done before
        /// the LUN was writable must not look done.
        tag: Option<TreePath>,
    },
}

impl Op {
    /// Returns the object that the operation changes.
    pub fn path(&self) -> &TreePath {
        match self {
            Self::Mkdir { path }
            | Self::Rmdir { path }
            | Self::Prune { path }
            | Self::Unlink { path }
            | Self::Write { path, .. }
            | Self::Expect { path, .. }
            | Self::Advise { path, .. }
            | Self::WriteIfThere { path, .. }
            | Self::UnlinkIf { path, .. }
            | Self::ProtectIf { path, .. } => path,
            Self::Link { link, .. } => link,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mkdir { path } => write!(f, "mkdir {path}"),
            Self::Rmdir { path } => write!(f, "rmdir {path}"),
            Self::Prune { path } => write!(f, "rmdir {path} (if empty)"),
            Self::Link { target, link } => write!(f, "link {link} -> {target}"),
            Self::Unlink { path } => write!(f, "unlink {path}"),
            Self::Write { path, value } => write!(f, "write {path} = {value}"),
            Self::Expect { path, value } => write!(f, "expect {path} = {value}"),
            Self::Advise { path, value } => write!(f, "write {path} = {value} (may be refused)"),
            Self::WriteIfThere { path, value } => write!(f, "write {path} = {value} (if it is there)"),
            Self::UnlinkIf { path, leads_to } => write!(f, "unlink {path} (if it leads to {leads_to})"),
            Self::ProtectIf { path, leads_to, tag } => {
                write!(f, "write {path}/write_protect = 1 (if it leads to {leads_to}")?;
                tag.as_ref().map_or(Ok(()), |tag| write!(f, "; if it is 0, no barrier in {tag} first"))?;
                write!(f, ")")
            }
        }
    }
}

/// Returns the initiator whose revoke is proven once this step has returned. Such a step removes
/// the ACL, and the call returns when the commands of its sessions have drained. No other step
/// proves anything over iSCSI (lio.md, d). For Fibre Channel see [`fc::drains`](crate::fc::drains).
/// `None` for any other step.
pub fn drains(step: &Step<Op>) -> Option<&str> {
    match &step.op {
        Op::Rmdir { path } => match Place::of(path) {
            Place::Acl(initiator) => Some(initiator),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[test]
    fn only_the_removal_of_an_acl_drains() {
        let step = |op| Step { op, why: Cow::Borrowed("") };
        let acl = TreePath::new("iscsi/iqn.x:t/tpgt_1/acls/iqn.x:i");
        assert_eq!(drains(&step(Op::Rmdir { path: acl.clone() })), Some("iqn.x:i"));
        for op in [
            Op::Rmdir { path: acl.join("lun_1") },
            Op::Rmdir { path: acl.parent() },
            Op::Unlink { path: acl.join("lun_1").join("mooring") },
            Op::Mkdir { path: acl },
        ] {
            assert_eq!(drains(&step(op.clone())), None, "{op}");
        }
    }

    #[test]
    fn a_secret_is_written_and_never_printed() {
        let op = Op::Write {
            path: TreePath::new("auth/password"),
            value: Value::Secret(Secret::new("hunter2hunter2")),
        };
        assert_eq!(op.to_string(), "write auth/password = ***");
        assert!(!format!("{op:?} {op:#?}").contains("hunter2"));
        let Op::Write { value, .. } = &op else { panic!("a write") };
        assert_eq!(value.expose(), b"hunter2hunter2");
    }
}
