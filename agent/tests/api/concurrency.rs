//! Many callers at once: each change is either aborted or in force; none is lost, and none is half.

use std::collections::BTreeSet;

use mooring_api::Channel;
use mooring_api::v1;
use mooring_api::v1::agent_client::AgentClient;
use tonic::Code;

use crate::rig::*;

/// Reads the export's spec, adds or removes one host, and sends it back, until no other change came
/// between. The sender does not know the other hosts' secrets, so the agent keeps them.
async fn change(mut client: AgentClient<Channel>, v: String, host: String, add: bool) -> u32 {
    for aborted in 0.. {
        let status =
            client.get_volume(v1::GetVolumeRequest { volume_id: v.clone() }).await.unwrap().into_inner();
        let counter =
            status.export_stamp.and_then(|stamp| stamp.generation).map_or(1, |kept| kept.counter + 1);
        let mut spec = status.export_spec.unwrap_or_else(|| export_spec(&[]));
        spec.grants.retain(|grant| grant.initiator != iqn(&host));
        if add {
            spec.grants.push(grant(&host, RW));
        }
        match client.put_export(put_export_spec(&v, counter, spec)).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                assert!(answer.done && answer.receipts.iter().all(|receipt| receipt.proven), "{answer:?}");
                return aborted;
            }
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status:?}"),
        }
    }
    unreachable!("without end")
}

#[test]
fn what_was_acknowledged_holds_and_nothing_is_lost() {
    let (node, volumes) = (Node::new(), (1..=3).map(volume).collect::<Vec<_>>());
    let agent = node.start();
    for id in &volumes {
        agent.make(put_volume(id, 1));
    }
    let mut tasks = Vec::new();
    for id in &volumes {
        for host in 0..8 {
            // Each caller has its own connection.
            let channel = agent.wait(async {
                mooring_api::connect(&node.config.listen[0], &mooring_api::TlsFiles::default()).await.unwrap()
            });
            let (client, id) = (AgentClient::new(channel), id.clone());
            tasks.push(agent.spawn(async move {
                let mut aborted = 0;
                // Each host comes, goes, and comes again; the odd ones go in the end.
                for add in [true, false, true, host % 2 == 0] {
                    aborted += change(client.clone(), id.clone(), format!("host{host}"), add).await;
                }
                aborted
            }));
        }
    }
    let aborted: u32 = agent.wait(async {
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        sum
    });
    println!("{aborted} changes were aborted and made again");
    let even: BTreeSet<String> = (0..8).step_by(2).map(|host| format!("host{host} rw")).collect();
    for id in &volumes {
        assert_eq!(node.reach(id).into_iter().collect::<BTreeSet<_>>(), even);
        assert!(node.login(id, "host0").is_ok(), "with the secret that others have kept for it");
        let receipts = agent.get(id).unwrap().receipts;
        assert!(receipts.iter().all(|receipt| receipt.proven));
    }
    // All of it is durable.
    agent.crash();
    node.fake.reboot();
    let _agent = node.start();
    eventually("the exports are back", || node.fake.reachable().len() == 3 * even.len());
}

#[test]
fn one_of_two_changes_with_one_generation_is_in_force_the_other_aborts() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    for counter in 1..30 {
        let calls: Vec<_> = ["host1", "host2"]
            .map(|host| {
                let (mut client, put) = (agent.client(), put_export(&v, counter, &[(host, RW)]));
                agent
                    .spawn(async move { client.put_export(put).await.map(|answer| answer.into_inner().done) })
            })
            .into();
        let answers: Vec<_> = agent.wait(async {
            let mut answers = Vec::new();
            for call in calls {
                answers.push(call.await.unwrap().map_err(|status| status.code()));
            }
            answers
        });
        let winner = match answers.as_slice() {
            [Ok(true), Err(Code::Aborted)] => "host1 rw",
            [Err(Code::Aborted), Ok(true)] => "host2 rw",
            other => panic!("{other:?}"),
        };
        assert_eq!(node.reach(&v), [winner]);
    }
}

#[test]
fn of_two_ids_with_one_identity_on_the_wire_one_is_had() {
    let node = Node::new();
    let agent = node.start();
    for n in 1..20 {
        let first = volume(n);
        let twin = format!("{}7", &first[..first.len() - 1]);
        let calls = [first, twin].map(|id| {
            let mut client = agent.client();
            agent.spawn(async move { client.put_volume(put_volume(&id, 1)).await })
        });
        let taken = agent.wait(async {
            let mut taken = 0;
            for call in calls {
                match call.await.unwrap() {
                    Ok(_) => taken += 1,
                    Err(status) => assert_eq!(status.code(), Code::AlreadyExists, "{status:?}"),
                }
            }
            taken
        });
        assert_eq!(taken, 1);
    }
}
