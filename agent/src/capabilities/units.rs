//! Problems with systemd's units on this host: units of Mooring, units that would take away what
//! Mooring serves or log in beside it, and units that this host needs. All of it by systemd's
//! answer; without an answer there are no problems.
//!
//! What must never happen here: a command that clears the kernel's target when somebody types it; a
//! unit that is called missing because the bus is.

use std::path::{Path, PathBuf};

use mooring_bus::{Unit, Units};
use mooring_host::{Tree, TreePath};

use super::health::{Code, Fault, On, Weight};
use crate::config::Config;
use crate::machine::Machine;

const AGENT: &str = "mooring-agent.service";
const SESSIOND: &str = "mooring-sessiond.service";
const RELEASE: &str = "mooring-release.service";
const CONTROLLER: &str = "mooring-controller.service";
const MULTIPATHD: &str = "multipathd.service";

/// Units that restore the kernel's target from a file when they start, and clear it when they stop:
/// Debian's, and that of other distributions.
const RESTORERS: [&str; 2] = ["rtslib-fb-targetctl.service", "target.service"];

/// Units that log in to the targets of open-iscsi's records: Debian's at the boot, that of other
/// distributions, and the daemon.
const LOGINS: [&str; 3] = ["open-iscsi.service", "iscsi.service", "iscsid.service"];

/// Units whose state the agent follows.
pub(crate) const FOLLOWED: [&str; 10] = [
    AGENT,
    SESSIOND,
    RELEASE,
    CONTROLLER,
    MULTIPATHD,
    RESTORERS[0],
    RESTORERS[1],
    LOGINS[0],
    LOGINS[1],
    LOGINS[2],
];

/// Files where targetcli saves what the restorers restore: Debian's, and that of other
/// distributions.
const SAVED: [&str; 2] = ["etc/rtslib-fb-target/saveconfig.json", "etc/target/saveconfig.json"];

/// Folders of open-iscsi's records: Debian's, and that of other distributions.
const RECORDS: [&str; 2] = ["etc/iscsi/nodes", "var/lib/iscsi/nodes"];

/// Judges the units.
pub(super) fn judge(units: &Units, machine: &Machine, config: &Config) -> Vec<Fault> {
    let mut faults = own(units, config);
    if !config.groups.is_empty() {
        faults.extend(restorers(units, &machine.root));
    }
    faults.extend(logins(units, &machine.root, config));
    faults.extend(multipath(units, &*machine.sys));
    faults
}

fn fault(code: Code, weight: Weight, unit: &str, text: String) -> Fault {
    Fault::new(code, weight, On::Host, unit, text)
}

/// Judges Mooring's own units. A unit that is not installed is no fault: daemons also run without
/// one.
fn own(units: &Units, config: &Config) -> Vec<Fault> {
    let attaches = config.host.is_some();
    let mut faults = Vec::new();
    for (name, wanted) in [(AGENT, false), (SESSIOND, attaches), (RELEASE, attaches), (CONTROLLER, true)] {
        let Some(unit) = units.get(name) else { continue };
        // A controller may be installed and not configured: only a failed one is a fault.
        let down = if name == CONTROLLER { unit.active == "failed" } else { wanted && !unit.is_up() };
        if down {
            faults.push(fault(Code::OwnUnit, Weight::Degrades, name, down_text(name, unit)));
        }
        if unit.outdated {
            let text = "its files have changed since systemd read them: systemctl daemon-reload".to_owned();
            faults.push(fault(Code::OwnUnit, Weight::Noted, name, text));
        }
        let daemon = name == AGENT || (name == SESSIOND && attaches);
        if daemon && unit.is_up() && unit.file == "disabled" {
            let text = format!("it is running, and a boot does not start it: systemctl enable {name}");
            faults.push(fault(Code::OwnUnit, Weight::Noted, name, text));
        }
    }
    faults
}

