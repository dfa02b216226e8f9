//! libiscsi's whole test suite against a target of ours and against a bare LIO target on the same
//! storage node, test by test.
//!
//! What must never happen here: a test that a bare target passes and ours does not, without a
//! reason in [`SHUT`]; a test that hangs, whatever it sends.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, Running, Vm};

use super::reservations::{PORTAL, target};
use crate::evidence::{Evidence, check};
use crate::site::{GROUP, Programs, Site, TARGET};

/// The volume of the tests.
const VOLUME: &str = "77777777-2222-4333-8444-555555555555";

/// Tests that may pass at a bare target and not at ours: the beginning of their names, the names
/// that may fail, and the reason. Any of them may be skipped. They send what every export is
/// without, because the kernel looks at a command's claimed direction and not at its opcode
/// (lio.md, t).
const SHUT: [(&str, &[&str], &str); 6] = [
    (
        "SCSI.CompareAndWrite.",
        &["Simple", "DpoFua", "Miscompare", "Unwritten", "InvalidDataOutSize"],
        "emulate_caw=0: COMPARE AND WRITE that claims to read passes write_protect",
    ),
    (
        "SCSI.MultipathIO.CompareAndWrite",
        &["", "Async"],
        "emulate_caw=0: COMPARE AND WRITE that claims to read passes write_protect",
    ),
    (
        "SCSI.WriteSame10.",
        &WRITE_SAME,
        "max_write_same_len=0: WRITE SAME that claims to read zeroes past write_protect",
    ),
    (
        "SCSI.WriteSame16.",
        &WRITE_SAME,
        "max_write_same_len=0: WRITE SAME that claims to read zeroes past write_protect",
    ),
    (
        "SCSI.ExtendedCopy.",
        &["Simple", "ParamHdr", "DescrLimits", "DescrType", "ValidTgtDescr", "ValidSegDescr"],
        "emulate_3pc=0: EXTENDED COPY writes past write_protect",
    ),
    (
        "SCSI.ReceiveCopyResults.",
        &["CopyStatus", "OpParams"],
        "emulate_3pc=0: it asks for what EXTENDED COPY has done",
    ),
];

/// The tests of WRITE SAME.
const WRITE_SAME: [&str; 10] = [
    "Simple",
    "BeyondEol",
    "ZeroBlocks",
    "WriteProtect",
    "Unmap",
    "UnmapUnaligned",
    "UnmapUntilEnd",
    "UnmapVPD",
    "Check",
    "InvalidDataOutSize",
];

/// Least number of tests that a bare target passes, if the suite ran: some 120 do.
const PASSED_AT_LEAST: usize = 100;

/// Runs of a test at our target before it counts as worse. Some tests fail in some runs at a bare
/// target as well (`Reserve6.ITNexusLoss`).
const RUNS: usize = 3;

type Verdicts = BTreeMap<String, &'static str>;

pub(super) fn run(programs: &Programs) -> Result<()> {
    let site = Site::up(RigOptions::standard(2).named("libiscsi"), programs)?;
    let result = scenes(&site);
    site.end(result)
}

fn scenes(site: &Site) -> Result<()> {
    let agent = site.start_agent()?;
    let hosts = [site.rig.vm("host1")?, site.rig.vm("host2")?];
    let initiators = hosts.map(|host| format!("iqn.2026-01.test.mooring:{}", host.name()));
    site.json(&["volume", "create", "tests", "--size", "64MiB", "--id", VOLUME])?;
    for initiator in &initiators {
        site.json(&["export", "grant", VOLUME, "--initiator", initiator, "--mode", "rw"])?;
    }
    let target = target(VOLUME);
    let (ours, theirs) = (
        start_all(hosts[0], &initiators, &target)?,
        start_all(hosts[1], &initiators, &bare(site, &initiators)?)?,
    );
    let (ours, theirs) = (verdicts(&ours.wait()?.ok()?.stdout), verdicts(&theirs.wait()?.ok()?.stdout));
    compare(&ours, &theirs, |test| again(hosts[0], &initiators, &target, test))?;
    agent.kill()?;
    drop(agent.wait()?);
    Ok(())
}

