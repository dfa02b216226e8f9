//! The law of a rotation: a new authority replaces the old one, and shuts nobody out at any moment.
//!
//! A rotation has three steps. *begin*: the new authority is trusted beside the old one, which goes
//! on signing. *switch*: the new one signs, and both are trusted. *finish*: only the new one is
//! trusted. The files alone hold the progress: the certificates in them, the certificate that the
//! key fits, and a waiting next key.
//!
//! What must never happen here: something signed by the new authority while somebody does not trust
//! it; the old one dropped while a certificate of it is in force.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use mooring_api::v1;
use mooring_systemd::certificates;

use super::Authority;
use crate::domain::ControllerTrust;

/// The progress of a rotation on one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// No rotation is in progress.
    Idle,
    /// A new authority with this pin is trusted, and does not sign yet.
    Begun(String),
    /// The new authority signs, and the old one with this pin is still trusted.
    Switched(String),
}

impl Stage {
    /// The stage that the files show. `next` is the pin of the waiting key, if there is one.
    pub fn of(authority: &Authority, next: Option<&str>) -> Self {
        match (next, authority.pins()) {
            (Some(next), pins) if pins.iter().skip(1).any(|pin| pin == next) => Self::Begun(next.to_owned()),
            (_, [_, former, ..]) => Self::Switched(former.clone()),
            _ => Self::Idle,
        }
    }
}

/// The facts about an agent that a rotation needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentTrust {
    /// The agent's name.
    pub name: String,
    /// `true` if the agent joined with a token: the controller renews its certificate.
    pub joined: bool,
    /// The agent's last report of its certificate; `None` if there was none.
    pub said: Option<v1::TlsIdentity>,
    /// For an agent that did not join: the authorities by which the controller's configuration
    /// knows it.
    pub known_by: Vec<String>,
}

impl AgentTrust {
    fn trusts(&self, pin: &str) -> bool {
        self.said.as_ref().is_some_and(|said| said.trusts.iter().any(|trusted| trusted == pin))
    }

    /// Returns `true` if the agent is known by the authority with this pin.
    fn is_of(&self, pin: &str) -> bool {
        self.joined || self.known_by.iter().any(|known| known == pin) || self.trusts(pin)
    }
}

/// A controller of a shared database: its name for people, and the authorities that it trusts.
/// `None` if it has not said so.
pub type Told = (String, Option<ControllerTrust>);

const SILENT: &str = "has not said which authorities it trusts: start it, and see that it is of this version";

/// Lists who does not yet trust both authorities, one line each.
pub fn distrust(agents: &[AgentTrust], controllers: &[Told], old: &str, new: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for agent in agents.iter().filter(|agent| agent.is_of(old)) {
        let name = &agent.name;
        match &agent.said {
            None => lines.push(format!("host {name} {SILENT}")),
            Some(_) if agent.trusts(new) => {}
            Some(_) if agent.joined => lines.push(format!(
                "host {name} does not trust the new authority yet: it is told within seconds while it is up"
            )),
            Some(_) => lines.push(format!(
                "host {name} stands in the configuration, with certificates of yours: put both authorities into its client_ca, and \
                 restart its agent"
            )),
        }
    }
    for (name, told) in controllers {
        match told {
            None => lines.push(format!("controller {name} {SILENT}")),
            Some(told) if [old, new].iter().all(|pin| told.pins.iter().any(|known| known == pin)) => {}
            Some(told) => lines.push(format!(
                "controller {name} on {} does not trust both: run `mooring-controller rotate-authority begin` there, too",
                told.host
            )),
        }
    }
    lines
}

/// Lists who still has a certificate of the old authority, one line each.
pub fn holders(agents: &[AgentTrust], controllers: &[Told], old: &str, new: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for agent in agents.iter().filter(|agent| agent.is_of(old)) {
        let name = &agent.name;
        match &agent.said {
            None => lines.push(format!("host {name} {SILENT}")),
            Some(said) if said.signed_by == new => {}
            Some(_) if agent.joined => lines.push(format!(
                "host {name} has a certificate of the old authority: it is renewed within seconds while it is up"
            )),
            Some(said) if said.signed_by == old || !agent.trusts(new) => lines.push(format!(
                "host {name} stands in the configuration, with certificates of yours: give it one of the new authority, or let it join"
            )),
            Some(_) => {}
        }
    }
    for (name, told) in controllers {
        match told {
            None => lines.push(format!("controller {name} {SILENT}")),
            Some(told) if told.pins.first().is_some_and(|signs| signs != new) => lines.push(format!(
                "controller {name} on {} signs by the old authority: run `mooring-controller rotate-authority switch` there, too",
                told.host
            )),
            Some(told) if told.shows.iter().any(|shown| shown != new) => lines.push(format!(
                "controller {name} on {} shows a certificate of the old authority: it is renewed within seconds",
                told.host
            )),
            Some(_) => {}
        }
    }
    lines
}

