//! Listeners of the API: a unix socket, TLS with certificates of both sides, or plain TCP where the
//! configuration insists.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_api::v1::agent_server::AgentServer;
use mooring_api::v1::host_server::HostServer;
use mooring_api::v1::identity_server::IdentityServer;
use mooring_api::{Address, MESSAGE_BYTES_MAX};
use mooring_host::{Front, Incoming, Listener, next_caller};
use mooring_systemd::certificates::{self, CertificateError};
use mooring_systemd::places::Places;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::server::TlsStream;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::{Connected, Router};

use crate::clock;
use crate::config::Config;
use crate::connection::Connections;
use crate::door::Door;
use crate::engine::Engine;
use crate::identity;
use crate::metrics;
use crate::places::{self, Seated};
use crate::rate_limit::RateLimit;
use crate::rpc::agent::Service;
use crate::rpc::host::HostService;
use crate::rpc::identity::IdentityService;

/// Number of requests at work per connection.
const REQUESTS_PER_CONNECTION_MAX: usize = 256;

/// Number of connections of one address that nobody has taken yet.
const ARRIVED_MAX: usize = 64;

/// Addresses that are bound and not yet served.
pub struct Bound {
    front: Front,
    api: Vec<Address>,
    metrics: Vec<SocketAddr>,
}

/// Binds every address of the configuration, so that a port in use is an error at start and not in
/// a task. The front holds the sockets.
pub fn bind(front: &Front, config: &Config) -> Result<Bound> {
    for address in &config.listen {
        let here = address.clone();
        let _number = front.listen(move || bind_api(&here))?;
    }
    for &at in &config.metrics {
        let bind = move || Ok::<_, std::io::Error>(Listener::Tcp(TcpListener::bind(at)?));
        let _number = front.listen(bind).with_context(|| format!("listen on {at} for metrics"))?;
    }
    Ok(Bound { front: front.clone(), api: config.listen.clone(), metrics: config.metrics.clone() })
}

fn bind_api(address: &Address) -> Result<Listener> {
    Ok(match address {
        Address::Unix(path) => Listener::Unix(bind_unix(path)?),
        Address::Tls(at) | Address::Plain(at) => {
            Listener::Tcp(TcpListener::bind(at.as_str()).with_context(|| format!("listen on {address}"))?)
        }
    })
}

fn bind_unix(path: &Path) -> Result<UnixListener> {
    // This process holds the lock of the state folder, so a socket that is left here belongs to a
    // dead agent.
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {
            std::fs::remove_file(path)
                .with_context(|| format!("remove the stale socket {}", path.display()))?;
        }
        Ok(_) => bail!("listen on {}: something that is no socket is in the way", path.display()),
        Err(_) => {}
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let listener = UnixListener::bind(path).with_context(|| format!("listen on {}", path.display()))?;
    // The owner and the group (`mooring` under systemd) may connect.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
        .with_context(|| format!("set the permissions of {}", path.display()))?;
    Ok(listener)
}

/// Checks the certificates and keys that the configuration names. Returns the warnings.
pub fn check_tls(config: &Config) -> Result<Vec<String>, CertificateError> {
    let Some(tls) = &config.tls else { return Ok(Vec::new()) };
    if identity::forgotten(tls) {
        return Ok(vec![
            "this agent has left its controller, and serves nobody over TLS: run mooring-agent join"
                .to_owned(),
        ]);
    }
    let now = clock::system_time();
    let mut warnings = certificates::check_identity(&tls.cert, &tls.key, now)?;
    warnings.extend(certificates::check_authority(&tls.client_ca, now)?);
    Ok(warnings)
}

fn router(
    engine: &Engine,
    host: Option<&Connections>,
    door: Option<Arc<Door>>,
    stop: watch::Receiver<bool>,
) -> Router {
    let mut server = Server::builder().concurrency_limit_per_connection(REQUESTS_PER_CONNECTION_MAX);
    let service = Service::new(engine.clone(), stop.clone());
    let service = AgentServer::new(service).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let host = host.map(|connections| {
        HostServer::new(HostService::new(connections.clone(), stop))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
    });
    let identity = IdentityServer::new(IdentityService::new(door));
    server.add_service(service).add_service(identity).add_optional_service(host)
}

/// Time that answers in progress may take after `stop`. What they wait for is durable: nothing is
/// lost with them.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Serves all listeners until `stop`. The first that fails ends all.
pub async fn serve(engine: &Engine, bound: Bound, stop: watch::Receiver<bool>) -> Result<()> {
    serve_with(engine, None, bound, stop).await
}

