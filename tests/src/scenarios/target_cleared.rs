//! A storage node whose target somebody else takes away while a host writes: the whole tree by the
//! calls of `targetctl clear`, and one ACL right after an attach. The agent puts both right by the
//! kernel's word, and the host's I/O goes on.
//!
//! What must never happen here: a resync taken for the watch; it is ten minutes away. The agent
//! asked about the kernel's tree: the tree is the witness.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for, within};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, TARGET, agent_config, goes_on, going, number, progress};

const HALF_MINUTE: Duration = Duration::from_secs(30);
/// Time within which one ACL is back, from the moment that the agent runs again.
const ACL_BACK: Duration = Duration::from_secs(2);
/// Time within which everything is back. Some thirty folders, links and values are made anew, and
/// an emulated processor takes 1 to 3 s for that and for the questions about the tree. The resync
/// is ten minutes away.
const ALL_BACK: Duration = Duration::from_secs(5);
/// `SIGSTOP`
const STOP: u8 = 19;
/// `SIGCONT`
const CONT: u8 = 18;
/// Plans that the control asks for.
const ASKED: usize = 3;

/// The calls of rtslib's `clear_existing`, in its order: each portal group is closed first, which
/// ends its sessions. With an argument only this ACL goes. Prints the number of calls.
const CLEAR: &str = r#"
import glob, os, sys
root = "/sys/kernel/config/target"
calls = 0
def call(what, path):
    global calls
    what(path)
    calls += 1
def unlink_in(folder):
    for path in glob.glob(folder + "/*"):
        if os.path.islink(path):
            call(os.unlink, path)
def take_acl(acl):
    for lun in glob.glob(acl + "/lun_*"):
        unlink_in(lun)
        call(os.rmdir, lun)
    call(os.rmdir, acl)
def take_group(tpg):
    with open(tpg + "/enable", "w") as enable:
        enable.write("0")
    for acl in glob.glob(tpg + "/acls/*"):
        take_acl(acl)
    for lun in glob.glob(tpg + "/lun/lun_*"):
        unlink_in(lun)
        call(os.rmdir, lun)
    for portal in glob.glob(tpg + "/np/*"):
        call(os.rmdir, portal)
    call(os.rmdir, tpg)
if len(sys.argv) > 1:
    take_acl(sys.argv[1])
else:
    for target in glob.glob(root + "/iscsi/iqn.*"):
        for tpg in glob.glob(target + "/tpgt_*"):
            take_group(tpg)
        call(os.rmdir, target)
    for hba in glob.glob(root + "/core/iblock_*"):
        for store in glob.glob(hba + "/*"):
            if os.path.isdir(store):
                call(os.rmdir, store)
        call(os.rmdir, hba)
print(calls)
"#;

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("target-cleared").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

/// Starts the agent, with its next resync ten minutes away. Thin: nothing has to be zeroed.
fn start_agent(site: &Site) -> Result<Running> {
    site.start_agent_by(&format!("{}thin_pool = \"2GiB\"\n", agent_config("resync_seconds = 600")))
}

fn scenes(site: &Site) -> Result<()> {
    let agent = start_agent(site)?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.json(&["type", "create", "thin", "--spec", "provisioning:type=thin"])?;
    let volume = control.volume("data", Some("thin"))?;
    let mut acts = Acts { site, control, evidence: Evidence::default(), volume };
    let result = acts.all(agent);
    if result.is_err() {
        acts.control.print_logs();
        for host in &acts.control.hosts {
            eprintln!("--- {}'s sessiond:\n{}", host.vm.name(), host.sessiond_log());
        }
    }
    result
}

/// An attachment of the volume.
struct Attached<'a> {
    id: String,
    disk: Disk<'a>,
    /// The folder of its ACL in the target's tree.
    acl: String,
}

struct Acts<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    volume: String,
}

impl<'a> Acts<'a> {
    fn all(&mut self, agent: Running) -> Result<()> {
        let (id, disk) = self.attach()?;
        let initiator = text(&self.control.live(&id)?, "initiator")?.to_owned();
        let acl = format!("{TARGET}/iscsi/iqn.2026-11.dev.mooring:{}/tpgt_1/acls/{initiator}", self.volume);
        let attached = Attached { id, disk, acl };
        self.cleared(&agent, &attached)?;
        self.control.json(&["detach", &attached.id])?;
        let attached = self.removed_right_after_an_attach(&agent, attached.acl)?;
        let agent = self.nobody_watches(agent, &attached)?;
        self.control.json(&["detach", &attached.id])?;
        self.taken_away(agent)
    }

