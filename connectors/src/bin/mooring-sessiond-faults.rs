//! `mooring-sessiond` for tests: dies at the fault point that `MOORING_SESSIOND_CRASH_AT` names. It
//! is built beside the real one, so that a test replaces the one with the other.
//!
//! What must never happen here: a step in a shipped package.

fn main() -> std::process::ExitCode {
    mooring_connectors::sessiond::program::main()
}
