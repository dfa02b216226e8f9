//! The files that are installed: they parse, and they agree with the constants of the code.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use mooring_systemd::paths;

/// The most that `systemd-analyze security` may find open in each unit, of 10.
const EXPOSURE_MAX: [(&str, f64); 3] =
    [("mooring-controller.service", 1.2), ("mooring-agent.service", 4.5), ("mooring-sessiond.service", 3.0)];

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

fn sessiond() -> BTreeMap<String, Vec<String>> {
    parse(paths::SESSIOND_UNIT).unwrap().remove("Service").unwrap()
}

fn controller() -> BTreeMap<String, Vec<String>> {
    parse(paths::CONTROLLER_UNIT).unwrap().remove("Service").unwrap()
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
        "ProtectKernelModules",
        "PrivateDevices",
        "PrivateIPC",
        "PrivateNetwork",
        "PrivateUsers",
        "RestrictSUIDSGID",
    ] {
        assert!(!service.contains_key(key), "{key}");
        assert!(paths::AGENT_UNIT.contains(&format!("# {key}=: no. ")), "{key}");
    }
    // An image is read in namespaces of its own.
    assert_eq!(one(&service, "RestrictNamespaces"), "user mnt pid net ipc");
    assert_eq!(service["DeviceAllow"], ["block-* rwm", "char-misc rwm"]);
    // Which stand for what is not said about modules.
    assert!(!one(&service, "CapabilityBoundingSet").contains("CAP_SYS_MODULE"));
    let calls = &service["SystemCallFilter"];
    assert_eq!(calls, &["@system-service @mount", "~@resources"], "they have no call that loads a module");
    assert!(one(&service, "CapabilityBoundingSet").contains("CAP_SETFCAP"), "a user namespace for root");
}

#[test]
fn modules_group_and_folders() {
    let modules: Vec<_> = paths::MODULES.iter().chain(&paths::SESSIOND_MODULES).copied().collect();
    assert_eq!(lines(paths::MODULES_LOAD).concat(), modules);
    assert_eq!(lines(paths::SYSCTL), [["fs.inotify.max_user_watches", "=", "1048576"]]);
    let users = lines(paths::SYSUSERS);
    assert!(users.contains(&vec!["g", paths::GROUP, "-"]));
    // Either package may be there without the other.
    let users = lines(paths::CONTROLLER_SYSUSERS);
    assert!(users.contains(&vec!["g", paths::GROUP, "-"]));
    assert!(users.iter().any(|line| line.starts_with(&["u", paths::CONTROLLER_USER, "-"])));
    assert!(users.contains(&vec!["m", paths::CONTROLLER_USER, paths::GROUP]));
    let folders: Vec<_> = lines(paths::TMPFILES).iter().map(|line| (line[0], line[1], line[2])).collect();
    assert!(folders.contains(&("d", paths::RESERVATIONS_DIR, "0700")));
    assert!(folders.contains(&("d", paths::RUNTIME_DIR, "0750")));
    assert!(folders.contains(&("d", paths::SESSIOND_DIR, "0700")));
    assert!(folders.contains(&("d", paths::CONFIG_DIR, "0750")));
    let line = |text| lines(text).into_iter().find(|line| line[1] == paths::CONFIG_DIR).unwrap().join(" ");
    assert_eq!(line(paths::TMPFILES), line(paths::CONTROLLER_TMPFILES));
    assert_eq!(one(&agent(), "RuntimeDirectoryMode"), "0750");
}

/// The package enables both before anybody has configured them: a unit that fails at each start
/// would fill the journal.
#[test]
fn a_unit_waits_for_its_configuration() {
    for (unit, config) in
        [(paths::AGENT_UNIT, paths::AGENT_CONFIG), (paths::CONTROLLER_UNIT, paths::CONTROLLER_CONFIG)]
    {
        assert_eq!(parse(unit).unwrap()["Unit"]["ConditionPathExists"], [config]);
    }
}

#[test]
fn the_session_daemons_unit_names_the_places_of_the_code() {
    let service = sessiond();
    let start = format!("{} --run-dir {}", paths::SESSIOND_PROGRAM, paths::RUNTIME_DIR);
    assert_eq!(one(&service, "ExecStart"), start);
    assert!(Path::new(paths::SESSIOND_DIR).starts_with(paths::RUNTIME_DIR));
    let modules: Vec<_> =
        one(&service, "ExecStartPre").split(' ').filter(|word| !word.starts_with('-')).collect();
    assert_eq!(modules, paths::SESSIOND_MODULES);
}

#[test]
fn the_session_daemon_comes_back_and_is_the_last_to_go() {
    let service = sessiond();
    for (key, value) in [
        ("Type", "notify"),
        ("KillMode", "process"),
        ("Restart", "always"),
        ("RuntimeDirectoryPreserve", "yes"),
        ("UMask", "0077"),
        ("OOMScoreAdjust", "-1000"),
        ("LimitMEMLOCK", "infinity"),
    ] {
        assert_eq!(one(&service, key), value, "{key}");
    }
    assert_eq!(parse(paths::SESSIOND_UNIT).unwrap()["Unit"]["StartLimitIntervalSec"], ["0"]);
    for key in ["ExecStop", "ExecStopPost"] {
        assert!(!service.contains_key(key), "{key} would run at every stop");
    }
    for key in ["ProtectKernelTunables", "PrivateDevices", "PrivateNetwork", "PrivateUsers"] {
        assert!(!service.contains_key(key), "{key}");
        assert!(paths::SESSIOND_UNIT.contains(&format!("# {key}=: no. ")), "{key}");
    }
    // What it was made for would be refused without one of these.
    let capabilities: Vec<_> = one(&service, "CapabilityBoundingSet").split(' ').collect();
    for capability in ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_IPC_LOCK", "CAP_SYS_RESOURCE"] {
        assert!(capabilities.contains(&capability), "{capability}");
    }
}

