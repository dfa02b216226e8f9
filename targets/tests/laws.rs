//! The laws of the planner, on the behaving fake of LIO. Where a law could be empty, a control
//! shows the run that breaks it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common;

use std::collections::BTreeSet;

use crate::common::*;
use mooring_host::fake::{FakeLio, FakeMachine, Faulty};
use mooring_host::{Entry, Errno, Tree, TreeError, TreePath};
use mooring_model::{BarrierId, Chap, Grant, Mode};
use mooring_targets::{Error, ExportView, Known, Op, Wanted, apply, drains, layout, plan};
use proptest::prelude::*;

const PORTALS: [&str; 3] = ["10.10.0.10:3260", "10.20.0.10:3260", "10.10.0.10:3261"];

/// Cases per law: proptest's default (256), or `PROPTEST_CASES`.
pub(crate) fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn some_chap() -> impl Strategy<Value = Option<Chap>> {
    let initiator = prop_oneof![
        Just(side("user-a", "secret-of-a-1234")),
        Just(side("user-a", "secret-of-a-5678")),
        Just(side("user-b", "secret-of-b-1234"))
    ];
    let mutual = prop_oneof![
        Just(None),
        Just(Some(side("target-a", "mutual-of-a-1234"))),
        Just(Some(side("target-b", "mutual-of-a-1234"))),
        Just(Some(side("target-a", "mutual-of-b-1234")))
    ];
    prop_oneof![
        1 => Just(None),
        3 => (initiator, mutual).prop_map(|(initiator, mutual)| Some(Chap { initiator, mutual }))
    ]
}

fn some_grant(number: usize) -> impl Strategy<Value = Option<Grant>> {
    let mode = prop_oneof![Just(Mode::ReadOnly), Just(Mode::ReadWrite)];
    let barrier = prop_oneof![3 => Just(None), 2 => (1..3u128).prop_map(|id| Some(BarrierId::from_u128(id)))];
    let made = (prop_oneof![3 => Just(1u16), 1 => Just(2u16)], mode, some_chap(), barrier).prop_map(
        move |(lun, mode, chap, barrier)| {
            let barrier = barrier.filter(|_| mode == Mode::ReadOnly);
            Some(Grant { barrier, ..grant(number, lun, mode, chap) })
        },
    );
    prop_oneof![1 => Just(None), 2 => made]
}

pub(crate) fn some_spec() -> impl Strategy<Value = Wanted> {
    let portals = prop::sample::subsequence(PORTALS.to_vec(), 0..=3);
    let grants = (some_grant(1), some_grant(2), some_grant(3));
    let said = (prop_oneof![Just("8192"), Just("1048576")], prop_oneof![Just("yes"), Just("no")]);
    let present = (portals, grants, said).prop_map(|(portals, (a, b, c), (burst, r2t))| {
        let wanted = present(&portals, [a, b, c].into_iter().flatten().collect());
        tuned(wanted, &[("max_burst", burst), ("initial_r2t", r2t)])
    });
    let present = (present, prop::bool::weighted(0.2));
    let present = present.prop_map(|(wanted, silent)| if silent { withheld(wanted) } else { wanted });
    prop_oneof![1 => Just(absent()), 8 => present]
}

/// Damage to an existing export by people and by crashes of other programs; none makes it foreign.
const DAMAGE: [&str; 28] = [
    "write $P/param/ImmediateData = Yes",
    "write $B/attrib/max_write_same_len = 65535",
    "write $B/attrib/emulate_caw = 1",
    "write $B/attrib/emulate_3pc = 1",
    "write $P/enable = 0",
    "write $P/attrib/authentication = 0",
    "write $P/attrib/generate_node_acls = 1",
    "write $P/attrib/prod_mode_write_protect = 0",
    "write $P/attrib/demo_mode_discovery = 1",
    "write $P/attrib/cache_dynamic_acls = 1",
    "write $P/param/MaxBurstLength = 512",
    "unlink $P/lun/lun_1/mooring",
    "unlink $P/acls/$H/lun_1/mooring",
    "rmdir $P/acls/$H/lun_1",
    "rmdir $P/acls/$H",
    "write $P/acls/$H/lun_1/write_protect = 0",
    "write $P/acls/$H/lun_1/write_protect = 1",
    "write $P/acls/$H/auth/userid = user-a\\n",
    "write $P/acls/$H/auth/password = NULL",
    "write $P/acls/$H/attrib/authentication = 0",
    "write $P/acls/$H/attrib/authentication = 1",
    "write $P/acls/$H/tag = somebody's",
    "write $P/acls/$H/cmdsn_depth = 63",
    "mkdir $P/acls/iqn.1999-01.stranger:x",
    "mkdir $P/acls/$H/lun_7",
    "link $P/acls/$H/lun_7/whatever -> $P/lun/lun_1",
    "rmdir $P/np/10.10.0.10:3260",
    "mkdir $P/np/10.30.0.10:3260",
];

