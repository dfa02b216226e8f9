//! Copyright files of the real workspace, and notices that are made up.

#![allow(clippy::unwrap_used, reason = "a test may")]

use super::*;
use crate::packages::MADE_OF;

#[test]
fn every_crate_of_every_package_is_named_with_its_licence() {
    let metadata = metadata().unwrap();
    for (name, ours) in MADE_OF {
        let (file, crates) = (text(&metadata, ours).unwrap(), compiled_in(&metadata, ours).unwrap());
        assert!(crates.len() > 100, "{name}: {}", crates.len());
        for package in crates {
            let head = format!("\nFiles: crates/{}-{}/*\nCopyright: ", package.name, package.version);
            assert!(file.contains(&head), "{name}: {}", package.name);
        }
        for words in
            ["crates/ring-", "crates/tokio-", "License: Apache-2.0 and ISC\n", "Permission is hereby granted"]
        {
            assert!(file.contains(words), "{name}: {words}");
        }
        // Debian counts a repetition as a mistake.
        assert!(!file.contains("END OF TERMS AND CONDITIONS"), "{name}");
        let texts: Vec<_> = file.lines().filter_map(|line| line.strip_prefix("License: text-")).collect();
        assert!((10..120).contains(&texts.len()), "{name}: {} texts", texts.len());
    }
}

#[test]
fn nothing_of_tests_and_builds_is_in_the_list() {
    let metadata = metadata().unwrap();
    let names: Vec<_> = compiled_in(&metadata, &["mooring-cli"])
        .unwrap()
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    for absent in ["insta", "cc", "rusqlite", "mooring-api"] {
        assert!(!names.contains(&absent), "{absent}");
    }
    assert!(
        compiled_in(&metadata, &["mooring-nothing"]).unwrap_err().to_string().contains("mooring-nothing")
    );
}

#[test]
fn one_text_serves_crates_that_differ_in_their_holders() {
    let terms = "\nPermission is hereby granted,\nfree of charge";
    let first = read(&format!("MIT License\n\nCopyright (c) 2019 Tokio Contributors\n{terms}\n\n"));
    let second = read(&format!("MIT License\nCopyright © Jane\nCopyright: 2020 B\n{terms} "));
    assert_eq!(
        (first.holders, second.holders),
        (vec!["2019 Tokio Contributors".to_owned()], vec!["Jane".to_owned(), "2020 B".to_owned()])
    );
    let mut texts = Texts::default();
    assert_eq!(texts.name(&first.text), "text-1");
    assert_eq!(texts.name(&second.text), "text-1");
    assert_eq!(texts.name(&["another".to_owned()]), "text-2");
}

#[test]
fn sentences_about_copyright_stay_in_the_text() {
    for line in [
        "Copyright notice and this permission",
        "copyright owner or entity",
        "Copyright",
        "The Copyright (c) X",
        "Copyright [yyyy] [name]",
    ] {
        assert_eq!(holder(line), None, "{line}");
    }
    assert_eq!(holder(" * Copyright (C) 2002-present Jason Evans"), Some("2002-present Jason Evans"));
}

#[test]
fn what_stands_beside_apache_is_kept() {
    let apache = "Apache License\nVersion 2.0\nTERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION\n1. Definitions\n\
        END OF TERMS AND CONDITIONS\nAPPENDIX: How to apply\nCopyright [yyyy]\nlimitations under the License.";
    assert_eq!(read(apache), Notice::default());
    let beside = read(&format!("Before\n{apache}\n\nLLVM Exceptions\nCopyright 2003 LLVM"));
    assert_eq!(beside.text, ["Before", "", "LLVM Exceptions"]);
    assert_eq!(beside.holders, ["2003 LLVM"]);
    let without_end = "x\nTERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION\ny";
    assert_eq!(read(without_end).text.len(), 3);
}
