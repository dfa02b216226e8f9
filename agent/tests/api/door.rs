//! Certificate of an enrolled agent: renewed while connections are open, moved to another
//! authority, or taken away; and the callers that the agent lets in.

use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use mooring_agent::config::Tls;
use mooring_agent::identity;
use mooring_agent::rpc::listen;
use mooring_api::v1::agent_client::AgentClient;
use mooring_api::v1::identity_client::IdentityClient;
use mooring_api::{Address, Channel, TlsFiles, v1};
use mooring_systemd::certificates;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, PublicKeyData, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use crate::rig::*;

/// Name by which the controller dials the agent.
const NAME: &str = "6a1f1dbe-2f5c-4a8e-9d57-0f3c1a7b9e11.agents.mooring.invalid";

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key.
#[derive(Clone)]
struct Pair {
    cert: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, key: &impl PublicKeyData, usage: ExtendedKeyUsagePurpose, ended: bool) -> String {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        if ended {
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        }
        params.signed_by(key, &self.issuer).unwrap().pem()
    }

    fn pair(&self, usage: ExtendedKeyUsagePurpose, ended: bool) -> Pair {
        let key = KeyPair::generate().unwrap();
        Pair { cert: self.sign(&key, usage, ended), key: key.serialize_pem() }
    }

    /// Signs the certificate of an agent over the key of a request.
    fn of_request(&self, csr: &str) -> String {
        let csr = CertificateSigningRequestParams::from_pem(csr).unwrap();
        self.sign(&csr.public_key, ExtendedKeyUsagePurpose::ServerAuth, false)
    }

    fn controller(&self) -> Pair {
        self.pair(ExtendedKeyUsagePurpose::ClientAuth, false)
    }
}

struct Site {
    node: Node,
    dir: tempfile::TempDir,
    authority: Authority,
    port: u16,
}

impl Site {
    /// An agent that has joined: with the one file that join makes if `one_file`, otherwise with an
    /// operator's files.
    fn new(one_file: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (cert, key) = if one_file { ("agent.pem", "agent.pem") } else { ("agent.crt", "agent.key") };
        let tls = Tls { cert: path(cert), key: path(key), client_ca: path("agent-ca.crt") };
        let authority = Authority::new("first");
        std::fs::write(&tls.client_ca, &authority.pem).unwrap();
        let new = identity::new_key(&tls).unwrap();
        identity::install(&tls, &new, &authority.of_request(&new.csr)).unwrap();
        let here = own_loopback();
        let port = std::net::TcpListener::bind((here, 0)).unwrap().local_addr().unwrap().port();
        let mut node = Node::new();
        node.config.listen.push(Address::Tls(format!("{here}:{port}")));
        node.config.tls = Some(tls);
        Self { node, dir, authority, port }
    }

    fn tls(&self) -> &Tls {
        self.node.config.tls.as_ref().unwrap()
    }

    fn read(&self) -> (String, String, String) {
        let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
        (read(&self.tls().cert), read(&self.tls().key), read(&self.tls().client_ca))
    }

    /// Opens the controller's channel, by the enrolment's name.
    fn dial(&self, agent: &Agent, authority: &Authority, shown: Option<&Pair>) -> Result<Channel, String> {
        let mut tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&authority.pem)).domain_name(NAME);
        if let Some(pair) = shown {
            tls = tls.identity(Identity::from_pem(&pair.cert, &pair.key));
        }
        let endpoint = Endpoint::from_shared(format!("https://{}:{}", own_loopback(), self.port)).unwrap();
        let endpoint = endpoint.tls_config(tls).unwrap();
        agent.wait(async {
            let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
            // Under TLS 1.3, the server judges the client's certificate only after the handshake.
            hello(&channel).await.map_err(|status| status.to_string())?;
            Ok(channel)
        })
    }

    /// Returns the certificate that a new handshake shows.
    fn shown(&self) -> CertificateDer<'static> {
        self.handshake(&rustls::version::TLS13).unwrap()
    }

    /// Returns the certificate that a handshake of this TLS version shows.
    fn handshake(
        &self,
        version: &'static rustls::SupportedProtocolVersion,
    ) -> std::io::Result<CertificateDer<'static>> {
        let pair = self.authority.controller();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(der(&self.authority.pem)).unwrap();
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![der(&pair.cert)], key)
            .unwrap();
        let mut connection =
            rustls::ClientConnection::new(Arc::new(client), NAME.try_into().unwrap()).unwrap();
        let mut stream = TcpStream::connect((own_loopback(), self.port)).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(connection.peer_certificates().unwrap()[0].clone().into_owned())
    }
}

