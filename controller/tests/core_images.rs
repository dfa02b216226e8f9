//! Volumes from images: who may make one, where it goes, how long the spec has the image, and what
//! happens when the agent refuses it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_api::v1;
use mooring_controller::domain::{Hints, HostImage, NewVolume, RequestKey, VolumeStatus, WantedId};
use mooring_controller::http::in_words;
use mooring_controller::service::Refusal;
use mooring_model::{ImageFormat, ImageSource, VolumeId};

fn from(host: &str, format: ImageFormat) -> NewVolume {
    let image = ImageSource { name: "debian.raw".parse().unwrap(), format };
    let hints = Hints { image: Some(HostImage { host: host.to_owned(), image }), ..Hints::default() };
    NewVolume { size_gib: Some(2), hints, ..new_volume() }
}

/// The image in the volume's spec at the storage agent.
fn told(rig: &Rig, id: VolumeId) -> Option<v1::ImageSource> {
    let state = rig.storage.state();
    let source = state.volumes.get(&id.to_string())?.spec.clone()?.source?;
    match source.of? {
        v1::volume_source::Of::Image(image) => Some(image),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_image_is_in_the_spec_until_the_volume_was_seen_ready() {
    let rig = Rig::new(0).await;
    rig.storage.state().knobs.pending = true;
    let new = NewVolume {
        id: Some(WantedId::Key(RequestKey::new("image").unwrap())),
        ..from("storage", ImageFormat::Raw)
    };
    let made = rig.service.create_volume(&admin(), new.clone()).await.unwrap();
    assert_eq!((made.status, made.size_gib), (VolumeStatus::Creating, 2));
    let id = made.id;
    until("the storage agent's spec", async || told(&rig, id).map(drop).ok_or_else(|| "none".to_owned()))
        .await;
    let image = told(&rig, id).unwrap();
    assert_eq!((image.name.as_str(), image.format()), ("debian.raw", v1::ImageFormat::Raw));
    // A repeated request is the same volume; one with another image is refused.
    assert_eq!(rig.service.create_volume(&admin(), new.clone()).await.unwrap().id, id);
    let other = NewVolume { hints: Hints::default(), ..new.clone() };
    let refused = rig.service.create_volume(&admin(), other).await.map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Conflict(_))), "{refused:?}");
    // The agent has reported the volume's space, and half of the image is copied: a rename takes no
    // part of the spec away.
    rig.write(&format!("UPDATE volumes SET taken_us = 1 WHERE id = '{id}'"));
    let name = Some(Some("renamed".to_owned()));
    rig.service.update_volume(&admin(), id, name, None, None).await.unwrap();
    until("the new spec", async || {
        let stamp = rig.storage.state().volumes[&id.to_string()].stamp.clone().unwrap();
        if stamp.generation.unwrap().counter > 1 { Ok(()) } else { Err(format!("{stamp:?}")) }
    })
    .await;
    assert!(told(&rig, id).is_some());
    rig.storage.state().knobs.pending = false;
    rig.storage.publish(&id.to_string());
    rig.until_volume(id, VolumeStatus::Available).await;
    until("a spec without it", async || match told(&rig, id) {
        None => Ok(()),
        image => Err(format!("{image:?}")),
    })
    .await;
    assert_eq!(
        rig.service
            .create_volume(&admin(), NewVolume { name: Some("renamed".to_owned()), ..new })
            .await
            .unwrap()
            .id,
        id
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_agent_can_read_is_refused_before_anything_is_kept() {
    let rig = Rig::new(1).await;
    let refused =
        rig.service.create_volume(&admin(), from("storage", ImageFormat::Qcow2)).await.map_err(in_words);
    assert!(
        matches!(&refused, Err(Refusal::Invalid(why)) if why.contains("cannot read qcow2 images")),
        "{refused:?}"
    );
    let refused =
        rig.service.create_volume(&admin(), from("host1", ImageFormat::Raw)).await.map_err(in_words);
    assert!(matches!(&refused, Err(Refusal::Invalid(why)) if why.contains("images_dir")), "{refused:?}");
    let refused = rig.service.create_volume(&admin(), from("nosuch", ImageFormat::Raw)).await;
    assert!(matches!(&refused, Err(Refusal::NotFound { kind: "Host", .. })), "{refused:?}");
    let refused = rig.service.create_volume(&member("p"), from("storage", ImageFormat::Raw)).await;
    assert!(matches!(&refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    assert!(rig.storage.state().volumes.is_empty());
}