/// Starts all tests on one target. Each suite has a process of its own: one that crashes or hangs
/// takes no other with it.
fn start_all(host: &Vm, initiators: &[String; 2], target: &str) -> Result<Running> {
    let [one, two] = initiators;
    let script = format!(
        "for suite in $(iscsi-test-cu -l 2>&1 | grep -E '^i?SCSI[.][^.]+$'); do echo \"Family: $suite\"; \
         timeout -k 10 300 iscsi-test-cu -v -d -i {one} -I {two} -t $suite iscsi://{PORTAL}/{target}/1 2>&1; done; true"
    );
    host.command(["sh", "-c", &script]).timeout(Duration::from_mins(40)).spawn()
}

/// Runs one test at our target again. Returns its verdict, and the end of what it said.
fn again(host: &Vm, initiators: &[String; 2], target: &str, test: &str) -> Result<(&'static str, String)> {
    let [one, two] = initiators;
    let script = format!(
        "echo 'Family: {}'; timeout -k 10 300 iscsi-test-cu -V -d -i {one} -I {two} -t {test} iscsi://{PORTAL}/{target}/1 2>&1; true",
        test.rsplit_once('.').map_or(test, |(suite, _)| suite)
    );
    let out = host.command(["sh", "-c", &script]).timeout(Duration::from_mins(6)).run()?.ok()?;
    let lines: Vec<&str> = out.stdout.lines().collect();
    let end = lines[lines.len().saturating_sub(25)..].join("\n");
    Ok((verdicts(&out.stdout).get(test).copied().unwrap_or("without a verdict"), end))
}

/// The reason why a test may have this verdict at our target; `None`: it may not. A test that hangs
/// or crashes, which leaves it without a verdict, never may.
fn shut(test: &str, verdict: &str) -> Option<&'static str> {
    let may = |suite: &str, fails: &[&str]| {
        test.strip_prefix(suite).is_some_and(|name| match verdict {
            "skipped" => true,
            "failed" => fails.contains(&name),
            _ => false,
        })
    };
    SHUT.iter().find(|(suite, fails, _)| may(suite, fails)).map(|(_, _, why)| *why)
}

fn number_of(all: &Verdicts, verdict: &str) -> usize {
    all.values().filter(|one| **one == verdict).count()
}