async fn hello(channel: &Channel) -> Result<v1::HelloResponse, Status> {
    let request = v1::HelloRequest { protocol_min: 1, protocol_max: 1, software: String::new() };
    AgentClient::new(channel.clone()).hello(request).await.map(tonic::Response::into_inner)
}

fn new_key(agent: &Agent, channel: &Channel) -> Result<String, Status> {
    let answer = agent.wait(IdentityClient::new(channel.clone()).new_key(v1::NewKeyRequest {}));
    answer.map(|answer| answer.into_inner().csr)
}

fn set(agent: &Agent, channel: &Channel, certificate: &str, authority: &str) -> Result<i64, Status> {
    let request =
        v1::SetCertificateRequest { certificate: certificate.to_owned(), authority: authority.to_owned() };
    let answer = agent.wait(IdentityClient::new(channel.clone()).set_certificate(request));
    answer.map(|answer| answer.into_inner().expires_at_us)
}

/// Returns the authorities that the agent reports as trusted, and the one that signed its
/// certificate.
fn identity(agent: &Agent, channel: &Channel) -> (Vec<String>, String) {
    let mut client = AgentClient::new(channel.clone());
    let said = agent.wait(client.get_capabilities(v1::GetCapabilitiesRequest {})).unwrap().into_inner();
    said.tls.map(|tls| (tls.trusts, tls.signed_by)).unwrap()
}

/// Waits until the agent has warned of a refused caller with these words.
#[track_caller]
fn until_warned(why: &str) {
    let warned =
        |line: &str| line.contains("WARN") && line.contains("a caller was refused") && line.contains(why);
    eventually(why, || logs().lines().any(warned));
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[test]
fn a_certificate_is_renewed_while_a_connection_is_open() {
    for one_file in [true, false] {
        let site = Site::new(one_file);
        let agent = site.node.start();
        let open = site.dial(&agent, &site.authority, Some(&site.authority.controller())).unwrap();
        let before = site.shown();
        let csr = new_key(&agent, &open).unwrap();
        let public = |csr: &str| CertificateSigningRequestParams::from_pem(csr).unwrap().public_key;
        assert_eq!(
            public(&new_key(&agent, &open).unwrap()),
            public(&csr),
            "the key that waits is not made twice"
        );
        let renewed = site.authority.of_request(&csr);
        let ends = set(&agent, &open, &renewed, &site.authority.pem).unwrap();
        let (_, expires) = certificates::validity(&renewed).unwrap();
        let micros = expires.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
        assert_eq!(u128::try_from(ends).unwrap(), micros);
        assert!(agent.wait(hello(&open)).is_ok(), "the connection goes on");
        assert_eq!(site.shown(), der(&renewed));
        assert_ne!(site.shown(), before);
        // A repeated request, whose answer may be lost, changes nothing.
        let files = site.read();
        assert_eq!(set(&agent, &open, &renewed, &site.authority.pem).unwrap(), ends);
        assert_eq!(site.read(), files);
        assert_eq!(std::fs::read_dir(site.dir.path()).unwrap().count(), if one_file { 2 } else { 3 });
        drop(agent);
        let agent = site.node.start();
        assert!(site.dial(&agent, &site.authority, Some(&site.authority.controller())).is_ok());
        assert_eq!(site.shown(), der(&renewed), "it is durable");
    }
}

#[test]
fn only_a_caller_with_a_valid_client_certificate_is_let_in() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let site = Site::new(true);
    let agent = site.node.start();
    let stranger = Authority::new("stranger");
    let own = site.read().0;
    let agents = Pair { cert: own.clone(), key: own };
    for (who, pair, why) in [
        ("another host", Some(site.authority.pair(ServerAuth, false)), "is not one for a client"),
        ("this very host", Some(agents), "is not one for a client"),
        ("one whose time has ended", Some(site.authority.pair(ClientAuth, true)), "has expired"),
        ("another authority's", Some(stranger.controller()), "is of another authority"),
        ("nobody", None, "it shows no certificate"),
    ] {
        assert!(site.dial(&agent, &site.authority, pair.as_ref()).is_err(), "{who}");
        until_warned(why);
    }
    assert!(site.dial(&agent, &stranger, Some(&site.authority.controller())).is_err(), "it is not believed");
    until_warned("it does not accept this agent");
    assert!(site.handshake(&rustls::version::TLS12).is_err(), "TLS 1.2");
    until_warned("it does not speak TLS 1.3");
    let plain = Address::Plain(format!("{}:{}", own_loopback(), site.port));
    let said = agent.wait(async {
        let channel =
            mooring_api::connect(&plain, &TlsFiles::default()).await.map_err(|error| error.to_string())?;
        hello(&channel).await.map_err(|status| status.to_string())
    });
    assert!(said.is_err(), "{said:?}");
    until_warned("it does not speak TLS; call");
    assert!(site.dial(&agent, &site.authority, Some(&site.authority.controller())).is_ok());
}

