//! The addresses of this machine, and TCP connections to portals.
//!
//! What must never happen here: a connection attempt without an end; bytes that are still sent after a connection was
//! dropped.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{SockaddrIn, setsockopt, sockopt};

/// The IPv4 addresses of this machine's interfaces, loopback included, in order.
pub fn local_addresses() -> Result<Vec<Ipv4Addr>, Errno> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    let addresses: BTreeSet<_> =
        interfaces.filter_map(|interface| interface.address?.as_sockaddr_in().map(SockaddrIn::ip)).collect();
    Ok(addresses.into_iter().collect())
}

/// A portal that could not be connected to. Worth another try, or another portal.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to portal {portal} (tried for {:.1}s)", .took.as_secs_f64())]
pub struct DialError {
    /// The portal.
    pub portal: SocketAddrV4,
    /// How long it was tried.
    pub took: Duration,
    /// Why; `TimedOut` when the deadline passed without an answer.
    #[source]
    pub source: io::Error,
}

/// Connects to a portal within `deadline`. Small segments are sent at once (TCP_NODELAY): a SCSI command that waits for the
/// acknowledgement of the one before costs tens of milliseconds.
pub fn dial(portal: SocketAddrV4, deadline: Duration) -> Result<TcpStream, DialError> {
    let begun = Instant::now();
    let dial = || -> io::Result<TcpStream> {
        if deadline.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let stream = TcpStream::connect_timeout(&SocketAddr::V4(portal), deadline)?;
        // On this machine a connection to a port that nobody listens on may get the very same number as its own and so meet
        // itself.
        if stream.local_addr()? == SocketAddr::V4(portal) {
            return Err(Errno::ECONNREFUSED.into());
        }
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    dial().map_err(|source| DialError { portal, took: begun.elapsed(), source })
}

/// Ends a connection at once, with a reset: what is not sent yet is thrown away instead of reaching the target later. A
/// socket that the kernel's initiator still holds stays open for it: stop the connection first.
pub fn drop_connection(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    if let Err(errno) = setsockopt(&stream, sockopt::Linger, &linger) {
        tracing::debug!(?errno, "a connection is closed without a reset");
    }
    drop(stream);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    fn listen() -> (TcpListener, SocketAddrV4) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let SocketAddr::V4(portal) = listener.local_addr().unwrap() else { panic!("not IPv4") };
        (listener, portal)
    }

    #[test]
    fn a_connection_is_made_and_dropped_with_a_reset() {
        let (listener, portal) = listen();
        let mut ours = dial(portal, WAIT).unwrap();
        assert!(ours.nodelay().unwrap());
        let (mut theirs, _) = listener.accept().unwrap();
        ours.write_all(b"stale").unwrap();
        drop_connection(ours);
        let error = theirs.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_refusal_names_the_portal_and_the_reason() {
        let (listener, portal) = listen();
        drop(listener);
        let error = dial(portal, WAIT).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("cannot connect to portal {portal} (tried for ")),
            "{error}"
        );
        assert_eq!((error.portal, error.source.kind()), (portal, io::ErrorKind::ConnectionRefused));
    }

    #[test]
    fn no_time_is_a_timeout() {
        let (_listener, portal) = listen();
        assert_eq!(dial(portal, Duration::ZERO).unwrap_err().source.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn loopback_is_an_address_of_this_machine() {
        assert!(local_addresses().unwrap().contains(&Ipv4Addr::LOCALHOST));
    }
}
