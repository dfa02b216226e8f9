//! Volume groups that are sick. Those of somebody else (exported, damaged, without a disk, of
//! another host, shared) cost the agent's groups nothing. A listed one that loses a disk, or is
//! exported or shared, is named, costs itself alone, and is used again once it is mended.
//!
//! What must never happen here: a group called sick that is not; LVM's own answer about each is the
//! witness. A restart of the agent: it is the same one from the beginning to the end.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use crate::evidence::{Evidence, check, wait_for};
use crate::site::{GROUP, Programs, Site, agent_config};

/// The second group that is listed in the agent's configuration.
const OTHER: &str = "vg1";
/// Disks of the groups beside [`GROUP`]: parts of one disk, mapped by the device mapper. The last
/// two are [`OTHER`]'s.
const PARTS: [&str; 8] = ["exported", "damaged", "half1", "half2", "alien", "shared", "one", "two"];
/// Sectors of each part.
const SECTORS: usize = 524_288;
const HALF_MINUTE: Duration = Duration::from_secs(30);
/// Adds to the text of a group's metadata what makes the group one that hosts share by lvmlockd.
const SHARED: &str =
    r#"sed -e '/"RESIZEABLE"/a lock_type = "sanlock"' -e '/"RESIZEABLE"/a lock_args = "1.0.0:lvmlock"'"#;
/// LVM's own word for such a group.
const IS_SHARED: &str = "lock type sanlock";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let mut options = RigOptions::standard(0).named("sick-groups");
    if let Some(storage) = options.vms.first_mut() {
        storage.disks.push(4 << 30);
    }
    let site = Site::up(options, programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let mut acts = Acts { site, evidence: Evidence::default(), made: 0 };
    acts.groups()?;
    let config = format!(
        "{}wipe = \"none\"\n[[groups]]\nname = \"{OTHER}\"\nwipe = \"none\"\n",
        agent_config("resync_seconds = 3")
    );
    let agent = site.start_agent_by(&config)?;
    let result = acts.all(&agent);
    if result.is_err() {
        eprintln!("--- agent:\n{}", agent.stderr_so_far());
    }
    result
}

struct Acts<'a> {
    site: &'a Site,
    evidence: Evidence,
    /// Number of volumes that were made and deleted.
    made: u32,
}

/// The line of the device mapper's table for a part.
fn table(disk: &str, part: usize) -> String {
    format!("0 {SECTORS} linear {disk} {}", 2048 + part * SECTORS)
}

