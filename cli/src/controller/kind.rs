//! `mooring type`: volume types.
//!
//! What must never happen here: success for a type that exists with other words.

use std::collections::BTreeMap;

use serde_json::json;

use crate::Reply;
use crate::args::TypeCreateArgs;
use crate::controller::Client;
use crate::controller::answers::{Kind, KindCreated, Kinds, MULTIATTACH};
use crate::controller::client::{Call, wrapped};
use crate::controller::records::{ManyTypes, OneType, TypeRecord};
use crate::error::Failure;

const PATH: [&str; 2] = ["v3", "types"];

/// `type create`. Names are unique, so that a type of this name and these words is the answer to a repetition.
pub(crate) async fn create(client: &Client, args: &TypeCreateArgs) -> Result<Reply<KindCreated>, Failure> {
    let specs = specs(args)?;
    let mut kind = json!({ "name": args.name, "extra_specs": specs });
    if let Some(description) = &args.description {
        kind["description"] = json!(description);
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
        && known.description.as_deref().unwrap_or_default() == args.description.as_deref().unwrap_or_default()
}

/// `type list`.
pub(crate) async fn list(client: &Client) -> Result<Reply<Kinds>, Failure> {
    let mut types: Vec<_> = records(client).await?.into_iter().map(Kind::of_record).collect();
    types.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Reply::ok(Kinds { types }))
}

async fn records(client: &Client) -> Result<Vec<TypeRecord>, Failure> {
    Ok(client.read::<ManyTypes>(Call::get("the list of types", &PATH)).await?.volume_types)
}
