//! Target's half of a login, PDU by PDU: stages, authentication, negotiation, as LIO answers.
//!
//! What must never happen here: a session granted whose initiator has not shown the credentials
//! that its ACL demands, unless a test has asked for just that.

use super::chap::{Chap, Step};
use super::pdu::{NO_TAG, Pair, Pdu, opcode, pairs, text, value};
use super::target::Settings;

/// Operational values of the target (LIO's defaults), and the rule of each agreement.
const RULES: [(&str, Rule); 13] = [
    ("ErrorRecoveryLevel", Rule::Least(0)),
    ("InitialR2T", Rule::Or(true)),
    ("ImmediateData", Rule::And(true)),
    ("MaxBurstLength", Rule::Least(262_144)),
    ("FirstBurstLength", Rule::Least(65_536)),
    ("DefaultTime2Wait", Rule::Most(2)),
    ("DefaultTime2Retain", Rule::Least(20)),
    ("MaxOutstandingR2T", Rule::Least(1)),
    ("MaxConnections", Rule::Least(1)),
    ("DataPDUInOrder", Rule::Or(true)),
    ("DataSequenceInOrder", Rule::Or(true)),
    ("IFMarker", Rule::And(false)),
    ("OFMarker", Rule::And(false)),
];

#[derive(Debug, Clone, Copy)]
enum Rule {
    Least(u32),
    Most(u32),
    And(bool),
    Or(bool),
}

impl Rule {
    /// Computes the agreed value. `None`: the offer is no valid value.
    fn agree(self, offered: &str) -> Option<String> {
        let yes = match offered {
            "Yes" => Some(true),
            "No" => Some(false),
            _ => None,
        };
        let word = |value: bool| if value { "Yes" } else { "No" }.to_owned();
        match self {
            Self::Least(own) => Some(offered.parse::<u32>().ok()?.min(own).to_string()),
            Self::Most(own) => Some(offered.parse::<u32>().ok()?.max(own).to_string()),
            Self::And(own) => Some(word(yes? && own)),
            Self::Or(own) => Some(word(yes? || own)),
        }
    }
}

/// Maximum bytes of data in one PDU that the target accepts.
const SEGMENT: &str = "262144";

/// Chooses the first digest of the initiator's list that the target also has. Without one the login
/// fails (`iscsi_check_valuelist_for_support`). The agreed digest covers no bytes here: PDUs after
/// the login do not travel.
fn digest(own: &str, offered: &str) -> Result<String, Refusal> {
    let known = offered.split(',').find(|digest| own.split(',').any(|other| other == *digest));
    known.map(str::to_owned).ok_or(INITIATOR_ERROR)
}

/// Answer of the target to one login request.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Send this; the login goes on.
    Answer(Pdu),
    /// Send this, then close the connection.
    Refuse(Pdu, u8, u8),
    /// Send this: full feature phase.
    Done(Pdu),
}

/// A login in progress.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "state of a login as RFC 7143 has it")]
pub(super) struct Login {
    pub(super) initiator: String,
    pub(super) isid: [u8; 6],
    /// Every key that came, without secrets.
    pub(super) keys: Vec<Pair>,
    status_number: u32,
    /// Text of requests with the C bit so far.
    partial: Vec<u8>,
    /// The rest of an answer whose first half went out with the C bit.
    tail: Option<(Vec<u8>, u8)>,
    chap: Chap,
    authenticated: bool,
    named: bool,
    tpgt_told: bool,
    extra_told: bool,
    transits_refused: u32,
    /// Handle that the session gets.
    tsih: u16,
}

type Refusal = (u8, u8);
const INITIATOR_ERROR: Refusal = (2, 0x00);
const AUTHENTICATION: Refusal = (2, 0x01);
const FORBIDDEN: Refusal = (2, 0x02);
const NOT_FOUND: Refusal = (2, 0x03);
const VERSION: Refusal = (2, 0x05);
const MISSING: Refusal = (2, 0x07);
const SESSION_TYPE: Refusal = (2, 0x09);
const NO_SESSION: Refusal = (2, 0x0a);
const INVALID_REQUEST: Refusal = (2, 0x0b);
const OUT_OF_SERVICE: Refusal = (3, 0x01);

