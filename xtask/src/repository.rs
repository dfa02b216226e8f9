//! A folder that apt installs from: packages in `pool/`, signed lists of them in `dists/stable/`.
//!
//! What must never happen here: the secret key inside of the folder, which is made to be given
//! away.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use mooring_rig::packages;

use crate::package::said;

/// Name and address of a generated key.
const SIGNER: &str = "Mooring packages <packages@mooring.invalid>";

/// The suite, as a line of apt's sources names it.
const SUITE: &str = "stable";

/// The file that a machine needs in `/etc/apt/sources.list.d`, and no other: it holds the public
/// key.
pub(crate) fn sources(folder: &Path) -> PathBuf {
    folder.join("mooring.sources")
}

/// The public key, for `Signed-By`.
fn public_key(folder: &Path) -> PathBuf {
    folder.join("mooring.asc")
}

/// Adds packages, regenerates the lists and signs them: with `key` of the caller's own GnuPG, else
/// with one that lies beside the folder.
pub(crate) fn add(folder: &Path, key: Option<&str>, debs: &[PathBuf]) -> Result<()> {
    ensure_tools()?;
    let pool = folder.join("pool");
    let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
    let dist = folder.join("dists").join(SUITE);
    let lists = dist.join(format!("main/binary-{architecture}"));
    for made in [&pool, &lists] {
        fs::create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
    }
    for deb in debs {
        let name = deb.file_name().with_context(|| format!("{} has no name", deb.display()))?;
        fs::copy(deb, pool.join(name))
            .with_context(|| format!("copy {} into {}", deb.display(), pool.display()))?;
    }
    let list = said(Command::new("apt-ftparchive").args(["packages", "pool"]).current_dir(folder))
        .with_context(|| format!("list the packages in {}", pool.display()))?;
    write(&lists.join("Packages"), &format!("{list}\n"))?;
    let mut release = Command::new("apt-ftparchive");
    for (field, value) in [
        ("Origin", "Mooring"),
        ("Label", "Mooring"),
        ("Suite", SUITE),
        ("Codename", SUITE),
        ("Components", "main"),
        ("Architectures", architecture.as_str()),
    ] {
        release.args(["-o", &format!("APT::FTPArchive::Release::{field}={value}")]);
    }
    let release = said(release.args(["release", "."]).current_dir(&dist)).context("describe the suite")?;
    write(&dist.join("Release"), &format!("{release}\n"))?;
    Signer::new(folder, key)?.sign(folder, &dist)?;
    write_sources(folder)
}

/// Writes the file that machines copy.
fn write_sources(folder: &Path) -> Result<()> {
    let public = public_key(folder);
    let key = fs::read_to_string(&public).with_context(|| format!("read {}", public.display()))?;
    let absolute = std::path::absolute(folder).context("find the apt folder")?;
    write(&sources(folder), &sources_text(&absolute, &key))
}

