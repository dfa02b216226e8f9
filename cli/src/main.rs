//! The program `mooring`: parse, run, print, exit. Everything else is in the library, where it can
//! be tested.

use std::process::ExitCode;

use clap_complete::CompleteEnv;
use mooring_cli::{Cli, Failure};
use nix::sys::prctl::set_dumpable;
use nix::sys::resource::{Resource, setrlimit};

fn main() -> ExitCode {
    // Tokens are in this process's memory. A failure here must not stop the command.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let _ = set_dumpable(false);
    // Only runs when a shell sets `COMPLETE`. The shells' scripts are in the package and find this
    // program by its name.
    CompleteEnv::with_factory(mooring_cli::complete::command).bin("mooring").completer("mooring").complete();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => {
            return mooring_cli::report_usage(&error, std::env::args().any(|word| word == "--json")).into();
        }
    };
    let json = cli.global.json;
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)
        .and_then(|runtime| runtime.block_on(mooring_cli::run(cli)));
    result.unwrap_or_else(|failure| mooring_cli::report_failure(&failure, json)).into()
}
