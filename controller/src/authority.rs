//! The authority of this installation: it signs the certificates of agents and of the controller.
//!
//! A certificate opens one thing only. An agent's certificate has the extended key usage serverAuth
//! and one name, made from its enrolment. The controller's client certificate has clientAuth. So no
//! host's certificate opens another agent, and an agent is accepted only as the one that the
//! controller dials.
//!
//! What must never happen here: a certificate with what a request asked for instead of what the
//! controller knows; a signature for a key that the requester did not prove to have; anything of a
//! private key in an error or a `Debug`.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use mooring_systemd::certificates::{self, CertificateError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SubjectPublicKeyInfo,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::FromDer as _;

/// The validity of the authority's certificate.
pub const AUTHORITY_LIFE: Duration = Duration::from_hours(10 * 365 * 24);

/// The validity of a certificate that the authority signs. It is renewed at two thirds of that
/// time.
pub const CERTIFICATE_LIFE: Duration = Duration::from_hours(96 * 24);

/// The time by which a machine's clock may lag behind the controller's and still accept a new
/// certificate.
const BACKDATED: Duration = Duration::from_hours(1);

/// The name in the certificate that the controller shows to agents.
pub const CONTROLLER_NAME: &str = "controller.mooring.invalid";

/// The name in an agent's certificate, by which the controller dials it. Every enrolment has its
/// own.
pub fn agent_server_name(id: Uuid) -> String {
    format!("{id}.agents.mooring.invalid")
}

/// A refusal to load the authority or to sign.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file of the authority cannot be read.
    #[error("cannot read the authority's file {}: run mooring-controller init, or restore it from a backup", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The files are not a certificate and its key.
    #[error("the authority cannot be used")]
    Files(#[from] CertificateError),
    /// The certificate may not sign others.
    #[error("{} is no certificate of an authority: it may not sign others", .path.display())]
    NoAuthority {
        /// The file.
        path: PathBuf,
    },
    /// The private key cannot be used.
    #[error("a private key cannot be used: want an ECDSA P-256 key in PEM format (PKCS#8)")]
    Key,
    /// The certificate signing request is refused.
    #[error("the certificate signing request is refused: {why}")]
    Request {
        /// The reason.
        why: &'static str,
    },
    /// A name cannot stand in a certificate.
    #[error("{name:?} cannot stand in a certificate: want a DNS name or an IP address")]
    Name {
        /// The name.
        name: String,
    },
    /// The certificate could not be made.
    #[error("cannot make the certificate of {subject}")]
    Sign {
        /// The subject.
        subject: String,
        /// The reason.
        #[source]
        source: rcgen::Error,
    },
}

/// A certificate signed by the authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The certificate, as PEM.
    pub certificate: String,
    /// The end of its validity.
    pub expires_at: SystemTime,
}

/// The authority: its certificate and key, and the other certificates that are trusted during a
/// rotation.
pub struct Authority {
    /// The certificates as PEM; the one in force comes first.
    pem: String,
    pins: Vec<String>,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("pins", &self.pins).finish_non_exhaustive()
    }
}

/// Makes a private key, as PEM.
pub fn make_key() -> Result<String, AuthorityError> {
    new_key("a private key").map(|key| key.serialize_pem())
}

fn new_key(subject: &str) -> Result<KeyPair, AuthorityError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
        .map_err(|source| AuthorityError::Sign { subject: subject.to_owned(), source })
}

fn key_of(pem: &str) -> Result<KeyPair, AuthorityError> {
    let key = KeyPair::from_pem(pem).map_err(|_| AuthorityError::Key)?;
    if key.algorithm() == &PKCS_ECDSA_P256_SHA256 { Ok(key) } else { Err(AuthorityError::Key) }
}

/// The content of a certificate, with nothing but these facts.
fn params(subject: &str, now: SystemTime, life: Duration) -> (CertificateParams, SystemTime) {
    let expires_at = now + life;
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, subject);
    params.not_before = (now - BACKDATED).into();
    params.not_after = expires_at.into();
    (params, expires_at)
}

