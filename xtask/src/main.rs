//! Runs the project's chores: `cargo xtask --help`.
//!
//! Nothing here is part of the product. CI and developers run the same commands.

mod bench_api;
mod beside;
mod chroots;
mod demo;
mod full;
mod lanes;
mod lintian;
mod machine;
mod oci;
mod package;
mod proto;
mod repository;
mod serve;
mod sim;
mod slow;
mod stages;
mod test;
mod timings;
mod vagrant;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use mooring_tests::bench::Size;
use mooring_tests::bench_node::Options;
use mooring_tests::demo::trials;
use mooring_tests::scenarios::{agent_killed, fc_trials, power_cuts, ro_fuzz};
use mooring_tests::site::Programs;

/// Chores of the Mooring project
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Run the whole check: fmt, clippy, docs, unit tests, laws, scenarios on real kernels
    Test(test::TestArgs),
    /// Run what CI runs: the same as `test`
    Ci,
    /// Show the main job on real kernels, from an empty machine: one volume, two hosts, rw and ro,
    /// force detach
    Demo(demo::DemoArgs),
    /// Measure Mooring beside the kernel's own floor
    Bench(BenchArgs),
    /// Run the proofs many times
    Soak(SoakArgs),
    /// Simulate the control plane: real controller and agents on fake hosts, from seeds, in virtual
    /// time
    Sim(sim::SimArgs),
    /// Serve a control plane on fake hosts, to try clients against: iSCSI, Fibre Channel, thin
    /// pools
    Serve(serve::ServeArgs),
    /// Run one VM scenario in this process, for `test`, which runs them side by side
    #[command(hide = true)]
    Scenario(lanes::ScenarioArgs),
    /// Check the arrows between crates and the house's other rules
    Arch,
    /// Generate the code and the descriptor of the wire from api/proto
    Proto(proto::ProtoArgs),
    /// Make the Debian packages, optionally a signed apt folder with them, and an OCI image of the
    /// controller
    Package(package::PackageArgs),
    /// Check vagrant/: its scripts, its provisioner, and its Vagrantfile for each provider. Makes
    /// no VM; `vagrant test` does
    Vagrant(vagrant::VagrantArgs),
    /// Run real kernels in QEMU: build, boot, run commands, cut power and networks
    Vm(vm::VmArgs),
}

/// Packages that `bench node` needs; the controller is not among them.
const NODE_PROGRAMS: [&str; 4] = ["mooring-agent", "mooring-bench", "mooring-cli", "mooring-tests"];

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
struct BenchArgs {
    #[command(subcommand)]
    what: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Measure grants and revokes, with 1 and with many volumes present
    Grant {
        /// Number of volumes in the large case
        #[arg(long, default_value_t = 500)]
        volumes: u32,
        /// Rounds of each kind; fewer than the volumes
        #[arg(long, default_value_t = 200)]
        rounds: u32,
    },
    /// Measure a storage node with 1 to 5,000 volumes: grants, restore after a boot, idle; beside
    /// rtslib, targetctl and the floor
    Node {
        /// Only 1 and 100 volumes: takes some minutes
        #[arg(long)]
        quick: bool,
        /// Only the cases with these numbers of volumes
        #[arg(long, value_delimiter = ',')]
        volumes: Vec<u32>,
        /// Rounds of grants in each case
        #[arg(long, default_value_t = 25)]
        rounds: u32,
        /// Processors of the VM: as many as this machine can give to it and the rig beside it
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
        cpus: u8,
    },
    /// Measure native attaches, beside a bare login and scan and beside stock open-iscsi
    Attach {
        /// Rounds of each kind
        #[arg(long, default_value_t = 100)]
        rounds: u32,
    },
    /// Measure the control plane: cycles of attachments per second, reads of a large world, syncs,
    /// memory
    Api(bench_api::ApiArgs),
}

/// A proof that is repeated many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Proof {
    /// Force detaches and fences of a writing host of ours, over iSCSI
    Trials,
    /// Force detaches of a writing stock host, over Fibre Channel (FCoE between the VMs)
    TrialsFc,
    /// The storage agent killed before and after each of its calls that change the machine
    AgentKilled,
    /// The storage node's power cut at random moments of its work
    PowerCuts,
    /// A million commands of a read-only host, in every claimed direction; --trials does not change
    /// their number
    RoFuzz,
}

