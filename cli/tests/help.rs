//! The help is part of the product: a change of it must be visible in review.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fmt::Write;

use crate::fake::mooring;

#[test]
fn help() {
    let mut text = String::new();
    for words in [
        &["--help"][..],
        &["volume", "create", "--help"],
        &["volume", "list", "--help"],
        &["volume", "show", "--help"],
        &["volume", "confirm-review", "--help"],
        &["volume", "delete", "--help"],
        &["attach", "--help"],
        &["detach", "--help"],
        &["attachment", "list", "--help"],
        &["attachment", "show", "--help"],
        &["attachment", "cache", "--help"],
        &["attachment", "check", "--help"],
        &["session", "list", "--help"],
        &["job", "list", "--help"],
        &["job", "show", "--help"],
        &["job", "throttle", "--help"],
        &["snapshot", "create", "--help"],
        &["snapshot", "list", "--help"],
        &["snapshot", "show", "--help"],
        &["snapshot", "delete", "--help"],
        &["snapshot", "reset-status", "--help"],
        &["snapshot", "unmanage", "--help"],
        &["receipt", "list", "--help"],
        &["receipt", "show", "--help"],
        &["audit", "--help"],
        &["epoch", "raise", "--help"],
        &["host", "list", "--help"],
        &["type", "create", "--help"],
        &["type", "list", "--help"],
        &["type", "show", "--help"],
        &["type", "set", "--help"],
        &["type", "unset", "--help"],
        &["type", "access", "--help"],
        &["type", "delete", "--help"],
        &["quota", "show", "--help"],
        &["quota", "set", "--help"],
        &["quota", "reset", "--help"],
        &["volume", "extend", "--help"],
        &["volume", "retype", "--help"],
        &["volume", "reset-status", "--help"],
        &["volume", "set", "--help"],
        &["volume", "import", "--help"],
        &["volume", "export", "--help"],
        &["volume", "manage", "--help"],
        &["volume", "manageable", "--help"],
        &["volume", "unmanage", "--help"],
        &["export", "grant", "--help"],
        &["export", "revoke", "--help"],
        &["export", "show", "--help"],
        &["plan", "--help"],
        &["agent", "show", "--help"],
        &["watch", "--help"],
    ] {
        let ran = mooring(None, words, None);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("Example"), "{words:?} teaches nothing");
        writeln!(text, "$ mooring {}\n{}", words.join(" "), ran.out).unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn version() {
    let ran = mooring(None, &["--version"], None);
    assert_eq!(ran.out.trim_end(), concat!("mooring ", env!("CARGO_PKG_VERSION")));
}
