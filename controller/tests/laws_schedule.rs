//! Placement of volumes: extra specs as captured from Cinder, each filter's rows, and the laws of
//! the choice.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mooring_controller::rules::specs::{satisfies, unsatisfied};
use mooring_controller::rules::{self, types};
use mooring_controller::schedule::{
    Capacity, Filter, MESSAGE_BYTES_MAX, Multipliers, Pool, PoolRef, Provisioning, Request, Space, choose,
    fits, gib,
};
use mooring_model::AgentId;
use proptest::prelude::*;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

fn specs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Answers of Cinder 26.0.0's `extra_specs_ops`: a row for each requirement, a column for each of
/// these values. `e`: it raised an error, which is no match here.
const VALUES: &str = r#"[true, false, 10, 10.5, 0, 1, "10", "abc", "abcd", "True", "yes", "", "inf", "infinite", "nan", "a b"]"#;

const CAPTURED: [(&str, &str); 45] = [
    ("", "0000000000010000"),
    ("abc", "0000000100000000"),
    ("10", "0000001000000000"),
    ("True", "0000000001000000"),
    ("<is> True", "1000010001100000"),
    ("<is> true", "1000010001100000"),
    ("<is> yes", "1000010001100000"),
    ("<is> 1", "1000010001100000"),
    ("<is> False", "0111101110011111"),
    ("<is> no", "0111101110011111"),
    ("<is> maybe", "0111101110011111"),
    ("<is>", "0000000000000000"),
    ("<in> bc", "eeeeee0110000000"),
    ("<in> 1", "eeeeee1000000000"),
    ("<in>", "0000000000000000"),
    ("<or> abc <or> 10", "0000001100000000"),
    ("<or> x", "0000000000000000"),
    ("<or> abc 10", "0000000100000000"),
    ("<or> x y abc", "0000000100000000"),
    ("= 10", "0011001000001000"),
    ("= 9", "0011001000001000"),
    ("= 11", "0000000000001000"),
    ("= x", "0000000000000000"),
    ("=", "0000000000000000"),
    ("== 10", "0010001000000000"),
    ("== 10.0", "0010001000000000"),
    ("== 1", "1000010000000000"),
    ("!= 10", "1101110000001010"),
    ("!= x", "0000000000000000"),
    (">= 10", "0011001000001000"),
    (">= 11", "0000000000001000"),
    ("<= 10", "1110111000000000"),
    ("<= 9", "1100110000000000"),
    ("< 20", "0000000000000000"),
    ("> 5", "0000000000000000"),
    ("s== abc", "0000000100000000"),
    ("s!= abc", "1111111011111111"),
    ("s< abd", "eeeeee1111010001"),
    ("s<= abc", "eeeeee1101010001"),
    ("s> abb", "eeeeee0110101110"),
    ("s>= abd", "eeeeee0000101110"),
    (">=10", "0000000000000000"),
    ("!= nan", "1111111000001010"),
    ("a b", "0000000000000001"),
    (">= 5 50", "0011001000001000"),
];

#[test]
fn every_operator_matches_as_captured() {
    let values: Vec<Value> = serde_json::from_str(VALUES).unwrap();
    for (requirement, row) in CAPTURED {
        assert_eq!(row.len(), values.len());
        for (value, want) in values.iter().zip(row.chars()) {
            assert_eq!(satisfies(value, requirement), want == '1', "{value} {requirement:?}");
        }
    }
}

#[test]
fn any_element_of_a_list_will_do_and_all_in_wants_each() {
    let list = json!(["aes", "mmx", "10"]);
    for (requirement, want) in [
        ("aes", true),
        ("sse", false),
        ("<or> sse <or> mmx", true),
        (">= 9", true),
        ("<in> m", true),
        ("<all-in> aes mmx", true),
        ("<all-in> aes sse", false),
        ("<all-in> ae", false),
        ("<all-in>", false),
    ] {
        assert_eq!(satisfies(&list, requirement), want, "{requirement}");
    }
    assert!(satisfies(&json!("aes"), "<all-in> aes") && !satisfies(&json!("aes"), "<all-in> aes mmx"));
    for nothing in [json!([]), json!(null), json!([null])] {
        for requirement in ["", "x", "<is> False", "s!= x", "!= 1", "<all-in> x", "<or>", "<in> x"] {
            assert!(!satisfies(&nothing, requirement), "{nothing} {requirement:?}");
        }
    }
}

