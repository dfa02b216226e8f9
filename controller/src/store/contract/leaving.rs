//! Agents that are forgotten or renamed, on every database.

use super::*;
use crate::domain::{Enrolment, JoinToken};
use crate::store::{Asked, FenceRow, ForgottenRow, Stater};

contract![
    a_forgotten_agent_is_known_again_and_closed_once,
    a_receipt_is_never_proven_unless_it_was,
    receipts_of_another_agent_stand_apart,
    a_name_changes_wherever_it_decides,
];

fn at(second: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(second)
}

fn asked(second: u64) -> Asked {
    Asked { user: "u".to_owned(), request: "req".to_owned(), at: at(second) }
}

fn forgotten(agent: u128, name: &str, second: u64) -> ForgottenRow {
    let agent = AgentId::from_u128(agent);
    ForgottenRow {
        agent,
        name: name.to_owned(),
        storage: agent != AgentId::from_u128(1),
        open: true,
        asked: asked(second),
    }
}

async fn a_forgotten_agent_is_known_again_and_closed_once(place: Place) {
    let all = [forgotten(1, "a", 5), forgotten(2, "a", 7), forgotten(3, "b", 9)];
    let kept = all.clone();
    place.write(move |db| Ok(kept.iter().try_for_each(|one| db.forget(one))?)).await;
    let read = place.read(|db| {
        let named = (db.forgotten_named("a")?, db.forgotten_named("c")?);
        Ok((named, db.forgotten(AgentId::from_u128(3))?, db.forgotten(AgentId::from_u128(4))?))
    });
    let ((last, nobody), third, stranger) = read.await;
    assert_eq!((last, nobody), (Some(all[1].clone()), None));
    assert_eq!((third, stranger), (Some(all[2].clone()), None));
    let since = |second| place.read(move |db| Ok(db.nodes_forgotten_since(at(second))?));
    assert_eq!(since(0).await, [all[1].clone(), all[2].clone()]);
    assert_eq!((since(8).await.len(), since(10).await.len()), (1, 0));
    place.write(|db| Ok(db.close_forgotten(AgentId::from_u128(2))?)).await;
    assert_eq!(place.read(|db| Ok(db.forgotten_open()?)).await, [all[0].clone(), all[2].clone()]);
    // The agent cannot be forgotten twice.
    let twice = place.store.write("test", |db| Ok(db.forget(&forgotten(1, "c", 11))?)).await;
    assert!(twice.is_err());
}

fn receipt(volume: VolumeId, counter: u64, proof: Proof) -> Receipt {
    Receipt {
        volume,
        initiator: iqn(1).into(),
        attachments: Vec::new(),
        generation: Generation { epoch: 1, counter },
        revoked: Revoked::Nexus,
        sessions: Vec::new(),
        proof,
        began: at(1),
        ended: None,
        reservation: None,
        cause: mooring_model::Cause::Revoke,
    }
}

async fn a_receipt_is_never_proven_unless_it_was(place: Place) {
    let volume = VolumeId::random();
    let open = Proof::Unproven { in_flight: Some(2) };
    let said = [receipt(volume, 1, Proof::Proven), receipt(volume, 2, open)];
    let (kept, new) = (said.clone(), receipt(volume, 3, Proof::Unproven { in_flight: None }));
    let ids = place.write(move |db| {
        for one in &kept {
            db.keep_receipt(one)?;
        }
        let mut ids = Vec::new();
        for one in [&kept[0], &kept[1], &new] {
            ids.push(db.never_prove(Stater::Storage, one)?);
        }
        // A repetition returns the existing rows.
        assert_eq!(db.never_prove(Stater::Storage, &kept[1])?, ids[1]);
        Ok(ids)
    });
    let ids = ids.await;
    let read = place.read(move |db| {
        let all = ids.iter().map(|id| Ok(db.receipt(*id)?.unwrap())).collect::<Result<Vec<_>, Abort>>()?;
        Ok((all, db.unproven_of(Stater::Storage, volume, &iqn(1).into())?.len()))
    });
    let (all, unproven) = read.await;
    let causes: Vec<_> = all.iter().map(|one| (one.proof, one.cause)).collect();
    let never = mooring_model::Cause::Forgotten;
    let expected =
        [(Proof::Proven, said[0].cause), (open, never), (Proof::Unproven { in_flight: None }, never)];
    assert_eq!((causes.as_slice(), unproven), (&expected[..], 2));
}

