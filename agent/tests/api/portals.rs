//! Portals on several networks, of IPv4 and IPv6: an address that is missing, goes or comes is
//! reported, and the agent touches no portal for it.

use mooring_api::v1;
use mooring_host::fake::{LoginRefusal, SessionId};
use mooring_model::Cure;

use crate::rig::*;

const V4: &str = "10.0.1.1:3260";
const V6: &str = "[fd00::1]:3260";
const ALL: [&str; 4] = ["127.0.0.1", "10.0.0.1", "10.0.1.1", "fd00::1"];

fn login(node: &Node, id: &str, portal: &str) -> Result<SessionId, LoginRefusal> {
    node.fake.login(portal, &target(id), &iqn("host1"), Some(("host1", &secret_of("host1"))))
}

fn addresses(node: &Node, here: &[&str]) {
    node.fake.set_addresses(here.iter().map(|ip| ip.parse().unwrap()));
}

fn export(agent: &Agent, id: &str) -> v1::ExportReport {
    agent.get(id).unwrap().export.unwrap()
}

fn problems(agent: &Agent, id: &str) -> Vec<String> {
    export(agent, id)
        .problems
        .into_iter()
        .map(|problem| format!("{}: {}", problem.object, problem.text))
        .collect()
}

/// An agent with a volume over three portals.
fn over_three(node: &Node) -> (Agent, String) {
    addresses(node, &ALL);
    let (agent, id) = (node.start(), volume(1));
    agent.make(put_volume(&id, 1));
    let mut spec = export_spec(&[("host1", RW)]);
    spec.portals = [PORTAL, V4, V6].map(str::to_owned).to_vec();
    agent.make(put_export_spec(&id, 1, spec));
    (agent, id)
}

#[test]
fn portals_of_both_families_let_in() {
    let node = Node::new();
    let (agent, id) = over_three(&node);
    let report = export(&agent, &id);
    let mut portals = report.portals.clone();
    portals.sort();
    assert_eq!((portals, report.problems.len()), (vec![PORTAL.to_owned(), V4.to_owned(), V6.to_owned()], 0));
    for portal in [PORTAL, V4, V6] {
        let session = login(&node, &id, portal).unwrap();
        node.fake.write(session, 1).unwrap();
    }
    let plan = agent.plan(&id);
    assert!(plan.steps.is_empty() && plan.blocked.is_empty(), "{plan:?}");
}

/// The law of this file: whatever addresses do, no call changes the kernel, and every other portal
/// and session goes on.
#[test]
fn an_address_that_goes_and_comes_disturbs_nobody() {
    let node = Node::new();
    let (agent, id) = over_three(&node);
    let sessions: Vec<_> = [PORTAL, V4, V6].map(|portal| login(&node, &id, portal).unwrap()).to_vec();
    let (changes, tree) = (agent.switch.changes(), node.tree());
    for (gone, portal) in [("fd00::1", V6), ("10.0.1.1", V4)] {
        let left: Vec<_> = ALL.into_iter().filter(|ip| *ip != gone).collect();
        addresses(&node, &left);
        eventually("the portal is reported", || !problems(&agent, &id).is_empty());
        let said = export(&agent, &id).problems;
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(said[0].object, format!("portal {portal}"));
        assert_eq!(v1::Cure::from(Cure::Operator), said[0].cure());
        assert!(said[0].text.contains(&format!("does not have the address {gone} (it has ")), "{said:?}");
        assert!(export(&agent, &id).in_force, "all that is wanted stands");
        assert_eq!(login(&node, &id, portal), Err(LoginRefusal::Unreachable));
        for session in &sessions {
            assert!(node.fake.is_live(*session));
        }
        addresses(&node, &ALL);
        eventually("and that it is back", || problems(&agent, &id).is_empty());
        assert!(agent.plan(&id).steps.is_empty());
    }
    for session in sessions {
        node.fake.write(session, 1).unwrap();
    }
    assert_eq!((agent.switch.changes(), node.tree().len()), (changes, tree.len()));
}

/// An address may be late at a boot. Everything is made without it, and the portal answers when the
/// address comes, even without an agent.
#[test]
fn a_portal_whose_address_is_late_waits_for_it() {
    let node = Node::new();
    let (agent, id) = over_three(&node);
    agent.crash();
    node.fake.reboot();
    addresses(&node, &ALL[..2]);
    let agent = node.start();
    eventually("the export is back", || export(&agent, &id).in_force);
    let said = problems(&agent, &id);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().all(|said| said.contains("the portal waits for it")), "{said:?}");
    login(&node, &id, PORTAL).unwrap();
    assert_eq!(login(&node, &id, V6), Err(LoginRefusal::Unreachable));
    agent.crash();
    addresses(&node, &ALL);
    login(&node, &id, V6).unwrap();
    login(&node, &id, V4).unwrap();
}

/// Portals of the configuration are this host's own: they are also reported as a capability, and
/// whenever they change.
#[test]
fn the_host_says_which_portals_nobody_reaches() {
    let node = Node::new();
    let (agent, id) = (node.start(), volume(1));
    agent.make(put_volume(&id, 1));
    agent.make(put_export(&id, 1, &[("host1", RW)]));
    let ready = |agent: &Agent| agent.capabilities().transports.iter().any(|transport| transport.ready);
    assert!(ready(&agent));
    addresses(&node, &["127.0.0.1"]);
    eventually("the export says so", || !problems(&agent, &id).is_empty());
    let seen = agent.capabilities();
    assert!(
        !ready(&agent) && seen.problems.iter().any(|problem| problem.object == format!("portal {PORTAL}"))
    );
    // A grant that is requested meanwhile is made as far as possible, and is in force when the
    // address is back.
    agent.make(put_export(&id, 2, &[("host1", RW), ("host2", RO)]));
    addresses(&node, &ALL);
    eventually("the host says so", || ready(&agent));
    login(&node, &id, PORTAL).unwrap();
}
