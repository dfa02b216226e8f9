//! The audit log: caller, call, source address, object and answer of each call.
//!
//! What must never happen here: a line shown to a caller who is no auditor.

use super::{Refusal, Service};
use crate::audit::Audit;
use crate::domain::{AuditCall, AuditEntry, AuditLine, AuditQuery, Caller};
use crate::flow::Facts;
use crate::policy::Target;
use crate::store::{Db, Store};

/// Lines of one answer, unless more are requested.
pub const AUDIT_LINES_DEFAULT: u32 = 100;

/// Most lines of one answer.
pub const AUDIT_LINES_MAX: u32 = 1_000;

impl Service {
    /// Records a call whose answer is known. Never waits: the database gets the line within a
    /// second.
    pub fn record(&self, call: AuditCall) {
        self.audit.record(AuditEntry { at: self.facts.options.clock.now(), call });
    }

    /// Lines of the audit log, newest first, at most [`AUDIT_LINES_MAX`]. Lines of this controller
    /// that wait for the database are written first.
    pub async fn audit(&self, caller: &Caller, query: AuditQuery) -> Result<Vec<AuditLine>, Refusal> {
        self.facts.policies().check("mooring:audit", caller, &Target::default())?;
        self.audit.flush(&self.store).await?;
        let query = AuditQuery { limit: query.limit.min(AUDIT_LINES_MAX), ..query };
        let read = move |db: &Db<'_>| Ok(db.audit_lines(&query)?);
        self.store.read("read the audit log", read).await
    }

    /// Number of lines that wait for the database, and of lines that only the journal has.
    pub(crate) fn count_audit(&self) -> (u64, u64) {
        let audit = &self.audit;
        (u64::try_from(audit.count_waiting()).unwrap_or(u64::MAX), audit.lost())
    }
}

/// Writes and prunes the audit log. Never returns: drop the future to end it.
pub(super) async fn keep(audit: &Audit, store: &Store, facts: &Facts) {
    audit.run(store, facts.options.keep_audit, || facts.steady.now()).await;
}
