//! The audit of a disk's users and their access, in `mooring attachment check` and in the problems
//! of the attachment.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::Running;
use serde_json::{Value, json};

use super::{Attached, HALF_MINUTE, Scene};
use crate::evidence::{check, wait_for};

/// Opens the disk with O_DIRECT, and keeps it open.
const DIRECT: &str = "import os, sys, time; f = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT); print('open', flush=True); time.sleep(600)";

/// Keeps nothing but a mapping (Python's own would keep a descriptor), and prints its first bytes
/// again and again.
const MAPPED: &str = "import ctypes, os, sys, time\n\
    c = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p; c.mmap.argtypes = [ctypes.c_void_p] + [ctypes.c_long] * 5\n\
    f = os.open(sys.argv[1], os.O_RDONLY); m = c.mmap(None, 4096, 1, 1, f, 0); os.close(f)\n\
    read = lambda: ctypes.string_at(m, 8).decode()\n\
    print('open', read(), flush=True)\n\
    while True: time.sleep(0.1); open('/run/mapped', 'w').write(read())";

/// A file system for one host only, in a mount namespace of its own.
const MOUNTED: &str =
    "mkfs.ext4 -q -F \"$0\" && mkdir -p /run/inner && mount \"$0\" /run/inner && echo open && exec sleep 600";

/// The acts on one attachment of host2 whose cache is off.
pub(super) struct Users<'a, 'b> {
    pub(super) scene: &'a mut Scene<'b>,
}

impl Users<'_, '_> {
    pub(super) fn acts(&mut self) -> Result<()> {
        self.scene.write()?;
        let (attached, _) = self.scene.attach(&["--cache", "off"])?;
        self.nobody(&attached)?;
        self.direct(&attached)?;
        self.buffered(&attached)?;
        self.mapped(&attached)?;
        self.mounted(&attached)?;
        self.scene.detach(&attached)
    }

    /// Returns the findings of a check, and its exit status.
    fn check(&self, attached: &Attached) -> Result<(Value, i32)> {
        let out = self.scene.control.mooring(&["attachment", "check", &attached.id, "--json"])?;
        let answer: Value =
            serde_json::from_str(&out.stdout).with_context(|| format!("the answer of a check: {out:?}"))?;
        let found = answer["check"].clone();
        check(found["unseen"] == json!([]), || format!("something could not be looked at: {found}"))?;
        Ok((found, out.status.code().unwrap_or(-1)))
    }

    /// The users except udev, which looks at disks for a moment.
    fn lasting(found: &Value) -> impl Iterator<Item = &Value> {
        let users = found["users"].as_array().into_iter().flatten();
        users.filter(|user| !user["name"].as_str().unwrap_or_default().contains("udev"))
    }

    /// Users as `KIND NAME ACCESS-OR-FILESYSTEM`.
    fn users(found: &Value) -> Vec<String> {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self::lasting(found)
            .map(|user| {
                let how = [&user["access"], &user["filesystem"]].map(word).concat();
                format!("{} {} {how}", word(&user["kind"]), word(&user["name"]))
            })
            .collect()
    }

    /// Waits until a check finds exactly these users. When a user closes the disk, udev looks at
    /// it, and the disk is busy for a moment.
    fn until_used_by(&self, attached: &Attached, wanted: &[&str]) -> Result<(Value, i32)> {
        wait_for(&format!("{wanted:?} to be the users"), HALF_MINUTE, || {
            let (found, status) = self.check(attached)?;
            Ok((Self::users(&found) == wanted).then_some((found, status)))
        })
    }

    /// Waits until the attachment itself has this problem; `None`: no problem.
    fn until_problem(&self, attached: &Attached, wanted: Option<&str>) -> Result<String> {
        wait_for(&format!("the problem {wanted:?}"), HALF_MINUTE, || {
            let live = self.scene.control.live(&attached.id)?;
            let problems = live["problems"].to_string();
            let ours = problems.contains("buffered_io") || problems.contains("unshared_filesystem");
            let so = wanted.map_or(!ours, |wanted| problems.contains(wanted));
            Ok(so.then_some(problems))
        })
    }

