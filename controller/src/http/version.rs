//! Microversions: the advertised range, the version of a request, and the version documents.
//!
//! What must never happen here: an advertised version that the existing endpoints do not honour.

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::fault::{Fault, MALFORMED};

/// The header of requests and answers.
pub(super) const HEADER: &str = "openstack-api-version";

/// 3.69: `shared_targets` may be null. Neither 3.70 (transfers) nor 3.71 (the completion of an
/// extend) exists here.
const MAX: u16 = 69;

/// The time of the last change of the version documents.
const UPDATED: &str = "2026-11-21T00:00:00Z";

/// The version 3.N, by its N.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u16);

impl Version {
    /// `cluster` of services.
    pub(super) const CLUSTERS: Self = Self(7);
    /// `failover` of services (refused here, but known).
    pub(super) const FAILOVER: Self = Self(26);
    /// `/manageable_volumes`, and `cluster` there.
    pub(super) const MANAGEABLE: Self = Self(8);
    pub(super) const MANAGE_CLUSTER: Self = Self(16);
    /// Pools filtered by name and capability.
    pub(super) const POOL_FILTERS: Self = Self(28);
    /// Pools filtered by volume type.
    pub(super) const POOL_TYPES: Self = Self(35);
    /// `backend_state` of services.
    pub(super) const BACKEND_STATE: Self = Self(49);
    /// Messages, and their filters.
    pub(super) const MESSAGES: Self = Self(3);
    pub(super) const MESSAGE_FILTERS: Self = Self(5);
    /// `/volumes/summary`, and metadata in it.
    pub(super) const SUMMARY: Self = Self(12);
    pub(super) const SUMMARY_METADATA: Self = Self(36);
    /// `ETag` and `If-Match` of metadata.
    pub(super) const METADATA_TAGS: Self = Self(15);
    /// `force` of volume deletes.
    pub(super) const FORCE_DELETE: Self = Self(23);
    /// The attachments API.
    pub(super) const ATTACHMENTS: Self = Self(27);
    /// Unknown filters are refused.
    pub(super) const STRICT_FILTERS: Self = Self(31);
    /// `/limits` of other projects.
    pub(super) const PROJECT_LIMITS: Self = Self(39);
    /// Reverts of volumes to a snapshot.
    pub(super) const REVERT: Self = Self(40);
    /// Extends of volumes in use.
    pub(super) const EXTEND_IN_USE: Self = Self(42);
    /// `/resource_filters`.
    pub(super) const RESOURCE_FILTERS: Self = Self(33);
    /// `key~=part` filters.
    pub(super) const LIKE_FILTERS: Self = Self(34);
    /// `os-complete`.
    pub(super) const COMPLETE: Self = Self(44);
    /// `with_count`.
    pub(super) const COUNT: Self = Self(45);
    /// Types filtered by extra specs.
    pub(super) const TYPE_FILTERS: Self = Self(52);
    /// Unknown keys of volume bodies are refused.
    pub(super) const STRICT_VOLUMES: Self = Self(53);
    /// A mode per attachment.
    pub(super) const MODE: Self = Self(54);
    /// `created_at=gt:…`.
    pub(super) const TIME_FILTERS: Self = Self(60);

    /// Default types of projects.
    pub(super) const DEFAULT_TYPES: Self = Self(62);
    /// Snapshots of volumes in use need no `force`.
    pub(super) const SNAPSHOT_IN_USE: Self = Self(66);

    /// Fields of the snapshot's view, by the version that brought them.
    pub(super) const GROUP_SNAPSHOTS: Self = Self(14);
    pub(super) const SNAPSHOT_USER: Self = Self(41);

    /// Fields of the volume's view, by the version that brought them.
    pub(super) const GROUP_ID: Self = Self(13);
    pub(super) const PROVIDER_ID: Self = Self(21);
    pub(super) const SHARED_TARGETS: Self = Self(48);
    pub(super) const CLUSTER_NAME: Self = Self(61);
    pub(super) const TYPE_ID: Self = Self(63);
    pub(super) const CONSUMES_QUOTA: Self = Self(65);

    /// The header's value for this version.
    pub(super) fn echo(self) -> Option<HeaderValue> {
        HeaderValue::from_str(&format!("volume 3.{}", self.0)).ok()
    }
}

/// Reads a request's version. The error holds the fault, and the version to echo.
pub(super) fn asked(headers: &HeaderMap) -> Result<Version, (Fault, Option<HeaderValue>)> {
    let mut seen = false;
    let mut wanted = None;
    for value in headers.get_all(HEADER) {
        seen = true;
        let Ok(text) = value.to_str() else { return Err((Fault::bad_request(MALFORMED), None)) };
        for item in text.split(',') {
            if let Some(version) = item.trim().strip_prefix("volume ") {
                wanted = Some(version.trim().to_owned());
            }
        }
    }
    match wanted {
        Some(text) => one(&text),
        // The header is missing, or names only other services.
        None if seen => Err((Fault::bad_request(MALFORMED), None)),
        None => Ok(Version(0)),
    }
}

fn one(text: &str) -> Result<Version, (Fault, Option<HeaderValue>)> {
    if text == "latest" {
        return Ok(Version(MAX));
    }
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let plain = digits && (text == "0" || !text.starts_with('0'));
        plain.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    let parts = text.split_once('.').and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
    let Some((major, minor)) = parts else {
        let shown: String = text.chars().take(64).collect();
        let message =
            format!("API Version String {shown} is of invalid format. Must be of format MajorNum.MinorNum.");
        return Err((Fault::bad_request(message), None));
    };
    match u16::try_from(minor) {
        Ok(minor) if major == 3 && minor <= MAX => Ok(Version(minor)),
        _ => {
            let message = format!(
                "Version {major}.{minor} is not supported by the API. Minimum is 3.0 and maximum is 3.{MAX}."
            );
            let echo = (major >= 3)
                .then(|| HeaderValue::from_str(&format!("volume {major}.{minor}")).ok())
                .flatten();
            Err((Fault::new(StatusCode::NOT_ACCEPTABLE, message), echo))
        }
    }
}

/// The version documents: with 300 at the root, with 200 at `/v3/`.
pub(super) fn document(status: StatusCode, base: &str) -> Response {
    let version = json!({
        "id": "v3.0",
        "status": "CURRENT",
        "version": format!("3.{MAX}"),
        "min_version": "3.0",
        "updated": UPDATED,
        "links": [
            { "rel": "describedby", "type": "text/html", "href": "https://docs.openstack.org/" },
            { "rel": "self", "href": format!("{base}/v3/") },
        ],
        "media-types": [
            { "base": "application/json", "type": "application/vnd.openstack.volume+json;version=3" },
        ],
    });
    (status, Json(json!({ "versions": [version] }))).into_response()
}
