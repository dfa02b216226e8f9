//! Connections to a PostgreSQL database, and the settings of their sessions before anything else
//! runs.
//!
//! What must never happen here: a password in a visible text; plain text across a network because
//! of a default; a session that answers a commit before it is durable.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use postgres::config::{Host, SslMode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::store::sql::SqlError;

/// The longest time for a dial with its greeting.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The time after which a silent server counts as gone.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// The settings of every session. A controller that is stopped inside a transaction must not hold
/// its rows for long; asynchronous commits would lose acknowledged specs.
const SESSION: &str = "SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') \
     THEN set_config('synchronous_commit', 'on', false) END; \
     SET idle_in_transaction_session_timeout = '5s'; SET lock_timeout = '10s'; SET statement_timeout = '60s'; \
     SET client_min_messages = warning; SET DateStyle = ISO";

/// For sessions that write: a table scan would count as a read of all rows, and conflict with every
/// change.
const WRITER: &str = "SET enable_seqscan = off";

/// A PostgreSQL database, with its address and credentials.
#[derive(Clone)]
pub struct PostgresOptions {
    config: Config,
    shown: String,
    network: bool,
    password_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    insecure: bool,
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions").field("database", &self.shown).finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// Checks an address: `postgres://USER@HOST[:PORT]/DATABASE`, or
    /// `…@/DATABASE?host=/SOCKET/FOLDER`. `ca` is the authority of the server's certificate; across
    /// a network it is required, unless `insecure` is set. The error says what to write.
    pub fn new(
        url: &str,
        password_file: Option<PathBuf>,
        ca: Option<PathBuf>,
        insecure: bool,
    ) -> Result<Self, String> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err("want postgres://USER@HOST[:PORT]/DATABASE".to_owned());
        }
        // The parser's error may quote a part of the text, and a part may be a password.
        let parsed = url.parse::<Config>();
        let mut config = parsed.map_err(|_| {
            "is no address of a database: want postgres://USER@HOST[:PORT]/DATABASE".to_owned()
        })?;
        if config.get_password().is_some() {
            return Err(
                "a password has no place here: put it into a file and name that (password_file)".to_owned()
            );
        }
        let (Some(user), Some(name)) = (config.get_user(), config.get_dbname()) else {
            return Err("want postgres://USER@HOST[:PORT]/DATABASE: user or database is missing".to_owned());
        };
        if config.get_hosts().is_empty() {
            return Err("want postgres://USER@HOST[:PORT]/DATABASE: the host is missing".to_owned());
        }
        let network = config.get_hosts().iter().any(|host| !is_local(host));
        if network && ca.is_none() && !insecure {
            return Err(
                "is across a network, and CHAP secrets would be readable: give the authority of the \
                        server's certificate (ca), or say insecure = true"
                    .to_owned(),
            );
        }
        let hosts: Vec<_> = config.get_hosts().iter().map(host_text).collect();
        let shown = format!("postgres://{user}@{}/{name}", hosts.join(","));
        let tls = ca.is_some() && network;
        config
            .ssl_mode(if tls { SslMode::Require } else { SslMode::Disable })
            .application_name("mooring-controller")
            .connect_timeout(CONNECT_LIMIT)
            .tcp_user_timeout(SILENCE_LIMIT)
            .keepalives_idle(SILENCE_LIMIT);
        Ok(Self { config, shown, network, password_file, ca, insecure })
    }

    /// The name of the database in errors and logs.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// The files that a connection reads: the password, and the authority of the server.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.password_file.iter().chain(&self.ca).map(PathBuf::as_path)
    }

    /// The file with the password. `None` if the server asks for none.
    pub fn password_file(&self) -> Option<&Path> {
        self.password_file.as_deref()
    }

    /// These options for another database of the server.
    #[cfg(test)]
    pub(crate) fn with_database(mut self, name: &str) -> Self {
        self.config.dbname(name);
        self
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
    }
}

fn host_text(host: &Host) -> String {
    match host {
        Host::Unix(path) => path.display().to_string(),
        Host::Tcp(name) => name.clone(),
    }
}

/// Makes connections.
pub(crate) struct Dialer {
    options: PostgresOptions,
    tls: MakeRustlsConnect,
}

impl Dialer {
    pub(crate) fn new(options: PostgresOptions) -> Result<Self, SqlError> {
        if options.network && options.insecure && options.ca.is_none() {
            tracing::warn!(
                database = options.shown,
                "the connections to the database are plain text (insecure)"
            );
        }
        let tls = MakeRustlsConnect::new(client_tls(options.ca.as_deref())?);
        Ok(Self { options, tls })
    }

    pub(crate) fn options(&self) -> &PostgresOptions {
        &self.options
    }

    /// Every connection reads the password anew: it can be changed without a restart.
    fn config(&self) -> Result<Config, SqlError> {
        let mut config = self.options.config.clone();
        if let Some(path) = &self.options.password_file {
            let text = fs::read_to_string(path).map_err(|error| {
                SqlError::Unreachable(format!("cannot read the password file {}: {error}", path.display()))
            })?;
            config.password(text.trim_end_matches(['\r', '\n']));
        } else if let Some(path) = std::env::var_os("PGPASSFILE") {
            let path = PathBuf::from(path);
            let text = fs::read_to_string(&path).map_err(|error| {
                SqlError::Unreachable(format!("cannot read PGPASSFILE, {}: {error}", path.display()))
            })?;
            if let Some(password) = pgpass(&text, &config) {
                config.password(password);
            }
        }
        Ok(config)
    }

