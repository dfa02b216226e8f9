//! Prints a folder of kernel attributes: each with its mode and value.
//!
//! What must never happen here: a CHAP secret in the listing; an unreadable attribute that ends the
//! listing. Its error takes the place of its value.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

/// Prints everything below `root`, folders and attributes in the order of their names.
pub(crate) fn print(root: &str) -> Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    folder(Path::new(root), "./", &mut out)?;
    out.flush().context("write the listing")
}

fn folder(path: &Path, name: &str, out: &mut impl Write) -> Result<()> {
    let mode = |path: &Path| fs::symlink_metadata(path).map_or(0, |meta| meta.permissions().mode() & 0o7777);
    writeln!(out, "{name}  [{:o}]", mode(path))?;
    let mut entries: Vec<_> = match fs::read_dir(path) {
        Ok(entries) => entries.flatten().collect(),
        Err(e) => return writeln!(out, "  cannot be listed: {e}").context("write the listing"),
    };
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut folders = Vec::new();
    for entry in entries {
        let (path, file) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type().with_context(|| format!("look at {}", path.display()))?;
        if kind.is_symlink() {
            let target = fs::read_link(&path).map_or_else(|e| format!("<{e}>"), |t| t.display().to_string());
            writeln!(out, "  lnk {file} -> {target}")?;
        } else if kind.is_dir() {
            folders.push((path, file));
        } else {
            // Hide CHAP secrets: a dump is attached to reports.
            let value = if file.starts_with("password") { "***".to_owned() } else { value(&path) };
            writeln!(out, "  {:o} {file} = {value}", mode(&path))?;
        }
    }
    for (path, file) in folders {
        let below = if name == "./" { format!("{file}/") } else { format!("{name}{file}/") };
        folder(&path, &below, out)?;
    }
    Ok(())
}

fn value(path: &Path) -> String {
    match fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let text = text.strip_suffix('\n').unwrap_or(&text);
            if text.is_empty() || text.contains(char::is_control) {
                format!("{text:?}")
            } else {
                text.to_owned()
            }
        }
        Err(e) => format!("<{e}>"),
    }
}
