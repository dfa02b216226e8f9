//! Prints a tree as text, one object a line, in a stable order: for golden files, for bug reports,
//! and after a failed test on a real kernel.
//!
//! What must never happen: a secret in it (passwords read `***`), a link followed, or a stop at an
//! object that cannot be read: the error stands in its place. Listing an `acls` folder waits while
//! the kernel removes one of its ACLs (lio.md, d): dump from a thread that may be lost.

use std::fmt::Write as _;

use crate::{EntryKind, Tree, TreeError, TreePath};

/// Prints the whole tree.
///
/// ```text
/// dir  core/iblock_0
/// file core/iblock_0/hba_mode = "0\n"
/// file core/iblock_0/vol/control ! EACCES
/// link iscsi/iqn.x:v/tpgt_1/lun/lun_1/vol -> core/iblock_0/vol
/// ```
pub fn dump(tree: &dyn Tree) -> String {
    dump_below(tree, &TreePath::root())
}

/// Prints the part of a tree below one folder.
pub fn dump_below(tree: &dyn Tree, folder: &TreePath) -> String {
    let mut text = String::new();
    walk(tree, folder, &mut text);
    text
}

fn walk(tree: &dyn Tree, folder: &TreePath, text: &mut String) {
    let entries = match tree.list(folder) {
        Ok(entries) => entries,
        Err(error) => return line(text, "dir ", folder, &refused(&error)),
    };
    for entry in entries {
        let path = folder.join(&entry.name);
        match entry.kind {
            EntryKind::Dir => {
                line(text, "dir ", &path, "");
                walk(tree, &path, text);
            }
            EntryKind::File => line(text, "file", &path, &value(tree, &path)),
            EntryKind::Link => {
                let target = tree
                    .read_link(&path)
                    .map_or_else(|error| refused(&error), |target| format!(" -> {target}"));
                line(text, "link", &path, &target);
            }
        }
    }
}

fn line(text: &mut String, kind: &str, path: &TreePath, rest: &str) {
    let _ = writeln!(text, "{kind} {path}{rest}");
}

fn refused(error: &TreeError) -> String {
    format!(" ! {:?}", error.errno)
}

fn value(tree: &dyn Tree, path: &TreePath) -> String {
    match tree.read(path) {
        Err(error) => refused(&error),
        Ok(bytes) if path.name().starts_with("password") && !bytes.trim_ascii().is_empty() => {
            " = ***".to_owned()
        }
        Ok(bytes) => format!(" = \"{}\"", String::from_utf8_lossy(&bytes).escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KernelTree;

    #[test]
    fn every_object_is_a_line_and_secrets_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("auth")).unwrap();
        for (name, value) in [
            ("auth/password", "secret\n"),
            ("auth/password_mutual", "\n"),
            ("auth/userid", "user\"1\n\n"),
            ("binary", "a\0b"),
        ] {
            std::fs::write(at(name), value).unwrap();
        }
        std::os::unix::fs::symlink(at("auth"), at("zlink")).unwrap();
        assert_eq!(
            dump(&KernelTree::new(folder.path())),
            "dir  auth\n\
             file auth/password = ***\n\
             file auth/password_mutual = \"\\n\"\n\
             file auth/userid = \"user\\\"1\\n\\n\"\n\
             file binary = \"a\\0b\"\n\
             link zlink -> auth\n"
        );
        assert_eq!(
            dump_below(&KernelTree::new(folder.path()), &TreePath::new("none")),
            "dir  none ! ENOENT\n"
        );
    }
}
