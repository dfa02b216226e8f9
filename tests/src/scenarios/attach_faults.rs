//! Faults during a native attach on a real kernel. Each gets a clear error in bounded time, loses
//! nothing, and the attach succeeds once the fault is gone. (Faults that a fake can show are in the
//! crates' own tests, which are faster.)

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{Cut, Networks, Output, RigOptions, Running};

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for, within};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, TARGET, goes_on, going, number, progress};

const NOBODY: &str = "00000000-0000-4000-8000-000000000000";
const HALF_MINUTE: Duration = Duration::from_secs(30);
/// Time within which a force detach has come to an end at its host, behind its answer.
const HOST_ENDS: Duration = Duration::from_secs(5);

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("attach-faults").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

struct Faults<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    volume: String,
    target: String,
    /// The storage node's agent.
    agent: Option<Running>,
}

fn scenes(site: &Site) -> Result<()> {
    // One portal, on the second network: it can be cut while agents and controller talk over the
    // first.
    let agent = site.start_agent_at(&["10.20.0.10:3260"])?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.shared_type()?;
    let volume = control.volume("data", Some("shared"))?;
    let target = format!("iqn.2026-11.dev.mooring:{volume}");
    let mut faults =
        Faults { site, control, evidence: Evidence::default(), volume, target, agent: Some(agent) };
    let result = faults.acts();
    if result.is_err() {
        eprintln!("--- controller:\n{}", faults.control.controller_log());
        for host in &faults.control.hosts {
            eprintln!("--- agent:\n{}\n--- sessiond:\n{}", host.agent_log(), host.sessiond_log());
        }
    }
    result
}

impl<'a> Faults<'a> {
    fn acts(&mut self) -> Result<()> {
        self.unknown_things()?;
        self.unreachable()?;
        self.interrupted()?;
        self.held_open()?;
        self.host_agent_down()?;
        self.controller_restarted()?;
        self.connection_lost()?;
        self.wrong_secret_at_relogin()?;
        self.wrong_disk()?;
        self.control.json(&["volume", "delete", &self.volume, "--timeout", "120"])?;
        self.control.hosts[0].nothing_left()?;
        self.site.nothing_left()
    }

    /// Checks an exit code and words in the message.
    fn refused(&mut self, what: &str, out: &Output, code: i32, words: &[&str]) -> Result<()> {
        let said = out.stderr.trim();
        for word in words {
            check(said.contains(word), || format!("{what}: the message does not say {word:?}: {said}"))?;
        }
        check(out.status.code() == Some(code), || {
            format!("{what}: exit {:?}, not {code}: {said}", out.status.code())
        })?;
        let line = said.lines().find(|line| words.iter().any(|word| line.contains(word)));
        self.evidence.shows(format!("{what}: exit {code}: {}", line.unwrap_or(said)));
        Ok(())
    }

    fn attach(&self) -> Result<(String, Disk<'a>)> {
        let live = self.control.attach(&self.volume, "host1", "rw")?;
        let disk = Disk::new(self.site.rig.vm("host1")?, text(&live, "device_path")?);
        Ok((text(&live, "id")?.to_owned(), disk))
    }

    fn unknown_things(&mut self) -> Result<()> {
        let volume = self.volume.clone();
        for (what, words, code, said) in [
            ("unknown volume", vec!["attach", NOBODY, "--host", "host1"], 3, NOBODY),
            ("unknown volume name", vec!["attach", "nobody", "--host", "host1"], 3, "nobody"),
            ("unknown host", vec!["attach", &volume, "--host", "nobody"], 3, "nobody"),
            ("unknown attachment", vec!["attachment", "show", NOBODY], 3, NOBODY),
            (
                "unknown type",
                vec!["volume", "create", "x", "--size", "1GiB", "--type", "nobody"],
                3,
                "nobody",
            ),
            ("half a GiB", vec!["volume", "create", "x", "--size", "512MiB"], 2, "GiB"),
            ("no mode", vec!["attach", &volume, "--host", "host1", "--mode", "wo"], 2, "wo"),
        ] {
            let out = self.control.mooring(&words)?;
            self.refused(what, &out, code, &[said])?;
        }
        Ok(())
    }

