//! Exports that somebody else made, adopted as they are. The law: an export that is offered can be
//! kept without touching a session, a mapping or a credential, and is made identically after a
//! boot. Any other export is refused with a reason. Foreign objects stay byte for byte as they
//! were.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common;

use crate::common::{
    Each, dump, dump_all, grant, host, machine_beside_foreign, pass, path, plan_now, present, run_script,
    settle, way_of,
};
use mooring_host::fake::{Access, FakeMachine, Reach, SessionId};
use mooring_host::{Tree, TreePath};
use mooring_model::{IqnPrefix, Mode, Tuning};
use mooring_targets::adopt::{Offer, SeenTarget, judge, look, look_again};
use mooring_targets::{Device, Op, Wanted, apply, layout, plan};
use proptest::prelude::*;

const CINDER: &str = include_str!("captured/cinder.txt");
const TARGETCLI: &str = include_str!("captured/targetcli.txt");
const CINDER_TARGET: &str = "iqn.2010-10.org.openstack:volume-7f3c1e52-0d5b-4f0a-9a55-5d3c2b1a0f9e";
const CINDER_DEVICE: &str = "/dev/cinder-volumes/volume-7f3c1e52-0d5b-4f0a-9a55-5d3c2b1a0f9e";
const TARGETCLI_TARGET: &str = "iqn.2003-01.org.linux-iscsi.storage1.x8664:sn.0123456789ab";
const PORTAL: &str = "10.0.0.1:3260";
const USER: &str = "tJ8s5QpTq3vXn2LdRb7k";
const SECRET: &str = "Xylophon9dQ2mVwE";

fn captured() -> FakeMachine {
    let machine = machine_beside_foreign();
    machine.add_device(CINDER_DEVICE, 1 << 30);
    machine.add_device("/dev/vg0/data0", 1 << 30);
    run_script(&machine.lio(), CINDER);
    run_script(&machine.lio(), TARGETCLI);
    machine
}

fn seen(tree: &dyn Tree, iqn: &str) -> SeenTarget {
    let all = look(tree, &IqnPrefix::default()).unwrap();
    all.into_iter().find(|target| target.iqn == iqn).unwrap_or_else(|| panic!("{iqn} was not seen"))
}

fn offer(tree: &dyn Tree, iqn: &str) -> Offer {
    judge(&seen(tree, iqn)).unwrap_or_else(|reasons| panic!("{iqn}: {reasons:?}"))
}

/// Returns the spec that the agent would have for this export after the adoption.
fn wanted(offer: &Offer) -> Wanted {
    Wanted::Present {
        names: offer.names.clone(),
        device: Device::from(format!("/dev/{}/{}", offer.group, offer.names.lv)),
        portals: offer.portals.clone(),
        withheld: false,
        grants: offer.grants.clone(),
        tuning: Tuning::default(),
        port_id: None,
    }
}

/// Dumps everything except the attributes that an adoption may tighten.
fn dump_rest(tree: &dyn Tree, offer: &Offer) -> String {
    let group = layout::tpg(&offer.names).join("attrib");
    let own: Vec<TreePath> = layout::TPG_ATTRIBS
        .iter()
        .map(|(name, ..)| group.join(name))
        // This parameter follows the attribute `authentication`.
        .chain(["AuthMethod", "ImmediateData"].map(|name| layout::tpg(&offer.names).join("param").join(name)))
        .chain(
            layout::SEALS.iter().map(|(name, ..)| layout::backstore(&offer.names).join("attrib").join(name)),
        )
        .chain(offer.grants.iter().map(|grant| {
            layout::acl(&offer.names, grant.initiator.as_str()).join("attrib").join("authentication")
        }))
        .collect();
    let kept = |line: &&str| {
        let at = path(line.split(' ').next().unwrap_or_default());
        // The numbers of a session change with its commands.
        let moves = at.name() == "info" && at.parent().parent().name() == "acls";
        !moves && !own.contains(&at)
    };
    dump_all(tree).lines().filter(kept).collect::<Vec<_>>().join("\n")
}

