//! The start before LVM has answered, and the making of many exports together.
//!
//! What must never happen here: an LV served that LVM has never shown whole.

pub(super) mod bulk;
pub(super) mod early;
mod expedite;