/// Options of `cargo xtask soak`.
#[derive(Debug, Args)]
struct SoakArgs {
    /// Trials of each kind: of a live host, of one that has lost its network, of one that has lost
    /// its power; fault points of the agent, spread evenly over all if there are more; power cuts
    /// of the storage node
    #[arg(long, default_value_t = 200)]
    trials: u32,
    /// Only these proofs
    #[arg(long, value_enum, value_name = "PROOF", default_values_t = [Proof::Trials, Proof::TrialsFc, Proof::AgentKilled, Proof::PowerCuts, Proof::RoFuzz])]
    only: Vec<Proof>,
}

/// The workspace's root folder.
fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or(manifest.clone(), PathBuf::from)
}

fn code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn soak(programs: &Programs, args: &SoakArgs) -> anyhow::Result<()> {
    for proof in &args.only {
        match proof {
            Proof::Trials => trials::run(programs, trials::Size::of(args.trials))?,
            Proof::TrialsFc => fc_trials::soak(programs, trials::Size::of(args.trials))?,
            Proof::AgentKilled => agent_killed::run(programs, usize::try_from(args.trials)?)?,
            Proof::PowerCuts => power_cuts::run(programs, args.trials)?,
            Proof::RoFuzz => ro_fuzz::soak(programs)?,
        }
    }
    Ok(())
}

/// Path of this program at its start. A build may replace the file, and the kernel then names a
/// deleted one.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// The path of this program, for stages in processes of their own.
fn program() -> anyhow::Result<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path).context("find this program")
}

fn main() -> ExitCode {
    if let Ok(program) = std::env::current_exe() {
        let _ = PROGRAM.set(program);
    }
    let result = match Cli::parse().chore {
        Chore::Proto(args) => proto::run(&args, &root()).map(|()| ExitCode::SUCCESS),
        Chore::Package(args) => package::run(&args, &root()).map(|()| ExitCode::SUCCESS),
        Chore::Vagrant(args) => vagrant::run(&args, &root()).map(|()| ExitCode::SUCCESS),
        Chore::Vm(args) => vm::run(args),
        Chore::Scenario(args) => lanes::scenario(&args, &root()),
        Chore::Test(args) => Ok(code(test::run(&args, &root()))),
        Chore::Ci => Ok(code(test::run(&test::TestArgs::default(), &root()))),
        Chore::Demo(args) => demo::run(&args, &root()).map(|()| ExitCode::SUCCESS),
        Chore::Bench(BenchArgs { what: Bench::Grant { volumes, rounds } }) => test::build_programs(&root())
            .and_then(|programs| mooring_tests::bench::grant(&programs, Size { volumes, rounds }))
            .map(|()| ExitCode::SUCCESS),
        Chore::Bench(BenchArgs { what: Bench::Node { quick, volumes, rounds, cpus } }) => {
            test::build_some(&root(), &NODE_PROGRAMS)
                .and_then(|programs| {
                    mooring_tests::bench_node::run(&programs, &Options { quick, volumes, rounds, cpus })
                })
                .map(|()| ExitCode::SUCCESS)
        }
        Chore::Bench(BenchArgs { what: Bench::Attach { rounds } }) => test::build_programs(&root())
            .and_then(|programs| mooring_tests::bench_attach::run(&programs, rounds))
            .map(|()| ExitCode::SUCCESS),
        Chore::Bench(BenchArgs { what: Bench::Api(args) }) => {
            bench_api::run(&args, &root()).map(|()| ExitCode::SUCCESS)
        }
        Chore::Soak(args) => test::build_programs(&root())
            .and_then(|programs| soak(&programs, &args))
            .map(|()| ExitCode::SUCCESS),
        Chore::Sim(args) => {
            sim::run(&args, &root(), stages::test_programs).map(|count| code(count.failed == 0))
        }
        Chore::Serve(args) => serve::run(&args, &root()).map(|never| match never {}),
        Chore::Arch => {
            let test =
                stages::cargo(&root(), &["test", "--quiet", "--package", "mooring-tests", "--test", "arch"]);
            stages::one(test).map(|_| ExitCode::SUCCESS)
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
