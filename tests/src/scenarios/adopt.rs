//! An export that rtslib made, as targetcli has it, becomes Mooring's while a host writes to it.
//! Its session, disk and names stay, before and after a power cut. A second export, which nobody
//! selected, is left unchanged.
//!
//! What must never happen here: a new session mistaken for the old one: the target's own number of
//! it is compared.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::{Credentials, Host};
use crate::site::{BIN, GROUP, Programs, Site, TARGET, agent_config, going, number, progress};

const PORTAL: &str = "10.10.0.10:3260";
const IQN: &str = "iqn.2003-01.org.linux-iscsi.demo:data";
const OTHER: &str = "iqn.2003-01.org.linux-iscsi.demo:other";
const CHAP: Credentials<'_> = Credentials { user: "host1", secret: "correct-horse-1", mutual: None };

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("adopt"), programs)?;
    let result = Adopt::make(&site).and_then(Adopt::acts);
    site.end(result)
}

struct Adopt<'a> {
    site: &'a Site,
    evidence: Evidence,
    host: Host<'a>,
}

/// Python that makes one export in targetcli's way: an LV of the group as LUN 0, and one host with
/// CHAP. (targetcli itself needs D-Bus, which these VMs do not have.)
const RTSLIB: &str = "
import sys
from rtslib_fb import BlockStorageObject, FabricModule, LUN, MappedLUN, NetworkPortal, NodeACL, RTSRoot, TPG, Target
root = RTSRoot()
host, user, secret = sys.argv[1:4]
for word in sys.argv[4:]:
    device, iqn = word.split('=')
    store = BlockStorageObject(device.split('/')[-1], device)
    store.set_attribute('emulate_model_alias', '1')
    tpg = TPG(Target(FabricModule('iscsi'), iqn), 1)
    LUN(tpg, 0, store)
    NetworkPortal(tpg, '10.10.0.10', 3260)
    acl = NodeACL(tpg, host)
    MappedLUN(acl, 0, 0, False)
    acl.chap_userid, acl.chap_password = user, secret
    tpg.set_attribute('authentication', '1')
    tpg.enable = True
";

impl<'a> Adopt<'a> {
    fn make(site: &'a Site) -> Result<Self> {
        let host = Host::start(site.rig.vm("host1")?)?;
        let storage = site.storage()?;
        storage.write("/run/rtslib.py", RTSLIB.as_bytes(), 0o600)?;
        storage
            .sh(&format!(
                "for lv in data other; do lvcreate -q -y -Wy -n $lv -L 64M {GROUP}; done; \
                 python3 /run/rtslib.py {} {} {} /dev/{GROUP}/data={IQN} /dev/{GROUP}/other={OTHER}",
                host.iqn, CHAP.user, CHAP.secret
            ))?
            .ok()
            .context("make exports by rtslib")?;
        storage.write("/etc/mooring/agent.toml", agent_config("").as_bytes(), 0o600)?;
        Ok(Self { site, evidence: Evidence::default(), host })
    }

    fn acts(mut self) -> Result<()> {
        self.host.login(IQN, PORTAL, Some(CHAP), 10)?.ok()?;
        let disk = self.disk()?;
        let naa = disk.naa()?;
        let writer = disk.write_stamps(&["--threads", "2"])?;
        going(&writer)?;
        let session = self.session()?;
        self.planned()?;
        let agent = self.taken_over(&writer, &session)?;
        self.ordinary(&naa, &disk)?;
        writer.kill()?;
        drop(writer.wait()?);
        let agent = self.power_cut(agent, &naa)?;
        self.force()?;
        self.site.json(&["volume", "delete", "data"])?;
        agent.kill()
    }

