//! Leaves out the part of an agent's capabilities that exceeds the roles by which it joined, and
//! adds a problem of the host.
//!
//! What must never happen here: a volume placed at an agent that joined only as a host; an attach
//! by the agent of a host that joined only to serve volumes.

use mooring_api::v1;

use crate::domain::AgentEntry;
use crate::domain::Role;

/// Removes what the agent's roles do not cover. `attaches`: the agent has reported its initiator
/// name.
pub(super) fn leave_out(entry: &AgentEntry, attaches: bool, new: &mut v1::Capabilities) {
    if !entry.may(Role::Storage) && !new.pools.is_empty() {
        new.pools.clear();
        new.problems.push(problem(&entry.name, Role::Storage, "`groups`"));
    }
    if !entry.may(Role::Host) && (attaches || !new.fc_initiator_ports.is_empty()) {
        new.fc_initiator_ports.clear();
        new.problems.push(problem(&entry.name, Role::Host, "`[host]`"));
    }
}

fn problem(name: &str, role: Role, key: &str) -> v1::Problem {
    let role = role.as_str();
    v1::Problem {
        object: format!("role {role}"),
        text: format!(
            "its configuration has {key}, and it did not join with the role {role}: that part is not used. Take {key} out, or let it join \
             again with that role (`mooring host revoke {name}`, `mooring host token {name} --role …`)"
        ),
        cure: v1::Cure::Operator.into(),
    }
}

#[cfg(test)]
mod tests {
    use mooring_api::TlsFiles;
    use uuid::Uuid;

    use super::*;
    use crate::domain::EntryEnrolment;

    fn entry(roles: Option<&str>) -> AgentEntry {
        AgentEntry {
            name: "node1".to_owned(),
            address: "unix:/nowhere".parse().unwrap(),
            tls: TlsFiles::default(),
            insecure: false,
            zone: None,
            enrolment: roles.map(|roles| EntryEnrolment { id: Uuid::nil(), roles: roles.parse().unwrap() }),
        }
    }

    #[test]
    fn what_roles_do_not_cover_is_left_out_and_told() {
        let says = || v1::Capabilities {
            pools: vec![v1::Pool { name: "vg0".to_owned(), ..v1::Pool::default() }],
            fc_initiator_ports: vec!["20:00:52:54:00:14:00:0b".to_owned()],
            ..v1::Capabilities::default()
        };
        for (roles, pools, ports, told) in [
            (None, 1, 1, vec![]),
            (Some("storage,host"), 1, 1, vec![]),
            (Some("storage"), 1, 0, vec!["role host"]),
            (Some("host"), 0, 1, vec!["role storage"]),
        ] {
            let mut new = says();
            leave_out(&entry(roles), true, &mut new);
            let objects: Vec<_> = new.problems.iter().map(|problem| problem.object.as_str()).collect();
            assert_eq!(
                (new.pools.len(), new.fc_initiator_ports.len(), objects),
                (pools, ports, told),
                "{roles:?}"
            );
        }
        // An agent that reports nothing beyond its roles has no problem.
        for roles in ["storage", "host"] {
            let mut new = v1::Capabilities::default();
            leave_out(&entry(Some(roles)), false, &mut new);
            assert_eq!(new, v1::Capabilities::default());
        }
    }
}
