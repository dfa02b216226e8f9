//! Transports between a host and a volume: the table of all that decides, and connectors of every
//! kind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeMap;

use mooring_controller::domain::{RuleViolation, STORAGE_PROTOCOL, Transport};
use mooring_controller::http::sentence;
use mooring_controller::initiators::Initiators;
use mooring_controller::rules::transport::{Offer, Served, choose};
use mooring_controller::rules::types::Specs;
use proptest::prelude::*;
use serde_json::{Value, json};

const IQN: &str = "iqn.2026-01.org.example:n1";
const PORT: &str = "20:00:52:54:00:14:00:0b";

fn offer(connector: &Value) -> Result<Offer, RuleViolation> {
    Offer::of_connector(connector.as_object().unwrap())
}

fn specs(protocol: Option<&str>) -> Specs {
    protocol.map(|text| BTreeMap::from([(STORAGE_PROTOCOL.to_owned(), text.to_owned())])).unwrap_or_default()
}

fn subsets() -> [Vec<Transport>; 4] {
    [vec![], vec![Transport::Iscsi], vec![Transport::Fc], Transport::ALL.to_vec()]
}

/// The whole table: what the host has, what the caller and the type name, what the agent serves and
/// is ready for.
#[test]
fn what_all_allow_and_iscsi_first() {
    let typed = [
        (None, Transport::ALL.to_vec()),
        (Some("iSCSI"), vec![Transport::Iscsi]),
        (Some("<in> iSCSI"), vec![Transport::Iscsi]),
        (Some("fibre_channel"), vec![Transport::Fc]),
        (Some("FC"), vec![Transport::Fc]),
        (Some("<or> FC <or> iSCSI"), Transport::ALL.to_vec()),
        (Some("nvmeof"), vec![]),
    ];
    let mut rows = 0;
    for has in subsets().into_iter().filter(|has| !has.is_empty()) {
        for (spec, allowed) in &typed {
            for asked in [None, Some(Transport::Iscsi), Some(Transport::Fc)] {
                for serves in subsets() {
                    for ready in
                        subsets().into_iter().filter(|ready| ready.iter().all(|one| serves.contains(one)))
                    {
                        let offer = Offer {
                            iscsi: has.contains(&Transport::Iscsi).then(|| IQN.parse().unwrap()),
                            fc: has
                                .contains(&Transport::Fc)
                                .then(|| PORT.parse::<Initiators>().unwrap().ports().unwrap().clone()),
                            unread_fc: None,
                            asked,
                        };
                        let may = |of: &Transport| {
                            has.contains(of)
                                && allowed.contains(of)
                                && asked.is_none_or(|asked| asked == *of)
                                && serves.contains(of)
                        };
                        let want: Vec<_> = Transport::ALL.into_iter().filter(may).collect();
                        let best = want.iter().find(|one| ready.contains(one)).or(want.first()).copied();
                        let served = Served { has: serves.clone(), ready: ready.clone() };
                        let got = choose(&offer, &specs(*spec), "s1", Some(&served));
                        assert_eq!(
                            got.as_ref().ok().map(Transport::of),
                            best,
                            "{has:?} {spec:?} {asked:?} {serves:?} {ready:?}"
                        );
                        if let Err(violation) = got {
                            let text = sentence(&violation);
                            assert!(
                                text.starts_with("Invalid input received: no common transport: "),
                                "{text}"
                            );
                            assert!(text.contains("s1"), "{text}");
                        }
                        rows += 1;
                    }
                }
            }
        }
    }
    assert_eq!(rows, 3 * 7 * 3 * 9);
}

#[test]
fn an_agent_that_has_said_nothing_serves_what_every_agent_does() {
    let both = offer(&json!({ "initiator": IQN, "wwpns": [PORT], "wwnns": [PORT] })).unwrap();
    assert_eq!(Transport::of(&choose(&both, &specs(None), "s1", None).unwrap()), Transport::Iscsi);
    let refused = sentence(&choose(&both, &specs(Some("FC")), "s1", None).unwrap_err());
    assert_eq!(
        refused,
        "Invalid input received: no common transport: the connector offers iSCSI and FC, storage agent s1 serves iSCSI, and \
         the volume's type wants storage_protocol FC"
    );
}