/// Does the damage, and skips what the kernel refuses.
pub(crate) fn damage(machine: &FakeMachine, which: &[(usize, usize)]) {
    let tree = machine.lio();
    let tpg = layout::tpg(&names());
    for (line, number) in which {
        let line = DAMAGE[*line].replace("$P", tpg.as_str()).replace("$H", &host(*number));
        let line = line.replace("$B", layout::backstore(&names()).as_str());
        let (verb, rest) = line.split_once(' ').unwrap();
        drop(match verb {
            "mkdir" => tree.mkdir(&path(rest)),
            "rmdir" => tree.rmdir(&path(rest)),
            "unlink" => tree.unlink(&path(rest)),
            "link" => {
                let (link, target) = rest.split_once(" -> ").unwrap();
                tree.symlink(&path(target), &path(link))
            }
            _ => {
                let (at, value) = rest.split_once(" = ").unwrap();
                tree.write(&path(at), value.replace("\\n", "\n").as_bytes())
            }
        });
    }
}

pub(crate) fn some_damage() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((0..DAMAGE.len(), 1usize..=3), 0..6)
}

/// Logs in every initiator that can, over every portal.
fn log_in_all(machine: &FakeMachine, wanted: &Wanted) {
    let Wanted::Present { names, grants, .. } = wanted else { return };
    for portal in wanted.doors() {
        for grant in grants {
            let way = way_of(grant);
            let shown = way.credentials.as_ref().map(|(user, secret)| (user.as_str(), secret.as_str()));
            machine.login(&portal.to_string(), names.iqn.as_str(), &way.initiator, shown).unwrap();
        }
    }
}

/// A tree on which one changing call fails without reaching the kernel; all others work.
fn fails_once(tree: &FakeLio, at: usize, errno: Errno) -> Faulty<FakeLio> {
    let faulty = Faulty::new(tree.clone());
    faulty.fail_nth(at as u64 + 1, errno);
    faulty
}

/// True if a spec gives this access, with this or a wider mode, and with these credentials.
fn is_given(way: &Way, specs: [&Wanted; 2]) -> bool {
    specs.iter().any(|spec| {
        spec.grants().iter().map(way_of).any(|given| {
            given.initiator == way.initiator
                && given.lun == way.lun
                && way.mode <= given.mode
                && given.credentials == way.credentials
        })
    })
}

/// Law 5, logins: after every step, the old or the new spec gives each possible login: that LUN, at
/// most that mode, exactly those credentials. Other access goes once and never comes back.
fn exposes_nothing(a: &Wanted, b: &Wanted) {
    let machine = machine();
    let tree = machine.lio();
    settle(&machine, a);
    let steps = plan_now(&tree, b);
    let mut refused: BTreeSet<Way> = BTreeSet::new();
    let mut before: BTreeSet<Way> = ways(&machine).into_iter().collect();
    let mut watch = Each(|step: &mooring_model::Step<Op>| {
        let now: BTreeSet<Way> = ways(&machine).into_iter().collect();
        for way in &now {
            assert!(is_given(way, [a, b]), "{way:?} after {}\n{}", step.op, text(&steps));
            assert!(!refused.contains(way), "{way:?} is back after {}\n{}", step.op, text(&steps));
        }
        refused.extend(before.difference(&now).filter(|way| !is_given(way, [b, b])).cloned());
        before = now;
    });
    apply(&steps, &tree, &mut watch).unwrap();
    assert_eq!(ways(&machine), wanted_ways(b));
}

