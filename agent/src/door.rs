//! The agent's side of TLS: the certificate that callers are shown, and the authorities whose
//! certificates they must show.
//!
//! Both may change while the agent runs. A handshake uses what is in force when it begins; open
//! connections go on.
//!
//! What must never happen here: a caller without a certificate of the trusted authority; an
//! authority that replaces the trusted one without its word.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use mooring_api::v1;
use mooring_systemd::certificates;
use mooring_systemd::folder::{self, Kept};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::Tls;
use crate::identity::{self, IdentityError};

/// Time limit of a TLS handshake: until then nobody knows who has connected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A refusal to change the certificate. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The request cannot be granted.
    #[error("{0}")]
    Refused(&'static str),
    /// A file cannot be read, written or used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The new files are not usable.
    #[error("the new certificate cannot be used")]
    Use(#[source] anyhow::Error),
    /// The authority's file cannot be written.
    #[error("cannot write the authority's certificate")]
    Authority(#[source] io::Error),
}

/// The TLS configuration of handshakes that begin now, with its authorities.
struct InForce {
    config: Arc<ServerConfig>,
    identity: v1::TlsIdentity,
}

/// The certificate and the authority in force.
pub struct Door {
    tls: Tls,
    /// `None` once this agent has left, and lets nobody in.
    in_force: Mutex<Option<InForce>>,
    /// Held by the one change at a time.
    change: Mutex<()>,
}

fn authorities(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    if found.is_empty() {
        bail!("there is no certificate in it");
    }
    Ok(found)
}

fn roots(authorities: &[CertificateDer<'static>]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
    }
    Ok(roots)
}

/// Reads the files. TLS 1.3 only: both sides are Mooring's.
fn read_files(tls: &Tls) -> Result<InForce> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let used = |path: &Path| format!("use {}", path.display());
    let trusted = authorities(&read(&tls.client_ca)?).with_context(|| used(&tls.client_ca))?;
    let known = Arc::new(roots(&trusted).with_context(|| used(&tls.client_ca))?);
    let callers = WebPkiClientVerifier::builder_with_provider(known, Arc::clone(&provider)).build()?;
    let chain = authorities(&read(&tls.cert)?).with_context(|| used(&tls.cert))?;
    let identity = identity_of(&trusted, chain.first());
    let key = PrivateKeyDer::from_pem_slice(&read(&tls.key)?).with_context(|| used(&tls.key))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(callers)
        .with_single_cert(chain, key)
        .context("use the TLS certificate and key")?;
    config.alpn_protocols.push(b"h2".to_vec());
    Ok(InForce { config: Arc::new(config), identity })
}

/// Names the authorities that are trusted, and the one that signed a certificate.
fn identity_of(
    trusted: &[CertificateDer<'static>],
    own: Option<&CertificateDer<'static>>,
) -> v1::TlsIdentity {
    let signer = trusted
        .iter()
        .find(|authority| own.is_some_and(|own| signed(own, std::slice::from_ref(*authority)).is_ok()));
    let pin = |der: &CertificateDer<'_>| certificates::pin_of(der).ok();
    let mut trusts: Vec<_> = trusted.iter().filter_map(pin).collect();
    trusts.sort_unstable();
    trusts.dedup();
    v1::TlsIdentity { trusts, signed_by: signer.and_then(pin).unwrap_or_default() }
}

impl Door {
    /// Opens the door with the files of the configuration.
    pub fn open(tls: &Tls) -> Result<Self> {
        let in_force = if identity::forgotten(tls) {
            tracing::warn!(
                "this agent has left its controller: nobody is let in over TLS (mooring-agent join)"
            );
            None
        } else {
            Some(read_files(tls)?)
        };
        Ok(Self { tls: tls.clone(), in_force: Mutex::new(in_force), change: Mutex::new(()) })
    }

    fn look<T>(&self, of: impl FnOnce(&InForce) -> T) -> Option<T> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(of)
    }

    fn put_in_force(&self, new: Option<InForce>) {
        *self.in_force.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }

    /// Returns the authorities whose certificates callers must show now, and the one that signed
    /// ours. `None` if this agent has left.
    pub fn identity(&self) -> Option<v1::TlsIdentity> {
        self.look(|now| now.identity.clone())
    }

    /// Runs the handshake with one caller.
    pub(crate) async fn enter<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Some(config) = self.look(|now| Arc::clone(&now.config)) else {
            return Err(io::Error::other("this agent has left its controller"));
        };
        let handshake = TlsAcceptor::from(config).accept(stream);
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long");
        tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(late)?
    }

    /// Makes a key, or takes the one that waits. Returns its certificate signing request.
    pub fn new_key(&self) -> Result<String, DoorError> {
        let _one = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if identity::forgotten(&self.tls) {
            return Err(DoorError::Refused("this agent has left: run mooring-agent join"));
        }
        Ok(identity::new_key(&self.tls)?.csr)
    }

    /// Installs a certificate for the key that waits, and the authorities that callers are known by
    /// from now on. Returns the end of the certificate's validity.
    pub fn set_certificate(&self, certificate: &str, authority: &str) -> Result<SystemTime, DoorError> {
        let _one = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = |why| move |_| DoorError::Refused(why);
        let given = authorities(authority.as_bytes())
            .map_err(refused("authority: want certificates in PEM format"))?;
        let own = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|_| DoorError::Refused("certificate: want one in PEM format"))?;
        let trusted = fs::read(&self.tls.client_ca).ok().and_then(|pem| authorities(&pem).ok());
        if !trusted.unwrap_or_default().iter().any(|trusted| given.contains(trusted)) {
            return Err(DoorError::Refused("authority: none of them is trusted here"));
        }
        signed(&own, &given)?;
        let (_, ends) = certificates::validity(certificate)
            .map_err(|_| DoorError::Refused("certificate: it cannot be read"))?;
        let key = identity::waiting_key(&self.tls)?;
        let in_use = fs::read(&self.tls.cert).ok().and_then(|pem| CertificateDer::from_pem_slice(&pem).ok());
        let again = in_use.as_ref() == Some(&own);
        let key = match key {
            // The caller asks again because the answer was lost.
            _ if again => None,
            Some(key) => Some(key),
            None => return Err(DoorError::Refused("certificate: no key waits for one: call NewKey first")),
        };
        // A certificate of a new authority is shown only after that authority is trusted.
        let kept = Kept { mode: 0o644, owner: None };
        if let Some(key) = key {
            identity::fits(&key, certificate)?;
            folder::write_over(&self.tls.client_ca, authority, kept).map_err(DoorError::Authority)?;
            identity::install(&self.tls, &key, certificate)?;
        }
        self.put_in_force(Some(read_files(&self.tls).map_err(DoorError::Use)?));
        tracing::info!("the certificate was renewed");
        Ok(ends)
    }

    /// Removes key and certificate, and lets nobody in from now on.
    pub fn leave(&self) -> Result<(), DoorError> {
        let _one = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        self.put_in_force(None);
        identity::forget(&self.tls)?;
        tracing::warn!(
            "this agent was revoked: it serves nobody over TLS until it joins again (mooring-agent join)"
        );
        Ok(())
    }
}

/// Refuses a certificate that none of these authorities signed for a server, or that is not valid
/// now.
fn signed(own: &CertificateDer<'_>, given: &[CertificateDer<'static>]) -> Result<(), DoorError> {
    const WHY: &str = "certificate: the authority given did not sign it for a server, or it is not valid now";
    let wrong = |_: rustls::Error| DoorError::Refused(WHY);
    let own = ParsedCertificate::try_from(own).map_err(wrong)?;
    let roots = roots(given).map_err(|_| DoorError::Refused("authority: one of them is none"))?;
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&own, &roots, &[], UnixTime::now(), algorithms).map_err(wrong)
}
