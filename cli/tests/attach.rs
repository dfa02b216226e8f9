//! Attach and detach with the shipped program, against a controller in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::process::Child;

use crate::fake_controller::{Rig, end};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const ID: &str = "b0c1d2e3-0001-4002-8003-0000000000aa";
const OTHER: &str = "b0c1d2e3-0001-4002-8003-0000000000bb";
const DELETE: &str = "DELETE /mooring/v1/attachments/";
const POLL: &str = "GET /mooring/v1/attachments/";
const POST: &str = "POST /mooring/v1/attachments";

fn interrupt(child: &Child) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
}

#[test]
fn an_attach_is_followed_to_its_end() {
    let rig = Rig::new();
    let volume = rig.volume("data");
    let ran = rig.run(&["attach", "data", "--host", "host1", "--id", ID]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        ran.err,
        "mooring: granted 12 ms\nmooring: logged in 24 ms\nmooring: device ready 36 ms\nmooring: done 48 ms\n"
    );
    for words in [
        &format!("volume data ({volume}) is attached to host1"),
        &format!("DEVICE      /run/mooring/attachments/{ID}"),
        "DISK        /dev/sda",
        "MODE        rw (effective: rw)",
        "SESSION     logged in  10.10.0.11",
        "STEPS       granted 12 ms, logged in 24 ms, device ready 36 ms, done 48 ms",
    ] {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    let body = json!({ "attachment": { "id": ID, "volume": volume, "host": "host1", "mode": "rw" } });
    assert_eq!(rig.fake.state().bodies.last(), Some(&body));
    // Each poll sends the known version, and waits.
    let polls: Vec<_> = rig.fake.state().requests.iter().filter(|r| r.starts_with(POLL)).cloned().collect();
    assert!(polls[0].contains("after=1&wait_ms=10000") && polls[3].contains("after=4"), "{polls:?}");
    // Repeating the command finds the same attachment.
    let again = rig.json(&["attach", &volume, "--host", "host1", "--id", ID]);
    assert_eq!((&again["done"], &again["attachment"]["id"]), (&json!(true), &json!(ID)));
    assert_eq!(again["attachment"]["steps_ms"]["logged_in"], 24);
    let second = rig.json(&["attach", "data", "--host", "host2", "--mode", "ro"]);
    assert_eq!(second["attachment"]["effective_mode"], "ro");
    // A lost answer makes no second attachment.
    rig.fake.state().knobs.lost = 1;
    assert_eq!(rig.run(&["attach", "data", "--host", "host2", "--mode", "ro", "--id", OTHER]).code, 0);
    rig.run(&["detach", OTHER]);
    assert_eq!(rig.fake.state().attachments.len(), 2);
}

#[test]
fn attachments_are_listed_and_shown_as_they_are() {
    let rig = Rig::new();
    rig.volume("data");
    assert_eq!(rig.run(&["attachment", "list"]).out, "no attachments\n");
    let id = rig.attach("data", "host1");
    rig.attach("data", "host2");
    let list = rig.run(&["attachment", "list", "data"]);
    for words in ["EFFECTIVE", "SESSION", "host1", "host2", "logged in", &id, "/run/mooring/attachments/"] {
        assert!(list.out.contains(words), "{words:?} is not in {}", list.out);
    }
    rig.fake.change(|state| {
        let live = state.attachments.get_mut(&id).unwrap();
        (live["session"], live["host_phase"]) = (false.into(), "recovering".into());
        live["problems"] = json!(["host1: the portal 10.10.0.10:3260 refuses"]);
        live["new_in_2030"] = true.into();
    });
    let shown = rig.run(&["attachment", "show", &id]);
    for words in [
        "SESSION    NOT logged in",
        "ON HOST    recovering",
        "problem: host1: the portal 10.10.0.10:3260 refuses",
        "DEVICE     /run/mooring/attachments/",
    ] {
        assert!(shown.out.contains(words), "{words:?} is not in {}", shown.out);
    }
    let live = rig.fake.state().attachments[&id].clone();
    assert_eq!(rig.json(&["attachment", "show", &id]), live, "as the API gives it");
    assert_eq!(rig.json(&["attachment", "list"])["attachments"].as_array().unwrap().len(), 2);
    rig.fake.state().attachments.get_mut(&id).unwrap()["session"] = json!(null);
    assert!(rig.run(&["attachment", "show", &id]).out.contains("SESSION    unknown"));
    rig.run(&["attachment", "show", ID]).refused(3, &[ID]);
    rig.run(&["attachment", "show", "data"]).refused(2, &["is not a UUID"]);
    rig.run(&["attachment", "list", "nothing"]).refused(3, &["nothing"]);
}

#[test]
fn sessions_are_listed_and_a_missing_one_is_seen_at_once() {
    let rig = Rig::new();
    let volume = rig.volume("data");
    assert_eq!(rig.run(&["session", "list"]).out, "no sessions\n");
    let (one, two) = (rig.attach("data", "host1"), rig.attach("data", "host2"));
    let all = rig.json(&["session", "list"])["sessions"].clone();
    assert_eq!(all.as_array().unwrap().len(), 2);
    assert_eq!(
        all[0],
        json!({
            "volume_id": volume, "volume_name": "data", "host": "host1", "storage_host": "storage1",
            "initiator": "iqn.2026-11.dev.mooring:host.id-of-host1", "attachments": [one], "missing": false,
            "session": {
                "id": 4, "isid": "801234567890", "addresses": ["10.10.0.11"], "state": "LOGGED_IN", "in_flight": 2,
                "since": "2026-11-21T10:00:00.500000Z"
            },
            "commands": 77, "read_mib": 5, "written_mib": 6, "last_activity": "2026-11-21T10:00:07.000000Z",
            "looked_at": "2026-11-21T10:00:08.000000Z"
        })
    );
    rig.fake.change(|state| {
        let live = state.attachments.get_mut(&two).unwrap();
        (live["session"], live["session_missing"]) = (false.into(), true.into());
        (live["sessions"], live["session_addresses"]) = (json!([]), json!([]));
    });
    let missing = rig.json(&["session", "list", "--host", "host2"])["sessions"].clone();
    assert_eq!((missing.as_array().unwrap().len(), &missing[0]["missing"]), (1, &json!(true)));
    assert_eq!(missing[0]["session"], json!(null));
    rig.fake.change(|state| {
        state.attachments.get_mut(&one).unwrap()["unlisted_sessions"] = 1.into();
    });
    let unlisted = |host| rig.json(&["session", "list", "--host", host])["unlisted"].clone();
    assert_eq!(unlisted("host1"), json!([{ "volume_id": volume, "volume_name": "data", "sessions": 1 }]));
    assert_eq!(unlisted("host2"), json!([]));
    let table = rig.run(&["session", "list", "--volume", "data"]).out;
    assert!(table.ends_with("\ndata: 1 more session that the kernel does not list\n"), "{table}");
    for words in ["STORAGE", "LAST ACTIVITY", "host1", "LOGGED_IN", "10.10.0.11", "6 MiB", "MISSING"] {
        assert!(table.contains(words), "{words:?} is not in {table}");
    }
    let shown = rig.run(&["attachment", "show", &two]).out;
    assert!(shown.contains("SESSION    MISSING  at storage1"), "{shown}");
    let shown = rig.run(&["attachment", "show", &one]).out;
    let says =
        "SESSION    logged in  10.10.0.11 (ISID 801234567890 since 2026-11-21T10:00:00.500000Z)  at storage1";
    assert!(shown.contains(says), "{shown}");
    assert!(shown.contains("DONE       77 commands, 5 MiB read, 6 MiB written, last 2026-11-21"), "{shown}");
    assert!(rig.run(&["attachment", "list"]).out.contains("MISSING"));
    // Two attachments on one host share one session.
    rig.fake.change(|state| {
        let mut twin = state.attachments[&one].clone();
        twin["id"] = ID.into();
        state.attachments.insert(ID.to_owned(), twin);
    });
    let shared = rig.json(&["session", "list", "--host", "host1"])["sessions"].clone();
    assert_eq!(shared.as_array().unwrap().len(), 1);
    assert_eq!(shared[0]["attachments"].as_array().unwrap().len(), 2);
    rig.run(&["session", "list", "--volume", "nothing"]).refused(3, &["nothing"]);
    rig.run(&["session", "list", "--host", ""]).refused(2, &["--host"]);
}

/// Over Fibre Channel a target lists no sessions; an unknown number is not shown as a number.
#[test]
fn over_fibre_channel_who_is_missing_is_seen_and_nothing_is_made_up() {
    let rig = Rig::new();
    rig.volume("data");
    let (one, two) = (rig.attach("data", "host1"), rig.attach("data", "host2"));
    let port = "20:00:52:54:00:14:00:0b";
    rig.fake.change(|state| {
        for live in state.attachments.values_mut() {
            (live["sessions"], live["session_addresses"]) = (json!([]), json!([]));
            (live["transport"], live["initiator"]) = ("fc".into(), port.into());
        }
        let live = state.attachments.get_mut(&two).unwrap();
        (live["session"], live["session_missing"]) = (false.into(), true.into());
        live["initiator"] = "20:00:52:54:00:14:00:0c".into();
    });
    let of = |host: &str| rig.json(&["session", "list", "--host", host])["sessions"].clone();
    let there = of("host1");
    assert_eq!(there.as_array().unwrap().len(), 1, "{there}");
    assert_eq!((&there[0]["initiator"], &there[0]["missing"]), (&json!(port), &json!(false)));
    assert_eq!((&there[0]["session"], &there[0]["commands"]), (&json!(null), &json!(77)));
    assert_eq!(of("host2")[0]["missing"], true);
    let row = |host: &str| {
        let table = rig.run(&["session", "list", "--host", host]).out;
        table.lines().last().unwrap().to_owned()
    };
    assert!(row("host1").contains("logged in") && row("host1").contains(" 77 "), "{}", row("host1"));
    assert!(row("host2").contains("MISSING"), "{}", row("host2"));
    assert!(rig.run(&["attachment", "show", &two]).out.contains("SESSION    MISSING  at storage1"));
    // A controller of an earlier release reports no counters.
    rig.fake.change(|state| {
        let live = state.attachments.get_mut(&one).unwrap();
        for word in ["counters", "last_activity", "looked_at", "storage_host"] {
            live[word] = json!(null);
        }
    });
    let there = of("host1")[0].clone();
    for word in ["commands", "read_mib", "written_mib", "last_activity", "looked_at"] {
        assert_eq!(there[word], json!(null), "{word}: {there}");
    }
    assert!(!row("host1").contains("MiB") && row("host1").contains(" - "), "{}", row("host1"));
}

#[test]
fn what_is_refused_leaves_nothing() {
    let rig = Rig::new();
    rig.json(&["volume", "create", "plain", "--size", "1GiB"]);
    rig.attach("plain", "host1");
    rig.run(&["attach", "plain", "--host", "host2"]).refused(4, &["in use and not multiattach", "(400)"]);
    let error = rig.error(4, &["attach", "plain", "--host", "host2"]);
    assert_eq!((&error["kind"], &error["http_status"]), (&json!("refused"), &json!(400)));
    rig.run(&["attach", "plain", "--host", "host9"]).refused(3, &["Host host9 could not be found"]);
    rig.run(&["attach", "nothing", "--host", "host1"]).refused(3, &["named \"nothing\""]);
    rig.run(&["attach", ID, "--host", "host1"]).refused(3, &["Volume", ID]);
    for (words, says) in [
        (&["attach", "plain"][..], "--host"),
        (&["attach", "plain", "--host", ""], "--host"),
        (&["attach", "plain", "--host", "host1", "--mode", "w"], "is not a mode"),
        (&["attach", "plain", "--host", "host1", "--id", "1"], "is not a UUID"),
        (&["detach"], "Usage"),
        (&["detach", "b0c1d2e3-0001"], "no volume is named"),
    ] {
        let code = if says.starts_with("no volume") { 3 } else { 2 };
        rig.run(words).refused(code, &[says]);
    }
    assert_eq!(rig.fake.state().attachments.len(), 1);
}

#[test]
fn an_attach_that_fails_says_why_and_what_is_left() {
    let rig = Rig::new();
    rig.volume("data");
    rig.fake.change(|state| {
        state.knobs.stop_after = Some(1);
        state.knobs.attach_fault = Some("the host was refused by the target".to_owned());
        state.knobs.problems =
            vec!["host1: login at 10.10.0.10:3260: 0x0201".to_owned(), "storage: nothing".to_owned()];
    });
    let ran = rig.run(&["attach", "data", "--host", "host1", "--id", ID]);
    ran.refused(
        1,
        &[
            "volume data cannot be attached to host1: the host was refused by the target",
            "problem: host1: login at 10.10.0.10:3260: 0x0201",
            "problem: storage: nothing",
            &format!("Attachment {ID} is left with status error_attaching"),
            &format!("mooring detach {ID}"),
        ],
    );
    assert_eq!(ran.out, "");
    let error = rig.error(1, &["attach", "data", "--host", "host1", "--id", ID]);
    assert_eq!((&error["kind"], &error["attachment_id"]), (&json!("failed"), &json!(ID)));
    assert_eq!(error["attachment"]["status"], "error_attaching");
}

#[test]
fn the_deadline_leaves_it_to_the_controller() {
    let rig = Rig::new();
    rig.volume("data");
    rig.fake.change(|state| {
        state.knobs.stop_after = Some(2);
        state.knobs.problems = vec!["host1: no disk yet".to_owned()];
    });
    let words = ["attach", "data", "--host", "host1", "--id", ID, "--timeout", "4"];
    let ran = rig.run(&words);
    assert_eq!(ran.code, 5, "{ran:?}");
    for words in [
        "NOT attached yet",
        "problem: host1: no disk yet",
        "logged in 24 ms",
        &format!("mooring detach {ID}"),
    ] {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    assert_eq!(
        ran.err,
        "mooring: granted 12 ms\nmooring: logged in 24 ms\nmooring: problem: host1: no disk yet\n"
    );
    let ran = rig.run(&[&words[..], &["--json"]].concat());
    let answer: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &answer["done"], ran.err.as_str()), (5, &json!(false), ""));
    // A repetition continues where it was.
    rig.fake.state().knobs.stop_after = None;
    assert_eq!(rig.json(&words)["attachment"]["status"], "attached");
}