/// The certificate of an authority over `key`, as PEM. `name` tells people whose authority it is.
pub fn self_sign(key: &str, name: &str, now: SystemTime) -> Result<String, AuthorityError> {
    let key = key_of(key)?;
    let (mut params, _) = params(&format!("Mooring authority {name}"), now, AUTHORITY_LIFE);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let signed = params.self_signed(&key);
    signed
        .map(|certificate| certificate.pem())
        .map_err(|source| AuthorityError::Sign { subject: "the authority".to_owned(), source })
}

impl Authority {
    /// Loads the authority from its files. The certificate that fits the key is in force; the
    /// others beside it are trusted.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, AuthorityError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path)
                .map_err(|source| AuthorityError::Read { path: path.to_owned(), source })
        };
        let (pem, key_pem) = (read(certificate)?, read(key)?);
        // `--check` reports an end that is near.
        let _warnings = certificates::check_signer(certificate, key, SystemTime::now())?;
        let no_authority = || AuthorityError::NoAuthority { path: certificate.to_owned() };
        Self::of(&pem, &key_pem).and_then(|loaded| loaded.ok_or_else(no_authority))
    }

    /// The authority of these certificates and a key; `None` if the key fits no certificate that
    /// may sign others.
    fn of(pem: &str, key: &str) -> Result<Option<Self>, AuthorityError> {
        let (own, others): (Vec<_>, Vec<_>) =
            certificates::each(pem).into_iter().partition(|one| certificates::fits(one, key));
        let key = key_of(key)?;
        let Some(first) = own.first() else { return Ok(None) };
        let Ok(der) = CertificateDer::from_pem_slice(first.as_bytes()) else { return Ok(None) };
        let Ok((_, parsed)) = parse_x509_certificate(&der) else { return Ok(None) };
        let pem = [first].into_iter().chain(&others).map(String::as_str).collect::<String>();
        let Ok(pins) = certificates::pins(&pem) else { return Ok(None) };
        if !parsed.is_ca() {
            return Ok(None);
        }
        let issuer = Issuer::from_ca_cert_der(&der, key)
            .map_err(|source| AuthorityError::Sign { subject: "the authority".to_owned(), source })?;
        Ok(Some(Self { pem, pins, issuer }))
    }

    /// The certificates of all trusted authorities, as PEM: the one in force first.
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// The pin by which `mooring-agent join` knows this authority: `sha256:` and 64 hexadecimal
    /// digits.
    pub fn pin(&self) -> &str {
        self.pins.first().map_or("", String::as_str)
    }

    /// The pins of all trusted authorities, the one in force first.
    pub fn pins(&self) -> &[String] {
        &self.pins
    }

    /// The pin of the trusted authority that signed a certificate; `None` if none of them did.
    pub fn signer_of(&self, certificate: &str) -> Option<&str> {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
        let (_, parsed) = parse_x509_certificate(&der).ok()?;
        let signed = |authority: &String| {
            let Ok(der) = CertificateDer::from_pem_slice(authority.as_bytes()) else { return false };
            let Ok((_, own)) = parse_x509_certificate(&der) else { return false };
            parsed.verify_signature(Some(own.public_key())).is_ok()
        };
        let at = certificates::each(&self.pem).iter().position(signed)?;
        self.pins.get(at).map(String::as_str)
    }

    /// Signs an agent's certificate signing request. Only the request's key and signature are used.
    pub fn sign_agent(
        &self,
        csr_pem: &str,
        name: &str,
        id: Uuid,
        now: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        let public = requested_key(csr_pem)?;
        let names = vec![dns(&agent_server_name(id))?];
        self.sign(&public, name, names, ExtendedKeyUsagePurpose::ServerAuth, now)
    }

    /// Signs the certificate of the controller's API for these names and addresses, over a private
    /// key.
    pub fn sign_server(
        &self,
        key: &str,
        names: &[String],
        now: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        let subject = names.first().map_or("controller", String::as_str);
        let names = names.iter().map(|name| name_or_address(name)).collect::<Result<_, _>>()?;
        self.sign(&key_of(key)?, subject, names, ExtendedKeyUsagePurpose::ServerAuth, now)
    }

    /// Signs the certificate that the controller shows to agents, over a private key.
    pub fn sign_client(&self, key: &str, now: SystemTime) -> Result<Issued, AuthorityError> {
        let names = vec![dns(CONTROLLER_NAME)?];
        self.sign(&key_of(key)?, "Mooring controller", names, ExtendedKeyUsagePurpose::ClientAuth, now)
    }

    /// Renews one of the controller's certificates over its key, for its names, once two thirds of
    /// its life are over. Renews it at once if a replaced authority signed it. `None` if it is not
    /// due, or belongs to another authority.
    pub fn renew(
        &self,
        certificate: &str,
        key: &str,
        now: SystemTime,
    ) -> Result<Option<Issued>, AuthorityError> {
        let Ok((begins, ends)) = certificates::validity(certificate) else { return Ok(None) };
        let life = ends.duration_since(begins).unwrap_or_default();
        let Some(signer) = self.signer_of(certificate) else { return Ok(None) };
        if signer == self.pin() && now < begins + life * 2 / 3 {
            return Ok(None);
        }
        let Ok(der) = CertificateDer::from_pem_slice(certificate.as_bytes()) else { return Ok(None) };
        let Ok((_, parsed)) = parse_x509_certificate(&der) else { return Ok(None) };
        if parsed.is_ca() {
            return Ok(None);
        }
        let usage = parsed.extended_key_usage().ok().flatten();
        if usage.is_some_and(|usage| usage.value.client_auth) {
            return self.sign_client(key, now).map(Some);
        }
        let names = parsed.subject_alternative_name().ok().flatten();
        let names = names.map(|names| names.value.general_names.iter().filter_map(name_of).collect());
        let names: Vec<_> = names.unwrap_or_default();
        self.sign_server(key, &names, now).map(Some)
    }

    fn sign(
        &self,
        public: &impl PublicKeyData,
        subject: &str,
        names: Vec<SanType>,
        usage: ExtendedKeyUsagePurpose,
        now: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        let (mut params, expires_at) = params(subject, now, CERTIFICATE_LIFE);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.subject_alt_names = names;
        let signed = params.signed_by(public, &self.issuer);
        let signed = signed.map_err(|source| AuthorityError::Sign { subject: subject.to_owned(), source })?;
        Ok(Issued { certificate: signed.pem(), expires_at })
    }
}

