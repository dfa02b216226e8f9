//! The Fibre Channel ports of an agent in memory. What must never happen here: a login that no test
//! has made.

use std::collections::{BTreeMap, BTreeSet};

use mooring_api::v1;

/// Target ports of an agent, as `fc/20:00:…`, each with the host ports that are logged in there:
/// for all volumes at once, as in a fabric. Empty: the agent serves iSCSI alone, and does not
/// report it.
#[derive(Default)]
pub(crate) struct Ports(pub(crate) BTreeMap<String, BTreeSet<String>>);

impl Ports {
    pub(super) fn transports(&self) -> Vec<v1::Transport> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let one = |protocol: &str| v1::Transport {
            protocol: protocol.to_owned(),
            ready: true,
            ..v1::Transport::default()
        };
        vec![one("iscsi"), one("fc")]
    }

    /// The report of each port about an export's grants. The second port has twice the counters of
    /// the first, and a later time.
    pub(super) fn report(&self, spec: &v1::ExportSpec, done: bool) -> Vec<v1::FcPortReport> {
        let wanted = spec.fc.as_ref().map_or(&[][..], |fc| &fc.grants);
        if wanted.is_empty() {
            return Vec::new();
        }
        let port = |(place, (name, logins)): (u32, (&String, &BTreeSet<String>))| {
            let grant = |grant: &v1::FcGrant| v1::FcGrantReport {
                initiator: grant.initiator.clone(),
                lun: grant.lun,
                wanted: grant.mode,
                seen: if done { grant.mode } else { 0 },
                logged_in: logins.contains(&grant.initiator),
                commands: u64::from(place) * 10,
                read_mib: u64::from(place) * 2,
                written_mib: u64::from(place) * 3,
                active_us: 1_790_000_000_000_000 + i64::from(place),
            };
            v1::FcPortReport { port: name.clone(), serves: true, grants: wanted.iter().map(grant).collect() }
        };
        (1..).zip(&self.0).map(port).collect()
    }
}