#[test]
fn a_certificate_that_does_not_fit_changes_nothing() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let site = Site::new(true);
    let agent = site.node.start();
    let open = site.dial(&agent, &site.authority, Some(&site.authority.controller())).unwrap();
    let (before, stranger) = (site.read(), Authority::new("stranger"));
    let ours = site.authority.pem.as_str();
    let other = site.authority.pair(ServerAuth, false).cert;
    let early = set(&agent, &open, &other, ours).unwrap_err();
    assert!(early.message().contains("NewKey"), "{early}");
    let csr = new_key(&agent, &open).unwrap();
    let key = CertificateSigningRequestParams::from_pem(&csr).unwrap().public_key;
    let good = site.authority.of_request(&csr);
    let bundle = format!("{ours}{}", stranger.pem);
    let renamed = Authority::new("first");
    for (certificate, authority, word) in [
        (&other, ours, "new key"),
        (&stranger.of_request(&csr), ours, "did not sign"),
        (&stranger.of_request(&csr), stranger.pem.as_str(), "trusted"),
        (&renamed.of_request(&csr), ours, "did not sign"),
        (&site.authority.sign(&key, ClientAuth, false), ours, "for a server"),
        (&site.authority.sign(&key, ServerAuth, true), ours, "not valid now"),
        (&good, stranger.pem.as_str(), "trusted"),
        (&good, "", "PEM"),
        (&String::new(), ours, "PEM"),
        (&csr, bundle.as_str(), "PEM"),
    ] {
        let refused = set(&agent, &open, certificate, authority).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(word), "{word}: {refused}");
        assert_eq!(site.read(), before, "{word}");
    }
    assert!(set(&agent, &open, &good, ours).is_ok(), "the key waits on");
}

