//! Number of fields of a struct in product code. Rows, wire, configuration and layouts of the
//! kernel are listed: they have a field for each column, key or member.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::fields::names_of;
use super::modules::{ORDER, is_test_module, modules_of, tokens, word};
use super::{allowed, sources};

/// Most fields of a struct.
const FIELDS_MAX: usize = 20;

/// Body of a struct, from the tokens behind its name. `None` if its fields have no names.
fn body(behind: &[TokenTree]) -> Option<TokenStream> {
    let end = behind.iter().find_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(Some(group.stream())),
        TokenTree::Punct(punct) if punct.as_char() == ';' => Some(None),
        _ => None,
    });
    end.flatten()
}

/// Adds the structs with named fields outside of tests: the name, and the number of fields.
fn structs(stream: TokenStream, found: &mut Vec<(String, usize)>) {
    let tokens: Vec<_> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => {
                if !is_test_module(&tokens, at) {
                    structs(group.stream(), found);
                }
            }
            TokenTree::Ident(ident) if ident == "struct" => {
                let body = tokens.get(at + 2..).and_then(body);
                found.extend(word(tokens.get(at + 1)).zip(body.map(|body| names_of(body).len())));
            }
            TokenTree::Ident(_) | TokenTree::Literal(_) | TokenTree::Punct(_) => {}
        }
    }
}

#[test]
fn structs_of_code_have_few_fields() {
    let (mut large, mut seen) = (BTreeSet::new(), 0);
    for (path, text) in sources() {
        if !ORDER.iter().any(|(krate, _)| modules_of(krate, &path).is_some()) {
            continue;
        }
        let mut found = Vec::new();
        structs(tokens(&path, &text), &mut found);
        seen += found.len();
        let too_large = found.into_iter().filter(|(_, fields)| *fields > FIELDS_MAX);
        large.extend(too_large.map(|(name, _)| format!("{path} {name}")));
    }
    assert!(seen > 500, "{seen} structs only");
    assert_eq!(allowed::compare("structs.txt", &large), Vec::<String>::new());
}

#[test]
fn fields_are_counted_wherever_a_struct_stands() {
    let text = "struct A { a: u8, #[x(y: z)] pub b: B<C, d::E>, }\nstruct F(u8);\nstruct G;\n\
                mod m { pub(crate) struct H<T> where T: Fn(u8) -> I { j: T } }\n\
                fn f() { struct K { l: u8 } }\n#[cfg(test)]\nmod tests { struct M { n: u8 } }";
    let mut found = Vec::new();
    structs(tokens("a test", text), &mut found);
    assert_eq!(found, [("A", 2_usize), ("H", 1), ("K", 1)].map(|(name, fields)| (name.to_owned(), fields)));
}
