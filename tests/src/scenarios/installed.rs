//! Mooring installed from its packages, under systemd itself: one machine that is storage node,
//! host and controller, beside the daemons of Debian's packages. The units' sandboxes allow what
//! the daemons need for every verb, including an image's reader in its own sandbox. No daemon
//! leaves a core, and sealing keys come from a credential of systemd. Restarts by systemd drop no
//! session, nor does an upgrade, a removal or a purge of the packages. Turned off while a volume is
//! zeroed, the machine waits for a mark of the progress.
//!
//! What must never happen here: a step that docs/install.md does not have; a file
//! that the packages do not bring.

mod rows;
mod secrets;
mod units;
mod verbs;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::options::workspace_root;
use mooring_rig::{Kernel, RigOptions, Running, Vm, VmSpec};
use serde_json::Value;

use crate::control::attachment_of;
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::packages::{self, Compression, Recipe, VARIANTS};
use crate::pki;
use crate::site::{GROUP, Programs, Site, TARGET, goes_on, going, number, progress};

/// The daemons, in the order in which docs/install.md starts them.
const DAEMONS: &str = "mooring-sessiond mooring-agent mooring-controller";

/// Versions of the packages: the first is installed, then upgraded to the second.
const VERSIONS: [&str; 2] = ["0.0.1", "0.0.2"];

/// Options of a writer that leaves the emulated processor to dpkg.
const PACED: [&str; 4] = ["--threads", "2", "--every-ms", "20"];

/// Largest exposure of each unit in `systemd-analyze security`, of 10. A test of the units has the
/// same numbers.
const EXPOSURE_MAX: [(&str, f64); 3] =
    [("mooring-controller", 1.2), ("mooring-agent", 4.5), ("mooring-sessiond", 3.0)];

/// The certificate that the controller shows to agents, and its key, without their suffixes.
const CLIENT: &str = "/etc/mooring/controller/client";

/// Saved exports, as targetcli leaves them.
const OF_TARGETCLI: &str =
    r#"{"storage_objects": [], "targets": [{"fabric": "iscsi", "wwn": "iqn.2003-01.org.example:x"}]}"#;

/// The controller's commands of docs/install.md. The output of `init` is put where the other
/// commands find it.
pub(super) const INIT: &str = "set -e; umask 077; mooring-controller init > /root/init; systemctl start mooring-controller; \
    sed -n 's/^the admin.s token, shown this once: //p' /root/init > /root/token; \
    sed -n 's/.*\\(MOORING_CONTROLLER=[^ ]*\\).*/export \\1/p' /root/init > /root/env; \
    echo export MOORING_CA=/etc/mooring/authority.crt >> /root/env; \
    mooring-controller init | grep -c 'not changed'; stat -c '%U %a' /etc/mooring/authority.key /etc/mooring/controller";

const CHECK: &str = "mooring-agent --check; modprobe iscsi_tcp && mooring-sessiond --check; \
    setpriv --reuid mooring-controller --regid mooring-controller --init-groups mooring-controller --check";

/// Changes a row of the agent's store and leaves a valid database file, as faulty memory or a
/// failing disk may do.
const DAMAGE: &str = "python3 -c \"import sqlite3; db = sqlite3.connect('/var/lib/mooring/mooring-agent.db'); \
    assert db.execute('UPDATE specs SET counter = counter + 1 WHERE kind = ? AND tombstone = 0', ('export',)).rowcount == 1; db.commit()\"";

/// Makes the certificates of all hosts due, in the controller's database.
const DUE: &str = "python3 -c \"import sqlite3, time; db = sqlite3.connect('/var/lib/mooring-controller/mooring-controller.db'); \
    assert db.execute('UPDATE enrolments SET expires_us = ?', (int((time.time() + 86400) * 1000000),)).rowcount == 1; db.commit()\"";

/// Lists the specs in this folder's store.
fn specs_in(folder: &str) -> String {
    format!(
        "python3 -c \"import sqlite3; db = sqlite3.connect('{folder}/mooring-agent.db'); \
         print(db.execute('SELECT volume_id, kind FROM specs WHERE tombstone = 0 ORDER BY 1, 2').fetchall())\""
    )
}