fn down_text(name: &str, unit: &Unit) -> String {
    let without = match name {
        SESSIOND => "no session is made, and a lost one does not come back",
        RELEASE => "a shutdown leaves attached disks mounted and logged in, and what was not flushed is lost",
        _ => "nobody attaches or detaches through it",
    };
    let mend = if unit.is_masked() {
        format!("systemctl unmask {name} && systemctl start {name}")
    } else if unit.active == "failed" {
        format!("see journalctl -u {name}, then systemctl restart {name}")
    } else {
        format!("systemctl start {name}")
    };
    format!("it is {unit}: {without}; {mend}")
}

/// Judges the restorers. The mend masks them: without its file systemd runs no stop of a unit, and
/// the target stays as it is.
fn restorers(units: &Units, root: &Path) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    for unit in RESTORERS.iter().filter_map(|name| units.get(*name)) {
        // Debian's unit has the other name as an alias.
        if unit.load == "masked" || faults.iter().any(|fault| fault.problem.object == unit.name) {
            continue;
        }
        let name = &unit.name;
        let saved = SAVED
            .iter()
            .map(|path| Path::new("/").join(path))
            .find(|path| path.strip_prefix("/").is_ok_and(|path| root.join(path).exists()));
        let text = match saved {
            _ if unit.is_there() => format!(
                "it is {unit}: its stop, by hand, by an upgrade or at a shutdown, clears the kernel's target with everything that Mooring \
                 serves. Take it out without its stop: systemctl mask {name} && systemctl stop {name}"
            ),
            Some(saved) if unit.is_enabled() => format!(
                "the next boot starts it, and it puts what {} says in the place of everything that Mooring serves: systemctl mask {name}",
                saved.display()
            ),
            _ => continue,
        };
        faults.push(fault(Code::ConflictingUnit, Weight::Degrades, name, text));
    }
    faults
}

/// Finds the records of our targets that open-iscsi logs in to by itself, in the order of their
/// names.
fn logins(units: &Units, root: &Path, config: &Config) -> Vec<Fault> {
    let works = |name: &&&str| units.get(**name).is_some_and(|unit| unit.is_there() || unit.is_enabled());
    let Some(unit) = LOGINS.iter().find(works) else { return Vec::new() };
    let prefix = format!("{}:", config.iqn_prefix);
    let mut faults = Vec::new();
    for target in RECORDS.iter().flat_map(|folder| names(&root.join(folder))) {
        let Some(name) = target.file_name().and_then(|name| name.to_str()) else { continue };
        if name.starts_with(&prefix) && files(&target, RECORD_DEPTH).iter().any(|file| is_automatic(file)) {
            let text = format!(
                "open-iscsi logs in to {name} by itself, beside Mooring: iscsiadm -m node -T {name} -o update -n node.startup -v manual"
            );
            faults.push(fault(Code::ConflictingUnit, Weight::Noted, unit, text));
        }
    }
    faults
}

/// Depth of the records: a target's folder has a file for each portal, or a folder with one for
/// each interface.
const RECORD_DEPTH: usize = 2;

fn names(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    names.sort();
    names
}

fn files(folder: &Path, depth: usize) -> Vec<PathBuf> {
    let (folders, mut files): (Vec<_>, Vec<_>) = names(folder).into_iter().partition(|path| path.is_dir());
    if depth > 1 {
        files.extend(folders.iter().flat_map(|folder| self::files(folder, depth - 1)));
    }
    files
}

fn is_automatic(record: &Path) -> bool {
    let text = std::fs::read_to_string(record).unwrap_or_default();
    text.lines().any(|line| {
        let value = line.split_once('=').filter(|(key, _)| key.trim() == "node.startup");
        value.is_some_and(|(_, value)| matches!(value.trim(), "automatic" | "onboot"))
    })
}

