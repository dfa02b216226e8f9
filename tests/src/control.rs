//! The controller of a test site, on the storage node, and calls of the command line against it.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{Output, Running};
use serde_json::Value;

use crate::evidence::{check, wait_for};
use crate::native::{AGENT_PORT, NativeHost};
use crate::pki::{Authority, Signed};
use crate::site::{AGENT, BIN, Site};

/// The controller's port.
pub const PORT: u16 = 8776;
/// The token of the tests: an admin's.
pub const TOKEN: &str =
    "mooring_95451c08a4e6511a_de7e0d5169bb9d3519d696913eca5303d8ab728b199895c89879bc3f728fe22c";
/// The part of the token that names its entry in the token file.
const TOKEN_ID: &str = "95451c08a4e6511a";
/// The token's hash, as `mooring-controller token` wrote it.
const TOKEN_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$6in3zwpeA+v/uuTE9k0rIQ$g91O0FRxv2rjl0rd4nL5dVqRpHAdiGCyddfKiP8iPSk";

/// Exit status of `mooring`: accepted and not done yet; the same command again shows how it ends.
const PENDING: i32 = 5;
/// Most requests of [`Control::repeated`]. Each takes 5 s until it answers that it is pending.
const ASKED_MAX: u32 = 36;
/// Seconds within which a command has to succeed. It is patience alone: what works ends earlier.
const PATIENT: &str = "240";

/// The attachment in an answer: its field, or the whole answer.
pub fn attachment_of(mut answer: Value) -> Value {
    if answer["attachment"].is_object() { answer["attachment"].take() } else { answer }
}

/// Fails unless the answer that ended an attach shows the target's view of it: the session is
/// logged in, with this mode in force.
pub fn check_in_force(live: &Value, mode: &str) -> Result<()> {
    let (session, seen) = (&live["session"], &live["effective_mode"]);
    check(*session == true && seen == mode, || {
        format!("attached with session {session} and mode {seen} in place of true and {mode}: {live}")
    })
}

/// The answer of a `mooring --json` that has succeeded.
fn parsed(args: &[&str], out: Output) -> Result<Value> {
    let out = out.ok()?;
    serde_json::from_str(&out.stdout)
        .with_context(|| format!("`mooring {}` answered: {}", args.join(" "), out.stdout))
}

/// A site with a controller on it, and native hosts.
pub struct Control<'a> {
    /// The site.
    pub site: &'a Site,
    /// The native hosts, host1 first.
    pub hosts: Vec<NativeHost<'a>>,
    controller: Option<Running>,
    authority: Authority,
    ours: Signed,
    /// Lines of the controller's configuration, after its first table.
    extra: &'static str,
}

impl<'a> Control<'a> {
    /// Configures everything on every VM; starts nothing beyond what [`Site::up`] did.
    pub fn prepare(site: &'a Site) -> Result<Self> {
        Self::prepare_with(site, "")
    }

    /// Like [`Self::prepare`], with more lines in the controller's configuration.
    pub fn prepare_with(site: &'a Site, extra: &'static str) -> Result<Self> {
        let authority = Authority::new()?;
        site.uses(&["mooring-controller", "mooring-agent", "mooring-sessiond"])?;
        let ours = authority.sign("controller")?;
        let mut hosts = Vec::new();
        for vm in site.rig.vms().iter().filter(|vm| vm.name() != "storage") {
            hosts.push(NativeHost::prepare(vm, &authority)?);
        }
        let control = Self { site, hosts, controller: None, authority, ours, extra };
        control.configure()?;
        Ok(control)
    }

