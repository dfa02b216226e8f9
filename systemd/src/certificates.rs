//! Checks the certificates and keys that a configuration names together with the configuration, so
//! that a wrong one is found before the first connection.
//!
//! What must never happen here: anything of a key in an error.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use rustls::InconsistentKeys;
use rustls::RootCertStore;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use x509_parser::parse_x509_certificate;

use crate::private;

/// Time before a certificate's end at which a warning begins. Certificates that Mooring renews
/// itself are renewed earlier.
const SOON: Duration = Duration::from_hours(30 * 24);

/// A file that TLS cannot use.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file's content is of another kind.
    #[error("{} holds no {what} in PEM format: {why}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
        /// The fault.
        why: String,
    },
    /// The key belongs to another certificate.
    #[error("the key {} is not that of the certificate {}", .key.display(), .cert.display())]
    Mismatch {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
}

fn of_pem(path: &Path, what: &'static str) -> impl Fn(pem::Error) -> CertificateError + use<> {
    let path = path.to_owned();
    move |error| match error {
        pem::Error::Io(source) => CertificateError::Read { path: path.clone(), source },
        other => CertificateError::Content { path: path.clone(), what, why: other.to_string() },
    }
}

fn content(path: &Path, what: &'static str, why: &impl fmt::Display) -> CertificateError {
    CertificateError::Content { path: path.to_owned(), what, why: why.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let what = "certificate";
    let found = CertificateDer::pem_file_iter(path).map_err(of_pem(path, what))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(of_pem(path, what))?;
    if found.is_empty() { Err(content(path, what, &"there is none")) } else { Ok(found) }
}

/// Warnings about certificates that are invalid now or soon.
fn warnings(
    path: &Path,
    certificates: &[CertificateDer<'_>],
    now: SystemTime,
) -> Result<Vec<String>, CertificateError> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut warnings = Vec::new();
    for der in certificates {
        let (_, parsed) = parse_x509_certificate(der)
            .map_err(|error| content(path, "certificate that can be read", &error))?;
        let (validity, subject) = (parsed.validity(), parsed.subject());
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let mut warn = |word: &str, time: &x509_parser::time::ASN1Time| {
            warnings.push(format!("{}: the certificate of {subject} {word} {time}", path.display()));
        };
        if validity.not_after.timestamp() < seconds(now) {
            warn("was valid until", &validity.not_after);
        } else if validity.not_before.timestamp() > seconds(now) {
            warn("is not valid before", &validity.not_before);
        } else if validity.not_after.timestamp() < seconds(now + SOON) {
            warn("is valid only until", &validity.not_after);
        }
    }
    Ok(warnings)
}

/// Checks a certificate with its chain, and its key. Returns warnings, also about a key that others
/// can read.
pub fn check_identity(cert: &Path, key: &Path, now: SystemTime) -> Result<Vec<String>, CertificateError> {
    let chain = certificates(cert)?;
    let mut warnings = warnings(cert, &chain, now)?;
    let own = PrivateKeyDer::from_pem_file(key).map_err(of_pem(key, "private key"))?;
    let own =
        any_supported_type(&own).map_err(|error| content(key, "private key of a known kind", &error))?;
    warnings.extend(private::warning(key, "private key"));
    match CertifiedKey::new(chain, Arc::clone(&own)).keys_match() {
        // A key that does not reveal its public half cannot be compared; the first connection will
        // do it.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(warnings),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(CertificateError::Mismatch { cert: cert.to_owned(), key: key.to_owned() })
        }
        Err(error) => Err(content(cert, "certificate that TLS takes", &error)),
    }
}

/// Checks the certificates of an authority, one of which must match the key. Returns warnings, also
/// about a key that others can read.
pub fn check_signer(cert: &Path, key: &Path, now: SystemTime) -> Result<Vec<String>, CertificateError> {
    let all = certificates(cert)?;
    let mut warnings = warnings(cert, &all, now)?;
    let own = PrivateKeyDer::from_pem_file(key).map_err(of_pem(key, "private key"))?;
    let own =
        any_supported_type(&own).map_err(|error| content(key, "private key of a known kind", &error))?;
    warnings.extend(private::warning(key, "private key"));
    let fits =
        |der: CertificateDer<'static>| CertifiedKey::new(vec![der], Arc::clone(&own)).keys_match().is_ok();
    if all.into_iter().any(fits) {
        return Ok(warnings);
    }
    Err(CertificateError::Mismatch { cert: cert.to_owned(), key: key.to_owned() })
}

/// Returns `true` if the first certificate of a text matches the first private key of another;
/// `false` also if either is missing.
pub fn fits(certificate: &str, key: &str) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(certificate.as_bytes()) else { return false };
    let Ok(key) = PrivateKeyDer::from_pem_slice(key.as_bytes()) else { return false };
    let Ok(key) = any_supported_type(&key) else { return false };
    CertifiedKey::new(vec![der], key).keys_match().is_ok()
}

/// Checks the certificates of an authority. Returns warnings.
pub fn check_authority(path: &Path, now: SystemTime) -> Result<Vec<String>, CertificateError> {
    let found = certificates(path)?;
    let warnings = warnings(path, &found, now)?;
    let mut store = RootCertStore::empty();
    for der in found {
        store.add(der).map_err(|error| content(path, "certificate of an authority", &error))?;
    }
    Ok(warnings)
}

/// Returns warnings about certificates of a file that are invalid now, or within 30 days.
///
/// # Errors
/// The file cannot be read, or holds no certificate.
pub fn check_ends(path: &Path, now: SystemTime) -> Result<Vec<String>, CertificateError> {
    warnings(path, &certificates(path)?, now)
}

