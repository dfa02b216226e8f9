//! Renames and forgets of the fake's hosts.

use std::time::SystemTime;

use mooring_controller::domain::{Caller, HostLoss, ProjectLoss};
use mooring_controller::service::Refusal;
use mooring_model::AgentId;

use super::{Fake, not_found};

/// The methods of the backend, as the fake has them.
macro_rules! calls {
    () => {
        async fn rename_host(&self, caller: &Caller, old: &str, new: &str) -> Result<Vec<String>, Refusal> {
            self.renamed(caller, old, new)
        }

        async fn host_loss(
            &self,
            caller: &Caller,
            name: &str,
        ) -> Result<mooring_controller::domain::HostLoss, Refusal> {
            self.loss_of(caller, name)
        }

        async fn forget_host(
            &self,
            caller: &Caller,
            name: &str,
            confirm: &str,
        ) -> Result<mooring_controller::domain::HostLoss, Refusal> {
            self.given_up(caller, name, confirm)
        }
    };
}
pub(super) use calls;

/// The loss with the fake's storage node.
fn loss(name: &str) -> HostLoss {
    let project = |project: &str, volumes, snapshots, gib, attachments| ProjectLoss {
        project: project.to_owned(),
        volumes,
        snapshots,
        gib,
        attachments,
    };
    HostLoss {
        name: name.to_owned(),
        agent: Some(AgentId::from_u128(1)),
        heard_at: Some(SystemTime::UNIX_EPOCH),
        enrolled: true,
        projects: vec![project("p", 2, 1, 30, 3), project("q", 1, 0, 5, 0)],
        attached: 4,
        obstacle: None,
    }
}

impl Fake {
    pub(super) fn renamed(&self, caller: &Caller, old: &str, new: &str) -> Result<Vec<String>, Refusal> {
        drop(self.ask(caller)?);
        if old == "nosuch" {
            return not_found("Host", old);
        }
        if new == "taken" {
            return Err(Refusal::Conflict("taken is the name of another host".to_owned()));
        }
        Ok(vec![format!("write {new} in the configuration")])
    }

    pub(super) fn loss_of(&self, caller: &Caller, name: &str) -> Result<HostLoss, Refusal> {
        drop(self.ask(caller)?);
        if name == "nosuch" { not_found("Host", name) } else { Ok(loss(name)) }
    }

    pub(super) fn given_up(&self, caller: &Caller, name: &str, confirm: &str) -> Result<HostLoss, Refusal> {
        drop(self.ask(caller)?);
        if confirm != name {
            return Err(Refusal::Invalid("confirm: repeat the name of the host".to_owned()));
        }
        if name == "nosuch" { not_found("Host", name) } else { Ok(loss(name)) }
    }
}
