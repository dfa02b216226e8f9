//! Rotations of secrets, on every database.

use super::*;
use crate::store::{Rotation, Stage};

fn pair(text: &str, mutual: bool) -> Chap {
    let side = |of: &str| ChapSide { user: of.to_owned(), secret: Secret::new(format!("{text}-{of}")) };
    Chap { initiator: side("i"), mutual: mutual.then(|| side("m")) }
}

pub(super) async fn a_rotation_is_a_part_of_its_nexus(place: Place) {
    let id = place.volume().await.id;
    place.write(move |db| Ok(db.set_operation(id, None, None)?)).await;
    let seen = async |number: u32| {
        let read = move |db: &Db<'_>| {
            let of = iqn(number);
            Ok((db.nexus(id, &of)?, db.other_secrets(id, &of)?, db.rotation(id, &of)?.unwrap_or_default()))
        };
        place.read(read).await
    };
    let put = async |number: u32, own: Chap, stage: Option<Stage>, other: Option<Chap>| {
        let write = move |db: &Db<'_>| {
            let rotation = stage.map(|stage| (stage, other.as_ref()));
            Ok(db.put_secrets(id, &iqn(number), &own, rotation)?)
        };
        place.write(write).await;
    };
    let end = async |number: u32| place.write(move |db| Ok(db.end_rotation(id, &iqn(number))?)).await;
    let in_motion = async || place.read(|db| Ok(db.volumes_in_motion()?)).await;
    for (number, mutual) in [(1, true), (2, false)] {
        let (old, new) = (pair("old", mutual), pair("new", mutual));
        let kept = Nexus(old.clone());
        place.write(move |db| Ok(db.insert_nexus(id, &iqn(number), &kept)?)).await;
        let row = attachment(id, number);
        let row = AttachmentRow { status: AttachmentStatus::Attached, ..row };
        place.write(move |db| Ok(db.put_attachment(&row)?)).await;
        assert!(seen(number).await == (Some(Nexus(old.clone())), None, Rotation::default()));
        assert!(in_motion().await.is_empty());
        put(number, old.clone(), Some(Stage::Offered), Some(new.clone())).await;
        let (own, other, rotation) = seen(number).await;
        assert!(own == Some(Nexus(old.clone())) && other == Some(new.clone()));
        assert_eq!(rotation, Rotation { stage: Some(Stage::Offered), ended: None });
        let going = place.read(move |db| Ok(db.rotations_of(id)?)).await;
        assert_eq!((going, in_motion().await), (vec![(iqn(number), Stage::Offered)], vec![id]));
        // A rotation that was given up is not called ended.
        put(number, old.clone(), Some(Stage::Settling), Some(new.clone())).await;
        end(number).await;
        assert!(seen(number).await == (Some(Nexus(old.clone())), None, Rotation::default()));
        put(number, new.clone(), Some(Stage::Switched), Some(old)).await;
        end(number).await;
        let (own, other, rotation) = seen(number).await;
        assert!(own == Some(Nexus(new.clone())) && other.is_none() && rotation.stage.is_none());
        let ended = rotation.ended;
        assert!(ended.is_some() && in_motion().await.is_empty());
        // The time stays until another rotation has ended.
        put(number, new.clone(), Some(Stage::Switched), None).await;
        let (own, other, rotation) = seen(number).await;
        assert!(own == Some(Nexus(new)) && other.is_none());
        assert_eq!(rotation, Rotation { stage: Some(Stage::Switched), ended });
        end(number).await;
    }
    // Both secrets go with the last attachment.
    put(1, pair("x", true), Some(Stage::Offered), Some(pair("y", true))).await;
    let rows = place.read(move |db| Ok(db.attachments_of(id)?)).await;
    for row in rows {
        place.write(move |db| Ok(db.detach(&row, None, false)?)).await;
    }
    assert!(seen(1).await == (None, None, Rotation::default()) && in_motion().await.is_empty());
}
