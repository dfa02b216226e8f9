//! Listeners: HTTP/1.1, with TLS where it is configured, and bounds on everything that a client
//! could delay.
//!
//! What must never happen here: a connection that costs something and may last for ever in silence.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::accept::Accept;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use hyper_util::rt::TokioTimer;
use mooring_systemd::places::{Place, Places};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tower::Service;

/// The time after the first byte within which a request's head must be complete. An idle connection
/// is closed after the same time.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest head of a request in bytes: hyper's smallest that still takes large tokens.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The most open connections of all listeners; one more is closed at once.
const CONNECTIONS_MAX: usize = 4_096;

/// The most open connections from one address; a proxy on this machine may have them all.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 1_024;

/// The time that answers in progress get after a stop. What they wait for is durable: nothing is
/// lost with them.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// A bound listener that is not yet served.
#[derive(Debug)]
pub struct Bound {
    address: SocketAddr,
    listener: TcpListener,
}

impl Bound {
    /// The address, with the port that the system chose if none was named.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Binds every address. A port in use is then an error of the start and not of a task.
pub async fn bind(addresses: &[SocketAddr]) -> Result<Vec<Bound>, (SocketAddr, io::Error)> {
    let mut bound = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address).await.map_err(|error| (*address, error))?;
        let address = listener.local_addr().map_err(|error| (*address, error))?;
        bound.push(Bound { address, listener });
    }
    Ok(bound)
}

/// The settings of the listeners.
#[derive(Clone)]
pub struct Serving {
    /// The certificate and key; `None` without TLS.
    pub tls: Option<RustlsConfig>,
    /// The time that is described at [`HEAD_TIMEOUT`].
    pub head_timeout: Duration,
}

impl Default for Serving {
    fn default() -> Self {
        Self { tls: None, head_timeout: HEAD_TIMEOUT }
    }
}

/// Reads the certificate chain and the key. TLS 1.3 only. Offers HTTP/1.1 only: a client that is
/// offered HTTP/2 would speak it.
pub async fn tls(cert: &Path, key: &Path) -> io::Result<RustlsConfig> {
    let (cert, key) = (cert.to_owned(), key.to_owned());
    let read = tokio::task::spawn_blocking(move || read_tls(&cert, &key)).await;
    Ok(RustlsConfig::from_config(Arc::new(read.map_err(io::Error::other)??)))
}

fn read_tls(cert: &Path, key: &Path) -> io::Result<rustls::ServerConfig> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&fs::read(cert)?).collect();
    let chain = chain.map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(&fs::read(key)?).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Serves all listeners until `stop` is `true`; the first that fails ends all.
pub async fn serve(
    router: Router,
    bound: Vec<Bound>,
    serving: Serving,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let limit = Limit(Places::new(CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX));
    let handle = Handle::new();
    let mut tasks = tokio::task::JoinSet::new();
    for Bound { address, listener } in bound {
        tracing::info!(%address, tls = serving.tls.is_some(), "listening");
        let mut server = axum_server::Server::<SocketAddr>::from_listener(listener).handle(handle.clone());
        server
            .http_builder()
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(serving.head_timeout)
            .max_buf_size(HEAD_BYTES_MAX);
        let service = router.clone().into_make_service_with_connect_info::<SocketAddr>();
        let limit = limit.clone();
        match serving.tls.clone() {
            Some(tls) => {
                let server = server.acceptor(RustlsAcceptor::new(tls).acceptor(limit));
                tasks.spawn(server.http1_only().serve(service));
            }
            None => {
                tasks.spawn(server.acceptor(limit).http1_only().serve(service));
            }
        }
    }
    let stopping = handle.clone();
    let mut stop = stop;
    let watch = tokio::spawn(async move {
        // If the sender is gone, `stop` will never be `true`.
        if stop.wait_for(|stop| *stop).await.is_ok() {
            stopping.graceful_shutdown(Some(STOP_GRACE));
        }
    });
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.unwrap_or_else(|error| Err(io::Error::other(error)));
        if ended.is_err() {
            result = ended;
            break;
        }
    }
    watch.abort();
    result
}

/// A count of connections: each holds a place until it ends.
#[derive(Clone)]
struct Limit(Places);

impl<S> Accept<TcpStream, S> for Limit {
    type Stream = TcpStream;
    type Service = Counted<S>;
    type Future = std::future::Ready<io::Result<(TcpStream, Counted<S>)>>;

    fn accept(&self, stream: TcpStream, inner: S) -> Self::Future {
        let place = stream.peer_addr().and_then(|peer| {
            let address = Some(peer.ip()).filter(|from| !from.to_canonical().is_loopback());
            self.0.take(address).ok_or_else(|| io::Error::other("too many connections"))
        });
        std::future::ready(place.and_then(|place| {
            // Answers are small, and the client waits for each.
            stream.set_nodelay(true)?;
            Ok((stream, Counted { inner, _place: Arc::new(place) }))
        }))
    }
}

/// The service of a connection, with its place.
#[derive(Clone)]
struct Counted<S> {
    inner: S,
    _place: Arc<Place>,
}

impl<S: Service<R>, R> Service<R> for Counted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shake::shake;

    /// Shakes hands with a client that speaks this version only.
    fn handshake(
        served: &RustlsConfig,
        known: CertificateDer<'static>,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> Result<(), rustls::Error> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(known)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut client = rustls::ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap())?;
        let mut server = rustls::ServerConnection::new(served.get_inner())?;
        shake(&mut client, &mut server)
    }

    #[tokio::test]
    async fn the_api_refuses_a_client_of_an_older_tls() {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("crt"), folder.path().join("key"));
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&cert, own.cert.pem()).unwrap();
        fs::write(&key, own.signing_key.serialize_pem()).unwrap();
        let served = tls(&cert, &key).await.unwrap();
        let known = CertificateDer::from_pem_file(&cert).unwrap();
        handshake(&served, known.clone(), &rustls::version::TLS13).unwrap();
        assert!(handshake(&served, known, &rustls::version::TLS12).is_err(), "TLS 1.2");
        fs::write(&key, "no key").unwrap();
        assert!(tls(&cert, &key).await.is_err());
    }
}
