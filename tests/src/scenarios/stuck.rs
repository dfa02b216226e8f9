//! A backing device that does not answer: the kernel's teardown blocks, and nothing can free it from above.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::RigOptions;

use crate::evidence::{Evidence, check, wait_for};
use crate::initiator::Host;
use crate::site::{Programs, Site, going};

const PORTAL: &str = "10.10.0.10:3260";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(1).named("stuck"), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let mut evidence = Evidence::default();
    let agent = site.start_agent()?;
    let host = Host::start(site.rig.vm("host1")?)?;
    let storage = site.storage()?;
    let created = site.json(&["volume", "create", "hangs", "--size", "16MiB"])?;
    let device = created["volume"]["device"].as_str().context("device")?.to_owned();
    site.json(&["volume", "create", "other", "--size", "16MiB"])?;
    let granted = site.json(&["export", "grant", "hangs", "--initiator", &host.iqn, "--mode", "rw"])?;
    let target = granted["target"].as_str().context("target")?.to_owned();
    host.login(&target, PORTAL, None, 10)?.ok()?;
    let disk = host.disk(&target, PORTAL)?;
    let writer = disk.write_stamps(&["--threads", "4"])?;
    going(&writer)?;
    storage.sh(&format!("dmsetup suspend --noflush {device}"))?.ok()?;
    std::thread::sleep(Duration::from_secs(1));

    unproven(site, &host, &mut evidence)?;
    others_go_on(site, &host, &mut evidence)?;

    storage.sh(&format!("dmsetup resume {device}"))?.ok()?;
    let proven = wait_for("the receipt to turn proven", Duration::from_secs(20), || {
        let shown = site.json(&["export", "show", "hangs"])?;
        Ok((shown["receipts"][0]["proven"] == true).then(|| shown["receipts"][0].clone()))
    })?;
    check(proven["initiator"] == host.iqn.as_str(), || format!("whose receipt is {proven}"))?;
    evidence.shows("the backend answers again: the receipt turns proven");
    writer.kill()?;
    host.logout(&target)?;
    drop(writer.wait()?);
    site.json(&["export", "revoke", "other", "--initiator", &host.iqn])?;
    site.json(&["volume", "delete", "hangs"])?;
    site.json(&["volume", "delete", "other"])?;
    agent.kill()
}

/// The answer comes although the kernel's teardown does not return.
fn unproven(site: &Site, host: &Host<'_>, evidence: &mut Evidence) -> Result<()> {
    let began = Instant::now();
    let revoke =
        ["--json", "--timeout", "5", "export", "revoke", "hangs", "--initiator", &host.iqn, "--force"];
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
