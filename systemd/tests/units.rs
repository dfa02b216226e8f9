//! The files that are installed: they parse, and they agree with the constants of the code.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use mooring_systemd::paths;

type Unit = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// Sections, keys and values of a unit file.
fn parse(text: &str) -> Result<Unit, String> {
    let mut unit = Unit::new();
    let mut section = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = Some(unit.entry(name.to_owned()).or_default());
            continue;
        }
        let (key, value) = line.split_once('=').ok_or(format!("line {}: {line}", number + 1))?;
        let section = section.as_mut().ok_or(format!("line {}: outside of a section", number + 1))?;
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(format!("line {}: {key:?} is no key", number + 1));
        }
        section.entry(key.to_owned()).or_default().push(value.to_owned());
    }
    Ok(unit)
}

fn agent() -> BTreeMap<String, Vec<String>> {
    parse(paths::AGENT_UNIT).unwrap().remove("Service").unwrap()
}

fn one<'a>(service: &'a BTreeMap<String, Vec<String>>, key: &str) -> &'a str {
    match &service[key][..] {
        [value] => value,
        several => panic!("{key} stands there {} times", several.len()),
    }
}

/// Lines that are not comments, as words.
fn lines(text: &str) -> Vec<Vec<&str>> {
    let code = |line: &&str| !line.is_empty() && !line.starts_with('#');
    text.lines().filter(code).map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn the_parser_finds_mistakes() {
    assert!(parse("[Service]\nType=notify\n").is_ok());
    for wrong in ["Type=notify\n", "[Service]\nType notify\n", "[Service]\n=x\n", "[Service]\nTy pe=x\n"] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn the_agents_unit_names_the_places_of_the_code() {
    let service = agent();
    let start = format!("{} --config {}", paths::AGENT_PROGRAM, paths::AGENT_CONFIG);
    assert_eq!(one(&service, "ExecStart"), start);
    assert_eq!(Path::new("/var/lib").join(one(&service, "StateDirectory")), Path::new(paths::STATE_DIR));
    assert_eq!(Path::new("/run").join(one(&service, "RuntimeDirectory")), Path::new(paths::RUNTIME_DIR));
    let configuration = Path::new("/etc").join(one(&service, "ConfigurationDirectory"));
    assert!(Path::new(paths::AGENT_CONFIG).starts_with(configuration));
    assert!(Path::new(paths::AGENT_SOCKET).starts_with(paths::RUNTIME_DIR));
    assert_eq!(one(&service, "Group"), paths::GROUP);
    let modules: Vec<_> =
        one(&service, "ExecStartPre").split(' ').filter(|word| !word.starts_with('-')).collect();
    assert_eq!(modules, paths::MODULES);
}

#[test]
fn stop_is_not_detach_and_the_agent_comes_back() {
    let service = agent();
    for (key, value) in [
        ("Type", "notify"),
        ("KillMode", "process"),
        ("Restart", "always"),
        ("RuntimeDirectoryPreserve", "yes"),
        ("UMask", "0077"),
    ] {
        assert_eq!(one(&service, key), value, "{key}");
    }
    for key in ["ExecStop", "ExecStopPost"] {
        assert!(!service.contains_key(key), "{key} would run at every stop");
    }
    // Each of these would take from the agent what it works with; the unit says which and why.
    for key in [
        "ProtectKernelTunables",
        "PrivateDevices",
        "ProtectClock",
        "PrivateIPC",
        "PrivateNetwork",
        "PrivateUsers",
    ] {
        assert!(!service.contains_key(key), "{key}");
        assert!(paths::AGENT_UNIT.contains(&format!("# {key}=: no. ")), "{key}");
    }
}

#[test]
fn modules_group_and_folders() {
    assert_eq!(lines(paths::MODULES_LOAD).concat(), paths::MODULES);
    assert_eq!(lines(paths::SYSUSERS), [["g", paths::GROUP, "-"]]);
    let folders: Vec<_> = lines(paths::TMPFILES).iter().map(|line| (line[0], line[1], line[2])).collect();
    assert!(folders.contains(&("d", paths::RESERVATIONS_DIR, "0700")));
    assert!(folders.contains(&("d", paths::RUNTIME_DIR, "0750")));
    assert_eq!(one(&agent(), "RuntimeDirectoryMode"), "0750");
}

/// systemd's own opinion, where it is installed. Only what it says about this unit counts: the program and the group are
/// not on the machine that builds.
#[test]
fn systemd_takes_the_unit() {
    let dir = tempfile::tempdir().unwrap();
    let unit = paths::AGENT_UNIT.replace(paths::AGENT_PROGRAM, "/bin/true");
    let path = dir.path().join("mooring-agent.service");
    std::fs::write(&path, unit).unwrap();
    let Ok(output) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output() else {
        println!("skipped: systemd-analyze is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let about_us: Vec<_> = said.lines().filter(|line| line.contains("mooring-agent.service:")).collect();
    assert!(about_us.is_empty(), "{about_us:#?}");
}
