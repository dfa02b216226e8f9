//! A stock initiator: a host with os-brick and open-iscsi, and without an agent. It knows only the
//! `connection_info`.

use mooring_host::fake::{FakeMachine, IoRefusal, LoginRefusal, PrOut, SessionId};
use serde_json::{Value, json};

use crate::network::Network;

/// A stock host.
#[derive(Clone)]
pub struct Stock {
    name: String,
    initiator: String,
    /// Fibre Channel ports in the form of sysfs.
    ports: Vec<String>,
    network: Network,
}

/// A session of a host, until it logs out or is cut off.
#[derive(Clone)]
pub struct Session {
    machine: FakeMachine,
    id: SessionId,
    lun: u64,
}

impl Stock {
    pub(crate) fn new(name: &str, network: &Network) -> Self {
        let initiator = format!("iqn.2026-01.org.example:{name}");
        Self { name: name.to_owned(), initiator, ports: Vec::new(), network: network.clone() }
    }

    pub(crate) fn with_ports(self, number: u16) -> Self {
        Self { ports: (1..=2).map(|port| format!("2000{number:04x}{port:08x}")).collect(), ..self }
    }

    /// Gives the host these Fibre Channel ports, as Linux spells their names.
    #[must_use]
    pub fn with_ports_named(self, ports: &[&str]) -> Self {
        Self { ports: ports.iter().map(|port| (*port).to_owned()).collect(), ..self }
    }

    /// Gives the host's initiator this name.
    #[must_use]
    pub fn known_as(self, initiator: &str) -> Self {
        Self { initiator: initiator.to_owned(), ..self }
    }

    /// The host's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The host's initiator name.
    pub fn initiator(&self) -> &str {
        &self.initiator
    }

    /// The host's connector from os-brick, with the mount point that Nova adds.
    pub fn connector(&self) -> Value {
        let mut connector = json!({
            "platform": "x86_64", "os_type": "linux", "ip": "192.0.2.11", "host": self.name, "multipath": false,
            "initiator": self.initiator, "do_local_attach": false, "mountpoint": "/dev/vdb",
        });
        if !self.ports.is_empty() {
            connector["wwpns"] = json!(self.ports);
            connector["wwnns"] = self.ports.iter().map(|port| port.replacen('2', "1", 1)).collect();
        }
        connector
    }

    /// The connector of a host without iSCSI.
    pub fn connector_over_fc(&self) -> Value {
        let mut connector = self.connector();
        connector.as_object_mut().map(|connector| connector.remove("initiator"));
        connector
    }

    /// The host's Fibre Channel ports in the form of sysfs.
    pub fn ports(&self) -> &[String] {
        &self.ports
    }

    /// Logs in over Fibre Channel with the connection info of an attachment, on every path that it
    /// names.
    #[track_caller]
    pub fn log_in_over_fc(&self, info: &Value) -> Result<Vec<Session>, LoginRefusal> {
        let lun = info["target_lun"].as_u64().unwrap_or_else(|| panic!("no target_lun in {info}"));
        let map = info["initiator_target_map"].as_object().unwrap_or_else(|| panic!("no map in {info}"));
        let mut sessions = Vec::new();
        for port in &self.ports {
            for target in map.get(port).and_then(Value::as_array).into_iter().flatten() {
                let (machine, id) = self.network.plogi(target.as_str().unwrap_or_default(), port)?;
                sessions.push(Session { machine, id, lun });
            }
        }
        Ok(sessions)
    }

    /// The connector with a mode.
    pub fn connector_with_mode(&self, mode: &str) -> Value {
        let mut connector = self.connector();
        connector["mode"] = json!(mode);
        connector
    }

    /// Logs in with the connection info of an attachment.
    #[track_caller]
    pub fn login(&self, info: &Value) -> Result<Session, LoginRefusal> {
        let text = |key: &str| info[key].as_str().unwrap_or_else(|| panic!("no {key} in {info}"));
        let portal = text("target_portal");
        let machine = self.network.machine(portal).ok_or(LoginRefusal::Unreachable)?;
        let chap = (info["auth_method"] == "CHAP").then(|| (text("auth_username"), text("auth_password")));
        let id = machine.login(portal, text("target_iqn"), &self.initiator, chap)?;
        let lun = info["target_lun"].as_u64().unwrap_or_else(|| panic!("no target_lun in {info}"));
        Ok(Session { machine, id, lun })
    }
}

impl Session {
    /// Returns `true` while the session lives.
    pub fn is_live(&self) -> bool {
        self.machine.is_live(self.id)
    }

    /// Uses the login for the disk of another number: over Fibre Channel one login serves all.
    #[must_use]
    pub fn at(&self, lun: u64) -> Self {
        Self { lun, ..self.clone() }
    }

    /// Reads a block.
    pub fn read(&self) -> Result<(), IoRefusal> {
        self.machine.read(self.id, self.lun).map(drop)
    }

    /// Writes a block.
    pub fn write(&self) -> Result<(), IoRefusal> {
        self.machine.write(self.id, self.lun).map(drop)
    }

    /// Sends a write without waiting for its end.
    pub fn start_write(&self) -> Result<(), IoRefusal> {
        self.machine.start_write(self.id, self.lun).map(drop)
    }

    /// The serial of the disk: the volume's id.
    pub fn serial(&self) -> Result<String, IoRefusal> {
        self.machine.inquire(self.id, self.lun).map(|seen| seen.serial)
    }

    /// Sends PERSISTENT RESERVE OUT.
    pub fn persistent_reserve(&self, command: PrOut) -> Result<(), IoRefusal> {
        self.machine.persistent_reserve(self.id, self.lun, command)
    }

    /// Logs out.
    pub fn logout(self) {
        self.machine.logout(self.id);
    }
}