    /// The portal's network is silent: the attach names the portal and the time, and succeeds when
    /// it is back.
    fn unreachable(&mut self) -> Result<()> {
        let host = self.control.hosts[0].vm;
        host.cut(Cut::Silent, Networks::Only(1))?;
        let began = Instant::now();
        let out = self.control.mooring(&["--timeout", "16", "attach", &self.volume, "--host", "host1"])?;
        let took = began.elapsed();
        host.heal()?;
        self.refused("target unreachable", &out, 5, &["10.20.0.10:3260"])?;
        self.evidence.note(format!("(answered after {:.1} s)", took.as_secs_f64()));
        let id = self.only_attachment()?;
        wait_for("the attach to go through by itself", Duration::from_mins(1), || {
            Ok((self.control.live(&id)?["status"] == "attached").then_some(()))
        })?;
        self.evidence.shows("the network is back: the attach goes through by itself");
        self.control.json(&["detach", &id])?;
        Ok(())
    }

    fn only_attachment(&self) -> Result<String> {
        let all = self.control.json(&["attachment", "list"])?;
        let list = all["attachments"].as_array().context("a list")?;
        check(list.len() == 1, || format!("{all}"))?;
        Ok(text(&list[0], "id")?.to_owned())
    }

    /// ctrl-C during an attach leaves nothing.
    fn interrupted(&mut self) -> Result<()> {
        let host = self.control.hosts[0].vm;
        host.cut(Cut::Silent, Networks::Only(1))?;
        let words = Control::words(&["attach", &self.volume, "--host", "host1", "--timeout", "240"]);
        let attach = self.site.storage()?.command(words).timeout(Duration::from_mins(6)).spawn()?;
        wait_for("the attach to have its grant", HALF_MINUTE, || {
            Ok(attach.stderr_so_far().contains("granted").then_some(()))
        })?;
        attach.signal(2)?;
        let out = attach.wait()?;
        host.heal()?;
        check(out.status.code() == Some(130), || format!("ctrl-C: {:?} {}", out.status, out.stderr))?;
        let left = self.control.json(&["attachment", "list"])?;
        check(left["attachments"].as_array().is_some_and(Vec::is_empty), || format!("left: {left}"))?;
        let control = &self.control;
        wait_for("the host to have nothing", HALF_MINUTE, || {
            Ok(control.hosts[0].nothing_left().is_ok().then_some(()))
        })?;
        self.evidence.shows(
            "ctrl-C in the middle of an attach: exit 130, no attachment, no session, no grant is left",
        );
        Ok(())
    }

    fn held_open(&mut self) -> Result<()> {
        let (id, disk) = self.attach()?;
        let hold = format!("exec 3<{}; exec sleep 600", disk.path);
        let holder = disk.vm.command(["sh", "-c", &hold]).timeout(Duration::from_mins(11)).spawn()?;
        wait_for("the holder", HALF_MINUTE, || {
            Ok(disk.vm.run(&["pidof", "sleep"])?.status.success().then_some(()))
        })?;
        let out = self.control.mooring(&["detach", &id, "--timeout", "240"])?;
        let live = self.control.live(&id)?;
        holder.kill()?;
        drop(holder.wait()?);
        self.refused("a detach while the disk is held open", &out, 4, &["sleep"])?;
        check(live["status"] == "attached" && live["session"] == true, || format!("{live}"))?;
        self.control.json(&["detach", &id])?;
        self.evidence.shows("the attachment was left as it was, and detaches when the disk is free");
        Ok(())
    }

    fn host_agent_down(&mut self) -> Result<()> {
        self.control.hosts[0].kill_agent()?;
        let control = &self.control;
        wait_for("the controller to see it", HALF_MINUTE, || {
            let hosts = control.json(&["host", "list"])?;
            let down = hosts["hosts"].as_array().is_some_and(|all| all.iter().any(|h| h["up"] == false));
            Ok(down.then_some(()))
        })?;
        let out = self.control.mooring(&["--timeout", "30", "attach", &self.volume, "--host", "host1"])?;
        self.control.hosts[0].start_agent()?;
        self.refused("the host's agent is down", &out, 6, &["host1"])?;
        let control = &self.control;
        wait_for("the host's agent to be back", HALF_MINUTE, || {
            let hosts = control.json(&["host", "list"])?;
            Ok(hosts["hosts"].as_array().is_some_and(|all| all.iter().all(|h| h["up"] == true)).then_some(()))
        })?;
        let left = self.control.json(&["attachment", "list"])?;
        check(left["attachments"].as_array().is_some_and(Vec::is_empty), || format!("left: {left}"))
    }

