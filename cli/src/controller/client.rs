//! Calls to one controller: who is asked, with which token, until when, and what is asked again.
//!
//! What must never happen here: a call that waits for ever; a token that goes to anybody else (a proxy, a redirect) or over
//! a network in plain text; a request repeated that would be done twice.

use std::cell::Cell;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Certificate, Identity, Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::Global;
use crate::controller::fault::Fault;
use crate::controller::url::ControllerUrl;
use crate::error::Failure;
use crate::output::plain;

/// How much longer than the deadline we wait for an answer that is on its way: it is worth more than our giving up.
const SLACK: Duration = Duration::from_secs(5);

/// Longest wait that is asked of the controller at once: what stands between us and it may cut silent connections.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Pauses between attempts: the first, and the longest.
pub(crate) const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Longest time for a connection to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Largest answer taken: some 50 000 volumes fit.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One call.
pub(crate) struct Call<'a> {
    /// As people say it.
    name: &'static str,
    method: Method,
    path: Vec<&'a str>,
    query: Vec<(&'a str, String)>,
    body: Option<Value>,
    /// The controller may wait with its answer.
    waits: bool,
    /// Asked twice, it is done once.
    repeatable: bool,
    /// The microversion that the call needs, if it is not the first.
    version: Option<&'static str>,
}

impl<'a> Call<'a> {
    fn new(name: &'static str, method: Method, path: &[&'a str]) -> Self {
        let (path, repeatable) = (path.to_vec(), method != Method::POST);
        Self { name, method, path, query: Vec::new(), body: None, waits: false, repeatable, version: None }
    }

    /// Reads.
    pub(crate) fn get(name: &'static str, path: &[&'a str]) -> Self {
        Self::new(name, Method::GET, path)
    }

    /// Takes away.
    pub(crate) fn delete(name: &'static str, path: &[&'a str]) -> Self {
        Self::new(name, Method::DELETE, path)
    }

    /// Sets something to what it is to be.
    pub(crate) fn put(name: &'static str, path: &[&'a str], body: Value) -> Self {
        Self { body: Some(body), ..Self::new(name, Method::PUT, path) }
    }

    /// Makes something that, asked for twice, is there twice.
    pub(crate) fn add(name: &'static str, path: &[&'a str], body: Value) -> Self {
        Self { body: Some(body), ..Self::new(name, Method::POST, path) }
    }

    /// Makes something whose id (or unique name) is ours: repeated, it is the same thing.
    pub(crate) fn make(name: &'static str, path: &[&'a str], body: Value) -> Self {
        Self { body: Some(body), repeatable: true, ..Self::new(name, Method::POST, path) }
    }

    /// With a parameter.
    pub(crate) fn query(mut self, key: &'a str, value: &impl ToString) -> Self {
        self.query.push((key, value.to_string()));
        self
    }

    /// As this microversion of the Block Storage API has it.
    pub(crate) fn at(self, version: &'static str) -> Self {
        Self { version: Some(version), ..self }
    }

    /// The answer may take until the deadline.
    pub(crate) fn waiting(self) -> Self {
        Self { waits: true, ..self }
    }
}

/// A controller that can be called.
pub(crate) struct Client {
    http: reqwest::Client,
    url: ControllerUrl,
    with_token: bool,
    timeout: Duration,
    deadline: Cell<Instant>,
    /// Nothing is asked again.
    hurried: Cell<bool>,
    /// Whether repetitions are still to be told. Programs are not told.
    tells: Cell<bool>,
}

impl Client {
    /// Checks everything that can be checked without a call.
    pub(crate) fn open(global: &Global, url: ControllerUrl) -> Result<Self, Failure> {
        if url.has_credentials() {
            return Err(Failure::Usage(
                "credentials do not belong into the controller's address: set MOORING_TOKEN, or use --token-file".to_owned(),
            ));
        }
        if !url.is_private() && !global.insecure {
            return Err(Failure::Usage(format!(
                "{url} is plain text on a network: everybody on the way reads the token and changes everything. Use https, or \
                 say --insecure"
            )));
        }
        let token = token(global)?;
        let with_token = token.is_some();
        let timeout = Duration::from_secs(u64::from(global.timeout));
        Ok(Self {
            http: http_client(global, &url, token)?,
            url,
            with_token,
            timeout,
            deadline: Cell::new(Instant::now() + timeout),
            hurried: Cell::new(false),
            tells: Cell::new(!global.json),
        })
    }

