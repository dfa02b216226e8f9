//! `mooring-agent` for the tests: dies at the fault point that `MOORING_AGENT_CRASH_AT` names.
//! Built beside the real one, so that a test replaces the one with the other.
//!
//! What must never happen here: a step in a shipped package.

#[path = "../main.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main()
}
