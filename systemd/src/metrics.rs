//! Metrics for Prometheus: the listener that scrapers ask, and the OpenMetrics text of a daemon's
//! numbers.
//!
//! The listener is separate from the daemon's API. It needs no credentials, answers only
//! `GET /metrics`, keeps no state of clients, and has few places. The daemon provides the numbers
//! on each request ([`text`]).
//!
//! What must never happen here: a client that costs more than its place for a bounded time; names
//! of volumes and hosts readable on a network because of a default; a daemon that ends because
//! nobody can read its metrics.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, MetricEncoder,
    NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, mpsc, watch};
use toml::Spanned;

use crate::config::{ConfigError, File};

/// The only path that is answered.
pub const PATH: &str = "/metrics";

/// Content type of the answer.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Most open connections; one more is closed at once. A site has one or two scrapers.
pub const CONNECTIONS_MAX: usize = 8;

/// Time limit for a request's complete head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for a connection, which carries one request; it also ends a client that does not read
/// its answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest head of a request in bytes: the smallest buffer that hyper takes.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// Pause after a failed accept (no descriptors are left).
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// The table `[metrics]` of a configuration file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawMetrics {
    listen: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    insecure: bool,
}

/// The addresses of a table `[metrics]`. Addresses other than loopback are refused unless the table
/// says `insecure = true`.
pub fn listen(file: &File<'_>, table: &Spanned<RawMetrics>) -> Result<Vec<SocketAddr>, ConfigError> {
    let raw = table.get_ref();
    let Some(list) = &raw.listen else {
        let why = "metrics.listen is missing: want addresses as IP:PORT, or no [metrics] at all";
        return Err(file.wrong(&table.span(), why));
    };
    if list.get_ref().is_empty() {
        let why = "metrics.listen: no address: name one, or remove [metrics] to serve no metrics";
        return Err(file.wrong(&list.span(), why));
    }
    let mut addresses = Vec::new();
    for text in list.get_ref() {
        let found = text.get_ref();
        let address: SocketAddr = found.parse().map_err(|_| {
            let why = format!("metrics.listen: {found:?} is not IP:PORT: want 127.0.0.1:9180 or [::1]:9180");
            file.wrong(&text.span(), why)
        })?;
        if addresses.contains(&address) {
            return Err(file.wrong(&text.span(), format!("metrics.listen: {address} is listed twice")));
        }
        if !address.ip().is_loopback() && !raw.insecure {
            let why = format!(
                "metrics.listen: {address} is not loopback: whoever reaches it reads the names of volumes and hosts, \
                 and nobody is asked who they are. Name a loopback address (a proxy beside it can ask), or say \
                 insecure = true in [metrics]"
            );
            return Err(file.wrong(&text.span(), why));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

/// An address that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address} for metrics")]
pub struct BindError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// Binds every address, so that a port in use is an error at start.
pub async fn bind(listen: &[SocketAddr]) -> Result<Vec<TcpListener>, BindError> {
    let mut bound = Vec::new();
    for address in listen {
        let listener = TcpListener::bind(address).await;
        bound.push(listener.map_err(|source| BindError { address: *address, source })?);
    }
    Ok(bound)
}

/// Serves requests until `stop` is true. `text` makes the answer; it runs once at a time.
pub async fn serve<F, T>(bound: Vec<TcpListener>, text: F, stop: watch::Receiver<bool>)
where
    F: Fn() -> T + Send + Sync + 'static,
    T: Future<Output = Result<String, String>> + Send + 'static,
{
    let clients = Clients::new(text);
    let mut tasks = tokio::task::JoinSet::new();
    for listener in bound {
        if let Ok(address) = listener.local_addr() {
            tracing::info!(metrics = %address, "metrics can be asked for");
        }
        tasks.spawn(accept(listener, clients.clone(), stop.clone()));
    }
    while tasks.join_next().await.is_some() {}
}

/// Like [`serve`], for a daemon that accepts connections itself.
pub async fn serve_arrived<F, T>(
    mut arrived: mpsc::Receiver<TcpStream>,
    text: F,
    mut stop: watch::Receiver<bool>,
) where
    F: Fn() -> T + Send + Sync + 'static,
    T: Future<Output = Result<String, String>> + Send + 'static,
{
    let clients = Clients::new(text);
    loop {
        tokio::select! {
            stream = arrived.recv() => match stream {
                Some(stream) => clients.take(stream),
                None => return,
            },
            () = stopped(&mut stop) => return,
        }
    }
}

struct Clients<F> {
    shared: Arc<Shared<F>>,
    places: Arc<Semaphore>,
}

impl<F> Clone for Clients<F> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), places: Arc::clone(&self.places) }
    }
}

