//! SCSI-3 persistent reservations on a real kernel. A host that another one has fenced off stays so
//! when the agent is killed and when the storage node loses its power. Initiators find what they
//! find at a bare LIO target.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use super::libiscsi::{bare, verdicts};
use super::readers::Readers;
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::Host;
use crate::site::{Programs, Site, TARGET};

pub(super) const PORTAL: &str = "10.10.0.10:3260";

/// The volume of the hosts, and that of libiscsi's tests.
const DATA: &str = "33333333-2222-4333-8444-555555555555";
const TESTS: &str = "44444444-2222-4333-8444-555555555555";

/// Keys as `fence_scsi` makes them: the cluster's digits, and the node's number.
const KEYS: [&str; 2] = ["0x3abe0000", "0x3abe0001"];

/// libiscsi's test families on reservations. COMPARE AND WRITE is refused by design (lio.md, t).
const FAMILIES: [&str; 8] = [
    "PrinReadKeys",
    "PrinServiceactionRange",
    "PrinReportCapabilities",
    "ProutRegister",
    "ProutReserve",
    "ProutClear",
    "ProutPreempt",
    "Reserve6.2Initiators",
];

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("reservations"), programs)?;
    let result = scenes(&site);
    site.end(result)
}

pub(super) fn target(volume: &str) -> String {
    format!("iqn.2026-11.dev.mooring:{volume}")
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent()?;
    let mut hosts = Vec::new();
    for name in ["host1", "host2"] {
        hosts.push(Host::start(site.rig.vm(name)?)?);
    }
    let grants: Vec<_> = hosts.iter().map(|host| host.iqn.clone()).collect();
    let cluster = Cluster { site, hosts, grants, evidence: Evidence::default() };
    cluster.acts(agent)
}

struct Cluster<'a> {
    site: &'a Site,
    hosts: Vec<Host<'a>>,
    grants: Vec<String>,
    evidence: Evidence,
}

impl<'a> Cluster<'a> {
    fn acts(mut self, agent: Running) -> Result<()> {
        self.volume(DATA)?;
        let mut disks = Vec::new();
        for host in &self.hosts {
            host.login(&target(DATA), PORTAL, None, 60)?.ok()?;
            disks.push(host.disk(&target(DATA), PORTAL)?);
        }
        self.fenced(&disks)?;
        let agent = self.killed(agent)?;
        let agent = self.without_power(agent, &disks)?;
        let agent = self.control(agent, &disks)?;
        self.operator(&disks)?;
        for host in &self.hosts {
            host.logout(&target(DATA))?;
        }
        let agent =
            Readers::begin(self.site, &self.hosts[0], &self.hosts[1])?.acts(agent, &mut self.evidence)?;
        self.as_bare()?;
        agent.kill()?;
        drop(agent.wait()?);
        Ok(())
    }

    /// Makes a volume that both hosts may write to.
    fn volume(&self, id: &str) -> Result<()> {
        self.site.json(&["volume", "create", &format!("v{}", &id[..4]), "--size", "64MiB", "--id", id])?;
        for initiator in &self.grants {
            self.site.json(&["export", "grant", id, "--initiator", initiator, "--mode", "rw"])?;
        }
        Ok(())
    }

    /// The storage node's report: the holder's number (0: nobody), the numbers of the registered
    /// hosts, and whether it survives a loss of power.
    fn listed(&self) -> Result<(usize, Vec<usize>, bool)> {
        let seen = self.site.json(&["volume", "reservations", DATA])?;
        let number = |initiator: &Value| {
            self.grants.iter().position(|one| *initiator == one.as_str()).map_or(0, |at| at + 1)
        };
        let mut registered: Vec<_> = seen["registrations"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| number(&one["initiator"]))
            .collect();
        registered.sort_unstable();
        check(seen["lost"] == serde_json::json!([]), || format!("{seen}"))?;
        Ok((number(&seen["holder"]["initiator"]), registered, seen["durable"] == true))
    }

