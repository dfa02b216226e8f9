//! `cargo xtask test`: the whole check, from cheap to real. `.ci/run` runs the same command.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use mooring_rig::{Kernel, image, packages};
use mooring_tests::scenarios::{self, CLUSTER_PACKAGES, Needs, Scenario, Tier, Verdict};
use mooring_tests::site::{PROGRAMS_IN_VMS, Programs};
use mooring_tests::{clients, earlier};

use crate::beside::{self, Beside};
use crate::full::{self, Full, Part};
use crate::sim::{self, SimArgs};
use crate::stages::{self, Count, Stages, cargo, one, tee};
use crate::timings::Timings;
use crate::{lanes, lintian, machine, package, proto, slow, vagrant};

/// Options of `cargo xtask test`.
#[derive(Debug, Default, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct TestArgs {
    /// Leave out the virtual machines
    #[arg(long)]
    no_vm: bool,
    /// Run only the clients that we did not write, on fake hosts
    #[arg(long, conflicts_with_all = ["no_vm", "vm_only"])]
    clients_only: bool,
    /// Run only the VM scenario of this name, or those whose names contain it
    #[arg(long, value_name = "TEXT")]
    vm_only: Option<String>,
    /// Run everything, every scenario included; what has already passed on this tree is skipped
    #[arg(long, conflicts_with_all = ["no_vm", "clients_only", "vm_only"])]
    full: bool,
    /// Run one part of a full check: `--part 2/3`
    #[arg(long, value_name = "K/N", requires = "full")]
    part: Option<Part>,
    /// Measure each stage, test, scenario and dependency, and put the table into
    /// docs/contributing/testing.md
    #[arg(long, conflicts_with_all = ["clients_only", "vm_only", "full"])]
    timings: bool,
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

/// Builds the programs of these packages for the VMs. Returns their paths.
pub(crate) fn build_some(root: &Path, packages: &[&str]) -> Result<Programs> {
    let mut args = vec!["build", "--release", "--bins"];
    for package in packages {
        args.extend(["-p", package]);
    }
    one(cargo(root, &args))?;
    Ok(programs(root))
}

