//! Arrows between the modules of a crate, and who may touch the machine and its clocks.
//!
//! A module is one directly below `src/`; a folder is one module, and inside of it `super` and
//! siblings are free.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{allowed, sources};

/// Modules of each crate from the lowest floor to the highest. One may import those before it and
/// those on its own line's left.
pub(super) const ORDER: &[(&str, &[&str])] = &[
    (
        "agent",
        &[
            "clock",
            "places",
            "images",
            "standing",
            "workers",
            "links",
            "rate_limit",
            "object",
            "machine",
            "args",
            "config",
            "lvm",
            "store",
            "fibre_channel",
            "capabilities",
            "identity",
            "door",
            "engine",
            "connection",
            "metrics",
            "rpc",
            "run",
            "adopt",
            "join",
        ],
    ),
    ("api", &["address", "field", "image", "digest", "convert", "connection", "receipt", "reports"]),
    ("bus", &["link", "inhibit", "units", "fake"]),
    (
        "cli",
        &[
            "text",
            "table",
            "problem",
            "url",
            "error",
            "secret",
            "volume_ref",
            "args",
            "chap",
            "session",
            "select",
            "capabilities",
            "output",
            "display",
            "controller",
            "cut",
            "demo",
            "export",
            "agent",
            "jobs",
            "reservations",
            "sessions",
            "side",
            "volume",
            "complete",
        ],
    ),
    (
        "connectors",
        &[
            "clock", "wire", "iscsi", "direct", "line", "client", "named", "audit", "sessions", "links",
            "device", "op", "error", "vpd", "sessiond", "plan", "view", "apply", "report", "fabric", "fake",
            "release",
        ],
    ),
    (
        "controller",
        &[
            "clock",
            "initiators",
            "list",
            "permits",
            "domain",
            "error",
            "shake",
            "authority",
            "policy",
            "quota",
            "rules",
            "schedule",
            "store",
            "kept",
            "audit",
            "agents",
            "flow",
            "service",
            "rebuild",
            "auth",
            "http",
            "metrics",
            "config",
            "renewal",
            "share",
            "init",
            "rotate",
            "args",
        ],
    ),
    (
        "host",
        &[
            "tree",
            "callers",
            "clock",
            "command",
            "folders",
            "image",
            "lock",
            "net",
            "netlink",
            "addresses",
            "sys",
            "iscsi",
            "pr",
            "remains",
            "front",
            "harden",
            "disk",
            "block",
            "dump",
            "contract",
            "uevent",
            "fake",
        ],
    ),
    (
        "model",
        &[
            "tuning",
            "cache",
            "cure",
            "generation",
            "id",
            "image",
            "limit",
            "mode",
            "name",
            "counters",
            "error",
            "fc",
            "initiator",
            "reservation",
            "secret",
            "size",
            "job",
            "spec",
            "report",
            "plan",
            "connection",
            "usage",
        ],
    ),
    (
        "systemd",
        &[
            "private",
            "certificates",
            "config",
            "cores",
            "folder",
            "journal",
            "metrics",
            "notify",
            "paths",
            "places",
            "sealing",
        ],
    ),
    (
        "targets",
        &[
            "info",
            "layout",
            "lv",
            "op",
            "error",
            "apply",
            "port",
            "tuning",
            "view",
            "reservations",
            "plan",
            "live",
            "fc",
            "take_away",
            "adopt",
            "narrow",
            "report",
            "exports",
        ],
    ),
];

/// Crates that reach files of the machine, commands and clocks through `host` alone.
const THROUGH_HOST: [&str; 3] = ["agent", "targets", "connectors"];

/// Files of the machine begin with these.
const MACHINE: [&str; 6] = ["/sys/", "/proc/", "/dev/", "/etc/", "/lib/modules", "/var/target"];

/// Functions that return a folder of the machine: their callers name none.
const MACHINE_FOLDERS: [&str; 2] = ["pr_folder", "reservations_folder"];

/// Path of a file below `src/` as modules, such as `["engine", "pass"]`; `None` for files of tests.
pub(super) fn modules_of<'a>(krate: &str, path: &'a str) -> Option<Vec<&'a str>> {
    let below = path.strip_prefix(krate)?.strip_prefix("/src/")?.strip_suffix(".rs")?;
    let parts: Vec<_> = below.split('/').filter(|part| !matches!(*part, "mod" | "lib" | "main")).collect();
    let is_test = parts.iter().any(|part| *part == "tests" || part.ends_with("_tests") || *part == "bin");
    (!is_test).then_some(parts)
}

