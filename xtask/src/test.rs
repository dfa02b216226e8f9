//! `cargo xtask test`: everything that has to hold, from cheap to true. `.ci/run` runs the same words.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use clap::Args;
use mooring_rig::{Kernel, packages};
use mooring_tests::clients;
use mooring_tests::scenarios::{self, Verdict};
use mooring_tests::site::Programs;

use crate::sim::{self, SimArgs};
use crate::stages::{self, Count, Stages, cargo, one, tee};
use crate::{lanes, proto};

/// What to run.
#[derive(Debug, Default, Args)]
pub(crate) struct TestArgs {
    /// Leave out the virtual machines
    #[arg(long)]
    no_vm: bool,
    /// Only the clients that we did not write, on fake hosts
    #[arg(long, conflicts_with_all = ["no_vm", "vm_only"])]
    clients_only: bool,
    /// Only the VM scenario of this name, or those whose names contain it
    #[arg(long, value_name = "TEXT")]
    vm_only: Option<String>,
}

/// Programs that scenarios run inside VMs.
const PROGRAMS: [&str; 7] = [
    "mooring-agent",
    "mooring-bench",
    "mooring-cli",
    "mooring-connectors",
    "mooring-contract",
    "mooring-controller",
    "mooring-tests",
];

/// The same, one by one, without those that only benchmarks use.
const BINARIES: [&str; 11] = [
    "mooring",
    "mooring-agent",
    "mooring-agent-faults",
    "mooring-attach-floor",
    "mooring-contract",
    "mooring-controller",
    "mooring-fc-grants",
    "mooring-sessiond",
    "mooring-sessiond-faults",
    "mooring-stamp",
    "mooring-store-fill",
];

/// Builds the programs of these packages for the VMs and says where they are.
pub(crate) fn build_some(root: &Path, packages: &[&str]) -> Result<Programs> {
    let mut args = vec!["build", "--release", "--bins"];
    for package in packages {
        args.extend(["-p", package]);
    }
    one(cargo(root, &args))?;
    Ok(programs(root))
}

/// Builds the programs for the VMs as they are shipped, and says where they are.
pub(crate) fn build_programs(root: &Path) -> Result<Programs> {
    build_some(root, &PROGRAMS)?;
    // Their features must not reach the others: what is tested otherwise is what is shipped.
    let features = "mooring-connectors/faults,mooring-agent/faults";
    let mut args = vec!["build", "--release", "--features", features];
    args.extend(["-p", "mooring-connectors", "--bin", "mooring-sessiond-faults"]);
    args.extend(["-p", "mooring-agent", "--bin", "mooring-agent-faults"]);
    one(cargo(root, &args))?;
    Ok(programs(root))
}

fn programs(root: &Path) -> Programs {
    Programs::new(stages::target(root).join("release"))
}

/// Builds the programs of the VM scenarios. They are those of the tests, not as they are shipped: they are there already, an
/// overflow is a panic, and in a VM they are as fast (under emulation the kernel and the start of a process take its time). Each has the
/// fault points of its crate, which do nothing unless one is named. Demo, benchmarks and soak run what is shipped.
fn build_tested(root: &Path, build: stages::Build) -> Result<Count> {
    build(root, &BINARIES).map(|_| Count::PASSED)
}

/// Where they are.
pub(crate) fn tested(root: &Path) -> Programs {
    Programs::new(stages::target(root).join("debug"))
}

fn has_nextest() -> bool {
    let probe = Command::new("cargo-nextest").args(["nextest", "--version"]).stdin(Stdio::null()).output();
    probe.is_ok_and(|output| output.status.success())
}

/// Most tests wait for a clock or for a disk's syncs: with one a processor, two thirds of the processors' time went by unused.
const TESTS_PER_PROCESSOR: usize = 2;

fn unit(root: &Path) -> Result<Count> {
    packages::ensure_postgresql()?;
    // nextest where it is installed, else cargo's own runner: the same tests.
    let (command, nextest) = if has_nextest() {
        let mut command = cargo(
            root,
            &["nextest", "run", "--workspace", "--all-features", "--profile", "ci", "--color", "never"],
        );
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        command.args(["--test-threads", &(processors * TESTS_PER_PROCESSOR).to_string()]);
        (command, true)
    } else {
        (
            cargo(
                root,
                &[
                    "test",
                    "--workspace",
                    "--all-features",
                    "--all-targets",
                    "--no-fail-fast",
                    "--color",
                    "never",
                ],
            ),
            false,
        )
    };
    let (ok, text) = tee(command)?;
    let count = if nextest { stages::count_nextest(&text) } else { stages::count_libtest(&text) };
    match count {
        Some(count) if ok || count.failed > 0 => Ok(count),
        _ => bail!("the test runner failed without saying which test"),
    }
}