#[test]
fn keys_name_capabilities_or_are_for_others() {
    let capabilities = json!({ "a": { "b": { "c": 10 } }, "n": 5, "multiattach": true, "none": null });
    let capabilities = capabilities.as_object().unwrap();
    for (key, value, ok) in [
        ("n", ">= 3", true),
        ("n", ">= 6", false),
        ("missing", "<is> False", false),
        ("missing", "s!= x", false),
        ("none", "<is> False", false),
        ("capabilities:n", ">= 3", true),
        ("capabilities:n", ">= 6", false),
        ("capabilities:a:b:c", ">= 2", true),
        ("capabilities:a:b:c", "<= 2", false),
        ("capabilities:a:b:c:d", ">= 2", false),
        ("capabilities:a:x", ">= 2", false),
        ("capabilities:n:x", ">= 2", false),
        ("capabilities", "<is> False", false),
        ("capabilities:", "<is> False", false),
        ("a:b:c", "= 99", true),
        ("provisioning:type", "thick", true),
        ("RESKEY:availability_zones", "elsewhere", true),
        (":n", ">= 6", true),
        ("multiattach", "<is> yes", true),
        ("multiattach", "<is> no", false),
    ] {
        let why = unsatisfied(capabilities, &specs(&[(key, value)]));
        assert_eq!(why.is_none(), ok, "{key} {value}: {why:?}");
    }
}

fn agent(n: u128) -> AgentId {
    AgentId::from_u128(n)
}

/// An empty pool of 100 GiB at an agent of its own.
fn pool(n: u128) -> Pool {
    Pool {
        agent: agent(n),
        host: format!("node{n}@lvm"),
        name: "vg".to_owned(),
        zone: "nova".to_owned(),
        age: Some(Duration::from_secs(5)),
        up: true,
        disabled: None,
        drained: false,
        failed: None,
        multiattach: true,
        capacity: Capacity {
            total: Space::Bytes(100 * GIB),
            free: Space::Bytes(100 * GIB),
            allocated: 0,
            provisioned: 0,
            promised: 0,
            extent: 4 << 20,
            reserved_percentage: 0,
            max_over_subscription_ratio: 20.0,
            thin: false,
            thick: true,
            closed: None,
        },
        volumes: 0,
        capabilities: json!({ "multiattach": true, "volume_backend_name": "lvm" })
            .as_object()
            .unwrap()
            .clone(),
    }
}

fn place(n: u128) -> PoolRef {
    PoolRef { agent: agent(n), pool: "vg".to_owned() }
}

fn wanted(gib: u64) -> Request {
    Request::new(gib * GIB, BTreeMap::new())
}

