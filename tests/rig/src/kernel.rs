//! The kernel of the VMs: a Debian package, split into the parts that QEMU and the guest need.
//!
//! apt fetches the package into a folder of its own, so that the machine's sources stay unchanged.
//!
//! What must never happen here: "not available" and "failed" confused. A second kernel that Debian
//! does not offer is [`KernelNotAvailable`], which a test may report as skipped; everything else is
//! a failure.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::image::{key_of, pack, remove, run, tool};
use crate::options::Kernel;
use crate::{bzimage, root};

/// The mirror does not offer this kernel.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the mirror offers no {name} kernel for the guest's Debian release: {reason}")]
pub struct KernelNotAvailable {
    /// The kernel's name.
    pub name: &'static str,
    /// apt's message.
    pub reason: String,
}

/// Modules that are kept, by the beginning of their path below `kernel/`. The rest (graphics,
/// sound, radio, hardware that QEMU does not show) is two thirds of the package.
const KEEP: &[&str] = &[
    "arch/",
    "block/",
    "crypto/",
    "kernel/",
    "lib/",
    "mm/",
    "drivers/block/",
    "drivers/char/hw_random/",
    "drivers/char/virtio_console",
    "drivers/cdrom/",
    "drivers/dax/",
    "drivers/dca/",
    "drivers/md/",
    "drivers/net/bonding/",
    "drivers/net/dummy",
    "drivers/net/ifb",
    "drivers/net/macvlan",
    "drivers/net/net_failover",
    "drivers/net/tap",
    "drivers/net/tun",
    "drivers/net/veth",
    "drivers/net/virtio_net",
    "drivers/nvme/",
    "drivers/ptp/",
    "drivers/pps/",
    "drivers/scsi/device_handler/",
    "drivers/scsi/fcoe/",
    "drivers/scsi/iscsi_",
    "drivers/scsi/libfc/",
    "drivers/scsi/libiscsi",
    "drivers/scsi/scsi_",
    "drivers/scsi/sd_mod",
    "drivers/scsi/sg",
    "drivers/scsi/sr_mod",
    "drivers/scsi/virtio_scsi",
    "drivers/target/",
    "drivers/vhost/",
    "drivers/virtio/",
    "fs/9p/",
    "fs/autofs/",
    "fs/binfmt_misc",
    "fs/configfs/",
    "fs/ext4/",
    "fs/fscache/",
    "fs/fuse/",
    "fs/jbd2/",
    "fs/mbcache",
    "fs/netfs/",
    "fs/nls/",
    "fs/ocfs2/",
    "fs/overlayfs/",
    "fs/quota/",
    "fs/xfs/",
    "net/802/",
    "net/8021q/",
    "net/9p/",
    "net/bridge/",
    "net/core/",
    "net/dns_resolver/",
    "net/ipv4/",
    "net/ipv6/",
    "net/llc/",
    "net/netfilter/",
    "net/packet/",
    "net/sched/",
    "net/tls/",
    "net/unix/",
    "net/xfrm/",
];

/// Modules that mount the root and talk to the rig; their dependencies are added.
const EARLY: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
    "crc32c_generic",
    "ext4",
    "overlay",
    "configfs",
];

/// The package that depends on the newest kernel of a kind.
fn meta(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Stable | Kernel::Backports | Kernel::Next => "linux-image-amd64",
        Kernel::Cloud => "linux-image-cloud-amd64",
    }
}

/// A short hash of the folder's inputs.
pub(crate) fn key(kernel: Kernel) -> String {
    let version = "1"; // raise it when the code below makes something else from the same inputs
    key_of(&[version, meta(kernel), &sources(kernel).join("\n"), &KEEP.join(","), &EARLY.join(",")])
}

fn sources(kernel: Kernel) -> Vec<String> {
    match kernel {
        Kernel::Stable | Kernel::Cloud | Kernel::Next => root::sources_of(kernel.release()),
        Kernel::Backports => vec![root::backports(kernel.release())],
    }
}