/// Asserts that two texts are equal, and shows only the first lines that differ.
fn assert_same(now: &str, before: &str, when: &str) {
    let differ: Vec<_> =
        now.lines().zip(before.lines()).filter(|(now, before)| now != before).take(3).collect();
    assert!(now == before, "{when}: {differ:#?}");
}

fn reach_of(machine: &FakeMachine, iqn: &str) -> Vec<Reach> {
    machine.reachable().into_iter().filter(|reach| reach.target == iqn).collect()
}

/// Returns the access as its maker intended it. Makers do not know that a host with read-only
/// access can write.
fn meant(reach: Vec<Reach>, offer: &Offer) -> Vec<Reach> {
    let given = |mut reach: Reach| {
        let grant = offer.grants.iter().find(|grant| grant.initiator.as_str() == reach.initiator);
        if grant.is_some_and(|grant| grant.mode == Mode::ReadOnly) {
            reach.mode = Access::ReadOnly;
        }
        reach
    };
    reach.into_iter().map(given).collect()
}

/// Does what the agent does at its start, and checks every step against the law.
fn keeps_all(machine: &FakeMachine, offer: &Offer, sessions: &[(SessionId, u64, Mode)]) {
    let tree = machine.lio();
    let iqn = offer.names.iqn.as_str();
    let (rest, reach) = (dump_rest(&tree, offer), meant(reach_of(machine, iqn), offer));
    let wanted = wanted(offer);
    let steps = plan_now(&tree, &wanted);
    assert_eq!(steps, offer.steps, "what was shown is what is done");
    let mut watch = Each(|step: &mooring_model::Step<Op>| {
        assert_same(&dump_rest(&tree, offer), &rest, &format!("after {}", step.op));
        for (session, lun, mode) in sessions {
            assert!(machine.is_live(*session), "after {}", step.op);
            assert_eq!(meant(reach_of(machine, iqn), offer), reach, "logins to come, after {}", step.op);
            machine.read(*session, *lun).unwrap();
            assert_eq!(machine.write(*session, *lun).is_ok(), *mode == Mode::ReadWrite, "after {}", step.op);
        }
    });
    apply(&steps, &tree, &mut watch).unwrap();
    assert!(plan_now(&tree, &wanted).is_quiet());
    let now = reach_of(machine, iqn);
    assert_eq!(now, reach, "who reaches it, and how");
}

fn log_in(machine: &FakeMachine, offer: &Offer) -> Vec<(SessionId, u64, Mode)> {
    let one = |grant: &mooring_model::Grant| {
        let way = way_of(grant);
        let shown = way.credentials.as_ref().map(|(user, secret)| (user.as_str(), secret.as_str()));
        let portal = offer.portals[0].to_string();
        let session = machine.login(&portal, offer.names.iqn.as_str(), &way.initiator, shown).unwrap();
        (session, way.lun, way.mode)
    };
    offer.grants.iter().map(one).collect()
}

/// After a boot nothing of the export is there, and the agent makes it under the recorded names.
fn comes_back_the_same(machine: &FakeMachine, offer: &Offer) {
    let before = log_in(machine, offer);
    let identity = |sessions: &[(SessionId, u64, Mode)]| -> Vec<_> {
        sessions.iter().map(|(session, lun, _)| machine.inquire(*session, *lun).unwrap()).collect()
    };
    let (was, reach) = (identity(&before), reach_of(machine, offer.names.iqn.as_str()));
    let alias = layout::backstore(&offer.names).join("attrib").join("emulate_model_alias");
    let alias_was = machine.lio().read_text(&alias).unwrap();
    machine.reboot();
    mooring_targets::prepare(&machine.lio()).unwrap();
    let wanted = wanted(offer);
    pass(&machine.lio(), &wanted).unwrap();
    assert!(plan_now(&machine.lio(), &wanted).is_quiet());
    assert_eq!(machine.lio().read_text(&alias).unwrap(), alias_was);
    assert_eq!(reach_of(machine, offer.names.iqn.as_str()), reach);
    assert_eq!(identity(&log_in(machine, offer)), was);
}

