//! LVs that somebody removed our tags from: the LVs that get them back, and the LVs that nobody
//! touches.

use mooring_agent::lvm::{KnownLv, Shown, shown};

use super::*;
use crate::volumes_machine::run;

const ADOPTED: &str = "data";

fn of_others() -> String {
    lv_volume_tag(id(2))
}

/// A machine with the volume's whole LV under this name, and the identity that is known of it.
fn whole(wanted: &Wanted, name: &str) -> (FakeMachine, KnownLv) {
    let fake = machine();
    assert!(fake.lvm().add_volume("vg0", name, 8 * MIB, &[LV_TAG, &lv_volume_tag(id(1))]));
    let mapping = match shown(wanted, &look(&fake), id(1)) {
        Shown::Whole(whole) => Some(whole.mapping),
        Shown::NotWhole | Shown::Nothing => None,
    };
    let name = LvName::existing(name).unwrap();
    (fake, KnownLv { volume: id(1), mapping: mapping.unwrap(), name })
}

/// Returns the view, after recognising a known LV.
fn recognised(fake: &FakeMachine, known: Option<&KnownLv>) -> VolumesView {
    let mut seen = look(fake);
    seen.recognise(known.cloned());
    seen
}

fn tags_of(fake: &FakeMachine, name: &str) -> Vec<String> {
    let seen = recognised(fake, None);
    let named = seen.lvs_of(id(1)).iter().find(|lv| lv.name.as_str() == name).map(|lv| lv.tags.clone());
    let other = || seen.others().iter().find(|lv| lv.name == name).map(|lv| lv.tags.clone());
    named.or_else(other).into_iter().flatten().collect()
}

/// Remaining tags / knowledge of the identity: steps for the volume, and steps for the adopted one.
const TABLE: &str = "\
both / known: - | -
both / not known: - | -
ours / known: - | retag
ours / not known: - | Missing
the volume's / known: retag | retag
the volume's / not known: Foreign | Missing
none / known: retag | retag
none / not known: Foreign | Missing
another volume's / known: Foreign | Missing
another volume's / not known: Foreign | Missing
";

#[test]
fn the_table_of_tags() {
    let volume = Wanted::Made { spec: spec(1, "vg0", 8), export_gone: false };
    let adopted = Wanted::Adopted(spec(1, "vg0", 8), LvName::existing(ADOPTED).unwrap());
    let cases = [(volume, name(1)), (adopted, ADOPTED.to_owned())];
    let ours = lv_volume_tag(id(1));
    let kept: [(&str, Vec<String>); 5] = [
        ("both", vec![LV_TAG.to_owned(), ours.clone()]),
        ("ours", vec![LV_TAG.to_owned()]),
        ("the volume's", vec![ours.clone()]),
        ("none", Vec::new()),
        ("another volume's", vec![of_others()]),
    ];
    let mut table = String::new();
    for (what, kept) in kept {
        for is_known in [true, false] {
            let mut done = Vec::new();
            for (wanted, name) in &cases {
                let (fake, known) = whole(wanted, name);
                run(&fake, &format!("lvchange --deltag {LV_TAG} --deltag {ours} vg0/{name}"));
                for tag in &kept {
                    run(&fake, &format!("lvchange --addtag {tag} vg0/{name}"));
                }
                let known = Some(&known).filter(|_| is_known);
                let seen = recognised(&fake, known);
                let planned = plan(wanted, &seen, id(1));
                let report = report(wanted, &seen, id(1));
                done.push(words(&planned));
                let before = tags_of(&fake, name);
                apply(&planned, &fake.lvm(), &fake.blocks(), &mut ()).unwrap();
                if words(&planned) != "retag" {
                    assert_eq!(tags_of(&fake, name), before);
                    continue;
                }
                let [problem] = report.problems.as_slice() else { panic!("{report:?}") };
                assert_eq!((report.phase, problem.cure), (Phase::Failed, Cure::Retry));
                assert!(problem.text.contains("was removed. The LVM UUID shows"), "{problem:?}");
                // The LV has its tags again, other tags stay, and the volume is as before.
                let after = recognised(&fake, known);
                assert_eq!(words(&plan(wanted, &after, id(1))), "-");
                assert!(before.iter().all(|tag| tags_of(&fake, name).contains(tag)));
                assert!(matches!(shown(wanted, &after, id(1)), Shown::Whole(_)));
            }
            let known = if is_known { "known" } else { "not known" };
            writeln!(table, "{what} / {known}: {}", done.join(" | ")).unwrap();
        }
    }
    assert_eq!(table, TABLE);
}

#[test]
fn under_another_name_or_with_another_identity_it_is_nobodys() {
    let wanted = Wanted::Made { spec: spec(1, "vg0", 8), export_gone: false };
    let (fake, known) = whole(&wanted, &name(1));
    run(&fake, &format!("lvrename --yes vg0/{} vg0/moved", name(1)));
    run(&fake, &format!("lvchange --deltag {LV_TAG} vg0/moved"));
    let seen = recognised(&fake, Some(&known));
    assert_eq!(words(&plan(&wanted, &seen, id(1))), "Missing");
    // A foreign LV has the volume's name, while the volume's LV has another name.
    assert!(fake.lvm().add_volume("vg0", &name(1), 8 * MIB, &[]));
    let seen = recognised(&fake, Some(&known));
    assert_eq!(words(&plan(&wanted, &seen, id(1))), "Foreign");
    assert_eq!(seen.others().len(), 2, "both are still there to be managed: {:?}", seen.others());
}
