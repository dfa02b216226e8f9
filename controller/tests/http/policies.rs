//! Policies that the HTTP layer checks itself: each with its default, and with an operator's line
//! that closes or opens it. `controller/tests/core_policies.rs` tests the policies of the service.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use mooring_controller::auth::{Auth, NewToken, Tokens};
use serde_json::{Value, json};

use crate::client::{Answer, Api, Call, PROJECT};

struct Site {
    api: Api,
    admin: String,
    member: String,
}

/// The tokens of an admin and a member. Hashing them takes time: they are made once.
static TOKENS: LazyLock<[NewToken; 2]> =
    LazyLock::new(|| ["admin", "member"].map(|role| NewToken::make(role, PROJECT, None, &[role]).unwrap()));

fn site(policies: &str) -> Site {
    let [admin, member] = &*TOKENS;
    let file = format!("{}\n{}", admin.block, member.block);
    let api = Api::ruled(Auth::Tokens(Tokens::parse(&file, "tokens").unwrap()), policies);
    Site { api, admin: admin.token.clone(), member: member.token.clone() }
}

/// The effect of a policy.
#[derive(Clone, Copy)]
enum Decides {
    /// The object under a name has a key, or not.
    Key(&'static str, &'static str),
    /// The request is answered with this code, or with 403.
    Request(u16),
}

struct Case {
    policy: &'static str,
    /// `true` if a member may by default. Admins always may.
    member: bool,
    method: &'static str,
    /// `{v}` is a volume, `{t}` a type.
    path: &'static str,
    body: Value,
    decides: Decides,
}

/// Reads that are done or refused.
const READS: [(&str, bool, &str); 8] = [
    ("volume_extension:volume_encryption_metadata", true, "/volumes/{v}/encryption"),
    ("volume:get_volume_metadata", true, "/volumes/{v}/metadata"),
    ("volume:get_volume_metadata", true, "/volumes/{v}/metadata/k"),
    ("volume_extension:types_extra_specs:index", true, "/types/{t}/extra_specs"),
    ("volume_extension:types_extra_specs:show", true, "/types/{t}/extra_specs/multiattach"),
    ("backup:get_all", true, "/backups"),
    ("group:get_all", true, "/groups/detail"),
    ("volume:get_all_transfers", true, "/os-volume-transfer"),
];

/// Keys of objects.
const KEYS: [(&str, bool, &str, &str, &str); 8] = [
    ("volume_extension:volume_host_attribute", false, "/volumes/{v}", "volume", "os-vol-host-attr:host"),
    (
        "volume_extension:volume_tenant_attribute",
        true,
        "/volumes/{v}",
        "volume",
        "os-vol-tenant-attr:tenant_id",
    ),
    (MIGRATION, false, "/volumes/{v}", "volume", "os-vol-mig-status-attr:migstat"),
    (MIGRATION, false, "/volumes/{v}", "volume", "os-vol-mig-status-attr:name_id"),
    ("volume_extension:access_types_extra_specs", true, "/types/{t}", "volume_type", "extra_specs"),
    ("volume_extension:access_types_qos_specs_id", false, "/types/{t}", "volume_type", "qos_specs_id"),
    (
        "volume_extension:volume_type_access",
        true,
        "/types/{t}",
        "volume_type",
        "os-volume-type-access:is_public",
    ),
    (
        "volume_extension:types_extra_specs:read_sensitive",
        false,
        "/types/{t}/extra_specs",
        "extra_specs",
        "media",
    ),
];

const MIGRATION: &str = "volume_extension:volume_mig_status_attribute";

/// Actions that Mooring cannot do: a caller without the right hears that first.
const ACTIONS: [(&str, bool, &str); 9] = [
    ("volume_extension:volume_admin_actions:migrate_volume", false, "os-migrate_volume"),
    (
        "volume_extension:volume_admin_actions:migrate_volume_completion",
        false,
        "os-migrate_volume_completion",
    ),
    ("volume:reimage", true, "os-reimage"),
    ("volume_extension:volume_image_metadata:set", true, "os-set_image_metadata"),
    ("volume_extension:volume_image_metadata:show", true, "os-show_image_metadata"),
    ("volume_extension:volume_image_metadata:remove", true, "os-unset_image_metadata"),
    ("volume_extension:volume_actions:upload_image", true, "os-volume_upload_image"),
    ("volume:update_volume_admin_metadata", false, "os-update_volume_admin_metadata"),
    ("volume_extension:volume_admin_actions:extend_volume_completion", false, "os-extend_volume_completion"),
];

/// Actions on a storage host that Mooring cannot do.
const WORDS: [(&str, &str); 4] = [
    ("volume:freeze_host", "/os-services/freeze"),
    ("volume:thaw_host", "/os-services/thaw"),
    ("volume:failover_host", "/os-services/failover"),
    ("volume:failover_host", "/os-services/failover_host"),
];

fn requests() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |policy, member, (method, path), body, code| {
        all.push(Case { policy, member, method, path, body, decides: Decides::Request(code) });
    };
    for (policy, member, path) in READS {
        add(policy, member, ("GET", path), Value::Null, 200);
    }
    for (policy, member, name) in ACTIONS {
        add(policy, member, ("POST", "/volumes/{v}/action"), json!({ name: {} }), 501);
    }
    for (policy, path) in WORDS {
        add(policy, false, ("PUT", path), json!({ "host": "storage1@lvm" }), 501);
    }
    all
}

