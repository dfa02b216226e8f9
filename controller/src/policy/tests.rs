//! Tests of the whole table of policies, and of the operator's file.

use super::*;

fn caller(policies: &Policies, roles: &[&str], project: &str) -> Caller {
    let roles: Vec<_> = roles.iter().map(|role| (*role).to_owned()).collect();
    Caller {
        project: project.to_owned(),
        user: "u".to_owned(),
        admin: policies.is_admin(&roles),
        roles,
        service: false,
        request: "req-1".to_owned(),
    }
}

/// The roles that Keystone gives: a role comes with those that it implies.
const ROLES: [(&str, &[&str]); 5] = [
    ("none", &[]),
    ("reader", &["reader"]),
    ("member", &["member", "reader"]),
    ("admin", &["admin", "member", "reader"]),
    ("service", &["service"]),
];

/// The decisions for each policy and role: for the own project, and for another one.
fn decisions(policies: &Policies) -> String {
    let mark = |allowed| if allowed { '+' } else { '-' };
    let line = |policy: &table::Policy| {
        let cells: Vec<_> = ROLES
            .iter()
            .map(|(name, roles)| {
                let caller = caller(policies, roles, "own");
                let asks = |project| mark(policies.allows(policy.name, &caller, &Target::of(project)));
                format!("{name}:{}{}", asks("own"), asks("other"))
            })
            .collect();
        format!("{:<68} {}\n", policy.name, cells.join(" "))
    };
    POLICIES.iter().map(line).collect()
}

#[test]
fn decisions_of_the_new_defaults() {
    insta::assert_snapshot!(decisions(&Policies::load(None, true).unwrap()));
    assert_eq!(decisions(&Policies::default()), decisions(&Policies::load(None, true).unwrap()));
}

#[test]
fn decisions_while_the_old_defaults_hold_too() {
    insta::assert_snapshot!(decisions(&Policies::load(None, false).unwrap()));
}

#[test]
fn the_table_is_sound() {
    for enforced in [false, true] {
        let policies = Policies::load(None, enforced).unwrap();
        for name in known() {
            assert_eq!(unsound(&policies.rules, name, &mut Vec::new()), None, "{name}");
        }
    }
    for policy in POLICIES {
        for text in [Some(policy.default), policy.old].into_iter().flatten() {
            assert!(Expr::parse(text).is_ok(), "{}", policy.name);
        }
    }
    let mut names: Vec<_> = known().collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "a name is listed twice");
}

/// The laws of the reference, beside the snapshots.
#[test]
fn nobody_without_the_right_role() {
    let policies = Policies::load(None, true).unwrap();
    for policy in POLICIES {
        let may = |roles: &[&str], project| {
            policies.allows(policy.name, &caller(&policies, roles, "own"), &Target::of(project))
        };
        assert!(may(&["admin"], "other"), "{}", policy.name);
        for roles in [&[][..], &["member", "reader"]] {
            assert!(!may(roles, "other"), "{} of another project", policy.name);
        }
        assert!(!may(&[], "own"), "{}", policy.name);
        // The host that logs in is no matter of a project; the volume's own policies are asked as
        // well.
        let services = policy.name == "mooring:attach_native";
        assert_eq!(
            (may(&["service"], "own"), may(&["service"], "other")),
            (services, services),
            "{}",
            policy.name
        );
        let service = Caller { service: true, ..caller(&policies, &["member", "reader"], "own") };
        let with_token = policies.allows(policy.name, &service, &Target::of("other"));
        assert_eq!(with_token, services, "{} with a service token", policy.name);
        if policy.default == "rule:xena_system_admin_or_project_member" {
            assert!(may(&["member"], "own") && !may(&["reader"], "own"), "{}", policy.name);
        }
    }
}

#[test]
fn a_refusal_is_in_cinders_words() {
    let policies = Policies::default();
    let member = caller(&policies, &["member"], "own");
    let refused = policies.check("mooring:hosts", &member, &Target::default()).unwrap_err();
    assert!(matches!(refused, Refusal::Forbidden(_)));
    assert_eq!(refused.to_string(), "Policy doesn't allow mooring:hosts to be performed.");
}

#[test]
fn one_line_keeps_sharing_for_admins() {
    let file = "\"volume:multiattach\": \"rule:admin_api\"\n";
    assert!(EXAMPLE.contains(file));
    let policies = Policies::parse(file, "policy.yaml", false).unwrap();
    let own = Target::of("own");
    assert!(!policies.allows("volume:multiattach", &caller(&policies, &["member"], "own"), &own));
    assert!(policies.allows("volume:multiattach", &caller(&policies, &["admin"], "own"), &own));
    // The old default is not added to the operator's entry; everything else is unchanged.
    assert!(policies.allows("volume:create", &caller(&policies, &[], "own"), &own));
}

#[test]
fn the_example_is_a_policy_file_as_it_is_and_with_its_lines_in_force() {
    assert_eq!(decisions(&Policies::parse(EXAMPLE, "x", true).unwrap()), decisions(&Policies::default()));
    let lines: Vec<_> = EXAMPLE
        .lines()
        .filter_map(|line| line.strip_prefix("# ").filter(|rest| rest.starts_with('"')))
        .collect();
    assert!(lines.len() > RULES.len());
    for (name, text) in RULES {
        assert!(lines.contains(&format!("\"{name}\": \"{text}\"").as_str()), "{name} is not shown as it is");
    }
    let policies = Policies::parse(&lines.join("\n"), "x", false).unwrap();
    let operator = caller(&policies, &["storage_operator"], "own");
    assert!(policies.allows("mooring:hosts", &operator, &Target::default()) && !operator.admin);
}

