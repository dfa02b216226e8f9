//! Marks, which tell whether a transaction whose commit was not answered has happened.
//!
//! The server keeps the outcome of each transaction by its number, but a number alone proves
//! nothing. After a crash the server reuses numbers whose transactions left nothing on its disk.
//! "Committed" may then be said of another transaction. So every change leaves its own mark in a
//! row of its connection. The number tells whether the server is still busy with the change;
//! afterwards the mark tells whether it happened.
//!
//! What must never happen here: a mark looked for while the server may still commit; a mark shared
//! by two transactions.

use postgres::error::SqlState;
use postgres::{Client, SimpleQueryMessage};
use uuid::Uuid;

use crate::store::sql::SqlError;

/// The row of a connection that writes. The connection's thread makes one change after the other,
/// so the last mark is enough.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot(Uuid);

/// A change that has begun.
#[derive(Debug)]
pub(super) struct Ticket {
    slot: Slot,
    mark: Uuid,
    /// The server's number of the transaction.
    number: String,
    /// The server's timeline at that time: another one after a standby was promoted.
    timeline: String,
}

/// The outcome of a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The change happened.
    Committed,
    /// The change did not happen, and will not.
    Nothing,
    /// The server is still busy with the change.
    Busy,
    /// A standby leads now. It may lack changes that the old leader has.
    Unknown,
}

/// The server's timeline, as its log files are named.
pub(super) fn timeline(client: &mut Client) -> Result<String, postgres::Error> {
    Ok(client.query_one("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)", &[])?.get(0))
}

/// Deletes the rows of connections that are long gone; an idle one makes its row again.
pub(super) fn tidy(client: &mut Client) -> Result<(), postgres::Error> {
    client.batch_execute("DELETE FROM commit_marks WHERE marked_at < now() - interval '30 days'")
}

impl Slot {
    /// A slot for a new thread.
    pub(super) fn new() -> Self {
        Self(Uuid::new_v4())
    }

    /// Begins a change and marks it, in one round trip.
    pub(super) fn begin(self, client: &mut Client, timeline: &str) -> Result<Ticket, SqlError> {
        let mark = Uuid::new_v4();
        // Both values are ours: hexadecimal digits and hyphens. No other transaction conflicts over
        // the row.
        let begin = format!(
            "BEGIN ISOLATION LEVEL SERIALIZABLE; \
             INSERT INTO commit_marks (slot, mark, marked_at) VALUES ('{}', '{mark}', now()) \
             ON CONFLICT (slot) DO UPDATE SET mark = excluded.mark, marked_at = excluded.marked_at \
             RETURNING pg_current_xact_id()::text",
            self.0
        );
        let answer = client.simple_query(&begin)?;
        let number = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        let number = number.ok_or_else(|| SqlError::Unreachable("the server gives no number".to_owned()))?;
        Ok(Ticket { slot: self, mark, number, timeline: timeline.to_owned() })
    }
}

impl Ticket {
    /// Asks for the outcome on another connection.
    pub(super) fn outcome(&self, client: &mut Client, timeline: &str) -> Result<Outcome, postgres::Error> {
        let asked = client.query_one("SELECT pg_xact_status($1::text::xid8)", &[&self.number]);
        match asked.map(|row| row.get::<_, Option<String>>(0)) {
            Ok(Some(word)) if word == "in progress" => return Ok(Outcome::Busy),
            Ok(_) => {}
            // The server has not given this number (again): it calls the number one of the future.
            Err(error) if error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE) => {}
            Err(error) => return Err(error),
        }
        // A statement of its own: it sees everything committed before the answer above.
        let sql = "SELECT 1 FROM commit_marks WHERE slot = $1::text AND mark = $2::text";
        let found = client.query_opt(sql, &[&self.slot.0.to_string(), &self.mark.to_string()])?;
        Ok(match found {
            Some(_) => Outcome::Committed,
            None if timeline != self.timeline => Outcome::Unknown,
            None => Outcome::Nothing,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;
    use crate::store::contract::pg::Server;
    use crate::store::postgres::{Dialer, Postgres, PostgresOptions};

    fn connection(server: &Server, name: &str) -> Client {
        let options = PostgresOptions::new(&server.database(name), None, None, false).unwrap();
        drop(Postgres::open(options.clone()).unwrap());
        Dialer::new(options).unwrap().connect(true).unwrap()
    }

    #[test]
    fn a_change_has_happened_when_its_mark_is_there_and_not_before() {
        let server = Server::shared();
        let (mut ours, mut other) = (connection(server, "marks"), connection(server, "marks"));
        let history = timeline(&mut ours).unwrap();
        let slot = Slot::new();
        let first = slot.begin(&mut ours, &history).unwrap();
        assert_eq!(first.outcome(&mut other, &history).unwrap(), Outcome::Busy);
        ours.batch_execute("COMMIT").unwrap();
        assert_eq!(first.outcome(&mut other, &history).unwrap(), Outcome::Committed);
        let second = slot.begin(&mut ours, &history).unwrap();
        ours.batch_execute("ROLLBACK").unwrap();
        assert_eq!(second.outcome(&mut other, &history).unwrap(), Outcome::Nothing);
        assert_eq!(second.outcome(&mut other, "00000099").unwrap(), Outcome::Unknown);
        // A change that the standby has received happened there, too.
        assert_eq!(first.outcome(&mut other, "00000099").unwrap(), Outcome::Committed);
        let future = Ticket { number: "999999999".to_owned(), ..second };
        assert_eq!(future.outcome(&mut other, &history).unwrap(), Outcome::Nothing);
    }

    #[test]
    fn a_number_that_is_given_again_after_a_crash_proves_nothing() {
        let server = Server::new();
        let mut ours = connection(&server, "marks");
        let history = timeline(&mut ours).unwrap();
        let slot = Slot::new();
        let lost = slot.begin(&mut ours, &history).unwrap();
        server.kill();
        server.start();
        // The crash forgot that the number was given.
        let mut other = connection(&server, "marks");
        for _ in 0..20 {
            let again = Slot::new().begin(&mut other, &history).unwrap();
            other.batch_execute("COMMIT").unwrap();
            if again.number == lost.number {
                let said = other.query_one("SELECT pg_xact_status($1::text::xid8)", &[&lost.number]).unwrap();
                assert_eq!(said.get::<_, &str>(0), "committed", "the control: the number alone would lie");
                assert_eq!(lost.outcome(&mut other, &history).unwrap(), Outcome::Nothing);
                return;
            }
        }
        // The server skipped the number this time: its answer about it is still nothing.
        assert_eq!(lost.outcome(&mut other, &history).unwrap(), Outcome::Nothing);
    }

    #[test]
    fn rows_of_connections_that_are_gone_are_forgotten() {
        let server = Server::shared();
        let name = Uuid::new_v4().simple().to_string();
        let mut ours = connection(server, &name);
        let slot = Slot::new();
        let ticket = slot.begin(&mut ours, "1").unwrap();
        ours.batch_execute("COMMIT; UPDATE commit_marks SET marked_at = now() - interval '31 days'").unwrap();
        tidy(&mut ours).unwrap();
        assert_eq!(ticket.outcome(&mut ours, "1").unwrap(), Outcome::Nothing);
        let next = slot.begin(&mut ours, "1").unwrap();
        ours.batch_execute("COMMIT").unwrap();
        assert_eq!(next.outcome(&mut ours, "1").unwrap(), Outcome::Committed);
    }
}