impl<F, T> Clients<F>
where
    F: Fn() -> T + Send + Sync + 'static,
    T: Future<Output = Result<String, String>> + Send + 'static,
{
    fn new(text: F) -> Self {
        let shared = Arc::new(Shared { text, alone: Mutex::new(()) });
        Self { shared, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }

    fn take(&self, stream: TcpStream) {
        // Without a place the connection is closed.
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return };
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let _place = place;
            // Only the client cares how its connection ends.
            drop(tokio::time::timeout(CONNECTION_TIMEOUT, connection(stream, shared)).await);
        });
    }
}

struct Shared<F> {
    text: F,
    /// Held while the text is made.
    alone: Mutex<()>,
}

async fn accept<F, T>(listener: TcpListener, clients: Clients<F>, mut stop: watch::Receiver<bool>)
where
    F: Fn() -> T + Send + Sync + 'static,
    T: Future<Output = Result<String, String>> + Send + 'static,
{
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => clients.take(stream),
                Err(error) => {
                    tracing::debug!(%error, "cannot take a connection for metrics");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            },
            () = stopped(&mut stop) => return,
        }
    }
}

/// If the sender is gone, this daemon ends, too.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

async fn connection<F, T>(stream: TcpStream, shared: Arc<Shared<F>>) -> hyper::Result<()>
where
    F: Fn() -> T + Send + Sync + 'static,
    T: Future<Output = Result<String, String>> + Send + 'static,
{
    let answer = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, std::convert::Infallible>(shared.answer(&request).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer)
        .await
}

impl<F, T> Shared<F>
where
    F: Fn() -> T,
    T: Future<Output = Result<String, String>>,
{
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() != PATH {
            return plain(StatusCode::NOT_FOUND, format!("There is nothing here but {PATH}.\n"));
        }
        if request.method() != Method::GET {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, format!("{PATH} is for GET.\n"));
            refused.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET"));
            return refused;
        }
        let _alone = self.alone.lock().await;
        match (self.text)().await {
            Ok(text) => typed(StatusCode::OK, text, OPEN_METRICS),
            Err(why) => {
                tracing::warn!(why, "there are no metrics now");
                plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
            }
        }
    }
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    typed(status, text, "text/plain; charset=utf-8")
}

fn typed(status: StatusCode, text: String, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

/// Encodes the metrics that `say` reports; all names begin with `prefix`.
pub fn text<F>(prefix: &str, say: F) -> Result<String, fmt::Error>
where
    F: Fn(&mut Families<'_>) -> fmt::Result + Send + Sync + 'static,
{
    let mut registry = Registry::with_prefix(prefix);
    registry.register_collector(Box::new(Said(say)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

struct Said<F>(F);

impl<F> fmt::Debug for Said<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Said")
    }
}

impl<F> Collector for Said<F>
where
    F: Fn(&mut Families<'_>) -> fmt::Result + Send + Sync + 'static,
{
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut Families(encoder))
    }
}

/// A point in time in the unit of metrics: seconds since 1970.
pub fn timestamp(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Collects a daemon's metrics. A family without samples still appears with its name, unit and
/// meaning, so that "no samples" and "no such metric" differ.
pub struct Families<'a>(DescriptorEncoder<'a>);

impl fmt::Debug for Families<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Families")
    }
}

