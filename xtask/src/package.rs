//! `cargo xtask package`: builds the shipped programs and makes Debian packages of them, optionally
//! with a signed apt folder around them.
//!
//! What must never happen here: a package whose version sorts below that of an earlier commit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use mooring_tests::packages::{self, Compression, Recipe, VARIANTS};

use crate::stages::{self, cargo, one};
use crate::{chroots, lintian, oci, repository, test};

/// Crates of the packaged programs, and the crate that writes their man pages.
const CRATES: [&str; 5] =
    ["mooring-agent", "mooring-cli", "mooring-connectors", "mooring-controller", "mooring-packages"];

/// Options of `cargo xtask package`.
#[derive(Debug, Default, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct PackageArgs {
    /// Folder for the three packages [default: target/packages; with --debug
    /// target/package-debug/packages]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Pack the unoptimised programs that `cargo xtask test` builds: for tests of the packages, not
    /// to be installed
    #[arg(long, conflicts_with = "repository")]
    debug: bool,
    /// Also make an OCI image of the controller, from its package and Debian 12's, beside the
    /// packages (as root)
    #[arg(long)]
    image: bool,
    /// Also put them into this apt folder, beside its other packages, and sign it. A missing folder
    /// is made; its key is stored in DIR-key, outside of what apt reads
    #[arg(long, value_name = "DIR")]
    repository: Option<PathBuf>,
    /// Sign with this key of your own GnuPG, named by fingerprint or address, and make no key
    #[arg(long, value_name = "KEY", requires = "repository")]
    key: Option<String>,
    /// Check the packages with lintian
    #[arg(long)]
    lint: bool,
    /// Run all their tests: lintian; installed, upgraded, removed and purged by apt in a chroot of
    /// Debian 12 and of Debian 13; the image, run by runc (some minutes, as root)
    #[arg(long)]
    test: bool,
}

/// Builds the programs. Returns their folder, and the folder in which packages are put together.
fn build(args: &PackageArgs, root: &Path) -> Result<(PathBuf, PathBuf)> {
    let target = stages::target(root);
    if args.debug {
        test::build_tested(root)?;
        return Ok((target.join("debug"), target.join("package-debug")));
    }
    let mut build = vec!["build", "--release", "--bins"];
    for name in CRATES {
        build.extend(["-p", name]);
    }
    one(cargo(root, &build))?;
    Ok((target.join("release"), target.join("package")))
}

/// Builds, packs, and does the optional steps.
pub(crate) fn run(args: &PackageArgs, root: &Path) -> Result<()> {
    packages::ensure()?;
    let (programs, work) = build(args, root)?;
    let version = version(root)?;
    let compression = if args.debug { Compression::Fast } else { Compression::Small };
    let recipe = Recipe { tree: root, programs: &programs, work: &work, version: &version, compression };
    let made = packages::make(&recipe)?;
    // The tests' packages are replaced together with the programs in them.
    let usual = if args.debug { work.join("packages") } else { stages::target(root).join("packages") };
    let output = args.output.clone().unwrap_or(usual);
    let kept = keep(&made, &output, &version)?;
    for path in &kept {
        println!("{}", path.display());
    }
    if args.lint || args.test {
        lintian::check(&kept)?;
    }
    if let Some(folder) = &args.repository {
        repository::add(folder, args.key.as_deref(), &kept)?;
        println!("{}: signed; machines need {}", folder.display(), repository::sources(folder).display());
    }
    if args.image || args.test {
        let folder = tempfile::tempdir().context("make a folder for an apt folder")?;
        let apt = folder.path().join("apt");
        repository::add(&apt, None, &kept)?;
        let image = oci::make(&apt, &version, &work, &output)?;
        println!("{}: the controller as an OCI image", image.display());
        if args.test {
            oci::test(&image, &programs.join("mooring"), &work)?;
            chroots::test(root, &apt, &kept, &version)?;
        }
    }
    Ok(())
}

/// Makes packages of the tests' programs. Returns their folder.
pub(crate) fn of_tests(root: &Path) -> Result<PathBuf> {
    let output = stages::target(root).join("package-debug/packages");
    run(&PackageArgs { debug: true, output: Some(output.clone()), ..PackageArgs::default() }, root)?;
    Ok(output)
}

/// Runs all tests of packages, on packages of the tests' programs.
pub(crate) fn test_of_tests(root: &Path) -> Result<()> {
    run(&PackageArgs { debug: true, test: true, ..PackageArgs::default() }, root)
}

/// Copies the packages to their folder, under the names that apt expects.
fn keep(made: &[PathBuf], output: &Path, version: &str) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(output).with_context(|| format!("make {}", output.display()))?;
    let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
    VARIANTS
        .iter()
        .zip(made)
        .map(|((name, _), from)| {
            let to = output.join(format!("{name}_{version}_{architecture}.deb"));
            fs::copy(from, &to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
            Ok(to)
        })
        .collect()
}

/// The version of this tree. If the workspace's tag is on HEAD, it is the workspace's; otherwise
/// one that sorts before that, and after the version of every earlier commit.
fn version(root: &Path) -> Result<String> {
    let release = env!("CARGO_PKG_VERSION");
    let git = |args: &[&str]| {
        said(Command::new("git").args(["-c", "safe.directory=*"]).args(args).current_dir(root))
    };
    let Ok(commits) = git(&["rev-list", "--count", "HEAD"]) else {
        println!("no history of commits: the packages have the version {release}~0");
        return Ok(format!("{release}~0"));
    };
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    let tagged = git(&["tag", "--points-at", "HEAD"])?.lines().any(|tag| tag == format!("v{release}"));
    let commit = git(&["rev-parse", "--short=9", "HEAD"])?;
    Ok(version_of(release, tagged, &commits, &commit, changed))
}

fn version_of(release: &str, tagged: bool, commits: &str, commit: &str, changed: bool) -> String {
    let local = if changed { "+local" } else { "" };
    if tagged { format!("{release}{local}") } else { format!("{release}~{commits}.g{commit}{local}") }
}

/// Runs a command and returns its trimmed output.
pub(crate) fn said(command: &mut Command) -> Result<String> {
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
    if !out.status.success() {
        bail!("{command:?} ended with {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_commit_has_a_later_version_and_the_release_the_last() {
        let versions = [
            version_of("0.1.0", false, "99", "fffffffff", false),
            version_of("0.1.0", false, "100", "000000000", false),
            version_of("0.1.0", false, "100", "000000000", true),
            version_of("0.1.0", true, "101", "000000000", false),
            version_of("0.1.0", true, "101", "000000000", true),
        ];
        if mooring_rig::packages::find("dpkg").is_none() {
            return;
        }
        for pair in versions.windows(2) {
            let compared =
                Command::new("dpkg").args(["--compare-versions", &pair[0], "lt", &pair[1]]).status();
            assert!(compared.unwrap().success(), "{pair:?}");
        }
    }
}