/// Law 5, logins, exhaustively for one initiator: from every grant (or none) to every other.
#[test]
fn nothing_is_exposed_early_between_any_two_grants() {
    let mut grants = vec![None];
    let mutuals =
        [None, Some(side("target-a", "mutual-of-a-1234")), Some(side("target-b", "mutual-of-a-1234"))];
    let mut chaps = vec![None];
    for (user, secret) in
        [("user-a", "secret-of-a-1234"), ("user-a", "secret-of-a-5678"), ("user-b", "secret-of-b-1234")]
    {
        chaps
            .extend(mutuals.iter().map(|mutual| Some(Chap { mutual: mutual.clone(), ..chap(user, secret) })));
    }
    for chap in chaps {
        for (lun, mode) in [(1, Mode::ReadOnly), (1, Mode::ReadWrite), (2, Mode::ReadWrite)] {
            grants.push(Some(grant(1, lun, mode, chap.clone())));
        }
    }
    let specs: Vec<Wanted> =
        grants.into_iter().map(|one| present(&PORTALS[..1], one.into_iter().collect())).collect();
    for a in &specs {
        for b in &specs {
            exposes_nothing(a, b);
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// Laws 1, 3, 4: one pass leads from any damaged spec to any other. Nothing is left to do,
    /// exactly the new grants are reachable, and foreign objects are byte for byte unchanged.
    #[test]
    fn converges_and_touches_only_ours(a in some_spec(), harm in some_damage(), b in some_spec()) {
        let machine = machine_beside_foreign();
        let tree = machine.lio();
        let foreign = dump_foreign(&tree);
        settle(&machine, &a);
        damage(&machine, &harm);
        settle(&machine, &b);
        prop_assert_eq!(dump_foreign(&tree), foreign);
        // A tombstone leaves not even an empty folder.
        settle(&machine, &absent());
        let bare = machine_beside_foreign();
        prop_assert_eq!(dump_all(&tree), dump_all(&bare.lio()));
    }

    /// Law 2: after a stop at any step, a new look and plan end in the tree of a run without it.
    #[test]
    fn any_prefix_then_again_ends_the_same(a in some_spec(), harm in some_damage(), b in some_spec(), stop in any::<prop::sample::Index>()) {
        let (straight, broken) = (machine_beside_foreign(), machine_beside_foreign());
        for machine in [&straight, &broken] {
            settle(machine, &a);
            damage(machine, &harm);
        }
        settle(&straight, &b);
        let tree = broken.lio();
        let whole = plan_now(&tree, &b);
        let stop = stop.index(whole.steps.len() + 1);
        let stopped = apply(&whole, &tree, &mut StopAfter(stop));
        prop_assert_eq!(stopped.is_err(), stop < whole.steps.len());
        settle(&broken, &b);
        prop_assert_eq!(dump_all(&tree), dump_all(&straight.lio()), "stopped after {} of\n{}", stop, text(&whole));
    }

    /// A narrow plan equals the whole plan: from a known state, it has the same steps and end.
    #[test]
    fn narrow_is_whole(a in some_spec(), b in some_spec()) {
        let machine = machine_beside_foreign();
        let tree = machine.lio();
        settle(&machine, &a);
        let Some(known) = Known::new(&a, look(&tree, &a)) else {
            let absent = matches!(a, Wanted::Absent { .. });
            prop_assert!(absent);
            return Ok(());
        };
        let mut changed = a.clone();
        let (Wanted::Present { grants: changing, .. }, Wanted::Present { grants, .. }) = (&mut changed, &b) else {
            prop_assert!(known.narrow(&b).is_none());
            return Ok(());
        };
        changing.clone_from(grants);
        let b = changed;
        let narrow = known.narrow(&b).unwrap();
        let steps = plan(&narrow.wanted, &narrow.look(&tree).unwrap());
        prop_assert_eq!(text(&steps), text(&plan_now(&tree, &b)));
        apply(&steps, &tree, &mut ()).unwrap();
        let seen = narrow.look(&tree).unwrap();
        let known = narrow.widen(&b, &seen).unwrap();
        prop_assert_eq!(known.view(), &look(&tree, &b));
    }

    /// Law 5, logins, with three initiators.
    #[test]
    fn nothing_is_exposed_early(a in some_spec(), b in some_spec()) {
        exposes_nothing(&a, &b);
    }

    /// Law 5, live sessions of all initiators of the old spec: none ever gets a mode wider than the
    /// wider one of the two specs. Access that the new spec does not give goes once, for good.
    #[test]
    fn no_session_gets_more_than_it_is_given(a in some_spec(), b in some_spec()) {
        let machine = machine_beside_foreign();
        let tree = machine.lio();
        settle(&machine, &a);
        log_in_all(&machine, &a);
        let steps = plan_now(&tree, &b);
        let seen = || -> BTreeSet<(String, u64, Mode)> {
            let ours = names();
            machine.reachable().into_iter().filter(|reach| reach.target == ours.iqn.as_str())
                .map(|reach| (reach.initiator, reach.lun, mode_of(reach.mode))).collect()
        };
        let given = |spec: &Wanted, (initiator, lun, mode): &(String, u64, Mode)| {
            spec.grants().iter().any(|grant| {
                grant.initiator.as_str() == initiator && u64::from(grant.lun.0) == *lun && *mode <= grant.mode
            })
        };
        let (mut refused, mut before) = (BTreeSet::new(), seen());
        apply(&steps, &tree, &mut Each(|step: &mooring_model::Step<Op>| {
            let now = seen();
            for one in &now {
                assert!(given(&a, one) || given(&b, one), "{one:?} after {}\n{}", step.op, text(&steps));
                assert!(!refused.contains(one), "{one:?} is back after {}\n{}", step.op, text(&steps));
            }
            refused.extend(before.difference(&now).filter(|one| !given(&b, one)).cloned());
            before = now;
        })).unwrap();
        for one in seen() {
            prop_assert!(given(&b, &one), "{:?} outlives the plan\n{}", one, text(&steps));
        }
    }

    /// Law 6: any call may fail with any error. An error other than "it is so already" ends the
    /// pass, and names its step and errno. The next passes converge.
    #[test]
    fn any_step_may_fail(a in some_spec(), harm in some_damage(), b in some_spec(), at in any::<prop::sample::Index>(), errno in some_errno()) {
        let machine = machine_beside_foreign();
        let tree = machine.lio();
        settle(&machine, &a);
        damage(&machine, &harm);
        let whole = plan_now(&tree, &b);
        if whole.steps.is_empty() {
            return Ok(());
        }
        let at = at.index(whole.steps.len());
        let result = apply(&whole, &fails_once(&tree, at, errno), &mut ());
        let step = &whole.steps[at].op;
        match result {
            _ if is_so_already(step, errno) => {}
            Err(Error::Step { index, step: said, source, .. }) => {
                prop_assert_eq!((index, source.errno, said), (at, errno, step.to_string()));
            }
            other => prop_assert!(false, "{errno:?} at {step} was swallowed: {other:?}"),
        }
        for _ in 0..3 {
            if plan_now(&tree, &b).is_quiet() {
                break;
            }
            drop(pass(&tree, &b));
        }
        settle(&machine, &b);
    }

    /// Law 7: each initiator that goes is unmapped, loses its mapped LUNs, then its ACL, in this
    /// order. All are unmapped, and all modes shrunk, before the first call that can block. Nothing
    /// is opened before the last removal of an ACL.
    #[test]
    fn revokes_come_first_and_in_order(a in some_spec(), b in some_spec()) {
        let machine = machine_beside_foreign();
        settle(&machine, &a);
        let steps = plan_now(&machine.lio(), &b).steps;
        let first_drain = steps.iter().position(|step| drains(step).is_some());
        let last_drain = steps.iter().rposition(|step| drains(step).is_some());
        let kept: BTreeSet<String> = b.grants().iter().map(|grant| grant.initiator.to_string()).collect();
        for grant in a.grants().iter().filter(|grant| !kept.contains(grant.initiator.as_str())) {
            let acl = layout::acl(&names(), grant.initiator.as_str());
            let lun = acl.join(layout::lun_name(grant.lun));
            let find = |op: Op| steps.iter().position(|step| step.op == op);
            let unlink = find(Op::Unlink { path: lun.join(layout::LINK) });
            let (rmdir, gone) = (find(Op::Rmdir { path: lun }), find(Op::Rmdir { path: acl }));
            prop_assert!(unlink.is_some() && unlink < rmdir && rmdir < gone);
            prop_assert!(unlink < first_drain);
        }
        for (index, step) in steps.iter().enumerate() {
            let opens = matches!(step.op, Op::Link { .. } | Op::Mkdir { .. })
                || matches!(&step.op, Op::Write { path, value } if path.name() == "enable" && value.expose() == b"1");
            prop_assert!(!opens || last_drain.is_none_or(|last| last < index), "{} comes too early", step.op);
            let shrinks = matches!(&step.op, Op::Write { path, value } if path.name() == "write_protect" && value.expose() == b"1");
            let live = shrinks && steps[..index].iter().all(|step| !matches!(step.op, Op::Link { .. }));
            prop_assert!(!live || first_drain.is_none_or(|first| index < first), "{} comes too late", step.op);
        }
    }

    /// A change of portals, credentials or another initiator ends no session; a revoke or a barrier
    /// ends exactly its own.
    #[test]
    fn sessions_of_unchanged_nexuses_live(a in some_spec(), b in some_spec()) {
        let Wanted::Present { grants, names, .. } = &a else { return Ok(()) };
        let Wanted::Present { grants: later, .. } = &b else { return Ok(()) };
        let Some(portal) = a.doors().first() else { return Ok(()) };
        let machine = machine_beside_foreign();
        settle(&machine, &a);
        let mut sessions = Vec::new();
        for grant in grants {
            let way = way_of(grant);
            let shown = way.credentials.as_ref().map(|(user, secret)| (user.as_str(), secret.as_str()));
            let session = machine.login(&portal.to_string(), names.iqn.as_str(), &way.initiator, shown).unwrap();
            sessions.push((grant, session));
        }
        pass(&machine.lio(), &b).unwrap();
        prop_assert!(plan_now(&machine.lio(), &b).is_quiet());
        for (grant, session) in sessions {
            let drained = |other: &Grant| other.barrier.is_some() && other.barrier != grant.barrier;
            let same = |other: &&Grant| other.initiator == grant.initiator && other.lun == grant.lun;
            let stays = later.iter().find(same).is_some_and(|other| !drained(other));
            prop_assert_eq!(machine.is_live(session), stays, "{}", grant.initiator);
        }
    }

    /// Plans, their `Debug`, and errors never contain a secret.
    #[test]
    fn no_secret_is_printed(a in some_spec(), b in some_spec(), at in any::<prop::sample::Index>()) {
        let machine = machine_beside_foreign();
        let tree = machine.lio();
        settle(&machine, &a);
        let view = look(&tree, &a);
        let steps = plan_now(&tree, &b);
        let at = at.index(steps.steps.len().max(1));
        let result = apply(&steps, &fails_once(&tree, at, Errno::EIO), &mut ());
        let all = format!("{view:?} {steps:?} {} {result:?} {:?}", text(&steps), result.as_ref().map_err(ToString::to_string));
        prop_assert!(!all.contains("secret-of") && !all.contains("mutual-of"), "{}", all);
    }
}

/// True if the kernel says so that a step is already done, or if the step is a refusable hint.
fn is_so_already(op: &Op, errno: Errno) -> bool {
    match op {
        Op::Mkdir { .. } => errno == Errno::EEXIST,
        Op::Rmdir { .. } | Op::Unlink { .. } | Op::WriteIfThere { .. } => errno == Errno::ENOENT,
        Op::Prune { .. } => matches!(errno, Errno::ENOENT | Errno::ENOTEMPTY),
        Op::Write { path, .. } => {
            path.name() == "enable" && path.as_str().starts_with("core/") && errno == Errno::EEXIST
        }
        Op::Advise { .. } => errno == Errno::EINVAL,
        Op::Link { .. } | Op::Expect { .. } | Op::UnlinkIf { .. } | Op::ProtectIf { .. } => false,
    }
}

const ERRNOS: [Errno; 12] = [
    Errno::EIO,
    Errno::EINVAL,
    Errno::ENOENT,
    Errno::EEXIST,
    Errno::EBUSY,
    Errno::ENODEV,
    Errno::ENOMEM,
    Errno::ENOTEMPTY,
    Errno::EACCES,
    Errno::EPERM,
    Errno::EINTR,
    Errno::ENOSPC,
];

fn some_errno() -> impl Strategy<Value = Errno> {
    prop::sample::select(ERRNOS.to_vec())
}

/// A tree whose kernel ignores `prod_mode_write_protect`: a mapped LUN starts read-write.
struct NoProdMode<'a>(&'a dyn Tree);

impl Tree for NoProdMode<'_> {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.0.mkdir(path)
    }
    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.0.rmdir(path)
    }
    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        self.0.symlink(target, link)
    }
    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        self.0.unlink(path)
    }
    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        if path.name() == "prod_mode_write_protect" { Ok(()) } else { self.0.write(path, value) }
    }
    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        self.0.read(path)
    }
    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        self.0.list(path)
    }
    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        self.0.read_link(path)
    }
    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        self.0.is_dir(path)
    }
}

