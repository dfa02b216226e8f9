//! Tests of the packages' metadata, without building a package: every file of `systemd/` is
//! installed, and the scripts know every unit.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, iter};

use toml::{Table, Value};

/// The installed folders of `systemd/`, and their places.
const PLACES: [(&str, &str); 6] = [
    ("units", "usr/lib/systemd/system/"),
    ("sysusers.d", "usr/lib/sysusers.d/"),
    ("tmpfiles.d", "usr/lib/tmpfiles.d/"),
    ("modules-load.d", "usr/lib/modules-load.d/"),
    ("sysctl.d", "usr/lib/sysctl.d/"),
    ("udev", "usr/lib/udev/rules.d/"),
];

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The packages by their Debian names.
fn packages() -> BTreeMap<String, Table> {
    let manifest: Table = fs::read_to_string(here().join("Cargo.toml")).unwrap().parse().unwrap();
    let variants = manifest["package"]["metadata"]["deb"]["variants"].as_table().unwrap();
    variants
        .values()
        .map(|variant| (variant["name"].as_str().unwrap().to_owned(), variant.as_table().unwrap().clone()))
        .collect()
}

/// Source and place of each file in a package.
fn assets(package: &Table) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let assets = package["assets"].as_array().unwrap();
    assets.iter().map(|asset| (text(&asset[0]), text(&asset[1]))).collect()
}

fn script(package: &Table, name: &str) -> Option<String> {
    let folder = package.get("maintainer-scripts")?.as_str().unwrap();
    Some(fs::read_to_string(here().join(folder).join(name)).unwrap())
}

/// Files of `systemd/` with their target folders; paths are relative to the packages' crate.
fn installed() -> Vec<(String, String)> {
    let below = |(folder, place): (&'static str, &'static str)| {
        let files = fs::read_dir(here().join("../systemd").join(folder)).unwrap();
        let name = |file: fs::DirEntry| file.file_name().into_string().unwrap();
        files.map(move |file| (format!("../systemd/{folder}/{}", name(file.unwrap())), place.to_owned()))
    };
    PLACES.into_iter().flat_map(below).collect()
}

#[test]
fn every_file_of_systemd_is_in_one_package() {
    let packages = packages();
    let all: Vec<_> = packages.values().flat_map(assets).collect();
    let files = installed();
    assert!(files.len() >= 10, "{files:?}");
    for file in &files {
        let times = all.iter().filter(|asset| *asset == file).count();
        assert_eq!(times, 1, "{} must stand once in packages/Cargo.toml, with the place {}", file.0, file.1);
    }
    // A new folder is not installed until PLACES names it.
    for entry in fs::read_dir(here().join("../systemd")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let known = PLACES.iter().map(|(folder, _)| *folder).chain(["src", "tests"]);
        assert!(!entry.file_type().unwrap().is_dir() || known.into_iter().any(|one| one == name), "{name}");
    }
}

/// Returns `true` if a source is a file, or `FOLDER/*END` with at least one file of that end.
fn is_there(source: &str) -> bool {
    let Some((folder, end)) = source.rsplit_once("/*") else { return here().join(source).is_file() };
    let mut files = fs::read_dir(here().join(folder)).unwrap();
    files.any(|file| file.unwrap().file_name().to_str().unwrap().ends_with(end))
}

#[test]
fn what_packages_are_made_of_is_there() {
    for (name, package) in packages() {
        for (source, place) in assets(&package) {
            assert!(!place.starts_with("etc/"), "{name}: {place} would be asked about at an upgrade");
            if !source.starts_with("target/release/") {
                assert!(is_there(&source), "{name}: {source}");
            }
        }
    }
}

#[test]
fn the_scripts_know_every_unit_of_their_package() {
    for (name, package) in packages() {
        let units: Vec<_> = assets(&package)
            .into_iter()
            .filter(|(_, place)| place == PLACES[0].1)
            .map(|(source, _)| PathBuf::from(source).file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        for (unit, script_name) in units.iter().flat_map(|unit| iter::repeat(unit).zip(SCRIPTS)) {
            let text = script(&package, script_name);
            assert!(
                text.is_some_and(|text| text.contains(unit)),
                "{name}: {script_name} does not name {unit}"
            );
        }
    }
}

#[test]
fn each_override_of_lintian_is_in_its_package_with_a_reason() {
    let packages = packages();
    let mut files = 0;
    for file in fs::read_dir(here().join("lintian")).unwrap().map(Result::unwrap) {
        let name = file.file_name().into_string().unwrap();
        let asset = (format!("lintian/{name}"), "usr/share/lintian/overrides/".to_owned());
        assert!(assets(&packages[&name]).contains(&asset), "{name}");
        let text = fs::read_to_string(file.path()).unwrap();
        let mut above = "";
        for line in text.lines() {
            let reason = above.strip_prefix("# ").is_some_and(|reason| reason.len() > 20);
            assert!(line.starts_with('#') || reason, "{name}: {line:?} has no reason in the line above");
            above = line;
        }
        files += 1;
    }
    assert!(files > 0);
}

/// The kernel's exports, LVM and other managers of LIO are never touched by a package.
#[test]
fn the_scripts_are_sh_and_touch_no_storage() {
    for (name, package) in packages() {
        for (file, text) in SCRIPTS.iter().filter_map(|file| Some((file, script(&package, file)?))) {
            let said =
                |line: &&str| line.trim_start().starts_with('#') || line.trim_start().starts_with("echo ");
            let code: Vec<_> = text.lines().filter(|line| !said(line)).collect();
            for word in [
                "lvremove",
                "lvchange",
                "vgchange",
                "targetctl",
                "targetcli",
                "dmsetup",
                "rm -r",
                "udevadm trigger",
            ] {
                assert!(!code.iter().any(|line| line.contains(word)), "{name}: {file} says {word}");
            }
            let folder = here().join(package["maintainer-scripts"].as_str().unwrap());
            let parsed = Command::new("sh").arg("-n").arg(folder.join(file)).status().unwrap();
            assert!(parsed.success(), "{name}: {file}");
        }
    }
}
