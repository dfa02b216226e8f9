//! Words that can never be right: exit code 2, a message that says what is allowed, and no call.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake::{Rig, mooring};

const HOST: &str = "iqn.2004-10.com.example:host1";

/// Runs without any agent: a mistake in the words is found first.
fn wrong(words: &[&str], says: &str) {
    mooring(Some("unix:/nonexistent/agent.sock"), words, None).refused(2, &[says]);
}

#[test]
fn sizes() {
    for (size, says) in [
        ("0", "less than the smallest volume"),
        ("1KiB", "less than the smallest volume"),
        ("-1", "is not a size"),
        ("-1GiB", "is not a size"),
        ("1.5GiB", "is not a size"),
        ("ten", "is not a size"),
        ("", "size"),
        ("99999999999999999999", "is not a size"),
        ("18446744073709551615K", "is not a size"),
        ("18446744073709551104", "more than LVM can hold"),
        ("4194305", "512-byte blocks"),
    ] {
        wrong(&["volume", "create", "data", "--size", size], says);
    }
    wrong(&["volume", "create", "data"], "--size");
}

#[test]
fn names_and_ids() {
    for name in ["", " data", "a\nb", "b0c1d2e3-0001-4002-8003-00000000000a"] {
        wrong(&["volume", "create", name, "--size", "1GiB"], "is not a volume name");
    }
    for id in ["b0c1d2e3-0001-4002-8003-0000000000", "b0c1d2e300014002800300000000000a"] {
        wrong(&["volume", "show", id], "is not a UUID");
        wrong(&["volume", "create", "data", "--size", "1GiB", "--id", id], "is not a UUID");
        wrong(&["volume", "list", "--cluster", id], "is not a UUID");
    }
    wrong(&["volume", "create", "data", "--size", "1GiB", "--group", "../vg"], "is not a volume group name");
}

#[test]
fn initiators_modes_and_portals() {
    let grant = |initiator, mode, more: &[&str], says| {
        let words = ["export", "grant", "data", "--initiator", initiator, "--mode", mode];
        wrong(&[&words[..], more].concat(), says);
    };
    for initiator in
        ["host1", "iqn.2004-13.com.example:x", "IQN.2004-10.com.example:host1", "iqn.2004-10.com.example:a/b"]
    {
        grant(initiator, "rw", &[], "is not an iSCSI name");
        wrong(&["export", "revoke", "data", "--initiator", initiator], "is not an iSCSI name");
    }
    for mode in ["RW", "w", "", "read-only"] {
        grant(HOST, mode, &[], "is not a mode: want rw or ro");
    }
    for portal in ["0.0.0.0:3260", "10.0.0.1:0", "10.0.0.1:99999", "storage1:3260", "fd00::1", "224.0.0.1"] {
        grant(HOST, "rw", &["--portal", portal], "is not a portal");
    }
    grant(HOST, "rw", &["--attachment", "1"], "is not a UUID");
}

#[test]
fn credentials() {
    let rig = Rig::new();
    let good = rig.write("good", "a-secret-of-enough\n");
    let grant = |more: &[&str], says: &str| {
        let words = ["export", "grant", "data", "--initiator", HOST, "--mode", "rw"];
        wrong(&[&words[..], more].concat(), says);
    };
    grant(&["--chap-user", "u"], "--chap-secret-file");
    grant(&["--chap-secret-file", &good], "--chap-user");
    grant(&["--mutual-user", "m", "--mutual-secret-file", &good], "--chap-user");
    grant(&["--chap-user", "u", "--chap-secret-file", &good, "--no-chap"], "cannot be used with");
    grant(
        &["--chap-user", "u", "--chap-secret-file", "/nonexistent/secret"],
        "/nonexistent/secret: No such file",
    );
    grant(&["--chap-user", "u", "--chap-secret-file", "/"], "cannot read a secret from /");
    grant(
        &["--chap-user", "u", "--chap-secret-file", "-", "--mutual-user", "m", "--mutual-secret-file", "-"],
        "one secret only",
    );
    grant(&["--chap-user", "two words", "--chap-secret-file", &good], "--chap-user: want 1 to 255");
    let mutual = [
        "--chap-user",
        "u",
        "--chap-secret-file",
        &good,
        "--mutual-user",
        "m",
        "--mutual-secret-file",
        &good,
    ];
    grant(&mutual, "--mutual-secret-file: must differ");
    for (name, text) in [
        ("empty", ""),
        ("short", "elevenchars\n"),
        ("blank", "a secret of enough\n"),
        ("two-lines", "a-secret-of-enough\n\n"),
        ("long", &"x".repeat(256)),
        ("umlaut", "ein-größeres-Geheimnis"),
    ] {
        let file = rig.write(name, text);
        let words = ["export", "grant", "data", "--initiator", HOST, "--mode", "rw"];
        let ran = rig.run(&[&words[..], &["--chap-user", "u", "--chap-secret-file", &file]].concat());
        ran.refused(2, &["--chap-secret-file: want 12 to 255 printable ASCII"]);
        assert!(text.trim().is_empty() || !ran.err.contains(text.trim()), "{}", ran.err);
    }
    assert_eq!(rig.fake.state().puts, 0);
}

#[test]
fn addresses_and_options() {
    for address in ["storage1:7710", "unix:agent.sock", "https://storage1", "ftp://a:1", ""] {
        mooring(None, &["volume", "list", "--agent", address], None)
            .refused(2, &["is not an agent's address"]);
    }
    mooring(Some("http://127.0.0.1:1"), &["volume", "list"], None).refused(2, &["plain text", "--insecure"]);
    mooring(Some("https://127.0.0.1:1"), &["volume", "list"], None).refused(2, &["--ca FILE"]);
    let words = ["volume", "list", "--ca", "/nonexistent/ca.pem"];
    mooring(Some("https://127.0.0.1:1"), &words, None).refused(2, &["/nonexistent/ca.pem cannot be read"]);
    for seconds in ["0", "-1", "301", "x", "99999999999"] {
        wrong(&["volume", "list", "--timeout", seconds], "--timeout");
    }
    wrong(&[], "Usage");
    wrong(&["volume"], "Usage");
    wrong(&["volume", "destroy", "data"], "unrecognized subcommand");
    wrong(&["export", "grant", "data", "--initiator", HOST], "--mode");
    wrong(
        &["export", "grant", "data", "--initiator", HOST, "--mode", "rw", "--chap-secret", "x"],
        "unexpected argument",
    );
}

#[test]
fn without_an_address_the_local_agent_answers_where_only_an_agent_can() {
    for words in [&["plan"][..], &["export", "show", "data"], &["agent", "show"], &["watch"]] {
        mooring(None, words, None).refused(6, &["unix:/run/mooring/agent.sock"]);
    }
}

/// With --json a mistake in the words is JSON as well, and help stays help.
#[test]
fn usage_errors_are_json_where_json_is_asked_for() {
    let run = |words: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_mooring")).args(words).output().unwrap()
    };
    let out = run(&["--json", "volume", "create"]);
    let error: serde_json::Value = serde_json::from_slice(&out.stderr).unwrap();
    assert_eq!(
        (out.status.code(), &error["kind"], &error["exit_code"]),
        (Some(2), &"usage".into(), &2.into())
    );
    let help = run(&["--json", "--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("Usage"));
}
