//! The authority as its files now have it: `rotate-authority` replaces them while the controller
//! serves.
//!
//! What must never happen here: an authority given up because its files cannot be read for a
//! moment.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mooring_model::Chain;

use super::{Authority, AuthorityError};

/// The stamp of a file, which shows a replacement: device, inode, size, and the time of the last
/// change in nanoseconds.
type Stamp = (u64, u64, u64, i64, i64);

/// The stamps of the certificate's file and of the key's; `None` for a file that cannot be read.
pub(crate) type Stamps = [Option<Stamp>; 2];

/// The stamps of two files, for a comparison that shows a replacement.
pub(crate) fn stamps(certificate: &Path, key: &Path) -> Stamps {
    [stamp(certificate), stamp(key)]
}

struct Loaded {
    stamps: Stamps,
    authority: Arc<Authority>,
}

/// The authority of two files, which are read again after a replacement.
pub struct LiveAuthority {
    certificate: PathBuf,
    key: PathBuf,
    loaded: Mutex<Loaded>,
}

impl fmt::Debug for LiveAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveAuthority").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

impl LiveAuthority {
    /// Loads the authority from its files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, AuthorityError> {
        // Taken before the files are read: a file replaced meanwhile is read again.
        let stamps = stamps(certificate, key);
        let authority = Arc::new(Authority::load(certificate, key)?);
        let loaded = Mutex::new(Loaded { stamps, authority });
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), loaded })
    }

    /// The authority as the files now have it. Files that cannot be used are logged, and the former
    /// authority stays.
    pub fn now(&self) -> Arc<Authority> {
        let stamps = stamps(&self.certificate, &self.key);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.stamps != stamps {
            match Authority::load(&self.certificate, &self.key) {
                Ok(new) => {
                    tracing::info!(
                        pin = new.pin(),
                        trusted = new.pins().len(),
                        "the authority was read again"
                    );
                    loaded.authority = Arc::new(new);
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "the authority's files cannot be used: the one before goes on");
                }
            }
            loaded.stamps = stamps;
        }
        Arc::clone(&loaded.authority)
    }

    /// The file of the certificates.
    pub fn file(&self) -> &Path {
        &self.certificate
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use mooring_systemd::folder::{self, Kept};

    use super::*;
    use crate::authority::{make_key, self_sign};

    const KEPT: Kept = Kept { mode: 0o600, owner: None };

    #[test]
    fn files_that_were_replaced_are_read_again_and_bad_ones_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (crt, key) = (dir.path().join("a.crt"), dir.path().join("a.key"));
        let [old, new] = [(); 2].map(|()| make_key().unwrap());
        let [a, b] = [&old, &new].map(|key| self_sign(key, "test", SystemTime::now()).unwrap());
        folder::write_over(&crt, &a, KEPT).unwrap();
        folder::write_over(&key, &old, KEPT).unwrap();
        let live = LiveAuthority::load(&crt, &key).unwrap();
        let first = live.now();
        assert!(Arc::ptr_eq(&first, &live.now()), "nothing was replaced");
        // Both are trusted, and the first one signs, whichever comes first in the file.
        folder::write_over(&crt, &format!("{b}{a}"), KEPT).unwrap();
        let both = live.now();
        assert_eq!((both.pin(), both.pins().len()), (first.pin(), 2));
        assert!(both.certificate_pem().starts_with(&a));
        // The switch is the replacement of one file.
        folder::write_over(&key, &new, KEPT).unwrap();
        let switched = live.now();
        assert_eq!(switched.pins(), [both.pins()[1].clone(), both.pins()[0].clone()]);
        for wrong in ["", "no certificate", a.as_str()] {
            folder::write_over(&crt, wrong, KEPT).unwrap();
            assert!(Arc::ptr_eq(&switched, &live.now()), "{wrong}");
        }
        std::fs::remove_file(&crt).unwrap();
        assert!(Arc::ptr_eq(&switched, &live.now()));
        folder::write_over(&crt, &b, KEPT).unwrap();
        assert_eq!(live.now().pins(), [switched.pin()]);
    }
}
