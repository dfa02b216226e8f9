//! Types the pages that a new operator reads, exactly as written, in VMs under systemd: a
//! controller that is also a storage node, and two hosts that attach. The blocks run in their
//! order, each on the machine that its fence names.
//!
//! What must never happen here: a command that no page has, except those that stand for the reader:
//! the packages of apt's folder, the token and the lines that were printed, and the answers to what
//! a join cannot guess.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::options::workspace_root;
use mooring_rig::{Rig, Vm};

use super::installed::versions;
use super::packaged;
use crate::control::Control;
use crate::evidence::{Evidence, check, wait_for};
use crate::packages::VARIANTS;
use crate::papers::{Block, Typist, blocks};
use crate::site::{GROUP, Programs};

/// Time limit for each block: apt is slow where the processor is emulated.
const LIMIT: Duration = Duration::from_mins(10);

/// The storage node's name in the pages. It is also the controller.
const STORAGE: &str = "storage1";

/// Makes the VM a Debian whose packages start their daemons, and on which root can use sudo.
const READER: &str = "rm -f /usr/sbin/policy-rc.d; mkdir -p /etc/dpkg/dpkg.cfg.d /var/backups; \
    echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/rig; apt-get update -qq; \
    command -v sudo || { printf '#!/bin/sh\\nexec \"$@\"\\n' > /usr/local/bin/sudo; chmod 755 /usr/local/bin/sudo; }; touch /root/env";

/// The beginning of a join line, as `mooring host token` prints it.
const JOIN: &str = "mooring-agent join ";

/// Words of `init` before the token.
const SHOWN_ONCE: &str = "the admin's token, shown this once: ";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let agent = programs.path("mooring-agent")?;
    let folder = agent.parent().context("the folder of the programs")?;
    // On the same file system, because cargo-deb gets links to the programs.
    let work = tempfile::tempdir_in(folder).context("make a folder for the packages")?;
    let debs = versions(folder, work.path(), &["0.0.1"])?;
    let rig = Rig::up(programs.show_in(packaged::machines("papers", 2))?)?;
    let played = Reader::new(&rig).and_then(|mut reader| {
        let debs: Vec<_> = debs.iter().flatten().map(std::path::PathBuf::as_path).collect();
        reader.install(&debs)?;
        reader.read()
    });
    packaged::ended(&rig, played)
}

struct Reader<'a> {
    rig: &'a Rig,
    storage: &'a Vm,
    evidence: Evidence,
}

impl<'a> Reader<'a> {
    fn new(rig: &'a Rig) -> Result<Self> {
        Ok(Self { rig, storage: rig.vm("storage")?, evidence: Evidence::default() })
    }

    fn machine(&self, name: &str) -> Result<&'a Vm> {
        match name {
            "controller" | STORAGE => Ok(self.storage),
            host => self.rig.vm(host),
        }
    }

    /// Does the work of the page's `apt-get install`, with packages that were just built.
    fn install(&mut self, debs: &[&Path]) -> Result<()> {
        let disk = self.storage.data_disks().into_iter().next().context("a data disk")?;
        for vm in self.rig.vms() {
            let storage = vm.name() == self.storage.name();
            typed(vm, READER)?;
            let wanted =
                VARIANTS.iter().zip(debs).filter(|((_, variant), _)| storage || *variant != "controller");
            let mut files = String::new();
            for ((name, _), deb) in wanted {
                vm.push(deb, &format!("/tmp/{name}.deb"), 0o644)?;
                files.push_str(" /tmp/");
                files.push_str(name);
                files.push_str(".deb");
            }
            typed(vm, &format!("DEBIAN_FRONTEND=noninteractive apt-get install -y -qq{files}"))?;
        }
        typed(self.storage, &format!("pvcreate -q {disk}; vgcreate -q {GROUP} {disk}"))?;
        self.evidence.shows("packages are installed on a controller with a volume group, and on two hosts");
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        for block in blocks(&workspace_root(), Typist::Scenario)? {
            let vm = self.machine(&block.at)?;
            let said = typed(vm, &block.text).with_context(|| format!("{}:\n{}", block.place, block.text))?;
            self.takes(&said)?;
            self.joins(&block, &said)?;
            self.evidence.shows(format!(
                "{} on {}: {} lines",
                block.place,
                block.at,
                block.text.lines().count()
            ));
        }
        self.settled()
    }

    /// Stores the printed token on each machine where `mooring` is typed.
    fn takes(&self, said: &str) -> Result<()> {
        let Some(token) = said.lines().find_map(|line| line.strip_prefix(SHOWN_ONCE)) else { return Ok(()) };
        let controller = said
            .split_whitespace()
            .find_map(|word| word.strip_prefix("MOORING_CONTROLLER="))
            .with_context(|| format!("no address in {said}"))?;
        for vm in self.rig.vms() {
            let ca = if vm.name() == self.storage.name() { "authority.crt" } else { "agent-ca.crt" };
            let env = format!(
                "export MOORING_CONTROLLER={controller} MOORING_CA=/etc/mooring/{ca} MOORING_TOKEN={}\n",
                token.trim()
            );
            vm.write("/root/env", env.as_bytes(), 0o600)?;
        }
        Ok(())
    }

    /// Types each printed join line on its machine, with answers to its questions.
    fn joins(&self, block: &Block, said: &str) -> Result<()> {
        let names = block
            .text
            .lines()
            .filter_map(|line| line.split_once("host token "))
            .filter_map(|(_, rest)| rest.split_whitespace().next());
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| line.starts_with(JOIN)).collect();
        let names: Vec<&str> = names.collect();
        check(names.len() == lines.len(), || format!("{}: {names:?} and {lines:?}", block.place))?;
        for (name, line) in names.into_iter().zip(lines) {
            let vm = self.machine(name)?;
            let answers = if name == STORAGE {
                format!("--portal {} --group {GROUP}", vm.ip(0))
            } else {
                String::new()
            };
            typed(vm, &format!("{line} --address {}:7710 {answers}", vm.ip(0)))
                .with_context(|| format!("the join of {name}"))?;
            self.until_up(&[name])?;
        }
        Ok(())
    }

    /// Waits for the state that a reader expects in `mooring host list`. Returns the list.
    fn until_up(&self, names: &[&str]) -> Result<String> {
        wait_for(&format!("{names:?} to be up"), Duration::from_mins(1), || {
            let said = typed(self.storage, "mooring --json host list")?;
            let read: serde_json::Value = serde_json::from_str(&said).with_context(|| said.clone())?;
            let hosts = read["hosts"].as_array().context("no hosts")?;
            let up = |name: &&str| hosts.iter().any(|host| host["name"] == *name && host["up"] == true);
            if !names.iter().all(up) {
                bail!("{said}");
            }
            Ok(Some(said))
        })
    }

    /// After the last page every host is up, and nothing is in review.
    fn settled(&mut self) -> Result<()> {
        let said = self.until_up(&[STORAGE, "host1", "host2"])?;
        check(!said.contains("in review"), || said.clone())?;
        self.evidence.shows("after the last page every host is up, and nothing is in review");
        Ok(())
    }
}

