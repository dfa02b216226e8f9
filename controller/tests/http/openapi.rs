//! The description of the API: every answer that the tests get is checked against it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::{Method, StatusCode};
use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::client::{Api, PROJECT};

/// The description, read once, through the router.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let read = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let api = Api::new();
            let request =
                axum::http::Request::get("/mooring/v1/openapi.json").header("host", "elsewhere.example");
            let request = request.body(axum::body::Body::empty()).unwrap();
            let response = tower::ServiceExt::oneshot(api.router(), request).await.unwrap();
            assert_eq!(response.status(), 200, "anybody may read it");
            let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
            serde_json::from_slice(&body).unwrap()
        })
    });
    read.join().unwrap()
});

/// Validators of all schemas, by name.
static SCHEMAS: LazyLock<BTreeMap<String, Validator>> = LazyLock::new(|| {
    let names = DOCUMENT["components"]["schemas"].as_object().unwrap().keys();
    let validator = |name: &String| {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$ref": format!("#/components/schemas/{name}"),
            "components": DOCUMENT["components"],
        });
        (name.clone(), jsonschema::options().should_validate_formats(true).build(&schema).unwrap())
    };
    names.map(validator).collect()
});

fn schema_of(content: &Value) -> Option<&'static Validator> {
    let reference = content["application/json"]["schema"]["$ref"].as_str()?;
    Some(&SCHEMAS[reference.rsplit('/').next()?])
}

/// The description of this method and address. `None`: it has none.
fn operation(method: &Method, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap_or_default();
    let path = match path.strip_prefix("/v3/") {
        Some(rest) if !rest.is_empty() && !rest.starts_with(PROJECT) => format!("/v3/{PROJECT}/{rest}"),
        _ => path.to_owned(),
    };
    let parts: Vec<_> = path.split('/').collect();
    let fits = |template: &str| {
        let template: Vec<_> = template.split('/').collect();
        let same = |(said, part): (&&str, &&str)| said == part || said.starts_with('{') && !part.is_empty();
        template.len() == parts.len() && template.iter().zip(&parts).all(same)
    };
    let literal = |template: &str| template.matches('{').count();
    let all = DOCUMENT["paths"].as_object().unwrap().iter().filter(|(template, _)| fits(template));
    let (_, item) = all.min_by_key(|(template, _)| literal(template))?;
    item.get(method.as_str().to_ascii_lowercase())
}

/// Checks an answer against the description. Faults have a shape of their own, which tests check
/// where they expect one.
pub(crate) fn check(method: &Method, path: &str, status: StatusCode, body: &Value) {
    let good = status.is_success() || status == StatusCode::MULTIPLE_CHOICES;
    if !good || method == Method::HEAD {
        return;
    }
    let Some(operation) = operation(method, path) else { return };
    let answer = &operation["responses"][status.as_str()];
    assert!(answer.is_object(), "{method} {path}: {status} is not described");
    match schema_of(&answer["content"]) {
        None => assert!(body.is_null(), "{method} {path}: a body is not described: {body}"),
        Some(schema) => {
            let wrong: Vec<_> = schema.iter_errors(body).map(|error| error.to_string()).collect();
            assert!(wrong.is_empty(), "{method} {path}: {body}: {wrong:?}");
        }
    }
}

#[test]
fn it_is_a_description() {
    let spec: oas3::OpenApiV3Spec = oas3::from_json(DOCUMENT.to_string()).unwrap();
    spec.validate_version().unwrap();
    assert!(spec.operations().count() > 70);
    assert!(!SCHEMAS.is_empty());
}

#[test]
fn a_wrong_answer_is_found() {
    let wrong = json!({ "volumes": [{ "id": "x" }] });
    let path = format!("/v3/{PROJECT}/volumes");
    let found = std::panic::catch_unwind(|| check(&Method::GET, &path, StatusCode::OK, &wrong));
    assert!(found.is_err());
    assert!(operation(&Method::GET, &format!("{path}/detail")).unwrap()["operationId"] == "listVolumes");
}

/// Values that are tried as bodies: some right somewhere, most wrong everywhere.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2_i64..3).prop_map(Value::from),
        Just(json!(1.5)),
        Just(json!(i64::MAX)),
        Just(json!("")),
        Just(json!("rw")),
        Just(json!("true")),
        Just(json!("12")),
        Just(json!("00000000-0000-4000-8000-00000000dead")),
        Just(json!("0000000000004000800000000000dead")),
        "[a-z ]{0,3}".prop_map(Value::from),
        Just(json!("x".repeat(256))),
        Just(json!({})),
        Just(json!({ "k": "v" })),
        Just(json!({ "k": 1 })),
        Just(json!({ "bad\nkey": "v" })),
        Just(json!([])),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,3}", inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

/// Every operation that takes a body: method, template, description.
pub(crate) fn taking() -> Vec<(Method, &'static str, &'static Value)> {
    let mut all = Vec::new();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if operation["requestBody"].get("content").is_some() {
                let method = method.to_ascii_uppercase().parse().unwrap();
                all.push((method, path.as_str(), operation));
            }
        }
    }
    all
}