    fn controller_restarted(&mut self) -> Result<()> {
        let host = self.control.hosts[0].vm;
        host.cut(Cut::Silent, Networks::Only(1))?;
        let words = Control::words(&["attach", &self.volume, "--host", "host1", "--timeout", "240"]);
        let attach = self.site.storage()?.command(words).timeout(Duration::from_mins(6)).spawn()?;
        wait_for("the attach to be going on", HALF_MINUTE, || {
            Ok(attach.stderr_so_far().contains("granted").then_some(()))
        })?;
        self.control.kill_controller()?;
        host.heal()?;
        self.control.start_controller()?;
        let id = self.only_attachment()?;
        wait_for("the attach to go through", Duration::from_mins(1), || {
            Ok((self.control.live(&id)?["status"] == "attached").then_some(()))
        })?;
        let out = attach.wait()?;
        check(out.status.success(), || format!("the waiting attach: {:?} {}", out.status, out.stderr))?;
        self.evidence.shows("controller killed with -9 in the middle of an attach: after its start the attach goes through, and the waiting command succeeds");
        self.control.json(&["detach", &id])?;
        Ok(())
    }

    /// The TCP connection is killed under I/O: sessiond logs in again at once, and no program sees
    /// an error.
    fn connection_lost(&mut self) -> Result<()> {
        let (id, disk) = self.attach()?;
        let writer = disk.write_stamps(&["--threads", "1"])?;
        going(&writer)?;
        let count = || relogins_ms(&self.control.hosts[0].sessiond_log()).len();
        for _ in 0..5 {
            let before = count();
            disk.vm.sh("ss -K dport = 3260 >/dev/null")?.ok()?;
            wait_for("sessiond to be logged in again", HALF_MINUTE, || Ok((count() > before).then_some(())))?;
            std::thread::sleep(Duration::from_secs(1));
        }
        goes_on(&writer)?;
        let seen = progress(&writer)?;
        writer.kill()?;
        drop(writer.wait()?);
        let live = self.control.live(&id)?;
        check(number(&seen, "errors")? == 0 && live["session"] == true, || format!("{seen} {live}"))?;
        let log = self.control.hosts[0].sessiond_log();
        let relogins = relogins_ms(&log);
        check(relogins.len() >= 5, || format!("{} relogins: {log}", relogins.len()))?;
        self.evidence.shows(format!(
            "the TCP connection killed {} times under I/O: 0 errors, longest gap {} ms; sessiond was logged in again after \
             {relogins:?} ms, counted from its notice of the loss",
            relogins.len(),
            number(&seen, "longest_gap_ms")?,
        ));
        self.control.json(&["detach", &id])?;
        Ok(())
    }

    /// The target no longer accepts the secret, and nobody has told the host that its grant went:
    /// its I/O waits, and goes on without an error once the agent has put the secret right. A force
    /// detach tells it, and ends the session at once.
    fn wrong_secret_at_relogin(&mut self) -> Result<()> {
        let (id, disk) = self.attach()?;
        let writer = disk.write_stamps(&["--threads", "1"])?;
        going(&writer)?;
        let initiator = text(&self.control.live(&id)?, "initiator")?.to_owned();
        let acl = format!("{TARGET}/iscsi/{}/tpgt_1/acls/{initiator}", self.target);
        self.kill_storage_agent()?;
        self.site.storage()?.sh(&format!("printf %s another-secret-12 > {acl}/auth/password"))?.ok()?;
        disk.vm.sh("ss -K dport = 3260 >/dev/null")?.ok()?;
        // Its pauses double from 0.1 s: the eighth refusal comes 6.3 s after the first, or later.
        let control = &self.control;
        wait_for("sessiond to be refused often", HALF_MINUTE, || {
            let log = control.hosts[0].sessiond_log();
            Ok(log.lines().any(|line| line.contains("0201") && line.contains("tried 8 times")).then_some(()))
        })?;
        let before = progress(&writer)?;
        check(number(&before, "errors")? == 0, || format!("errors while it is refused: {before}"))?;
        let logins = relogins_ms(&self.control.hosts[0].sessiond_log()).len();
        self.start_storage_agent()?;
        let control = &self.control;
        wait_for("the session to be back", HALF_MINUTE, || {
            Ok((relogins_ms(&control.hosts[0].sessiond_log()).len() > logins).then_some(()))
        })?;
        goes_on(&writer)?;
        let seen = progress(&writer)?;
        check(number(&seen, "errors")? == 0, || format!("errors after the secret was right: {seen}"))?;
        self.evidence.shows(format!(
            "the secret changed by hand, the storage agent away: refused eight times at relogin, then in again; 0 errors, longest \
             gap {} ms",
            number(&seen, "longest_gap_ms")?
        ));
        self.control.force_detach(&id)?;
        let began = Instant::now();
        wait_for("the writes to fail", HALF_MINUTE, || {
            Ok((number(&progress(&writer)?, "errors")? > 0).then_some(()))
        })?;
        let took = began.elapsed();
        within("the writes to fail", took, HOST_ENDS)?;
        writer.kill()?;
        drop(writer.wait()?);
        self.evidence.shows(format!(
            "force-detached: its I/O fails {:.1} s after the answer, instead of hanging for 120 s",
            took.as_secs_f64()
        ));
        Ok(())
    }

