//! Enrolment of agents: tokens, certificates, and the end of both.
//!
//! What must never happen here: a certificate for a name or a role that its token was not for; a
//! token that two keys can use; a machine enrolled under two names; an agent that is dialled after
//! it was revoked.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use mooring_api::Address;
use mooring_model::{AgentId, ClusterId};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{AgentEntry, Enroller, Facts, Refusal, Service};
use crate::agents::calls;
use crate::authority::requested_key_hash;
use crate::domain::{Caller, Enrolment, JoinToken, Role, Roles, is_zone};
use crate::policy::Target;
use crate::store::{Abort, Db};

/// Lifetime of a join token.
pub const JOIN_TOKEN_LIFE: Duration = Duration::from_hours(1);

/// Limits for telling a revoked agent that does not answer: number of tries, pause between them,
/// and time in all.
const LEAVE_TRIES: usize = 3;
const LEAVE_PAUSE: Duration = Duration::from_millis(250);
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// First character of a join token. It is no dash: the command line would take such a token for an
/// option.
const TOKEN_START: char = 'j';

/// Random bytes of a join token.
const TOKEN_BYTES: usize = 32;

/// Longest name of an agent that joins, in characters: the name stands in a certificate.
const NAME_CHARS_MAX: usize = 64;

/// Terms on which a host joins by a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinTerms {
    /// The host's roles.
    pub roles: Roles,
    /// The availability zone of the host's pools. `None`: the default zone.
    pub zone: Option<String>,
}

/// A new token, with what its holder types.
#[derive(Clone, PartialEq, Eq)]
pub struct NewJoinToken {
    /// The agent that may join with this token.
    pub name: String,
    /// The roles that the agent gets.
    pub roles: Roles,
    /// The availability zone of the agent's pools. `None`: the default zone.
    pub zone: Option<String>,
    /// The token: shown once. The database has only its hash.
    pub token: String,
    /// The URL at which the agent reaches this controller.
    pub url: String,
    /// The pin by which the agent recognizes this controller.
    pub pin: String,
    /// End of the token's life.
    pub expires_at: SystemTime,
}

impl fmt::Debug for NewJoinToken {
    /// Prints no token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewJoinToken").field("name", &self.name).finish_non_exhaustive()
    }
}

impl NewJoinToken {
    /// The command line to type on the host.
    pub fn command(&self) -> String {
        let line = format!("mooring-agent join {} --token {} --pin {}", self.url, self.token, self.pin);
        // Without `--role`, the agent checks for what every role needs.
        if self.roles.iter().count() > 1 { line } else { format!("{line} --role {}", self.roles) }
    }
}

/// A request to join.
#[derive(Clone)]
pub struct JoinRequest {
    /// The token.
    pub token: String,
    /// The certificate signing request, as PEM.
    pub csr: String,
    /// The address at which the agent will listen: `https://HOST:PORT`.
    pub address: String,
    /// The id in the agent's store. `None`: the agent has no store yet, or its release does not
    /// send the id.
    pub agent: Option<AgentId>,
}

impl fmt::Debug for JoinRequest {
    /// Prints no token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The answer to an agent that has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The agent's enrolment.
    pub enrolment: Enrolment,
    /// The agent's certificate, as PEM.
    pub certificate: String,
    /// The certificates of the trusted authorities, as PEM: the one in force first.
    pub authority: String,
    /// The cluster that the agent joined.
    pub cluster: ClusterId,
}

/// A join that was refused.
#[derive(Debug, thiserror::Error)]
#[error("{refusal}")]
pub struct JoinRefused {
    /// The host for which the token is. `None`: the token is unknown, or was not looked up.
    pub name: Option<String>,
    /// The reason.
    pub refusal: Refusal,
}

impl From<Refusal> for JoinRefused {
    fn from(refusal: Refusal) -> Self {
        Self { name: None, refusal }
    }
}

fn hash_of(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text.as_bytes()))
}

