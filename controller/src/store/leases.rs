//! Who is alive and who drives which agent, for several controllers on one database.
//!
//! A controller that is alive keeps one row with a moment until which it may be believed; that is all that it renews. A
//! lease is a row per agent with its holder's id. Whoever finds a controller whose moment has passed takes its row away and
//! frees its leases in one transaction: the lock on that row decides between it and a renewal that comes late. All moments
//! are the database's.
//!
//! What must never happen here: a lease freed whose holder's row stands; a moment of a controller's own clock.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, Row};

use super::Db;
use super::postgres::Dialer;
use super::sql::{Sql, SqlError, values};

/// How long a controller is believed to be alive after its last word.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// How long a free lease waits for whom it would be fair to have it. After that, whoever sees it takes it.
const FREE_GRACE: Duration = Duration::from_secs(3);

/// The channel of the notes between controllers.
const CHANNEL: &str = "mooring";

/// The database's time, in microseconds since 1970.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// A lease that a transaction relies on: over, and nothing of it is kept.
#[derive(Debug, Clone)]
pub(crate) struct Fence {
    /// The agent's name.
    pub(crate) agent: String,
    /// The controller that holds it.
    pub(crate) holder: String,
}

impl Fence {
    /// Whether it holds, in the transaction that relies on it.
    pub(super) fn check(&self, sql: &dyn Sql) -> Result<(), SqlError> {
        let held = "SELECT 1 FROM leases WHERE agent = ?1 AND holder = ?2";
        if sql.rows(held, &values![&self.agent, &self.holder])?.is_empty() {
            return Err(SqlError::Fenced(self.agent.clone()));
        }
        Ok(())
    }
}

impl Db<'_> {
    /// Forgets who was alive and drove what when a backup was made: none of them works on this database.
    pub(crate) fn forget_controllers(&self) -> Result<(), SqlError> {
        self.run("DELETE FROM controllers", &[])?;
        self.run("DELETE FROM leases", &[]).map(drop)
    }
}

/// How an agent is, in its holder's words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Said {
    /// It answers, and its reports come.
    pub(crate) up: bool,
    /// Why not.
    pub(crate) why: Option<String>,
    /// What it has and nobody knows.
    pub(crate) orphans: BTreeMap<String, String>,
}

/// One lease as it stands.
#[derive(Debug)]
pub(crate) struct Standing {
    /// The agent's name.
    pub(crate) agent: String,
    /// Who drives it, if that one is alive.
    pub(crate) holder: Option<String>,
    /// In the holder's words.
    pub(crate) said: Said,
    /// When the agent's row was written last: another number, another content.
    pub(crate) written: i64,
}

/// A controller that is alive.
#[derive(Debug)]
pub(crate) struct Member {
    /// Its id.
    pub(crate) id: String,
    /// The agents of its configuration.
    pub(crate) enrols: Vec<String>,
    /// How many it drives.
    pub(crate) holds: i64,
}

/// The connection for all of this.
pub(crate) struct Members {
    client: Client,
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Rows of the leases of agents that have none yet.
fn new_leases() -> String {
    format!(
        "INSERT INTO leases (agent, since_us) SELECT name, {NOW} FROM unnest($1::text[]) AS name \
         ORDER BY name ON CONFLICT (agent) DO NOTHING"
    )
}

impl Members {
    /// Connects, and listens to the notes of others. Their receiver ends with the connection.
    pub(crate) async fn connect(
        dialer: &Dialer,
    ) -> Result<(Self, mpsc::UnboundedReceiver<String>), SqlError> {
        let (client, mut connection) = dialer.connect_async().await?;
        let (told, notes) = mpsc::unbounded_channel();
        // Ends with the connection, which ends with the client.
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

    /// Says that this controller is there, with the agents that it may drive.
    pub(crate) async fn join(&self, id: &str, enrols: &[String]) -> Result<(), SqlError> {
        let sql = format!(
            "INSERT INTO controllers (id, enrols, started_us, until_us) VALUES ($1, $2, {NOW}, {NOW} + $3)"
        );
        self.client.execute(&new_leases(), &[&enrols]).await?;
        self.client.execute(&sql, &[&id, &enrols.join("\n"), &micros(LEASE)]).await?;
        Ok(())
    }

    /// Says which agents this controller may drive from now on.
    pub(crate) async fn enrol(&self, id: &str, enrols: &[String]) -> Result<(), SqlError> {
        self.client.execute(&new_leases(), &[&enrols]).await?;
        let sql = "UPDATE controllers SET enrols = $2 WHERE id = $1";
        self.client.execute(sql, &[&id, &enrols.join("\n")]).await?;
        Ok(())
    }

    /// Says that this controller is still there. Whether others still believed it: if not, its leases are gone.
    pub(crate) async fn renew(&self, id: &str) -> Result<bool, SqlError> {
        let sql = format!("UPDATE controllers SET until_us = {NOW} + $2 WHERE id = $1");
        Ok(self.client.execute(&sql, &[&id, &micros(LEASE)]).await? == 1)
    }

    /// Takes away those who are not alive, then takes free leases of these agents: `most` at once, and all that nobody took
    /// for a while. Whether this controller is still believed.
    pub(crate) async fn claim(&mut self, id: &str, enrols: &[String], most: i64) -> Result<bool, SqlError> {
        let transaction = self.client.transaction().await?;
        // Held to the end: nobody takes our row away in the middle.
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

    /// Those who are alive.
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

    /// Leases of these agents.
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
            // What does not parse was written by a newer controller.
            said: serde_json::from_str(row.get(2)).unwrap_or_default(),
            written: row.get(3),
        };
        Ok(self.client.query(&sql, &[&enrols]).await?.iter().map(standing).collect())
    }

    /// Tells others how an agent is.
    pub(crate) async fn say(&self, id: &str, agent: &str, said: &Said) -> Result<(), SqlError> {
        let text = serde_json::to_string(said).unwrap_or_else(|_| "{}".to_owned());
        let sql = "UPDATE leases SET said = $3 WHERE agent = $1 AND holder = $2";
        self.client.execute(sql, &[&agent, &id, &text]).await?;
        Ok(())
    }

    /// Gives leases back; what relies on them has ended before.
    pub(crate) async fn release(&self, id: &str, agents: &[String]) -> Result<(), SqlError> {
        let sql = format!(
            "UPDATE leases SET holder = NULL, said = '{{}}', since_us = {NOW} WHERE holder = $1 AND agent = ANY($2)"
        );
        self.client.execute(&sql, &[&id, &agents]).await?;
        Ok(())
    }

    /// Says that this controller stops: whoever sees it takes its leases.
    pub(crate) async fn leave(&mut self, id: &str) -> Result<(), SqlError> {
        let transaction = self.client.transaction().await?;
        transaction.execute("DELETE FROM controllers WHERE id = $1", &[&id]).await?;
        let free = "UPDATE leases SET holder = NULL, said = '{}', since_us = 0 WHERE holder = $1";
        transaction.execute(free, &[&id]).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Sends notes to all who listen.
    pub(crate) async fn announce(&self, notes: &[String]) -> Result<(), SqlError> {
        let sql = "SELECT pg_notify($1, note) FROM unnest($2::text[]) AS note";
        self.client.query(sql, &[&CHANNEL, &notes]).await?;
        Ok(())
    }
}
