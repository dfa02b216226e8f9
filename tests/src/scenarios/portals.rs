//! Portals of IPv6 and IPv4 whose addresses come and go, and the sessions there. A waiting portal
//! answers when its address comes, the other one notices nothing, and a host that is gone is a
//! missing session. The agent makes no resync: it learns of addresses and links by the kernel's
//! notices only.

use std::time::{Duration, Instant};

use anyhow::Result;
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{Programs, Site, going, number, progress};

/// The portals: the first has no address at the beginning.
const PORTALS: [&str; 2] = ["[fd00:10::10]:3260", "10.20.0.10:3260"];

const HALF_MINUTE: Duration = Duration::from_secs(30);

/// Time limit for a problem that is reported at once. It leaves room for an emulated processor.
const AT_ONCE: Duration = Duration::from_secs(5);

/// The first network's IPv6 prefix; a VM's last part is that of its IPv4 address.
const PREFIX: &str = "fd00:10::";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("portals").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent_without_resync(&PORTALS)?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.shared_type()?;
    let volume = control.volume("data", Some("shared"))?;
    let mut truth = Truth { site, control, evidence: Evidence::default(), volume };
    let result = truth.acts(&agent);
    if result.is_err() {
        eprintln!("--- storage agent:\n{}", agent.stderr_so_far());
        eprintln!("--- controller:\n{}", truth.control.controller_log());
        for host in &truth.control.hosts {
            eprintln!("--- {}'s agent:\n{}\n{}", host.vm.name(), host.agent_log(), host.sessiond_log());
        }
    }
    result?;
    agent.kill()?;
    drop(agent.wait()?);
    Ok(())
}

struct Truth<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
    volume: String,
}

impl<'a> Truth<'a> {
    fn acts(&mut self, agent: &Running) -> Result<()> {
        for (vm, last) in [("host1", 11), ("host2", 12)] {
            self.address(vm, last, "add")?;
        }
        let (one, disk) = self.waiting()?;
        let two = self.comes()?;
        self.seen(&one, &two)?;
        self.goes(&disk)?;
        self.missing(&two)?;
        self.link(&one)?;
        check(agent.is_running(), || "the agent has ended".to_owned())?;
        // Then it would list the addresses each second, and its notices would not be tried.
        let log = agent.stderr_so_far();
        check(!log.contains("cannot follow links and addresses"), || log.clone())?;
        self.control.json(&["detach", &one])?;
        // The host cannot be told, and need not be.
        self.control.force_detach(&two)?;
        self.control.json(&["volume", "delete", &self.volume, "--timeout", "300"])?;
        self.site.nothing_left()
    }

    /// Gives a VM its IPv6 address on the first network, or removes it.
    fn address(&self, vm: &str, last: u8, verb: &str) -> Result<()> {
        let script = format!(
            "ip -6 address {verb} {PREFIX}{last}/64 dev eth0 {}",
            if verb == "add" { "nodad" } else { "" }
        );
        self.site.rig.vm(vm)?.sh(&script)?.ok()?;
        Ok(())
    }

    /// The storage node's problems with this portal.
    fn trouble(&self, portal: &str) -> Result<Vec<String>> {
        let shown = self.site.json(&["export", "show", &self.volume])?;
        let problems = shown["export"]["problems"].as_array().cloned().unwrap_or_default();
        let of_portal = |problem: &Value| {
            let (object, text) = (problem["object"].as_str()?, problem["text"].as_str()?);
            object.contains(portal).then(|| text.to_owned())
        };
        Ok(problems.iter().filter_map(of_portal).collect())
    }

    /// The address is missing: the export is made all the same, and the host takes the other
    /// portal.
    fn waiting(&mut self) -> Result<(String, Disk<'a>)> {
        let live = self.control.attach(&self.volume, "host1", "rw")?;
        let (id, path) = (text(&live, "id")?.to_owned(), text(&live, "device_path")?.to_owned());
        let said = self.trouble(PORTALS[0])?;
        check(said.len() == 1 && said[0].contains("the portal waits for it"), || format!("{said:?}"))?;
        self.evidence.shows(format!("portal {} waits: {}", PORTALS[0], said[0]));
        let session = self.session("host1")?;
        check(session["session"]["addresses"][0] == "10.20.0.11", || format!("{session}"))?;
        self.evidence.shows(format!("host1 is logged in over {}: {}", PORTALS[1], session["session"]));
        Ok((id, Disk::new(self.site.rig.vm("host1")?, path)))
    }

