//! Rules of the workspace that no compiler holds: arrows between crates, the home of `unsafe`, the
//! length of a file.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

#[path = "arch/allowed.rs"]
mod allowed;
#[path = "arch/fields.rs"]
mod fields;
#[path = "arch/leases.rs"]
mod leases;
#[path = "arch/links.rs"]
mod links;
#[path = "arch/modules.rs"]
mod modules;
#[path = "arch/structs.rs"]
mod structs;
#[path = "arch/words.rs"]
mod words;

/// Crates that each crate may import (ARCHITECTURE.md). Dev-dependencies are free: tests may look
/// at anything.
const ARROWS: &[(&str, &[&str])] = &[
    (
        "mooring-agent",
        &[
            "mooring-api",
            "mooring-bus",
            "mooring-connectors",
            "mooring-host",
            "mooring-model",
            "mooring-systemd",
            "mooring-targets",
        ],
    ),
    ("mooring-api", &["mooring-model"]),
    ("mooring-api-bench", &["mooring-api", "mooring-model"]),
    (
        "mooring-bench",
        &["mooring-agent", "mooring-api", "mooring-connectors", "mooring-host", "mooring-model"],
    ),
    ("mooring-bus", &[]),
    ("mooring-cli", &["mooring-api", "mooring-model"]),
    ("mooring-connectors", &["mooring-host", "mooring-model", "mooring-systemd"]),
    ("mooring-contract", &["mooring-host"]),
    ("mooring-controller", &["mooring-api", "mooring-bus", "mooring-model", "mooring-systemd"]),
    (
        "mooring-fleet",
        &[
            "mooring-agent",
            "mooring-api",
            "mooring-connectors",
            "mooring-controller",
            "mooring-host",
            "mooring-model",
        ],
    ),
    ("mooring-guest", &[]),
    ("mooring-host", &[]),
    ("mooring-model", &[]),
    ("mooring-packages", &["mooring-agent", "mooring-cli", "mooring-connectors", "mooring-controller"]),
    ("mooring-rig", &["mooring-guest"]),
    ("mooring-sim", &["mooring-agent", "mooring-api", "mooring-controller", "mooring-host", "mooring-model"]),
    ("mooring-systemd", &[]),
    ("mooring-targets", &["mooring-host", "mooring-model"]),
    ("mooring-tests", &["mooring-host", "mooring-rig"]),
    ("mooring-xtask", &["mooring-rig", "mooring-tests"]),
];

/// The one module that may hold `unsafe`.
const UNSAFE_HOME: &str = "host/src/sys.rs";

/// Longest file of ours, in lines.
const LINES_MAX: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn check_arrows(found: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let allowed: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    let mut wrong = Vec::new();
    for (package, imports) in found {
        let Some(allowed) = allowed.get(package.as_str()) else {
            wrong.push(format!("{package} has no row in ARROWS: say what it may import"));
            continue;
        };
        for import in imports.iter().filter(|import| !allowed.contains(&import.as_str())) {
            wrong.push(format!("{package} imports {import}"));
        }
    }
    wrong
}

#[test]
fn arrows() {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let found: BTreeMap<_, BTreeSet<_>> = metadata
        .packages
        .iter()
        .map(|package| {
            let ours = package
                .dependencies
                .iter()
                .filter(|d| d.kind != DependencyKind::Development && d.name.starts_with("mooring-"));
            (package.name.to_string(), ours.map(|d| d.name.clone()).collect())
        })
        .collect();
    assert_eq!(check_arrows(&found), Vec::<String>::new());
    // The control: a wrong arrow is found.
    let wrong = BTreeMap::from([("mooring-model".to_owned(), BTreeSet::from(["mooring-host".to_owned()]))]);
    assert_eq!(check_arrows(&wrong), ["mooring-model imports mooring-host"]);
}

fn sources() -> Vec<(String, String)> {
    fn walk(root: &Path, folder: &Path, found: &mut Vec<(String, String)>) {
        let skipped = ["target", ".git", "generated"];
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
        {
            let name = entry.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if entry.is_dir() && !skipped.contains(&name) {
                walk(root, &entry, found);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let path = entry.strip_prefix(root).expect("below the root").display().to_string();
                found.push((path, std::fs::read_to_string(&entry).expect("a source file")));
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &root(), &mut found);
    assert!(found.len() > 50, "the walk found {} files only", found.len());
    found
}

/// True if a line of code (not of a comment, not of text) uses `unsafe`: a block, a function, an
/// impl, an attribute.
fn says_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["{", "fn", "impl", "extern", "trait", "("].iter().any(|next| {
        let spaced = code.replace("unsafe(", "unsafe (");
        let words: Vec<_> = spaced.split_whitespace().collect();
        words.windows(2).any(|pair| pair[0] == "unsafe" && pair[1].starts_with(next))
            || code.trim() == "unsafe"
    })
}

#[test]
fn unsafe_has_one_home() {
    let this = "tests/tests/arch.rs";
    for (path, text) in sources().iter().filter(|(path, _)| path != UNSAFE_HOME && path != this) {
        let found = text.lines().position(says_unsafe);
        assert_eq!(found, None, "{path} line {} says unsafe", found.map_or(0, |line| line + 1));
    }
    for line in
        ["    unsafe { x() }", "pub unsafe fn f()", "unsafe impl Send for X {}", "#[unsafe(no_mangle)]"]
    {
        assert!(says_unsafe(&line.replace("#[", "")), "{line}");
    }
    for line in ["// unsafe { }", "unsafe_code", "\"cache=unsafe\""] {
        assert!(!says_unsafe(line), "{line}");
    }
}

#[test]
fn files_stay_short() {
    let long: Vec<_> = sources()
        .into_iter()
        .filter(|(_, text)| text.lines().count() > LINES_MAX)
        .map(|(path, _)| path)
        .collect();
    assert_eq!(long, Vec::<String>::new());
}

#[test]
fn every_module_says_what_it_is_for() {
    let silent: Vec<_> = sources()
        .into_iter()
        .filter(|(path, text)| !text.trim_start().starts_with("//!") && !path.contains("/tests/golden/"))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(silent, Vec::<String>::new());
}

/// Finds test files that are never run. A crate whose integration tests are one program lists them
/// in it, and lists further programs in its manifest.
#[test]
fn no_file_of_tests_is_left_out() {
    let sources = sources();
    let mut seen = 0;
    for (path, all) in sources.iter().filter(|(path, _)| path.ends_with("/tests/all.rs")) {
        let folder = path.trim_end_matches("all.rs");
        let manifest = root().join(folder.trim_end_matches("tests/")).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).expect("a manifest");
        let beside = |path: &str| path.strip_prefix(folder)?.strip_suffix(".rs").map(str::to_owned);
        for name in sources.iter().filter_map(|(path, _)| beside(path)) {
            if name.ends_with("/main") {
                let named = manifest.contains(&format!("path = \"tests/{name}.rs\"\n"));
                assert!(named, "{folder}: the manifest does not name {name}.rs");
            } else if name != "all" && !name.contains('/') {
                seen += 1;
                assert!(all.contains(&format!("mod {name};\n")), "{path} does not name {name}");
            }
        }
    }
    assert!(seen > 50, "{seen} files only");
}
