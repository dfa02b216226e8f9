//! The scripts of `vagrant/` in VMs of the rig, in the order in which its Vagrantfile runs them, and once more: a controller that is
//! a storage node as well, and a host that attaches, each under systemd and installed from packages.
//!
//! What must never happen here: a step that `vagrant up` does not have, but those that stand for Vagrant itself.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::options::workspace_root;
use mooring_rig::{Output, Rig, RigOptions, Vm, VmSpec};

use super::installed::versions;
use crate::control::attachment_of;
use crate::disk::Disk;
use crate::evidence::{Evidence, check};
use crate::native::text;
use crate::packages::VARIANTS;
use crate::site::{GROUP, Programs, going, number, progress};

/// A limit for each script: apt is slow where the processor is emulated.
const LIMIT: Duration = Duration::from_mins(10);

/// What stands for Vagrant's box: on it packages start what they bring, and have no disk that makes dpkg wait.
const BOX: &str = "rm -f /usr/sbin/policy-rc.d; mkdir -p /etc/dpkg/dpkg.cfg.d; echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/rig";

/// What a second run must not change: files, certificates and keys, daemons, packages.
const STATE: &str = "find /root/mooring.env /etc/mooring -type f -exec sha256sum {} + | sort; \
    systemctl show -p InvocationID -p ActiveState mooring-sessiond mooring-agent mooring-controller; \
    dpkg-query -W -f '${Package} ${Version} ${Status}\\n' 'mooring*'; vgs --noheadings -o vg_uuid";

/// What a machine that was made anew has not: of it are left its packages.
const ANEW: &str = "systemctl stop mooring-agent mooring-sessiond; rm -r /etc/mooring /var/lib/mooring /root/mooring.env; \
    systemd-tmpfiles --create mooring.conf";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let mut options = RigOptions::standard(1).named("vagrant-scripts");
    for vm in &mut options.vms {
        (vm.systemd, vm.memory_mib) = (true, vm.memory_mib.max(1024));
    }
    if let Some(storage) = options.vms.first_mut() {
        *storage = VmSpec { memory_mib: 1536, ..storage.clone() };
    }
    let agent = programs.path("mooring-agent")?;
    let folder = agent.parent().context("the folder of the programs")?;
    // On the same file system: cargo-deb is shown links to the programs.
    let work = tempfile::tempdir_in(folder).context("make a folder for the packages")?;
    let debs = versions(folder, work.path(), &["0.0.1"])?;
    let rig = Rig::up(programs.show_in(options)?)?;
    let machines = || -> Result<Machines<'_>> {
        Ok(Machines { storage: rig.vm("storage")?, host: rig.vm("host1")?, evidence: Evidence::default() })
    };
    let played = machines().and_then(|mut machines| {
        for vm in rig.vms() {
            vm.sh(BOX)?.ok()?;
            for ((name, _), deb) in VARIANTS.iter().zip(debs.iter().flatten()) {
                vm.push(deb, &format!("/tmp/{name}.deb"), 0o644)?;
            }
        }
        machines.play()
    });
    if played.is_err() {
        for vm in rig.vms() {
            let log = vm.sh("journalctl --no-pager -o cat -n 100 -u 'mooring-*'").map(|out| out.stdout);
            eprintln!(
                "--- the journal of {}:\n{}",
                vm.name(),
                log.unwrap_or_else(|error| format!("{error:#}"))
            );
        }
        let kept = rig.dir().with_file_name("failed-vagrant-scripts");
        if let Err(error) = rig.save_evidence(&kept) {
            eprintln!("cannot save the evidence to {}: {error:#}", kept.display());
        }
    }
    rig.verdict(played)
}

struct Machines<'a> {
    /// It is the controller, too.
    storage: &'a Vm,
    host: &'a Vm,
    evidence: Evidence,
}

