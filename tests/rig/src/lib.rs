//! The rig: runs commands on real Linux kernels in QEMU, on virtual networks of its own.
//!
//! ```no_run
//! use mooring_rig::{Rig, RigOptions};
//!
//! # fn main() -> anyhow::Result<()> {
//! let rig = Rig::up(RigOptions::standard(2))?; // storage, host1, host2
//! let out = rig.vm("storage")?.run(&["uname", "-r"])?.ok()?;
//! println!("{}", out.stdout);
//! rig.check_consoles()
//! # }
//! ```
//!
//! It needs no root, no bridge and no network of the machine. The networks are sockets
//! ([`switch`]), and the commands travel over a virtio port ([`link`]). Its files are under
//! `target/rig/` and in the user's cache ([`image`]).
//!
//! What must never happen here: something of the rig that outlives the process which started it
//! (every QEMU dies with it, even after SIGKILL); two rigs that disturb each other (each has a
//! folder of its own); a failure of a kernel that passes unnoticed (see [`console`]).

pub mod accel;
pub mod bzimage;
pub mod console;
pub mod cpio;
mod evidence;
pub mod image;
mod kernel;
pub mod link;
pub mod options;
pub mod packages;
pub mod phases;
mod process;
mod qemu;
mod qmp;
mod rig;
pub mod room;
mod root;
mod running;
pub mod selfcheck;
pub mod switch;
mod vm;
mod volatile;
mod waited;

pub use accel::Accel;
pub use kernel::KernelNotAvailable;
pub use options::{Kernel, RigOptions, VmSpec};
pub use process::alive;
pub use rig::{Rig, run_root};
pub use root::sources_of;
pub use running::{Output, Progress, Running, Seen, Status};
pub use vm::{COMMAND_LIMIT, Command, Cut, Networks, Vm};
pub use waited::WaitRanOut;

/// Where a VM shows the programs of [`RigOptions::programs`].
pub const PROGRAMS_DIR: &str = mooring_guest::wire::PROGRAMS_DIR;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock whose data stays usable when a thread panicked while holding it: a failed scenario
/// must still be able to end its VMs.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