    fn storage(&self, script: &str) -> Result<String> {
        Ok(self.site.storage()?.sh(script)?.ok()?.stdout)
    }

    fn attach(&self) -> Result<(String, Disk<'a>)> {
        let live = self.control.attach(&self.volume, "host1", "rw")?;
        let disk = Disk::new(self.site.rig.vm("host1")?, text(&live, "device_path")?);
        Ok((text(&live, "id")?.to_owned(), disk))
    }

    /// Folders and links of all exports, and the values that open and name them.
    fn tree(&self) -> Result<BTreeSet<String>> {
        let seen = self.storage(&format!(
            "cd {TARGET}; find iscsi core -mindepth 1 -maxdepth 6 \\( -type d -o -type l \\) \
             \\( -path '*/iqn.*' -o -path 'core/iblock_*' \\) -not -path '*statistics*' 2>/dev/null || true; \
             for file in iscsi/iqn.*/tpgt_1/enable iscsi/iqn.*/tpgt_1/acls/*/lun_*/write_protect \
             core/iblock_*/*/enable core/iblock_*/*/wwn/vpd_unit_serial; do \
             if [ -e \"$file\" ]; then echo \"$file: $(cat \"$file\" 2>/dev/null || true)\"; fi; done"
        ))?;
        Ok(seen.lines().map(str::to_owned).collect())
    }

    /// Runs [`CLEAR`] while the agent stands still. The agent looks 0.1 s after the first call:
    /// what it puts back would make a later call fail. Returns the number of calls, and when the
    /// agent ran again.
    fn clear(&self, agent: &Running, acl: Option<&str>) -> Result<(u64, Instant)> {
        agent.signal(STOP)?;
        let argv = ["python3", "-c", CLEAR].into_iter().chain(acl);
        let out = self.site.storage()?.command(argv).run();
        let left = self.tree();
        let began = Instant::now();
        agent.signal(CONT)?;
        let out = out?.ok().context("the calls of targetctl clear")?;
        let left = left?;
        let gone = match acl {
            Some(acl) => {
                let name = acl.strip_prefix(TARGET).unwrap_or(acl).trim_start_matches('/');
                !left.iter().any(|line| line.starts_with(name))
            }
            None => left.is_empty(),
        };
        check(gone, || format!("still there after the calls: {left:?}"))?;
        let calls =
            out.line().parse::<u64>().with_context(|| format!("the number of calls: {:?}", out.stdout))?;
        Ok((calls, began))
    }

    /// Waits until the tree is as it was. Returns the time since `began`.
    fn until_back(&self, before: &BTreeSet<String>, began: Instant) -> Result<Duration> {
        wait_for("the target to be as it was", HALF_MINUTE, || {
            let now = self.tree()?;
            check(now == *before, || {
                let lacks: Vec<_> = before.difference(&now).collect();
                let more: Vec<_> = now.difference(before).collect();
                format!("it lacks {lacks:?}, and has {more:?} instead")
            })?;
            Ok(Some(began.elapsed()))
        })
    }

    /// Waits until the agent has nothing to do, and the host's session is there.
    fn settled(&self, attached: &Attached<'a>) -> Result<()> {
        wait_for("the agent to have nothing to do", HALF_MINUTE, || self.site.nothing_planned().map(Some))?;
        wait_for("the session to be back", HALF_MINUTE, || {
            let live = self.control.live(&attached.id)?;
            let there = live["status"] == "attached" && live["session"] == true;
            check(there, || format!("the attachment: {live}")).map(Some)
        })
    }

    /// Writes on the host for a moment, and ends that. Returns the number of writes.
    fn writes(disk: &Disk<'a>, when: &str) -> Result<u64> {
        let writer = disk.write_stamps(&["--threads", "1"])?;
        let seen = going(&writer).and_then(|_| goes_on(&writer)).and_then(|()| progress(&writer));
        writer.kill()?;
        drop(writer.wait()?);
        let seen = seen.with_context(|| format!("writes {when}"))?;
        check(number(&seen, "errors")? == 0, || format!("writes {when}: {seen}"))?;
        number(&seen, "done")
    }

