//! Which agent may say what of which object: the one table.
//!
//! | what an agent says | is taken |
//! |---|---|
//! | how a volume and its export are | of a volume that the database has at this agent |
//! | a receipt | of such a volume, for a wish that its export ever had |
//! | how a connection is | of a volume to which this host was wished a connection |
//! | the generations that it keeps | while they are ahead by no more than restores of a database come to |
//!
//! An agent is enrolled, and may be taken over by somebody all the same. Its word on its own objects is all that there is; its word
//! on those of others decides nothing. That it has something else at all is remembered, and told to operators as an orphan.
//!
//! What must never happen here: a proof from an agent that does not serve the volume; an end of the epochs.

use mooring_model::{AgentId, Generation, Receipt, VolumeId};

use super::Agent;
use crate::store::{Db, FencedStore, Kind, SqlError};

/// How far an agent may be ahead of this database. Each restore, and each `epoch` of an operator, is one.
const EPOCHS_AHEAD_MAX: u64 = 1 << 16;

/// No object changes so often.
const COUNTER_MAX: u64 = 1 << 48;

/// Something that an agent says.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word<'a> {
    /// How a volume is, or its export.
    Volume(VolumeId),
    /// That a nexus was revoked.
    Receipt(&'a Receipt),
    /// How a connection is.
    Connection(VolumeId),
}

impl Word<'_> {
    /// The word of metrics and logs.
    const fn kind(self) -> &'static str {
        match self {
            Self::Volume(_) => "volume",
            Self::Receipt(_) => "receipt",
            Self::Connection(_) => "connection",
        }
    }

    const fn volume(self) -> VolumeId {
        match self {
            Self::Volume(volume) | Self::Connection(volume) => volume,
            Self::Receipt(receipt) => receipt.volume,
        }
    }
}

/// Every kind of word that can be dropped.
pub(crate) const KINDS: [&str; 3] = ["connection", "receipt", "volume"];

/// Whether an agent may say this.
pub(crate) fn may_say(db: &Db<'_>, agent: AgentId, word: Word<'_>) -> Result<bool, SqlError> {
    Ok(match word {
        Word::Volume(volume) => db.storage_of(volume)? == Some(agent),
        Word::Receipt(receipt) => {
            let wished = db.spec(receipt.volume, Kind::Export)?;
            let was_wished = wished.is_some_and(|spec| receipt.generation <= spec.stamp.generation);
            was_wished && may_say(db, agent, Word::Volume(receipt.volume))?
        }
        Word::Connection(volume) => db.spec(volume, Kind::Connection(agent))?.is_some(),
    })
}

/// Keeps a receipt, or that it is proven now. Whether that was new; `None`: this agent may not say it.
pub(crate) fn keep_receipt(db: &Db<'_>, agent: AgentId, receipt: &Receipt) -> Result<Option<bool>, SqlError> {
    if may_say(db, agent, Word::Receipt(receipt))? { db.keep_receipt(receipt).map(Some) } else { Ok(None) }
}

/// Whether an agent may keep this generation. The text: why not.
pub(crate) fn may_keep(db: &Db<'_>, newest: Generation) -> Result<Result<(), String>, SqlError> {
    let epoch = db.epoch()?;
    if newest.epoch.saturating_sub(epoch) > EPOCHS_AHEAD_MAX || newest.counter > COUNTER_MAX {
        return Ok(Err(format!(
            "it says that it keeps generation {newest}, and this database is in epoch {epoch}: no history of restores comes to that. \
             Its store is damaged, or it lies: take it out of the configuration, or give it an empty state folder"
        )));
    }
    Ok(Ok(()))
}

impl Agent {
    /// Counts something that this agent may not say. It is logged once for each kind.
    pub(crate) fn drops(&self, word: Word<'_>) {
        let (kind, volume) = (word.kind(), word.volume());
        let count = {
            let mut state = self.state();
            let count = state.dropped.entry(kind).or_default();
            *count += 1;
            *count
        };
        let agent = self.entry.name.as_str();
        if count == 1 {
            tracing::warn!(agent, kind, %volume, "an agent says something of an object that is not its own: it decides nothing");
        } else {
            tracing::debug!(agent, kind, %volume, "dropped");
        }
    }
}