#[test]
fn an_attach_survives_a_controller_that_returns_and_says_what_it_left() {
    let rig = Rig::new();
    rig.volume("data");
    rig.fake.state().knobs.stop_after = Some(1);
    let child = rig.start(&["attach", "data", "--host", "host1", "--id", ID]);
    rig.fake.await_that(|state| state.count(POLL) >= 2);
    rig.fake.change(|state| {
        state.knobs.unavailable = 1;
        state.knobs.stop_after = None;
    });
    let ran = end(child);
    assert_eq!(ran.code, 0, "{ran:?}");
    // The controller does not return.
    rig.run(&["detach", ID]);
    rig.fake.state().knobs.stop_after = Some(1);
    let child = rig.start(&["attach", "data", "--host", "host1", "--id", ID, "--timeout", "5"]);
    rig.fake.await_that(|state| state.attachments.get(ID).is_some_and(|live| live["revision"] == 2));
    rig.fake.state().knobs.unavailable = u32::MAX;
    rig.fake.state().attachments.get_mut(ID).unwrap()["revision"] = json!(9);
    end(child)
        .refused(5, &["it is not known how attachment", "goes on without this program", "mooring detach"]);
}

#[test]
fn an_attachment_that_somebody_takes_away() {
    let rig = Rig::new();
    rig.volume("data");
    rig.fake.state().knobs.stop_after = Some(1);
    for gone in [true, false] {
        let child = rig.start(&["attach", "data", "--host", "host1", "--id", ID]);
        rig.fake.await_that(|state| state.attachments.get(ID).is_some_and(|live| live["revision"] == 2));
        rig.fake.change(|state| {
            if gone {
                state.attachments.clear();
            } else {
                let live = state.attachments.get_mut(ID).unwrap();
                (live["status"], live["revision"]) = ("detaching".into(), 7.into());
            }
        });
        end(child).refused(4, &["taken away", ID]);
    }
}

