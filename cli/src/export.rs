//! `mooring export`: grant, revoke, show.
//!
//! An export's spec travels as a whole, and the agent returns it without secrets. So every change
//! here takes the kept spec and changes one grant: a credential with its user and an empty secret
//! means "keep the secret that you have".
//!
//! What must never happen here: a change of one grant that touches another; a live session ended
//! without --force; "revoked" said of a nexus whose receipt is not proven.

use mooring_api::v1::{self, put_export_request};
use mooring_model::{AttachmentId, Chap, Iqn, LUN_DEFAULT, Mode, Portal, VolumeId};

use crate::args::{GrantArgs, RevokeArgs};
use crate::chap;
use crate::error::{Exit, Failure};
use crate::output::{ExportShown, Granted, Reply, Revoked};
use crate::select::find;
use crate::session::{Session, stamp_for, twice};
use crate::volume_ref::VolumeRef;

/// The grant to make, with its credentials read.
pub(crate) struct GrantSpec {
    volume: VolumeRef,
    initiator: Iqn,
    mode: Mode,
    credentials: Credentials,
    portals: Vec<Portal>,
    attachment: Option<AttachmentId>,
}

/// The change of a grant's credentials.
enum Credentials {
    Keep,
    Remove,
    Set(Chap),
}

impl GrantSpec {
    /// Reads the credentials that the arguments name.
    pub(crate) fn resolve(args: GrantArgs) -> Result<Self, Failure> {
        let credentials = match chap::read(&args)? {
            Some(chap) => Credentials::Set(chap),
            None if args.no_chap => Credentials::Remove,
            None => Credentials::Keep,
        };
        Ok(Self {
            volume: args.volume,
            initiator: args.initiator,
            mode: args.mode,
            credentials,
            portals: args.portals,
            attachment: args.attachment,
        })
    }

    /// Puts this grant into the kept spec.
    fn apply(&self, mut spec: v1::ExportSpec) -> v1::ExportSpec {
        if !self.portals.is_empty() {
            spec.portals = self.portals.iter().map(ToString::to_string).collect();
        }
        let initiator = self.initiator.to_string();
        let index = spec.grants.iter().position(|grant| grant.initiator == initiator).unwrap_or_else(|| {
            let lun = u32::from(LUN_DEFAULT.0);
            spec.grants.push(v1::Grant { initiator, lun, ..Default::default() });
            spec.grants.len() - 1
        });
        let grant = &mut spec.grants[index];
        grant.set_mode(self.mode.into());
        if self.mode == Mode::ReadWrite {
            grant.barrier.clear();
        }
        match &self.credentials {
            Credentials::Keep => {}
            Credentials::Remove => grant.chap = None,
            Credentials::Set(chap) => grant.chap = Some(chap_to_wire(chap)),
        }
        if let Some(attachment) = self.attachment.map(|id| id.to_string())
            && !grant.attachment_ids.contains(&attachment)
        {
            grant.attachment_ids.push(attachment);
        }
        spec
    }
}

fn chap_to_wire(chap: &Chap) -> v1::Chap {
    let side = |side: &mooring_model::ChapSide| v1::ChapSide {
        user: side.user.clone(),
        secret: side.secret.expose().to_owned(),
    };
    v1::Chap { initiator: Some(side(&chap.initiator)), mutual: chap.mutual.as_ref().map(side) }
}

/// The kept spec; if nothing is exported, an empty one with the volume's own names.
fn kept_spec(status: &v1::VolumeStatus) -> v1::ExportSpec {
    use v1::export_identity::Kind;
    let mut spec = status.export_spec.clone().unwrap_or_default();
    spec.identity.get_or_insert(v1::ExportIdentity { kind: Some(Kind::Derived(v1::DerivedIdentity {})) });
    spec
}

async fn put(
    session: &Session,
    id: VolumeId,
    status: &v1::VolumeStatus,
    spec: v1::ExportSpec,
    live: v1::LiveSessions,
) -> Result<v1::PutExportResponse, Failure> {
    let digest = mooring_api::digest(&spec, &status.export_opaque);
    session
        .put_export(v1::PutExportRequest {
            sender: Some(session.sender()?),
            volume_id: id.to_string(),
            stamp: Some(stamp_for(status.export_stamp.as_ref(), digest)?),
            wish: Some(put_export_request::Wish::Spec(spec)),
            opaque: status.export_opaque.clone(),
            deadline_ms: session.deadline_ms(),
            live_sessions: live.into(),
            reservations_copy: String::new(),
        })
        .await
}

