//! Verbs of the command line under the units' sandboxes, as a user types them: growth, snapshots,
//! revert, changes of an attachment, reservations, a cut, retype, taking over an LV, and the tables
//! of all other verbs. A later scene looks for refusals of the sandboxes in the journal.
//!
//! What must never happen here: a volume or an LV that later scenes find.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Machine;
use super::rows::{ATTACHED, BESIDE, BY_HAND, DETACHED, ENDLESS, TO_CONTROLLER};
use crate::control::attachment_of;
use crate::evidence::{check, wait_for};
use crate::native::text;
use crate::site::{AGENT, GROUP};

/// Sectors of the volume after its growth to 2 GiB.
const SECTORS: &str = "4194304";

/// A registrant's key.
const KEY: &str = "0x3abe0000";

/// Content of an LV that becomes a volume.
const HELD: &str = "theirs";

impl Machine<'_> {
    /// Writes a word to the first block of a disk.
    fn put(&self, path: &str, word: &str) -> Result<()> {
        let write = format!("echo {word} | dd of={path} bs=4k conv=sync,notrunc oflag=direct status=none");
        self.sh(&write).map(drop)
    }

    /// Checks that the first block of a disk has this word.
    fn holds(&self, path: &str, word: &str) -> Result<()> {
        let read = self.sh(&format!("dd if={path} bs=4k count=1 iflag=direct status=none | head -n 1"))?;
        check(read.trim() == word, || format!("{path} has {read:?} and not {word:?}"))
    }

    /// The journal has an audit line's facts as fields, by which it is searched.
    fn audited(&mut self, volume: &str) -> Result<()> {
        let find = format!(
            "journalctl --no-pager -q -o cat MOORING_OPERATION=createVolume MOORING_OBJECT=volume:{volume}"
        );
        wait_for("the audit line in the journal", Duration::from_secs(30), || {
            Ok((!self.sh(&find)?.trim().is_empty()).then_some(()))
        })?;
        self.evidence.shows("journalctl finds the audit line of a creation by operation and volume");
        Ok(())
    }

    /// Runs every verb that no other scene here runs.
    pub(super) fn verbs(&mut self) -> Result<()> {
        let made = self.mooring("volume create verbs --size 1GiB --type thin --timeout 120")?;
        check(made["done"] == true, || made.to_string())?;
        self.audited(text(&made["volume"], "id")?)?;
        let live = attachment_of(self.mooring("attach verbs --host storage1 --timeout 240")?);
        let (id, path) = (text(&live, "id")?.to_owned(), text(&live, "device_path")?.to_owned());
        self.grown(&path)?;
        self.put(&path, "before")?;
        let taken = self.mooring("snapshot create verbs one --timeout 120")?;
        check(taken["done"] == true, || taken.to_string())?;
        self.put(&path, "after")?;
        self.changed(&id, &path)?;
        self.reservations(&path)?;
        self.rows(TO_CONTROLLER, &id, ATTACHED)?;
        self.cut(&path)?;
        self.mooring(&format!("detach {id} --timeout 240"))?;
        self.rows(TO_CONTROLLER, &id, DETACHED)?;
        self.snapshot_unmanaged()?;
        self.renamed()?;
        self.by_hand(&id)?;
        self.rows("", &id, BESIDE)?;
        self.evidence.shows(
            "inside of the units' sandboxes: every verb of the command line and of the daemons' programs, or its refusal",
        );
        self.reverted()?;
        self.taken_over()
    }

    /// The volume grows while it is attached.
    fn grown(&self, path: &str) -> Result<()> {
        let grown = self.mooring("volume extend verbs --size 2GiB --timeout 120")?;
        check(grown["done"] == true && grown["size_gib"] == 2, || grown.to_string())?;
        wait_for("the new size on the host", Duration::from_mins(1), || {
            let size = self.sh(&format!("cat /sys/class/block/$(basename $(readlink -e {path}))/size"))?;
            Ok((size.trim() == SECTORS).then_some(()))
        })
    }

    /// Changes the mode and the cache of an attachment in place.
    fn changed(&mut self, id: &str, path: &str) -> Result<()> {
        for mode in ["ro", "rw"] {
            let set = attachment_of(self.mooring(&format!("attachment mode {id} {mode} --timeout 240"))?);
            check(set["effective_mode"] == mode, || set.to_string())?;
        }
        self.put(path, "after")?;
        for cache in ["off", "on"] {
            let set = attachment_of(self.mooring(&format!("attachment cache {id} {cache} --timeout 240"))?);
            check(set["cache"] == cache && set["cache_in_force"] == cache, || set.to_string())?;
        }
        self.evidence.shows(
            "inside of the units' sandboxes: grown while attached, a snapshot under it, its mode and its cache changed in place",
        );
        Ok(())
    }

    /// Lists and clears the registration that a host has made.
    fn reservations(&mut self, path: &str) -> Result<()> {
        self.sh(&format!("sg_persist -n -o -I -S {KEY} -Z -d {path}"))?;
        wait_for("the registration to be listed", Duration::from_mins(1), || {
            let seen = self.mooring("volume reservations verbs")?;
            let count = seen["registrations"].as_array().map_or(0, Vec::len);
            Ok((count == 1 && seen["durable"] == true).then_some(()))
        })?;
        let took = self.mooring("volume reservations verbs --clear --timeout 240")?;
        let number = |of: &str| took[of]["registrations"].as_array().map(Vec::len);
        check(number("before") == Some(1) && number("reservations") == Some(0), || took.to_string())?;
        self.evidence.shows("inside of the units' sandboxes: a registration is listed, kept and cleared");
        Ok(())
    }

    /// The volume is cut off from its disk below its host, whose reads and writes fail. Given back,
    /// it has its content.
    fn cut(&mut self, path: &str) -> Result<()> {
        let cut = self.mooring("volume cut verbs --force --timeout 240")?;
        check(cut["done"] == true && cut["cut"]["state"] == "in_force", || cut.to_string())?;
        for io in [
            format!("dd if={path} of=/dev/null bs=4k count=1 iflag=direct 2>&1"),
            format!("dd if=/dev/zero of={path} bs=4k count=1 oflag=direct 2>&1"),
        ] {
            let said = self.vm.sh(&io)?;
            check(said.stdout.contains("Input/output error"), || format!("while it is cut off: {said:?}"))?;
        }
        let given_back = self.mooring("volume uncut verbs --timeout 240")?;
        check(given_back["done"] == true && given_back["cut"].is_null(), || given_back.to_string())?;
        self.holds(path, "after")?;
        self.put(path, "after")?;
        self.evidence.shows(
            "inside of the units' sandboxes: cut off from its disk, a volume answers its host with errors; given back, it has its \
             content and takes writes",
        );
        Ok(())
    }

    /// A snapshot is forgotten, and its LV is kept.
    fn snapshot_unmanaged(&self) -> Result<()> {
        let taken = self.mooring("snapshot create verbs two --timeout 120")?;
        check(taken["done"] == true, || taken.to_string())?;
        let gone = self.mooring("snapshot unmanage two --timeout 120")?;
        let lv = text(&gone, "lv")?;
        check(gone["done"] == true, || gone.to_string())?;
        self.sh(&format!("lvremove -q -y {GROUP}/{lv} >&2"))?;
        Ok(())
    }

    /// The host gets another name, and its own name again.
    fn renamed(&self) -> Result<()> {
        for (old, new) in [("storage1", "rack1"), ("rack1", "storage1")] {
            let renamed = self.mooring(&format!("host rename {old} {new}"))?;
            check(renamed["name"] == new, || renamed.to_string())?;
            self.up_soon()?;
            self.mooring(&format!("host show {new}"))?;
        }
        Ok(())
    }

    /// A volume of the agent's alone is granted and revoked by hand, in the name of the cluster.
    fn by_hand(&self, id: &str) -> Result<()> {
        let shown = self.sh("mooring --json agent show")?;
        let shown: Value = serde_json::from_str(&shown).context("parse the answer of `agent show`")?;
        let to_agent = format!("mooring --agent {AGENT} --cluster {} --json", text(&shown, "cluster_id")?);
        self.rows(&to_agent, id, BY_HAND)?;
        self.rows(&format!("timeout 30 {to_agent}"), id, ENDLESS)
    }

    /// A volume from the snapshot; the volume returns to it and gets another type; all are deleted.
    fn reverted(&mut self) -> Result<()> {
        let made = self.mooring("volume create copy --snapshot one --timeout 120")?;
        check(made["done"] == true, || made.to_string())?;
        self.mooring("volume revert verbs --to one --timeout 120")?;
        for name in ["verbs", "copy"] {
            let shown = self.mooring(&format!("volume show {name}"))?;
            check(shown["status"] == "available", || shown.to_string())?;
            self.holds(&format!("/dev/{GROUP}/mooring-{}", text(&shown, "id")?), "before")?;
        }
        self.mooring("type create sole --spec provisioning:type=thin")?;
        self.mooring("volume retype verbs sole --timeout 240")?;
        let shown = self.mooring("volume show verbs")?;
        check(shown["type"] == "sole", || shown.to_string())?;
        for words in ["snapshot delete one", "volume delete copy", "volume delete verbs"] {
            self.mooring(&format!("{words} --timeout 240"))?;
        }
        self.evidence.shows(
            "inside of the units' sandboxes: a volume from a snapshot, a revert and a retype; snapshot and volumes are deleted",
        );
        Ok(())
    }

    /// An LV becomes a volume, and is an LV again with its content.
    fn taken_over(&mut self) -> Result<()> {
        self.sh(&format!("lvcreate -q -y -Wn -L 1G -n theirs {GROUP} >&2"))?;
        self.put(&format!("/dev/{GROUP}/theirs"), HELD)?;
        let listed = self.mooring("volume manageable --host storage1")?;
        let path = format!("{GROUP}/theirs");
        let is_it = |lv: &&Value| lv["manageable"] == true && lv["lv"] == path.as_str();
        let found = listed["lvs"].as_array().map_or(0, |lvs| lvs.iter().filter(is_it).count());
        check(found == 1, || listed.to_string())?;
        let taken = self.mooring(&format!("volume manage {path} --host storage1 --timeout 120"))?;
        check(taken["done"] == true, || taken.to_string())?;
        let gone = self.mooring("volume unmanage theirs --timeout 120")?;
        let lv = text(&gone, "lv")?;
        let lv = lv.rsplit('/').next().unwrap_or(lv);
        self.holds(&format!("/dev/{GROUP}/{lv}"), HELD)?;
        self.sh(&format!("lvremove -q -y {GROUP}/{lv} >&2"))?;
        self.evidence.shows(
            "inside of the units' sandboxes: an LV becomes a volume, and an LV again with its content",
        );
        Ok(())
    }
}
