//! A network that answers instead of the agent: every grant that a change takes away is "revoked",
//! and nothing is done. The run with this defect shows that the simulation would find it.
//!
//! What must never happen here: anything in a run without a defect.

use std::collections::{BTreeMap, BTreeSet};

use http_body_util::{BodyExt, Full};
use mooring_api::{Message, v1};
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::{HeaderMap, HeaderValue, Response};

/// Flag and length before a message, in bytes.
const FRAME_BYTES: usize = 5;

/// Initiators with a grant that the agent last received, by volume.
#[derive(Debug, Default)]
pub(crate) struct Liar(BTreeMap<String, BTreeSet<String>>);

impl Liar {
    /// Returns a false answer to this request; `None` if the agent may have the request.
    pub(crate) fn answer(&mut self, path: &str, body: &Bytes) -> Option<Response<Body>> {
        if !path.ends_with("/PutExport") {
            return None;
        }
        let put = v1::PutExportRequest::decode(body.get(FRAME_BYTES..)?).ok()?;
        let Some(v1::put_export_request::Wish::Spec(spec)) = &put.wish else { return None };
        let granted: BTreeSet<_> = spec.grants.iter().map(|grant| grant.initiator.clone()).collect();
        let before = self.0.get(&put.volume_id);
        let gone: Vec<_> = before.iter().flat_map(|before| before.difference(&granted)).cloned().collect();
        if gone.is_empty() {
            self.0.insert(put.volume_id, granted);
            return None;
        }
        let generation = put.stamp.as_ref().and_then(|stamp| stamp.generation);
        let receipt = |initiator: String| v1::Receipt {
            volume_id: put.volume_id.clone(),
            initiator,
            generation,
            nexus_removed: true,
            proven: true,
            ..v1::Receipt::default()
        };
        let receipts = gone.into_iter().map(receipt).collect();
        let report = Some(report(&put.volume_id, generation, spec)?);
        Some(framed(&v1::PutExportResponse { report, done: true, receipts, timing: None }))
    }
}

/// Returns the report of an agent that has done the change.
fn report(
    volume: &str,
    generation: Option<v1::Generation>,
    spec: &v1::ExportSpec,
) -> Option<v1::ExportReport> {
    let grant = |grant: &v1::Grant| v1::GrantReport {
        initiator: grant.initiator.clone(),
        lun: grant.lun,
        wanted: grant.mode,
        seen: grant.mode,
        ..v1::GrantReport::default()
    };
    let target = mooring_model::IqnPrefix::default().target(volume.parse().ok()?);
    Some(v1::ExportReport {
        volume_id: volume.to_owned(),
        generation,
        target: target.to_string(),
        naa: mooring_model::Naa::of_serial(volume).to_string(),
        portals: vec!["10.0.0.1:3260".to_owned()],
        in_force: true,
        grants: spec.grants.iter().map(grant).collect(),
        problems: Vec::new(),
        stuck: None,
        fc: Vec::new(),
        looked_us: 0,
        unlisted_sessions: None,
        reservations: None,
        kept_reservations: None,
    })
}

fn framed(message: &impl Message) -> Response<Body> {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or_default();
    let frame = [&[0][..], &length.to_be_bytes(), &message].concat();
    let trailers = HeaderMap::from_iter([(
        tonic::codegen::http::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    )]);
    let body = Full::new(Bytes::from(frame)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}
