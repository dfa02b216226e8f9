//! Exports one volume over one Fibre Channel port, with four verbs: [`View::read`], [`plan`],
//! [`apply`](crate::apply), [`report`].
//!
//! A port has one portal group for all volumes. A nexus of ours in it is a [`Place`]: a TPG LUN of
//! its own on the volume's backstore, and a mapped LUN below the initiator's ACL, which the
//! initiator's volumes share (decision 22).
//!
//! **The cost of a look does not grow with the port.** Nothing in a port tells which LUNs are one
//! volume's, short of looking at all of them. So the caller names the places. [`View::read`] looks
//! at those of the spec's grants and at those in `former`, which are the places of the last spec
//! that was seen in force. All other places are neither seen nor touched. The caller keeps `former`
//! until a plan was empty; then the places of that plan's spec replace it. Only when the store that
//! holds `former` is lost, one walk over the whole port ([`read_port`]) finds the places of all
//! volumes at once.
//!
//! What must never happen here:
//! - a step on a LUN that is linked to another backstore than this volume's, whatever its number;
//! - the removal of an ACL that has a mapped LUN; a step on another volume's;
//! - a mapped LUN opened for a read-only nexus before it is sure that nothing was looked up while
//!   it was writable (decision 23);
//! - the removal of a mapped LUN's folder before its TPG LUN has drained: it keeps the ACL from
//!   being removed under it.

mod layout;
mod places;
mod plan;
mod port;
mod report;
mod view;

pub use layout::{SHUT, acl, lun, mapped, tpg};
pub use plan::{Drained, Wanted, drains, plan};
pub(crate) use plan::{needs_backstore, part};
pub use port::{PortIndex, prepare, read_port};
pub use report::{FcFacts, FcLive, read_live, report};
pub use view::{AclSeen, GroupView, LunSeen, MappedSeen, NexusView, Place, View};
