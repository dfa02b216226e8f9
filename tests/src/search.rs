//! The search for a run's secrets on whole machines under systemd: in their journals, in databases
//! and stores, in every process's command line and environment, in world-readable files, and in the
//! output of `mooring`.
//!
//! Secrets are collected from where docs/security.md says that they are, and searched everywhere
//! else, in the forms of [`crate::leaks`]. Each class of places has a control: a planted text is
//! found there.
//!
//! What must never happen here: a class that is searched and has no control; a secret on a command
//! line of this search itself.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use data_encoding::BASE64;
use mooring_rig::{Running, Vm};

use crate::evidence::{check, wait_for};
use crate::leaks;

/// Time limit for one script: every file of a folder is read under emulation.
const LIMIT: Duration = Duration::from_mins(5);

/// The planted text; it has characters of every form.
const PLANTED: &str = "planted/secret?of=this&run+is~found";

/// Records each command line and each environment variable that it sees, once, with the name of its
/// process.
const SAMPLER: &str = r"
import os, time
os.umask(0o077)
seen, out = set(), open('/root/leaks/proc', 'a', buffering=1, errors='replace')
while True:
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            name = open(f'/proc/{pid}/comm').read().strip()
            line = open(f'/proc/{pid}/cmdline', 'rb').read().replace(b'\0', b' ')
            every = open(f'/proc/{pid}/environ', 'rb').read().split(b'\0')
        except OSError:
            continue
        for kind, text in [('cmdline', line)] + [('environ', one) for one in every]:
            one = (name, kind, text.decode('utf-8', 'replace').replace('\n', ' '))
            if one not in seen:
                seen.add(one)
                out.write('\t'.join(one) + '\n')
    time.sleep(0.1)
";

/// Prints `class<TAB>place<TAB>text` for every pattern that is found. Files from before the run do
/// not count.
const SEARCH: &str = r#"
P=/root/leaks/patterns
journalctl --sync
journalctl --no-pager -a -o export | grep -aoF -f $P | sort -u | sed 's/^/journal\tthe journal\t/'
find /var/lib/mooring /var/lib/mooring-controller /var/log -type f ! -name sealing.key -print0 2>/dev/null \
    | xargs -0 -r grep -aoHF -f $P | sort -u | sed 's/:/\t/; s/^/store\t/'
find /etc /run /var /tmp /usr/local -xdev -type f -perm -004 -cnewer /root/leaks/began -print0 \
    | xargs -0 -r grep -aoHF -f $P | sort -u | sed 's/:/\t/; s/^/readable\t/'
grep -aF -f $P /root/leaks/proc | sort -u | awk -F '\t' '{ print "process\t" $1 " " $2 "\t" $3 }'
true
"#;

/// Prints the secrets of a machine, `name<TAB>base64`, each from its place.
const COLLECT: &str = r"
import base64, glob, json, os
def say(name, secret):
    secret = secret.encode() if isinstance(secret, str) else secret
    if secret:
        print(name + '\t' + base64.b64encode(secret).decode())
for path in glob.glob('/sys/kernel/config/target/iscsi/*/tpgt_*/acls/*/auth/password*'):
    text = open(path).read().strip()
    if not text.startswith('NULL'):
        say('CHAP at the target', text)
for path in glob.glob('/run/mooring/sessiond/*.json'):
    wish = json.load(open(path))['wish']
    for chap in filter(None, [wish.get('chap'), wish.get('other_chap')]):
        say('CHAP at sessiond', chap['secret'])
        say('CHAP at sessiond', (chap.get('mutual') or ['', ''])[1])
for path in glob.glob('/etc/mooring/*.key') + glob.glob('/etc/mooring/*.pem') + glob.glob('/etc/mooring/controller/*.key'):
    text = open(path).read()
    body = text.partition('PRIVATE KEY-----\n')[2].partition('-----END')[0].split()
    for line in body[:2]:
        say('private key ' + path, line)
    # PKCS 8 of P-256: 36 bytes, then the key itself.
    if body:
        say('private key ' + path, base64.b64decode(''.join(body))[36:68])
