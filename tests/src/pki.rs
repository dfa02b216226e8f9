//! Certificates of one test site: an authority, a certificate for each agent, one for the controller.

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// An authority that lives as long as its site.
pub(crate) struct Authority {
    /// Its certificate, as PEM.
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

    /// A certificate for a name or address.
    pub(crate) fn sign(&self, name: &str) -> Result<Signed> {
        let key = KeyPair::generate().with_context(|| format!("make the key of {name}"))?;
        let params = CertificateParams::new(vec![name.to_owned()])
            .with_context(|| format!("make the certificate of {name}"))?;
        let cert = params.signed_by(&key, &self.issuer).with_context(|| format!("sign {name}"))?.pem();
        Ok(Signed { cert, key: key.serialize_pem() })
    }
}
