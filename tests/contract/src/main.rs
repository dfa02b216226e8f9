//! Runs the contract of LIO's configfs on this machine's kernel, a line per row; the tests of
//! `mooring-host` run the same rows on the fake. Needs root, the module `target_core_mod` with
//! configfs mounted, and two block devices that nothing holds; nothing on them is read or written.
//!
//! What must never happen here: a row that was skipped and counted as passed.

mod disks;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use mooring_host::contract::{
    ELSEWHERE, Env, Outcome, differences, fc_rows, masked, rows, run, run_fc, standard_dump,
};
use mooring_host::fake::FakeMachine;
use mooring_host::{KernelTree, Tree, TreePath};

#[derive(Debug, Parser)]
#[command(name = "mooring-contract", about, version)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
struct Options {
    /// The target folder of configfs
    #[arg(long, default_value = KernelTree::TARGET)]
    root: PathBuf,
    /// A block device that nothing holds
    #[arg(long, required_unless_present_any = ["list", "disks"])]
    device: Option<PathBuf>,
    /// Another such block device
    #[arg(long, required_unless_present_any = ["list", "disks"])]
    device2: Option<PathBuf>,
    /// A read-only device; rows that need it count as failed without
    #[arg(long)]
    read_only_device: Option<PathBuf>,
    /// A device that takes no discards; rows that need it count as failed without. The others take
    /// discards
    #[arg(long)]
    no_discards_device: Option<PathBuf>,
    /// A regular file
    #[arg(long, default_value = "/etc/passwd")]
    regular_file: PathBuf,
    /// An unused path; a file of 1 MiB is made there and removed
    #[arg(long, default_value = "/var/tmp/mooring-contract-file")]
    new_file: PathBuf,
    /// Print the rows and where else things are shown, and touch nothing
    #[arg(long)]
    list: bool,
    /// Print the dump of a standard export on the kernel instead of running rows
    #[arg(long, conflicts_with = "compare")]
    dump: bool,
    /// Build a standard export on the kernel and on the fake, and print the lines that differ,
    /// instead of running rows
    #[arg(long)]
    compare: bool,
    /// Run the rows on Fibre Channel instead, which need the module tcm_fc and no port
    #[arg(long, conflicts_with_all = ["compare", "dump"])]
    fibre_channel: bool,
    /// Check the calls on disks instead, on loop devices over files in this folder
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["compare", "dump", "fibre_channel", "list"])]
    disks: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if options.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(folder) = &options.disks {
        return Ok(if disks::run(folder) { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let env = Env {
        device: options.device.clone().context("--device is missing")?,
        device2: options.device2.clone().context("--device2 is missing")?,
        read_only_device: options.read_only_device.clone(),
        no_discards_device: options.no_discards_device.clone(),
        regular_file: options.regular_file.clone(),
        new_file: options.new_file.clone(),
    };
    let tree = KernelTree::new(&options.root);
    ensure!(
        tree.is_dir(&TreePath::new("core"))?,
        "{} holds no LIO tree: load the module target_core_mod (and mount configfs)",
        options.root.display()
    );
    let passed = if options.dump {
        let text = dumped(&tree, &env)?;
        print!("{text}");
        true
    } else if options.compare {
        compare(&tree, &env)?
    } else if options.fibre_channel {
        print_rows(&run_fc(&tree, &env))
    } else {
        print_rows(&run(&tree, &env))
    };
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list() {
    for row in rows().iter().chain(&fc_rows()) {
        println!("{}: {}", row.name, row.expected);
    }
    for (fact, place) in ELSEWHERE {
        println!("not here: {fact}: {place}");
    }
}

/// Prints a line per row. Returns `true` if all passed.
fn print_rows(outcomes: &[Outcome]) -> bool {
    for outcome in outcomes {
        match (&outcome.skipped, outcome.ok) {
            (Some(reason), _) => println!("skipped  {}: {reason}", outcome.name),
            (None, true) => println!("ok       {}: {}", outcome.name, outcome.expected),
            (None, false) => {
                println!("FAILED   {}: expected {}, got {}", outcome.name, outcome.expected, outcome.got);
            }
        }
    }
    let count = |of: fn(&&Outcome) -> bool| outcomes.iter().filter(of).count();
    let passed = count(|outcome| outcome.ok && outcome.skipped.is_none());
    let other = count(|outcome| outcome.ok && outcome.skipped.is_some());
    let failed = count(|outcome| !outcome.ok);
    println!("{passed} passed, {other} say nothing about this kernel, {failed} failed");
    failed == 0
}

fn dumped(tree: &dyn Tree, env: &Env) -> Result<String> {
    let (text, left) = standard_dump(tree, env).context("cannot build the standard export")?;
    let left: Vec<String> = left.iter().map(ToString::to_string).collect();
    ensure!(left.is_empty(), "left behind: {}", left.join("; "));
    Ok(text)
}

/// Prints the differences between the kernel's tree and the fake's. Returns `true` if there are
/// none.
fn compare(tree: &dyn Tree, env: &Env) -> Result<bool> {
    let machine = FakeMachine::new();
    for device in [&env.device, &env.device2] {
        machine.add_device(device, 1 << 30);
    }
    let kernel = dumped(tree, env)?;
    let differing = differences(&kernel, &dumped(&machine.lio(), env)?);
    for line in &differing {
        println!("{line}");
    }
    println!(
        "{} lines compared, {} differ (- kernel, + fake)",
        masked(&kernel).lines().count(),
        differing.len()
    );
    Ok(differing.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn machine() -> (FakeMachine, Env) {
        let machine = FakeMachine::new();
        for device in ["/dev/a", "/dev/b"] {
            machine.add_device(device, 1 << 30);
        }
        machine.add_file("/etc/passwd", 512);
        let env = Env {
            device: "/dev/a".into(),
            device2: "/dev/b".into(),
            read_only_device: None,
            no_discards_device: None,
            regular_file: "/etc/passwd".into(),
            new_file: "/nonexistent/mooring-contract-file".into(),
        };
        (machine, env)
    }

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
        assert!(Options::try_parse_from(["mooring-contract"]).is_err());
        assert!(Options::try_parse_from(["mooring-contract", "--list"]).is_ok());
    }

    #[test]
    fn a_skipped_row_is_a_failure() {
        let (machine, env) = machine();
        assert!(!print_rows(&run(&machine.lio(), &env)));
        assert!(print_rows(&run_fc(&machine.lio(), &env)), "none of these needs it");
    }

    #[test]
    fn the_fake_compares_equal_to_itself() {
        let (machine, env) = machine();
        assert!(compare(&machine.lio(), &env).unwrap());
        machine.unload_configfs();
        assert!(compare(&machine.lio(), &env).is_err());
    }

    #[test]
    fn an_empty_folder_is_no_tree() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!KernelTree::new(folder.path()).is_dir(&TreePath::new("core")).unwrap());
    }
}
