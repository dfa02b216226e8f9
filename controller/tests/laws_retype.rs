//! Rules for retypes, extra specs, modes and force detaches: as exhaustive tables.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::sync::LazyLock;

use mooring_controller::domain::{
    AttachViolation, AttachmentStatus, QuotaViolation, RuleViolation, VolumeStatus, VolumeType,
};
use mooring_controller::error::{Refusal, RuleAnswer};
use mooring_controller::http::sentence;
use mooring_controller::initiators::Initiators;
use mooring_controller::rules::retype::{Change, MigrationPolicy, Refused, Retype, retype};
use mooring_controller::rules::types::{self, Specs};
use mooring_controller::rules::{self, Deletion, Existing, Operation};
use mooring_model::{AttachmentId, Mode, Tuning, TuningKey, VolumeId};
use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

const OLD: Uuid = Uuid::from_u128(1);
const NEW: Uuid = Uuid::from_u128(2);
static UNTUNED: LazyLock<Tuning> = LazyLock::new(Tuning::default);

fn specs(pairs: &[(&str, &str)]) -> Specs {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn of_specs(pairs: &[(&str, &str)]) -> VolumeType {
    VolumeType {
        id: NEW,
        name: "new".to_owned(),
        description: None,
        is_public: true,
        extra_specs: specs(pairs),
    }
}

/// A retype that no rule refuses.
fn granted(new_type: &VolumeType) -> Retype<'_> {
    Retype {
        may_retype: true,
        may_multiattach: true,
        named: "new",
        new_type: Some(new_type),
        old_type: OLD,
        multiattach: false,
        tuning: &UNTUNED,
        size_gib: 10,
        status: VolumeStatus::Available,
        in_the_way: None,
        announced: 0,
        operation: None,
        quota: Ok(()),
        migration: MigrationPolicy::Never,
        unfit: None,
    }
}

fn over() -> QuotaViolation {
    QuotaViolation::VolumeTooLarge { size_gib: 10, most: 9 }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    Done,
    Forbidden,
    NotFound,
    Invalid,
    Over,
    Later,
}

fn code(verdict: &Result<Change, Refused>) -> Code {
    match verdict {
        Ok(_) => Code::Done,
        Err(Refused::Forbidden(_)) => Code::Forbidden,
        Err(Refused::NotFound(_)) => Code::NotFound,
        Err(Refused::Rule(violation)) => match Refusal::from(violation.clone()) {
            Refusal::Rule(RuleAnswer::Invalid, _) => Code::Invalid,
            Refusal::Rule(RuleAnswer::Exceeded, _) => Code::Over,
            Refusal::Rule(RuleAnswer::Unimplemented, _) => Code::Later,
            other => panic!("{other:?}"),
        },
    }
}

