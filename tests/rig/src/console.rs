//! Finds complaints of kernels on their consoles.
//!
//! What must never happen here: a panic or a lock-up inside a VM that a scenario overlooks because
//! its own checks did not look there. A scenario that provokes one on purpose declares it
//! ([`crate::Vm::allow_console`]).

/// Texts that make a console line a failure.
const FAILURES: &[&str] = &[
    "Kernel panic",
    "soft lockup",
    "hard LOCKUP",
    "rcu_sched self-detected stall",
    "rcu_preempt self-detected stall",
    "rcu: INFO: rcu_preempt detected",
    "rcu: INFO: rcu_sched detected",
    "blocked for more than",
    // WARN() prints this before anything else.
    "[ cut here ]",
    "refcount_t:",
    "BUG:",
    "kernel BUG at",
    "Oops:",
    "general protection fault",
    "Unable to handle kernel",
    "Out of memory: Killed process",
];

/// A console line that shows a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The VM.
    pub vm: String,
    /// The line's number, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
}

/// The failures in one console after the first `skip` bytes, except those that contain one of
/// `allowed`.
pub fn scan(vm: &str, console: &str, skip: usize, allowed: &[String]) -> Vec<Finding> {
    let mut at = 0;
    let mut findings = Vec::new();
    for (index, line) in console.split('\n').enumerate() {
        at += line.len() + 1;
        let seen_before = at <= skip;
        let failure = FAILURES.iter().any(|failure| line.contains(failure));
        if failure && !seen_before && !allowed.iter().any(|pattern| line.contains(pattern.as_str())) {
            findings.push(Finding { vm: vm.to_owned(), line: index + 1, text: line.trim_end().to_owned() });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSOLE: &str = "\
[    0.1] Linux version 6.1.0
[    9.0] INFO: task kworker/0:1:12 blocked for more than 60 seconds.
[   12.0] watchdog: BUG: soft lockup - CPU#0 stuck for 26s!
[   13.0] debug: BUGS are fine
[   14.0] Kernel panic - not syncing: sysrq triggered crash
[   15.0] ------------[ cut here ]------------
[   15.1] refcount_t: underflow; use-after-free.
";

    #[test]
    fn failures_are_found_with_their_lines() {
        let lines: Vec<_> = scan("host1", CONSOLE, 0, &[]).into_iter().map(|f| f.line).collect();
        assert_eq!(lines, [2, 3, 5, 6, 7]);
    }

    #[test]
    fn an_allowance_covers_only_what_it_names() {
        let found = scan("host1", CONSOLE, 0, &["blocked for more than".to_owned()]);
        assert_eq!(found.len(), 4);
        assert!(found[0].text.contains("soft lockup"));
    }

    #[test]
    fn what_was_seen_before_is_not_found_again() {
        let skip = CONSOLE.find("[   13.0]").unwrap();
        assert_eq!(scan("host1", CONSOLE, skip, &[]).len(), 3);
        assert!(scan("host1", CONSOLE, CONSOLE.len(), &[]).is_empty());
    }

    #[test]
    fn a_quiet_console_has_no_findings() {
        assert!(scan("storage", "", 0, &[]).is_empty());
        assert!(scan("storage", "mooring-guest: ready\n", 0, &[]).is_empty());
    }
}
