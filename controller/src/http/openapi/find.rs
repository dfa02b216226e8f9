//! Finds the operation that an address belongs to, also before a route has taken the request.
//!
//! What must never happen here: an address of one operation that is found as another's.

use axum::http::Method;

use super::operation::Operation;
use super::{BLOCK_STORAGE, OWN, ROOT, rows};
use crate::http::schema;

/// An API, and the path below it (below the project, for the Block Storage API).
pub(in crate::http) type Api = (Which, String);

/// The two APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Which {
    BlockStorage,
    Own,
}

/// An operation and the objects that its address names.
pub(in crate::http) struct Found {
    pub(in crate::http) id: &'static str,
    /// Kinds and ids from the address.
    pub(in crate::http) objects: Vec<(String, String)>,
}

fn name_of(part: &str) -> Option<&str> {
    part.strip_prefix('{')?.strip_suffix('}')
}

/// The kind of the objects in a collection: a `volume` below `volumes`.
fn kind_of(name: &str, collection: &str) -> String {
    match (name, collection) {
        ("id" | "name", "qos-specs") => "qos-spec".to_owned(),
        ("id" | "name", "os-volume-transfer" | "volume-transfers") => "transfer".to_owned(),
        ("id" | "name", plural) => plural.strip_suffix('s').unwrap_or(plural).to_owned(),
        (other, _) => other.to_owned(),
    }
}

/// The text of a variable part, with an object's id in the form that answers have.
fn canonical(name: &str, part: &str) -> String {
    let id = if name == "id" { schema::id(part) } else { None };
    id.map_or_else(|| part.to_owned(), |id| id.to_string())
}

/// The number of variable parts of an operation's path; `None` if this path does not match it.
fn variables(operation: &Operation, path: &str) -> Option<usize> {
    let (mut said, mut parts, mut count) = (operation.path.split('/'), path.split('/'), 0);
    loop {
        match (said.next(), parts.next()) {
            (None, None) => return Some(count),
            (Some(said), Some(part)) if said == part => {}
            (Some(said), Some(part)) if name_of(said).is_some() && !part.is_empty() => count += 1,
            _ => return None,
        }
    }
}

/// The kinds and ids of the variable parts of a path that matches the operation's.
fn objects(operation: &Operation, path: &str) -> Vec<(String, String)> {
    let (mut objects, mut collection) = (Vec::new(), "");
    for (said, part) in operation.path.split('/').zip(path.split('/')) {
        match name_of(said) {
            Some(name) => objects.push((kind_of(name, collection), canonical(name, part))),
            None => collection = said,
        }
    }
    objects
}

/// Finds an operation. Of two that match, takes the one with fewer variable parts, as the router
/// does.
pub(in crate::http) fn find((api, path): (Which, &str), method: &Method) -> Option<Found> {
    let all = match api {
        Which::BlockStorage => BLOCK_STORAGE,
        Which::Own => OWN,
    };
    // Addresses outside of projects are compared in full.
    let open = |operation: &&Operation| {
        api == Which::Own && operation.path.strip_prefix("/mooring/v1") == Some(path)
    };
    if let Some(found) = rows(ROOT).filter(open).find(|operation| operation.method == method.as_str()) {
        return Some(Found { id: found.id, objects: Vec::new() });
    }
    // Most rows are another collection's.
    let collection = path.split('/').nth(1).unwrap_or_default();
    let near = |path: &str| path.get(1..).is_some_and(|p| p.starts_with(collection) || p.starts_with('{'));
    let of_method = rows(all).filter(|operation| near(operation.path) && operation.method == method.as_str());
    let found = of_method.filter_map(|operation| Some((variables(operation, path)?, operation)));
    let (_, operation) = found.min_by_key(|(count, _)| *count)?;
    Some(Found { id: operation.id, objects: objects(operation, path) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_found_by_its_own_address() {
        for (which, all) in [(Which::BlockStorage, BLOCK_STORAGE), (Which::Own, OWN)] {
            for operation in rows(all) {
                let part =
                    |part: &str| if name_of(part).is_some() { "x".to_owned() } else { part.to_owned() };
                let path = operation.path.split('/').map(part).collect::<Vec<_>>().join("/");
                let method = operation.method.parse().unwrap();
                let found = find((which, &path), &method).unwrap();
                assert_eq!(found.id, operation.id, "{path}");
                assert_eq!(found.objects.len(), operation.path.matches('{').count(), "{path}");
            }
        }
    }

    #[test]
    fn objects_have_the_kinds_of_their_collections() {
        let of = |which, method: &str, path: &str| {
            find((which, path), &method.parse().unwrap()).map(|found| (found.id, found.objects))
        };
        let pair = |kind: &str, id: &str| (kind.to_owned(), id.to_owned());
        let (storage, own) = (Which::BlockStorage, Which::Own);
        assert_eq!(
            of(storage, "DELETE", "/volumes/v/metadata/k"),
            Some(("deleteMetadata", vec![pair("volume", "v"), pair("key", "k")]))
        );
        // An id has one form in the audit log; a project keeps its own.
        let digits = "0000000000004000800000000000dead";
        let dead = "00000000-0000-4000-8000-00000000dead";
        let path = format!("/volumes/{digits}");
        assert_eq!(of(storage, "DELETE", &path), Some(("deleteVolume", vec![pair("volume", dead)])));
        let path = format!("/os-quota-sets/{digits}");
        assert_eq!(of(storage, "PUT", &path), Some(("setQuotas", vec![pair("project", digits)])));
        assert_eq!(of(own, "POST", "/hosts/h/fence"), Some(("fenceHost", vec![pair("host", "h")])));
        assert_eq!(of(storage, "PUT", "/os-quota-sets/p"), Some(("setQuotas", vec![pair("project", "p")])));
        assert_eq!(of(storage, "DELETE", "/volumes/"), None);
        assert_eq!(of(own, "PATCH", "/hosts/h/fence"), None);
    }
}
