//! A thin pool that a host's writes fill: it is warned of, takes nothing new, and is full. With
//! more room all of that ends without a restart, and what waited for room comes by itself.
//!
//! What must never happen here: a fill level from the agent's own words; the host writes exactly so
//! many bytes to new blocks. A restart of the agent.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{Output, RigOptions, Running};
use serde_json::Value;

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, agent_config};

/// Sizes in MiB: of the pool at its beginning, and what it gets in addition, twice.
const POOL: u64 = 128;
const MORE: [u64; 2] = [64, 128];
/// Data that the host has written in all, in MiB: its own data, 85 % and 96 % of the pool, more
/// than the pool has, and 96 % of the larger pool.
const OWN: u64 = 8;
const NEARLY: u64 = 109;
const CLOSED: u64 = 123;
const TOO_MUCH: u64 = 138;
const CLOSED_AGAIN: u64 = 186;

/// Words of the pool's problems.
const OBJECT: &str = "thin pool vg0/mooring-pool";
const TAKES_NOTHING: &str = "takes no new volume, snapshot or growth";
const IS_FULL: &str = "it is full, and writes of hosts fail";
/// The volume whose creation was taken before the pool closed.
const WAITS: &str = "aaaaaaaa-1919-4333-8444-555555555555";
const HALF_MINUTE: Duration = Duration::from_secs(30);

/// Stands for LVM: holds up the creation of a thin volume while /run/hold is there, and then fails
/// as LVM may at any time.
const HOLDS: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
name=$(basename "$0")
[ "$name" = lvm ] || set -- "$name" "$@"
case "$*" in
*--virtualsize*)
	if [ -e /run/hold ]; then
		: > /run/held
		while [ -e /run/hold ]; do sleep 0.2; done
		echo "  Cannot change VG vg0 while PVs are missing." >&2
		exit 5
	fi
	;;
esac
exec /run/real/lvm "$@"
"#;

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("thin-pool-full").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let config = format!("{}thin_pool = \"{POOL}MiB\"\n", agent_config("resync_seconds = 3"));
    let agent = site.start_agent_by(&config)?;
    // The controller places volumes in a small pool, so that the agent has to judge.
    let mut control = Control::prepare_with(site, "[scheduler]\nmax_over_subscription_ratio = 1000.0\n")?;
    control.start()?;
    control.json(&["type", "create", "thin", "--spec", "provisioning:type=thin"])?;
    let volume = control.volume("data", Some("thin"))?;
    let live = control.attach(&volume, "host1", "rw")?;
    let disk = Disk::new(site.rig.vm("host1")?, text(&live, "device_path")?);
    let attachment = text(&live, "id")?.to_owned();
    let mut acts = Acts { site, control, evidence: Evidence::default(), volume, attachment, disk };
    let result = acts.all(&agent);
    if result.is_err() {
        acts.control.print_logs();
        eprintln!("--- storage's agent:\n{}", agent.stderr_so_far());
    }
    result
}

struct Acts<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    /// The volume that the host fills.
    volume: String,
    attachment: String,
    disk: Disk<'a>,
}