#[test]
fn each_filter_refuses_what_is_its_own() {
    type Spoil = fn(&mut Pool, &mut Request);
    let rows: [(Filter, &str, Spoil); 20] = [
        (Filter::State, "never reported", |pool, _| pool.age = None),
        (Filter::State, "disabled: repair", |pool, _| pool.disabled = Some("repair".to_owned())),
        (Filter::State, "disabled", |pool, _| pool.disabled = Some(String::new())),
        (Filter::State, "emptied", |pool, _| pool.drained = true),
        (Filter::State, "it has failed: lvm_failed", |pool, _| pool.failed = Some("lvm_failed".to_owned())),
        (Filter::Requested, "the pool ssd is asked for", |_, request| {
            request.pool = Some(PoolRef { agent: agent(1), pool: "ssd".to_owned() });
        }),
        (Filter::Requested, "is asked for", |_, request| request.pool = Some(place(2))),
        (Filter::Excluded, "vgcreate failed", |_, request| {
            request.excluded.insert(place(1), "vgcreate failed".to_owned());
        }),
        (Filter::AvailabilityZone, "in zone nova, and az2", |_, request| {
            request.zone = Some("az2".to_owned());
        }),
        (Filter::AvailabilityZone, "az1 or az2", |_, request| {
            request.specs = specs(&[("RESKEY:availability_zones", "az1, az2,")]);
        }),
        (Filter::Capabilities, "multiattach", |pool, request| {
            pool.multiattach = false;
            request.multiattach = true;
        }),
        (Filter::Capabilities, "its multiattach is true", |_, request| {
            request.specs = specs(&[("multiattach", "<is> False")]);
        }),
        (Filter::Capabilities, "no capability ssd", |_, request| {
            request.specs = specs(&[("ssd", "<is> True")]);
        }),
        (Filter::Capabilities, "no thin volumes", |_, request| {
            request.provisioning = Some(Provisioning::Thin);
        }),
        (Filter::Capabilities, "no thick volumes", |pool, request| {
            pool.capacity.thick = false;
            request.provisioning = Some(Provisioning::Thick);
        }),
        (Filter::Affinity, "same_host", |_, request| request.same_host = Some(BTreeSet::from([agent(2)]))),
        (Filter::Affinity, "same_host", |_, request| request.same_host = Some(BTreeSet::new())),
        (Filter::Affinity, "different_host", |_, request| {
            request.different_host = BTreeSet::from([agent(1)]);
        }),
        (Filter::Capacity, "10 GiB are wanted", |pool, _| pool.capacity.free = Space::Bytes(9 * GIB)),
        (Filter::Capacity, "nothing new", |pool, _| pool.capacity.closed = Some("nothing new".to_owned())),
    ];
    assert_eq!(fits(&pool(1), &wanted(10)), Ok(()));
    for (filter, why, spoil) in rows {
        let (mut pool, mut request) = (pool(1), wanted(10));
        spoil(&mut pool, &mut request);
        let refused = fits(&pool, &request).unwrap_err();
        assert_eq!((refused.filter, refused.pool.as_str()), (filter, "node1@lvm#vg"), "{refused}");
        assert!(refused.why.contains(why), "{refused}");
        let text = choose(&[pool], &request, Multipliers::default()).unwrap_err().to_string();
        assert_eq!(text.starts_with("No valid backend"), !why.contains("never reported"), "{text}");
    }
}

#[test]
fn a_request_is_met_by_what_it_asks_for() {
    let mut request = wanted(10);
    request.pool = Some(place(1));
    request.zone = Some("nova".to_owned());
    request.specs = specs(&[("RESKEY:availability_zones", "az1,nova"), ("volume_backend_name", "lvm")]);
    request.same_host = Some(BTreeSet::from([agent(1), agent(2)]));
    request.different_host = BTreeSet::from([agent(3)]);
    request.excluded.insert(place(2), "down".to_owned());
    assert_eq!(fits(&pool(1), &request), Ok(()));
    let of_type = Request::new(GIB, specs(&[("multiattach", "<IS> true"), ("provisioning:type", "thick")]));
    assert!(of_type.multiattach && of_type.provisioning == Some(Provisioning::Thick));
}

#[test]
fn space_is_counted_as_cinder_counts_it() {
    type Set = fn(&mut Capacity);
    // Total 100, and the most GiB that can be given.
    let rows: [(&str, Option<u64>, Set); 15] = [
        ("all free", Some(100), |_| ()),
        ("reserved", Some(75), |space| space.reserved_percentage = 25),
        ("all reserved", Some(0), |space| space.reserved_percentage = 200),
        ("in use", Some(15), |space| {
            (space.free, space.provisioned, space.reserved_percentage) =
                (Space::Bytes(40 * GIB), 60 * GIB, 25);
        }),
        ("promised", Some(30), |space| {
            (space.free, space.provisioned, space.promised) = (Space::Bytes(40 * GIB), 60 * GIB, 10 * GIB);
        }),
        ("promised more than there is", Some(0), |space| space.promised = u64::MAX),
        ("thin", Some(2000), |space| space.thin = true),
        ("thin, provisioned", Some(500), |space| (space.thin, space.provisioned) = (true, 1500 * GIB)),
        ("thin, reserved", Some(1000), |space| {
            (space.thin, space.provisioned, space.reserved_percentage) = (true, 500 * GIB, 25);
        }),
        ("thin, nearly full", Some(100), |space| {
            (space.thin, space.free) = (true, Space::Bytes(5 * GIB));
        }),
        ("thin, full below the reserve", Some(0), |space| {
            (space.thin, space.free, space.reserved_percentage) = (true, Space::Bytes(5 * GIB), 10);
        }),
        ("no total", Some(0), |space| space.total = Space::Bytes(0)),
        ("free unknown", None, |space| space.free = Space::Unknown),
        ("free infinite", None, |space| space.free = Space::Infinite),
        ("total unknown", None, |space| space.total = Space::Unknown),
    ];
    for (name, most, set) in rows {
        let mut space = pool(1).capacity;
        set(&mut space);
        let available = space.available(None);
        assert_eq!(available, most.map(|gib| gib * GIB), "{name}");
        let takes = |gib: u64| space.refuses(gib * GIB, None).is_none();
        match most {
            None => assert!(takes(1 << 33), "{name}"),
            Some(most) => assert!((most == 0 || takes(most)) && !takes(most + 1), "{name}"),
        }
    }
    let mut thin = pool(1).capacity;
    thin.thin = true;
    assert_eq!(
        thin.available(Some(Provisioning::Thick)),
        Some(100 * GIB),
        "thick volumes are not over-subscribed"
    );
    for ratio in [0.5, 0.0, -1.0, f64::NAN] {
        thin.max_over_subscription_ratio = ratio;
        assert!(thin.refuses(GIB, None).unwrap().contains("max_over_subscription_ratio"), "{ratio}");
        assert_eq!(thin.refuses(GIB, Some(Provisioning::Thick)), None, "{ratio}");
    }
    let mut blind = pool(1).capacity;
    (blind.total, blind.reserved_percentage) = (Space::Infinite, 1);
    assert!(blind.refuses(1, None).unwrap().contains("reserved"));
}