/// Shell text of a reader whose detach or fence is pending. On a busy machine a proof may take
/// longer than 5 s: then the reader types the command that the answer names, which is the detach by
/// the attachment's id, or the same fence.
fn mooring_until_done() -> String {
    let again = Control::repeated("command mooring \"$@\"");
    format!(
        r#"mooring() {{
case "$*" in detach*|"host fence"*) ;; *) command mooring "$@"; return;; esac
local a s=0
a=$(command mooring "$@") || s=$?
printf '%s\n' "$a"
[ $s = 5 ] || return $s
a=$(printf '%s\n' "$a" | sed -n 's/.*`mooring \(detach [0-9a-f-]*[ a-z-]*\)`.*/\1/p')
[ -z "$a" ] || set -- $a
{again}
}}"#
    )
}

/// Types lines into a shell that ends at the first failure. Returns their output.
fn typed(vm: &Vm, text: &str) -> Result<String> {
    let script = format!("[ ! -e /root/env ] || . /root/env\n{}\n{text}\n", mooring_until_done());
    Ok(vm.command(["bash", "-euc", &script]).timeout(LIMIT).run()?.ok()?.stdout)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A `mooring` that is pending at first, then gives the answer of its second call, with this
    /// exit status. It notes its words.
    fn typed_by_a_reader(words: &str, pending: &str, then: i32) -> (Option<i32>, String) {
        let folder = tempfile::tempdir().unwrap();
        let program = format!(
            "#!/bin/sh\necho \"$*\" >>{0}/said\n[ $(wc -l <{0}/said) = 1 ] || exit {then}\necho '{pending}'\nexit 5\n",
            folder.path().display()
        );
        let path = folder.path().join("mooring");
        std::fs::write(&path, program).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let script = format!("{}\n{words}\n", mooring_until_done());
        let ended = Command::new("bash").args(["-euc", &script]).env("PATH", path).output().unwrap();
        (ended.status.code(), std::fs::read_to_string(folder.path().join("said")).unwrap())
    }

    #[test]
    fn a_pending_command_is_followed_as_its_answer_says() {
        let id = "b0c1d2e3-0001-4002-8003-0000000000aa";
        let advice = format!("attachment {id}: NOT PROVEN yet; `mooring detach {id} --force` shows it");
        for (words, pending, next) in [
            ("mooring detach data --host host1 --force", advice.as_str(), format!("detach {id} --force")),
            (
                "mooring host fence host1 --reason 'it hangs'",
                "not proven",
                "host fence host1 --reason it hangs".to_owned(),
            ),
        ] {
            let (status, said) = typed_by_a_reader(words, pending, 0);
            assert_eq!((status, said.lines().nth(1)), (Some(0), Some(next.as_str())), "{said}");
            // Another failure is no success: not even "it is not there".
            assert_eq!(typed_by_a_reader(words, pending, 3).0, Some(1));
        }
        assert_eq!(typed_by_a_reader("mooring volume list", "", 0).0, Some(5));
    }
}