#[test]
fn the_controllers_unit_names_the_places_of_the_code() {
    let service = controller();
    let start = format!("{} --config {}", paths::CONTROLLER_PROGRAM, paths::CONTROLLER_CONFIG);
    assert_eq!(one(&service, "ExecStart"), start);
    let state = Path::new("/var/lib").join(one(&service, "StateDirectory"));
    assert_eq!(state, Path::new(paths::CONTROLLER_STATE_DIR));
    assert_eq!(one(&service, "User"), paths::CONTROLLER_USER);
    assert_eq!(one(&service, "SupplementaryGroups"), paths::GROUP);
    assert!(Path::new(paths::CONTROLLER_CONFIG).starts_with(paths::CONFIG_DIR));
    for (key, value) in [
        ("Type", "notify"),
        ("Restart", "always"),
        ("StateDirectoryMode", "0700"),
        ("UMask", "0077"),
        // It talks to agents; the kernel's storage is theirs.
        ("CapabilityBoundingSet", ""),
        ("PrivateDevices", "yes"),
        ("ProtectKernelTunables", "yes"),
    ] {
        assert_eq!(one(&service, key), value, "{key}");
    }
}

/// Only a shutdown runs it, between the agent, which would attach again, and the session daemon,
/// which logs out.
#[test]
fn attached_disks_are_let_go_of_by_a_shutdown_alone_and_in_its_turn() {
    let unit = parse(paths::RELEASE_UNIT).unwrap();
    let words = |section: &str, key: &str| -> Vec<String> {
        unit[section][key].iter().flat_map(|value| value.split(' ')).map(str::to_owned).collect()
    };
    assert_eq!(words("Unit", "RefuseManualStop"), ["yes"]);
    assert_eq!(words("Unit", "Before"), ["mooring-agent.service", "remote-fs-pre.target"]);
    assert_eq!(words("Unit", "After"), ["mooring-sessiond.service", "network.target"]);
    let service = &unit["Service"];
    let stop = format!("{} release-mounts --config {}", paths::AGENT_PROGRAM, paths::AGENT_CONFIG);
    assert_eq!(one(service, "ExecStop"), stop);
    assert_eq!(one(service, "RemainAfterExit"), "yes");
    // In a mount namespace it would unmount a copy.
    let hides = |key: &&String| {
        ["Protect", "Private", "ReadOnly", "ReadWrite", "Inaccessible", "Root", "Mount"]
            .iter()
            .any(|start| key.starts_with(start))
    };
    assert_eq!(service.keys().find(hides), None);
    let agent = parse(paths::AGENT_UNIT).unwrap();
    assert!(agent["Unit"]["Wants"].contains(&"mooring-release.service".to_owned()));
    // Sessions are kept until everybody else has stopped.
    let sessiond = parse(paths::SESSIOND_UNIT).unwrap();
    assert_eq!(sessiond["Unit"]["Before"], ["mooring-agent.service"]);
    assert!(!sessiond["Unit"]["After"].iter().any(|names| names.contains("mooring-")));
}

/// Notes that a test does not run here. In CI that is a failure: `cargo xtask test` installs
/// systemd's checker.
fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "not skipped in CI: {why}");
    println!("skipped: {why}");
}

/// The most that systemd may find open in each unit, where `systemd-analyze` can look at a file
/// (250 and newer). The scenario `installed` asks the systemd of a real machine.
#[test]
fn no_unit_is_more_open_than_its_bar() {
    for (unit, most) in EXPOSURE_MAX {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("units").join(unit);
        let words = ["security", "--no-pager", "--offline=true"];
        let output = Command::new("systemd-analyze").args(words).arg(&file).output();
        let said =
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let Some(line) = said.lines().find(|line| line.contains("Overall exposure level")) else {
            skip("no systemd-analyze that looks at files");
            return;
        };
        let level =
            line.rsplit_once(": ").and_then(|(_, level)| level.split(' ').next()?.parse::<f64>().ok());
        assert!(level.is_some_and(|level| level <= most), "{line}, and at most {most} is allowed");
    }
}

#[test]
fn no_daemon_leaves_a_core_file() {
    for service in [agent(), sessiond(), controller()] {
        assert_eq!(one(&service, "LimitCORE"), "0");
    }
}

/// systemd's own opinion, where it is installed. Only what it says about this unit counts: the
/// program and the group are not on the machine that builds.
#[test]
fn systemd_takes_the_units() {
    for (name, unit, program) in [
        ("mooring-agent.service", paths::AGENT_UNIT, paths::AGENT_PROGRAM),
        ("mooring-sessiond.service", paths::SESSIOND_UNIT, paths::SESSIOND_PROGRAM),
        ("mooring-controller.service", paths::CONTROLLER_UNIT, paths::CONTROLLER_PROGRAM),
        ("mooring-release.service", paths::RELEASE_UNIT, paths::AGENT_PROGRAM),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, unit.replace(program, "/bin/true")).unwrap();
        let Ok(output) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output()
        else {
            skip("systemd-analyze is not installed");
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        let about_us: Vec<_> = said.lines().filter(|line| line.contains(&format!("{name}:"))).collect();
        assert!(about_us.is_empty(), "{about_us:#?}");
    }
}
