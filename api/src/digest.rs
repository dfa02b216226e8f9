//! The digest that a sender puts on a spec.

use mooring_model::Digest;
use sha2::{Digest as _, Sha256};

/// SHA-256 of the encoded spec and its opaque data. Only senders call this. Agents compare digests
/// and never compute them, so a newer sender's unknown fields count, too.
pub fn digest(spec: &impl prost::Message, opaque: &[u8]) -> Digest {
    let mut hash = Sha256::new();
    hash.update(spec.encode_to_vec());
    hash.update(opaque);
    let bytes: [u8; 32] = hash.finalize().into();
    Digest::of_sha256(bytes)
}
