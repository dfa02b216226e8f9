//! Volumes from images, and image exports, on the real kernel, with the real `qemu-nbd` in its
//! sandbox: raw and qcow2 byte for byte, an agent that is killed during both, and a name that is
//! taken. Images that name other files of the storage node leak nothing; the control shows that
//! they would. Nothing is wiped at the end: other scenarios show that.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{RigOptions, Running};

use crate::control::{Control, PORT};
use crate::evidence::{Evidence, check, wait_for};
use crate::native::text;
use crate::site::{GROUP, Programs, Site, agent_config};

/// The image folder.
const IMAGES: &str = "/srv/mooring/images";
/// A text that no image may reveal.
const SECRET: &str = "root:the-secret-of-this-node";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("images").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn start_agent(site: &Site, more: &str) -> Result<Running> {
    let lines = format!("images_dir = \"{IMAGES}\"\n{more}");
    site.start_agent_by(&format!("{}thin_pool = \"2GiB\"\nwipe = \"none\"\n", agent_config(&lines)))
}

fn scenes(site: &Site) -> Result<()> {
    site.storage()?.sh(&format!("mkdir -p {IMAGES}"))?.ok()?;
    let agent = start_agent(site, "")?;
    let mut control = Control::prepare(site)?;
    control.start()?;
    control.json(&["type", "create", "thin", "--spec", "provisioning:type=thin"])?;
    control.json(&["type", "create", "thick", "--spec", "provisioning:type=thick"])?;
    let mut acts = Acts { site, control, evidence: Evidence::default() };
    let result = acts.all(agent);
    if result.is_err() {
        acts.control.print_logs();
    }
    result
}

struct Acts<'a> {
    site: &'a Site,
    control: Control<'a>,
    evidence: Evidence,
}

