//! Completion as a shell calls it: `COMPLETE` set, and the words so far after `--`.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::unix::fs::PermissionsExt;

use crate::fake_controller::{Rig, end, start};

/// The candidates for the last of these words, as bash gets them.
fn complete(rig: &Rig, words: &[&str]) -> Vec<String> {
    let index = (words.len() - 1).to_string();
    let env = [("COMPLETE", "bash"), ("_CLAP_COMPLETE_INDEX", index.as_str()), ("_CLAP_IFS", "\n")];
    let ran = rig.run_with(&env, &[&["--"], words].concat());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words:?}");
    ran.out.lines().map(str::to_owned).collect()
}

#[test]
fn names_come_from_the_controller() {
    let rig = Rig::new();
    rig.volume("data");
    let attachment = rig.attach("data", "host2");
    for words in [&["volume", "show", "da"][..], &["attach", "d"], &["snapshot", "create", "da"]] {
        assert_eq!(complete(&rig, &[&["mooring"], words].concat()), ["data"], "{words:?}");
    }
    assert_eq!(complete(&rig, &["mooring", "attachment", "show", ""]).first(), Some(&attachment));
    assert_eq!(complete(&rig, &["mooring", "detach", &attachment[..8]]), [attachment.as_str()]);
    assert_eq!(complete(&rig, &["mooring", "attach", "data", "--host", "host"]), ["host1", "host2"]);
    assert_eq!(complete(&rig, &["mooring", "volume", "retype", "data", "sh"]), ["shared"]);
    assert_eq!(complete(&rig, &["mooring", "snapsh"]), ["snapshot"]);
}

#[test]
fn a_token_of_the_line_is_used_and_refusals_are_silent() {
    let rig = Rig::new();
    rig.volume("data");
    rig.fake.change(|state| state.knobs.token = Some("a-token".to_owned()));
    let file = rig.write("token", "a-token\n");
    assert!(complete(&rig, &["mooring", "volume", "show", "da"]).is_empty());
    let words = ["mooring", "--token-file", &file, "volume", "show", "da"];
    assert!(complete(&rig, &words).is_empty(), "others can read it: the command itself warns of that");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(complete(&rig, &words), ["data"]);
    assert!(complete(&rig, &["mooring", "--token-file", "-", "volume", "show", "da"]).is_empty());
    let words = ["mooring", "--controller", "http://127.0.0.1:1", "volume", "show", "da"];
    assert!(complete(&rig, &words).is_empty(), "nobody answers there");
}

#[test]
fn a_name_that_could_draw_on_a_terminal_is_not_offered() {
    let rig = Rig::new();
    let id = rig.volume("data");
    rig.fake.change(|state| {
        state.volumes.get_mut(&id).unwrap()["name"] = "a\u{1b}]0;x\u{7}".into();
    });
    assert_eq!(complete(&rig, &["mooring", "volume", "show", ""]).first(), Some(&id));
    rig.fake.change(|state| {
        state.volumes.get_mut(&id).unwrap()["name"] = "a\u{202e}b\nc".into();
    });
    assert_eq!(complete(&rig, &["mooring", "volume", "show", ""]).first(), Some(&id));
}

#[test]
fn each_shell_gets_a_script_that_finds_the_program_by_its_name() {
    for (shell, says) in [("bash", "complete "), ("zsh", "#compdef mooring"), ("fish", "--command mooring")] {
        let ran = end(start(&[("COMPLETE", shell)], &[]));
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{shell}");
        assert!(ran.out.contains(says), "{shell}: {}", ran.out);
        assert!(!ran.out.contains("target/"), "{shell}: {}", ran.out);
    }
}
