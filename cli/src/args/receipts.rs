//! Arguments of `mooring receipt`.
//!
//! What must never happen here: a verb that changes anything.

use clap::{Args, Subcommand};
use mooring_model::AttachmentId;

use crate::volume_ref::VolumeRef;

/// Records of detaches.
#[derive(Debug, Subcommand)]
pub enum ReceiptCommand {
    /// List the detaches of one volume, or all, newest first
    #[command(after_help = "\
A deleted volume is named by its id.

Examples:
  mooring receipt list
  mooring receipt list data --json | jq -r '.receipts[] | select(.forced) | .user_id'")]
    List(ReceiptListArgs),
    /// Show the record of one detach, with its receipt
    #[command(after_help = "\
The exit code is 5 while the receipt is not proven.

Examples:
  mooring receipt show b0c1d2e3-0001-4002-8003-0000000000aa
  mooring receipt show b0c1d2e3-0001-4002-8003-0000000000aa --json | jq .receipt.proof")]
    Show(ReceiptShowArgs),
}

/// `receipt list`.
#[derive(Debug, Args)]
pub struct ReceiptListArgs {
    /// Only detaches of this volume: its id, or its name where that is unique
    pub volume: Option<VolumeRef>,
}

/// `receipt show`.
#[derive(Debug, Args)]
pub struct ReceiptShowArgs {
    /// The attachment's id
    #[arg(value_name = "ATTACHMENT")]
    pub id: AttachmentId,
}
