//! Arguments of `attach`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use mooring_model::{AttachmentId, Cache, Mode};

use crate::volume_ref::VolumeRef;

/// How a host reaches a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// iSCSI.
    Iscsi,
    /// Fibre Channel.
    Fc,
}

impl Transport {
    /// The transport's name in the controller's API.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Iscsi => "iscsi",
            Self::Fc => "fc",
        }
    }
}

/// `attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// The host, by name or agent id (`mooring host list`)
    #[arg(long, value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub host: String,
    /// rw: reads and writes; ro: reads only, enforced by the target
    #[arg(long, value_name = "rw|ro", default_value = "rw")]
    pub mode: Mode,
    /// The transport; without it iSCSI, unless the volume's type or the host's other attachment
    /// requires another
    #[arg(long, value_name = "iscsi|fc", hide_possible_values = true)]
    pub transport: Option<Transport>,
    /// off: the host drops the disk's page cache at each attach and detach, and never reads ahead;
    /// without it the volume's type decides, else off for volumes that can be shared
    #[arg(long, value_name = "on|off")]
    pub cache: Option<Cache>,
    /// The attachment's id; a random one without this
    #[arg(long, value_name = "UUID")]
    pub id: Option<AttachmentId>,
}
