//! Images that a VM boots from.
//!
//! There are three parts, each in a folder named by a hash of its inputs: the root file system
//! (`root`), the kernel with its modules (`kernel`), and the guest program. A changed input makes a
//! new folder; an unchanged one costs milliseconds. The folders are in the user's cache
//! ([`cache_dir`]), so that every clone shares them.
//!
//! A fourth image holds the programs under test ([`programs`]). It belongs to the clone whose build
//! it is made from.
//!
//! What must never happen here: a half-made part in use. Parts are made beside their place, under a
//! lock that other processes wait for, and renamed into it.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::kernel;
use crate::options::Kernel;
use crate::{cpio, packages, root};

/// Prefix of the names of images of programs.
const PROGRAMS: &str = "programs-";

/// Everything that a VM boots from.
#[derive(Debug, Clone)]
pub struct Images {
    /// The read-only root, shared by all VMs.
    pub root: PathBuf,
    /// The kernel's modules, as a read-only file system of their own.
    pub modules: PathBuf,
    /// The uncompressed kernel.
    pub vmlinux: PathBuf,
    /// The modules that mount the root, in the order in which they are loaded.
    pub early: PathBuf,
    /// PID 1.
    pub guest: PathBuf,
    /// The kernel's release, as in `uname -r`.
    pub release: String,
}