/// Compares test by test. What a bare target passes and ours does not is run `again`.
fn compare(
    ours: &Verdicts,
    theirs: &Verdicts,
    again: impl Fn(&str) -> Result<(&'static str, String)>,
) -> Result<()> {
    let mut evidence = Evidence::default();
    check(number_of(theirs, "passed") >= PASSED_AT_LEAST, || {
        format!("the suite did not run as it does elsewhere at a bare target: {theirs:?}")
    })?;
    let (mut worse, mut shut_out) = (String::new(), Vec::new());
    for test in theirs.iter().filter(|(_, verdict)| **verdict == "passed").map(|(test, _)| test) {
        let seen = ours.get(test).copied().unwrap_or("without a verdict");
        if seen == "passed" {
            continue;
        }
        let mut last = (seen, String::new());
        for _ in 1..RUNS {
            if last.0 != "passed" && shut(test, last.0).is_none() {
                last = again(test.as_str())?;
            }
        }
        if let Some(why) = shut(test, last.0) {
            evidence.note(format!("{test}: {}; {why}", last.0));
            shut_out.push(test.as_str());
        } else if last.0 == "passed" {
            evidence.note(format!("{test}: {seen} in the first run, passed when run again"));
        } else {
            write!(worse, "\n{test} passes at a bare target, and is {} at ours:\n{}", last.0, last.1)?;
        }
    }
    check(worse.is_empty(), || format!("libiscsi's tests, each run {RUNS} times:{worse}"))?;
    evidence.shows(format!(
        "libiscsi's tests, test by test: a bare LIO target passes {} of {}, ours {} of {}; worse at ours are {} that send what every \
         export is without",
        number_of(theirs, "passed"),
        theirs.len(),
        number_of(ours, "passed"),
        ours.len(),
        shut_out.len()
    ));
    Ok(())
}

/// Makes a bare target beside ours, on an LV beside ours, with the kernel's defaults.
pub(super) fn bare(site: &Site, initiators: &[String]) -> Result<String> {
    let bare = "iqn.2026-01.test.mooring:bare";
    let core = format!("{TARGET}/core/iblock_7/bare");
    let tpg = format!("{TARGET}/iscsi/{bare}/tpgt_1");
    let mut script = format!(
        "set -e; lvcreate -q -y -Wn -Zn -n bare -L 64M {GROUP}; mkdir -p {core}; \
         echo udev_path=/dev/{GROUP}/bare > {core}/control; echo 55555555-2222 > {core}/wwn/vpd_unit_serial; \
         echo 1 > {core}/enable; mkdir -p {tpg}/lun/lun_1; echo 0 > {tpg}/attrib/authentication; \
         ln -s {core} {tpg}/lun/lun_1/x; "
    );
    for initiator in initiators {
        let acl = format!("{tpg}/acls/{initiator}");
        write!(script, "mkdir -p {acl}/lun_1; ln -s {tpg}/lun/lun_1 {acl}/lun_1/x; ")?;
    }
    write!(script, "mkdir {tpg}/np/{PORTAL}; echo 1 > {tpg}/enable")?;
    site.storage()?.sh(&script)?.ok().context("make the bare target")?;
    Ok(bare.to_owned())
}

/// The verdict of each test, which may stand lines after its name.
pub(super) fn verdicts(said: &str) -> Verdicts {
    let (mut all, mut family, mut test, mut skips) = (BTreeMap::new(), "", None, false);
    for line in said.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Family: ") {
            (family, test) = (name, None);
        }
        let begins = line.strip_prefix("Test: ").and_then(|line| line.split_once(" ..."));
        let rest = begins.map_or(line, |(name, rest)| {
            (test, skips) = (Some(format!("{family}.{name}")), false);
            rest
        });
        skips |= rest.contains("[SKIPPED]");
        let verdict = match rest {
            "passed" if skips => "skipped",
            "passed" => "passed",
            "FAILED" => "failed",
            _ => continue,
        };
        all.extend(test.take().map(|test| (test, verdict)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_those_of_suite_and_test() {
        let said = "Family: SCSI.Read10\nSuite: Read10\n  Test: Simple ...passed\n  Test: Flags ...\n    \
                    [SKIPPED] no DPO\npassed\n  Test: Invalid ...FAILED\n    1. invalid.c:1";
        let wanted = [("Simple", "passed"), ("Flags", "skipped"), ("Invalid", "failed")];
        let wanted: Verdicts = wanted.map(|(test, verdict)| (format!("SCSI.Read10.{test}"), verdict)).into();
        assert_eq!(verdicts(said), wanted);
    }

    #[test]
    fn a_test_that_is_worse_at_our_target_needs_a_reason() {
        let ours: Verdicts =
            (0..PASSED_AT_LEAST).map(|number| (format!("SCSI.Read10.{number}"), "passed")).collect();
        let with = |test: &str| {
            let mut all = ours.clone();
            all.insert(test.to_owned(), "passed");
            all
        };
        let worse = with("SCSI.Write10.Simple");
        let error = compare(&ours, &worse, |_| Ok(("failed", "what was seen".to_owned()))).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("SCSI.Write10.Simple") && error.contains("what was seen"), "{error}");
        assert!(compare(&ours, &worse, |_| Ok(("passed", String::new()))).is_ok());
        let never = |_: &str| Err(anyhow::anyhow!("run again"));
        let seen = |test: &str, verdict: &'static str| {
            let mut all = ours.clone();
            all.insert(test.to_owned(), verdict);
            all
        };
        let shut = "SCSI.WriteSame10.Simple";
        for verdict in ["failed", "skipped"] {
            assert!(compare(&seen(shut, verdict), &with(shut), never).is_ok(), "{verdict}");
        }
        // A hang has no reason, nor has the failure of a test that is not listed.
        assert!(compare(&ours, &with(shut), |_| Ok(("without a verdict", String::new()))).is_err());
        let other = "SCSI.WriteSame10.Other";
        let fails = |_: &str| Ok(("failed", String::new()));
        assert!(compare(&seen(other, "failed"), &with(other), fails).is_err());
        assert!(compare(&seen(other, "skipped"), &with(other), never).is_ok());
        assert!(compare(&ours, &Verdicts::new(), never).is_err());
    }
}
