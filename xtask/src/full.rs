//! `cargo xtask test --full`: the whole check, in parts; each pass is recorded for the tree on
//! which it happened.
//!
//! What must never happen here: a pass that counts for another tree. The key is a hash of every
//! file that is built, run or read by a test, of the compiler, and of the images' inputs. Pages
//! that few units read are in the key of those units alone.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use mooring_rig::{Kernel, image};
use mooring_tests::papers::PAGES;
use mooring_tests::scenarios::ALL;
use sha2::{Digest, Sha256};

/// The stage that tries the packages on each Debian release, and the image. Other checks leave it
/// out: it fetches Debian's packages.
pub(crate) const PACKAGES: &str = "packages on Debian";

/// Approximate seconds of the stages without a VM, for parts of equal length.
const STAGES: [(&str, u16); 12] = [
    ("fmt", 5),
    ("proto", 1),
    ("clippy", 180),
    ("pages", 5),
    ("unit", 500),
    ("simulation", 60),
    ("clients", 60),
    ("doc tests", 30),
    ("docs", 40),
    ("vagrant", 15),
    ("lintian", 60),
    (PACKAGES, 300),
];

/// Pages that only [`READERS`] read.
const ASIDE: [&str; 4] = ["CHANGELOG.md", "README.md", "ARCHITECTURE.md", "docs/"];
/// Pages among them that other units read, beside those whose blocks a scenario types.
const READ: [&str; 3] =
    ["docs/contributing/testing.md", "docs/operations/metrics.md", "docs/requirements.md"];
/// Units that read all pages: the checks of links and names, and the packages that have them.
const READERS: [&str; 2] = ["pages", "lintian"];

/// One part of N, such as `2/3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    number: usize,
    of: usize,
}

impl Part {
    const WHOLE: Self = Self { number: 1, of: 1 };
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) && of <= 20 => Ok(Self { number, of }),
            _ => Err("a part is K/N, with K from 1 to N and N at most 20: 2/3".to_owned()),
        }
    }
}

/// The name of a scenario's unit.
pub(crate) fn unit(scenario: &str) -> String {
    format!("scenario {scenario}")
}

/// All units, the longest first.
fn units() -> Vec<String> {
    let stages = STAGES.iter().map(|&(name, usual)| (usual, name.to_owned()));
    let mut all: Vec<_> = stages.chain(ALL.iter().map(|one| (one.usual, unit(one.name)))).collect();
    all.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    all.into_iter().map(|(_, name)| name).collect()
}

/// The units of a part: every N-th of all.
fn units_of(part: Part) -> impl Iterator<Item = String> {
    units().into_iter().skip(part.number - 1).step_by(part.of)
}

/// The hashes of one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tree {
    /// Hash of all that counts for every unit.
    all: String,
    /// Hash of the pages that count for [`READERS`] alone.
    pages: String,
}

/// A full check of one tree.
pub(crate) struct Full {
    tree: Tree,
    folder: PathBuf,
    part: Part,
    wanted: BTreeSet<String>,
}

impl Full {
    /// Reads the tree's state and the part's units that have already passed on it.
    pub(crate) fn new(root: &Path, part: Option<Part>) -> Result<Self> {
        let tree = tree(root)?;
        let folder = image::cache_dir(root).join("passed").join(&tree.all);
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self::in_folder(tree, folder, part.unwrap_or(Part::WHOLE)))
    }

    fn in_folder(tree: Tree, folder: PathBuf, part: Part) -> Self {
        let mut full = Self { tree, folder, part, wanted: BTreeSet::new() };
        full.wanted = units_of(part).filter(|unit| !full.stands(unit)).collect();
        full
    }

    /// Returns `true` if a unit must run.
    pub(crate) fn wants(&self, unit: &str) -> bool {
        self.wanted.contains(unit)
    }

    /// Records that a unit has passed.
    pub(crate) fn keep(&self, unit: &str) {
        if let Err(error) = fs::write(self.path(unit), "") {
            println!("cannot keep that {unit} has passed: {error}");
        }
    }

    fn stands(&self, unit: &str) -> bool {
        self.path(unit).exists()
    }

    fn path(&self, unit: &str) -> PathBuf {
        let mark = unit.replace(' ', "-");
        if READERS.contains(&unit) {
            return self.folder.join(format!("{mark}-{}", self.tree.pages));
        }
        self.folder.join(mark)
    }

    /// Lists the parts that are complete for this tree, and what the others lack.
    pub(crate) fn standing(&self) -> Vec<String> {
        let mut lines = vec![format!("full check of tree {}:", self.tree.all)];
        for number in 1..=self.part.of {
            let part = Part { number, of: self.part.of };
            let missing: Vec<_> = units_of(part).filter(|unit| !self.stands(unit)).collect();
            let state = if missing.is_empty() {
                format!("stands ({} units)", units_of(part).count())
            } else {
                format!("lacks {}", missing.join(", "))
            };
            lines.push(format!("  part {number}/{} {state}", self.part.of));
        }
        lines
    }
}