#[test]
fn what_cinder_left_is_taken_as_it_stands() {
    let machine = captured();
    let tree = machine.lio();
    let offer = offer(&tree, CINDER_TARGET);
    assert_eq!((offer.group.as_str(), offer.names.tpg, offer.names.lun.0), ("cinder-volumes", 1, 0));
    assert_eq!(offer.names.lv, "volume-7f3c1e52-0d5b-4f0a-9a55-5d3c2b1a0f9e");
    assert_eq!(offer.names.serial, "5a0c1d2e-9b8a-4765-8432-10fedcba9876");
    assert_eq!(offer.names.backstore.name, CINDER_TARGET);
    let grants: Vec<_> = offer.grants.iter().map(way_of).collect();
    assert_eq!(grants.len(), 2);
    assert!(grants.iter().all(|way| way.credentials == Some((USER.to_owned(), SECRET.to_owned()))));
    assert!(offer.notes.iter().any(|note| note.contains("LUN 0")), "{:?}", offer.notes);
    let sessions = log_in(&machine, &offer);
    assert_eq!(seen(&tree, CINDER_TARGET).sessions["iqn.2026-01.lab.host1"].len(), 1);
    keeps_all(&machine, &offer, &sessions);
    comes_back_the_same(&machine, &offer);
}

#[test]
fn what_targetcli_left_is_taken_as_it_stands() {
    let machine = captured();
    let offer = offer(&machine.lio(), TARGETCLI_TARGET);
    assert!(offer.names.model_alias);
    let ways: Vec<_> = offer.grants.iter().map(|grant| (grant.lun.0, grant.mode)).collect();
    assert_eq!(ways, [(0, Mode::ReadWrite), (3, Mode::ReadOnly)]);
    assert!(offer.notes.iter().any(|note| note.contains("without CHAP")), "{:?}", offer.notes);
    let sessions = log_in(&machine, &offer);
    keeps_all(&machine, &offer, &sessions);
    comes_back_the_same(&machine, &offer);
}

#[test]
fn an_attribute_of_the_disk_that_initiators_know_it_by_is_made_again() {
    let machine = captured();
    let mut offer = offer(&machine.lio(), TARGETCLI_TARGET);
    // The control: without it, the disk would have another model.
    offer.names.model_alias = false;
    machine.reboot();
    mooring_targets::prepare(&machine.lio()).unwrap();
    pass(&machine.lio(), &wanted(&offer)).unwrap();
    let alias = layout::backstore(&offer.names).join("attrib").join("emulate_model_alias");
    assert_eq!(machine.lio().read_text(&alias).unwrap(), "0");
}

#[test]
fn looking_changes_nothing_and_shows_no_secret() {
    let machine = captured();
    let tree = machine.lio();
    let before = dump_all(&tree);
    let all = look(&tree, &IqnPrefix::default()).unwrap();
    for target in &all {
        assert_eq!(&look_again(&tree, target).unwrap(), target);
        let said = format!("{target:?} {:?}", judge(target));
        assert!(!said.contains(SECRET), "{said}");
    }
    assert_same(&dump_all(&tree), &before, "after a look");
    // Our own exports are not among the offers.
    settle(&machine, &present(&[PORTAL], vec![grant(1, 1, Mode::ReadWrite, None)]));
    assert_eq!(look(&tree, &IqnPrefix::default()).unwrap(), all);
}

