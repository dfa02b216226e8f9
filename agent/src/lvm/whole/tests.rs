//! Tests the memory of complete LVs, and its worth beside device-mapper's answer.

use std::time::{Duration, SystemTime};

use mooring_host::fake::FakeMachine;
use mooring_host::{BlockDevices, Command, Commands};
use mooring_model::{Revert, Source};

use super::*;
use crate::config::{Group, Wipe};
use crate::lvm::view;

const MIB: u64 = 1 << 20;
const SIZE: ByteSize = ByteSize(8 * MIB);

fn spec() -> VolumeSpec {
    VolumeSpec::new(VolumeId::from_u128(1), "vg0".parse().unwrap(), SIZE, Provisioning::Thick)
}

fn revert(id: u128) -> Revert {
    Revert { id: RevertId::from_u128(id), snapshot: VolumeId::from_u128(9) }
}

/// Specs of which each alone makes a volume wait for LVM.
fn specs_out_of_the_ordinary() -> Vec<VolumeSpec> {
    let upload = mooring_model::Upload {
        id: mooring_model::UploadId::from_u128(1),
        image: mooring_model::ImageSource {
            name: "disk.raw".parse().unwrap(),
            format: mooring_model::ImageFormat::Raw,
        },
    };
    vec![
        VolumeSpec { kind: VolumeKind::Snapshot, ..spec() },
        VolumeSpec { provisioning: Provisioning::Thin, ..spec() },
        VolumeSpec { cut: Some(SystemTime::UNIX_EPOCH), ..spec() },
        VolumeSpec { upload: Some(upload), ..spec() },
        VolumeSpec { size: ByteSize(SIZE.0 + 1), ..spec() },
        VolumeSpec { revert: Some(revert(2)), ..spec() },
    ]
}

#[test]
fn a_device_is_believed_only_if_everything_agrees() {
    let mapping = "LVM-one".to_owned();
    let device = Mapped { uuid: mapping.clone(), size: SIZE.0, suspended: false };
    let devices = [
        Some(device.clone()),
        None,
        // Somebody's under the same name, or one of LVM's own below it.
        Some(Mapped { uuid: "LVM-two".to_owned(), ..device.clone() }),
        Some(Mapped { uuid: "LVM-one-real".to_owned(), ..device.clone() }),
        Some(Mapped { uuid: String::new(), ..device.clone() }),
        Some(Mapped { size: SIZE.0 + 512, ..device.clone() }),
        Some(Mapped { size: 0, ..device.clone() }),
        Some(Mapped { suspended: true, ..device }),
    ];
    let whole = |size, reverted: Option<u128>| Whole {
        mapping: mapping.clone(),
        size: ByteSize(size),
        reverted: reverted.map(RevertId::from_u128),
    };
    let remembered = [whole(SIZE.0, None), whole(SIZE.0, Some(1)), whole(SIZE.0 + 512, None)];
    let mut specs = specs_out_of_the_ordinary();
    specs.push(VolumeSpec { revert: Some(revert(1)), ..spec() });
    specs.push(spec());
    let (plain, reverted) = (specs.len() - 1, specs.len() - 2);
    let lv = spec().lv();
    let mut believed = Vec::new();
    for (w, spec) in specs.iter().enumerate() {
        for (r, remembered) in remembered.iter().enumerate() {
            for (d, device) in devices.iter().enumerate() {
                if is_whole(spec, &lv, remembered, device.as_ref()).is_some() {
                    believed.push((w, r, d));
                }
            }
        }
    }
    // The very device; a size that was remembered otherwise agrees with the one that has it.
    let mut all = vec![(reverted, 1, 0), (plain, 0, 0), (plain, 1, 0), (plain, 2, 5)];
    all.push((4, 2, 5)); // A spec of a byte more, and an LV that is that large.
    all.sort_unstable();
    assert_eq!(believed, all);
}

fn groups() -> Vec<Group> {
    let name = "vg0".parse().unwrap();
    vec![Group { name, reserve: ByteSize(0), wipe: Wipe::Zero, discard: false, thin_pool: None }]
}

/// Views this machine, and returns the result for the volume.
fn look(fake: &FakeMachine, spec: &VolumeSpec) -> (Shown, VolumeReport) {
    let seen = view(&fake.lvm(), &groups()).unwrap();
    let wanted = Wanted::Volume(spec.clone());
    (shown(&wanted, &seen, spec.id), report(&wanted, &seen, spec.id))
}

fn machine(tags: &[&str]) -> FakeMachine {
    let fake = FakeMachine::new();
    fake.add_vg("vg0", 1024 * MIB);
    assert!(fake.lvm().add_volume("vg0", spec().lv().as_str(), SIZE.0, tags));
    fake
}

