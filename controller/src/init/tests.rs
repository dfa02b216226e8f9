//! Laws of init: the controller uses what is made, existing files stay, and a killed init can be
//! repeated.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::auth::Tokens;
use crate::config::Callers;

const FILES: [&str; 8] = [
    "authority.key",
    "authority.crt",
    "controller/server.key",
    "controller/server.crt",
    "controller/client.key",
    "controller/client.crt",
    "tokens.toml",
    "controller.toml",
];

fn names() -> Vec<String> {
    vec!["controller1.example.org".to_owned(), "192.0.2.5".to_owned()]
}

fn run(folder: &Path) -> Result<String, InitError> {
    let mut out = Vec::new();
    init(folder, &names(), SystemTime::now(), &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

fn all(folder: &Path) -> BTreeMap<String, String> {
    let read = |name: &&str| ((*name).to_owned(), fs::read_to_string(folder.join(name)).unwrap());
    FILES.iter().map(read).collect()
}

fn assert_tls_is_flawless(config: &Config) {
    let (warnings, unusable) = config.look_at_tls();
    assert!(warnings.is_empty() && unusable.is_empty(), "{warnings:?}, {unusable:?}");
}

#[test]
fn a_controller_starts_with_what_init_makes() {
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("etc");
    let said = run(&folder).unwrap();
    let config = Config::load(&folder.join("controller.toml"), Asked::Everybody).unwrap();
    assert_tls_is_flawless(&config);
    assert!(config.listen.iter().all(|address| !address.ip().is_loopback() && address.port() == 8776));
    assert_eq!(config.public_url.as_deref(), Some("https://controller1.example.org:8776"));
    assert!(config.agents.is_empty() && config.tls.is_some());
    let Callers::Tokens(tokens) = &config.callers else { panic!("{:?}", config.callers) };
    Tokens::load(tokens).unwrap();
    let enrolment = config.enrolment.unwrap();
    let authority = Authority::load(&enrolment.authority, &enrolment.authority_key).unwrap();
    assert!(said.contains(authority.pin()), "{said}");
    let token = said.lines().find_map(|line| line.strip_prefix("the admin's token, shown this once: "));
    assert!(token.is_some_and(|token| token.starts_with("mooring_")), "{said}");
    assert!(said.contains("mooring host list") && said.contains("MOORING_CA="), "{said}");
    for name in FILES {
        let mode = fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
        let want = match name.rsplit_once('.') {
            Some((_, "key")) => 0o600,
            Some((_, "crt")) => 0o644,
            _ => 0o640,
        };
        assert_eq!(mode, want, "{name}");
    }
    // Every option of the example is still there.
    let text = fs::read_to_string(folder.join("controller.toml")).unwrap();
    for key in ["# [database]", "# [keystone]", "# [[agents]]", "[scheduler]", "# cluster = "] {
        assert!(text.contains(key), "{key}");
    }
}

#[test]
fn a_second_init_changes_nothing_and_says_so() {
    let top = tempfile::tempdir().unwrap();
    run(top.path()).unwrap();
    let before = all(top.path());
    let said = run(top.path()).unwrap();
    assert_eq!(all(top.path()), before);
    assert!(!said.contains("made ") && !said.contains("shown this once"), "{said}");
    for name in FILES {
        assert!(said.contains(&format!("not changed: {}", top.path().join(name).display())), "{said}");
    }
}

#[test]
fn an_init_that_was_killed_after_any_file_is_run_again() {
    for done in 0..FILES.len() {
        let top = tempfile::tempdir().unwrap();
        run(top.path()).unwrap();
        let before = all(top.path());
        for name in &FILES[done..] {
            fs::remove_file(top.path().join(name)).unwrap();
        }
        let said = run(top.path()).unwrap();
        let after = all(top.path());
        for name in &FILES[..done] {
            assert_eq!(before[*name], after[*name], "{done}: {name} was there");
        }
        assert_eq!(said.contains("shown this once"), done <= 6, "{done}: {said}");
        let config = Config::load(&top.path().join("controller.toml"), Asked::Everybody).unwrap();
        assert_tls_is_flawless(&config);
    }
}

#[test]
fn files_of_an_operator_are_named_and_never_changed() {
    let top = tempfile::tempdir().unwrap();
    let own = "tokens = \"/etc/mooring/tokens.toml\"\n";
    fs::write(top.path().join("controller.toml"), own).unwrap();
    let said = run(top.path()).unwrap();
    assert!(said.contains("agents can join once") && said.contains("[enrolment]\nauthority = "), "{said}");
    assert_eq!(fs::read_to_string(top.path().join("controller.toml")).unwrap(), own);

    for (file, text, word) in [
        ("authority.crt", "no certificate", "its key"),
        ("controller/server.crt", "no certificate", "its key"),
        ("authority.key", "no key", "private key"),
        ("controller.toml", "nosuch = 1", "nosuch"),
    ] {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("controller")).unwrap();
        fs::write(top.path().join(file), text).unwrap();
        let error = run(top.path()).unwrap_err().to_string();
        assert!(error.contains(word), "{file}: {error}");
        assert_eq!(fs::read_to_string(top.path().join(file)).unwrap(), text);
    }
}

#[test]
fn wrong_names_and_folders_are_refused() {
    let top = tempfile::tempdir().unwrap();
    let mut out = Vec::new();
    let wrong = init(top.path(), &["no name".to_owned()], SystemTime::now(), &mut out).unwrap_err();
    assert!(wrong.to_string().contains("no name"), "{wrong}");
    let wrong = init(Path::new("here"), &names(), SystemTime::now(), &mut out).unwrap_err();
    assert!(wrong.to_string().contains("absolute"), "{wrong}");
    let file = top.path().join("file");
    fs::write(&file, "").unwrap();
    let wrong = init(&file.join("etc"), &names(), SystemTime::now(), &mut out).unwrap_err();
    assert!(wrong.to_string().contains("cannot make"), "{wrong}");
}
