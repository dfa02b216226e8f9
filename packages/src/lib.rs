//! Generates the man pages from the command lines that clap parses.
//!
//! What must never happen here: a page written by hand that says what the program does not do.

#[cfg(test)]
mod commands;
#[cfg(test)]
mod metadata;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;

/// Man section of programs for all users.
const USER: &str = "1";
/// Man section of daemons and administrators' programs.
const ADMIN: &str = "8";

/// The programs, each with the section of its pages.
fn programs() -> [(Command, &'static str); 4] {
    [
        (mooring_cli::Cli::command(), USER),
        (mooring_agent::args::Args::command(), ADMIN),
        (mooring_connectors::sessiond::program::command(), ADMIN),
        (mooring_controller::args::Cli::command(), ADMIN),
    ]
}

/// Writes a page for each program and for each of its commands into `folder/PROGRAM/`.
pub fn write_man_pages(folder: &Path) -> Result<()> {
    for (program, section) in programs() {
        let pages = folder.join(program.get_name());
        fs::create_dir_all(&pages).with_context(|| format!("make {}", pages.display()))?;
        let source = format!("Mooring {}", env!("CARGO_PKG_VERSION"));
        let mut program = program.disable_help_subcommand(true);
        program.build();
        write_pages(&program, section, &source, &pages)?;
    }
    Ok(())
}

fn write_pages(command: &Command, section: &str, source: &str, folder: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, section, source, folder)?;
    }
    let page = Man::new(command.clone()).section(section).source(source).manual("Mooring");
    page.generate_to(folder)
        .map(drop)
        .with_context(|| format!("write the page {} into {}", page.get_filename(), folder.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;

    #[test]
    fn each_program_and_each_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        write_man_pages(folder.path()).unwrap();
        for (page, says) in [
            ("mooring/mooring.1", "MOORING_CONTROLLER"),
            ("mooring/mooring-volume-create.1", "mooring volume create data"),
            ("mooring/mooring-agent-show.1", "pools"),
            ("mooring-agent/mooring-agent.8", "/etc/mooring/agent.toml"),
            ("mooring-agent/mooring-agent-adopt.8", "without dropping a session"),
            ("mooring-sessiond/mooring-sessiond.8", "/run/mooring"),
            ("mooring-controller/mooring-controller-token.8", "project"),
        ] {
            let text = fs::read_to_string(folder.path().join(page)).unwrap();
            let plain = text.replace("\\-", "-");
            assert!(plain.contains(says), "{page} does not say {says}: {text}");
            assert!(text.contains(".TH "), "{page}");
        }
    }
}