fn lvm(fake: &FakeMachine, args: &[&str]) {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let command = Command { program: "/sbin/lvm", args, timeout: Duration::from_mins(1) };
    let out = fake.lvm().run(&command).unwrap();
    assert_eq!(out.status, 0, "{out:?}");
}

#[test]
fn what_lvm_shows_whole_its_device_proves_later_and_nothing_else_does() {
    let fake = machine(&["mooring"]);
    let (Shown::Whole(whole), report) = look(&fake, &spec()) else { panic!("it is whole") };
    let lv = spec().lv();
    let node = device_path("vg0", lv.as_str());
    let now =
        |fake: &FakeMachine| is_whole(&spec(), &lv, &whole, fake.blocks().mapped(&node).unwrap().as_ref());
    assert_eq!(now(&fake), Some(report.clone()), "what it says is what LVM says");
    fake.reboot();
    assert_eq!(now(&fake), Some(report.clone()), "the device is another, the LV is not");
    fake.set_suspended(&node, true);
    assert_eq!(now(&fake), None);
    fake.set_suspended(&node, false);
    assert_eq!(now(&fake), Some(report));
    let path = format!("vg0/{lv}");
    lvm(&fake, &["lvextend", "--yes", "--alloc", "normal", "--extents", "+2", &path, "/dev/sdb:100-101"]);
    assert_eq!(now(&fake), None, "somebody has made it larger");
    fake.set_autoactivation(false);
    fake.reboot();
    assert_eq!(now(&fake), None, "it has no device");
    fake.lvm().lose_volume("vg0", lv.as_str());
    assert!(fake.lvm().add_volume("vg0", lv.as_str(), SIZE.0, &["mooring"]));
    assert!(matches!(look(&fake, &spec()).0, Shown::Whole(other) if other != whole));
    assert_eq!(now(&fake), None, "it was made anew under the same name");
}

#[test]
fn nothing_is_remembered_of_what_is_not_whole() {
    for tags in [
        &[][..],
        &["mooring-unzeroed"],
        &["mooring", "mooring-unzeroed"],
        &["mooring", "mooring-unzeroed", "mooring-zeroed-4"],
        &["mooring", "mooring-unzeroed", "mooring-importing"],
    ] {
        assert_eq!(look(&machine(tags), &spec()).0, Shown::NotWhole, "{tags:?}");
    }
    let fake = machine(&["mooring"]);
    for spec in specs_out_of_the_ordinary() {
        assert_eq!(look(&fake, &spec).0, Shown::NotWhole, "{spec:?}");
    }
    let seen = view(&fake.lvm(), &groups()).unwrap();
    for wanted in
        [Wanted::Nothing, Wanted::Doomed { export_gone: false }, Wanted::Released { export_gone: true }]
    {
        assert_eq!(shown(&wanted, &seen, spec().id), Shown::NotWhole, "{wanted:?}");
    }
    // Nor is anything shown of a volume made from a snapshot that exists under our name without our
    // tag, nor of one that is elsewhere.
    let elsewhere = VolumeSpec { group: "vg1".parse().unwrap(), ..spec() };
    assert_eq!(look(&fake, &elsewhere).0, Shown::Nothing);
    let cloned = VolumeSpec { source: Some(Source::Volume(VolumeId::from_u128(2))), ..spec() };
    assert!(matches!(look(&fake, &cloned).0, Shown::Whole(_)), "where it came from does not matter any more");
}

#[test]
fn a_group_that_is_late_and_a_device_that_sleeps_make_nothing_untrue() {
    let fake = machine(&["mooring"]);
    fake.set_autoactivation(false);
    fake.reboot();
    assert_eq!(look(&fake, &spec()).0, Shown::Nothing);
    fake.lvm().hide_group("vg0");
    assert_eq!(look(&fake, &spec()).0, Shown::Nothing);
    fake.lvm().show_group("vg0");
    fake.lvm().lose_volume("vg0", spec().lv().as_str());
    assert_eq!(look(&fake, &spec()).0, Shown::NotWhole);
}

#[test]
fn identities_are_taken_in_the_form_that_lvm_gives_them_only() {
    let (group, lv) = ("LlIhCw-6uUF-Aw7u-f1w7-Il0J-LbiF-yTPvnC", "MooringBenchmarkVolume0000000001");
    let made = mapping(group, lv).unwrap();
    assert_eq!(made, "LVM-LlIhCw6uUFAw7uf1w7Il0JLbiFyTPvnCMooringBenchmarkVolume0000000001");
    for bad in ["", "-", "x", &group[1..], &format!("{group}x"), &group.replace('l', "/")] {
        assert_eq!((mapping(bad, lv), mapping(group, bad)), (None, None), "{bad}");
    }
}