impl Login {
    /// Begins a login. Its session, if one is made, gets this handle.
    pub(super) fn new(tsih: u16) -> Self {
        Self { tsih, ..Self::default() }
    }

    /// Returns the next status number on this connection.
    pub(super) fn next_status(&self) -> u32 {
        self.status_number
    }

    /// Answers one PDU.
    pub(super) fn answer(&mut self, settings: &Settings, request: &Pdu) -> Verdict {
        match self.step(settings, request) {
            Ok((data, flags)) => {
                let mut answer = self.response(request, flags, (0, 0));
                answer.data = data;
                let done = flags & 0x83 == 0x83;
                if done {
                    answer.set(14, &self.tsih.to_be_bytes());
                }
                if done { Verdict::Done(answer) } else { Verdict::Answer(answer) }
            }
            Err(refusal) => {
                let mut answer = self.response(request, 0, refusal);
                if let (1, Some((_, address))) = (refusal.0, &settings.behaviour.redirect) {
                    answer.data = text(&[("TargetAddress".to_owned(), address.clone())]);
                }
                Verdict::Refuse(answer, refusal.0, refusal.1)
            }
        }
    }

    fn response(&mut self, request: &Pdu, flags: u8, status: Refusal) -> Pdu {
        let mut answer = Pdu::new(opcode::LOGIN_RESPONSE);
        answer.header[1] = flags;
        answer.set(8, &request.header[8..14]);
        answer.set(16, &request.tag());
        answer.set(24, &self.status_number.to_be_bytes());
        answer.set(28, &request.word(24).to_be_bytes());
        answer.set(32, &request.word(24).wrapping_add(63).to_be_bytes());
        answer.header[36] = status.0;
        answer.header[37] = status.1;
        self.status_number = self.status_number.wrapping_add(1);
        answer
    }

    fn step(&mut self, settings: &Settings, request: &Pdu) -> Result<(Vec<u8>, u8), Refusal> {
        let [first, flags, _, version_min, ..] = request.header;
        if first != 0x40 | opcode::LOGIN || request.tag() == NO_TAG {
            return Err(INVALID_REQUEST);
        }
        if version_min > 0 {
            return Err(VERSION);
        }
        let (stage, transit, more) = (flags >> 2 & 3, flags & 0x80 != 0, flags & 0x40 != 0);
        if more && transit || stage > 1 {
            return Err(INITIATOR_ERROR);
        }
        if let Some((rest, flags)) = self.tail.take() {
            return if request.data.is_empty() { Ok((rest, flags)) } else { Err(INVALID_REQUEST) };
        }
        self.partial.extend(&request.data);
        if more {
            return Ok((Vec::new(), stage << 2));
        }
        let keys = pairs(&std::mem::take(&mut self.partial)).ok_or(INITIATOR_ERROR)?;
        self.note(&keys);
        if !self.named {
            self.first(settings, request, &keys)?;
        }
        let (mut answer, may_pass) = self.keys_of(settings, stage, &keys)?;
        if !self.tpgt_told {
            self.tpgt_told = true;
            answer.push(("TargetAlias".to_owned(), "LIO Target".to_owned()));
            if let Some(tpgt) = settings.tpgt {
                answer.insert(0, ("TargetPortalGroupTag".to_owned(), tpgt.to_string()));
            }
        }
        let mut pass = transit && may_pass;
        if pass && self.transits_refused < settings.behaviour.refuse_transits {
            self.transits_refused += 1;
            pass = false;
        }
        let flags = if pass { 0x80 | stage << 2 | flags & 3 } else { stage << 2 };
        let mut data = text(&answer);
        if settings.behaviour.continue_bit && data.len() > 1 {
            let rest = data.split_off(data.len() / 2);
            self.tail = Some((rest, flags));
            return Ok((data, 0x40 | stage << 2));
        }
        Ok((data, flags))
    }

    fn note(&mut self, keys: &[Pair]) {
        for (key, value) in keys {
            let shown = match key.as_str() {
                "CHAP_R" | "CHAP_C" => "(not kept)".to_owned(),
                _ => value.clone(),
            };
            self.keys.push((key.clone(), shown));
        }
    }

