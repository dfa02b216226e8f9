//! The controller's commands of the shipped program, against a controller in memory: hosts, types,
//! volumes, and failed calls.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake;

use crate::fake_controller::{Rig, end, start};
use serde_json::json;

const ID: &str = "b0c1d2e3-0001-4002-8003-00000000000a";

#[test]
fn hosts_are_listed() {
    let rig = Rig::new();
    let ran = rig.run(&["host", "list"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for words in [
        "HOST ",
        "storage  yes",
        "host2    NO",
        "vg0 (6 GiB of 8 GiB free)",
        "problem: host2: connection refused",
        "problem: storage: volume x is in review",
    ] {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    // The other two hosts are in the configuration, with certificates of another authority.
    let column = ran.out.lines().next().unwrap().find("CERTIFICATE UNTIL").unwrap();
    let ends: Vec<_> =
        ran.out.lines().skip(1).take(3).map(|line| line[column..].split(' ').next().unwrap()).collect();
    assert_eq!(ends, ["-", "-", "2027-02-25T10:00:00Z"], "{}", ran.out);
    let hosts = rig.json(&["host", "list"]);
    assert_eq!(hosts["hosts"].as_array().unwrap().len(), 3);
    assert_eq!(
        (&hosts["hosts"][0]["health"], &hosts["hosts"][2]["health"]["level"]),
        (&json!(null), &json!("degraded"))
    );
    assert!(ran.out.contains("DEGRADED (portal_unreachable) "), "{}", ran.out);
    let shown = rig.run(&["host", "show", "storage"]).out;
    for words in [
        "6.1.0-40-amd64",
        "iscsi ready, fc NOT READY",
        "MISSING: tcm_fc (loadable: modprobe tcm_fc)",
        "DEGRADED (portal_unreachable)",
    ] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    assert_eq!(
        (&hosts["hosts"][2]["name"], &hosts["hosts"][2]["pools"][0]["name"]),
        (&json!("storage"), &json!("vg0"))
    );
}

#[test]
fn operators_say_where_new_volumes_go() {
    let rig = Rig::new();
    for (words, shown) in [
        (&["host", "show", "storage"][..], "yes"),
        (&["host", "disable", "storage", "--reason", "a disk"], "DISABLED"),
        (&["host", "drain", "storage"], "DRAINED"),
        (&["host", "undrain", "storage"], "yes"),
        (&["host", "enable", "storage"], "yes"),
    ] {
        let ran = rig.run(words);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.out.contains(&format!("NEW VOLUMES  {shown}")), "{words:?}: {}", ran.out);
    }
    assert!(rig.run(&["host", "disable", "storage", "--reason", "a disk"]).out.contains("a disk"));
    rig.run(&["host", "show", "nosuch"]).refused(3, &["nosuch"]);
}

#[test]
fn jobs_are_listed_and_limited() {
    let rig = Rig::new();
    let list = rig.json(&["job", "list"]);
    assert_eq!(
        (&list["jobs"][0]["percent"], &list["jobs"][0]["volume_name"]),
        (&json!(50.0), &json!("data"))
    );
    let shown = rig.run(&["job", "list"]).out;
    for words in ["50.00 %", "100 MiB/s (limited)", "11 s", "unknown", "agent storage2 is down"] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    let set = rig.run(&["job", "throttle", "50MiB", "--host", "storage"]);
    assert_eq!((set.code, set.out.trim()), (0, "limit of all jobs of storage: 50 MiB/s"));
    assert_eq!(rig.fake.state().bodies, [json!({ "bytes_per_second": 50 << 20 })]);
    let none = rig.run(&["job", "throttle", "none", "--host", "storage"]);
    assert_eq!((none.code, none.out.trim()), (0, "limit of all jobs of storage: none"));
    rig.run(&["job", "throttle", "50MiB"]).refused(2, &["--host"]);
    rig.run(&["job", "throttle", "1KiB", "--host", "storage"]).refused(2, &["1 MiB or more"]);
    rig.run(&["job", "throttle", "none", "--host", "nobody"]).refused(3, &["nobody"]);
}

#[test]
fn a_fence_succeeds_only_when_all_of_it_is_proven() {
    let rig = Rig::new();
    let ran = rig.run(&["host", "fence", "proven", "--reason", "it hangs"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for words in ["nothing of it reaches any volume", "it hangs", "cut: proven", "iqn.2026-01.lab:h"] {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    assert!(!ran.out.contains("note:") && ran.out.contains("it is known as hostb's"), "{ran:?}");
    assert_eq!(rig.json(&["host", "fence", "proven"])["fence"]["parts"][0]["receipt"]["proof"], "proven");
    for (host, words) in [
        ("unproven", "UNPROVEN: 3 commands may still land"),
        ("uncounted", "UNPROVEN: any number of commands may still land"),
        ("away", "NOT CUT yet: agent storage is down"),
        ("strange", "not understood"),
        ("silent", "what storage2 grants the host is not known: agent storage2 is down"),
        ("besides", "NOT CUT yet: agent storage is working on it"),
        ("claimed", "DISPUTED: iqn.2026-01.lab:x is the host's as the users of"),
    ] {
        let ran = rig.run(&["host", "fence", host]);
        assert!(
            ran.code == 5 && ran.out.contains("NOT PROVEN") && ran.out.contains(words),
            "{host}: {ran:?}"
        );
        let note = "note: volume b0c1d2e3-0001-4002-8003-00000000000a: iqn.2026-01.lab:h held";
        assert!(ran.out.contains(note), "{host}: {ran:?}");
    }
    let also = "iqn.2026-01.lab:x";
    let taken = rig.run(&["host", "fence", "claimed", "--also", also]);
    assert!(taken.code == 0 && !taken.out.contains("DISPUTED"), "{taken:?}");
    rig.run(&["host", "fence", "claimed", "--also", "host2"]).refused(2, &["host2"]);
    rig.run(&["host", "fence", "nosuch"]).refused(3, &["nosuch"]);
    assert!(rig.run(&["host", "fences"]).out.contains("proven"));
    let ran = rig.run(&["host", "unfence", "proven"]);
    assert!(ran.code == 0 && ran.out.contains("its former access is not restored"), "{ran:?}");
    assert_ne!(rig.run(&["host", "unfence", "away"]).code, 0);
    assert_eq!(rig.run(&["host", "unfence", "away", "--anyway"]).code, 0);
}

#[test]
fn pools_are_listed() {
    let rig = Rig::new();
    let ran = rig.run(&["pool", "list"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for words in ["FREE GIB", "storage@lvm#vg0", "6.0", "WIPE", "discard"] {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    assert_eq!(rig.json(&["pool", "list"])["pools"][0]["capabilities"]["total_volumes"], 2);
}

#[test]
fn types_are_shown_changed_and_deleted() {
    let rig = Rig::new();
    rig.json(&["type", "create", "fast", "--private", "--spec", "tier=1"]);
    assert_eq!(rig.json(&["type", "show", "fast"])["type"]["is_public"], false);
    rig.run(&["type", "show", "nosuch"]).refused(3, &["no volume type is named \"nosuch\""]);
    let set =
        rig.json(&["type", "set", "type-fast", "--spec", "media=nvme", "--description", "d", "--public"]);
    assert_eq!(set["type"]["extra_specs"], json!({ "media": "nvme", "tier": "1" }));
    assert_eq!((&set["type"]["description"], &set["type"]["is_public"]), (&json!("d"), &json!(true)));
    let unset = rig.json(&["type", "unset", "fast", "tier", "nosuch"]);
    assert_eq!(unset["type"]["extra_specs"], json!({ "media": "nvme" }));
    rig.run(&["type", "set", "fast"]).refused(2, &["--name"]);
    rig.run(&["type", "set", "fast", "--public", "--private"]).refused(2, &["--private"]);
    rig.run(&["type", "set", "fast", "--spec", "a=1", "--spec", "a=2"]).refused(2, &["given twice"]);

    for _ in 0..2 {
        let access = rig.json(&["type", "access", "fast", "--add", "p", "--add", "q"]);
        assert_eq!(access["projects"], json!(["p", "q"]));
    }
    for _ in 0..2 {
        assert_eq!(rig.json(&["type", "access", "fast", "--remove", "p"])["projects"], json!(["q"]));
    }
    assert!(rig.run(&["type", "access", "fast"]).out.contains("PROJECT"));
    assert_eq!(rig.json(&["type", "delete", "fast"])["done"], true);
    rig.run(&["type", "delete", "fast"]).refused(3, &["no volume type"]);
}

#[test]
fn quotas_are_shown_with_what_is_used() {
    let rig = Rig::new();
    let shown = rig.json(&["quota", "show", "acme"]);
    let wanted = json!([{ "key": "gigabytes", "limit": 1000, "in_use": 3 }, { "key": "volumes", "limit": 10, "in_use": 3 }]);
    assert_eq!((&shown["project"], &shown["quotas"]), (&json!("acme"), &wanted));
    let set = rig.json(&["quota", "set", "acme", "volumes=50", "gigabytes=-1"]);
    assert_eq!((&set["quotas"][0]["limit"], &set["quotas"][1]["limit"]), (&json!(-1), &json!(50)));
    let text = rig.run(&["quota", "show", "acme"]).out;
    assert!(text.contains("IN USE") && text.contains("none"), "{text}");
    rig.run(&["quota", "set", "acme", "nosuch=1"]).refused(4, &["Bad key(s)"]);
    assert_eq!(rig.json(&["quota", "reset", "acme"])["quotas"], wanted);
    for bad in ["volumes", "=1", "volumes=", "volumes=x", "volumes=-2", "volumes=2147483648"] {
        rig.run(&["quota", "set", "acme", bad]).refused(2, &["KEY=LIMIT"]);
    }
    rig.run(&["quota", "set", "acme", "volumes=1", "volumes=2"]).refused(2, &["given twice"]);
}

#[test]
fn volumes_grow_once_however_often_they_are_asked() {
    let rig = Rig::new();
    rig.json(&["volume", "create", "data", "--size", "1GiB"]);
    // The answer is lost, and the repetition finds the work in progress.
    rig.fake.state().knobs.lost = 1;
    let grown = rig.json(&["volume", "extend", "data", "--size", "3GiB"]);
    assert_eq!(
        (&grown["done"], &grown["size_gib"], &grown["status"]),
        (&json!(true), &json!(3), &json!("available"))
    );
    let asked = || {
        let bodies = rig.fake.state().bodies.clone();
        bodies.iter().filter(|body| body.get("os-extend").is_some()).count()
    };
    let before = asked();
    assert_eq!(rig.json(&["volume", "extend", "data", "--size", "3GiB"])["done"], true);
    assert_eq!(asked(), before, "it has that size");
    rig.run(&["volume", "extend", "data", "--size", "2GiB"]).refused(4, &["a volume never shrinks"]);
    rig.run(&["volume", "extend", "data", "--size", "3584MiB"]).refused(2, &["whole GiB"]);
    rig.run(&["volume", "extend", "nosuch", "--size", "4GiB"]).refused(3, &["no volume is named"]);
    rig.fake.state().knobs.looks = u32::MAX;
    let ran = rig.run(&["volume", "extend", "data", "--size", "4GiB", "--timeout", "4"]);
    assert!(ran.code == 5 && ran.out.contains("still growing"), "{ran:?}");
    rig.fake.state().knobs.looks = 0;
    assert_eq!(rig.json(&["volume", "extend", "data", "--size", "4GiB"])["size_gib"], 4);
    rig.fake.state().knobs.volume_ends = Some("error".to_owned());
    let failed = rig.run(&["volume", "extend", "data", "--size", "5GiB"]);
    assert!(failed.code == 1 && failed.err.contains("error_extending"), "{failed:?}");
}

#[test]
fn a_growth_is_taken_back_as_long_as_that_can_be() {
    const CANCEL: [&str; 4] = ["volume", "extend", "data", "--cancel"];
    let rig = Rig::new();
    rig.json(&["volume", "create", "data", "--size", "1GiB"]);
    rig.run(&["volume", "extend", "data"]).refused(2, &["--size"]);
    rig.run(&["volume", "extend", "data", "--cancel", "--size", "2GiB"]).refused(2, &["--size"]);
    rig.run(&CANCEL).refused(4, &["does not grow"]);
    let begin = |rig: &Rig| {
        rig.fake.state().knobs.looks = u32::MAX;
        let ran = rig.run(&["volume", "extend", "data", "--size", "3GiB", "--timeout", "4"]);
        assert_eq!(ran.code, 5, "{ran:?}");
    };
    begin(&rig);
    let ran = rig.run(&["volume", "extend", "data", "--cancel", "--timeout", "4"]);
    assert!(ran.code == 5 && ran.out.contains("not cancelled yet"), "{ran:?}");
    // The answer is lost, and the repetition finds the work in progress.
    (rig.fake.state().knobs.looks, rig.fake.state().knobs.lost) = (0, 1);
    let back = rig.json(&CANCEL);
    assert_eq!(
        (&back["done"], &back["size_gib"], &back["status"]),
        (&json!(true), &json!(1), &json!("available"))
    );
    begin(&rig);
    (rig.fake.state().knobs.looks, rig.fake.state().knobs.grown_already) = (0, true);
    rig.run(&CANCEL).refused(4, &["has grown already: it has 3 GiB"]);
    rig.json(&["volume", "create", "other", "--size", "1GiB"]);
    rig.fake.state().knobs.volume_ends = Some("error".to_owned());
    assert_eq!(rig.run(&["volume", "extend", "other", "--size", "2GiB"]).code, 1);
    let kept = rig.run(&["volume", "extend", "other", "--cancel"]);
    assert!(kept.code == 1 && kept.err.contains("is not cancelled"), "{kept:?}");
}

#[test]
fn volumes_are_retyped_and_marked() {
    let rig = Rig::new();
    rig.json(&["type", "create", "shared", "--multiattach"]);
    rig.json(&["volume", "create", "data", "--size", "1GiB"]);
    for _ in 0..2 {
        assert_eq!(rig.json(&["volume", "retype", "data", "shared"])["type"], "shared");
    }
    // The answer is lost, and the repetition finds it done.
    rig.fake.state().knobs.lost = 1;
    assert_eq!(rig.json(&["volume", "retype", "data", "__DEFAULT__"])["type"], "__DEFAULT__");
    assert_eq!(rig.json(&["volume", "reset-status", "data", "error"])["status"], "error");
    rig.run(&["volume", "reset-status", "data", "deleting"]).refused(2, &["possible values"]);
    rig.json(&["volume", "set", "data", "--readonly", "true", "--bootable", "false"]);
    let bodies = rig.fake.state().bodies.clone();
    assert_eq!(
        bodies[bodies.len() - 2..],
        [
            json!({ "os-update_readonly_flag": { "readonly": true } }),
            json!({ "os-set_bootable": { "bootable": false } })
        ]
    );
    rig.run(&["volume", "set", "data"]).refused(2, &["--readonly"]);
    rig.run(&["volume", "retype", "nosuch", "shared"]).refused(3, &["no volume is named"]);
}

#[test]
fn types_are_made_once_and_listed() {
    let rig = Rig::new();
    let words = [
        "type",
        "create",
        "shared",
        "--multiattach",
        "--spec",
        "tier=1",
        "--spec",
        "a b=x=y",
        "--description",
        "for two",
    ];
    let ran = rig.run(&words);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.out.contains("MULTIATTACH  yes") && ran.out.contains("a b=x=y, multiattach=<is> True, tier=1"),
        "{}",
        ran.out
    );
    assert_eq!(
        rig.fake.state().bodies[0]["volume_type"],
        json!({ "name": "shared", "description": "for two",
                "extra_specs": { "multiattach": "<is> True", "tier": "1", "a b": "x=y" } })
    );
    let again = rig.json(&words);
    assert_eq!((&again["done"], &again["type"]["multiattach"]), (&json!(true), &json!(true)));
    let other = rig.error(4, &["type", "create", "shared"]);
    assert!(other["error"].as_str().unwrap().contains("already exists"));
    rig.json(&["type", "create", "plain"]);
    let list = rig.json(&["type", "list"]);
    let names: Vec<_> =
        list["types"].as_array().unwrap().iter().map(|kind| kind["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["plain", "shared"]);
    assert!(rig.run(&["type", "list"]).out.starts_with("ID "));
    rig.run(&["type", "create", "x", "--multiattach", "--spec", "multiattach=<is> False"])
        .refused(2, &["given twice"]);
    for spec in ["tier", "=1", "a/b=1", "a=b\nc"] {
        rig.run(&["type", "create", "x", "--spec", spec]).refused(2, &["--spec"]);
    }
    rig.run(&["type", "create", ""]).refused(2, &["NAME"]);
}

/// A forced delete ends the work on a volume.
#[test]
fn a_volume_that_is_being_made_is_deleted_by_force() {
    let rig = Rig::new();
    rig.fake.state().knobs.looks = u32::MAX;
    assert_eq!(rig.run(&["--timeout", "4", "volume", "create", "data", "--size", "1TiB"]).code, 5);
    rig.run(&["volume", "delete", "data"]).refused(4, &["it is creating"]);
    rig.fake.state().knobs.looks = 0;
    let gone = rig.json(&["volume", "delete", "data", "--force"]);
    assert_eq!((&gone["done"], &gone["status"]), (&json!(true), &json!("gone")));
}

#[test]
fn a_volume_is_created_listed_shown_and_deleted() {
    let rig = Rig::new();
    rig.fake.state().knobs.looks = 2;
    let ran = rig.run(&["volume", "create", "data", "--size", "10GiB"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    for words in
        ["NAME         data", "STATUS       available", "SIZE         10 GiB", "POOL         storage@lvm#vg0"]
    {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    let list = rig.json(&["volume", "list"]);
    let volume = &list["volumes"][0];
    assert_eq!((&volume["size_gib"], &volume["size_bytes"]), (&json!(10), &json!(10_u64 << 30)));
    assert_eq!((&volume["multiattach"], &volume["attached"]), (&json!(false), &json!([])));
    let id = volume["id"].as_str().unwrap();
    for name in ["data", id] {
        let shown = rig.json(&["volume", "show", name]);
        assert_eq!((&shown["id"], &shown["attachments"]), (&json!(id), &json!([])));
        assert!(rig.run(&["volume", "show", name]).out.contains("not attached"));
    }
    let gone = rig.json(&["volume", "delete", "data"]);
    assert_eq!(gone, json!({ "done": true, "volume_id": id, "name": "data", "status": "gone" }));
    rig.run(&["volume", "show", "data"]).refused(3, &["named \"data\""]);
    rig.run(&["volume", "show", id]).refused(3, &[id]);
    // A node has an orphan of it, which the controller does not know.
    let orphan = format!("volume {id} is there with 0 grant(s), and no volume here: it is left alone");
    rig.fake.change(|state| state.knobs.orphan = Some(orphan.clone()));
    rig.run(&["volume", "delete", id]).refused(3, &[&orphan, "host storage", "volume delete", "--cluster"]);
    rig.fake.change(|state| state.knobs.orphan = None);
    // Gone is the requested state.
    assert_eq!(rig.json(&["volume", "delete", id])["done"], true);
    assert_eq!(rig.run(&["volume", "list"]).out, "no volumes\n");
}

#[test]
fn a_create_is_repeated_and_not_doubled() {
    let rig = Rig::new();
    let create = |more: &[&str]| rig.run(&[&["volume", "create", "data", "--size", "1GiB"], more].concat());
    assert_eq!(create(&["--id", ID]).code, 0);
    assert_eq!(create(&["--id", ID]).code, 0);
    assert_eq!(create(&[]).code, 0);
    assert_eq!(rig.fake.state().count("POST /v3/volumes"), 1);
    rig.run(&["volume", "create", "data", "--size", "2GiB"])
        .refused(4, &[ID, "another name, size, type or source"]);
    create(&["--id", "b0c1d2e3-0001-4002-8003-00000000000b"]).refused(4, &[ID, "Choose another name"]);
    rig.run(&["volume", "create", "other", "--size", "1GiB", "--id", ID]).refused(4, &[ID, "another name"]);
    create(&["--type", "nothing"]).refused(4, &["another name, size, type or source"]);
    rig.run(&["volume", "create", "more", "--size", "1GiB", "--type", "nothing"])
        .refused(3, &["Volume type nothing could not be found"]);
    assert_eq!(rig.fake.state().volumes.len(), 1);
}

#[test]
fn create_names_its_request_and_no_id_unless_one_is_asked_for() {
    let rig = Rig::new();
    let sent = |name: &str, more: &[&str]| {
        assert_eq!(rig.run(&[&["volume", "create", name, "--size", "1GiB"], more].concat()).code, 0);
        rig.fake.state().bodies.last().unwrap()["volume"].clone()
    };
    let (first, second) = (sent("one", &[]), sent("two", &[]));
    for body in [&first, &second] {
        assert_eq!((&body["id"], body["request_key"].as_str().unwrap().len()), (&json!(null), 36));
    }
    assert_ne!(first["request_key"], second["request_key"]);
    assert_eq!(sent("three", &["--request-key", "nightly"])["request_key"], "nightly");
    let given = sent("four", &["--id", ID]);
    assert_eq!((&given["id"], &given["request_key"]), (&json!(ID), &json!(null)));
    let long = "k".repeat(65);
    for (words, why) in [
        (&["--request-key", ""][..], "want 1 to 64"),
        (&["--request-key", &long], "65 characters"),
        (&["--request-key", "k", "--id", ID], "cannot be used with"),
    ] {
        let words = [&["volume", "create", "five", "--size", "1GiB"], words].concat();
        rig.run(&words).refused(2, &[why]);
    }
}

#[test]
fn a_create_whose_answer_is_lost_makes_one_volume() {
    let rig = Rig::new();
    for own_ids in [false, true] {
        rig.fake.change(|state| {
            state.volumes.clear();
            (state.knobs.own_ids, state.knobs.lost) = (own_ids, 1);
        });
        let ran = rig.run(&["volume", "create", "data", "--size", "1GiB"]);
        assert_eq!((ran.code, ran.err.matches("trying again").count()), (0, 1), "{ran:?}");
        assert_eq!(rig.fake.state().volumes.len(), 1);
    }
    // Such a controller cannot make a volume of our id.
    let words = ["volume", "create", "third", "--size", "1GiB", "--id", ID];
    rig.fake.state().volumes.clear();
    rig.run(&words).refused(1, &["takes no ids", "made volume made-up instead of", "volume delete made-up"]);
}

#[test]
fn sizes_are_whole_gib_there() {
    let rig = Rig::new();
    for size in ["1536MiB", "4MiB", "1073741825"] {
        let ran = rig.run(&["volume", "create", "data", "--size", size]);
        assert_eq!(ran.code, 2, "{ran:?}");
    }
    rig.run(&["volume", "create", "data", "--size", "1536MiB"])
        .refused(2, &["whole GiB", "1.50 GiB", "2GiB"]);
    rig.run(&["volume", "create", "data", "--size", "0"]).refused(2, &["less than the smallest volume"]);
    assert_eq!(rig.fake.state().requests.len(), 0, "nothing was asked");
    assert_eq!(rig.run(&["volume", "create", "data", "--size", "1024MiB"]).code, 0);
}

#[test]
fn what_takes_longer_is_exit_code_5_and_what_fails_is_1() {
    let rig = Rig::new();
    rig.fake.state().knobs.looks = 1000;
    let words = ["volume", "create", "data", "--size", "1GiB", "--timeout", "4"];
    let ran = rig.run(&words);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(
        ran.out.contains("STATUS       creating") && ran.out.contains("accepted, not there yet"),
        "{}",
        ran.out
    );
    let ran = rig.run(&[&words[..], &["--json"]].concat());
    let answer: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (ran.code, &answer["done"], &answer["volume"]["status"]),
        (5, &json!(false), &json!("creating"))
    );
    let ran = rig.run(&["volume", "delete", "data", "--force", "--timeout", "4"]);
    assert_eq!((ran.code, ran.out.contains("accepted, not gone yet (deleting)")), (5, true), "{ran:?}");
    {
        let knobs = &mut rig.fake.state().knobs;
        (knobs.looks, knobs.volume_ends) = (0, Some("error".to_owned()));
    }
    rig.run(&["volume", "create", "bad", "--size", "1GiB"])
        .refused(1, &["cannot be made", "error", "volume delete"]);
    rig.run(&["volume", "delete", "bad"]).refused(1, &["is not deleted", "error_deleting"]);
}

#[test]
fn long_lists_come_in_pages_and_ambiguous_names_list_the_ids() {
    let rig = Rig::new();
    let twin = "b0c1d2e3-0001-4002-8003-00000000000b";
    rig.run(&["volume", "create", "data", "--size", "1GiB", "--id", ID]);
    rig.fake.change(|state| {
        let mut copy = state.volumes[ID].clone();
        copy["id"] = twin.into();
        state.volumes.insert(twin.into(), copy);
        state.knobs.page = Some(1);
    });
    assert_eq!(rig.json(&["volume", "list"])["volumes"].as_array().unwrap().len(), 2);
    for words in [
        &["volume", "show", "data"][..],
        &["volume", "delete", "data"],
        &["attach", "data", "--host", "host1"],
        &["detach", "data"],
        &["attachment", "list", "data"],
    ] {
        rig.run(words).refused(2, &["2 volumes", ID, twin]);
    }
    assert_eq!(rig.run(&["volume", "show", twin]).code, 0);
}

#[test]
fn an_attached_volume_is_not_deleted() {
    let rig = Rig::new();
    rig.volume("data");
    rig.attach("data", "host1");
    rig.run(&["volume", "delete", "data"]).refused(4, &["it is attached"]);
    let shown = rig.run(&["volume", "show", "data"]);
    assert!(shown.out.contains("host1") && shown.out.contains("logged in"), "{}", shown.out);
}

#[test]
fn a_volume_says_what_is_wrong_with_it() {
    let rig = Rig::new();
    rig.volume("data");
    let shown = rig.json(&["volume", "show", "data"]);
    assert_eq!((&shown["fault"], &shown["in_review"]), (&json!(null), &json!(false)));
    rig.fake.change(|state| {
        state.knobs.fault = Some("agent storage keeps generation 9".to_owned());
        state.knobs.in_review = true;
    });
    let shown = rig.run(&["volume", "show", "data"]);
    assert!(shown.out.contains("fault: agent storage keeps generation 9"), "{}", shown.out);
    assert!(shown.out.contains("mooring volume confirm-review"), "{}", shown.out);
    assert_eq!(rig.json(&["volume", "confirm-review", "data"])["done"], true);
    assert!(!rig.run(&["volume", "show", "data"]).out.contains("in review"));
    rig.run(&["volume", "confirm-review", "nosuch"]).refused(3, &["no volume is named"]);
}

#[test]
fn the_epoch_is_raised_once() {
    let rig = Rig::new();
    assert_eq!(rig.json(&["epoch", "raise"]), json!({ "epoch": 7 }));
    assert_eq!(rig.fake.state().count("POST /mooring/v1/epoch"), 1);
}

#[test]
fn tokens() {
    let rig = Rig::new();
    let secret = "a-token-nobody-sees";
    rig.fake.state().knobs.token = Some(secret.to_owned());
    rig.run(&["host", "list"]).refused(4, &["requires authentication", "MOORING_TOKEN", "--token-file"]);
    let file = rig.write("token", &format!("{secret}\n"));
    std::process::Command::new("chmod").args(["600", &file]).status().unwrap();
    let good = rig.run(&["host", "list", "--token-file", &file]);
    assert_eq!((good.code, good.err.as_str()), (0, ""), "{good:?}");
    assert_eq!(rig.run_with(&[("MOORING_TOKEN", secret)], &["host", "list"]).code, 0);
    // The file is typed, and wins over the environment.
    let wrong = [("MOORING_TOKEN", "another-token")];
    assert_eq!(rig.run_with(&wrong, &["host", "list", "--token-file", &file]).code, 0);
    let ran = rig.run_with(&wrong, &["host", "list"]);
    ran.refused(4, &["does not know this token"]);
    assert!(!ran.err.contains("another-token"), "{}", ran.err);
    rig.run(&["host", "list", "--token-file", "/nonexistent/token"])
        .refused(2, &["/nonexistent/token: No such file"]);
    rig.run(&["host", "list", "--token-file", "/"]).refused(2, &["cannot read a secret from /"]);
    for bad in ["", "two words", "two\nlines", "größe"] {
        let file = rig.write("bad", bad);
        let ran = rig.run(&["host", "list", "--token-file", &file]);
        ran.refused(2, &["the token in", "printable ASCII"]);
        assert!(bad.is_empty() || !ran.err.contains(bad), "{}", ran.err);
    }
    let public = rig.write("public", secret);
    std::process::Command::new("chmod").args(["644", &public]).status().unwrap();
    let warned = rig.run(&["host", "list", "--token-file", &public]);
    assert!(
        warned.code == 0 && warned.err.contains("chmod 600") && !warned.err.contains(secret),
        "{warned:?}"
    );
}

#[test]
fn http_beyond_this_machine_is_refused() {
    for (url, says) in [
        ("http://10.255.255.1:8776", "--insecure"),
        ("http://controller:8776", "plain text"),
        ("http://me:hidden@127.0.0.1:1", "credentials do not belong"),
        ("controller:8776", "is not a controller's address"),
        ("127.0.0.1:8776", "is not a controller's address"),
        ("unix:/run/x", "is not a controller's address"),
    ] {
        end(start(&[], &["host", "list", "--controller", url])).refused(2, &[says]);
        end(start(&[("MOORING_CONTROLLER", url)], &["volume", "list"])).refused(2, &[says]);
    }
    // With --insecure the address is tried.
    let words = ["host", "list", "--controller", "http://mooring.invalid:1", "--insecure", "--timeout", "4"];
    end(start(&[], &words)).refused(6, &["cannot reach the controller at http://mooring.invalid:1"]);
}

#[test]
fn the_side_is_what_the_words_say() {
    let rig = Rig::new();
    let agent = fake::Rig::new();
    agent.volume("of-the-agent");
    let (url, address) = (rig.url(), agent.address());
    let both = [("MOORING_CONTROLLER", url.as_str()), ("MOORING_AGENT", address.as_str())];
    let has = |env: &[(&str, &str)], words: &[&str]| end(start(env, words)).out.contains("of-the-agent");
    assert!(has(&both, &["volume", "list"]));
    assert!(has(&both[..1], &["volume", "list", "--agent", &address]));
    assert!(!has(&both[1..], &["volume", "list", "--controller", &url]));
    assert!(!has(&both[..1], &["volume", "list"]));
    // An agent in the environment is ignored where only the controller can answer, and the other
    // way round.
    assert_eq!(end(start(&both, &["host", "list"])).code, 0);
    assert_eq!(end(start(&both, &["plan"])).code, 0);
    for words in [
        &["host", "list"][..],
        &["type", "list"],
        &["type", "create", "x"],
        &["attach", "data", "--host", "host1"],
        &["detach", "data"],
        &["attachment", "list"],
        &["attachment", "show", ID],
    ] {
        end(start(&both, &[words, &["--agent", &address]].concat()))
            .refused(2, &["works against the controller", words[0]]);
    }
    for words in [&["plan"][..], &["agent", "show"], &["watch"], &["export", "show", "data"]] {
        end(start(&both, &[words, &["--controller", &url]].concat()))
            .refused(2, &["works against one agent", words[0]]);
    }
    let two = ["volume", "list", "--agent", &address, "--controller", &url];
    end(start(&[], &two)).refused(2, &["two sides"]);
    let create = ["volume", "create", "x", "--size", "1GiB"];
    let with = |side: &[&str], more: &[&str]| end(start(&[], &[&create[..], side, more].concat()));
    with(&["--controller", &url], &["--group", "vg0"]).refused(2, &["--group is for an agent", "--type"]);
    with(&["--controller", &url], &["--cluster", ID]).refused(2, &["--cluster is for an agent"]);
    with(&["--agent", &address], &["--type", "shared"])
        .refused(2, &["--type is for the controller", "--group"]);
    with(&["--agent", &address], &["--token-file", "/x"]).refused(2, &["--token-file is for the controller"]);
    assert_eq!(rig.fake.state().count("POST"), 0);
}

#[test]
fn a_controller_that_is_not_there() {
    // Nobody else listens at this address.
    let port = std::net::TcpListener::bind("127.0.99.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.99.1:{port}");
    let ran = end(start(&[("MOORING_CONTROLLER", &url)], &["volume", "list", "--timeout", "4"]));
    ran.refused(
        6,
        &[
            "cannot reach the controller at",
            "trying again",
            "Nobody listens there",
            "--agent unix:/run/mooring",
        ],
    );
    let words = ["volume", "list", "--timeout", "4", "--json"];
    let ran = end(start(&[("MOORING_CONTROLLER", &url)], &words));
    let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!((ran.code, &error["kind"]), (6, &json!("unreachable")));
}

#[test]
fn what_passes_is_asked_again() {
    let rig = Rig::new();
    rig.fake.state().knobs.unavailable = 2;
    let ran = rig.run(&["host", "list"]);
    assert_eq!((ran.code, ran.err.matches("trying again").count()), (0, 1), "{ran:?}");
    rig.fake.state().knobs.cut = 2;
    assert_eq!(rig.json(&["host", "list"])["hosts"][0]["name"], "host1");
    rig.volume("data");
    rig.fake.state().knobs.unavailable = 2;
    let before = rig.fake.state().bodies.len();
    rig.attach("data", "host1");
    let state = rig.fake.state();
    let ids: Vec<_> = state.bodies[before..].iter().map(|body| &body["attachment"]["id"]).collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "a repetition is the same attachment: {ids:?}");
    assert_eq!(state.attachments.len(), 1);
    drop(state);
    rig.fake.state().knobs.unavailable = u32::MAX;
    rig.run(&["host", "list", "--timeout", "4"]).refused(6, &["no agent has reported yet", "retry"]);
    // A refused request is not repeated.
    rig.fake.change(|state| {
        state.knobs.unavailable = 0;
        state.knobs.raw =
            Some((409, json!({ "conflictingRequest": { "code": 409, "message": "no" } }).to_string()));
        state.requests.clear();
    });
    rig.run(&["host", "list"]).refused(4, &["mooring: no\n"]);
    assert_eq!(rig.fake.state().requests.len(), 1);
}

#[test]
fn answers_that_make_no_sense() {
    let rig = Rig::new();
    for (status, text, code, says) in [
        (200, "<html>welcome</html>", 1, "makes no sense"),
        (200, "", 1, "makes no sense"),
        (200, r#"{"hosts":[{"name":7}]}"#, 1, "makes no sense"),
        (204, "", 1, "makes no sense"),
        (302, "", 1, "redirects to another address"),
        (500, "Traceback\u{1b}[2J", 1, "500 Internal Server Error: Traceback\u{fffd}[2J"),
        (404, "<html>nginx</html>", 3, "404 Not Found: <html>nginx"),
        (
            403,
            r#"{"forbidden":{"code":403,"message":"Policy doesn't allow it"}}"#,
            4,
            "Policy doesn't allow it",
        ),
        (400, r#"{"badRequest":{"code":400,"message":"Invalid input received: x"}}"#, 2, "Invalid input"),
    ] {
        rig.fake.state().knobs.raw = Some((status, text.to_owned()));
        rig.run(&["host", "list"]).refused(code, &[says]);
    }
    rig.fake.change(|state| {
        state.knobs.raw = None;
        state.knobs.silent = true;
    });
    rig.run(&["host", "list", "--timeout", "1"]).refused(6, &["did not answer the list of hosts within 6 s"]);
}