/// Judges multipathd. It is needed where the kernel has multipath maps: only the daemon brings lost
/// paths back. `None` if nothing is wrong.
fn multipath(units: &Units, sys: &dyn Tree) -> Option<Fault> {
    let unit = units.get(MULTIPATHD).filter(|unit| !unit.is_up())?;
    let block = TreePath::new("block");
    let is_map = |name: &&str| {
        let uuid = block.join(name).join("dm").join("uuid");
        name.starts_with("dm-") && sys.read_text(&uuid).is_ok_and(|uuid| uuid.starts_with("mpath-"))
    };
    let entries = sys.list(&block).ok()?;
    let map = entries.iter().map(|entry| entry.name.as_str()).find(is_map)?;
    let mend = if unit.is_masked() { "unmask" } else { "enable" };
    let text = format!(
        "it is {unit}, and this host has maps of multipath ({map}), whose lost paths come back by it alone: systemctl {mend} --now {MULTIPATHD}"
    );
    Some(fault(Code::NeededUnit, Weight::Degrades, MULTIPATHD, text))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mooring_host::KernelTree;
    use mooring_host::fake::FakeMachine;

    use super::*;
    use crate::engine::testing;

    const SERVES: &str = "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"vg0\"\n";
    const ATTACHES: &str = "[host]\n";

    struct Rig {
        root: tempfile::TempDir,
        machine: Machine,
    }

    impl Rig {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let mut machine = testing::machine(root.path(), &FakeMachine::new());
            machine.sys = std::sync::Arc::new(KernelTree::new(root.path().join("sys")));
            Self { root, machine }
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Returns object, text and weight of each fault.
        fn judge(&self, config: &str, units: &[(&str, Unit)]) -> Vec<(String, String, Weight)> {
            let config = Config::parse(config, "agent.toml").unwrap();
            let units = units.iter().map(|(name, unit)| ((*name).to_owned(), unit.clone())).collect();
            let faults = judge(&units, &self.machine, &config).into_iter();
            faults.map(|fault| (fault.problem.object, fault.problem.text, fault.weight)).collect()
        }
    }

    fn unit(name: &str, active: &str, file: &str) -> Unit {
        Unit {
            name: name.to_owned(),
            load: "loaded".to_owned(),
            active: active.to_owned(),
            file: file.to_owned(),
            ..Unit::default()
        }
    }

    #[test]
    fn units_that_would_clear_the_target_are_reported_once_where_volumes_are() {
        let rig = Rig::new();
        let both = |active| RESTORERS.map(|name| (name, unit(RESTORERS[0], active, "enabled")));
        let told = rig.judge(SERVES, &both("active"));
        let [(object, text, Weight::Degrades)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(object, RESTORERS[0]);
        assert!(text.ends_with(&format!("systemctl mask {object} && systemctl stop {object}")), "{text}");
        assert_eq!(rig.judge(ATTACHES, &both("active")), []);
        assert_eq!(rig.judge(SERVES, &both("inactive")), [], "there is nothing that it would restore");
        rig.write(SAVED[0], "{}");
        let told = rig.judge(SERVES, &both("inactive"));
        let says = "what /etc/rtslib-fb-target/saveconfig.json says in the place of everything";
        assert!(told.len() == 1 && told[0].1.contains(says), "{told:?}");
        let masked = Unit { load: "masked".to_owned(), ..unit(RESTORERS[0], "active", "masked") };
        assert_eq!(rig.judge(SERVES, &[(RESTORERS[0], masked)]), [], "its stop is not run any more");
        assert_eq!(rig.judge(SERVES, &[(RESTORERS[1], unit(RESTORERS[1], "inactive", "disabled"))]), []);
    }

    #[test]
    fn our_own_units_are_told_when_they_are_missed() {
        let rig = Rig::new();
        let attaches = |unit: Unit| rig.judge(ATTACHES, &[(unit.name.clone().as_str(), unit)]);
        for (name, active, file, weight, words) in [
            (RELEASE, "inactive", "static", Weight::Degrades, "systemctl start mooring-release.service"),
            (SESSIOND, "failed", "enabled", Weight::Degrades, "see journalctl -u mooring-sessiond.service"),
            (SESSIOND, "inactive", "masked", Weight::Degrades, "systemctl unmask mooring-sessiond.service"),
            (SESSIOND, "active", "disabled", Weight::Noted, "systemctl enable mooring-sessiond.service"),
            (AGENT, "active", "disabled", Weight::Noted, "systemctl enable mooring-agent.service"),
            (
                CONTROLLER,
                "failed",
                "enabled",
                Weight::Degrades,
                "systemctl restart mooring-controller.service",
            ),
        ] {
            let told = attaches(unit(name, active, file));
            assert!(told.len() == 1 && told[0].0 == name && told[0].2 == weight, "{told:?}");
            assert!(told[0].1.contains(words), "{told:?}");
        }
        for well in [
            unit(RELEASE, "active", "static"),
            unit(SESSIOND, "activating", "enabled"),
            unit(CONTROLLER, "inactive", "disabled"),
            // The agent runs without its unit, as in a test or by hand.
            unit(AGENT, "inactive", "disabled"),
        ] {
            assert_eq!(attaches(well.clone()), [], "{well:?}");
        }
        assert_eq!(
            rig.judge(SERVES, &[(SESSIOND, unit(SESSIOND, "failed", "disabled"))]),
            [],
            "nobody needs it"
        );
        let told = attaches(Unit { outdated: true, ..unit(AGENT, "active", "enabled") });
        assert!(told.len() == 1 && told[0].1.ends_with("systemctl daemon-reload"), "{told:?}");
    }

    #[test]
    fn records_that_log_in_to_our_targets_are_told_while_open_iscsi_works() {
        let rig = Rig::new();
        let ours = "iqn.2026-11.dev.mooring:a0000000-1111-4222-8333-444444444444";
        let record = |target: &str| format!("etc/iscsi/nodes/{target}/10.0.0.1,3260,1/default");
        rig.write(&record(ours), "node.name = x\nnode.startup = automatic\n");
        rig.write(&record("iqn.2026-11.org.example:other"), "node.startup = automatic\n");
        rig.write(
            &record("iqn.2026-11.dev.mooring:b"),
            "node.startup = manual\nnode.conn[0].startup = automatic\n",
        );
        rig.write("var/lib/iscsi/nodes/iqn.2026-11.dev.mooring:c/10.0.0.1,3260", "node.startup=onboot");
        for (active, file) in [("active", "disabled"), ("inactive", "enabled")] {
            let told = rig.judge(ATTACHES, &[(LOGINS[0], unit(LOGINS[0], active, file))]);
            let objects: Vec<_> = told.iter().map(|(object, ..)| object.as_str()).collect();
            assert_eq!(objects, [LOGINS[0]; 2], "{told:?}");
            assert!(
                told[0]
                    .1
                    .contains(&format!("iscsiadm -m node -T {ours} -o update -n node.startup -v manual"))
            );
            assert!(told[1].1.contains("mooring:c by itself"), "{told:?}");
        }
        assert_eq!(rig.judge(ATTACHES, &[(LOGINS[0], unit(LOGINS[0], "inactive", "disabled"))]), []);
        assert_eq!(rig.judge(ATTACHES, &[]), []);
    }

    #[test]
    fn multipathd_is_needed_where_there_are_maps() {
        let rig = Rig::new();
        let down = [(MULTIPATHD, unit(MULTIPATHD, "inactive", "disabled"))];
        rig.write("sys/block/dm-0/dm/uuid", "LVM-abc\n");
        rig.write("sys/block/sda/size", "8\n");
        assert_eq!(rig.judge(ATTACHES, &down), []);
        rig.write("sys/block/dm-3/dm/uuid", "mpath-36001405\n");
        let told = rig.judge(ATTACHES, &down);
        assert!(told.len() == 1 && told[0].1.contains("(dm-3)") && told[0].2 == Weight::Degrades, "{told:?}");
        assert!(told[0].1.ends_with("systemctl enable --now multipathd.service"), "{told:?}");
        assert_eq!(rig.judge(ATTACHES, &[(MULTIPATHD, unit(MULTIPATHD, "active", "enabled"))]), []);
    }
}
