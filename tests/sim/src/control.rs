//! The controller: one process at a time on one database, which can be killed, backed up and
//! restored.
//!
//! What must never happen here: a second controller on the database before every transaction of the
//! first has ended.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use mooring_controller::domain::Caller;
use mooring_controller::service::{AgentEntry, Dial, Refusal, Service, ServiceOptions};
use mooring_model::ClusterId;

use crate::net::Wire;
use crate::time::WallClock;

/// Type of volumes that may be shared.
pub(crate) const SHARED: &str = "shared";
/// Type of volumes in a thin pool, which may be shared.
pub(crate) const THIN: &str = "thin";

/// The controller's process and state.
pub(crate) struct Control {
    pub(crate) clock: WallClock,
    dir: PathBuf,
    options: ServiceOptions,
    service: Option<Service>,
}

pub(crate) fn admin() -> Caller {
    Caller {
        project: "p".to_owned(),
        user: "u".to_owned(),
        roles: vec!["admin".to_owned()],
        admin: true,
        service: false,
        request: "req-00000000-0000-4000-8000-000000000000".to_owned(),
    }
}

impl Control {
    pub(crate) fn new(dir: &Path, wires: Vec<(String, Wire)>) -> Result<Self> {
        let clock = WallClock::new();
        let entry = |(name, _): &(String, Wire)| {
            Ok(AgentEntry {
                name: name.clone(),
                address: format!("unix:/{name}").parse().context("an agent's address")?,
                tls: mooring_api::TlsFiles::default(),
                insecure: false,
                zone: None,
                enrolment: None,
            })
        };
        let agents = wires.iter().map(entry).collect::<Result<_>>()?;
        let wires: HashMap<String, Wire> = wires.into_iter().collect();
        let dial = move |entry: &AgentEntry| match wires.get(&entry.name) {
            Some(wire) => wire.dial(),
            None => Box::pin(std::future::ready(Err("no such agent".to_owned()))),
        };
        let options = ServiceOptions {
            agents,
            cluster: Some(ClusterId::from_u128(0xc1)),
            clock: clock.for_controller(),
            dial: Dial::By(Arc::new(dial)),
            ..ServiceOptions::new(dir.join("controller"))
        };
        Ok(Self { clock, dir: dir.to_owned(), options, service: None })
    }

    pub(crate) fn service(&self) -> Option<&Service> {
        self.service.as_ref()
    }

    /// Starts a controller if none runs.
    pub(crate) fn start(&mut self, restored: bool) -> Result<()> {
        if self.service.is_none() {
            let service = Service::open(ServiceOptions { restored, ..self.options.clone() })?;
            service.start();
            self.service = Some(service);
        }
        Ok(())
    }

    /// Makes the types of shared volumes; called once.
    pub(crate) async fn make_types(&self) -> Result<()> {
        let service = self.service().context("a controller")?;
        for (name, provisioning) in [(SHARED, "thick"), (THIN, "thin")] {
            let specs = [("multiattach", "<is> True"), ("provisioning:type", provisioning)];
            let specs = BTreeMap::from(specs.map(|(key, value)| (key.to_owned(), value.to_owned())));
            match service.create_type(&admin(), name, None, true, specs).await {
                Ok(_) | Err(Refusal::Conflict(_)) => {}
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Ok(())
    }

    /// Kills the controller; its clients have ended before.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        if let Some(service) = self.service.take() {
            service.stop().await;
            drop(service);
            // One thread runs all transactions in order, so the killed process has none after this
            // one.
            tokio::task::spawn_blocking(|| ()).await?;
        }
        Ok(())
    }

    fn backup_dir(&self) -> PathBuf {
        self.dir.join("backup")
    }

    /// Copies the database; allowed only while no controller runs.
    pub(crate) fn back_up(&self) -> Result<()> {
        copy(&self.options.state_dir, &self.backup_dir())
    }

    /// Replaces the database by the copy; allowed only while no controller runs.
    pub(crate) fn restore(&self) -> Result<()> {
        copy(&self.backup_dir(), &self.options.state_dir)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    std::fs::create_dir(to)?;
    std::fs::set_permissions(to, std::fs::metadata(from)?.permissions())?;
    for file in std::fs::read_dir(from)? {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}
