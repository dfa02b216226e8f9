//! Each row of the table in docs/simulation.md: with a reason for forgetting switched off, the test
//! that the row names must fail; with it, the test passes. The tests of the library include this
//! file, too.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Tries until a row counts as untrue. A test that is slower than the agent's own repetition of
/// what failed may pass although the reason is switched off.
const TRIES: usize = 3;

/// Rows at a time.
const LANES: usize = 6;

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

/// Runs the row's test alone, with this reason switched off, if any. Returns what it printed.
fn run(row: &Row, off: Option<&str>) -> String {
    let program = std::env::current_exe().expect("this program");
    let out = Command::new(program)
        .args([&row.test, "--test-threads=1"])
        .envs(off.map(|off| ("MOORING_AGENT_KEEP_STALE", off)))
        .stdin(Stdio::null())
        .output()
        .expect("run a test");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains("running 1 test"), "{}: {} {said}", row.reason, row.test);
    said
}

/// Returns `true` if the test fails with its reason switched off. The control: it passes as it is.
fn sees(row: &Row) -> bool {
    let said = run(row, None);
    assert!(said.contains("1 passed; 0 failed"), "{}: {} {said}", row.reason, row.test);
    (0..TRIES).any(|_| run(row, Some(&row.reason)).contains("0 passed; 1 failed"))
}

/// Runs the rows whose test is in a module that `here` accepts. Returns their number and the
/// reasons that their test has not seen.
pub(crate) fn unseen(here: impl Fn(&str) -> bool) -> (usize, Vec<String>) {
    let rows: Vec<_> = rows().into_iter().filter(|row| here(&row.module)).collect();
    let (next, unseen) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Relaxed)) {
                    if !sees(row) {
                        unseen.lock().expect("the list").push(row.reason.clone());
                    }
                }
            });
        }
    });
    (rows.len(), unseen.into_inner().expect("the list"))
}
