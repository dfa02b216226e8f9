//! The first request of a discovery login: whoever only wants to know whether somebody answers asks no target for anything.

use mooring_host::HEADER_BYTES;
use mooring_model::Iqn;

use super::isid::Isid;
use super::pdu::{LoginRequest, Stage};
use super::text::Text;

/// What a discovery session has to agree on: it may be logged in with this one request.
const KEYS: [(&str, &str); 6] = [
    ("SessionType", "Discovery"),
    ("HeaderDigest", "None"),
    ("DataDigest", "None"),
    ("DefaultTime2Wait", "2"),
    ("DefaultTime2Retain", "0"),
    ("MaxRecvDataSegmentLength", "8192"),
];

/// Its header and its data, not padded. No authentication is offered.
pub fn discovery_request(initiator: &Iqn, isid: Isid) -> ([u8; HEADER_BYTES], Vec<u8>) {
    let mut text = Text::new();
    text.push("InitiatorName", initiator.as_str());
    for (key, value) in KEYS {
        text.push(key, value);
    }
    let data = text.encode();
    let request = LoginRequest {
        stage: Stage::Operational,
        transit: Some(Stage::FullFeature),
        continues: false,
        isid,
        exp_stat_sn: 0,
    };
    (request.encode(data.len()), data)
}