/// The sentence of the rule that refuses this retype.
fn sentence_of(content: &Retype<'_>) -> String {
    match retype(content) {
        Err(Refused::Rule(violation)) => sentence(&violation),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_check_that_fails_answers() {
    // Each row spoils one thing more, from the last check to the first: the answer is always that
    // of the newest one.
    let encrypted =
        of_specs(&[("multiattach", "<is> True"), ("encryption", "luks"), ("provisioning:max_vol_size", "9")]);
    let shared = of_specs(&[("multiattach", "<is> True")]);
    let mut content = granted(&shared);
    assert_eq!(retype(&content), Ok(Change { type_id: NEW, multiattach: true }));
    content.unfit = Some("it is full".to_owned());
    content.migration = MigrationPolicy::OnDemand;
    assert_eq!(code(&retype(&content)), Code::Later);
    content.migration = MigrationPolicy::Never;
    assert!(sentence_of(&content).ends_with("never: it is full"));
    content.old_type = NEW;
    assert!(sentence_of(&content).starts_with("Invalid volume: Retype needs volume to be in available"));
    content.quota = Err(over());
    assert_eq!(retype(&content), Err(Refused::Rule(RuleViolation::Quota(over()))));
    let unlimited = of_specs(&[("multiattach", "<is> True"), ("encryption", "luks")]);
    content.new_type = Some(&unlimited);
    assert!(sentence_of(&content).contains("both encryption and multi-attach"));
    content.may_multiattach = false;
    assert_eq!(retype(&content), Err(Refused::Forbidden("volume:multiattach")));
    content.status = VolumeStatus::InUse;
    assert_eq!(
        sentence_of(&content),
        "Invalid input received: Invalid volume_type passed, retypes affecting multiattach are only allowed on available \
         volumes, the specified volume however currently has a status of: in-use."
    );
    content.new_type = Some(&encrypted);
    assert!(sentence_of(&content).contains("greater than the maximum allowable size of '9'"));
    content.new_type = None;
    assert_eq!(retype(&content), Err(Refused::NotFound("new".to_owned())));
    content.may_retype = false;
    assert_eq!(retype(&content), Err(Refused::Forbidden("volume:retype")));
}

/// The expected answer, written apart from the code under test: the rows of the table, as
/// questions.
fn expected(content: &Retype<'_>, to_shared: bool) -> Code {
    let flag_changes = content.multiattach != to_shared;
    if flag_changes && content.status != VolumeStatus::Available {
        Code::Invalid
    } else if flag_changes && to_shared && !content.may_multiattach {
        Code::Forbidden
    } else if content.quota.is_err() {
        Code::Over
    } else if ![VolumeStatus::Available, VolumeStatus::InUse].contains(&content.status)
        || content.operation.is_some()
        || content.old_type == NEW
    {
        Code::Invalid
    } else if content.unfit.is_none() {
        Code::Done
    } else if content.migration == MigrationPolicy::OnDemand {
        Code::Later
    } else {
        Code::Invalid
    }
}

#[test]
fn every_case_of_a_retype_has_its_answer() {
    let kinds = [of_specs(&[]), of_specs(&[("multiattach", "<is> True")])];
    let operations: Vec<_> = std::iter::once(None).chain(Operation::ALL.map(Some)).collect();
    let mut done = 0;
    for bits in 0..1_u32 << 7 {
        let bit = |n: u32| bits >> n & 1 == 1;
        for status in VolumeStatus::ALL.iter().copied() {
            for operation in operations.iter().copied() {
                let kind = &kinds[usize::from(bit(0))];
                let mut content = granted(kind);
                content.status = status;
                content.operation = operation;
                content.multiattach = bit(1);
                content.may_multiattach = bit(2);
                content.old_type = if bit(3) { OLD } else { NEW };
                content.quota = if bit(4) { Ok(()) } else { Err(over()) };
                content.unfit = (!bit(5)).then(|| "full".to_owned());
                content.migration = if bit(6) { MigrationPolicy::OnDemand } else { MigrationPolicy::Never };
                let verdict = retype(&content);
                assert_eq!(code(&verdict), expected(&content, bit(0)), "{content:?}");
                if let Ok(change) = verdict {
                    done += 1;
                    // The flag is the new type's, whatever the volume's was.
                    assert_eq!(change, Change { type_id: NEW, multiattach: bit(0) });
                    assert!(status == VolumeStatus::Available || bit(0) == bit(1), "{content:?}");
                }
            }
        }
    }
    assert!(done > 0);
}

#[test]
fn a_type_bounds_its_sizes() {
    let sized = specs(&[("provisioning:min_vol_size", "5"), ("provisioning:max_vol_size", " 9 ")]);
    for (size, ok) in [(4, false), (5, true), (9, true), (10, false)] {
        assert_eq!(types::check_size(&sized, "t", size).is_ok(), ok, "{size}");
    }
    assert!(types::check_specs(&sized).is_ok());
    let crossed = specs(&[("provisioning:min_vol_size", "9"), ("provisioning:max_vol_size", "5")]);
    assert!(sentence(&types::check_specs(&crossed).unwrap_err()).contains("is greater than"));
    for wrong in ["", "-1", "1.5", "ten", "99999999999"] {
        for key in [types::SIZE_MIN, types::SIZE_MAX] {
            let wrong = specs(&[(key, wrong)]);
            assert!(types::normalise(wrong.clone()).is_err(), "{wrong:?}");
            assert!(types::check_size(&wrong, "t", 5).is_err(), "{wrong:?}");
        }
    }
}

#[test]
fn a_flag_is_written_in_one_spelling() {
    for key in [types::MULTIATTACH, types::MIXED_MODES] {
        let written = |value: &str| types::normalise(specs(&[(key, value), ("other", "<is> yes")]));
        for word in ["True", "true", "TRUE", "t", "yes", "Y", "on", "1"] {
            for spec in [format!("<is> {word}"), format!(" <IS>\t{word} ")] {
                assert_eq!(
                    written(&spec),
                    Ok(specs(&[(key, "<is> True"), ("other", "<is> yes")])),
                    "{spec:?}"
                );
            }
        }
        for word in ["False", "f", "no", "N", "off", "0"] {
            assert_eq!(written(&format!("<is> {word}")).unwrap()[key], "<is> False", "{word}");
        }
        for wrong in
            ["", "True", "<is>", "<is>True", "<is> maybe", "<is> True False", "<in> True", "== 1", "ja\0"]
        {
            assert!(sentence(&written(wrong).unwrap_err()).contains(key), "{wrong:?}");
        }
    }
    let long = sentence(&types::normalise(specs(&[("multiattach", &"x".repeat(9000))])).unwrap_err());
    assert!(long.len() < 200, "{long}");
    // The stored form is read with the meaning of the given one.
    assert!(rules::is_multiattach(&types::normalise(specs(&[("multiattach", "<is> yes")])).unwrap()));
}

#[test]
fn shared_is_neither_cached_nor_encrypted() {
    let shared = ("multiattach", "<is> True");
    for (other, ok) in [
        (("cacheable", "<is> True"), false),
        (("cacheable", "yes"), false),
        (("cacheable", "<is> False"), true),
        (("encryption", "luks"), false),
        (("encryption", "<is> True"), false),
        (("encryption", ""), true),
        (("encryption", "<is> False"), true),
        (("encryption", "false"), true),
    ] {
        assert_eq!(rules::check_specs(&specs(&[shared, other])).is_ok(), ok, "{other:?}");
        assert!(rules::check_specs(&specs(&[("multiattach", "<is> False"), other])).is_ok(), "{other:?}");
        let encrypted = other.0 == "encryption" && !ok;
        assert_eq!(types::check_encryption(&specs(&[shared, other])).is_err(), encrypted, "{other:?}");
    }
}

fn tuning(said: &[(TuningKey, &str)]) -> Tuning {
    said.iter().map(|(key, value)| (*key, key.parse(value).unwrap())).collect()
}

#[test]
fn what_a_type_says_about_sessions_has_one_spelling_and_limits() {
    for (key, value, written) in [
        ("mooring:header_digest", "CRC32C", "crc32c"),
        ("mooring:data_digest", "none, crc32c", "crc32c,none"),
        ("mooring:queue_depth", " 128 ", "128"),
        ("mooring:max_burst", "0512", "512"),
        ("mooring:immediate_data", "no", "<is> False"),
        ("mooring:initial_r2t", "<IS> true", "<is> True"),
    ] {
        let done = types::normalise(specs(&[(key, value)])).unwrap();
        assert_eq!(done, specs(&[(key, written)]));
        assert_eq!(types::normalise(done.clone()).as_ref(), Ok(&done));
        assert!(!rules::tuning::of(&done).is_empty());
    }
    for (key, value, says) in [
        ("mooring:header_digest", "md5", "mooring:header_digest is \"md5\": want none, crc32c"),
        ("mooring:queue_depth", "513", "want 1 to 512 commands"),
        ("mooring:max_burst", "511", "want 512 to 16777215 bytes"),
        ("mooring:first_burst", "1M", "want 512 to 16777215 bytes"),
        ("mooring:immediate_data", "perhaps", "want '<is> True' or '<is> False'"),
        (
            "mooring:header_digets",
            "crc32c",
            "there is no extra spec \"mooring:header_digets\": want mooring:mixed_modes",
        ),
        ("mooring:", "x", "there is no extra spec"),
    ] {
        let refused = sentence(&types::normalise(specs(&[(key, value)])).unwrap_err());
        assert!(refused.starts_with("Invalid volume type: ") && refused.contains(says), "{refused}");
        // A spec that is older than the rule has no effect.
        assert!(rules::tuning::of(&specs(&[(key, value)])).is_empty());
    }
    // Specs with another vendor's prefix are left alone.
    assert!(types::normalise(specs(&[("vendor:max_burst", "x")])).is_ok());
    let both = [("mooring:first_burst", "1024"), ("mooring:max_burst", "512"), ("mooring:queue_depth", "8")];
    let refused = sentence(&rules::check_specs(&specs(&both)).unwrap_err());
    assert!(refused.contains("mooring:first_burst: 1024 is more than max_burst (512)"), "{refused}");
    assert!(rules::tuning::of(&specs(&both)).get(TuningKey::FirstBurst).is_none());
    assert_eq!(rules::tuning::of(&specs(&both)).iter().count(), 2, "and the rest counts");
}

#[test]
fn how_sessions_are_negotiated_changes_only_while_nobody_is_attached() {
    let tuned = of_specs(&[("mooring:queue_depth", "128")]);
    let default = of_specs(&[("mooring:queue_depth", "64")]);
    let same = tuning(&[(TuningKey::QueueDepth, "128")]);
    for status in VolumeStatus::ALL.iter().copied() {
        let content = |new_type| Retype { status, ..granted(new_type) };
        let rests = matches!(status, VolumeStatus::Available | VolumeStatus::InUse);
        assert_eq!(retype(&content(&tuned)).is_ok(), status == VolumeStatus::Available, "{status}");
        // Naming the kernel's default is no change; nor is repeating the present value.
        assert_eq!(retype(&content(&default)).is_ok(), rests, "{status}");
        assert_eq!(retype(&Retype { tuning: &same, ..content(&tuned) }).is_ok(), rests, "{status}");
        // Back to the default.
        assert_eq!(
            retype(&Retype { tuning: &same, ..content(&default) }).is_ok(),
            status == VolumeStatus::Available
        );
    }
    let refused = sentence_of(&Retype { status: VolumeStatus::InUse, ..granted(&tuned) });
    assert!(refused.contains("how iSCSI sessions are negotiated"), "{refused}");
}

fn initiator(n: u32) -> Initiators {
    format!("iqn.2026-01.org.example:n{n}").parse().unwrap()
}

fn existing(n: u32, status: AttachmentStatus) -> Existing {
    Existing {
        id: AttachmentId::from_u128(n.into()),
        status,
        instance: Some(Uuid::from_u128(n.into())),
        mode: Mode::ReadWrite,
        initiator: Some(initiator(1)),
        host: Some("node1".to_owned()),
        wants_grant: true,
    }
}

#[test]
fn a_volume_with_the_readonly_flag_is_never_written() {
    let connector = |mode: serde_json::Value| json!({ "mode": mode }).as_object().unwrap().clone();
    let (ro, rw) = (connector(json!("ro")), connector(json!("rw")));
    let me = Some(Uuid::from_u128(1));
    let sibling = [existing(1, AttachmentStatus::Attached)];
    let mode = |argument, connector, instance| rules::mode(argument, connector, instance, &sibling, true);
    let read_only = || Err(RuleViolation::from(AttachViolation::ReadOnlyVolume));
    assert_eq!(mode(Some(Mode::ReadWrite), None, None), read_only());
    assert!(mode(Some(Mode::ReadWrite), Some(&ro), None).is_err());
    assert_eq!(mode(None, Some(&rw), None), read_only());
    assert_eq!(mode(Some(Mode::ReadOnly), Some(&rw), me), Ok(Mode::ReadOnly));
    assert_eq!(mode(None, Some(&ro), me), Ok(Mode::ReadOnly));
    assert_eq!(mode(None, None, me), Ok(Mode::ReadOnly), "a sibling's rw is not inherited");
    assert_eq!(mode(None, None, None), Ok(Mode::ReadOnly));
}

#[test]
fn a_strict_type_has_one_mode_for_a_nexus() {
    let strict = specs(&[("mooring:mixed_modes", "<is> False")]);
    let there = [existing(1, AttachmentStatus::Attached)];
    let mix = |specs: &Specs, own, n, mode, there: &[Existing]| {
        rules::may_mix(specs, own, &initiator(n), mode, there).is_ok()
    };
    for loose in [specs(&[]), specs(&[("mooring:mixed_modes", "<is> True")])] {
        assert!(mix(&loose, None, 1, Mode::ReadOnly, &there));
    }
    assert!(!mix(&strict, None, 1, Mode::ReadOnly, &there));
    assert!(mix(&strict, None, 1, Mode::ReadWrite, &there));
    assert!(mix(&strict, None, 2, Mode::ReadOnly, &there), "another nexus");
    assert!(mix(&strict, Some(there[0].id), 1, Mode::ReadOnly, &there), "itself");
    for status in AttachmentStatus::ALL.iter().copied() {
        let mut other = existing(1, status);
        assert!(!mix(&strict, None, 1, Mode::ReadOnly, &[other.clone()]), "{status}: it still has the grant");
        other.wants_grant = false;
        assert_eq!(mix(&strict, None, 1, Mode::ReadOnly, &[other.clone()]), other.is_leaving(), "{status}");
    }
    let text = sentence(&rules::may_mix(&strict, None, &initiator(1), Mode::ReadOnly, &there).unwrap_err());
    assert!(text.contains(&there[0].id.to_string()) && text.contains("mooring:mixed_modes"), "{text}");
}

#[test]
fn s12_a_second_attachment_of_a_shared_bootable_volume_needs_its_policy() {
    for status in AttachmentStatus::ALL.iter().copied() {
        let there = [existing(1, status)];
        let needs = status != AttachmentStatus::ErrorAttaching;
        assert_eq!(rules::bootable_multiattach(true, true, &there), needs, "{status}");
        assert!(!rules::bootable_multiattach(true, false, &there));
        assert!(!rules::bootable_multiattach(false, true, &there));
    }
    assert!(!rules::bootable_multiattach(true, true, &[]));
}

#[test]
fn a_hold_keeps_other_servers_out() {
    let there = [existing(1, AttachmentStatus::Attached), existing(2, AttachmentStatus::Attached)];
    let may = |held, multiattach, instance: Option<u128>| {
        let instance = instance.map(Uuid::from_u128);
        rules::may_attach(VolumeId::from_u128(1), multiattach, None, &there, instance, held)
    };
    assert!(sentence(&may(true, true, Some(3)).unwrap_err()).starts_with("Invalid volume: "));
    assert!(may(true, true, None).is_err());
    assert_eq!(may(true, true, Some(2)), Ok(()), "a server that moves goes on");
    assert_eq!(may(false, true, Some(3)), Ok(()));
    assert!(may(true, false, Some(3)).is_err());
}

#[test]
fn force_takes_those_along_that_are_leaving_anyway() {
    let me = existing(1, AttachmentStatus::Attached);
    let nexus = initiator(1);
    for status in AttachmentStatus::ALL.iter().copied() {
        for granted in [false, true] {
            let mut other = existing(2, status);
            other.wants_grant = granted;
            let elsewhere =
                Existing { initiator: Some(initiator(9)), ..existing(3, AttachmentStatus::Attached) };
            let there = [me.clone(), other.clone(), elsewhere];
            let wide = rules::may_force(me.id, &nexus, &there, true);
            assert_eq!(wide, Ok(vec![other.id]), "{status} {granted}: the whole nexus, and no other");
            let narrow = rules::may_force(me.id, &nexus, &there, false);
            let leaving = !matches!(
                status,
                AttachmentStatus::Reserved | AttachmentStatus::Attaching | AttachmentStatus::Attached
            );
            match (granted, leaving) {
                (false, _) => assert_eq!(narrow, Ok(Vec::new()), "{status}"),
                (true, true) => assert_eq!(narrow, Ok(vec![other.id]), "{status}"),
                (true, false) => {
                    let text = sentence(&narrow.unwrap_err());
                    assert!(text.contains(&other.id.to_string()) && text.contains("widen"), "{text}");
                }
            }
        }
    }
}

#[test]
fn only_the_compute_service_takes_a_disk_from_a_running_server() {
    let server = Uuid::from_u128(7);
    for service in [false, true] {
        for instance in [None, Some(server)] {
            for connected in [false, true] {
                for live in [None, Some(false), Some(true)] {
                    let verdict = rules::deletion_allowed(Deletion { service, instance, connected, live });
                    let refused = !service && instance.is_some() && connected && live != Some(false);
                    let text = format!("Detach volume from instance {server} using the Compute API");
                    let want = if refused { Err(text) } else { Ok(()) };
                    let verdict = verdict.map_err(|violation| sentence(&violation));
                    assert_eq!(verdict, want, "{service} {instance:?} {connected} {live:?}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn a_mode_is_never_wider_than_what_was_asked(
        argument in proptest::option::of(any::<bool>()),
        connector in proptest::option::of(any::<bool>()),
        siblings in proptest::collection::vec((any::<bool>(), 0_u32..3), 0..6),
        instance in proptest::option::of(0_u32..3),
        readonly in any::<bool>(),
    ) {
        let mode = |rw: bool| if rw { Mode::ReadWrite } else { Mode::ReadOnly };
        let there: Vec<_> = siblings
            .iter()
            .map(|(rw, n)| Existing { mode: mode(*rw), ..existing(*n, AttachmentStatus::Attached) })
            .collect();
        let given = connector.map(|rw| json!({ "mode": mode(rw).to_string() }).as_object().unwrap().clone());
        let instance = instance.map(|n| Uuid::from_u128(n.into()));
        let got = rules::mode(argument.map(mode), given.as_ref(), instance, &there, readonly);
        let asked = argument.or(connector).map(mode);
        match got {
            Err(_) => prop_assert!(readonly && asked == Some(Mode::ReadWrite)),
            Ok(got) => {
                prop_assert!(!readonly || got == Mode::ReadOnly);
                prop_assert!(asked.is_none_or(|asked| got == asked));
            }
        }
    }

    #[test]
    fn what_was_normalised_stays_so(key in "[a-z:]{1,12}", value in "\\PC{0,20}", flag in "<is> [a-zA-Z01]{1,5}") {
        if let Ok(once) = types::normalise(specs(&[(&key, &value), ("multiattach", &flag)])) {
            prop_assert_eq!(types::normalise(once.clone()), Ok(once));
        }
    }
}
