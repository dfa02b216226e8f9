//! First request of a discovery login. It serves callers that only test whether a portal answers:
//! it asks no target for anything.

use mooring_host::HEADER_BYTES;
use mooring_model::Iqn;

use super::isid::Isid;
use super::pdu::{LoginRequest, Stage};
use super::text::Text;

/// Keys that a discovery session has to agree on: this one request may complete the login.
const KEYS: [(&str, &str); 6] = [
    ("SessionType", "Discovery"),
    ("HeaderDigest", "None"),
    ("DataDigest", "None"),
    ("DefaultTime2Wait", "2"),
    ("DefaultTime2Retain", "0"),
    ("MaxRecvDataSegmentLength", "8192"),
];

/// Returns the request's header, and its data without padding. It offers no authentication.
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