#[test]
fn ctrl_c_takes_the_attachment_back() {
    let rig = Rig::new();
    rig.volume("data");
    rig.fake.change(|state| {
        state.knobs.stop_after = Some(1);
        state.knobs.pending = 1;
    });
    let child = rig.start(&["attach", "data", "--host", "host1", "--id", ID, "--timeout", "20"]);
    rig.fake.await_that(|state| state.count(POLL) > 0);
    interrupt(&child);
    let ran = end(child);
    ran.refused(130, &["taking attachment", "ctrl-C again", "was taken back, nothing is left"]);
    assert_eq!((ran.out.as_str(), rig.fake.state().attachments.len()), ("", 0));
    assert_eq!(rig.fake.state().count(DELETE), 2, "the first answer was 504");
}

#[test]
fn a_second_ctrl_c_leaves_it_to_the_controller() {
    let rig = Rig::new();
    rig.volume("data");
    rig.fake.change(|state| {
        state.knobs.stop_after = Some(1);
        state.knobs.pending = 100;
    });
    let child = rig.start(&["attach", "data", "--host", "host1", "--id", ID, "--json"]);
    rig.fake.await_that(|state| state.count(POLL) > 0);
    interrupt(&child);
    rig.fake.await_that(|state| state.count(DELETE) > 0);
    interrupt(&child);
    let ran = end(child);
    let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!((ran.code, &error["exit_code"], &error["kind"]), (130, &json!(130), &json!("interrupted")));
    assert_eq!(error["attachment_id"], ID);
    assert!(error["error"].as_str().unwrap().contains("left to the controller"), "{error}");
    assert!(error["advice"].as_str().unwrap().contains(&format!("mooring detach {ID}")), "{error}");
}