#[test]
fn whole_extents_are_taken() {
    let mut space = pool(1).capacity;
    space.extent = 3 * GIB;
    space.free = Space::Bytes(10 * GIB);
    assert!(space.refuses(9 * GIB, None).is_none() && space.refuses(9 * GIB + 1, None).is_some());
    assert_eq!(space.whole_extents(9 * GIB + 1), Some(12 * GIB));
    assert_eq!(space.whole_extents(u64::MAX), None);
    space.extent = 1 << 63;
    assert_eq!(space.whole_extents(u64::MAX), None);
    assert!(space.refuses(u64::MAX, None).is_some());
    space.extent = 0;
    assert_eq!(space.whole_extents(7), Some(7));
}

#[test]
fn a_volume_that_is_there_needs_no_space_there() {
    let mut full = pool(1);
    full.capacity.free = Space::Bytes(0);
    let mut request = wanted(10);
    request.resides = Some(place(1));
    assert_eq!(fits(&full, &request), Ok(()));
    request.resides = Some(place(2));
    assert_eq!(fits(&full, &request).unwrap_err().filter, Filter::Capacity);
    request.resides = Some(place(1));
    request.specs = specs(&[("volume_backend_name", "other")]);
    assert_eq!(fits(&full, &request).unwrap_err().filter, Filter::Capabilities);
}

fn names(pools: &[Pool], request: &Request, multipliers: Multipliers) -> Vec<String> {
    choose(pools, request, multipliers).unwrap().iter().map(|one| one.pool.host.replace("@lvm", "")).collect()
}

#[test]
fn the_freest_comes_first_and_who_is_down_last() {
    let with = |n, free: u64, volumes| {
        let mut pool = pool(n);
        pool.capacity.free = Space::Bytes(free * GIB);
        pool.volumes = volumes;
        pool
    };
    let mut pools = vec![with(1, 20, 0), with(2, 80, 9), with(3, 50, 3), with(4, 80, 2)];
    let (request, spread) = (wanted(10), Multipliers::default());
    assert_eq!(names(&pools, &request, spread), ["node4", "node2", "node3", "node1"]);
    let stack = Multipliers { free_capacity: -1.0, ..spread };
    assert_eq!(names(&pools, &request, stack), ["node1", "node3", "node4", "node2"]);
    let fewest = Multipliers { free_capacity: 0.0, volumes: -1.0 };
    assert_eq!(names(&pools, &request, fewest), ["node1", "node4", "node3", "node2"]);
    pools[3].up = false;
    assert_eq!(names(&pools, &request, spread), ["node2", "node3", "node1", "node4"]);
    // Among equals the name decides; a pool with unknown free space comes after those with known.
    let mut alike = vec![pool(3), pool(1), pool(2), pool(4)];
    alike[1].capacity.free = Space::Unknown;
    alike[3].capacity.free = Space::Bytes(50 * GIB);
    assert_eq!(names(&alike, &request, spread), ["node2", "node3", "node1", "node4"]);
    alike[1].capacity.free = Space::Infinite;
    assert_eq!(names(&alike, &request, stack), ["node4", "node1", "node2", "node3"]);
}

