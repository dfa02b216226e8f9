//! The agent's private key and its certificate: made on this host, and replaced together.
//!
//! A new key waits beside the one in use, in `KEY.new`, until its certificate arrives. If the
//! exchange is interrupted, the next attempt goes on with that key.
//!
//! What must never happen here: a private key that others can read or that leaves this host; a
//! certificate in use with another key.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mooring_systemd::certificates;
use mooring_systemd::folder::{self, Kept};
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::config::Tls;

/// Mode of a file that only its owner can read.
const PRIVATE: Kept = Kept { mode: 0o600, owner: None };

/// A key or certificate that could not be made or stored.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be written or read.
    #[error("cannot {verb} {}: is this run as root?", .path.display())]
    File {
        /// Operation that failed.
        verb: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The file of the waiting key holds no key.
    #[error("{} holds no private key: remove it, and run this again", .path.display())]
    Waiting {
        /// Path of the file.
        path: PathBuf,
    },
    /// The key or the request cannot be made.
    #[error("cannot make a key and a certificate signing request")]
    Make(#[from] rcgen::Error),
    /// The certificate belongs to another key.
    #[error("the certificate that was given is not that of this host's new key")]
    OtherKey,
}

/// A key that has no certificate yet.
pub struct NewKey {
    pem: String,
    waiting: PathBuf,
    /// The certificate signing request, as PEM.
    pub csr: String,
}

fn waiting(tls: &Tls) -> PathBuf {
    let mut name = tls.key.clone().into_os_string();
    name.push(".new");
    name.into()
}

fn failed(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let path = path.to_owned();
    move |source| IdentityError::File { verb, path, source }
}

/// Returns the key that waits for its certificate. `None` if there is none.
pub fn waiting_key(tls: &Tls) -> Result<Option<NewKey>, IdentityError> {
    if waiting(tls).exists() { new_key(tls).map(Some) } else { Ok(None) }
}

/// Removes the key and the certificate, and leaves an empty file. By it, an agent that has left
/// starts; one that lacks certificates by mistake does not.
pub fn forget(tls: &Tls) -> Result<(), IdentityError> {
    folder::write_over(&tls.key, "", PRIVATE).map_err(failed("write", &tls.key))?;
    for path in [&waiting(tls), &tls.cert] {
        let there = path.exists() && *path != tls.key;
        if there {
            fs::remove_file(path).map_err(failed("remove", path))?;
        }
    }
    Ok(())
}

/// Returns `true` once [`forget`] was called and no key came after it.
pub fn forgotten(tls: &Tls) -> bool {
    fs::metadata(&tls.key).is_ok_and(|found| found.len() == 0)
}

/// Makes a key beside the one in use, or takes the one that waits there.
pub fn new_key(tls: &Tls) -> Result<NewKey, IdentityError> {
    let waiting = waiting(tls);
    if !waiting.exists() {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        folder::write_new(&waiting, &key.serialize_pem(), PRIVATE).map_err(failed("write", &waiting))?;
    }
    let pem = fs::read_to_string(&waiting).map_err(failed("read", &waiting))?;
    let key = KeyPair::from_pem(&pem).map_err(|_| IdentityError::Waiting { path: waiting.clone() })?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "mooring-agent");
    let csr = params.serialize_request(&key)?.pem()?;
    Ok(NewKey { pem, waiting, csr })
}

/// Refuses a certificate of another key. The key waits on.
pub fn fits(key: &NewKey, certificate: &str) -> Result<(), IdentityError> {
    if certificates::fits(certificate, &key.pem) { Ok(()) } else { Err(IdentityError::OtherKey) }
}

/// Replaces the certificate and key in use by these. One step, if one file holds both.
pub fn install(tls: &Tls, key: &NewKey, certificate: &str) -> Result<(), IdentityError> {
    fits(key, certificate)?;
    let put =
        |path: &Path, text: &str| folder::write_over(path, text, PRIVATE).map_err(failed("write", path));
    if tls.cert == tls.key {
        put(&tls.key, &format!("{}{certificate}", key.pem))?;
    } else {
        put(&tls.key, &key.pem)?;
        put(&tls.cert, certificate)?;
    }
    fs::remove_file(&key.waiting).map_err(failed("remove", &key.waiting))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn signed(key: &KeyPair) -> String {
        CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(key).unwrap().pem()
    }

    fn place(dir: &Path, cert: &str, key: &str) -> Tls {
        Tls { cert: dir.join(cert), key: dir.join(key), client_ca: dir.join("ca") }
    }

    #[test]
    fn a_key_waits_for_its_certificate_and_both_are_put_in_place() {
        for (cert, key) in [("agent.pem", "agent.pem"), ("agent.crt", "agent.key")] {
            let dir = tempfile::tempdir().unwrap();
            let tls = place(dir.path(), cert, key);
            let first = new_key(&tls).unwrap();
            let again = new_key(&tls).unwrap();
            assert_eq!(first.pem, again.pem, "whoever was cut off goes on with the same key");
            assert!(!tls.key.exists() && !first.csr.contains("PRIVATE"));
            install(&tls, &again, &signed(&KeyPair::from_pem(&again.pem).unwrap())).unwrap();
            assert_eq!(
                certificates::check_identity(&tls.cert, &tls.key, std::time::SystemTime::now())
                    .unwrap()
                    .len(),
                0
            );
            let mode = fs::metadata(&tls.key).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode, waiting(&tls).exists()), (0o600, false));
            let next = new_key(&tls).unwrap();
            assert_ne!(next.pem, first.pem, "the next one is another");
        }
    }

    #[test]
    fn a_certificate_of_another_key_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let tls = place(dir.path(), "agent.pem", "agent.pem");
        let first = new_key(&tls).unwrap();
        install(&tls, &first, &signed(&KeyPair::from_pem(&first.pem).unwrap())).unwrap();
        let before = fs::read_to_string(&tls.key).unwrap();
        let next = new_key(&tls).unwrap();
        for wrong in [signed(&KeyPair::generate().unwrap()), "no certificate".to_owned(), String::new()] {
            assert!(install(&tls, &next, &wrong).is_err());
            assert_eq!(fs::read_to_string(&tls.key).unwrap(), before);
            assert_eq!(new_key(&tls).unwrap().pem, next.pem);
        }
    }

    #[test]
    fn a_waiting_file_without_a_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let tls = place(dir.path(), "agent.pem", "agent.pem");
        fs::write(waiting(&tls), "no key").unwrap();
        let error = new_key(&tls).err().unwrap().to_string();
        assert!(error.contains("agent.pem.new"), "{error}");
    }
}