/// Lists the objects of the kernel's target and LVM.
fn built() -> String {
    format!("find {TARGET}/iscsi {TARGET}/core | sort; lvs --noheadings -o lv_uuid,lv_tags {GROUP}")
}

/// Ends a writer that must not have seen an error. Returns its counters in words.
fn went_on(writer: Running) -> Result<String> {
    goes_on(&writer)?;
    let seen = progress(&writer)?;
    check(number(&seen, "errors")? == 0, || format!("the writer saw an error: {seen}"))?;
    drop((writer.kill()?, writer.wait()?));
    Ok(format!(
        "{} writes, no error, longest gap {} ms",
        number(&seen, "done")?,
        number(&seen, "longest_gap_ms")?
    ))
}

/// The image folder.
const IMAGES: &str = "/var/lib/mooring/images";

pub(super) fn run(programs: &Programs) -> Result<()> {
    on(programs, Kernel::Stable)
}

pub(super) fn next(programs: &Programs) -> Result<()> {
    on(programs, Kernel::Next)
}

fn on(programs: &Programs, kernel: Kernel) -> Result<()> {
    let mut options = RigOptions::standard(0)
        .named(if kernel == Kernel::Next { "installed-trixie" } else { "installed" })
        .kernel(kernel);
    if let Some(storage) = options.vms.first_mut() {
        *storage = VmSpec { systemd: true, memory_mib: 1536, ..VmSpec::storage() };
    }
    let agent = programs.path("mooring-agent")?;
    let folder = agent.parent().context("the folder of the programs")?;
    // On the same file system, because cargo-deb gets links to the programs.
    let work = tempfile::tempdir_in(folder).context("make a folder for the packages")?;
    let debs = versions(folder, work.path(), &VERSIONS)?;
    let site = Site::up(options, programs)?;
    let result = Machine::new(&site).and_then(|mut machine| {
        let played = machine.play(&debs);
        if played.is_err() {
            let log = machine
                .sh("journalctl --no-pager -o cat -n 200 -u 'mooring-*'; systemctl --failed --no-pager");
            eprintln!("--- the journal:\n{}", log.unwrap_or_else(|error| format!("{error:#}")));
        }
        played
    });
    site.end(result)
}

/// The packages of each version, in the order of [`VARIANTS`].
pub(super) fn versions(programs: &Path, work: &Path, versions: &[&str]) -> Result<Vec<Vec<PathBuf>>> {
    let put_together = &work.join("made");
    let first = versions.first().context("a version of the packages")?;
    let tree = &workspace_root();
    let recipe =
        Recipe { tree, programs, work: put_together, version: first, compression: Compression::Fast };
    let made = packages::make(&recipe)?;
    let of = |version: &str| {
        let folder = work.join(version);
        std::fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let again = |(deb, (name, _)): (&PathBuf, &(&str, &str))| {
            let to = folder.join(format!("{name}.deb"));
            packages::repack(deb, version, &to).map(|()| to)
        };
        made.iter().zip(&VARIANTS).map(again).collect()
    };
    versions.iter().map(|version| of(version)).collect()
}

struct Machine<'a> {
    vm: &'a Vm,
    evidence: Evidence,
}

impl<'a> Machine<'a> {
    fn new(site: &'a Site) -> Result<Self> {
        Ok(Self { vm: site.storage()?, evidence: Evidence::default() })
    }

    fn sh(&self, script: &str) -> Result<String> {
        let out = self.vm.command(["sh", "-euc", script]).timeout(Duration::from_mins(10)).run()?.ok()?;
        Ok(out.stdout)
    }

    /// Runs `mooring --json` as the pages do.
    fn mooring(&self, words: &str) -> Result<Value> {
        let out = self.sh(&format!(". /root/env; mooring --token-file /root/token --json {words}"))?;
        serde_json::from_str(&out).with_context(|| format!("`mooring {words}` answered: {out}"))
    }

    /// Returns `true` if the controller answers and reaches the agent.
    fn is_up(&self) -> bool {
        self.mooring("host list").is_ok_and(|hosts| hosts["hosts"][0]["up"] == true)
    }

