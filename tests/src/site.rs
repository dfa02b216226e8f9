//! A site: a rig with the product installed. The storage node has a volume group on its first data
//! disk, and its state folder on the second: a VM's root is lost in a power cut, and the agent's
//! store must survive.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::phases::{self, Phase};
use mooring_rig::{Output, Rig, RigOptions, Running, Vm, image};
use serde_json::Value;

use crate::evidence::{check, wait_for};

/// Folder of the product's programs in a VM.
pub const BIN: &str = mooring_rig::PROGRAMS_DIR;
/// The agent's socket.
pub const AGENT: &str = "unix:/run/mooring/agent.sock";
/// The volume group of the scenarios.
pub const GROUP: &str = "vg0";
/// LIO's folder.
pub const TARGET: &str = "/sys/kernel/config/target";

/// Programs that scenarios run in VMs.
pub const PROGRAMS_IN_VMS: [&str; 12] = [
    "mooring",
    "mooring-agent",
    "mooring-agent-faults",
    "mooring-attach-floor",
    "mooring-contract",
    "mooring-controller",
    "mooring-fc-grants",
    "mooring-ro-fuzz",
    "mooring-sessiond",
    "mooring-sessiond-faults",
    "mooring-stamp",
    "mooring-store-fill",
];

/// Programs that only benchmarks run there.
const PROGRAMS_OF_BENCHMARKS: [&str; 3] = ["mooring-floor", "mooring-load", "mooring-restore"];

/// Programs that a scenario uses in a VM, as cargo has built them.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Uses the programs in this folder (`target/release`).
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The path of one program.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        if !path.exists() {
            bail!("{} is not built: run this through `cargo xtask`, which builds it first", path.display());
        }
        Ok(path)
    }

    /// Adds an image of all built programs to the VMs' options.
    pub fn show_in(&self, mut options: RigOptions) -> Result<RigOptions> {
        let all = PROGRAMS_IN_VMS.iter().chain(&PROGRAMS_OF_BENCHMARKS);
        let built: Vec<_> = all.map(|name| self.folder.join(name)).filter(|path| path.exists()).collect();
        options.programs =
            Some(image::programs(&options.root_dir, &built).context("pack the programs for the VMs")?);
        Ok(options)
    }
}

/// A rig with the product on it.
pub struct Site {
    /// The VMs.
    pub rig: Rig,
    programs: Programs,
}

/// Address of a storage agent's metrics, if they are on.
const METRICS: &str = "127.0.0.1:9180";

/// Default portals of targets.
const PORTALS: [&str; 2] = ["10.10.0.10:3260", "10.20.0.10:3260"];

/// The agent's configuration in the scenarios.
pub fn agent_config(extra: &str) -> String {
    agent_config_at(&PORTALS, extra)
}

/// The table that turns the storage agent's metrics on, for [`Site::metric`].
pub fn metrics_table() -> String {
    format!("[metrics]\nlisten = [\"{METRICS}\"]\n")
}

fn agent_config_at(portals: &[&str], extra: &str) -> String {
    format!(
        "state_dir = \"/srv/mooring/state\"\nrun_dir = \"/run/mooring\"\nlisten = [\"{AGENT}\"]\n\
         portals = {portals:?}\nlog = \"info\"\n{extra}\n[[groups]]\nname = \"{GROUP}\"\n"
    )
}

impl Site {
    /// Boots the VMs and installs the product; the agent is not started yet.
    pub fn up(options: RigOptions, programs: &Programs) -> Result<Self> {
        let rig = Rig::up(programs.show_in(options)?)?;
        let began = Instant::now();
        let site = Self { rig, programs: programs.clone() };
        for vm in site.rig.vms() {
            vm.sh("mkdir -p /etc/mooring /run/mooring")?.ok()?;
        }
        site.make_disks()?;
        site.uses(&["mooring-agent", "mooring", "mooring-stamp"])?;
        phases::add(Phase::Install, began);
        Ok(site)
    }

