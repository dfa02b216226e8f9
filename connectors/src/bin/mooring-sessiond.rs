//! `mooring-sessiond`: keeps this host's iSCSI sessions. All its work is in
//! [`mooring_connectors::sessiond`].
//!
//! What must never happen here: anything else.

fn main() -> std::process::ExitCode {
    mooring_connectors::sessiond::program::main()
}
