//! Tests of the token file, and of how often a hash is computed.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn block(name: &str) -> String {
    NewToken::make(name, "b", None, &["admin"]).unwrap().block
}

#[test]
fn a_file_that_others_could_use_is_refused() {
    let text = block("a");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    std::fs::write(&path, text).unwrap();
    let loaded = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Tokens::load(&path)
    };
    for mode in [0o644, 0o604, 0o660, 0o620, 0o602] {
        let error = loaded(mode).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("chmod"), "{error}");
    }
    for mode in [0o600, 0o640, 0o400, 0o440] {
        assert!(loaded(mode).is_ok(), "{mode:o}");
    }
}

#[test]
fn mistakes_are_named_with_their_line() {
    let one = block("a");
    let other = block("a");
    let lines: Vec<_> = one.lines().collect();
    let without = |key: &str| {
        let kept: Vec<_> = lines.iter().copied().filter(|line| !line.starts_with(key)).collect();
        kept.join("\n")
    };
    let old = "[[tokens]]\nname = \"a\"\nproject = \"b\"\nadmin = true\nsha256 = \"00\"\n";
    for (text, line, word) in [
        (String::new(), None, "no token"),
        (format!("{one}\n{one}"), Some(8), "id: this token is listed twice"),
        (format!("{one}\n{other}"), Some(8), "name: this name"),
        (one.replace("roles", "rolls"), Some(5), "rolls"),
        (one.replace("\"b\"", "\"b/../c\""), Some(4), "project"),
        (one.replace("id = \"", "id = \"0"), Some(3), "16"),
        (one.replace("\"a\"", "\" \""), Some(2), "name"),
        (one.replace("\"admin\"", "\"a b\""), Some(5), "roles"),
        (one.replace("argon2id", "argon2i"), Some(6), "argon2id"),
        (one.replace("m=19456", "m=9999999"), Some(6), "costs more"),
        (one.replace("t=2", "t=99"), Some(6), "costs more"),
        (one.replace("$v=19", "$w=19"), Some(6), "argon2"),
        (without("id"), Some(1), "id is missing"),
        (without("argon2"), Some(1), "argon2 is missing"),
        (old.to_owned(), Some(5), "make a new one with `mooring-controller token`"),
    ] {
        let error = Tokens::parse(&text, "tokens").unwrap_err().to_string();
        assert!(error.contains(word), "{text}: {error}");
        if let Some(line) = line {
            assert!(error.contains(&format!("line {line}:")), "{text}: {error}");
        }
    }
}

#[test]
fn roles_of_the_file() {
    let one = block("a");
    let roles = |line: &str| {
        let text = one.replace("roles = [\"admin\"]", line);
        Tokens::parse(&text, "tokens").unwrap().list.remove(0).roles
    };
    assert_eq!(roles(""), ["member", "reader"]);
    assert_eq!(roles("admin = true"), ["admin", "member", "reader"]);
    assert_eq!(roles("roles = [\"Reader\"]"), ["reader"]);
    assert_eq!(roles("roles = [\"service\"]\nadmin = true"), ["admin", "member", "reader", "service"]);
    assert!(roles("roles = []").is_empty());
    assert!(NewToken::make("a", "b", None, &["a\"b"]).is_err());
}

/// The remembered result for a token: `Some(true)` if it was right, `Some(false)` if it was wrong.
fn remembered(tokens: &Tokens, token: &str) -> Option<bool> {
    tokens.remembered(&tokens.printer.print(0, token.as_bytes()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hash_is_worked_out_once() {
    let new = NewToken::make("a", "b", None, &["member"]).unwrap();
    let tokens = Tokens::parse(&new.block, "tokens").unwrap();
    assert_eq!(remembered(&tokens, &new.token), None);
    assert!(tokens.find(new.token.as_bytes()).await.is_ok());
    assert_eq!(remembered(&tokens, &new.token), Some(true));
    // From here on no turn is needed.
    tokens.turns.close();
    for _ in 0..100 {
        assert!(tokens.find(new.token.as_bytes()).await.is_ok());
    }
    let wrong =
        format!("{}{}", &new.token[..new.token.len() - 1], if new.token.ends_with('0') { '1' } else { '0' });
    assert_eq!(
        tokens.find(wrong.as_bytes()).await.err(),
        Some(AuthRefusal::Busy),
        "this one would need a turn"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_order_no_work() {
    let new = NewToken::make("a", "b", None, &["member"]).unwrap();
    let tokens = Tokens::parse(&new.block, "tokens").unwrap();
    let flip = |text: &str| if text.ends_with('0') { "1" } else { "0" };
    let wrong = format!("{}{}", &new.token[..new.token.len() - 1], flip(&new.token));
    assert_eq!(tokens.find(wrong.as_bytes()).await.err(), Some(AuthRefusal::UnknownToken));
    assert_eq!(remembered(&tokens, &wrong), Some(false));
    tokens.turns.close();
    // A token known to be wrong, one without an entry, and one without the form: none takes a turn.
    let (id, secret) = new.token[PREFIX.len()..].split_once('_').unwrap();
    let strange = format!("{PREFIX}{}_{secret}", "0".repeat(16));
    let long = format!("{}0", new.token);
    let upper = format!("{PREFIX}{}_{}", id.to_uppercase(), &secret[1..]);
    for token in [wrong.as_str(), &strange, &long, &upper, "", "mooring_", "mooring__", "\u{e9}"] {
        assert_eq!(tokens.find(token.as_bytes()).await.err(), Some(AuthRefusal::UnknownToken), "{token}");
    }
    assert_eq!(tokens.find(&[0xff, 0xfe]).await.err(), Some(AuthRefusal::UnknownToken));
}

#[tokio::test(flavor = "multi_thread")]
async fn few_may_wait_and_fewer_work() {
    let made = ["a", "c", "d"].map(|name| NewToken::make(name, "b", None, &["member"]).unwrap());
    let file: Vec<_> = made.iter().map(|new| new.block.as_str()).collect();
    let tokens = Arc::new(Tokens::parse(&file.join("\n"), "tokens").unwrap());
    // No request gets a turn: the first ones wait, one more is told to try again.
    let held = tokens.turns.clone().acquire_many_owned(u32::try_from(TURNS).unwrap()).await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for (new, left) in made.iter().zip([PLACES - PLACES_PER_TOKEN, 0]) {
        for _ in 0..PLACES_PER_TOKEN {
            let (tokens, token) = (Arc::clone(&tokens), new.token.clone());
            waiting.spawn(async move { tokens.find(token.as_bytes()).await.map(|_| ()) });
        }
        while tokens.places.available_permits() > left {
            tokio::task::yield_now().await;
        }
        // One token has its share and no more; the others have theirs.
        assert_eq!(tokens.find(new.token.as_bytes()).await.err(), Some(AuthRefusal::Busy));
    }
    assert_eq!(tokens.find(made[2].token.as_bytes()).await.err(), Some(AuthRefusal::Busy), "all are taken");
    drop(held);
    for done in waiting.join_all().await {
        assert_eq!(done, Ok(()));
    }
    assert_eq!((tokens.turns.available_permits(), tokens.places.available_permits()), (TURNS, PLACES));
}
