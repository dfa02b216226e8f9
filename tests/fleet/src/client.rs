//! A client of the controller: one request at a time, with the complete answer.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::wait::PATIENCE;

/// The default microversion: that of the recorded answers.
const VERSION: &str = "3.60";

/// A caller. Clones are the same caller.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    handle: Handle,
    base: String,
    project: String,
    token: Option<String>,
    version: Option<String>,
    headers: Vec<(String, String)>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The request, for messages.
    pub asked: String,
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; null if there is none.
    pub body: Value,
}

impl Answer {
    /// Expects a status, and returns the body.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}: {}", self.asked, self.body);
        self.body
    }

    /// Expects a fault with these words in its text.
    #[track_caller]
    pub fn refused(self, status: u16, words: &str) {
        let fault = self.expect(status);
        let text = fault.as_object().and_then(|fault| fault.values().next()).map(|fault| &fault["message"]);
        let text = text.and_then(Value::as_str).unwrap_or_default();
        assert!(text.contains(words), "{words:?} is not in {fault}");
    }

    /// Returns a header; `None`: it is absent.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Client {
    /// Makes a caller of a controller at this address, such as `http://127.0.0.1:8776`. The runtime
    /// of `handle` has to outlive the caller.
    pub fn new(handle: &Handle, base: &str, project: &str, token: &str) -> Self {
        // An error here means that the same provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            // Each request has a connection of its own: one to a controller that was killed
            // meanwhile may look alive for a moment.
            http: reqwest::Client::builder().timeout(2 * PATIENCE).pool_max_idle_per_host(0).build().unwrap(),
            handle: handle.clone(),
            base: base.to_owned(),
            project: project.to_owned(),
            token: Some(token.to_owned()),
            version: Some(VERSION.to_owned()),
            headers: Vec::new(),
        }
    }

    /// The project's address of the Block Storage API, as a service catalogue has it.
    pub fn endpoint(&self) -> String {
        format!("{}/v3/{}", self.base, self.project)
    }

    /// The caller's token.
    pub fn token(&self) -> &str {
        self.token.as_deref().unwrap_or_default()
    }

    /// The caller's project.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// Makes a client that asks for a microversion.
    #[must_use]
    pub fn at(&self, version: &str) -> Self {
        Self { version: Some(version.to_owned()), ..self.clone() }
    }

    /// Makes a client that asks for no microversion.
    #[must_use]
    pub fn unversioned(&self) -> Self {
        Self { version: None, ..self.clone() }
    }

    /// Makes a client that sends one more header.
    #[must_use]
    pub fn with(&self, name: &str, value: &str) -> Self {
        let mut headers = self.headers.clone();
        headers.push((name.to_owned(), value.to_owned()));
        Self { headers, ..self.clone() }
    }

    /// Makes a client without a token.
    #[must_use]
    pub fn nobody(&self) -> Self {
        Self { token: None, ..self.clone() }
    }

    /// `GET`.
    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None)
    }

    /// `POST`.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, Some(body))
    }

    /// `PUT`.
    pub fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, Some(body))
    }

    /// `DELETE`.
    pub fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, None)
    }

    /// An action of an object, such as `os-reserve`.
    pub fn action(&self, path: &str, action: &str, body: &Value) -> Answer {
        self.post(&format!("{path}/action"), &json!({ action: body }))
    }

    /// Sends any request. The path is below the project's address of the Block Storage API; one
    /// below `/mooring/` is Mooring's own, and one that begins with `//` is the server's, without
    /// its first slash.
    pub fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let url = match path.strip_prefix("//") {
            Some(rest) => format!("{}/{rest}", self.base),
            None if path.starts_with("/mooring/") => format!("{}{path}", self.base),
            None => format!("{}{path}", self.endpoint()),
        };
        let asked = format!("{method} {path}");
        let mut request = self.http.request(Method::from_bytes(method.as_bytes()).unwrap(), url);
        if let Some(body) = body {
            request = request.header("Content-Type", "application/json").body(body.to_string());
        }
        self.finish(request, asked)
    }

    /// Sends a request with a raw body.
    pub fn send_raw(&self, method: &str, path: &str, body: Vec<u8>) -> Answer {
        let url = format!("{}{path}", self.endpoint());
        let request = self.http.request(Method::from_bytes(method.as_bytes()).unwrap(), url).body(body);
        self.finish(request, format!("{method} {path}"))
    }

    fn finish(&self, mut request: RequestBuilder, asked: String) -> Answer {
        if let Some(token) = &self.token {
            request = request.header("X-Auth-Token", token);
        }
        if let Some(version) = &self.version {
            request = request.header("OpenStack-API-Version", format!("volume {version}"));
        }
        // These replace headers that are already set, such as a content type.
        let own = self.headers.iter().map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("the name of a header");
            (name, HeaderValue::from_str(value).expect("the value of a header"))
        });
        request = request.headers(own.collect());
        let (said, asked) = (asked.clone(), asked);
        self.handle.block_on(async move {
            let answer = request.send().await.unwrap_or_else(|error| panic!("{said}: {error}"));
            let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
            let bytes = answer.bytes().await.unwrap_or_else(|error| panic!("{said}: {error}"));
            let body = serde_json::from_slice(&bytes)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
            let body = if bytes.is_empty() { Value::Null } else { body };
            Answer { asked, status, headers, body }
        })
    }
}
