//! The description of both APIs in OpenAPI 3.1: what each route takes and answers. Like the version
//! documents, clients read it without a login. Tests hold every answer against it, and check that
//! it has exactly the router's routes. The rows stand in a file for each noun; each says its gate.
//!
//! What must never happen here: a route that is described otherwise than it answers; a route or an
//! action without a gate.

mod attachments;
mod empty;
mod find;
mod hosts;
mod manageable;
mod operation;
mod quotas;
mod services;
mod site;
mod snapshots;
mod types;
mod volumes;

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

pub(super) use find::{Api, Which, find};

use self::operation::{BOOLEAN, NUMBER, Operation, TEXT};
use super::gate::Gate;
use super::{actions, snapshot_actions};
use crate::list::{Collection, Kind};

/// The address of the description.
pub(super) const PATH: &str = "/mooring/v1/openapi.json";

/// The schemas of requests' and of answers' bodies.
const SCHEMAS: [&str; 2] = [include_str!("openapi/requests.json"), include_str!("openapi/answers.json")];

/// The rows of the Block Storage API, below the project, by noun.
static BLOCK_STORAGE: &[&[Operation]] = &[
    volumes::BLOCK_STORAGE,
    attachments::BLOCK_STORAGE,
    types::BLOCK_STORAGE,
    quotas::BLOCK_STORAGE,
    snapshots::BLOCK_STORAGE,
    manageable::BLOCK_STORAGE,
    services::BLOCK_STORAGE,
    empty::BLOCK_STORAGE,
    site::BLOCK_STORAGE,
];

/// The rows of Mooring's own API, by noun.
static OWN: &[&[Operation]] = &[hosts::OWN, attachments::OWN, volumes::OWN, site::OWN];

/// The rows that belong to neither API alone.
static ROOT: &[&[Operation]] = &[site::ROOT, hosts::ROOT];

/// The operations whose descriptions have the gates of their actions.
const ACTIONS_OF: &str = "actOnVolume";
const SNAPSHOT_ACTIONS_OF: &str = "actOnSnapshot";

/// All rows of a table.
fn rows(of: &'static [&'static [Operation]]) -> impl Iterator<Item = &'static Operation> {
    of.iter().copied().flatten()
}

fn reference(schema: &str) -> Value {
    json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{schema}") } } })
}

fn in_path(name: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
}

fn in_query(name: &str, kind: &str) -> Value {
    json!({ "name": name, "in": "query", "schema": { "type": kind } })
}

/// The query keys of every list, then the collection's filters.
fn list_queries(of: &Collection) -> Vec<Value> {
    let mut all: Vec<_> = [("limit", NUMBER), ("offset", NUMBER), ("marker", TEXT), ("sort", TEXT)]
        .into_iter()
        .chain([("sort_key", TEXT), ("sort_dir", TEXT), ("all_tenants", BOOLEAN), ("with_count", BOOLEAN)])
        .map(|(name, kind)| in_query(name, kind))
        .collect();
    for key in of.keys.iter().filter(|key| key.everybody) {
        let kind = if matches!(key.kind, Kind::Number) { NUMBER } else { TEXT };
        all.push(in_query(key.name, kind));
    }
    all
}

