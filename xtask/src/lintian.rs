//! Checks the packages with lintian, Debian's own checker.
//!
//! What must never happen here: an error or a warning that passes without a reason. Intended ones
//! stand in a file of the package (`packages/lintian/`), each below its reason.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use mooring_rig::packages;

use crate::stages::quietly;

/// Installs lintian if it is missing.
pub(crate) fn ensure() -> Result<()> {
    packages::install("checking the packages", || {
        if packages::find("lintian").is_some() { Vec::new() } else { vec!["lintian"] }
    })
}

/// Checks these packages. Errors and warnings fail.
pub(crate) fn check(debs: &[PathBuf]) -> Result<()> {
    ensure()?;
    let mut lintian = Command::new("lintian");
    // Without this flag lintian warns about running as root.
    lintian.args(["--allow-root", "--tag-display-limit", "0", "--fail-on", "error,warning"]);
    let (ok, said) = quietly(lintian.args(debs))?;
    if !ok {
        bail!("lintian: mend it, or give the reason in packages/lintian/PACKAGE:\n{}", said.trim());
    }
    println!("ok: lintian has no error and no warning in {} packages", debs.len());
    Ok(())
}
