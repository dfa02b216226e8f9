//! The network: the portals of storage nodes, and the sessions of hosts that attach natively.
//!
//! A host's half of a session is in its fake world, the target's half in the storage node's fake
//! kernel. This joins the two: a login here is a login there, and what the target does to a session
//! is done to the host.
//!
//! What must never happen here: a host that is logged in while the target knows nothing of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mooring_connectors::client::ClientError;
use mooring_connectors::fake::{FcWorld, World};
use mooring_connectors::wire::{End, SessionSpec, SessionState, SessionStatus, WireChap};
use mooring_connectors::{SessionChanges, Sessions};
use mooring_host::fake::{FakeMachine, LoginRefusal, SessionId};
use mooring_model::{FcPort, VolumeId, Wwpn};

use crate::zone::Sight;

/// The port of every portal.
pub const PORT: u16 = 3260;

/// The network; clones are the same one.
#[derive(Clone, Default)]
pub struct Network(Arc<Mutex<Wires>>);

#[derive(Default)]
struct Wires {
    storages: BTreeMap<String, FakeMachine>,
    /// Fibre Channel ports of storage nodes, with the machine and its name of the port.
    ports: BTreeMap<Wwpn, (FakeMachine, String)>,
    hosts: BTreeMap<String, Host>,
    /// Fibre Channel ports of hosts with an agent.
    adapters: Vec<(Wwpn, FcWorld)>,
    /// Pairs of ports that see each other; none without a zone.
    sights: Vec<Sight>,
}

struct Host {
    world: World,
    sessions: BTreeMap<VolumeId, Wire>,
}

#[derive(Clone)]
struct Wire {
    machine: FakeMachine,
    session: SessionId,
    spec: SessionSpec,
    /// Time of the target's first refusal; `None`: it does not refuse.
    refused: Option<Instant>,
}

impl Wire {
    /// Makes the host's disk from what the target shows.
    fn show(&self, world: &World) {
        let lun = u64::from(self.spec.lun.0);
        let Ok(seen) = self.machine.inquire(self.session, lun) else { return };
        world.target(self.spec.volume, |target| {
            if let Some(unit) = &mut target.unit {
                (unit.size, unit.protected) = (seen.size, seen.write_protected);
            }
        });
    }
}

impl Wires {
    fn log_in(&self, spec: &SessionSpec) -> Result<Wire, LoginRefusal> {
        let portal = spec.portals.iter().map(ToString::to_string).find(|at| self.storages.contains_key(at));
        let portal = portal.ok_or(LoginRefusal::Unreachable)?;
        let machine = self.storages[&portal].clone();
        let login = |chap: Option<&WireChap>| {
            let shown = chap.map(|chap| (chap.user.as_str(), chap.secret.as_str()));
            machine.login(&portal, spec.target.as_str(), spec.initiator.as_str(), shown)
        };
        // As in sessiond: during a rotation of secrets the target may have the other ones.
        let session = match (login(spec.chap.as_ref()), &spec.other_chap) {
            (Err(_), Some(other)) => login(Some(other))?,
            (done, _) => done?,
        };
        Ok(Wire { machine, session, spec: spec.clone(), refused: None })
    }

    /// Re-establishes a dropped session, or ends it as sessiond does, if the target has refused it
    /// for its recovery time. A target that is absent, as while its exports are restored, is tried
    /// on. `false`: it has ended.
    fn keep(&self, world: &World, wire: &mut Wire) -> bool {
        let volume = wire.spec.volume;
        if !wire.machine.is_live(wire.session) {
            match self.log_in(&wire.spec) {
                Ok(again) => {
                    *wire = again;
                    world.lose(volume, false);
                }
                Err(refusal) if !is_final(refusal) => {
                    if refusal != LoginRefusal::Unreachable {
                        wire.refused = None;
                    }
                    world.lose(volume, true);
                    return true;
                }
                Err(refusal) => {
                    let since = *wire.refused.get_or_insert_with(Instant::now);
                    if since.elapsed() < Duration::from_secs(wire.spec.recovery_timeout_s.into()) {
                        world.lose(volume, true);
                        return true;
                    }
                    world.end_as(volume, SessionState::Forbidden, &refusal.to_string());
                    return false;
                }
            }
        }
        wire.show(world);
        true
    }
}

/// Returns `true` for the refusal of a target that does not admit this host.
fn is_final(refusal: LoginRefusal) -> bool {
    matches!(refusal, LoginRefusal::NotAuthorized | LoginRefusal::Authentication)
}

