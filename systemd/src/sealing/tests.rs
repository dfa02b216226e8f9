//! The laws of sealed values, and files of keys that are good or not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Bytes by which a sealed value is longer than head, nonce and the clear one.
const TAG_BYTES: usize = 16;

const A: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
const B: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const C: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Keys as a file of these lines has them.
fn keys(lines: &[&str]) -> SealingKeys {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("keys");
    write(&path, &lines.join("\n"), 0o600);
    Origin::Own(path).load().unwrap()
}

const PLACE: Place<'static> = Place { table: "nexuses", column: "secret", row: &["volume", "initiator"] };

proptest! {
    #[test]
    fn what_is_sealed_opens_in_its_place(clear in vec(any::<u8>(), 0..200), text in "\\PC{0,40}") {
        let keys = keys(&[A]);
        let sealed = keys.seal(PLACE, &clear).unwrap();
        prop_assert_eq!(look(&sealed), Look::Sealed(keys.first()));
        prop_assert_eq!(sealed.len(), clear.len() + BODY_AT + TAG_BYTES);
        prop_assert_eq!(&*keys.open(PLACE, &sealed).unwrap(), &clear);
        let sealed = keys.seal_text(PLACE, &text).unwrap();
        prop_assert_eq!(look_text(&sealed), Look::Sealed(keys.first()));
        prop_assert_eq!(&sealed[..TEXT_HEAD_CHARS], keys.text_head());
        prop_assert_eq!(look_text(&keys.text_head()), Look::Sealed(keys.first()));
        let opened = keys.open_text(PLACE, &sealed).unwrap();
        prop_assert_eq!(opened.as_str(), text);
    }

    #[test]
    fn a_changed_byte_is_refused(clear in vec(any::<u8>(), 0..60), at in any::<prop::sample::Index>(), by in 1..=255u8) {
        let keys = keys(&[A]);
        let mut sealed = keys.seal(PLACE, &clear).unwrap();
        let at = at.index(sealed.len());
        sealed[at] ^= by;
        prop_assert!(keys.open(PLACE, &sealed).is_err(), "byte {}", at);
    }

    #[test]
    fn a_cut_value_is_refused(clear in vec(any::<u8>(), 0..60), at in any::<prop::sample::Index>()) {
        let keys = keys(&[A]);
        let sealed = keys.seal(PLACE, &clear).unwrap();
        prop_assert!(keys.open(PLACE, &sealed[..at.index(sealed.len())]).is_err());
        let text = keys.seal_text(PLACE, "a secret of ours").unwrap();
        prop_assert!(keys.open_text(PLACE, &text[..at.index(text.len())]).is_err());
    }

    #[test]
    fn another_place_is_refused(
        one in ("[a-z]{0,3}", "[a-z]{0,3}", vec("[a-z]{0,3}", 0..3)),
        other in ("[a-z]{0,3}", "[a-z]{0,3}", vec("[a-z]{0,3}", 0..3)),
    ) {
        prop_assume!(one != other);
        let keys = keys(&[A]);
        let row = |place: &(String, String, Vec<String>)| place.2.clone();
        let (own_row, other_row) = (row(&one), row(&other));
        let own_row: Vec<&str> = own_row.iter().map(String::as_str).collect();
        let other_row: Vec<&str> = other_row.iter().map(String::as_str).collect();
        let own = Place { table: &one.0, column: &one.1, row: &own_row };
        let other = Place { table: &other.0, column: &other.1, row: &other_row };
        let sealed = keys.seal(own, b"secret").unwrap();
        prop_assert!(keys.open(own, &sealed).is_ok());
        prop_assert_eq!(keys.open(other, &sealed), Err(SealError::Changed(other.to_string())));
    }

    #[test]
    fn old_keys_open_and_the_first_one_seals(clear in vec(any::<u8>(), 0..60)) {
        let (old, new) = (keys(&[A]), keys(&[B, A]));
        let sealed = old.seal(PLACE, &clear).unwrap();
        prop_assert_eq!(&*new.open(PLACE, &sealed).unwrap(), &clear);
        let anew = new.seal(PLACE, &clear).unwrap();
        prop_assert_eq!(look(&anew), Look::Sealed(new.first()));
        let refused = old.open(PLACE, &anew).unwrap_err();
        let missing = matches!(&refused, SealError::NoKey { key, .. } if *key == new.first());
        prop_assert!(missing, "{}", refused);
    }

    /// An encoded message is empty or begins with the tag of a field.
    #[test]
    fn no_field_of_a_message_looks_sealed(field in 1u32..=536_870_911, kind in 0u32..=5, rest in vec(any::<u8>(), 0..20)) {
        let mut tag = u64::from(field << 3 | kind);
        let mut bytes = Vec::new();
        while tag >= 0x80 {
            bytes.push(tag.to_le_bytes()[0] | 0x80);
            tag >>= 7;
        }
        bytes.push(tag.to_le_bytes()[0]);
        bytes.extend(rest);
        prop_assert_eq!(look(&bytes), Look::Clear);
    }

    #[test]
    fn no_chap_secret_looks_sealed(secret in "[!-~]{12,255}") {
        prop_assert_eq!(look_text(&secret), Look::Clear);
    }
}