    /// Handles the first request: initiator, target, and the decision on both.
    fn first(&mut self, settings: &Settings, request: &Pdu, keys: &[Pair]) -> Result<(), Refusal> {
        self.isid.copy_from_slice(&request.header[8..14]);
        value(keys, "InitiatorName").ok_or(MISSING)?.clone_into(&mut self.initiator);
        self.named = true;
        let behaviour = &settings.behaviour;
        if let Some((detail, _)) = behaviour.redirect {
            return Err((1, detail));
        }
        if let Some(refusal) = behaviour.refuse {
            return Err(refusal);
        }
        if value(keys, "SessionType").ok_or(MISSING)? != "Normal" {
            return Err(SESSION_TYPE);
        }
        if value(keys, "TargetName").ok_or(MISSING)? != settings.name {
            return Err(NOT_FOUND);
        }
        if request.header[14..16] != [0, 0] {
            return Err(NO_SESSION);
        }
        if !settings.enabled {
            return Err(OUT_OF_SERVICE);
        }
        if settings.acls.contains_key(&self.initiator) { Ok(()) } else { Err(FORBIDDEN) }
    }

    /// Returns the answer's keys, and `true` if the stage may end.
    fn keys_of(
        &mut self,
        settings: &Settings,
        stage: u8,
        keys: &[Pair],
    ) -> Result<(Vec<Pair>, bool), Refusal> {
        // The ACL was removed during the login.
        let acl = settings.acls.get(&self.initiator).ok_or(FORBIDDEN)?;
        if stage == 1 {
            if acl.chap.is_some() && !self.authenticated && !settings.behaviour.downgrade {
                return Err(AUTHENTICATION);
            }
            return Ok((self.negotiate(settings, keys)?, true));
        }
        let Some(credentials) = &acl.chap else {
            return self.without_chap(keys);
        };
        if settings.behaviour.downgrade {
            return Ok((vec![("AuthMethod".to_owned(), "None".to_owned())], true));
        }
        if let Some(offer) = value(keys, "AuthMethod")
            && !offer.split(',').any(|method| method == "CHAP")
        {
            return Err(AUTHENTICATION);
        }
        let behaviour = &settings.behaviour;
        match self.chap.step(keys, credentials, acl.mutual.as_ref(), &behaviour.algorithms, behaviour.proof) {
            Step::Answer(answer) => Ok((answer, false)),
            Step::Passed(answer) => {
                self.authenticated = true;
                Ok((answer, true))
            }
            Step::Failed => Err(AUTHENTICATION),
            Step::Missing => Err(MISSING),
        }
    }

    /// Handles the security stage of an initiator whose ACL asks for no credentials: only `None`
    /// can be agreed on.
    fn without_chap(&mut self, keys: &[Pair]) -> Result<(Vec<Pair>, bool), Refusal> {
        match value(keys, "AuthMethod") {
            Some(offer) if !offer.split(',').any(|method| method == "None") => Err(AUTHENTICATION),
            Some(_) => {
                self.authenticated = true;
                Ok((vec![("AuthMethod".to_owned(), "None".to_owned())], true))
            }
            None => Ok((Vec::new(), self.authenticated)),
        }
    }

    fn negotiate(&mut self, settings: &Settings, keys: &[Pair]) -> Result<Vec<Pair>, Refusal> {
        let mut answer = Vec::new();
        for (key, offered) in keys {
            let agreed = match key.as_str() {
                "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType" => continue,
                // Each side declares its own; LIO declares its `param/MaxXmitDataSegmentLength`
                // (lio.md, p).
                "MaxRecvDataSegmentLength" => SEGMENT.to_owned(),
                "HeaderDigest" => digest(&settings.behaviour.digests[0], offered)?,
                "DataDigest" => digest(&settings.behaviour.digests[1], offered)?,
                // An answer to a key that the target has proposed.
                _ if settings.behaviour.extra_keys.iter().any(|(name, _)| name == key) => continue,
                _ => match RULES.iter().find(|(name, _)| name == key) {
                    Some((_, rule)) => rule.agree(offered).unwrap_or_else(|| "Reject".to_owned()),
                    None => "NotUnderstood".to_owned(),
                },
            };
            let forced = settings.behaviour.forced_keys.get(key).cloned();
            answer.push((key.clone(), forced.unwrap_or(agreed)));
        }
        if !std::mem::replace(&mut self.extra_told, true) {
            answer.extend(settings.behaviour.extra_keys.iter().cloned());
        }
        Ok(answer)
    }
}
