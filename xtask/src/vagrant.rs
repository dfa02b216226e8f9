//! `cargo xtask vagrant`: checks `vagrant/`: its scripts with shells and shellcheck, its
//! provisioner on made-up machines, and its Vagrantfile with Vagrant for each provider. No VM is
//! made, and nothing is fetched.
//!
//! VirtualBox is not in Debian, and Vagrant validates nothing of a missing provider. So a stub of
//! that name prints a version, which is all that Vagrant asks. Vagrant's own classes of that
//! provider validate the settings.
//!
//! What must never happen here: a wrong setting that passes. Each provider has a control that must
//! be refused.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use mooring_rig::packages;
use mooring_tests::packages::VARIANTS;

use crate::package;
use crate::stages::{self, quietly};

mod trial;

/// Options of `cargo xtask vagrant`.
#[derive(Debug, Args)]
pub(crate) struct VagrantArgs {
    /// A chore in place of the check.
    #[command(subcommand)]
    chore: Option<VagrantChore>,
}

/// Chores beside the check.
#[derive(Debug, Subcommand)]
enum VagrantChore {
    /// Bring a controller, a storage node and two hosts up by libvirt under emulation, take the
    /// guided tour, and destroy them: takes about half an hour, as root
    Test,
}

/// Programs that are needed, and their packages.
const NEEDED: [(&str, &str); 4] = [
    ("vagrant", "vagrant"),
    ("/usr/share/rubygems-integration/all/specifications/vagrant-libvirt-*.gemspec", "vagrant-libvirt"),
    ("ruby", "ruby"),
    ("shellcheck", "shellcheck"),
];

/// Providers that are validated.
const PROVIDERS: [&str; 2] = ["libvirt", "virtualbox"];

/// A setting of each provider, which the controls misspell.
const SETTING: &str = ".cpus = ";

/// A stub of VirtualBox, sufficient for Vagrant as long as there is no VM.
const VIRTUALBOX: &str = "#!/bin/sh\necho 7.0.20r163906\n";

/// Installs Vagrant and shellcheck if they are missing.
pub(crate) fn ensure() -> Result<()> {
    packages::install("checking vagrant/", || {
        NEEDED.iter().filter(|(file, _)| !is_there(file)).map(|&(_, package)| package).collect()
    })
}

/// Returns `true` if a program exists, or any file of a pattern whose last part has a `*`.
fn is_there(file: &str) -> bool {
    let Some((before, after)) = file.split_once('*') else { return packages::find(file).is_some() };
    let (folder, prefix) = before.rsplit_once('/').unwrap_or((".", before));
    let mut names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.any(|name| name.to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(after)))
}

/// Runs the check, or the trial on real machines.
pub(crate) fn run(args: &VagrantArgs, root: &Path) -> Result<()> {
    match args.chore {
        None => check(root),
        Some(VagrantChore::Test) => trial::run(root, &package::of_tests(root)?),
    }
}

/// Runs all parts of the check.
fn check(root: &Path) -> Result<()> {
    ensure()?;
    let check = Check::new(root)?;
    check.scripts()?;
    let join = quietly(Command::new("ruby").arg(check.folder.join("test/join_test.rb")))?;
    passed("the provisioner's test", join)?;
    for provider in PROVIDERS {
        passed(&format!("`vagrant validate` for {provider}"), check.validate(&check.folder, provider)?)?;
        check.control(provider)?;
    }
    check.without_packages()
}

/// Fails unless a command has succeeded.
fn passed(what: &str, (ok, said): (bool, String)) -> Result<()> {
    if !ok {
        bail!("{what}:\n{}", said.trim());
    }
    println!("ok: {what}");
    Ok(())
}

struct Check {
    /// The folder `vagrant/`.
    folder: PathBuf,
    /// Folder for files of Vagrant and of this check.
    work: tempfile::TempDir,
}