/// Returns `true` if a file counts for every unit.
fn counts(file: &str) -> bool {
    READ.contains(&file) || PAGES.contains(&file) || !ASIDE.iter().any(|page| file.starts_with(page))
}

/// Hashes the names and contents of these files.
fn hash_of(root: &Path, files: &[Cow<'_, str>]) -> Sha256 {
    let mut hash = Sha256::new();
    for file in files {
        // The list also names files that were removed without a commit.
        let bytes = fs::read(root.join(file.as_ref())).unwrap_or_default();
        hash.update(Sha256::digest(file.as_bytes()));
        hash.update(Sha256::digest(&bytes));
    }
    hash
}

/// Hashes everything that is built, run or read.
fn tree(root: &Path) -> Result<Tree> {
    let list = ["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let out = Command::new("git").args(list).current_dir(root).output().context("start git")?;
    if !out.status.success() {
        bail!("a full check needs git, to list the tree: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let mut files: Vec<_> =
        out.stdout.split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name)).collect();
    files.retain(|file| !file.is_empty());
    files.sort_unstable();
    files.dedup();
    let (files, pages): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| counts(file));
    let mut hash = hash_of(root, &files);
    let rustc = Command::new("rustc").arg("-vV").current_dir(root).output().context("start rustc")?;
    hash.update(&rustc.stdout);
    for kernel in Kernel::ALL.into_iter().chain([Kernel::Next]) {
        hash.update(image::inputs(kernel));
    }
    let pages = image::hex(&hash_of(root, &pages).finalize());
    Ok(Tree { all: image::hex(&hash.finalize()), pages })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_as_k_of_n() {
        assert_eq!("2/3".parse(), Ok(Part { number: 2, of: 3 }));
        for bad in ["", "2", "0/3", "4/3", "a/b", "1/21", "1/0", "-1/2"] {
            assert!(bad.parse::<Part>().is_err(), "{bad}");
        }
    }

    #[test]
    fn parts_together_are_everything_and_share_nothing() {
        for of in 1..6 {
            let mut all: Vec<_> = (1..=of).flat_map(|number| units_of(Part { number, of })).collect();
            all.sort_unstable();
            let mut expected = units();
            expected.sort_unstable();
            assert_eq!(all, expected);
        }
    }

    /// A tree with these pages.
    fn with_pages(pages: &str) -> Tree {
        Tree { all: "1f".to_owned(), pages: pages.to_owned() }
    }

    #[test]
    fn a_page_counts_for_the_units_that_read_all_pages() {
        let folder = tempfile::tempdir().unwrap();
        let full = |pages| Full::in_folder(with_pages(pages), folder.path().to_owned(), Part::WHOLE);
        let first = full("a");
        for reader in READERS {
            assert!(first.wants(reader), "{reader} is a unit");
        }
        first.wanted.iter().for_each(|unit| first.keep(unit));
        assert!(full("a").wanted.is_empty());
        assert_eq!(full("b").wanted, BTreeSet::from(READERS.map(str::to_owned)));
    }

    #[test]
    fn a_part_stands_when_each_of_its_units_has_passed() {
        let folder = tempfile::tempdir().unwrap();
        let full =
            |number| Full::in_folder(with_pages("a"), folder.path().to_owned(), Part { number, of: 2 });
        let first = full(1);
        assert!(first.wanted.iter().all(|unit| !full(2).wants(unit)));
        first.wanted.iter().for_each(|unit| first.keep(unit));
        assert!(full(1).wanted.is_empty());
        let said = full(2).standing().join("\n");
        assert!(said.contains("part 1/2 stands (") && said.contains("part 2/2 lacks "), "{said}");
    }

    #[test]
    fn a_tree_is_its_files_and_apart_from_them_its_pages() {
        for read in ["agent/src/lib.rs", "docs/requirements.md", "docs/operations/metrics.md", "README.md"] {
            assert!(counts(read), "{read}");
        }
        assert!(!counts("CHANGELOG.md") && !counts("docs/rig.md"));
        let dir = tempfile::tempdir().unwrap();
        let init = Command::new("git").args(["init", "-q"]).current_dir(dir.path()).status().unwrap();
        assert!(init.success());
        let with = |file: &str, text: &str| {
            fs::write(dir.path().join(file), text).unwrap();
            tree(dir.path()).unwrap()
        };
        let first = with("a.rs", "1");
        let paged = with("CHANGELOG.md", "new");
        assert!(paged.all == first.all && paged.pages != first.pages, "{paged:?}");
        fs::create_dir(dir.path().join("docs")).unwrap();
        assert_ne!(with("docs/invariants.md", "new").pages, paged.pages);
        assert_ne!(with("a.rs", "2").all, first.all);
        assert_eq!(with("a.rs", "1").all, first.all);
        assert_ne!(with("b.rs", "").all, first.all);
    }
}