    /// What is left until the deadline.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.get().saturating_duration_since(Instant::now())
    }

    /// How long is waited in all, in seconds.
    pub(crate) fn seconds(&self) -> u64 {
        self.timeout.as_secs()
    }

    /// Repeats nothing from now on: the user has had enough.
    pub(crate) fn hurry(&self) {
        self.hurried.set(true);
    }

    /// A new task with a deadline of its own.
    pub(crate) fn begin_again(&self) {
        self.hurried.set(false);
        self.deadline.set(Instant::now() + self.timeout);
    }

    /// Sleeps, not beyond the deadline. False: the deadline is there.
    pub(crate) async fn pause(&self, pause: Duration) -> bool {
        tokio::time::sleep(pause.min(self.left())).await;
        !self.left().is_zero()
    }

    /// Calls, and reads the answer.
    pub(crate) async fn read<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, Fault> {
        let body = self.call(&call).await?;
        serde_json::from_slice(&body)
            .map_err(|error| Fault::Nonsense { call: call.name, why: error.to_string() })
    }

    /// Calls, and takes any success.
    pub(crate) async fn done(&self, call: Call<'_>) -> Result<(), Fault> {
        self.call(&call).await.map(drop)
    }

    async fn call(&self, call: &Call<'_>) -> Result<Vec<u8>, Fault> {
        let (mut pause, mut doubt) = (PAUSE.0, false);
        loop {
            let fault = match self.attempt(call).await {
                Ok(body) => return Ok(body),
                Err(fault) => fault.after(doubt),
            };
            doubt = !fault.was_refused();
            if !call.repeatable || !self.again(&fault, &mut pause).await {
                return Err(fault);
            }
        }
    }

    /// Whether something that failed is to be tried again: after a pause, which grows.
    pub(crate) async fn again(&self, fault: &Fault, pause: &mut Duration) -> bool {
        if !fault.may_pass() || self.hurried.get() || self.left() <= *pause {
            return false;
        }
        self.tell(fault);
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSE.1);
        true
    }

    /// Says once that it is tried again: a program that only hangs tells nobody why.
    fn tell(&self, fault: &Fault) {
        if self.tells.replace(false) {
            let text =
                plain(&format!("mooring: {fault}; trying again for up to {} s\n", self.left().as_secs()));
            // An attach may be telling its progress on this line.
            let clear = if io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
            // Nothing depends on this line being read.
            let _ = io::stderr().lock().write_all(format!("{clear}{text}").as_bytes());
        }
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<Vec<u8>, Fault> {
        let wait = if call.waits { self.left().min(WAIT_MAX) } else { self.left() };
        let mut request =
            self.http.request(call.method.clone(), self.url.join(&call.path)).query(&call.query);
        if call.waits {
            request = request.query(&[("wait_ms", wait.as_millis())]);
        }
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        if let Some(version) = call.version {
            request = request.header("OpenStack-API-Version", format!("volume {version}"));
        }
        let after = wait + SLACK;
        let broken = |error: reqwest::Error| {
            let doubt = !error.is_connect();
            Fault::Down { url: self.url.to_string(), cause: error.without_url(), doubt }
        };
        let answer = async {
            let mut response = request.send().await.map_err(broken)?;
            let (status, mut body) = (response.status(), Vec::new());
            while let Some(chunk) = response.chunk().await.map_err(broken)? {
                if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                    let why = format!("it is longer than {ANSWER_BYTES_MAX} bytes");
                    return Err(Fault::Nonsense { call: call.name, why });
                }
                body.extend_from_slice(&chunk);
            }
            self.judge(call, status, body)
        };
        let silent = |_| Fault::Silent { url: self.url.to_string(), call: call.name, after };
        tokio::time::timeout(after, answer).await.map_err(silent)?
    }

    fn judge(&self, call: &Call<'_>, status: StatusCode, body: Vec<u8>) -> Result<Vec<u8>, Fault> {
        if status.is_success() {
            return Ok(body);
        }
        if status.is_redirection() {
            let why = format!("it points elsewhere ({status}), and a token is not sent there");
            return Err(Fault::Nonsense { call: call.name, why });
        }
        Err(Fault::of_answer(status, &body, self.with_token))
    }
}

/// The token: from the file that is named, else from the environment.
fn token(global: &Global) -> Result<Option<HeaderValue>, Failure> {
    let (token, from) = match &global.token_file {
        Some(source) => (source.read()?.expose().to_owned(), source.to_string()),
        None => match std::env::var("MOORING_TOKEN") {
            Ok(token) => (token, "MOORING_TOKEN".to_owned()),
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => (String::new(), "MOORING_TOKEN".to_owned()),
        },
    };
    let printable = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    let mut value = HeaderValue::from_str(&token).ok().filter(|_| printable).ok_or_else(|| {
        Failure::Usage(format!("the token in {from} is not one line of printable ASCII without blanks"))
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn http_client(
    global: &Global,
    url: &ControllerUrl,
    token: Option<HeaderValue>,
) -> Result<reqwest::Client, Failure> {
    // A provider that is there already does as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
    headers.extend(token.map(|token| (reqwest::header::HeaderName::from_static("x-auth-token"), token)));
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("mooring/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .connect_timeout(CONNECT_MAX)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    if url.is_tls() {
        builder = with_certificates(builder, global)?;
    } else {
        // The trust of the system is not needed, and its absence must not matter.
        builder = builder.tls_certs_only([]);
    }
    builder
        .build()
        .map_err(|error| Failure::Usage(format!("TLS cannot be used: {}", mooring_model::Chain(&error))))
}

fn with_certificates(
    builder: reqwest::ClientBuilder,
    global: &Global,
) -> Result<reqwest::ClientBuilder, Failure> {
    let mut builder = builder;
    if let Some(path) = &global.ca {
        let wrong = || Failure::Usage(format!("{} holds no certificates in PEM format", path.display()));
        let certificates = Certificate::from_pem_bundle(&pem(path)?).map_err(|_| wrong())?;
        if certificates.is_empty() {
            return Err(wrong());
        }
        builder = builder.tls_certs_only(certificates);
    }
    match (&global.cert, &global.key) {
        (Some(cert), Some(key)) => {
            let mut both = pem(key)?;
            both.push(b'\n');
            both.extend(pem(cert)?);
            let identity = Identity::from_pem(&both).map_err(|_| {
                Failure::Usage(format!(
                    "{} and {} are no certificate with its key",
                    cert.display(),
                    key.display()
                ))
            })?;
            Ok(builder.identity(identity))
        }
        (None, None) => Ok(builder),
        _ => Err(Failure::Usage("--cert and --key belong together".to_owned())),
    }
}

fn pem(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::Usage(format!("{} cannot be read: {error}", path.display())))
}

/// A body of one object under its name, as the API wants it.
pub(crate) fn wrapped(name: &str, object: impl Serialize) -> Value {
    let mut body = serde_json::Map::new();
    body.insert(name.to_owned(), serde_json::to_value(object).unwrap_or_default());
    Value::Object(body)
}
