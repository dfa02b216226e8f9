//! Looks at the listed groups, each by its name. A group of somebody else that LVM cannot read
//! costs nothing, and one of ours costs itself alone.
//!
//! LVM has one exit status for all groups of a command. So one command asks for all of them, and
//! only if that fails, each is asked for by itself.
//!
//! What must never happen here: a group that LVM cannot read taken for one that is not there, or
//! for an empty one.

use std::collections::{BTreeMap, BTreeSet};

use mooring_model::{ByteSize, Chain, Cure, VgName};

use super::{SeenGroup, VolumesView};
use crate::config;
use crate::lvm::commands::{Lvm, RawVg, group_name};
use crate::lvm::error::Error;

/// The reason why LVM cannot read a listed group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// The error of the look at the group.
    pub said: String,
    /// Cure that the error needs.
    pub cure: Cure,
    /// `true` if LVM does not come to an end at the group.
    pub hung: bool,
}

impl Unread {
    fn of(error: &Error) -> Self {
        Self { said: Chain(error).to_string(), cure: error.cure(), hung: error.is_hung() }
    }

    /// Makes an error of the reason.
    pub(crate) fn into_error(self) -> Error {
        Error::Unread { said: self.said, cure: self.cure, hung: self.hung }
    }
}

/// LVM's answer about several groups.
struct Asked<T> {
    /// The rows of the groups that LVM can read.
    rows: Vec<T>,
    /// Groups that are not there (any more).
    absent: Vec<VgName>,
    /// Groups that LVM cannot read.
    unread: BTreeMap<VgName, Unread>,
}

/// Asks for all of these groups with one command; if that fails, for each by itself.
fn ask_each<T>(
    names: &[&VgName],
    ask: impl Fn(&[&VgName]) -> Result<Vec<T>, Error>,
) -> Result<Asked<T>, Error> {
    let mut asked = Asked { rows: Vec::new(), absent: Vec::new(), unread: BTreeMap::new() };
    match (ask(names), names) {
        (Ok(rows), _) => asked.rows = rows,
        (Err(error), _) if error.concerns_all() => return Err(error),
        (Err(error), [name]) => asked.note(name, &error),
        (Err(_), _) => {
            for name in names {
                match ask(&[*name]) {
                    Ok(rows) => asked.rows.extend(rows),
                    Err(error) if error.concerns_all() => return Err(error),
                    Err(error) => asked.note(name, &error),
                }
            }
        }
    }
    Ok(asked)
}

impl<T> Asked<T> {
    fn note(&mut self, name: &VgName, error: &Error) {
        if matches!(error, Error::NoGroup { .. }) {
            self.absent.push(name.clone());
        } else {
            self.unread.insert(name.clone(), Unread::of(error));
        }
    }
}

/// Views the listed groups alone, without their LVs.
pub(in crate::lvm) fn groups_of(lvm: &Lvm<'_>, listed: &[config::Group]) -> Result<VolumesView, Error> {
    let mut view = VolumesView::default();
    if listed.is_empty() {
        return Ok(view);
    }
    let names: Vec<_> = listed.iter().map(|group| &group.name).collect();
    let mut asked = ask_each(&names, |names| lvm.groups(names))?;
    let found = |group: &config::Group| asked.rows.iter().any(|raw| raw.name == group.name.as_str());
    // The names of all groups are for messages. Of two groups with one name LVM shows neither by
    // that name. LVM hangs at all groups where it hangs at one.
    let hangs = asked.unread.values().any(|unread| unread.hung);
    let all = if hangs || listed.iter().all(found) { Vec::new() } else { all_groups(lvm) };
    for group in listed {
        let is = |raw: &&RawVg| raw.name == group.name.as_str();
        let found: Vec<_> = asked.rows.iter().filter(is).collect();
        let same: Vec<_> = all.iter().filter(is).collect();
        let unread = asked.unread.remove(&group.name);
        match (found.as_slice(), same.as_slice(), unread) {
            ([first, others @ ..], _, _) => view.groups.push(seen_group(group, first, others)),
            ([], [first, other, ..], _) => {
                let said = two_of_one_name(group, first, other);
                view.unread.insert(group.name.clone(), Unread { said, cure: Cure::Operator, hung: false });
            }
            ([], _, Some(unread)) => {
                view.unread.insert(group.name.clone(), unread);
            }
            ([], _, None) => view.missing.push(group.name.clone()),
        }
    }
    let is_listed = |name: &str| group_name(name).is_some_and(|name| view.is_listed(&name));
    let unlisted: BTreeSet<_> =
        all.iter().map(|raw| &raw.name).filter(|name| !is_listed(name)).cloned().collect();
    view.unlisted = unlisted.into_iter().collect();
    Ok(view)
}

