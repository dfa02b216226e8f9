//! Check whether the volume groups of the configuration can be used, without a running agent.

use mooring_host::Commands;
use mooring_model::Chain;

use super::commands::Lvm;
use super::view::groups_of;
use crate::config;

/// Asks LVM which of these groups are there and can be used. Returns a warning about each other, or
/// one about LVM if it cannot be asked. Without groups LVM is not asked.
pub fn check_groups(commands: &dyn Commands, groups: &[config::Group]) -> Vec<String> {
    if groups.is_empty() {
        return Vec::new();
    }
    match groups_of(&Lvm(commands), groups) {
        Ok(view) => {
            let missing = view.missing().iter().map(|group| {
                format!(
                    "volume group {group} is not there: make it (vgcreate {group} DISK), or take it out of [[groups]]; \
                     its volumes wait for it"
                )
            });
            let unread = view.unread_groups().map(|(group, unread)| {
                format!("volume group {group} cannot be read, and its volumes wait for it: {}", unread.said)
            });
            let unusable = view.groups().iter().filter_map(|group| group.trouble.clone());
            missing.chain(unread).chain(unusable).collect()
        }
        Err(error) => {
            let names: Vec<_> = groups.iter().map(|group| group.name.to_string()).collect();
            let (names, error) = (names.join(", "), Chain(&error));
            vec![format!("cannot ask LVM whether these volume groups are there: {names}: {error}")]
        }
    }
}

#[cfg(test)]
mod tests {
    use mooring_host::fake::FakeMachine;

    use super::*;
    use crate::config::Config;

    fn groups(names: &[&str]) -> Vec<config::Group> {
        let tables = names.iter().map(|name| format!("[[groups]]\nname = \"{name}\"\n"));
        let text = format!("portals = [\"10.0.0.1\"]\n{}", tables.collect::<String>());
        Config::parse(&text, "agent.toml").unwrap().groups
    }

    #[test]
    fn a_group_that_is_not_there_is_named() {
        let fake = FakeMachine::new();
        fake.add_vg("vg0", 1 << 30);
        let lvm = fake.lvm();
        assert_eq!(check_groups(&lvm, &groups(&["vg0"])), Vec::<String>::new());
        let warned = check_groups(&lvm, &groups(&["vg0", "vg1", "vg2"]));
        assert_eq!(warned.len(), 2, "{warned:?}");
        for (said, name) in warned.iter().zip(["vg1", "vg2"]) {
            assert!(said.contains(&format!("volume group {name} is not there")), "{said}");
            assert!(said.contains(&format!("vgcreate {name}")), "{said}");
        }
        // One question while all groups are there. While one is not, a second about all of the
        // machine.
        let asked = lvm.log();
        assert!(asked.len() == 3 && asked.iter().all(|line| line.starts_with("vgs")), "{asked:?}");
    }

    #[test]
    fn a_group_that_lvm_cannot_read_is_named_with_the_reason() {
        let fake = FakeMachine::new();
        for vg in ["vg0", "vg1"] {
            fake.add_vg(vg, 1 << 30);
        }
        let (lvm, listed) = (fake.lvm(), groups(&["vg0", "vg1"]));
        assert_eq!(check_groups(&lvm, &listed), Vec::<String>::new(), "the control");
        lvm.set_sick("vg1", Some("  Failed to read metadata of vg1.\n"));
        let warned = check_groups(&lvm, &listed);
        assert!(warned.len() == 1 && warned[0].contains("volume group vg1 cannot be read"), "{warned:?}");
        assert!(warned[0].contains("Failed to read metadata of vg1."), "{warned:?}");
    }

    #[test]
    fn an_lvm_that_cannot_be_asked_is_said_and_is_not_a_missing_group() {
        let fake = FakeMachine::new();
        fake.lvm().set_missing(true);
        let warned = check_groups(&fake.lvm(), &groups(&["vg0", "vg1"]));
        assert!(warned.len() == 1 && warned[0].contains("cannot ask LVM"), "{warned:?}");
        assert!(warned[0].contains("vg0, vg1") && !warned[0].contains("is not there"), "{warned:?}");
        // Without groups nothing is asked.
        assert_eq!(check_groups(&fake.lvm(), &[]), Vec::<String>::new());
    }
}
