//! Arguments of `demo`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

/// `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The host that writes and is cut off [default: this machine, where it is one of the hosts; else the first]
    #[arg(long, value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub writer: Option<String>,
    /// The host that reads, and whom nobody cuts off [default: the first other one]
    #[arg(long, value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub reader: Option<String>,
    /// Leave what was made, to look at it
    #[arg(long)]
    pub keep: bool,
}