    /// The path of a program on this machine.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        self.programs.path(name)
    }

    /// The storage node.
    pub fn storage(&self) -> Result<&Vm> {
        self.rig.vm("storage")
    }

    /// Checks that these programs are built: every VM has the built ones in [`BIN`].
    pub fn uses(&self, names: &[&str]) -> Result<()> {
        names.iter().try_for_each(|name| self.programs.path(name).map(drop))
    }

    /// Makes the disks. LVM does not flush its writes: a volatile disk would lose the group at a
    /// power cut.
    fn make_disks(&self) -> Result<()> {
        let storage = self.storage()?;
        let disks = storage.data_disks();
        let [first, second, ..] = disks.as_slice() else {
            bail!("the storage VM has {} data disks, not 2", disks.len())
        };
        storage
            .sh(&format!(
                "pvcreate -q {first}; vgcreate -q {GROUP} {first}; sync {first}; mkfs.ext4 -q {second}; mkdir -p /srv/mooring; mount {second} /srv/mooring; \
                 mkdir -p /srv/mooring/state"
            ))?
            .ok()
            .context("make the volume group and the state folder")?;
        self.load_modules()
    }

    /// Does what modules-load.d and sysctl.d do on a real system.
    fn load_modules(&self) -> Result<()> {
        self.storage()?.sh("modprobe -a target_core_mod target_core_iblock iscsi_target_mod; echo 1048576 > /proc/sys/fs/inotify/max_user_watches")?.ok()?;
        Ok(())
    }

    /// Restores what a power cut removes from a VM without a distribution: the mount, the modules.
    pub fn after_boot(&self) -> Result<()> {
        let storage = self.storage()?;
        let disks = storage.data_disks();
        let second = disks.get(1).context("the second data disk")?;
        storage
            .sh(&format!("mkdir -p /srv/mooring /etc/mooring /run/mooring; mount {second} /srv/mooring"))?
            .ok()?;
        self.load_modules()
    }

    /// Starts the agent and waits until it answers.
    pub fn start_agent(&self) -> Result<Running> {
        self.start_agent_with("")
    }

    /// Like [`Self::start_agent`], with more lines in its configuration.
    pub fn start_agent_with(&self, extra: &str) -> Result<Running> {
        self.start_agent_by(&agent_config(extra))
    }

    /// Like [`Self::start_agent`], with these portals and with metrics.
    pub fn start_agent_at(&self, portals: &[&str]) -> Result<Running> {
        self.start_agent_by(&agent_config_at(portals, &metrics_table()))
    }

    /// Like [`Self::start_agent_at`], without a resync for an hour.
    pub fn start_agent_without_resync(&self, portals: &[&str]) -> Result<Running> {
        let seldom = format!("resync_seconds = 3600\n{}", metrics_table());
        self.start_agent_by(&agent_config_at(portals, &seldom))
    }

    /// Like [`Self::start_agent`], with this configuration.
    pub fn start_agent_by(&self, config: &str) -> Result<Running> {
        self.storage()?.write("/etc/mooring/agent.toml", config.as_bytes(), 0o600)?;
        self.start_program(&[&format!("{BIN}/mooring-agent")])
    }

    /// One counter or gauge without labels, of a storage agent with a [`metrics_table`].
    pub fn metric(&self, name: &str) -> Result<u64> {
        let ask = format!(
            "import urllib.request as r\nfor line in r.urlopen('http://{METRICS}/metrics').read().decode().splitlines():\n  \
             if line.startswith('{name} '): print(line.split()[1])"
        );
        let out = self.storage()?.run(&["python3", "-c", &ask])?.ok()?;
        out.line().trim().parse().with_context(|| format!("{name}: {:?}", out.stdout))
    }

    /// Starts an agent by this command line, with the present configuration, and waits until it
    /// answers.
    pub fn start_program(&self, words: &[&str]) -> Result<Running> {
        let agent = self.spawn_program(words)?;
        let answers = wait_for("the agent to answer", Duration::from_mins(2), || {
            if !agent.is_running() {
                bail!("the agent has ended: {}", agent.stderr_so_far());
            }
            self.agent_answers().map(|answers| answers.then_some(()))
        });
        answers.with_context(|| format!("it said: {}", agent.stderr_so_far()))?;
        Ok(agent)
    }

    /// Like [`Self::start_program`], without the wait.
    pub fn spawn_program(&self, words: &[&str]) -> Result<Running> {
        let words = words.iter().map(|&word| word.to_owned());
        self.storage()?.command(words).timeout(Duration::from_hours(1)).spawn()
    }

    /// Returns `true` if the agent answers.
    pub fn agent_answers(&self) -> Result<bool> {
        Ok(self.mooring(&["agent", "show"])?.status.success())
    }

    /// Runs `mooring` on the storage node.
    pub fn mooring(&self, args: &[&str]) -> Result<Output> {
        let mut argv = vec![format!("{BIN}/mooring"), "--agent".to_owned(), AGENT.to_owned()];
        argv.extend(args.iter().map(|&arg| arg.to_owned()));
        self.storage()?.command(argv).timeout(Duration::from_mins(6)).run()
    }

    /// Runs `mooring --json` and parses its answer; an exit status other than 0 is an error. It
    /// waits as long as a busy machine may need: LVM's commands take 30 s there.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let mut all = vec!["--json"];
        if !args.contains(&"--timeout") {
            all.extend(["--timeout", "240"]);
        }
        all.extend(args);
        let out = self.mooring(&all)?.ok()?;
        serde_json::from_str(&out.stdout)
            .with_context(|| format!("`mooring {}` answered: {}", args.join(" "), out.stdout))
    }

    /// Puts a delay in milliseconds before every write of an LV; `None` removes it. The LV's own
    /// table is swapped, so its export continues.
    pub fn delay_writes(&self, device: &str, ms: Option<u64>) -> Result<()> {
        self.delay_writes_of(&[device], ms)
    }

    /// Like [`Self::delay_writes`], for each of these LVs.
    pub fn delay_writes_of(&self, devices: &[impl AsRef<str>], ms: Option<u64>) -> Result<()> {
        let table = match ms {
            Some(ms) => format!("awk '{{print $1, $2, \"delay\", $4, $5, 0, $4, $5, {ms}}}'"),
            None => "awk '{print $1, $2, \"linear\", $4, $5}'".to_owned(),
        };
        let devices = devices.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ");
        let script = format!(
            "modprobe dm-delay; for device in {devices}; do \
             name=$(dmsetup info -c --noheadings -o name $device); dmsetup table $name | {table} > /run/table; \
             dmsetup reload $name /run/table; dmsetup resume $name; done"
        );
        self.storage()?.sh(&script)?.ok().context("swap the LVs' tables")?;
        Ok(())
    }

    /// Number of writes that an LV holds back now: the second number of dm-delay's status.
    pub fn delayed_writes(&self, device: &str) -> Result<u64> {
        let out = self.storage()?.run(&["dmsetup", "status", device])?.ok()?;
        let held = out.line().split_whitespace().nth(4);
        held.and_then(|text| text.parse().ok()).with_context(|| format!("{device}: {}", out.line()))
    }

    /// Reads the stamps of the volume on the storage node, from the LV itself.
    pub fn stamps_on_storage(&self, device: &str) -> Result<Vec<u64>> {
        let out = self.storage()?.run(&[&format!("{BIN}/mooring-stamp"), "read", device])?.ok()?;
        sequences(&out.stdout)
    }

    /// Checks that the agent has nothing left to do.
    pub fn nothing_planned(&self) -> Result<()> {
        let plan = self.json(&["plan"])?;
        check(plan["steps"].as_array().is_some_and(Vec::is_empty), || {
            format!("the agent wants to do: {plan}")
        })
    }

    /// Waits until the agent has nothing left to do. What it does at its start takes a slow machine
    /// a while.
    pub fn nothing_planned_soon(&self) -> Result<()> {
        wait_for("the agent to have nothing left to do", Duration::from_secs(30), || {
            self.nothing_planned().map(Some)
        })
    }

    /// Checks that no target, no backstore and no LV is left.
    pub fn nothing_left(&self) -> Result<()> {
        let script = format!(
            "find {TARGET}/iscsi -maxdepth 1 -name 'iqn*'; find {TARGET}/core -maxdepth 1 -name 'iblock_*'; \
             lvs --noheadings -o lv_name {GROUP}"
        );
        let left = self.storage()?.sh(&script)?.ok()?.stdout;
        check(left.trim().is_empty(), || format!("left behind: {left}"))
    }

    /// Ends a scenario: a failure leaves its evidence in `failed-NAME` beside the rig's folder; to
    /// pass, the consoles must be clean.
    pub fn end(&self, result: Result<()>) -> Result<()> {
        if result.is_err() {
            self.save_evidence(&self.rig.dir().with_file_name(format!("failed-{}", self.rig.name())));
        }
        self.rig.verdict(result)
    }

    /// Saves consoles and kernel state for a failure's report.
    pub fn save_evidence(&self, folder: &Path) {
        if let Err(error) = self.rig.save_evidence(folder) {
            eprintln!("cannot save the evidence to {}: {error:#}", folder.display());
        }
    }
}

