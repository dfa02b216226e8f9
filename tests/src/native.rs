//! A host that attaches natively, with its agent and sessiond, and the tests' questions to it.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{Running, Vm};
use serde_json::Value;

use crate::evidence::{check, wait_for};
use crate::pki::Authority;
use crate::site::BIN;

/// The port of a host's agent.
pub const AGENT_PORT: u16 = 7710;

const LONG: Duration = Duration::from_hours(1);

/// A host with the product installed.
pub struct NativeHost<'a> {
    /// The host's VM.
    pub vm: &'a Vm,
    agent: Option<Running>,
    sessiond: Option<Running>,
    /// Name of sessiond's program: the one that can be made to crash has another.
    pub sessiond_program: &'static str,
}

/// A session as sysfs on its host shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSession {
    /// `session<sid>`.
    pub sid: u32,
    /// `LOGGED_IN` and so on.
    pub state: String,
    /// The netlink port that made it; -1 is the kernel's.
    pub creator: i64,
    /// The target's name.
    pub target: String,
}

impl<'a> NativeHost<'a> {
    /// Installs certificates and configuration; starts nothing.
    pub(crate) fn prepare(vm: &'a Vm, authority: &Authority) -> Result<Self> {
        let ip = vm.ip(0).to_string();
        let signed = authority.sign(&ip)?;
        vm.sh(&format!(
            "mkdir -p {BIN} /etc/mooring /var/lib/mooring /run/mooring; modprobe -a iscsi_tcp sd_mod sg"
        ))?
        .ok()?;
        vm.write("/etc/mooring/ca.crt", authority.pem.as_bytes(), 0o644)?;
        vm.write("/etc/mooring/agent.crt", signed.cert.as_bytes(), 0o644)?;
        vm.write("/etc/mooring/agent.key", signed.key.as_bytes(), 0o600)?;
        let config = format!(
            "state_dir = \"/var/lib/mooring\"\nrun_dir = \"/run/mooring\"\n\
             listen = [\"unix:/run/mooring/agent.sock\", \"https://{ip}:{AGENT_PORT}\"]\nlog = \"info\"\n\
             [tls]\ncert = \"/etc/mooring/agent.crt\"\nkey = \"/etc/mooring/agent.key\"\nclient_ca = \"/etc/mooring/ca.crt\"\n\
             [host]\n"
        );
        vm.write("/etc/mooring/agent.toml", config.as_bytes(), 0o600)?;
        Ok(Self { vm, agent: None, sessiond: None, sessiond_program: "mooring-sessiond" })
    }

    /// Restores what a power cut removes from a VM without a distribution, except the state, which
    /// is lost with its root.
    pub fn start(&mut self) -> Result<()> {
        self.start_sessiond()?;
        self.start_agent()
    }

    /// Starts sessiond and waits until it accepts requests.
    pub fn start_sessiond(&mut self) -> Result<()> {
        self.start_sessiond_with(&[])
    }

    /// Like [`Self::start_sessiond`], with these environment variables.
    pub fn start_sessiond_with(&mut self, env: &[&str]) -> Result<()> {
        let mut argv = vec!["env".to_owned()];
        argv.extend(env.iter().map(|&pair| pair.to_owned()));
        argv.push(format!("{BIN}/{}", self.sessiond_program));
        let sessiond = self.vm.command(argv).timeout(LONG).spawn()?;
        wait_for("sessiond to listen", Duration::from_secs(30), || {
            if !sessiond.is_running() {
                bail!("sessiond has ended: {}", sessiond.stderr_so_far());
            }
            let probe = self.vm.run(&["test", "-S", "/run/mooring/sessiond/sessiond.sock"])?;
            Ok((probe.status.success() && sessiond.stderr_so_far().contains("ready")).then_some(()))
        })?;
        self.sessiond = Some(sessiond);
        Ok(())
    }

    /// Starts the agent and waits until it answers.
    pub fn start_agent(&mut self) -> Result<()> {
        let agent = self.vm.command([format!("{BIN}/mooring-agent")]).timeout(LONG).spawn()?;
        wait_for("the host's agent to be ready", Duration::from_secs(30), || {
            if !agent.is_running() {
                bail!("the agent has ended: {}", agent.stderr_so_far());
            }
            Ok(agent.stderr_so_far().contains("ready").then_some(()))
        })?;
        self.agent = Some(agent);
        Ok(())
    }

    /// sessiond's log since its last start.
    pub fn sessiond_log(&self) -> String {
        self.sessiond.as_ref().map(Running::stderr_so_far).unwrap_or_default()
    }

    /// The agent's log since its last start.
    pub fn agent_log(&self) -> String {
        self.agent.as_ref().map(Running::stderr_so_far).unwrap_or_default()
    }

    /// Returns `true` while sessiond runs.
    pub fn sessiond_runs(&self) -> bool {
        self.sessiond.as_ref().is_some_and(Running::is_running)
    }

    /// Kills sessiond with -9. Returns its log.
    pub fn kill_sessiond(&mut self) -> Result<String> {
        kill(&mut self.sessiond, "sessiond")
    }

    /// Kills the agent with -9. Returns its log.
    pub fn kill_agent(&mut self) -> Result<String> {
        kill(&mut self.agent, "the host's agent")
    }

    /// The sessions of this host's kernel.
    pub fn sessions(&self) -> Result<Vec<KernelSession>> {
        let script = "cd /sys/class/iscsi_session; for s in session*; do [ -e $s/state ] || continue; \
                      echo ${s#session} $(cat $s/state) $(cat $s/creator) $(cat $s/targetname); done";
        let out = self.vm.sh(script)?.ok()?;
        out.stdout.lines().map(parse_session).collect()
    }

    /// The one session of a target.
    pub fn session(&self, target: &str) -> Result<KernelSession> {
        let mut of_target = self.sessions()?;
        of_target.retain(|session| session.target == target);
        match of_target.as_slice() {
            [one] => Ok(one.clone()),
            other => bail!("{} sessions of {target} on {}: {other:?}", other.len(), self.vm.name()),
        }
    }

    /// Checks that nothing of ours is left: no session, no path, no journal.
    pub fn nothing_left(&self) -> Result<()> {
        let script =
            "ls /sys/class/iscsi_session 2>/dev/null || true; find /run/mooring -name '*.json' -o -type l";
        let left = self.vm.sh(script)?.ok()?.stdout;
        check(left.trim().is_empty(), || format!("left on {}: {left}", self.vm.name()))
    }
}

fn kill(process: &mut Option<Running>, what: &str) -> Result<String> {
    let process = process.take().with_context(|| format!("{what} does not run"))?;
    process.kill()?;
    Ok(process.wait()?.stderr)
}

fn parse_session(line: &str) -> Result<KernelSession> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [sid, state, creator, target] = words.as_slice() else { bail!("a session that reads {line:?}") };
    Ok(KernelSession {
        sid: sid.parse().with_context(|| line.to_owned())?,
        state: (*state).to_owned(),
        creator: creator.parse().with_context(|| line.to_owned())?,
        target: (*target).to_owned(),
    })
}

/// A text of one attachment in the output of `mooring attachment show --json`.
pub fn text<'v>(value: &'v Value, key: &str) -> Result<&'v str> {
    value[key].as_str().with_context(|| format!("no text {key} in {value}"))
}