/// Changes of Cinder's export, and the obstacle that is then reported. `$T` is its target, `$P` its
/// portal group, `$B` its backstore.
const OBSTACLES: [(&str, &str); 21] = [
    ("mkdir $T/tpgt_2", "it has 2 portal groups"),
    ("mkdir $P/lun/lun_5", "it has 2 LUNs"),
    ("write $P/attrib/generate_node_acls = 1", "without an ACL"),
    ("write $P/enable = 0", "its portal group is not enabled"),
    ("mkdir $P/acls/iqn.2026-01.lab.other", "maps 0 LUNs"),
    (
        "mkdir $P/acls/Someone\nmkdir $P/acls/Someone/lun_1\nlink $P/acls/Someone/lun_1/x -> $P/lun/lun_0",
        "the ACL of Someone",
    ),
    ("mkdir $P/acls/$H/lun_7\nlink $P/acls/$H/lun_7/x -> $P/lun/lun_0", "maps 2 LUNs"),
    ("unlink $P/acls/$H/lun_0/4be2f1907c", "maps nothing"),
    ("write $P/acls/$H/auth/password = NULL", "half of a pair"),
    ("write $P/acls/$H/auth/password = NULL\nwrite $P/acls/$H/auth/userid = NULL", "nobody can log in by it"),
    ("write $P/acls/$H/auth/password = short", "12"),
    ("write $P/acls/$H/auth/userid = user\\n", "want 1 to 255 printable"),
    ("write $P/acls/$H/auth/userid_mutual = half", "half of a pair"),
    ("write $P/attrib/authentication = 0", "its portal group demands none"),
    ("rmdir $P/np/10.0.0.1:3260", "it listens nowhere"),
    ("rmdir $P/np/10.0.0.1:3260\nmkdir $P/np/0.0.0.0:3261", "its portal 0.0.0.0:3261"),
    ("unlink $P/lun/lun_0/9c41d07e5a", "shows no backstore"),
    (
        "mkdir iscsi/iqn.2026-01.lab:t\nmkdir iscsi/iqn.2026-01.lab:t/tpgt_1\nmkdir iscsi/iqn.2026-01.lab:t/tpgt_1/lun/lun_0\nlink iscsi/iqn.2026-01.lab:t/tpgt_1/lun/lun_0/x -> $B",
        "is shown by 2 LUNs",
    ),
    ("relink wwn/vendor_id = ACME", "its vendor_id is ACME"),
    ("relink wwn/product_id = FAST", "its product_id is FAST"),
    ("relink control = readonly=1", "made read-only"),
];

fn place(text: &str) -> String {
    let target = format!("iscsi/{CINDER_TARGET}");
    text.replace("$P", &format!("{target}/tpgt_1"))
        .replace("$T", &target)
        .replace("$B", &format!("core/iblock_0/{CINDER_TARGET}"))
        .replace("$H", "iqn.2026-01.lab.host1")
}

/// A machine with the captured exports and one obstacle.
fn with_obstacle(what: &str) -> FakeMachine {
    let Some(attribute) = what.strip_prefix("relink ") else {
        let machine = captured();
        run_script(&machine.lio(), &place(what));
        return machine;
    };
    // Attributes that cannot change during an export are set before it.
    let machine = machine_beside_foreign();
    machine.add_device(CINDER_DEVICE, 1 << 30);
    let line = format!("write core/iblock_0/{CINDER_TARGET}/{attribute}");
    let script = if attribute.starts_with("control") {
        CINDER.replace(&format!("write core/iblock_0/{CINDER_TARGET}/control = readonly=0"), &line)
    } else {
        CINDER.replacen("\nmkdir iscsi/", &format!("\n{line}\nmkdir iscsi/"), 1)
    };
    run_script(&machine.lio(), &script);
    machine
}

type Change = fn(&mut SeenTarget);

#[test]
fn what_cannot_be_taken_over_is_refused_with_its_reason() {
    for (what, why) in OBSTACLES {
        let machine = with_obstacle(what);
        let before = dump_all(&machine.lio());
        let reasons = judge(&seen(&machine.lio(), CINDER_TARGET)).unwrap_err();
        assert!(reasons.iter().any(|reason| reason.contains(why)), "{what}: {reasons:?}");
        assert_same(&dump_all(&machine.lio()), &before, what);
    }
    // Obstacles that the fake kernel does not have are put into the view.
    let changes: [(Change, &str); 4] = [
        (|seen| seen.store.as_mut().unwrap().alua.push("mine".to_owned()), "ALUA group of its own, mine"),
        (|seen| seen.store.as_mut().unwrap().protected = true, "protection information"),
        (|seen| seen.iser.push(PORTAL.to_owned()), "iSER"),
        (|seen| seen.luns[0].backstore = Some(path("core/fileio_3/f")), "is of kind fileio"),
    ];
    for (change, why) in changes {
        let mut seen = seen(&captured().lio(), CINDER_TARGET);
        change(&mut seen);
        let reasons = judge(&seen).unwrap_err();
        assert!(reasons.iter().any(|reason| reason.contains(why)), "{why}: {reasons:?}");
    }
    // The control: without an obstacle, the export is offered.
    assert_eq!(offer(&captured().lio(), CINDER_TARGET).steps.blocked, []);
}