/// The sequence numbers in the output of `mooring-stamp read`.
pub fn sequences(json: &str) -> Result<Vec<u64>> {
    let stamps: Vec<Value> = serde_json::from_str(json).with_context(|| format!("stamps: {json}"))?;
    stamps.iter().map(|stamp| stamp["sequence"].as_u64().context("a stamp without a sequence")).collect()
}

/// The last progress line of `mooring-stamp write` or `watch`; waits for the first one.
pub fn progress(running: &Running) -> Result<Value> {
    wait_for("the first line of progress", Duration::from_secs(30), || {
        let text = running.stdout_so_far();
        let Some(line) = text.lines().rev().find(|line| line.ends_with('}')) else {
            check(running.is_running(), || format!("the program has ended: {}", running.stderr_so_far()))?;
            return Ok(None);
        };
        serde_json::from_str(line).map(Some).with_context(|| format!("progress: {line}"))
    })
}

/// Like [`progress`], once the program has done anything.
pub fn going(running: &Running) -> Result<Value> {
    wait_for("the first I/O to be done", Duration::from_secs(30), || {
        let seen = progress(running)?;
        Ok((number(&seen, "done")? > 0).then_some(seen))
    })
}

/// Waits until a writer has written more than at the call.
pub fn goes_on(writer: &Running) -> Result<()> {
    let lines = || writer.stdout_so_far().lines().count();
    let before = lines();
    wait_for("the writer's next word", Duration::from_secs(30), || Ok((lines() > before).then_some(())))?;
    let done = number(&progress(writer)?, "done")?;
    wait_for("the writes to go on", Duration::from_secs(30), || {
        Ok((number(&progress(writer)?, "done")? > done).then_some(()))
    })
}

/// One number of a progress line.
pub fn number(value: &Value, name: &str) -> Result<u64> {
    value[name].as_u64().with_context(|| format!("no number {name} in {value}"))
}