#[test]
fn an_authority_is_replaced_while_callers_of_either_are_let_in() {
    let site = Site::new(true);
    let agent = site.node.start();
    let next = Authority::new("next");
    let (old, new) = (site.authority.controller(), next.controller());
    let open = site.dial(&agent, &site.authority, Some(&old)).unwrap();
    let both = format!("{}{}", site.authority.pem, next.pem);
    let renewed = next.of_request(&new_key(&agent, &open).unwrap());
    let [pin, next_pin] =
        [&site.authority, &next].map(|authority| certificates::pin(&authority.pem).unwrap());
    assert_eq!(identity(&agent, &open), (vec![pin.clone()], pin.clone()));
    set(&agent, &open, &renewed, &both).unwrap();
    let mut trusts = vec![pin, next_pin.clone()];
    trusts.sort_unstable();
    assert_eq!(identity(&agent, &open), (trusts, next_pin), "it says which authorities it trusts");
    assert!(site.dial(&agent, &next, Some(&old)).is_ok() && site.dial(&agent, &next, Some(&new)).is_ok());
    let renewed = next.of_request(&new_key(&agent, &open).unwrap());
    set(&agent, &open, &renewed, &next.pem).unwrap();
    assert!(site.dial(&agent, &next, Some(&new)).is_ok());
    assert!(site.dial(&agent, &next, Some(&old)).is_err(), "the old authority vouches for nobody");
    assert!(agent.wait(hello(&open)).is_ok(), "what is open goes on");
}

#[test]
fn an_agent_that_left_lets_nobody_in_over_tls_and_goes_on() {
    for one_file in [true, false] {
        let site = Site::new(one_file);
        let agent = site.node.start();
        let controller = site.authority.controller();
        let open = site.dial(&agent, &site.authority, Some(&controller)).unwrap();
        agent.wait(IdentityClient::new(open.clone()).leave(v1::LeaveRequest {})).unwrap();
        assert!(site.dial(&agent, &site.authority, Some(&controller)).is_err());
        assert!(new_key(&agent, &open).unwrap_err().message().contains("join"));
        let left = std::fs::read_to_string(&site.tls().key).unwrap();
        assert!(left.is_empty() && (one_file || !site.tls().cert.exists()));
        drop(agent);
        let agent = site.node.start();
        assert!(!agent.hello().agent_id.is_empty(), "its socket answers");
        assert!(site.dial(&agent, &site.authority, Some(&controller)).is_err());
        let warned = listen::check_tls(&site.node.config).unwrap();
        assert!(warned.len() == 1 && warned[0].contains("mooring-agent join"), "{warned:?}");
        // A new join gives the agent a key again.
        let new = identity::new_key(site.tls()).unwrap();
        identity::install(site.tls(), &new, &site.authority.of_request(&new.csr)).unwrap();
        drop(agent);
        let agent = site.node.start();
        assert!(site.dial(&agent, &site.authority, Some(&controller)).is_ok());
    }
}

#[test]
fn the_end_of_a_certificate_is_a_problem_of_the_host() {
    let site = Site::new(false);
    let agent = site.node.start();
    let told = || {
        let problems = agent.capabilities().problems.into_iter();
        let own = problems.filter(|problem| problem.object == "certificate");
        own.map(|problem| problem.text).collect::<Vec<_>>()
    };
    assert_eq!(told(), Vec::<String>::new());
    let key = KeyPair::from_pem(&std::fs::read_to_string(&site.tls().key).unwrap()).unwrap();
    let ended = site.authority.sign(&key, ExtendedKeyUsagePurpose::ServerAuth, true);
    std::fs::write(&site.tls().cert, ended).unwrap();
    let ends = told();
    assert!(ends.len() == 1, "{ends:?}");
    assert!(ends[0].contains("agent.crt") && ends[0].contains("was valid until"), "{ends:?}");
    // A file that cannot be used is told beside it.
    std::fs::write(&site.tls().client_ca, "no certificate").unwrap();
    let both = told();
    assert!(both.len() == 2 && both[0] == ends[0] && both[1].contains("agent-ca.crt"), "{both:?}");
}

#[test]
fn an_agent_without_tls_has_no_certificate_to_renew() {
    let node = Node::new();
    let agent = node.start();
    let channel = agent.wait(mooring_api::connect(&node.config.listen[0], &TlsFiles::default())).unwrap();
    let refused = new_key(&agent, &channel).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("[tls]"), "{refused}");
}