/// Returns `true` if something that an agent said by itself is taken; `false` is counted.
pub(super) async fn takes(store: &FencedStore, agent: &Agent, word: Word<'_>) -> bool {
    let Some(id) = agent.id() else { return false };
    let receipt = match word {
        Word::Receipt(receipt) => Some(receipt.clone()),
        Word::Volume(_) | Word::Connection(_) => None,
    };
    let (is_connection, volume) = (matches!(word, Word::Connection(_)), word.volume());
    let read = move |db: &Db<'_>| {
        let word = match &receipt {
            Some(receipt) => Word::Receipt(receipt),
            None if is_connection => Word::Connection(volume),
            None => Word::Volume(volume),
        };
        Ok(may_say(db, id, word)?)
    };
    match store.read_one("see whose a report is", read).await {
        Ok(true) => true,
        Ok(false) => {
            agent.drops(word);
            false
        }
        Err(refusal) => {
            tracing::warn!(agent = agent.entry.name, error = %refusal, "cannot see whose a report is: it is dropped");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use mooring_model::{Initiator, Proof, Revoked};

    use super::*;
    use crate::clock::Clock;
    use crate::store::{Abort, Database, Store, Wish, testing};

    const OWN: AgentId = AgentId::from_u128(9);
    const OTHER: AgentId = AgentId::from_u128(8);
    const VOLUME: VolumeId = VolumeId::from_u128(1);
    const UNKNOWN: VolumeId = VolumeId::from_u128(2);

    fn receipt(volume: VolumeId, generation: Generation) -> Receipt {
        Receipt {
            volume,
            initiator: "iqn.2026-01.lab:host1".parse::<Initiator>().unwrap(),
            attachments: Vec::new(),
            generation,
            revoked: Revoked::Nexus,
            sessions: Vec::new(),
            proof: Proof::Proven,
            began: SystemTime::UNIX_EPOCH,
            ended: None,
            reservation: None,
            cause: mooring_model::Cause::Revoke,
        }
    }

    fn on_a_store<T: Send + 'static>(work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static) -> T {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Database::embedded(dir.path().to_owned()), None, Clock::system()).unwrap();
        store.prepare("try", work).unwrap()
    }

    #[test]
    fn each_agent_says_what_the_table_allows_and_nothing_else() {
        on_a_store(|db| {
            testing::insert_volume(db, VOLUME, OWN, &BTreeMap::new())?;
            let wish = Wish::tombstone(Kind::Export, false);
            let (wished, _) = db.wish(VOLUME, Kind::Export, &wish)?;
            db.wish(VOLUME, Kind::Connection(OTHER), &Wish::tombstone(Kind::Connection(OTHER), false))?;
            let (later, epoch) = (wished.next(), Generation { epoch: wished.epoch + 1, counter: 0 });
            for (agent, word, may) in [
                (OWN, Word::Volume(VOLUME), true),
                (OTHER, Word::Volume(VOLUME), false),
                (OWN, Word::Volume(UNKNOWN), false),
                (OWN, Word::Receipt(&receipt(VOLUME, wished)), true),
                (OWN, Word::Receipt(&receipt(VOLUME, Generation::ZERO)), true),
                (OWN, Word::Receipt(&receipt(VOLUME, later)), false),
                (OWN, Word::Receipt(&receipt(VOLUME, epoch)), false),
                (OTHER, Word::Receipt(&receipt(VOLUME, wished)), false),
                (OWN, Word::Receipt(&receipt(UNKNOWN, wished)), false),
                (OTHER, Word::Connection(VOLUME), true),
                (OWN, Word::Connection(VOLUME), false),
                (OTHER, Word::Connection(UNKNOWN), false),
            ] {
                assert_eq!(may_say(db, agent, word)?, may, "{agent} {word:?}");
            }
            // What may not be said is not kept, and does not stand in the way of what may.
            assert_eq!(keep_receipt(db, OTHER, &receipt(VOLUME, wished))?, None);
            assert_eq!(db.receipt_since(VOLUME, &receipt(VOLUME, wished).initiator, wished)?, None);
            assert_eq!(keep_receipt(db, OWN, &receipt(VOLUME, wished))?, Some(true));
            Ok(())
        });
    }

    #[test]
    fn generations_that_no_restore_comes_to_are_refused() {
        on_a_store(|db| {
            let epoch = db.epoch()?;
            for (ahead, counter, may) in [
                (0, COUNTER_MAX, true),
                (EPOCHS_AHEAD_MAX, 0, true),
                (EPOCHS_AHEAD_MAX + 1, 0, false),
                (u64::MAX - epoch, 0, false),
                (0, COUNTER_MAX + 1, false),
                (0, u64::MAX, false),
            ] {
                let newest = Generation { epoch: epoch + ahead, counter };
                assert_eq!(may_keep(db, newest)?.is_ok(), may, "{newest}");
            }
            // Nor is an epoch kept that no column holds.
            assert!(db.raise_above(u64::MAX).is_err());
            assert!(db.raise_above(i64::MAX.unsigned_abs()).is_err());
            assert_eq!(db.epoch()?, epoch);
            Ok(())
        });
    }
}
