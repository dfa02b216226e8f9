//! The one table of what the controller takes from which agent.
//!
//! | an agent's word | is taken |
//! |---|---|
//! | the state of a volume and its export | of a volume that the database has at this agent |
//! | a receipt | of such a volume, for a spec that its export has or had |
//! | a receipt of access that is being taken away there | of a volume that the database has at this agent, for any spec |
//! | the same, of a volume that the database has elsewhere or nowhere | as the end of that access only, kept apart by the agent |
//! | the state of a connection | of a volume to which this host was given a connection spec |
//! | the generations that it stores | while they are ahead by no more than restores of a database can explain |
//!
//! Somebody may take over an enrolled agent. Nothing but its own word tells of its own objects; its
//! word on the objects of other agents decides nothing. That it has such an object is remembered,
//! and reported to operators as an orphan. Texts of agents are cleaned before they are kept.
//!
//! What must never happen here: a proof from an agent that does not serve the volume; an end of the
//! epochs; a text of an agent kept that controls a terminal.

use mooring_api::v1;
use mooring_model::{AgentId, ConnectionReport, Generation, Receipt, VolumeId};

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
        Word::Receipt(receipt) => db.has_had_export(agent, receipt.volume, receipt.generation)?,
        Word::Connection(volume) => db.spec_stamp(volume, Kind::Connection(agent))?.is_some(),
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

/// Returns `false` for a character that controls a terminal, changes the direction of the text
/// around it, or takes no room.
fn shows(c: char) -> bool {
    let hides = matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    !hides && !c.is_control()
}

/// Returns an agent's text in one line without such characters: logs, answers and messages repeat
/// it.
pub(crate) fn plain(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => ' ',
        c if shows(c) => c,
        _ => char::REPLACEMENT_CHARACTER,
    };
    text.trim_end().chars().map(shown).collect()
}

/// Cleans the texts of problems, as they come from the wire.
pub(super) fn clean(problems: &mut [v1::Problem]) {
    for problem in problems {
        problem.object = plain(&problem.object);
        problem.text = plain(&problem.text);
    }
}

fn clean_health(health: &mut Option<v1::Health>) {
    for reason in health.iter_mut().flat_map(|health| &mut health.reasons) {
        reason.code = plain(&reason.code);
        if let Some(problem) = &mut reason.problem {
            clean(std::slice::from_mut(problem));
        }
    }
}

/// Cleans the words by which an agent names itself.
pub(super) fn clean_hello(hello: &mut v1::HelloResponse) {
    for text in [&mut hello.software, &mut hello.agent_id, &mut hello.host_name, &mut hello.cluster_id] {
        *text = plain(text);
    }
}

/// Cleans the texts of an agent's capabilities.
pub(super) fn clean_capabilities(new: &mut v1::Capabilities) {
    new.host_name = plain(&new.host_name);
    new.kernel_release = plain(&new.kernel_release);
    clean(&mut new.problems);
    clean_health(&mut new.health);
    for pool in &mut new.pools {
        clean_health(&mut pool.health);
    }
    for transport in &mut new.transports {
        clean_health(&mut transport.health);
    }
}

/// Cleans the texts of a connection's report.
pub(super) fn cleaned(mut report: ConnectionReport) -> ConnectionReport {
    for problem in &mut report.problems {
        problem.object = plain(&problem.object);
        problem.text = plain(&problem.text);
    }
    for holder in &mut report.holders {
        *holder = plain(holder);
    }
    report
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
    use crate::store::{Abort, Database, SpecContent, Store, testing};

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
            let content = SpecContent::tombstone(Kind::Export, false);
            let (current, _) = db.put_spec(VOLUME, Kind::Export, &content)?;
            db.put_spec(
                VOLUME,
                Kind::Connection(OTHER),
                &SpecContent::tombstone(Kind::Connection(OTHER), false),
            )?;
            let (later, epoch) = (current.next(), Generation { epoch: current.epoch + 1, counter: 0 });
            for (agent, word, may) in [
                (OWN, Word::Volume(VOLUME), true),
                (OTHER, Word::Volume(VOLUME), false),
                (OWN, Word::Volume(UNKNOWN), false),
                (OWN, Word::Receipt(&receipt(VOLUME, current)), true),
                (OWN, Word::Receipt(&receipt(VOLUME, Generation::ZERO)), true),
                (OWN, Word::Receipt(&receipt(VOLUME, later)), false),
                (OWN, Word::Receipt(&receipt(VOLUME, epoch)), false),
                (OTHER, Word::Receipt(&receipt(VOLUME, current)), false),
                (OWN, Word::Receipt(&receipt(UNKNOWN, current)), false),
                (OTHER, Word::Connection(VOLUME), true),
                (OWN, Word::Connection(VOLUME), false),
                (OTHER, Word::Connection(UNKNOWN), false),
            ] {
                assert_eq!(may_say(db, agent, word)?, may, "{agent} {word:?}");
            }
            // A statement that may not be made is not kept, and does not stand in the way of one
            // that may.
            assert_eq!(keep_receipt(db, OTHER, &receipt(VOLUME, current))?, None);
            assert_eq!(db.receipt_since(VOLUME, &receipt(VOLUME, current).initiator, current)?, None);
            assert_eq!(keep_receipt(db, OWN, &receipt(VOLUME, current))?, Some(true));
            Ok(())
        });
    }

    #[test]
    fn an_agents_text_is_one_line_and_draws_nothing() {
        for (said, shown) in [
            ("no room is left", "no room is left"),
            ("/dev/vg0/\u{fc}\u{5d0}\u{4e2d}", "/dev/vg0/\u{fc}\u{5d0}\u{4e2d}"),
            ("one\n\ttwo\n", "one  two"),
            ("\u{1b}[2Ja\u{202e}b\u{200b}", "\u{fffd}[2Ja\u{fffd}b\u{fffd}"),
        ] {
            assert_eq!(plain(said), shown, "{said:?}");
        }
        let problem = || v1::Problem { object: "o\u{7}".to_owned(), text: "t\u{2066}".to_owned(), cure: 0 };
        let reason = || v1::HealthReason {
            code: "c\u{7}".to_owned(),
            problem: Some(problem()),
            ..v1::HealthReason::default()
        };
        let health = || Some(v1::Health { reasons: vec![reason()], ..v1::Health::default() });
        let mut new = v1::Capabilities {
            host_name: "h\u{7}".to_owned(),
            kernel_release: "k\u{7}".to_owned(),
            problems: vec![problem()],
            health: health(),
            pools: vec![v1::Pool { health: health(), ..v1::Pool::default() }],
            transports: vec![v1::Transport { health: health(), ..v1::Transport::default() }],
            ..v1::Capabilities::default()
        };
        clean_capabilities(&mut new);
        let text = format!("{new:?}");
        // Debug escapes what it cannot show.
        assert!(!text.contains("\\u{7}") && !text.contains("\\u{2066}"), "{text}");
        assert_eq!(text.matches("o\u{fffd}").count(), 4, "{text}");
        assert_eq!(text.matches("c\u{fffd}").count(), 3, "{text}");
    }

    #[test]
    fn an_agent_that_greets_draws_nothing() {
        let odd = || "a\u{1b}[2J".to_owned();
        let mut hello = v1::HelloResponse {
            software: odd(),
            agent_id: odd(),
            host_name: odd(),
            cluster_id: odd(),
            ..v1::HelloResponse::default()
        };
        clean_hello(&mut hello);
        for text in [hello.software, hello.agent_id, hello.host_name, hello.cluster_id] {
            assert_eq!(text, "a\u{fffd}[2J");
        }
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
