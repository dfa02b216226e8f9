//! The configuration that init writes: the documented example, with the lines of a new controller
//! filled in.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};

use super::InitError;
use crate::config::{EXAMPLE, LISTEN_DEFAULT};

/// The values that are filled in.
pub(super) struct Settings<'a> {
    pub(super) names: &'a [String],
    pub(super) tokens: PathBuf,
    pub(super) authority: (PathBuf, PathBuf),
    pub(super) server: (PathBuf, PathBuf),
    pub(super) client: (PathBuf, PathBuf),
}

/// The port of the API.
pub(super) const PORT: u16 = LISTEN_DEFAULT.port();

/// The API's address under the first of these names.
pub(super) fn url_of(scheme: &str, names: &[String], port: u16) -> String {
    let host = names.first().map_or("localhost", String::as_str);
    match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("{scheme}://[{address}]:{port}"),
        Err(_) => format!("{scheme}://{host}:{port}"),
    }
}

pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn key(name: &str, path: &Path) -> String {
    format!("{name} = {}", quoted(&path.display().to_string()))
}

impl Settings<'_> {
    /// The API's address under the first name.
    pub(super) fn url(&self) -> String {
        url_of("https", self.names, PORT)
    }

    /// The table `[enrolment]`.
    pub(super) fn enrolment(&self) -> String {
        let mut table = "[enrolment]\n".to_owned();
        for (name, path) in [
            ("authority", &self.authority.0),
            ("authority_key", &self.authority.1),
            ("client_cert", &self.client.0),
            ("client_key", &self.client.1),
        ] {
            // Writing to a String cannot fail.
            let _ = writeln!(table, "{}", key(name, path));
        }
        table
    }

    /// The example with its lines filled in.
    pub(super) fn fill(&self) -> Result<String, InitError> {
        // The example's agents are fictional.
        let (text, agents) = EXAMPLE.split_once("[[agents]]").ok_or(InitError::Example("[[agents]]"))?;
        let mut text = text.to_owned();
        for line in format!("[[agents]]{agents}").lines() {
            let mark = if line.is_empty() || line.starts_with('#') { "" } else { "# " };
            let _ = writeln!(text, "{mark}{line}");
        }
        let tls = [key("cert", &self.server.0), key("key", &self.server.1)].join("\n");
        let listen = format!("listen = [{}]", quoted(&listen_at(PORT)));
        for (line, filled) in [
            ("tokens = \"/etc/mooring/tokens.toml\"", key("tokens", &self.tokens)),
            ("listen = [\"127.0.0.1:8776\"]", listen),
            (
                "# public_url = \"https://storage.example.org:8776\"",
                format!("public_url = {}", quoted(&self.url())),
            ),
            (
                "# [tls]\n# cert = \"/etc/mooring/controller.crt\"\n# key = \"/etc/mooring/controller.key\"",
                format!("[tls]\n{tls}"),
            ),
            (
                "# [enrolment]\n# authority = \"/etc/mooring/authority.crt\"\n# authority_key = \"/etc/mooring/authority.key\"\n# \
                 client_cert = \"/etc/mooring/controller/client.crt\"\n# client_key = \"/etc/mooring/controller/client.key\"\n",
                self.enrolment(),
            ),
        ] {
            let (before, after) = text.split_once(line).ok_or(InitError::Example(line))?;
            text = format!("{before}{filled}{after}");
        }
        Ok(text)
    }
}

/// All addresses of this machine: of both families if the kernel has IPv6.
pub(super) fn listen_at(port: u16) -> String {
    let any = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        Ok(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        Err(_) => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
    };
    std::net::SocketAddr::new(any, port).to_string()
}
