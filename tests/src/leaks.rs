//! A search for secrets in every form in which they may be written: in clear, in hexadecimal, in
//! base64, or as a part of an address. Both the test of a whole fleet in one process and the
//! scenario on machines use it.
//!
//! What must never happen here: a form that the text of another secret has, too.

use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD, HEXLOWER, HEXUPPER};

/// All forms in which these bytes may be written. Base64 has three, by their offset.
pub(crate) fn forms(secret: &[u8]) -> Vec<String> {
    let clear = std::str::from_utf8(secret).ok().filter(|text| !text.contains(char::is_control));
    let mut forms: Vec<_> = clear.map(str::to_owned).into_iter().collect();
    if let Some(text) = clear {
        forms.extend([HEXUPPER, HEXLOWER].map(|hex| in_address(text, &hex)));
    }
    forms.extend([HEXLOWER, HEXUPPER].map(|hex| hex.encode(secret)));
    for base64 in [BASE64_NOPAD, BASE64URL_NOPAD] {
        for before in 0..3 {
            let text = base64.encode(&[&vec![0; before], secret].concat());
            // Leave out digits that also encode a byte before or after.
            let (from, to) = ((before * 8).div_ceil(6), (before + secret.len()) * 8 / 6);
            forms.push(text[from..to].to_owned());
        }
    }
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// The text in a query of an address: everything except RFC 3986's unreserved characters is
/// percent-encoded.
fn in_address(text: &str, hex: &data_encoding::Encoding) -> String {
    let digit = |byte: u8| match byte {
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{}", hex.encode(&[byte])),
    };
    text.bytes().map(digit).collect()
}

/// Finds secrets in places with their texts. Returns which secret is where, and in which form.
pub(crate) fn found<'s>(
    secrets: impl IntoIterator<Item = (&'s str, &'s [u8])>,
    searched: &[(String, String)],
) -> Vec<String> {
    let mut found = Vec::new();
    for (name, secret) in secrets {
        for form in forms(secret) {
            let places = searched.iter().filter(|(_, text)| text.contains(&form));
            found.extend(places.map(|(place, _)| format!("{name} as {form:?} in {place}")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_finds_a_secret_in_each_form() {
        let (secret, other) = ("s3cret/of?ours", "s3cret/of?yours");
        for before in ["", "a", "ab", "abc"] {
            let text = format!("{before}{secret}b");
            for written in [
                text.clone(),
                HEXLOWER.encode(text.as_bytes()),
                HEXUPPER.encode(text.as_bytes()),
                BASE64_NOPAD.encode(text.as_bytes()),
                BASE64URL_NOPAD.encode(text.as_bytes()),
                format!("https://x/?y={before}s3cret%2Fof%3Foursb"),
                format!("https://x/?y={before}s3cret%2fof%3foursb"),
            ] {
                let searched = [("there".to_owned(), written.clone()), ("not".to_owned(), String::new())];
                let seen = found([("it", secret.as_bytes()), ("another", other.as_bytes())], &searched);
                assert!(!seen.is_empty(), "{written}");
                assert!(
                    seen.iter().all(|one| one.starts_with("it as ") && one.ends_with(" in there")),
                    "{seen:?}"
                );
            }
        }
    }

    #[test]
    fn bytes_that_are_no_text_have_no_clear_form() {
        let key = [0xff, 0, 7, 0x80, 9, 10, 200, 3];
        let all = forms(&key);
        assert_eq!(
            all.len(),
            7,
            "two of hexadecimal digits, three of base64, two of these in both alphabets: {all:?}"
        );
        assert!(all.contains(&"ff000780090ac803".to_owned()));
    }
}
