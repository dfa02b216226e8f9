//! A backing device that does not answer: the kernel's teardown blocks, and nothing can free it
//! from above. An operator who does not want to wait isolates the volume: its hosts get errors at
//! once, and its data returns with its table.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running};
use serde_json::Value;

use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::Host;
use crate::site::{Programs, Site, TARGET, going, metrics_table};

const PORTAL: &str = "10.10.0.10:3260";
/// Another initiator that may write; it need not exist.
const SECOND: &str = "iqn.2026-01.test.mooring:second";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("stuck"), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let mut evidence = Evidence::default();
    let agent = site.start_agent_with(&metrics_table())?;
    let host = Host::start(site.rig.vm("host1")?)?;
    let storage = site.storage()?;
    let created = site.json(&["volume", "create", "hangs", "--size", "16MiB"])?;
    let device = created["volume"]["device"].as_str().context("device")?.to_owned();
    site.json(&["volume", "create", "other", "--size", "16MiB"])?;
    let granted = site.json(&["export", "grant", "hangs", "--initiator", &host.iqn, "--mode", "rw"])?;
    let target = granted["target"].as_str().context("target")?.to_owned();
    site.json(&["export", "grant", "hangs", "--initiator", SECOND, "--mode", "rw"])?;
    host.login(&target, PORTAL, None, 10)?.ok()?;
    let disk = host.disk(&target, PORTAL)?;
    let writer = disk.write_stamps(&["--threads", "4"])?;
    going(&writer)?;
    storage.sh(&format!("dmsetup suspend --noflush {device}"))?.ok()?;
    std::thread::sleep(Duration::from_secs(1));

    unproven(site, &host, &mut evidence)?;
    second_is_shut_out(site, &target, &mut evidence)?;
    others_go_on(site, &host, &mut evidence)?;
    let (killed, agent) = killed_it_is_followed(site, agent, &host, &mut evidence)?;

    storage.sh(&format!("dmsetup resume {device}"))?.ok()?;
    wait_for("both receipts to turn proven", Duration::from_mins(1), || {
        let shown = site.json(&["export", "show", "hangs"])?;
        let proven = |initiator: &str| {
            let is = |receipt: &Value| receipt["initiator"] == initiator && receipt["proven"] == true;
            shown["receipts"].as_array().is_some_and(|all| all.iter().any(is))
        };
        Ok((proven(&host.iqn) && proven(SECOND)).then_some(()))
    })?;
    evidence.shows("the backend answers again: the receipts turn proven");
    drop(killed.wait()?);
    evidence.shows("and the killed agent's last thread is gone");
    writer.kill()?;
    host.logout(&target)?;
    drop(writer.wait()?);
    cut_off(site, &host, &device, &mut evidence)?;
    site.json(&["export", "revoke", "other", "--initiator", &host.iqn])?;
    site.json(&["volume", "delete", "hangs"])?;
    site.json(&["volume", "delete", "other"])?;
    agent.kill()
}

/// The answer comes although the kernel's teardown does not return.
fn unproven(site: &Site, host: &Host<'_>, evidence: &mut Evidence) -> Result<()> {
    let began = Instant::now();
    let revoke = ["--json", "export", "revoke", "hangs", "--initiator", &host.iqn, "--force"];
    let out = site.mooring(&revoke)?;
    let took = began.elapsed();
    let answer: serde_json::Value =
        serde_json::from_str(&out.stdout).with_context(|| format!("{} {}", out.stdout, out.stderr))?;
    let receipt = &answer["receipt"];
    check(out.status.code() == Some(5) && receipt["proven"] == false, || {
        format!("exit {:?}: {answer}", out.status.code())
    })?;
    let may_land = receipt["may_still_land"].as_u64().context("may_still_land")?;
    check(may_land >= 1, || format!("with writes in flight nothing may still land? {answer}"))?;
    evidence.shows(format!(
        "suspended backend: the answer comes after {:.1} s: unproven, {may_land} commands may still land",
        took.as_secs_f64()
    ));
    Ok(())
}