    /// The session of a host, as the controller lists it.
    fn session(&self, host: &str) -> Result<Value> {
        wait_for("the host's session", HALF_MINUTE, || {
            let all = self.control.json(&["session", "list", "--volume", &self.volume, "--host", host])?;
            Ok(all["sessions"]
                .as_array()
                .and_then(|all| all.first())
                .filter(|one| one["session"].is_object())
                .cloned())
        })
    }

    /// The address comes: the portal answers, without any change in the kernel.
    fn comes(&mut self) -> Result<String> {
        let before = self.tree()?;
        self.address("storage", 10, "add")?;
        wait_for("the portal is there", HALF_MINUTE, || {
            Ok(self.trouble(PORTALS[0])?.is_empty().then_some(()))
        })?;
        check(self.tree()? == before, || "something was done in configfs".to_owned())?;
        self.evidence.shows("the address comes: no longer a problem, and configfs is as it was");
        // A host takes the first portal that answers. For now this one does not reach the other.
        let host = self.site.rig.vm("host2")?;
        host.sh("ip link set eth1 down")?.ok()?;
        let live = self.control.attach(&self.volume, "host2", "ro")?;
        host.sh("ip link set eth1 up")?.ok()?;
        let session = self.session("host2")?;
        let address = session["session"]["addresses"][0].as_str().unwrap_or_default();
        check(address.contains("fd00:10::12"), || format!("{session}"))?;
        self.connections(2)?;
        self.evidence.shows(format!("host2 is logged in over {}: {}", PORTALS[0], session["session"]));
        Ok(text(&live, "id")?.to_owned())
    }

    /// Waits until the storage agent sees this many connections: it follows them, and does not only
    /// look at sessions in turn.
    fn connections(&self, wanted: u64) -> Result<()> {
        wait_for(&format!("{wanted} connections to be followed"), HALF_MINUTE, || {
            Ok((self.site.metric("mooring_agent_portal_connections")? == wanted).then_some(()))
        })
    }

    /// The folders of the target.
    fn tree(&self) -> Result<String> {
        let script = format!("find {}/iscsi -type d | sort", crate::site::TARGET);
        Ok(self.site.storage()?.sh(&script)?.ok()?.stdout)
    }

    /// Addresses, times and activity of the sessions, in all places that show them.
    fn seen(&mut self, one: &str, two: &str) -> Result<()> {
        let (live, other) = (self.control.live(one)?, self.control.live(two)?);
        for shown in [&live, &other] {
            check(shown["session"] == true && shown["session_missing"] == false, || format!("{shown}"))?;
            check(shown["sessions"][0]["since"].is_string() && shown["storage_host"] == "storage", || {
                format!("{shown}")
            })?;
            check(shown["counters"]["commands"].as_u64() > Some(0), || format!("{shown}"))?;
        }
        let table = self.control.mooring(&["session", "list"])?.ok()?.stdout;
        check(table.contains("LOGGED_IN") && !table.contains("MISSING"), || table.clone())?;
        self.evidence.shows(format!("attachment show: {} and {}", live["counters"], other["counters"]));
        Ok(())
    }

