//! Renewal of the controller's own certificates while it serves: at two thirds of their life, and
//! at once when another authority signs.
//!
//! The key stays, so that a renewal is the replacement of one file. Agents' certificates are
//! renewed through the agents.
//!
//! What must never happen here: another authority's certificate replaced; a controller that ends
//! because a renewal fails.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use axum_server::tls_rustls::RustlsConfig;
use mooring_model::Chain;
use mooring_systemd::folder::{self, Kept};
use tokio::sync::watch;

use crate::authority::{Authority, AuthorityError, live};
use crate::config::{Config, Enrolment, Tls};
use crate::http;

/// The time between two looks at the certificates.
const LOOK_EVERY: Duration = Duration::from_hours(1);

/// The time between two looks at the authority's files: a new authority signs the certificates at
/// once.
const LOOK_AT_FILES_EVERY: Duration = Duration::from_secs(1);

/// The time between two warnings of a near end in the log.
const WARN_EVERY: Duration = Duration::from_hours(24);

/// A certificate that could not be renewed.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    /// The authority cannot be used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A file cannot be read or written.
    #[error("cannot renew {}: the folder must be writable for the controller's user", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

/// The certificates to renew, and the authority that signs them.
#[derive(Debug, Clone)]
pub struct Renewal {
    enrolment: Enrolment,
    tls: Option<Tls>,
}

impl Renewal {
    /// The renewal for a configuration; `None` if it has no authority.
    pub fn of(config: &Config) -> Option<Self> {
        Some(Self { enrolment: config.enrolment.clone()?, tls: config.tls.clone() })
    }

    /// The stamps of the authority's files, which show a replacement.
    fn stamps(&self) -> live::Stamps {
        live::stamps(&self.enrolment.authority, &self.enrolment.authority_key)
    }

    /// Renews certificates that are due. Returns their files.
    pub fn renew(&self, now: SystemTime) -> Result<Vec<PathBuf>, RenewalError> {
        let authority = Authority::load(&self.enrolment.authority, &self.enrolment.authority_key)?;
        let mut pairs = vec![(&self.enrolment.client_cert, &self.enrolment.client_key)];
        pairs.extend(self.tls.as_ref().map(|tls| (&tls.cert, &tls.key)));
        let mut renewed = Vec::new();
        for (certificate, key) in pairs {
            let failed = |source| RenewalError::File { path: certificate.clone(), source };
            let pem = fs::read_to_string(certificate).map_err(failed)?;
            let own = fs::read_to_string(key).map_err(failed)?;
            if let Some(issued) = authority.renew(&pem, &own, now)? {
                let kept = Kept { mode: 0o644, owner: None };
                folder::write_over(certificate, &issued.certificate, kept).map_err(failed)?;
                renewed.push(certificate.clone());
            }
        }
        Ok(renewed)
    }

    /// Renews certificates that are due, logs that, and shows the new ones to new connections.
    pub async fn look(&self, now: SystemTime, served: Option<&RustlsConfig>) {
        let this = self.clone();
        let renewed = match tokio::task::spawn_blocking(move || this.renew(now)).await {
            Ok(Ok(renewed)) => renewed,
            Ok(Err(error)) => {
                tracing::warn!(error = %Chain(&error), "a certificate of this controller is not renewed");
                return;
            }
            Err(error) => {
                tracing::error!(%error, "the renewal of certificates broke off");
                return;
            }
        };
        for path in renewed {
            tracing::info!(path = %path.display(), "the certificate was renewed");
            if let (Some(tls), Some(served)) = (&self.tls, served)
                && tls.cert == path
            {
                show(tls, served).await;
            }
        }
    }
}

async fn show(tls: &Tls, served: &RustlsConfig) {
    match http::tls(&tls.cert, &tls.key).await {
        Ok(read) => served.reload_from_config(read.get_inner()),
        Err(error) => warn(&tls.cert, &error),
    }
}

fn warn(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "the renewed certificate cannot be read: it is shown after a restart");
}

/// Logs warnings about certificates that expire within 30 days, also of agents and authorities, and
/// about each file that cannot be used.
fn tell(config: &Config) {
    let (warnings, unusable) = config.look_at_tls();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    for error in unusable {
        tracing::warn!(error = %Chain(&error), "a certificate cannot be used");
    }
}