/// A thin pool of this total, with so much of it not written yet.
fn thin_pool(n: u128, total: u64, free: u64) -> Pool {
    let mut thin = pool(n);
    (thin.capacity.total, thin.capacity.free) = (Space::Bytes(total * GIB), Space::Bytes(free * GIB));
    (thin.capacity.thin, thin.capacity.thick) = (true, false);
    thin
}

#[test]
fn space_that_is_promised_and_not_there_comes_after_space_that_is() {
    let mut thick = pool(2);
    thick.capacity.free = Space::Bytes(7 * GIB);
    let both = [thin_pool(1, 10, 5), thick];
    let spread = Multipliers::default();
    // Thin is the rule as long as all of the volume could be written.
    assert_eq!(names(&both, &wanted(5), spread), ["node1", "node2"]);
    assert_eq!(names(&both, &wanted(6), spread), ["node2", "node1"]);
    let stack = Multipliers { free_capacity: -1.0, ..spread };
    assert_eq!(names(&both, &wanted(6), stack), ["node2", "node1"], "whatever the weights");
    // Only the thin pool can take this one, and this one says where it wants to be.
    assert_eq!(names(&both, &wanted(8), spread), ["node1"]);
    let of_type = Request::new(6 * GIB, specs(&[("provisioning:type", "thin")]));
    assert_eq!(names(&both, &of_type, spread), ["node1"]);
    // The reserve is not there to be written.
    let mut reserved = both.clone();
    reserved[0].capacity.reserved_percentage = 10;
    assert_eq!(names(&reserved, &wanted(5), spread), ["node2", "node1"]);
    // An agent that answers comes first all the same.
    let mut down = both;
    down[1].up = false;
    assert_eq!(names(&down, &wanted(6), spread), ["node1", "node2"]);
}

#[test]
fn thin_pools_are_compared_by_what_is_not_written() {
    let (large, mut small) = (thin_pool(1, 100, 10), thin_pool(2, 40, 30));
    // Of the large pool twenty times its free space could be promised, of the small one 100 GiB.
    small.capacity.provisioned = 700 * GIB;
    let of_type = Request::new(GIB, specs(&[("provisioning:type", "thin")]));
    for request in [&wanted(1), &of_type] {
        let pools = [large.clone(), small.clone()];
        assert_eq!(names(&pools, request, Multipliers::default()), ["node2", "node1"]);
    }
    // Volumes that no report shows yet spread over equal pools.
    let mut twins = [thin_pool(1, 10, 10), thin_pool(2, 10, 10)];
    twins[0].capacity.promised = 3 * GIB;
    assert_eq!(names(&twins, &wanted(1), Multipliers::default()), ["node2", "node1"]);
    twins[0].capacity.promised = 20 * GIB;
    assert_eq!(names(&twins, &wanted(9), Multipliers::default()), ["node2", "node1"]);
}

#[test]
fn a_refusal_is_a_verdict_only_when_somebody_has_reported() {
    let nothing = choose(&[], &wanted(1), Multipliers::default()).unwrap_err();
    assert!(!nothing.reported && nothing.to_string().contains("try again"));
    let mut silent = pool(1);
    silent.age = None;
    let unknown = choose(&[silent.clone()], &wanted(1), Multipliers::default()).unwrap_err();
    assert!(!unknown.reported && unknown.summary().contains("try again"));
    let known = choose(&[silent, pool(2)], &wanted(200), Multipliers::default()).unwrap_err();
    assert!(known.reported);
    assert_eq!(
        known.to_string(),
        "No valid backend was found: node1@lvm#vg: state: its agent has never reported; node2@lvm#vg: capacity: 200 GiB \
         are wanted, and 100 of 100 GiB can be given"
    );
    assert_eq!(known.summary(), "No valid backend was found: state (1 refused), capacity (1 refused)");
}