    fn until_listed(&self, wanted: &(usize, Vec<usize>, bool)) -> Result<()> {
        let mut last = None;
        let found = wait_for("the reservations", Duration::from_secs(30), || {
            let seen = self.listed()?;
            let same = seen == *wanted;
            last = Some(seen);
            Ok(same.then_some(()))
        });
        found.with_context(|| format!("want {wanted:?}, seen {last:?}"))
    }

    /// Writes from a host. Returns `true` if the write landed.
    fn writes(disk: &Disk<'a>) -> Result<bool> {
        let script = format!("dd if=/dev/zero of={} bs=4k count=1 oflag=direct", disk.path);
        let out = disk.vm.command(["sh", "-c", &script]).timeout(Duration::from_mins(2)).run()?;
        let refused = out.stderr.contains("exchange") || out.stderr.contains("Input/output");
        check(out.status.success() || refused, || format!("a write: {}", out.stderr))?;
        Ok(out.status.success())
    }

    /// Does what `fence_scsi` does: both register and one reserves; then it removes the other's
    /// registration.
    fn fenced(&mut self, disks: &[Disk<'a>]) -> Result<()> {
        for (disk, key) in disks.iter().zip(KEYS) {
            disk.vm.sh(&format!("sg_persist -n -o -I -S {key} -Z -d {}", disk.path))?.ok()?;
        }
        let [one, two] = disks else { anyhow::bail!("two disks") };
        one.vm.sh(&format!("sg_persist -n -o -R -T 5 -K {} -d {}", KEYS[0], one.path))?.ok()?;
        self.until_listed(&(1, vec![1, 2], true))?;
        check(Self::writes(one)? && Self::writes(two)?, || "both are registered and may write".to_owned())?;
        self.evidence.shows("both hosts register, one reserves (WERO): listed, and both write");
        let shown = self.site.mooring(&["volume", "reservations", DATA])?.ok()?.stdout;
        check(
            shown.contains("0x000000003abe0001") && shown.contains("write exclusive, registrants only"),
            || shown.clone(),
        )?;
        let preempt = format!("sg_persist -n -o -A -T 5 -K {} -S {} -d {}", KEYS[0], KEYS[1], one.path);
        one.vm.sh(&preempt)?.ok()?;
        self.until_listed(&(1, vec![1], true))?;
        check(!Self::writes(two)? && Self::writes(one)?, || "the fenced host writes".to_owned())?;
        self.evidence
            .shows("host1 preempts and aborts host2: not listed any more, and its writes are refused");
        Ok(())
    }

    fn killed(&mut self, agent: Running) -> Result<Running> {
        agent.kill()?;
        drop(agent.wait()?);
        let agent = self.site.start_agent()?;
        self.until_listed(&(1, vec![1], true))?;
        self.site.nothing_planned_soon()?;
        self.evidence.shows("agent killed with -9 and started again: the same, and nothing to plan");
        Ok(agent)
    }

    fn reboot(&self, agent: Running) -> Result<()> {
        let storage = self.site.storage()?;
        storage.power_cut()?;
        drop(agent);
        storage.boot()?;
        self.site.after_boot()
    }

    fn in_force(&self) -> Result<()> {
        wait_for("the export to be back", Duration::from_secs(30), || {
            let shown = self.site.json(&["export", "show", DATA])?;
            Ok((shown["export"]["in_force"] == true).then_some(()))
        })
    }

    /// The storage node loses its power: the fenced host stays fenced, and the holder's key is
    /// there.
    fn without_power(&mut self, agent: Running, disks: &[Disk<'a>]) -> Result<Running> {
        self.reboot(agent)?;
        let agent = self.site.start_agent()?;
        self.in_force()?;
        self.until_listed(&(1, vec![1], true))?;
        let [one, two] = disks else { anyhow::bail!("two disks") };
        check(!Self::writes(two)?, || "the fenced host writes after the power cut".to_owned())?;
        check(Self::writes(one)?, || "the holder does not write after the power cut".to_owned())?;
        let keys = one.vm.sh(&format!("sg_persist -n -i -k -d {}", one.path))?.ok()?.stdout;
        check(keys.contains("0x3abe0000") && !keys.contains("0x3abe0001"), || keys.clone())?;
        self.evidence.shows(
            "power of the storage node cut: host1 holds it again, host2's writes are refused as before",
        );
        // The holder continues as before: nothing of it must be renewed.
        let renew = format!("sg_persist -n -o -R -T 5 -K {} -d {}", KEYS[0], one.path);
        one.vm.sh(&renew)?.ok()?;
        Ok(agent)
    }

    /// Control: without the agent's kept copy the kernel has nothing, and the fenced host writes.
    fn control(&mut self, agent: Running, disks: &[Disk<'a>]) -> Result<Running> {
        self.reboot(agent)?;
        self.site.storage()?.sh("rm -r /srv/mooring/state/*")?.ok()?;
        let agent = self.site.start_agent()?;
        self.volume(DATA)?;
        self.in_force()?;
        self.until_listed(&(0, Vec::new(), false))?;
        let [_, two] = disks else { anyhow::bail!("two disks") };
        check(Self::writes(two)?, || "the control does not write: nothing would be shown".to_owned())?;
        self.evidence.shows(
            "control: the same without the agent's store: no registration, and the fenced host writes",
        );
        Ok(agent)
    }

    /// Removes reservations as an operator does. Returns the numbers of the hosts registered before
    /// and after.
    fn takes_away(&self, words: &[&str]) -> Result<(usize, usize)> {
        let took = self.site.json(&[&["volume", "reservations", DATA], words].concat())?;
        let number = |of: &str| took[of]["registrations"].as_array().map_or(0, Vec::len);
        Ok((number("before"), number("reservations")))
    }

    /// Counts the registrations that the kernel keeps for a loss of power; checks that none is the
    /// agent's, and that the agent has no ACL.
    fn kept(&self) -> Result<usize> {
        let script = format!(
            "if ls -d {TARGET}/iscsi/*/tpgt_1/acls/*:pr.* 2>&1; then exit 9; fi; \
             if grep ':pr[.]' /var/target/pr/aptpl_{DATA}; then exit 9; fi; \
             grep -c initiator_node= /var/target/pr/aptpl_{DATA} || true"
        );
        let said = self.site.storage()?.sh(&script)?.ok()?.stdout;
        said.lines()
            .last()
            .unwrap_or_default()
            .trim()
            .parse()
            .with_context(|| format!("the kernel's file: {said}"))
    }

    /// An operator preempts and clears without any host: exactly what was asked for is removed, and
    /// the agent continues to keep the rest.
    fn operator(&mut self, disks: &[Disk<'a>]) -> Result<()> {
        let [one, two] = disks else { anyhow::bail!("two disks") };
        let register = |disk: &Disk<'a>, key: &str| -> Result<()> {
            disk.vm.sh(&format!("sg_persist -n -o -I -S {key} -Z -d {}", disk.path))?.ok()?;
            Ok(())
        };
        for (disk, key) in disks.iter().zip(KEYS) {
            check(Self::writes(disk)?, || "nothing is reserved, and it does not write".to_owned())?;
            register(disk, key)?;
        }
        one.vm.sh(&format!("sg_persist -n -o -R -T 5 -K {} -d {}", KEYS[0], one.path))?.ok()?;
        self.until_listed(&(1, vec![1, 2], true))?;
        let took = self.takes_away(&["--preempt", KEYS[1]])?;
        let seen = (took, self.listed()?, self.kept()?);
        check(seen == ((2, 1), (1, vec![1], true), 1), || format!("preempt of host2: {seen:?}"))?;
        check(!Self::writes(two)? && Self::writes(one)?, || "the preempted host writes".to_owned())?;
        self.evidence
            .shows("operator preempts host2's key: host1 still holds it, host2's writes are refused");

        register(two, KEYS[1])?;
        self.until_listed(&(1, vec![1, 2], true))?;
        let took = self.takes_away(&["--preempt", KEYS[0], "--abort"])?;
        let seen = (took, self.listed()?, self.kept()?);
        check(seen == ((2, 1), (0, vec![2], true), 1), || format!("preempt of the holder: {seen:?}"))?;
        check(Self::writes(one)? && Self::writes(two)?, || {
            "what the holder held is not released".to_owned()
        })?;
        two.vm.sh(&format!("sg_persist -n -o -R -T 5 -K {} -d {}", KEYS[1], two.path))?.ok()?;
        check(!Self::writes(one)? && Self::writes(two)?, || "the preempted holder writes".to_owned())?;
        self.evidence.shows(
            "operator preempts the holder's key: its reservation is released, host2's registration stays and outlives a loss \
             of power as before; host2 reserves, and host1's writes are refused",
        );

        let took = self.takes_away(&["--clear"])?;
        let seen = (took, self.listed()?, self.kept()?);
        check(seen == ((1, 0), (0, Vec::new(), false), 0), || format!("clear: {seen:?}"))?;
        check(Self::writes(one)? && Self::writes(two)?, || "what was cleared holds off a host".to_owned())?;
        let keys = one.vm.sh(&format!("sg_persist -n -i -k -d {}", one.path))?.ok()?.stdout;
        check(keys.contains("NO registered reservation keys"), || keys.clone())?;
        check(self.takes_away(&["--clear"])? == (0, 0), || "a second clear".to_owned())?;
        let problems = self.site.json(&["export", "show", DATA])?["export"]["problems"].clone();
        check(problems == serde_json::json!([]), || format!("{problems}"))?;
        self.evidence.shows(
            "operator clears: nothing is registered, as sg_persist says on a host; asked again it is well",
        );

        // A host that unregisters itself has lost nothing.
        register(two, KEYS[1])?;
        self.until_listed(&(0, vec![2], true))?;
        two.vm.sh(&format!("sg_persist -n -o -G -K {} -S 0 -Z -d {}", KEYS[1], two.path))?.ok()?;
        self.until_listed(&(0, Vec::new(), false))?;
        self.evidence.shows("a host that unregisters itself has lost nothing");
        Ok(())
    }

    /// Starts libiscsi's tests on one target, from a host of its own.
    fn start_tests(&self, host: usize, target: &str) -> Result<Running> {
        let (one, two) = (&self.grants[0], &self.grants[1]);
        let families = FAMILIES.join(" ");
        let script = format!(
            "for family in {families}; do echo \"Family: $family\"; \
             iscsi-test-cu -v -d -i {one} -I {two} -t SCSI.$family iscsi://{PORTAL}/{target}/1 2>&1; done; true"
        );
        self.hosts[host].vm.command(["sh", "-c", &script]).timeout(Duration::from_mins(10)).spawn()
    }

    fn as_bare(&mut self) -> Result<()> {
        self.volume(TESTS)?;
        let bare = bare(self.site, &self.grants)?;
        let (ours, theirs) = (self.start_tests(0, &target(TESTS))?, self.start_tests(1, &bare)?);
        let (ours, theirs) = (verdicts(&ours.wait()?.stdout), verdicts(&theirs.wait()?.stdout));
        check(ours == theirs, || format!("libiscsi's tests: {ours:?}\nat a bare target: {theirs:?}"))?;
        let of = |verdict: &str| ours.values().filter(|one| **one == verdict).count();
        check(of("passed") >= 20, || format!("libiscsi's tests: {ours:?}"))?;
        self.evidence.shows(format!(
            "libiscsi's tests of reservations: {} passed, {} failed, {} skipped, each as at a bare LIO target",
            of("passed"),
            of("failed"),
            of("skipped")
        ));
        Ok(())
    }
}