#[test]
fn a_value_is_sealed_otherwise_each_time() {
    let keys = keys(&[A]);
    assert_ne!(keys.seal(PLACE, b"x").unwrap(), keys.seal(PLACE, b"x").unwrap());
}

#[test]
fn clear_and_newer_values_are_told_as_such() {
    let keys = keys(&[A]);
    let error = keys.open(PLACE, b"in clear").unwrap_err();
    assert_eq!(error, SealError::Clear("nexuses.secret of volume initiator".to_owned()));
    let mut newer = keys.seal(PLACE, b"x").unwrap();
    newer[3] = 2;
    assert_eq!(look(&newer), Look::Newer(2));
    assert!(keys.open(PLACE, &newer).unwrap_err().to_string().contains("form 2"));
    assert_eq!(keys.open_text(PLACE, "in clear").unwrap_err(), error);
}

/// The form may not change: databases have it. Made with another implementation of
/// XChaCha20-Poly1305.
#[test]
fn a_value_of_form_1_opens() {
    let sealed = BASE64.decode(FORM_1.as_bytes()).unwrap();
    assert_eq!(keys(&[B]).open(PLACE, &sealed).unwrap().as_slice(), b"correct horse");
}

const FORM_1: &str =
    "AE1TAQUGIsjafz4GAAECAwQFBgcICQoLDA0ODxAREhMUFRYXG7+p9/jyo6iLKRg7caaA1xiuR7mWgzeqLBaKaqE=";