#[test]
fn a_stranger_that_is_logged_in_is_not_cut_behind_an_operators_back() {
    let machine = captured();
    let tree = machine.lio();
    run_script(&tree, &place("write $P/attrib/authentication = 0\nwrite $P/attrib/generate_node_acls = 1"));
    let stranger = machine.login(PORTAL, CINDER_TARGET, "iqn.2026-01.lab:stranger", None).unwrap();
    run_script(&tree, &place("write $P/attrib/generate_node_acls = 0\nwrite $P/attrib/authentication = 1"));
    let reasons = judge(&seen(&tree, CINDER_TARGET)).unwrap_err();
    assert!(reasons[0].contains("iqn.2026-01.lab:stranger"), "{reasons:?}");
    machine.logout(stranger);
    offer(&tree, CINDER_TARGET);
}

/// One initiator of a foreign export.
#[derive(Debug, Clone)]
struct Acl {
    lun: u16,
    mode: Mode,
    chap: bool,
    mutual: bool,
    /// The ACL's own `attrib/authentication`; `None` if it is not set.
    says: Option<bool>,
}

/// A foreign export that can be adopted.
#[derive(Debug, Clone)]
struct Made {
    tpg: u16,
    lun: u16,
    asks: bool,
    alias: bool,
    mapper: bool,
    attribs: [bool; 4],
    portals: Vec<&'static str>,
    acls: Vec<Acl>,
}

const LOOSE: [&str; 4] = [
    "prod_mode_write_protect = 0",
    "demo_mode_write_protect = 0",
    "demo_mode_discovery = 1",
    "cache_dynamic_acls = 1",
];

impl Made {
    /// True if the initiator of this ACL is asked for CHAP.
    fn asks(&self, acl: &Acl) -> bool {
        acl.says.unwrap_or(self.asks)
    }

    fn script(&self) -> String {
        let device = if self.mapper { "/dev/mapper/vg0-a--b" } else { "/dev/vg0/a-b" };
        let (b, t) = ("core/iblock_7/a-b", "iscsi/iqn.2026-02.org.example:t");
        let p = format!("{t}/tpgt_{}", self.tpg);
        let lun = format!("{p}/lun/lun_{}", self.lun);
        let mut lines = vec![
            "mkdir core/iblock_7".to_owned(),
            format!("mkdir {b}"),
            format!("write {b}/control = udev_path={device}"),
            format!("write {b}/enable = 1"),
            format!("write {b}/wwn/vpd_unit_serial = 0123456789abcdef"),
            format!("write {b}/attrib/emulate_model_alias = {}", u8::from(self.alias)),
            format!("mkdir {t}"),
            format!("mkdir {p}"),
            format!("mkdir {lun}"),
            format!("link {lun}/0f0f0f0f0f -> {b}"),
            format!("write {p}/attrib/authentication = {}", u8::from(self.asks)),
        ];
        let loose = LOOSE.iter().zip(self.attribs).filter(|(_, is)| *is);
        lines.extend(loose.map(|(attrib, _)| format!("write {p}/attrib/{attrib}")));
        lines.extend(self.portals.iter().map(|portal| format!("mkdir {p}/np/{portal}")));
        for (number, acl) in self.acls.iter().enumerate() {
            let a = format!("{p}/acls/{}", host(number));
            lines.push(format!("mkdir {a}"));
            if let Some(says) = acl.says {
                lines.push(format!("write {a}/attrib/authentication = {}", u8::from(says)));
            }
            if acl.chap {
                lines.push(format!("write {a}/auth/userid = user{number}"));
                lines.push(format!("write {a}/auth/password = secret-of-twelve-{number}"));
            }
            if acl.chap && acl.mutual {
                lines.push(format!("write {a}/auth/userid_mutual = target{number}"));
                lines.push(format!("write {a}/auth/password_mutual = mutual-of-twelve-{number}"));
            }
            let mapped = format!("{a}/lun_{}", acl.lun);
            lines.push(format!("mkdir {mapped}"));
            lines.push(format!("link {mapped}/1e1e1e1e1e -> {lun}"));
            lines.push(format!("write {mapped}/write_protect = {}", u8::from(acl.mode == Mode::ReadOnly)));
        }
        lines.push(format!("write {p}/enable = 1"));
        lines.join("\n")
    }
}

