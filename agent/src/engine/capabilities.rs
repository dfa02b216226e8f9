//! The capabilities of this host, as a request asks for them: `capabilities` examines the machine,
//! and the engine adds what it knows.
//!
//! What must never happen here: a request that waits as long as LVM hangs.

use mooring_api::v1;

use super::Engine;
use crate::capabilities::{Facts, Gathered, Known};

impl Engine {
    /// Queries LVM, and examines everything else. Waits for LVM for a moment only.
    pub(crate) async fn capabilities(&self, host_name: &str) -> v1::Capabilities {
        let looking = self.clone();
        let known =
            self.lvm().ask(|look| self.submit(move || look.run(looking.machine(), looking.config()))).await;
        self.capabilities_with(host_name, known).await
    }

    /// Examines everything but LVM. Takes LVM's last answer for the groups.
    pub(crate) async fn capabilities_now(&self, host_name: &str) -> v1::Capabilities {
        self.capabilities_with(host_name, self.lvm().known()).await
    }

    async fn capabilities_with(&self, host_name: &str, known: Known) -> v1::Capabilities {
        let (looking, host_name) = (self.clone(), host_name.to_owned());
        let gathered = self.blocking(move || {
            let (machine, config) = (looking.machine(), looking.config());
            let gathered = Gathered::examine(machine, config, &host_name, known);
            let found = gathered.judge(machine, config, looking.facts());
            looking.note_health(found.health.as_ref());
            found
        });
        gathered.await.unwrap_or_default()
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            agent_id: self.agent_id(),
            tls: self.door().and_then(|door| door.identity()),
            store: self.store().check_place(),
            orphans: self.orphaned_targets(),
            blocked: self.blocked_portals(),
            silent: self.silent_volumes(),
            units: self.units(),
            images: self.images(),
            ports: self.fibre_channel_ports(),
            target: self.seen_target(),
        }
    }
}
