//! Makes the Debian packages from built programs. `cargo xtask package` makes the shipped ones; the
//! scenario `installed` installs packages of the tests' own programs.
//!
//! What must never happen here: a package of a program that was not just built; a tool of a version
//! that depends on the day.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use mooring_rig::options::workspace_root;
use mooring_rig::{image, packages};

mod licences;

/// Version of cargo-deb, which makes the packages.
const CARGO_DEB: &str = "3.8.0";

/// Name of each package, and its variant in `packages/Cargo.toml`. In the order of an upgrade: the
/// controller first.
pub const VARIANTS: [(&str, &str); 3] =
    [("mooring-controller", "controller"), ("mooring-agent", "agent"), ("mooring", "cli")];

/// Our crates whose programs each package contains.
const MADE_OF: [(&str, &[&str]); 3] = [
    ("mooring-controller", &["mooring-controller"]),
    ("mooring-agent", &["mooring-agent", "mooring-connectors"]),
    ("mooring", &["mooring-cli"]),
];

/// Name in the packages' changelogs.
const MAINTAINER: &str = "Mooring maintainers <maintainers@mooring.invalid>";

/// Programs in the packages.
pub const PACKAGED: [&str; 4] = ["mooring", "mooring-agent", "mooring-controller", "mooring-sessiond"];

/// Program that writes the man pages.
pub const MAN: &str = "mooring-man";

/// Shells whose completions are in the package of the command line.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Last lines of the zsh script. Without them the first call, which loads the function by its name,
/// completes nothing.
const ZSH_FIRST_CALL: &str =
    "\nif [ \"$funcstack[1]\" = \"_mooring\" ]; then\n    _clap_dynamic_completer_mooring \"$@\"\nfi\n";

/// Compression of packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Small: for shipped packages.
    Small,
    /// Fast: for tests.
    Fast,
}

/// Packages to be made of the programs in one folder.
#[derive(Debug, Clone)]
pub struct Recipe<'a> {
    /// Root of the workspace whose `packages/Cargo.toml` describes the packages.
    pub tree: &'a Path,
    /// Cargo's folder of the programs.
    pub programs: &'a Path,
    /// A working folder; its content is replaced.
    pub work: &'a Path,
    /// The packages' version.
    pub version: &'a str,
    /// The packages' compression.
    pub compression: Compression,
}

/// Checks that dpkg can name the libraries that a program needs, and that cargo-deb is installed.
/// Returns the path of cargo-deb.
pub fn ensure() -> Result<PathBuf> {
    packages::install("making packages", || {
        ["dpkg-deb", "dpkg-shlibdeps"]
            .into_iter()
            .zip(["dpkg", "dpkg-dev"])
            .filter(|(program, _)| packages::find(program).is_none())
            .map(|(_, package)| package)
            .collect()
    })?;
    let folder = image::cache_dir(&workspace_root()).join(format!("cargo-deb-{CARGO_DEB}"));
    let program = folder.join("bin/cargo-deb");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let lock = fs::File::create(folder.with_extension("lock")).context("open the lock of cargo-deb")?;
    lock.lock().context("wait for the lock of cargo-deb")?;
    if !program.exists() {
        eprintln!("packages: installing cargo-deb {CARGO_DEB} into {}", folder.display());
        let mut install = cargo();
        install.args(["install", "cargo-deb", "--locked", "--quiet", "--version", CARGO_DEB, "--root"]);
        run(install.arg(&folder).env_remove("CARGO_TARGET_DIR"))
            .context("install cargo-deb from crates.io")?;
    }
    Ok(program)
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace_root());
    command
}

