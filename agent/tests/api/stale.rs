//! Each row of the table in docs/simulation.md: with a reason for forgetting switched off, the test
//! that the row names must fail. The tests of the library include this file, too.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

/// Tries until a row counts as untrue. A test that is slower than the agent's own repetition of
/// what failed may pass although the reason is switched off.
const TRIES: usize = 3;

/// A row of the table.
pub(crate) struct Row {
    pub(crate) reason: String,
    /// The first test that sees it: the name of its module, and its own.
    module: String,
    test: String,
}

pub(crate) fn rows() -> Vec<Row> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/simulation.md");
    let page = std::fs::read_to_string(page).expect("docs/simulation.md");
    let (_, table) = page.split_once("| reason | what breaks | seen by |").expect("the table");
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').collect();
        let reason = cells.get(1)?.trim().trim_matches('`');
        let (module, test) = cells.get(3)?.split('`').nth(1)?.split_once("::")?;
        Some(Row { reason: reason.to_owned(), module: module.to_owned(), test: test.to_owned() })
    };
    table.lines().skip(2).map_while(row).collect()
}

/// Returns `true` if the test fails with this reason switched off.
fn fails(row: &Row) -> bool {
    let program = std::env::current_exe().expect("this program");
    let out = Command::new(program)
        .args([&row.test, "--test-threads=1"])
        .env("MOORING_AGENT_KEEP_STALE", &row.reason)
        .stdin(Stdio::null())
        .output()
        .expect("run a test");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("running 1 test"), "{}: {} {said}", row.reason, row.test);
    said.contains("0 passed; 1 failed")
}

/// Runs the rows whose test is in a module that `here` accepts. Returns their number and the
/// reasons that their test has not seen.
pub(crate) fn unseen(here: impl Fn(&str) -> bool) -> (usize, Vec<String>) {
    let rows: Vec<_> = rows().into_iter().filter(|row| here(&row.module)).collect();
    let unseen = thread::scope(|scope| {
        let runs: Vec<_> =
            rows.iter().map(|row| (row, scope.spawn(|| (0..TRIES).any(|_| fails(row))))).collect();
        runs.into_iter()
            .filter_map(|(row, run)| (!run.join().expect("a row")).then(|| row.reason.clone()))
            .collect()
    });
    (rows.len(), unseen)
}
