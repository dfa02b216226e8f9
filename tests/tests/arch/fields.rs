//! Fields of the agent's engine: which file may use which of them.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::modules::{is_colon, is_test_module, modules_of, tokens, word};
use super::{allowed, sources};

/// The file that defines what all clones of the engine share, and starts it.
const HOME: &str = "agent/src/engine/mod.rs";

/// Most fields that a file below the engine may use, apart from its home.
const FIELDS_MAX: usize = 7;

/// The memories of the engine's folders: fields of `Shared`, and the names of their types. Each has
/// private fields: the compiler keeps other folders from them.
const MEMORIES: [(&str, &str); 4] = [
    ("export_memory", "ExportMemory"),
    ("look_memory", "LookMemory"),
    ("start_memory", "StartMemory"),
    ("volume_memory", "VolumeMemory"),
];

fn is_dot(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == '.')
}

/// Names of the fields in the body of a struct.
pub(super) fn names_of(body: TokenStream) -> Vec<String> {
    let inner: Vec<_> = body.into_iter().collect();
    let is_name = |at: &usize| {
        let before = at.checked_sub(1).and_then(|before| inner.get(before));
        !is_colon(before) && is_colon(inner.get(at + 1)) && !is_colon(inner.get(at + 2))
    };
    (0..inner.len()).filter(is_name).filter_map(|at| word(inner.get(at))).collect()
}

/// The body of the struct of this name. Empty if there is none.
fn body_of(stream: TokenStream, name: &str) -> TokenStream {
    let tokens: Vec<_> = stream.into_iter().collect();
    let is_it = |at: usize| {
        word(tokens.get(at)).as_deref() == Some("struct") && word(tokens.get(at + 1)).as_deref() == Some(name)
    };
    let body = (0..tokens.len()).find(|at| is_it(*at)).and_then(|at| tokens.get(at + 2));
    let Some(TokenTree::Group(body)) = body else { return TokenStream::new() };
    body.stream()
}

/// Names of the fields of `struct Shared`.
fn fields_of(stream: TokenStream) -> BTreeSet<String> {
    names_of(body_of(stream, "Shared")).into_iter().collect()
}

/// Adds the fields that the tokens use: `shared.store`, or the accessor `self.store()`.
fn uses(stream: TokenStream, fields: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    let tokens: Vec<_> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => {
                if !is_test_module(&tokens, at) {
                    uses(group.stream(), fields, found);
                }
            }
            TokenTree::Ident(owner) if is_dot(tokens.get(at + 1)) => {
                let accessor = (owner == "self" || owner == "engine")
                    && matches!(tokens.get(at + 3), Some(TokenTree::Group(call))
                        if call.delimiter() == Delimiter::Parenthesis && call.stream().is_empty());
                let field = word(tokens.get(at + 2)).filter(|name| fields.contains(name));
                if owner == "shared" || accessor {
                    found.extend(field);
                }
            }
            TokenTree::Ident(_) | TokenTree::Literal(_) | TokenTree::Punct(_) => {}
        }
    }
}

#[test]
fn parts_of_the_engine_use_the_fields_that_they_need() {
    let sources = sources();
    let home = sources.iter().find(|(path, _)| path == HOME).expect("the engine");
    let mut fields = fields_of(tokens(HOME, &home.1));
    assert!((11..=20).contains(&fields.len()), "{fields:?}");
    fields.retain(|field| !MEMORIES.iter().any(|(memory, _)| memory == field));
    let mut all = BTreeSet::new();
    for (path, text) in &sources {
        let is_part = path.starts_with("agent/src/engine/") && path != HOME;
        if !is_part || modules_of("agent", path).is_none() {
            continue;
        }
        let mut found = BTreeSet::new();
        uses(tokens(path, text), &fields, &mut found);
        assert!(
            found.len() <= FIELDS_MAX,
            "{path} uses {found:?}: pass it what it needs, or cut it (docs/decisions/0081)"
        );
        all.extend(found.into_iter().map(|field| format!("{field} {path}")));
    }
    assert_eq!(allowed::compare("fields.txt", &all), Vec::<String>::new());
}

#[test]
fn a_folder_of_the_engine_keeps_its_memory_private() {
    let sources = sources();
    let text = |path: &str| &sources.iter().find(|(other, _)| other == path).expect(path).1;
    let shared = fields_of(tokens(HOME, text(HOME)));
    for (field, name) in MEMORIES {
        assert!(shared.contains(field), "{field}");
        let home = format!("agent/src/engine/{}/mod.rs", field.trim_end_matches("_memory"));
        let body = body_of(tokens(&home, text(&home)), name);
        assert!(names_of(body.clone()).len() > 1, "{home} defines {name}");
        let seen = body.into_iter().any(|token| word(Some(&token)).as_deref() == Some("pub"));
        assert!(!seen, "a field of {name} can be seen outside of {home}'s folder");
    }
}

#[test]
fn uses_of_fields_are_found_wherever_they_stand() {
    let home = "struct Shared {\n    store: Store,\n    /// Of a: b.\n    port_ids: Mutex<a::b::C>,\n    lvm: Lvm,\n}";
    let fields = fields_of(tokens("a test", home));
    assert_eq!(fields.iter().map(String::as_str).collect::<Vec<_>>(), ["lvm", "port_ids", "store"]);
    let mut found = BTreeSet::new();
    uses(tokens("a test", "fn f() { g!(lock(&x.shared.port_ids), self.store()); }"), &fields, &mut found);
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), ["port_ids", "store"]);
    let mut none = BTreeSet::new();
    let text = "fn f() { self.lvm(1); state.store(); shared.other; }\n#[cfg(test)]\nmod tests { fn t() { self.lvm(); } }";
    uses(tokens("a test", text), &fields, &mut none);
    assert_eq!(none, BTreeSet::new());
}
