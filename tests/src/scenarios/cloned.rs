//! A cloned host image: the state folder of one host's agent lies on another machine, so that both
//! have one agent id and one initiator name. The copy is refused with a reason that says what to
//! do, the original goes on, and what the reason says helps.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::RigOptions;
use serde_json::Value;

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{Programs, Site, goes_on, going, number, progress};

const SOON: Duration = Duration::from_mins(1);
const STATE: &str = "/var/lib/mooring";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("cloned").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.shared_type()?;
    let volume = control.volume("data", Some("shared"))?;
    let mut acts = Acts { site, control, evidence: Evidence::default(), volume };
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
    evidence: Evidence,
    volume: String,
}

impl Acts<'_> {
    fn all(&mut self) -> Result<()> {
        let (original, other) = (self.host("host1")?, self.host("host2")?);
        check(original["agent_id"] != other["agent_id"], || format!("{original} {other}"))?;
        // An agent whose store is new would only get its own id back.
        let before = self.control.attach(&self.volume, "host1", "rw")?;
        self.control.json(&["detach", text(&before, "id")?])?;
        let image = self.image()?;
        let first = self.control.attach(&self.volume, "host1", "rw")?;
        let disk = Disk::new(self.site.rig.vm("host1")?, text(&first, "device_path")?);
        let writer = disk.write_stamps(&["--threads", "1", "--every-ms", "50"])?;
        going(&writer)?;
        let target = format!("iqn.2026-11.dev.mooring:{}", self.volume);
        let session = self.control.hosts[0].session(&target)?;
        self.copy_is_refused(&image)?;
        goes_on(&writer)?;
        let now = self.control.hosts[0].session(&target)?;
        check(now == session, || format!("host1's session was {session:?} and is {now:?}"))?;
        let still = self.host("host1")?;
        check(still["up"] == true && still["agent_id"] == original["agent_id"], || {
            format!("the original was {original} and is {still}")
        })?;
        self.evidence.shows("host1, the original, is up, has its session, and writes on");
        let first = text(&first, "id")?.to_owned();
        let second = self.the_way_out(&first)?;
        goes_on(&writer)?;
        let seen = progress(&writer)?;
        writer.kill()?;
        drop(writer.wait()?);
        check(number(&seen, "errors")? == 0, || format!("host1's writes: {seen}"))?;
        self.evidence
            .shows(format!("host1 wrote all the while: {} writes, 0 errors", number(&seen, "done")?));
        for id in [first, second] {
            self.control.json(&["detach", &id])?;
        }
        self.control.json(&["volume", "delete", &self.volume, "--timeout", "120"])?;
        for host in &self.control.hosts {
            host.nothing_left()?;
        }
        self.site.nothing_left()
    }

    /// A host as the controller sees it.
    fn host(&self, name: &str) -> Result<Value> {
        let all = self.control.json(&["host", "list"])?;
        let mut hosts = all["hosts"].as_array().into_iter().flatten();
        hosts.find(|host| host["name"] == name).cloned().with_context(|| format!("no {name} in {all}"))
    }

    /// The state of host1's agent, which has had a volume and has none.
    fn image(&mut self) -> Result<Vec<u8>> {
        let host = &mut self.control.hosts[0];
        host.kill_agent()?;
        host.vm.sh(&format!("tar -C {STATE} -cf /run/state.tar ."))?.ok()?;
        let image = host.vm.read("/run/state.tar")?;
        host.start_agent()?;
        self.control.all_up_soon()?;
        Ok(image)
    }

    /// Lets host2 be a copy of host1.
    fn copy_is_refused(&mut self, image: &[u8]) -> Result<()> {
        let host = &mut self.control.hosts[1];
        host.kill_agent()?;
        host.vm.write("/run/state.tar", image, 0o600)?;
        host.vm.sh(&format!("rm -rf {STATE}/* && tar -C {STATE} -xf /run/state.tar"))?.ok()?;
        host.start_agent()?;
        let why = wait_for("the copy to be refused", SOON, || {
            let copy = self.host("host2")?;
            let why = copy["why_down"].as_str().unwrap_or_default().to_owned();
            check(copy["up"] == false && why.contains("has the same id"), || format!("the copy: {copy}"))?;
            Ok(Some(why))
        })?;
        for word in ["host1", "mooring-agent.db", "an id of its own"] {
            check(why.contains(word), || format!("the reason does not say {word:?}: {why}"))?;
        }
        let attach = self.control.mooring(&["attach", &self.volume, "--host", "host2"])?;
        check(attach.status.code() == Some(6) && attach.stderr.contains("has the same id"), || {
            format!("an attach to the copy: exit {:?}: {}", attach.status.code(), attach.stderr)
        })?;
        let has = self.control.hosts[1].sessions()?;
        check(has.is_empty(), || format!("the copy has sessions: {has:?}"))?;
        self.evidence.shows(format!("host2 with host1's state is refused: {why}"));
        Ok(())
    }

    /// Does on the copy what the reason says. Returns the id of the attachment that it can have
    /// then.
    fn the_way_out(&mut self, first: &str) -> Result<String> {
        let host = &mut self.control.hosts[1];
        host.kill_agent()?;
        host.vm.sh(&format!("mkdir /run/aside && mv {STATE}/mooring-agent.db* /run/aside"))?.ok()?;
        host.start_agent()?;
        self.control.all_up_soon()?;
        let made = self.control.attach(&self.volume, "host2", "rw")?;
        let second = text(&made, "id")?.to_owned();
        let (one, two) = (self.control.live(first)?, self.control.live(&second)?);
        let (one, two) = (text(&one, "initiator")?, text(&two, "initiator")?);
        check(one != two, || format!("both hosts log in as {one}"))?;
        self.evidence.shows(format!(
            "the copy's store is moved away, as the reason says: it is up, and is attached as {two}"
        ));
        Ok(second)
    }
}
