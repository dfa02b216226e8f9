//! Arguments of `demo`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

/// `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The host that writes and is detached by force [default: this machine if it is one of the
    /// hosts, else the first]
    #[arg(long, value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub writer: Option<String>,
    /// The host that reads and stays attached [default: the first other one]
    #[arg(long, value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub reader: Option<String>,
    /// Keep everything that the tour made
    #[arg(long)]
    pub keep: bool,
}
