//! Two servers of one host have one volume over one session, as Nova and os-brick share it: one is
//! live-migrated while the other is deleted, there and back. A third client reads all the while.
//!
//! What must never happen here: a session that this program keeps alive where os-brick would have
//! logged out.

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow};
use mooring_rig::{RigOptions, Running};

use crate::clients::Cinder;
use crate::control::{Control, PORT, TOKEN};
use crate::disk::Disk;
use crate::evidence::{Evidence, check};
use crate::initiator::{Credentials, Host};
use crate::native::text;
use crate::site::{Programs, Site, TARGET, goes_on, going, number, progress};

/// The server that migrates, and the one that is deleted.
const SERVER: &str = "aaaaaaaa-0000-4000-8000-000000000000";
const OTHER_SERVER: &str = "bbbbbbbb-0000-4000-8000-000000000000";
const ROUNDS: usize = 3;
/// The second portal: the name that udev gives to a disk has its portal, and a native session is at
/// the first.
const PORTAL: &str = "10.20.0.10:3260";
const PACED: [&str; 4] = ["--threads", "1", "--every-ms", "50"];

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("two-servers").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.shared_type()?;
    let volume = control.volume("data", Some("shared"))?;
    let cinder = Cinder::new(&format!("http://{}/v3", site.storage()?.forwarded(PORT)?), TOKEN)?;
    let hosts = [Host::start(site.rig.vm("host1")?)?, Host::start(site.rig.vm("host2")?)?];
    let target = format!("iqn.2026-11.dev.mooring:{volume}");
    let mut acts = Acts { site, control, cinder, hosts, evidence: Evidence::default(), volume, target };
    let result = acts.all();
    if result.is_err() {
        acts.control.print_logs();
    }
    result?;
    agent.kill()?;
    drop(agent.wait()?);
    Ok(())
}

struct Acts<'a> {
    site: &'a Site,
    control: Control<'a>,
    cinder: Cinder,
    hosts: [Host<'a>; 2],
    evidence: Evidence,
    volume: String,
    target: String,
}

/// A server with the volume: its attachment, its host's disk, and what it writes.
struct Server<'a> {
    attachment: String,
    disk: Disk<'a>,
    writer: Running,
}

impl<'a> Acts<'a> {
    fn all(&mut self) -> Result<()> {
        let onlooker = self.control.attach(&self.volume, "host2", "ro")?;
        let disk = Disk::new(self.site.rig.vm("host2")?, text(&onlooker, "device_path")?);
        let native = text(&self.control.live(text(&onlooker, "id")?)?, "initiator")?.to_owned();
        let reader = disk.watch_stamps()?;
        let (attachment, disk) = self.connect(SERVER, 0)?;
        let writer = disk.write_stamps(&PACED)?;
        going(&writer)?;
        going(&reader)?;
        let mut server = Server { attachment, disk, writer };
        for round in 0..ROUNDS {
            server = self.part(round, server).with_context(|| format!("round {}", round + 1))?;
            let there = (round + 1) % 2;
            self.only(&[&self.hosts[there].iqn, &native])
                .with_context(|| format!("after round {}", round + 1))?;
            goes_on(&server.writer)?;
            goes_on(&reader)?;
        }
        let last = done(server.writer, "the server that migrates")?;
        let seen = done(reader, "the third client")?;
        self.evidence.shows(format!(
            "{ROUNDS} rounds: a server migrates while another one of its host is deleted; the last host's {last} writes and the third \
             client's {seen} reads had 0 errors"
        ));
        self.hosts[ROUNDS % 2].logout(&self.target)?;
        self.cinder.call(&["release", &server.attachment])?;
        self.control.json(&["detach", text(&onlooker, "id")?])?;
        let left = self.control.json(&["attachment", "list"])?;
        check(left["attachments"].as_array().is_some_and(Vec::is_empty), || format!("left: {left}"))?;
        self.control.json(&["volume", "delete", &self.volume, "--timeout", "120"])?;
        for host in &self.control.hosts {
            host.nothing_left()?;
        }
        self.site.nothing_left()
    }