    fn up_soon(&self) -> Result<()> {
        wait_for("the controller to reach the agent", Duration::from_mins(1), || {
            Ok(self.is_up().then_some(()))
        })
    }

    fn play(&mut self, debs: &[Vec<PathBuf>]) -> Result<()> {
        self.install(debs)?;
        self.configure()?;
        self.start()?;
        self.exposure()?;
        self.cores()?;
        self.renewal()?;
        self.revocation()?;
        self.import()?;
        self.verbs()?;
        self.inside()?;
        let live = attachment_of(self.mooring("attach data --host storage1 --timeout 240")?);
        let (id, path) = (text(&live, "id")?.to_owned(), text(&live, "device_path")?.to_owned());
        self.sh(&format!("cmp -n 16777216 {IMAGES}/disk.raw {path}"))?;
        self.named(&live, &path)?;
        self.status_lines()?;
        self.units()?;
        self.sealing(&id)?;
        self.certificates(&path)?;
        self.evidence.shows(
            "attached natively to the machine itself: the disk reads as the image that it was made from",
        );
        self.restarts(&id, &path)?;
        self.upgrade(&id, &path)?;
        self.purge(&id, &path)?;
        self.damaged(&id, &path)?;
        self.quiet()?;
        self.leave()?;
        self.turn_off()
    }

    /// Runs dpkg with the packages of one version. Returns its output.
    fn dpkg(&self, version: &str) -> Result<String> {
        let files: Vec<_> = VARIANTS.iter().map(|(name, _)| format!("/root/{version}/{name}.deb")).collect();
        self.sh(&format!("dpkg --force-unsafe-io -i {} 2>&1", files.join(" ")))
    }

    /// Installs on a machine that has exports of targetcli, and no configuration yet.
    fn install(&mut self, debs: &[Vec<PathBuf>]) -> Result<()> {
        for (version, debs) in VERSIONS.iter().zip(debs) {
            self.sh(&format!("mkdir -p /root/{version} /etc/rtslib-fb-target"))?;
            for ((name, _), deb) in VARIANTS.iter().zip(debs) {
                self.vm.push(deb, &format!("/root/{version}/{name}.deb"), 0o644)?;
            }
        }
        // The VMs' image has it from its making: with it no package starts a daemon.
        self.sh("rm -f /usr/sbin/policy-rc.d")?;
        let saved = "/etc/rtslib-fb-target/saveconfig.json";
        self.vm.write(saved, OF_TARGETCLI.as_bytes(), 0o600)?;
        let said = self.dpkg(VERSIONS[0])?;
        for words in ["Run: mooring-agent join", "Run: mooring-controller init", "adopt --plan"] {
            check(said.contains(words), || format!("the installation does not say {words:?}: {said}"))?;
        }
        let kept = self.sh(&format!("cat {saved}; rm {saved}"))?;
        check(kept == OF_TARGETCLI, || format!("what targetcli has is now: {kept}"))?;
        let units = self.sh(&format!(
            "systemctl is-enabled {DAEMONS} || true; systemctl show -p ActiveState -p ConditionResult {DAEMONS}"
        ))?;
        let states: Vec<_> = units.split_whitespace().collect();
        let waits = ["disabled", "enabled", "enabled"];
        let idle = states.iter().filter(|state| **state == "ActiveState=inactive").count();
        check(states.starts_with(&waits) && idle == 3, || format!("not configured, the units are: {units}"))
    }