impl Check {
    fn new(root: &Path) -> Result<Self> {
        let target = stages::target(root);
        fs::create_dir_all(&target).with_context(|| format!("make {}", target.display()))?;
        let work = tempfile::Builder::new().prefix("vagrant-").tempdir_in(&target);
        let work = work.with_context(|| format!("make a folder in {}", target.display()))?;
        let check = Self { folder: root.join("vagrant"), work };
        for folder in ["bin", "packages", "empty", "control"] {
            let path = check.at(folder);
            fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        }
        let stand_in = check.at("bin/VBoxManage");
        fs::write(&stand_in, VIRTUALBOX).with_context(|| format!("write {}", stand_in.display()))?;
        fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("make {} a program", stand_in.display()))?;
        // Only the names matter.
        for (name, _) in VARIANTS {
            let package = check.at("packages").join(format!("{name}_0_amd64.deb"));
            fs::write(&package, "").with_context(|| format!("write {}", package.display()))?;
        }
        Ok(check)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// The files of `vagrant/`, without subfolders.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let entries =
            fs::read_dir(&self.folder).with_context(|| format!("list {}", self.folder.display()))?;
        let mut files: Vec<_> =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        files.sort();
        Ok(files)
    }

    fn scripts(&self) -> Result<()> {
        let mut scripts = self.files()?;
        scripts.retain(|path| path.extension().is_some_and(|ending| ending == "sh"));
        for script in &scripts {
            let read = quietly(Command::new("sh").arg("-n").arg(script))?;
            passed(&format!("sh -n {}", script.display()), read)?;
        }
        // shellcheck fails without a script.
        passed("shellcheck", quietly(Command::new("shellcheck").arg("--shell=sh").args(&scripts))?)
    }

    /// Makes a Vagrant command in this folder, without a terminal, a network, or the user's
    /// settings.
    fn vagrant(&self, folder: &Path, provider: &str) -> Command {
        let mut command = Command::new("vagrant");
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("VAGRANT_") || name.starts_with("MOORING_"))
            {
                command.env_remove(&name);
            }
        }
        let mut path = OsString::from(self.at("bin"));
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()));
        command
            .current_dir(folder)
            .stdin(std::process::Stdio::null())
            .env("PATH", path)
            .env("VAGRANT_HOME", self.at("home"))
            .env("VAGRANT_DOTFILE_PATH", self.at("state"))
            .env("VAGRANT_CHECKPOINT_DISABLE", "1")
            .env("VAGRANT_DEFAULT_PROVIDER", provider)
            // Without this, Vagrant leaves out the data disks for VirtualBox.
            .env("VAGRANT_EXPERIMENTAL", "disks")
            .env("MOORING_PACKAGES", self.at("packages"));
        command
    }

    fn validate(&self, folder: &Path, provider: &str) -> Result<(bool, String)> {
        quietly(self.vagrant(folder, provider).arg("validate"))
    }

    /// Control: a Vagrantfile with an unknown setting of this provider is refused.
    fn control(&self, provider: &str) -> Result<()> {
        let (folder, good) = (self.at("control"), format!("{provider}{SETTING}"));
        for path in self.files()? {
            let name = path.file_name().context("a name")?;
            fs::copy(&path, folder.join(name)).with_context(|| format!("copy {}", path.display()))?;
        }
        let file = folder.join("Vagrantfile");
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        if !text.contains(&good) {
            bail!("the control for {provider} finds no {good:?} in the Vagrantfile");
        }
        fs::write(&file, text.replace(&good, &format!("{provider}.nonsense = ")))
            .with_context(|| format!("write {}", file.display()))?;
        let (ok, said) = self.validate(&folder, provider)?;
        let refused = !ok && said.contains("settings shouldn't exist: nonsense");
        passed(&format!("a setting that {provider} does not have is refused"), (refused, said))
    }

    /// `vagrant up` without packages: nothing is made, and the output names the command to type.
    fn without_packages(&self) -> Result<()> {
        let mut up = self.vagrant(&self.folder, PROVIDERS[0]);
        let (ok, said) = quietly(up.arg("up").env("MOORING_PACKAGES", self.at("empty")))?;
        let right = !ok && said.contains("cargo xtask package");
        passed("without packages it says how to build them", (right, said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_a_pattern() {
        let folder = tempfile::tempdir().unwrap();
        let pattern = format!("{}/vagrant-libvirt-*.gemspec", folder.path().display());
        assert!(!is_there(&pattern));
        fs::write(folder.path().join("vagrant-libvirt-0.11.2.gemspec"), "").unwrap();
        assert!(is_there(&pattern) && is_there("sh") && !is_there("/no/such/folder/x-*.y"));
    }
}
