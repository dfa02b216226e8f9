//! The one table of what the controller takes from which agent.
//!
//! | an agent's word | is taken |
//! |---|---|
//! | the state of a volume and its export | of a volume that the database has at this agent |
//! | a receipt | of such a volume, for a spec that its export has or had |
//! | the state of a connection | of a volume to which this host was given a connection spec |
//! | the generations that it stores | while they are ahead by no more than restores of a database can explain |
//!
//! Somebody may take over an enrolled agent. Nothing but its own word tells of its own objects; its
//! word on the objects of other agents decides nothing. That it has such an object is remembered,
//! and reported to operators as an orphan.
//!
//! What must never happen here: a proof from an agent that does not serve the volume; an end of the epochs.

use mooring_model::{AgentId, Generation, Receipt, VolumeId};

use super::Agent;
use crate::store::{Db, FencedStore, Kind, SqlError};

/// Largest number of epochs by which an agent may be ahead of this database. Each restore, and each
/// `epoch` of an operator, adds one.
const EPOCHS_AHEAD_MAX: u64 = 1 << 16;

/// Largest counter of a generation that is believed: no object changes so often.
const COUNTER_MAX: u64 = 1 << 48;

/// One statement of an agent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word<'a> {
    /// The state of a volume, or of its export.
    Volume(VolumeId),
    /// The proof that a nexus was revoked.
    Receipt(&'a Receipt),
    /// The state of a connection.
    Connection(VolumeId),
}

impl Word<'_> {
    /// Name of this kind in metrics and logs.
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

/// Returns `true` if an agent may say this.
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

/// Keeps a new receipt, or the proof of one that is kept. `Some(true)`: that was news; `None`: this
/// agent may not say it.
pub(crate) fn keep_receipt(db: &Db<'_>, agent: AgentId, receipt: &Receipt) -> Result<Option<bool>, SqlError> {
    if may_say(db, agent, Word::Receipt(receipt))? { db.keep_receipt(receipt).map(Some) } else { Ok(None) }
}

/// Checks that an agent may store this generation. The inner error says why not.
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
    /// Counts a statement that this agent may not make, and logs the first of each kind.
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

/// Returns `true` if a statement that an agent made by itself is taken. Counts it if not.
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
            // A statement that may not be made is not kept, and does not stand in the way of one
            // that may.
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
            // An epoch that no column can hold is not kept either.
            assert!(db.raise_above(u64::MAX).is_err());
            assert!(db.raise_above(i64::MAX.unsigned_abs()).is_err());
            assert_eq!(db.epoch()?, epoch);
            Ok(())
        });
    }
}