    /// The controller makes its files, and the machine joins it.
    fn configure(&mut self) -> Result<()> {
        let made = self.sh(INIT)?;
        let user = "mooring-controller";
        let want = format!("8\n{user} 600\n{user} 700\n");
        check(made == want, || format!("what init made: {made}"))?;
        let ip = self.vm.ip(0);
        let token = self.mooring("host token storage1")?;
        let command = text(&token, "command")?;
        let wrong = command.replace(text(&token, "token")?, "nobodys-token");
        let how = format!("--address {ip}:7710 --portal {ip} --group {GROUP} --no-start");
        let refused = self.vm.sh(&format!("{wrong} {how} 2>&1"))?;
        check(!refused.status.success() && refused.stdout.contains("the join token is not known"), || {
            format!("a wrong token: {}", refused.stdout)
        })?;
        let said = self.sh(&format!("{command} {how}"))?;
        check(said.contains("joined as storage1 (storage, host)"), || said.clone())?;
        let used = self.vm.sh(&format!("{command} {how} 2>&1"))?;
        check(!used.status.success() && used.stdout.contains("was used already"), || {
            format!("a token that was used: {}", used.stdout)
        })?;
        // Changes that an operator makes in the file that the join has written.
        self.sh(&format!(
            "sed -i 's|^# images_dir = .*|images_dir = \"{IMAGES}\"|; s|^# thin_pool = .*|thin_pool = \"2GiB\"|; s|^reserve = .*|reserve = \"64MiB\"|' /etc/mooring/agent.toml"
        ))?;
        let checked = self.sh(CHECK)?;
        check(checked.lines().count() >= 3, || format!("the checks say: {checked}"))?;
        self.evidence.shows(format!(
            "a controller by init, the machine by its token: {}",
            said.lines().next().unwrap_or_default()
        ));
        Ok(())
    }

    fn start(&mut self) -> Result<()> {
        self.sh(&format!(
            "mkdir -m 0700 -p {IMAGES}; cd {IMAGES}; dd if=/dev/urandom of=disk.raw bs=1M count=16 2>/dev/null; \
             qemu-img convert -q -c -f raw -O qcow2 disk.raw disk.qcow2; systemctl enable --now {DAEMONS}"
        ))?;
        self.up_soon()?;
        let state =
            self.sh("systemctl is-system-running || true; systemctl --failed --no-legend --plain || true")?;
        let beside =
            self.sh("systemctl list-units --no-legend --plain --type=service --state=running | wc -l")?;
        let mut lines = state.lines();
        let (said, failed) = (lines.next().unwrap_or_default(), lines.collect::<Vec<_>>().join("; "));
        check(!failed.contains("mooring"), || format!("units that failed: {failed}"))?;
        self.evidence.shows(format!(
            "installed from the packages and started by the install page's commands: three daemons active under systemd ({said}), {} services in all",
            beside.trim()
        ));
        Ok(())
    }

    /// No unit exceeds its exposure limit, as this machine's systemd counts.
    fn exposure(&mut self) -> Result<()> {
        let mut levels = Vec::new();
        for (unit, most) in EXPOSURE_MAX {
            let said = self
                .sh(&format!("systemd-analyze security --no-pager {unit} | grep 'Overall exposure level'"))?;
            let level =
                said.rsplit_once(": ").and_then(|(_, level)| level.split(' ').next()?.parse::<f64>().ok());
            let level = level.with_context(|| format!("what systemd-analyze says: {said}"))?;
            check(level <= most, || format!("{unit} is open to {level}, and at most {most} is allowed"))?;
            levels.push(format!("{unit} {level}"));
        }
        self.evidence.shows(format!("exposure by systemd-analyze security: {}", levels.join(", ")));
        Ok(())
    }

    /// The controller's unit lets it renew its certificates, and the agent's unit takes the new
    /// one.
    fn renewal(&mut self) -> Result<()> {
        let pem = |path: &str| self.vm.read(path).and_then(|pem| Ok(String::from_utf8(pem)?));
        let aged = pki::due(&pem("/etc/mooring/authority.key")?, &pem(&format!("{CLIENT}.key"))?)?;
        let certificate = format!("{CLIENT}.crt");
        self.vm.write(&certificate, aged.as_bytes(), 0o644)?;
        self.sh(&format!("chown mooring-controller: {certificate}; systemctl restart mooring-controller"))?;
        self.up_soon()?;
        let said = self.sh(&format!(
            "journalctl --no-pager -o cat -u mooring-controller | grep -c 'the certificate was renewed' || true; \
             stat -c '%U %a' {certificate}"
        ))?;
        check(said == "1\nmooring-controller 644\n" && pem(&certificate)? != aged, || {
            format!("a certificate of the controller that was due is not renewed: {said}")
        })?;
        self.evidence.shows(
            "the controller renews a certificate of its own that is due, and the agent lets it in with the new one",
        );
        Ok(())
    }