/// Lists all groups of the machine; none if LVM does not answer. A group of somebody else may hold
/// it up, and that fails no look at ours.
fn all_groups(lvm: &Lvm<'_>) -> Vec<RawVg> {
    lvm.all_groups().unwrap_or_else(|error| {
        tracing::warn!(error = %Chain(&error), "cannot list the volume groups that are not ours");
        Vec::new()
    })
}

fn two_of_one_name(listed: &config::Group, first: &RawVg, other: &RawVg) -> String {
    format!(
        "two volume groups are named {} ({} and {}): rename one with vgrename UUID NEWNAME",
        listed.name, first.uuid, other.uuid
    )
}

fn seen_group(listed: &config::Group, raw: &RawVg, others: &[&RawVg]) -> SeenGroup {
    let name = &listed.name;
    // vg_attr(8): w/r, resizeable, exported, partial, policy, shared.
    let attr = |index: usize| raw.attr.as_bytes().get(index).copied();
    let trouble = if let Some(other) = others.first() {
        Some(two_of_one_name(listed, raw, other))
    } else if attr(2) == Some(b'x') {
        Some(format!("volume group {name} is exported: run vgimport {name}"))
    } else if attr(3) == Some(b'p') {
        Some(format!("a disk of volume group {name} is missing: see pvs and vgreduce(8)"))
    } else if attr(0) == Some(b'r') {
        Some(format!("volume group {name} is read-only: run vgchange --permission rw {name}"))
    } else if attr(5) == Some(b's') {
        Some(format!(
            "volume group {name} is shared with other hosts, and Mooring needs groups of one host: once no other host uses \
             it, and none of its LVs is active (all hosts detached, vgchange -an {name}), run vgchange --lock-type none {name}, \
             see lvmlockd(8)"
        ))
    } else {
        None
    };
    SeenGroup {
        name: name.clone(),
        uuid: raw.uuid.clone(),
        size: ByteSize(raw.size),
        free: ByteSize(raw.free),
        reserve: listed.reserve,
        wipe: listed.wipe,
        extent: ByteSize(raw.extent),
        trouble,
        thin_size: listed.thin_pool,
        pool: None,
        discard: listed.discard,
        disks: None,
    }
}

