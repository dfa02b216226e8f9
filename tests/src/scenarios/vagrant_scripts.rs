//! The scripts of `vagrant/` in VMs of the rig, in the order of its Vagrantfile, and once more: a
//! controller that is also a storage node, and hosts that attach, each under systemd and installed
//! from packages. Then the guided tour, and the search for the secrets of all of that.
//!
//! What must never happen here: a step that `vagrant up` does not have, except those that stand for
//! Vagrant itself.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::options::workspace_root;
use mooring_rig::{Output, Rig, Running, Vm};
use serde_json::Value;

use super::installed::versions;
use super::packaged;
use crate::control::attachment_of;
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::packages::VARIANTS;
use crate::search::Search;
use crate::site::{GROUP, Programs, TARGET, goes_on, going, number, progress};

/// Time limit for each script: apt is slow where the processor is emulated.
const LIMIT: Duration = Duration::from_mins(10);

/// Makes the VM like Vagrant's box: packages start their daemons, and no disk makes dpkg wait.
const BOX: &str = "rm -f /usr/sbin/policy-rc.d; mkdir -p /etc/dpkg/dpkg.cfg.d; echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/rig";

/// Prints state that a second run must not change: files, certificates and keys, daemons, packages.
const STATE: &str = "find /root/mooring.env /etc/mooring -type f -exec sha256sum {} + | sort; \
    systemctl show -p InvocationID -p ActiveState mooring-sessiond mooring-agent mooring-controller; \
    dpkg-query -W -f '${Package} ${Version} ${Status}\\n' 'mooring*'; vgs --noheadings -o vg_uuid";

/// Removes what a remade machine does not have; its packages stay.
const ANEW: &str = "systemctl stop mooring-agent mooring-sessiond; rm -r /etc/mooring /var/lib/mooring /root/mooring.env; \
    systemd-tmpfiles --create mooring.conf";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let agent = programs.path("mooring-agent")?;
    let folder = agent.parent().context("the folder of the programs")?;
    // On the same file system, because cargo-deb gets links to the programs.
    let work = tempfile::tempdir_in(folder).context("make a folder for the packages")?;
    let debs = versions(folder, work.path(), &["0.0.1"])?;
    let rig = Rig::up(programs.show_in(packaged::machines("vagrant-scripts", 2))?)?;
    let machines = || -> Result<Machines<'_>> {
        let (storage, host, other) = (rig.vm("storage")?, rig.vm("host1")?, rig.vm("host2")?);
        let search = Search::begin([storage, host, other])?;
        Ok(Machines { storage, host, other, evidence: Evidence::default(), search })
    };
    let played = machines().and_then(|mut machines| {
        for vm in rig.vms() {
            vm.sh(BOX)?.ok()?;
            for ((name, _), deb) in VARIANTS.iter().zip(debs.iter().flatten()) {
                vm.push(deb, &format!("/tmp/{name}.deb"), 0o644)?;
            }
        }
        machines.play()?;
        machines.no_secret_is_left()
    });
    packaged::ended(&rig, played)
}

struct Machines<'a> {
    /// The storage node, which is also the controller.
    storage: &'a Vm,
    /// The host whose root is an admin.
    host: &'a Vm,
    /// A host that comes at the end.
    other: &'a Vm,
    evidence: Evidence,
    search: Search<'a>,
}

/// Runs a script as join.rb does: it reads `input`.
fn tried(vm: &Vm, script: &str, words: &[&str], input: &str) -> Result<Output> {
    let at = format!("/tmp/mooring-{script}");
    vm.push(&workspace_root().join("vagrant").join(script), &at, 0o644)?;
    let argv = ["sh", &at].into_iter().chain(words.iter().copied());
    vm.command(argv).stdin(format!("{}\n", input.trim_end())).timeout(LIMIT).run()
}

