//! Checks of the files for TLS that the configuration names.

use std::collections::BTreeSet;
use std::time::SystemTime;

use mooring_api::TlsFiles;
use mooring_systemd::certificates::{self, CertificateError};
use mooring_systemd::private;

use super::Config;
use crate::service::PostgresOptions;

impl Config {
    /// Checks the certificates and keys that the configuration names, for the API and for agents.
    /// Returns warnings, also about a key or a database's password that others can read; and the
    /// files that cannot be used, none of which hides a warning about another.
    pub fn look_at_tls(&self) -> (Vec<String>, Vec<CertificateError>) {
        let now = SystemTime::now();
        let mut checked = Vec::new();
        if let Some(tls) = &self.tls {
            checked.push(certificates::check_identity(&tls.cert, &tls.key, now));
        }
        if let Some(enrolment) = &self.enrolment {
            checked.extend(enrolment.check(now));
        }
        for TlsFiles { ca, cert, key, .. } in self.agents.iter().map(|agent| &agent.tls) {
            if let Some(ca) = ca {
                checked.push(certificates::check_authority(ca, now));
            }
            if let (Some(cert), Some(key)) = (cert, key) {
                checked.push(certificates::check_identity(cert, key, now));
            }
        }
        let (mut warnings, mut unusable) = (BTreeSet::new(), Vec::new());
        for result in checked {
            match result {
                Ok(found) => warnings.extend(found),
                Err(error) => unusable.push(error),
            }
        }
        if let Some(path) = self.database.as_ref().and_then(PostgresOptions::password_file) {
            warnings.extend(private::warning(path, "password"));
        }
        (warnings.into_iter().collect(), unusable)
    }
}
