//! A controller's backup and restore under live I/O. The backup is made beside writers. Then
//! everything of the controller is lost after changes that the backup does not know, and the
//! restore undoes none of them. Writers notice nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use crate::control::{Control, PORT};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{BIN, Programs, Site, goes_on, going, number, progress};

const BACKUP: &str = "/srv/mooring/backup.db";
const KEYS: &str = "/srv/mooring/backup.key";
const STATE: &str = "/srv/mooring/controller";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("restored").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    let mut acts = Acts { site, control, evidence: Evidence::default() };
    let result = acts.all();
    if result.is_err() {
        acts.control.print_logs();
    }
    result?;
    agent.kill()?;
    drop(agent.wait()?);
    Ok(())
}

struct Acts<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
}

/// An attachment's id, and the writer on the disk.
struct Written {
    attachment: String,
    writer: Running,
}

impl Acts<'_> {
    fn all(&mut self) -> Result<()> {
        self.control.shared_type()?;
        let kept = self.control.volume("kept", None)?;
        let shared = self.control.volume("shared", Some("shared"))?;
        let revoked = self.control.volume("revoked", None)?;
        let first = self.written(&shared, "host1")?;
        let second = self.written(&kept, "host2")?;
        let before = self.control.attach(&revoked, "host1", "rw")?;
        let before = text(&before, "id")?.to_owned();
        let said = self.controller(&["backup", BACKUP, "--keys", KEYS])?;
        check(said.contains("3 volumes") && said.contains("3 attachments"), || said.clone())?;
        self.evidence.shows(format!("beside two writers: {}", said.lines().next().unwrap_or_default()));
        // The backup knows nothing of these changes.
        self.control.json(&["detach", &before])?;
        let third = self.written(&shared, "host2")?;
        let later = self.control.volume("later", None)?;
        self.loss(&[&first, &second, &third])?;
        let said = self.controller(&["restore", BACKUP, "--keys", KEYS])?;
        self.evidence.shows(said.lines().next().unwrap_or_default());
        self.control.start_controller()?;
        check(self.control.controller_log().contains("the database was restored"), || {
            self.control.controller_log()
        })?;
        self.reviews(&shared, &revoked, &kept, &later)?;
        for written in [&first, &second, &third] {
            goes_on(&written.writer)?;
        }
        self.grants(&shared, 2)?;
        self.grants(&revoked, 0)?;
        self.evidence.shows("the revoked grant stays away, the one that the backup does not know stays");
        // A correct database is no reason to cut off hosts that are logged in.
        let refused = self.control.mooring(&["volume", "confirm-review", &shared])?;
        check(refused.status.code() == Some(4), || format!("{refused:?}"))?;
        self.evidence.shows(format!("to confirm is refused: {}", refused.stderr.trim()));
        self.works(&kept, &second)?;
        for (name, written) in [("host1", first), ("host2", second), ("host2, later", third)] {
            self.no_error(name, written)?;
        }
        Ok(())
    }

    /// Attaches read-write, and writes stamps to the disk from then on.
    fn written(&self, volume: &str, host: &str) -> Result<Written> {
        let attached = self.control.attach(volume, host, "rw")?;
        let vm = self.site.rig.vm(host)?;
        let writer = Disk::new(vm, text(&attached, "device_path")?).write_stamps(&[])?;
        going(&writer)?;
        Ok(Written { attachment: text(&attached, "id")?.to_owned(), writer })
    }

    /// Runs a chore of the controller's program on its machine.
    fn controller(&self, args: &[&str]) -> Result<String> {
        let mut words = vec![format!("{BIN}/mooring-controller")];
        words.extend(args.iter().map(|&arg| arg.to_owned()));
        let done = self.site.storage()?.command(words).timeout(Duration::from_mins(2)).run()?.ok()?;
        Ok(done.stdout)
    }

    /// Kills the controller and removes its state folder, keys included. A restore beside a running
    /// controller is refused first.
    fn loss(&mut self, writers: &[&Written]) -> Result<()> {
        let storage = self.site.storage()?;
        let early =
            storage.run(&[&format!("{BIN}/mooring-controller"), "restore", BACKUP, "--keys", KEYS])?;
        check(!early.status.success() && early.stderr.contains("stop that one first"), || {
            format!("{early:?}")
        })?;
        self.control.kill_controller()?;
        storage.sh(&format!("rm -r {STATE}; mkdir -m 700 {STATE}"))?.ok()?;
        let unkeyed = storage.run(&[&format!("{BIN}/mooring-controller"), "restore", BACKUP])?;
        check(!unkeyed.status.success() && unkeyed.stderr.contains("--keys"), || format!("{unkeyed:?}"))?;
        for written in writers {
            goes_on(&written.writer)?;
        }
        self.evidence.shows("the controller is killed and its state folder lost: three writers go on");
        Ok(())
    }

    /// Waits until exactly the volumes that changed after the backup are in review, and everything
    /// that the backup does not know is named.
    fn reviews(&self, shared: &str, revoked: &str, kept: &str, later: &str) -> Result<()> {
        let problems = wait_for("the reviews that stay", Duration::from_secs(30), || {
            let hosts = self.control.json(&["host", "list"])?;
            let all: Vec<&str> = hosts["hosts"]
                .as_array()
                .context("no hosts")?
                .iter()
                .filter_map(|host| host["problems"].as_array())
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let of =
                |volume: &str| all.iter().any(|text| text.contains("in review") && text.contains(volume));
            check(of(shared) && of(revoked) && !of(kept), || format!("{all:?}"))?;
            Ok(Some(all.into_iter().map(str::to_owned).collect::<Vec<_>>()))
        })?;
        for problem in problems {
            self.evidence.note(problem);
        }
        let missing = self.control.mooring(&["volume", "show", "later"])?;
        check(!missing.status.success(), || format!("{later}: {missing:?}"))
    }

    /// Waits until the kernel lets this many initiators in to this volume.
    fn grants(&self, volume: &str, wanted: usize) -> Result<()> {
        let shown = self.site.mooring(&["--json", "export", "show", volume])?;
        let found = match serde_json::from_str::<Value>(&shown.stdout) {
            Ok(shown) => shown["export"]["grants"]
                .as_array()
                .map_or(0, |all| all.iter().filter(|grant| !grant["seen"].is_null()).count()),
            Err(_) => 0,
        };
        check(found == wanted, || format!("{found} grants of {volume}, not {wanted}: {shown:?}"))
    }

    /// A volume that did not change after the backup is served as before: it is attached again
    /// after its detach.
    fn works(&mut self, volume: &str, written: &Written) -> Result<()> {
        check(progress(&written.writer)?["errors"] == 0, || "errors before the detach".to_owned())?;
        let live = self.control.live(&written.attachment)?;
        check(live["session"] == true, || format!("{live}"))?;
        let size = self.control.json(&["volume", "extend", volume, "--size", "2GiB", "--timeout", "300"])?;
        check(size["size_gib"] == 2, || format!("{size}"))?;
        self.evidence
            .shows("a volume that did not change after the backup is attached as before, and is extended");
        Ok(())
    }

    fn no_error(&mut self, name: &str, written: Written) -> Result<()> {
        goes_on(&written.writer)?;
        let seen = progress(&written.writer)?;
        check(number(&seen, "errors")? == 0, || format!("{name}: {seen}"))?;
        written.writer.kill()?;
        drop(written.writer.wait()?);
        let (done, gap) = (number(&seen, "done")?, number(&seen, "longest_gap_ms")?);
        self.evidence.shows(format!("{name}: {done} writes, 0 errors, longest gap {gap} ms"));
        Ok(())
    }
}
