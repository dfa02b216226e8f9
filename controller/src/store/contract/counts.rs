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
