//! Agents' reports of their pools, in the words of the Block Storage API and of the scheduler:
//! agents of this release, and of earlier ones, which report less.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use mooring_api::v1;
use mooring_controller::rules::specs::unsatisfied;
use mooring_controller::schedule::capabilities::{self, Agent, Placed, Settings};
use mooring_controller::schedule::{Filter, PoolRef, Request, fits};
use mooring_model::AgentId;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

fn specs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn reported() -> (v1::Capabilities, v1::Pool) {
    let pool = v1::Pool {
        name: "vg0".to_owned(),
        total_bytes: 100 * GIB,
        free_bytes: 60 * GIB,
        extent_bytes: 4 << 20,
        thick: true,
        volumes: 7,
        provisioned_bytes: 40 * GIB,
        ..v1::Pool::default()
    };
    let iscsi = v1::Transport { protocol: "iscsi".to_owned(), ready: true, ..v1::Transport::default() };
    let report = v1::Capabilities {
        multiattach: true,
        pools: vec![pool.clone()],
        transports: vec![iscsi],
        ..v1::Capabilities::default()
    };
    (report, pool)
}

fn at(report: &v1::Capabilities, settings: &Settings, look: &mut dyn FnMut(&Agent<'_>)) {
    look(&Agent {
        id: AgentId::from_u128(1),
        name: "store1",
        software: "mooring-agent 0.1.0",
        report,
        reported_at: SystemTime::UNIX_EPOCH + Duration::from_hours(24),
        now: SystemTime::UNIX_EPOCH + Duration::from_hours(24) + Duration::from_secs(42),
        up: true,
        disabled: None,
        drained: false,
        settings,
    });
}

#[test]
fn a_report_in_the_words_of_the_api() {
    let (report, one) = reported();
    at(&report, &Settings::default(), &mut |agent| {
        let pool = capabilities::pool(agent, &one, Placed { allocated: 12 * GIB, promised: 10 * GIB });
        assert_eq!(pool.full_name(), "store1@lvm#vg0");
        assert_eq!(pool.capacity.available(None), Some(50 * GIB));
        let shown = capabilities::shown(&pool.capabilities);
        assert_eq!(
            Value::Object(shown),
            json!({
                "volume_backend_name": "lvm", "vendor_name": "Mooring", "driver_version": "mooring-agent 0.1.0",
                "storage_protocol": "iSCSI", "pool_name": "vg0", "location_info": "Mooring:store1:vg0",
                "total_capacity_gb": 100.0, "free_capacity_gb": 60.0, "allocated_capacity_gb": 12.0,
                "provisioned_capacity_gb": 40.0, "reserved_percentage": 0, "max_over_subscription_ratio": "20.0",
                "thin_provisioning_support": false, "thick_provisioning_support": true, "total_volumes": 7,
                "multiattach": true, "QoS_support": false, "consistencygroup_support": false,
                "consistent_group_snapshot_enabled": false, "sparse_copy_volume": false,
                "online_extend_support": true, "filter_function": null, "goodness_function": null,
                "backend_state": "up", "timestamp": "1970-01-02T00:00:00.000000", "mooring_report_age_seconds": 42,
            })
        );
        // Both spellings of the protocol find the pool, and the shown value is the matched one.
        for content in ["iSCSI", "iscsi", "<or> FC <or> iSCSI"] {
            assert_eq!(
                unsatisfied(&pool.capabilities, &specs(&[("storage_protocol", content)])),
                None,
                "{content}"
            );
        }
        assert!(unsatisfied(&pool.capabilities, &specs(&[("storage_protocol", "FC")])).is_some());
        assert_eq!(fits(&pool, &Request::new(50 * GIB, specs(&[("multiattach", "<is> True")]))), Ok(()));

        let host = capabilities::of_host(agent);
        assert_eq!(host["namespace"], "OS::Storage::Capabilities::store1@lvm");
        for key in ["volume_backend_name", "vendor_name", "driver_version", "storage_protocol"] {
            assert_eq!(host[key], capabilities::shown(&pool.capabilities)[key], "{key}");
        }
        let words = json!(["on", "off"]);
        let is_known = |one: &Value| one["type"] == "boolean" || one["enum"] == words;
        assert!(host["properties"].as_object().unwrap().values().all(is_known));
    });
}

/// The further values that an agent of this release reports.
fn said() -> (v1::Capabilities, v1::Pool) {
    let (report, pool) = reported();
    let pool = v1::Pool {
        reserved_bytes: Some(8 * GIB),
        snapshots: Some(true),
        online_extend: Some(false),
        discard: Some(true),
        wipe: v1::Wipe::Discard.into(),
        thick: false,
        health: Some(v1::Health { level: v1::HealthLevel::Ok.into(), reasons: Vec::new() }),
        provisioned_bytes: 250 * GIB,
        ..pool
    };
    let report = v1::Capabilities {
        pools: vec![pool.clone()],
        kernel_release: "6.1.0-40-amd64".to_owned(),
        access_modes: vec![v1::Mode::ReadOnly.into(), v1::Mode::ReadWrite.into()],
        persistent_reservations: Some(true),
        persistent_reservations_kept: Some(false),
        read_only_sealed: Some(true),
        initiators_per_volume_max: Some(512),
        ..report
    };
    (report, pool)
}

#[test]
fn what_an_agent_has_seen_can_be_asked_for() {
    let (report, one) = said();
    at(&report, &Settings::default(), &mut |agent| {
        let pool = capabilities::pool(agent, &one, Placed::default());
        let shown = capabilities::shown(&pool.capabilities);
        for (key, want) in [
            ("online_extend_support", json!(false)),
            ("mooring_snapshots", json!(true)),
            ("mooring_discard", json!(true)),
            ("mooring_wipe", json!("discard")),
            ("mooring_reserved_gb", json!(8.0)),
            ("mooring_over_subscription_ratio", json!(2.5)),
            ("mooring_persistent_reservations", json!(true)),
            ("mooring_persistent_reservations_kept", json!(false)),
            ("mooring_read_only_sealed", json!(true)),
            ("mooring_initiators_per_volume_max", json!(512)),
            ("mooring_access_modes", json!(["ro", "rw"])),
            ("mooring_kernel_release", json!("6.1.0-40-amd64")),
            ("mooring_health", json!("ok")),
            ("backend_state", json!("up")),
        ] {
            assert_eq!(shown[key], want, "{key}");
        }
        for (key, content, met) in [
            ("mooring_discard", "<is> True", true),
            ("mooring_wipe", "zero", false),
            ("mooring_wipe", "<or> zero <or> discard", true),
            ("capabilities:mooring_snapshots", "<is> True", true),
            ("mooring_persistent_reservations_kept", "<is> True", false),
            ("mooring_read_only_sealed", "<is> True", true),
            ("online_extend_support", "<is> True", false),
            ("mooring_initiators_per_volume_max", ">= 512", true),
            ("mooring_initiators_per_volume_max", ">= 513", false),
            ("mooring_access_modes", "<all-in> ro rw", true),
        ] {
            let fits = fits(&pool, &Request::new(GIB, specs(&[(key, content)])));
            assert_eq!(fits.is_ok(), met, "{key} {content}: {fits:?}");
        }
    });
}

#[test]
fn older_agent_keeps_its_features_and_gains_none() {
    let (report, one) = reported();
    at(&report, &Settings::default(), &mut |agent| {
        let pool = capabilities::pool(agent, &one, Placed::default());
        let own = |key: &&String| key.starts_with("mooring_") && *key != "mooring_report_age_seconds";
        assert_eq!(pool.capabilities.keys().find(own), None);
        let asks = |key: &str| fits(&pool, &Request::new(GIB, specs(&[(key, "<is> True")])));
        // Features that every agent had before it reported them.
        assert_eq!((asks("online_extend_support"), asks("multiattach")), (Ok(()), Ok(())));
        assert!(asks("mooring_discard").unwrap_err().why.contains("no capability mooring_discard"));
        for word in ["zero", "discard", "none"] {
            let refused = fits(&pool, &Request::new(GIB, specs(&[("mooring_wipe", word)]))).unwrap_err();
            assert!(refused.why.contains("no capability mooring_wipe"), "{word}: {refused:?}");
        }
    });
}

#[test]
fn a_pool_that_has_failed_takes_no_volume_and_one_that_is_degraded_does() {
    let (report, mut one) = said();
    let mut of = |level: v1::HealthLevel| {
        let problem = Some(v1::Problem { object: "vg0".to_owned(), ..v1::Problem::default() });
        let reason = v1::HealthReason { code: "group_unusable".to_owned(), level: level.into(), problem };
        one.health = Some(v1::Health { level: level.into(), reasons: vec![reason] });
        let mut seen = None;
        at(&report, &Settings::default(), &mut |agent| {
            let pool = capabilities::pool(agent, &one, Placed::default());
            let why = fits(&pool, &Request::new(GIB, BTreeMap::new())).err().map(|refused| refused.why);
            seen = Some((pool.capabilities["backend_state"].clone(), why));
        });
        seen.unwrap()
    };
    assert_eq!(of(v1::HealthLevel::Degraded), (json!("up"), None));
    let why = "it has failed: group_unusable".to_owned();
    assert_eq!(of(v1::HealthLevel::Failed), (json!("down"), Some(why)));
}

#[test]
fn a_thin_pool_that_takes_nothing_new_keeps_what_is_there() {
    let (report, one) = said();
    for (data, metadata, closed) in [
        (None, None, None),
        (Some(9_499), Some(8_999), None),
        (Some(9_500), Some(0), Some("95 % of its data are taken, and it takes nothing new from 95 % on")),
        (Some(0), Some(9_000), Some("90 % of its metadata are taken, and it takes nothing new from 90 % on")),
        (Some(10_000), None, Some("100 % of its data are taken, and it takes nothing new from 95 % on")),
    ] {
        let thin = v1::Pool { thick: false, data_used: data, metadata_used: metadata, ..one.clone() };
        at(&report, &Settings::default(), &mut |agent| {
            let pool = capabilities::pool(agent, &thin, Placed::default());
            let mut request = Request::new(GIB, BTreeMap::new());
            let refused = fits(&pool, &request).err().map(|refused| (refused.filter, refused.why));
            let wanted = closed.map(|why| (Filter::Capacity, why.to_owned()));
            assert_eq!(refused, wanted, "{data:?} {metadata:?}");
            // A retype moves no data.
            request.resides = Some(PoolRef { agent: pool.agent, pool: pool.name.clone() });
            assert_eq!(fits(&pool, &request), Ok(()), "{data:?} {metadata:?}");
        });
    }
}

#[test]
fn several_transports_are_all_said() {
    let (mut report, one) = reported();
    let fc = v1::Transport { protocol: "fc".to_owned(), ready: true, ..v1::Transport::default() };
    report.transports.push(fc);
    let seen = |report: &v1::Capabilities, shown: Value, fits: &[(&str, bool)]| {
        at(report, &Settings::default(), &mut |agent| {
            let pool = capabilities::pool(agent, &one, Placed::default());
            assert_eq!(capabilities::shown(&pool.capabilities)["storage_protocol"], shown);
            assert_eq!(capabilities::of_host(agent)["storage_protocol"], shown);
            for (content, fit) in fits {
                let left = unsatisfied(&pool.capabilities, &specs(&[("storage_protocol", content)]));
                assert_eq!(left.is_none(), *fit, "{content}");
            }
        });
    };
    let all =
        [("FC", true), ("fibre_channel", true), ("fc", true), ("iSCSI", true), ("<or> FC <or> iSCSI", true)];
    seen(&report, json!(["iSCSI", "FC"]), &all);
    report.transports[0].ready = false;
    seen(&report, json!("FC"), &[("FC", true), ("iSCSI", false), ("<or> FC <or> iSCSI", true)]);
    report.transports[1].ready = false;
    seen(&report, Value::Null, &[("FC", false), ("iSCSI", false)]);
}

#[test]
fn what_is_not_ready_is_not_claimed() {
    let (mut report, one) = reported();
    report.multiattach = false;
    report.transports[0].ready = false;
    at(&report, &Settings::default(), &mut |agent| {
        let pool = capabilities::pool(agent, &one, Placed::default());
        assert_eq!(capabilities::shown(&pool.capabilities)["storage_protocol"], Value::Null);
        assert_eq!(capabilities::of_host(agent)["storage_protocol"], Value::Null);
        let shared = Request::new(GIB, specs(&[("multiattach", "<is> True")]));
        assert_eq!(fits(&pool, &shared).unwrap_err().filter, Filter::Capabilities);
    });
}

#[test]
fn a_filter_reads_a_text_as_what_the_capability_is() {
    for (capability, wanted, equal) in [
        (json!(true), "True", true),
        (json!(true), "1", true),
        (json!(true), "false", false),
        (json!(true), "maybe", false),
        (json!(false), "maybe", false),
        (json!(10), "10.0", true),
        (json!(10.5), "10", false),
        (json!(10), "ten", false),
        (json!("lvm"), "lvm", true),
        (json!("10"), "10.0", false),
        (json!(["iSCSI", "iscsi"]), "iscsi", true),
        (json!([]), "", false),
        (json!(null), "null", false),
        (json!({}), "{}", false),
    ] {
        assert_eq!(capabilities::equals(&capability, wanted), equal, "{capability} {wanted}");
    }
}