impl Families<'_> {
    fn family(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        kind: MetricType,
        samples: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        samples(&mut self.0.encode_descriptor(name, help, unit, kind)?)
    }

    /// Adds values that go up and down. The unit becomes the end of the name.
    pub fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        self.family(name, help, unit, MetricType::Gauge, |encoder| {
            samples
                .into_iter()
                .try_for_each(|(labels, value)| encoder.encode_family(&labels)?.encode_gauge(&value))
        })
    }

    /// Adds one such value without labels. `None`: it is unknown now.
    pub fn gauge<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: Option<V>,
    ) -> fmt::Result {
        self.family(name, help, unit, MetricType::Gauge, |encoder| {
            value.map_or(Ok(()), |value| encoder.encode_gauge(&value))
        })
    }

    /// Adds values that only grow, or restart from 0. The name ends in `_total`, after its unit.
    pub fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        self.family(name, help, unit, MetricType::Counter, |encoder| {
            samples.into_iter().try_for_each(|(labels, value)| {
                encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, V, u64>(&value, None)
            })
        })
    }

    /// Adds one such value without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.family(name, help, None, MetricType::Counter, |encoder| {
            encoder.encode_counter::<NoLabelSet, u64, u64>(&value, None)
        })
    }

    /// Adds facts that stay constant while the daemon runs. The name ends in `_info`.
    pub fn info<L: EncodeLabelSet>(&mut self, name: &str, help: &str, labels: &L) -> fmt::Result {
        self.family(name, help, None, MetricType::Info, |encoder| encoder.encode_info(labels))
    }

    /// Adds a metric that other code keeps.
    pub fn kept(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        metric: &impl EncodeMetric,
    ) -> fmt::Result {
        metric.encode(self.0.encode_descriptor(name, help, unit, metric.metric_type())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(lines: &str) -> Result<Vec<SocketAddr>, String> {
        #[derive(Deserialize)]
        struct Whole {
            metrics: Spanned<RawMetrics>,
        }
        let text = format!("[metrics]\n{lines}");
        let whole: Whole = toml::from_str(&text).map_err(|error| error.message().to_owned())?;
        listen(&File::new("x.toml", &text), &whole.metrics).map_err(|error| error.to_string())
    }

    #[test]
    fn loopback_unless_the_file_insists() {
        let loopback = ["127.0.0.1:9180".parse().unwrap(), "[::1]:9180".parse().unwrap()];
        assert_eq!(addresses("listen = [\"127.0.0.1:9180\", \"[::1]:9180\"]").unwrap(), loopback);
        let everywhere = addresses("listen = [\"0.0.0.0:9180\"]\ninsecure = true").unwrap();
        assert_eq!(everywhere, ["0.0.0.0:9180".parse().unwrap()]);
        for (lines, want) in [
            ("", "x.toml line 1: metrics.listen is missing"),
            ("listen = []", "x.toml line 2: metrics.listen: no address"),
            ("listen = [\"9180\"]", "x.toml line 2: metrics.listen: \"9180\" is not IP:PORT"),
            ("listen = [\"localhost:9180\"]", "\"localhost:9180\" is not IP:PORT"),
            (
                "listen = [\"127.0.0.1:1\",\n\"127.0.0.1:1\"]",
                "x.toml line 3: metrics.listen: 127.0.0.1:1 is listed twice",
            ),
            ("listen = [\"0.0.0.0:9180\"]", "line 2: metrics.listen: 0.0.0.0:9180 is not loopback"),
            ("listen = [\"[::]:9180\"]", "[::]:9180 is not loopback"),
            ("listen = [\"10.0.0.1:9180\"]", "or say insecure = true in [metrics]"),
            ("port = 1", "unknown field `port`"),
        ] {
            let said = addresses(lines).unwrap_err();
            assert!(said.contains(want), "{lines}: {said}");
        }
    }

    #[test]
    fn a_family_is_named_also_without_a_sample() {
        let said = text("mooring_test", |families| {
            families.info("build", "The build.", &[("version", "1")])?;
            families.gauge("left", "What is left.", Some(&Unit::Bytes), None::<u64>)?;
            families.counter("done", "What was done.", 7)?;
            families.gauges("size", "How large.", Some(&Unit::Bytes), [([("of", "a\"b")], 0.5)])?;
            families.counters("read", "What was read.", Some(&Unit::Bytes), [([("of", "a")], 3_u64)])
        });
        let want = "# HELP mooring_test_build The build.\n# TYPE mooring_test_build info\n\
                    mooring_test_build_info{version=\"1\"} 1\n\
                    # HELP mooring_test_left_bytes What is left.\n# TYPE mooring_test_left_bytes gauge\n\
                    # UNIT mooring_test_left_bytes bytes\n\
                    # HELP mooring_test_done What was done.\n# TYPE mooring_test_done counter\n\
                    mooring_test_done_total 7\n\
                    # HELP mooring_test_size_bytes How large.\n# TYPE mooring_test_size_bytes gauge\n\
                    # UNIT mooring_test_size_bytes bytes\nmooring_test_size_bytes{of=\"a\\\"b\"} 0.5\n\
                    # HELP mooring_test_read_bytes What was read.\n# TYPE mooring_test_read_bytes counter\n\
                    # UNIT mooring_test_read_bytes bytes\nmooring_test_read_bytes_total{of=\"a\"} 3\n# EOF\n";
        assert_eq!(said.unwrap(), want);
    }
}
