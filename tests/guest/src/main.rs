//! PID 1 of the test VMs, from the first instruction of user space to the last.
//!
//! The kernel starts it from the initramfs. It loads the modules that the root file system needs,
//! moves into the root, sets the machine up, and then reaps orphans. A second copy of itself
//! (`serve`) carries out the rig's requests over a virtio port.
//!
//! What must never happen here: a failure that leaves the rig waiting in silence. Every error goes
//! to the console and ends the machine, which ends QEMU, which the rig sees.

mod boot;
mod server;
mod tree;
mod work;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["serve"] => Some(server::serve().map_err(|e| format!("BUG: the command server ended: {e:#}"))),
        ["tree", root] => Some(tree::print(root).map_err(|e| format!("{root} cannot be shown: {e:#}"))),
        _ => None,
    };
    if let Some(done) = done {
        return done.map_or_else(
            |why| {
                eprintln!("mooring-guest: {why}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        );
    }
    if std::process::id() != 1 {
        eprintln!(
            "mooring-guest is the first process of a test VM and does nothing elsewhere: see `cargo xtask vm --help`"
        );
        return ExitCode::FAILURE;
    }
    if let Err(e) = boot::boot() {
        eprintln!("mooring-guest: BUG: the guest could not be set up: {e:#}");
    }
    boot::power_off()
}