/// Returns every access that was open after some step and that the spec does not give.
fn exposed(
    machine: &FakeMachine,
    tree: &dyn Tree,
    steps: &mooring_model::Plan<Op>,
    spec: &Wanted,
) -> Vec<Way> {
    let mut exposed = Vec::new();
    let mut watch = Each(|_: &mooring_model::Step<Op>| {
        exposed.extend(ways(machine).into_iter().filter(|way| !is_given(way, [spec, spec])));
    });
    apply(steps, tree, &mut watch).unwrap();
    exposed
}

proptest! {
    #![proptest_config(config())]

    /// The gate alone closes the window between a link and its `write_protect`, also on a kernel
    /// that maps read-write.
    #[test]
    fn the_gate_alone_closes_the_window(first in some_grant(1), second in some_grant(2)) {
        let machine = machine_beside_foreign();
        let tree = machine.lio();
        let tree = NoProdMode(&tree);
        let before = present(&PORTALS, first.clone().into_iter().collect());
        apply(&plan_now(&tree, &before), &tree, &mut ()).unwrap();
        let after = present(&PORTALS, first.into_iter().chain(second).collect());
        let steps = plan_now(&tree, &after);
        prop_assert_eq!(exposed(&machine, &tree, &steps, &after), vec![]);
    }
}

