//! Ends of the certificates by which this agent serves its API over the network, as problems of the
//! host while there is time to replace them.
//!
//! What must never happen here: a problem that hides another one.

use std::time::SystemTime;

use mooring_model::Chain;
use mooring_systemd::certificates;

use super::health::{Code, Fault, On, Weight};
use crate::config::Tls;

/// Adds a fault for each certificate that has ended or ends within 30 days, and for each file that
/// has none.
pub(super) fn look(tls: &Tls, now: SystemTime, faults: &mut Vec<Fault>) {
    for path in [&tls.cert, &tls.client_ca] {
        let texts = match certificates::check_ends(path, now) {
            Ok(warnings) => warnings,
            Err(error) => vec![Chain(&error).to_string()],
        };
        for text in texts {
            let text = format!(
                "{text}. The controller renews it if this agent joined with a token and can be dialled; otherwise replace it, and restart \
                 mooring-agent"
            );
            faults.push(Fault::new(Code::Noted, Weight::Noted, On::Host, "certificate", text));
        }
    }
}
