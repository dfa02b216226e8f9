//! An agent on the network needs certificates on both sides; a controller on the network at least
//! its own.

#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::fake_controller;

use std::path::Path;

use crate::fake::{Fake, mooring};
use crate::fake_controller::{FakeController, end, start};
use mooring_api::v1::agent_server::AgentServer;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

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

    /// A certificate for a name, and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Writes a client's files and returns the words that name them.
fn files(dir: &Path, who: &str, ca: &str, (cert, key): &(String, String)) -> Vec<String> {
    let write = |kind: &str, text: &str| {
        let path = dir.join(format!("{who}-{kind}.pem"));
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (ca, cert, key) = (write("ca", ca), write("cert", cert), write("key", key));
    ["volume", "list", "--ca", &ca, "--cert", &cert, "--key", &key].map(str::to_owned).to_vec()
}

#[test]
fn both_sides_show_certificates() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let (cert, key) = ours.sign("127.0.0.1");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(cert, key))
        .client_ca_root(Certificate::from_pem(&ours.pem));
    let server = Server::builder().tls_config(tls).unwrap().add_service(AgentServer::new(Fake::new()));
    runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));

    let dir = tempfile::tempdir().unwrap();
    let run = |who: &str, ca: &str, client: &(String, String)| {
        let words = files(dir.path(), who, ca, client);
        mooring(Some(&address), &words.iter().map(String::as_str).collect::<Vec<_>>(), None)
    };
    let good = run("good", &ours.pem, &ours.sign("operator"));
    assert_eq!((good.code, good.out.as_str()), (0, "no volumes\n"), "{good:?}");
    // A client that our authority did not sign, and an agent that the client's authority did not
    // sign.
    run("stranger", &ours.pem, &foreign.sign("operator")).refused(6, &[]);
    run("deceived", &foreign.pem, &ours.sign("operator")).refused(6, &["cannot reach", "certificate"]);
    // Plain text to a TLS port does not bypass that.
    let plain = address.replace("https", "http");
    mooring(Some(&plain), &["volume", "list", "--insecure"], None).refused(6, &[]);
}

#[test]
fn a_controller_shows_its_certificate() {
    // The program does this for itself.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (ours, foreign) = (Authority::new(), Authority::new());
    let (cert, key) = ours.sign("127.0.0.1");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let controller = FakeController::default();
    controller.state().knobs.token = Some("a-token".to_owned());
    let app = fake_controller::router(controller).into_make_service();
    let tls = axum_server::tls_rustls::RustlsConfig::from_pem(cert.into_bytes(), key.into_bytes());
    let tls = runtime.block_on(tls).unwrap();
    let guard = runtime.enter();
    let server = axum_server::from_tcp_rustls(listener, tls).unwrap();
    drop(guard);
    runtime.spawn(server.serve(app));

    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (ca, other, junk) =
        (write("ca", &ours.pem), write("other", &foreign.pem), write("junk", "no certificate"));
    let run = |scheme: &str, more: &[&str]| {
        let url = format!("{scheme}://{address}");
        let env = [("MOORING_CONTROLLER", url.as_str()), ("MOORING_TOKEN", "a-token")];
        end(start(&env, &[&["host", "list"], more].concat()))
    };
    let good = run("https", &["--ca", &ca]);
    assert_eq!((good.code, good.err.as_str()), (0, ""), "{good:?}");
    // A wrong certificate fails at once: no retry.
    let deceived = run("https", &["--ca", &other]);
    deceived.refused(6, &["cannot reach the controller", "certificate", "--ca FILE"]);
    assert!(!deceived.err.contains("trying again"), "{}", deceived.err);
    run("https", &["--ca", &junk]).refused(2, &["holds no certificates in PEM format"]);
    run("https", &["--ca", "/nonexistent/ca.pem"]).refused(2, &["/nonexistent/ca.pem cannot be read"]);
    run("https", &["--ca", &ca, "--cert", &ca]).refused(2, &["--cert and --key belong together"]);
    run("https", &["--ca", &ca, "--cert", &ca, "--key", &junk]).refused(2, &["no certificate with its key"]);
    run("http", &["--timeout", "1"]).refused(6, &[]);
}