    /// The name of a host as Nova has it: the native agents of the same machines have others.
    fn name(&self, host: usize) -> String {
        format!("{}-stock", self.hosts[host].vm.name())
    }

    /// Attaches the volume to a server, and logs its host in.
    fn connect(&self, server: &str, host: usize) -> Result<(String, Disk<'a>)> {
        let at = &self.hosts[host];
        let made = self.cinder.call(&["create", &self.volume, &at.iqn, &self.name(host), "rw", server])?;
        let info = &made["connection_info"];
        let chap = Credentials {
            user: text(info, "auth_username")?,
            secret: text(info, "auth_password")?,
            mutual: None,
        };
        at.login(&self.target, PORTAL, Some(chap), 20)?
            .ok()
            .with_context(|| format!("{} logs in", self.name(host)))?;
        Ok((text(&made, "id")?.to_owned(), at.disk(&self.target, PORTAL)?))
    }

    /// One round: both servers are on one host, one migrates to the other host, and the other one
    /// is deleted meanwhile. In every other round the deletion begins when the migration's target
    /// has its session already.
    fn part(&self, round: usize, server: Server<'a>) -> Result<Server<'a>> {
        let (here, there) = (round % 2, (round + 1) % 2);
        // The host has a session of this target: the second server gets no login of its own.
        let iqn = &self.hosts[here].iqn;
        let second =
            self.cinder.call(&["create", &self.volume, iqn, &self.name(here), "rw", OTHER_SERVER])?;
        let second = text(&second, "id")?.to_owned();
        let begun = if round % 2 == 1 { Some(self.connect(SERVER, there)?) } else { None };
        let cinder = &self.cinder;
        let (attachment, disk) = std::thread::scope(|scope| {
            let deletion = scope.spawn(|| cinder.call(&["release", &second]));
            let moved = begun.map_or_else(|| self.connect(SERVER, there), Ok);
            let deleted = deletion.join().map_err(|_| anyhow!("the deletion of a server panicked"))?;
            deleted.context("the other server's deletion")?;
            moved.context("the migration")
        })?;
        // The guest writes through its first host until it switches.
        goes_on(&server.writer)?;
        let written = done(server.writer, "the server before it switches")?;
        let writer = disk.write_stamps(&PACED)?;
        going(&writer)?;
        let stamps: u64 = server.disk.read_stamps()?.iter().sum();
        check(stamps > 0 && written > 0, || format!("{stamps} stamps are read of {written} writes"))?;
        // No server is left on this host.
        self.hosts[here].logout(&self.target)?;
        self.cinder.call(&["release", &server.attachment])?;
        Ok(Server { attachment, disk, writer })
    }

    /// Checks that exactly these initiators have access to the volume, each with a session.
    fn only(&self, initiators: &[&str]) -> Result<()> {
        let script = format!(
            "cd {TARGET}/iscsi/{}/tpgt_1/acls; for acl in *; do [ -d $acl ] || continue; \
             if grep -q TSIH $acl/info; then echo $acl; else echo $acl without a session; fi; done",
            self.target
        );
        let seen = self.site.storage()?.sh(&script)?.ok()?.stdout;
        let seen: BTreeSet<&str> = seen.lines().collect();
        let wanted: BTreeSet<&str> = initiators.iter().copied().collect();
        check(seen == wanted, || format!("the volume's initiators are {seen:?}, not {wanted:?}"))
    }
}

/// Ends a writer or reader, checks that nothing of it failed, and returns the number of its I/Os.
fn done(running: Running, whose: &str) -> Result<u64> {
    let seen = progress(&running)?;
    running.kill()?;
    drop(running.wait()?);
    check(number(&seen, "errors")? == 0, || format!("I/O of {whose}: {seen}"))?;
    number(&seen, "done")
}
