//! Filters that a column alone does not answer, on every database.

use super::*;
use crate::list::{Filter, Test, VOLUMES};

const ONE: VolumeId = VolumeId::from_u128(1 << 96);
const TWO: VolumeId = VolumeId::from_u128(2 << 96);
const OTHER: VolumeId = VolumeId::from_u128(3 << 96);
/// Without a place: its pool has no name.
const NOWHERE: VolumeId = VolumeId::from_u128(4 << 96);

async fn found(place: &Place, name: &str, test: Test) -> BTreeSet<VolumeId> {
    let filters = vec![Filter { key: VOLUMES.key(name).unwrap(), test }];
    let query = ListQuery { all_projects: true, filters, ..ListQuery::default() };
    let (page, count) =
        place.read(move |db| Ok((db.volume_page(&query)?.unwrap(), db.volume_count(&query)?))).await;
    let ids: BTreeSet<_> = page.into_iter().map(|row| row.id).collect();
    assert_eq!(ids.len() as u64, count);
    ids
}

async fn fill(place: &Place) {
    let all = [
        (ONE, 1, "vg0", None),
        (TWO, 1, "vg1", Some(Source::Volume(ONE))),
        (OTHER, 2, "vg0", Some(Source::Snapshot(ONE))),
        (NOWHERE, 1, "", None),
    ];
    place
        .write(move |db| {
            let kind = db.type_by_name(DEFAULT_TYPE)?.map(|found| found.id).unwrap_or_default();
            for (id, agent, pool, source) in all {
                let (agent, pool) = (AgentId::from_u128(agent), pool.to_owned());
                db.insert_volume(&VolumeRow { agent, pool, source, ..volume(id, kind, db.now) })?;
            }
            db.put_agent("s1", AgentId::from_u128(1), None, &[], "")?;
            db.put_agent("s2", AgentId::from_u128(2), None, &[], "")?;
            Ok(())
        })
        .await;
}

pub(super) async fn volumes_are_found_by_host_type_and_source(place: Place) {
    fill(&place).await;
    let kind = place.read(|db| Ok(db.type_by_name(DEFAULT_TYPE)?.unwrap().id)).await.to_string();
    let host = |agent: &str, pool: Option<&str>| Test::Host {
        agent: agent.to_owned(),
        pool: pool.map(str::to_owned),
    };
    let of_type = |text: &str| Test::Type { name: text.to_owned(), id: text.to_owned() };
    let all = vec![ONE, TWO, OTHER, NOWHERE];
    for (name, test, wanted) in [
        ("host", host("s1", None), vec![ONE, TWO]),
        ("host", host("s1", Some("vg0")), vec![ONE]),
        ("host", host("s1", Some("")), Vec::new()),
        ("host", host("s3", None), Vec::new()),
        ("os-vol-host-attr:host", host("s2", None), vec![OTHER]),
        ("volume_type", of_type(DEFAULT_TYPE), all.clone()),
        ("volume_type", of_type(&kind), all),
        ("volume_type", of_type("%"), Vec::new()),
        ("source_volid", Test::Text(ONE.to_string()), vec![TWO]),
        ("source_volid", Test::Text(TWO.to_string()), Vec::new()),
        ("snapshot_id", Test::Text(ONE.to_string()), vec![OTHER]),
    ] {
        let shown = format!("{name}: {test:?}");
        let wanted: BTreeSet<_> = wanted.into_iter().collect();
        assert_eq!(found(&place, name, test).await, wanted, "{shown}");
    }
}
