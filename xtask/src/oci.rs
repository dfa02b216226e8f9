//! The controller as an OCI image: mmdebstrap installs its package and Debian's into a folder, and
//! umoci makes the image. No daemon is involved. The test runs the image with runc.
//!
//! What must never happen here: a file in the image that no package brought, except the folders of
//! the two volumes; a key or a token in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use mooring_rig::{packages, sources_of};
use mooring_tests::packages::epoch;

use crate::package::said;

mod trial;

pub(crate) use trial::test;

/// The Debian release of the image.
const RELEASE: &str = "bookworm";

/// Id of the controller's user and group in the image: always the same, because files in its
/// volumes belong to it.
const USER: u32 = 8776;
/// Folders that are volumes: the configuration with its keys, and the database.
const VOLUMES: [&str; 2] = ["/etc/mooring", "/var/lib/mooring-controller"];

/// Packages of the image beside Debian's essential ones. The standalone programs replace systemd,
/// which the package's installation needs for the user and the folder. Certificates are for an
/// identity service with a certificate of a public authority.
const INCLUDE: &str =
    "mooring-controller,systemd-standalone-sysusers,systemd-standalone-tmpfiles,ca-certificates";

/// Files that no user of the image reads. Licences are kept.
const LEFT_OUT: [&str; 6] = [
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
];

/// Files left over from making it: the image has no apt.
const NOT_TAKEN: [&str; 4] = ["./etc/apt", "./var/lib/apt", "./var/cache/*", "./var/log/*"];

/// Allocator settings, equal to those of the controller's unit.
const MALLOC_CONF: &str = "MALLOC_CONF=narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Installs the tools that make and run an image.
fn ensure(tools: &[&'static str]) -> Result<()> {
    packages::ensure()?;
    packages::install("an OCI image", || {
        tools.iter().copied().filter(|tool| packages::find(tool).is_none()).collect()
    })
}

/// Makes the controller's image from this apt folder: an archive in `output`.
pub(crate) fn make(apt: &Path, version: &str, work: &Path, output: &Path) -> Result<PathBuf> {
    ensure(&["umoci"])?;
    let made = tempfile::Builder::new().prefix("image-").tempdir_in(work);
    let made = made.with_context(|| format!("make a folder in {}", work.display()))?;
    let root = made.path().join("root");
    fs::create_dir(&root).with_context(|| format!("make {}", root.display()))?;
    let tar = made.path().join("root.tar");
    said(&mut mmdebstrap(apt, &tar)?)
        .context("install the controller's package in a folder, by mmdebstrap")?;
    let mut unpack = Command::new("tar");
    unpack.args(["--numeric-owner", "-C"]).arg(&root).arg("-xpf").arg(&tar);
    unpack.args(NOT_TAKEN.map(|pattern| format!("--exclude={pattern}")));
    said(&mut unpack)?;
    let layout = made.path().join("layout");
    umoci(&root, &layout, version)?;
    let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
    let archive = output.join(format!("mooring-controller_{version}_{architecture}.oci.tar"));
    let mut pack = Command::new("tar");
    pack.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=go=rX,u+rw"]);
    pack.arg(format!("--mtime=@{}", epoch()?)).arg("-C").arg(&layout).arg("-cf").arg(&archive).arg(".");
    said(&mut pack).with_context(|| format!("write {}", archive.display()))?;
    Ok(archive)
}

/// Installs the packages into an archive with the timestamps of [`epoch`].
fn mmdebstrap(apt: &Path, tar: &Path) -> Result<Command> {
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.env("SOURCE_DATE_EPOCH", epoch()?.to_string());
    mmdebstrap.args(["--quiet", "--variant=essential", "--format=tar", &format!("--include={INCLUDE}")]);
    mmdebstrap.args(LEFT_OUT.map(|option| format!("--dpkgopt={option}")));
    // The package uses an existing user. It leaves to root what is the volume of a controller that
    // never runs as root.
    mmdebstrap.arg(format!(
        "--essential-hook=echo 'mooring-controller:x:{USER}:{USER}:Mooring controller:{}:/usr/sbin/nologin' >> \"$1/etc/passwd\"; \
         echo 'mooring-controller:x:{USER}:' >> \"$1/etc/group\"",
        VOLUMES[1]
    ));
    for folder in VOLUMES {
        mmdebstrap.arg(format!("--customize-hook=install -d -o {USER} -g {USER} -m 0700 \"$1{folder}\""));
    }
    mmdebstrap.arg(RELEASE).arg(tar).args(sources_of(RELEASE));
    mmdebstrap.arg(format!("deb [signed-by={0}/mooring.asc] copy:{0} stable main", apt.display()));
    Ok(mmdebstrap)
}

/// The tag of a version: tags allow fewer characters than Debian versions.
fn tag(version: &str) -> String {
    version.replace(['~', '+'], "-")
}

/// Makes the image of a folder, with one layer.
fn umoci(root: &Path, layout: &Path, version: &str) -> Result<()> {
    let image = format!("{}:{}", layout.display(), tag(version));
    let date =
        said(Command::new("date").args(["-u", "-d", &format!("@{}", epoch()?), "+%Y-%m-%dT%H:%M:%SZ"]))?;
    let umoci = |words: &[&str]| {
        let mut command = Command::new("umoci");
        said(command.args(words)).with_context(|| format!("umoci {}", words.first().unwrap_or(&"")))
    };
    umoci(&["init", "--layout", &layout.display().to_string()])?;
    umoci(&["new", "--image", &image])?;
    let by = "--history.created_by=cargo xtask package --image";
    let created = format!("--history.created={date}");
    let root = root.display().to_string();
    umoci(&["insert", "--image", &image, by, &created, &root, "/"])?;
    let labels = [
        ("title", "mooring-controller"),
        (
            "description",
            "The control plane of Mooring: volumes, types and attachments, over the Block Storage API v3",
        ),
        ("version", version),
        ("licenses", "Apache-2.0"),
        ("vendor", "Mooring maintainers"),
        ("created", &date),
    ];
    let mut words =
        vec!["config".to_owned(), "--image".to_owned(), image.clone(), by.to_owned(), created.clone()];
    words.extend([
        "--config.entrypoint=/usr/bin/mooring-controller".to_owned(),
        format!("--config.user={USER}:{USER}"),
        format!("--config.workingdir={}", VOLUMES[1]),
        "--config.exposedports=8776/tcp".to_owned(),
        "--config.stopsignal=SIGTERM".to_owned(),
        format!("--config.env={PATH}"),
        format!("--config.env={MALLOC_CONF}"),
        format!("--created={date}"),
        "--author=Mooring maintainers".to_owned(),
    ]);
    words.extend(VOLUMES.map(|volume| format!("--config.volume={volume}")));
    words.extend(
        labels.map(|(name, value)| format!("--config.label=org.opencontainers.image.{name}={value}")),
    );
    umoci(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
    umoci(&["gc", "--layout", &layout.display().to_string()])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_a_version_with_the_letters_of_tags() {
        assert_eq!(tag("0.1.0~400.gabcdef123+local"), "0.1.0-400.gabcdef123-local");
        assert_eq!(tag("0.1.0"), "0.1.0");
    }
}