    /// The address goes under a session: it is reported, the other portal's I/O has no error, and
    /// the host that has lost its portal returns over the other.
    fn goes(&mut self, disk: &Disk<'a>) -> Result<()> {
        let writer = disk.write_stamps(&[])?;
        going(&writer)?;
        self.address("storage", 10, "del")?;
        wait_for("the portal is reported", HALF_MINUTE, || {
            Ok((!self.trouble(PORTALS[0])?.is_empty()).then_some(()))
        })?;
        wait_for("host2 over the other portal", Duration::from_mins(2), || {
            let address = self.session("host2")?["session"]["addresses"][0].clone();
            Ok((address == "10.20.0.12").then_some(()))
        })?;
        let seen = progress(&writer)?;
        writer.kill()?;
        drop(writer.wait()?);
        check(number(&seen, "errors")? == 0 && number(&seen, "done")? > 0, || format!("the writer: {seen}"))?;
        self.evidence.shows(format!(
            "the address goes: reported; host2 is logged in over {} now; host1: {} I/Os, 0 errors, longest gap {} ms",
            PORTALS[1],
            number(&seen, "done")?,
            number(&seen, "longest_gap_ms")?
        ));
        let session = self.session("host1")?;
        check(session["written_mib"].as_u64() > Some(0) && session["last_activity"].is_string(), || {
            format!("{session}")
        })?;
        self.evidence.shows(format!(
            "host1 has written {} MiB, last {}",
            session["written_mib"], session["last_activity"]
        ));
        Ok(())
    }

    /// The other portal's link goes down, and comes back: the agent names the portal's interface,
    /// and reports that it is down.
    fn link(&mut self, one: &str) -> Result<()> {
        let before = self.tree()?;
        let storage = self.site.storage()?;
        let on = storage
            .sh("ip -o -4 address show | sed -n 's/^[0-9]*: \\([^ ]*\\) .* 10.20.0.10.*/\\1/p'")?
            .ok()?;
        let interface = on.line().to_owned();
        storage.sh(&format!("ip link set {interface} mtu 1400"))?.ok()?;
        let link = wait_for("the interface's MTU", HALF_MINUTE, || {
            let shown = self.site.json(&["agent", "show"])?;
            let links =
                shown["transports"].as_array().into_iter().flatten().filter_map(|it| it["links"].as_array());
            let link = links.flatten().find(|link| link["portal"] == PORTALS[1]).cloned();
            Ok(link.filter(|link| link["mtu"] == 1400))
        })?;
        check(link["interface"] == interface && link["up"] == true, || format!("{link}"))?;
        storage.sh(&format!("ip link set {interface} down"))?.ok()?;
        let down = Instant::now();
        let said = wait_for("the link that is down", AT_ONCE, || {
            Ok(self.trouble(PORTALS[1])?.into_iter().find(|text| text.contains("is down")))
        })?;
        let took = down.elapsed().as_secs_f64();
        check(said.contains(&interface), || said.clone())?;
        storage.sh(&format!("ip link set {interface} mtu 1500; ip link set {interface} up"))?.ok()?;
        wait_for("the link to be up", HALF_MINUTE, || {
            Ok(self.trouble(PORTALS[1])?.is_empty().then_some(()))
        })?;
        wait_for("host1's session", Duration::from_mins(2), || {
            Ok((self.control.live(one)?["session_missing"] == false).then_some(()))
        })?;
        check(self.tree()? == before, || "something was done in configfs".to_owned())?;
        self.evidence.shows(format!(
            "{link}; its link goes down, reported within {took:.1} s: {said}; it comes back, and host1 with it"
        ));
        Ok(())
    }

    /// A host loses its power: once the kernel has given it up, its session is missing in all
    /// answers.
    fn missing(&mut self, two: &str) -> Result<()> {
        self.site.rig.vm("host2")?.power_cut()?;
        let missing = wait_for("the missing session", Duration::from_mins(3), || {
            let live = self.control.live(two)?;
            Ok((live["session_missing"] == true).then_some(live))
        })?;
        self.connections(1)?;
        let problems = missing["problems"].to_string();
        check(problems.contains("should be logged in and is not"), || problems.clone())?;
        let table = self.control.mooring(&["session", "list"])?.ok()?.stdout;
        check(table.contains("MISSING"), || table.clone())?;
        let node = self.control.json(&["host", "show", "storage"])?.to_string();
        check(node.contains("attached and not logged in") && node.contains(two), || node.clone())?;
        self.evidence
            .shows("host2 without power: MISSING in show and list, and a problem of the storage node");
        Ok(())
    }
}
