//! Calls to one controller: address, token, deadline and repetition.
//!
//! What must never happen here: a call that waits for ever; a token that goes to anybody else (a
//! proxy, a redirect) or over a network in plain text; a repeated request that would be done twice.

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
use crate::error::Failure;
use crate::error::Fault;
use crate::text::one_line;
use crate::url::ControllerUrl;

/// Time beyond the deadline in which an answer that is on its way is still awaited: it is worth
/// more than giving up.
const SLACK: Duration = Duration::from_secs(5);

/// Longest wait that one call asks of the controller: devices in between may drop silent
/// connections.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Pauses between attempts: first and longest.
pub(crate) const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Time limit for making a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Largest answer accepted: some 50 000 volumes fit.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One call.
pub(crate) struct Call<'a> {
    /// Name of the call for people.
    name: &'static str,
    method: Method,
    path: Vec<&'a str>,
    query: Vec<(&'a str, String)>,
    body: Option<Value>,
    /// `true`: the controller may delay its answer.
    waits: bool,
    /// `true`: a repetition has no further effect.
    repeatable: bool,
    /// The microversion that the call needs; `None`: the first.
    version: Option<&'static str>,
}

impl<'a> Call<'a> {
    fn new(name: &'static str, method: Method, path: &[&'a str]) -> Self {
        let (path, repeatable) = (path.to_vec(), method != Method::POST);
        Self { name, method, path, query: Vec::new(), body: None, waits: false, repeatable, version: None }
    }

    /// Makes a call that reads.
    pub(crate) fn get(name: &'static str, path: &[&'a str]) -> Self {
        Self::new(name, Method::GET, path)
    }

    /// Makes a call that deletes.
    pub(crate) fn delete(name: &'static str, path: &[&'a str]) -> Self {
        Self::new(name, Method::DELETE, path)
    }

    /// Makes a call that sets something to a given state.
    pub(crate) fn put(name: &'static str, path: &[&'a str], body: Value) -> Self {
        Self { body: Some(body), ..Self::new(name, Method::PUT, path) }
    }

    /// Makes a call that creates a new object on every repetition.
    pub(crate) fn add(name: &'static str, path: &[&'a str], body: Value) -> Self {
        Self { body: Some(body), ..Self::new(name, Method::POST, path) }
    }

    /// Makes a call that creates an object with an id (or unique name) of ours; a repetition finds
    /// it.
    pub(crate) fn make(name: &'static str, path: &[&'a str], body: Value) -> Self {
        Self { body: Some(body), repeatable: true, ..Self::new(name, Method::POST, path) }
    }

    /// Adds a query parameter.
    pub(crate) fn query(mut self, key: &'a str, value: &impl ToString) -> Self {
        self.query.push((key, value.to_string()));
        self
    }

    /// Sets the microversion of the Block Storage API.
    pub(crate) fn at(self, version: &'static str) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Lets the answer take until the deadline.
    pub(crate) fn waiting(self) -> Self {
        Self { waits: true, ..self }
    }
}

/// A client of one controller.
pub(crate) struct Client {
    http: reqwest::Client,
    url: ControllerUrl,
    with_token: bool,
    timeout: Duration,
    deadline: Cell<Instant>,
    /// `true`: no call is repeated any more.
    hurried: Cell<bool>,
    /// `true`: a repetition is still to be announced. It is never announced to programs.
    tells: Cell<bool>,
}

impl Client {
    /// Makes a client, and checks everything that needs no call.
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

    /// Time left until the deadline.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.get().saturating_duration_since(Instant::now())
    }

    /// The whole waiting time, in seconds.
    pub(crate) fn seconds(&self) -> u64 {
        self.timeout.as_secs()
    }

    /// Stops all repetitions from now on: the user wants to end.
    pub(crate) fn hurry(&self) {
        self.hurried.set(true);
    }

    /// Begins a new task with its own deadline.
    pub(crate) fn begin_again(&self) {
        self.hurried.set(false);
        self.deadline.set(Instant::now() + self.timeout);
    }

    /// Sleeps, but not beyond the deadline. `false`: the deadline has passed.
    pub(crate) async fn pause(&self, pause: Duration) -> bool {
        tokio::time::sleep(pause.min(self.left())).await;
        !self.left().is_zero()
    }

    /// Calls, and decodes the answer.
    pub(crate) async fn read<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, Fault> {
        let body = self.call(&call).await?;
        serde_json::from_slice(&body)
            .map_err(|error| Fault::Nonsense { call: call.name, why: error.to_string() })
    }

    /// Calls, and accepts any success.
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

    /// Decides whether to repeat a failed call, and pauses before it; the pause grows. `false`: do
    /// not repeat.
    pub(crate) async fn again(&self, fault: &Fault, pause: &mut Duration) -> bool {
        if !fault.may_pass() || self.hurried.get() || self.left() <= *pause {
            return false;
        }
        self.tell(fault);
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSE.1);
        true
    }

    /// Announces once that the call is repeated: a silent program tells nobody why it hangs.
    fn tell(&self, fault: &Fault) {
        if self.tells.replace(false) {
            let fault = one_line(&fault.to_string());
            let text = format!("mooring: {fault}; trying again for up to {} s\n", self.left().as_secs());
            // An attach may be showing its progress on this line.
            let clear = if io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
            // A failed announcement changes nothing.
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
            let why = format!("it redirects to another address ({status}), and the token is not sent there");
            return Err(Fault::Nonsense { call: call.name, why });
        }
        Err(Fault::of_answer(status, &body, self.with_token))
    }
}

/// Reads the token from the named file, or else from the environment; `None`: there is none.
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
    // A provider that is already installed serves as well.
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
        // The system's trust store is not needed, and its absence must not matter.
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

/// Wraps an object under its name, as the API requires.
pub(crate) fn wrapped(name: &str, object: impl Serialize) -> Value {
    let mut body = serde_json::Map::new();
    body.insert(name.to_owned(), serde_json::to_value(object).unwrap_or_default());
    Value::Object(body)
}
