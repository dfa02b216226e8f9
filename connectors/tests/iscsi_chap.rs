//! Hashes of CHAP against fixed values, and binary values in both forms.
#![allow(clippy::unwrap_used, reason = "tests")]

use mooring_connectors::iscsi::{Algorithm, decode_binary, encode_binary};
use mooring_model::Secret;

#[test]
fn responses_are_the_hashes_of_identifier_secret_and_challenge() {
    let challenge: Vec<u8> = (0..16).collect();
    // Computed with another implementation (Python's hashlib) from the bytes 1f, "correct-horse-1",
    // 00 … 0f; and 00, "s", ff.
    for (algorithm, number, want, short) in [
        (Algorithm::Md5, 5, "4ee2b9b8e15363bb2c6542f41fedfeee", "80bc95b282237b8bbd1c2d7f4b883086"),
        (
            Algorithm::Sha1,
            6,
            "68a24ddfb4ea3871cc494427d7357b40c2706331",
            "25af68f6f10c9f2f8ef4f6b46accb47094b1d960",
        ),
        (
            Algorithm::Sha256,
            7,
            "3c53d0d19757a226441c060a49f1d780ae114aa9dfc1b9b0fe1eccc304d3c5ad",
            "9aa68b439f0786a27f5b7d3e95a3c1342b88388dce5392dc2f7d5158f1d4f59a",
        ),
    ] {
        let response = algorithm.response(0x1f, &Secret::new("correct-horse-1"), &challenge);
        assert_eq!(encode_binary(&response), format!("0x{want}"));
        let response = algorithm.response(0, &Secret::new("s"), &[0xff]);
        assert_eq!(encode_binary(&response), format!("0x{short}"));
        assert_eq!((algorithm.number(), algorithm.digest_bytes()), (number, want.len() / 2));
    }
}

#[test]
fn the_strongest_is_offered_first() {
    let numbers: Vec<u32> = Algorithm::PREFERENCE.iter().map(|algorithm| algorithm.number()).collect();
    assert_eq!(numbers, [7, 6, 5]);
}

#[test]
fn binary_values_have_two_forms() {
    for text in ["0x00ff10", "0X00FF10", "0x00fF10", "0bAP8Q", "0BAP8Q"] {
        assert_eq!(decode_binary(text, 3), Ok(vec![0x00, 0xff, 0x10]), "{text}");
    }
    assert_eq!(decode_binary("0bAA==", 1), Ok(vec![0]));
    assert_eq!(decode_binary(&format!("0x{}", "ab".repeat(1024)), 1024), Ok(vec![0xab; 1024]));
    for (text, why) in [
        ("", "want 0x… or 0b…"),
        ("0", "want 0x… or 0b…"),
        ("00ff10", "want 0x… or 0b…"),
        ("é", "want 0x… or 0b…"),
        ("0x", "it is empty"),
        ("0b", "it is empty"),
        ("0x0", "bad hexadecimal digits"),
        ("0x0g", "bad hexadecimal digits"),
        ("0x 0", "bad hexadecimal digits"),
        ("0x00ff1000", "it is too long"),
        ("0bAP8QAA==", "it is too long"),
        ("0bAP8", "bad base64"),
        ("0bAP8=\n", "bad base64"),
        ("0bAP9=", "bad base64"),
        ("0bAP-Q", "bad base64"),
    ] {
        assert_eq!(decode_binary(text, 3), Err(why), "{text}");
    }
}
