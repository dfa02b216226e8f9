//! Tests the packages with apt: from the signed folder into a chroot of each supported Debian
//! release, by the lines that the pages have for it, and up to a newer version. No daemon runs
//! there; the scenario `installed` shows systemd's use of the units.
//!
//! What must never happen here: a package that is accepted although its signature is not checked; a
//! line of apt that a page has and nothing types.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use mooring_rig::packages;
use mooring_rig::sources_of;
use mooring_tests::packages::{VARIANTS, repack};
use mooring_tests::papers::{Typist, blocks};

use crate::package::said;
use crate::repository;

/// Supported releases: Debian 12 and 13.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];

/// Suffix that makes the version of the packages a newer one.
const NEWER: &str = "+newer";

/// Runs inside of mmdebstrap's hook: `$1` is the chroot, `$2` the apt folder with both versions,
/// `$3` the folder with the scripts for the chroot and with the lists of before the newer version.
/// The apt folder gets the place that the pages name. apt installs what packages recommend, as on
/// a machine, which mmdebstrap turns off.
const HOOK: &str = r#"#!/bin/sh
set -eu
mkdir -p "$1/srv"
cp -r "$2" "$1/srv/mooring-apt"
cp -r "$3" "$1/srv/trial"
mv "$1/srv/mooring-apt/dists" "$1/srv/trial/newer"
cp -r "$1/srv/trial/before" "$1/srv/mooring-apt/dists"
sed -i 's|^URIs: .*|URIs: file:/srv/mooring-apt|' "$1/srv/mooring-apt/mooring.sources"
chmod -R a+rX "$1/srv/mooring-apt"
echo 'APT::Install-Recommends "true";' > "$1/etc/apt/apt.conf.d/99recommends"
printf '#!/bin/sh\nexec "$@"\n' > "$1/usr/bin/sudo"
chmod 755 "$1/usr/bin/sudo"
chroot "$1" sh -eu /srv/trial/lifecycle
"#;

/// The script that runs in each chroot. A failing line ends it, so no line joins two checks with
/// &&.
const LIFECYCLE: &str = r#"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
all='mooring-controller mooring-agent mooring'
versions() { dpkg-query -W -f '${Version}\n' $all | sort -u; }

echo '-- a folder whose signature does not fit is refused'
other=/etc/apt/sources.list.d/other.list
echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] file:/srv/mooring-apt stable main' > $other
if apt-get update -q 2>&1 | grep -q 'srv/mooring-apt.*is not signed'; then :; else echo 'nobody refused it'; exit 1; fi
rm $other

echo '-- install, by the lines of the pages'
sh -eux /srv/trial/install </dev/null > /tmp/install 2>&1 || { cat /tmp/install; exit 1; }
test "$(grep -c 'not configured yet' /tmp/install)" = 2
for program in mooring mooring-agent mooring-sessiond mooring-controller; do $program --version; done
getent group mooring
id mooring-controller | grep '(mooring)'
test "$(stat -c '%a %U %G' /etc/mooring)" = '750 root mooring'
test "$(dpkg-query -W -f '${Conffiles}' $all)" = ''
test "$(find /var/lib/dpkg/info -name 'mooring*.templates' -o -name 'mooring*.config' | wc -l)" = 0
cd /etc/systemd/system/multi-user.target.wants
test -L mooring-agent.service
test -L mooring-controller.service
test ! -e mooring-sessiond.service
test -s /usr/share/man/man8/mooring-sessiond.8.gz
test -s /usr/share/man/man1/mooring-volume-create.1.gz
bash -n /usr/share/bash-completion/completions/mooring
. /usr/lib/os-release

echo '-- the example of the agent and a small configuration of the controller are taken'
cp /usr/share/doc/mooring-agent/examples/agent.example.toml /etc/mooring/agent.toml
test -s /usr/share/doc/mooring-controller/examples/controller.example.toml
cat > /etc/mooring/controller.toml <<'END'
tokens = "/etc/mooring/tokens.toml"
[[agents]]
name = "storage1"
address = "unix:/run/mooring/agent.sock"
END
mooring-agent --check
mooring-controller token --name ops --project admin --admin > /etc/mooring/tokens.toml 2>/dev/null
chgrp mooring-controller /etc/mooring/controller.toml /etc/mooring/tokens.toml
chmod 0640 /etc/mooring/controller.toml /etc/mooring/tokens.toml
setpriv --reuid mooring-controller --regid mooring-controller --init-groups mooring-controller --check
mkdir -p /var/lib/mooring /var/lib/mooring-controller
touch /var/lib/mooring/store /var/lib/mooring-controller/database /etc/mooring/of-the-operator

echo '-- installed again: what the operator has is kept'
echo '# mine' >> /etc/mooring/agent.toml
apt-get install -y -q --reinstall $all </dev/null >/dev/null 2>&1
tail -n 1 /etc/mooring/agent.toml | grep mine