impl VolumesView {
    /// Adds the LVs of all groups in the view.
    pub(super) fn look_at_lvs(&mut self, lvm: &Lvm<'_>) -> Result<(), Error> {
        let names: Vec<_> = self.groups.iter().map(|group| group.name.clone()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let asked = ask_each(&names.iter().collect::<Vec<_>>(), |names| lvm.lvs(names))?;
        for raw in asked.rows {
            self.take(raw);
        }
        for name in asked.absent {
            self.drop_group(&name);
            self.missing.push(name);
        }
        for (name, unread) in asked.unread {
            self.drop_group(&name);
            self.unread.insert(name, unread);
        }
        Ok(())
    }

    /// Leaves a group out of the view whose LVs cannot be listed. Returns an error that is not this
    /// group's own.
    pub(super) fn leave_out(&mut self, group: &VgName, error: Error) -> Result<(), Error> {
        if error.concerns_all() {
            return Err(error);
        }
        self.drop_group(group);
        self.unread.insert(group.clone(), Unread::of(&error));
        Ok(())
    }

    /// Lets a volume of `group` wait for no other group: those that are missing, or that LVM cannot
    /// read, are left out. Changes nothing if the configuration does not list `group`.
    pub fn wait_for_only(&mut self, group: &VgName) {
        if self.is_listed(group) {
            self.missing.retain(|missing| missing == group);
            self.unread.retain(|unread, _| unread == group);
        }
    }

    /// Notes the groups at which LVM did not come to an end, and forgets those where it did.
    pub fn note_hung(&self, hung: &mut BTreeMap<VgName, Unread>) {
        hung.retain(|group, _| !self.is_listed(group));
        let hangs = self.unread.iter().filter(|(_, unread)| unread.hung);
        hung.extend(hangs.map(|(group, unread)| (group.clone(), unread.clone())));
    }

    /// Adds listed groups that were not asked for, because LVM hangs at them.
    pub fn add_hung(&mut self, hung: BTreeMap<VgName, Unread>) {
        self.unread.extend(hung);
    }

    /// Returns `true` if a listed group is missing, or LVM cannot read it.
    pub fn lacks_a_group(&self) -> bool {
        !self.missing.is_empty() || !self.unread.is_empty()
    }

    /// Returns `true` if LVM does not come to an end at one of the groups.
    pub(super) fn has_hung(&self) -> bool {
        self.unread.values().any(|unread| unread.hung)
    }

    fn drop_group(&mut self, name: &VgName) {
        self.groups.retain(|group| group.name != *name);
        let named = [&mut self.lvs, &mut self.growths, &mut self.backs];
        for lvs in named.into_iter().flat_map(BTreeMap::values_mut) {
            lvs.retain(|lv| lv.group != name.as_str());
        }
        self.others.retain(|lv| lv.group != name.as_str());
    }

    /// Returns the view, or an error if LVM can read none of the groups that are listed: then it is
    /// not the groups that have failed.
    pub(super) fn unless_none_is_read(mut self, listed: usize) -> Result<Self, Error> {
        if self.unread.len() < listed {
            return Ok(self);
        }
        match self.unread.pop_first() {
            Some((_, unread)) => Err(unread.into_error()),
            None => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mooring_host::fake::FakeMachine;
    use mooring_host::{Command, CommandError, CommandOutput, Commands};
    use mooring_model::{LV_TAG, LvName, Phase, Provisioning, VolumeId, VolumeSpec};

    use super::*;
    use crate::config::Wipe;
    use crate::lvm::{Beside, Wanted, disks, plan, report, view, view_one};

    const UNREADABLE: &str = "  Failed to read metadata of a group.\n  Cannot process volume group vg1\n";

    fn id(n: u128) -> VolumeId {
        VolumeId::from_u128(n)
    }

    fn listed(names: &[&str]) -> Vec<config::Group> {
        let group = |name: &&str| {
            let name = name.parse().unwrap();
            config::Group { name, reserve: ByteSize(0), wipe: Wipe::Zero, discard: false, thin_pool: None }
        };
        names.iter().map(group).collect()
    }

    /// Volume 1 in `vg0`, volume 2 in `vg1`, and a group of somebody else.
    fn machine() -> FakeMachine {
        let fake = FakeMachine::new();
        for vg in ["vg0", "vg1", "other"] {
            fake.add_vg(vg, 1 << 30);
        }
        for (vg, n) in [("vg0", 1), ("vg1", 2)] {
            assert!(fake.lvm().add_volume(vg, LvName::of(id(n)).as_str(), 8 << 20, &[LV_TAG]));
        }
        fake
    }

    /// Makes a group such that LVM cannot read it, or crashes when it does; or makes it well.
    fn sicken(fake: &FakeMachine, vg: &str, crashes: bool, sick: bool) {
        fake.lvm().set_sick(vg, (sick && !crashes).then_some(UNREADABLE));
        fake.lvm().set_crashing(vg, sick && crashes);
    }

    fn phase(seen: &VolumesView, n: u128, vg: &str) -> Phase {
        report(&made(n, vg), seen, id(n)).phase
    }

    fn made(n: u128, vg: &str) -> Wanted {
        let spec = VolumeSpec::new(id(n), vg.parse().unwrap(), ByteSize(8 << 20), Provisioning::Thick);
        Wanted::Made { spec, export_gone: false }
    }

    #[test]
    fn a_group_that_lvm_cannot_read_costs_itself_alone() {
        let (fake, groups) = (machine(), listed(&["vg0", "vg1"]));
        let (lvm, vg1) = (fake.lvm(), &groups[1].name);
        let see = || view(&lvm, &groups).unwrap();
        for (crashes, word) in [(false, "Failed to read metadata"), (true, "status 139")] {
            sicken(&fake, "vg1", crashes, true);
            let seen = see();
            assert_eq!(phase(&seen, 1, "vg0"), Phase::Ready);
            assert!(seen.groups().len() == 1 && seen.missing().is_empty(), "{seen:?}");
            let said = seen.unread(vg1).unwrap().said.clone();
            assert!(said.contains(word), "{said}");
            // Nothing is concluded of its volumes.
            let kept = plan(&made(2, "vg1"), &seen, id(2));
            assert!(kept.steps.is_empty() && kept.blocked[0].why == said, "{kept:?}");
            let doomed = plan(&Wanted::Doomed { export_gone: true }, &seen, id(2));
            assert!(doomed.steps.is_empty(), "{doomed:?}");
            assert!(doomed.blocked[0].why.contains("it is not known whether its data is gone"), "{doomed:?}");
            let one = |n| view_one(&lvm, &groups, id(n), &Beside::default()).unwrap();
            assert_eq!(phase(&one(1), 1, "vg0"), Phase::Ready);
            assert!(one(2).unread(vg1).is_some());
            // The control: if LVM can read no group, it is not the groups.
            sicken(&fake, "vg0", crashes, true);
            assert!(view(&lvm, &groups).unwrap_err().to_string().contains(word));
            sicken(&fake, "vg0", crashes, false);
            sicken(&fake, "vg1", crashes, false);
            assert_eq!(phase(&see(), 2, "vg1"), Phase::Ready);
        }
    }

    #[test]
    fn a_group_that_lvm_hangs_at_holds_up_no_other() {
        let (fake, groups) = (machine(), listed(&["vg0", "vg1"]));
        let (lvm, vg1) = (fake.lvm(), &groups[1].name);
        lvm.set_group_hanging("vg1", true);
        let one = |n| view_one(&lvm, &groups, id(n), &Beside::default()).unwrap();
        for seen in [view(&lvm, &groups).unwrap(), one(1), one(2)] {
            assert!(seen.groups().len() == 1 && seen.missing().is_empty(), "{seen:?}");
            let unread = seen.unread(vg1).unwrap();
            assert!(unread.hung && unread.cure == Cure::Retry, "{unread:?}");
            assert!(unread.said.contains("does not return"), "{unread:?}");
        }
        assert_eq!(phase(&view(&lvm, &groups).unwrap(), 1, "vg0"), Phase::Ready);
        // A list of all disks would hang, too, and takes nothing from the groups.
        let mut discarding = groups.clone();
        discarding[0].discard = true;
        lvm.clear_log();
        assert_eq!(view(&lvm, &discarding).unwrap().groups().len(), 1);
        assert!(lvm.log().iter().all(|line| !line.starts_with("pvs")), "{:?}", lvm.log());
        lvm.set_group_hanging("vg1", false);
        lvm.set_group_hanging("other", true);
        assert_eq!(view(&lvm, &discarding).unwrap().groups().len(), 2, "of somebody else");
        // The control: LVM comes to an end at no group.
        lvm.set_hanging(true);
        assert!(view(&lvm, &groups).unwrap_err().is_hung());
        lvm.set_hanging(false);
        assert_eq!(phase(&view(&lvm, &groups).unwrap(), 2, "vg1"), Phase::Ready);
    }

    #[test]
    fn a_group_that_takes_no_lv_says_why() {
        let group = &listed(&["vg0"])[0];
        for (attr, says) in [
            ("wz--n-", None),
            ("wzx-n-", Some("vgimport vg0")),
            ("wz-pn-", Some("is missing")),
            ("rz--n-", Some("--permission rw vg0")),
            ("wz--ns", Some("--lock-type none vg0")),
            ("wz--nc", None),
        ] {
            let (name, uuid, attr) = ("vg0".to_owned(), "vg0".to_owned(), attr.to_owned());
            let raw = RawVg { name, uuid, size: 8 << 20, free: 8 << 20, extent: 4 << 20, attr };
            let trouble = seen_group(group, &raw, &[]).trouble;
            assert_eq!(trouble.is_some(), says.is_some(), "{raw:?}: {trouble:?}");
            assert!(trouble.unwrap_or_default().contains(says.unwrap_or_default()), "{raw:?}");
        }
    }

    #[test]
    fn a_sick_group_of_somebody_else_costs_nothing() {
        let (fake, groups) = (machine(), listed(&["vg0", "vg1"]));
        let lvm = fake.lvm();
        for crashes in [false, true] {
            sicken(&fake, "other", crashes, true);
            lvm.clear_log();
            let seen = view(&lvm, &groups).unwrap();
            assert_eq!((lvm.log().len(), seen.groups().len()), (2, 2), "{:?}", lvm.log());
            assert_eq!([phase(&seen, 1, "vg0"), phase(&seen, 2, "vg1")], [Phase::Ready; 2]);
            // The control: a look at all groups of the machine fails.
            let line = "lvs --reportformat json --units b --nosuffix -o lv_name";
            let args = line.split(' ').map(str::to_owned).collect();
            let all = Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) };
            assert_ne!(lvm.run(&all).unwrap().status, 0);
            if !crashes {
                assert_eq!(disks(&lvm, &groups).unwrap().len(), 2, "its disk is left out");
            }
        }
    }

    #[test]
    fn a_crash_of_lvm_is_asked_again_and_a_failure_is_not() {
        let (fake, groups) = (machine(), listed(&["vg0"]));
        let lvm = fake.lvm();
        let look = || view(&lvm, &groups).map(drop).and_then(|()| disks(&lvm, &groups).map(drop));
        for verb in ["vgs", "lvs", "pvs"] {
            lvm.fail_next(verb, 139, "");
            lvm.clear_log();
            look().unwrap();
            let asked = lvm.log().iter().filter(|line| line.starts_with(verb)).count();
            assert_eq!(asked, 2, "{verb}");
            // The control: LVM has answered.
            lvm.fail_next(verb, 5, UNREADABLE);
            assert!(look().is_err(), "{verb}");
            look().unwrap();
        }
    }

    /// Answers nothing about groups unless `vg9` is the last that is named.
    struct Silent<C>(C);

    impl<C: Commands> Commands for Silent<C> {
        fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
            let is = |arg: Option<&String>, word: &str| arg.is_some_and(|arg| arg.as_str() == word);
            if is(command.args.first(), "vgs") && !is(command.args.last(), "vg9") {
                let (program, args) = (command.program, command.args.join(" "));
                return Err(CommandError::Timeout { program, args, timeout: command.timeout });
            }
            self.0.run(command)
        }
    }

