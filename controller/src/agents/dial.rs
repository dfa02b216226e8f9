//! Dials agents: over the network, or through a function that a simulation gives.
//!
//! What must never happen here: a channel to another address than the entry's.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use mooring_api::{Address, Channel};
use mooring_model::Chain;

use crate::domain::AgentEntry;

/// Result of a dial: a channel, or the reason why there is none.
pub type Dialled = Pin<Box<dyn Future<Output = Result<Channel, String>> + Send>>;

/// Way to dial agents.
#[derive(Clone, Default)]
pub enum Dial {
    /// Dials the entry's address with the entry's TLS files.
    #[default]
    Network,
    /// Calls this function instead.
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
