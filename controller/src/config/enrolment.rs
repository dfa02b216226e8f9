//! The part of the configuration about the joins of agents.

use std::path::PathBuf;
use std::time::SystemTime;

use mooring_systemd::certificates::{self, CertificateError};
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, File};

/// PEM files of the authority, and of the certificate that the controller shows to agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolment {
    /// The authority's certificate.
    pub authority: PathBuf,
    /// The authority's key.
    pub authority_key: PathBuf,
    /// The certificate that the controller shows to enrolled agents.
    pub client_cert: PathBuf,
    /// The key of that certificate.
    pub client_key: PathBuf,
}

impl Enrolment {
    /// Checks the files. Returns, for each pair, warnings about certificates that expire soon.
    pub(super) fn check(&self, now: SystemTime) -> [Result<Vec<String>, CertificateError>; 2] {
        [
            certificates::check_signer(&self.authority, &self.authority_key, now),
            certificates::check_identity(&self.client_cert, &self.client_key, now),
        ]
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEnrolment {
    authority: Option<Spanned<String>>,
    authority_key: Option<Spanned<String>>,
    client_cert: Option<Spanned<String>>,
    client_key: Option<Spanned<String>>,
}

pub(super) fn enrolment(file: &File<'_>, table: &Spanned<RawEnrolment>) -> Result<Enrolment, ConfigError> {
    let raw = table.get_ref();
    let path = |text: &Option<Spanned<String>>, key: &str, name: &str| {
        file.path_or(text.as_ref(), &format!("enrolment.{key}"), &format!("/etc/mooring/{name}"))
    };
    Ok(Enrolment {
        authority: path(&raw.authority, "authority", "authority.crt")?,
        authority_key: path(&raw.authority_key, "authority_key", "authority.key")?,
        client_cert: path(&raw.client_cert, "client_cert", "controller/client.crt")?,
        client_key: path(&raw.client_key, "client_key", "controller/client.key")?,
    })
}
