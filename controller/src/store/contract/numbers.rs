//! Fibre Channel numbers on every database.

use mooring_model::{InitiatorSlot, Lun};

use super::*;
use crate::initiators::Initiators;
use crate::store::numbers;

/// An attachment that holds its LUN at these ports.
fn over_fc(volume: VolumeId, ports: &str, lun: u16) -> AttachmentRow {
    let initiator = ports.parse().ok();
    AttachmentRow { id: AttachmentId::random(), initiator, lun: Some(Lun(lun)), ..attachment(volume, 1) }
}

pub(super) async fn a_fibre_channel_number_is_one_volumes_until_it_is_cut(place: Place) {
    const ONE: &str = "20:00:52:54:00:14:00:0b";
    const BOTH: &str = "20:00:52:54:00:14:00:0b,20:00:52:54:00:14:00:0c";
    let agent = AgentId::from_u128(0xa);
    let ports = |text: &str| text.parse::<Initiators>().unwrap().ports().unwrap().clone();
    let (v, w) = (place.volume().await.id, place.volume().await.id);
    let known = async || {
        let all = place.read(move |db| Ok(db.fc_luns(agent, &ports(BOTH))?)).await;
        all.into_iter().map(|one| (one.lun.0, one.volume, one.freed_at.is_some())).collect::<Vec<_>>()
    };
    let (first, second) = (over_fc(v, BOTH, 5), AttachmentRow { instance: None, ..over_fc(v, ONE, 5) });
    let (kept, also) = (first.clone(), second.clone());
    place
        .write(move |db| {
            db.take_fc_lun(agent, &ports(BOTH), Lun(5), v)?;
            db.put_attachment(&kept)?;
            Ok(db.put_attachment(&also)?)
        })
        .await;
    assert_eq!(known().await, [(5, Some(v), false), (5, Some(v), false)]);
    assert_eq!(place.read(move |db| Ok(db.attachment(first.id)?)).await, Some(first.clone()));
    // Repeating the call changes nothing; another volume is refused.
    place.write(move |db| Ok(db.take_fc_lun(agent, &ports(ONE), Lun(5), v)?)).await;
    let taken =
        place.store.write("take", move |db: &Db<'_>| Ok(db.take_fc_lun(agent, &ports(BOTH), Lun(5), w)?));
    assert!(taken.await.is_err());
    let twice =
        place.store.write("take", move |db: &Db<'_>| Ok(db.take_fc_lun(agent, &ports(ONE), Lun(6), v)?));
    assert!(twice.await.is_err(), "two numbers for one volume");
    // A LUN that another attachment holds at the same port stays.
    place.write(move |db| Ok(db.detach(&first, None, false)?)).await;
    assert_eq!(known().await, [(5, Some(v), false), (5, None, true)]);
    // The attach failed, and the row is kept with its reason.
    let gone = AttachmentRow { status: AttachmentStatus::ErrorAttaching, access: Access::of(2), ..second };
    place.write(move |db| Ok(db.put_attachment(&gone)?)).await;
    assert_eq!(known().await, [(5, None, true), (5, None, true)]);
    place.write(move |db| Ok(db.take_fc_lun(agent, &ports(BOTH), Lun(5), w)?)).await;
    assert_eq!(known().await, [(5, Some(w), false), (5, Some(w), false)]);
    // Slots are permanent.
    let (slot, other) = (InitiatorSlot::new(7).unwrap(), InitiatorSlot::new(8).unwrap());
    let [a, b] = [1, 2].map(|number| Wwpn::from_u64(number).unwrap());
    let give = async |port, slot| {
        place.store.write("give", move |db: &Db<'_>| Ok(db.keep_fc_slot(agent, port, slot)?)).await
    };
    assert!(give(a, slot).await.is_ok() && give(a, slot).await.is_ok());
    assert!(give(a, other).await.is_err() && give(b, slot).await.is_err());
    let slots = place.read(move |db| Ok((db.fc_slot(agent, a)?, db.fc_slots(agent)?))).await;
    assert_eq!(slots, (Some(slot), BTreeMap::from([(a, slot)])));
}

/// Attaches of several hosts race: each volume of a host gets a LUN of its own, each port a slot.
pub(super) async fn a_fibre_channel_number_is_given_once(place: Place) {
    let mut going = tokio::task::JoinSet::new();
    for number in 0..12_u32 {
        let volume = place.volume().await;
        let store = if number % 2 == 0 { &place.store } else { &place.other }.clone();
        // Three hosts, of which two have a port in common.
        let host = [
            "20:00:00:00:00:00:00:01",
            "20:00:00:00:00:00:00:01,20:00:00:00:00:00:00:02",
            "20:00:00:00:00:00:00:03",
        ][usize::try_from(number % 3).unwrap()];
        let ports = host.parse::<Initiators>().unwrap().ports().unwrap().clone();
        going.spawn(async move {
            let take = move |db: &Db<'_>| Ok((numbers::take(db, &volume, &ports)?, ports.clone()));
            store.write("take a number", take).await.unwrap()
        });
    }
    let mut seen = BTreeSet::new();
    for (lun, ports) in going.join_all().await {
        for port in ports.iter() {
            assert!(seen.insert((port, lun)), "LUN {lun} of port {port} is given twice");
        }
    }
    let slots = place.read(|db| Ok(db.fc_slots(AgentId::from_u128(0xa))?)).await;
    assert_eq!(slots.values().collect::<BTreeSet<_>>().len(), 3, "{slots:?}");
}
