//! `cargo xtask vagrant test`: runs `vagrant up` for real, by libvirt under emulation: a
//! controller, a storage node and two hosts, the guided tour on them, and `vagrant destroy`. Not
//! part of the check, because each machine boots for minutes.
//!
//! The box is made here from Debian's packages, with everything that Mooring's packages need, so
//! that no machine fetches anything. libvirt's daemons are started where none answers, and end with
//! this program.
//!
//! What must never happen here: a machine that is left behind; a wait without a limit; a changed
//! file of this computer's libvirt.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mooring_rig::{packages, sources_of};

use crate::package::said;
use crate::stages::target;

/// Programs that are needed beside those of the check of `vagrant/`, and their packages.
const NEEDED: [(&str, &str); 6] = [
    ("libvirtd", "libvirt-daemon-system"),
    ("virsh", "libvirt-clients"),
    ("dnsmasq", "dnsmasq-base"),
    ("iptables", "iptables"),
    ("qemu-img", "qemu-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
];

/// The Debian release of the box.
const RELEASE: &str = "bookworm";
/// Packages of the box: those that Vagrant requires, and those that Mooring's packages depend on.
const INCLUDE: &str = "linux-image-cloud-amd64,initramfs-tools,systemd-sysv,udev,dbus,openssh-server,sudo,ifupdown,isc-dhcp-client,\
                       iproute2,ca-certificates,kmod,lvm2,thin-provisioning-tools,procps";
/// Vagrant's name of the box.
const BOX: &str = "mooring-test";
/// Size of a machine's disk, which takes space as it is written.
const DISK: &str = "8G";

/// Makes a box of a folder, `$1`: Vagrant's user with the public key `$2`, and a network by DHCP.
const CUSTOMIZE: &str = r#"#!/bin/sh
set -eu
chroot "$1" useradd --create-home --shell /bin/bash vagrant
install -d -m 0700 "$1/home/vagrant/.ssh"
install -m 0600 "$2" "$1/home/vagrant/.ssh/authorized_keys"
chroot "$1" chown -R vagrant: /home/vagrant/.ssh
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' > "$1/etc/sudoers.d/vagrant"
chmod 0440 "$1/etc/sudoers.d/vagrant"
printf 'auto lo\niface lo inet loopback\n\nauto eth0\niface eth0 inet dhcp\n' > "$1/etc/network/interfaces"
echo '/dev/vda / ext4 defaults 0 1' > "$1/etc/fstab"
echo mooring > "$1/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 mooring\n' > "$1/etc/hosts"
echo 'UseDNS no' > "$1/etc/ssh/sshd_config.d/vagrant.conf"
"#;

/// libvirt's configuration: QEMU as root, without a confinement that a container cannot provide.
const QEMU_CONF: &str = "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\nremember_owner = 0\n\
                         cgroup_controllers = []\nnamespaces = []\n";

/// Runs libvirt's daemon with this configuration, which no other process sees, and without a KVM to
/// probe: where KVM exists and does not work, each machine would wait a minute for it.
const LIBVIRTD: &str = r#"mount --bind "$1" /etc/libvirt/qemu.conf; if [ -e /dev/kvm ]; then mount --bind /dev/null /dev/kvm; fi; exec libvirtd"#;

/// Time limits: libvirt's start, `up` of one machine, the tour, the end.
const START: Duration = Duration::from_mins(1);
const UP: Duration = Duration::from_mins(20);
const TOUR: Duration = Duration::from_mins(15);
const DESTROY: Duration = Duration::from_mins(5);

/// The machines, in the order in which they join.
const MACHINES: [&str; 4] = ["controller", "storage1", "host1", "host2"];

/// Runs the whole trial with these packages.
pub(crate) fn run(root: &Path, debs: &Path) -> Result<()> {
    super::ensure()?;
    packages::ensure()?;
    packages::install("`vagrant up`", || {
        NEEDED
            .iter()
            .filter(|(program, _)| packages::find(program).is_none())
            .map(|&(_, package)| package)
            .collect()
    })?;
    let work = target(root).join("vagrant");
    fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
    let image = stage("the box", || make_box(&work.join("box")))?;
    let _libvirt = stage("libvirt", || Libvirt::start(&work))?;
    let rig = Rig { folder: root.join("vagrant"), home: work.join("home"), debs: debs.to_owned() };
    rig.vagrant(
        Duration::from_mins(10),
        &["box", "add", "--force", "--name", BOX, "--provider", "libvirt", &image],
    )?;
    let ran = rig.run();
    let ended = stage("vagrant destroy", || {
        rig.vagrant(DESTROY, &["destroy", "--force"]).and_then(|()| forget_box())
    });
    ran.and(ended)
}

/// Removes the box's disk from libvirt's pool, where Vagrant leaves it: otherwise a later box of
/// this name would not replace it.
fn forget_box() -> Result<()> {
    let pool = ["-c", "qemu:///system"];
    let volumes = said(Command::new("virsh").args(pool).args(["vol-list", "--pool", "default"]))?;
    let own =
        volumes.split_whitespace().filter(|word| word.starts_with(&format!("{BOX}_vagrant_box_image_")));
    for volume in own {
        said(Command::new("virsh").args(pool).args(["vol-delete", "--pool", "default", volume]))
            .with_context(|| format!("remove {volume} from libvirt's pool"))?;
    }
    Ok(())
}

/// Runs a part, and prints how long it took.
fn stage<T>(name: &str, part: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("== {name}");
    let began = Instant::now();
    let result = part().with_context(|| name.to_owned());
    println!(
        "== {name}: {} {:.0} s",
        if result.is_ok() { "done after" } else { "FAILED after" },
        began.elapsed().as_secs_f64()
    );
    result
}

struct Rig {
    folder: PathBuf,
    home: PathBuf,
    debs: PathBuf,
}

impl Rig {
    fn run(&self) -> Result<()> {
        for machine in MACHINES {
            stage(&format!("vagrant up {machine}"), || {
                self.vagrant(UP, &["up", "--provider", "libvirt", machine])
            })?;
        }
        stage("vagrant ssh host1 -c 'sudo mooring demo'", || {
            self.vagrant(TOUR, &["ssh", "host1", "-c", "sudo mooring demo"])
        })
    }

    /// Runs Vagrant with these words and within this time; its output is shown at once.
    fn vagrant(&self, limit: Duration, words: &[&str]) -> Result<()> {
        let mut command = Command::new("timeout");
        command
            .args(["--signal=INT", "--kill-after=60", &limit.as_secs().to_string(), "vagrant"])
            .args(words);
        command.current_dir(&self.folder).stdin(Stdio::null()).env("VAGRANT_HOME", &self.home);
        command.env("VAGRANT_DOTFILE_PATH", self.home.join("state")).env("VAGRANT_CHECKPOINT_DISABLE", "1");
        command.env("VAGRANT_DEFAULT_PROVIDER", "libvirt").env("MOORING_PACKAGES", &self.debs);
        command
            .env("MOORING_BOX", BOX)
            .env("MOORING_HOSTS", "2")
            .env("MOORING_STORAGE_NODES", "1")
            .env("MOORING_DATA_GIB", "8");
        let status = command.status().context("start vagrant")?;
        match status.code() {
            Some(0) => Ok(()),
            Some(124 | 137) => {
                bail!("vagrant {} has not ended within {} s", words.join(" "), limit.as_secs())
            }
            _ => bail!("vagrant {}: {status}", words.join(" ")),
        }
    }
}

/// Makes the box in this folder if it is missing. Returns its path.
fn make_box(folder: &Path) -> Result<String> {
    let (made, key) = (folder.join("mooring.box"), folder.join("key"));
    let wanted = [INCLUDE, CUSTOMIZE, DISK, &sources_of(RELEASE).join("\n"), &settings(folder)].join("\n");
    let path = made.to_str().context("a folder whose name is text")?.to_owned();
    if fs::read_to_string(&key).is_ok_and(|known| known == wanted) && made.exists() {
        return Ok(path);
    }
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let root = folder.join("root");
    fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    let (hook, tar) = (folder.join("customize"), folder.join("root.tar"));
    fs::write(&hook, CUSTOMIZE).with_context(|| format!("write {}", hook.display()))?;
    let listed = said(Command::new("dpkg").args(["-L", "vagrant"]))?;
    let public =
        listed.lines().find(|line| line.ends_with("/keys/vagrant.pub")).context("Vagrant's public key")?;
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--quiet", "--variant=apt", &format!("--include={INCLUDE}")]);
    mmdebstrap.arg(format!("--customize-hook=sh '{}' \"$1\" '{public}'", hook.display()));
    said(mmdebstrap.arg(RELEASE).arg(&tar).args(sources_of(RELEASE)))
        .context("make the box's system by mmdebstrap")?;
    said(Command::new("tar").args(["--numeric-owner", "-C"]).arg(&root).arg("-xpf").arg(&tar))?;
    for (link, name) in [("vmlinuz", "vmlinuz"), ("initrd.img", "initrd")] {
        let (from, to) = (root.join(link), folder.join(name));
        fs::copy(&from, &to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    }
    let (raw, disk) = (folder.join("box.raw"), folder.join("box.img"));
    said(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(&root).arg(&raw).arg(DISK))?;
    said(Command::new("qemu-img").args(["convert", "-O", "qcow2"]).arg(&raw).arg(&disk))?;
    let size = DISK.trim_end_matches('G');
    let about = format!("{{\"provider\": \"libvirt\", \"format\": \"qcow2\", \"virtual_size\": {size}}}\n");
    for (name, text) in [("metadata.json", about), ("Vagrantfile", settings(folder))] {
        fs::write(folder.join(name), text).with_context(|| format!("write the box's {name}"))?;
    }
    let mut pack = Command::new("tar");
    pack.arg("-C").arg(folder).arg("-cf").arg(&made).args(["metadata.json", "Vagrantfile", "box.img"]);
    said(&mut pack).with_context(|| format!("write {}", made.display()))?;
    for left in [&raw, &disk, &tar] {
        fs::remove_file(left).with_context(|| format!("remove {}", left.display()))?;
    }
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    fs::write(&key, wanted).with_context(|| format!("write {}", key.display()))?;
    Ok(path)
}

/// The box's own Vagrantfile: emulation, and the kernel from here, since the disk has no boot
/// loader.
fn settings(folder: &Path) -> String {
    format!(
        r#"Vagrant.configure("2") do |config|
  config.vm.boot_timeout = 900
  config.vm.provider :libvirt do |libvirt|
    libvirt.driver = "qemu"
    libvirt.cpu_mode = "custom"
    libvirt.cpu_model = "qemu64"
    libvirt.kernel = "{0}/vmlinuz"
    libvirt.initrd = "{0}/initrd"
    libvirt.cmd_line = "root=/dev/vda rw net.ifnames=0 console=ttyS0 quiet"
    libvirt.graphics_type = "none"
  end
end
"#,
        folder.display()
    )
}

/// libvirt's daemons, if they were started here.
struct Libvirt {
    started: Vec<Child>,
}

impl Libvirt {
    fn answers() -> bool {
        let mut ask = Command::new("timeout");
        let asked = ask.args(["10", "virsh", "-c", "qemu:///system", "list"]).stdin(Stdio::null()).output();
        asked.is_ok_and(|out| out.status.success())
    }

    /// Starts the daemons, unless one answers.
    fn start(work: &Path) -> Result<Self> {
        let mut libvirt = Self { started: Vec::new() };
        if Self::answers() {
            return Ok(libvirt);
        }
        let config = work.join("qemu.conf");
        fs::write(&config, QEMU_CONF).with_context(|| format!("write {}", config.display()))?;
        let log = fs::File::create(work.join("libvirt.log")).context("open libvirt's log")?;
        let mut logger = Command::new("virtlogd");
        let mut daemon = Command::new("unshare");
        daemon.args(["--mount", "sh", "-euc", LIBVIRTD, "sh"]).arg(&config);
        for command in [&mut logger, &mut daemon] {
            let out = log.try_clone().context("duplicate libvirt's log")?;
            let err = log.try_clone().context("duplicate libvirt's log")?;
            command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
            libvirt.started.push(command.spawn().with_context(|| format!("start {command:?}"))?);
        }
        let began = Instant::now();
        while !Self::answers() {
            if began.elapsed() > START {
                bail!("libvirtd does not answer: see {}", work.join("libvirt.log").display());
            }
            thread::sleep(Duration::from_secs(1));
        }
        Ok(libvirt)
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        for child in self.started.iter_mut().rev() {
            // The daemon ends its helpers by itself, if it may.
            let _ = said(Command::new("kill").arg(child.id().to_string()));
            let _ = child.wait();
        }
    }
}