impl Acts<'_> {
    fn all(&mut self, agent: &Running) -> Result<()> {
        let own = self.control_of_all()?;
        self.nearly_full()?;
        self.closed()?;
        self.full()?;
        self.has_room(&own)?;
        self.creation_waits()?;
        self.creation_comes()?;
        check(agent.is_running(), || "the agent has ended meanwhile".to_owned())?;
        self.taken_away(agent)
    }

    fn storage(&self, script: &str) -> Result<String> {
        Ok(self.site.storage()?.sh(script)?.ok()?.stdout)
    }

    /// Has the host write to the blocks between two places of its disk, in MiB.
    fn write(&self, from: u64, to: u64) -> Result<Output> {
        let write = format!(
            "dd if=/dev/zero of={} bs=1M seek={from} count={} oflag=direct conv=notrunc",
            self.disk.path,
            to - from
        );
        self.disk.vm.command(["sh", "-c", &write]).timeout(Duration::from_mins(6)).run()
    }

    /// The sum of the host's own data.
    fn sum(&self) -> Result<String> {
        let read = format!("dd if={} bs=1M count={OWN} iflag=direct 2>/dev/null | md5sum", self.disk.path);
        Ok(self.disk.vm.sh(&read)?.ok()?.stdout)
    }

    /// LVM's own number for the pool's data.
    fn percent(&self) -> Result<String> {
        let asked = self.storage(&format!("lvs --noheadings -o data_percent {GROUP}/mooring-pool"))?;
        Ok(asked.trim().to_owned())
    }

    /// The agent's word on how full the pool is: a level and a code. Empty if there is nothing to
    /// say.
    fn said(&self) -> Result<String> {
        let shown = self.site.json(&["agent", "show"])?;
        let pools = shown["pools"].as_array().with_context(|| format!("no pools: {shown}"))?;
        let pool = pools.iter().find(|pool| pool["name"] == format!("{GROUP}:thin"));
        let pool = pool.with_context(|| format!("no thin pool: {shown}"))?;
        let reasons = pool["health"]["reasons"].as_array().with_context(|| format!("no reasons: {pool}"))?;
        let code = |reason: &Value| reason["code"].as_str().unwrap_or_default().to_owned();
        let fullness = reasons.iter().find(|reason| code(reason).starts_with("thin_pool"));
        Ok(fullness.map_or_else(String::new, |reason| {
            format!("{} {}", reason["level"].as_str().unwrap_or_default(), code(reason))
        }))
    }

    fn until_said(&self, wanted: &str) -> Result<()> {
        wait_for(&format!("the agent to say {wanted:?} of the pool"), HALF_MINUTE, || {
            let said = self.said()?;
            check(said == wanted, || format!("it says {said:?} at {:?} %", self.percent())).map(Some)
        })
    }

    /// The problems of a volume, as its agent reports them.
    fn problems(&self, volume: &str) -> Result<String> {
        Ok(self.site.json(&["volume", "show", volume])?["problems"].to_string())
    }

    fn create(&self, name: &str) -> Result<()> {
        let words = ["volume", "create", name, "--type", "thin", "--size", "1GiB", "--timeout", "240"];
        let made = self.control.json(&words)?;
        check(made["done"] == true, || format!("volume {name}: {made}"))
    }

    fn snapshot(&self, name: &str) -> Result<()> {
        let taken = self.control.json(&["snapshot", "create", "data", name, "--timeout", "240"])?;
        check(taken["done"] == true, || format!("snapshot {name}: {taken}"))
    }

    fn delete(&self, what: &str, name: &str) -> Result<()> {
        self.control.json(&[what, "delete", name, "--timeout", "240"]).map(drop)
    }

    /// With room in the pool nothing is said, and volumes and snapshots are made. Returns the sum
    /// of the host's own data.
    fn control_of_all(&mut self) -> Result<String> {
        let own = format!(
            "yes 'the data of the host' | dd of={} bs=1M count={OWN} iflag=fullblock oflag=direct conv=notrunc 2>/dev/null",
            self.disk.path
        );
        self.disk.vm.sh(&own)?.ok().context("write the host's own data")?;
        self.until_said("")?;
        let problems = self.problems(&self.volume)?;
        check(problems == "[]", || format!("the control: {problems}"))?;
        self.create("early")?;
        self.snapshot("early-one")?;
        self.delete("snapshot", "early-one")?;
        self.delete("volume", "early")?;
        self.evidence.shows(format!(
            "control: at {} % nothing is said of the pool, and a volume and a snapshot are made",
            self.percent()?
        ));
        self.sum()
    }

    fn nearly_full(&mut self) -> Result<()> {
        self.write(OWN, NEARLY)?.ok()?;
        self.until_said("degraded thin_pool_nearly_full")?;
        let problems = self.problems(&self.volume)?;
        check(problems == "[]", || format!("its volumes work, and are said to have: {problems}"))?;
        self.evidence.shows(format!("at {} %: degraded thin_pool_nearly_full", self.percent()?));
        Ok(())
    }

    /// Checks that a command is refused because the pool takes nothing new. Returns the reason.
    fn refused(&self, command: &[&str], why: &str) -> Result<String> {
        let out = self.control.mooring(command)?;
        check(!out.status.success(), || format!("{} was done: {}", command.join(" "), out.stdout))?;
        check(out.stderr.contains(why), || format!("{}: {}", command.join(" "), out.stderr))?;
        Ok(out.stderr.trim().to_owned())
    }

    /// Nothing new is taken: the controller knows it from its agent, and refuses a volume, a
    /// snapshot and a growth at once.
    fn closed(&mut self) -> Result<()> {
        self.write(NEARLY, CLOSED)?.ok()?;
        self.until_said("degraded thin_pool_nearly_full")?;
        wait_for("the controller to know it", HALF_MINUTE, || {
            let shown = self.control.json(&["host", "show", "storage"])?.to_string();
            check(shown.contains(OBJECT) && shown.contains(TAKES_NOTHING), || shown).map(Some)
        })?;
        let volume = ["volume", "create", "shut", "--type", "thin", "--size", "1GiB", "--timeout", "240"];
        let said = self.refused(&volume, "it takes nothing new")?;
        let almost = "is almost full, and takes no snapshot and no growth";
        self.refused(&["snapshot", "create", "data", "shut-one", "--timeout", "240"], almost)?;
        self.refused(&["volume", "extend", "data", "--size", "2GiB", "--timeout", "240"], almost)?;
        self.evidence.shows(format!(
            "at {} % a new volume, a snapshot and a growth are refused at once: {said}",
            self.percent()?
        ));
        Ok(())
    }

    fn extend_pool(&self, mib: u64) -> Result<()> {
        self.storage(&format!("lvextend -q --size +{mib}M {GROUP}/mooring-pool >&2")).map(drop)
    }

    /// The controller's word on a full pool at the volume's attachment. Empty if there is none.
    fn at_attachment(&self) -> Result<String> {
        let live = self.control.live(&self.attachment)?;
        check(live["status"] == "attached", || format!("the attachment: {live}"))?;
        let problems = live["problems"].as_array().with_context(|| format!("no problems: {live}"))?;
        let of_pool = |problem: &&str| problem.contains("thin_pool_full");
        Ok(problems.iter().filter_map(Value::as_str).find(of_pool).unwrap_or_default().to_owned())
    }

    /// The host's write finds no block.
    fn full(&mut self) -> Result<()> {
        let out = self.write(CLOSED, TOO_MUCH)?;
        check(out.status.code() == Some(1), || {
            format!("a write beyond the pool: {} {} {}", out.status, out.stdout, out.stderr)
        })?;
        self.until_said("failed thin_pool_full")?;
        let said = wait_for("the volume to say that its pool is full", HALF_MINUTE, || {
            let said = self.problems(&self.volume)?;
            let full = said.contains(OBJECT) && said.contains(IS_FULL);
            check(full, || format!("its problems are {said}"))?;
            Ok(Some(said))
        })?;
        let shown = wait_for("the attachment to show it", HALF_MINUTE, || {
            let shown = self.at_attachment()?;
            Ok(shown.contains(IS_FULL).then_some(shown))
        })?;
        let error = out.stderr.trim().lines().next().unwrap_or_default().to_owned();
        self.evidence.shows(format!(
            "at {} % the host's write fails ({error}): failed thin_pool_full; its volume says {said}, and its attachment {shown}",
            self.percent()?
        ));
        Ok(())
    }

    /// Room again: everything that was said ends, the host writes on, and the pool takes a volume
    /// and a snapshot.
    fn has_room(&mut self, own: &str) -> Result<()> {
        self.extend_pool(MORE[0])?;
        self.until_said("")?;
        wait_for("the volume to be ready, and nothing to be said at it", HALF_MINUTE, || {
            let shown = self.site.json(&["volume", "show", &self.volume])?;
            let well = shown["phase"] == "ready" && shown["problems"] == serde_json::json!([]);
            check(well, || format!("the volume after there is room: {shown}"))?;
            let shown = self.at_attachment()?;
            check(shown.is_empty(), || format!("its attachment shows {shown}")).map(Some)
        })?;
        self.write(CLOSED, TOO_MUCH)?.ok().context("the write that failed, again")?;
        let holds = self.sum()?;
        check(holds == own, || format!("the host's own data were {own}, and are {holds}"))?;
        self.create("between")?;
        self.snapshot("between-one")?;
        self.delete("snapshot", "between-one")?;
        self.delete("volume", "between")?;
        self.evidence.shows(format!(
            "{} MiB more, {} %: nothing is said any more, the write that failed goes through, and a volume and a snapshot are made",
            MORE[0],
            self.percent()?
        ));
        Ok(())
    }

    /// A creation that the agent takes while there is room, and whose LV is not made before the
    /// pool closes. The controller is away from then on: it would try another pool.
    fn creation_waits(&mut self) -> Result<()> {
        self.site.storage()?.write("/run/holds", HOLDS.as_bytes(), 0o755)?;
        self.storage(
            "mkdir -p /run/real; cp /sbin/lvm /run/real/lvm; : > /run/hold; mount --bind /run/holds /sbin/lvm",
        )?;
        let words = [
            "volume",
            "create",
            "waits",
            "--type",
            "thin",
            "--size",
            "1GiB",
            "--id",
            WAITS,
            "--timeout",
            "240",
        ];
        let create = self.site.storage()?.command(Control::words(&words)).spawn()?;
        wait_for("the creation to be held up", HALF_MINUTE, || {
            check(create.is_running(), || format!("it has ended: {}", create.stderr_so_far()))?;
            Ok(self.site.storage()?.run(&["test", "-e", "/run/held"])?.status.success().then_some(()))
        })?;
        self.control.kill_controller()?;
        create.kill()?;
        drop(create.wait()?);
        self.write(TOO_MUCH, CLOSED_AGAIN)?.ok()?;
        self.storage("rm /run/hold; umount -l /sbin/lvm")?;
        let said = wait_for("the creation to wait for room", HALF_MINUTE, || {
            let shown = self.site.json(&["volume", "show", WAITS])?;
            let said = shown["problems"].to_string();
            let waits = shown["phase"] != "ready" && said.contains(OBJECT) && said.contains(TAKES_NOTHING);
            check(waits, || format!("it does not wait for the pool: {shown}"))?;
            Ok(Some(said))
        })?;
        self.evidence
            .shows(format!("at {} % a creation that was taken before waits: {said}", self.percent()?));
        Ok(())
    }

    /// Room again: what waited comes by itself.
    fn creation_comes(&mut self) -> Result<()> {
        self.extend_pool(MORE[1])?;
        wait_for("the volume that waited to be ready", HALF_MINUTE, || {
            let shown = self.site.json(&["volume", "show", WAITS])?;
            let well = shown["phase"] == "ready" && shown["problems"] == serde_json::json!([]);
            check(well, || format!("the volume that waited: {shown}")).map(Some)
        })?;
        self.until_said("")?;
        self.control.start_controller()?;
        wait_for("the controller to call the volume available", HALF_MINUTE, || {
            let shown = self.control.json(&["volume", "show", "waits"])?;
            check(shown["status"] == "available", || shown.to_string()).map(Some)
        })?;
        self.evidence.shows(format!(
            "{} MiB more, {} %: the creation that waited is done, by the same agent and by nobody's word",
            MORE[1],
            self.percent()?
        ));
        Ok(())
    }

    fn taken_away(&mut self, agent: &Running) -> Result<()> {
        self.control.json(&["detach", &self.attachment])?;
        for name in ["data", "waits"] {
            self.delete("volume", name)?;
        }
        agent.kill()?;
        // The pool stays: it is made once.
        let left = self.storage(&format!("lvs --noheadings -o lv_name {GROUP}"))?;
        check(left.trim() == "mooring-pool", || format!("left behind: {left}"))?;
        self.evidence.shows("all is deleted: nothing is left but the pool");
        Ok(())
    }
}