impl ControllerTrust {
    /// The authorities that this machine trusts, and those of them that signed these certificates:
    /// its client certificate first.
    pub(crate) fn of<'a>(authority: &Authority, own: impl Iterator<Item = &'a PathBuf>) -> Self {
        let pems: Vec<_> = own.map(|path| fs::read_to_string(path).unwrap_or_default()).collect();
        let key = pems.first().and_then(|pem| certificates::pin(pem).ok());
        let shows: BTreeSet<_> =
            pems.iter().filter_map(|pem| authority.signer_of(pem).map(str::to_owned)).collect();
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        Self {
            host: host.unwrap_or_default(),
            key: key.unwrap_or_default(),
            said_us: 0,
            pins: authority.pins().to_vec(),
            shows: shows.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(trusts: &[&str], signed_by: &str) -> v1::TlsIdentity {
        let trusts = trusts.iter().map(|pin| (*pin).to_owned()).collect();
        v1::TlsIdentity { trusts, signed_by: signed_by.to_owned() }
    }

    fn agent(joined: bool, known_by: &[&str], said: Option<v1::TlsIdentity>) -> AgentTrust {
        let known_by = known_by.iter().map(|pin| (*pin).to_owned()).collect();
        AgentTrust { name: "a".to_owned(), joined, said, known_by }
    }

    fn told(pins: &[&str], shows: &[&str]) -> Told {
        let own = |pins: &[&str]| pins.iter().map(|pin| (*pin).to_owned()).collect();
        let (host, key) = ("h".to_owned(), "k".to_owned());
        let trust = ControllerTrust { host, key, said_us: 1, pins: own(pins), shows: own(shows) };
        ("c".to_owned(), Some(trust))
    }

    /// A step waits for exactly those whom the next step would shut out.
    #[test]
    fn a_step_waits_for_whoever_the_next_one_would_shut_out() {
        for (one, switch, finish) in [
            (agent(true, &[], None), true, true),
            (agent(true, &[], Some(said(&["old"], "old"))), true, true),
            (agent(true, &[], Some(said(&["old", "new"], "old"))), false, true),
            (agent(true, &[], Some(said(&["old", "new"], "new"))), false, false),
            // An operator's certificates, signed by this authority or by another one.
            (agent(false, &["old"], None), true, true),
            (agent(false, &["old"], Some(said(&["old"], "old"))), true, true),
            (agent(false, &["old"], Some(said(&["old", "new"], "old"))), false, true),
            (agent(false, &["old"], Some(said(&["old", "new"], ""))), false, false),
            (agent(false, &["other"], None), false, false),
            (agent(false, &["other"], Some(said(&["other"], "other"))), false, false),
            (agent(false, &[], None), false, false),
        ] {
            let all = [one];
            assert_eq!(distrust(&all, &[], "old", "new").len(), usize::from(switch), "{all:?}");
            assert_eq!(holders(&all, &[], "old", "new").len(), usize::from(finish), "{all:?}");
        }
        for (one, switch, finish) in [
            (("c".to_owned(), None), true, true),
            (told(&["old"], &["old"]), true, true),
            (told(&["old", "new"], &["old"]), false, true),
            (told(&["new", "old"], &["old", "new"]), false, true),
            (told(&["new", "old"], &["new"]), false, false),
            // The API's certificate is an operator's.
            (told(&["new", "old"], &[]), false, false),
        ] {
            let all = [one];
            assert_eq!(distrust(&[], &all, "old", "new").len(), usize::from(switch), "{all:?}");
            assert_eq!(holders(&[], &all, "old", "new").len(), usize::from(finish), "{all:?}");
        }
    }
}
