//! Keeps the secrets in a program's memory (CHAP secrets, keys, tokens) out of core files.
//!
//! What must never happen here: a program that does not start because of this.

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};

/// A core file of this process remains possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot keep this process from leaving a core file ({what}): {errno}; its memory holds secrets")]
pub struct CoreWarning {
    what: &'static str,
    errno: nix::errno::Errno,
}

/// Prevents core files of this process, whatever handler the machine has for them, and tracing
/// without CAP_SYS_PTRACE: sets PR_SET_DUMPABLE to 0 and RLIMIT_CORE to 0. Child programs inherit
/// only the limit. Call it first.
pub fn leave_none() -> Result<(), CoreWarning> {
    let failed = |what| move |errno| CoreWarning { what, errno };
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(failed("RLIMIT_CORE"))?;
    prctl::set_dumpable(false).map_err(failed("PR_SET_DUMPABLE"))
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::getrlimit;

    use super::*;

    #[test]
    fn a_process_that_asked_for_it_leaves_no_core() {
        leave_none().unwrap();
        assert_eq!(prctl::get_dumpable(), Ok(false));
        assert_eq!(getrlimit(Resource::RLIMIT_CORE), Ok((0, 0)));
    }
}