echo '-- upgrade, by the line of the pages, once a newer version is in the folder'
files() { find /etc/mooring /var/lib/mooring /var/lib/mooring-controller -type f -exec sha256sum {} + | sort; }
was=$(versions)
kept=$(files)
rm -r /srv/mooring-apt/dists
cp -r /srv/trial/newer /srv/mooring-apt/dists
chmod -R a+rX /srv/mooring-apt
sh -eux /srv/trial/upgrade </dev/null > /tmp/upgrade 2>&1 || { cat /tmp/upgrade; exit 1; }
versions
test "$(versions)" = "$was@newer@"
test "$(files)" = "$kept"
tail -n 1 /etc/mooring/agent.toml | grep mine
mooring-agent --check

echo '-- remove'
apt-get remove -y -q $all </dev/null >/dev/null 2>&1
test -e /etc/mooring/agent.toml
test -e /var/lib/mooring/store
test ! -e /usr/bin/mooring-agent

echo '-- purge'
apt-get purge -y -q $all </dev/null 2>&1 | grep -E '^(mooring|  )' | tee /tmp/purge
test ! -e /etc/mooring/agent.toml
test ! -e /etc/mooring/controller.toml
test ! -e /etc/mooring/tokens.toml
test -e /var/lib/mooring/store
test -e /var/lib/mooring-controller/database
test -e /etc/mooring/of-the-operator
grep -q 'kept: /var/lib/mooring (' /tmp/purge
grep -q 'kept: /var/lib/mooring-controller' /tmp/purge
grep -q 'kept, as others may use it: /etc/mooring/of-the-operator' /tmp/purge
test "$(find /etc/systemd /var/lib/systemd -name '*mooring*' | wc -l)" = 0
test "$(dpkg -l 'mooring*' 2>/dev/null | grep -c '^[ir]')" = 0
echo "-- done on $PRETTY_NAME"
"#;

/// Installs, upgrades, removes and purges the packages in a chroot of each release: those of this
/// version, which are in the apt folder alone, and then the same under a newer one.
pub(crate) fn test(root: &Path, repository: &Path, debs: &[PathBuf], version: &str) -> Result<()> {
    packages::ensure()?;
    let work = tempfile::tempdir().context("make a folder for the trial of the packages")?;
    let (hook, trial) = (work.path().join("hook"), work.path().join("trial"));
    prepare(root, repository, &trial)?;
    write(&hook, HOOK)?;
    let newer = newer(debs, version, work.path())?;
    repository::add(repository, None, &newer)?;
    for release in RELEASES {
        let began = Instant::now();
        println!("== packages on {release}");
        one(&hook, repository, &trial, release)
            .with_context(|| format!("the packages on Debian's {release}"))?;
        println!("== packages on {release}: {:.1} s", began.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Makes the folder that the chroots get: their scripts, and the lists of the apt folder as it is
/// now.
fn prepare(root: &Path, repository: &Path, trial: &Path) -> Result<()> {
    fs::create_dir(trial).with_context(|| format!("make {}", trial.display()))?;
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(repository.join("dists")).arg(trial.join("before"));
    said(&mut copy).context("keep the lists of the apt folder")?;
    let typed = blocks(root, Typist::Apt)?;
    for step in ["install", "upgrade"] {
        let lines: Vec<_> =
            typed.iter().filter(|block| block.at == step).map(|block| block.text.as_str()).collect();
        if lines.is_empty() {
            bail!("no page has a block whose fence says `sh apt {step}`");
        }
        write(&trial.join(step), &lines.join("\n"))?;
    }
    write(&trial.join("lifecycle"), &LIFECYCLE.replace("@newer@", NEWER))
}

/// Packs the packages again, as a newer version.
fn newer(debs: &[PathBuf], version: &str, work: &Path) -> Result<Vec<PathBuf>> {
    VARIANTS
        .iter()
        .zip(debs)
        .map(|((name, _), deb)| {
            let to = work.join(format!("{name}_newer.deb"));
            repack(deb, &format!("{version}{NEWER}"), &to).map(|()| to)
        })
        .collect()
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn one(hook: &Path, repository: &Path, trial: &Path, release: &str) -> Result<()> {
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--quiet", "--variant=apt"]);
    mmdebstrap.arg(format!(
        "--customize-hook=sh '{}' \"$1\" '{}' '{}'",
        hook.display(),
        repository.display(),
        trial.display()
    ));
    mmdebstrap.args([release, "/dev/null"]).args(sources_of(release));
    let status = mmdebstrap.status().context("start mmdebstrap")?;
    if !status.success() {
        bail!("mmdebstrap ended with {status}: see what it printed above (is the mirror reachable?)");
    }
    Ok(())
}