/// Beginning and end of a certificate's validity.
///
/// # Errors
/// `pem` holds no certificate that can be read.
pub fn validity(pem: &str) -> Result<(SystemTime, SystemTime), String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
    let (_, parsed) = parse_x509_certificate(&der).map_err(|error| error.to_string())?;
    let time = |time: &x509_parser::time::ASN1Time| {
        UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
    };
    Ok((time(&parsed.validity().not_before), time(&parsed.validity().not_after)))
}

/// Fingerprint of a certificate's public key: `sha256:` and 64 hexadecimal digits, over its
/// SubjectPublicKeyInfo. A renewal with the same key keeps it.
///
/// # Errors
/// `pem` holds no certificate that can be read.
pub fn pin(pem: &str) -> Result<String, String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
    pin_of(&der)
}

/// Like [`pin`], for a certificate in DER.
///
/// # Errors
/// `der` is no certificate that can be read.
pub fn pin_of(der: &[u8]) -> Result<String, String> {
    let (_, parsed) = parse_x509_certificate(der).map_err(|error| error.to_string())?;
    Ok(format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(parsed.public_key().raw))))
}

/// Splits a text into its certificates, each as a PEM text, in order. Everything else is dropped.
pub fn each(pem: &str) -> Vec<String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let parts = pem.split(BEGIN).skip(1).filter_map(|rest| rest.split_once(END));
    parts.map(|(body, _)| format!("{BEGIN}{body}{END}\n")).collect()
}

/// The pins of all certificates of a text, in order.
///
/// # Errors
/// A certificate of `pem` cannot be read.
pub fn pins(pem: &str) -> Result<Vec<String>, String> {
    each(pem).iter().map(|one| pin(one)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// 2026-01-01 and 2027-01-01.
    const YEAR: (u64, u64) = (1_767_225_600, 1_798_761_600);
    const DAY: u64 = 86_400;

    /// A certificate of the year 2026, with its key.
    fn made() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["storage1".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2027, 1, 1);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn what_tls_cannot_use_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let (good, other) = (made(), made());
        let (cert, key) = (file("good.crt", &good.0), file("good.key", &good.1));
        let now = UNIX_EPOCH + Duration::from_secs(YEAR.0 + DAY);
        assert_eq!(check_identity(&cert, &key, now).unwrap(), Vec::<String>::new());
        assert_eq!(check_signer(&cert, &key, now).unwrap(), Vec::<String>::new());
        assert_eq!(check_authority(&cert, now).unwrap(), Vec::<String>::new());
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        for checked in [check_identity(&cert, &key, now), check_signer(&cert, &key, now)] {
            let warnings = checked.unwrap();
            assert!(warnings.len() == 1 && warnings[0].contains("good.key"), "{warnings:?}");
        }
        let strange = file("other.key", &other.1);
        let (text, none) = (file("text", "no PEM"), dir.path().join("none"));
        for (checked, words) in [
            (check_identity(&cert, &strange, now), ["other.key", "is not that of the certificate"]),
            (check_identity(&text, &key, now), ["text", "no certificate"]),
            (check_identity(&cert, &cert, now), ["good.crt", "no private key"]),
            (check_identity(&cert, &none, now), ["none", "cannot read"]),
            (check_authority(&key, now), ["good.key", "no certificate"]),
            (check_authority(&none, now), ["none", "cannot read"]),
        ] {
            let said = checked.unwrap_err().to_string();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
            assert!(!said.contains("PRIVATE"), "{said}");
        }
    }

    #[test]
    fn the_validity_and_the_pin_of_a_certificate_are_read() {
        let (cert, _) = made();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(validity(&cert).unwrap(), (at(YEAR.0), at(YEAR.1)));
        assert!(pin(&cert).unwrap().starts_with("sha256:"));
        let ((cert, key), other) = (made(), made());
        assert!(fits(&cert, &key) && !fits(&cert, &other.1) && !fits(&key, &key) && !fits(&cert, &cert));
        let both = format!("text before\n{cert}between\n{}", other.0);
        assert_eq!(each(&both).len(), 2);
        assert_eq!(pins(&both).unwrap(), [pin(&cert).unwrap(), pin(&other.0).unwrap()]);
        assert!(pins("no PEM").unwrap().is_empty());
        assert!(pins(&both.replace("MII", "!!!")).is_err());
        for wrong in ["", "no PEM"] {
            assert!(!fits(wrong, &key) && !fits(&cert, wrong));
            assert!(validity(wrong).is_err() && pin(wrong).is_err());
        }
    }

    #[test]
    fn the_end_of_a_certificate_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = made();
        let (cert_file, key_file) = (dir.path().join("crt"), dir.path().join("key"));
        fs::write(&cert_file, cert).unwrap();
        fs::write(&key_file, key).unwrap();
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
        for (seconds, word) in [
            (YEAR.1 + DAY, "was valid until"),
            (YEAR.0 - DAY, "is not valid before"),
            (YEAR.1 - 2 * DAY, "is valid only until"),
        ] {
            let now = UNIX_EPOCH + Duration::from_secs(seconds);
            for warnings in [
                check_identity(&cert_file, &key_file, now),
                check_authority(&cert_file, now),
                check_ends(&cert_file, now),
            ] {
                let warnings = warnings.unwrap();
                assert!(warnings.len() == 1 && warnings[0].contains(word), "{warnings:?}");
            }
        }
    }
}