/// Refuses a name that cannot stand in a certificate, in `host@lvm#pool` and on command lines.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts && name.len() <= NAME_CHARS_MAX && name.bytes().all(known) {
        return Ok(());
    }
    Err(Refusal::Invalid(format!(
        "the name of a host: want 1 to {NAME_CHARS_MAX} letters, digits, -, _ and ., the first a letter or a digit"
    )))
}

/// Refuses an address that the controller cannot dial.
fn check_address(address: &str) -> Result<(), Refusal> {
    match address.parse() {
        Ok(Address::Tls(_)) if address.len() <= super::TEXT_CHARS_MAX => Ok(()),
        _ => Err(Refusal::Invalid("address: want https://HOST:PORT, where the agent will listen".to_owned())),
    }
}

fn not_of_the_configuration(facts: &Facts, name: &str) -> Result<(), Refusal> {
    if facts.options.agents.iter().any(|entry| entry.name == name) {
        return Err(Refusal::Conflict(format!(
            "{name} is an agent of the controller's configuration: take its [[agents]] entry out, and restart, before it joins"
        )));
    }
    Ok(())
}

/// Refuses a name that an enrolled agent has: that agent stays the only one of its name until it is
/// revoked.
fn not_joined(db: &Db<'_>, name: &str) -> Result<(), Abort> {
    match db.enrolment(name)? {
        Some(enrolment) if !enrolment.revoked => Err(Refusal::Conflict(format!(
            "{name} has joined, as {}: revoke it first (`mooring host revoke {name}`)",
            enrolment.address
        ))
        .into()),
        _ => Ok(()),
    }
}

/// Refuses a machine that is enrolled under another name: under two names nobody could use it.
fn not_under_another_name(
    facts: &Facts,
    db: &Db<'_>,
    name: &str,
    agent: Option<AgentId>,
) -> Result<(), Abort> {
    let Some(agent) = agent else { return Ok(()) };
    for other in db.agents_like(agent, None)?.into_iter().filter(|other| other.name != name) {
        let other = other.name;
        not_of_the_configuration(facts, &other)?;
        if db.enrolment(&other)?.is_some_and(|enrolment| !enrolment.revoked) {
            return Err(Refusal::Conflict(format!(
                "this machine has joined, as {other}: rename it (`mooring host rename {other} {name}`), or revoke it first (`mooring host revoke \
                 {other}`) and join again with this token. If it is a copy of {other}: move its mooring-agent.db* away, and join again"
            ))
            .into());
        }
    }
    Ok(())
}

/// Refuses a token without the roles that the volumes or connections of its name or of this machine
/// need: a revoked machine keeps them under a new name.
fn may_have_what_it_has(db: &Db<'_>, token: &JoinToken, agent: Option<AgentId>) -> Result<(), Abort> {
    let named = db.agent_named(&token.name)?.map(|known| known.id);
    let other = agent.filter(|agent| Some(*agent) != named);
    for (id, who) in [(named, token.name.as_str()), (other, "this machine")] {
        let Some(id) = id else { continue };
        let (volumes, connections) = (db.volumes_on(id)?.len(), db.connections_on(id)?.len());
        let lacks = [(Role::Storage, volumes, "volumes"), (Role::Host, connections, "connections")]
            .into_iter()
            .find(|(role, count, _)| *count > 0 && !token.roles.has(*role));
        if let Some((role, count, what)) = lacks {
            let text = format!(
                "{who} has {count} {what}, and its token is not for the role {}: make one with that role",
                role.as_str()
            );
            return Err(Refusal::Conflict(text).into());
        }
    }
    Ok(())
}

fn not_usable(why: &str) -> Refusal {
    Refusal::Unauthenticated(format!("the join token {why}: make a new one with `mooring host token NAME`"))
}

/// The token, if `key` may use it now.
fn usable(db: &Db<'_>, known: JoinToken, key: &str) -> Result<JoinToken, Abort> {
    let refused = not_usable;
    match &known.used_by {
        Some(other) if other != key => Err(refused("was used already, by another host or key").into()),
        _ if known.expires_at <= db.now => Err(refused("has expired").into()),
        _ => Ok(known),
    }
}

