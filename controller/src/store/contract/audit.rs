//! The audit log on every database.

use super::*;
use crate::domain::{AuditCall, AuditEntry, AuditLine, AuditObject, AuditQuery};

fn at(second: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(second)
}

fn entry(number: u64, user: Option<&str>, objects: &[&str]) -> AuditEntry {
    let object = |id: &&str| AuditObject { kind: "volume".to_owned(), id: (*id).to_owned() };
    let call = AuditCall {
        request: format!("req-{number}"),
        user: user.map(str::to_owned),
        project: user.map(|_| "p".to_owned()),
        roles: user.iter().flat_map(|_| ["member".to_owned(), "reader".to_owned()]).collect(),
        from: "2001:db8::7".parse().ok(),
        method: "POST".to_owned(),
        operation: Some("createVolume".to_owned()),
        action: None,
        objects: objects.iter().map(object).collect(),
        status: 202,
        problem: Some("none".to_owned()),
    };
    AuditEntry { at: at(number), call }
}

async fn found(place: &Place, query: AuditQuery) -> Vec<AuditLine> {
    place.read(move |db| Ok(db.audit_lines(&query)?)).await
}

async fn numbers(place: &Place, query: AuditQuery) -> Vec<String> {
    let found = found(place, query).await;
    found.into_iter().map(|line| line.entry.call.request.replace("req-", "")).collect()
}

pub(super) async fn audit_lines_are_kept_once_and_found(place: Place) {
    let all = [entry(1, Some("ann"), &["v"]), entry(2, None, &["v", "w", "v"]), entry(3, Some("bob"), &[])];
    for _ in 0..2 {
        let all = all.clone();
        place.write(move |db| Ok(all.iter().try_for_each(|entry| db.append_audit(entry))?)).await;
    }
    let every = AuditQuery { limit: 10, ..AuditQuery::default() };
    let kept = found(&place, every.clone()).await;
    let entries: Vec<_> = kept.iter().map(|line| line.entry.clone()).collect();
    assert_eq!(entries, all.iter().rev().cloned().collect::<Vec<_>>(), "as they were, the newest first");
    assert!(kept.windows(2).all(|two| two[0].seq > two[1].seq));
    let of = |query: AuditQuery| numbers(&place, query);
    assert_eq!(of(AuditQuery { since: Some(at(2)), ..every.clone() }).await, ["3", "2"]);
    assert_eq!(of(AuditQuery { until: Some(at(2)), ..every.clone() }).await, ["1"]);
    assert_eq!(of(AuditQuery { user: Some("ann".to_owned()), ..every.clone() }).await, ["1"]);
    assert_eq!(of(AuditQuery { object: Some("v".to_owned()), ..every.clone() }).await, ["2", "1"]);
    assert_eq!(of(AuditQuery { object: Some("w".to_owned()), ..every.clone() }).await, ["2"]);
    assert_eq!(of(AuditQuery { object: Some("x".to_owned()), ..every.clone() }).await, [""; 0]);
    assert_eq!(of(AuditQuery { limit: 1, ..every.clone() }).await, ["3"]);
    assert_eq!(of(AuditQuery { marker: Some(kept[0].seq), limit: 1, ..every }).await, ["2"]);
    let change =
        place.store.write("change", |db: &Db<'_>| Ok(db.run("UPDATE audit SET status = 200", &values![])?));
    assert!(change.await.is_err(), "no line is ever changed");
}

/// Objects are kept by blocks of lines.
pub(super) async fn an_objects_lines_are_found_in_every_block(place: Place) {
    let count = 2 * 1024 + 10;
    let lines = move |db: &Db<'_>| {
        let objects = |number: u64| if number % 500 == 7 { ["v", "w"] } else { ["x", "w"] };
        Ok((1..=count)
            .try_for_each(|number| db.append_audit(&entry(number, Some("ann"), &objects(number))))?)
    };
    place.write(lines).await;
    let of_v = AuditQuery { object: Some("v".to_owned()), limit: 100, ..AuditQuery::default() };
    assert_eq!(numbers(&place, of_v.clone()).await, ["2007", "1507", "1007", "507", "7"]);
    assert_eq!(numbers(&place, AuditQuery { limit: 2, ..of_v.clone() }).await, ["2007", "1507"]);
    // The oldest blocks go.
    let prune = async || place.write(|db| Ok(db.prune_audit(at(1508))?)).await;
    while prune().await > 0 {}
    assert_eq!(numbers(&place, of_v).await, ["2007"]);
    let sql = "SELECT COUNT(*) FROM audit_objects WHERE seq < (SELECT MIN(seq) FROM audit)";
    let left = place.read(move |db| Ok(db.one(sql, &[], |row| row.get(0))?)).await;
    assert_eq!(left, Some(0_u64));
}

pub(super) async fn old_audit_lines_are_pruned(place: Place) {
    let count = u64::from(PRUNE_ROWS_MAX) + 5;
    let append = move |db: &Db<'_>| {
        Ok((0..count).try_for_each(|number| db.append_audit(&entry(number, Some("ann"), &["v"])))?)
    };
    place.write(append).await;
    let prune = async || place.write(move |db| Ok(db.prune_audit(at(count - 1))?)).await;
    assert_eq!(prune().await, u64::from(PRUNE_ROWS_MAX), "one transaction is bounded");
    assert_eq!(prune().await, 4);
    assert_eq!(prune().await, 0);
    let every = AuditQuery { limit: 10, ..AuditQuery::default() };
    assert_eq!(numbers(&place, every).await, [(count - 1).to_string()]);
    let left =
        place.read(|db| Ok(db.one("SELECT COUNT(*) FROM audit_objects", &[], |row| row.get(0))?)).await;
    assert_eq!(left, Some(1_u64), "the objects go with their lines");
    // A number is never reused.
    let prune = |db: &Db<'_>| {
        Ok((db.audit_lines(&AuditQuery { limit: 1, ..AuditQuery::default() })?, db.prune_audit(db.now)?))
    };
    let (last, _) = place.write(prune).await;
    place.write(|db| Ok(db.append_audit(&entry(9, None, &[]))?)).await;
    let next = found(&place, AuditQuery { limit: 1, ..AuditQuery::default() }).await;
    assert!(next[0].seq > last[0].seq);
}