/// As [`serve`], and serves `Host`, too, if this host attaches volumes.
pub async fn serve_with(
    engine: &Engine,
    host: Option<&Connections>,
    bound: Bound,
    stop: watch::Receiver<bool>,
) -> Result<()> {
    let Bound { front, api, metrics } = bound;
    let mut tasks = tokio::task::JoinSet::new();
    let mut ways = Vec::new();
    // Callers on this machine have places while the network has none left.
    let (local, network) = (places::places(), places::places());
    let door = engine.config().tls.as_ref().map(Door::open).transpose()?.map(Arc::new);
    if let Some(door) = &door {
        engine.note_door(Arc::clone(door));
    }
    for address in api {
        let router = router(engine, host, door.clone(), stop.clone());
        let stopped = stopped(stop.clone());
        tracing::info!(%address, "listening");
        if let Address::Unix(_) = address {
            let (sender, arrived) = mpsc::channel(ARRIVED_MAX);
            ways.push(Way::Unix(sender, local.clone()));
            tasks.spawn(serve_router(router, arrived, stopped, address));
            continue;
        }
        let (sender, arrived) = mpsc::channel(ARRIVED_MAX);
        ways.push(Way::Tcp(sender, network.clone()));
        match (&address, &door) {
            (Address::Tls(_), Some(door)) => {
                let entered = handshakes(arrived, Arc::clone(door));
                tasks.spawn(serve_router(router, entered, stopped, address));
            }
            (Address::Tls(_), None) => bail!("listen on {address}: [tls] is missing in the configuration"),
            (Address::Plain(_) | Address::Unix(_), _) => {
                tasks.spawn(serve_router(router, arrived, stopped, address));
            }
        }
    }
    if !metrics.is_empty() {
        let (sender, arrived) = mpsc::channel(ARRIVED_MAX);
        ways.extend(metrics.iter().map(|_| Way::Metrics(sender.clone())));
        for address in metrics {
            tracing::info!(metrics = %address, "metrics can be asked for");
        }
        tokio::spawn(metrics::serve(engine.clone(), host.cloned(), arrived, stop.clone()));
    }
    let incoming = front.open().context("what is bound is served already")?;
    tasks.spawn(hand_out(incoming, ways, stop.clone()));
    let overdue = async move {
        stopped(stop).await;
        tokio::time::sleep(STOP_GRACE).await;
    };
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.context("a listener's task ended")??;
        }
        Ok(())
    };
    let ended = tokio::select! {
        ended = all => ended,
        () = overdue => Ok(()),
    };
    // Nobody listens any more: the front sees the end of its socket.
    tasks.shutdown().await;
    ended
}

/// Answers the calls of connections as they arrive, until `stopped`.
async fn serve_router<S>(
    router: Router,
    arrived: mpsc::Receiver<S>,
    stopped: impl Future<Output = ()>,
    address: Address,
) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let arrived = ReceiverStream::new(arrived).map(Ok::<_, std::io::Error>);
    let served = router.serve_with_incoming_shutdown(arrived, stopped).await;
    served.with_context(|| format!("serve {address}"))
}

/// Returns the arriving connections whose handshake is done. Each handshake has a task of its own,
/// so that a slow one delays nobody.
fn handshakes(
    mut arrived: mpsc::Receiver<Seated<TcpStream>>,
    door: Arc<Door>,
) -> mpsc::Receiver<TlsStream<Seated<TcpStream>>> {
    let (sender, entered) = mpsc::channel(ARRIVED_MAX);
    let refusals = Arc::new(Refusals::default());
    tokio::spawn(async move {
        while let Some(stream) = arrived.recv().await {
            let (door, sender, refusals) = (Arc::clone(&door), sender.clone(), Arc::clone(&refusals));
            tokio::spawn(async move {
                let peer = stream.connect_info().remote_addr();
                match door.enter(stream).await {
                    Ok(stream) => drop(sender.send(stream).await),
                    Err(error) => refusals.say(peer, &error),
                }
            });
        }
    });
    entered
}

/// Time in which the log names at most one refused caller for each reason: strangers must not fill
/// it.
const REFUSED_SAID_EVERY: Duration = Duration::from_secs(10);

