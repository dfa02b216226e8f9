//! The controller's side: hosts, types, volumes and attachments over REST.
//!
//! A command passes through: `client` (one HTTP call or a few, repeated while that is safe) →
//! `records` (the controller's objects) → `host`, `kind`, `quota`, `volume`, `snapshot`, `revert`,
//! `manage`, `import`, `export`, `operate`, `attach`, `detach`, `attachment`, `receipt`, `epoch`
//! (read, decide, send) → `answers` (the answer as JSON) and `show` (the same for people).
//!
//! What must never happen here: a token in an error, an argument or a redirect; a volume or an
//! attachment that somebody else meant; an attachment left behind without a word.

pub(crate) mod answers;
pub(crate) mod attach;
pub(crate) mod attachment;
pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod client;
pub(crate) mod detach;
pub(crate) mod epoch;
pub(crate) mod export;
pub(crate) mod fence;
pub(crate) mod host;
pub(crate) mod import;
pub(crate) mod kind;
pub(crate) mod leaving;
pub(crate) mod manage;
pub(crate) mod operate;
pub(crate) mod progress;
pub(crate) mod quota;
pub(crate) mod receipt;
pub(crate) mod records;
pub(crate) mod revert;
pub(crate) mod rotate;
mod show;
pub(crate) mod snapshot;
pub(crate) mod volume;

pub(crate) use client::Client;