    /// The certificate that this machine shows at a port.
    fn shown(&self, port: u16) -> Result<String> {
        let ip = self.vm.ip(0);
        self.sh(&format!("python3 -c \"import ssl; print(ssl.get_server_certificate(('{ip}', {port})))\""))
    }

    /// The end of this machine's certificate, as the controller has it.
    fn expires(&self) -> Result<String> {
        let hosts = self.mooring("host list")?;
        Ok(text(&hosts["hosts"][0]["enrolment"], "expires_at")?.to_owned())
    }

    /// Waits until this machine shows another certificate at the port than before.
    fn shows_another(&self, port: u16, before: &str) -> Result<String> {
        wait_for("another certificate to be shown", Duration::from_mins(1), || {
            let now = self.shown(port)?;
            Ok((now != before).then_some(now))
        })
    }

    /// While a host writes, the agent's certificate is renewed once it is due, and the authority is
    /// rotated: both daemons show certificates of it. No unit is restarted.
    fn certificates(&mut self, path: &str) -> Result<()> {
        let started = format!("systemctl show -p InvocationID -p NRestarts {DAEMONS}");
        let before = self.sh(&started)?;
        let disk = Disk::new(self.vm, path.to_owned());
        let writer = disk.write_stamps(&["--threads", "2"])?;
        going(&writer)?;
        let (first, api, ends) = (self.shown(7710)?, self.shown(8776)?, self.expires()?);
        self.sh(DUE)?;
        let began = Instant::now();
        let mut agent = self.shows_another(7710, &first)?;
        let took = began.elapsed().as_secs_f64();
        let kept = self.sh("cat /etc/mooring/agent.pem")?;
        check(kept.contains(agent.trim()), || "the agent shows what it has not kept".to_owned())?;
        let until = self.expires()?;
        check(self.is_up() && until > ends, || format!("the controller has {until}, and had {ends}"))?;
        let began = Instant::now();
        for step in ["begin", "switch", "finish"] {
            let command = format!("mooring-controller rotate-authority {step} 2>&1");
            wait_for(&format!("the step {step}"), Duration::from_mins(1), || {
                let done = self.vm.sh(&command)?;
                let waits = done.stdout.contains("to wait for");
                check(done.status.success() || waits, || format!("{step}: {}", done.stdout))?;
                Ok(done.status.success().then_some(()))
            })?;
            agent = self.shows_another(7710, &agent)?;
        }
        check(self.shown(8776)? != api, || "the API shows the certificate of the old authority".to_owned())?;
        let trusted = self.sh("cat /etc/mooring/agent-ca.crt; stat -c '%U %a' /etc/mooring/authority.key")?;
        let one = trusted.matches("BEGIN CERTIFICATE").count() == 1;
        check(one && trusted.ends_with("mooring-controller 600\n"), || {
            format!("after the rotation: {trusted}")
        })?;
        let rotated = began.elapsed().as_secs_f64();
        self.up_soon()?;
        let after = self.sh(&started)?;
        check(after == before, || format!("a unit was started again:\n{before}\n{after}"))?;
        self.evidence.shows(format!(
            "a certificate that is due is renewed after {took:.1} s, the authority is rotated in {rotated:.1} s, no unit is started again: {}",
            went_on(writer)?
        ));
        Ok(())
    }

    /// The agent's unit lets it rewrite its key and certificate, as a renewal does: when revoked,
    /// it forgets them. Then it joins again.
    fn revocation(&mut self) -> Result<()> {
        self.mooring("host revoke storage1")?;
        wait_for("the agent to forget its key", Duration::from_secs(30), || {
            Ok((self.sh("stat -c '%s %a' /etc/mooring/agent.pem")? == "0 600\n").then_some(()))
        })?;
        check(!self.is_up(), || "a host that was revoked is still up".to_owned())?;
        let token = self.mooring("host token storage1")?;
        let said = self.sh(text(&token, "command")?)?;
        check(said.contains("agent.toml is not changed; new are its certificate and key"), || said.clone())?;
        self.up_soon()?;
        self.evidence.shows("revoked, the agent forgets its key; with a new token it joins again");
        Ok(())
    }