#[test]
fn ctrl_c_while_the_request_is_on_its_way_waits_for_its_answer() {
    let rig = Rig::new();
    rig.volume("data");
    rig.fake.state().knobs.hold_post = true;
    let words = ["attach", "data", "--host", "host1", "--id", ID];
    let child = rig.start(&words);
    rig.fake.await_that(|state| state.attachments.contains_key(ID));
    interrupt(&child);
    rig.fake.change(|state| state.knobs.hold_post = false);
    end(child).refused(130, &["nothing is left of it"]);
    assert_eq!(rig.fake.state().attachments.len(), 0);
    // The controller does not answer, and the user does not want to wait.
    rig.fake.state().knobs.hold_post = true;
    let child = rig.start(&words);
    rig.fake.await_that(|state| state.attachments.contains_key(ID));
    interrupt(&child);
    // A signal that is pending is not delivered twice: wait until the first has been taken.
    let mut child = child;
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.contains("waiting for the controller's answer"), "{line}");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
    assert!(rest.contains("left to the controller") && rest.contains(ID), "{rest}");
    assert_eq!(rig.fake.state().count(DELETE), 1, "only the first attach was taken back");
}

#[test]
fn ctrl_c_when_nothing_was_attached() {
    let rig = Rig::new();
    rig.volume("data");
    rig.fake.state().knobs.hold_post = true;
    let child = rig.start(&["attach", "data", "--host", "host9", "--id", ID]);
    rig.fake.await_that(|state| state.count(POST) > 0);
    interrupt(&child);
    let mut child = child;
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();
    rig.fake.change(|state| state.knobs.hold_post = false);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(rest.contains("nothing was attached") && rest.contains("host9"), "{rest}");
    assert_eq!(rig.fake.state().count(DELETE), 0);
}

