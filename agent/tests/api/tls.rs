//! An agent on the network: certificates of both sides, or nothing.

use std::path::{Path, PathBuf};

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

    /// Writes a certificate for a name and its key.
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

/// A port that nobody has at this moment.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn only_a_client_with_a_certificate_of_the_configured_authority_is_served() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let files = tempfile::tempdir().unwrap();
    let dir = files.path();
    let (cert, key) = ours.sign(dir, "server", "127.0.0.1");
    let (ca, foreign_ca) = (write(dir, "ca.crt", &ours.pem), write(dir, "foreign.crt", &foreign.pem));
    let mut node = Node::new();
    let address = Address::Tls(format!("127.0.0.1:{}", free_port()));
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
    };
    let good = ask(&address, show(&ca, ours.sign(dir, "operator", "operator")));
    assert_eq!(good, Ok(agent.engine().agent_id().to_string()));
    let stranger = ask(&address, show(&ca, foreign.sign(dir, "stranger", "operator")));
    assert!(stranger.is_err(), "{stranger:?}");
    let deceived = ask(&address, show(&foreign_ca, ours.sign(dir, "deceived", "operator")));
    assert!(deceived.is_err(), "{deceived:?}");
    let nobody = ask(&address, TlsFiles { ca: Some(ca), cert: None, key: None });
    assert!(nobody.is_err_and(|text| text.contains("client certificate")));
    // Also when its own software does not insist, and not in plain text either.
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