    #[test]
    fn a_list_of_all_groups_that_hangs_fails_no_look_at_ours() {
        let (fake, groups) = (machine(), listed(&["vg0", "vg9"]));
        let seen = view(&Silent(fake.lvm()), &groups).unwrap();
        assert_eq!(seen.missing(), std::slice::from_ref(&groups[1].name));
        assert_eq!(phase(&seen, 1, "vg0"), Phase::Ready);
        // The control: LVM does not answer about a group that is listed.
        assert!(view(&Silent(fake.lvm()), &groups[..1]).is_err());
    }

    #[test]
    fn a_group_whose_lvs_cannot_be_listed_is_not_empty() {
        let (fake, groups) = (machine(), listed(&["vg0", "vg1"]));
        let lvm = fake.lvm();
        let see_after = |stderr: &str| {
            lvm.fail_next("lvs", 5, stderr);
            view_one(&lvm, &groups, id(1), &Beside::default()).unwrap()
        };
        let seen = see_after("  Cannot process volume group vg0\n");
        assert!(seen.unread(&groups[0].name).is_some(), "{seen:?}");
        // The control: a group that went after it was seen has no LVs.
        let seen = see_after("  Volume group \"vg0\" not found\n  Cannot process volume group vg0\n");
        assert!(seen.unread_groups().next().is_none() && seen.lvs_of(id(1)).is_empty(), "{seen:?}");
    }

