//! Limits the number of open connections: each needs a place.
//!
//! A connection costs a descriptor before anybody knows who opened it, and the kernel work of this
//! agent needs descriptors, too.
//!
//! What must never happen here: a connection without a place.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use mooring_systemd::places::{Place, Places};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Maximum number of open connections of all network addresses together, and likewise of all unix
/// sockets. One more is closed at once.
pub const CONNECTIONS_MAX: usize = 512;

/// Maximum number of open connections from one IP address. A controller needs one or two.
pub const CONNECTIONS_PER_PEER_MAX: usize = 64;

/// Returns the places for some listeners of an agent.
pub(crate) fn places() -> Places {
    Places::new(CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX)
}

/// Gives a connection its place; `peer` is `None` for a unix socket. Returns `None` if no place is
/// left, and closes the connection.
pub(crate) fn seat<S>(places: &Places, stream: S, peer: Option<IpAddr>) -> Option<Seated<S>> {
    places.take(peer).map(|place| Seated { stream, _place: place })
}

/// A connection with its place.
pub(crate) struct Seated<S> {
    stream: S,
    _place: Place,
}

impl<S: Connected> Connected for Seated<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Seated<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Seated<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