/// Runs a script as join.rb does: it reads `input`.
fn tried(vm: &Vm, script: &str, words: &[&str], input: &str) -> Result<Output> {
    let at = format!("/tmp/mooring-{script}");
    vm.push(&workspace_root().join("vagrant").join(script), &at, 0o644)?;
    let argv = ["sh", &at].into_iter().chain(words.iter().copied());
    vm.command(argv).stdin(format!("{}\n", input.trim_end())).timeout(LIMIT).run()
}

/// The same; it must end well.
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
        self.attach()?;
        self.anew()?;
        self.attach().context("after the host was made anew")
    }

    /// `vagrant up`, or `vagrant provision`.
    fn provision(&self) -> Result<()> {
        let (first, second) = (self.storage.ip(0).to_string(), self.storage.ip(1).to_string());
        script(self.storage, "packages.sh", &["mooring-controller", "mooring-agent", "mooring"], "")?;
        let said = script(self.storage, "controller.sh", &[&first], "")?;
        check(!said.contains("token"), || format!("controller.sh prints a token: {said}"))?;
        script(self.storage, "storage.sh", &[], "")?;
        self.join(self.storage, "storage", &[&first, &first, &second])?;
        script(self.host, "packages.sh", &["mooring-agent", "mooring"], "")?;
        self.host_joins()
    }

    fn host_joins(&self) -> Result<()> {
        self.join(self.host, "host", &[&self.host.ip(0).to_string()])?;
        let admin = script(self.storage, "admin.sh", &[], "")?;
        script(self.host, "operator.sh", &[], &admin)?;
        Ok(())
    }

    /// The provisioner of join.rb.
    fn join(&self, vm: &Vm, role: &str, words: &[&str]) -> Result<()> {
        let joined = vm.run(&["test", "-e", "/etc/mooring/agent.toml"])?.status.success();
        let line =
            if joined { String::new() } else { script(self.storage, "token.sh", &[vm.name(), role], "")? };
        script(vm, "join.sh", words, &line)?;
        script(self.storage, "up.sh", &[vm.name()], "")?;
        Ok(())
    }

    /// Scripts that are told something wrong say so, and do nothing.
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

    fn mooring(&self, words: &str) -> Result<String> {
        sh(self.host, &format!(". /root/mooring.env; mooring {words}"))
    }

    /// As root on the host, with what operator.sh has left there.
    fn attach(&mut self) -> Result<()> {
        self.mooring("volume create data --size 1GiB --timeout 240")?;
        let answer = self.mooring("--json attach data --host host1")?;
        let answer = serde_json::from_str(&answer).with_context(|| format!("attach answered: {answer}"))?;
        let live = attachment_of(answer);
        let disk = Disk::new(self.host, text(&live, "device_path")?);
        let writer = disk.write_stamps(&["--threads", "2"])?;
        going(&writer)?;
        let seen = progress(&writer)?;
        check(number(&seen, "errors")? == 0, || format!("the writer saw an error: {seen}"))?;
        drop((writer.kill()?, writer.wait()?));
        let stamps = disk.read_stamps()?.len();
        check(stamps > 0, || "the disk has no stamps".to_owned())?;
        self.mooring("detach data --host host1")?;
        self.mooring("volume delete data --timeout 240")?;
        self.evidence.shows(format!(
            "root on the host makes a volume, attaches it natively, writes and reads {stamps} stamps, detaches and deletes it"
        ));
        Ok(())
    }

    /// `vagrant destroy host1 && vagrant up host1`.
    fn anew(&mut self) -> Result<()> {
        sh(self.host, ANEW)?;
        self.host_joins()?;
        self.evidence.shows("a host that was made anew joins again");
        Ok(())
    }
}

/// Demands that a script fails, and says these words.
fn refused(vm: &Vm, script: &str, words: &[&str], input: &str, want: &str) -> Result<()> {
    let out = tried(vm, script, words, input)?;
    check(!out.status.success() && out.stderr.contains(want), || {
        format!("{script} {words:?} should say {want:?}: {} {} {}", out.status, out.stdout, out.stderr)
    })
}