    /// Writes the controller's certificates, configuration and tokens. They are lost in a power
    /// cut, together with the VM's root.
    pub fn configure(&self) -> Result<()> {
        let storage = self.site.storage()?;
        storage.write("/etc/mooring/ca.crt", self.authority.pem.as_bytes(), 0o644)?;
        storage.write("/etc/mooring/controller.crt", self.ours.cert.as_bytes(), 0o644)?;
        storage.write("/etc/mooring/controller.key", self.ours.key.as_bytes(), 0o600)?;
        let tokens = format!(
            "[[tokens]]\nname = \"test\"\nid = \"{TOKEN_ID}\"\nproject = \"0123456789abcdef0123456789abcdef\"\n\
             user = \"test\"\nroles = [\"admin\", \"service\"]\nargon2 = \"{TOKEN_HASH}\"\n"
        );
        storage.write("/etc/mooring/tokens.toml", tokens.as_bytes(), 0o600)?;
        storage.write("/etc/mooring/token", TOKEN.as_bytes(), 0o600)?;
        let mut config = format!(
            "state_dir = \"/srv/mooring/controller\"\nlisten = [\"127.0.0.1:{PORT}\", \"10.30.0.10:{PORT}\", \"10.10.0.10:{PORT}\"]\n\
             insecure = true\ntokens = \"/etc/mooring/tokens.toml\"\nlog = \"info\"\n\
             [quota]\nvolumes = -1\ngigabytes = -1\n\
             [[agents]]\nname = \"storage\"\naddress = \"{AGENT}\"\n"
        );
        for host in &self.hosts {
            write!(
                config,
                "[[agents]]\nname = \"{}\"\naddress = \"https://{}:{AGENT_PORT}\"\nca = \"/etc/mooring/ca.crt\"\n\
                 cert = \"/etc/mooring/controller.crt\"\nkey = \"/etc/mooring/controller.key\"\n",
                host.vm.name(),
                host.vm.ip(0)
            )?;
        }
        config.push_str(self.extra);
        storage.write("/etc/mooring/controller.toml", config.as_bytes(), 0o600)
    }

    /// Starts the controller and waits until it answers and all its agents are up.
    pub fn start_controller(&mut self) -> Result<()> {
        let storage = self.site.storage()?;
        let controller = storage
            .command([format!("{BIN}/mooring-controller")])
            .timeout(Duration::from_hours(1))
            .spawn()?;
        wait_for("the controller and its agents", Duration::from_mins(1), || {
            if !controller.is_running() {
                bail!("the controller has ended: {}", controller.stderr_so_far());
            }
            self.all_up().map(Some)
        })?;
        self.controller = Some(controller);
        Ok(())
    }

    /// Checks that the controller reaches all its agents.
    pub fn all_up(&self) -> Result<()> {
        let agents = self.hosts.len() + 1;
        let hosts = self.json(&["host", "list"])?;
        let up = hosts["hosts"].as_array().map_or(0, |all| all.iter().filter(|h| h["up"] == true).count());
        check(up == agents, || format!("{up} of {agents} agents are up: {hosts}"))
    }

    /// Waits until the controller reaches all its agents again, after the restart of one.
    pub fn all_up_soon(&self) -> Result<()> {
        wait_for("the controller to reach its agents", Duration::from_mins(1), || self.all_up().map(Some))
    }

    /// Configures and starts a host that a power cut has emptied.
    pub fn host_again(&mut self, name: &str) -> Result<()> {
        let host = self.hosts.iter_mut().find(|host| host.vm.name() == name);
        let host = host.with_context(|| format!("no host is named {name}"))?;
        *host = NativeHost::prepare(host.vm, &self.authority)?;
        host.start()
    }

    /// Kills the controller with -9. Returns its log.
    pub fn kill_controller(&mut self) -> Result<String> {
        let controller = self.controller.take().context("the controller does not run")?;
        controller.kill()?;
        Ok(controller.wait()?.stderr)
    }

    /// Forgets a controller that a power cut has ended.
    pub fn controller_is_gone(&mut self) {
        drop(self.controller.take());
    }

    /// The controller's log since its last start.
    pub fn controller_log(&self) -> String {
        self.controller.as_ref().map(Running::stderr_so_far).unwrap_or_default()
    }

    /// Prints the logs of the controller and the hosts' agents, for a failure's report.
    pub fn print_logs(&self) {
        eprintln!("--- controller:\n{}", self.controller_log());
        for host in &self.hosts {
            eprintln!("--- {}'s agent:\n{}", host.vm.name(), host.agent_log());
        }
    }