impl Images {
    /// The initramfs: PID 1 and the modules that mount the root.
    pub fn initramfs(&self) -> Result<Vec<u8>> {
        let mut archive = cpio::Archive::default();
        for dir in ["dev", "modules", "proc", "sys"] {
            archive.directory(dir)?;
        }
        archive.file("init", 0o755, &read(&self.guest)?)?;
        for entry in fs::read_dir(&self.early).with_context(|| format!("list {}", self.early.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            archive.file(&format!("modules/{}", name.to_string_lossy()), 0o644, &read(&entry.path())?)?;
        }
        archive.finish()
    }
}

/// Age since its last use at which a part is removed when a new one of its kind is made.
const UNUSED: Duration = Duration::from_hours(14 * 24);
/// That age for images of programs: each build makes another one, and a running rig may boot its
/// own again.
const UNUSED_PROGRAMS: Duration = Duration::from_hours(3);

/// The folder for what belongs to one clone: run folders, and the image of its programs.
pub fn rig_dir(root_dir: &Path) -> PathBuf {
    root_dir.join("target").join("rig")
}

/// The folder for what all clones share: `$XDG_CACHE_HOME/mooring`, else `$HOME/.cache/mooring`;
/// the clone's own `target/rig` if neither variable is set.
pub fn cache_dir(root_dir: &Path) -> PathBuf {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    cache.map_or_else(|| rig_dir(root_dir), |cache| cache.join("mooring"))
}

/// Returns `true` if all parts for this kernel exist, so that [`ensure`] needs to make only PID 1.
pub fn is_warm(root_dir: &Path, kernel: Kernel) -> bool {
    let dir = cache_dir(root_dir);
    [root_name(kernel, &[]), kernel_name(kernel)].iter().all(|name| dir.join(name).exists())
}

/// A text that changes with the inputs of the root and this kernel.
pub fn inputs(kernel: Kernel) -> String {
    format!("{} {}", root_name(kernel, &[]), kernel_name(kernel))
}

fn root_name(kernel: Kernel, more: &[&str]) -> String {
    format!("root-{}", root::key(kernel.release(), more))
}

fn kernel_name(kernel: Kernel) -> String {
    format!("kernel-{}-{}", kernel.name(), kernel::key(kernel))
}

/// Makes the missing parts. With `refresh`, the root and the kernel are made again from Debian's
/// present packages.
pub fn ensure(root_dir: &Path, kernel: Kernel, refresh: bool) -> Result<Images> {
    ensure_with(root_dir, kernel, refresh, &[])
}

/// Like [`ensure`], with these Debian packages on the root beside the usual ones.
pub fn ensure_with(root_dir: &Path, kernel: Kernel, refresh: bool, more: &[&str]) -> Result<Images> {
    packages::ensure()?;
    let dir = cache_dir(root_dir);
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let lock = File::create(dir.join("build.lock")).context("open the lock of the image build")?;
    if lock.try_lock().is_err() {
        eprintln!("rig: another process builds the images; waiting for it");
        lock.lock().context("wait for the lock of the image build")?;
    }
    let guest = guest(root_dir, &dir)?;
    let make_root = |work: &Path| root::build(work, kernel.release(), more);
    let root = part(&dir, &root_name(kernel, more), refresh, make_root)?;
    let kernel = part(&dir, &kernel_name(kernel), refresh, |work| kernel::build(work, kernel))?;
    let release = fs::read_to_string(kernel.join("release")).context("read the kernel's release")?;
    Ok(Images {
        root: root.join("root.ext4"),
        modules: kernel.join("modules.ext4"),
        vmlinux: kernel.join("vmlinux"),
        early: kernel.join("early"),
        guest,
        release,
    })
}

/// Finds one part, or makes it in a working folder and renames it.
fn part(dir: &Path, name: &str, refresh: bool, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let place = dir.join(name);
    if place.exists() && !refresh {
        // Another user's folder may be readable but not writable: then only its owner's uses count.
        let _ = File::open(&place).and_then(|folder| folder.set_modified(SystemTime::now()));
        return Ok(place);
    }
    let unused = if name.starts_with(PROGRAMS) { UNUSED_PROGRAMS } else { UNUSED };
    remove_unused(dir, name, unused);
    let start = std::time::Instant::now();
    eprintln!("rig: building {name} (once; kept in {})", dir.display());
    let work = dir.join(format!("{name}.new"));
    remove(&work)?;
    fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
    let built = build(&work);
    if built.is_err() {
        remove(&work)?;
    }
    built.with_context(|| format!("build {name}"))?;
    remove(&place)?;
    fs::rename(&work, &place).with_context(|| format!("put {name} in its place"))?;
    eprintln!("rig: built {name} in {:.1} s", start.elapsed().as_secs_f64());
    Ok(place)
}

/// Removes parts of the kind of `name` that were unused for long. Those that cannot be removed
/// stay: they only take space.
fn remove_unused(dir: &Path, name: &str, limit: Duration) {
    let Some((kind, _)) = name.rsplit_once('-') else { return };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let other = entry.file_name().to_string_lossy().into_owned();
        let same_kind = other.rsplit_once('-').is_some_and(|(of, _)| of == kind) && other != name;
        let used = entry.metadata().and_then(|meta| meta.modified());
        let unused = used.is_ok_and(|used| used.elapsed().is_ok_and(|age| age > limit));
        if same_kind && unused {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Packs programs into one read-only file system, which every VM of a rig mounts
/// ([`crate::PROGRAMS_DIR`]). Reuses an image of the same files (by name, size and time of change).
pub fn programs(root_dir: &Path, programs: &[PathBuf]) -> Result<PathBuf> {
    packages::ensure()?;
    let dir = rig_dir(root_dir);
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let mut texts = Vec::new();
    let mut bytes = 0;
    for program in programs {
        let meta = fs::metadata(program).with_context(|| format!("look at {}", program.display()))?;
        let changed = meta.modified().context("when a program was built")?;
        bytes += meta.len();
        texts.push(format!("{} {} {changed:?}", program.display(), meta.len()));
    }
    let lock = File::create(dir.join("programs.lock")).context("open the lock of the programs' image")?;
    lock.lock().context("wait for the lock of the programs' image")?;
    let key = key_of(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let place = part(&dir, &format!("{PROGRAMS}{key}"), false, |work| {
        let tree = work.join("tree");
        fs::create_dir(&tree).context("make the programs' folder")?;
        for program in programs {
            let name = program.file_name().with_context(|| format!("{} has no name", program.display()))?;
            let (from, to) = (program.as_path(), tree.join(name));
            fs::hard_link(from, &to)
                .or_else(|_| fs::copy(from, &to).map(drop))
                .with_context(|| format!("link {}", to.display()))?;
        }
        // Leave space for the file system's own tables.
        pack(&tree, &work.join("programs.ext4"), (bytes >> 20) * 21 / 20 + 16)?;
        remove(&tree)
    })?;
    Ok(place.join("programs.ext4"))
}

/// Builds PID 1: a static binary from `tests/guest`, in a target folder of its own so that no other
/// build is disturbed.
fn guest(root_dir: &Path, dir: &Path) -> Result<PathBuf> {
    let sources = root_dir.join("tests").join("guest");
    let mut inputs = vec![sources.join("Cargo.toml")];
    for entry in fs::read_dir(sources.join("src")).context("list the sources of the guest")? {
        inputs.push(entry?.path());
    }
    inputs.sort();
    let mut hash = Sha256::new();
    for path in &inputs {
        hash.update(read(path)?);
    }
    let place = dir.join(format!("guest-{}", hex(&hash.finalize())));
    if place.exists() {
        return Ok(place);
    }
    eprintln!("rig: building the guest's PID 1");
    let target = root_dir.join("target").join("rig-guest");
    let triple = "x86_64-unknown-linux-gnu";
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--release", "--package", "mooring-guest", "--bin", "mooring-guest"]);
    cargo.args(["--target", triple, "--target-dir"]).arg(&target).current_dir(root_dir);
    // An outer cargo (a test run, an xtask) sets these for itself; here they would change flags,
    // features and folders.
    let outer =
        ["CARGO_BUILD_", "CARGO_CFG_", "CARGO_ENCODED_", "CARGO_FEATURE_", "CARGO_PROFILE_", "CARGO_TARGET_"];
    for (key, _) in std::env::vars_os() {
        if outer.iter().any(|prefix| key.to_string_lossy().starts_with(prefix)) {
            cargo.env_remove(key);
        }
    }
    cargo.env("RUSTFLAGS", "-Ctarget-feature=+crt-static").env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s").env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    run(&mut cargo).context("build the guest's PID 1")?;
    let binary = target.join(triple).join("release").join("mooring-guest");
    let new = dir.join("guest.new");
    fs::copy(&binary, &new).with_context(|| format!("copy {}", binary.display()))?;
    fs::rename(&new, &place).context("put the guest's PID 1 in its place")?;
    Ok(place)
}

/// Runs a tool to its end; an error contains its output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out =
        command.stdin(std::process::Stdio::null()).output().with_context(|| format!("start {program}"))?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        let lines: Vec<&str> = text.trim().lines().collect();
        let tail = lines.get(lines.len().saturating_sub(15)..).unwrap_or_default().join("\n  ");
        bail!("{program} failed ({}):\n  {tail}", out.status);
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// A program that [`packages::ensure`] has seen.
pub(crate) fn tool(name: &str) -> Command {
    Command::new(packages::find(name).unwrap_or_else(|| name.into()))
}

/// Packs a folder into a file system without a journal, because it is only read.
pub(crate) fn pack(from: &Path, image: &Path, mib: u64) -> Result<()> {
    let mut mke2fs = tool("mke2fs");
    mke2fs.args(["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", "root_owner=0:0", "-d"]);
    run(mke2fs.arg(from).arg(image).arg(format!("{mib}M")))
        .map(drop)
        .with_context(|| format!("pack {}", image.display()))
}

/// A short hash of these texts, for a folder's name.
pub fn key_of(texts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update(text.len().to_be_bytes());
        hash.update(text);
    }
    hex(&hash.finalize())
}

/// The first 12 hexadecimal digits of a digest.
pub fn hex(digest: &[u8]) -> String {
    let mut text = String::new();
    for byte in digest.iter().take(6) {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
    }
    text
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_change_with_their_inputs() {
        assert_eq!(key_of(&["a", "b"]), key_of(&["a", "b"]));
        assert_ne!(key_of(&["a", "b"]), key_of(&["ab", ""]));
        assert_eq!(key_of(&[]).len(), 12);
    }

    #[test]
    fn a_failed_part_leaves_nothing_and_a_successful_one_is_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let failed = part(dir.path(), "p", false, |work| {
            fs::write(work.join("half"), "")?;
            bail!("no network")
        });
        assert!(format!("{:#}", failed.unwrap_err()).contains("build p: no network"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let place = part(dir.path(), "p", false, |work| Ok(fs::write(work.join("whole"), "")?)).unwrap();
        assert!(place.join("whole").exists());
        part(dir.path(), "p", false, |_| bail!("made again")).unwrap();
        part(dir.path(), "p", true, |work| Ok(fs::write(work.join("new"), "")?)).unwrap();
        assert!(place.join("new").exists() && !place.join("whole").exists());
    }

    #[test]
    fn only_a_part_of_the_kind_that_nobody_used_for_long_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let long_ago = SystemTime::now() - UNUSED - Duration::from_hours(1);
        for (name, changed) in
            [("root-old", long_ago), ("root-new", SystemTime::now()), ("kernel-old", long_ago)]
        {
            let place = part(dir.path(), name, false, |_| Ok(())).unwrap();
            File::open(place).unwrap().set_modified(changed).unwrap();
        }
        part(dir.path(), "root-now", false, |_| Ok(())).unwrap();
        let there = |name: &str| dir.path().join(name).exists();
        assert!(!there("root-old") && there("root-new") && there("root-now") && there("kernel-old"));
    }

    #[test]
    fn a_tool_that_fails_says_why() {
        let err = run(Command::new("sh").args(["-c", "echo it broke >&2; exit 3"])).unwrap_err().to_string();
        assert!(err.contains("it broke") && err.contains('3'), "{err}");
    }
}
