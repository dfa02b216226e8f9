//! `mooring type`: volume types.
//!
//! What must never happen here: success for a type that exists with other arguments.

use std::collections::BTreeMap;

use serde_json::{Map, json};

use crate::args::{TypeAccessArgs, TypeCreateArgs, TypeSetArgs, TypeUnsetArgs};
use crate::controller::Client;
use crate::controller::answers::{Kind, KindAccess, KindCreated, KindDeleted, KindShown, Kinds, MULTIATTACH};
use crate::controller::client::{Call, wrapped};
use crate::controller::records::{AccessList, ManyTypes, OneType, TypeRecord};
use crate::error::Failure;
use crate::output::Reply;

const PATH: [&str; 2] = ["v3", "types"];

/// `type create`. Names are unique: an existing type with this name and these arguments is the
/// result of an earlier run.
pub(crate) async fn create(client: &Client, args: &TypeCreateArgs) -> Result<Reply<KindCreated>, Failure> {
    let specs = specs(args)?;
    let mut kind = json!({ "name": args.name, "extra_specs": specs });
    if let Some(description) = &args.description {
        kind["description"] = json!(description);
    }
    if args.private {
        kind["os-volume-type-access:is_public"] = json!(false);
    }
    let call = Call::make("the new type", &PATH, wrapped("volume_type", kind));
    let record = match client.read::<OneType>(call).await {
        Ok(answer) => answer.volume_type,
        Err(fault) if fault.status() == Some(409) => {
            let known = records(client).await?.into_iter().find(|known| known.name == args.name);
            known.filter(|known| same_words(known, args, &specs)).ok_or(fault)?
        }
        Err(fault) => return Err(fault.into()),
    };
    Ok(Reply::ok(KindCreated { done: true, kind: Kind::of_record(record) }))
}

fn specs(args: &TypeCreateArgs) -> Result<BTreeMap<String, String>, Failure> {
    let shared = args.multiattach.then(|| (MULTIATTACH.0.to_owned(), MULTIATTACH.1.to_owned()));
    let mut specs = BTreeMap::new();
    for (key, value) in args.specs.iter().map(|spec| (spec.key.clone(), spec.value.clone())).chain(shared) {
        if specs.insert(key.clone(), value).is_some() {
            return Err(Failure::Usage(format!("the spec {key:?} is given twice")));
        }
    }
    Ok(specs)
}

fn same_words(known: &TypeRecord, args: &TypeCreateArgs, specs: &BTreeMap<String, String>) -> bool {
    let kept = known.extra_specs.iter().map(|(key, value)| (key.as_str(), value.as_deref()));
    let wanted = specs.iter().map(|(key, value)| (key.as_str(), Some(value.as_str())));
    kept.eq(wanted)
        && known.is_public != args.private
        && known.description.as_deref().unwrap_or_default() == args.description.as_deref().unwrap_or_default()
}

/// `type list`.
pub(crate) async fn list(client: &Client) -> Result<Reply<Kinds>, Failure> {
    let mut types: Vec<_> = records(client).await?.into_iter().map(Kind::of_record).collect();
    types.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Reply::ok(Kinds { types }))
}

/// All types, including private ones that the user may see.
async fn records(client: &Client) -> Result<Vec<TypeRecord>, Failure> {
    let mut types: Vec<TypeRecord> = Vec::new();
    loop {
        let mut call = Call::get("the list of types", &PATH).query("is_public", &"None");
        if let Some(last) = types.last() {
            call = call.query("marker", &last.id);
        }
        let page: ManyTypes = client.read(call).await?;
        // An empty page with a link to the next one would loop for ever.
        let more =
            !page.volume_types.is_empty() && page.volume_type_links.iter().any(|link| link.rel == "next");
        types.extend(page.volume_types);
        if !more {
            return Ok(types);
        }
    }
}