/// Runs a script like [`tried`]; it must succeed.
fn script(vm: &Vm, script: &str, words: &[&str], input: &str) -> Result<String> {
    let out = tried(vm, script, words, input)?.ok().with_context(|| format!("{script} on {}", vm.name()))?;
    Ok(out.stdout)
}

fn sh(vm: &Vm, script: &str) -> Result<String> {
    Ok(vm.command(["sh", "-euc", script]).timeout(LIMIT).run()?.ok()?.stdout)
}

impl Machines<'_> {
    fn play(&mut self) -> Result<()> {
        let disks = self.storage.data_disks();
        let taken = disks.get(1).context("a second data disk")?;
        sh(self.storage, &format!("mkfs.ext4 -q {taken}"))?;
        self.provision().context("the first `vagrant up`")?;
        self.evidence.shows(
            "the scripts of vagrant/: packages by apt, a controller by init, a volume group on the empty disk, a storage node and a \
             host by their join lines",
        );
        let state = || -> Result<_> { Ok([sh(self.storage, STATE)?, sh(self.host, STATE)?]) };
        let before = state()?;
        self.provision().context("`vagrant provision`")?;
        let after = state()?;
        check(before == after, || format!("the scripts run again changed\n{before:?}\nto\n{after:?}"))?;
        self.evidence.shows("run again: no file, certificate, daemon or package is another one");
        self.refusals(taken)?;
        self.attach(true)?;
        self.anew()?;
        self.attach(false).context("after the host was made anew")?;
        self.tour().context("the guided tour")
    }

    /// `vagrant up`, or `vagrant provision`.
    fn provision(&mut self) -> Result<()> {
        let (first, second) = (self.storage.ip(0).to_string(), self.storage.ip(1).to_string());
        script(self.storage, "packages.sh", &["mooring-controller", "mooring-agent", "mooring"], "")?;
        let said = script(self.storage, "controller.sh", &[&first], "")?;
        check(!said.contains("token"), || format!("controller.sh prints a token: {said}"))?;
        script(self.storage, "storage.sh", &[], "")?;
        self.join(self.storage, "storage", &[&first, &first, &second])?;
        script(self.host, "packages.sh", &["mooring-agent", "mooring"], "")?;
        self.host_joins()
    }

    fn host_joins(&mut self) -> Result<()> {
        self.join(self.host, "host", &[&self.host.ip(0).to_string()])?;
        let admin = script(self.storage, "admin.sh", &[], "")?;
        script(self.host, "operator.sh", &[], &admin)?;
        Ok(())
    }

    /// Runs the provisioner of join.rb.
    fn join(&mut self, vm: &Vm, role: &str, words: &[&str]) -> Result<()> {
        let joined = vm.run(&["test", "-e", "/etc/mooring/agent.toml"])?.status.success();
        let line =
            if joined { String::new() } else { script(self.storage, "token.sh", &[vm.name(), role], "")? };
        let token = line
            .split("--token")
            .nth(1)
            .and_then(|rest| rest.trim_start_matches('=').split_whitespace().next());
        self.search.knows("join token", token.unwrap_or_default());
        script(vm, "join.sh", words, &line)?;
        script(self.storage, "up.sh", &[vm.name()], "")?;
        Ok(())
    }

    /// Scripts with wrong arguments report that, and do nothing.
    fn refusals(&mut self, taken: &str) -> Result<()> {
        sh(self.storage, &format!("vgrename -q {GROUP} aside"))?;
        refused(self.storage, "storage.sh", &[taken], "", "is not empty, and nothing is overwritten")?;
        refused(self.storage, "storage.sh", &[], "", "want one empty disk for vg0, and there are 0")?;
        sh(
            self.storage,
            &format!("vgrename -q aside {GROUP}; test \"$(blkid -o value -s TYPE {taken})\" = ext4"),
        )?;
        refused(self.host, "packages.sh", &["mooring-none"], "", "/tmp/mooring-none.deb is not there")?;
        refused(
            self.host,
            "operator.sh",
            &[],
            "export MOORING_CA=/etc/mooring/authority.crt",
            "no token came",
        )?;
        sh(self.host, "mv /etc/mooring/agent.toml /root/kept")?;
        refused(self.host, "join.sh", &["10.0.0.1"], "reboot", "this is no line of `mooring host token`")?;
        sh(self.host, "mv /root/kept /etc/mooring/agent.toml")?;
        self.evidence.shows(
            "a disk that is not empty, a package that is not there, a line or a token that is none: refused",
        );
        Ok(())
    }

    fn mooring(&mut self, words: &str) -> Result<String> {
        let said = sh(self.host, &format!(". /root/mooring.env; mooring {words} 2>&1"))?;
        self.search.heard(words, &said);
        Ok(said)
    }

    /// Runs as root on the host, with the files that operator.sh has left there.
    fn attach(&mut self, rotates: bool) -> Result<()> {
        self.mooring("volume create data --size 1GiB --timeout 240")?;
        let answer = self.mooring("--json attach data --host host1 --timeout 240")?;
        let answer = serde_json::from_str(&answer).with_context(|| format!("attach answered: {answer}"))?;
        let live = attachment_of(answer);
        let disk = Disk::new(self.host, text(&live, "device_path")?);
        let writer = disk.write_stamps(&["--threads", "2"])?;
        going(&writer)?;
        if rotates {
            self.rotate(&writer)?;
            self.audited(text(&live, "volume_id")?)?;
        }
        let seen = progress(&writer)?;
        check(number(&seen, "errors")? == 0, || format!("the writer saw an error: {seen}"))?;
        drop((writer.kill()?, writer.wait()?));
        self.collect()?;
        let stamps = disk.read_stamps()?.len();
        check(stamps > 0, || "the disk has no stamps".to_owned())?;
        self.mooring("detach data --host host1 --timeout 240")?;
        self.mooring("volume delete data --timeout 240")?;
        self.evidence.shows(format!(
            "root on the host makes a volume, attaches it natively, writes and reads {stamps} stamps, detaches and deletes it"
        ));
        Ok(())
    }

    /// The secrets in the kernel of the storage node: the initiator's, and the target's.
    fn at_target(&self) -> Result<String> {
        let acl = format!("{TARGET}/iscsi/*/tpgt_1/acls/*");
        sh(self.storage, &format!("cat {acl}/auth/password; echo; cat {acl}/auth/password_mutual"))
    }

    /// Gives new secrets under a writer: no session notices, a lost one returns with the new
    /// secret, and the old one is refused.
    fn rotate(&mut self, writer: &Running) -> Result<()> {
        let sessions = |of: &Self| sh(of.host, "ls /sys/class/iscsi_session");
        let (old, before) = (self.at_target()?, sessions(self)?);
        let said = self.mooring("volume rotate-secrets data --timeout 120")?;
        let new = self.at_target()?;
        let pairs = || old.lines().zip(new.lines()).filter(|(old, _)| !old.is_empty());
        check(pairs().count() == 2 && pairs().all(|(old, new)| old != new && !new.is_empty()), || {
            format!("both secrets should be others: {said}")
        })?;
        for line in old.lines() {
            self.search.knows("CHAP of before", line);
        }
        goes_on(writer)?;
        let relogins =
            |of: &Self| sh(of.host, "journalctl -u mooring-sessiond -o cat | grep -c 'relogin=true' || true");
        let logins = relogins(self)?;
        sh(self.host, "ss -K dport = 3260 >/dev/null")?;
        wait_for("a login by the new secret", LIMIT, || Ok((relogins(self)? != logins).then_some(())))?;
        goes_on(writer)?;
        let seen = progress(writer)?;
        check(number(&seen, "errors")? == 0, || format!("the writer saw an error: {seen}"))?;
        check(sessions(self)? == before, || "the kernel's session is another one".to_owned())?;
        wait_for("sessiond to forget the old secret", LIMIT, || {
            let kept = sh(self.host, "cat /run/mooring/sessiond/*.json")?;
            Ok(old.lines().filter(|line| !line.is_empty()).all(|line| !kept.contains(line)).then_some(()))
        })?;
        let codes = [&old, &new].map(|of| self.by_hand(of.lines().next().unwrap_or_default()));
        let [refused, taken] = codes;
        let (refused, taken) = (refused?, taken?);
        check((refused.as_str(), taken.as_str()) == ("24", "0"), || {
            format!(
                "by hand the old secret should be refused (24) and the new one taken (0): {refused}, {taken}"
            )
        })?;
        self.evidence.shows(format!(
            "secrets rotated under a writer: {} writes, 0 errors, longest gap {} ms; a session that is cut logs in by the new secret; by hand the old one is refused, the new one taken",
            number(&seen, "done")?,
            number(&seen, "longest_gap_ms")?
        ));
        Ok(())
    }

    /// Logs in by open-iscsi on the storage node under the host's name, with this secret. Returns
    /// its exit code.
    fn by_hand(&self, secret: &str) -> Result<String> {
        let portal = format!("{}:3260", self.storage.ip(0));
        // Nothing of it on a command line, because the search looks there. Only root can read the
        // record.
        let script = format!(
            r#"exec >/dev/null 2>&1
target=$(basename {TARGET}/iscsi/iqn*); acl=$(echo {TARGET}/iscsi/$target/tpgt_1/acls/*)
user=$(cat $acl/auth/userid)
umask 077; modprobe iscsi_tcp; mkdir -p /etc/iscsi /run/lock/iscsi
echo InitiatorName=$(basename $acl) > /etc/iscsi/initiatorname.iscsi
systemctl restart iscsid || pidof iscsid || iscsid
node="iscsiadm -m node -T $target -p {portal}"
$node -o new
for pair in node.session.scan=manual node.session.initial_login_retry_max=1 node.session.auth.authmethod=CHAP \
    node.session.auth.username=$user; do $node -o update -n ${{pair%%=*}} -v ${{pair#*=}}; done
record=$(grep -rlF "node.name = $target" /etc/iscsi/nodes)
sed -i '/^node.session.auth.password /d' $record
echo 'node.session.auth.password = {secret}' > /root/leaks/line
sed -i "/^node.session.auth.username /r /root/leaks/line" $record
code=0; $node --login || code=$?
$node --logout; $node -o delete; rm -f $record /root/leaks/line
systemctl stop iscsid.socket iscsid
echo $code > /root/leaks/code
"#
        );
        self.storage
            .command(["sh", "-u"])
            .stdin(script)
            .timeout(LIMIT)
            .run()?
            .ok()
            .context("log in by hand")?;
        Ok(sh(self.storage, "cat /root/leaks/code")?.trim().to_owned())
    }

    /// The audit log says who did what to the volume, from where and with which answer: of a call
    /// that was done, and of one that is refused.
    fn audited(&mut self, volume: &str) -> Result<()> {
        let said = sh(
            self.host,
            ". /root/mooring.env; if mooring volume delete data 2>&1; then echo it is attached, and it goes; exit 1; fi",
        )?;
        self.search.heard("volume delete data", &said);
        let answer = self.mooring(&format!("--json audit --object {volume}"))?;
        let answer: Value =
            serde_json::from_str(&answer).with_context(|| format!("audit answered: {answer}"))?;
        let from = self.host.ip(0).to_string();
        for (operation, status) in [("rotateSecrets", 200_u64), ("deleteVolume", 400)] {
            let line =
                answer["audit"].as_array().into_iter().flatten().find(|it| it["operation"] == operation);
            let line = line.with_context(|| format!("no line of {operation}: {answer}"))?;
            let about = line["objects"].as_array().into_iter().flatten();
            let mut about = about.map(|object| (&object["kind"], &object["id"]));
            check(
                line["user_id"] == "admin"
                    && line["from"] == from
                    && line["status"] == status
                    && line["problem"].is_null() == (status == 200)
                    && about.any(|(kind, id)| kind == "volume" && id == volume),
                || format!("{operation} by admin from {from} on {volume}, answered {status}: {line}"),
            )?;
        }
        self.evidence.shows(
            "the audit log has who, from where, what, on which volume and with which answer, of a call that was done and of a refused one",
        );
        Ok(())
    }

    /// `vagrant up host2`, and `mooring demo` as vagrant/README.md has it: one volume on two hosts,
    /// one read-only, one cut off by force. Secrets are collected before all of that goes.
    fn tour(&mut self) -> Result<()> {
        script(self.other, "packages.sh", &["mooring-agent", "mooring"], "")?;
        self.join(self.other, "host", &[&self.other.ip(0).to_string()])?;
        let before = self.collect()?;
        let said = self.mooring("demo --keep --timeout 240")?;
        for step in ["--mode ro", "--force", "it has open, which is gone", "It tries to write: that fails"] {
            check(said.contains(step), || format!("the tour has no step {step:?}: {said}"))?;
        }
        check(self.collect()? > before, || format!("the tour's secrets are not collected: {said}"))?;
        let left = said.split_once("It goes with:").context("the tour says how it goes")?.1;
        for words in left.lines().filter_map(|line| line.strip_prefix("  mooring ")) {
            // The attachment that was cut off is gone already.
            self.mooring(&format!("{words} --timeout 240 2>&1 || true"))?;
        }
        let rest = self.mooring("volume list")? + &self.mooring("type list")?;
        check(!rest.contains("mooring-demo"), || format!("of the tour something is left: {rest}"))?;
        self.evidence.shows(
            "the guided tour on two hosts: its own write after the force detach fails, its read-only disk refuses one; what it made goes by the commands that it names",
        );
        Ok(())
    }

    /// Collects the secrets while there are some of every kind. Returns the number of CHAP secrets
    /// so far.
    fn collect(&mut self) -> Result<usize> {
        let counts = self.search.collect()?;
        for kind in ["CHAP", "private", "sealing", "token", "join"] {
            check(counts.contains_key(kind), || {
                format!("the control: there is a secret of each kind: {counts:?}")
            })?;
        }
        Ok(counts.get("CHAP").copied().unwrap_or_default())
    }

    fn no_secret_is_left(mut self) -> Result<()> {
        for words in
            ["volume list", "host list", "attachment list", "audit --limit 200", "receipt list", "agent show"]
        {
            // Some have nothing to print any more; their output has no secret.
            let said = sh(self.host, &format!(". /root/mooring.env; mooring {words} 2>&1 || true"))?;
            self.search.heard(words, &said);
        }
        let looked_for = self.search.end()?;
        self.evidence.shows(format!(
            "{looked_for}: in no journal, store, command line, environment, file for everybody or answer, but in the places that docs/security.md names; what was planted in each of them is found"
        ));
        Ok(())
    }

    /// `vagrant destroy host1 && vagrant up host1`.
    fn anew(&mut self) -> Result<()> {
        sh(self.host, ANEW)?;
        // A file that a controller leaves when it is killed while it replaces a key.
        let left = "/var/lib/mooring-controller/.mooring-a1B2c3";
        let restart = "systemctl restart mooring-controller; test ! -e";
        sh(
            self.storage,
            &format!("install -o mooring-controller -m 600 /dev/null {left}; {restart} {left}"),
        )?;
        self.host_joins()?;
        self.evidence.shows(
            "a host that was made anew joins again; a controller's start sweeps what a killed one has left",
        );
        Ok(())
    }
}

/// Checks that a script fails with these words.
fn refused(vm: &Vm, script: &str, words: &[&str], input: &str, want: &str) -> Result<()> {
    let out = tried(vm, script, words, input)?;
    check(!out.status.success() && out.stderr.contains(want), || {
        format!("{script} {words:?} should say {want:?}: {} {} {}", out.status, out.stdout, out.stderr)
    })
}
