//! Brings exports into the kernel: LIO targets over iSCSI and Fibre Channel, natively through
//! configfs. Everything is synchronous; every blocking call blocks here.
//!
//! There are four verbs, one module each: [`view`](ExportView::read) looks at one export,
//! [`plan()`] compares the view with the spec (pure), [`apply()`] runs the steps one by one,
//! [`report()`] says what is true. One export is one backstore, one target, one portal group, one
//! LUN, and one ACL with one mapped LUN per initiator.
//!
//! These are for iSCSI. [`fc`] has four verbs of its own for one volume over one Fibre Channel
//! port, which all volumes share. [`plan_exports`] plans a volume over several transports at once,
//! with one backstore.
//!
//! [`take_away()`] needs no view: while a call hangs in the kernel, it lists what a newer spec
//! takes from initiators.
//!
//! What must never happen here:
//! - a step after which an initiator reaches a LUN that neither the old nor the new spec gives it
//!   ([`plan()`] has the order);
//! - a step on an object that is not below this export's names (the HBA folder and the ACLs of a
//!   Fibre Channel port are shared, see [`Op::Prune`]);
//! - a look at another export: the cost of one does not depend on the others;
//! - a secret in a plan's text, an error, a `Debug` or a log.

pub mod adopt;
mod apply;
mod error;
mod exports;
pub mod fc;
mod info;
pub mod layout;
mod live;
mod lv;
mod narrow;
mod op;
mod plan;
mod port;
mod report;
pub mod reservations;
mod take_away;
pub mod tuning;
mod view;

pub use apply::{Observer, apply, pr_folder, prepare};
pub use error::Error;
pub use exports::{Exports, plan_exports};
pub use info::{BackstoreInfo, SessionInfo, parse_backstore, parse_sessions};
pub use live::{Live, count_commands, count_sessions, read_live, read_sessions_of, read_window};
pub use narrow::{Known, Narrow};
pub use op::{LeadsTo, Op, Value, drains};
pub use plan::{Device, Wanted, plan, plan_portals};
pub use port::{may_have_port_ids, port_ids};
pub use report::{ExportFacts, report, report_planned};
pub use take_away::take_away;
pub use view::{
    AclAuth, AclView, BackstoreView, BarrierView, Credentials, ExportView, HbaFolder, Link, LunView,
    MappedLun, TargetView, TpgView, read_initiators, read_portals,
};