/// Another initiator that is revoked loses the disk beside the hanging call, although its receipt
/// must wait for that.
fn second_is_shut_out(site: &Site, target: &str, evidence: &mut Evidence) -> Result<()> {
    let link = format!("find {TARGET}/iscsi/{target}/tpgt_1/acls/{SECOND}/ -mindepth 2 -type l");
    let mapped = || Ok::<_, anyhow::Error>(!site.storage()?.sh(&link)?.ok()?.stdout.trim().is_empty());
    check(mapped()?, || "the control: the second initiator is mapped".to_owned())?;
    let out = site.mooring(&["--json", "export", "revoke", "hangs", "--initiator", SECOND, "--force"])?;
    check(out.status.code() == Some(5), || format!("a revoke behind one that hangs: {out:?}"))?;
    wait_for("the second initiator to be shut out", Duration::from_secs(30), || {
        Ok((!mapped()?).then_some(()))
    })?;
    evidence.shows("another initiator that is revoked meanwhile is unmapped beside the call that hangs");
    Ok(())
}

/// Other volumes, and the report of the stuck one, do not wait for it.
fn others_go_on(site: &Site, host: &Host<'_>, evidence: &mut Evidence) -> Result<()> {
    let other = site.json(&["export", "grant", "other", "--initiator", &host.iqn, "--mode", "rw"])?;
    check(other["done"] == true, || format!("another volume's grant waits for the stuck one: {other}"))?;
    evidence.shows(format!(
        "another volume is granted meanwhile in {} us",
        other["timing"]["seen_us"].as_u64().context("seen_us")?
    ));
    let shown = site.json(&["export", "show", "hangs"])?;
    let stuck =
        shown["export"]["stuck"]["step"].as_str().context("the stuck step is not reported")?.to_owned();
    check(stuck.contains("acls"), || format!("the stuck step is {stuck}"))?;
    evidence.shows(format!(
        "the stuck call is reported: `{stuck}` for {} ms",
        shown["export"]["stuck"]["since_ms"].as_u64().unwrap_or(0)
    ));
    let quarantined = site.mooring(&[
        "export",
        "grant",
        "hangs",
        "--initiator",
        "iqn.2026-01.test.mooring:newcomer",
        "--mode",
        "rw",
    ])?;
    check(quarantined.status.code() != Some(0) && quarantined.stderr.contains("quarantined"), || {
        format!(
            "a new writer on a volume with an unproven receipt: {:?} {}",
            quarantined.status, quarantined.stderr
        )
    })?;
    evidence.shows("the volume is quarantined for new writers");
    Ok(())
}

/// A killed agent cannot end while its thread hangs. The next one starts beside its remains.
/// Returns both agents.
fn killed_it_is_followed(
    site: &Site,
    agent: Running,
    host: &Host<'_>,
    evidence: &mut Evidence,
) -> Result<(Running, Running)> {
    let storage = site.storage()?;
    let pid = agent.pid()?;
    agent.signal(9)?;
    std::thread::sleep(Duration::from_secs(1));
    let left = storage.sh(&format!("cat /proc/{pid}/task/*/stat | grep -c ') D '"))?;
    check(left.line().trim().parse::<u32>().is_ok_and(|threads| threads > 0) && agent.is_running(), || {
        format!("the control: a killed agent is not gone while its call hangs: {left:?}")
    })?;
    let began = Instant::now();
    let next = site.start_agent_with(&metrics_table())?;
    evidence.shows(format!(
        "killed with -9, the agent stays with {} threads in the kernel; the next one listens where it did after {:.1} s",
        left.line().trim(),
        began.elapsed().as_secs_f64()
    ));
    check(next.stderr_so_far().contains("wait in the kernel"), || next.stderr_so_far())?;
    let counted = site.metric("mooring_agent_receipts_unproven")?;
    check(counted == 2, || format!("{counted} receipts are unproven, say its metrics"))?;
    let other = site.json(&["export", "grant", "other", "--initiator", SECOND, "--mode", "rw"])?;
    check(other["done"] == true, || format!("the next agent's grant of another volume: {other}"))?;
    let shown = site.json(&["export", "show", "hangs"])?;
    let unproven = |initiator: &str| {
        let is = |receipt: &Value| receipt["initiator"] == initiator && receipt["proven"] == false;
        shown["receipts"].as_array().is_some_and(|all| all.iter().any(is))
    };
    check(unproven(&host.iqn) && unproven(SECOND), || format!("while the call hangs: {shown}"))?;
    site.json(&["export", "revoke", "other", "--initiator", SECOND])?;
    evidence.shows("it grants and revokes another volume, and both receipts are unproven still");
    Ok((agent, next))
}