    fn run(&self, path: &str, words: &[&str]) -> Result<Running> {
        let keeper = self.scene.reader.command(words.iter().copied().chain([path])).spawn()?;
        check(keeper.wait_stdout("open", Duration::from_mins(2)), || {
            format!("nobody uses the disk: {}", keeper.stderr_so_far())
        })?;
        Ok(keeper)
    }

    fn nobody(&mut self, attached: &Attached) -> Result<()> {
        let (_, status) = self.until_used_by(attached, &[])?;
        check(status == 0, || format!("a check without problems ends with {status}"))
    }

    fn direct(&mut self, attached: &Attached) -> Result<()> {
        let keeper = self.run(&attached.path, &["python3", "-c", DIRECT])?;
        let (found, status) = self.until_used_by(attached, &["process python3 direct"])?;
        check(status == 0 && found["problems"] == json!([]), || format!("{status}: {found}"))?;
        Scene::close(keeper)?;
        self.scene.evidence.shows("a process that opened the disk with O_DIRECT is named, and is no problem");
        Ok(())
    }

    fn buffered(&mut self, attached: &Attached) -> Result<()> {
        let keeper = self.scene.keep_open(&attached.path, "3<", ":")?;
        let (found, status) = self.until_used_by(attached, &["process sleep buffered"])?;
        check(status == 1 && found["problems"][0]["code"] == "buffered_io", || format!("{status}: {found}"))?;
        let said = self.until_problem(attached, Some("buffered_io"))?;
        let pid = Self::lasting(&found).next().map(|user| format!("sleep (pid {})", user["pid"]));
        let pid = pid.context("a user of the disk")?;
        check(said.contains(&pid), || format!("{pid} is not in {said}"))?;
        Scene::close(keeper)?;
        // The next look finds that they are gone: a check makes it come at once.
        self.until_used_by(attached, &[])?;
        self.until_problem(attached, None)?;
        self.scene.evidence.shows(format!(
            "a process that reads buffered is named by a check, and as a problem of the attachment: {pid}"
        ));
        Ok(())
    }

    fn mapped(&mut self, attached: &Attached) -> Result<()> {
        let old = self.scene.on_target()?;
        let keeper = self.run(&attached.path, &["python3", "-c", MAPPED])?;
        let new = self.scene.write()?;
        // Another attachment on the same host has the cache dropped.
        let (second, _) = self.scene.attach(&["--cache", "off"])?;
        let seen = wait_for("what is mapped", HALF_MINUTE, || {
            let seen = self.scene.reader.sh("cat /run/mapped 2>/dev/null")?.stdout;
            Ok((!seen.is_empty()).then_some(seen))
        })?;
        check(seen == old, || format!("a mapped page was dropped: {seen}, and neither {old} nor {new}"))?;
        self.until_used_by(attached, &["process python3 mapped"])?;
        let said = self.until_problem(attached, Some("mapped pages cannot be dropped"))?;
        self.scene.detach(&second)?;
        Scene::close(keeper)?;
        self.scene.evidence.shows(format!(
            "a page that stays mapped is not dropped ({old} is read, and not {new}), and the audit says who has it: {said}"
        ));
        Ok(())
    }

    fn mounted(&mut self, attached: &Attached) -> Result<()> {
        let words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", MOUNTED];
        let keeper = self.run(&attached.path, &words)?;
        let (found, status) = self.until_used_by(attached, &["mount /run/inner ext4"])?;
        let codes = &found["problems"][0]["code"];
        check(status == 1 && codes == "unshared_filesystem", || format!("{status}: {found}"))?;
        self.until_problem(attached, Some("unshared_filesystem"))?;
        Scene::close(keeper)?;
        self.until_used_by(attached, &[])?;
        self.scene.evidence.shows(
            "ext4 on a disk whose cache is off is a problem, also when it is mounted in a namespace of its own only",
        );
        Ok(())
    }
}