/// The receipts of an agent that does not serve the volume prove nothing of the volume's own
/// nexuses.
async fn receipts_of_another_agent_stand_apart(place: Place) {
    let VolumeRow { id: volume, agent: storage, .. } = place.volume().await;
    let other = AgentId::from_u128(99);
    let open = Proof::Unproven { in_flight: Some(2) };
    let keep = move |db: &Db<'_>| {
        let (own, foreign) = (db.stater(storage, volume)?, db.stater(other, volume)?);
        assert_eq!((own, foreign), (Stater::Storage, Stater::Other(other)));
        let nowhere = db.stater(other, VolumeId::random())?;
        assert_eq!(nowhere, foreign, "two agents may have a volume that the database does not have");
        assert!(db.keep_receipt(&receipt(volume, 1, open))?);
        assert!(db.keep_receipt_of(foreign, &receipt(volume, 1, Proof::Proven))?);
        assert!(db.keep_receipt_of(foreign, &receipt(volume, 2, open))?);
        let of = iqn(1).into();
        let since = db.receipt_since(volume, &of, Generation::ZERO)?.map(|(_, one)| one);
        assert_eq!(since, Some(receipt(volume, 1, open)));
        assert_eq!(db.newest_receipt(Stater::Storage, volume, &of)?.map(|(_, one)| one), since);
        let newest = db.newest_receipt(foreign, volume, &of)?.map(|(_, one)| one);
        assert_eq!(newest, Some(receipt(volume, 2, open)));
        let counts = |by| Ok::<_, Abort>(db.unproven_of(by, volume, &of)?.len());
        assert_eq!((counts(own)?, counts(foreign)?), (1, 1));
        // That the other agent is forgotten leaves the volume's own receipt as it is.
        let row = db.never_prove(foreign, &receipt(volume, 2, open))?;
        assert_eq!(db.stater_of(row)?, Some(foreign));
        let forgotten = db.receipt(row)?.map(|one| (one.generation.counter, one.cause));
        assert_eq!(forgotten, Some((2, mooring_model::Cause::Forgotten)));
        assert_eq!(db.newest_receipt(Stater::Storage, volume, &of)?.map(|(_, one)| one), since);
        Ok(())
    };
    place.write(keep).await;
}

fn enrolment(name: &str, id: u128) -> Enrolment {
    Enrolment {
        name: name.to_owned(),
        id: Uuid::from_u128(id),
        address: "https://a:7710".to_owned(),
        roles: "storage".parse().unwrap(),
        revoked: false,
        zone: None,
        joined_at: at(1),
        expires_at: at(90),
    }
}

fn token(name: &str) -> JoinToken {
    JoinToken {
        hash: name.to_owned(),
        name: name.to_owned(),
        roles: "host".parse().unwrap(),
        zone: None,
        expires_at: at(60),
        used_by: None,
    }
}

async fn a_name_changes_wherever_it_decides(place: Place) {
    let agent = AgentId::from_u128(7);
    let volume = place.volume().await.id;
    let (own, stock) = (AttachmentId::random(), AttachmentId::random());
    let fence = FenceRow {
        id: Uuid::from_u128(5),
        name: "old".to_owned(),
        reason: None,
        asked: asked(1),
        lifted_at: None,
    };
    let lifted = FenceRow { id: Uuid::from_u128(6), lifted_at: Some(at(3)), ..fence.clone() };
    let fences = [fence.clone(), lifted.clone()];
    place
        .write(move |db| {
            db.put_enrolment(&enrolment("old", 1))?;
            db.put_enrolment(&Enrolment { revoked: true, ..enrolment("new", 2) })?;
            db.put_agent("old", agent, None, &[], "s")?;
            db.note_compared("old")?;
            db.put_join_token(&token("old"))?;
            db.put_join_token(&token("new"))?;
            for one in &fences {
                db.insert_fence(one)?;
            }
            // An earlier host of the new name was compared with one fence, the renamed host with
            // the other.
            db.note_fence_node(fence_id(5), "new")?;
            db.note_fence_node(fence_id(6), "old")?;
            for (id, native) in [(own, Some(agent)), (stock, None)] {
                let row = AttachmentRow::reserved(id, volume, "p", db.now);
                db.put_attachment(&AttachmentRow { host: Some("old".to_owned()), native, ..row })?;
            }
            Ok(())
        })
        .await;
    let leased = matches!(place.store.shared.engine, Engine::Postgres(_));
    place.write(move |db| Ok(db.rename_agent("old", "new", leased)?)).await;
    let read = place.read(move |db| {
        let tokens = [db.join_token("old")?, db.join_token("new")?];
        let hosts = [own, stock].map(|id| db.attachment(id).unwrap().unwrap().host.unwrap());
        let nodes = [5, 6].map(|id| db.fence_nodes(fence_id(id)).unwrap().into_iter().collect::<Vec<_>>());
        let fences = (db.fence_named("old")?.is_some(), db.fence_named("new")?.map(|fence| fence.id));
        Ok((db.enrolments()?, db.agents()?, db.is_compared(agent)?, tokens, hosts, nodes, fences))
    });
    let (enrolments, agents, compared, tokens, hosts, nodes, fences) = read.await;
    assert_eq!(enrolments, [enrolment("new", 1)]);
    assert_eq!(agents.iter().map(|row| (row.name.as_str(), row.id)).collect::<Vec<_>>(), [("new", agent)]);
    assert!(compared && tokens == [None, None]);
    // Attachments of other clients keep the name that those gave.
    assert_eq!(hosts, ["new", "old"]);
    assert_eq!(nodes, [vec![], vec!["new".to_owned()]]);
    assert_eq!(fences, (false, Some(fence.id)));
    let all = place.read(|db| Ok(db.fences(true, 10)?)).await;
    assert!(all.iter().any(|one| one.id == lifted.id && one.name == "old"), "a record keeps its name");
}

fn fence_id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}
