//! Pages of specs, on every database.

use super::*;

pub(super) async fn specs_that_somebody_is_to_know_come_in_pages(place: Place) {
    let (one, two, three) = (place.volume().await.id, place.volume().await.id, place.volume().await.id);
    let host = AgentId::from_u128(3);
    let storage = place.read(move |db| Ok(db.volume(one)?.map(|volume| volume.agent))).await.unwrap();
    let made = place.write(move |db| {
        let content = |text: &str| SpecContent::spec(&mooring_api::v1::VolumeSpec::default(), text.into());
        let (volume, _) = db.put_spec(one, Kind::Volume, &content("a"))?;
        let (connection, _) = db.put_spec(one, Kind::Connection(host), &content("b"))?;
        // Three kinds of specs are not sent: a connection whose end is known, a volume whose end
        // has failed, and a volume in review.
        let gone = SpecContent::tombstone(Kind::Connection(storage), false);
        let (at, _) = db.put_spec(one, Kind::Connection(storage), &gone)?;
        db.settle_connection(one, storage, at)?;
        db.put_spec(two, Kind::Volume, &content("c"))?;
        db.set_operation(two, Some(Operation::ErrorDeleting), None)?;
        db.put_spec(three, Kind::Volume, &content("d"))?;
        db.put_in_review(three, ReviewKind::Ahead, "why")?;
        Ok([(Kind::Volume, storage, volume), (Kind::Connection(host), host, connection)])
    });
    let made = made.await;
    for volumes in [1, 2, 3, 10] {
        let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = place.read(move |db| Ok(db.due_specs_after(after, volumes)?)).await;
            pages += 1;
            assert!(page.specs.iter().all(|due| due.volume == one));
            seen.extend(page.specs.into_iter().map(|one| (one.kind, one.agent, one.stamp.generation)));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        seen.sort();
        assert_eq!(seen, made, "{volumes} at a time");
        assert_eq!(pages, 3 / volumes + 1, "{volumes} at a time");
    }
}