/// The volume hangs again, and its operator isolates it.
fn cut_off(site: &Site, host: &Host<'_>, device: &str, evidence: &mut Evidence) -> Result<()> {
    let storage = site.storage()?;
    let login = |volume: &str| {
        let granted = site.json(&["export", "grant", volume, "--initiator", &host.iqn, "--mode", "rw"])?;
        let target = granted["target"].as_str().context("target")?.to_owned();
        host.login(&target, PORTAL, None, 10)?.ok()?;
        Ok::<_, anyhow::Error>((host.disk(&target, PORTAL)?.path.clone(), target))
    };
    let ((disk, target), (bystander, other)) = (login("hangs")?, login("other")?);
    let sum = || {
        let out = host.vm.sh(&format!("dd if={disk} bs=1M iflag=direct 2>/dev/null | md5sum"))?.ok()?;
        Ok::<_, anyhow::Error>(out.stdout)
    };
    host.vm.sh(&format!("dd if=/dev/urandom of={disk} bs=1M count=16 oflag=direct 2>/dev/null"))?.ok()?;
    let before = sum()?;
    let refused = site.mooring(&["volume", "cut", "hangs"])?;
    check(refused.status.code() == Some(4) && refused.stderr.contains(&host.iqn), || {
        format!("a cut below a host that is logged in: {refused:?}")
    })?;
    storage.sh(&format!("dmsetup suspend --noflush {device}"))?.ok()?;
    let read = format!("dd if={disk} of=/dev/null bs=4k count=1 skip=99 iflag=direct");
    let hangs = host.vm.command(["sh", "-c", &read]).spawn()?;
    std::thread::sleep(Duration::from_secs(1));
    check(hangs.is_running(), || "the control: a read of a suspended device hangs".to_owned())?;
    let began = Instant::now();
    let cut = site.json(&["volume", "cut", "hangs", "--force"])?;
    check(cut["done"] == true && cut["cut"]["state"] == "in_force", || format!("cut: {cut}"))?;
    let out = hangs.wait()?;
    check(out.stderr.contains("Input/output error"), || format!("the read that hung: {out:?}"))?;
    evidence.shows(format!(
        "cut off below a host whose read hangs: that read has ended with an error {:.1} s after the command",
        began.elapsed().as_secs_f64()
    ));
    errors_at_once(site, host, device, (&disk, &bystander), evidence)?;
    let uncut = site.json(&["volume", "uncut", "hangs"])?;
    check(uncut["done"] == true && uncut["cut"].is_null(), || format!("uncut: {uncut}"))?;
    check(sum()? == before, || "its data is not what it was".to_owned())?;
    host.vm.sh(&format!("dd if=/dev/zero of={disk} bs=4k count=1 oflag=direct"))?.ok()?;
    evidence.shows("given back: its data is what it was, and its host writes again");
    let seen = host.vm.sh("dmesg | grep -i -e 'sense key' -e 'add. sense' | tail -2")?.stdout;
    evidence.note(format!("as the host saw it: {}", seen.trim().replace('\n', "; ")));
    host.logout(&target)?;
    host.logout(&other)?;
    site.json(&["export", "revoke", "hangs", "--initiator", &host.iqn])?;
    Ok(())
}

/// Errors that its host and others see at an isolated volume.
fn errors_at_once(
    site: &Site,
    host: &Host<'_>,
    device: &str,
    (disk, bystander): (&str, &str),
    evidence: &mut Evidence,
) -> Result<()> {
    let table = site.storage()?.sh(&format!("dmsetup table {device}"))?.ok()?.stdout;
    check(table.split_whitespace().nth(2) == Some("error"), || format!("the table is {table}"))?;
    let read = format!("dd if={disk} of=/dev/null bs=4k count=1 skip=99 iflag=direct");
    for io in [read, format!("dd if=/dev/zero of={disk} bs=4k count=1 oflag=direct")] {
        let out = host.vm.sh(&io)?;
        check(out.stderr.contains("Input/output error"), || format!("{io}: {out:?}"))?;
    }
    host.vm.sh(&format!("dd if=/dev/zero of={bystander} bs=4k count=16 oflag=direct"))?.ok()?;
    let shown = site.json(&["volume", "show", "hangs"])?;
    check(shown["cut"]["state"] == "in_force" && shown["phase"] == "ready", || format!("shown: {shown}"))?;
    evidence.shows(
        "reads and writes of its host end with errors at once; the other volume is written to as before",
    );
    let refused = site.mooring(&["volume", "extend", "hangs", "--size", "32MiB"])?;
    check(refused.stderr.contains("is cut off from its disk"), || {
        format!("extended while cut: {refused:?}")
    })?;
    Ok(())
}
