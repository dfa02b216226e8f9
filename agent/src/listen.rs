//! Listening: a unix socket, TLS with certificates of both sides, or plain TCP where the configuration insists.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use mooring_api::v1::agent_server::AgentServer;
use mooring_api::v1::host_server::HostServer;
use mooring_api::{Address, MESSAGE_BYTES_MAX};
use mooring_systemd::certificates::{self, CertificateError};
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::{Router, TcpIncoming};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use crate::config::{Config, Tls};
use crate::connections::Connections;
use crate::engine::Engine;
use crate::serve::Service;
use crate::serve_host::HostService;

/// Requests at work per connection.
const REQUESTS_PER_CONNECTION_MAX: usize = 256;

/// A listener that is bound and not yet served.
pub struct Bound {
    address: Address,
    socket: Socket,
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Binds every address of the configuration, so that a port in use is an error at start and not in a task.
pub async fn bind(config: &Config) -> Result<Vec<Bound>> {
    let mut bound = Vec::new();
    for address in &config.listen {
        let socket = match address {
            Address::Unix(path) => Socket::Unix(bind_unix(path)?),
            Address::Tls(at) | Address::Plain(at) => Socket::Tcp(
                TcpListener::bind(at.as_str()).await.with_context(|| format!("listen on {address}"))?,
            ),
        };
        bound.push(Bound { address: address.clone(), socket });
    }
    Ok(bound)
}

fn bind_unix(path: &Path) -> Result<UnixListener> {
    // The state folder's lock is ours, so a socket that is left here belongs to a dead agent.
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

/// Looks at the certificates and keys that the configuration names. Returns what is to be warned of.
pub fn check_tls(config: &Config) -> Result<Vec<String>, CertificateError> {
    let Some(tls) = &config.tls else { return Ok(Vec::new()) };
    let now = SystemTime::now();
    let mut warnings = certificates::check_identity(&tls.cert, &tls.key, now)?;
    warnings.extend(certificates::check_authority(&tls.client_ca, now)?);
    Ok(warnings)
}

fn tls_config(tls: &Tls) -> Result<ServerTlsConfig> {
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("read {}", path.display()));
    let identity = Identity::from_pem(read(&tls.cert)?, read(&tls.key)?);
    Ok(ServerTlsConfig::new().identity(identity).client_ca_root(Certificate::from_pem(read(&tls.client_ca)?)))
}

fn router(
    engine: &Engine,
    host: Option<&Connections>,
    tls: Option<ServerTlsConfig>,
    stop: tokio::sync::watch::Receiver<bool>,
) -> Result<Router> {
    let mut server = Server::builder().concurrency_limit_per_connection(REQUESTS_PER_CONNECTION_MAX);
    if let Some(tls) = tls {
        server = server.tls_config(tls).context("use the TLS certificate and key")?;
    }
    let service = Service::new(engine.clone(), stop.clone());
    let service = AgentServer::new(service).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let host = host.map(|connections| {
        HostServer::new(HostService::new(connections.clone(), stop))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
    });
    Ok(server.add_service(service).add_optional_service(host))
}

/// How long answers that are under way may take after `stop`. What they wait for is durable: nothing is lost with them.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Serves all listeners until `stop`; the first that fails ends all.
pub async fn serve(
    engine: &Engine,
    bound: Vec<Bound>,
    stop: tokio::sync::watch::Receiver<bool>,
) -> Result<()> {
    serve_with(engine, None, bound, stop).await
}

/// The same, for an agent whose host attaches volumes: the service `Host` is served, too.
pub async fn serve_with(
    engine: &Engine,
    host: Option<&Connections>,
    bound: Vec<Bound>,
    stop: tokio::sync::watch::Receiver<bool>,
) -> Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for Bound { address, socket } in bound {
        let tls = match (&address, &engine.config().tls) {
            (Address::Tls(_), Some(tls)) => Some(tls_config(tls)?),
            (Address::Tls(_), None) => bail!("listen on {address}: [tls] is missing in the configuration"),
            _ => None,
        };
        let router = router(engine, host, tls, stop.clone())?;
        let mut stop = stop.clone();
        tracing::info!(%address, "listening");
        tasks.spawn(async move {
            let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
            let served = match socket {
                Socket::Unix(socket) => {
                    router.serve_with_incoming_shutdown(UnixListenerStream::new(socket), stopped).await
                }
                Socket::Tcp(socket) => {
                    // An answer is several small writes: without this, the later ones wait for the peer's delayed
                    // acknowledgement, 40 ms and more.
                    let incoming = TcpIncoming::from(socket).with_nodelay(Some(true));
                    router.serve_with_incoming_shutdown(incoming, stopped).await
                }
            };
            served.with_context(|| format!("serve {address}"))
        });
    }
    let mut stop = stop;
    let overdue = async move {
        drop(stop.wait_for(|stop| *stop).await);
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
    // Their sockets are closed, whatever call of the kernel keeps this process from ending: its successor listens there.
    tasks.shutdown().await;
    ended
}
