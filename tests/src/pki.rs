//! Certificates of one test site: an authority, a certificate for each agent, one for the
//! controller.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

const DAY: Duration = Duration::from_hours(24);

/// An authority that lives as long as its site.
pub(crate) struct Authority {
    /// The authority's certificate, as PEM.
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM.
pub(crate) struct Signed {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new()).context("make an authority")?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().context("make the authority's key")?;
        let pem = params.self_signed(&key).context("sign the authority")?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// Signs a certificate for a name or address.
    pub(crate) fn sign(&self, name: &str) -> Result<Signed> {
        let key = KeyPair::generate().with_context(|| format!("make the key of {name}"))?;
        let params = CertificateParams::new(vec![name.to_owned()])
            .with_context(|| format!("make the certificate of {name}"))?;
        let cert = params.signed_by(&key, &self.issuer).with_context(|| format!("sign {name}"))?.pem();
        Ok(Signed { cert, key: key.serialize_pem() })
    }
}

/// Signs a client certificate over this key, as PEM: 80 of its 90 days are over. `authority` is the
/// authority's own key.
pub(crate) fn due(authority: &str, key: &str) -> Result<String> {
    let authority = KeyPair::from_pem(authority).context("read the key of the authority")?;
    let key = KeyPair::from_pem(key).context("read the key of the client")?;
    let mut params = CertificateParams::default();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let now = SystemTime::now();
    params.not_before = (now - 80 * DAY).into();
    params.not_after = (now + 10 * DAY).into();
    let issuer = Issuer::new(CertificateParams::default(), authority);
    Ok(params.signed_by(&key, &issuer).context("sign the certificate of the client")?.pem())
}
