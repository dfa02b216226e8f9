//! Renames and forgets of hosts, through the API.

use serde_json::{Value, json};

use crate::client::Api;

async fn post(api: &Api, path: &str, body: Value) -> (u16, Value) {
    let answer = api.call("POST", &format!("/mooring/v1/hosts/{path}")).json(&body).send().await;
    (answer.status.as_u16(), answer.body)
}

#[tokio::test]
async fn a_host_is_renamed() {
    let api = Api::new();
    let (status, body) = post(&api, "host1/rename", json!({ "name": "host9" })).await;
    let warnings = json!(["write host9 in the configuration"]);
    assert_eq!((status, body), (200, json!({ "renamed": "host1", "name": "host9", "warnings": warnings })));
    assert_eq!(post(&api, "nosuch/rename", json!({ "name": "host9" })).await.0, 404);
    let (status, body) = post(&api, "host1/rename", json!({ "name": "taken" })).await;
    assert_eq!((status, body["conflictingRequest"]["code"].as_u64()), (409, Some(409)));
    for wrong in [
        json!({}),
        json!([]),
        json!("host9"),
        json!({ "name": null }),
        json!({ "name": "" }),
        json!({ "name": 7 }),
        json!({ "name": ["host9"] }),
        json!({ "name": "x".repeat(256) }),
        json!({ "name": "host9", "force": true }),
    ] {
        assert_eq!(post(&api, "host1/rename", wrong.clone()).await.0, 400, "{wrong}");
    }
    assert_eq!(api.call("GET", "/mooring/v1/hosts/host1/rename").send().await.status, 405);
}

#[tokio::test]
async fn a_host_is_given_up_by_its_name_said_twice() {
    let api = Api::new();
    let plan = api.call("GET", "/mooring/v1/hosts/storage1/forget").send().await;
    assert_eq!(plan.status, 200);
    let loss = json!({
        "name": "storage1", "agent_id": "00000000-0000-0000-0000-000000000001",
        "last_report": "1970-01-01T00:00:00.000000Z", "enrolled": true,
        "volumes": 3, "snapshots": 1, "gib": 35, "attachments": 3, "attached": 4,
        "projects": [
            { "project": "p", "volumes": 2, "snapshots": 1, "gib": 30, "attachments": 3 },
            { "project": "q", "volumes": 1, "snapshots": 0, "gib": 5, "attachments": 0 },
        ],
        "obstacle": null,
    });
    assert_eq!(plan.body, json!({ "loss": loss }));
    let done = post(&api, "storage1/forget", json!({ "confirm": "storage1" })).await;
    assert_eq!(done, (200, json!({ "forgotten": loss })));
    assert_eq!(api.call("GET", "/mooring/v1/hosts/nosuch/forget").send().await.status, 404);
    assert_eq!(post(&api, "nosuch/forget", json!({ "confirm": "nosuch" })).await.0, 404);
    for wrong in [
        json!({}),
        json!(true),
        json!({ "confirm": true }),
        json!({ "confirm": null }),
        json!({ "confirm": "" }),
        json!({ "confirm": "host1" }),
        json!({ "confirm": "storage1", "yes": true }),
    ] {
        assert_eq!(post(&api, "storage1/forget", wrong.clone()).await.0, 400, "{wrong}");
    }
}

/// An id is accepted only if it can be an agent's.
#[tokio::test]
async fn a_join_says_whose_store_the_machine_has() {
    let api = Api::new();
    let join = |agent: Value| {
        let token = crate::fake::JOIN_TOKEN;
        let body = json!({ "token": token, "csr": "c", "address": "https://h:7710", "agent_id": agent });
        api.call("POST", "/mooring/v1/join").json(&body).send()
    };
    for agent in [json!(null), json!("0a0a0a0a-0001-4002-8003-00000000000a")] {
        assert_eq!(join(agent.clone()).await.status, 200, "{agent}");
    }
    for wrong in [json!(""), json!("storage1"), json!(7), json!([]), json!({ "id": 1 })] {
        assert_eq!(join(wrong.clone()).await.status, 400, "{wrong}");
    }
    let agents: Vec<_> = api.fake.state().joins.iter().map(|one| one.agent.is_some()).collect();
    assert_eq!(agents, [false, true]);
}