#[test]
fn a_connector_needs_a_name() {
    let name = |value: Value| offer(&value).unwrap();
    let iscsi = name(json!({ "initiator": "IQN.2026-01.org.Example:N1" }));
    assert_eq!(iscsi.iscsi, Some(IQN.parse().unwrap()), "names are compared without case");
    // As os-brick writes it, and in other spellings; a repeated name counts once.
    for wwpns in [
        json!(["200052540014000b"]),
        json!("200052540014000B"),
        json!([PORT, "0x200052540014000b", "20-00-52-54-00-14-00-0B", "naa.200052540014000b"]),
    ] {
        let fc = name(json!({ "wwpns": wwpns, "wwnns": ["100052540014000b"] }));
        assert_eq!(fc.fc.map(|ports| Initiators::Fc(ports).to_string()).as_deref(), Some(PORT), "{wwpns}");
        assert_eq!((fc.iscsi, fc.asked), (None, None));
    }
    let (port, other) = ("200052540014000b", "200052540014000c");
    let many: Vec<_> = (1..=33).map(|n: u64| format!("{n:016x}")).collect();
    for wrong in [
        json!({}),
        json!({ "initiator": null }),
        json!({ "initiator": 5 }),
        json!({ "initiator": "node1" }),
        json!({ "wwpns": [], "wwnns": [] }),
        json!({ "wwpns": null, "wwnns": null }),
        json!({ "wwpns": [port] }),
        json!({ "wwnns": [port] }),
        json!({ "wwpns": [port], "wwnns": [] }),
        json!({ "wwpns": [port, "x"], "wwnns": [other] }),
        json!({ "wwpns": [port], "wwnns": ["x"] }),
        json!({ "wwpns": [5], "wwnns": [other] }),
        json!({ "wwpns": { "a": port }, "wwnns": [other] }),
        json!({ "wwpns": ["0000000000000000"], "wwnns": [other] }),
        json!({ "wwpns": [IQN], "wwnns": [other] }),
        json!({ "wwpns": many, "wwnns": [other] }),
        json!({ "initiator": IQN, "storage_protocol": "nvme" }),
        json!({ "initiator": IQN, "storage_protocol": 1 }),
        json!({ "initiator": IQN, "wwpns": ["x"], "wwnns": ["y"], "storage_protocol": "FC" }),
    ] {
        assert!(sentence(&offer(&wrong).unwrap_err()).starts_with("Invalid input received: "), "{wrong}");
    }
    // A host that logs in over iSCSI may have an adapter that reports no valid name.
    let iscsi = name(json!({ "initiator": IQN, "wwpns": ["x"], "storage_protocol": null }));
    assert!(iscsi.iscsi.is_some() && iscsi.fc.is_none());
    assert_eq!(name(json!({ "initiator": IQN, "storage_protocol": "FC" })).asked, Some(Transport::Fc));
}

/// A name that nobody can read does not change the transport in silence.
#[test]
fn names_that_cannot_be_read_are_named_where_fc_is_demanded() {
    let both = |wwpns: Value, wwnns: Value| {
        offer(&json!({ "initiator": IQN, "wwpns": wwpns, "wwnns": wwnns })).unwrap()
    };
    let said = |offer: &Offer, spec: Option<&str>, served: &Served| {
        choose(offer, &specs(spec), "s1", Some(served)).map_err(|violation| sentence(&violation))
    };
    let all = Served { has: Transport::ALL.to_vec(), ready: Transport::ALL.to_vec() };
    let without_iscsi = Served { has: vec![Transport::Fc], ready: vec![Transport::Fc] };
    let (port, bad) = (json!([PORT]), json!(["20:00"]));
    for (offer, wants) in [
        (both(bad.clone(), port.clone()), "connector wwpns: \"20:00\" is not a Fibre Channel port name"),
        (both(port.clone(), bad), "connector wwnns: \"20:00\" is not a Fibre Channel port name"),
        (both(port.clone(), json!(null)), "the connector has wwpns and no wwnns"),
    ] {
        for spec in [None, Some("iSCSI"), Some("<or> FC <or> iSCSI")] {
            assert_eq!(said(&offer, spec, &all), Ok(Initiators::Iscsi(IQN.parse().unwrap())), "{spec:?}");
        }
        for (spec, served) in [(Some("FC"), &all), (None, &without_iscsi)] {
            let text = said(&offer, spec, served).unwrap_err();
            assert!(text.starts_with("Invalid input received: ") && text.contains(wants), "{text}");
        }
        // Where Fibre Channel would not do either, its names are not what is wrong.
        for spec in ["iSCSI", "nvmeof"] {
            let text = said(&offer, Some(spec), &without_iscsi).unwrap_err();
            assert!(text.contains("no common transport"), "{text}");
        }
    }
    // Linux's spelling of a name that begins with a zero.
    let zero = both(json!(["100000000000b01"]), json!(["0x100000000000b01"]));
    let chosen = said(&zero, Some("FC"), &all).unwrap();
    assert_eq!((zero.unread_fc, chosen.to_string().as_str()), (None, "01:00:00:00:00:00:0b:01"));
}

#[test]
fn a_transport_has_one_name_in_every_spelling() {
    for transport in Transport::ALL {
        assert!(transport.spellings().contains(&transport.as_str()));
        for word in transport.spellings() {
            assert_eq!(Transport::from_word(word), Some(transport));
        }
    }
    for bad in ["", "ISCSI", "Fc", "nvmeof", "fibre channel"] {
        assert_eq!(Transport::from_word(bad), None, "{bad:?}");
    }
}

proptest! {
    /// Law: any input of a client is an offer of well-formed names, or an error; and a host is
    /// recognized by its own names.
    #[test]
    fn garbage_is_refused_and_names_are_known_again(
        initiator in prop::option::of("(iqn\\.2026-01\\.org:)?[a-z0-9]{0,6}"),
        wwpns in prop::collection::vec("[0-9a-f]{15,17}|\\PC{0,6}", 0..4),
        nodes in any::<bool>(), asked in prop::option::of("iSCSI|FC|fc|x"),
    ) {
        let wwnns: Vec<&str> = if nodes { vec!["100052540014000b"] } else { Vec::new() };
        let connector = json!({ "initiator": initiator, "wwpns": wwpns, "wwnns": wwnns, "storage_protocol": asked });
        if let Ok(offer) = offer(&connector) {
            let iscsi = offer.iscsi.clone().map(Initiators::Iscsi);
            let fc = offer.fc.clone().map(Initiators::Fc);
            prop_assert!(iscsi.is_some() || fc.is_some());
            for own in iscsi.iter().chain(&fc) {
                prop_assert!(offer.covers(own));
            }
            let stranger: Initiators = "iqn.2026-01.org:somebody.else".parse().unwrap();
            prop_assert!(!offer.covers(&stranger));
        }
    }
}
