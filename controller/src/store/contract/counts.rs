//! Counts, on every database.

use super::*;
use crate::store::counts::ByWord;

fn words<const N: usize>(all: [(&str, u64); N]) -> ByWord {
    all.into_iter().map(|(word, number)| (word.to_owned(), number)).collect()
}

pub(super) async fn what_is_there_is_counted_by_its_words(place: Place) {
    let count = async || {
        place
            .read(|db| {
                let things = (db.count_volumes()?, db.count_attachments()?, db.count_reviews()?);
                Ok((things, db.count_receipts()?, db.count_fences()?))
            })
            .await
    };
    let none = ByWord::new;
    assert_eq!(count().await, ((none(), none(), none()), none(), 0));
    let (v, w) = (place.volume().await.id, place.volume().await.id);
    place
        .write(move |db| {
            db.put_attachment(&attachment(v, 1))?;
            db.put_in_review(w, ReviewKind::Lost, "why")?;
            db.keep_receipt(&receipt(v, 1, Proof::Proven))?;
            db.keep_receipt(&receipt(v, 2, Proof::Proven))?;
            db.keep_receipt(&receipt(v, 3, Proof::Unproven { in_flight: Some(1) }))?;
            Ok(())
        })
        .await;
    let (volumes, attachments, reviews) =
        (words([("creating", 2)]), attachment(v, 1).status, words([("lost", 1)]));
    let receipts = words([("proven", 2), ("unproven", 1)]);
    assert_eq!(count().await, ((volumes, words([(attachments.as_str(), 1)]), reviews), receipts, 0));
}

pub(super) async fn texts_are_in_the_order_of_their_bytes(place: Place) {
    let names = ["", " ", "-a", "A", "B", "_", "a", "a b", "ab", "b", "\u{e9}", "\u{1F512}"];
    place
        .write(move |db| {
            for name in names.iter().rev() {
                db.insert_type(&VolumeType {
                    id: Uuid::new_v4(),
                    name: (*name).to_owned(),
                    description: None,
                    is_public: true,
                    extra_specs: BTreeMap::from([((*name).to_owned(), "v".to_owned())]),
                })?;
            }
            Ok(())
        })
        .await;
    let by_name = list::TYPES.key("name").unwrap();
    let query = ListQuery { all_projects: true, sort: vec![(by_name, false)], ..ListQuery::default() };
    let page = place.read(move |db| Ok(db.type_page(&query)?.unwrap())).await;
    let seen: Vec<_> = page.into_iter().map(|found| found.name).collect();
    let mut wanted: Vec<_> =
        names.iter().map(|name| (*name).to_owned()).chain([DEFAULT_TYPE.to_owned()]).collect();
    wanted.sort();
    assert_eq!(seen, wanted);
}