/// `export grant`.
pub(crate) async fn grant(session: &Session, grant: &GrantSpec) -> Result<Reply<Granted>, Failure> {
    twice(async || {
        let (id, status) = find(session, &grant.volume).await?;
        let spec = grant.apply(kept_spec(&status));
        // A grant removes nothing. If the agent finds otherwise, it refuses.
        let response = put(session, id, &status, spec.clone(), v1::LiveSessions::Refuse).await?;
        let done = response.done;
        let initiator = grant.initiator.to_string();
        let wanted =
            spec.grants.iter().find(|grant| grant.initiator == initiator).cloned().unwrap_or_default();
        Ok(Reply::when(done, Granted::new(&status, &wanted, &response)))
    })
    .await
}

/// `export revoke`.
pub(crate) async fn revoke(session: &Session, args: &RevokeArgs) -> Result<Reply<Revoked>, Failure> {
    twice(async || {
        let (id, status) = find(session, &args.volume).await?;
        let initiator = args.initiator.to_string();
        let mut spec = kept_spec(&status);
        let before = spec.grants.len();
        spec.grants.retain(|grant| grant.initiator != initiator);
        if spec.grants.len() == before {
            return Ok(already_revoked(&status, &initiator));
        }
        let live = if args.force { v1::LiveSessions::Cut } else { v1::LiveSessions::Refuse };
        let response = put(session, id, &status, spec, live).await?;
        let receipt = response.receipts.iter().find(|receipt| receipt.initiator == initiator);
        let proven = receipt.is_some_and(|receipt| receipt.proven);
        Ok(Reply::when(proven, Revoked::new(&status, &initiator, true, receipt, response.report.as_ref())))
    })
    .await
}

/// Answers a revoke of something that is not granted. The last revoke's receipt decides: while it
/// is unproven, so is this.
fn already_revoked(status: &v1::VolumeStatus, initiator: &str) -> Reply<Revoked> {
    let receipt = status.receipts.iter().find(|receipt| receipt.initiator == initiator);
    let proven = receipt.is_none_or(|receipt| receipt.proven);
    let answer = Revoked::new(status, initiator, false, receipt, status.export.as_ref());
    Reply { exit: if proven { Exit::Ok } else { Exit::Pending }, answer }
}

/// `export show`.
pub(crate) async fn show(session: &Session, volume: &VolumeRef) -> Result<Reply<ExportShown>, Failure> {
    let (_, status) = find(session, volume).await?;
    Ok(Reply::ok(ExportShown::of_status(&status)))
}

#[cfg(test)]
mod tests {
    use mooring_model::{ChapSide, Secret};

    use super::*;

    fn grant_spec(mode: Mode, credentials: Credentials) -> GrantSpec {
        GrantSpec {
            volume: "data".parse().unwrap(),
            initiator: "iqn.2026-01.lab:host1".parse().unwrap(),
            mode,
            credentials,
            portals: Vec::new(),
            attachment: Some(AttachmentId::from_u128(9)),
        }
    }

    /// A spec as an agent returns it: with users, without secrets.
    fn kept() -> v1::ExportSpec {
        let grant = |name: &str| v1::Grant {
            initiator: format!("iqn.2026-01.lab:{name}"),
            lun: 1,
            mode: v1::Mode::ReadWrite.into(),
            chap: Some(v1::Chap {
                initiator: Some(v1::ChapSide { user: name.to_owned(), secret: String::new() }),
                mutual: None,
            }),
            attachment_ids: vec![AttachmentId::from_u128(9).to_string()],
            barrier: String::new(),
        };
        v1::ExportSpec {
            portals: vec!["10.0.0.1:3260".to_owned()],
            grants: vec![grant("host2"), grant("host1")],
            ..Default::default()
        }
    }

    #[test]
    fn a_change_of_mode_touches_nothing_else() {
        let changed = grant_spec(Mode::ReadOnly, Credentials::Keep).apply(kept());
        let mut want = kept();
        want.grants[1].set_mode(v1::Mode::ReadOnly);
        assert_eq!(changed, want);
    }

    #[test]
    fn a_new_grant_is_added_and_credentials_are_set_and_removed() {
        let side = |user: &str| ChapSide { user: user.into(), secret: Secret::new("secret-of-twelve") };
        let set = Credentials::Set(Chap { initiator: side("new"), mutual: None });
        let mut spec = kept();
        spec.grants.remove(1);
        let spec = grant_spec(Mode::ReadWrite, set).apply(spec);
        assert_eq!(spec.grants[0], kept().grants[0]);
        assert_eq!(spec.grants[1].lun, 1);
        assert_eq!(
            spec.grants[1].chap.as_ref().unwrap().initiator.as_ref().unwrap().secret,
            "secret-of-twelve"
        );
        let spec = grant_spec(Mode::ReadWrite, Credentials::Remove).apply(spec);
        assert_eq!((spec.grants.len(), &spec.grants[1].chap), (2, &None));
        assert_eq!(spec.grants[1].attachment_ids.len(), 1);
    }
}