#[test]
fn a_detach_names_what_it_means() {
    let rig = Rig::new();
    let volume = rig.volume("data");
    rig.run(&["detach", "data"]).refused(3, &["volume data has no attachment"]);
    let (one, two) = (rig.attach("data", "host1"), rig.attach("data", "host2"));
    rig.run(&["detach", "data"]).refused(2, &["2 attachments", &one, &two, "host host1", "--host"]);
    rig.run(&["detach", &volume]).refused(2, &[&one, &two]);
    rig.run(&["detach", "data", "--host", "host3"]).refused(3, &["has no attachment on host host3"]);
    rig.run(&["detach", &one, "--host", "host2"]).refused(2, &["is on host host1, not on host2"]);
    assert_eq!(rig.fake.state().count(DELETE), 0);
    let ran = rig.run(&["detach", "data", "--host", "id-of-host2"]);
    assert_eq!((ran.code, ran.out), (0, format!("attachment {two} is detached (receipt: proven)\n")));
    let answer = rig.json(&["detach", &one, "--host", "host1"]);
    assert_eq!((&answer["done"], &answer["attachment_id"]), (&json!(true), &json!(one)));
    assert_eq!((&answer["known"], &answer["receipt"]["proof"]), (&json!(true), &json!("proven")));
    // Gone is the requested state. Its receipt is kept.
    assert_eq!(rig.json(&["detach", &one]), answer);
    assert_eq!(rig.run(&["detach", &one, "--host", "host1"]).code, 0);
    let gone = rig.run(&["attachment", "show", &one, "--json"]);
    let (code, gone): (_, serde_json::Value) = (gone.code, serde_json::from_str(&gone.out).unwrap());
    assert_eq!((code, &gone["status"], &gone["receipt"]), (3, &json!("gone"), &answer["receipt"]));
    assert!(rig.run(&["attachment", "show", &one]).out.contains("RECEIPT       proven"));
    let never = rig.json(&["detach", ID]);
    assert_eq!(
        (&never["done"], &never["known"], &never["receipt"]),
        (&json!(true), &json!(false), &json!(null))
    );
    rig.run(&["detach", "data"]).refused(3, &["no attachment"]);
}

