//! Volumes that were once whole: the LV is never recreated, however it was first made. An existing
//! LV is planned like any other.

use mooring_agent::config::{Group, Wipe};
use mooring_agent::lvm::{VolumeOp, Wanted, apply, plan, report, view};
use mooring_host::fake::FakeMachine;
use mooring_model::{
    BlockedKind, ByteSize, Cure, ImageFormat, ImageSource, LV_TAG, LvName, Phase, Problem, Provisioning,
    Revert, RevertId, Source, VolumeKind, VolumeSpec, lv_revert_tag,
};
use proptest::prelude::*;

use super::{MIB, World, any_world, groups_with, id, spec, words};
use crate::volumes_machine::run;

fn groups() -> Vec<Group> {
    let mut group = super::group("vg0", 0, Wipe::Zero);
    group.thin_pool = Some(ByteSize(256 * MIB));
    vec![group]
}

fn thin(n: u128, source: Option<Source>) -> VolumeSpec {
    let new = VolumeSpec::new(id(n), "vg0".parse().unwrap(), ByteSize(8 * MIB), Provisioning::Thin);
    VolumeSpec { source, ..new }
}

fn snapshot(n: u128, of: u128) -> VolumeSpec {
    VolumeSpec { kind: VolumeKind::Snapshot, ..thin(n, Some(Source::Volume(id(of)))) }
}

fn make(fake: &FakeMachine, spec: &VolumeSpec) {
    let wanted = Wanted::Volume(spec.clone());
    let seen = view(&fake.lvm(), &groups()).unwrap();
    apply(&plan(&wanted, &seen, spec.id), &fake.lvm(), &fake.blocks(), &mut ()).unwrap();
}

/// A group with a thin volume 9 and its snapshot 8.
fn machine() -> FakeMachine {
    let fake = FakeMachine::new();
    fake.add_vg("vg0", 1024 * MIB);
    make(&fake, &thin(9, None));
    make(&fake, &snapshot(8, 9));
    fake
}

fn made(spec: &VolumeSpec) -> Wanted {
    Wanted::Made { spec: spec.clone(), export_gone: true }
}

/// Volume 1 in every way of making one, and the steps of the first time.
fn ways() -> Vec<(&'static str, VolumeSpec)> {
    let from = |source| thin(1, Some(source));
    let image = ImageSource { name: "a.qcow2".parse().unwrap(), format: ImageFormat::Qcow2 };
    let revert = Revert { snapshot: id(8), id: RevertId::from_u128(1) };
    vec![
        ("create zero unmark", spec(1, "vg0", 8)),
        ("look space import imported", VolumeSpec { image: Some(image), ..spec(1, "vg0", 8) }),
        ("thin", thin(1, None)),
        ("clone unmark", from(Source::Snapshot(id(8)))),
        ("clone unmark", from(Source::Volume(id(9)))),
        ("snapshot", snapshot(1, 9)),
        ("thin", VolumeSpec { revert: Some(revert), ..thin(1, None) }),
    ]
}

#[test]
fn what_was_whole_is_not_made_again_and_it_is_said_what_to_do() {
    for (first, spec) in ways() {
        let fake = machine();
        let seen = view(&fake.lvm(), &groups()).unwrap();
        assert_eq!(words(&plan(&Wanted::Volume(spec.clone()), &seen, id(1))), first, "the control");
        let again = plan(&made(&spec), &seen, id(1));
        assert_eq!(words(&again), "Missing", "{first}");
        let (blocked, lv) = (&again.blocked[0], spec.lv());
        assert_eq!(blocked.object, format!("LV vg0/{lv}"));
        assert_eq!((blocked.kind, blocked.kind.cure()), (BlockedKind::Missing, Cure::Operator));
        for words in ["was there and its LV is gone", "Nothing was made", "vgcfgrestore", "make it again"] {
            assert!(blocked.why.contains(words), "{words} is not in {}", blocked.why);
        }
        assert!(blocked.why.contains(&format!("lvrename vg0 THAT {lv}")), "{}", blocked.why);
        let told = report(&made(&spec), &seen, id(1));
        assert_eq!((told.phase, told.problems), (Phase::Failed, vec![Problem::from(blocked)]));
    }
}

#[test]
fn what_is_there_is_planned_as_of_any_other() {
    for (first, spec) in ways().into_iter().filter(|(_, spec)| spec.image.is_none() && spec.revert.is_none())
    {
        let fake = machine();
        make(&fake, &spec);
        let seen = view(&fake.lvm(), &groups()).unwrap();
        assert_eq!(words(&plan(&made(&spec), &seen, id(1))), "-", "{first}");
        assert_eq!(report(&made(&spec), &seen, id(1)).phase, Phase::Ready);
    }
    // The LV that a revert has left is the volume.
    let (fake, spec) = (machine(), thin(1, None));
    let (copy, tag) = (LvName::back_of(id(1)), lv_revert_tag(RevertId::from_u128(1)));
    make(&fake, &thin(2, Some(Source::Snapshot(id(8)))));
    for line in [
        format!("lvrename --yes vg0/{} vg0/{copy}", LvName::of(id(2))),
        format!("lvchange --addtag {tag} vg0/{copy}"),
    ] {
        run(&fake, &line);
    }
    let seen = view(&fake.lvm(), &groups()).unwrap();
    assert_eq!(words(&plan(&made(&spec), &seen, id(1))), "rename");
}

proptest! {
    #[test]
    fn whatever_is_there_only_the_absent_is_planned_otherwise(world in any_world()) {
        let fake = world.build();
        let seen = view(&fake.lvm(), &groups_with(world.wipes)).unwrap();
        for (id, wanted) in World::specs(&world) {
            let Wanted::Volume(spec) = wanted else { continue };
            let again = plan(&made(spec), &seen, id);
            for step in &again.steps {
                let own = step.op.lv().name == LvName::of(id);
                prop_assert!(!own || !matches!(step.op, VolumeOp::Create { .. }), "{:?}", again);
            }
            let there = seen.lvs_of(id).iter().any(|lv| lv.group == spec.group.as_str() || lv.tags.contains(LV_TAG));
            if there {
                prop_assert_eq!(again, plan(wanted, &seen, id));
            } else {
                prop_assert_eq!(words(&again), "Missing");
            }
        }
    }
}