/// Control of the law of early exposure: the same steps, with the credential before
/// `write_protect`, do show read-write access for a read-only grant.
#[test]
fn a_wrong_order_is_seen_as_exposure() {
    let machine = machine();
    let tree = machine.lio();
    let tree = NoProdMode(&tree);
    settle(&machine, &present(&PORTALS, vec![]));
    tree.0.write(&layout::tpg(&names()).join("attrib").join("prod_mode_write_protect"), b"0").unwrap();
    let spec = present(&PORTALS, vec![grant(1, 1, Mode::ReadOnly, Some(chap("user", "secret-1234567")))]);
    let mut steps = plan_now(&tree, &spec);
    let protect = steps.steps.iter().position(|step| step.op.path().name() == "write_protect").unwrap();
    let step = steps.steps.remove(protect);
    steps.steps.push(step);
    let exposed = exposed(&machine, &tree, &steps, &spec);
    assert_eq!(exposed.len(), 1, "{}", text(&steps));
    assert_eq!(exposed[0].mode, Mode::ReadWrite);
}

/// Specs of the exhaustive runs: every kind of change is a step from one to the next.
fn chain() -> Vec<Wanted> {
    let mutual = Some(Chap {
        mutual: Some(side("target-a", "mutual-of-a-1234")),
        ..chap("user-a", "secret-of-a-1234")
    });
    let (rw, ro) = (Mode::ReadWrite, Mode::ReadOnly);
    let other = || Some(chap("user-b", "secret-of-b-1234"));
    vec![
        present(
            &PORTALS[..2],
            vec![grant(1, 1, rw, mutual), grant(2, 1, ro, None), grant(3, 1, rw, other())],
        ),
        present(
            &PORTALS[1..],
            vec![grant(1, 1, ro, other()), grant(2, 1, rw, other()), grant(3, 2, ro, None)],
        ),
        present(&PORTALS[..1], vec![grant(2, 1, ro, None)]),
        absent(),
    ]
}