    fn disk(&self) -> Result<Disk<'a>> {
        self.host.disk_of(IQN, PORTAL, 0)
    }

    fn session(&self) -> Result<String> {
        self.host.session_at(self.site.storage()?, IQN)
    }

    /// Everything readable of the export that was not selected.
    fn foreign(&self) -> Result<String> {
        let script = format!(
            "cd {TARGET}; grep -rs --exclude-dir='*statistics*' '' iscsi/{OTHER} core/iblock_*/other | sort; \
             lvs --noheadings -o lv_name,lv_tags,lv_uuid {GROUP}/other"
        );
        Ok(self.site.storage()?.sh(&script)?.stdout)
    }

    fn adopt(&self, more: &[&str]) -> Result<String> {
        let mut argv = vec![format!("{BIN}/mooring-agent"), "adopt".to_owned()];
        argv.extend(more.iter().map(|&word| word.to_owned()));
        Ok(self.site.storage()?.command(argv).timeout(Duration::from_mins(4)).run()?.ok()?.stdout)
    }

    fn planned(&mut self) -> Result<()> {
        let (before, said) = (self.foreign()?, self.adopt(&["--plan"])?);
        let all = ["wwn/vpd_unit_serial:", "tpgt_1/enable:1", "/auth/userid:"]
            .iter()
            .all(|part| before.contains(part));
        check(all, || format!("not all of the other export was read: {before}"))?;
        let both = [IQN, OTHER].iter().all(|iqn| said.contains(&format!("{iqn}: can be adopted")));
        check(both && said.contains("Nothing was changed"), || format!("the plan: {said}"))?;
        check(self.foreign()? == before, || "the plan has changed something".to_owned())?;
        self.evidence.shows(
            "exports that rtslib made can be adopted, as `adopt --plan` says, and nothing is changed by it",
        );
        Ok(())
    }

    fn taken_over(&mut self, writer: &Running, session: &str) -> Result<Running> {
        let before = self.foreign()?;
        self.adopt(&["--apply", "--only", IQN])?;
        let agent = self.site.start_agent()?;
        wait_for("the adopted export to be in force", Duration::from_mins(1), || {
            let shown = self.site.json(&["export", "show", "data"])?;
            Ok((shown["export"]["in_force"] == true).then_some(()))
        })?;
        let seen = progress(writer)?;
        check(number(&seen, "errors")? == 0 && self.session()? == session, || {
            format!(
                "session {session} before, {} after; the writer: {seen}",
                self.session().unwrap_or_default()
            )
        })?;
        check(self.foreign()? == before, || {
            format!("the other export is not as it was: {before} {}", self.foreign().unwrap_or_default())
        })?;
        self.evidence.shows(format!(
            "taken over under I/O: {} writes, 0 errors, longest gap {} ms, the same session; the other export byte for byte as before",
            number(&seen, "done")?,
            number(&seen, "longest_gap_ms")?
        ));
        Ok(agent)
    }

    /// The ordinary calls work on it, and the host's disk stays the same.
    fn ordinary(&mut self, naa: &str, disk: &Disk<'_>) -> Result<()> {
        let anew = ["export", "grant", "data", "--initiator", "iqn.2026-01.test.mooring:new", "--mode", "ro"];
        self.site.json(&anew)?;
        self.site.json(&["export", "revoke", "data", "--initiator", "iqn.2026-01.test.mooring:new"])?;
        check(disk.naa()? == naa, || "the disk is another one".to_owned())?;
        let shown: Value = self.site.json(&["volume", "show", "data"])?;
        check(shown["phase"] == "ready", || format!("the volume: {shown}"))?;
        self.evidence.shows("a grant and a revoke by the ordinary calls; the host's disk keeps its NAA");
        Ok(())
    }

    /// The host finds its disk again, under all its names.
    fn power_cut(&mut self, agent: Running, naa: &str) -> Result<Running> {
        let storage = self.site.storage()?;
        storage.power_cut()?;
        drop(agent);
        storage.boot()?;
        self.site.after_boot()?;
        let agent = self.site.start_agent()?;
        let again =
            wait_for("the host to be logged in again", Duration::from_mins(2), || Ok(self.session().ok()))?;
        let disk = self.disk()?;
        check(disk.naa()? == naa, || format!("{again}: the disk is another one after the power cut"))?;
        self.evidence.shows(
            "after a power cut the host logs in again, and finds the same disk as LUN 0 of the same target",
        );
        Ok(agent)
    }

    fn force(&mut self) -> Result<()> {
        let host = self.host.iqn.clone();
        let revoked = self.site.json(&["export", "revoke", "data", "--initiator", &host, "--force"])?;
        check(revoked["receipt"]["proven"] == true, || format!("the receipt: {revoked}"))?;
        self.host.forget(IQN)?;
        self.evidence.shows("its force detach is proven like any other");
        Ok(())
    }
}