#[test]
fn a_forced_detach_prints_its_receipt_in_full() {
    let rig = Rig::new();
    rig.volume("data");
    let id = rig.attach("data", "host1");
    rig.fake.state().knobs.holders = Some("qemu-system-x86 (pid 4711)".to_owned());
    let refused = rig.run(&["detach", &id]);
    refused.refused(4, &["mooring: host1 holds /dev/sda open: qemu-system-x86 (pid 4711)\n"]);
    let ran = rig.run(&["detach", &id, "--force"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for words in [
        "nothing of it reaches",
        "RECEIPT       proven",
        "TOOK          12.345 ms",
        "80aabbccddee",
        "10.10.0.11",
        "1.9",
    ] {
        assert!(ran.out.contains(words), "{words:?} is not in {}", ran.out);
    }
    assert!(rig.fake.state().requests.iter().any(|r| r.starts_with(DELETE) && r.contains("force=true")));
    let id = rig.attach("data", "host1");
    let receipt = rig.json(&["detach", &id, "--force"])["receipt"].clone();
    assert_eq!(receipt, rig.fake.state().receipts[&id], "as the API gives it");
    assert_eq!((&receipt["proof"], &receipt["sessions_cut"][0]["in_flight"]), (&json!("proven"), &json!(8)));
}

#[test]
fn an_unproven_receipt_is_not_a_success() {
    let rig = Rig::new();
    rig.volume("data");
    let id = rig.attach("data", "host1");
    rig.fake.state().knobs.unproven = Some(8);
    for words in [&["detach", &id][..], &["detach", &id, "--force"]] {
        let ran = rig.run(words);
        assert_eq!(ran.code, 5, "{ran:?}");
        assert!(
            ran.out.contains("NOT PROVEN") && ran.out.contains("8 commands may still land"),
            "{}",
            ran.out
        );
    }
    let ran = rig.run(&["detach", &id, "--force", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &answer["done"], &answer["receipt"]["ended"]), (5, &json!(false), &json!(null)));
    assert_eq!(
        (&answer["receipt"]["proof"], &answer["receipt"]["may_still_land"]),
        (&json!("unproven"), &json!(8))
    );
    let shown = rig.json(&["attachment", "show", &id]);
    assert_eq!((&shown["status"], &shown["receipt"]["may_still_land"]), (&json!("detaching"), &json!(8)));
    assert!(rig.run(&["attachment", "show", &id]).out.contains("UNPROVEN: 8 commands may still land"));
    // The advice holds once the attachment is gone, too: the volume's name does not lead to it.
    let by_name = rig.run(&["detach", "data", "--host", "host1", "--force"]);
    assert!(by_name.out.contains(&format!("`mooring detach {id} --force` shows it proven")), "{by_name:?}");
    rig.fake.state().knobs.unproven = None;
    assert_eq!(rig.run(&["detach", &id]).code, 0);
    assert_eq!(rig.run(&["detach", "data", "--host", "host1", "--force"]).code, 3);
    assert_eq!(rig.run(&["detach", &id, "--force"]).code, 0);
}

#[test]
fn a_detach_waits_until_its_deadline() {
    let rig = Rig::new();
    rig.volume("data");
    let id = rig.attach("data", "host1");
    rig.fake.state().knobs.pending = 100;
    let ran = rig.run(&["detach", &id, "--timeout", "4"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(
        ran.out.contains(&format!(
            "NOT detached yet (host1 has not let go yet); `mooring detach {id}` waits for it"
        )),
        "{}",
        ran.out
    );
    let ran = rig.run(&["detach", &id, "--timeout", "4", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &answer["done"], &answer["receipt"]), (5, &json!(false), &json!(null)));
    assert_eq!(answer["waits_for"], "host1 has not let go yet");
    rig.fake.state().knobs.pending = 0;
    assert_eq!(rig.run(&["detach", &id]).code, 0);
}

#[test]
fn a_receipt_in_other_words_is_no_proof() {
    let rig = Rig::new();
    rig.volume("data");
    let id = rig.attach("data", "host1");
    rig.fake.state().knobs.proof = Some("perhaps");
    for words in [&["detach", &id][..], &["attachment", "show", &id]] {
        rig.run(words).refused(1, &["makes no sense", "proof \"perhaps\""]);
    }
}

#[test]
fn a_terminal_sees_one_line_that_is_rewritten() {
    let rig = Rig::new();
    rig.volume("data");
    let pty = nix::pty::openpty(None, None).unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_mooring"))
        .env_clear()
        .env("MOORING_CONTROLLER", rig.url())
        .args(["attach", "data", "--host", "host1"])
        .stdout(std::process::Stdio::null())
        .stderr(pty.slave)
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
    // The program has ended: all its output is there, and then the other end is closed (EIO).
    let (mut terminal, mut seen, mut chunk) = (std::fs::File::from(pty.master), Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = std::io::Read::read(&mut terminal, &mut chunk) {
        seen.extend_from_slice(&chunk[..count]);
    }
    let seen = String::from_utf8(seen).unwrap();
    assert!(seen.starts_with("\r\x1b[Kgranting…\r\x1b[Kgranted 12 ms, logging in…\r\x1b[K"), "{seen:?}");
    assert!(seen.ends_with("device ready 36 ms, done 48 ms\r\x1b[K") && !seen.contains('\n'), "{seen:?}");
}

#[test]
fn ctrl_c_before_anything_was_asked() {
    let rig = Rig::new();
    rig.fake.state().knobs.silent = true;
    let child = rig.start(&["attach", "data", "--host", "host1"]);
    rig.fake.await_that(|state| state.count("GET /v3/volumes/detail?name=data") > 0);
    interrupt(&child);
    end(child).refused(130, &["interrupted: nothing was asked of the controller yet"]);
}

#[test]
fn the_records_of_detaches() {
    let rig = Rig::new();
    rig.volume("data");
    assert_eq!(rig.run(&["receipt", "list"]).out, "no detaches are recorded\n");
    let one = rig.attach("data", "host1");
    rig.run(&["receipt", "show", &one]).refused(3, &["no record of a detach", &one]);
    assert_eq!(rig.run(&["detach", &one, "--force", "--widen"]).code, 0);
    assert_eq!(
        rig.fake.state().count(&format!("DELETE /mooring/v1/attachments/{one}?force=true&widen=host")),
        1
    );
    let list = rig.run(&["receipt", "list", "data"]);
    for words in [one.as_str(), "proven", "alice (req-1)", "host1"] {
        assert!(list.out.contains(words), "{words:?} is not in {}", list.out);
    }
    let shown = rig.run(&["receipt", "show", &one]);
    assert!(shown.code == 0 && shown.out.contains("FORCED") && shown.out.contains("proven"), "{shown:?}");
    assert_eq!(rig.json(&["receipt", "show", &one])["request_id"], "req-1");
    rig.run(&["detach", &one, "--widen"]).refused(2, &["--force"]);
}

#[test]
fn a_record_is_not_done_before_its_proof() {
    let rig = Rig::new();
    rig.volume("data");
    let one = rig.attach("data", "host1");
    rig.fake.change(|state| state.knobs.unproven = Some(3));
    rig.run(&["detach", &one, "--force"]);
    let shown = rig.run(&["receipt", "show", &one]);
    assert_eq!(shown.code, 5, "{shown:?}");
    assert!(rig.run(&["receipt", "list"]).out.contains("NOT PROVEN"));
    rig.fake.change(|state| {
        state.receipts.values_mut().for_each(|receipt| receipt["proof"] = "blessed".into());
    });
    rig.run(&["receipt", "list"]).refused(1, &["blessed"]);
}

#[test]
fn a_mode_is_changed_and_a_barrier_is_said_only_when_it_was_asked_for() {
    let rig = Rig::new();
    rig.volume("data");
    let id = rig.attach("data", "host1");
    let plain = rig.run(&["attachment", "mode", &id, "ro"]);
    assert!(plain.out.contains("may still land") && !plain.out.contains("nothing that was"), "{}", plain.out);
    assert_eq!(rig.fake.state().bodies.last(), Some(&json!({ "mode": "ro" })));
    let barrier = rig.run(&["attachment", "mode", &id, "ro", "--barrier"]);
    assert!(barrier.out.contains("nothing that was on its way lands any more"), "{}", barrier.out);
    assert!(!barrier.out.contains("may still land"), "{}", barrier.out);
    assert_eq!(rig.fake.state().bodies.last(), Some(&json!({ "mode": "ro", "barrier": true })));
    assert_eq!(rig.json(&["attachment", "mode", &id, "rw"])["barrier"], false);
}

#[test]
fn the_users_of_a_disk_are_shown_and_problems_are_no_success() {
    let rig = Rig::new();
    rig.volume("data");
    let id = rig.attach("data", "host1");
    let quiet = rig.run(&["attachment", "check", &id]);
    assert_eq!(quiet.code, 0);
    assert!(
        quiet.out.contains("disk /dev/sda of attachment") && quiet.out.contains("nobody uses it"),
        "{}",
        quiet.out
    );
    rig.fake.change(|state| {
        state.attachments.get_mut(&id).unwrap()["check"] = json!({
            "users": [
                { "device": "sda", "kind": "process", "name": "dd", "pid": 7, "access": "buffered", "filesystem": null },
                { "device": "sda1", "kind": "mount", "name": "/data", "pid": null, "access": null, "filesystem": "ext4" },
            ],
            "unseen": ["what processes have mapped"],
            "problems": [{ "code": "buffered_io", "text": "dd (pid 7) has sda open" }],
        });
    });
    let found = rig.run(&["attachment", "check", &id]);
    assert_eq!(found.code, 1, "{}", found.out);
    for part in [
        "sda     process  dd (pid 7)     buffered",
        "sda1    mount    ext4 on /data  -",
        "not looked at: what processes have mapped",
        "problem: buffered_io: dd (pid 7) has sda open",
    ] {
        assert!(found.out.contains(part), "{part:?} is not in\n{}", found.out);
    }
    let json = rig.run(&["attachment", "check", &id, "--json"]);
    assert!(json.out.contains(r#""pid":7"#) || json.out.contains(r#""pid": 7"#), "{}", json.out);
    rig.run(&["attachment", "check", ID]).refused(3, &["could not be found"]);
    rig.run(&["attachment", "check", "x"]).refused(2, &["invalid value"]);
}

#[test]
fn a_cache_flag_is_asked_for_changed_and_shown_beside_what_is_in_force() {
    let rig = Rig::new();
    rig.volume("data");
    let id = rig.attach("data", "host1");
    let shown = || rig.run(&["attachment", "show", &id]).out;
    assert!(shown().contains("CACHE      -\n"), "of a controller that knows no flag: {}", shown());
    rig.run(&["attach", "data", "--host", "host2", "--cache", "off", "--id", ID]);
    assert_eq!(rig.fake.state().bodies.last().unwrap()["attachment"]["cache"], "off");
    let set = rig.run(&["attachment", "cache", &id, "off"]);
    assert!(set.out.contains("cache off (in force: off)"), "{}", set.out);
    assert_eq!(rig.fake.state().bodies.last(), Some(&json!({ "cache": "off" })));
    assert_eq!(rig.json(&["attachment", "cache", &id, "off"])["attachment"]["cache_in_force"], "off");
    rig.fake.change(|state| state.attachments.get_mut(&id).unwrap()["cache_in_force"] = json!(null));
    assert!(shown().contains("off (not known what is in force)"), "{}", shown());
    let list = rig.run(&["attachment", "list"]).out;
    assert!(list.contains("CACHE") && list.contains("off (-)"), "{list}");
    rig.run(&["attachment", "cache", &id, "none"]).refused(2, &["want on or off"]);
    rig.run(&["attach", "data", "--host", "host2", "--cache", "no"]).refused(2, &["want on or off"]);
}