/// The identifier of a token.
pub(super) fn word(token: Option<&TokenTree>) -> Option<String> {
    match token? {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    }
}

pub(super) fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}

/// First names after `::`: one, or those of a group in braces.
fn names_after(tokens: &[TokenTree], at: usize) -> Vec<String> {
    if !(is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1))) {
        return Vec::new();
    }
    match tokens.get(at + 2) {
        Some(TokenTree::Ident(ident)) => vec![ident.to_string()],
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inner: Vec<_> = group.stream().into_iter().collect();
            let first = |index: &usize| {
                let before = index.checked_sub(1).and_then(|before| inner.get(before));
                matches!(before, None | Some(TokenTree::Punct(_))) && !is_colon(before)
            };
            (0..inner.len()).filter(first).filter_map(|index| word(inner.get(index))).collect()
        }
        _ => Vec::new(),
    }
}

/// True if the group at `at` is the body of a module.
fn is_module(tokens: &[TokenTree], at: usize) -> bool {
    at.checked_sub(2).and_then(|before| word(tokens.get(before))).as_deref() == Some("mod")
}

/// True if the group at `at` is the body of a module that only tests have.
pub(super) fn is_test_module(tokens: &[TokenTree], at: usize) -> bool {
    is_module(tokens, at) && is_for_tests(tokens, at - 2)
}

/// True if the tokens before `at` are `#[cfg(test)]`, also with `any` or `all` around `test`, and
/// whatever may stand between.
fn is_for_tests(tokens: &[TokenTree], at: usize) -> bool {
    let mut attributes = Vec::new();
    for token in tokens[..at].iter().rev() {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                attributes.push(group.stream().to_string());
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => {}
            TokenTree::Punct(punct) if punct.as_char() == '#' => {}
            TokenTree::Ident(ident) if ident == "pub" => {}
            _ => break,
        }
    }
    attributes.iter().any(|text| text.starts_with("cfg") && text.contains("test"))
}

/// Names that follow `crate::`, or as many `super::` as lead to the crate's root. `depth` is the
/// number of modules around the tokens.
fn imports(stream: TokenStream, depth: usize, found: &mut BTreeSet<String>) {
    let tokens: Vec<_> = stream.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token {
            TokenTree::Group(group) if !is_test_module(&tokens, at) => {
                imports(group.stream(), depth + usize::from(is_module(&tokens, at)), found);
            }
            TokenTree::Ident(ident) if ident == "crate" => found.extend(names_after(&tokens, at + 1)),
            TokenTree::Ident(ident) if ident == "super" => {
                let mut supers = 1;
                while names_after(&tokens, at + 1) == ["super"] {
                    supers += 1;
                    at += 3;
                }
                if supers == depth {
                    found.extend(names_after(&tokens, at + 1));
                }
            }
            _ => {}
        }
        at += 1;
    }
}

pub(super) fn tokens(path: &str, text: &str) -> TokenStream {
    text.parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Adds the names that the trees of a `use` bring, with the first module of their path.
fn leaves(tokens: &[TokenTree], module: Option<&str>, found: &mut BTreeMap<String, String>) {
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
    for tree in tokens.split(is_comma) {
        let names: Vec<_> = tree
            .iter()
            .filter_map(|token| word(Some(token)))
            .filter(|name| !matches!(name.as_str(), "crate" | "self" | "as"))
            .collect();
        let first = module.or(names.first().map(String::as_str));
        let group = tree.iter().find_map(|token| match token {
            TokenTree::Group(group) => Some(group.stream()),
            _ => None,
        });
        if let Some(group) = group {
            let inner: Vec<_> = group.into_iter().collect();
            leaves(&inner, first, found);
        } else if let (Some(module), Some(name)) = (first, names.last()) {
            found.insert(name.clone(), module.to_owned());
        }
    }
}

/// Adds the modules and the imported names of a crate's root, each with the module that it comes
/// from.
fn names_of_root(stream: TokenStream, found: &mut BTreeMap<String, String>) {
    let tokens: Vec<_> = stream.into_iter().collect();
    let is_end = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';');
    for (at, token) in tokens.iter().enumerate() {
        match word(Some(token)).as_deref() {
            Some("use") => {
                let end = tokens[at..].iter().position(is_end).map_or(tokens.len(), |length| at + length);
                leaves(&tokens[at + 1..end], None, found);
            }
            Some("mod") => found.extend(word(tokens.get(at + 1)).map(|name| (name.clone(), name))),
            _ => {}
        }
    }
}