for path in glob.glob('/var/lib/mooring*/sealing.key'):
    for line in open(path):
        if line.strip() and not line.startswith('#'):
            say('sealing key ' + path, line.strip())
            say('sealing key ' + path, base64.b64decode(line))
if os.path.exists('/root/mooring.env'):
    for line in open('/root/mooring.env'):
        if line.startswith('export MOORING_TOKEN='):
            say('token of the API', line.partition('=')[2].strip())
";

/// A place where a pattern was found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leak {
    class: String,
    place: String,
    text: String,
}

/// A search that runs while its machines work.
pub(crate) struct Search<'a> {
    machines: Vec<(&'a Vm, Running)>,
    secrets: BTreeMap<Vec<u8>, String>,
    said: Vec<(String, String)>,
}

impl<'a> Search<'a> {
    /// Begins to watch processes.
    pub(crate) fn begin(machines: impl IntoIterator<Item = &'a Vm>) -> Result<Self> {
        let mut watched = Vec::new();
        for vm in machines {
            vm.sh("mkdir -m 700 /root/leaks; touch /root/leaks/began; sleep 0.1")?.ok()?;
            let sampler = vm.command(["python3", "-"]).stdin(SAMPLER).spawn().context("watch processes")?;
            watched.push((vm, sampler));
        }
        Ok(Self { machines: watched, secrets: BTreeMap::new(), said: Vec::new() })
    }

    /// Adds a secret.
    pub(crate) fn knows(&mut self, name: &str, secret: &str) {
        if !secret.is_empty() {
            self.secrets.insert(secret.as_bytes().to_vec(), name.to_owned());
        }
    }

    /// Adds output of a command of `mooring`.
    pub(crate) fn heard(&mut self, command: &str, text: &str) {
        self.said.push((format!("the answer to mooring {command}"), text.to_owned()));
    }