fn name_of(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

fn dns(name: &str) -> Result<SanType, AuthorityError> {
    let text = name.try_into().map_err(|_| AuthorityError::Name { name: name.to_owned() })?;
    Ok(SanType::DnsName(text))
}

fn name_or_address(name: &str) -> Result<SanType, AuthorityError> {
    match name.parse::<IpAddr>() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) if rustls::pki_types::DnsName::try_from(name).is_ok() => dns(name),
        Err(_) => Err(AuthorityError::Name { name: name.to_owned() }),
    }
}

/// The SHA-256 of a request's public key, in hexadecimal digits, which identifies the requester.
pub fn requested_key_hash(csr_pem: &str) -> Result<String, AuthorityError> {
    let key = requested_key(csr_pem)?;
    Ok(HEXLOWER.encode(&Sha256::digest(key.der_bytes())))
}

/// The public key of a request. The request's signature proves that the requester has the private
/// key.
fn requested_key(csr_pem: &str) -> Result<SubjectPublicKeyInfo, AuthorityError> {
    let refused = |why| AuthorityError::Request { why };
    let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes())
        .map_err(|_| refused("it is none in PEM format"))?;
    let (rest, request) = X509CertificationRequest::from_der(&der)
        .map_err(|_| refused("it is no PKCS#10 certificate signing request"))?;
    if !rest.is_empty() {
        return Err(refused("something follows it"));
    }
    request.verify_signature().map_err(|_| refused("its signature is not that of its key"))?;
    let key = SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw);
    match key {
        Ok(key) if key.algorithm() == &PKCS_ECDSA_P256_SHA256 => Ok(key),
        _ => Err(refused("want an ECDSA P-256 key")),
    }
}

pub mod live;
pub mod rotation;

#[cfg(test)]
mod tests;
