//! How an agent is dialled: over the network, or, in a simulation, as the simulation says.
//!
//! What must never happen here: a channel to another address than the entry's.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use mooring_api::{Address, Channel};
use mooring_model::Chain;

use crate::domain::AgentEntry;

/// What comes of a dial: a channel, or why there is none.
pub type Dialled = Pin<Box<dyn Future<Output = Result<Channel, String>> + Send>>;

/// How agents are dialled.
#[derive(Clone, Default)]
pub enum Dial {
    /// At the entry's address, with its TLS files.
    #[default]
    Network,
    /// By this.
    By(Arc<dyn Fn(&AgentEntry) -> Dialled + Send + Sync>),
}

impl Dial {
    /// Dials an agent.
    pub(crate) async fn dial(&self, entry: &AgentEntry) -> Result<Channel, String> {
        if matches!(entry.address, Address::Plain(_)) && !entry.insecure {
            return Err("plain text on a network is not allowed: use https, or say `insecure` in its entry"
                .to_owned());
        }
        match self {
            Self::Network => mooring_api::connect(&entry.address, &entry.tls)
                .await
                .map_err(|error| Chain(&error).to_string()),
            Self::By(dial) => dial(entry).await,
        }
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "Network",
            Self::By(_) => "By(..)",
        })
    }
}
