//! A set of VMs on two networks.
//!
//! What must never happen here: VMs or files that outlive their rig. [`Rig::down`] and dropping it
//! end the VMs and remove its folder; the next rig removes what a killed process left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::accel::{self, Accel};
use crate::image::{self, Images};
use crate::options::{NETWORKS, RigOptions, address};
use crate::phases::{self, Phase};
use crate::switch::Switch;
use crate::vm::{Shared, Vm};
use crate::{evidence, process, room};

/// Running VMs, until it is dropped.
pub struct Rig {
    name: String,
    vms: Vec<Vm>,
    shared: Arc<Shared>,
    ready_in: Duration,
}

/// The folder of all run folders.
pub fn run_root(root_dir: &Path) -> PathBuf {
    image::rig_dir(root_dir).join("run")
}

impl Rig {
    /// Builds missing parts, boots all VMs at once, and waits until they accept commands.
    pub fn up(options: RigOptions) -> Result<Self> {
        check(&options)?;
        let images = image::ensure_with(&options.root_dir, options.kernel, false, options.packages)?;
        let initramfs = images.initramfs()?;
        let (accel, why) = accel::choose(&image::cache_dir(&options.root_dir), &images, &initramfs)?;
        let start = Instant::now();
        let dir = run_folder(&options)?;
        let assembled =
            room::check(&dir).and_then(|()| Self::assemble(options, images, accel, &dir, &initramfs));
        let mut rig = assembled.inspect_err(|_| {
            process::forget(&dir);
            let _ = fs::remove_dir_all(&dir);
        })?;
        thread::scope(|scope| -> Result<()> {
            let boots: Vec<_> = rig.vms.iter().map(|vm| scope.spawn(|| vm.boot())).collect();
            boots.into_iter().try_for_each(|boot| {
                boot.join().unwrap_or_else(|_| bail!("a thread that boots a VM panicked"))
            })
        })?;
        rig.ready_in = start.elapsed();
        phases::add(Phase::Boot, start);
        eprintln!(
            "rig {}: {} VMs ready in {:.1} s (kernel {}, {}: {why})",
            rig.name,
            rig.vms.len(),
            rig.ready_in.as_secs_f64(),
            rig.shared.images.release,
            accel.describe(),
        );
        Ok(rig)
    }

    fn assemble(
        options: RigOptions,
        images: Images,
        accel: Accel,
        dir: &Path,
        initramfs: &[u8],
    ) -> Result<Self> {
        let path = dir.join("initramfs");
        fs::write(&path, initramfs).with_context(|| format!("write {}", path.display()))?;
        let hosts: Vec<String> = options
            .vms
            .iter()
            .enumerate()
            .map(|(index, vm)| format!("{}={}", vm.name, address(index, 0)))
            .collect();
        let shared = Arc::new(Shared {
            images,
            programs: options.programs,
            accel,
            dir: dir.to_path_buf(),
            initramfs: path,
            hosts: hosts.join(","),
            switches: (0..NETWORKS).map(|_| Switch::new(options.vms.len())).collect(),
        });
        let vms = options.vms.into_iter().enumerate().map(|(index, spec)| Vm::new(spec, index, &shared));
        let vms = vms.collect::<Result<Vec<_>>>()?;
        Ok(Self { name: options.name, vms, shared, ready_in: Duration::ZERO })
    }

    /// The rig's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The run folder: consoles, sockets and data disks.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// The execution of the VMs' processors.
    pub fn accel(&self) -> Accel {
        self.shared.accel
    }

    /// The release of the kernel.
    pub fn kernel(&self) -> &str {
        &self.shared.images.release
    }

    /// Time from QEMU's start until all VMs accepted commands.
    pub fn ready_in(&self) -> Duration {
        self.ready_in
    }

    /// The VMs, in the order of their addresses.
    pub fn vms(&self) -> &[Vm] {
        &self.vms
    }

    /// The VM of this name.
    pub fn vm(&self, name: &str) -> Result<&Vm> {
        self.vms.iter().find(|vm| vm.name() == name).with_context(|| {
            let known: Vec<&str> = self.vms.iter().map(Vm::name).collect();
            format!("rig {} has no VM {name}; it has {}", self.name, known.join(", "))
        })
    }

    /// Fails if a kernel panicked, locked up, or complained of a hung task; the error has the
    /// lines.
    pub fn check_consoles(&self) -> Result<()> {
        let findings: Vec<String> = self
            .vms
            .iter()
            .flat_map(Vm::console_findings)
            .map(|finding| format!("{} console line {}: {}", finding.vm, finding.line, finding.text))
            .collect();
        if findings.is_empty() {
            Ok(())
        } else {
            bail!("kernels reported failures:\n  {}", findings.join("\n  "))
        }
    }

