//! Tests the packages with apt: from the signed folder into a chroot of each supported Debian
//! release. No daemon runs there; the scenario `installed` shows systemd's use of the units.
//!
//! What must never happen here: a package that is accepted although its signature is not checked.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use mooring_rig::packages;
use mooring_rig::sources_of;

/// Supported releases: Debian 12 and 13.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];

/// Runs inside of mmdebstrap's hook: `$1` is the chroot, `$2` the folder with the repository, `$3`
/// the script for the chroot.
const HOOK: &str = r#"#!/bin/sh
set -eu
mkdir -p "$1/srv" "$1/etc/apt/keyrings"
cp -r "$2" "$1/srv/apt"
cp "$2/mooring.asc" "$1/etc/apt/keyrings/mooring.asc"
chmod -R a+rX "$1/srv/apt" "$1/etc/apt/keyrings"
cp "$3" "$1/srv/lifecycle"
chroot "$1" sh -eu /srv/lifecycle
"#;

/// The script that runs in each chroot. A failing line ends it, so no line joins two checks with
/// &&.
const LIFECYCLE: &str = r#"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
all='mooring-controller mooring-agent mooring'
line='file:/srv/apt stable main'

echo '-- a folder whose signature does not fit is refused'
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $line" > /etc/apt/sources.list.d/mooring.list
if apt-get update -q 2>&1 | grep -q 'srv/apt.*is not signed'; then :; else echo 'nobody refused it'; exit 1; fi

echo '-- install'
echo "deb [signed-by=/etc/apt/keyrings/mooring.asc] $line" > /etc/apt/sources.list.d/mooring.list
apt-get update -q >/dev/null
apt-get install -y -q --no-install-recommends $all </dev/null > /tmp/install 2>&1 || { cat /tmp/install; exit 1; }
grep 'not configured yet' /tmp/install
for program in mooring mooring-agent mooring-sessiond mooring-controller; do $program --version; done
getent group mooring
id mooring-controller | grep '(mooring)'
test "$(stat -c '%a %U %G' /etc/mooring)" = '750 root mooring'
test "$(dpkg-query -W -f '${Conffiles}' $all)" = ''
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

/// Installs, removes and purges the packages of this apt folder in a chroot of each release.
pub(crate) fn test(repository: &Path) -> Result<()> {
    packages::ensure()?;
    for release in RELEASES {
        let began = Instant::now();
        println!("== packages on {release}");
        one(repository, release).with_context(|| format!("the packages on Debian's {release}"))?;
        println!("== packages on {release}: {:.1} s", began.elapsed().as_secs_f64());
    }
    Ok(())
}

fn one(repository: &Path, release: &str) -> Result<()> {
    let work = tempfile::tempdir().context("make a folder for the hook")?;
    let (hook, lifecycle) = (work.path().join("hook"), work.path().join("lifecycle"));
    for (path, text) in [(&hook, HOOK), (&lifecycle, LIFECYCLE)] {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--quiet", "--variant=apt"]);
    mmdebstrap.arg(format!(
        "--customize-hook=sh '{}' \"$1\" '{}' '{}'",
        hook.display(),
        repository.display(),
        lifecycle.display()
    ));
    mmdebstrap.args([release, "/dev/null"]).args(sources_of(release));
    let status = mmdebstrap.status().context("start mmdebstrap")?;
    if !status.success() {
        bail!("mmdebstrap ended with {status}: see what it printed above (is the mirror reachable?)");
    }
    Ok(())
}