/// Begin of the name of an item that the root itself defines. The root imports every module, so
/// such an item is above all of them.
const ROOT: &str = "the root's ";

/// Modules that each module imports: a name that the root re-exports counts as its module's.
fn arrows_of(krate: &str, sources: &[(String, String)]) -> BTreeMap<String, BTreeSet<(String, String)>> {
    let own_files: Vec<_> =
        sources.iter().filter_map(|(path, text)| Some((path, text, modules_of(krate, path)?))).collect();
    let mut root = BTreeMap::new();
    // A program beside the library imports the library by its name.
    for (path, text, _) in own_files.iter().filter(|(path, _, _)| path.ends_with("/src/lib.rs")) {
        names_of_root(tokens(path, text), &mut root);
    }
    let mut arrows = BTreeMap::<_, BTreeSet<_>>::new();
    for (path, text, modules) in own_files {
        let mut found = BTreeSet::new();
        imports(tokens(path, text), modules.len(), &mut found);
        // The root of a library or a program imports all that it has.
        let Some(own) = modules.first() else { continue };
        let module = |name: String| root.get(&name).cloned().unwrap_or_else(|| format!("{ROOT}{name}"));
        let others = found.into_iter().map(module).filter(|name| name != own);
        arrows.entry((*own).to_owned()).or_default().extend(others.map(|name| (path.clone(), name)));
    }
    arrows
}

#[test]
fn modules_import_downwards() {
    let mut upward = BTreeSet::new();
    let mut without_floor = Vec::new();
    let sources = sources();
    for (krate, order) in ORDER {
        let arrows = arrows_of(krate, &sources);
        let floor = |name: &str| order.iter().position(|floor| *floor == name);
        without_floor.extend(
            arrows.keys().filter(|name| floor(name).is_none()).map(|name| format!("{krate}: {name}")),
        );
        without_floor.extend(
            order
                .iter()
                .filter(|name| !arrows.contains_key(**name))
                .map(|name| format!("{krate}: {name} is no module")),
        );
        for (own, others) in &arrows {
            for (path, other) in others {
                let is_above = floor(other).is_some_and(|other| Some(other) > floor(own));
                if is_above || other.starts_with(ROOT) {
                    upward.insert(format!("{path} -> {other}"));
                }
            }
        }
    }
    assert_eq!(without_floor, Vec::<String>::new(), "each module has its place in ORDER");
    assert_eq!(allowed::compare("arrows.txt", &upward), Vec::<String>::new());
}

#[test]
fn imports_are_found_wherever_they_stand() {
    let text = "use crate::{a::{x, y}, b, c as d};\nuse super::super::e;\nuse super::near;\nfn f() { g!(crate::h::i()); }\n\
                #[cfg(test)]\nmod tests { use crate::only_tests; }\n#[cfg(unix)]\nmod own { use super::super::super::j; }\n\
                /// crate::not_code\nconst T: &str = \"crate::not_code\";";
    let mut found = BTreeSet::new();
    imports(tokens("a test", text), 2, &mut found);
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "b", "c", "e", "h", "j"]);
    let root = "mod low;\npub mod top { pub use inner::hidden; }\npub use low::{Kept, deep::{Found, other as Renamed}};\n\
                pub(crate) use crate::top::Thing;\nuse crate::{low::One, top::{self, Two}};\nstruct Own;\nfn f() { use near::Far; }";
    let mut names = BTreeMap::new();
    names_of_root(tokens("a test", root), &mut names);
    let names: Vec<_> = names.iter().map(|(name, module)| format!("{module}: {name}")).collect();
    assert_eq!(
        names,
        [
            "low: Found",
            "low: Kept",
            "low: One",
            "low: Renamed",
            "top: Thing",
            "top: Two",
            "low: low",
            "top: top"
        ]
    );
    // A re-export is an arrow to its module, and an item of the root is one to the root.
    let sources = [("a/src/lib.rs", root), ("a/src/low.rs", "use crate::{Own, Thing};\nuse crate::low::x;")];
    let sources = sources.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let low: Vec<_> =
        arrows_of("a", &sources).remove("low").into_iter().flatten().map(|(_, to)| to).collect();
    assert_eq!(low, ["the root's Own", "top"]);
    assert_eq!(modules_of("agent", "agent/src/engine/pass.rs"), Some(vec!["engine", "pass"]));
    assert_eq!(modules_of("agent", "agent/src/engine/mod.rs"), Some(vec!["engine"]));
    assert_eq!(modules_of("agent", "agent/src/lib.rs"), Some(vec![]));
    assert_eq!(modules_of("agent", "agent/src/engine/tests.rs"), None);
}