    /// The agent imports an image in its unit's sandbox, from `qemu-nbd` in a sandbox of its own.
    fn import(&mut self) -> Result<()> {
        self.mooring("type create thin --multiattach --spec provisioning:type=thin")?;
        self.mooring(
            "volume import data --image disk.qcow2 --format qcow2 --size 1GiB --host storage1 --type thin --timeout 240",
        )?;
        self.mooring("volume export data --image out.raw --format raw --timeout 240")?;
        self.sh(&format!("cmp -n 16777216 {IMAGES}/disk.raw {IMAGES}/out.raw"))?;
        self.evidence
            .shows("a volume from a qcow2 and to a raw file, inside of the unit's sandbox: byte for byte");
        Ok(())
    }

    /// Makes an LVM member inside an LV, as a host does inside its volume. LVM, mdadm, btrfs and
    /// systemd act on a device by themselves once udev has found its type (`ID_FS_TYPE`). udev
    /// finds it in an LV that is not ours, and looks neither into an LV with one of our names nor
    /// into a volume.
    fn inside(&mut self) -> Result<()> {
        let ours = "mooring-00000000-0000-4000-8000-000000000000";
        let mut seen = Vec::new();
        for lv in [ours, "plain"] {
            let node = format!("/dev/{GROUP}/{lv}");
            self.sh(&format!(
                "lvcreate -q -y -L 64M -n {lv} {GROUP}; pvcreate -q -y --config devices/scan_lvs=1 {node}; \
                 udevadm trigger --settle --action=change {node}"
            ))?;
            seen.push(self.sh(&format!("udevadm info --query=property {node}"))?);
        }
        let volumes = self.sh(&format!(
            "for node in /dev/{GROUP}/mooring-*; do udevadm info --query=property $node; done"
        ))?;
        let [named, plain] = seen.as_slice() else { bail!("two LVs: {seen:?}") };
        check(plain.contains("ID_FS_TYPE=LVM2_member"), || {
            format!("the control: udev saw nothing: {plain}")
        })?;
        for known in [named, &volumes] {
            check(!known.contains("ID_FS_") && known.contains("DM_NOSCAN=1"), || {
                format!("udev has looked into an LV of ours: {known}")
            })?;
        }
        self.sh(&format!("lvremove -q -y {GROUP}/plain {GROUP}/{ours}"))?;
        self.evidence.shows(
            "an LVM member inside of an LV: udev finds it in one that is not ours (the control), and does not look into ours",
        );
        Ok(())
    }

    /// udev names the attached disk after its volume, and no other disk that it knows.
    fn named(&mut self, live: &Value, path: &str) -> Result<()> {
        let name = format!("/dev/disk/by-id/mooring-{}", text(live, "volume_id")?);
        wait_for("udev's name of the disk", Duration::from_secs(30), || {
            let same = format!("test \"$(readlink -f {name})\" = \"$(readlink -f {path})\"");
            Ok(self.sh(&same).is_ok().then_some(()))
        })?;
        let names = self.sh("ls -d /dev/disk/by-id/mooring-*")?;
        check(names.trim() == name, || format!("udev's names: {names}"))?;
        self.evidence.shows(format!("udev names the attached disk {name}"));
        Ok(())
    }

    /// `systemctl status` shows each daemon's status line.
    fn status_lines(&mut self) -> Result<()> {
        let wanted = ["1 session, 1 logged in", "1 export, 1 attached", "1 of 1 host up"];
        let lines = wait_for("the status lines of the daemons", Duration::from_secs(30), || {
            let shown = self.sh(&format!("systemctl show -p StatusText --value {DAEMONS}"))?;
            let lines: Vec<_> = shown.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
            let all = lines.len() == wanted.len()
                && lines.iter().zip(wanted).all(|(line, wanted)| line.starts_with(wanted));
            Ok(all.then_some(lines))
        })?;
        self.evidence.shows(format!("the daemons' status lines: {}", lines.join("; ")));
        Ok(())
    }

