//! Tests both fakes against the facts, by logins made by hand.

mod driver;
mod faults;
mod logins;
mod sessions;
