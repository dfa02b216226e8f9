//! Leases, for several controllers on one database: which controllers are alive, and which of them
//! drives which agent.
//!
//! A live controller has one row with the time until which it counts as alive, and renews only this
//! row. A lease is a row per agent with the id of its holder. A controller that finds another one
//! expired deletes that row and frees its leases in one transaction. The lock on the row decides
//! between this and a late renewal. All times are the database's.
//!
//! What must never happen here: a lease freed while its holder's row stands; a time from a
//! controller's own clock.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, Row};

use super::Db;
use super::postgres::Dialer;
use super::sql::{Sql, SqlError, values};

/// The time for which a controller counts as alive after its last renewal.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// The time for which a free lease waits for the controller with the fairest claim. Afterwards any
/// controller takes it.
const FREE_GRACE: Duration = Duration::from_secs(3);

/// The channel of notifications between controllers.
const CHANNEL: &str = "mooring";

/// The database's time, in microseconds since 1970.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// A lease that a transaction relies on. If it has expired, the transaction is rolled back.
#[derive(Debug, Clone)]
pub(crate) struct Fence {
    /// The agent's name.
    pub(crate) agent: String,
    /// The controller that holds the lease.
    pub(crate) holder: String,
}

impl Fence {
    /// Fails if the lease is no longer held, in the transaction that relies on it.
    pub(super) fn check(&self, sql: &dyn Sql) -> Result<(), SqlError> {
        let held = "SELECT 1 FROM leases WHERE agent = ?1 AND holder = ?2";
        if sql.rows(held, &values![&self.agent, &self.holder])?.is_empty() {
            return Err(SqlError::Fenced(self.agent.clone()));
        }
        Ok(())
    }
}

impl Db<'_> {
    /// Forgets the controllers and leases of a backup's time: none of those controllers works on
    /// this database.
    pub(crate) fn forget_controllers(&self) -> Result<(), SqlError> {
        self.run("DELETE FROM controllers", &[])?;
        self.run("DELETE FROM leases", &[]).map(drop)
    }
}

/// The state of an agent, as the holder of its lease reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Said {
    /// `true` if the agent answers and its reports arrive.
    pub(crate) up: bool,
    /// The reason why not.
    pub(crate) why: Option<String>,
    /// The agent's orphans.
    pub(crate) orphans: BTreeMap<String, String>,
}

/// The present state of one lease.
#[derive(Debug)]
pub(crate) struct Standing {
    /// The agent's name.
    pub(crate) agent: String,
    /// The controller that drives the agent; `None` if it is not alive.
    pub(crate) holder: Option<String>,
    /// The holder's report.
    pub(crate) said: Said,
    /// The time at which the agent's row was last written. Another number means other content.
    pub(crate) written: i64,
}

/// A live controller.
#[derive(Debug)]
pub(crate) struct Member {
    /// The controller's id.
    pub(crate) id: String,
    /// The agents of the controller's configuration.
    pub(crate) enrols: Vec<String>,
    /// The number of agents that it drives.
    pub(crate) holds: i64,
}

