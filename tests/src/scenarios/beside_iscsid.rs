//! A distribution's iscsid and iscsiadm run beside three of our sessions under I/O, and touch none
//! of them. The control is a session made with an ordinary netlink port, which iscsid's start must
//! take over.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use crate::clients::Cinder;
use crate::control::{Control, PORT, TOKEN};
use crate::disk::Disk;
use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::{Credentials, Host};
use crate::native::{KernelSession, NativeHost, text};
use crate::site::{BIN, Programs, Site, number, progress};

/// Number of our sessions.
const OURS: usize = 3;
/// Time for which each action of iscsid is watched.
const MOMENT: Duration = Duration::from_secs(2);
const PORTAL: &str = "10.10.0.10:3260";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("beside").forward(PORT), programs)?;
    let result = scenes(&site);
    site.end(result)
}

/// One of our sessions, with a writer on it.
struct Ours<'a> {
    attachment: String,
    volume: String,
    /// ISID of the session at the target: iscsid would log in under one of its own.
    isid: String,
    writer: Running,
    disk: Disk<'a>,
}

fn scenes(site: &Site) -> Result<()> {
    let mut evidence = Evidence::default();
    let agent = site.start_agent()?;
    let mut control = Control::prepare(site)?;
    site.uses(&["mooring-attach-floor"])?;
    control.start()?;
    let ours = attach(site, &control)?;
    let before = sessions(&control.hosts[0])?;
    let host = Host::configure(site.rig.vm("host1")?)?;
    let stock = Stock::new(site, &control, &host)?;
    disturb(&host, &stock)?;
    check(sessions(&control.hosts[0])? == before, || "a session of ours is another one".to_owned())?;
    let mut gap = 0;
    for one in ours {
        gap = gap.max(undisturbed(site, &control, one)?);
    }
    evidence.shows(format!(
        "{OURS} sessions of ours under I/O; iscsid started, restarted, killed with -9; iscsiadm login, logout, rescan and \
         logout of all beside them: same kernel sessions, same ISIDs at the target, 0 errors, longest gap {gap} ms"
    ));
    let theft = control_is_stolen(site, &host, &stock)?;
    evidence.shows(format!(
        "control: a session made with an ordinary netlink port, as anybody's, is taken over by iscsid's start: {theft}"
    ));
    stock.remove()?;
    for attachment in control.json(&["attachment", "list"])?["attachments"].as_array().context("a list")? {
        control.json(&["detach", text(attachment, "id")?])?;
    }
    drop(agent);
    Ok(())
}

fn sessions(host: &NativeHost<'_>) -> Result<Vec<KernelSession>> {
    let mut all = host.sessions()?;
    all.retain(|session| session.creator == -1);
    all.sort_by_key(|session| session.sid);
    Ok(all)
}

fn attach<'a>(site: &'a Site, control: &Control<'a>) -> Result<Vec<Ours<'a>>> {
    let host = site.rig.vm("host1")?;
    (0..OURS)
        .map(|n| {
            let volume = control.volume(&format!("ours{n}"), None)?;
            let live = control.attach(&volume, "host1", "rw")?;
            let disk = Disk::new(host, text(&live, "device_path")?);
            let writer = disk.write_stamps(&["--threads", "1", "--seconds", "600"])?;
            let isid = isid_at(site, &volume)?.context("a session at the target")?;
            Ok(Ours { attachment: text(&live, "id")?.to_owned(), volume, isid, writer, disk })
        })
        .collect()
}

/// A volume that stock open-iscsi on host1 may reach, by python-cinderclient.
struct Stock {
    cinder: Cinder,
    attachment: String,
    target: String,
    user: String,
    secret: String,
}

impl Stock {
    fn new(site: &Site, control: &Control<'_>, host: &Host<'_>) -> Result<Self> {
        let volume = control.volume("stock", None)?;
        let url = format!("http://{}/v3", site.storage()?.forwarded(PORT)?);
        let cinder = Cinder::new(&url, TOKEN)?;
        let made = cinder.call(&["create", &volume, &host.iqn, "host1-stock", "rw"])?;
        let info = &made["connection_info"];
        Ok(Self {
            cinder,
            attachment: text(&made, "id")?.to_owned(),
            target: text(info, "target_iqn")?.to_owned(),
            user: text(info, "auth_username")?.to_owned(),
            secret: text(info, "auth_password")?.to_owned(),
        })
    }

    fn chap(&self) -> Credentials<'_> {
        Credentials { user: &self.user, secret: &self.secret, mutual: None }
    }

    fn remove(&self) -> Result<()> {
        self.cinder.call(&["delete", &self.attachment]).map(|_| ())
    }
}