#[test]
fn who_is_admin_is_a_policy() {
    let policies =
        Policies::parse("context_is_admin: role:cloud_admin and is_admin_project:True", "x", false);
    let policies = policies.unwrap();
    let roles = |role: &str| vec![role.to_owned()];
    assert!(policies.is_admin(&roles("cloud_admin")) && !policies.is_admin(&roles("admin")));
    let mut identity = Identity {
        project: Some("p".to_owned()),
        system: false,
        user: "u".to_owned(),
        roles: roles("cloud_admin"),
        admin_project: true,
        service: false,
    };
    assert!(policies.makes_admin(&identity));
    identity.admin_project = false;
    assert!(!policies.makes_admin(&identity));
}

#[test]
fn mistakes_in_the_file_are_named_with_their_line() {
    for (text, line, words) in [
        ("a: b\n", Some(1), &["a", "no check"][..]),
        (
            "\n\"volume:multiatach\": \"rule:admin_api\"\n",
            Some(2),
            &["volume:multiatach", "is it volume:multiattach?"],
        ),
        (
            "xyzzyxyzzyxyzzyxyzzyxyzzy: '!'\n",
            Some(1),
            &["no such policy, and no rule that another entry uses"],
        ),
        ("'volume:get': 'rule:nosuch'", Some(1), &["rule:nosuch does not exist"]),
        (
            "\n'volume:get': 'rule:admin_or_owner'\nadmin_or_owner: 'rule:mine'\nmine: 'rule:admin_or_owner'",
            Some(3),
            &["leads back to itself"],
        ),
        ("volume:get: '@'\n# x\nvolume:get: '!'", Some(3), &["twice"]),
        ("volume:get: role:a role:b", Some(1), &["at character 8"]),
        ("volume:get: true", Some(1), &["in quotes"]),
        // An empty value does not mean everybody: an empty text does.
        ("volume:get:", Some(1), &["in quotes"]),
        ("volume:get: ~", Some(1), &["in quotes"]),
        ("volume:get: [[role:a]]", Some(1), &["in quotes"]),
        ("- volume:get", None, &["names with expressions"]),
        ("volume:get: @", None, &["line 1"]),
        ("\tx: y", None, &["x"]),
    ] {
        let error = Policies::parse(text, "policy.yaml", false).unwrap_err().to_string();
        assert!(error.starts_with("policy.yaml"), "{error}");
        if let Some(line) = line {
            assert!(error.starts_with(&format!("policy.yaml line {line}: ")), "{text}: {error}");
        }
        for word in words {
            assert!(error.contains(word), "{text}: {error}");
        }
    }
    for nothing in ["", "# a comment", "---\n", "{}"] {
        assert!(Policies::parse(nothing, "x", false).is_ok(), "{nothing:?}");
    }
}

#[test]
fn a_long_chain_of_rules_is_refused() {
    let chain = (0..100).map(|number| format!("r{number}: rule:r{}\n", number + 1));
    let text = format!("volume:get: rule:r0\n{}r100: '@'\n", chain.collect::<String>());
    let error = Policies::parse(&text, "x", false).unwrap_err().to_string();
    assert!(error.contains("rules that name each other"), "{error}");
}

#[test]
fn a_file_that_others_could_change_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    std::fs::write(&path, "'volume:get': '!'").unwrap();
    for (mode, ok) in [(0o600, true), (0o644, true), (0o664, false), (0o646, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(Policies::load(Some(&path), false).is_ok(), ok, "{mode:o}");
    }
    assert!(Policies::load(Some(&dir.path().join("none")), false).is_err());
}

fn is_name(text: &str) -> bool {
    text.contains(':') && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":_-".contains(&byte))
}

/// Finds names after `check("`, `allows("`, `may("` and `may_with("` in a source.
fn asked(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for call in ["check(", "allows(", "may(", "may_with("] {
        for after in source.split(call).skip(1) {
            if let Some(text) = after.trim_start().strip_prefix('"') {
                names.extend(text.split('"').next().filter(|name| is_name(name)).map(str::to_owned));
            }
        }
    }
    names
}

/// The sources below a folder.
fn sources(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found
}

/// Policies of features that Mooring lacks, by their prefixes, and policies that have nothing to
/// decide.
const NOT_ASKED: [&str; 16] = [
    "backup:",
    "clusters:",
    "group:",
    "snapshot_extension:list_manageable",
    "snapshot_extension:snapshot_manage",
    "workers:",
    // A create from an image is 501 for everybody, and so is a transfer.
    "volume:accept_transfer",
    "volume:create_from_image",
    "volume:create_transfer",
    "volume:delete_transfer",
    "volume:get_transfer",
    "volume:reimage_reserved",
    "volume_extension:backup_admin_actions:",
    "volume_extension:qos_specs_manage:",
    "volume_extension:volume_actions:upload_public",
    "volume_extension:volume_type_encryption",
];

#[test]
fn what_is_there_asks_its_policies() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/policy");
    let all = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let asks = |name: &str| {
        all.iter().any(|(path, text)| !path.starts_with(&own) && text.contains(&format!("\"{name}\"")))
    };
    let exempt = |name: &str| NOT_ASKED.iter().any(|start| name.starts_with(start));
    let missing: Vec<_> =
        POLICIES.iter().map(|policy| policy.name).filter(|name| !exempt(name) && !asks(name)).collect();
    assert!(missing.is_empty(), "in the table, and never asked: {missing:?}");
}

#[test]
fn every_policy_that_is_asked_for_is_in_the_table() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let names: Vec<_> = sources.iter().flat_map(|(_, text)| asked(text)).collect();
    assert!(names.len() > 20 && names.iter().any(|name| name == "volume:get"), "{names:?}");
    for name in &names {
        assert!(POLICIES.iter().any(|policy| policy.name == name), "{name} is asked for, and is no policy");
    }
}