    /// Collects the secrets that are on the machines now. Returns how many there are of each kind,
    /// by the first word.
    pub(crate) fn collect(&mut self) -> Result<BTreeMap<String, usize>> {
        for (vm, _) in &self.machines {
            let out = vm.command(["python3", "-"]).stdin(COLLECT).run()?.ok().context("collect secrets")?;
            for line in out.stdout.lines() {
                let (name, text) = line.split_once('\t').with_context(|| format!("a secret: {line:?}"))?;
                let secret = BASE64.decode(text.as_bytes()).context("a secret's base64")?;
                self.secrets.entry(secret).or_insert_with(|| format!("{name} of {}", vm.name()));
            }
        }
        let mut counts = BTreeMap::new();
        for name in self.secrets.values() {
            *counts.entry(name.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
        Ok(counts)
    }

    /// Searches everything for all secrets. Returns how many secrets and forms were searched; an
    /// error names a place.
    pub(crate) fn end(mut self) -> Result<String> {
        self.plant()?;
        self.said.push((
            "the planted answer".to_owned(),
            format!("it says {}", leaks::forms(PLANTED.as_bytes())[0]),
        ));
        self.secrets.insert(PLANTED.as_bytes().to_vec(), "planted".to_owned());
        let mut of: BTreeMap<String, &str> = BTreeMap::new();
        for (secret, name) in &self.secrets {
            of.extend(leaks::forms(secret).into_iter().map(|form| (form, name.as_str())));
        }
        let patterns = of.keys().fold(String::new(), |all, form| all + form + "\n");
        let named = self.secrets.iter().map(|(secret, name)| (name.as_str(), secret.as_slice()));
        let mut leaks = leaks::found(named, &self.said);
        check(leaks.iter().any(|leak| leak.starts_with("planted ")), || {
            "the control: no answer is searched".to_owned()
        })?;
        for (vm, _) in &self.machines {
            let found = search(vm, &patterns)?;
            let planted =
                |leak: &&Leak| of.iter().any(|(form, name)| *name == "planted" && leak.text.contains(form));
            for (class, places) in CONTROLS {
                for place in *places {
                    let there = found
                        .iter()
                        .filter(planted)
                        .any(|leak| leak.class == *class && leak.place.contains(place));
                    check(there, || {
                        format!("the control: what was planted in {place} of {} is not found", vm.name())
                    })?;
                }
            }
            for leak in found.iter().filter(|leak| !planted(leak) && !is_rightful(leak)) {
                let name = of
                    .iter()
                    .find(|(form, _)| leak.text.contains(*form))
                    .map_or("a secret", |(_, name)| *name);
                leaks.push(format!("{name} in {} ({}) of {}", leak.place, leak.class, vm.name()));
            }
        }
        leaks.retain(|leak| !leak.starts_with("planted "));
        check(leaks.is_empty(), || format!("secrets were found:\n{}", leaks.join("\n")))?;
        Ok(format!("{} secrets in {} forms", self.secrets.len() - 1, of.len()))
    }

    /// Plants the text in each class of places, in another form each.
    fn plant(&self) -> Result<()> {
        let forms = leaks::forms(PLANTED.as_bytes());
        let form = |at: usize| forms[at % forms.len()].clone();
        let readable = (3..8).fold(String::new(), |all, at| all + " '" + &form(at) + "'");
        let (journal, store, log, environ, line) = (form(0), form(1), form(2), form(8), form(9));
        let script = format!(
            r#"printf '%s\n' 'before {journal} after' | systemd-cat -t planted
mkdir -p /var/lib/mooring /var/lib/mooring-controller /usr/local/share
for at in /var/lib/mooring /var/lib/mooring-controller; do printf 'x\0%sy' '{store}' > $at/planted.db-wal; done
printf %s '{log}' > /var/log/planted
set --{readable}
for at in /etc /run /var /tmp /usr/local/share; do printf %s "$1" > $at/planted; chmod 644 $at/planted; shift; done
PLANTED='{environ}' sleep 60 >/dev/null 2>&1 &
python3 -c 'import time; time.sleep(60)' '{line}' >/dev/null 2>&1 &
"#
        );
        for (vm, _) in &self.machines {
            vm.command(["sh", "-eu"])
                .stdin(script.clone())
                .run()?
                .ok()
                .context("plant what is to be found")?;
            let seen = "grep -q PLANTED= /root/leaks/proc && grep -q 'time.sleep(60)' /root/leaks/proc";
            wait_for("the planted process is seen", LIMIT, || {
                Ok(vm.sh(seen)?.status.success().then_some(()))
            })?;
        }
        Ok(())
    }
}

/// The places of each class where the planted text must be found.
const CONTROLS: &[(&str, &[&str])] = &[
    ("journal", &["the journal"]),
    ("store", &["/var/lib/mooring/planted", "/var/lib/mooring-controller/planted", "/var/log/planted"]),
    (
        "readable",
        &["/etc/planted", "/run/planted", "/var/planted", "/tmp/planted", "/usr/local/share/planted"],
    ),
    ("process", &["python3 cmdline", "sleep environ"]),
];

/// Returns `true` for the rightful places beside those that secrets are collected from, as
/// docs/security.md names them: a token in the environment of its command, and a join token on the
/// command line of the only join that uses it.
fn is_rightful(leak: &Leak) -> bool {
    leak.class == "process"
        && match leak.place.rsplit_once(' ') {
            Some((_, "environ")) => leak.text.starts_with("MOORING_TOKEN="),
            Some((name, "cmdline")) => {
                name == "mooring-agent" && leak.text.starts_with("mooring-agent join ")
            }
            _ => false,
        }
}

fn search(vm: &Vm, patterns: &str) -> Result<Vec<Leak>> {
    let mut file = tempfile::NamedTempFile::new().context("make a file of patterns")?;
    file.write_all(patterns.as_bytes()).context("write the patterns")?;
    vm.push(file.path(), "/root/leaks/patterns", 0o600)?;
    let out = vm.command(["sh", "-u"]).stdin(SEARCH).timeout(LIMIT).run()?.ok()?;
    let mut found = Vec::new();
    for line in out.stdout.lines() {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        let (Some(class), Some(place), Some(text)) = (parts.next(), parts.next(), parts.next()) else {
            bail!("the search says {line:?}");
        };
        found.push(Leak { class, place, text });
    }
    Ok(found)
}