#[test]
fn a_refusal_is_never_long() {
    for (pools, pad) in [(2, 3000), (500, 0), (500, 200)] {
        let pools: Vec<_> = (0..pools).map(|n| Pool { disabled: Some("ü".repeat(pad)), ..pool(n) }).collect();
        let text = choose(&pools, &wanted(1), Multipliers::default()).unwrap_err().to_string();
        assert!(text.len() <= MESSAGE_BYTES_MAX && text.starts_with("No valid backend"), "{text}");
        if pools.len() > 2 {
            assert!(text.ends_with("more pools"), "{text}");
        }
    }
}

#[test]
fn sizes_are_shown_rounded_down() {
    for (bytes, want) in [(0, 0.0), (GIB, 1.0), (GIB - 1, 0.99), (GIB + GIB / 2, 1.5), (10 * GIB + 1, 10.0)] {
        assert!((gib(bytes) - want).abs() < 1e-9, "{bytes}");
    }
}

/// Any pool: the agents differ, so that names do.
fn any_pool() -> impl Strategy<Value = Pool> {
    let space = prop_oneof![
        8 => (0_u64..200).prop_map(|gib| Space::Bytes(gib * GIB)),
        1 => Just(Space::Infinite),
        1 => Just(Space::Unknown),
    ];
    let flags = proptest::collection::vec(any::<bool>(), 6);
    let state = prop_oneof![
        6 => Just((Some(Duration::from_secs(1)), None)),
        1 => Just((None, None)),
        1 => Just((Some(Duration::from_secs(1)), Some("repair".to_owned()))),
    ];
    let numbers = (0_u64..4000, 0_u64..50, 0_u8..110, 2_u32..12, 0_u64..6);
    (space.clone(), space, flags, state, numbers, prop_oneof![Just("az1"), Just("az2")]).prop_map(
        |(
            total,
            free,
            flags,
            (age, disabled),
            (provisioned, promised, reserved, quarters, volumes),
            zone,
        )| {
            let mut one = pool(0);
            one.capacity = Capacity {
                total,
                free,
                provisioned: provisioned * GIB / 10,
                promised: promised * GIB / 2,
                reserved_percentage: reserved,
                // Quarters are exact in binary, so that the law below can be exact, too. Some are
                // below 1.
                max_over_subscription_ratio: f64::from(quarters) / 4.0,
                thin: flags[0],
                thick: flags[1],
                closed: (flags[5] && volumes == 1).then(|| "nothing new".to_owned()),
                ..one.capacity
            };
            (one.multiattach, one.up, one.drained) = (flags[2], flags[3], flags[4] && volumes == 0);
            one.capabilities.insert("multiattach".to_owned(), json!(flags[2]));
            (one.age, one.disabled, one.zone, one.volumes) = (age, disabled, zone.to_owned(), volumes);
            one
        },
    )
}

/// Some pools are twins but for their names, so that weights can be equal.
fn any_pools() -> impl Strategy<Value = Vec<Pool>> {
    proptest::collection::vec((any_pool(), 1_usize..3), 0..5).prop_map(|pools| {
        let twins = pools.into_iter().flat_map(|(one, times)| std::iter::repeat_n(one, times));
        twins.zip(1_u128..).map(|(one, n)| Pool { agent: agent(n), host: pool(n).host, ..one }).collect()
    })
}

fn any_request() -> impl Strategy<Value = Request> {
    let content = prop_oneof![3 => Just(None), 1 => Just(Some("thick")), 1 => Just(Some("thin"))];
    let zone = proptest::option::weighted(0.3, prop_oneof![Just("az1"), Just("az2")]);
    let agents = || proptest::collection::btree_set((1_u128..8).prop_map(agent), 0..4);
    let hints = (proptest::option::weighted(0.2, agents()), agents(), 0_u128..20);
    (1_u64..300, any::<bool>(), content, zone, hints).prop_map(
        |(half_gib, shared, content, zone, (same, different, tried))| {
            let mut all = BTreeMap::new();
            if shared {
                all.insert("multiattach".to_owned(), "<is> True".to_owned());
            }
            if let Some(content) = content {
                all.insert("provisioning:type".to_owned(), content.to_owned());
            }
            let mut request = Request::new(half_gib * GIB / 2, all);
            request.zone = zone.map(str::to_owned);
            request.same_host = same;
            request.different_host = if request.same_host.is_some() { BTreeSet::new() } else { different };
            request.excluded = BTreeMap::from([(place(tried), "tried".to_owned())]);
            request
        },
    )
}