/// Builds the programs for the VMs as they are shipped. Returns their paths.
pub(crate) fn build_programs(root: &Path) -> Result<Programs> {
    build_some(root, &PROGRAMS)?;
    // The features must not reach the other programs: those are tested as they are shipped.
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

/// Builds the programs of the VM scenarios: the tests' build, not the shipped one. It exists
/// already, it panics on overflows, and in a VM it is as fast, because under emulation the kernel
/// and the start of processes take the time. Each program has the fault points of its crate, which
/// do nothing unless one is named. The demo uses this build, too; benchmarks and soak use the
/// shipped one.
pub(crate) fn build_tested(root: &Path) -> Result<Count> {
    let names = [PROGRAMS_IN_VMS.as_slice(), &[mooring_tests::packages::MAN]].concat();
    stages::test_programs(root, &names).map(|_| Count::PASSED)
}

/// Paths of the tests' programs.
pub(crate) fn tested(root: &Path) -> Programs {
    Programs::new(stages::target(root).join("debug"))
}

fn has_nextest() -> bool {
    let probe = Command::new("cargo-nextest").args(["nextest", "--version"]).stdin(Stdio::null()).output();
    probe.is_ok_and(|output| output.status.success())
}

/// Tests at once per processor. Most tests wait for a clock or for a disk's syncs: with two, a
/// third of the processors' time is idle.
const TESTS_PER_PROCESSOR: usize = 4;

/// The arguments with which cargo and nextest build all tests.
const ALL_TESTS: [&str; 2] = ["--workspace", "--all-features"];

/// Installs what the stages need before any two run side by side, because two apt-get at once fail.
fn ensure_packages(with_images: bool) -> Result<Count> {
    if with_images {
        packages::ensure()?;
    }
    mooring_tests::packages::ensure()?;
    packages::ensure_postgresql()?;
    packages::ensure_dbus()?;
    packages::ensure_systemd_analyze()?;
    vagrant::ensure()?;
    lintian::ensure()?;
    clients::ensure_venv()?;
    Ok(Count::PASSED)
}

/// Builds all tests, and the programs that later stages run.
fn build_tests(root: &Path, timings: bool) -> Result<Count> {
    let mut command = cargo(root, &["build", "--tests", "--bins"]);
    command.args(ALL_TESTS).args(timings.then_some("--timings"));
    one(command)?;
    if has_nextest() {
        // nextest runs the programs in these lists without cargo, because lints are built meanwhile
        // under cargo's lock.
        let list = ["nextest", "list", "--list-type", "binaries-only", "--message-format", "json"];
        let mut list = cargo(root, &list);
        save(list.args(ALL_TESTS), &binaries(root))?;
        save(&mut cargo(root, &["metadata", "--format-version", "1", "--all-features"]), &metadata(root))?;
    }
    Ok(Count::PASSED)
}

/// Path of nextest's list of the tests' programs.
fn binaries(root: &Path) -> PathBuf {
    stages::target(root).join("nextest-binaries.json")
}

/// Path of cargo's description of the workspace, for nextest.
fn metadata(root: &Path) -> PathBuf {
    stages::target(root).join("nextest-metadata.json")
}

fn save(command: &mut Command, path: &Path) -> Result<()> {
    let out = command.stderr(Stdio::inherit()).output().with_context(|| format!("run {command:?}"))?;
    if !out.status.success() {
        bail!("{command:?}: {}", out.status);
    }
    std::fs::write(path, out.stdout).with_context(|| format!("write {}", path.display()))
}

fn unit(root: &Path, timings: &mut Timings) -> Result<Count> {
    // Use nextest if it is installed, else cargo's own runner: the tests are the same.
    let nextest = has_nextest();
    let mut command = if nextest {
        let mut command = cargo(root, &["nextest", "run", "--profile", "ci", "--color", "never"]);
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        command.args(["--test-threads", &(processors * TESTS_PER_PROCESSOR).to_string()]);
        command.arg("--binaries-metadata").arg(binaries(root)).arg("--cargo-metadata").arg(metadata(root));
        command
    } else {
        let mut command = cargo(root, &["test", "--tests", "--bins", "--no-fail-fast", "--color", "never"]);
        command.args(ALL_TESTS);
        command
    };
    if timings.wanted {
        command.env("NEXTEST_STATUS_LEVEL", "pass");
    }
    let (ok, text) = tee(command)?;
    timings.tests(&text);
    counted(ok, if nextest { stages::count_nextest(&text) } else { stages::count_libtest(&text) })
}

/// Returns what a test runner has counted, unless it failed without that.
fn counted(ok: bool, count: Option<Count>) -> Result<Count> {
    match count {
        Some(count) if ok || count.failed > 0 => Ok(count),
        _ => bail!("the test runner failed without saying which test"),
    }
}

/// Runs the tests that read all pages.
fn pages(root: &Path) -> Result<Count> {
    let mut command = cargo(root, &["test", "--test", "arch", "--color", "never"]);
    command.args(ALL_TESTS);
    let (ok, text) = tee(command)?;
    counted(ok, stages::count_libtest(&text))
}

/// Runs the clients that we did not write against a control plane with fake hosts.
fn clients(root: &Path, build: stages::Build) -> Result<Count> {
    const PROGRAM: &str = "mooring-fleet-serve";
    let clients::Tally { passed, failures, skipped } =
        clients::run_all(&build(root, &[PROGRAM])?.join(PROGRAM))?;
    Ok(Count { passed, failed: failures.len(), skipped, failures })
}

/// The units of the check that run.
enum Wanted {
    /// All units without a VM, and the scenarios of [`scenarios::choose`].
    Usual,
    /// Units of a part of the full check that have not passed on this tree.
    Full(Full),
}

impl Wanted {
    fn wants(&self, unit: &str) -> bool {
        match self {
            Self::Usual => true,
            Self::Full(full) => full.wants(unit),
        }
    }

    fn passed(&self, unit: &str) {
        if let Self::Full(full) = self {
            full.keep(unit);
        }
    }

    /// The scenarios to run.
    fn scenarios(&self, root: &Path) -> Vec<&'static Scenario> {
        match self {
            Self::Usual => {
                let choice = scenarios::choose(scenarios::ALL, root);
                println!("{choice}");
                choice.taken
            }
            Self::Full(full) => {
                let wanted = scenarios::ALL.iter().filter(|one| full.wants(&full::unit(one.name)));
                scenarios::by_length(wanted.collect())
            }
        }
    }
}

/// Runs the stages of the whole check.
struct Check<'a> {
    root: &'a Path,
    stages: Stages,
    wanted: Wanted,
    timings: Timings,
    /// `true`: the programs are those of this tree; older ones would show behaviour that is gone.
    built: bool,
}

