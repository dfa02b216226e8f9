//! Progress of an attach: one line that is rewritten on a terminal, a line for each step elsewhere.
//!
//! What must never happen here: anything on standard output, or anything at all where a program
//! reads.

use std::io::{self, IsTerminal, Write};

use crate::controller::records::{Live, STEPS};
use crate::text::one_line;

/// The form of the progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// No progress is shown.
    Quiet,
    /// Each step once, on its own line.
    Lines,
    /// One line, rewritten.
    Terminal,
}

/// Shows the progress of an attach.
pub(crate) struct Progress<W: Write> {
    out: W,
    style: Style,
    /// The texts shown so far.
    said: Vec<String>,
    /// `true`: there is a line to rewrite.
    open: bool,
}

impl Progress<io::Stderr> {
    /// Writes to standard error, in the form that fits it.
    pub(crate) fn new(json: bool) -> Self {
        let style = match (json, io::stderr().is_terminal()) {
            (true, _) => Style::Quiet,
            (false, true) => Style::Terminal,
            (false, false) => Style::Lines,
        };
        Self::to(io::stderr(), style)
    }
}

impl<W: Write> Progress<W> {
    pub(crate) fn to(out: W, style: Style) -> Self {
        Self { out, style, said: Vec::new(), open: false }
    }

    /// Shows a new state.
    pub(crate) fn update(&mut self, live: &Live) {
        let steps: Vec<_> = live.steps().map(|(word, ms)| format!("{word} {ms} ms")).collect();
        for problem in live.problems.iter().chain(&live.fault) {
            self.once(&format!("problem: {problem}"));
        }
        match self.style {
            Style::Quiet => {}
            Style::Lines => steps.iter().for_each(|step| self.once(step)),
            Style::Terminal => self.rewrite(&line(live, &steps)),
        }
    }

    /// Prints a text that stays on the screen.
    pub(crate) fn once(&mut self, text: &str) {
        if self.style == Style::Quiet || self.said.iter().any(|said| said == text) {
            return;
        }
        self.end();
        self.write(&format!("mooring: {}\n", one_line(text)));
        self.said.push(text.to_owned());
    }

    /// Removes the line: the output that follows says more.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.open) {
            self.write("\r\x1b[K");
        }
    }

    fn rewrite(&mut self, line: &str) {
        self.write(&format!("\r\x1b[K{}", one_line(line)));
        self.open = true;
    }

    /// Writes a text; a failure changes nothing.
    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

/// Makes the line, such as `granted 12 ms, logging in…`.
fn line(live: &Live, steps: &[String]) -> String {
    let next = STEPS.iter().find(|(key, _, _)| !live.steps_ms.contains_key(*key));
    let next = next.map(|(_, _, waits)| format!("{waits}…"));
    steps.iter().cloned().chain(next).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(steps: &[(&str, u64)], problems: &[&str]) -> Live {
        let steps: serde_json::Map<_, _> =
            steps.iter().map(|(key, ms)| ((*key).to_owned(), (*ms).into())).collect();
        let value = serde_json::json!({ "id": "a", "volume_id": "v", "status": "attaching", "revision": 1,
                                        "steps_ms": steps, "problems": problems });
        serde_json::from_value(value).unwrap()
    }

    fn told(style: Style) -> String {
        let mut progress = Progress::to(Vec::new(), style);
        progress.update(&live(&[], &[]));
        progress.update(&live(&[("granted", 12)], &[]));
        progress.update(&live(&[("granted", 12)], &["host1: the portal\u{1b}[2J refuses"]));
        progress
            .update(&live(&[("granted", 12), ("logged_in", 40)], &["host1: the portal\u{1b}[2J refuses"]));
        progress.end();
        String::from_utf8(progress.out).unwrap()
    }

    #[test]
    fn a_terminal_has_one_line() {
        assert_eq!(
            told(Style::Terminal),
            "\r\x1b[Kgranting…\r\x1b[Kgranted 12 ms, logging in…\
             \r\x1b[Kmooring: problem: host1: the portal\u{fffd}[2J refuses\n\r\x1b[Kgranted 12 ms, logging in…\
             \r\x1b[Kgranted 12 ms, logged in 40 ms, waiting for the disk…\r\x1b[K"
        );
    }

    #[test]
    fn a_file_has_each_thing_once_and_a_program_nothing() {
        assert_eq!(
            told(Style::Lines),
            "mooring: granted 12 ms\nmooring: problem: host1: the portal\u{fffd}[2J refuses\nmooring: logged in 40 ms\n"
        );
        assert_eq!(told(Style::Quiet), "");
    }
}