/// Looks at the certificates until `stop`.
pub async fn keep(config: Config, served: Option<RustlsConfig>, mut stop: watch::Receiver<bool>) {
    let renewal = Renewal::of(&config);
    let (mut told, mut looked): (Option<SystemTime>, _) = (None, None);
    loop {
        let now = SystemTime::now();
        let files = renewal.as_ref().map(Renewal::stamps);
        let due = |(at, seen): &(Instant, _)| at.elapsed() >= LOOK_EVERY || *seen != files;
        if looked.as_ref().is_none_or(due) {
            if let Some(renewal) = &renewal {
                renewal.look(now, served.as_ref()).await;
            }
            looked = Some((Instant::now(), files));
        }
        if told.is_none_or(|told| now.duration_since(told).is_ok_and(|since| since >= WARN_EVERY)) {
            told = Some(now);
            tell(&config);
        }
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(LOOK_AT_FILES_EVERY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::config::Asked;
    use crate::init;
    use crate::shake::shake;

    const NAME: &str = "controller1.example.org";

    use crate::authority::CERTIFICATE_LIFE;

    const DAY: Duration = Duration::from_hours(24);

    fn made(folder: &Path, at: SystemTime) -> Config {
        let names = [NAME.to_owned()];
        init::init(folder, &names, at, &mut Vec::new()).unwrap();
        Config::load(&folder.join("controller.toml"), Asked::Everybody).unwrap()
    }

    /// The certificate that a client is shown.
    fn shown(served: &RustlsConfig, authority: &Path) -> CertificateDer<'static> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let client =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
        let mut client = rustls::ClientConnection::new(Arc::new(client), NAME.try_into().unwrap()).unwrap();
        let mut server = rustls::ServerConnection::new(served.get_inner()).unwrap();
        shake(&mut client, &mut server).unwrap();
        client.peer_certificates().unwrap()[0].clone().into_owned()
    }

    #[tokio::test]
    async fn certificates_are_renewed_while_they_are_served() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let top = tempfile::tempdir().unwrap();
        let due = SystemTime::now();
        let config = made(top.path(), due - CERTIFICATE_LIFE * 2 / 3 - DAY);
        let (tls, enrolment) = (config.tls.clone().unwrap(), config.enrolment.clone().unwrap());
        let served = http::tls(&tls.cert, &tls.key).await.unwrap();
        let renewal = Renewal::of(&config).unwrap();
        let key = fs::read_to_string(&tls.key).unwrap();
        let before = shown(&served, &enrolment.authority);
        renewal.look(due - 31 * DAY, Some(&served)).await;
        assert_eq!(shown(&served, &enrolment.authority), before, "it is not due");
        let client = fs::read_to_string(&enrolment.client_cert).unwrap();
        renewal.look(due, Some(&served)).await;
        let after = shown(&served, &enrolment.authority);
        assert_ne!(after, before);
        assert_eq!(after, CertificateDer::from_pem_file(&tls.cert).unwrap());
        assert_eq!(served.get_inner().alpn_protocols, [b"http/1.1".to_vec()]);
        assert_eq!(fs::read_to_string(&tls.key).unwrap(), key);
        assert_ne!(fs::read_to_string(&enrolment.client_cert).unwrap(), client);
        assert_eq!(renewal.renew(due).unwrap(), Vec::<PathBuf>::new(), "once is enough");
    }

    #[test]
    fn a_file_that_cannot_be_used_hides_no_warning_about_another() {
        let top = tempfile::tempdir().unwrap();
        let config = made(top.path(), SystemTime::now() - CERTIFICATE_LIFE + 10 * DAY);
        let warns_of = |file: &str| {
            let (warnings, unusable) = config.look_at_tls();
            let warned =
                warnings.iter().any(|text| text.contains(file) && text.contains("is valid only until"));
            (warned, unusable.len())
        };
        assert_eq!((warns_of("server.crt"), warns_of("client.crt")), ((true, 0), (true, 0)));
        fs::write(&config.tls.as_ref().unwrap().key, "no key").unwrap();
        assert_eq!(warns_of("client.crt"), (true, 1));
    }

    #[tokio::test]
    async fn an_operators_certificate_is_left_and_a_failure_stops_no_service() {
        let top = tempfile::tempdir().unwrap();
        let config = made(top.path(), SystemTime::now());
        let tls = config.tls.clone().unwrap();
        let own = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        fs::write(&tls.cert, own.cert.pem()).unwrap();
        fs::write(&tls.key, own.signing_key.serialize_pem()).unwrap();
        let renewal = Renewal::of(&config).unwrap();
        let late = SystemTime::now() + 5 * 365 * DAY;
        let renewed = renewal.renew(late).unwrap();
        assert_eq!(renewed, [config.enrolment.clone().unwrap().client_cert]);
        assert_eq!(fs::read_to_string(&tls.cert).unwrap(), own.cert.pem());
        fs::remove_file(&config.enrolment.clone().unwrap().authority_key).unwrap();
        assert!(renewal.renew(late).is_err());
        renewal.look(late, None).await;
    }
}
