//! Secrets from files and from standard input.
//!
//! What must never happen here: a secret in an error; a secret that reaches the kernel changed (a
//! newline at its end makes every login fail).

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::str::FromStr;

use mooring_model::Secret;

use crate::error::Failure;

/// Most bytes read from a file: a wrong file name must not fill the memory. A secret has at most
/// 255 bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// The source of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// `-`
    Stdin,
    /// A file.
    File(PathBuf),
}

impl FromStr for SecretSource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "-" { Self::Stdin } else { Self::File(PathBuf::from(text)) })
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdin => f.write_str("standard input"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl SecretSource {
    /// Returns `true` if reading it takes no input from a terminal and prints no warning.
    pub(crate) fn is_silent(&self) -> bool {
        match self {
            Self::Stdin => false,
            Self::File(path) => File::open(path).is_ok_and(|file| public_mode(&file).is_none()),
        }
    }

    /// Reads the secret, without one newline at its end.
    pub(crate) fn read(&self) -> Result<Secret, Failure> {
        let failed = |error: io::Error| Failure::Usage(format!("cannot read a secret from {self}: {error}"));
        let mut text = Vec::new();
        match self {
            Self::Stdin => io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?,
            Self::File(path) => {
                let file = File::open(path).map_err(failed)?;
                warn_if_public(self, &file);
                file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?
            }
        };
        let text = String::from_utf8(text)
            .map_err(|_| Failure::Usage(format!("the secret in {self} is not printable ASCII")))?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        Ok(Secret::new(text.strip_suffix('\r').unwrap_or(text)))
    }
}

/// A file's mode if other users can read it; otherwise `None`.
fn public_mode(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let mode = meta.permissions().mode() & 0o777;
    (meta.is_file() && mode & 0o044 != 0).then_some(mode)
}

/// Warns of a secret that other users can read. The grant is made all the same: the file is the
/// caller's.
fn warn_if_public(source: &SecretSource, file: &File) {
    if let Some(mode) = public_mode(file) {
        // A failed warning changes nothing.
        let _ = writeln!(
            io::stderr(),
            "mooring: warning: {source} can be read by others (mode {mode:o}); chmod 600 it"
        );
    }
}