/// The conditions that a chosen pool must meet, written apart from the filters.
fn holds(pool: &Pool, request: &Request) -> bool {
    let space = &pool.capacity;
    let thin = space.thin && request.provisioning != Some(Provisioning::Thick);
    let bounded = match (space.total, space.free) {
        (Space::Bytes(total), Space::Bytes(free)) => {
            let reserved = u128::from(total) * u128::from(space.reserved_percentage.min(100)) / 100;
            // In quarters, as whole numbers.
            let is = |n: &u128| {
                (f64::from(u32::try_from(*n).unwrap()) / 4.0 - space.max_over_subscription_ratio).abs() < 1e-9
            };
            let quarters = if thin { (0..100).find(is).unwrap() } else { 4 };
            let taken =
                u128::from(space.provisioned) + u128::from(space.promised) + u128::from(request.bytes);
            // Promised space counts as used: in a thin pool as that of a thin volume.
            let left = u128::from(free).saturating_sub(reserved);
            let wanted = u128::from(space.promised) + u128::from(request.bytes);
            quarters >= 4
                && taken * 4 <= (u128::from(total) - reserved) * quarters
                && (request.bytes == 0 || wanted * 4 <= left * quarters)
        }
        (_, Space::Bytes(_)) => space.reserved_percentage == 0,
        _ => true,
    };
    pool.age.is_some()
        && pool.disabled.is_none()
        && !pool.drained
        && (!request.multiattach || pool.multiattach)
        && request.zone.as_ref().is_none_or(|zone| *zone == pool.zone)
        && request.same_host.as_ref().is_none_or(|agents| agents.contains(&pool.agent))
        && !request.different_host.contains(&pool.agent)
        && !request.excluded.keys().any(|tried| pool.is(tried))
        && match request.provisioning {
            None => true,
            Some(Provisioning::Thin) => space.thin,
            Some(Provisioning::Thick) => space.thick,
        }
        && space.closed.is_none()
        && bounded
}

/// Returns `true` if all of the volume could be written to the pool now. Written apart from the
/// weigher, for pools that a filter has let through: a thick one has the space then.
fn has_it_now(pool: &Pool, request: &Request) -> bool {
    let space = &pool.capacity;
    match (space.total, space.free) {
        (Space::Bytes(total), Space::Bytes(free)) if space.thin => {
            let reserved = u128::from(total) * u128::from(space.reserved_percentage.min(100)) / 100;
            // Sizes are whole extents here.
            u128::from(request.bytes) + reserved <= u128::from(free)
        }
        _ => true,
    }
}