impl Check<'_> {
    fn stage(&mut self, unit: &str, name: &str, stage: impl FnOnce(&mut Timings) -> Result<Count>) {
        if self.wanted.wants(unit) && self.stages.run(name, || stage(&mut self.timings)) {
            self.wanted.passed(unit);
        }
    }

    /// Runs everything without VMs, except lints and pages.
    fn without_vms(&mut self, with_images: bool) -> Beside {
        let root = self.root;
        self.stages.run("packages", || ensure_packages(with_images));
        self.stage("fmt", "fmt", |_| one(cargo(root, &["fmt", "--all", "--check"])));
        self.stage("proto", "proto", |_| {
            proto::run(&proto::ProtoArgs { check: true }, root).map(|()| Count::PASSED)
        });
        if with_images {
            beside::warm_images();
        }
        let timed = self.timings.wanted;
        self.built = self.stages.run("build", || build_tests(root, timed));
        self.timings.dependencies(&stages::target(root));
        // The stage of unit tests has these, too. In a full check its pass stands although a page
        // has changed. Lints would hold cargo's lock.
        if self.built && matches!(self.wanted, Wanted::Full(_)) {
            self.stage("pages", "pages", |_| pages(root));
        }
        let beside = beside::start(root, |name| self.wanted.wants(name));
        if self.built {
            self.stage("unit", "unit, laws, contract on fakes", |timings| unit(root, timings));
            self.stage("simulation", "simulation", |_| sim::run(&SimArgs::default(), root, stages::built));
            self.stage("clients", "clients", |_| clients(root, stages::built));
        }
        beside
    }

    /// Waits for lints and pages, and counts them.
    fn lints(&mut self, beside: Beside) {
        for one in beside.wait() {
            if one.count.failed == 0 {
                self.wanted.passed(one.name);
            }
            self.stages.add(&format!("{} (beside others)", one.name), one.took, one.count);
        }
    }

    /// In a full check, tries the packages on each Debian release, and the controller's image. It
    /// makes packages anew in the folder of lintian's, and so runs after that.
    fn packaged(&mut self) {
        if !matches!(self.wanted, Wanted::Full(_)) {
            return;
        }
        let (root, built) = (self.root, self.built);
        self.stage(full::PACKAGES, full::PACKAGES, |_| {
            if !built {
                bail!("not run: the programs for them were not built");
            }
            package::test_of_tests(root).map(|()| Count::PASSED)
        });
    }

    fn images(&mut self) {
        let root = self.root;
        self.stages.run("VM image", || {
            let ensure = |kernel| image::ensure(root, kernel, false);
            ensure(Kernel::Stable)?;
            ensure(Kernel::Cloud)?;
            // The kernel cannot be fetched everywhere: scenarios that need it report that
            // themselves.
            ensure(Kernel::Backports)
                .map(drop)
                .or_else(|error| error.is::<mooring_rig::KernelNotAvailable>().then_some(()).ok_or(error))?;
            Ok(Count::PASSED)
        });
    }

    fn vms(&mut self) {
        let (root, chosen) = (self.root, self.wanted.scenarios(self.root));
        if chosen.is_empty() {
            return;
        }
        let built = self.built;
        self.images();
        // Build these here and not within a scenario: a build beside another's VMs would slow that
        // one.
        let needs = |what| chosen.iter().any(|one| one.tier == Tier::Full(what));
        if needs(Needs::ClusterSoftware) {
            self.stages.run("VM image with cluster software", || {
                image::ensure_with(root, Kernel::Stable, false, CLUSTER_PACKAGES).map(|_| Count::PASSED)
            });
        }
        if needs(Needs::NextRelease) {
            self.stages.run("VM image of the next release", || {
                image::ensure(root, Kernel::Next, false).map(|_| Count::PASSED)
            });
        }
        if needs(Needs::EarlierPackages) {
            self.stages.run("earlier packages", || earlier::packages().map(|_| Count::PASSED));
        }
        let (wanted, mut slow) = (&self.wanted, Vec::new());
        let timings = &mut self.timings;
        self.stages.run("VM scenarios", || {
            if !built {
                bail!("not run: the programs for them were not built");
            }
            let ended = lanes::run(&chosen, root, |ended| {
                if ended.verdict == Verdict::Passed {
                    wanted.passed(&full::unit(ended.name));
                }
            });
            timings.scenarios(&ended);
            slow = ended.iter().filter(|one| one.slow).map(|one| one.name).collect();
            Ok(verdicts(ended.into_iter().map(|one| (one.name, one.verdict))))
        });
        for name in &slow {
            self.stages.note(format!("slow: {name}"));
        }
        if let Some(why) = slow::too_many(&slow, &slow::listed(root)) {
            self.stages.fail("VM scenarios", why);
        }
    }
}

