//! Every command of the shipped program, against an agent in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake::{Rig, cured, mooring};
use mooring_api::v1;
use tonic::Code;

const HOST1: &str = "iqn.2004-10.com.example:host1";
const HOST2: &str = "iqn.2004-10.com.example:host2";
const SECRET: &str = "correct-horse-battery";

fn grant<'a>(volume: &'a str, initiator: &'a str, mode: &'a str) -> Vec<&'a str> {
    vec!["export", "grant", volume, "--initiator", initiator, "--mode", mode]
}

fn revoke<'a>(volume: &'a str, initiator: &'a str) -> Vec<&'a str> {
    vec!["export", "revoke", volume, "--initiator", initiator]
}

#[test]
fn a_volume_is_created_listed_shown_and_deleted() {
    let rig = Rig::new();
    let ran = rig.run(&["volume", "create", "data", "--size", "1GiB"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for words in
        ["NAME    data", "PHASE   ready", "SIZE    1 GiB", "GROUP   vg0", "DEVICE  /dev/vg0/mooring-"]
    {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    let list = rig.json(&["volume", "list"]);
    let id = list["volumes"][0]["id"].as_str().unwrap();
    assert_eq!(list["volumes"][0]["name"], "data");
    assert_eq!(list["volumes"][0]["size_bytes"], 1 << 30);
    assert_eq!(list["volumes"][0]["generation"], "0.1");
    assert!(rig.run(&["volume", "list"]).out.starts_with("ID "));
    for name in ["data", id] {
        let shown = rig.json(&["volume", "show", name]);
        assert_eq!((&shown["id"], &shown["export"]), (&list["volumes"][0]["id"], &serde_json::Value::Null));
        assert!(rig.run(&["volume", "show", name]).out.contains("not exported"));
    }
    let gone = rig.json(&["volume", "delete", "data"]);
    assert_eq!((&gone["done"], &gone["phase"]), (&true.into(), &"gone".into()));
    rig.run(&["volume", "show", "data"]).refused(3, &["named \"data\""]);
    // Gone is the requested state.
    assert_eq!(rig.run(&["volume", "delete", id]).code, 0);
}

#[test]
fn a_create_with_the_same_id_is_a_retry_and_anything_else_is_refused() {
    let rig = Rig::new();
    let id = "b0c1d2e3-0001-4002-8003-00000000000a";
    let create = |size: &str, name: &str| rig.run(&["volume", "create", name, "--size", size, "--id", id]);
    assert_eq!(create("1GiB", "data").code, 0);
    assert_eq!(create("1024MiB", "data").code, 0);
    let kept = rig.fake.state().volumes[id].stamp.clone().unwrap();
    assert_eq!(kept.generation, Some(v1::Generation { epoch: 0, counter: 1 }), "a retry is no change");
    create("2GiB", "data").refused(4, &[id, "another name, size or group"]);
    create("1GiB", "other").refused(4, &[id]);
    // Its name alone makes it the same create; another size does not.
    assert_eq!(rig.run(&["volume", "create", "data", "--size", "1GiB"]).code, 0);
    assert_eq!(rig.fake.state().volumes[id].stamp.as_ref(), Some(&kept), "a retry is no change");
    rig.run(&["volume", "create", "data", "--size", "2GiB"]).refused(4, &["exists", id]);
    assert_eq!(rig.fake.state().volumes.len(), 1);
}

#[test]
fn the_group_is_chosen_only_where_there_is_one() {
    let rig = Rig::new();
    rig.fake.state().knobs.groups = vec!["vg0".into(), "vg1".into()];
    rig.run(&["volume", "create", "data", "--size", "1GiB"]).refused(2, &["--group", "vg0, vg1"]);
    assert_eq!(rig.run(&["volume", "create", "data", "--size", "1GiB", "--group", "vg1"]).code, 0);
    rig.fake.state().knobs.groups.clear();
    rig.run(&["volume", "create", "other", "--size", "1GiB"]).refused(4, &["no volume group"]);
}

#[test]
fn an_ambiguous_name_lists_the_ids() {
    let rig = Rig::new();
    let id = rig.volume("data");
    let twin = "b0c1d2e3-0001-4002-8003-00000000000b";
    {
        let mut state = rig.fake.state();
        let copy = state.volumes[&id].clone();
        state.volumes.insert(twin.into(), copy);
    }
    for words in [&["volume", "show", "data"][..], &["volume", "delete", "data"], &grant("data", HOST1, "rw")]
    {
        rig.run(words).refused(2, &["2 volumes", &id, twin]);
    }
    assert_eq!(rig.run(&["volume", "show", twin]).code, 0);
}

#[test]
fn a_grant_is_made_changed_and_keeps_the_others_secrets() {
    let rig = Rig::new();
    let id = rig.volume("data");
    let secret = rig.write("secret", &format!("{SECRET}\n"));
    let mutual = rig.write("mutual", "another-long-secret\r\n");
    let credentials = ["--chap-user", "host1", "--chap-secret-file", &secret];
    let ran = rig.run(&[&grant("data", HOST1, "rw"), &credentials[..]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    for words in
        ["reaches volume data", ": rw", "LUN      1", "NAA      6001405", "CHAP     host1", "10.10.0.10:3260"]
    {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    assert!(ran.out.contains("hint, on the host: set node.session.auth"), "{}", ran.out);
    // A second host, then another mode of the first: its secret stays.
    let mutually = ["--mutual-user", "target", "--mutual-secret-file", &mutual];
    let words =
        [&grant("data", HOST2, "ro")[..], &["--chap-user", "host2", "--chap-secret-file", "-"], &mutually];
    assert_eq!(rig.run_with_input(&words.concat(), "second-long-secret\n").code, 0);
    let answer = rig.json(&grant("data", HOST1, "ro"));
    assert_eq!(answer["grant"]["wanted"], "ro");
    assert_eq!(answer["grant"]["seen"], "ro");
    assert_eq!(answer["grant"]["chap"]["user"], "host1");
    assert_eq!(answer["timing"]["seen_us"], 9_800);
    let spec = rig.fake.state().exports[&id].spec.clone().unwrap();
    let side = |index: usize| spec.grants[index].chap.clone().unwrap();
    assert_eq!(side(0).initiator.unwrap().secret, SECRET);
    assert_eq!(side(1).initiator.unwrap().secret, "second-long-secret");
    assert_eq!(side(1).mutual.unwrap().secret, "another-long-secret");
    // A repetition changes nothing.
    let before = rig.fake.state().exports[&id].stamp.clone();
    assert_eq!(rig.run(&grant("data", HOST1, "ro")).code, 0);
    assert_eq!(rig.fake.state().exports[&id].stamp, before);
    assert_eq!(rig.run(&[&grant("data", HOST1, "ro"), &["--no-chap"][..]].concat()).code, 0);
    let spec = rig.fake.state().exports[&id].spec.clone().unwrap();
    assert_eq!((&spec.grants[0].chap, spec.grants.len()), (&None, 2));
    // No answer of any command holds a secret.
    for words in
        [&["volume", "list"][..], &["volume", "show", "data"], &["export", "show", "data"], &["watch"]]
    {
        for format in [&[][..], &["--json"]] {
            let ran = rig.run(&[words, format].concat());
            assert!(!ran.out.contains("long-secret") && !ran.out.contains(SECRET), "{}", ran.out);
        }
    }
}

#[test]
fn portals_and_attachments_travel() {
    let rig = Rig::new();
    let id = rig.volume("data");
    let attachment = "b0c1d2e3-0001-4002-8003-0000000000aa";
    let more = ["--portal", "10.10.0.10", "--portal", "10.20.0.10:3261", "--attachment", attachment];
    let answer = rig.json(&[&grant("data", HOST1, "rw"), &more[..]].concat());
    assert_eq!(answer["portals"], serde_json::json!(["10.10.0.10:3260", "10.20.0.10:3261"]));
    assert_eq!(answer["grant"]["attachments"], serde_json::json!([attachment]));
    rig.json(&grant("data", HOST2, "ro"));
    assert_eq!(rig.fake.state().exports[&id].spec.clone().unwrap().portals.len(), 2);
}

/// The tuning of an export's sessions is shown, and a change of one grant keeps it.
#[test]
fn what_is_said_about_sessions_is_shown_and_kept() {
    let rig = Rig::new();
    let id = rig.volume("data");
    rig.json(&grant("data", HOST1, "rw"));
    assert!(!rig.run(&["export", "show", "data"]).out.contains("TUNED"), "the control");
    assert_eq!(rig.json(&["export", "show", "data"])["export"]["tuning"], serde_json::json!({}));
    let said = |name: &str, value: &str| v1::Tuning { name: name.into(), value: value.into() };
    let tuning = vec![said("data_digest", "crc32c"), said("queue_depth", "128")];
    rig.fake.state().exports.get_mut(&id).unwrap().spec.as_mut().unwrap().tuning.clone_from(&tuning);
    rig.json(&grant("data", HOST2, "ro"));
    assert_eq!(rig.fake.state().exports[&id].spec.clone().unwrap().tuning, tuning);
    let shown = rig.run(&["export", "show", "data"]).out;
    assert!(shown.contains("TUNED    data_digest=crc32c queue_depth=128"), "{shown}");
    assert_eq!(rig.json(&["export", "show", "data"])["export"]["tuning"]["queue_depth"], "128");
}

#[test]
fn a_revoke_takes_one_grant_and_prints_its_receipt() {
    let rig = Rig::new();
    let id = rig.volume("data");
    rig.json(&grant("data", HOST1, "rw"));
    rig.json(&grant("data", HOST2, "ro"));
    rig.fake.state().knobs.live = vec![HOST1.into()];
    rig.run(&revoke("data", HOST1)).refused(4, &["logged in", "by force", "change the request"]);
    assert_eq!(rig.fake.state().exports[&id].spec.clone().unwrap().grants.len(), 2);
    let shown = rig.json(&["export", "show", "data"]);
    assert_eq!(shown["export"]["grants"][0]["sessions"][0]["in_flight"], 8);
    assert!(rig.run(&["export", "show", "data"]).out.contains("10.10.0.11:45678"));
    let ran = rig.run(&[&revoke("data", HOST1), &["--force"][..]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    for words in
        ["is revoked", "RECEIPT       proven", "TOOK          12.345 ms", "10.10.0.11:45678", "2026-09-21T"]
    {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    let left = rig.fake.state().exports[&id].spec.clone().unwrap().grants;
    assert_eq!((left.len(), left[0].initiator.as_str()), (1, HOST2));
    // A repetition: it is not granted, and the last receipt is shown.
    let again = rig.json(&revoke("data", HOST1));
    assert_eq!((&again["was_granted"], &again["receipt"]["proven"]), (&false.into(), &true.into()));
    assert_eq!(again["receipt"]["took_us"], 12_345);
    let never = rig.run(&revoke("data", "iqn.2004-10.com.example:host9"));
    assert_eq!(never.code, 0);
    assert!(never.out.contains("nothing to revoke"), "{}", never.out);
}

#[test]
fn one_agent_lists_its_sessions() {
    let rig = Rig::new();
    let id = rig.volume("data");
    rig.json(&grant("data", HOST1, "rw"));
    rig.json(&grant("data", HOST2, "ro"));
    let list = |more: &[&str]| rig.json(&[&["session", "list"], more].concat());
    assert_eq!(list(&[])["sessions"], serde_json::json!([]));
    rig.fake.state().knobs.live = vec![HOST1.into()];
    let all = list(&["--volume", "data"])["sessions"].clone();
    assert_eq!(all.as_array().unwrap().len(), 1);
    assert_eq!((&all[0]["volume_id"], &all[0]["initiator"]), (&id.as_str().into(), &HOST1.into()));
    assert_eq!((&all[0]["session"]["in_flight"], &all[0]["host"]), (&8.into(), &serde_json::Value::Null));
    assert!(rig.run(&["session", "list"]).out.contains("10.10.0.11:45678"));
    rig.run(&["session", "list", "--host", "host1"]).refused(2, &["knows initiators and no hosts"]);
    // Over Fibre Channel every initiator that is logged in at a port appears once.
    let grant = |initiator: &str, logged_in, commands| v1::FcGrantReport {
        initiator: initiator.to_owned(),
        logged_in,
        commands,
        read_mib: 1,
        written_mib: 2,
        active_us: 1_790_000_001_000_000 + i64::from(logged_in),
        ..Default::default()
    };
    let (there, away) = ("20:00:52:54:00:14:00:0b", "20:00:52:54:00:14:00:0c");
    let port = |name: &str, logged_in| v1::FcPortReport {
        port: format!("fc/{name}"),
        serves: true,
        grants: vec![grant(there, logged_in, 40), grant(away, false, 9)],
    };
    rig.fake.state().knobs.fc =
        vec![port("20:00:52:54:00:14:00:01", false), port("20:00:52:54:00:14:00:02", true)];
    let all = list(&["--volume", "data"])["sessions"].clone();
    assert_eq!(all.as_array().unwrap().len(), 2, "{all}");
    assert_eq!((&all[1]["initiator"], &all[1]["session"]), (&there.into(), &serde_json::Value::Null));
    let done = ["commands", "read_mib", "written_mib"].map(|word| all[1][word].as_u64().unwrap());
    assert_eq!((done, all[0]["commands"].as_u64()), ([80, 2, 4], Some(12)));
    assert!(all[1]["last_activity"].as_str().unwrap().contains(".000001"), "{all}");
    let table = rig.run(&["session", "list"]).out;
    assert!(table.contains(there) && table.contains("logged in") && !table.contains(away), "{table}");
}

#[test]
fn an_unproven_receipt_is_not_a_success() {
    let rig = Rig::new();
    rig.volume("data");
    rig.json(&grant("data", HOST1, "rw"));
    rig.fake.state().knobs.unproven = Some(8);
    let ran = rig.run(&revoke("data", HOST1));
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.out.contains("NOT PROVEN") && ran.out.contains("8 commands may still land"), "{}", ran.out);
    // Repeated without a change: still not proven, and reported so.
    let again = rig.run(&[&revoke("data", HOST1), &["--json"][..]].concat());
    assert_eq!(again.code, 5);
    let again: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(again["receipt"]["may_still_land"], 8);
    assert_eq!(again["receipt"]["ended"], serde_json::Value::Null);
    assert_eq!(again["receipt"]["nexus_removed"], serde_json::Value::Null);
    // If nobody could count them, the answer does not say that none may land.
    rig.fake.state().receipts[0].uncounted = true;
    let ran = rig.run(&revoke("data", HOST1));
    assert!(ran.code == 5 && ran.out.contains("any number of commands may still land"), "{ran:?}");
    let ran = rig.run(&[&revoke("data", HOST1), &["--json"][..]].concat());
    let unknown: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(unknown["receipt"]["may_still_land"], serde_json::Value::Null);
    // The kernel's call returns.
    {
        let receipt = &mut rig.fake.state().receipts[0];
        receipt.uncounted = false;
        (receipt.proven, receipt.may_still_land, receipt.ended_us) = (true, 0, receipt.began_us + 5);
    }
    let proven = rig.json(&revoke("data", HOST1));
    assert_eq!(
        (&proven["receipt"]["nexus_removed"], &proven["receipt"]["took_us"]),
        (&true.into(), &5.into())
    );
}

#[test]
fn a_receipt_says_that_its_initiator_held_the_reservation() {
    let rig = Rig::new();
    rig.volume("data");
    for (held, words) in
        [(None, None), (Some(5), Some("write exclusive, registrants only")), (Some(0), Some("RESERVE(6)"))]
    {
        rig.json(&grant("data", HOST1, "rw"));
        rig.fake.state().knobs.held = held;
        let ran = rig.run(&revoke("data", HOST1));
        let note = words.map(|words| format!("it held the volume's reservation ({words})"));
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(note.as_ref().is_none_or(|note| ran.out.contains(note)), "{ran:?}");
        assert_eq!(ran.out.contains("note:"), held.is_some(), "{ran:?}");
        let again = rig.json(&revoke("data", HOST1));
        assert_eq!(again["receipt"]["held_reservation"].as_str(), words, "{again}");
    }
}

#[test]
fn a_granted_volume_is_not_deleted() {
    let rig = Rig::new();
    let id = rig.volume("data");
    rig.json(&grant("data", HOST1, "rw"));
    let puts = rig.fake.state().puts;
    rig.run(&["volume", "delete", "data"]).refused(4, &["revoke first", HOST1, &id]);
    assert_eq!(rig.fake.state().puts, puts, "nothing was sent");
    rig.json(&revoke("data", HOST1));
    assert_eq!(rig.run(&["volume", "delete", "data"]).code, 0);
    let state = rig.fake.state();
    assert!(state.exports[&id].spec.is_none() && state.volumes[&id].spec.is_none());
}

#[test]
fn accepted_and_not_true_yet_is_exit_code_5() {
    let rig = Rig::new();
    let id = rig.volume("data");
    rig.fake.state().knobs.pending = true;
    let created = rig.run(&["volume", "create", "more", "--size", "1GiB"]);
    assert_eq!(created.code, 5, "{created:?}");
    assert!(created.out.contains("creating (256 MiB of 1 GiB zeroed)"), "{}", created.out);
    let granted = rig.run(&grant("data", HOST1, "rw"));
    assert_eq!(granted.code, 5, "{granted:?}");
    assert!(granted.out.contains("NOT seen") && !granted.out.contains("hint"), "{}", granted.out);
    let answer = rig.run(&[&grant(&id, HOST2, "rw"), &["--json"][..]].concat());
    let answer: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(answer["done"], false);
    assert_eq!(answer["grant"]["seen"], serde_json::Value::Null);
    assert_eq!(answer["timing"]["seen_us"], serde_json::Value::Null);
    rig.fake.state().exports.clear();
    assert_eq!(rig.run(&["volume", "delete", "data"]).code, 5);
}

#[test]
fn sessions_that_the_kernel_does_not_list_are_counted() {
    let rig = Rig::new();
    rig.volume("data");
    rig.fake.state().knobs.live = vec![HOST1.into()];
    assert_eq!(rig.run(&grant("data", HOST1, "rw")).code, 0);
    let said = |count| {
        rig.fake.state().knobs.unlisted_sessions = count;
        [rig.run(&["export", "show", "data"]).out, rig.run(&["session", "list"]).out]
    };
    for of in said(Some(1)) {
        assert!(of.contains("1 more session that the kernel does not list"), "{of}");
    }
    let list = rig.json(&["session", "list"]);
    assert_eq!(
        (&list["unlisted"][0]["sessions"], list["sessions"].as_array().unwrap().len()),
        (&1.into(), 1)
    );
    assert_eq!(rig.json(&["export", "show", "data"])["export"]["unlisted_sessions"], 1);
    for of in said(Some(2)) {
        assert!(of.contains("2 more sessions that the kernel does not list"), "{of}");
    }
    for of in said(Some(0)).into_iter().chain(said(None)) {
        assert!(!of.contains("more session"), "{of}");
    }
    assert_eq!(rig.json(&["export", "show", "data"])["export"]["unlisted_sessions"], serde_json::Value::Null);
}

#[test]
fn a_conflict_is_tried_once_more() {
    let rig = Rig::new();
    rig.volume("data");
    for words in [grant("data", HOST1, "rw"), revoke("data", HOST1)] {
        rig.fake.state().knobs.conflicts = 1;
        let before = rig.fake.state().puts;
        assert_eq!(rig.run(&words).code, 0, "{words:?}");
        assert_eq!(rig.fake.state().puts, before + 2);
    }
    rig.fake.state().knobs.conflicts = 2;
    rig.run(&grant("data", HOST1, "rw")).refused(4, &["faster", "Look at it, then try again"]);
    rig.fake.state().knobs.conflicts = 1;
    assert_eq!(rig.run(&["volume", "delete", "data"]).code, 0);
}

#[test]
fn an_agent_of_a_controller_is_not_changed_by_accident() {
    let rig = Rig::new();
    let cluster = "c0c1d2e3-0001-4002-8003-00000000000c";
    rig.volume("data");
    rig.fake.state().knobs.cluster = cluster.into();
    rig.run(&["volume", "create", "x", "--size", "1GiB"]).refused(4, &[cluster, "--cluster"]);
    rig.run(&grant("data", HOST1, "rw")).refused(4, &[cluster]);
    rig.run(&["volume", "delete", "data"]).refused(4, &[cluster]);
    assert_eq!(rig.run(&["volume", "show", "data"]).code, 0, "looking is free");
    assert_eq!(rig.run(&[&grant("data", HOST1, "rw"), &["--cluster", cluster][..]].concat()).code, 0);
    assert_eq!(rig.fake.state().senders.last().unwrap(), cluster);
    rig.fake.state().knobs.cluster = "00000000-0000-0000-0000-000000000000".into();
    assert_eq!(rig.run(&grant("data", HOST1, "rw")).code, 0);
}

#[test]
fn the_deadline_travels() {
    let rig = Rig::new();
    rig.volume("data");
    assert_eq!(rig.run(&[&grant("data", HOST1, "rw"), &["--timeout", "7"][..]].concat()).code, 0);
    assert_eq!(rig.fake.state().deadlines, [30_000, 7_000]);
    // A forced revoke fences a host: its answer must come at the promised time.
    rig.run(&[&revoke("data", HOST1), &["--force"][..]].concat());
    rig.run(&[&grant("data", HOST1, "rw"), &["--timeout", "8"][..]].concat());
    rig.run(&[&revoke("data", HOST1), &["--force", "--timeout", "30"][..]].concat());
    assert_eq!(rig.fake.state().deadlines[2..], [5_000, 8_000, 30_000]);
}

#[test]
fn errors_of_the_agent_have_their_exit_code_and_their_cure() {
    let rig = Rig::new();
    for (status, code, says) in [
        (cured(Code::ResourceExhausted, "vg0 has 2 GiB free", "operator"), 4, "An operator must act"),
        (cured(Code::InvalidArgument, "size: too small", "fix_spec"), 2, "change the request"),
        (cured(Code::PermissionDenied, "another cluster", "fix_spec"), 4, "another cluster"),
        (cured(Code::Unavailable, "lvm does not answer", "retry"), 1, "retry"),
        (cured(Code::Unavailable, "lvm is not installed", "operator"), 4, "An operator must act"),
        (cured(Code::Internal, "a step was planned twice", "bug"), 1, "defect"),
    ] {
        rig.fake.state().knobs.fail = Some(status.clone());
        let words = ["volume", "create", "data", "--size", "1GiB"];
        let ran = rig.run(&words);
        ran.refused(code, &[status.message(), says]);
        assert_eq!(ran.err.matches(status.message()).count(), 1, "printed once: {}", ran.err);
        rig.fake.state().knobs.fail = Some(status.clone());
        let ran = rig.run(&[&words[..], &["--json"]].concat());
        let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
        assert_eq!(error["exit_code"], code);
        assert_eq!(error["error"], status.message());
        assert!(ran.out.is_empty());
    }
    let id = "b0c1d2e3-0001-4002-8003-00000000000d";
    rig.run(&["volume", "show", id]).refused(3, &[id]);
    rig.run(&grant(id, HOST1, "rw")).refused(3, &[id]);
    rig.run(&["volume", "show", "nothing"]).refused(3, &["nothing"]);
}

#[test]
fn no_common_protocol() {
    let rig = Rig::new();
    rig.fake.state().knobs.protocol = 9;
    rig.run(&["volume", "list"])
        .refused(4, &["no common protocol", "mooring-agent 0.1.0", "wants 9", "1 to 1"]);
}

#[test]
fn an_agent_that_is_not_there_or_does_not_answer() {
    let rig = Rig::new();
    let nowhere = format!("unix:{}", rig.path("nowhere.sock").display());
    mooring(Some(&nowhere), &["volume", "list"], None)
        .refused(6, &["cannot reach", "There is no socket", "--agent"]);
    let dead = rig.path("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let dead = format!("unix:{}", dead.display());
    mooring(Some(&dead), &["volume", "list"], None).refused(6, &["Nobody listens", "systemctl status"]);
    // A port that was free a moment ago, at an address where nobody else listens.
    let port = std::net::TcpListener::bind("127.0.99.1:0").unwrap().local_addr().unwrap().port();
    let tcp = format!("http://127.0.99.1:{port}");
    mooring(Some(&tcp), &["volume", "list", "--insecure"], None)
        .refused(6, &["cannot reach", "Nobody listens"]);
    rig.fake.state().knobs.silent = true;
    rig.run(&["volume", "list", "--timeout", "1"]).refused(6, &["did not answer Hello within 6 s"]);
}

#[test]
fn plan_agent_and_watch() {
    let rig = Rig::new();
    let id = rig.volume("data");
    rig.json(&grant("data", HOST1, "ro"));
    let plan = rig.json(&["plan", "data"]);
    assert_eq!(plan["steps"][0]["volume_id"], id.as_str());
    assert_eq!(plan["blocked"][0]["cure"], "operator");
    let plan = rig.run(&["plan"]);
    assert!(
        plan.out.contains("WHY") && plan.out.contains("blocked: iqn.2026-01.lab:foreign"),
        "{}",
        plan.out
    );
    let agent = rig.json(&["agent", "show"]);
    assert_eq!(agent["pools"][0]["free_bytes"], 6_u64 << 30);
    assert_eq!(agent["cluster_id"], serde_json::Value::Null);
    assert_eq!(agent["multiattach"], true);
    assert_eq!(
        (&agent["health"]["level"], &agent["health"]["reasons"][0]["code"]),
        (&"degraded".into(), &"group_missing".into())
    );
    assert_eq!(agent["health"]["reasons"][0]["text"], "there is no such volume group");
    assert_eq!(agent["modules"][0]["remedy"], "modprobe dm_thin_pool");
    assert_eq!((&agent["access_modes"][1], &agent["persistent_reservations"]), (&"rw".into(), &true.into()));
    let (pool, transport) = (&agent["pools"][0], &agent["transports"][0]);
    assert_eq!((&pool["reserved_bytes"], &pool["discard"]), (&(1_u64 << 30).into(), &false.into()));
    assert_eq!((&pool["discard_below"], &pool["health"]["level"]), (&serde_json::Value::Null, &"ok".into()));
    assert_eq!(pool["wipe"], "zero");
    assert_eq!(transport["digests"]["header"], "CRC32C,None");
    let text = rig.run(&["agent", "show"]).out;
    for words in [
        "problem: vg1: there is no such volume group",
        "DEGRADED (group_missing)",
        "yes, NOT kept over a loss of power",
        "512 a volume",
        "header CRC32C,None; data None",
        "dm_thin_pool  loadable  thin pools  modprobe dm_thin_pool",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    rig.json(&revoke("data", HOST1));
    let watch = rig.run(&["watch", "--json"]);
    assert_eq!(watch.code, 6, "the stream ended: {}", watch.err);
    let lines: Vec<serde_json::Value> =
        watch.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["agent", "volume", "export", "synced", "receipt"]);
    assert!(lines.iter().all(|line| line["at"].as_str().unwrap().ends_with('Z')));
    assert_eq!(rig.run(&["watch"]).out.lines().count(), 5);
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let rig = Rig::new();
    rig.volume("data");
    for words in [&["volume", "list"][..], &["watch"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_mooring"))
            .env_clear()
            .args(["--agent", &rig.address()])
            .args(words)
            .stdout(writer)
            .output()
            .unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{words:?}");
    }
}

#[test]
fn who_has_reserved_a_volume() {
    let rig = Rig::new();
    assert_eq!(rig.run(&["volume", "create", "data", "--size", "1GiB"]).code, 0);
    rig.run(&["volume", "reservations", "data"]).refused(3, &["not exported"]);
    assert_eq!(rig.run(&grant("data", HOST1, "rw")).code, 0);
    let nobody = rig.run(&["volume", "reservations", "data"]);
    assert!(nobody.code == 0 && nobody.out.contains("nobody has registered"), "{nobody:?}");
    let registration = |initiator: &str, key| v1::Registration {
        initiator: initiator.to_owned(),
        isid: "800123450001".to_owned(),
        key,
    };
    rig.fake.state().knobs.reservations = Some(v1::Reservations {
        generation: 4,
        registrations: vec![registration(HOST1, u64::MAX), registration(HOST2, 0xab)],
        truncated: true,
        holder: Some(v1::ReservationHolder {
            initiator: HOST1.to_owned(),
            isid: "800123450001".to_owned(),
            r#type: 5,
            since_us: 1_790_000_000_000_000,
        }),
        durable: true,
        lost: vec![registration(HOST2, 0xcd)],
    });
    let seen = rig.json(&["volume", "reservations", "data"]);
    assert_eq!((&seen["holder"]["type"], &seen["durable"]), (&5.into(), &true.into()));
    assert_eq!((&seen["holder"]["initiator"], &seen["generation"]), (&HOST1.into(), &4.into()));
    assert_eq!(seen["registrations"][0]["key"], "0xffffffffffffffff");
    assert_eq!(seen["lost"][0]["key"], "0x00000000000000cd");
    let shown = rig.run(&["volume", "reservations", "data"]).out;
    for words in [
        "write exclusive, registrants only",
        "2026-09-21T",
        "holder",
        "others",
        "lost by the kernel",
        "0x00000000000000ab",
    ] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    rig.run(&["volume", "reservations", "data", "--clear", "--preempt", "0xab"]).refused(2, &["--preempt"]);
    rig.run(&["volume", "reservations", "data", "--abort"]).refused(2, &["--preempt"]);
    for wrong in ["171", "0x", "0x0", "0x+b", "0x10000000000000000"] {
        rig.run(&["volume", "reservations", "data", "--preempt", wrong]).refused(2, &["hexadecimal"]);
    }
    let preempted = rig.run(&["volume", "reservations", "data", "--preempt", "0xAB", "--abort"]).out;
    assert!(
        preempted.starts_with(&format!("taken away: key 0x00000000000000ab of {HOST2}\n")),
        "{preempted}"
    );
    let held = v1::ReservationHolder { initiator: HOST2.to_owned(), ..Default::default() };
    let old = v1::Reservations { holder: Some(held), ..Default::default() };
    let before = rig.fake.state().knobs.reservations.replace(old);
    let cleared = rig.run(&["volume", "reservations", "data", "--clear"]).out;
    assert!(cleared.starts_with(&format!("taken away: RESERVE(6) of SPC-2 of {HOST2}")), "{cleared}");
    rig.fake.state().knobs.reservations = before;
    let cleared = rig.json(&["volume", "reservations", "data", "--clear"]);
    assert_eq!(cleared["before"]["registrations"][0]["key"], "0xffffffffffffffff");
    assert_eq!(
        (&cleared["before"]["durable"], &cleared["reservations"]["registrations"]),
        (&false.into(), &serde_json::json!([]))
    );
    let again = rig.run(&["volume", "reservations", "data", "--clear"]);
    assert!(again.code == 0 && again.out.contains("nothing to take away"), "{again:?}");
}

#[test]
fn jobs_of_one_agent_are_listed_shown_and_limited() {
    let rig = Rig::new();
    rig.run(&["volume", "create", "data", "--size", "1GiB"]);
    let id = rig.json(&["volume", "list"])["volumes"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(rig.run(&["job", "list"]).out.trim(), "no jobs");
    rig.run(&["job", "show", "data"]).refused(3, &["no job", &id]);
    let job = v1::Job {
        volume_id: id.clone(),
        kind: v1::JobKind::Grow.into(),
        done_bytes: 1 << 20,
        total_bytes: 3 << 20,
        since_us: 1_795_000_000_000_000,
        ..v1::Job::default()
    };
    rig.fake.state().knobs.jobs = vec![job];
    let list = rig.json(&["job", "list"]);
    let seen = &list["jobs"][0];
    assert_eq!((seen["volume_name"].as_str(), seen["kind"].as_str()), (Some("data"), Some("grow")));
    assert_eq!((seen["percent"].as_f64(), seen["bytes_per_second"].as_u64()), (Some(33.33), None));
    assert!(rig.run(&["job", "show", "data"]).out.contains("33.33 %: 1 MiB of 3 MiB"));
    let set = rig.run(&["job", "throttle", "50MiB"]);
    assert_eq!((set.code, set.out.trim()), (0, "limit of all jobs of the agent: 50 MiB/s"));
    assert_eq!(rig.fake.state().knobs.job_limit, 50 << 20);
    assert_eq!(rig.json(&["job", "list"])["hosts"][0]["bytes_per_second"], 50 << 20);
    rig.run(&["job", "throttle", "50MiB", "--host", "storage"]).refused(2, &["leave --host away"]);
    rig.run(&["job", "throttle", "none"]);
    assert_eq!(rig.fake.state().knobs.job_limit, 0);
}

#[test]
fn one_agents_growth_is_taken_back_by_the_size_that_the_volume_has() {
    let rig = Rig::new();
    let id = rig.volume("data");
    let has = rig.fake.state().volumes[&id].spec.as_ref().unwrap().size_bytes;
    let cancel = ["volume", "extend", "data", "--cancel"];
    rig.run(&cancel).refused(4, &["does not grow, or not any more: it has"]);
    rig.fake.state().knobs.has_bytes = Some(has);
    rig.run(&["volume", "extend", "data", "--size", "9GiB"]);
    let wanted = || rig.fake.state().volumes[&id].spec.as_ref().unwrap().size_bytes;
    assert_eq!(wanted(), 9 << 30, "the control");
    assert_eq!(rig.run(&cancel).code, 0);
    assert_eq!(wanted(), has);
}

#[test]
fn a_volume_is_cut_off_and_given_back() {
    let rig = Rig::new();
    let id = rig.volume("data");
    rig.run(&grant("data", HOST1, "rw"));
    rig.run(&["volume", "cut", "nosuch"]).refused(3, &["nosuch"]);
    // Initiators that are logged in would get errors: refused without --force.
    rig.fake.state().knobs.live = vec![HOST1.to_owned()];
    rig.run(&["volume", "cut", "data"]).refused(4, &[HOST1, "--force"]);
    assert_eq!(rig.fake.state().volumes[&id].spec.as_ref().unwrap().cut_us, 0);
    let cut = rig.json(&["volume", "cut", "data", "--force"]);
    assert_eq!((&cut["done"], &cut["cut"]["state"]), (&true.into(), &"in_force".into()));
    let since = rig.fake.state().volumes[&id].spec.as_ref().unwrap().cut_us;
    assert!(since > 0);
    // A repetition finds the same isolation, also without --force.
    assert_eq!(rig.json(&["volume", "cut", "data"])["cut"]["since"], cut["cut"]["since"]);
    assert_eq!(rig.fake.state().volumes[&id].spec.as_ref().unwrap().cut_us, since);
    assert_eq!(rig.json(&["volume", "show", "data"])["cut"], cut["cut"]);
    assert!(
        rig.run(&["volume", "show", "data"]).out.contains("it is cut off from its disk (asked for at 20")
    );
    rig.fake.state().knobs.live.clear();
    assert!(rig.run(&["volume", "uncut", "data"]).out.contains("is not cut off"));
    assert_eq!(rig.json(&["volume", "show", "data"])["cut"], serde_json::Value::Null);
    // No initiator is logged in.
    rig.fake.state().knobs.pending = true;
    let pending = rig.run(&["volume", "cut", "data"]);
    assert!(pending.code == 5 && pending.out.contains("is not yet"), "{pending:?}");
}