fn any_made() -> impl Strategy<Value = Made> {
    let mode = prop_oneof![Just(Mode::ReadOnly), Just(Mode::ReadWrite)];
    let acl = (0u16..4, mode, any::<bool>(), any::<bool>(), any::<Option<bool>>())
        .prop_map(|(lun, mode, chap, mutual, says)| Acl { lun, mode, chap, mutual, says });
    let portals = prop::sample::subsequence(vec!["10.0.0.1:3260", "10.0.0.2:3260", "[fd00::1]:3261"], 1..=3);
    let shape = (1u16..4, 0u16..5, any::<bool>(), any::<bool>(), any::<bool>(), any::<[bool; 4]>());
    (shape, portals, prop::collection::vec(acl, 0..4)).prop_map(
        |((tpg, lun, asks, alias, mapper, attribs), portals, acls)| Made {
            tpg,
            lun,
            asks,
            alias,
            mapper,
            attribs,
            portals,
            acls,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// An offered export is kept as it is. Every export is offered, unless nobody can log in by one
    /// of its ACLs, or an ACL has credentials that nobody asks for.
    #[test]
    fn what_is_offered_is_kept_and_nothing_else_is_touched(made in any_made()) {
        let machine = machine_beside_foreign();
        let tree = machine.lio();
        for device in ["/dev/vg0/a-b", "/dev/mapper/vg0-a--b"] {
            machine.add_device(device, 1 << 30);
        }
        run_script(&tree, &made.script());
        let found = judge(&seen(&tree, "iqn.2026-02.org.example:t"));
        let sound = |acl: &Acl| acl.chap == made.asks(acl) || (acl.chap && acl.says == Some(false));
        prop_assert_eq!(found.is_ok(), made.acls.iter().all(sound), "{:?}", found);
        let Ok(offer) = found else { return Ok(()) };
        let sessions = log_in(&machine, &offer);
        let foreign = dump(&tree, &path("core/iblock_1160"));
        keeps_all(&machine, &offer, &sessions);
        prop_assert_eq!(dump(&tree, &path("core/iblock_1160")), foreign);
        // The adopted export is judged as before, and nothing is left to do.
        let again = judge(&seen(&tree, "iqn.2026-02.org.example:t")).unwrap();
        prop_assert!(again.steps.is_quiet());
        prop_assert_eq!((&again.names, &again.grants, &again.portals), (&offer.names, &offer.grants, &offer.portals));
        // The ordinary plan revokes one grant, and the other initiators notice nothing.
        if let Some((gone, stay)) = offer.grants.split_first() {
            let mut wanted = wanted(&offer);
            if let Wanted::Present { grants, .. } = &mut wanted {
                *grants = stay.to_vec();
            }
            apply(&plan(&wanted, &look_for(&tree, &wanted)), &tree, &mut ()).unwrap();
            prop_assert!(!machine.is_live(sessions[0].0), "{} is cut", gone.initiator);
            for (session, lun, _) in &sessions[1..] {
                machine.read(*session, *lun).unwrap();
            }
            prop_assert!(plan_now(&tree, &wanted).is_quiet());
        }
    }
}

fn look_for(tree: &dyn Tree, wanted: &Wanted) -> mooring_targets::ExportView {
    common::look(tree, wanted)
}