#[test]
fn nothing_shows_a_key_or_a_secret() {
    let all = keys(&[A, B]);
    let sealed = all.seal(PLACE, b"correct horse").unwrap();
    let other = keys(&[C]);
    let shown = [
        format!("{all:?} {:#?} {}", all, all.origin()),
        format!("{:?}", other.open(PLACE, &sealed).unwrap_err()),
        other.open(PLACE, &sealed).unwrap_err().to_string(),
        format!("{:?} {}", all.first(), all.first()),
    ];
    for text in shown {
        for secret in ["AAAAAAA", "AQEBAQ", "horse", "0101010101", "1, 1, 1, 1"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn files_of_keys_that_are_not_good_are_refused() {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("keys");
    let load = || Origin::Configured(path.clone()).load().unwrap_err();
    assert!(matches!(load(), KeysError::Read { .. }));
    for (text, mode, want) in [
        (A, 0o640, "others can read"),
        (A, 0o604, "chmod 600"),
        (A, 0o620, "mode 0620"),
        ("", 0o600, "no sealing key"),
        ("# only a comment\n\n", 0o600, "no sealing key"),
        ("AAAA\n", 0o600, "line 1: want a sealing key"),
        (&format!("{A}\n{B}extra\n"), 0o600, "line 2"),
        (&format!("{A}\n\n{}\n", &B[..43]), 0o600, "line 3"),
        (&format!("{A} {B}"), 0o600, "line 1"),
        (&"#\n".repeat(9000), 0o600, "more than keys"),
    ] {
        write(&path, text, mode);
        let error = load().to_string();
        assert!(error.contains(want), "{error}");
        assert!(!error.contains("AAAA") && !error.contains("AQEB"), "{error}");
    }
    fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert!(load().to_string().contains("no text"));
}

#[test]
fn keys_have_comments_and_blank_lines_between_them() {
    let found = keys(&["# a comment", "", A, &format!("  {B}\r"), A, ""]);
    assert_eq!(found.ids().count(), 2);
    assert_eq!(found.first(), keys(&[A]).first());
}

#[test]
fn the_configured_file_comes_before_the_credential() {
    let top = tempfile::tempdir().unwrap();
    let named = Path::new("/etc/keys");
    let credentials = Some(top.path().as_os_str());
    assert_eq!(Origin::find_in(None, credentials), None, "there is no such credential");
    let credential = top.path().join("mooring-sealing-key");
    write(&credential, A, 0o440);
    let found = Origin::find_in(Some(named), credentials);
    assert_eq!(found, Some(Origin::Configured(named.to_owned())));
    let found = Origin::find_in(None, credentials).unwrap();
    assert_eq!(found, Origin::Credential(credential));
    // Its group bits are the mask of an access list.
    assert_eq!(found.load().unwrap().first(), keys(&[A]).first());
    assert_eq!(Origin::find_in(None, None), None);
}

#[test]
fn a_file_is_made_once_and_for_its_owner_alone() {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("sealing.key");
    assert!(make(&path, None).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let first = Origin::Own(path.clone()).load().unwrap().first();
    assert!(!make(&path, None).unwrap(), "another one is not put in its place");
    assert_eq!(Origin::Own(path).load().unwrap().first(), first);
}

#[test]
fn keys_that_a_database_needs_are_there_or_nothing_is_made() {
    let top = tempfile::tempdir().unwrap();
    let own = Origin::Own(top.path().join("sealing.key"));
    let (one, other) = (keys(&[A]).first(), keys(&[B]).first());
    let found = Census::from([(Look::Sealed(one), 2), (Look::Sealed(other), 3), (Look::Clear, 4)]);
    let error = own.open(&found, "the store").unwrap_err().to_string();
    for part in ["(5 of them)", &one.to_string(), &other.to_string(), "sealing.key"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(!own.path().exists());
    let newer = own.open(&Census::from([(Look::Newer(9), 1)]), "the store").unwrap_err();
    assert!(newer.to_string().contains("form 9") && !own.path().exists(), "{newer}");
    write(own.path(), B, 0o600);
    let error = own.open(&found, "the store").unwrap_err().to_string();
    assert!(error.contains("(2 of them)") && !error.contains(&other.to_string()), "{error}");
    write(own.path(), &format!("{C}\n{A}\n{B}"), 0o600);
    assert_eq!(own.open(&found, "the store").unwrap().first(), keys(&[C]).first());
    // A file that the configuration names is the operator's to make.
    let named = Origin::Configured(top.path().join("named"));
    assert!(matches!(named.open(&Census::new(), "x"), Err(KeysError::Read { .. })));
    let own = Origin::Own(top.path().join("new"));
    own.open(&Census::from([(Look::Clear, 4)]), "the store").unwrap();
    assert!(own.path().exists());
}

#[test]
fn a_rotation_puts_a_new_key_before_the_others() {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("sealing.key");
    let origin = Origin::Own(path.clone());
    assert!(matches!(rotate(&origin), Err(KeysError::Read { .. })), "there is nothing to rotate");
    make(&path, None).unwrap();
    let old = origin.load().unwrap();
    let sealed = old.seal(PLACE, b"x").unwrap();
    let id = rotate(&origin).unwrap().id;
    let new = origin.load().unwrap();
    assert_eq!(new.ids().collect::<Vec<_>>(), [id, old.first()]);
    assert_eq!(new.open(PLACE, &sealed).unwrap().as_slice(), b"x");
    assert!(fs::read_to_string(&path).unwrap().starts_with(file::HEADING), "its heading stays on top");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    // What is not a file of keys is left as it is.
    write(&path, "nonsense", 0o600);
    assert!(matches!(rotate(&origin), Err(KeysError::Line { line: 1, .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "nonsense");
    // A file without a newline at its end.
    write(&path, A, 0o600);
    rotate(&origin).unwrap();
    assert_eq!(origin.load().unwrap().ids().count(), 2);
    write(&path, &format!("# heading\n{A}"), 0o600);
    rotate(&origin).unwrap();
    assert_eq!(origin.load().unwrap().ids().count(), 2);
    let credential = Origin::Credential(path);
    assert!(rotate(&credential).unwrap_err().to_string().contains("openssl rand -base64 32"));
}

#[test]
fn a_rotation_puts_the_key_below_a_heading_of_any_line_ends() {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("sealing.key");
    let origin = Origin::Own(path.clone());
    let headings = [
        "# Schlüssel\r\n",
        "# a\r\n# b\r\n\r\n# üüü\r\n",
        "\r\n\r\n# €\r\n",
        "# €\r\n# €\r\n# €\r\n",
        "# €\n",
    ];
    for heading in headings {
        for end in ["\r\n", "\n", ""] {
            write(&path, &format!("{heading}{A}{end}"), 0o600);
            let old = origin.load().unwrap().first();
            let id = rotate(&origin).unwrap().id;
            let ids: Vec<_> = origin.load().unwrap().ids().collect();
            assert_eq!(ids, [id, old], "{heading:?} {end:?}");
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.starts_with(heading) && text.ends_with(&format!("{A}{end}")), "{text:?}");
        }
    }
}

#[test]
fn two_rotations_at_once_do_not_lose_a_key() {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("sealing.key");
    make(&path, None).unwrap();
    let held = fs::File::open(&path).unwrap();
    held.lock().unwrap();
    assert!(matches!(rotate(&Origin::Own(path.clone())), Err(KeysError::Busy(_))));
    drop(held);
    assert!(rotate(&Origin::Own(path)).is_ok());
}

#[test]
fn a_code_opens_what_it_sealed_and_nothing_else() {
    let sealed = SealingKeys::of_code("ABCD").seal(PLACE, b"secret").unwrap();
    assert_eq!(&**SealingKeys::of_code("ABCD").open(PLACE, &sealed).unwrap(), b"secret");
    for wrong in ["ABCE", "abcd", ""] {
        assert!(matches!(SealingKeys::of_code(wrong).open(PLACE, &sealed), Err(SealError::NoKey { .. })));
    }
}
