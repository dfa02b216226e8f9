//! Permissions of files with a secret: private keys, tokens, passwords. The keys that seal a
//! database have a stricter rule of their own (`sealing`).
//!
//! What must never happen here: a file's content that is read.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The permissions that such a file must not have: any for others, and writing by the group.
const REFUSED: u32 = 0o027;

/// Returns the permissions of a file that others can read, or that its group can write. `None` if
/// neither is so.
///
/// # Errors
/// The file cannot be looked at.
pub fn exposed(path: &Path) -> io::Result<Option<u32>> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o777;
    Ok((mode & REFUSED != 0).then_some(mode))
}

/// Returns a warning about such a file with a secret of this kind. `None` if there is nothing to
/// warn of, or the file cannot be looked at: whoever reads it says so.
pub fn warning(path: &Path, what: &str) -> Option<String> {
    let mode = exposed(path).ok()??;
    let path = path.display();
    Some(format!(
        "{path} holds a {what} and has mode {mode:04o}: others may not read it, and only its owner may write it: \
         run chmod 0640 {path} (or 0600)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_can_read_or_change_is_warned_of() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let warned = |mode: u32| {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            warning(file.path(), "private key")
        };
        for mode in [0o644, 0o604, 0o660, 0o620, 0o602, 0o601] {
            let said = warned(mode).unwrap();
            let name = file.path().display().to_string();
            let (mode, run) = (format!("mode {mode:04o}"), format!("chmod 0640 {name}"));
            for word in [name.as_str(), "private key", mode.as_str(), run.as_str()] {
                assert!(said.contains(word), "{said}");
            }
        }
        for mode in [0o600, 0o640, 0o400, 0o440] {
            assert_eq!(warned(mode), None, "{mode:o}");
        }
        assert_eq!(warning(Path::new("/nonexistent/key"), "private key"), None);
    }
}
