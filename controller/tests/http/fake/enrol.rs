//! Hosts of the fake: joins and tokens, operators' settings, fences.

use std::time::SystemTime;

use mooring_controller::domain::{Caller, Enrolment, Host, HostChange, HostFence, HostUsage, NewFence};
use mooring_controller::service::{JoinRefused, JoinRequest, JoinTerms, Joined, NewJoinToken, Refusal, Wait};
use mooring_model::ClusterId;
use uuid::Uuid;

use super::state::{fence_of, usage};
use super::{Fake, not_found};

/// A text in the place of a certificate.
pub(crate) const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----";

/// The token that the fake takes.
pub(crate) const TOKEN: &str = "a-token-of-the-fake";

/// A token, or the reason why there is none.
pub(super) type Made = Result<NewJoinToken, Refusal>;

/// An agent that has joined.
pub(super) fn enrolment(name: &str, address: &str) -> Enrolment {
    Enrolment {
        name: name.to_owned(),
        id: Uuid::nil(),
        address: address.to_owned(),
        roles: "host".parse().unwrap(),
        revoked: false,
        zone: None,
        joined_at: SystemTime::UNIX_EPOCH,
        expires_at: SystemTime::UNIX_EPOCH,
    }
}

impl Fake {
    pub(super) fn new_token(&self, caller: &Caller, name: &str, terms: JoinTerms) -> Made {
        drop(self.ask(caller)?);
        if name == "nosuch" {
            return not_found("Host", name);
        }
        Ok(NewJoinToken {
            name: name.to_owned(),
            roles: terms.roles,
            zone: terms.zone,
            token: TOKEN.to_owned(),
            url: "https://storage.example.org:8776".to_owned(),
            pin: "sha256:00".to_owned(),
            expires_at: SystemTime::UNIX_EPOCH,
        })
    }

    pub(super) fn revoked(&self, caller: &Caller, name: &str) -> Result<(), Refusal> {
        drop(self.ask(caller)?);
        if name == "nosuch" { not_found("Host", name) } else { Ok(()) }
    }

    pub(super) fn joined(&self, asked: JoinRequest) -> Result<Joined, JoinRefused> {
        if asked.token != TOKEN {
            return Err(Refusal::Unauthenticated("the join token is not known".to_owned()).into());
        }
        let enrolment = enrolment("host9", &asked.address);
        self.state().joins.push(asked);
        let cluster: ClusterId = "00000000-0000-4000-8000-0000000000c1".parse().unwrap();
        let (certificate, authority) = (AUTHORITY.to_owned(), AUTHORITY.to_owned());
        Ok(Joined { enrolment, certificate, authority, cluster })
    }

    pub(super) fn host_said(
        &self,
        hosts: Vec<Host>,
        name: &str,
        change: HostChange,
    ) -> Result<Host, Refusal> {
        let Some(host) = hosts.into_iter().find(|host| host.name == name) else {
            return not_found("Host", name);
        };
        self.state().said = Some((name.to_owned(), change));
        Ok(host)
    }

    pub(super) fn service_said(
        &self,
        caller: &Caller,
        service: (&str, &str),
        change: HostChange,
    ) -> Result<(), Refusal> {
        let mut state = self.ask(caller)?;
        if service != ("cinder-volume", "storage1@lvm") {
            return not_found("Service", service.1);
        }
        state.said = Some(("storage1".to_owned(), change));
        Ok(())
    }

    pub(super) fn unfenced(&self, fence: HostFence, anyway: bool) -> Result<HostFence, Refusal> {
        if !fence.is_proven() && !anyway {
            return Err(Refusal::Conflict(format!("host {}: not proven", fence.name)));
        }
        self.state().fence = None;
        Ok(HostFence { lifted_at: Some(SystemTime::UNIX_EPOCH), ..fence })
    }

    pub(super) fn usage_of(&self, caller: &Caller, name: &str) -> Result<Vec<HostUsage>, Refusal> {
        drop(self.ask(caller)?);
        if name == "storage1@lvm" { Ok(vec![usage("p"), usage("q")]) } else { not_found("Host", name) }
    }

    pub(super) fn fenced(
        &self,
        caller: &Caller,
        name: &str,
        new: NewFence,
        wait: Wait,
    ) -> Result<HostFence, Refusal> {
        let mut state = self.ask(caller)?;
        state.wait = Some(wait.0);
        if name == "nosuch" {
            return not_found("Host", name);
        }
        let fence = fence_of(caller, name, new.reason, &state);
        (state.also, state.fence) = (new.also, Some(fence.clone()));
        Ok(fence)
    }
}
