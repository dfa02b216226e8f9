//! Rotations of nexuses' secrets.
//!
//! What must never happen here: a secret that stands in clear; a rotation that outlives its nexus
//! (it is a part of its row).

use std::time::SystemTime;

use mooring_model::{Chap, Iqn, VolumeId};

use super::sql::{SqlError, values};
use super::{Db, Nexus};
use crate::domain::Rotating;

/// The stage of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The host is to know the other secrets, which are new.
    Offered,
    /// The target is to have the new secrets; the others are the old ones.
    Switched,
    /// The stage `Switched` after a rebuild: which of the two secrets is the new one is unknown.
    Settling,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Offered, Self::Switched, Self::Settling];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Switched => "switched",
            Self::Settling => "settling",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.word() == word)
    }

    /// The party that the rotation waits for.
    pub(crate) const fn shown(self) -> Rotating {
        match self {
            Self::Offered => Rotating::Host,
            Self::Switched | Self::Settling => Rotating::Target,
        }
    }
}

/// The rotation of a nexus's secrets, or the time at which the last one ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rotation {
    /// The stage; `None` if no rotation is in progress.
    pub(crate) stage: Option<Stage>,
    /// The time at which the last rotation ended.
    pub(crate) ended: Option<SystemTime>,
}

impl Db<'_> {
    /// The rotation of a nexus; `None` if there is no such nexus.
    pub(crate) fn rotation(&self, volume: VolumeId, initiator: &Iqn) -> Result<Option<Rotation>, SqlError> {
        let sql = "SELECT rotation, rotated_us FROM nexuses WHERE volume_id = ?1 AND initiator = ?2";
        self.one(sql, &values![volume, initiator], |row| {
            let word: Option<String> = row.get(0)?;
            let unknown = SqlError::Column { index: 0, what: "an unknown word" };
            let stage = word.map(|word| Stage::from_word(&word).ok_or(unknown)).transpose()?;
            Ok(Rotation { stage, ended: row.time_opt(1)? })
        })
    }

    /// A volume's rotations in progress, by their initiators.
    pub(crate) fn rotations_of(&self, volume: VolumeId) -> Result<Vec<(Iqn, Stage)>, SqlError> {
        let sql = "SELECT initiator, rotation FROM nexuses WHERE volume_id = ?1 AND rotation IS NOT NULL \
                   ORDER BY initiator";
        self.all(sql, &values![volume], |row| Ok((row.parsed(0)?, row.word(1, Stage::from_word)?)))
    }

    /// The other secrets of a nexus, with its users; `None` if there are none.
    pub(crate) fn other_secrets(&self, volume: VolumeId, initiator: &Iqn) -> Result<Option<Chap>, SqlError> {
        let Some(Nexus(mut chap)) = self.nexus(volume, initiator)? else { return Ok(None) };
        let sql = "SELECT other_secret, other_mutual FROM nexuses \
                   WHERE volume_id = ?1 AND initiator = ?2 AND other_secret IS NOT NULL";
        let kept = self.one(sql, &values![volume, initiator], |row| {
            Ok((row.get::<String>(0)?, row.get::<Option<String>>(1)?))
        })?;
        let Some((own, mutual)) = kept else { return Ok(None) };
        let (id, name) = (volume.to_string(), initiator.to_string());
        chap.initiator.secret = self.open_other_secret(&id, &name, &own)?;
        if let (Some(side), Some(kept)) = (&mut chap.mutual, mutual) {
            side.secret = self.open_other_mutual(&id, &name, &kept)?;
        }
        Ok(Some(chap))
    }

    /// Stores the secrets of a nexus and the stage of their rotation. The users stay.
    pub(crate) fn put_secrets(
        &self,
        volume: VolumeId,
        initiator: &Iqn,
        own: &Chap,
        rotation: Option<(Stage, Option<&Chap>)>,
    ) -> Result<(), SqlError> {
        let (secret, mutual) = self.seal_secrets(volume, initiator, own)?;
        let other = rotation.and_then(|(_, other)| other);
        let (other_secret, other_mutual) = match other {
            Some(other) => {
                self.seal_other_secrets(volume, initiator, other).map(|(own, mutual)| (Some(own), mutual))?
            }
            None => (None, None),
        };
        let sql = "UPDATE nexuses SET secret = ?3, mutual_secret = ?4, rotation = ?5, other_secret = ?6, other_mutual = ?7 \
                   WHERE volume_id = ?1 AND initiator = ?2";
        let stage = rotation.map(|(stage, _)| stage.word());
        self.run(sql, &values![volume, initiator, secret, mutual, stage, other_secret, other_mutual])
            .map(drop)
    }

    /// Ends a rotation: deletes the other secrets of a nexus. The time is stored if new secrets
    /// came by it.
    pub(crate) fn end_rotation(&self, volume: VolumeId, initiator: &Iqn) -> Result<(), SqlError> {
        let sql = "UPDATE nexuses SET rotated_us = CASE rotation WHEN 'switched' THEN ?3 ELSE rotated_us END, rotation = NULL, \
                   other_secret = NULL, other_mutual = NULL WHERE volume_id = ?1 AND initiator = ?2";
        self.run(sql, &values![volume, initiator, self.now]).map(drop)
    }
}
