//! Connectors: this host's half of an attachment. iSCSI sessions are made and kept natively over NETLINK_ISCSI (no `iscsiadm`, no
//! `iscsid`), their disks are verified, flagged and given stable paths.
//!
//! Two processes work here. `mooring-sessiond` keeps sessions alive and knows nothing else: [`iscsi`] is the protocol without
//! I/O, [`wire`] what it is told. The agent makes connections true through it, with the four verbs of every domain.
//!
//! What must never happen here: a disk handed over before its identity was read freshly; a secret in a log, an error, a
//! `Debug` or a file that others can read; a session or disk of somebody else touched; a silent downgrade of CHAP.

pub mod iscsi;
pub mod wire;