/// A request to join, with the hash of its public key.
struct Asked {
    request: JoinRequest,
    key: String,
    /// The host for which the token is, once that is known.
    name: Arc<OnceLock<String>>,
}

impl Asked {
    /// Signs a certificate and stores the enrolment, if the token allows it.
    fn admit(&self, facts: &Facts, enroller: &Enroller, db: &Db<'_>) -> Result<Joined, Abort> {
        let known = db.join_token(&hash_of(&self.request.token))?;
        let known = known.ok_or_else(|| not_usable("is not known, or a newer one took its place"))?;
        // A repeated transaction finds the name set, by the same token.
        let _ = self.name.set(known.name.clone());
        let token = usable(db, known, &self.key)?;
        if let Some(stranger) = self.request.agent.map(|id| db.forgotten(id)).transpose()?.flatten() {
            return Err(Refusal::Conflict(format!(
                "this machine is not taken in: {}",
                stranger.why_refused()
            ))
            .into());
        }
        not_of_the_configuration(facts, &token.name)?;
        let id = match (&token.used_by, db.enrolment(&token.name)?) {
            (Some(_), Some(standing)) if !standing.revoked => standing.id,
            (Some(_), _) => {
                let text = format!("{} has joined with this token, and was revoked since", token.name);
                return Err(Refusal::Unauthenticated(text).into());
            }
            (None, _) => {
                not_joined(db, &token.name)?;
                not_under_another_name(facts, db, &token.name, self.request.agent)?;
                may_have_what_it_has(db, &token, self.request.agent)?;
                Uuid::new_v4()
            }
        };
        let authority = enroller.authority.now();
        let issued = authority.sign_agent(&self.request.csr, &token.name, id, db.now);
        let issued = issued.map_err(|error| Refusal::Invalid(error.to_string()))?;
        let enrolment = Enrolment {
            name: token.name.clone(),
            id,
            address: self.request.address.clone(),
            roles: token.roles.clone(),
            revoked: false,
            zone: token.zone.clone(),
            joined_at: db.now,
            expires_at: issued.expires_at,
        };
        db.put_enrolment(&enrolment)?;
        db.put_join_token(&JoinToken { used_by: Some(self.key.clone()), ..token })?;
        let authority = authority.certificate_pem().to_owned();
        Ok(Joined { enrolment, certificate: issued.certificate, authority, cluster: facts.cluster })
    }
}

impl Service {
    fn enroller(&self) -> Result<&Enroller, Refusal> {
        self.facts.options.enroller.as_ref().ok_or_else(|| {
            Refusal::Conflict(
                "this controller has no authority that agents could join by: run `mooring-controller init`, which adds \
                 [enrolment] to a new configuration, or add it to yours"
                    .to_owned(),
            )
        })
    }

