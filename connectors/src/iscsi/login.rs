//! State machine of one connection's login phase (RFC 7143, 6.3). The caller sends the PDUs that it
//! is given and hands over the answers, until the login is done, redirected or failed.
//!
//! With credentials the login begins in the security stage and offers CHAP alone; without them it
//! begins in the operational stage. Each login object does one login, with one fresh challenge.
//!
//! What must never happen here: `Done` although credentials are configured and CHAP was not gone
//! through to its end, or mutual CHAP is and the target did not prove itself; a stage that we did
//! not ask for; an exchange without end.

use std::collections::VecDeque;
use std::fmt;

use mooring_host::{HEADER_BYTES, LOGIN_DATA_BYTES_MAX};
use mooring_model::{Cure, Iqn};

use super::chap::{Authentication, ChapError, Credentials, Exchange};
use super::isid::Isid;
use super::negotiate::{Key, Negotiation, NegotiationError};
use super::params::Negotiated;
use super::pdu::{LoginRequest, LoginResponse, PduError, Stage};
use super::target_address::TargetAddress;
use super::text::{Assembly, Text, TextError, short};

/// Maximum number of answers of a target in one login. LIO itself gives up after 7.
pub const PDUS_MAX: usize = 16;

/// Longest alias to send, in bytes (RFC 7143, 6.1: a text value).
const ALIAS_BYTES_MAX: usize = 255;

/// Parameters of a login.
#[derive(Debug, Clone)]
pub struct LoginConfig<'a> {
    /// Initiator name to use.
    pub initiator: &'a Iqn,
    /// Name of the target.
    pub target: &'a Iqn,
    /// Target portal group that must answer.
    pub tpg: u16,
    /// Id of the session that the login makes or replaces.
    pub isid: Isid,
    /// Credentials; `None`: no authentication is offered.
    pub chap: Option<Credentials>,
    /// Name of this host, for people who look at the target. Left out when it cannot be sent.
    pub alias: Option<String>,
}

/// Next step of the caller.
#[derive(Clone, PartialEq, Eq)]
pub enum LoginStep {
    /// Send this PDU and hand over the answer.
    Send {
        /// Basic header segment. The kernel fills in task tag and CmdSN.
        header: [u8; HEADER_BYTES],
        /// Data without padding.
        data: Vec<u8>,
    },
    /// Logged in: set the parameters and start the connection.
    Done(Negotiated),
    /// The target is elsewhere: begin again there. The redirect proves nothing about the target.
    Redirect {
        /// Address to log in at.
        address: TargetAddress,
        /// `true`: the next login begins here again (0101); `false`: it begins there (0102).
        temporary: bool,
    },
}

impl fmt::Debug for LoginStep {
    /// Leaves out the data: they contain our proof.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { data, .. } => write!(f, "Send {{ {} bytes }}", data.len()),
            Self::Done(negotiated) => f.debug_tuple("Done").field(negotiated).finish(),
            Self::Redirect { address, temporary } => {
                f.debug_struct("Redirect").field("address", address).field("temporary", temporary).finish()
            }
        }
    }
}

/// Kind of failure, for the decision on the next login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoginFailure {
    /// 0201: the target does not accept our proof; or our credentials cannot be used. A repetition
    /// may lock the account.
    Credentials,
    /// 0202: the target does not admit this initiator.
    Forbidden,
    /// 0203, 0204: there is no such target. This passes if the target is restarting.
    NotFound,
    /// Any other status of class 2: the target does not accept such a login.
    Fatal,
    /// Class 3: the target cannot serve now.
    Unavailable,
    /// The target violates the protocol.
    Protocol,
    /// The target does not want CHAP, or did not prove itself.
    Downgrade,
    /// Another portal group answers.
    WrongTarget,
}

