//! `mooring demo`, against a controller in memory.
#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller::{Rig, State};

/// Requests that make or remove something.
fn changes(state: &State) -> Vec<String> {
    let changing = |request: &&String| !request.starts_with("GET");
    state.requests.iter().filter(changing).cloned().collect()
}

/// A controller with two hosts that attach.
fn rig() -> Rig {
    let rig = Rig::new();
    rig.fake.change(|state| state.knobs.all_up = true);
    rig
}

fn is_clean(state: &State) -> bool {
    state.volumes.is_empty() && state.types.is_empty() && state.attachments.is_empty()
}

#[test]
fn demo_shows_each_command_and_leaves_nothing() {
    let rig = rig();
    let shown = rig.run(&["demo", "--writer", "host1", "--reader", "host2"]);
    assert_eq!(shown.code, 0, "{}{}", shown.out, shown.err);
    let commands: Vec<_> = shown.out.lines().filter_map(|line| line.strip_prefix("  $ mooring ")).collect();
    let verbs: Vec<_> = commands.iter().map(|line| line.split(" mooring-demo").next().unwrap()).collect();
    assert_eq!(verbs[..4], ["type create", "volume create", "attach", "attach"], "{commands:?}");
    assert!(commands[3].contains("--host host2 --mode ro"), "{commands:?}");
    assert!(
        commands.iter().any(|line| line.starts_with("detach ") && line.ends_with(" --force")),
        "{commands:?}"
    );
    assert!(shown.out.contains("run the tour on host1 to see what it reads and writes"), "{}", shown.out);
    assert!(shown.out.contains("is gone again"), "{}", shown.out);
    assert!(is_clean(&rig.fake.state()));
}

#[test]
fn demo_takes_back_what_it_made_when_a_step_fails() {
    let rig = rig();
    rig.fake.change(|state| {
        state.knobs.stop_after = Some(1);
        state.knobs.attach_fault = Some("the portal is not there".to_owned());
    });
    let shown = rig.run(&["demo", "--writer", "host1", "--reader", "host2"]);
    assert_eq!(shown.code, 1, "{}{}", shown.out, shown.err);
    assert!(shown.err.contains("the portal is not there"), "{}", shown.err);
    assert!(is_clean(&rig.fake.state()), "{:?}", changes(&rig.fake.state()));
}

#[test]
fn demo_ends_at_a_volume_that_takes_longer_than_its_timeout() {
    let rig = rig();
    rig.fake.change(|state| state.knobs.looks = 10_000);
    let shown = rig.run(&["demo", "--writer", "host1", "--reader", "host2", "--timeout", "4"]);
    assert_eq!(shown.code, 1, "{}{}", shown.out, shown.err);
    assert!(shown.err.contains("the volume takes longer than --timeout"), "{}", shown.err);
    assert!(rig.fake.state().attachments.is_empty());
}

#[test]
fn demo_keeps_what_it_made_and_says_how_it_goes() {
    let rig = rig();
    let shown = rig.run(&["demo", "--writer", "host1", "--reader", "host2", "--keep"]);
    assert_eq!(shown.code, 0, "{}{}", shown.out, shown.err);
    let state = rig.fake.state();
    assert_eq!((state.volumes.len(), state.types.len(), state.attachments.len()), (1, 1, 2));
    for words in
        ["mooring detach ", "mooring volume delete mooring-demo-", "mooring type delete mooring-demo-"]
    {
        assert!(shown.out.contains(words), "{words}: {}", shown.out);
    }
}

#[test]
fn demo_refuses_hosts_that_are_down_or_the_same() {
    let rig = Rig::new();
    for (words, said) in [
        (["--writer", "host2", "--reader", "host1"], "host2 is no host that attaches volumes and is up"),
        (["--writer", "host1", "--reader", "host1"], "must be two hosts"),
    ] {
        let shown = rig.run(&[&["demo"], &words[..]].concat());
        assert_eq!(shown.code, 4, "{}", shown.err);
        assert!(shown.err.contains(said), "{}", shown.err);
    }
    assert_eq!(rig.run(&["--json", "demo"]).code, 2);
    assert_eq!(changes(&rig.fake.state()), Vec::<String>::new());
}

/// Forced detaches that the tour has shown.
fn forced(out: &str) -> usize {
    out.lines().filter(|line| line.starts_with("  $ mooring detach ") && line.ends_with(" --force")).count()
}

#[test]
fn demo_asks_again_until_the_receipt_is_proven() {
    let rig = rig();
    rig.fake.change(|state| state.knobs.unproven_first = 2);
    let shown = rig.run(&["demo", "--writer", "host1", "--reader", "host2"]);
    assert_eq!((shown.code, forced(&shown.out)), (0, 3), "{}{}", shown.out, shown.err);
    assert!(shown.out.contains("host1 comes back"), "{}", shown.out);
    assert!(is_clean(&rig.fake.state()));
}

#[test]
fn demo_ends_where_nothing_proves_the_cut() {
    let rig = rig();
    rig.fake.change(|state| state.knobs.unproven = Some(8));
    let shown = rig.run(&["demo", "--writer", "host1", "--reader", "host2", "--keep", "--timeout", "4"]);
    assert_eq!(shown.code, 5, "{}{}", shown.out, shown.err);
    assert!(forced(&shown.out) > 1 && shown.out.contains("The tour ends here"), "{}", shown.out);
    assert!(!shown.out.contains("host1 comes back"), "{}", shown.out);
}

#[test]
fn demo_names_what_is_left_where_nothing_proves_the_cut() {
    let rig = rig();
    rig.fake.change(|state| state.knobs.unproven = Some(8));
    let shown = rig.run(&["demo", "--writer", "host1", "--reader", "host2", "--timeout", "4"]);
    assert_eq!(shown.code, 5, "{}{}", shown.out, shown.err);
    let cut = shown.out.lines().find_map(|line| line.strip_prefix("  $ mooring detach ")).unwrap();
    let cut = format!("Take it away with: mooring detach {}; ", cut.strip_suffix(" --force").unwrap());
    for words in [&*cut, "; mooring volume delete mooring-demo-"] {
        assert!(shown.out.contains(words), "{words}: {}", shown.out);
    }
    assert!(!shown.out.contains("is gone again"), "{}", shown.out);
}