fn operation(it: &Operation, prefix: &str, login: bool) -> Value {
    let path = format!("{prefix}{}", it.path);
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<_> = names.map(in_path).collect();
    parameters.extend(it.lists.map(list_queries).unwrap_or_default());
    parameters.extend(it.queries.iter().map(|(name, kind)| in_query(name, kind)));
    let failed = it.status >= 400;
    let mut good = json!({ "description": if failed { "What is always answered" } else { "Done" } });
    if let Some(schema) = it.gives.or(failed.then_some("Fault")) {
        good["content"] = reference(schema);
    }
    let mut responses = Map::new();
    responses.insert(it.status.to_string(), good);
    if let Some(also) = it.also {
        let content = reference("Any");
        responses.insert(
            also.to_string(),
            json!({ "description": "Done, with what was asked for", "content": content }),
        );
    }
    if login {
        responses.insert("default".into(), json!({ "$ref": "#/components/responses/Fault" }));
    }
    let mut view = json!({
        "operationId": it.id,
        "summary": it.summary,
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(schema) = it.takes {
        view["requestBody"] = json!({ "required": true, "content": reference(schema) });
    }
    if let Some(version) = it.since {
        view["x-openstack-since"] = json!(version);
    }
    if it.admin {
        view["description"] = json!("For admins, unless the site's policies say otherwise.");
    }
    if !login {
        view["security"] = json!([]);
    }
    it.gate.describe(&mut view);
    if it.id == ACTIONS_OF {
        let mut all = described_actions(actions::rows());
        for (name, policy) in actions::LATER {
            all.insert(name.to_owned(), json!({ "x-mooring-policies": [policy] }));
        }
        view["x-mooring-actions"] = Value::Object(all);
    }
    if it.id == SNAPSHOT_ACTIONS_OF {
        view["x-mooring-actions"] = Value::Object(described_actions(snapshot_actions::ROWS));
    }
    view
}

fn described_actions(rows: impl IntoIterator<Item = (&'static str, Gate)>) -> Map<String, Value> {
    let described = rows.into_iter().map(|(name, gate)| {
        let mut row = json!({});
        gate.describe(&mut row);
        (name.to_owned(), row)
    });
    described.collect()
}

fn paths() -> Map<String, Value> {
    let tables = [(BLOCK_STORAGE, "/v3/{project_id}", true), (OWN, "/mooring/v1", true), (ROOT, "", false)];
    let mut paths = Map::new();
    for (operations, prefix, login) in tables {
        for it in rows(operations) {
            let path = paths.entry(format!("{prefix}{}", it.path)).or_insert_with(|| json!({}));
            path[it.method.to_ascii_lowercase()] = operation(it, prefix, login);
        }
    }
    paths
}

fn document() -> Value {
    let read = |text| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let schemas: Map<String, Value> = SCHEMAS.into_iter().flat_map(read).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Mooring",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "The Block Storage API v3 as Mooring serves it (bodies at its newest microversion, which \
                            `OpenStack-API-Version: volume 3.N` chooses; the project may be left out of the address), and \
                            Mooring's own API. What the Block Storage API has beside these routes is answered with 501.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }],
        "paths": paths(),
        "components": {
            "securitySchemes": { "token": { "type": "apiKey", "in": "header", "name": "X-Auth-Token" } },
            "responses": { "Fault": { "description": "Not done", "content": reference("Fault") } },
            "schemas": schemas,
        },
    })
}

/// The document.
pub(super) fn answer() -> Response {
    static TEXT: LazyLock<String> = LazyLock::new(|| document().to_string());
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::Router;
    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use tower::ServiceExt;

    use super::*;
    use crate::auth::Auth;
    use crate::http::actions::LATER;
    use crate::http::{BODY_TIMEOUT, Options, block_storage_routes, own_routes, router};
    use crate::policy;
    use crate::service::{Service, ServiceOptions};

    /// Methods that a route could have.
    const METHODS: [&str; 5] = ["GET", "POST", "PUT", "DELETE", "PATCH"];

    fn described() -> BTreeSet<(String, String)> {
        let methods = |(path, item): (&String, &Value)| {
            let methods: Vec<_> =
                item.as_object().unwrap().keys().map(|key| key.to_ascii_uppercase()).collect();
            methods.into_iter().map(|method| (path.clone(), method)).collect::<Vec<_>>()
        };
        paths().iter().flat_map(methods).collect()
    }

    /// Returns `true` if the router has the route: neither unknown nor answered with "not built".
    async fn is_there(router: &Router, method: &str, path: &str) -> bool {
        let concrete: Vec<_> = path
            .split('/')
            .map(|part| match part {
                "{project_id}" => "0123456789abcdef0123456789abcdef",
                part if part.starts_with('{') => "00000000-0000-4000-8000-00000000dead",
                part => part,
            })
            .collect();
        let request = Request::builder().method(method).uri(concrete.join("/")).header("host", "localhost");
        let request = request.header("openstack-api-version", "volume latest").body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let unknown = status == StatusCode::NOT_FOUND
            && serde_json::from_slice::<Value>(&body).is_ok_and(|body| {
                body.get("title").is_some()
                    || body["itemNotFound"]["message"] == "There is nothing at this address."
            });
        !unknown && status != StatusCode::METHOD_NOT_ALLOWED && status != StatusCode::NOT_IMPLEMENTED
    }

    #[tokio::test]
    async fn every_route_is_described_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let service = Service::open(ServiceOptions::new(dir.path().join("state")));
        let options = Options {
            auth: Auth::NoAuth,
            policies: std::sync::Arc::default(),
            public_url: None,
            tls: false,
            body_timeout: BODY_TIMEOUT,
        };
        let router = router(service.unwrap(), options);
        let (storage, own) = (block_storage_routes::<Service>(), own_routes::<Service>());
        let storage = storage.paths().iter().map(|path| format!("/v3/{{project_id}}{path}"));
        let own = own.paths().iter().map(|path| format!("/mooring/v1{path}"));
        let root = rows(ROOT).map(|it| it.path.to_owned());
        let mut served = BTreeSet::new();
        for path in storage.chain(own).chain(root).filter(|path| !path.contains("{*")) {
            for method in METHODS {
                if is_there(&router, method, &path).await {
                    served.insert((path.clone(), method.to_owned()));
                }
            }
        }
        let described = described();
        let missing: Vec<_> = served.difference(&described).collect();
        let invented: Vec<_> = described.difference(&served).collect();
        assert!(
            missing.is_empty() && invented.is_empty(),
            "not described: {missing:?}; not served: {invented:?}"
        );
    }

    #[test]
    fn names_and_references_are_right() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        assert!(schemas.len() > 50, "both files are read");
        let text = document.to_string();
        for (_, rest) in
            text.match_indices("#/components/schemas/").map(|(at, found)| text.split_at(at + found.len()))
        {
            let name = rest.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
        let ids: BTreeSet<_> = all().map(|it| it.id).collect();
        assert_eq!(ids.len(), all().count(), "an operation's name is its own");
    }

    fn all() -> impl Iterator<Item = &'static Operation> {
        rows(BLOCK_STORAGE).chain(rows(OWN)).chain(rows(ROOT))
    }

    #[test]
    fn every_route_and_every_action_has_one_policy_row() {
        let has_one = |of: &str, row: &Value| {
            let there = |key| row.get(key).is_some();
            assert!(there("x-mooring-policies") != there("x-mooring-open"), "{of}: {row}");
        };
        let paths = paths();
        let described: Vec<_> = paths.values().flat_map(|item| item.as_object().unwrap().values()).collect();
        for view in &described {
            has_one(view["operationId"].as_str().unwrap(), view);
        }
        assert_eq!(described.len(), all().count(), "each operation is described once");
        let actions = described.iter().find(|view| view["operationId"] == ACTIONS_OF).unwrap();
        let rows = actions["x-mooring-actions"].as_object().unwrap();
        rows.iter().for_each(|(name, row)| has_one(name, row));
        let names: Vec<_> =
            actions::rows().map(|(name, _)| name).chain(LATER.map(|(name, _)| name)).collect();
        let once: BTreeSet<_> = names.iter().copied().collect();
        assert_eq!(rows.keys().map(String::as_str).collect::<BTreeSet<_>>(), once);
        assert_eq!(names.len(), once.len(), "a row is listed twice");
        let of_snapshots = described.iter().find(|view| view["operationId"] == SNAPSHOT_ACTIONS_OF).unwrap();
        let rows = of_snapshots["x-mooring-actions"].as_object().unwrap();
        rows.iter().for_each(|(name, row)| has_one(name, row));
        assert_eq!(rows.len(), snapshot_actions::ROWS.len(), "a row is listed twice");
    }

    #[test]
    fn rows_name_policies_that_are_there() {
        let known: BTreeSet<_> = policy::names().collect();
        let every = all().map(|it| (it.id, it.gate)).chain(actions::rows());
        for (of, gate) in every.chain(snapshot_actions::ROWS) {
            let names = match gate {
                Gate::Policies(names) => names.to_vec(),
                Gate::Hides(name) => vec![name],
                Gate::Open(why) => {
                    assert!(!why.is_empty(), "{of}: say why it is open");
                    continue;
                }
            };
            assert!(!names.is_empty() && names.iter().all(|name| known.contains(name)), "{of}: {names:?}");
        }
    }
}