    /// The verdict on a scenario on this rig: to pass, the consoles must be clean as well. A wait
    /// that ran out beside a kernel's complaint is no [`WaitRanOut`](crate::WaitRanOut), because
    /// kernels do not complain of slowness. Neither is one beside a VM that QEMU has stopped, which
    /// happens if the machine has no space for a guest's writes.
    pub fn verdict(&self, result: Result<()>) -> Result<()> {
        let stopped: Vec<String> = match result {
            Ok(()) => Vec::new(),
            Err(_) => self.vms.iter().filter_map(Vm::stopped).collect(),
        };
        if !stopped.is_empty() {
            return result.map_err(|error| anyhow!("{}; because of that: {error:#}", stopped.join("; ")));
        }
        match (result, self.check_consoles()) {
            (Ok(()), consoles) => consoles,
            (Err(error), Ok(())) => Err(error),
            (Err(error), Err(findings)) => Err(anyhow!("{error:#}; {findings:#}")),
        }
    }

    /// Begins a new scenario: the consoles' present content no longer counts, and allowances end.
    pub fn forget_consoles(&self) {
        self.vms.iter().for_each(Vm::forget_console);
    }

    /// Writes the evidence for a failure's cause into a folder.
    pub fn save_evidence(&self, dir: &Path) -> Result<()> {
        evidence::save(&self.vms, dir)
    }

    /// Ends the VMs and removes the run folder. Dropping the rig does the same.
    pub fn down(self) {
        drop(self);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let began = Instant::now();
        self.vms.iter().for_each(Vm::off);
        if let Err(e) = fs::remove_dir_all(&self.shared.dir) {
            eprintln!("rig {}: cannot remove {}: {e}", self.name, self.shared.dir.display());
        }
        process::forget(&self.shared.dir);
        phases::add(Phase::End, began);
    }
}

fn check(options: &RigOptions) -> Result<()> {
    let good = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    if !good(&options.name) {
        bail!("{:?} is no name for a rig: use letters, digits, - and _", options.name);
    }
    if let Some(vm) = options.vms.iter().find(|vm| !good(&vm.name)) {
        bail!("{:?} is no name for a VM: use letters, digits, - and _", vm.name);
    }
    if options.vms.is_empty() || options.vms.len() > 32 {
        bail!("a rig has 1 to 32 VMs, {} were asked for", options.vms.len());
    }
    let mut names: Vec<&str> = options.vms.iter().map(|vm| vm.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() < options.vms.len() {
        bail!("two VMs of rig {} have the same name", options.name);
    }
    Ok(())
}

/// Makes a new folder `NAME-PID`, and removes those of processes that are gone.
fn run_folder(options: &RigOptions) -> Result<PathBuf> {
    let root = run_root(&options.root_dir);
    fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    clean(&root);
    let pid = std::process::id();
    for number in 1..100 {
        let name = if number == 1 { options.name.clone() } else { format!("{}.{number}", options.name) };
        let dir = root.join(format!("{name}-{pid}"));
        match fs::create_dir(&dir) {
            Ok(()) => {
                process::remember(&dir);
                return Ok(dir);
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e).with_context(|| format!("make {}", dir.display())),
        }
    }
    bail!("this process has 99 rigs named {} already", options.name)
}

/// Removes the run folders of processes that are gone.
fn clean(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.rsplit_once('-').and_then(|(_, pid)| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !process::alive(pid)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_rigs_are_refused() {
        let refused = |options: &RigOptions, why: &str| {
            let err = check(options).unwrap_err().to_string();
            assert!(err.contains(why), "{err}");
        };
        refused(&RigOptions::standard(1).named("a/b"), "no name for a rig");
        refused(&RigOptions::standard(40), "1 to 32");
        let mut twice = RigOptions::standard(1);
        twice.vms[1].name = "storage".to_owned();
        refused(&twice, "the same name");
        assert!(check(&RigOptions::standard(2)).is_ok());
    }

    #[test]
    fn folders_of_dead_processes_are_removed_and_others_kept() {
        let dir = tempfile::tempdir().unwrap();
        let ours = format!("a-{}", std::process::id());
        for name in [ours.as_str(), "b-4194399", "notes"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        clean(dir.path());
        assert!(dir.path().join(ours).exists());
        assert!(dir.path().join("notes").exists());
        assert!(!dir.path().join("b-4194399").exists());
    }
}
