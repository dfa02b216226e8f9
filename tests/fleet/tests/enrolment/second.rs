//! A second controller is made from a sealed file. Either machine is lost, and the other one
//! continues; the authority is rotated at both.

use std::fs;
use std::time::{Duration, SystemTime};

use mooring_controller::authority::CERTIFICATE_LIFE;
use mooring_fleet::own_loopback;

use crate::pg;
use crate::program::{Machine, mode, run};
use crate::site::{Node, Site, read, until};

fn share(first: &Machine, name: &str) -> (std::path::PathBuf, String) {
    let file = first.path(name);
    let (done, said) = run(&["share", file.to_str().unwrap(), "--config", first.config().to_str().unwrap()]);
    assert!(done, "{said}");
    let code = said.lines().map(str::trim).find(|line| line.len() == 39 && line.matches('-').count() == 7);
    (file, code.unwrap_or_else(|| panic!("no code: {said}")).to_owned())
}

fn join(machine: &Machine, file: &std::path::Path, code: &str) -> (bool, String) {
    let folder = machine.etc();
    let folder = folder.to_str().unwrap();
    run(&[
        "init",
        "--join",
        file.to_str().unwrap(),
        "--code",
        code,
        "--folder",
        folder,
        "--name",
        &own_loopback().to_string(),
    ])
}