/// Handshakes that were refused: when the log named each reason last.
#[derive(Debug, Default)]
struct Refusals(Mutex<BTreeMap<&'static str, RateLimit>>);

impl Refusals {
    /// Logs a handshake that failed: as a warning if the caller was refused for a reason that
    /// somebody can mend.
    fn say(&self, peer: Option<SocketAddr>, error: &std::io::Error) {
        let peer = peer.map_or_else(|| "nobody".to_owned(), |peer| peer.to_string());
        let Some(why) = why_refused(error) else {
            tracing::debug!(%peer, %error, "a TLS handshake failed");
            return;
        };
        let warn = || {
            tracing::warn!(%peer, %error, "a caller was refused: {why}");
            Ok::<_, Infallible>(())
        };
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(()) = said.entry(why).or_default().when_due(clock::system_time(), REFUSED_SAID_EVERY, warn);
    }
}

/// The reason why a handshake was refused, with its remedy. `None` for a caller that went away, was
/// too slow, or broke the protocol.
fn why_refused(error: &std::io::Error) -> Option<&'static str> {
    use rustls::{CertificateError as Bad, Error as Failed};
    match error.get_ref()?.downcast_ref::<Failed>()? {
        Failed::NoCertificatesPresented => {
            Some("it shows no certificate; callers need one of the controller's authority")
        }
        Failed::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            Some("its certificate has expired; renew it, and see that the clocks of both machines are right")
        }
        Failed::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            Some("its certificate is not valid yet; see that the clocks of both machines are right")
        }
        Failed::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            Some("its certificate is of another authority than client_ca in the configuration")
        }
        Failed::InvalidCertificate(Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. }) => {
            Some("its certificate is not one for a client; agents do not call agents")
        }
        Failed::InvalidCertificate(_) => Some("its certificate is not valid"),
        Failed::PeerIncompatible(_) => Some("it does not speak TLS 1.3"),
        Failed::InvalidMessage(_) => Some("it does not speak TLS; call this address by https"),
        Failed::AlertReceived(_) => Some(
            "it does not accept this agent; see that both have the same authority, and that this agent's certificate is valid",
        ),
        _ => None,
    }
}

/// Time in which the log names at most one lost connection: strangers must not fill it.
const LOST_SAID_EVERY: Duration = Duration::from_secs(10);

/// Receiver of the connections of an address.
enum Way {
    Unix(mpsc::Sender<Seated<UnixStream>>, Places),
    Tcp(mpsc::Sender<Seated<TcpStream>>, Places),
    /// Connections for metrics have places of their own.
    Metrics(mpsc::Sender<TcpStream>),
}

fn tcp(file: OwnedFd) -> std::io::Result<TcpStream> {
    let stream = std::net::TcpStream::from(file);
    stream.set_nonblocking(true)?;
    // An answer is several small writes: without this, the later ones wait for the peer's delayed
    // acknowledgement, 40 ms and more.
    stream.set_nodelay(true)?;
    TcpStream::from_std(stream)
}

fn no_place() -> std::io::Error {
    std::io::Error::other("too many connections are open, in all or from its address")
}

impl Way {
    async fn give(&self, file: OwnedFd) -> std::io::Result<()> {
        // A connection that nobody takes at the end is closed.
        match self {
            Self::Unix(to, places) => {
                let stream = std::os::unix::net::UnixStream::from(file);
                stream.set_nonblocking(true)?;
                let seated =
                    places::seat(places, UnixStream::from_std(stream)?, None).ok_or_else(no_place)?;
                drop(to.send(seated).await);
            }
            Self::Tcp(to, places) => {
                let stream = tcp(file)?;
                let peer = stream.peer_addr()?.ip();
                let seated = places::seat(places, stream, Some(peer)).ok_or_else(no_place)?;
                drop(to.send(seated).await);
            }
            Self::Metrics(to) => drop(to.send(tcp(file)?).await),
        }
        Ok(())
    }
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// Gives each connection to those who serve its address, until `stop`.
async fn hand_out(incoming: Incoming, ways: Vec<Way>, stop: watch::Receiver<bool>) -> Result<()> {
    let _front = incoming.front;
    incoming.socket.set_nonblocking(true).context("wait for connections")?;
    let socket = UnixStream::from_std(incoming.socket).context("wait for connections")?;
    let stopped = stopped(stop);
    let lost = RateLimit::default();
    tokio::pin!(stopped);
    loop {
        let came = tokio::select! {
            came = socket.async_io(Interest::READABLE, || next_caller(&socket)) => came,
            () = &mut stopped => return Ok(()),
        };
        let taken = match came {
            Ok(Some((number, file))) => match ways.get(usize::from(number)) {
                Some(way) => way.give(file).await,
                None => Ok(()),
            },
            Ok(None) => bail!("the thread that listens is gone"),
            Err(error) => Err(error),
        };
        if let Err(error) = taken {
            let say = || {
                tracing::warn!(%error, "a connection was lost before it was served");
                Ok::<_, Infallible>(())
            };
            let Ok(()) = lost.when_due(clock::system_time(), LOST_SAID_EVERY, say);
        }
    }
}