    /// Complains of another disk in each answer that is an error, and may leave the report empty.
    struct Noisy<C> {
        lvm: C,
        is_empty: bool,
    }

    impl<C: Commands> Commands for Noisy<C> {
        fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
            let mut out = self.lvm.run(command)?;
            if out.status != 0 {
                out.stderr.push_str("  Error reading device /dev/sdz at 0 length 4096.\n");
            }
            if out.status != 0 && self.is_empty {
                out.stdout = br#"{"report":[{"lv":[]}]}"#.to_vec();
            }
            Ok(out)
        }
    }

    #[test]
    fn an_lv_is_there_although_lvm_complains_of_another_disk() {
        let (fake, groups) = (machine(), listed(&["vg0", "vg1"]));
        let see = |is_empty: bool| {
            let lvm = Noisy { lvm: fake.lvm(), is_empty };
            view_one(&lvm, &groups, id(1), &Beside::default()).unwrap()
        };
        let seen = see(false);
        assert!(seen.unread_groups().next().is_none(), "{seen:?}");
        assert_eq!(phase(&seen, 1, "vg0"), Phase::Ready);
        // The control: an LV of which LVM says nothing is not called gone.
        assert!(see(true).unread(&groups[0].name).is_some());
    }

    #[test]
    fn a_group_that_is_not_there_is_missing_and_the_others_are_named() {
        let (fake, groups) = (machine(), listed(&["vg0", "vg9"]));
        let seen = view(&fake.lvm(), &groups).unwrap();
        assert_eq!((seen.missing(), seen.unread_groups().count()), (&[groups[1].name.clone()][..], 0));
        assert_eq!(seen.unlisted(), ["other", "vg1"]);
        assert_eq!(phase(&seen, 1, "vg0"), Phase::Ready);
        // Without LVM's own words for it, a group that cannot be read is never called missing.
        fake.lvm().fail_next("vgs", 5, UNREADABLE);
        fake.lvm().fail_next("vgs", 5, UNREADABLE);
        assert!(view(&fake.lvm(), &groups).unwrap().unread(&groups[0].name).is_some());
    }
}