#[track_caller]
fn refused(machine: &Machine, file: &std::path::Path, code: &str, word: &str) {
    let (done, said) = join(machine, file, code);
    assert!(!done && said.contains(word), "not refused for {word:?}: {said}");
    let left: Vec<_> = fs::read_dir(machine.etc()).map(|found| found.flatten().collect()).unwrap_or_default();
    let left: Vec<_> = left.iter().map(fs::DirEntry::file_name).filter(|name| name != "controller").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Has the controllers take it that the certificates of all hosts end after this time.
fn age(server: &pg::Server, database: &str, left: Duration) {
    let end = SystemTime::now() + left;
    let us = end.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    server.psql(database, &format!("UPDATE enrolments SET expires_us = {us}"));
}

#[track_caller]
fn is_renewed(server: &pg::Server, by: &Machine, node: &Node, name: &str) {
    let before = read(&node.identity());
    age(server, "controllers", Duration::from_hours(24));
    until("the certificate is renewed", || (read(&node.identity()) != before).then_some(()));
    by.until_up(name);
}

#[test]
fn either_of_two_controllers_is_lost_and_the_other_goes_on() {
    let server = pg::Server::new();
    let url = server.database("controllers");
    let mut first = Machine::first(Some(&url));
    first.start();
    let (file, code) = share(&first, "second.share");
    assert_eq!(mode(&file), 0o600);
    let mut second = Machine::empty(&first.token);
    refused(&second, &file, "AAAA-AAAA-AAAA-AAAA-AAAA-AAAA-AAAA-AAAA", "the code is not that of");
    let (done, said) = join(&second, &file, &code);
    assert!(done && said.contains("pin of the authority: sha256:"), "{said}");
    for name in ["authority.key", "sealing.key", "controller/server.key", "controller/client.key"] {
        assert_eq!(mode(&second.etc().join(name)), 0o600, "{name}");
    }
    assert_eq!(second.file("authority.key"), first.file("authority.key"));
    assert_ne!(second.file("controller/server.key"), first.file("controller/server.key"));
    refused(&Machine::empty(""), &file, &code, "was used already");
    let (done, said) = join(&second, &file, &code);
    assert!(!done && said.contains("controller.toml is there"), "{said}");
    // Killed before its configuration was written, it is run again with the same file.
    fs::remove_file(second.config()).unwrap();
    let (done, said) = join(&second, &file, &code);
    assert!(done && said.contains("not changed"), "{said}");
    second.place();
    second.start();

    let one = first.joined("node1");
    let _agent = one.start();
    for controller in [&first, &second] {
        controller.until_up("node1");
    }
    first.kill();
    second.until_up("node1");
    second.volume();
    is_renewed(&server, &second, &one, "node1");
    let two = second.joined("node2");
    let _other = two.start();
    second.until_up("node2");
    // Now the other way round.
    first.start();
    first.until_up("node2");
    second.kill();
    for name in ["node1", "node2"] {
        first.until_up(name);
    }
    first.volume();
    is_renewed(&server, &first, &two, "node2");
    let three = first.joined("node3");
    let _third = three.start();
    first.until_up("node3");
}

/// The clock of the second controller is ahead, so that the certificate is due for it alone.
#[test]
fn a_certificate_is_renewed_by_the_controller_that_drives_its_agent() {
    let server = pg::Server::new();
    let url = server.database("renewal");
    let first = Site::with(None, Some(&url));
    let node = first.node("node1");
    node.join(&first.token("node1").unwrap()).unwrap();
    let _agent = node.start();
    first.until_up("node1");
    let second = Site::with(Some(&first), Some(&url));
    second.until_up("node1");
    let before = read(&node.identity());
    age(&server, "renewal", CERTIFICATE_LIFE / 3 + Duration::from_mins(15));
    second.put_forward(Duration::from_mins(30));
    let renew = || second.runtime.block_on(second.service.renew_certificates()).unwrap();
    renew();
    assert!(read(&node.identity()) == before, "the first one drives the agent");
    // The control: the first one stops, and the second one takes the agent over.
    first.runtime.block_on(first.service.stop());
    until("the certificate is renewed", || {
        renew();
        (read(&node.identity()) != before).then_some(())
    });
    second.until_up("node1");
}

#[test]
fn the_authority_is_rotated_at_two_controllers() {
    let server = pg::Server::new();
    let url = server.database("controllers");
    let mut first = Machine::first(Some(&url));
    first.start();
    let (file, code) = share(&first, "second.share");
    let mut second = Machine::empty(&first.token);
    let (done, said) = join(&second, &file, &code);
    assert!(done, "{said}");
    second.place();
    second.start();
    let node = first.joined("node1");
    let _agent = node.start();
    first.until_up("node1");
    first.rotates("begin");
    let kept = server.psql("controllers", "SELECT value FROM meta WHERE key = 'next_authority_key'");
    assert!(kept.starts_with("sealed "), "{kept}");
    until("the other controller is waited for", || {
        let (done, said) = first.rotate("switch");
        assert!(!done, "{said}");
        said.contains("run `mooring-controller rotate-authority begin` there, too").then_some(())
    });
    let (done, said) =
        run(&["share", first.path("third").to_str().unwrap(), "--config", first.config().to_str().unwrap()]);
    assert!(!done && said.contains("is being rotated"), "{said}");
    second.rotates("begin");
    assert_eq!(first.file("authority.crt"), second.file("authority.crt"), "both have the same new one");
    first.until_rotates("switch");
    until("the other one has to switch", || {
        let (done, said) = first.rotate("finish");
        assert!(!done, "{said}");
        said.contains("rotate-authority switch` there, too").then_some(())
    });
    for controller in [&first, &second] {
        controller.until_up("node1");
    }
    second.until_rotates("switch");
    first.until_rotates("finish");
    second.until_rotates("finish");
    let left = server.psql("controllers", "SELECT COUNT(*) FROM meta WHERE key LIKE 'next_authority%'");
    assert_eq!(left, "0");
    assert_eq!(first.file("authority.crt"), second.file("authority.crt"));
    for lost in [&mut first, &mut second] {
        lost.until_up("node1");
        let other = lost.joined("node2");
        let agent = other.start();
        lost.until_up("node2");
        lost.expect("POST", "/mooring/v1/hosts/node2/revoke", Some(serde_json::json!({})));
        drop(agent);
        lost.kill();
    }
}

/// A controller that is off counts by its last word, until somebody gives it up.
#[test]
fn a_rotation_waits_for_a_controller_that_is_off() {
    let server = pg::Server::new();
    let url = server.database("controllers");
    let mut first = Machine::first(Some(&url));
    first.start();
    let (file, code) = share(&first, "second.share");
    let mut second = Machine::empty(&first.token);
    let (done, said) = join(&second, &file, &code);
    assert!(done, "{said}");
    second.place();
    second.start();
    first.rotates("begin");
    let waits = |word: &str| {
        until(word, || {
            let (done, said) = first.rotate("switch");
            assert!(!done, "{said}");
            said.contains(word).then_some(said)
        })
    };
    let words = || server.psql("controllers", "SELECT COUNT(*) FROM meta WHERE key LIKE 'trust:%'");
    until("both have said which authorities they trust", || (words() == "2").then_some(()));
    second.kill();
    let said = waits("(off: start it)");
    // Both are on one computer: the name of the machine would do for either.
    let mut parts = said.split("controller ");
    let id = parts.find_map(|part| part.split_once(" (off")).map(|(id, _)| id.to_owned()).unwrap();
    let config = first.config();
    let without = |step: &str, name: &str| {
        run(&["rotate-authority", step, "--without", name, "--config", config.to_str().unwrap()])
    };
    for (step, name, word) in
        [("switch", "nobody", "no controller that is off"), ("show", id.as_str(), "for the steps that wait")]
    {
        let (done, said) = without(step, name);
        assert!(!done && said.contains(word), "{said}");
    }
    until("the switch without it", || {
        let (done, said) = without("switch", &id);
        assert!(done || said.contains("to wait for"), "{said}");
        done.then_some(())
    });
    first.until_rotates("finish");
    until("its word is dropped", || (words() == "1").then_some(()));
}

#[test]
fn a_second_controller_is_refused_where_it_cannot_be() {
    let alone = Machine::first(None);
    let file = alone.path("file");
    let (done, said) = run(&["share", file.to_str().unwrap(), "--config", alone.config().to_str().unwrap()]);
    assert!(!done && said.contains("SQLite") && !file.exists(), "{said}");

    let server = pg::Server::new();
    let url = server.database("controllers");
    let mut first = Machine::first(Some(&url));
    let (done, said) = run(&["share", file.to_str().unwrap(), "--config", first.config().to_str().unwrap()]);
    assert!(!done && said.contains("has schema 0"), "no controller has made the database: {said}");
    first.start();
    let (file, code) = share(&first, "second.share");
    let second = Machine::empty(&first.token);
    server.psql("controllers", "UPDATE meta SET value = '1' WHERE key LIKE 'share:%'");
    refused(&second, &file, &code, "has expired");
    server.psql("controllers", "DELETE FROM meta WHERE key LIKE 'share:%'");
    refused(&second, &file, &code, "is not known to this database");
    let (file, code) = share(&first, "again.share");
    server.psql("controllers", "UPDATE schema_version SET version = version + 100 WHERE version = 1");
    refused(&second, &file, &code, "this version works with schema");
    server.psql("controllers", "UPDATE schema_version SET version = version - 100 WHERE version = 101");
    let cluster = server.psql("controllers", "SELECT value FROM meta WHERE key = 'cluster_id'");
    let other = "UPDATE meta SET value = '6a1f1dbe-2f5c-4a8e-9d57-0f3c1a7b9e11' WHERE key = 'cluster_id'";
    server.psql("controllers", other);
    refused(&second, &file, &code, "belongs to cluster");
    server.psql("controllers", &format!("UPDATE meta SET value = '{cluster}' WHERE key = 'cluster_id'"));
    // A secret is sealed by a key that the file does not have.
    let sealed = "INSERT INTO nexuses (volume_id, initiator, chap_user, secret) VALUES ('', '', '', 'sealed AE1TAQAAAAAAAAAAAAAA')";
    server.psql("controllers", sealed);
    refused(&second, &file, &code, "sealed by the key 0000000000000000");
    server.psql("controllers", "DELETE FROM nexuses");
    let (done, said) = join(&second, &file, &code);
    assert!(done, "{said}");
}