/// Counts scenarios.
fn verdicts(ended: impl IntoIterator<Item = (&'static str, Verdict)>) -> Count {
    let mut count = Count::default();
    for (name, verdict) in ended {
        let (failed, why) = match verdict {
            Verdict::Passed => {
                count.passed += 1;
                continue;
            }
            Verdict::Failed(why) | Verdict::RanOut(why) => (true, why),
            // In CI everything that a scenario needs can be installed, so a skipped scenario is a
            // failure there.
            Verdict::Skipped(why) => (std::env::var_os("CI").is_some(), why),
        };
        if failed {
            count.failed += 1;
            count.failures.push(format!("{name}: {why}"));
        } else {
            count.skipped += 1;
        }
    }
    count
}

/// The scenario of this name, or else those whose names contain `text`. An error lists the names.
fn named(text: &str) -> Result<Vec<&'static Scenario>> {
    if let Some(one) = scenarios::ALL.iter().find(|scenario| scenario.name == text) {
        return Ok(vec![one]);
    }
    let chosen: Vec<_> = scenarios::ALL.iter().filter(|scenario| scenario.name.contains(text)).collect();
    if chosen.is_empty() {
        let names: Vec<_> = scenarios::ALL.iter().map(|scenario| scenario.name).collect();
        bail!("no scenario has {text:?} in its name; there are: {}", names.join(", "));
    }
    Ok(chosen)
}

/// Runs these scenarios.
fn only(chosen: Vec<&'static Scenario>, root: &Path) -> Count {
    // One scenario alone has a reader: its output is shown at once.
    if let [one] = chosen.as_slice() {
        return verdicts([(one.name, scenarios::run(one, &tested(root)))]);
    }
    let many = scenarios::by_length(chosen);
    verdicts(lanes::run(&many, root, |_| ()).into_iter().map(|one| (one.name, one.verdict)))
}

/// Runs one kind of test alone. Returns `true` if nothing failed.
fn alone(args: &TestArgs, root: &Path) -> bool {
    let mut stages = Stages::default();
    if let Some(text) = &args.vm_only {
        match named(text) {
            // Before the build, which takes minutes.
            Err(error) => stages.fail("VM scenarios", format!("{error:#}")),
            Ok(chosen) => {
                if stages.run("build for VMs", || build_tested(root)) {
                    stages.run("VM scenarios", || Ok(only(chosen, root)));
                }
            }
        }
    } else {
        stages.run("clients", || clients(root, stages::test_programs));
    }
    stages.finish()
}

/// Runs all stages. Returns `true` if nothing failed.
pub(crate) fn run(args: &TestArgs, root: &Path) -> bool {
    if args.clients_only || args.vm_only.is_some() {
        return alone(args, root);
    }
    let wanted = if args.full {
        match Full::new(root, args.part) {
            Ok(full) => Wanted::Full(full),
            Err(error) => {
                println!("FAILED: {error:#}");
                println!("0 passed, 1 failed, 0 skipped");
                return false;
            }
        }
    } else {
        Wanted::Usual
    };
    let (cache, room) = (machine::cache(root), machine::room(root));
    let mut check =
        Check { root, stages: Stages::default(), wanted, timings: Timings::new(args.timings), built: false };
    let beside = check.without_vms(!args.no_vm);
    if !args.no_vm {
        check.vms();
    }
    check.lints(beside);
    check.packaged();
    if let Err(error) = check.timings.write(root, check.stages.times()) {
        check.stages.fail("timings", format!("{error:#}"));
    }
    if let Wanted::Full(full) = &check.wanted {
        full.standing().into_iter().for_each(|line| check.stages.note(line));
    }
    check.stages.note(cache);
    check.stages.note(format!("{room} at the start; {} at the end", machine::room(root)));
    check.stages.note(machine::speed());
    check.stages.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_before_a_part_of_names_and_an_unknown_one_lists_all() {
        let names = |text| named(text).unwrap().into_iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(names("fc"), ["fc"], "the scenario of this name, none of those that contain it");
        assert!(names("contract").len() > 1);
        let refused = named("nosuch").err().unwrap().to_string();
        for one in scenarios::ALL {
            assert!(refused.contains(one.name), "{refused}");
        }
    }

    #[test]
    fn verdicts_count_each_scenario_once() {
        let ended = [
            ("a", Verdict::Passed),
            ("b", Verdict::Failed("3 stamps landed".to_owned())),
            ("c", Verdict::RanOut("waited".to_owned())),
        ];
        let count = verdicts(ended);
        assert_eq!((count.passed, count.failed, count.skipped), (1, 2, 0));
        assert_eq!(count.failures, ["b: 3 stamps landed", "c: waited"]);
    }
}
