//! An agent on the network: both sides show certificates, or nothing works.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mooring_agent::places::CONNECTIONS_PER_PEER_MAX;
use mooring_api::v1::agent_client::AgentClient;
use mooring_api::{Address, TlsFiles, v1};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::rig::*;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Writes a certificate for a name, and its key.
    fn sign(&self, dir: &Path, file: &str, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        (write(dir, &format!("{file}.crt"), &cert), write(dir, &format!("{file}.key"), &key.serialize_pem()))
    }
}

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Returns a free port of [`own_loopback`].
fn free_port() -> u16 {
    std::net::TcpListener::bind((own_loopback(), 0)).unwrap().local_addr().unwrap().port()
}

#[test]
fn only_a_client_with_a_certificate_of_the_configured_authority_is_served() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let files = tempfile::tempdir().unwrap();
    let dir = files.path();
    let here = own_loopback();
    let (cert, key) = ours.sign(dir, "server", &here.to_string());
    let (ca, foreign_ca) = (write(dir, "ca.crt", &ours.pem), write(dir, "foreign.crt", &foreign.pem));
    let mut node = Node::new();
    let address = Address::Tls(format!("{here}:{}", free_port()));
    node.config.listen.push(address.clone());
    node.config.tls = Some(mooring_agent::config::Tls { cert, key, client_ca: ca.clone() });
    let agent = node.start();

    let ask = |address: &Address, files: TlsFiles| {
        agent.wait(async {
            let channel = mooring_api::connect(address, &files).await.map_err(|error| error.to_string())?;
            let request = v1::HelloRequest { protocol_min: 1, protocol_max: 1, software: String::new() };
            let said = AgentClient::new(channel).hello(request).await.map_err(|status| status.to_string())?;
            Ok::<_, String>(said.into_inner().agent_id)
        })
    };
    let show = |ca: &Path, (cert, key): (PathBuf, PathBuf)| TlsFiles {
        ca: Some(ca.to_owned()),
        cert: Some(cert),
        key: Some(key),
        server_name: None,
    };
    let good = ask(&address, show(&ca, ours.sign(dir, "operator", "operator")));
    assert_eq!(good, Ok(agent.engine().agent_id().to_string()));
    let stranger = ask(&address, show(&ca, foreign.sign(dir, "stranger", "operator")));
    assert!(stranger.is_err(), "{stranger:?}");
    let deceived = ask(&address, show(&foreign_ca, ours.sign(dir, "deceived", "operator")));
    assert!(deceived.is_err(), "{deceived:?}");
    let nobody = ask(&address, TlsFiles { ca: Some(ca), ..TlsFiles::default() });
    assert!(nobody.is_err_and(|text| text.contains("client certificate")));
    // Neither a client whose software does not insist, nor plain text, gets in.
    let bare = agent.wait(async {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&ours.pem));
        let endpoint = Endpoint::from_shared(address.to_string()).unwrap().tls_config(tls).unwrap();
        let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
        let request = v1::HelloRequest { protocol_min: 1, protocol_max: 1, software: String::new() };
        AgentClient::new(channel).hello(request).await.map_err(|status| status.to_string())
    });
    assert!(bare.is_err(), "{bare:?}");
    let plain = Address::Plain(address.to_string().trim_start_matches("https://").to_owned());
    assert!(ask(&plain, TlsFiles::default()).is_err());
}

/// Returns `true` if the agent has not closed this silent connection yet.
fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let read = stream.read(&mut [0; 1]);
    matches!(&read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn connections_without_a_handshake_are_few_and_end() {
    let ours = Authority::new();
    let files = tempfile::tempdir().unwrap();
    let here = own_loopback();
    let (cert, key) = ours.sign(files.path(), "server", &here.to_string());
    let ca = write(files.path(), "ca.crt", &ours.pem);
    let mut node = Node::new();
    let port = free_port();
    node.config.listen.push(Address::Tls(format!("{here}:{port}")));
    node.config.tls = Some(mooring_agent::config::Tls { cert, key, client_ca: ca.clone() });
    let agent = node.start();
    let began = Instant::now();
    let soon = || began.elapsed() < Duration::from_secs(4);
    // Nothing is sent.
    let connect = |_| TcpStream::connect((here, port)).unwrap();
    let mut kept: Vec<_> = (0..CONNECTIONS_PER_PEER_MAX + 16).map(connect).collect();
    kept.retain_mut(is_open);
    while kept.len() > CONNECTIONS_PER_PEER_MAX && soon() {
        // The agent may come late to those that are too many.
        kept.retain_mut(is_open);
    }
    assert!(kept.len() <= CONNECTIONS_PER_PEER_MAX, "one address has no more places: {}", kept.len());
    if soon() {
        assert_eq!(kept.len(), CONNECTIONS_PER_PEER_MAX, "one address has that many places");
    }
    // The agent closes each of them, and its place becomes free.
    for mut stream in kept {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "it said nothing, and is not let in");
    }
    let (cert, key) = ours.sign(files.path(), "operator", "operator");
    let shown = TlsFiles { ca: Some(ca), cert: Some(cert), key: Some(key), server_name: None };
    let address = Address::Tls(format!("{here}:{port}"));
    let hello = agent.wait(async {
        let channel = mooring_api::connect(&address, &shown).await.unwrap();
        let request = v1::HelloRequest { protocol_min: 1, protocol_max: 1, software: String::new() };
        AgentClient::new(channel).hello(request).await
    });
    assert!(hello.is_ok(), "{hello:?}");
}
