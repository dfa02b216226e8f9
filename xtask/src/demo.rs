//! `cargo xtask demo`: shows the main job on real kernels, from an empty machine.

use std::io::{BufRead, IsTerminal, stdin};
use std::path::Path;

use anyhow::Result;
use clap::Args;
use mooring_tests::demo;
use mooring_tests::site::Site;

use crate::test::{build_tested, tested};

/// Options of `cargo xtask demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep everything running at the end, with a prompt for commands on the storage node
    #[arg(long)]
    keep: bool,
}

/// Runs the demo with the check's programs. Building an optimised workspace would add minutes on a
/// fresh clone, and the demo's time depends on the kernels.
pub(crate) fn run(args: &DemoArgs, root: &Path) -> Result<()> {
    build_tested(root)?;
    demo::run(&tested(root), args.keep.then_some(&prompt as &demo::Wait))
}

/// Reads lines of the form `VM COMMAND…`; `exit` or the end of input ends everything.
fn prompt(site: &Site) -> Result<()> {
    let names: Vec<_> = site.rig.vms().iter().map(mooring_rig::Vm::name).collect();
    println!(
        "everything is still running; type `VM COMMAND`, with VM one of {}, or `exit`",
        names.join(", ")
    );
    println!("for example: storage /opt/mooring/bin/mooring volume list");
    for line in stdin().lock().lines() {
        let line = line?;
        let (name, command) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        match name {
            "" => {}
            "exit" | "quit" => break,
            name => match site.rig.vm(name).and_then(|vm| vm.sh(command)) {
                Ok(out) if out.status.success() => print!("{}{}", out.stdout, out.stderr),
                Ok(out) => println!("{}{}[{}]", out.stdout, out.stderr, out.status),
                Err(error) => println!("{error:#}"),
            },
        }
        if stdin().is_terminal() {
            eprint!("> ");
        }
    }
    Ok(())
}
