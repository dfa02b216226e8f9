//! The packages of an earlier commit, for the scenario that upgrades from them: built once from
//! that commit's own tree, and kept in the cache.
//!
//! What must never happen here: packages of another tree under that commit's name; a file of this
//! tree changed by that build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use mooring_rig::image;
use mooring_rig::options::workspace_root;

use crate::packages::{self, Compression, MAN, PACKAGED, Recipe, VARIANTS};

/// The earlier commit. Each release moves it to the release before. Until there is one, it is the
/// last commit whose databases and stores have secrets in clear, so that an upgrade seals them.
pub const COMMIT: &str = "96494be75bf18efec7216f6b81942a0109e82552";

/// The scenario that needs these packages.
pub const SCENARIO: &str = "upgrade-skew";

/// Version of the commit's packages: lower than every other.
pub const VERSION: &str = "0.0.1";

/// The commit's packages, in the order of [`VARIANTS`]. The first call builds them, which takes
/// some minutes.
pub fn packages() -> Result<Vec<PathBuf>> {
    let root = workspace_root();
    let folder = image::cache_dir(&root).join("earlier").join(COMMIT);
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let lock =
        fs::File::create(folder.with_extension("lock")).context("open the lock of the earlier packages")?;
    lock.lock().context("wait for the lock of the earlier packages")?;
    let debs: Vec<_> = VARIANTS.iter().map(|(name, _)| folder.join(format!("{name}.deb"))).collect();
    if debs.iter().all(|deb| deb.exists()) {
        return Ok(debs);
    }
    let work = target(&root).join("earlier");
    eprintln!("packages of {COMMIT}: building them in {} (some minutes, once)", work.display());
    let tree = work.join("tree");
    check_out(&root, &tree).with_context(|| format!("take the tree of {COMMIT} out of the history"))?;
    let built = work.join("target");
    build(&tree, &built)?;
    let recipe = Recipe {
        tree: &tree,
        programs: &built.join("debug"),
        work: &work.join("package"),
        version: VERSION,
        compression: Compression::Fast,
    };
    let made = packages::make(&recipe).with_context(|| format!("make the packages of {COMMIT}"))?;
    for (deb, kept) in made.iter().zip(&debs) {
        let half = kept.with_extension("half");
        packages::repack(deb, VERSION, &half)?;
        fs::rename(&half, kept).with_context(|| format!("put {} into its place", kept.display()))?;
    }
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    Ok(debs)
}

/// Cargo's build folder of this tree.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

/// Writes the commit's files into a new folder. No git worktree is used, so nothing is left in the
/// repository.
fn check_out(root: &Path, tree: &Path) -> Result<()> {
    if tree.exists() {
        fs::remove_dir_all(tree).with_context(|| format!("remove {}", tree.display()))?;
    }
    fs::create_dir_all(tree).with_context(|| format!("make {}", tree.display()))?;
    let mut archive = Command::new("git")
        .args(["-c", "safe.directory=*", "archive", "--format=tar", COMMIT])
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start git")?;
    let tar = archive.stdout.take().context("the archive")?;
    let unpacked =
        Command::new("tar").arg("-C").arg(tree).arg("-x").stdin(tar).status().context("start tar")?;
    let archived = archive.wait().context("wait for git")?;
    if !archived.success() || !unpacked.success() {
        bail!("git archive: {archived}, tar: {unpacked}. A shallow clone lacks it: git fetch --unshallow");
    }
    Ok(())
}

/// Builds the commit's programs in the way of this tree's programs for scenarios.
fn build(tree: &Path, target: &Path) -> Result<()> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--workspace", "--all-features"]);
    for name in PACKAGED.iter().chain(&[MAN]) {
        cargo.args(["--bin", name]);
    }
    // Remove the variables that `cargo run` sets for xtask.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(&name);
        }
    }
    let status = cargo.current_dir(tree).env("CARGO_TARGET_DIR", target).stdin(Stdio::null()).status();
    let status = status.context("start cargo")?;
    if !status.success() {
        bail!("cargo cannot build {COMMIT}: {status}");
    }
    Ok(())
}
