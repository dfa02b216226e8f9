//! systemd's units on the controller's own machine. An agent there that does not answer is shown
//! with systemd's view of its unit. The log says what is wrong with the controller's own unit.
//!
//! What must never happen here: a unit of this machine taken for that of an agent elsewhere; a
//! question to systemd.

use std::net::{IpAddr, UdpSocket};

use mooring_api::Address;
use mooring_bus::{Bus, Unit, Units};

use super::Service;

const OWN: &str = "mooring-controller.service";
const AGENT: &str = "mooring-agent.service";

impl Service {
    /// Follows the units on this bus from now on. Call it once, inside a tokio runtime.
    pub fn follow_units(&self, bus: Bus) {
        let units = mooring_bus::follow(bus, &[OWN, AGENT]);
        let mut seen = units.clone();
        // A second call changes nothing.
        drop(self.units.set(units));
        tokio::spawn(async move {
            let mut known = None;
            while seen.changed().await.is_ok() {
                let wrong = seen.borrow_and_update().as_ref().and_then(|units| wrong_with(units.get(OWN)?));
                if let Some(wrong) = wrong.as_ref().filter(|_| wrong != known) {
                    tracing::warn!("{wrong}");
                }
                known = wrong;
            }
        });
    }

    /// The systemd state of an agent that does not answer at this address. `None`: systemd knows
    /// nothing of it, or it is on another machine.
    pub(super) fn unit_of(&self, address: &Address) -> Option<String> {
        let units = self.units.get()?.borrow();
        why_down(units.as_ref()?, address)
    }
}

fn wrong_with(own: &Unit) -> Option<String> {
    if own.outdated {
        Some(format!("the files of {OWN} have changed since systemd read them: systemctl daemon-reload"))
    } else if own.is_up() && own.file == "disabled" {
        Some(format!("a boot does not start {OWN}: systemctl enable {OWN}"))
    } else {
        None
    }
}

fn why_down(units: &Units, address: &Address) -> Option<String> {
    let unit = units.get(AGENT).filter(|unit| !unit.is_up() && is_here(address))?;
    let mend = if unit.is_masked() {
        format!("systemctl unmask {AGENT} && systemctl start {AGENT}")
    } else if unit.active == "failed" {
        format!("see journalctl -u {AGENT}, then systemctl restart {AGENT}")
    } else {
        format!("systemctl start {AGENT}")
    };
    Some(format!("{AGENT}: on this machine, the controller's, it is {unit}: {mend}"))
}

/// `true` if an agent's address is one of this machine's. A host name is not resolved, and counts
/// as another machine's.
fn is_here(address: &Address) -> bool {
    let host = match address {
        Address::Unix(_) => return true,
        Address::Tls(host) | Address::Plain(host) => host,
    };
    let Some((host, _)) = host.rsplit_once(':') else { return false };
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    // The kernel binds no socket to another machine's address. Nothing is sent.
    ip.is_ok_and(|ip| UdpSocket::bind((ip, 0)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(active: &str, file: &str) -> Unit {
        Unit { active: active.to_owned(), file: file.to_owned(), ..Unit::default() }
    }

    #[test]
    fn an_agent_that_is_down_here_shows_what_systemd_knows() {
        let units = |unit: Unit| Units::from([(AGENT.to_owned(), unit)]);
        let at = |address: &str| address.parse::<Address>().unwrap();
        let failed = units(Unit { result: "exit-code".to_owned(), ..unit("failed", "enabled") });
        for here in ["unix:/run/mooring/agent.sock", "https://127.0.0.1:7710", "http://[::1]:7710"] {
            let told = why_down(&failed, &at(here)).unwrap_or_default();
            let ends = "it is failed (exit-code): see journalctl -u mooring-agent.service, then systemctl restart mooring-agent.service";
            assert!(told.ends_with(ends), "{here}: {told}");
        }
        for elsewhere in ["https://192.0.2.7:7710", "https://storage1.example:7710"] {
            assert_eq!(why_down(&failed, &at(elsewhere)), None, "{elsewhere}");
        }
        let here = at("unix:/run/mooring/agent.sock");
        assert_eq!(why_down(&units(unit("active", "enabled")), &here), None, "it is why it does not answer");
        assert_eq!(why_down(&Units::new(), &here), None);
        let masked = why_down(&units(unit("inactive", "masked")), &here).unwrap();
        assert!(masked.contains("systemctl unmask mooring-agent.service"), "{masked}");
        let stopped = why_down(&units(unit("inactive", "disabled")), &here).unwrap();
        assert!(stopped.ends_with("it is inactive: systemctl start mooring-agent.service"), "{stopped}");
    }

    #[test]
    fn own_unit_is_reported_when_boot_or_systemd_has_another() {
        assert_eq!(wrong_with(&unit("active", "enabled")), None);
        assert!(
            wrong_with(&unit("active", "disabled"))
                .unwrap()
                .ends_with("systemctl enable mooring-controller.service")
        );
        // The controller runs without its unit.
        assert_eq!(wrong_with(&unit("inactive", "disabled")), None);
        let outdated = Unit { outdated: true, ..unit("active", "enabled") };
        assert!(wrong_with(&outdated).unwrap().ends_with("systemctl daemon-reload"));
    }
}