impl Acts<'_> {
    fn all(&mut self, agent: &Running) -> Result<()> {
        let made = ["volume", "create", "kept", "--size", "16MiB", "--group", OTHER];
        let made = self.site.json(&made)?;
        let device = made["volume"]["device"].as_str().with_context(|| format!("no device: {made}"))?;
        self.storage(&format!("dd if=/dev/urandom of={device} bs=1M count=16 oflag=direct 2>/dev/null"))?;
        let held = self.sum(device)?;
        let well = wait_for("the agent to know both pools", HALF_MINUTE, || {
            let told = self.told()?;
            Ok(told["pools"].as_array().is_some_and(|pools| pools.len() == 2).then_some(told))
        })?;
        check(self.troubles()?.is_empty(), || format!("the control: before anything is sick: {well}"))?;
        self.works(GROUP)?;
        self.works(OTHER)?;

        self.of_somebody_else(&well)?;
        self.without_a_disk(&well)?;
        self.is_exported(&well)?;
        self.is_shared(&well)?;

        // "Ready" may be the answer of before; the resync after the import activates the LV.
        wait_for("the device of the imported volume", HALF_MINUTE, || {
            let there = self.site.storage()?.sh(&format!("test -b {device}"))?;
            Ok(there.status.success().then_some(()))
        })?;
        let holds = self.sum(device)?;
        check(holds == held, || format!("the volume in {OTHER} held {held}, and holds {holds}"))?;
        check(agent.is_running(), || "the agent has ended meanwhile".to_owned())?;
        self.taken_away()?;
        agent.kill()
    }

    fn storage(&self, script: &str) -> Result<String> {
        Ok(self.site.storage()?.sh(script)?.ok()?.stdout)
    }

    /// The sum of all bytes of a device.
    fn sum(&self, device: &str) -> Result<String> {
        self.storage(&format!("dd if={device} bs=1M iflag=direct 2>/dev/null | md5sum"))
    }

    fn disk(&self) -> Result<String> {
        self.site.storage()?.data_disks().pop().context("a disk for more groups")
    }

    /// Makes all groups, each of them well. New LVs of [`OTHER`] lie on its first disk.
    fn groups(&self) -> Result<()> {
        let disk = self.disk()?;
        for (part, name) in PARTS.into_iter().enumerate() {
            self.storage(&format!("echo '{}' | dmsetup create {name}", table(&disk, part)))?;
        }
        self.storage(&format!(
            "udevadm settle; vgcreate -q {OTHER} /dev/mapper/one /dev/mapper/two >&2; pvchange -q -x n /dev/mapper/two >&2; \
             vgcreate -q exported /dev/mapper/exported >&2; vgcreate -q damaged /dev/mapper/damaged >&2; \
             vgcreate -q half /dev/mapper/half1 /dev/mapper/half2 >&2; vgcreate -q shared /dev/mapper/shared >&2; \
             for group in exported damaged half shared; do lvcreate -q -y -Wn -Zn -an -n data -L 8M $group >&2; done"
        ))
        .map(drop)
        .context("make the groups")
    }

    /// Makes a group a shared one. The metadata of before stay in a file.
    fn share(&self, group: &str) -> Result<()> {
        self.storage(&format!(
            "vgcfgbackup -q -f /run/{group}.own {group} >&2; {SHARED} /run/{group}.own > /run/{group}.shared; \
             vgcfgrestore -q -y -f /run/{group}.shared {group} >&2"
        ))
        .map(drop)
        .with_context(|| format!("make {group} a shared group"))
    }

    /// The agent's word on each pool and on itself. LVM may be too slow for an answer here: that is
    /// left out, and what the agent has from its resyncs stands.
    fn told(&self) -> Result<Value> {
        let shown = self.site.json(&["agent", "show"])?;
        let but = |list: &Value, key: &str, word: &str| -> Vec<Value> {
            list.as_array().into_iter().flatten().filter(|one| one[key] != word).cloned().collect()
        };
        let of = |health: &Value| but(&health["reasons"], "code", "lvm_silent");
        let pools = shown["pools"].as_array().with_context(|| format!("no pools: {shown}"))?;
        let pools: Vec<_> = pools.iter().map(|pool| (pool["name"].clone(), of(&pool["health"]))).collect();
        let (reasons, problems) = (of(&shown["health"]), but(&shown["problems"], "object", "LVM"));
        Ok(serde_json::json!({ "pools": pools, "reasons": reasons, "problems": problems }))
    }

    /// The agent's words on groups and on LVM: the code, the object and the text of each.
    fn troubles(&self) -> Result<Vec<[String; 3]>> {
        let told = self.told()?;
        let reasons = told["reasons"].as_array().with_context(|| format!("no reasons: {told}"))?;
        let word = |reason: &Value, key: &str| reason[key].as_str().unwrap_or_default().to_owned();
        let all = reasons.iter().map(|one| [word(one, "code"), word(one, "object"), word(one, "text")]);
        Ok(all.filter(|[code, ..]| code.starts_with("group_") || code.starts_with("lvm_")).collect())
    }

    /// Makes a volume in this group and deletes it.
    fn works(&mut self, group: &str) -> Result<()> {
        let name = self.makes(group)?;
        let deleted = self.site.json(&["volume", "delete", &name])?;
        check(deleted["done"] == true, || format!("its deletion: {deleted}"))
    }

    /// Makes a volume in this group. Returns its name.
    fn makes(&mut self, group: &str) -> Result<String> {
        self.made += 1;
        let name = format!("made{}", self.made);
        let made = self.site.json(&["volume", "create", &name, "--size", "16MiB", "--group", group])?;
        let device = made["volume"]["device"].as_str().unwrap_or_default();
        check(made["done"] == true && device.starts_with(&format!("/dev/{group}/")), || {
            format!("a volume in {group}: {made}")
        })?;
        Ok(name)
    }

    /// Waits until the agent says what it said when all was well.
    fn until_well(&self, well: &Value) -> Result<()> {
        wait_for("the agent to call all well", HALF_MINUTE, || {
            let now = self.told()?;
            check(now == *well, || format!("it says {now}, and said {well}")).map(Some)
        })?;
        wait_for("the volume in the mended group to be ready", HALF_MINUTE, || {
            let shown = self.site.json(&["volume", "show", "kept"])?;
            let ready = shown["phase"] == "ready" && shown["problems"] == serde_json::json!([]);
            check(ready, || format!("the volume: {shown}")).map(Some)
        })
    }

    /// Waits until the second group is named, and checks that nothing else is. Returns the reason.
    fn until_named(&self, word: &str) -> Result<String> {
        let object = format!("volume group {OTHER}");
        wait_for("the agent to name the group", HALF_MINUTE, || {
            let troubles = self.troubles()?;
            let [[code, of, text]] = troubles.as_slice() else {
                check(troubles.is_empty(), || format!("more than one group is named: {troubles:?}"))?;
                return Ok(None);
            };
            check(code == "group_unusable" && *of == object && text.contains(word), || {
                format!("not group_unusable of {object} with {word:?}: {troubles:?}")
            })?;
            Ok(Some(text.clone()))
        })
    }

    /// Five groups that the agent does not list become sick.
    fn of_somebody_else(&mut self, well: &Value) -> Result<()> {
        // The metadata's text begins behind the label and the header of its area.
        self.storage(
            "vgexport -q exported >&2; \
             dd if=/dev/urandom of=/dev/mapper/damaged bs=512 seek=9 count=2000 oflag=direct conv=notrunc 2>/dev/null; \
             dmsetup remove --retry half2; vgcreate -q --systemid another-host alien /dev/mapper/alien >&2",
        )
        .context("make the groups sick")?;
        self.share("shared")?;
        let storage = self.site.storage()?;
        for (group, at, letter) in [("exported", 2, 'x'), ("half", 3, 'p')] {
            let out = storage.sh(&format!("vgs --noheadings -o vg_attr {group} | tail -n 1"))?;
            let is = out.line().chars().nth(at) == Some(letter);
            check(is, || format!("the control: {group} is not sick: {} {}", out.stdout, out.stderr))?;
        }
        for (group, says) in [("damaged", ""), ("alien", ""), ("shared", IS_SHARED)] {
            let out = storage.sh(&format!("vgs {group}"))?;
            check(out.status.code() == Some(5) && out.stderr.contains(says), || {
                format!("the control: LVM reads {group}: {} {}", out.stdout, out.stderr)
            })?;
        }
        let all = storage.sh("LC_ALL=C lvs")?;
        let complaints = all.stderr.trim().lines().count();
        check(complaints > 0, || {
            format!("the control: LVM has nothing to say of all groups: {}", all.stdout)
        })?;
        let now = self.told()?;
        check(now == *well, || {
            format!("beside sick groups of somebody else it says {now}, and said {well}")
        })?;
        self.works(GROUP)?;
        self.works(OTHER)?;
        check(self.told()? == *well, || "the agent says something else after that".to_owned())?;
        self.evidence.shows(format!(
            "groups of somebody else that are exported, damaged, without a disk, of another host and shared (lvs of all: {}, \
             {complaints} complaints): pools and problems are as before, volumes are made and deleted in both groups",
            all.status
        ));
        Ok(())
    }

    /// A listed group loses a disk, and gets it back.
    fn without_a_disk(&mut self, well: &Value) -> Result<()> {
        self.storage("dmsetup remove --retry two")?;
        let said = self.until_named("missing")?;
        self.works(GROUP)?;
        let disk = self.disk()?;
        let part = PARTS.iter().position(|name| *name == "two").context("the disk's part")?;
        self.storage(&format!("echo '{}' | dmsetup create two; udevadm settle", table(&disk, part)))?;
        self.until_well(well)?;
        self.works(OTHER)?;
        self.evidence.shows(format!(
            "a listed group without one of its disks is group_unusable ({said}), and the other one works; with its disk again it works \
             without a restart"
        ));
        Ok(())
    }

    /// A listed group is exported, and imported again. The agent activates its LV whenever it finds
    /// it inactive, so this is tried until nobody was in between.
    fn is_exported(&mut self, well: &Value) -> Result<()> {
        self.storage(&format!(
            "tries=0; until vgchange -q -an {OTHER} >&2 && vgexport -q {OTHER} >&2; do \
             tries=$((tries + 1)); [ $tries -lt 20 ] || exit 1; done"
        ))
        .context("export the group")?;
        let said = self.until_named("exported")?;
        self.works(GROUP)?;
        let left = self
            .storage(&format!("lvs --noheadings -o lv_size --units m {GROUP} | grep -c ' 16.00m' || true"))?;
        check(left.trim() == "0", || format!("LVs of 16 MiB in {GROUP}: {left}"))?;
        let kept = self.site.json(&["volume", "show", "kept"])?;
        let lost = kept["phase"] == "gone" || kept["problems"].to_string().contains("is gone");
        check(!lost, || format!("a volume is called lost whose group cannot be read: {kept}"))?;
        self.storage(&format!("vgimport -q {OTHER} >&2"))?;
        self.until_well(well)?;
        self.works(OTHER)?;
        self.evidence.shows(format!(
            "a listed group that is exported is group_unusable ({said}), nothing is concluded of its volume, and volumes are made and \
             deleted in the other group; imported, the volume is active and ready again without a restart"
        ));
        Ok(())
    }

    /// A listed group becomes a shared one, and is this host's alone again.
    fn is_shared(&mut self, well: &Value) -> Result<()> {
        self.share(OTHER)?;
        let said = self.until_named(IS_SHARED)?;
        self.works(GROUP)?;
        self.storage(&format!("vgcfgrestore -q -y -f /run/{OTHER}.own {OTHER} >&2"))?;
        self.until_well(well)?;
        self.works(OTHER)?;
        self.evidence.shows(format!(
            "a listed group that hosts share by lvmlockd is group_unusable ({said}), and the other one works; with its metadata of \
             before it works without a restart"
        ));
        Ok(())
    }

    fn taken_away(&mut self) -> Result<()> {
        self.site.json(&["volume", "delete", "kept"])?;
        // Beside it LVM writes messages among the names that it lists.
        self.storage("dmsetup remove --retry damaged")?;
        self.site.nothing_left()?;
        let left = self.storage(&format!("lvs --noheadings -o lv_name {OTHER}"))?;
        check(left.trim().is_empty(), || format!("left behind in {OTHER}: {left}"))?;
        self.evidence
            .shows("all volumes are deleted, and the one of the sick group held its data: nothing is left");
        Ok(())
    }
}