    /// The command line of `mooring` against the controller, as run on the storage node.
    pub fn words(args: &[&str]) -> Vec<String> {
        let mut argv =
            vec![format!("{BIN}/mooring"), "--token-file".to_owned(), "/etc/mooring/token".to_owned()];
        argv.extend(args.iter().map(|&arg| arg.to_owned()));
        argv
    }

    /// Runs `mooring` on a host, as root, against the controller.
    pub fn mooring_on(&self, host: &NativeHost<'_>, args: &[&str]) -> Result<Output> {
        host.vm.write("/etc/mooring/token", TOKEN.as_bytes(), 0o600)?;
        let mut words = Self::words(&["--controller", &format!("http://10.10.0.10:{PORT}"), "--insecure"]);
        words.extend(args.iter().map(|&arg| arg.to_owned()));
        host.vm.command(words).timeout(Duration::from_mins(6)).run()
    }

    /// The command line of a force detach, for a shell on the storage node.
    pub fn force_words(attachment: &str) -> String {
        Self::words(&["--json", "detach", attachment, "--force"]).join(" ")
    }

    /// Shell text that repeats a command while it is pending. Prints the last answer; fails if that
    /// one is still pending, or another failure.
    ///
    /// On a busy machine the first answer to a force detach or a fence, after 5 s, may be that the
    /// proof is not there yet.
    pub fn repeated(words: &str) -> String {
        format!(
            "{{ n=0; s={PENDING}; while [ $s = {PENDING} ] && [ $n -lt {ASKED_MAX} ]; do \
             n=$((n + 1)); s=0; a=$({words}) || s=$?; done; printf '%s\\n' \"$a\"; [ $s = 0 ]; }}"
        )
    }

    /// Runs `mooring` on the storage node, against the controller. Only its own `--timeout` limits
    /// it.
    pub fn mooring(&self, args: &[&str]) -> Result<Output> {
        self.site.storage()?.command(Self::words(args)).timeout(Duration::from_mins(6)).run()
    }

    /// Like [`Self::mooring`], with `--json`; an exit status other than 0 is an error. It waits as
    /// long as a busy machine may need.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let mut all = vec!["--json"];
        if !args.contains(&"--timeout") {
            all.extend(["--timeout", PATIENT]);
        }
        all.extend(args);
        parsed(args, self.mooring(&all)?)
    }

    /// Detaches by force, and repeats that while it is pending: the first answer, after 5 s, may be
    /// an unproven receipt. Returns the last answer; an exit status other than 0 is an error.
    pub fn force_detach(&self, attachment: &str) -> Result<Value> {
        let until_proven = Self::repeated(&Self::force_words(attachment));
        let command = self.site.storage()?.command(["sh", "-euc", &until_proven]);
        parsed(&["detach", attachment, "--force"], command.timeout(Duration::from_mins(6)).run()?)
    }

    /// Makes the type of shared volumes.
    pub fn shared_type(&self) -> Result<()> {
        self.json(&["type", "create", "shared", "--multiattach"]).map(|_| ())
    }

    /// Makes a volume of a type (or the default one) and waits for it. Returns its id.
    pub fn volume(&self, name: &str, volume_type: Option<&str>) -> Result<String> {
        let mut args = vec!["volume", "create", name, "--size", "1GiB", "--timeout", "240"];
        if let Some(volume_type) = volume_type {
            args.extend(["--type", volume_type]);
        }
        let made = self.json(&args)?;
        let id = made["volume"]["id"].as_str().or(made["id"].as_str());
        Ok(id.with_context(|| format!("no id in {made}"))?.to_owned())
    }

    /// Attaches and waits. Returns the live attachment.
    pub fn attach(&self, volume: &str, host: &str, mode: &str) -> Result<Value> {
        let answer = self.json(&["attach", volume, "--host", host, "--mode", mode])?;
        Ok(attachment_of(answer))
    }

    /// Gets a live attachment.
    pub fn live(&self, id: &str) -> Result<Value> {
        let answer = self.json(&["attachment", "show", id])?;
        Ok(attachment_of(answer))
    }

    /// Starts hosts and controller.
    pub fn start(&mut self) -> Result<()> {
        for host in &mut self.hosts {
            host.start()?;
        }
        self.start_controller()
    }
}
