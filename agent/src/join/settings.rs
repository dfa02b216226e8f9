//! Configuration that join writes: the documented example, with the settings of this host filled
//! in.

use std::fmt::Write as _;

use mooring_api::Address;
use mooring_model::{Portal, VgName};

use super::JoinError;
use crate::config::{EXAMPLE, Tls};

/// Settings of this host.
pub(super) struct Settings<'a> {
    pub(super) portals: &'a [Portal],
    pub(super) groups: &'a [VgName],
    pub(super) host: bool,
    pub(super) address: &'a Address,
    pub(super) tls: &'a Tls,
    /// Id of the cluster, once it is known.
    pub(super) cluster: Option<&'a str>,
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Replaces a line of the example by the filled-in one.
fn replace(text: &str, line: &'static str, filled: &str) -> Result<String, JoinError> {
    let (before, after) = text.split_once(line).ok_or(JoinError::Example(line))?;
    Ok(format!("{before}{filled}{after}"))
}

fn commented(block: &str) -> String {
    let mut text = String::new();
    for line in block.lines() {
        let mark = if line.is_empty() || line.starts_with('#') { "" } else { "# " };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{mark}{line}");
    }
    text
}

impl Settings<'_> {
    /// Returns the table `[tls]`.
    pub(super) fn tls_table(&self) -> String {
        let key =
            |name: &str, path: &std::path::Path| format!("{name} = {}", quoted(&path.display().to_string()));
        let Tls { cert, key: own, client_ca } = self.tls;
        ["[tls]".to_owned(), key("cert", cert), key("key", own), key("client_ca", client_ca)].join("\n")
    }

    /// Returns the example with its lines filled in.
    pub(super) fn fill(&self) -> Result<String, JoinError> {
        const PORTALS: &str = "portals = [\"10.0.0.1:3260\"]";
        const GROUPS: &str = "[[groups]]\n";
        const AFTER_GROUPS: &str = "\n# Certificates for https";
        let storage = !self.groups.is_empty();
        let portals: Vec<_> = self.portals.iter().map(|portal| quoted(&portal.to_string())).collect();
        let portals =
            if storage { format!("portals = [{}]", portals.join(", ")) } else { format!("# {PORTALS}") };
        let listen =
            format!("listen = [\"unix:/run/mooring/agent.sock\", {}]", quoted(&self.address.to_string()));
        let mut text = replace(EXAMPLE, PORTALS, &portals)?;
        text = replace(&text, "listen = [\"unix:/run/mooring/agent.sock\"]", &listen)?;
        if let Some(cluster) = self.cluster {
            let line = "# cluster = \"6a1f1dbe-2f5c-4a8e-9d57-0f3c1a7b9e11\"";
            text = replace(&text, line, &format!("cluster = {}", quoted(cluster)))?;
        }
        let (before, rest) = text.split_once(GROUPS).ok_or(JoinError::Example(GROUPS))?;
        let (block, after) = rest.split_once(AFTER_GROUPS).ok_or(JoinError::Example(AFTER_GROUPS))?;
        let block = format!("{GROUPS}{block}");
        let mut groups = String::new();
        for (place, group) in self.groups.iter().enumerate() {
            let named = format!("name = {}", quoted(group.as_str()));
            if place == 0 {
                groups = replace(&block, "name = \"vg0\"", &named)?;
            } else {
                let _ = write!(groups, "\n[[groups]]\n{named}\nreserve = \"1GiB\"\n");
            }
        }
        let groups = if storage { groups } else { commented(&block) };
        let mut text = format!("{before}{groups}{AFTER_GROUPS}{after}");
        let tls = "# [tls]\n# cert = \"/etc/mooring/agent.crt\"\n# key = \"/etc/mooring/agent.key\"\n# client_ca = \"/etc/mooring/clients.crt\"";
        text = replace(&text, tls, &self.tls_table())?;
        if self.host { replace(&text, "\n# [host]\n", "\n[host]\n") } else { Ok(text) }
    }
}