/// A login that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The target's status is a refusal.
    #[error("the target refuses the login: {} (status {class:02x}{detail:02x})", status_text(*class, *detail))]
    Refused {
        /// Status class: 2 the initiator's fault, 3 the target's.
        class: u8,
        /// Status detail.
        detail: u8,
    },
    /// CHAP failed.
    #[error(transparent)]
    Chap(#[from] ChapError),
    /// Another portal group answers.
    #[error("portal group {got} of the target answers; {want} is wanted")]
    PortalGroup {
        /// Portal group of the spec.
        want: u16,
        /// Portal group of the target's answer, shortened.
        got: String,
    },
    /// A header is wrong.
    #[error(transparent)]
    Pdu(#[from] PduError),
    /// A text is wrong.
    #[error(transparent)]
    Text(#[from] TextError),
    /// An operational parameter was not agreed on.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    /// The answer is out of order.
    #[error("the target does not keep to the login protocol: {0}")]
    Protocol(&'static str),
    /// A key came where it has no meaning.
    #[error("the target does not keep to the login protocol: the key {key:?} has no place in {place}")]
    OutOfPlace {
        /// Name of the key, shortened.
        key: String,
        /// Place in the login.
        place: &'static str,
    },
    /// The target sends answers without end.
    #[error("the target did not end the login within {PDUS_MAX} answers")]
    Endless,
    /// The login had ended before.
    #[error("an answer came after the end of the login")]
    Ended,
}

impl LoginError {
    /// Returns the kind of failure, for the decision on the next login.
    pub fn kind(&self) -> LoginFailure {
        match self {
            Self::Refused { class: 2, detail: 1 } | Self::Chap(ChapError::Unusable(_)) => {
                LoginFailure::Credentials
            }
            Self::Refused { class: 2, detail: 2 } => LoginFailure::Forbidden,
            Self::Refused { class: 2, detail: 3 | 4 } => LoginFailure::NotFound,
            Self::Refused { class: 2, .. } => LoginFailure::Fatal,
            Self::Refused { class: 3, .. } => LoginFailure::Unavailable,
            Self::Chap(
                ChapError::NotWanted(_)
                | ChapError::NoProof
                | ChapError::Name { .. }
                | ChapError::WrongProof
                | ChapError::Reflected,
            ) => LoginFailure::Downgrade,
            Self::PortalGroup { .. } => LoginFailure::WrongTarget,
            Self::Refused { .. }
            | Self::Chap(_)
            | Self::Pdu(_)
            | Self::Text(_)
            | Self::Negotiation(_)
            | Self::Protocol(_)
            | Self::OutOfPlace { .. }
            | Self::Endless
            | Self::Ended => LoginFailure::Protocol,
        }
    }

    /// Says who can cure the failure.
    pub fn cure(&self) -> Cure {
        match self.kind() {
            LoginFailure::Credentials | LoginFailure::WrongTarget => Cure::FixSpec,
            LoginFailure::Unavailable => Cure::Retry,
            LoginFailure::Forbidden
            | LoginFailure::NotFound
            | LoginFailure::Fatal
            | LoginFailure::Protocol
            | LoginFailure::Downgrade => Cure::Operator,
        }
    }
}

/// Names a status (RFC 7143, 11.13.5).
fn status_text(class: u8, detail: u8) -> &'static str {
    match (class, detail) {
        (2, 0) => "the initiator made a mistake",
        (2, 1) => "authentication failed; check the CHAP user and secret on both sides",
        (2, 2) => "this initiator is not allowed in; the target has no ACL for its name",
        (2, 3) => "there is no such target here",
        (2, 4) => "the target was removed for good",
        (2, 5) => "the target speaks no version of iSCSI that we speak",
        (2, 6) => "too many connections, or a wrong session id",
        (2, 7) => "a parameter is missing",
        (2, 8) => "the target cannot take this connection into the session",
        (2, 9) => "the target does not have this type of session",
        (2, 0x0a) => "the session does not exist",
        (2, 0x0b) => "the target did not take a request during the login",
        (3, 0) => "the target has an internal error",
        (3, 1) => "the target or its portal group is switched off",
        (3, 2) => "the target has no resources left",
        (2, _) => "for a reason of the initiator's side",
        (3, _) => "for a reason of its own",
        _ => "for a reason that the standard does not have",
    }
}

/// Content of our last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Offer of CHAP.
    Method,
    /// Offer of algorithms.
    Algorithm,
    /// Our proof.
    Proof,
    /// Offer of parameters.
    Parameters,
    /// The login has ended.
    Ended,
}

impl Phase {
    fn stage(self) -> Stage {
        match self {
            Self::Method | Self::Algorithm | Self::Proof => Stage::Security,
            Self::Parameters | Self::Ended => Stage::Operational,
        }
    }

    /// Returns the stage that the last request of the phase asks for. `None` for CHAP's first two
    /// requests, which must not ask for one (RFC 7143, 12.1.2).
    fn transit(self) -> Option<Stage> {
        match self {
            Self::Proof => Some(Stage::Operational),
            Self::Parameters => Some(Stage::FullFeature),
            Self::Method | Self::Algorithm | Self::Ended => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Method => "the answer to AuthMethod",
            Self::Algorithm => "the CHAP challenge",
            Self::Proof => "the answer to our CHAP response",
            Self::Parameters => "the operational parameters",
            Self::Ended => "nothing",
        }
    }

    /// Returns `true` if a key of the security stage has a meaning in this phase.
    fn takes(self, key: &str) -> bool {
        match self {
            Self::Method => key == "AuthMethod",
            Self::Algorithm => matches!(key, "CHAP_A" | "CHAP_I" | "CHAP_C"),
            Self::Proof => matches!(key, "CHAP_N" | "CHAP_R"),
            Self::Parameters | Self::Ended => false,
        }
    }
}

/// A login in progress.
#[derive(Debug)]
pub struct Login {
    tpg: u16,
    isid: Isid,
    exp_stat_sn: u32,
    phase: Phase,
    chap: Option<Exchange>,
    negotiation: Negotiation,
    /// Pieces of our text that were not sent yet.
    outbox: VecDeque<Vec<u8>>,
    /// Pieces of the target's text so far.
    inbox: Assembly,
    /// Stage that our last text asked for. A request for the rest of an answer does not take it
    /// back.
    asked: Option<Stage>,
    answers: usize,
}

impl Login {
    /// Begins a login. `exp_stat_sn` is 0 on a fresh connection. `random` must fill its slice with
    /// unpredictable bytes; it is called once, with credentials only.
    pub fn start(
        config: LoginConfig<'_>,
        exp_stat_sn: u32,
        random: &mut dyn FnMut(&mut [u8]),
    ) -> (Self, LoginStep) {
        let LoginConfig { initiator, target, tpg, isid, chap, alias } = config;
        let chap = chap.map(|credentials| Exchange::new(credentials, random));
        let mut login = Self {
            tpg,
            isid,
            exp_stat_sn,
            phase: if chap.is_some() { Phase::Method } else { Phase::Parameters },
            chap,
            negotiation: Negotiation::default(),
            outbox: VecDeque::new(),
            inbox: Assembly::default(),
            asked: None,
            answers: 0,
        };
        let mut text = Text::new();
        text.push("InitiatorName", initiator.as_str());
        let sendable = |alias: &String| (1..=ALIAS_BYTES_MAX).contains(&alias.len()) && !alias.contains('\0');
        if let Some(alias) = alias.filter(sendable) {
            text.push("InitiatorAlias", &alias);
        }
        text.push("TargetName", target.as_str());
        text.push("SessionType", "Normal");
        match login.phase {
            // Never "CHAP,None": a target that takes None would admit us unproven.
            Phase::Method => text.push("AuthMethod", "CHAP"),
            _ => Negotiation::offer(&mut text),
        }
        let step = login.send(&text);
        (login, step)
    }

    /// Names the target's next message, for texts ("no answer to …").
    pub fn waits_for(&self) -> &'static str {
        self.phase.text()
    }

    /// Takes the target's answer. After `Done`, `Redirect` or an error the login has ended.
    pub fn receive(&mut self, header: &[u8; HEADER_BYTES], data: &[u8]) -> Result<LoginStep, LoginError> {
        let step = self.step(header, data);
        if !matches!(step, Ok(LoginStep::Send { .. })) {
            self.phase = Phase::Ended;
            self.chap = None;
            self.outbox.clear();
        }
        step
    }

    fn step(&mut self, header: &[u8; HEADER_BYTES], data: &[u8]) -> Result<LoginStep, LoginError> {
        if self.phase == Phase::Ended {
            return Err(LoginError::Ended);
        }
        let response = LoginResponse::parse(header, data)?;
        self.answers += 1;
        // LIO fills in nothing else when it refuses: the status comes first.
        match (response.class, response.detail) {
            (0, 0) => {}
            (1, detail @ (1 | 2)) => return redirect(&response, detail == 1),
            (class, detail) => return Err(LoginError::Refused { class, detail }),
        }
        self.check(&response)?;
        self.exp_stat_sn = response.stat_sn.wrapping_add(1);
        if self.answers >= PDUS_MAX && !(response.transit && self.phase == Phase::Parameters) {
            return Err(LoginError::Endless);
        }
        if let Some(piece) = self.outbox.pop_front() {
            if response.continues || !response.data.is_empty() {
                return Err(LoginError::Protocol("it answers in the middle of our text"));
            }
            return Ok(self.send_piece(piece));
        }
        match self.inbox.push(response.data, response.continues)? {
            // Blank, and without T: the rest of the text may contain a key to answer first.
            None => Ok(self.request(None, false, Vec::new())),
            Some(text) => self.answer(&text, &response),
        }
    }

    /// Checks the header of an answer that is no refusal.
    fn check(&self, response: &LoginResponse<'_>) -> Result<(), LoginError> {
        let wrong = if response.version_active != 0 {
            "it uses a version of iSCSI that was not offered"
        } else if response.isid != *self.isid.as_bytes() {
            "it answers for another session id"
        } else if response.stage != Some(self.phase.stage()) {
            "it answers in another stage"
        } else if response.transit && response.continues {
            "it goes to the next stage in the middle of its text"
        } else if response.transit && self.asked.is_none() {
            "it goes to the next stage without being asked"
        } else if response.transit && response.next != self.asked {
            "it goes to another stage than was asked for"
        } else {
            return Ok(());
        };
        Err(LoginError::Protocol(wrong))
    }

    /// Handles a complete text of the target.
    fn answer(&mut self, text: &Text, response: &LoginResponse<'_>) -> Result<LoginStep, LoginError> {
        let mut reply = self.sort(text)?;
        match self.phase {
            Phase::Method => {
                match text.get("AuthMethod") {
                    Some("CHAP") => {}
                    Some(other) => return Err(ChapError::NotWanted(short(other)).into()),
                    None => return Err(LoginError::Protocol("it does not answer AuthMethod")),
                }
                self.phase = Phase::Algorithm;
                join(&mut reply, &self.chap()?.algorithms()?);
                Ok(self.send(&reply))
            }
            Phase::Algorithm => {
                let proof = self.chap()?.respond(text)?;
                self.phase = Phase::Proof;
                join(&mut reply, &proof);
                Ok(self.send(&reply))
            }
            Phase::Proof => {
                self.chap()?.look_at(text)?;
                if !response.transit {
                    return Ok(self.send(&reply));
                }
                self.chap()?.authentication()?;
                self.phase = Phase::Parameters;
                let mut offers = Text::new();
                Negotiation::offer(&mut offers);
                Ok(self.send(&offers))
            }
            Phase::Parameters if response.transit => self.done(response),
            Phase::Parameters => Ok(self.send(&reply)),
            Phase::Ended => Err(LoginError::Ended),
        }
    }

    /// Hands every key of the target to its owner. The returned text answers unknown keys. That
    /// answer is lost only if the target goes to the next stage without waiting for it.
    fn sort(&mut self, text: &Text) -> Result<Text, LoginError> {
        let mut reply = Text::new();
        let place = self.phase.text();
        for (key, value) in text.iter() {
            match key {
                "TargetPortalGroupTag" => {
                    if value.parse() != Ok(self.tpg) {
                        return Err(LoginError::PortalGroup { want: self.tpg, got: short(value) });
                    }
                }
                "TargetAlias" | "TargetAddress" => {}
                "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType" | "SendTargets" => {
                    return Err(LoginError::OutOfPlace { key: short(key), place });
                }
                "AuthMethod" | "CHAP_A" | "CHAP_I" | "CHAP_C" | "CHAP_N" | "CHAP_R" => {
                    if !self.phase.takes(key) {
                        return Err(LoginError::OutOfPlace { key: short(key), place });
                    }
                }
                _ => match Key::of_name(key) {
                    Some(_) if self.phase != Phase::Parameters => {
                        return Err(LoginError::OutOfPlace { key: short(key), place });
                    }
                    Some(key) => self.negotiation.answer(key, value)?,
                    None => reply.push(key, "NotUnderstood"),
                },
            }
        }
        Ok(reply)
    }

    fn done(&self, response: &LoginResponse<'_>) -> Result<LoginStep, LoginError> {
        // Checked again here, so that no way to this place goes around it.
        let authentication = match &self.chap {
            Some(exchange) => exchange.authentication()?,
            None => Authentication::None,
        };
        if response.tsih == 0 {
            return Err(LoginError::Protocol("it ends the login without a session number (TSIH 0)"));
        }
        Ok(LoginStep::Done(Negotiated {
            tsih: response.tsih,
            exp_stat_sn: self.exp_stat_sn,
            tpg: self.tpg,
            authentication,
            transfer: self.negotiation.finish()?,
        }))
    }

    /// Returns the exchange, which exists in every phase of the security stage.
    fn chap(&mut self) -> Result<&mut Exchange, LoginError> {
        self.chap.as_mut().ok_or(LoginError::Ended)
    }

    /// Sends a text, split into pieces if it is too long.
    fn send(&mut self, text: &Text) -> LoginStep {
        self.outbox = text.encode().chunks(LOGIN_DATA_BYTES_MAX).map(<[u8]>::to_vec).collect();
        let first = self.outbox.pop_front().unwrap_or_default();
        self.send_piece(first)
    }

    /// Sends one piece. Only the last one asks for the next stage.
    fn send_piece(&mut self, piece: Vec<u8>) -> LoginStep {
        let more = !self.outbox.is_empty();
        self.asked = if more { None } else { self.phase.transit() };
        self.request(self.asked, more, piece)
    }

    fn request(&self, transit: Option<Stage>, continues: bool, data: Vec<u8>) -> LoginStep {
        let request = LoginRequest {
            stage: self.phase.stage(),
            transit,
            continues,
            isid: self.isid,
            exp_stat_sn: self.exp_stat_sn,
        };
        LoginStep::Send { header: request.encode(data.len()), data }
    }
}

/// Reads a redirect, status 0101 or 0102 (RFC 7143, 11.13.5): the address is in the text.
fn redirect(response: &LoginResponse<'_>, temporary: bool) -> Result<LoginStep, LoginError> {
    let text = Text::parse(response.data)?;
    let address = text
        .get("TargetAddress")
        .and_then(|address| address.parse().ok())
        .ok_or(LoginError::Protocol("it says that it has moved, but not where (TargetAddress)"))?;
    Ok(LoginStep::Redirect { address, temporary })
}

fn join(text: &mut Text, more: &Text) {
    for (key, value) in more.iter() {
        text.push(key, value);
    }
}
