//! The listener of metrics: one path is answered, to one method, and slow or numerous clients cost
//! others nothing.
#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mooring_systemd::metrics::{self, CONNECTIONS_MAX};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// A limit for waiting, never a measure.
const PATIENCE: Duration = Duration::from_secs(30);

struct Served {
    runtime: Runtime,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    ended: tokio::task::JoinHandle<()>,
}

fn serve(text: Result<&'static str, &'static str>) -> Served {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let bound = runtime.block_on(metrics::bind(&["127.0.0.1:0".parse().unwrap()])).unwrap();
    let address = bound[0].local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let say = move || async move { text.map(str::to_owned).map_err(str::to_owned) };
    let ended = runtime.spawn(metrics::serve(bound, say, stopped));
    Served { runtime, address, stop, ended }
}

impl Served {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        // A connection that has no place is closed while it is written to.
        let _ = stream.write_all(format!("{request}\r\nHost: x\r\n\r\n").as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

#[test]
fn get_metrics_and_nothing_else() {
    let served = serve(Ok("# EOF\n"));
    let answer = served.ask("GET /metrics HTTP/1.1");
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\r\n\r\n# EOF\n"), "{answer}");
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(served.ask("GET /metrics?x=1 HTTP/1.0").contains(" 200 OK"));
    for path in ["/", "/metrics/", "/metrics/x", "/../metrics", "/v3", "//metrics"] {
        let answer = served.ask(&format!("GET {path} HTTP/1.1"));
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
    for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"] {
        let answer = served.ask(&format!("{method} /metrics HTTP/1.1"));
        assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("allow: GET"), "{method}: {answer}");
    }
    assert!(served.ask(&format!("GET /{} HTTP/1.1", "x".repeat(10_000))).starts_with("HTTP/1.1 4"));
    assert!(served.ask("nonsense").starts_with("HTTP/1.1 400"));
    assert!(served.ask("GET /metrics HTTP/1.1").contains(" 200 OK"), "it serves on");
}

#[test]
fn what_cannot_be_said_is_an_error_and_no_empty_page() {
    let served = serve(Err("try again"));
    let answer = served.ask("GET /metrics HTTP/1.1");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("try again\n"), "{answer}");
}

#[test]
fn clients_that_say_nothing_lose_their_places() {
    let served = serve(Ok("# EOF\n"));
    let mut silent: Vec<_> = (0..CONNECTIONS_MAX).map(|_| served.connect()).collect();
    // They hold all places, once they have been accepted: one more is closed without a word.
    let until = Instant::now() + PATIENCE;
    while !served.ask("GET /metrics HTTP/1.1").is_empty() {
        assert!(Instant::now() < until, "there was always a place");
    }
    for stream in &mut silent {
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(!said.starts_with(b"HTTP/1.1 200"), "nothing was asked");
    }
    while !served.ask("GET /metrics HTTP/1.1").contains(" 200 OK") {
        assert!(Instant::now() < until, "the places were not given back");
    }
}

#[test]
fn it_stops_when_it_is_told_to() {
    let served = serve(Ok("# EOF\n"));
    served.stop.send_replace(true);
    served.runtime.block_on(async { tokio::time::timeout(PATIENCE, served.ended).await }).unwrap().unwrap();
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(metrics::bind(&[address])).unwrap_err();
    assert_eq!(error.to_string(), format!("listen on {address} for metrics"));
}