/// The connection for renewals, leases and notifications.
pub(crate) struct Members {
    client: Client,
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// The statement that makes the missing rows of agents' leases.
fn new_leases() -> String {
    format!(
        "INSERT INTO leases (agent, since_us) SELECT name, {NOW} FROM unnest($1::text[]) AS name \
         ORDER BY name ON CONFLICT (agent) DO NOTHING"
    )
}

impl Members {
    /// Connects, and listens to the notifications of others. Their receiver ends with the
    /// connection.
    pub(crate) async fn connect(
        dialer: &Dialer,
    ) -> Result<(Self, mpsc::UnboundedReceiver<String>), SqlError> {
        let (client, mut connection) = dialer.connect_async().await?;
        let (told, notes) = mpsc::unbounded_channel();
        // The task ends with the connection, which ends with the client.
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(note) = message
                    && told.send(note.payload().to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let setting = format!("SET lock_timeout = '2s'; SET statement_timeout = '5s'; LISTEN {CHANNEL}");
        client.batch_execute(&setting).await?;
        Ok((Self { client }, notes))
    }

    /// Announces this controller with the agents that it may drive.
    pub(crate) async fn join(&self, id: &str, enrols: &[String]) -> Result<(), SqlError> {
        let sql = format!(
            "INSERT INTO controllers (id, enrols, started_us, until_us) VALUES ($1, $2, {NOW}, {NOW} + $3)"
        );
        self.client.execute(&new_leases(), &[&enrols]).await?;
        self.client.execute(&sql, &[&id, &enrols.join("\n"), &micros(LEASE)]).await?;
        Ok(())
    }

    /// Changes the agents that this controller may drive.
    pub(crate) async fn enrol(&self, id: &str, enrols: &[String]) -> Result<(), SqlError> {
        self.client.execute(&new_leases(), &[&enrols]).await?;
        let sql = "UPDATE controllers SET enrols = $2 WHERE id = $1";
        self.client.execute(sql, &[&id, &enrols.join("\n")]).await?;
        Ok(())
    }

    /// Renews this controller. Returns `false` if others had given it up: then its leases are gone.
    pub(crate) async fn renew(&self, id: &str) -> Result<bool, SqlError> {
        let sql = format!("UPDATE controllers SET until_us = {NOW} + $2 WHERE id = $1");
        Ok(self.client.execute(&sql, &[&id, &micros(LEASE)]).await? == 1)
    }

    /// Deletes expired controllers, then takes free leases of these agents: `most` at once, and all
    /// that have been free for a while. Returns `false` if this controller was given up.
    pub(crate) async fn claim(&mut self, id: &str, enrols: &[String], most: i64) -> Result<bool, SqlError> {
        let transaction = self.client.transaction().await?;
        // The row lock is held to the end: no other controller can delete our row meanwhile.
        let own = "SELECT 1 FROM controllers WHERE id = $1 FOR UPDATE";
        if transaction.query_opt(own, &[&id]).await?.is_none() {
            return Ok(false);
        }
        let reap = format!(
            "DELETE FROM controllers WHERE id IN (SELECT id FROM controllers WHERE until_us <= {NOW} AND id <> $1 \
             FOR UPDATE SKIP LOCKED) RETURNING id"
        );
        let dead: Vec<String> =
            transaction.query(&reap, &[&id]).await?.iter().map(|row| row.get(0)).collect();
        if !dead.is_empty() {
            let free = format!(
                "UPDATE leases SET holder = NULL, said = '{{}}', since_us = {NOW} WHERE holder = ANY($1)"
            );
            transaction.execute(&free, &[&dead]).await?;
            tracing::warn!(?dead, "controllers are gone: what they drove is taken over");
        }
        let take = format!(
            "UPDATE leases SET holder = $1, said = '{{}}', since_us = {NOW} WHERE agent IN \
             (SELECT agent FROM leases WHERE holder IS NULL AND agent = ANY($2) AND since_us <= {NOW} - $4 \
              ORDER BY agent LIMIT $3 FOR UPDATE SKIP LOCKED)"
        );
        transaction.execute(&take, &[&id, &enrols, &most.max(0), &0_i64]).await?;
        transaction.execute(&take, &[&id, &enrols, &i64::MAX, &micros(FREE_GRACE)]).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// The live controllers.
    pub(crate) async fn members(&self) -> Result<Vec<Member>, SqlError> {
        let sql = format!(
            "SELECT id, enrols, (SELECT count(*) FROM leases WHERE holder = controllers.id) FROM controllers \
             WHERE until_us > {NOW} ORDER BY id"
        );
        let member = |row: &Row| Member {
            id: row.get(0),
            enrols: row.get::<_, &str>(1).lines().map(str::to_owned).collect(),
            holds: row.get(2),
        };
        Ok(self.client.query(&sql, &[]).await?.iter().map(member).collect())
    }

    /// The leases of these agents.
    pub(crate) async fn standing(&self, enrols: &[String]) -> Result<Vec<Standing>, SqlError> {
        let sql = format!(
            "SELECT leases.agent, controllers.id, leases.said, \
             GREATEST(COALESCE(agents.hello_us, 0), COALESCE(agents.report_us, 0), COALESCE(agents.heard_us, 0)) FROM leases \
             LEFT JOIN controllers ON controllers.id = leases.holder AND controllers.until_us > {NOW} \
             LEFT JOIN agents ON agents.name = leases.agent WHERE leases.agent = ANY($1)"
        );
        let standing = |row: &Row| Standing {
            agent: row.get(0),
            holder: row.get(1),
            // A report that does not parse comes from a newer controller.
            said: serde_json::from_str(row.get(2)).unwrap_or_default(),
            written: row.get(3),
        };
        Ok(self.client.query(&sql, &[&enrols]).await?.iter().map(standing).collect())
    }

    /// Reports an agent's state to the other controllers.
    pub(crate) async fn say(&self, id: &str, agent: &str, said: &Said) -> Result<(), SqlError> {
        let text = serde_json::to_string(said).unwrap_or_else(|_| "{}".to_owned());
        let sql = "UPDATE leases SET said = $3 WHERE agent = $1 AND holder = $2";
        self.client.execute(sql, &[&agent, &id, &text]).await?;
        Ok(())
    }

    /// Gives leases back. The work that relies on them has ended before.
    pub(crate) async fn release(&self, id: &str, agents: &[String]) -> Result<(), SqlError> {
        let sql = format!(
            "UPDATE leases SET holder = NULL, said = '{{}}', since_us = {NOW} WHERE holder = $1 AND agent = ANY($2)"
        );
        self.client.execute(&sql, &[&id, &agents]).await?;
        Ok(())
    }

    /// Announces that this controller stops: the others take its leases.
    pub(crate) async fn leave(&mut self, id: &str) -> Result<(), SqlError> {
        let transaction = self.client.transaction().await?;
        transaction.execute("DELETE FROM controllers WHERE id = $1", &[&id]).await?;
        let free = "UPDATE leases SET holder = NULL, said = '{}', since_us = 0 WHERE holder = $1";
        transaction.execute(free, &[&id]).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Sends notifications to all listeners.
    pub(crate) async fn announce(&self, notes: &[String]) -> Result<(), SqlError> {
        let sql = "SELECT pg_notify($1, note) FROM unnest($2::text[]) AS note";
        self.client.query(sql, &[&CHANNEL, &notes]).await?;
        Ok(())
    }
}
