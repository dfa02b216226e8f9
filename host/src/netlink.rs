//! Netlink sockets: open, send to the kernel, receive the kernel's messages.
//!
//! What must never happen here: a datagram of another process that passes for the kernel's; a
//! receive without a limit of time; a descriptor that a child process inherits.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, setsockopt, sockopt,
};

/// Bytes of a receive buffer: more than any message of the protocols used here (an iSCSI event with
/// a full login PDU is less than 9 KiB, a uevent less than 4 KiB).
pub(crate) const MESSAGE_BYTES_MAX: usize = 32 << 10;

/// Receive buffer of a socket for events, in bytes: a burst of events of hundreds of sessions fits.
pub(crate) const EVENT_BUFFER_BYTES: usize = 4 << 20;

/// A netlink socket that is never inherited and never blocks by itself.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
}

impl Netlink {
    /// Opens a socket of this protocol with this port id (0: the kernel chooses), subscribed to
    /// these groups (a bit mask). EADDRINUSE: another socket has the port id.
    pub(crate) fn open(protocol: SockProtocol, port_id: u32, groups: u32) -> Result<Self, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket::socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        socket::bind(socket.as_raw_fd(), &NetlinkAddr::new(port_id, groups))?;
        Ok(Self { socket })
    }

    /// Enlarges the receive buffer, beyond the system's limit if this process may (CAP_NET_ADMIN).
    pub(crate) fn widen(&self, bytes: usize) -> Result<(), Errno> {
        setsockopt(&self.socket, sockopt::RcvBufForce, &bytes)
            .or_else(|_| setsockopt(&self.socket, sockopt::RcvBuf, &bytes))
    }

    /// Sends one message to the kernel, which handles it inside of this call. ECONNREFUSED: nobody
    /// listens there in this network namespace.
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), Errno> {
        let kernel = NetlinkAddr::new(0, 0);
        match socket::sendto(self.socket.as_raw_fd(), message, &kernel, MsgFlags::empty())? {
            sent if sent == message.len() => Ok(()),
            _ => Err(Errno::EMSGSIZE),
        }
    }

    /// Returns the next datagram of the kernel; `None` when none came within `wait`. ENOBUFS: some
    /// were lost.
    pub(crate) fn receive<'b>(
        &self,
        buffer: &'b mut [u8],
        wait: Duration,
    ) -> Result<Option<&'b [u8]>, Errno> {
        let begun = Instant::now();
        loop {
            match socket::recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), buffer) {
                Ok((length, Some(sender))) if sender.pid() == 0 => {
                    return Ok(Some(buffer.get(..length).unwrap_or_default()));
                }
                // The datagram is another process's. A flood of these must not hold us for longer
                // than `wait` either.
                Ok(_) if begun.elapsed() < wait => continue,
                Err(Errno::EINTR) => continue,
                Ok(_) => return Ok(None),
                Err(Errno::EAGAIN) => {}
                Err(errno) => return Err(errno),
            }
            let Some(left) = wait.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
                return Ok(None);
            };
            // A millisecond more than is left: a wait that rounds down to 0 would spin.
            let limit = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], limit) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Returns the port id of the socket.
    #[cfg(test)]
    pub(crate) fn port_id(&self) -> u32 {
        socket::getsockname::<NetlinkAddr>(self.socket.as_raw_fd()).unwrap().pid()
    }

    /// Sends to another process's socket, as a stranger can send to ours.
    #[cfg(test)]
    pub(crate) fn send_to(&self, port_id: u32, message: &[u8]) -> Result<usize, Errno> {
        let address = NetlinkAddr::new(port_id, 0);
        socket::sendto(self.socket.as_raw_fd(), message, &address, MsgFlags::empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A protocol between processes: the kernel provides it for them and sends nothing there.
    const USER: SockProtocol = SockProtocol::NetlinkUserSock;

    #[test]
    fn a_port_id_has_one_owner_and_the_kernels_own_number_is_one() {
        let first = Netlink::open(USER, u32::MAX, 0).unwrap();
        assert_eq!(first.port_id(), u32::MAX);
        assert_eq!(Netlink::open(USER, u32::MAX, 0).unwrap_err(), Errno::EADDRINUSE);
        drop(first);
        Netlink::open(USER, u32::MAX, 0).unwrap();
    }

    #[test]
    fn what_another_process_sends_is_not_taken_for_the_kernels() {
        let (ours, stranger) = (Netlink::open(USER, 0, 0).unwrap(), Netlink::open(USER, 0, 0).unwrap());
        let mut buffer = [0; 64];
        assert_eq!(ours.receive(&mut buffer, Duration::ZERO).unwrap(), None);
        assert_eq!(stranger.send_to(ours.port_id(), b"forged").unwrap(), 6);
        assert_eq!(ours.receive(&mut buffer, Duration::from_millis(20)).unwrap(), None);
    }

    #[test]
    fn a_protocol_without_a_kernel_side_refuses() {
        assert_eq!(Netlink::open(USER, 0, 0).unwrap().send(b"hello"), Err(Errno::ECONNREFUSED));
    }
}