    /// systemd restarts, kills and stops the daemons while a host writes.
    fn restarts(&mut self, id: &str, path: &str) -> Result<()> {
        let disk = Disk::new(self.vm, path.to_owned());
        let writer = disk.write_stamps(&["--threads", "2"])?;
        going(&writer)?;
        let mut restarts = Vec::new();
        for daemon in DAEMONS.split(' ') {
            let began = Instant::now();
            self.sh(&format!("systemctl restart {daemon}"))?;
            restarts.push(format!("{daemon} in {:.1} s", began.elapsed().as_secs_f64()));
        }
        self.sh(&format!("systemctl kill -s KILL {DAEMONS}"))?;
        wait_for("systemd to have started all three again", Duration::from_mins(2), || {
            let shown = self.sh(&format!("systemctl show -p NRestarts -p ActiveState {DAEMONS}"))?;
            let up =
                ["NRestarts=1", "ActiveState=active"].iter().all(|said| shown.matches(said).count() == 3);
            Ok((up && self.is_up()).then_some(()))
        })?;
        self.ready_soon(id)?;
        self.sh(&format!("systemctl stop {DAEMONS}"))?;
        goes_on(&writer).context("without any daemon")?;
        self.sh(&format!("systemctl start {DAEMONS}"))?;
        self.evidence.shows(format!(
            "restarted ({}), killed with -9 and stopped by systemd: {}",
            restarts.join(", "),
            went_on(writer)?
        ));
        Ok(())
    }

    /// Upgrades to another version while a host writes: all three daemons are new, configured and
    /// attached as before.
    fn upgrade(&mut self, id: &str, path: &str) -> Result<()> {
        let started = format!(
            "systemctl show -p InvocationID --value {DAEMONS}; sha256sum /etc/mooring/*.toml; \
             dpkg-query -W -f '${{Version}} ' mooring mooring-agent mooring-controller"
        );
        let disk = Disk::new(self.vm, path.to_owned());
        let writer = disk.write_stamps(&PACED)?;
        going(&writer)?;
        let before = self.sh(&started)?;
        let began = Instant::now();
        self.dpkg(VERSIONS[1])?;
        let took = began.elapsed();
        self.up_soon()?;
        self.ready_soon(id)?;
        let after = self.sh(&started)?;
        let new = before.lines().zip(after.lines()).filter(|(before, after)| before != after).count();
        check(new == 4 && after.matches(VERSIONS[1]).count() == 3, || {
            format!("three daemons and the versions should differ, and no file:\n{before}\n{after}")
        })?;
        self.evidence.shows(format!("upgraded by dpkg in {:.1} s: {}", took.as_secs_f64(), went_on(writer)?));
        Ok(())
    }

    /// Removes and purges the packages while a host writes, and installs them again with the
    /// operator's files: kernel and LVM are unchanged.
    fn purge(&mut self, id: &str, path: &str) -> Result<()> {
        let built = built();
        let disk = Disk::new(self.vm, path.to_owned());
        let writer = disk.write_stamps(&PACED)?;
        going(&writer)?;
        let before = self.sh(&built)?;
        let names = "mooring-controller mooring-agent mooring";
        let said = self.sh(&format!("cp -a /etc/mooring /root/kept; dpkg -r {names} 2>&1"))?;
        check(said.contains("1 iSCSI targets and 1 attached disks"), || {
            format!("it does not say what goes on in the kernel: {said}")
        })?;
        self.sh("test -s /etc/mooring/agent.toml; test ! -e /usr/bin/mooring-agent")?;
        goes_on(&writer).context("with the packages removed")?;
        let said = self.sh(&format!("dpkg -P {names} 2>&1"))?;
        for words in ["kept: /var/lib/mooring (", "kept: /var/lib/mooring-controller ("] {
            check(said.contains(words), || format!("the purge does not say {words:?}: {said}"))?;
        }
        let left = self.sh(
            "ls /etc/mooring/*.toml 2>/dev/null || true; find /etc/systemd /usr/lib/systemd /var/lib/systemd -name 'mooring*'; \
             pgrep -a '^mooring-(agent|sessiond|control)' || true",
        )?;
        check(left.trim().is_empty(), || format!("left behind by the purge: {left}"))?;
        let after = self.sh(&built)?;
        check(after == before, || format!("before it was\n{before}\nand is\n{after}"))?;
        goes_on(&writer).context("with the packages purged")?;
        self.sh("mkdir -p /etc/mooring; cp -a /root/kept/. /etc/mooring/")?;
        self.dpkg(VERSIONS[1])?;
        self.sh("systemctl enable --now mooring-sessiond")?;
        self.up_soon()?;
        self.ready_soon(id)?;
        self.evidence.shows(format!("removed, purged and installed again: {}", went_on(writer)?));
        Ok(())
    }

