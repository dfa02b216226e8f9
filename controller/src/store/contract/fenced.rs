//! Changes that rely on a lease.

use super::*;
use crate::store::leases::Fence;

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_kept_only_by_the_holder_of_its_lease() {
    let place = postgres();
    let lease = |db: &Db<'_>| {
        Ok(db.run("INSERT INTO leases (agent, holder, since_us) VALUES ('a', 'one', 0)", &[]).map(drop)?)
    };
    place.write(lease).await;
    let by = |agent: &str, holder: &str| Fence { agent: agent.to_owned(), holder: holder.to_owned() };
    for (key, fence, kept) in [
        ("none", None, true),
        ("holder", Some(by("a", "one")), true),
        ("other", Some(by("a", "two")), false),
        ("other_agent", Some(by("b", "one")), false),
    ] {
        let store = place.store.fenced(fence.clone());
        let (soon, at_once) = (format!("{key}_soon"), key.to_owned());
        let keys = [at_once.clone(), soon.clone()];
        let results = [
            store.write("test", move |db| Ok(db.set_meta(&at_once, "1")?)).await,
            store.write_soon("test", move |db| Ok(db.set_meta(&soon, "1")?)).await,
        ];
        for (key, result) in keys.into_iter().zip(results) {
            assert_eq!(result.is_ok(), kept, "{key}: {result:?}");
            assert!(kept || matches!(result, Err(Refusal::Unavailable(_))), "{result:?}");
            // Whoever only reads needs no lease.
            let seen = store.read("test", move |db| Ok(db.meta(&key)?)).await.unwrap();
            assert_eq!(seen.is_some(), kept);
        }
    }
}