    /// Connects, for a thread that may block. `writer` is `true` for transactions that change
    /// something.
    pub(crate) fn connect(&self, writer: bool) -> Result<postgres::Client, SqlError> {
        let config = postgres::Config::from(self.config()?);
        let mut client = config.connect(self.tls.clone()).map_err(|error| SqlError::unreachable(&error))?;
        client.batch_execute(SESSION)?;
        if writer {
            client.batch_execute(WRITER)?;
        }
        Ok(client)
    }

    /// Connects, for a task. The caller must poll the connection.
    pub(crate) async fn connect_async(
        &self,
    ) -> Result<
        (
            tokio_postgres::Client,
            tokio_postgres::Connection<
                tokio_postgres::Socket,
                <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>>::Stream,
            >,
        ),
        SqlError,
    > {
        let config = self.config()?;
        config.connect(self.tls.clone()).await.map_err(|error| SqlError::unreachable(&error))
    }
}

/// The TLS settings for a server whose certificate this authority has signed. TLS 1.3 only.
fn client_tls(ca: Option<&Path>) -> Result<rustls::ClientConfig, SqlError> {
    let mut roots = rustls::RootCertStore::empty();
    if let Some(path) = ca {
        let wrong = |why: &dyn fmt::Display| {
            SqlError::Unreachable(format!("cannot use the ca file {}: {why}", path.display()))
        };
        for found in CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))? {
            roots.add(found.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
        }
        if roots.is_empty() {
            return Err(wrong(&"there is no certificate in it"));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| SqlError::Unreachable(format!("cannot set up TLS: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The password for a database, from a file of PostgreSQL's form:
/// `host:port:database:user:password`, `*` for any, `\` before `:` and `\`. The first line that
/// fits counts.
fn pgpass(text: &str, config: &Config) -> Option<String> {
    let host = config.get_hosts().first().map(|host| match host {
        // As in libpq, a socket is `localhost` there.
        Host::Unix(_) => "localhost".to_owned(),
        Host::Tcp(name) => name.clone(),
    })?;
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let wanted = [host.as_str(), &port, config.get_dbname()?, config.get_user()?];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = vec![String::new()];
        let mut chars = line.chars();
        while let Some(found) = chars.next() {
            match found {
                ':' if fields.len() < 5 => fields.push(String::new()),
                '\\' => fields.last_mut()?.extend(chars.next()),
                _ => fields.last_mut()?.push(found),
            }
        }
        let fits = fields.len() == 5
            && fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
        if fits { fields.pop() } else { None }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::shake::shake;

    fn check(url: &str) -> Result<PostgresOptions, String> {
        PostgresOptions::new(url, None, None, false)
    }

    #[test]
    fn addresses_are_checked_and_no_password_is_shown() {
        let shown = |url: &str| check(url).unwrap().shown().to_owned();
        assert_eq!(shown("postgres://m@localhost/db"), "postgres://m@localhost/db");
        assert_eq!(shown("postgresql://m@[::1]:5433/db"), "postgres://m@::1/db");
        assert_eq!(shown("postgres://m@%2Frun%2Fpostgresql/db"), "postgres://m@/run/postgresql/db");
        assert_eq!(shown("postgres://m@/db?host=/run/postgresql"), "postgres://m@/run/postgresql/db");
        for (wrong, word) in [
            ("", "postgres://USER"),
            ("mysql://m@localhost/db", "postgres://USER"),
            ("postgres://m:geheim@localhost/db", "password_file"),
            ("postgres://m@localhost/db?password=geheim", "password_file"),
            ("postgres://localhost/db", "missing"),
            ("postgres://m@localhost", "missing"),
            ("postgres://m@/db", "host is missing"),
            ("postgres://m@db.example.org/db", "ca"),
            ("postgres://m@192.0.2.1,localhost/db", "ca"),
            ("postgres://m:geheim@localhost:port/db", "is no address"),
        ] {
            let why = check(wrong).unwrap_err();
            assert!(why.contains(word) && !why.contains("geheim"), "{wrong}: {why}");
        }
        assert!(PostgresOptions::new("postgres://m@db.example.org/db", None, None, true).is_ok());
        let with_ca = PostgresOptions::new("postgres://m@db.example.org/db", None, Some("/x".into()), false);
        assert_eq!(with_ca.unwrap().config.get_ssl_mode(), SslMode::Require);
    }

    #[test]
    fn a_server_of_an_older_tls_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca");
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&ca, own.cert.pem()).unwrap();
        let client = Arc::new(client_tls(Some(&ca)).unwrap());
        let handshake = |version: &'static rustls::SupportedProtocolVersion| -> Result<(), rustls::Error> {
            let chain = vec![CertificateDer::from_pem_file(&ca).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(own.signing_key.serialize_pem().as_bytes()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let server = rustls::ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])?
                .with_no_client_auth()
                .with_single_cert(chain, key)?;
            let mut server = rustls::ServerConnection::new(Arc::new(server))?;
            let name = "localhost".try_into().unwrap();
            let mut client = rustls::ClientConnection::new(Arc::clone(&client), name)?;
            shake(&mut client, &mut server)
        };
        handshake(&rustls::version::TLS13).unwrap();
        assert!(handshake(&rustls::version::TLS12).is_err(), "TLS 1.2");
    }

    #[test]
    fn the_password_of_the_first_line_that_fits() {
        let config: Config = "postgres://m@localhost:5433/db".parse().unwrap();
        let text = "# localhost:5433:db:m:none\nlocalhost:5432:db:m:port\nlocalhost:5433:*:m:a\\:b\\\\:c\n*:*:*:*:last";
        assert_eq!(pgpass(text, &config).as_deref(), Some("a:b\\:c"));
        assert_eq!(pgpass("short:line\n\n*:*:*:x:y", &config), None);
        let socket: Config = "postgres://m@/db?host=/run/x".parse().unwrap();
        assert_eq!(pgpass("localhost:5432:db:m:s", &socket).as_deref(), Some("s"));
    }
}