/// Laws 2 and 6, exhaustively: each change of the chain ends in one tree, stopped after every
/// number of steps, and with every step failing with every error.
#[test]
fn every_stop_and_every_failure_of_the_chain() {
    let machine = machine();
    for (number, spec) in chain().iter().enumerate() {
        let steps = settle(&machine, spec).steps.len();
        let whole = dump_all(&machine.lio());
        let start = || {
            let machine = common::machine();
            for before in &chain()[..number] {
                settle(&machine, before);
            }
            machine
        };
        for stop in 0..steps {
            let broken = start();
            let tree = broken.lio();
            assert!(matches!(
                apply(&plan_now(&tree, spec), &tree, &mut StopAfter(stop)),
                Err(Error::Stopped { index, .. }) if index == stop
            ));
            settle(&broken, spec);
            assert_eq!(dump_all(&tree), whole, "spec {number} stopped after {stop}");
            for errno in ERRNOS {
                let broken = start();
                let tree = broken.lio();
                let plan = plan_now(&tree, spec);
                drop(apply(&plan, &fails_once(&tree, stop, errno), &mut ()));
                drop(pass(&tree, spec));
                settle(&broken, spec);
                // A false "it is so already" error, or a refused hint, may leave a trace without
                // access.
                if is_so_already(&plan.steps[stop].op, errno) {
                    continue;
                }
                assert_eq!(dump_all(&tree), whole, "spec {number} with {errno:?} at {stop}");
            }
        }
    }
}