    fn ready_soon(&self, id: &str) -> Result<()> {
        wait_for("the attachment to be shown with its session", Duration::from_secs(30), || {
            let shown = attachment_of(self.mooring(&format!("attachment show {id}"))?);
            Ok((shown["session"] == true && shown["host_phase"] == "ready").then_some(()))
        })
    }

    /// A row of the agent's store was damaged, while a host writes: the agent does not start, and
    /// names the row and the remedy. With the store moved aside, it is rebuilt from tags and by the
    /// controller.
    fn damaged(&mut self, id: &str, path: &str) -> Result<()> {
        let disk = Disk::new(self.vm, path.to_owned());
        let writer = disk.write_stamps(&["--threads", "2"])?;
        going(&writer)?;
        let built = built();
        let before = self.sh(&built)?;
        self.sh(&format!(
            "systemctl stop mooring-agent; {DAMAGE}; systemctl start --no-block mooring-agent"
        ))?;
        let said = wait_for("the agent to refuse its store", Duration::from_secs(30), || {
            let said =
                self.sh("journalctl --no-pager -o cat -u mooring-agent | grep -m 1 'is damaged' || true")?;
            Ok((!said.trim().is_empty()).then_some(said))
        })?;
        for words in
            ["mooring-agent.db is damaged (in the table specs, the row of volume_id", "-wal and -shm aside"]
        {
            check(said.contains(words), || format!("the agent says: {said}"))?;
        }
        let untouched = self.sh(&built)?;
        check(untouched == before, || format!("before it was\n{before}\nand is\n{untouched}"))?;
        self.sh(
            "systemctl stop mooring-agent; mkdir -m 0700 /root/aside; mv /var/lib/mooring/mooring-agent.db* /root/aside; \
             systemctl start mooring-agent",
        )?;
        self.up_soon()?;
        let specified = self.sh(&specs_in("/root/aside"))?;
        wait_for("the controller to have sent all specs", Duration::from_mins(1), || {
            Ok((self.sh(&specs_in("/var/lib/mooring"))? == specified).then_some(()))
        })?;
        self.ready_soon(id)?;
        let after = self.sh(&built)?;
        check(after == before, || format!("before it was\n{before}\nand is\n{after}"))?;
        self.evidence.shows(format!(
            "a damaged row of the agent's store is refused and named; moved aside, the store is built anew, target and LVM as they \
             were: {}",
            went_on(writer)?
        ));
        Ok(())
    }

    /// No sandbox refused anything.
    fn quiet(&mut self) -> Result<()> {
        let refused = self.sh(
            "journalctl --no-pager -o cat -u 'mooring-*' | grep -iE 'not permitted|permission denied|read-only file|EPERM|EROFS' || true",
        )?;
        check(refused.trim().is_empty(), || format!("the units' sandboxes refused: {refused}"))
    }

    fn leave(&mut self) -> Result<()> {
        self.up_soon()?;
        self.mooring("detach data --host storage1 --timeout 240")?;
        self.mooring("volume delete data --timeout 120")?;
        let left = self.sh(&format!(
            "find {TARGET}/iscsi -maxdepth 1 -name 'iqn*'; lvs --noheadings -o lv_name {GROUP}; ls /run/mooring/attachments"
        ))?;
        check(left.trim() == "mooring-pool", || format!("left behind: {left}"))?;
        self.evidence
            .shows("detached and deleted: of it nothing is left in the target, in LVM and on the host");
        Ok(())
    }
}
