//! TCP connections to portals.
//!
//! What must never happen here: a connection attempt without an end; bytes that are still sent
//! after a connection was dropped.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// An address of this machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// Interface that has the address.
    pub interface: String,
    /// The interface and its link are up.
    pub up: bool,
    /// Largest packet of the interface in bytes. `None`: unknown.
    pub mtu: Option<u32>,
}

impl From<IpAddr> for LocalAddress {
    /// Makes the address of an interface without a name that is up, as fakes have it.
    fn from(ip: IpAddr) -> Self {
        Self { ip, interface: String::new(), up: true, mtu: None }
    }
}

/// Failure to connect to a portal. Another try, or another portal, is worth it.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to portal {portal} (tried for {:.1}s)", .took.as_secs_f64())]
pub struct DialError {
    /// The portal.
    pub portal: SocketAddr,
    /// Time of the attempt.
    pub took: Duration,
    /// The system's error; `TimedOut` when the deadline passed without an answer.
    #[source]
    pub source: io::Error,
}

/// Connects to a portal within `deadline`. Small segments are sent at once (TCP_NODELAY): a SCSI
/// command that waits for the acknowledgement of an earlier one costs tens of milliseconds.
pub fn dial(portal: SocketAddr, deadline: Duration) -> Result<TcpStream, DialError> {
    let begun = Instant::now();
    let dial = || -> io::Result<TcpStream> {
        if deadline.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let stream = TcpStream::connect_timeout(&portal, deadline)?;
        // On this machine a connection to a port without a listener may get that very number as its
        // own and so meet itself.
        if stream.local_addr()? == portal {
            return Err(Errno::ECONNREFUSED.into());
        }
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    dial().map_err(|source| DialError { portal, took: begun.elapsed(), source })
}

/// Connects to a portal of this very machine within `deadline`, from loopback: no foreign portal
/// answers, even if the address is another machine's.
pub fn dial_here(portal: SocketAddr, deadline: Duration) -> io::Result<TcpStream> {
    // connect(2) observes this timeout (socket(7)); for the kernel, 0 is no limit.
    let within = i64::try_from(deadline.as_micros()).unwrap_or(i64::MAX);
    if within == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let family = if portal.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let own: IpAddr = if portal.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(own, 0)))?;
    setsockopt(&socket, sockopt::SendTimeout, &TimeVal::microseconds(within))?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(portal)) {
        Ok(()) => Ok(TcpStream::from(socket)),
        Err(Errno::EINPROGRESS) => Err(io::ErrorKind::TimedOut.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Ends a connection at once, with a reset: unsent bytes are thrown away instead of reaching the
/// target later. A socket that the kernel's initiator still holds stays open for it: stop the
/// connection first.
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

    fn listen_at(ip: impl Into<IpAddr>) -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind((ip.into(), 0))?;
        let portal = listener.local_addr()?;
        Ok((listener, portal))
    }

    /// Listens where nobody else does: a port that is closed stays closed.
    fn listen() -> (TcpListener, SocketAddr) {
        listen_at(Ipv4Addr::new(127, 0, 98, 2)).unwrap()
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
        // Less than the kernel's unit would be no limit to it.
        for none in [Duration::ZERO, Duration::from_nanos(999)] {
            assert_eq!(dial_here(portal, none).unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
    }

    #[test]
    fn a_portal_of_ipv6_is_dialled() {
        // A machine without IPv6 has nothing to show here.
        let Ok((listener, portal)) = listen_at(Ipv6Addr::LOCALHOST) else { return };
        let ours = dial(portal, WAIT).unwrap();
        assert_eq!(listener.accept().unwrap().1, ours.local_addr().unwrap());
        drop(listener);
        let error = dial(portal, WAIT).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot connect to portal [::1]:{} (", portal.port())), "{error}");
    }

    #[test]
    fn a_portal_of_this_machine_is_dialled_from_loopback() {
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let Ok((listener, portal)) = listen_at(ip) else { continue };
            let ours = dial_here(portal, WAIT).unwrap();
            assert_eq!((ours.local_addr().unwrap().ip(), listener.accept().is_ok()), (ip, true));
            drop(listener);
            let error = dial_here(portal, WAIT).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        }
        // An address that this machine does not have is not reached, whoever has it.
        let begun = Instant::now();
        assert!(dial_here("192.0.2.1:3260".parse().unwrap(), Duration::from_secs(1)).is_err());
        assert!(begun.elapsed() < WAIT);
    }
}