/// The one type that is meant. A name that looks like an id is still a name.
async fn find(client: &Client, wanted: &str) -> Result<TypeRecord, Failure> {
    let mut types = records(client).await?;
    let at = types.iter().position(|kind| kind.id == wanted);
    let at = at.or_else(|| types.iter().position(|kind| kind.name == wanted));
    at.map(|at| types.swap_remove(at))
        .ok_or_else(|| Failure::NotFound(format!("no volume type is named {wanted:?}, or has this id")))
}

async fn shown(client: &Client, id: &str) -> Result<Reply<KindShown>, Failure> {
    let record = client.read::<OneType>(Call::get("the type", &["v3", "types", id])).await?.volume_type;
    Ok(Reply::ok(KindShown { kind: Kind::of_record(record) }))
}

/// `type show`.
pub(crate) async fn show(client: &Client, kind: &str) -> Result<Reply<KindShown>, Failure> {
    shown(client, &find(client, kind).await?.id).await
}

/// `type set`.
pub(crate) async fn set(client: &Client, args: &TypeSetArgs) -> Result<Reply<KindShown>, Failure> {
    let id = find(client, &args.kind).await?.id;
    let mut specs = BTreeMap::new();
    for spec in &args.specs {
        if specs.insert(&spec.key, &spec.value).is_some() {
            return Err(Failure::Usage(format!("the spec {:?} is given twice", spec.key)));
        }
    }
    if !specs.is_empty() {
        let path = ["v3", "types", &id, "extra_specs"];
        client.done(Call::make("the new specs", &path, wrapped("extra_specs", specs))).await?;
    }
    let mut change = Map::new();
    for (key, text) in [("name", &args.name), ("description", &args.description)] {
        if let Some(text) = text {
            change.insert(key.to_owned(), json!(text));
        }
    }
    if args.public || args.private {
        change.insert("is_public".to_owned(), json!(args.public));
    }
    if !change.is_empty() {
        let body = wrapped("volume_type", change);
        client.done(Call::put("the change of the type", &["v3", "types", &id], body)).await?;
    }
    shown(client, &id).await
}

/// `type unset`. A missing key counts as removed.
pub(crate) async fn unset(client: &Client, args: &TypeUnsetArgs) -> Result<Reply<KindShown>, Failure> {
    let id = find(client, &args.kind).await?.id;
    for key in &args.keys {
        let path = ["v3", "types", &id, "extra_specs", key];
        match client.done(Call::delete("the end of a spec", &path)).await {
            Err(fault) if fault.status() == Some(404) => {}
            sent => sent?,
        }
    }
    shown(client, &id).await
}

/// `type access`. A repetition succeeds again.
pub(crate) async fn access(client: &Client, args: &TypeAccessArgs) -> Result<Reply<KindAccess>, Failure> {
    let kind = find(client, &args.kind).await?;
    let add = args.add.iter().map(|project| ("addProjectAccess", project, 409));
    let remove = args.remove.iter().map(|project| ("removeProjectAccess", project, 404));
    for (action, project, already) in add.chain(remove) {
        let body = wrapped(action, json!({ "project": project }));
        let call = Call::make("the change of access", &["v3", "types", &kind.id, "action"], body);
        match client.done(call).await {
            Err(fault) if fault.status() == Some(already) => {}
            sent => sent?,
        }
    }
    let path = ["v3", "types", &kind.id, "os-volume-type-access"];
    let list = client.read::<AccessList>(Call::get("the list of projects", &path)).await?;
    let projects = list.volume_type_access.into_iter().map(|entry| entry.project_id).collect();
    Ok(Reply::ok(KindAccess { type_id: kind.id, name: kind.name, projects }))
}

/// `type delete`.
pub(crate) async fn delete(client: &Client, kind: &str) -> Result<Reply<KindDeleted>, Failure> {
    let kind = find(client, kind).await?;
    match client.done(Call::delete("the deletion", &["v3", "types", &kind.id])).await {
        // The answer to an earlier attempt was lost.
        Err(fault) if fault.status() == Some(404) => {}
        sent => sent?,
    }
    Ok(Reply::ok(KindDeleted { done: true, type_id: kind.id, name: kind.name }))
}
