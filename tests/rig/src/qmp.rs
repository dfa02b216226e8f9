//! QEMU's control connection: JSON lines, one command at a time.
//!
//! What must never happen here: an event taken for an answer.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A connection that is ready for commands.
pub(crate) struct Qmp {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Qmp {
    /// Takes the greeting and enters command mode.
    pub(crate) fn start(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(Duration::from_mins(1))).context("set a limit on QEMU's answers")?;
        let writer = stream.try_clone().context("duplicate QEMU's control socket")?;
        let mut qmp = Self { reader: BufReader::new(stream), writer };
        let greeting = qmp.line()?;
        if greeting.get("QMP").is_none() {
            bail!("QEMU greeted with {greeting}");
        }
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns its answer.
    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.writer, "{request}").with_context(|| format!("send {command} to QEMU"))?;
        loop {
            let answer = self.line().with_context(|| format!("wait for QEMU's answer to {command}"))?;
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
            if let Some(error) = answer.get("error") {
                bail!(
                    "QEMU refused {command}: {}",
                    error.get("desc").and_then(Value::as_str).unwrap_or("no reason given")
                );
            }
            // Anything else is an event.
        }
    }

    /// The reason why QEMU itself has stopped the VM, and the disk. `None`: it runs.
    pub(crate) fn stopped(&mut self) -> Result<Option<String>> {
        let state = self.execute("query-status", &json!({}))?;
        if state.get("running").and_then(Value::as_bool) == Some(true) {
            return Ok(None);
        }
        let status = state.get("status").and_then(Value::as_str).unwrap_or("of unknown status");
        let blocks = self.execute("query-block", &json!({}))?;
        let disks: Vec<String> = blocks
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|block| {
                let told = block.get("io-status").and_then(Value::as_str).filter(|told| *told != "ok")?;
                let device = block.get("device").and_then(Value::as_str).unwrap_or("a disk");
                Some(format!("{device}: {told}"))
            })
            .collect();
        Ok(Some(format!("{status} ({})", disks.join(", "))))
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            bail!("QEMU closed its control socket");
        }
        serde_json::from_str(&line).with_context(|| format!("QEMU said {line:?}, which is no JSON"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `ask` on a greeted connection to a QEMU that gives these answers, one to each command.
    fn with_answers<T: Send>(answers: &[&str], ask: impl FnOnce(&mut Qmp) -> T + Send) -> T {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(&mut Qmp::start(ours).unwrap()));
            let mut reader = BufReader::new(theirs.try_clone().unwrap());
            let mut theirs = theirs;
            writeln!(theirs, r#"{{"QMP": {{}}}}"#).unwrap();
            for answer in [r#"{"return": {}}"#].iter().chain(answers) {
                reader.read_line(&mut String::new()).unwrap();
                writeln!(theirs, "{answer}").unwrap();
            }
            asked.join().unwrap()
        })
    }

    #[test]
    fn a_vm_that_qemu_stopped_is_told_with_its_disk() {
        let runs = [r#"{"return": {"running": true, "status": "running"}}"#];
        assert_eq!(with_answers(&runs, |qmp| qmp.stopped().unwrap()), None);
        let full = [
            r#"{"return": {"running": false, "status": "io-error"}}"#,
            r#"{"return": [{"device": "root", "io-status": "ok"}, {"device": "data0", "io-status": "nospace"}]}"#,
        ];
        let told = with_answers(&full, |qmp| qmp.stopped().unwrap());
        assert_eq!(told.as_deref(), Some("io-error (data0: nospace)"));
    }

    #[test]
    fn events_are_passed_over_and_errors_are_named() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let fake = std::thread::spawn(move || {
            let mut reader = BufReader::new(theirs.try_clone().unwrap());
            let mut theirs = theirs;
            let mut line = String::new();
            writeln!(theirs, r#"{{"QMP": {{}}}}"#).unwrap();
            reader.read_line(&mut line).unwrap();
            writeln!(theirs, r#"{{"return": {{}}}}"#).unwrap();
            reader.read_line(&mut line).unwrap();
            writeln!(theirs, r#"{{"event": "STOP"}}"#).unwrap();
            writeln!(theirs, r#"{{"error": {{"desc": "no such device"}}}}"#).unwrap();
            line
        });
        let mut qmp = Qmp::start(ours).unwrap();
        let err = qmp.execute("set_link", &json!({"name": "nic9", "up": false})).unwrap_err().to_string();
        assert_eq!(err, "QEMU refused set_link: no such device");
        assert!(fake.join().unwrap().contains("nic9"));
    }
}
