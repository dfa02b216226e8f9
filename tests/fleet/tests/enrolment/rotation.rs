//! The authority is rotated while agents serve over TLS: everybody is reached before, during and
//! after, and the step waits for agents that would be shut out.

use std::fs;

use mooring_agent::join::JoinError;
use mooring_controller::authority::Authority;
use mooring_systemd::certificates;

use crate::program::{Machine, mode};
use crate::site::{Node, read, until};

fn pins(pem: &str) -> Vec<String> {
    certificates::pins(pem).unwrap()
}

/// The authorities that an agent trusts, by its own file.
fn trusted(node: &Node) -> Vec<String> {
    let mut pins = pins(&read(&node.dir.join("agent-ca.crt")));
    pins.sort_unstable();
    pins
}

fn sorted(mut pins: Vec<String>) -> Vec<String> {
    pins.sort_unstable();
    pins
}

/// A rotation from one authority to another one.
struct Scene {
    controller: Machine,
    /// The pins of the two authorities.
    old: String,
    new: String,
    /// The certificate of each, alone.
    certificates: [String; 2],
    /// A token from before the switch.
    token: (String, String, String),
}

impl Scene {
    /// The authority that signed an agent's certificate.
    fn signer(&self, node: &Node) -> Option<String> {
        let load = |name: &str| self.controller.etc().join(name);
        let authority = Authority::load(&load("authority.crt"), &load("authority.key")).unwrap();
        authority.signer_of(&read(&node.identity())).map(str::to_owned)
    }

    /// Begins: every agent that is up trusts the new authority beside the old one.
    fn begin(controller: Machine, nodes: &[&Node]) -> Self {
        let old = pins(&controller.file("authority.crt")).remove(0);
        let alone = controller.file("authority.crt");
        controller.refuses("switch", "rotate-authority begin` comes first");
        controller.refuses("finish", "no rotation is under way");
        controller.rotates("begin");
        let both = pins(&controller.file("authority.crt"));
        assert_eq!((both.len(), &both[0]), (2, &old));
        assert_eq!(mode(&controller.etc().join("authority.key.next")), 0o600);
        controller.refuses("finish", "rotate-authority switch` comes first");
        // Killed after the key was made, and run again: the authority is the same.
        fs::write(controller.etc().join("authority.crt"), &alone).unwrap();
        controller.rotates("begin");
        assert_eq!(pins(&controller.file("authority.crt")), both);
        for node in nodes {
            until("an agent trusts both", || (trusted(node) == sorted(both.clone())).then_some(()));
        }
        let certificates = [alone, certificates::each(&controller.file("authority.crt")).remove(1)];
        let token = controller.token("late");
        assert_eq!(token.2, old, "lines of joins have the pin of the one that signs");
        Self { old, new: both[1].clone(), certificates, token, controller }
    }

    /// A host that joins while both are trusted trusts both from the beginning.
    fn joins_between(&self) {
        let both = sorted(vec![self.old.clone(), self.new.clone()]);
        assert_eq!(trusted(&self.controller.joined("between")), both);
        self.revoke("between");
    }

    fn revoke(&self, name: &str) {
        let path = format!("/mooring/v1/hosts/{name}/revoke");
        self.controller.expect("POST", &path, Some(serde_json::json!({})));
    }

    /// Switches: the new authority signs.
    fn switch(&self, up: &Node) {
        self.controller.until_rotates("switch");
        assert!(!self.controller.etc().join("authority.key.next").exists());
        assert!(self.controller.rotates("switch").contains("signs already"));
        self.controller.refuses("begin", "rotate-authority finish` comes next");
        let new = &self.certificates[1];
        until("the API shows a certificate of the new one", || {
            self.controller.ask_by(new, "GET", "/mooring/v1/hosts", None).map(drop)
        });
        until("an agent has a certificate of the new one", || {
            (self.signer(up).as_ref() == Some(&self.new)).then_some(())
        });
        let refused = self.join_late();
        assert!(matches!(refused, JoinError::FormerPin { .. }), "{refused}");
    }

    /// Joins with the token from before the switch.
    fn join_late(&self) -> JoinError {
        let (url, token, pin) = &self.token;
        self.controller.node("late").join_by(url, token, pin).unwrap_err()
    }

    /// Finishes: the old authority is dropped.
    fn finish(&self, nodes: &[&Node]) {
        self.controller.until_rotates("finish");
        assert_eq!(self.controller.file("authority.crt"), self.certificates[1]);
        assert!(self.controller.rotates("show").contains(&self.new));
        for node in nodes {
            let alone = || (trusted(node) == std::slice::from_ref(&self.new)).then_some(());
            until("an agent trusts the new one alone", alone);
            assert_eq!(self.signer(node).as_ref(), Some(&self.new));
        }
        let refused = self.join_late();
        assert!(matches!(refused, JoinError::WrongPin { .. }), "{refused}");
        let old = &self.certificates[0];
        assert!(self.controller.ask_by(old, "GET", "/mooring/v1/hosts", None).is_none());
    }
}

#[test]
fn the_authority_is_rotated_while_agents_serve() {
    let mut controller = Machine::first(None);
    controller.start();
    let (one, two, _) = (controller.joined("node1"), controller.joined("node2"), controller.joined("never"));
    let (first, second) = (one.start(), two.start());
    for name in ["node1", "node2"] {
        controller.until_up(name);
    }
    assert!(controller.rotates("show").contains("no rotation is under way"));
    let scene = Scene::begin(controller, &[&one, &two]);
    scene.controller.refuses("switch", "host never has not said");
    scene.revoke("never");
    scene.joins_between();
    // An agent that is down at the switch trusts both, and alone delays the end.
    drop(second);
    let down = || scene.controller.host("node2").filter(|host| host["up"] == false).map(drop);
    until("node2 is down", down);
    scene.switch(&one);
    assert_eq!(scene.controller.host("node1").unwrap()["up"], true, "its connection is as it was");
    scene.controller.refuses("finish", "host node2 has a certificate of the old authority");
    let second = two.start();
    scene.finish(&[&one, &two]);
    // All agents are dialled anew.
    let mut controller = scene.controller;
    drop(first);
    controller.kill();
    controller.start();
    let late = controller.joined("late");
    let agents = [one.start(), late.start(), second];
    for name in ["node1", "node2", "late"] {
        controller.until_up(name);
    }
    controller.volume();
    drop(agents);
    controller.refuses("switch", "rotate-authority begin` comes first");
}