impl Acts<'_> {
    fn all(&mut self, agent: Running) -> Result<()> {
        self.make_images()?;
        self.both_formats()?;
        self.exported()?;
        self.evil()?;
        let agent = self.killed(agent)?;
        for name in ["raw", "qcow2", "again"] {
            self.control.json(&["volume", "delete", name, "--timeout", "240"])?;
        }
        let left = self.storage(&format!("lvs --noheadings -o lv_name {GROUP}"))?;
        check(left.trim() == "mooring-pool", || format!("left behind: {left}"))?;
        agent.kill()?;
        drop(agent.wait()?);
        Ok(())
    }

    fn storage(&self, script: &str) -> Result<String> {
        Ok(self.site.storage()?.sh(script)?.ok()?.stdout)
    }

    /// Makes a disk with data, holes, and data at its very end; and old data where the volumes will
    /// be.
    fn make_images(&self) -> Result<()> {
        self.storage(&format!(
            "cd {IMAGES}; dd if=/dev/urandom of=disk.raw bs=1M count=24 2>/dev/null; truncate -s 96M disk.raw; \
             dd if=/dev/urandom of=disk.raw bs=64k count=1 seek=1535 conv=notrunc 2>/dev/null; \
             qemu-img convert -q -c -f raw -O qcow2 disk.raw disk.qcow2; \
             lvcreate -q -y -Wn -Zn -n dirt -L 1100M {GROUP} >&2; \
             yes 'old data' | dd of=/dev/{GROUP}/dirt bs=1M count=128 iflag=fullblock oflag=direct 2>/dev/null; \
             lvremove -q -y {GROUP}/dirt >&2"
        ))?;
        Ok(())
    }

    fn import(
        &self,
        name: &str,
        image: &str,
        format: &str,
        kind: &str,
        wait: &str,
    ) -> Result<mooring_rig::Output> {
        self.control.mooring(&[
            "--json",
            "volume",
            "import",
            name,
            "--image",
            image,
            "--format",
            format,
            "--size",
            "1GiB",
            "--host",
            "storage",
            "--type",
            kind,
            "--timeout",
            wait,
        ])
    }

    fn device(&self, name: &str) -> Result<String> {
        let shown = self.control.json(&["volume", "show", name])?;
        Ok(format!("/dev/{GROUP}/mooring-{}", text(&shown, "id")?))
    }

    /// Checks that the LV has the image byte for byte, and zeros after it: where old data was, and
    /// at its end.
    fn holds_the_image(&self, name: &str) -> Result<()> {
        let device = self.device(name)?;
        let rest = self.storage(&format!(
            "cmp -n 100663296 {IMAGES}/disk.raw {device} && \
             (dd if={device} bs=1M skip=96 count=64 iflag=direct; dd if={device} bs=1M skip=1016 iflag=direct) 2>/dev/null | \
             tr -d '\\000' | wc -c"
        ))?;
        check(rest.trim() == "0", || format!("{} bytes of something behind the image in {name}", rest.trim()))
    }

    fn both_formats(&mut self) -> Result<()> {
        for (name, image, format, kind) in
            [("raw", "disk.raw", "raw", "thick"), ("qcow2", "disk.qcow2", "qcow2", "thin")]
        {
            self.import(name, image, format, kind, "240")?.ok()?;
            self.holds_the_image(name)?;
        }
        let used = self.storage(&format!("lvs --noheadings -o data_percent {GROUP}/mooring-pool"))?;
        let percent: f64 = used.trim().parse().with_context(|| used.clone())?;
        // 32 MiB of 2 GiB; the whole volume would be 50 %.
        check(percent < 4.0, || format!("the thin pool is {percent} % full: holes were written"))?;
        self.evidence.shows(format!(
            "raw (thick) and compressed qcow2 (thin) byte for byte, zeros behind; the thin pool is {percent} % full"
        ));
        Ok(())
    }

    fn export(&self, name: &str, image: &str, format: &str, wait: &str) -> Result<mooring_rig::Output> {
        let words = ["volume", "export", name, "--image", image, "--format", format, "--timeout", wait];
        self.control.mooring(&words)
    }

    /// Checks that the file equals the imported volume, and takes no space for zeros.
    fn is_exported(&self, image: &str, format: &str) -> Result<()> {
        let size = "grep -o '\"virtual-size\": [0-9]*' | head -n 1";
        let seen = self.storage(&format!(
            "cd {IMAGES} && qemu-img compare -q -f raw -F {format} disk.raw {image} && \
             qemu-img info -f {format} --output=json {image} | {size}; du -m {image} | cut -f 1"
        ))?;
        let [said, mib] = seen.lines().collect::<Vec<_>>()[..] else { bail!("{image}: {seen}") };
        let whole =
            said.ends_with(" 1073741824") && mib.parse::<u64>().is_ok_and(|mib| (24..48).contains(&mib));
        check(whole, || format!("{image} as {format}: {seen}"))?;
        wait_for("the file's second name to go", Duration::from_secs(30), || {
            let all = self.storage(&format!("ls -A {IMAGES}"))?;
            Ok((!all.contains(".mooring-")).then_some(()))
        })
    }

    /// Exports both volumes, each in the format that it was not imported from; an existing file is
    /// left alone.
    fn exported(&mut self) -> Result<()> {
        for (name, image, format) in [("raw", "out.qcow2", "qcow2"), ("qcow2", "out.raw", "raw")] {
            self.export(name, image, format, "240")?.ok()?;
            self.is_exported(image, format)?;
        }
        self.storage(&format!("qemu-img check -q -f qcow2 {IMAGES}/out.qcow2"))?;
        let state = || self.storage(&format!("stat -c '%i %s %y' {IMAGES}/out.raw"));
        let before = state()?;
        let out = self.export("qcow2", "out.raw", "raw", "240")?;
        check(!out.status.success() && out.stderr.contains("exists already"), || {
            format!("a taken name: {} {}", out.stdout, out.stderr)
        })?;
        check(state()? == before, || "a file that was there is another one now".to_owned())?;
        let shown = self.control.json(&["volume", "show", "qcow2"])?;
        check(shown["status"] == "available", || shown.to_string())?;
        self.evidence.shows(
            "exported to qcow2 (thick, qemu-img check) and raw (thin), byte for byte with holes; a taken name is refused and left alone",
        );
        Ok(())
    }

    /// The job of this kind, once it has done something.
    fn job(&self, kind: &str) -> Result<u64> {
        wait_for(&format!("some of the {kind}"), Duration::from_mins(1), || {
            let jobs = self.control.json(&["job", "list"])?;
            let all = jobs["jobs"].as_array().cloned().unwrap_or_default();
            let job = all.into_iter().find(|job| job["kind"] == kind).unwrap_or_default();
            Ok(job["done_bytes"].as_u64().filter(|done| *done > 0))
        })
    }

    /// Images that name a file of the storage node. Control: read without the checks, they leak it.
    fn evil(&mut self) -> Result<()> {
        let leaks = self.storage(&format!(
            "printf '%s\\n' '{SECRET}' > /srv/mooring/secret; truncate -s 64k /srv/mooring/secret; cd {IMAGES}; \
             qemu-img create -q -f qcow2 -F raw -b /srv/mooring/secret backed.qcow2 64k; \
             qemu-img create -q -f qcow2 -o data_file=/srv/mooring/data,data_file_raw=on data.qcow2 64k; \
             cp /srv/mooring/secret /srv/mooring/data; ln -s /srv/mooring/secret link.raw; mkfifo pipe.raw; \
             for image in backed data; do qemu-img convert -q -f qcow2 -O raw $image.qcow2 /run/out; \
             grep -c '{SECRET}' /run/out; done; rm /run/out"
        ))?;
        check(leaks.split_whitespace().eq(["1", "1"]), || format!("the control does not leak: {leaks}"))?;
        for (image, format, why) in [
            ("backed.qcow2", "qcow2", "backing file"),
            ("data.qcow2", "qcow2", "another file"),
            ("disk.raw", "qcow2", "no qcow2 image"),
            ("link.raw", "raw", "not a regular file"),
            ("pipe.raw", "raw", "not a regular file"),
            ("none.raw", "raw", "not there"),
        ] {
            let name = image.replace('.', "-");
            let out = self.import(&name, image, format, "thick", "240")?;
            check(!out.status.success(), || format!("{image} was imported: {}", out.stdout))?;
            let shown = self.control.json(&["volume", "show", &name])?;
            let fault = text(&shown, "fault").unwrap_or_default();
            check(shown["status"] == "error" && fault.contains(why), || format!("{image}: {shown}"))?;
            self.control.json(&["volume", "delete", &name, "--timeout", "240"])?;
        }
        let lvs = self.storage(&format!("lvs --noheadings -o lv_name {GROUP} | wc -l"))?;
        check(lvs.trim() == "3", || format!("an LV was made for a refused image: {lvs}"))?;
        self.evidence.shows(
            "images with a backing file and a data file leak a file of the node to qemu-img, and are refused; so are a link, a pipe, \
             another format and none",
        );
        Ok(())
    }

    /// Kills the agent with -9 while it copies, in both directions: nothing goes on writing, and
    /// the next agent starts both again.
    fn killed(&mut self, agent: Running) -> Result<Running> {
        agent.kill()?;
        drop(agent.wait()?);
        let agent = start_agent(self.site, "job_limit = \"4MiB\"\n")?;
        self.control.all_up_soon()?;
        let out = self.import("again", "disk.qcow2", "qcow2", "thick", "1")?;
        check(out.status.code() != Some(0), || format!("it was too fast: {}", out.stdout))?;
        let out = self.export("raw", "late.qcow2", "qcow2", "1")?;
        check(out.status.code() != Some(0), || format!("it was too fast: {}", out.stdout))?;
        let (done, exported) = (self.job("import")?, self.job("export")?);
        let parts = self.storage(&format!("ls -A {IMAGES} | grep -e late -e mooring"))?;
        check(parts.starts_with(".mooring-") && parts.lines().count() == 1, || {
            format!("in the middle: {parts}")
        })?;
        let inside = self.storage(
            "pid=$(pidof qemu-nbd | tr ' ' '\\n' | head -n 1); ls /proc/$pid/root | tr '\\n' ' '; \
             grep -c : /proc/$pid/net/dev; grep CapEff /proc/$pid/status",
        )?;
        let fits = ["bin image lib lib64 socket usr", "1", "CapEff:\t0000000000000000"];
        check(fits.iter().all(|part| inside.contains(part)), || format!("in the sandbox: {inside}"))?;
        self.evidence.shows(format!("in the sandbox: {}", inside.replace('\n', "; ")));
        agent.kill()?;
        drop(agent.wait()?);
        wait_for("qemu-nbd to go with its agent", Duration::from_secs(30), || {
            Ok((!self.site.storage()?.sh("pidof qemu-nbd")?.status.success()).then_some(()))
        })?;
        let tags =
            self.storage(&format!("lvs --noheadings -o lv_tags {GROUP} | grep -c mooring-importing"))?;
        if tags.trim() != "1" {
            bail!("the LV does not say that it is imported in part: {tags}");
        }
        let agent = start_agent(self.site, "")?;
        wait_for("the volume", Duration::from_mins(2), || {
            let shown = self.control.json(&["volume", "show", "again"])?;
            check(shown["status"] != "error", || shown.to_string())?;
            Ok((shown["status"] == "available").then_some(()))
        })?;
        self.holds_the_image("again")?;
        wait_for("the export", Duration::from_mins(2), || {
            let shown = self.control.json(&["volume", "show", "raw"])?;
            Ok((shown["status"] == "available").then_some(()))
        })?;
        self.is_exported("late.qcow2", "qcow2")?;
        self.evidence.shows(format!(
            "killed -9 behind {done} bytes of an import and {exported} of an export: qemu-nbd went with its agent, and the next one \
             did both from their beginning"
        ));
        Ok(agent)
    }
}