fn keys() -> Vec<Case> {
    let case = |(policy, member, path, object, key)| {
        let decides = Decides::Key(object, key);
        Case { policy, member, method: "GET", path, body: Value::Null, decides }
    };
    KEYS.into_iter().map(case).collect()
}

impl Site {
    fn call(&self, token: &str, method: &str, path: &str) -> Call<'_> {
        self.api.call(method, &format!("/v3/{PROJECT}{path}")).version("3.69").header("x-auth-token", token)
    }

    async fn made(&self, path: &str, body: Value, key: &str) -> String {
        let answer = self.call(&self.admin, "POST", path).json(&body).send().await;
        answer.body[key]["id"].as_str().unwrap_or_else(|| panic!("{}", answer.body)).to_owned()
    }

    /// `true` if the policy admits the caller with this token.
    async fn says(&self, case: &Case, token: &str) -> bool {
        let volume = json!({ "volume": { "size": 1, "metadata": { "k": "v" } } });
        let volume = self.made("/volumes", volume, "volume").await;
        let name = uuid::Uuid::new_v4().to_string();
        let specs = json!({ "multiattach": "<is> True", "media": "nvme" });
        let kind = self.made(
            "/types",
            json!({ "volume_type": { "name": name, "extra_specs": specs } }),
            "volume_type",
        );
        let place = |text: &str, kind: &str| text.replace("{v}", &volume).replace("{t}", kind);
        let kind = kind.await;
        let call = self.call(token, case.method, &place(case.path, &kind));
        let answer: Answer = match &case.body {
            Value::Null => call.send().await,
            body => call.raw("application/json", place(&body.to_string(), &kind)).send().await,
        };
        match case.decides {
            Decides::Key(object, key) => {
                assert_eq!(answer.status, 200, "{}: {}", case.policy, answer.body);
                answer.body[object].get(key).is_some()
            }
            Decides::Request(code) if answer.status == code => true,
            Decides::Request(_) => {
                let text = format!("Policy doesn't allow {} to be performed.", case.policy);
                answer.is_fault(403, "forbidden", &text);
                false
            }
        }
    }
}

/// The answers for admins and members, under this file.
async fn under(file: &str, cases: &[Case]) -> Vec<(bool, bool)> {
    let site = site(file);
    let mut says = Vec::new();
    for case in cases {
        says.push((site.says(case, &site.admin).await, site.says(case, &site.member).await));
    }
    says
}

/// Checks the default, a line that closes, and a line that opens for members only.
async fn holds(cases: &[Case]) {
    let policies: BTreeSet<_> = cases.iter().map(|case| case.policy).collect();
    let file = |rule: &str| {
        let lines: Vec<_> = policies.iter().map(|policy| format!("\"{policy}\": \"{rule}\"")).collect();
        lines.join(
            "
",
        )
    };
    let all =
        |says: (bool, bool)| cases.iter().map(|case| (case.policy, case.path, says)).collect::<Vec<_>>();
    let seen = |says: Vec<(bool, bool)>| {
        cases.iter().zip(says).map(|(case, says)| (case.policy, case.path, says)).collect::<Vec<_>>()
    };
    let defaults: Vec<_> = cases.iter().map(|case| (case.policy, case.path, (true, case.member))).collect();
    assert_eq!(seen(under("", cases).await), defaults);
    assert_eq!(seen(under(&file("!"), cases).await), all((false, false)));
    assert_eq!(seen(under(&file("role:member and not role:admin"), cases).await), all((false, true)));
}

#[tokio::test]
async fn requests_have_their_defaults_and_are_closed_and_opened_by_a_line() {
    holds(&requests()).await;
}

/// A key does not tell which policy decided about it: never two policies about one answer at a
/// time.
#[tokio::test]
async fn keys_have_their_defaults_and_are_closed_and_opened_by_a_line() {
    let mut rounds: Vec<Vec<Case>> = Vec::new();
    for key in keys() {
        // One policy may decide about two keys.
        let apart = |round: &&mut Vec<Case>| {
            round.iter().all(|other| other.policy == key.policy || other.path != key.path)
        };
        match rounds.iter_mut().find(apart) {
            Some(round) => round.push(key),
            None => rounds.push(vec![key]),
        }
    }
    for round in rounds {
        holds(&round).await;
    }
}

/// Where Cinder has no policy, the rule that says who is an admin decides.
#[tokio::test]
async fn what_has_no_policy_of_its_own_is_an_admins() {
    let admins = ["migration_status", "provider_id", "cluster_name"];
    for (line, member) in [("", false), ("\"context_is_admin\": \"role:admin or role:member\"", true)] {
        let site = site(line);
        let id = site.made("/volumes", json!({ "volume": { "size": 1 } }), "volume").await;
        let shown = site.call(&site.member, "GET", &format!("/volumes/{id}")).send().await;
        for key in admins {
            assert_eq!(shown.body["volume"].get(key).is_some(), member, "{line} {key}");
        }
        let listed = site.call(&site.member, "GET", "/volumes/detail").send().await;
        assert_eq!(
            listed.body["volumes"][0].as_object().unwrap().keys().collect::<Vec<_>>(),
            shown.body["volume"].as_object().unwrap().keys().collect::<Vec<_>>(),
            "lists and shows say the same"
        );
        // Filters by keys that others do not see.
        let filtered = site.call(&site.member, "GET", "/volumes?user_id=somebody").send().await;
        assert_eq!(filtered.status.as_u16(), if member { 200 } else { 400 }, "{line}");
    }
}
