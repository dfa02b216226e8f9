//! Writes of the controller's flow that rely on no agent's lease.
//!
//! What must never happen here: work at an agent in the list, which a lost lease must stop.

use std::collections::BTreeMap;

use super::sources;

/// The files that write past the leases, with the operations of their writes. Each is right on any
/// controller: it concerns no agent's present state, or its transaction compares what it changes.
const UNLEASED: [(&str, &[&str]); 5] = [
    (
        "controller/src/flow/enrolled.rs",
        &["keep which authorities this controller trusts", "keep that a certificate was renewed"],
    ),
    ("controller/src/flow/fenced.rs", &["compare fences with an agent"]),
    ("controller/src/flow/forgotten.rs", &["take away what a forgotten agent had"]),
    ("controller/src/flow/place.rs", &["look for another pool"]),
    ("controller/src/flow/waits.rs", &["end an announcement"]),
];

/// The operations of a file's writes past the leases; any other use is `another use`.
fn unleased(text: &str) -> Vec<String> {
    let operation = |after: &str| {
        let call = after.trim_start().strip_prefix(".write(")?;
        call.trim_start().strip_prefix('"')?.split('"').next().map(str::to_owned)
    };
    let uses = text.split(".unleased").skip(1);
    uses.map(|after| operation(after).unwrap_or_else(|| "another use".to_owned())).collect()
}

#[test]
fn few_writes_rely_on_no_lease() {
    let found: BTreeMap<String, Vec<String>> = sources()
        .into_iter()
        .filter(|(path, _)| path.starts_with("controller/"))
        .map(|(path, text)| (path, unleased(&text)))
        .filter(|(_, writes)| !writes.is_empty())
        .collect();
    let listed = UNLEASED.map(|(path, writes)| {
        let writes: Vec<String> = writes.iter().map(|write| (*write).to_owned()).collect();
        (path.to_owned(), writes)
    });
    assert_eq!(found, BTreeMap::from(listed));
    // The control.
    let text = "self\n    .unleased\n    .write(\n \"a\", work).await; let store = &self.unleased; store.write(\"b\", work)";
    assert_eq!(unleased(text), ["a", "another use"]);
}
