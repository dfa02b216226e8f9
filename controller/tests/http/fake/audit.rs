//! The audit lines that the fake was given.

use std::time::SystemTime;

use mooring_controller::domain::{AuditCall, AuditEntry, AuditLine, AuditQuery, Caller};
use mooring_controller::service::Refusal;

use super::Fake;

impl Fake {
    pub(super) fn keep_call(&self, call: AuditCall) {
        self.state().calls.push(call);
    }

    pub(super) fn audit_lines(&self, caller: &Caller, query: AuditQuery) -> Result<Vec<AuditLine>, Refusal> {
        let mut state = self.ask(caller)?;
        let line = |(number, call): (usize, &AuditCall)| {
            let entry = AuditEntry { at: SystemTime::UNIX_EPOCH, call: call.clone() };
            AuditLine { seq: u64::try_from(number).unwrap(), entry }
        };
        let lines = state.calls.iter().enumerate().map(line).rev().collect();
        state.audit_query = Some(query);
        Ok(lines)
    }
}
