//! Enrolments and join tokens on every database.

use uuid::Uuid;

use super::*;
use crate::domain::{ControllerTrust, Enrolment, JoinToken, NextAuthority};

fn at(second: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(second)
}

fn enrolment(name: &str, id: u128) -> Enrolment {
    Enrolment {
        name: name.to_owned(),
        id: Uuid::from_u128(id),
        address: format!("https://{name}:7710"),
        roles: "storage,host".parse().unwrap(),
        revoked: false,
        zone: Some("east".to_owned()),
        joined_at: at(1),
        expires_at: at(90),
    }
}

pub(super) async fn an_enrolment_is_kept_changed_and_revoked(place: Place) {
    let all = [enrolment("a", 1), Enrolment { zone: None, ..enrolment("b", 2) }];
    let kept = all.clone();
    place.write(move |db| Ok(kept.iter().rev().try_for_each(|one| db.put_enrolment(one))?)).await;
    assert_eq!(place.read(|db| Ok(db.enrolments()?)).await, all);
    // A new join replaces the old one.
    let again = Enrolment { roles: "host".parse().unwrap(), ..enrolment("a", 3) };
    let kept = again.clone();
    place.write(move |db| Ok(db.put_enrolment(&kept)?)).await;
    assert_eq!(place.read(|db| Ok(db.enrolment("a")?)).await, Some(again));
    let revoked = place.write(|db| Ok((db.revoke_enrolment("b")?, db.revoke_enrolment("c")?))).await;
    assert_eq!(revoked, (true, false));
    let b = place.read(|db| Ok(db.enrolment("b")?)).await.unwrap();
    assert_eq!(b, Enrolment { revoked: true, ..all[1].clone() });
    assert_eq!(place.read(|db| Ok(db.enrolment("c")?)).await, None);
}

pub(super) async fn a_name_has_one_join_token(place: Place) {
    let token = |hash: &str, name: &str| JoinToken {
        hash: hash.to_owned(),
        name: name.to_owned(),
        roles: "host".parse().unwrap(),
        zone: (name == "a").then(|| "az2".to_owned()),
        expires_at: at(60),
        used_by: None,
    };
    let all = [token("old", "a"), token("new", "a"), token("other", "b"), token("gone", "c")];
    let kept = all.clone();
    place.write(move |db| Ok(kept.iter().try_for_each(|one| db.put_join_token(one))?)).await;
    place.write(|db| Ok(db.drop_join_token("c")?)).await;
    let find = |hash: &'static str| place.read(move |db| Ok(db.join_token(hash)?));
    for hash in ["old", "gone", ""] {
        assert_eq!(find(hash).await, None, "{hash}");
    }
    assert_eq!((find("new").await, find("other").await), (Some(all[1].clone()), Some(all[2].clone())));
    let used = JoinToken { used_by: Some("key".to_owned()), ..all[1].clone() };
    let kept = used.clone();
    place.write(move |db| Ok(db.put_join_token(&kept)?)).await;
    assert_eq!(find("new").await, Some(used));
}

pub(super) async fn a_rotation_has_one_next_authority_and_its_key_is_sealed(place: Place) {
    let next = |name: &str| NextAuthority { certificate: format!("cert {name}"), key: format!("key {name}") };
    let (first, second) = (next("a"), next("b"));
    assert_eq!(place.read(|db| Ok(db.next_authority()?)).await, None);
    for offered in [first.clone(), second.clone()] {
        let kept = place.write(move |db| Ok(db.offer_next_authority(&offered)?)).await;
        assert_eq!(kept, first, "whoever comes first is kept");
    }
    let seen = place.read(|db| Ok((db.next_authority()?, db.meta("next_authority_key")?.unwrap()))).await;
    assert!(seen.0 == Some(first) && !seen.1.contains("key a"), "{}", seen.1);
    place.write(|db| Ok(db.drop_next_authority()?)).await;
    let offered = second.clone();
    assert_eq!(place.write(move |db| Ok(db.offer_next_authority(&offered)?)).await, second);
}

pub(super) async fn a_shared_file_is_for_one_machine_and_an_hour(place: Place) {
    let later = SystemTime::now() + Duration::from_hours(1);
    let ids = [1, 2, 3].map(Uuid::from_u128);
    place.write(move |db| Ok(db.put_share(ids[0], later)?)).await;
    // An expired note is deleted when the next is made.
    place.write(move |db| Ok(db.put_share(ids[1], at(1))?)).await;
    let take = |id: Uuid, key: &'static str| place.write(move |db| Ok(db.use_share(id, key)?));
    assert_eq!(take(ids[2], "one").await, Err("is not known to this database"));
    assert_eq!(take(ids[1], "one").await, Err("has expired"));
    assert_eq!(take(ids[0], "one").await, Ok(()));
    assert_eq!(take(ids[0], "one").await, Ok(()), "it was killed, and goes on");
    assert_eq!(take(ids[0], "other").await, Err("was used already, on another machine or with another key"));
    place.write(move |db| Ok(db.put_share(ids[2], later)?)).await;
    assert_eq!(take(ids[1], "one").await, Err("is not known to this database"));
}

/// Only the controllers of a shared database say which authorities they trust.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_word_of_a_controller_outlives_it_and_its_restarts() {
    let place = postgres();
    let say = |id: &'static str, key: &str, pin: &str| {
        let (host, key, pins) = ("h".to_owned(), key.to_owned(), vec![pin.to_owned()]);
        let word = ControllerTrust { host, key, said_us: 0, pins, shows: Vec::new() };
        place.write(move |db| Ok(db.put_controller_trust(id, &word)?))
    };
    let stand = |id: &'static str, until_us: i64| {
        let sql = format!(
            "INSERT INTO controllers (id, enrols, started_us, until_us) VALUES ('{id}', '', 0, {until_us}) \
             ON CONFLICT (id) DO UPDATE SET until_us = excluded.until_us"
        );
        place.write(move |db| Ok(db.run(&sql, &[]).map(drop)?))
    };
    let absent = || {
        place.read(|db| {
            let absent = db.absent_controllers()?.into_iter();
            Ok(absent.map(|(id, word)| format!("{id} {}", word.pins.concat())).collect::<Vec<_>>())
        })
    };
    stand("a1", i64::MAX).await;
    say("a1", "a", "old").await;
    assert_eq!(absent().await, Vec::<String>::new());
    stand("a1", 0).await;
    assert_eq!(absent().await, ["a1 old"]);
    // It is started again before its former life was removed, and goes off again.
    stand("a2", i64::MAX).await;
    say("a2", "a", "new").await;
    assert_eq!(absent().await, Vec::<String>::new());
    stand("a2", 0).await;
    assert_eq!(absent().await, ["a2 new"]);
    // Another one says something, and does not take that away.
    place.write(|db| Ok(db.run("DELETE FROM controllers", &[]).map(drop)?)).await;
    stand("b", i64::MAX).await;
    say("b", "b", "new").await;
    assert_eq!(absent().await, ["a2 new"]);
    let gone = place.read(|db| Ok(db.absent_controllers()?)).await.remove(0).1;
    place.write(move |db| Ok(db.forget_controller(&gone)?)).await;
    assert_eq!(absent().await, Vec::<String>::new());
}
