//! Wrong requests and broken machines on a real kernel. Each gets a clear error and the right exit
//! code, and leaves nothing. (Faults that a fake can show are in the agent's own tests, which are
//! faster.)

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::{Output, RigOptions};

use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::{Credentials, Host};
use crate::site::{AGENT, BIN, GROUP, Programs, Site, TARGET, agent_config, goes_on, going};

const PORTAL: &str = "10.10.0.10:3260";
/// The file system of the state folder, which becomes read-only.
const FROZEN: &str = "/srv/mooring";
/// Words in the message: the state, the file system, and the remedy.
const FROZEN_WORDS: [&str; 3] = ["read-only", FROZEN, "remount,rw"];
/// An initiator that never logs in.
const OTHER: &str = "iqn.2026-01.lab:other";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("faults"), programs)?;
    let result = Faults { site: &site, evidence: Evidence::default() }.scenes();
    site.end(result)
}

struct Faults<'a> {
    site: &'a Site,
    evidence: Evidence,
}

impl Faults<'_> {
    fn scenes(mut self) -> Result<()> {
        self.before_the_agent()?;
        self.missing_modules()?;
        let agent = self.site.start_agent()?;
        self.two_agents()?;
        self.requests()?;
        self.foreign_objects()?;
        self.portals()?;
        self.wrong_secret()?;
        let log = agent.stderr_so_far();
        check(log.contains("refused") && !log.contains("horse"), || {
            format!("a secret in the log, or no log: {log}")
        })?;
        self.evidence.shows("the agent's log names what was refused and no secret");
        agent.kill()?;
        drop(agent.wait()?);
        self.drift()?;
        self.full_disk()?;
        self.read_only_disk()?;
        self.nothing_left()
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
        self.evidence.shows(format!("{what}: exit {code}: {}", said.lines().next().unwrap_or_default()));
        Ok(())
    }

    fn agent_once(&self, config: &str) -> Result<Output> {
        let storage = self.site.storage()?;
        storage.write("/run/try.toml", config.as_bytes(), 0o600)?;
        storage
            .command([&format!("{BIN}/mooring-agent"), "--config", "/run/try.toml"])
            .timeout(Duration::from_mins(2))
            .run()
    }

    fn before_the_agent(&mut self) -> Result<()> {
        let none = self.site.mooring(&["volume", "list"])?;
        self.refused("no agent", &none, 6, &["cannot reach the agent"])?;
        let typo = self.agent_once(&agent_config("").replace("portals", "portal"))?;
        self.refused("a key that is not known", &typo, 1, &["line 4", "portal"])?;
        let plain = self.agent_once(&agent_config("").replace(AGENT, "http://10.10.0.10:7710"))?;
        self.refused("plain text on a network", &plain, 1, &["insecure"])
    }

    /// An agent on a kernel without LIO says what to load, and continues by itself once it is
    /// loaded.
    fn missing_modules(&mut self) -> Result<()> {
        let storage = self.site.storage()?;
        storage.sh("modprobe -r iscsi_target_mod target_core_iblock target_core_mod")?.ok()?;
        let agent = self.site.start_agent_with("resync_seconds = 2")?;
        let shown = self.site.json(&["agent", "show"])?;
        let text = shown["problems"].to_string();
        check(shown["multiattach"] == false && text.contains("modprobe"), || {
            format!("without LIO: {shown}")
        })?;
        self.site.json(&["volume", "create", "waits", "--size", "8MiB"])?;
        let grant = [
            "--timeout",
            "10",
            "export",
            "grant",
            "waits",
            "--initiator",
            "iqn.2026-01.lab:a",
            "--mode",
            "rw",
        ];
        let out = self.site.mooring(&grant)?;
        let said = format!("{}{}", out.stdout, out.stderr);
        check(out.status.code() == Some(5) && said.contains("modprobe"), || {
            format!("a grant without LIO: {:?} {said}", out.status)
        })?;
        storage.sh("modprobe -a target_core_mod target_core_iblock iscsi_target_mod")?.ok()?;
        wait_for("the grant to come true by itself", Duration::from_secs(30), || {
            let shown = self.site.json(&["export", "show", "waits"])?;
            Ok((shown["export"]["in_force"] == true).then_some(()))
        })?;
        self.evidence.shows(
            "without LIO's modules the agent says which to load; loaded, the grant comes true by itself",
        );
        self.remove("waits", "iqn.2026-01.lab:a")?;
        agent.kill()?;
        drop(agent.wait()?);
        Ok(())
    }

    fn two_agents(&mut self) -> Result<()> {
        let second = self.agent_once(&agent_config("").replace(AGENT, "unix:/run/second.sock"))?;
        self.refused("a second agent on one state folder", &second, 1, &["one agent"])
    }

    fn requests(&mut self) -> Result<()> {
        let id = "11111111-2222-4333-8444-555555555555";
        let cases: &[(&str, &[&str], i32, &[&str])] = &[
            ("size 0", &["volume", "create", "a", "--size", "0"], 2, &["smallest volume"]),
            ("negative size", &["volume", "create", "a", "--size", "-5GiB"], 2, &["not a size"]),
            ("beyond the pool", &["volume", "create", "a", "--size", "1TiB"], 4, &["free"]),
            (
                "a group that is not configured",
                &["volume", "create", "a", "--size", "8MiB", "--group", "vg9"],
                4,
                &["vg9"],
            ),
            ("a malformed id", &["volume", "show", "12345-zz", "--json"], 3, &["12345-zz"]),
            ("an unknown volume", &["volume", "show", id], 3, &[id]),
            (
                "a malformed initiator",
                &["export", "grant", id, "--initiator", "host1", "--mode", "rw"],
                2,
                &["iSCSI name"],
            ),
            (
                "a grant of an unknown volume",
                &["export", "grant", id, "--initiator", "iqn.2026-01.lab:a", "--mode", "rw"],
                3,
                &[id],
            ),
            (
                "a mode that is none",
                &["export", "grant", id, "--initiator", "iqn.2026-01.lab:a", "--mode", "rx"],
                2,
                &["rw or ro"],
            ),
        ];
        for (what, args, code, words) in cases {
            let out = self.site.mooring(args)?;
            self.refused(what, &out, *code, words)?;
        }
        self.site.json(&["volume", "create", "one", "--size", "8MiB", "--id", id])?;
        // The last 7 digits of an id are lost in the NAA (lio.md, e).
        let twin =
            ["volume", "create", "two", "--size", "8MiB", "--id", "11111111-2222-4333-8444-555550000000"];
        let out = self.site.mooring(&twin)?;
        self.refused("a NAA that another volume has", &out, 4, &["NAA", id])?;
        let other =
            ["--cluster", "99999999-0000-4000-8000-000000000000", "volume", "create", "x", "--size", "8MiB"];
        let out = self.site.mooring(&other)?;
        self.refused("another cluster", &out, 4, &["belongs to cluster"])?;
        let out = self.site.mooring(&["export", "revoke", "one", "--initiator", "iqn.2026-01.lab:never"])?;
        check(out.status.success(), || format!("revoking what was never granted: {}", out.stderr))?;
        let lvs = self.site.storage()?.sh(&format!("lvs --noheadings -o lv_name {GROUP} | wc -l"))?.ok()?;
        check(lvs.line() == "1", || format!("{} LVs after refused creates", lvs.line()))?;
        self.evidence.shows("refused creates left nothing: 1 LV");
        Ok(())
    }

    /// A target under a volume's name, made by hand.
    fn foreign_objects(&mut self) -> Result<()> {
        let id = "22222222-2222-4333-8444-555555555555";
        self.site.json(&["volume", "create", "three", "--size", "8MiB", "--id", id])?;
        let target = format!("{TARGET}/iscsi/iqn.2026-11.dev.mooring:{id}/tpgt_1");
        let core = format!("{TARGET}/core/iblock_7/theirs");
        let storage = self.site.storage()?;
        storage
            .sh(&format!(
                "echo 0 8192 linear $(blkid -t TYPE=LVM2_member -o device | head -1) 4000000 | dmsetup create theirs; \
                 mkdir -p {core}; echo udev_path=/dev/mapper/theirs > {core}/control; echo 1 > {core}/enable; \
                 mkdir -p {target}/lun/lun_1; ln -s {core} {target}/lun/lun_1/by_hand"
            ))?
            .ok()
            .context("make a foreign target")?;
        let tree = |what: &str| -> Result<String> {
            Ok(storage
                .sh(&format!("cd {TARGET}; find iscsi/*{id} core/iblock_7 | sort"))?
                .ok()
                .context(what.to_owned())?
                .stdout)
        };
        let before = tree("before")?;
        let grant = [
            "--timeout",
            "15",
            "export",
            "grant",
            "three",
            "--initiator",
            "iqn.2026-01.lab:a",
            "--mode",
            "rw",
        ];
        let out = self.site.mooring(&grant)?;
        let said = format!("{}{}", out.stdout, out.stderr);
        check(!out.status.success() && said.contains("theirs"), || {
            format!("a foreign LUN under our name: {:?} {said}", out.status)
        })?;
        check(tree("after")? == before, || "the foreign target was touched".to_owned())?;
        self.evidence.shows(format!(
            "a LUN of someone else under our name: exit {:?}, nothing of it touched",
            out.status.code().unwrap_or(-1)
        ));
        storage
            .sh(&format!(
                "rm {target}/lun/lun_1/by_hand; rmdir {target}/lun/lun_1 {target} $(dirname {target}) {core} $(dirname {core}); \
                 dmsetup remove theirs"
            ))?
            .ok()?;
        wait_for("the grant to come true by itself", Duration::from_secs(90), || {
            let shown = self.site.json(&["export", "show", "three"])?;
            Ok((shown["export"]["in_force"] == true).then_some(()))
        })?;
        self.evidence.shows("the foreign target removed by hand: the grant comes true by itself");
        self.remove("three", "iqn.2026-01.lab:a")
    }

    /// Someone removes our tag from an LV, and the agent restores it. No resync comes in this act:
    /// LVM's write to the disk is what triggers it.
    fn drift(&mut self) -> Result<()> {
        let agent = self.site.start_agent_with("resync_seconds = 3600")?;
        let id = "33333333-2222-4333-8444-555555555555";
        self.site.json(&["volume", "create", "four", "--size", "8MiB", "--id", id])?;
        // By then the events of the creation itself are handled.
        std::thread::sleep(Duration::from_secs(8));
        let lv = format!("{GROUP}/mooring-{id}");
        self.site.storage()?.sh(&format!("lvchange -q --deltag mooring {lv}"))?.ok()?;
        let began = Instant::now();
        let back = wait_for("the tag to be given back", Duration::from_mins(1), || {
            let tags = self.site.storage()?.sh(&format!("lvs --noheadings -o lv_tags {lv}"))?.ok()?.stdout;
            Ok(tags.split(',').any(|tag| tag.trim() == "mooring").then(|| began.elapsed()))
        })?;
        check(agent.stderr_so_far().contains("the tag mooring was removed"), || {
            format!("the agent does not say that the tag was gone: {}", agent.stderr_so_far())
        })?;
        wait_for("the volume to be ready again", Duration::from_secs(30), || {
            Ok((self.site.json(&["volume", "show", "four"])?["phase"] == "ready").then_some(()))
        })?;
        self.evidence.shows(format!(
            "a tag taken from an LV by hand is said to be gone and given back after {:.1} s, without a resync",
            back.as_secs_f64()
        ));
        self.two_segments()?;
        agent.kill()?;
        drop(agent.wait()?);
        self.by_hand(id)
    }

    /// Someone opens a read-only LUN by hand. Resyncs come every 3 s here, for the deletion at the
    /// end; the log shows that the watch saw it.
    fn by_hand(&mut self, id: &str) -> Result<()> {
        let agent = self.site.start_agent_with("resync_seconds = 3")?;
        let initiator = "iqn.2026-01.lab:a";
        self.site.json(&["export", "grant", "four", "--initiator", initiator, "--mode", "ro"])?;
        let protect = format!(
            "{TARGET}/iscsi/iqn.2026-11.dev.mooring:{id}/tpgt_1/acls/{initiator}/lun_1/write_protect"
        );
        let is = |wanted: &str| -> Result<bool> {
            Ok(self.site.storage()?.sh(&format!("cat {protect}"))?.ok()?.stdout.trim() == wanted)
        };
        check(is("1")?, || format!("{protect} is not 1"))?;
        let said = "somebody else has changed the export";
        for _ in 0..5 {
            std::thread::sleep(Duration::from_secs(8));
            check(!agent.stderr_so_far().contains(said), || "nobody has changed anything yet".to_owned())?;
            let began = Instant::now();
            self.site.storage()?.sh(&format!("echo 0 > {protect}"))?.ok()?;
            wait_for("the LUN to be shut again", Duration::from_secs(30), || Ok(is("1")?.then_some(())))?;
            if agent.stderr_so_far().contains(said) {
                self.evidence.shows(format!(
                    "write protection taken off by hand is back after {:.2} s: the kernel has told",
                    began.elapsed().as_secs_f64()
                ));
                // The deletion's wipe must progress although a resync comes within each of its
                // looks at LVM.
                self.remove("four", initiator)?;
                agent.kill()?;
                drop(agent.wait()?);
                return Ok(());
            }
        }
        bail!("only resyncs have put it right: {}", agent.stderr_so_far())
    }

    /// LVM lists an LV in two pieces twice. For the agent it is one volume: it grows, and it is
    /// deleted.
    fn two_segments(&mut self) -> Result<()> {
        for name in ["five", "six"] {
            self.site.json(&["volume", "create", name, "--size", "8MiB"])?;
        }
        let grown = self.site.json(&["volume", "extend", "five", "--size", "16MiB"])?;
        let shown = self.site.json(&["volume", "show", "five"])?;
        let id = shown["id"].as_str().context("id")?;
        let rows = format!("lvs --noheadings -o lv_name,segtype {GROUP}/mooring-{id} | wc -l");
        let rows = self.site.storage()?.sh(&rows)?.ok()?.stdout;
        check(rows.trim() == "2" && shown["phase"] == "ready" && shown["size_bytes"] == 16 << 20, || {
            format!("{} rows of lvs; {grown} {shown}", rows.trim())
        })?;
        for name in ["five", "six"] {
            self.site.json(&["volume", "delete", name])?;
        }
        self.evidence.shows("a volume in two pieces, which LVM lists twice, grows and is deleted as one");
        Ok(())
    }

    fn remove(&self, volume: &str, initiator: &str) -> Result<()> {
        self.site.json(&["export", "revoke", volume, "--initiator", initiator])?;
        self.site.json(&["volume", "delete", volume])?;
        Ok(())
    }

    fn portals(&mut self) -> Result<()> {
        let grant =
            ["export", "grant", "one", "--initiator", "iqn.2026-01.lab:a", "--mode", "rw", "--portal"];
        let with = |portal: &'static str| [grant.as_slice(), &[portal, "--timeout", "15"]].concat();
        let out = self.site.mooring(&with("10.99.0.1:3260"))?;
        self.refused("a portal on an address that is not here", &out, 4, &["10.99.0.1", "10.10.0.10"])?;
        let storage = self.site.storage()?;
        let listen = "import socket,time; s=socket.socket(); s.bind((\"10.10.0.10\",3299)); s.listen(); print(1,flush=True); time.sleep(600)";
        let squatter = storage.command(["python3", "-c", listen]).timeout(Duration::from_mins(10)).spawn()?;
        if !squatter.wait_stdout("1", Duration::from_mins(2)) {
            bail!("the squatter does not listen: {}", squatter.stderr_so_far());
        }
        let out = self.site.mooring(&with("10.10.0.10:3299"))?;
        let said = format!("{}{}", out.stdout, out.stderr);
        check(!out.status.success() && said.contains("the port is taken"), || {
            format!("a port in use: {:?} {said}", out.status)
        })?;
        self.evidence.shows(format!(
            "a portal's port in use by another program: exit {}",
            out.status.code().unwrap_or(-1)
        ));
        squatter.kill()?;
        drop(squatter.wait()?);
        wait_for("the portal to open by itself", Duration::from_secs(90), || {
            let shown = self.site.json(&["export", "show", "one"])?;
            Ok((shown["export"]["in_force"] == true).then_some(()))
        })?;
        self.evidence.shows("the other program ended: the portal opens by itself");
        self.remove("one", "iqn.2026-01.lab:a")
    }

    fn wrong_secret(&mut self) -> Result<()> {
        let host = Host::start(self.site.rig.vm("host1")?)?;
        let storage = self.site.storage()?;
        self.site.json(&["volume", "create", "chap", "--size", "8MiB"])?;
        storage.write("/run/secret", b"correct-horse-1", 0o600)?;
        let grant =
            ["export", "grant", "chap", "--initiator", &host.iqn, "--mode", "rw", "--chap-user", "host1"];
        let granted = self.site.json(&[grant.as_slice(), &["--chap-secret-file", "/run/secret"]].concat())?;
        let target = granted["target"].as_str().context("target")?.to_owned();
        let wrong = Credentials { user: "host1", secret: "wrong-horse-99", mutual: None };
        for (what, chap) in [("a wrong CHAP secret", Some(wrong)), ("no CHAP at all", None)] {
            let out = host.login(&target, PORTAL, chap, 10)?;
            check(out.status.code() == Some(24), || {
                format!("{what}: iscsiadm {:?}: {}", out.status, out.stderr)
            })?;
            host.vm.sh(&format!("iscsiadm -m node -T {target} -o delete"))?.ok()?;
            self.evidence.shows(format!("{what}: the login is refused (iscsiadm exit 24)"));
        }
        let right = Credentials { user: "host1", secret: "correct-horse-1", mutual: None };
        host.login(&target, PORTAL, Some(right), 10)?.ok()?;
        let live = self.site.mooring(&["export", "revoke", "chap", "--initiator", &host.iqn])?;
        self.refused("revoking a live session without --force", &live, 4, &["logged in", "10.10.0.11"])?;
        let busy = self.site.mooring(&["volume", "delete", "chap"])?;
        self.refused("deleting a volume that is granted", &busy, 4, &["revoke"])?;
        host.logout(&target)?;
        self.remove("chap", &host.iqn)
    }

    /// The store's file system is full: the change is refused, and existing things stay.
    fn full_disk(&mut self) -> Result<()> {
        let storage = self.site.storage()?;
        storage
            .sh("mkdir -p /run/small; mount -t tmpfs -o size=600k none /run/small; mkdir /run/small/state")?
            .ok()?;
        let config = agent_config("").replace("/srv/mooring/state", "/run/small/state");
        storage.write("/run/small.toml", config.as_bytes(), 0o600)?;
        let agent = storage
            .command([&format!("{BIN}/mooring-agent"), "--config", "/run/small.toml"])
            .timeout(Duration::from_mins(10))
            .spawn()?;
        wait_for("the agent to answer", Duration::from_secs(30), || {
            Ok(self.site.mooring(&["agent", "show"])?.status.success().then_some(()))
        })?;
        self.site.json(&["volume", "create", "kept", "--size", "8MiB"])?;
        storage.sh("dd if=/dev/zero of=/run/small/fill bs=4k 2>/dev/null || true")?.ok()?;
        let mut refused = None;
        for n in 0..20 {
            let name = format!("more{n}");
            let create = ["volume", "create", &name, "--size", "4MiB", "--timeout", "240"];
            let out = self.site.mooring(&create)?;
            if !out.status.success() {
                refused = Some(out);
                break;
            }
        }
        let out = refused.context("twenty creates went through on a full disk")?;
        self.refused("the store's disk is full", &out, 4, &["full"])?;
        storage.sh("rm /run/small/fill")?.ok()?;
        let list = self.site.json(&["volume", "list"])?;
        let volumes = list["volumes"].as_array().context("volumes")?;
        check(volumes.iter().any(|volume| volume["name"] == "kept"), || {
            format!("what was acknowledged is gone: {list}")
        })?;
        for volume in volumes {
            self.site.json(&["volume", "delete", volume["id"].as_str().context("id")?])?;
        }
        self.evidence.shows("space freed: what was acknowledged is there, and the agent goes on");
        agent.kill()?;
        drop(agent.wait()?);
        Ok(())
    }

    /// The store's file system becomes read-only under the running agent, as the kernel does after
    /// an error. Changes are refused and touch nothing, sessions and exports continue, and
    /// everything is normal once it is writable again.
    fn read_only_disk(&mut self) -> Result<()> {
        let site = self.site;
        let agent = site.start_agent()?;
        let host = Host::start(site.rig.vm("host1")?)?;
        site.json(&["volume", "create", "kept", "--size", "8MiB"])?;
        let words =
            |name: &str| ["export", "grant", "kept", "--initiator", name, "--mode", "rw"].map(str::to_owned);
        let grant = |name: &str| site.mooring(&words(name).each_ref().map(String::as_str));
        grant(&host.iqn)?.ok()?;
        let shown = site.json(&["export", "show", "kept"])?;
        let target =
            shown["export"]["target"].as_str().with_context(|| format!("target: {shown}"))?.to_owned();
        host.login(&target, PORTAL, None, 10)?.ok()?;
        let writer = host.disk(&target, PORTAL)?.write_stamps(&[])?;
        going(&writer)?;

        self.freeze()?;
        let before = self.tree()?;
        self.refused_while_frozen(&grant(OTHER)?, &host)?;
        check(self.tree()? == before, || "a refused change has touched the kernel's exports".to_owned())?;
        goes_on(&writer).context("the host's writes while the store is read-only")?;
        self.evidence.shows("the export is as it was, the host writes on, and the agent says what is wrong");

        agent.kill()?;
        drop(agent.wait()?);
        let once = self.agent_once(&agent_config(""))?;
        self.refused("an agent that is started on it", &once, 1, &FROZEN_WORDS)?;
        check(self.tree()? == before, || "the agent that did not start has touched exports".to_owned())?;
        goes_on(&writer).context("the host's writes without an agent")?;

        self.thaw()?;
        let agent = site.start_agent()?;
        self.freeze()?;
        self.refused("read-only once more: a grant", &grant(OTHER)?, 4, &FROZEN_WORDS)?;
        self.thaw()?;
        // This repeats the command; it is also the control of everything that was not touched.
        grant(OTHER)?.ok()?;
        check(self.tree()? != before, || "a grant does not show in the tree".to_owned())?;
        goes_on(&writer).context("the host's writes at the end")?;
        self.evidence
            .shows("writable again: the same command is taken by the same agent, under the same session");
        writer.kill()?;
        drop(writer.wait()?);
        host.logout(&target)?;
        site.json(&["export", "revoke", "kept", "--initiator", OTHER])?;
        self.remove("kept", &host.iqn)?;
        agent.kill()?;
        drop(agent.wait()?);
        Ok(())
    }

    /// `grant` is the answer to one more request.
    fn refused_while_frozen(&mut self, grant: &Output, host: &Host<'_>) -> Result<()> {
        let site = self.site;
        self.refused("the store's file system is read-only: a grant", grant, 4, &FROZEN_WORDS)?;
        let revoke = ["export", "revoke", "kept", "--initiator", &host.iqn, "--force"];
        self.refused(
            "a revoke by force, which would not be kept",
            &site.mooring(&revoke)?,
            4,
            &FROZEN_WORDS,
        )?;
        let create = ["volume", "create", "more", "--size", "8MiB"];
        self.refused("a new volume", &site.mooring(&create)?, 4, &FROZEN_WORDS)?;
        let shown = site.json(&["export", "show", "kept"])?;
        check(shown["export"]["in_force"] == true, || format!("the export: {shown}"))?;
        wait_for("the agent to say it of itself", Duration::from_secs(30), || {
            let text = site.json(&["agent", "show"])?.to_string();
            Ok(FROZEN_WORDS.iter().all(|word| text.contains(word)).then_some(()))
        })
    }

    /// The kernel makes every file system of a disk read-only, even with open files. Only one
    /// exists: a VM's other writes are in memory.
    fn freeze(&self) -> Result<()> {
        let storage = self.site.storage()?;
        storage.sh("sync; echo u > /proc/sysrq-trigger")?.ok()?;
        wait_for("the file system to be read-only", Duration::from_secs(30), || {
            let out = storage.sh(&format!("awk '$2 == \"{FROZEN}\" {{ print $4 }}' /proc/mounts"))?.ok()?;
            Ok(out.line().split(',').any(|flag| flag == "ro").then_some(()))
        })
    }

    fn thaw(&self) -> Result<()> {
        self.site
            .storage()?
            .sh(&format!("mount -o remount,rw {FROZEN}"))?
            .ok()
            .context("make it writable again")?;
        Ok(())
    }

    /// All names of exports in the kernel, and the targets of links.
    fn tree(&self) -> Result<String> {
        let find = format!("cd {TARGET}; find iscsi core -printf '%p %l\\n' | grep -v /statistics/ | sort");
        Ok(self.site.storage()?.sh(&find)?.ok().context("the tree")?.stdout)
    }

    fn nothing_left(&mut self) -> Result<()> {
        self.site.nothing_left()?;
        self.evidence.shows("nothing is left in configfs and LVM");
        Ok(())
    }
}