/// Stale credentials on an ACL without CHAP never become valid while CHAP is put on it.
#[test]
fn stale_credentials_never_admit() {
    let machine = machine();
    let tree = machine.lio();
    settle(&machine, &present(&PORTALS[..1], vec![grant(1, 1, Mode::ReadWrite, None)]));
    let auth = layout::acl(&names(), &host(1)).join("auth");
    tree.write(&auth.join("userid"), b"old-user").unwrap();
    tree.write(&auth.join("password"), b"old-secret-1234").unwrap();
    let spec =
        present(&PORTALS[..1], vec![grant(1, 1, Mode::ReadWrite, Some(chap("user", "secret-1234567")))]);
    let mut seen = BTreeSet::new();
    let watch =
        |_: &mooring_model::Step<Op>| seen.extend(ways(&machine).into_iter().map(|way| way.credentials));
    apply(&plan_now(&tree, &spec), &tree, &mut Each(watch)).unwrap();
    assert_eq!(seen, BTreeSet::from([None, Some(("user".to_owned(), "secret-1234567".to_owned()))]));
}

/// Demo mode is on: an initiator that came in without an ACL is thrown out.
#[test]
fn strangers_are_thrown_out() {
    let machine = machine();
    let tree = machine.lio();
    let spec = present(&PORTALS[..1], vec![grant(1, 1, Mode::ReadWrite, None)]);
    settle(&machine, &spec);
    let tpg = layout::tpg(&names());
    for (name, value) in
        [("generate_node_acls", "1"), ("authentication", "0"), ("demo_mode_write_protect", "0")]
    {
        tree.write(&tpg.join("attrib").join(name), value.as_bytes()).unwrap();
    }
    let stranger = machine.login(PORTALS[0], names().iqn.as_str(), "iqn.1999-01.stranger:x", None).unwrap();
    assert!(machine.write(stranger, 1).is_ok());
    settle(&machine, &spec);
    assert!(!machine.is_live(stranger));
}

/// A mapping is made again under a live session (gate closed, mapping removed by hand). Only
/// `prod_mode_write_protect` keeps a read-only nexus from writing: without it, the session can
/// write for two steps.
#[test]
fn prod_mode_alone_closes_the_window() {
    for (prod_mode, exposed) in [(true, false), (false, true)] {
        let machine = machine();
        let lio = machine.lio();
        let spec =
            present(&PORTALS[..1], vec![grant(1, 1, Mode::ReadOnly, Some(chap("user", "secret-1234567")))]);
        settle(&machine, &spec);
        log_in_all(&machine, &spec);
        let acl = layout::acl(&names(), &host(1));
        lio.write(&acl.join("auth").join("password"), b"NULL").unwrap();
        lio.unlink(&acl.join("lun_1").join(layout::LINK)).unwrap();
        lio.write(&layout::tpg(&names()).join("attrib").join("prod_mode_write_protect"), b"0").unwrap();
        let tree: &dyn Tree = if prod_mode { &lio } else { &NoProdMode(&lio) };
        let steps = plan_now(tree, &spec);
        let mut wrote = false;
        let watch = |_: &mooring_model::Step<Op>| {
            wrote |= machine.reachable().iter().any(|reach| mode_of(reach.mode) == Mode::ReadWrite);
        };
        apply(&steps, tree, &mut Each(watch)).unwrap();
        assert_eq!(wrote, exposed, "{}", text(&steps));
    }
}

/// On creation, `enable` of the portal group is the last step of all.
#[test]
fn the_first_grant_enables_last() {
    let machine = machine();
    let spec = present(
        &PORTALS,
        vec![
            grant(1, 1, Mode::ReadOnly, None),
            grant(2, 1, Mode::ReadWrite, Some(chap("u", "secret-1234567"))),
        ],
    );
    let done = settle(&machine, &spec);
    assert_eq!(
        done.steps.last().unwrap().op.to_string(),
        format!("write {}/enable = 1", layout::tpg(&names()))
    );
    assert_eq!(
        done.steps.iter().filter(|step| step.op.path().name() == "enable").count(),
        2,
        "backstore and group"
    );
}

/// A mode change is one step, on the live session.
#[test]
fn a_mode_change_is_one_write() {
    let machine = machine();
    let with = |mode| {
        present(
            &PORTALS,
            vec![grant(1, 1, mode, Some(chap("u", "secret-1234567"))), grant(2, 1, Mode::ReadWrite, None)],
        )
    };
    settle(&machine, &with(Mode::ReadWrite));
    log_in_all(&machine, &with(Mode::ReadWrite));
    for (mode, value) in [(Mode::ReadOnly, "1"), (Mode::ReadWrite, "0")] {
        let done = settle(&machine, &with(mode));
        let path = layout::acl(&names(), &host(1)).join("lun_1").join("write_protect");
        assert_eq!(
            done.steps.iter().map(|step| step.op.to_string()).collect::<Vec<_>>(),
            [format!("write {path} = {value}")]
        );
    }
}