fn run(command: &mut Command) -> Result<String> {
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
    if !out.status.success() {
        bail!("{command:?} ended with {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Makes all packages. Returns their paths, in the order of [`VARIANTS`].
pub fn make(recipe: &Recipe<'_>) -> Result<Vec<PathBuf>> {
    let cargo_deb = ensure()?;
    put_together(recipe)?;
    VARIANTS.iter().map(|(name, variant)| one(&cargo_deb, recipe, name, variant)).collect()
}

/// Puts programs, man pages and completions where cargo-deb expects cargo's output.
fn put_together(recipe: &Recipe<'_>) -> Result<()> {
    let Recipe { programs, work, .. } = *recipe;
    if work.exists() {
        fs::remove_dir_all(work).with_context(|| format!("remove {}", work.display()))?;
    }
    let release = work.join("release");
    let package = release.join("package");
    let (man, completions) = (package.join("man"), package.join("completions"));
    fs::create_dir_all(&completions).with_context(|| format!("make {}", completions.display()))?;
    for name in PACKAGED {
        let (from, to) = (programs.join(name), release.join(name));
        if fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
        }
    }
    run(Command::new(programs.join(MAN)).arg(&man)).context("write the man pages")?;
    run(Command::new("gzip").args(["-9", "-n", "-r"]).arg(&man)).context("compress the man pages")?;
    for shell in SHELLS {
        let mut script = run(Command::new(programs.join("mooring")).env("COMPLETE", shell))
            .with_context(|| format!("write the completion for {shell}"))?;
        if shell == "zsh" {
            script.push_str(ZSH_FIRST_CALL);
        }
        let path = completions.join(format!("mooring.{shell}"));
        fs::write(&path, script).with_context(|| format!("write {}", path.display()))?;
    }
    describe(recipe, &package)
}

/// Writes the copyright file of each package, and the changelog that Debian's tools read: one
/// entry, which names the real one.
fn describe(recipe: &Recipe<'_>, package: &Path) -> Result<()> {
    licences::write(&package.join("copyright"), &MADE_OF)?;
    let changelogs = package.join("changelog");
    fs::create_dir_all(&changelogs).with_context(|| format!("make {}", changelogs.display()))?;
    let date = run(Command::new("date").args(["-u", "-R", "-d", &format!("@{}", epoch()?)]))?;
    for (name, _) in VARIANTS {
        let text = format!(
            "{name} ({}) unstable; urgency=medium\n\n  * What has changed: /usr/share/doc/{name}/changelog.gz\n\n -- {MAINTAINER}  {date}",
            recipe.version
        );
        let path = changelogs.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    run(Command::new("gzip").args(["-9", "-n", "-r"]).arg(&changelogs))
        .map(drop)
        .context("compress the changelogs")
}

/// Seconds since 1970 that serve as the timestamp of all files: `SOURCE_DATE_EPOCH`, else the time
/// of the commit, else now.
pub fn epoch() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text
            .parse()
            .with_context(|| format!("SOURCE_DATE_EPOCH is {text:?}: want seconds since 1970"));
    }
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "log", "-1", "--format=%ct"]).current_dir(workspace_root());
    if let Some(seconds) = run(&mut git).ok().and_then(|text| text.trim().parse().ok()) {
        return Ok(seconds);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(now.as_secs())
}

fn one(cargo_deb: &Path, recipe: &Recipe<'_>, name: &str, variant: &str) -> Result<PathBuf> {
    let output = recipe.work.join(format!("{name}.deb"));
    let mut command = Command::new(cargo_deb);
    command.args(["--no-build", "--quiet", "--package", "mooring-packages", "--variant", variant]);
    command.args(["--deb-version", recipe.version, "--output"]).arg(&output);
    if recipe.compression == Compression::Fast {
        command.arg("--fast");
    }
    command.current_dir(recipe.tree).env("CARGO_TARGET_DIR", recipe.work);
    command.env("SOURCE_DATE_EPOCH", epoch()?.to_string());
    run(&mut command).with_context(|| format!("make the package {name}"))?;
    Ok(output)
}

/// Repacks a package as another version, with a compression that unpacks fast where the processor
/// is emulated.
pub fn repack(deb: &Path, version: &str, to: &Path) -> Result<()> {
    let work = tempfile::tempdir_in(to.parent().context("a folder for the package")?)
        .context("make a folder to unpack a package in")?;
    let tree = work.path().join("tree");
    run(Command::new("dpkg-deb").arg("-R").arg(deb).arg(&tree))
        .with_context(|| format!("unpack {}", deb.display()))?;
    let control = tree.join("DEBIAN/control");
    let text = fs::read_to_string(&control).with_context(|| format!("read {}", control.display()))?;
    let lines = text.lines().map(|line| {
        if line.starts_with("Version: ") { format!("Version: {version}\n") } else { format!("{line}\n") }
    });
    fs::write(&control, lines.collect::<String>()).with_context(|| format!("write {}", control.display()))?;
    let mut pack = Command::new("dpkg-deb");
    pack.args(["-Zgzip", "-z1", "--root-owner-group", "-b"]).arg(&tree).arg(to);
    run(&mut pack).map(drop).with_context(|| format!("pack {}", to.display()))
}