/// Apt's deb822 form of a source. A field that goes on has a blank before each further line, and a
/// dot for an empty one.
fn sources_text(folder: &Path, key: &str) -> String {
    let place = folder.display().to_string().replace('%', "%25").replace(' ', "%20");
    let lines = key.lines().map(|line| if line.is_empty() { "." } else { line });
    let key: String = lines.flat_map(|line| [" ", line, "\n"]).collect();
    format!("Types: deb\nURIs: file:{place}\nSuites: {SUITE}\nComponents: main\nSigned-By:\n{key}")
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn ensure_tools() -> Result<()> {
    packages::install("an apt folder", || {
        [("apt-ftparchive", "apt-utils"), ("gpg", "gpg"), ("gpg-agent", "gpg-agent")]
            .into_iter()
            .filter(|(program, _)| packages::find(program).is_none())
            .map(|(_, package)| package)
            .collect()
    })
}

/// A key that can sign.
struct Signer {
    /// GnuPG's folder; `None`: the caller's own.
    home: Option<PathBuf>,
    key: String,
}

impl Signer {
    fn new(folder: &Path, key: Option<&str>) -> Result<Self> {
        if let Some(key) = key {
            return Ok(Self { home: None, key: key.to_owned() });
        }
        let mut home = OsString::from(folder.as_os_str());
        home.push("-key");
        let home = std::path::absolute(PathBuf::from(home)).context("find the key's folder")?;
        let signer = Self { home: Some(home.clone()), key: SIGNER.to_owned() };
        if !home.exists() {
            fs::create_dir_all(&home).with_context(|| format!("make {}", home.display()))?;
            fs::set_permissions(&home, fs::Permissions::from_mode(0o700))
                .with_context(|| format!("close {} to others", home.display()))?;
            let mut make = signer.gpg();
            make.args(["--passphrase", "", "--quick-generate-key", SIGNER, "ed25519", "sign", "never"]);
            said(&mut make)
                .with_context(|| format!("make a key for {} in {}", folder.display(), home.display()))?;
        }
        Ok(signer)
    }

    fn gpg(&self) -> Command {
        let mut gpg = Command::new("gpg");
        if let Some(home) = &self.home {
            gpg.arg("--homedir").arg(home);
        }
        gpg.args(["--batch", "--yes", "--quiet"]);
        gpg
    }

    fn sign(&self, folder: &Path, dist: &Path) -> Result<()> {
        let release = dist.join("Release");
        for (how, to) in [("--clear-sign", "InRelease"), ("--detach-sign", "Release.gpg")] {
            let mut sign = self.gpg();
            sign.args(["--armor", "--local-user", &self.key, "--output"]).arg(dist.join(to));
            said(sign.arg(how).arg(&release))
                .with_context(|| format!("sign {} with the key of {}", release.display(), self.key))?;
        }
        let public = public_key(folder);
        let mut export = self.gpg();
        export.args(["--armor", "--output"]).arg(&public).args(["--export", &self.key]);
        said(&mut export).with_context(|| format!("write the public key {}", public.display()))?;
        self.end_agent();
        Ok(())
    }

    /// Ends the process that GnuPG leaves behind to serve the key's folder.
    fn end_agent(&self) {
        if let Some(home) = &self.home {
            // The process ends by itself once its folder is gone.
            let _ = said(Command::new("gpgconf").arg("--homedir").arg(home).args(["--kill", "gpg-agent"]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_signed_by_one_key_that_lies_beside_it() {
        if ["apt-ftparchive", "gpg", "dpkg"].iter().any(|tool| packages::find(tool).is_none()) {
            println!("skipped: no tools for apt folders");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("apt");
        add(&folder, None, &[]).unwrap();
        let key = fs::read(public_key(&folder)).unwrap();
        add(&folder, None, &[]).unwrap();
        assert_eq!(fs::read(public_key(&folder)).unwrap(), key, "a second key");
        let home = dir.path().join("apt-key");
        assert_eq!(fs::metadata(&home).unwrap().permissions().mode() & 0o777, 0o700);
        let mut verify = Command::new("gpg");
        verify.arg("--homedir").arg(&home).args(["--batch", "--verify"]);
        said(verify.arg(folder.join("dists/stable/InRelease"))).unwrap();
        let signer = Signer::new(&folder, None).unwrap();
        signer.end_agent();
        let sources = fs::read_to_string(sources(&folder)).unwrap();
        assert!(sources.contains(&format!("\nURIs: file:{}\n", folder.display())), "{sources}");
        let held = sources.lines().filter(|line| line.starts_with(' ')).count();
        assert_eq!(held, String::from_utf8(key).unwrap().lines().count(), "the whole key");
    }

    #[test]
    fn a_source_of_apt_holds_the_key_line_by_line() {
        let text = sources_text(Path::new("/srv/my apt"), "-----BEGIN\n\nmDME\n-----END\n");
        assert_eq!(
            text,
            "Types: deb\nURIs: file:/srv/my%20apt\nSuites: stable\nComponents: main\nSigned-By:\n \
             -----BEGIN\n .\n mDME\n -----END\n"
        );
    }
}