proptest! {
    #[test]
    fn what_says_nothing_goes_where_its_space_is_and_there_it_is_thin(
        pools in any_pools(),
        request in any_request(),
        free in -2.0_f64..2.0,
        volumes in -2.0_f64..2.0,
    ) {
        let multipliers = Multipliers { free_capacity: free, volumes };
        let says_nothing = request.provisioning.is_none();
        let verdict = choose(&pools, &request, multipliers);
        let ranks = verdict.iter().flatten().map(|one| {
            let there = says_nothing && has_it_now(one.pool, &request);
            (one.pool.up, there, says_nothing && one.pool.capacity.thin, one.weight)
        });
        let ranks: Vec<_> = ranks.collect();
        prop_assert!(ranks.is_sorted_by(|a, b| a >= b), "{:?} {:?}", ranks, request);
    }

    #[test]
    fn what_is_chosen_satisfies_every_filter_and_nothing_is_left_out(pools in any_pools(), request in any_request()) {
        let verdict = choose(&pools, &request, Multipliers::default());
        let chosen: BTreeSet<_> = match &verdict {
            Ok(all) => {
                prop_assert!(!all.is_empty());
                all.iter().map(|one| one.pool.agent).collect()
            }
            Err(no) => {
                prop_assert_eq!(no.rejected.len(), pools.len());
                prop_assert!(no.to_string().len() <= MESSAGE_BYTES_MAX);
                BTreeSet::new()
            }
        };
        for pool in &pools {
            prop_assert_eq!(chosen.contains(&pool.agent), holds(pool, &request), "{:?} {:?}", pool, request);
        }
        // No pool that is down stands before one that is up.
        let ups: Vec<_> = verdict.iter().flatten().map(|one| one.pool.up).collect();
        prop_assert!(ups.is_sorted_by(|a, b| a >= b));
    }

    #[test]
    fn another_pool_takes_no_place_away(pools in any_pools(), more in any_pool(), request in any_request()) {
        let before = choose(&pools, &request, Multipliers::default());
        let mut all = pools.clone();
        all.push(Pool { agent: agent(99), host: "node99@lvm".to_owned(), ..more });
        let after = choose(&all, &request, Multipliers::default());
        let agents = |verdict: &mooring_controller::schedule::Verdict<'_>| -> BTreeSet<AgentId> {
            verdict.iter().flatten().map(|one| one.pool.agent).collect()
        };
        prop_assert!(agents(&before).is_subset(&agents(&after)));
    }

    #[test]
    fn the_order_of_reports_does_not_matter(
        (pools, mixed) in any_pools().prop_flat_map(|pools| (Just(pools.clone()), Just(pools).prop_shuffle())),
        request in any_request(),
        free in -2.0_f64..2.0,
        volumes in -2.0_f64..2.0,
    ) {
        let multipliers = Multipliers { free_capacity: free, volumes };
        let told = |pools: &[Pool]| match choose(pools, &request, multipliers) {
            Ok(all) => all.iter().map(|one| one.pool.full_name()).collect::<Vec<_>>(),
            Err(no) => vec![no.to_string(), no.summary()],
        };
        prop_assert_eq!(told(&pools), told(&mixed));
    }

    #[test]
    fn volumes_one_after_another_never_take_more_than_there_is(
        first in any_pool(),
        sizes in proptest::collection::vec(1_u64..60, 1..40),
    ) {
        let mut pool = Pool { agent: agent(1), ..first };
        let start = pool.capacity.clone();
        for size in sizes {
            let request = wanted(size);
            if fits(&pool, &request).is_ok() {
                pool.capacity.promised += pool.capacity.whole_extents(request.bytes).unwrap();
                // The sum must hold after the placement, without a further request.
                let nothing = Request { bytes: 0, ..request };
                prop_assert!(holds(&pool, &nothing) || pool.capacity.total.bytes().is_none(), "{:?}", pool);
            }
        }
        if let (Space::Bytes(_), Space::Bytes(free), false) = (start.total, start.free, start.thin) {
            prop_assert!(pool.capacity.promised <= free.max(start.promised));
        }
    }

    #[test]
    fn no_spec_is_a_panic(
        key in "(capabilities:|RESKEY:|)[a-c:]{0,6}",
        operator in prop_oneof![
            Just("="), Just("=="), Just("!="), Just(">="), Just("<="), Just("s<"), Just("<in>"), Just("<is>"), Just("<or>"),
            Just("<all-in>"), Just("")
        ],
        rest in "\\PC{0,30}",
        value in prop_oneof![
            Just(json!(null)), any::<bool>().prop_map(|b| json!(b)), any::<f64>().prop_map(|n| json!(n)),
            "\\PC{0,10}".prop_map(|s| json!(s)), Just(json!([])), Just(json!([1, "a", null])), Just(json!({ "b": { "c": 1 } })),
        ],
    ) {
        let requirement = format!("{operator} {rest}");
        let met = satisfies(&value, &requirement);
        // A number operator never matches a value that is no number.
        if ["=", "==", "!=", ">=", "<="].contains(&operator) && met {
            let word = requirement.split_whitespace().nth(1).unwrap();
            prop_assert!(word.parse::<f64>().is_ok(), "{requirement:?}");
        }
        let capabilities = json!({ "a": value, "b": { "c": value } });
        let why = unsatisfied(capabilities.as_object().unwrap(), &specs(&[(&key, &requirement)]));
        prop_assert!(why.is_none_or(|why| why.chars().count() < 400));
    }

    #[test]
    fn the_scheduler_and_the_flag_read_one_meaning(flag in "<is> (true|True|YES|y|on|1|f|no|OFF|0|False)") {
        let written = types::normalise(specs(&[("multiattach", &flag)])).unwrap();
        prop_assert_eq!(satisfies(&json!(true), &written["multiattach"]), rules::is_multiattach(&written));
    }
}