/// Runs every action of iscsid and iscsiadm on a host, one after the other.
fn disturb(host: &Host<'_>, stock: &Stock) -> Result<()> {
    let vm = host.vm;
    vm.sh("iscsid")?.ok().context("start iscsid")?;
    sleep(MOMENT);
    // iscsid is two processes, and killing one ends the other, even between two calls of kill.
    vm.sh("pidof iscsid; kill $(pidof iscsid) || true; while pidof iscsid; do sleep 0.2; done; iscsid")?
        .ok()
        .context("restart iscsid")?;
    sleep(MOMENT);
    let listed = vm.sh("iscsiadm -m session")?.ok()?.stdout;
    check(listed.lines().count() == OURS, || format!("iscsiadm lists: {listed}"))?;
    host.login(&stock.target, PORTAL, Some(stock.chap()), 20)?.ok().context("iscsiadm logs in")?;
    vm.sh("iscsiadm -m session --rescan || true")?.ok()?;
    sleep(MOMENT);
    // This logs out of every session that iscsiadm may end: the stock one. Ours it cannot.
    vm.sh("iscsiadm -m node -u || true; iscsiadm -m session -u || true")?.ok()?;
    sleep(MOMENT);
    vm.sh("pidof iscsid; kill -9 $(pidof iscsid) || true; while pidof iscsid; do sleep 0.2; done; iscsid")?
        .ok()
        .context("kill iscsid and start it")?;
    sleep(MOMENT);
    Ok(())
}

/// ISID of a volume's only session at the target.
fn isid_at(site: &Site, volume: &str) -> Result<Option<String>> {
    let shown: Value = site.json(&["export", "show", volume])?;
    Ok(shown["export"]["grants"][0]["sessions"][0]["isid"].as_str().map(str::to_owned))
}

/// The longest gap of one of our sessions. Checks that it saw no error and is the same session.
fn undisturbed(site: &Site, control: &Control<'_>, one: Ours<'_>) -> Result<u64> {
    let seen = progress(&one.writer)?;
    one.writer.kill()?;
    drop(one.writer.wait()?);
    check(number(&seen, "errors")? == 0 && number(&seen, "done")? > 0, || {
        format!("writes to {}: {seen}", one.disk.path)
    })?;
    let mut last = Value::Null;
    wait_for("the attachment to be ready", Duration::from_secs(30), || {
        last = control.live(&one.attachment)?;
        Ok((last["session"] == true && last["host_phase"] == "ready").then_some(()))
    })
    .with_context(|| format!("{last}"))?;
    let isid = isid_at(site, &one.volume)?;
    check(isid.as_deref() == Some(one.isid.as_str()), || {
        format!("the target's session of {} was {}, and is {isid:?}", one.volume, one.isid)
    })?;
    number(&seen, "longest_gap_ms")
}

/// Control: a session made by the same daemon with another port id. iscsid logs in anew, under its
/// own ISID.
fn control_is_stolen(site: &Site, host: &Host<'_>, stock: &Stock) -> Result<String> {
    let vm = host.vm;
    vm.sh("kill -9 $(pidof iscsid) || true")?.ok()?;
    vm.write("/run/secret", stock.secret.as_bytes(), 0o600)?;
    let held = vm
        .command([
            &format!("{BIN}/mooring-attach-floor"),
            "--hold",
            "--ordinary-port",
            "--initiator",
            &host.iqn,
            "--target",
            &stock.target,
            "--portal",
            PORTAL,
            "--user",
            &stock.user,
            "--secret-file",
            "/run/secret",
        ])
        .timeout(Duration::from_mins(10))
        .spawn()?;
    let volume = stock.target.rsplit(':').next().unwrap_or_default();
    let ours = wait_for("the control's session", Duration::from_secs(30), || {
        check(held.is_running(), || format!("the control has ended: {}", held.stderr_so_far()))?;
        isid_at(site, volume)
    })?;
    vm.sh("iscsid")?.ok()?;
    let theirs = wait_for("iscsid to take the session over", Duration::from_secs(30), || {
        let now = isid_at(site, volume)?;
        Ok((now.as_deref() != Some(ours.as_str())).then(|| now.unwrap_or_else(|| "none".to_owned())))
    });
    held.kill()?;
    drop(held.wait()?);
    let theirs = theirs.context("the control was not stolen, so the proof above proves nothing")?;
    vm.sh("iscsiadm -m session -u || true; kill $(pidof iscsid) || true")?.ok()?;
    // Without the secret, which is not in sysfs, iscsid drops our connection and cannot make its
    // own.
    Ok(format!("the target's session with ISID {ours} became {theirs}"))
}