/// Every operation that changes something: method, template, description.
pub(crate) fn writing() -> Vec<(Method, &'static str, &'static Value)> {
    let mut all = Vec::new();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if ["post", "put", "patch", "delete"].contains(&method.as_str()) {
                all.push((method.to_ascii_uppercase().parse().unwrap(), path.as_str(), operation));
            }
        }
    }
    all
}

/// The schema of a body.
pub(crate) fn schema_named(content: &Value) -> &'static Value {
    let name = content["application/json"]["schema"]["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
    &DOCUMENT["components"]["schemas"][name]
}

fn body_for(
    content: &Value,
    chosen: prop::sample::Index,
    fields: &[(prop::sample::Index, Value)],
    whole: &Value,
) -> Value {
    let schema = schema_named(content);
    let keys: Vec<_> = schema["properties"].as_object().into_iter().flatten().collect();
    if keys.is_empty() {
        return whole.clone();
    }
    let (key, inner) = *chosen.get(&keys);
    let known: Vec<_> =
        inner["properties"].as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    let mut body = json!({});
    for (index, value) in fields {
        let key = if known.is_empty() { "k" } else { *index.get(&known) };
        body[key] = value.clone();
    }
    json!({ key: body })
}

pub(crate) fn filled(template: &str) -> String {
    let dead = "00000000-0000-4000-8000-00000000dead";
    let part = |part: &str| match part {
        "{project_id}" => PROJECT.to_owned(),
        "{key}" => "k".to_owned(),
        part if part.starts_with('{') => dead.to_owned(),
        part => part.to_owned(),
    };
    template.split('/').map(part).collect::<Vec<_>>().join("/")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    /// A body that the description forbids is refused as the client's mistake, and none is a
    /// failure of the server.
    #[test]
    fn bodies_are_checked_as_described(
        chosen in any::<prop::sample::Index>(),
        key in any::<prop::sample::Index>(),
        fields in prop::collection::vec((any::<prop::sample::Index>(), value()), 0..4),
        whole in value(),
    ) {
        let all = taking();
        let (method, template, operation) = chosen.get(&all);
        let content = &operation["requestBody"]["content"];
        let body = body_for(content, key, &fields, &whole);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(async {
            let api = Api::new();
            api.call(method.as_str(), &filled(template)).version("latest").json(&body).send().await
        });
        let status = answer.status.as_u16();
        prop_assert!(status < 500 || status == 501, "{method} {template} {body}: {status}");
        if !schema_of(content).unwrap().is_valid(&body) {
            prop_assert!((400..500).contains(&status), "{method} {template} takes {body}: {status}");
        }
        let text = answer.body["badRequest"]["message"].as_str().unwrap_or_default();
        if text.starts_with("Invalid input for field/attribute") {
            let valid = schema_of(content).unwrap().is_valid(&body);
            prop_assert!(!valid, "{method} {template} refuses {body}: {text}");
        }
    }

    /// Random queries at every address: no answer is the server's failure.
    #[test]
    fn questions_never_break_it(
        chosen in any::<prop::sample::Index>(),
        method in prop::sample::select(vec!["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"]),
        keys in prop::collection::vec(
            ("limit|offset|sort|sort_key|sort_dir|marker|name~?|metadata|created_at|all_tenants|force|[a-z%&=~]{0,4}",
             "-?[0-9]{0,30}|[a-z,:]{0,6}|%[0-9A-F]{2}|\\{'a':'[a-z]?'\\}|gt:[0-9T:-]{0,20}"), 0..5),
        id in "[0-9a-f-]{0,40}|%[0-9A-F]{2}|[a-z.]{1,5}",
        body in value(),
    ) {
        let paths: Vec<_> = DOCUMENT["paths"].as_object().unwrap().keys().collect();
        let template = chosen.get(&paths);
        let path = template.split('/').map(|part| match part {
            "{project_id}" => PROJECT.to_owned(),
            part if part.starts_with('{') => id.clone(),
            part => part.to_owned(),
        });
        let query: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={}", value.replace('{', "%7B").replace('}', "%7D"))).collect();
        let uri = format!("{}?{}", path.collect::<Vec<_>>().join("/"), query.join("&"));
        prop_assume!(uri.parse::<axum::http::Uri>().is_ok());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let status = runtime.block_on(async {
            let api = Api::new();
            api.call(method, &uri).version("latest").json(&body).send().await.status.as_u16()
        });
        prop_assert!(status < 500 || status == 501, "{method} {uri} {body}: {status}");
    }
}

/// Removes the prose from a part of the document.
fn without_prose(part: &mut Value) {
    match part {
        Value::Object(members) => {
            members.retain(|key, value| {
                !(matches!(key.as_str(), "summary" | "description") && value.is_string())
            });
            members.values_mut().for_each(without_prose);
        }
        Value::Array(items) => items.iter_mut().for_each(without_prose),
        _ => {}
    }
}

#[test]
fn the_description_stays_as_recorded() {
    let mut document = DOCUMENT.clone();
    without_prose(&mut document);
    insta::assert_snapshot!(serde_json::to_string_pretty(&document).unwrap());
}
