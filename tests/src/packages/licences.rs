//! The copyright file of each package: Mooring's own licence, and the notices of every crate that
//! is compiled into its programs.
//!
//! The text of Apache-2.0 is on every Debian system and is left out. Every other text stands once:
//! crates share texts, and differ in the lines that name the holders.
//!
//! What must never happen here: a crate that is compiled in and not named; a line of a notice that
//! is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use mooring_rig::options::workspace_root;

/// Head of each file.
const HEAD: &str = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Mooring
Upstream-Contact: Mooring maintainers <maintainers@mooring.invalid>
Comment: The paragraphs below the first are those of the Rust crates that are compiled into the programs of
 this package. \"text-1\" and so on are their notices, without the lines that name the holders. Where a crate
 may be had under several licences, one of which is Apache-2.0, it is taken under that.

Files: *
Copyright: 2026, the authors of Mooring
License: Apache-2.0

Files: rust/library/*
Copyright: The Rust Project Developers
License: MIT or Apache-2.0
Comment: The standard library of Rust, https://www.rust-lang.org
";

/// The licence whose text is not repeated.
const APACHE: &str = "License: Apache-2.0
 On Debian systems, the text of the Apache License, Version 2.0, is in /usr/share/common-licenses/Apache-2.0.
";

/// Prefixes of the names of files that contain notices.
const NAMES: [&str; 6] = ["license", "licence", "copying", "notice", "copyright", "unlicense"];
/// Suffixes of files that contain none, despite their names.
const NO_NOTICES: [&str; 6] = ["rs", "yml", "toml", "json", "html", "py"];
/// Depth of the search below a crate: C libraries have their notices in such folders.
const DEPTH: usize = 3;

/// Words after "copyright" in a sentence about it, which names no holder.
const NO_HOLDER: [&str; 10] = [
    "notice",
    "owner",
    "holder",
    "license",
    "law",
    "statement",
    "and related",
    "interest",
    "[yyyy]",
    "{yyyy}",
];

/// Writes the file of each of these packages into `folder`; each package comes with our crates in
/// it.
pub(super) fn write(folder: &Path, packages: &[(&str, &[&str])]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let metadata = metadata()?;
    for (package, crates) in packages {
        let text = text(&metadata, crates).with_context(|| format!("the copyright file of {package}"))?;
        let path = folder.join(package);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// The workspace as cargo resolves it for this machine.
fn metadata() -> Result<Metadata> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = MetadataCommand::new();
    command.current_dir(workspace_root());
    command.other_options(["--locked", "--filter-platform", &platform].map(str::to_owned));
    command.exec().context("ask cargo which crates the programs are made of")
}

/// The file for the programs of these crates of ours.
fn text(metadata: &Metadata, ours: &[&str]) -> Result<String> {
    let (mut file, mut texts) = (HEAD.to_owned(), Texts::default());
    for package in compiled_in(metadata, ours)? {
        let notices = notices_of(package, &metadata.packages)?;
        file.push('\n');
        file.push_str(&paragraph(package, &notices, &mut texts));
    }
    file.push('\n');
    file.push_str(APACHE);
    for (number, text) in texts.all.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(file, "\nLicense: text-{}\n", number + 1);
        for line in text {
            let _ = writeln!(file, " {}", if line.is_empty() { "." } else { line });
        }
    }
    Ok(file)
}

/// Third-party crates that are compiled into these, by name.
fn compiled_in<'a>(metadata: &'a Metadata, ours: &[&str]) -> Result<Vec<&'a Package>> {
    let resolve = metadata.resolve.as_ref().context("cargo names no dependencies")?;
    let nodes: BTreeMap<_, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut next: Vec<&PackageId> = Vec::new();
    for name in ours {
        let own = metadata.packages.iter().find(|package| package.name.as_str() == *name);
        next.push(&own.with_context(|| format!("the workspace has no crate {name}"))?.id);
    }
    let mut seen = BTreeSet::new();
    while let Some(id) = next.pop() {
        if !seen.insert(id) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("cargo does not resolve {id}"))?;
        let normal = |dependency: &&cargo_metadata::NodeDep| {
            dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
        };
        next.extend(node.deps.iter().filter(normal).map(|dependency| &dependency.pkg));
    }
    let mut crates: Vec<_> = metadata
        .packages
        .iter()
        .filter(|package| package.source.is_some() && seen.contains(&package.id))
        .collect();
    crates.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(crates)
}

/// Content of one file of notices.
#[derive(Debug, Default, PartialEq, Eq)]
struct Notice {
    holders: Vec<String>,
    /// Lines of the text, except holders and Apache-2.0.
    text: Vec<String>,
}

/// The texts so far, with the number of each.
#[derive(Default)]
struct Texts {
    all: Vec<Vec<String>>,
    known: BTreeMap<String, usize>,
}

impl Texts {
    /// The name of a text.
    fn name(&mut self, text: &[String]) -> String {
        let words = text.join(" ").split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
        let number = *self.known.entry(words).or_insert_with(|| {
            self.all.push(text.to_vec());
            self.all.len()
        });
        format!("text-{number}")
    }
}

fn paragraph(package: &Package, notices: &[Notice], texts: &mut Texts) -> String {
    let mut holders: Vec<_> = notices.iter().flat_map(|notice| &notice.holders).collect();
    holders.extend(if holders.is_empty() { package.authors.as_slice() } else { &[] });
    let mut seen = BTreeSet::new();
    holders.retain(|holder| seen.insert(*holder));
    let unnamed = format!("the authors of {}", package.name);
    if holders.is_empty() {
        holders.push(&unnamed);
    }
    let holders: Vec<_> = holders.into_iter().map(String::as_str).collect();
    let mut named: Vec<_> = notices
        .iter()
        .filter(|notice| !notice.text.is_empty())
        .map(|notice| texts.name(&notice.text))
        .collect();
    named.dedup();
    let licence = package.license.as_deref().unwrap_or("see the texts");
    let licence =
        licence.replace(" / ", " or ").replace('/', " or ").replace(" OR ", " or ").replace(" AND ", " and ");
    let mut comment = vec![
        package.repository.clone().unwrap_or_else(|| format!("https://crates.io/crates/{}", package.name)),
    ];
    comment.extend((!named.is_empty()).then(|| named.join(", ")));
    // The crate's own licence is not that of the library in it, which has no file of notices.
    comment.extend(
        (package.name.as_str() == "libsqlite3-sys").then(|| "SQLite is in the public domain".to_owned()),
    );
    format!(
        "Files: crates/{}-{}/*\nCopyright: {}\nLicense: {licence}\nComment: {}\n",
        package.name,
        package.version,
        holders.join("\n "),
        comment.join("; ")
    )
}

/// The notices of a crate; if its folder has none and Apache-2.0 is not offered, those of its
/// repository.
fn notices_of(package: &Package, all: &[Package]) -> Result<Vec<Notice>> {
    let own = read_all(package)?;
    if !own.is_empty() || package.license.as_deref().is_some_and(|licence| licence.contains("Apache-2.0")) {
        return Ok(own);
    }
    let same =
        all.iter().filter(|other| other.repository.is_some() && other.repository == package.repository);
    for other in same.filter(|other| other.license == package.license) {
        let theirs = read_all(other)?;
        if !theirs.is_empty() {
            return Ok(theirs);
        }
    }
    bail!(
        "{} {} has no file with its licence ({}), nor has another crate of its repository: ask its authors for one, or use another crate",
        package.name,
        package.version,
        package.license.as_deref().unwrap_or("none is named")
    )
}

fn read_all(package: &Package) -> Result<Vec<Notice>> {
    let folder = package.manifest_path.parent().with_context(|| format!("the folder of {}", package.name))?;
    let mut files = Vec::new();
    find(folder.as_std_path(), DEPTH, &mut files)?;
    files.sort();
    files
        .iter()
        .map(|file| {
            let bytes = fs::read(file).with_context(|| format!("read {}", file.display()))?;
            Ok(read(&String::from_utf8_lossy(&bytes)))
        })
        .collect()
}

/// Files with notices in a folder and below it.
fn find(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let entry = entry.with_context(|| format!("list {}", folder.display()))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().to_lowercase());
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if path.is_dir() {
            if depth > 1 && !name.starts_with('.') {
                find(&path, depth - 1, files)?;
            }
        } else if NAMES.iter().any(|start| name.starts_with(start)) && !NO_NOTICES.contains(&ending) {
            files.push(path);
        }
    }
    Ok(())
}

/// Splits a file of notices into the copyright holders and the rest.
fn read(text: &str) -> Notice {
    let mut notice = Notice::default();
    for line in without_apache(text) {
        match holder(line) {
            Some(holder) => notice.holders.push(holder.to_owned()),
            None => notice.text.push(line.trim_end().to_owned()),
        }
    }
    let blank = |line: &String| line.trim().is_empty();
    notice.text.dedup_by(|a, b| blank(a) && blank(b));
    let begin = notice.text.iter().take_while(|line| blank(line)).count();
    notice.text.drain(..begin);
    while notice.text.last().is_some_and(blank) {
        notice.text.pop();
    }
    notice
}

/// The holder that a line names after "Copyright"; `None`: it names none.
fn holder(line: &str) -> Option<&str> {
    let line = line.trim_matches(|each: char| each.is_whitespace() || "/*#".contains(each));
    let word = "copyright";
    if !line.get(..word.len())?.eq_ignore_ascii_case(word) {
        return None;
    }
    let rest = line[word.len()..].trim_start_matches(|each: char| each.is_whitespace() || each == ':');
    let rest = ["(c)", "(C)", "©"]
        .iter()
        .fold(rest, |rest, mark| rest.strip_prefix(mark).unwrap_or(rest))
        .trim_start();
    let lower = rest.to_lowercase();
    (!rest.is_empty() && !NO_HOLDER.iter().any(|word| lower.starts_with(word))).then_some(rest)
}

/// The lines without the terms of Apache-2.0 and their appendix.
fn without_apache(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    let at = |lines: &[&str], words: &str| lines.iter().position(|line| line.contains(words));
    while let Some(terms) = at(&lines, "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION") {
        let title = lines[..terms].iter().rposition(|line| line.contains("Apache License")).unwrap_or(terms);
        // Without its last line the end is unknown, and the text is kept.
        let Some(end) = at(&lines[terms..], "END OF TERMS AND CONDITIONS").map(|end| terms + end) else {
            break;
        };
        let appendix = at(&lines[end..], "APPENDIX: How to apply");
        let last = appendix
            .and_then(|_| at(&lines[end..], "limitations under the License"))
            .map_or(end, |last| end + last);
        lines.drain(title..=last);
    }
    lines
}

#[cfg(test)]
mod tests;