    fn kill_storage_agent(&mut self) -> Result<()> {
        let agent = self.agent.take().context("the storage agent")?;
        agent.kill()?;
        drop(agent.wait()?);
        Ok(())
    }

    fn start_storage_agent(&mut self) -> Result<()> {
        self.agent = Some(self.site.start_agent_at(&["10.20.0.10:3260"])?);
        let control = &self.control;
        wait_for("the storage agent to be up", HALF_MINUTE, || {
            let hosts = control.json(&["host", "list"])?;
            Ok(hosts["hosts"].as_array().is_some_and(|all| all.iter().all(|h| h["up"] == true)).then_some(()))
        })
    }

    /// Another volume appears behind the same LUN: after the next relogin the disk is not handed
    /// out.
    fn wrong_disk(&mut self) -> Result<()> {
        let (id, disk) = self.attach()?;
        let reader = disk.watch_stamps()?;
        self.kill_storage_agent()?;
        let storage = self.site.storage()?;
        let tpg = format!("{TARGET}/iscsi/{}/tpgt_1", self.target);
        storage
            .sh(&format!(
                "lvcreate -q -y -L 64m -n other {GROUP}; \
                 mkdir -p {TARGET}/core/iblock_9/other; echo udev_path=/dev/{GROUP}/other > {TARGET}/core/iblock_9/other/control; \
                 echo 00000000-1111-4222-8333-444444444444 > {TARGET}/core/iblock_9/other/wwn/vpd_unit_serial; \
                 echo 1 > {TARGET}/core/iblock_9/other/enable; \
                 link=$(find {tpg}/lun/lun_1 -maxdepth 1 -type l); \
                 mapped=$(find {tpg}/acls/*/lun_1 -maxdepth 1 -type l); map=$(dirname $mapped); \
                 rm $mapped; rm $link; ln -s {TARGET}/core/iblock_9/other {tpg}/lun/lun_1/other; \
                 ln -s {tpg}/lun/lun_1 $map/mooring"
            ))?
            .ok()
            .context("swap the backing volume")?;
        disk.vm.sh("ss -K dport = 3260 >/dev/null")?.ok()?;
        let control = &self.control;
        // Reads also fail before that: the LUN was missing for a moment.
        let said = wait_for("sessiond to say that the disk is wrong", HALF_MINUTE, || {
            let log = control.hosts[0].sessiond_log();
            Ok(log.lines().find(|line| line.contains("another disk answers")).map(str::to_owned))
        })?;
        let mut before = progress(&reader)?;
        wait_for("reads to do nothing but fail", HALF_MINUTE, || {
            let now = progress(&reader)?;
            let was = std::mem::replace(&mut before, now.clone());
            let fails = number(&now, "errors")? > number(&was, "errors")?;
            Ok((fails && now["done"] == was["done"]).then_some(()))
        })?;
        reader.kill()?;
        drop(reader.wait()?);
        self.evidence.shows(format!(
            "another volume behind the same LUN after a relogin: the session is ended, I/O fails: {said}"
        ));
        storage
            .sh(&format!(
                "mapped=$(find {tpg}/acls/*/lun_1 -maxdepth 1 -type l); rm $mapped; rm {tpg}/lun/lun_1/other; \
                 rmdir {TARGET}/core/iblock_9/other {TARGET}/core/iblock_9; lvremove -q -f {GROUP}/other"
            ))?
            .ok()?;
        self.start_storage_agent()?;
        self.control.force_detach(&id)?;
        let (id, disk) = self.attach()?;
        check(disk.naa()?.starts_with("6001405"), || "the disk".to_owned())?;
        self.control.json(&["detach", &id])?;
        self.evidence.shows("put right again and attached anew: the right disk");
        Ok(())
    }
}

/// Milliseconds from each loss of a session to the end of the next login, from the times in
/// sessiond's log.
fn relogins_ms(log: &str) -> Vec<i64> {
    let at = |line: &str| line.split_whitespace().next()?.parse::<jiff::Timestamp>().ok();
    let mut lost = None;
    let mut took = Vec::new();
    for line in log.lines() {
        if line.contains("session lost") {
            lost = at(line);
        } else if line.contains("relogin=true")
            && let (Some(from), Some(to)) = (lost.take(), at(line))
        {
            took.push(to.as_millisecond() - from.as_millisecond());
        }
    }
    took
}