fn doc_tests(root: &Path) -> Result<Count> {
    let (ok, text) =
        tee(cargo(root, &["test", "--workspace", "--doc", "--all-features", "--color", "never"]))?;
    match stages::count_libtest(&text) {
        Some(count) if ok || count.failed > 0 => Ok(count),
        _ => bail!("cargo test --doc failed"),
    }
}

fn docs(root: &Path) -> Result<Count> {
    let mut command = cargo(root, &["doc", "--workspace", "--no-deps", "--all-features", "--quiet"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    one(command)
}

/// The clients that we did not write, against a control plane with fake hosts.
fn clients(root: &Path, build: stages::Build) -> Result<Count> {
    const PROGRAM: &str = "mooring-fleet-serve";
    let clients::Tally { passed, failures, skipped } =
        clients::run_all(&build(root, &[PROGRAM])?.join(PROGRAM))?;
    Ok(Count { passed, failed: failures.len(), skipped, failures })
}

fn vm_scenarios(root: &Path, only: Option<&str>) -> Result<Count> {
    let named = scenarios::ALL.iter().any(|scenario| only == Some(scenario.name));
    let chosen = |name: &str| only.is_none_or(|text| if named { name == text } else { name.contains(text) });
    let chosen: Vec<_> = scenarios::ALL.iter().filter(|scenario| chosen(scenario.name)).collect();
    let ended = match chosen.as_slice() {
        [] => bail!("no scenario has {:?} in its name; there are: {}", only.unwrap_or_default(), names()),
        // Somebody looks at it: what it says is shown as it is said.
        [one] => vec![(one.name, scenarios::run(one, &tested(root)))],
        many => lanes::run(many),
    };
    let mut count = Count::default();
    for (name, verdict) in ended {
        let (failed, why) = match verdict {
            Verdict::Passed => {
                count.passed += 1;
                continue;
            }
            Verdict::Failed(why) => (true, why),
            // In CI everything that a scenario needs can be installed: a scenario that cannot run is a failure there.
            Verdict::Skipped(why) => (std::env::var_os("CI").is_some(), why),
        };
        if failed {
            count.failed += 1;
            count.failures.push(format!("{name}: {why}"));
        } else {
            count.skipped += 1;
        }
    }
    Ok(count)
}

fn names() -> String {
    scenarios::ALL.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ")
}

/// Runs all stages; whether nothing has failed.
pub(crate) fn run(args: &TestArgs, root: &Path) -> bool {
    let mut stages = Stages::default();
    // Behind the tests' stage nothing is left to build as they are built; without it, that would be all tests.
    let build: stages::Build = if args.vm_only.is_some() || args.clients_only {
        stages::test_programs
    } else {
        stages::tested_programs
    };
    if args.clients_only {
        stages.run("clients", || clients(root, build));
        return stages.finish();
    }
    if args.vm_only.is_none() {
        stages.run("fmt", || one(cargo(root, &["fmt", "--all", "--check"])));
        stages.run("proto", || proto::run(&proto::ProtoArgs { check: true }, root).map(|()| Count::PASSED));
        stages.run("clippy", || {
            one(cargo(
                root,
                &[
                    "clippy",
                    "--workspace",
                    "--all-targets",
                    "--all-features",
                    "--quiet",
                    "--",
                    "-D",
                    "warnings",
                ],
            ))
        });
        stages.run("unit, laws, contract on fakes", || unit(root));
        stages.run("simulation", || sim::run(&SimArgs::default(), root, build));
        stages.run("clients", || clients(root, build));
        stages.run("doc tests", || doc_tests(root));
        stages.run("docs", || docs(root));
    }
    if !args.no_vm {
        let built = stages.run("build for VMs", || build_tested(root, build));
        stages.run("VM image", || {
            let ensure = |kernel| mooring_rig::image::ensure(root, kernel, false);
            ensure(Kernel::Stable)?;
            // Not everywhere can it be fetched: the scenarios that want it say so themselves.
            ensure(Kernel::Backports)
                .map(drop)
                .or_else(|error| error.is::<mooring_rig::KernelNotAvailable>().then_some(()).ok_or(error))?;
            Ok(Count::PASSED)
        });
        stages.run("VM scenarios", || {
            // Programs of an earlier build would show what is not there any more.
            if !built {
                bail!("not run: the programs for them were not built");
            }
            vm_scenarios(root, args.vm_only.as_deref())
        });
    }
    stages.finish()
}