    /// Makes a token with which one agent may join, once, within an hour. The token replaces an
    /// earlier one for the same name.
    pub async fn make_join_token(
        &self,
        caller: &Caller,
        name: &str,
        terms: JoinTerms,
    ) -> Result<NewJoinToken, Refusal> {
        self.facts.policies().check("mooring:host_enrol", caller, &Target::default())?;
        check_name(name)?;
        let JoinTerms { roles, zone } = terms;
        if let Some(wrong) = zone.as_ref().filter(|zone| !is_zone(zone)) {
            let why = format!("zone: {wrong:?} is no zone: want 1 to 255 characters without commas");
            return Err(Refusal::Invalid(why));
        }
        let enroller = self.enroller()?;
        let url = enroller.url.clone().ok_or_else(|| {
            Refusal::Conflict(
                "no agent could reach this controller: it has no public_url, and listens on no https address that is not loopback"
                    .to_owned(),
            )
        })?;
        not_of_the_configuration(&self.facts, name)?;
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|error| Refusal::Internal(format!("no random bytes: {error}")))?;
        let token = format!("{TOKEN_START}{}", BASE64URL_NOPAD.encode(&bytes));
        let new = JoinToken {
            hash: hash_of(&token),
            name: name.to_owned(),
            roles: roles.clone(),
            zone: zone.clone(),
            expires_at: self.facts.options.clock.now() + JOIN_TOKEN_LIFE,
            used_by: None,
        };
        let expires_at = new.expires_at;
        let write = move |db: &Db<'_>| {
            not_joined(db, &new.name)?;
            Ok(db.put_join_token(&new)?)
        };
        self.store.write("keep a join token", write).await?;
        let pin = enroller.authority.now().pin().to_owned();
        Ok(NewJoinToken { name: name.to_owned(), roles, zone, token, url, pin, expires_at })
    }

    /// The certificates of the trusted authorities, as PEM: the one in force first. They are not
    /// secret.
    pub fn authority(&self) -> Result<String, Refusal> {
        Ok(self.enroller()?.authority.now().certificate_pem().to_owned())
    }

    /// Admits an agent that has a token. The same token with the same key again is the same join:
    /// its answer may have been lost.
    pub async fn join(&self, request: JoinRequest) -> Result<Joined, JoinRefused> {
        let enroller = self.enroller()?.clone();
        let key = requested_key_hash(&request.csr).map_err(|error| Refusal::Invalid(error.to_string()))?;
        check_address(&request.address)?;
        let name = Arc::new(OnceLock::new());
        let asked = Asked { request, key, name: Arc::clone(&name) };
        let facts = self.facts.clone();
        let write = move |db: &Db<'_>| asked.admit(&facts, &enroller, db);
        let joined = self.store.write("let an agent join", write).await;
        let joined = joined.map_err(|refusal| JoinRefused { name: name.get().cloned(), refusal })?;
        tracing::info!(
            agent = joined.enrolment.name,
            address = joined.enrolment.address,
            "an agent has joined"
        );
        self.flow.notes.enrolled();
        self.flow.refresh_enrolments().await?;
        Ok(joined)
    }

    /// Renews the certificates of agents that are due now, without waiting for the timer.
    pub async fn renew_certificates(&self) -> Result<(), Refusal> {
        self.flow.renew_certificates().await
    }

    /// Revokes an enrolment. The controller dials the agent no more, and the agent's certificate
    /// and any token for its name are void. An agent that answers is told, and then refuses all
    /// clients.
    pub async fn revoke_host(&self, caller: &Caller, name: &str) -> Result<(), Refusal> {
        self.facts.policies().check("mooring:host_enrol", caller, &Target::default())?;
        let agent = self.facts.agents.named(name).filter(|agent| agent.entry.enrolment.is_some());
        let own = name.to_owned();
        let write = move |db: &Db<'_>| {
            db.drop_join_token(&own)?;
            Ok(db.revoke_enrolment(&own)?)
        };
        if !self.store.write("revoke an agent", write).await? {
            not_of_the_configuration(&self.facts, name)?;
            let what = name.chars().take(super::TEXT_CHARS_MAX).collect();
            return Err(Refusal::NotFound { kind: "Host", what });
        }
        self.flow.notes.enrolled();
        // The database row decides. The message to the agent only closes the agent's own side.
        let told = async {
            if let Some(agent) = agent {
                self.tell_to_leave(&agent.entry).await;
            }
        };
        let ((), refreshed) = tokio::join!(told, self.flow.refresh_enrolments());
        refreshed
    }

    /// Tells an agent that it was revoked, if it answers soon.
    async fn tell_to_leave(&self, entry: &AgentEntry) {
        let mut why = "no answer".to_owned();
        let told = async {
            for _ in 0..LEAVE_TRIES {
                match calls::leave(&self.facts.options.dial, entry).await {
                    Ok(()) => return true,
                    Err(error) => why = error,
                }
                tokio::time::sleep(LEAVE_PAUSE).await;
            }
            false
        };
        if !tokio::time::timeout(LEAVE_LIMIT, told).await.unwrap_or(false) {
            tracing::warn!(agent = entry.name, why, "an agent was revoked, and could not be told");
        }
    }
}