/// Names and pairs `A::b` of a file outside of its tests, and its texts.
fn pairs_and_texts(stream: TokenStream, pairs: &mut BTreeSet<String>, texts: &mut Vec<String>) {
    let tokens: Vec<_> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => {
                let is_doc = matches!(group.delimiter(), Delimiter::Bracket)
                    && group.stream().to_string().starts_with("doc");
                if !is_doc && !is_test_module(&tokens, at) {
                    pairs_and_texts(group.stream(), pairs, texts);
                }
            }
            TokenTree::Ident(ident) => {
                pairs.insert(ident.to_string());
                pairs.extend(names_after(&tokens, at + 1).into_iter().map(|name| format!("{ident}::{name}")));
            }
            TokenTree::Literal(literal) => texts.push(literal.to_string()),
            TokenTree::Punct(_) => {}
        }
    }
}

/// Says whether a literal names a file of the machine, or a folder of such. A file below another
/// root has no slash before it.
fn is_of_machine(literal: &str) -> bool {
    let text = literal.trim_start_matches('b').trim_matches('"');
    MACHINE.iter().any(|begin| {
        let below_root = begin.trim_start_matches('/');
        text.starts_with(*begin) || text.starts_with(below_root) || text == begin.trim_end_matches('/')
    })
}

/// Findings of a file: it reads the machine past `host`, runs commands, or reads a clock.
fn past_host(path: &str, text: &str) -> (bool, bool, bool) {
    let (mut pairs, mut texts) = (BTreeSet::new(), Vec::new());
    pairs_and_texts(tokens(path, text), &mut pairs, &mut texts);
    let has = |some: &[&str]| some.iter().any(|pair| pairs.contains(*pair));
    let opens = [
        "std::fs",
        "tokio::fs",
        "File::open",
        "File::create",
        "OpenOptions::new",
        "is_dir",
        "is_file",
        "exists",
    ];
    // A text with a blank is a sentence of a log or of an error.
    let is_path = |text: &&String| !text.contains(' ');
    let names_machine = texts.iter().filter(is_path).any(|text| is_of_machine(text)) || has(&MACHINE_FOLDERS);
    // An import may have another name, such as `StdInstant`.
    let clocks = ["Instant::now", "SystemTime::now", "Timestamp::now", "Zoned::now"];
    let reads_clock = pairs.iter().any(|pair| clocks.iter().any(|clock| pair.ends_with(clock)));
    (names_machine && has(&opens), has(&["Command::new", "process::Command"]), reads_clock)
}

#[test]
fn the_machine_and_its_clocks_are_reached_through_their_modules() {
    let (mut files, mut commands, mut clocks) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (path, text) in sources() {
        let Some(modules) = THROUGH_HOST.iter().find_map(|krate| modules_of(krate, &path)) else { continue };
        let (machine, command, clock) = past_host(&path, &text);
        // A simulation has no machine.
        files.extend((machine && modules.first() != Some(&"fake")).then(|| path.clone()));
        commands.extend(command.then(|| path.clone()));
        clocks.extend((clock && !modules.contains(&"clock")).then(|| path.clone()));
    }
    let mut wrong = allowed::compare("machine.txt", &files);
    wrong.extend(allowed::compare("commands.txt", &commands));
    wrong.extend(allowed::compare("clocks.txt", &clocks));
    assert_eq!(wrong, Vec::<String>::new());
    let seen = past_host(
        "a test",
        "use std::fs;\nfn f() { fs::read(\"/sys/x\"); Command::new(\"lvs\"); let t = tokio::time::Instant::now(); }",
    );
    assert_eq!(seen, (true, true, true));
    for machine in [
        "fn f() { std::fs::read(root.join(\"etc/os-release\")); }",
        "fn f() { Path::new(\"/dev\").join(group).is_dir(); }",
        "fn f() { std::fs::remove_file(reservations_folder().join(file)); }",
    ] {
        assert_eq!(past_host("a test", machine), (true, false, false), "{machine}");
    }
    assert_eq!(past_host("a test", "fn f() { StdInstant::now(); }"), (false, false, true));
    let unseen = past_host(
        "a test",
        "/// `/sys/x`, Command::new\nfn f() { std::fs::read(path); }\n#[cfg(test)]\nmod tests { fn t() { Instant::now(); } }",
    );
    assert_eq!(unseen, (false, false, false));
}