/// Makes `vmlinux`, `modules.ext4`, `early/` and `release` in `work`.
pub(crate) fn build(work: &Path, kernel: Kernel) -> Result<()> {
    let package = fetch(&work.join("apt"), kernel)?;
    let tree = work.join("tree");
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree))
        .context("unpack the kernel's package")?;
    let from = ["lib/modules", "usr/lib/modules"].map(|dir| tree.join(dir));
    let from =
        from.into_iter().find(|dir| dir.exists()).context("the kernel's package has no lib/modules")?;
    let release = only_entry(&from)?;
    let image =
        fs::read(tree.join(format!("boot/vmlinuz-{release}"))).context("read the kernel from its package")?;
    fs::write(work.join("vmlinux"), bzimage::vmlinux(&image)?).context("write vmlinux")?;
    let base = work.join("base");
    let modules = base.join("lib/modules").join(&release);
    fs::create_dir_all(base.join("lib/modules")).context("make lib/modules")?;
    fs::rename(from.join(&release), &modules).context("take the modules out of the package")?;
    prune(&modules)?;
    unpack_modules(&modules)?;
    run(tool("depmod").arg("-b").arg(&base).arg(&release)).context("depmod")?;
    early(&modules, &work.join("early"))?;
    pack(&base.join("lib/modules"), &work.join("modules.ext4"), 400)?;
    fs::write(work.join("release"), &release).context("write the release")?;
    for dir in ["apt", "tree", "base"] {
        remove(&work.join(dir))?;
    }
    Ok(())
}

/// Downloads the package that the meta package depends on.
fn fetch(dir: &Path, kernel: Kernel) -> Result<PathBuf> {
    for sub in ["state/lists/partial", "cache/archives/partial", "preferences.d"] {
        fs::create_dir_all(dir.join(sub)).with_context(|| format!("make {sub} for apt"))?;
    }
    let d = dir.display();
    let conf = format!(
        "Dir::State \"{d}/state/\";\nDir::State::status \"{d}/status\";\nDir::Cache \"{d}/cache/\";\n\
         Dir::Etc::sourcelist \"{d}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"{d}/preferences.d\";\n\
         APT::Architecture \"amd64\";\nAPT::Architectures \"amd64\";\nAPT::Sandbox::User \"\";\nAcquire::Languages \"none\";\n"
    );
    let keyring = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ";
    let sources: Vec<String> = sources(kernel).iter().map(|line| line.replacen("deb ", keyring, 1)).collect();
    fs::write(dir.join("apt.conf"), conf).context("write apt.conf")?;
    fs::write(dir.join("sources.list"), sources.join("\n") + "\n").context("write sources.list")?;
    fs::write(dir.join("status"), "").context("write apt's status")?;
    let apt = |program: &str, args: &[&str]| {
        run(Command::new(program)
            .args(args)
            .current_dir(dir)
            .env("LC_ALL", "C")
            .env("APT_CONFIG", dir.join("apt.conf")))
    };
    let update = apt("apt-get", &["update", "-q", "--error-on=any"]);
    if kernel == Kernel::Backports
        && let Err(e) = &update
        && format!("{e:#}").contains("does not have a Release file")
    {
        return Err(
            KernelNotAvailable { name: kernel.name(), reason: "it has no backports".to_owned() }.into()
        );
    }
    update.context("read Debian's package lists (is the mirror reachable?)")?;
    let show = apt("apt-cache", &["show", "--no-all-versions", meta(kernel)]).unwrap_or_default();
    let Some(name) = dependency(&show) else {
        return Err(KernelNotAvailable {
            name: kernel.name(),
            reason: format!("there is no {}", meta(kernel)),
        }
        .into());
    };
    eprintln!("rig: fetching {name}");
    apt("apt-get", &["download", "-q", &name]).with_context(|| format!("download {name}"))?;
    let packages = fs::read_dir(dir).context("list what apt downloaded")?.flatten().map(|e| e.path());
    let package = packages.into_iter().find(|path| path.extension().is_some_and(|ext| ext == "deb"));
    package.with_context(|| format!("apt-get download {name} left no package"))
}

/// Finds the kernel package in the meta package's `Depends`.
fn dependency(show: &str) -> Option<String> {
    let line = show.lines().find_map(|line| line.strip_prefix("Depends: "))?;
    let name = line.split([',', ' ']).find(|word| word.starts_with("linux-image-"))?;
    Some(name.to_owned())
}