/// The removal of an ACL blocks while its initiator's commands do not end. By then every initiator
/// that goes is cut off, and the one that stays works on.
#[test]
fn a_hung_drain_keeps_no_door_open() {
    let machine = machine();
    let all = present(&PORTALS[..1], (1..=3).map(|n| grant(n, 1, Mode::ReadWrite, None)).collect());
    settle(&machine, &all);
    let target = names().iqn;
    let login = |n| machine.login(PORTALS[0], target.as_str(), &host(n), None).unwrap();
    let (first, second, third) = (login(1), login(2), login(3));
    machine.hold(DEVICE);
    machine.start_write(first, 1).unwrap();
    let spec = present(&PORTALS[..1], vec![grant(3, 1, Mode::ReadWrite, None)]);
    let steps = plan_now(&machine.lio(), &spec);
    let (began, begins) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            struct Tell(std::sync::mpsc::Sender<bool>);
            impl mooring_targets::Observer for Tell {
                fn before(&mut self, _: usize, step: &mooring_model::Step<Op>) -> std::ops::ControlFlow<()> {
                    self.0.send(drains(step).is_some()).unwrap();
                    std::ops::ControlFlow::Continue(())
                }
            }
            apply(&steps, &machine.lio(), &mut Tell(began))
        });
        while !begins.recv().unwrap() {}
        assert_eq!(ways(&machine).iter().map(|way| way.initiator.as_str()).collect::<Vec<_>>(), [host(3)]);
        assert!(machine.start_write(second, 1).is_err(), "the second of the two is cut off, too");
        assert!(machine.start_write(third, 1).is_ok());
        assert!(!run.is_finished(), "the removal returned with a command in flight");
        assert_eq!(machine.landed(DEVICE), 0);
        machine.release(DEVICE);
        run.join().unwrap().unwrap();
    });
    assert!(machine.is_live(third));
    assert!(plan_now(&machine.lio(), &spec).is_quiet());
}

/// Foreign objects under our names are not touched, nothing is opened, and revokes go through.
#[test]
fn behind_a_foreign_object_only_revokes_go_through() {
    for (case, intrusion) in [
        ("another LUN", "mkdir $P/lun/lun_5"),
        ("another group", "mkdir $T/tpgt_2"),
        (
            "a mapping elsewhere",
            "mkdir $P/lun/lun_5\nlink $P/lun/lun_5/x -> core/iblock_1160/foreign\nmkdir $P/acls/iqn.2026-01.lab:host1/lun_9\nlink $P/acls/iqn.2026-01.lab:host1/lun_9/x -> $P/lun/lun_5",
        ),
    ] {
        let machine = machine_beside_foreign();
        let tree = machine.lio();
        let before =
            present(&PORTALS, vec![grant(1, 1, Mode::ReadWrite, None), grant(2, 1, Mode::ReadWrite, None)]);
        settle(&machine, &before);
        let names = names();
        run_script(
            &tree,
            &intrusion
                .replace("$P", layout::tpg(&names).as_str())
                .replace("$T", layout::target(&names).as_str()),
        );
        let spec = present(
            &PORTALS[..1],
            vec![grant(1, 1, Mode::ReadOnly, None), grant(3, 1, Mode::ReadWrite, None)],
        );
        let plan = pass(&tree, &spec).unwrap();
        assert!(!plan.blocked.is_empty(), "{case}");
        let reached: Vec<_> = machine
            .reachable()
            .into_iter()
            .filter(|reach| reach.target == names.iqn.as_str() && reach.device.to_str() == Some(DEVICE))
            .map(|reach| (reach.initiator, mode_of(reach.mode)))
            .collect();
        assert_eq!(
            reached,
            [(host(1), Mode::ReadOnly)],
            "{case}: host2 revoked, host1 shrunk, host3 not admitted"
        );
        let again = plan_now(&tree, &spec);
        assert!(again.steps.is_empty() && !again.blocked.is_empty(), "{case}\n{}", text(&again));
    }
}

/// The view of a tree with nothing of ours is empty, and a tombstone is then quiet.
#[test]
fn nothing_is_nothing() {
    let machine = machine();
    let view = ExportView::read(&machine.lio(), &names()).unwrap();
    assert_eq!(view, ExportView { fabric: true, ..ExportView::default() });
    assert!(plan(&absent(), &view).is_quiet());
}