impl Network {
    fn lock(&self) -> MutexGuard<'_, Wires> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_storage(&self, portal: &str, machine: &FakeMachine) {
        self.lock().storages.insert(portal.to_owned(), machine.clone());
    }

    pub(crate) fn add_port(&self, at: &str, machine: &FakeMachine) {
        let port: FcPort = at.parse().expect("a port with its driver");
        self.lock().ports.insert(port.wwpn, (machine.clone(), at.to_owned()));
    }

    pub(crate) fn add_adapter(&self, port: Wwpn, host: &FcWorld) {
        self.lock().adapters.push((port, host.clone()));
    }

    /// Lets every port of a host see every port of a storage node.
    pub(crate) fn zone(&self) {
        let mut guard = self.lock();
        let wires = &mut *guard;
        for (initiator, host) in &wires.adapters {
            for (number, (target, (machine, _))) in (0..).zip(&wires.ports) {
                wires.sights.push(Sight::new(host, *initiator, machine, *target, number));
            }
        }
    }

    /// Logs a port of a host in at a port of a storage node, both as os-brick names them.
    pub(crate) fn plogi(
        &self,
        target: &str,
        initiator: &str,
    ) -> Result<(FakeMachine, SessionId), LoginRefusal> {
        let name = |text: &str| text.parse::<Wwpn>().map_err(|_| LoginRefusal::Unreachable);
        let (target, initiator) = (name(target)?, name(initiator)?);
        let found = self.lock().ports.get(&target).cloned();
        let (machine, at) = found.ok_or(LoginRefusal::Unreachable)?;
        let session = machine.plogi(&at, &initiator.to_string())?;
        Ok((machine, session))
    }

    pub(crate) fn add_host(&self, name: &str, world: &World) {
        let host = Host { world: world.clone(), sessions: BTreeMap::new() };
        self.lock().hosts.insert(name.to_owned(), host);
    }

    /// The machine behind a portal; `None`: there is none.
    pub fn machine(&self, portal: &str) -> Option<FakeMachine> {
        self.lock().storages.get(portal).cloned()
    }

    /// Handles a change at a target: dropped sessions are re-established where the target admits
    /// the host, and ended elsewhere. Ports in a zone see what the target shows to them now.
    pub(crate) fn refresh(&self) {
        let mut wires = self.lock();
        wires.sights.iter_mut().for_each(Sight::refresh);
        let mut hosts = std::mem::take(&mut wires.hosts);
        for host in hosts.values_mut() {
            host.sessions.retain(|_, wire| wires.keep(&host.world, wire));
        }
        wires.hosts = hosts;
    }

    fn log_in(&self, host: &str, spec: &SessionSpec) {
        let mut wires = self.lock();
        let known = wires.hosts.get_mut(host).expect("a host of this fleet");
        if let Some(wire) =
            known.sessions.get_mut(&spec.volume).filter(|wire| wire.machine.is_live(wire.session))
        {
            wire.spec = spec.clone();
            return wire.show(&known.world);
        }
        // It waits for its target.
        let lost = known.sessions.contains_key(&spec.volume);
        let made = wires.log_in(spec);
        let host = wires.hosts.get_mut(host).expect("a host of this fleet");
        let secret = spec.chap.as_ref().map(|chap| chap.secret.as_str());
        host.world.export(spec.volume, 0, secret.filter(|_| made.is_ok()));
        match made {
            Ok(wire) => {
                wire.show(&host.world);
                host.sessions.insert(spec.volume, wire);
                if lost {
                    host.world.lose(spec.volume, false);
                }
            }
            Err(refusal) => {
                if let Some(wire) = host.sessions.get_mut(&spec.volume) {
                    (wire.spec, wire.refused) = (spec.clone(), None);
                }
                host.world.target(spec.volume, |target| {
                    target.reachable = refusal != LoginRefusal::Unreachable;
                    target.granted = refusal != LoginRefusal::NotAuthorized;
                });
            }
        }
    }

    fn log_out(&self, host: &str, volume: VolumeId) {
        let wire = self.lock().hosts.get_mut(host).and_then(|host| host.sessions.remove(&volume));
        if let Some(wire) = wire {
            wire.machine.logout(wire.session);
        }
    }
}

/// The keeper of a host's sessions for its agent: the world's, joined with the target's half.
pub(crate) struct Wired {
    pub(crate) host: String,
    pub(crate) network: Network,
    pub(crate) world: Arc<dyn Sessions>,
}

impl Sessions for Wired {
    fn ensure(&self, spec: &SessionSpec, wait: Duration) -> Result<SessionStatus, ClientError> {
        // A keeper that is down makes no session.
        self.world.get(spec.volume)?;
        self.network.log_in(&self.host, spec);
        self.world.ensure(spec, wait)
    }

    fn end(&self, volume: VolumeId, how: End, wait: Duration) -> Result<Option<SessionStatus>, ClientError> {
        let ended = self.world.end(volume, how, wait)?;
        self.network.log_out(&self.host, volume);
        Ok(ended)
    }

    fn get(&self, volume: VolumeId) -> Result<Option<SessionStatus>, ClientError> {
        self.world.get(volume)
    }

    fn list(&self) -> Result<Vec<SessionStatus>, ClientError> {
        self.world.list()
    }

    fn watch(&self) -> Result<Box<dyn SessionChanges>, ClientError> {
        self.world.watch()
    }
}