fn only_entry(dir: &Path) -> Result<String> {
    let mut names = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?.flatten();
    match (names.next(), names.next()) {
        (Some(entry), None) => Ok(entry.file_name().to_string_lossy().into_owned()),
        _ => bail!("{} does not hold exactly one kernel's modules", dir.display()),
    }
}

/// All files below a folder.
fn walk(dir: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), into)?;
        } else {
            into.push(entry.path());
        }
    }
    Ok(())
}

fn prune(modules: &Path) -> Result<()> {
    let kernel = modules.join("kernel");
    let mut files = Vec::new();
    walk(&kernel, &mut files)?;
    for file in files {
        let kept = file
            .strip_prefix(&kernel)
            .ok()
            .and_then(Path::to_str)
            .is_some_and(|p| KEEP.iter().any(|k| p.starts_with(k)));
        if !kept {
            fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
    }
    for link in ["build", "source"] {
        let _ = fs::remove_file(modules.join(link));
    }
    Ok(())
}

/// Unpacks the compressed modules of newer kernels once, which is cheaper than in every boot under
/// emulation.
fn unpack_modules(modules: &Path) -> Result<()> {
    let mut files = Vec::new();
    walk(&modules.join("kernel"), &mut files)?;
    files.retain(|file| file.extension().is_some_and(|ext| ext == "xz"));
    for some in files.chunks(200) {
        run(tool("xz").arg("-d").args(some)).context("unpack modules")?;
    }
    Ok(())
}

/// Copies the modules for the initramfs, numbered in a possible load order.
fn early(modules: &Path, to: &Path) -> Result<()> {
    let text = fs::read_to_string(modules.join("modules.dep")).context("read modules.dep")?;
    let builtin = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
    fs::create_dir_all(to).context("make the folder of early modules")?;
    for (index, path) in load_order(&text, &builtin, EARLY)?.iter().enumerate() {
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        fs::copy(modules.join(path), to.join(format!("{index:02}-{name}")))
            .with_context(|| format!("copy {path}"))?;
    }
    Ok(())
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// The paths of these modules and their dependencies, each after those that it needs. Built-in ones
/// need no file.
fn load_order(modules_dep: &str, builtin: &str, wanted: &[&str]) -> Result<Vec<String>> {
    let lines = modules_dep.lines().filter_map(|line| line.split_once(':'));
    let table: BTreeMap<String, (&str, &str)> =
        lines.map(|(path, needs)| (module_name(path), (path, needs))).collect();
    let builtin: HashSet<String> = builtin.lines().map(module_name).collect();
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let Some((path, needs)) = table.get(*name) else {
            if builtin.contains(*name) {
                continue;
            }
            bail!("the kernel has no module {name}");
        };
        // modules.dep lists the deepest dependency last.
        for path in needs.split_whitespace().rev().chain([*path]) {
            if !order.iter().any(|have| have == path) {
                order.push(path.to_owned());
            }
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko\n\
                       kernel/fs/jbd2/jbd2.ko:\nkernel/fs/mbcache.ko:\nkernel/lib/crc16.ko:\n\
                       kernel/net/net-failover.ko: kernel/fs/mbcache.ko\n";

    #[test]
    fn modules_are_loaded_after_what_they_need() {
        let order =
            load_order(DEP, "kernel/fs/configfs/configfs.ko\n", &["net_failover", "ext4", "configfs"])
                .unwrap();
        let names: Vec<_> = order.iter().map(|path| module_name(path)).collect();
        assert_eq!(names, ["mbcache", "net_failover", "jbd2", "crc16", "ext4"]);
    }

    #[test]
    fn a_module_that_does_not_exist_is_named() {
        let err = load_order(DEP, "", &["ext5"]).unwrap_err().to_string();
        assert!(err.contains("ext5"));
    }

    #[test]
    fn the_kernel_is_read_from_the_meta_package() {
        let show = "Package: linux-image-amd64\nVersion: 6.1.192-2\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)\n";
        assert_eq!(dependency(show).as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(dependency(""), None);
    }
}
