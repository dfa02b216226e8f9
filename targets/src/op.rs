//! The operations of a plan: each is one call on one object of the tree.
//!
//! What must never happen here: the text of a secret. [`Op`] prints secrets as `***`, in `Display` and in `Debug`.

use std::fmt;

use mooring_host::TreePath;
use mooring_model::{Secret, Step};

use crate::layout::Place;

/// What is written to an attribute: exactly these bytes. A newline would become part of a credential (lio.md, a).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text that may be printed.
    Plain(String),
    /// A text that may not.
    Secret(Secret),
}

impl Value {
    /// The bytes for the kernel.
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

/// One call on one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Makes a folder; one that exists is fine.
    Mkdir {
        /// The folder.
        path: TreePath,
    },
    /// Removes a folder; one that is gone is fine. For an ACL it returns when the initiator's commands have drained.
    Rmdir {
        /// The folder.
        path: TreePath,
    },
    /// Removes a folder that is shared with other exports, if it is empty; one that is in use stays.
    Prune {
        /// The folder.
        path: TreePath,
    },
    /// Makes a link.
    Link {
        /// What it points to.
        target: TreePath,
        /// Where it stands.
        link: TreePath,
    },
    /// Removes a link; one that is gone is fine.
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
    /// Reads an attribute; the plan goes on only if it reads exactly this.
    Expect {
        /// The attribute.
        path: TreePath,
        /// The text, without its final newline.
        value: String,
    },
    /// Writes a hint that the kernel may find out of range for this device (EINVAL), or that the device cannot follow
    /// (ENOSYS); then the kernel's own value stands.
    Advise {
        /// The attribute.
        path: TreePath,
        /// The bytes.
        value: Value,
    },
    /// Writes an attribute that older kernels do not have; where it is not there nothing is done.
    WriteIfThere {
        /// The attribute.
        path: TreePath,
        /// The bytes.
        value: Value,
    },
}

impl Op {
    /// The object that is changed.
    pub fn path(&self) -> &TreePath {
        match self {
            Self::Mkdir { path }
            | Self::Rmdir { path }
            | Self::Prune { path }
            | Self::Unlink { path }
            | Self::Write { path, .. }
            | Self::Expect { path, .. }
            | Self::Advise { path, .. }
            | Self::WriteIfThere { path, .. } => path,
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
        }
    }
}

/// The initiator whose nexus is proven cut once this step has returned: the step removes its ACL, and that call returns
/// when the commands of its sessions have drained. No other step proves anything over iSCSI (lio.md, d); over Fibre Channel:
/// [`fc::drains`](crate::fc::drains).
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