    /// The whole tree goes under I/O, and comes back.
    fn cleared(&mut self, agent: &Running, attached: &Attached<'a>) -> Result<()> {
        self.settled(attached)?;
        let writer = attached.disk.write_stamps(&["--threads", "2"])?;
        going(&writer)?;
        let before = self.tree()?;
        let mapped = before.iter().any(|line| line.contains("write_protect: 0"));
        check(mapped, || format!("the tree does not show the host's access: {before:?}"))?;
        let (calls, began) = self.clear(agent, None)?;
        let took = self.until_back(&before, began)?;
        within("the whole target to be back", took, ALL_BACK)?;
        goes_on(&writer).context("after the clear")?;
        let seen = progress(&writer)?;
        check(number(&seen, "errors")? == 0, || format!("the host's writes over the clear: {seen}"))?;
        self.settled(attached)?;
        writer.kill()?;
        drop(writer.wait()?);
        self.evidence.shows(format!(
            "everything taken away by the {calls} calls of `targetctl clear`, under I/O: all {} folders, links and values are back \
             {:.1} s after the agent runs again; the host's writes: 0 errors, longest gap {} ms",
            before.len(),
            took.as_secs_f64(),
            number(&seen, "longest_gap_ms")?
        ));
        Ok(())
    }

    fn is_mapped(&self, acl: &str) -> Result<bool> {
        let links =
            self.storage(&format!("find {acl} -mindepth 2 -maxdepth 2 -type l 2>/dev/null || true"))?;
        Ok(!links.trim().is_empty())
    }

    fn until_mapped(&self, acl: &str) -> Result<()> {
        wait_for("the ACL and its mapped LUN", HALF_MINUTE, || Ok(self.is_mapped(acl)?.then_some(())))
    }

    /// One ACL, this one, goes right behind the attach that has made it: no look has found nothing
    /// to do since.
    fn removed_right_after_an_attach(&mut self, agent: &Running, acl: String) -> Result<Attached<'a>> {
        let (id, disk) = self.attach()?;
        let attached = Attached { id, disk, acl };
        let (calls, began) = self.clear(agent, Some(&attached.acl))?;
        self.until_mapped(&attached.acl)?;
        let took = began.elapsed();
        within("the ACL to be back", took, ACL_BACK)?;
        self.settled(&attached)?;
        let written = Self::writes(&attached.disk, "after the ACL was removed by hand")?;
        self.evidence.shows(format!(
            "an ACL removed by hand ({calls} calls) right after its attach is back {:.1} s after the agent runs again, the next \
             resync ten minutes away; the host is logged in again, {written} writes without an error and without a detach",
            took.as_secs_f64()
        ));
        Ok(attached)
    }

    /// Control: where the kernel lets nobody watch, the agent sees the removal in each plan that it
    /// is asked for, and does not act on it.
    fn nobody_watches(&mut self, agent: Running, attached: &Attached<'a>) -> Result<Running> {
        let agent = self.started_anew(agent, 0)?;
        self.settled(attached)?;
        self.clear(&agent, Some(&attached.acl))?;
        for _ in 0..ASKED {
            let plan = self.site.json(&["plan"])?;
            let planned = plan["steps"].as_array().is_some_and(|steps| !steps.is_empty());
            check(planned && !self.is_mapped(&attached.acl)?, || {
                format!("the control: without a watch the ACL came back; the plan before: {plan}")
            })?;
        }
        let agent = self.started_anew(agent, 1_048_576)?;
        self.until_mapped(&attached.acl)?;
        self.settled(attached)?;
        Self::writes(&attached.disk, "after the control")?;
        self.evidence.shows(format!(
            "control: with fs.inotify.max_user_watches = 0 the ACL stays away over {ASKED} plans that name it; the agent's next start \
             brings it back, and the host has its disk again"
        ));
        Ok(agent)
    }

    /// Kills the agent and starts it with this many watches for everybody.
    fn started_anew(&self, agent: Running, watches: u32) -> Result<Running> {
        agent.kill()?;
        drop(agent.wait()?);
        self.storage(&format!("echo {watches} > /proc/sys/fs/inotify/max_user_watches"))?;
        let agent = start_agent(self.site)?;
        self.control.all_up_soon()?;
        Ok(agent)
    }

    fn taken_away(&mut self, agent: Running) -> Result<()> {
        self.control.json(&["volume", "delete", &self.volume, "--timeout", "120"])?;
        self.control.hosts.first().context("the host")?.nothing_left()?;
        agent.kill()?;
        drop(agent.wait()?);
        let left = self.tree()?;
        let lvs = self.storage(&format!("lvs --noheadings -o lv_name {GROUP}"))?;
        // The pool stays: it is made once.
        check(left.is_empty() && lvs.trim() == "mooring-pool", || format!("left behind: {left:?} {lvs}"))?;
        self.evidence.shows("the volume is deleted: nothing is left but the pool");
        Ok(())
    }
}
