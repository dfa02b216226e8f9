//! Lists the addresses of this machine with their links, over rtnetlink (`RTM_GETLINK`,
//! `RTM_GETADDR`).
//!
//! What must never happen here: half of a list that passes for all of it; a link of which nothing
//! is known that passes for one that is down.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

use crate::net::LocalAddress;
use crate::netlink::{MESSAGE_BYTES_MAX, Netlink};

/// Time limit of one answer. The kernel lists out of its memory.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Maximum number of attempts at a list, each begun because the list changed in the middle.
const ATTEMPTS_MAX: u32 = 16;

/// Bytes of a message's head (`struct nlmsghdr`); each message begins at a multiple of four.
const HEAD_BYTES: usize = 16;

/// Lists the addresses of this machine's interfaces, loopback included, in order.
///
/// EINTR: they change faster than they can be listed. EBADMSG: the kernel's answer is not
/// understood. ETIMEDOUT: there was no answer within 5 s.
pub fn local_addresses() -> Result<Vec<LocalAddress>, Errno> {
    let socket = Netlink::open(SockProtocol::NetlinkRoute, 0, 0)?;
    for _ in 0..ATTEMPTS_MAX {
        let links = dump(&socket, RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        let addresses = dump(&socket, RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        if let (Some(links), Some(addresses)) = (links, addresses) {
            return Ok(joined(&links, &addresses));
        }
    }
    Err(Errno::EINTR)
}

/// Reads the kernel's list of one kind. `None`: the list changed while it was read
/// (`NLM_F_DUMP_INTR`).
fn dump(socket: &Netlink, request: RouteNetlinkMessage) -> Result<Option<Vec<RouteNetlinkMessage>>, Errno> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes)?;
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let mut listed = Listed::default();
    loop {
        let datagram = socket.receive(&mut buffer, ANSWER_LIMIT)?.ok_or(Errno::ETIMEDOUT)?;
        if listed.take(datagram)? {
            return Ok((!listed.interrupted).then_some(listed.messages));
        }
    }
}

/// The part of a list that has come so far.
#[derive(Default)]
struct Listed {
    messages: Vec<RouteNetlinkMessage>,
    interrupted: bool,
}

impl Listed {
    /// Adds one datagram. Returns `true` if the list has ended.
    fn take(&mut self, datagram: &[u8]) -> Result<bool, Errno> {
        let mut rest = datagram;
        while !rest.is_empty() {
            let length = rest.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(Errno::EBADMSG)?;
            let length = usize::try_from(length).map_err(|_| Errno::EBADMSG)?;
            let one = rest.get(..length).filter(|one| one.len() >= HEAD_BYTES).ok_or(Errno::EBADMSG)?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if self.message(one)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn message(&mut self, bytes: &[u8]) -> Result<bool, Errno> {
        let message = match NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) {
            Ok(message) => message,
            Err(error) if is_link(bytes) => {
                // The link's addresses are listed all the same.
                tracing::debug!(%error, "a link is not understood");
                return Ok(false);
            }
            Err(error) => {
                tracing::debug!(%error, "an answer of rtnetlink is not understood");
                return Err(Errno::EBADMSG);
            }
        };
        self.interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
        match message.payload {
            NetlinkPayload::InnerMessage(inner) => self.messages.push(inner),
            NetlinkPayload::Error(error) => return Err(Errno::from_raw(error.raw_code().saturating_neg())),
            NetlinkPayload::Done(done) if done.code < 0 => {
                return Err(Errno::from_raw(done.code.saturating_neg()));
            }
            NetlinkPayload::Done(_) => return Ok(true),
            _ => {}
        }
        Ok(false)
    }
}

/// Returns `true` for a message of the type `RTM_NEWLINK`.
fn is_link(bytes: &[u8]) -> bool {
    const RTM_NEWLINK: u16 = 16;
    bytes.get(4..6).is_some_and(|kind| kind == RTM_NEWLINK.to_ne_bytes())
}

/// A network interface.
struct Link {
    name: String,
    up: bool,
    mtu: Option<u32>,
}

impl Link {
    fn of(message: &LinkMessage) -> Self {
        let mut link = Self {
            name: String::new(),
            up: message.header.flags.contains(LinkFlags::Up | LinkFlags::Running),
            mtu: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.mtu = Some(*mtu),
                _ => {}
            }
        }
        link
    }
}

fn joined(links: &[RouteNetlinkMessage], addresses: &[RouteNetlinkMessage]) -> Vec<LocalAddress> {
    let links: HashMap<u32, Link> = links
        .iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) => Some((link.header.index, Link::of(link))),
            _ => None,
        })
        .collect();
    let address = |message: &RouteNetlinkMessage| {
        let RouteNetlinkMessage::NewAddress(message) = message else { return None };
        let ip = local(message)?;
        let index = message.header.index;
        let unknown = || LocalAddress { interface: format!("interface {index}"), ..LocalAddress::from(ip) };
        let known =
            |link: &Link| LocalAddress { ip, interface: link.name.clone(), up: link.up, mtu: link.mtu };
        Some(links.get(&index).map_or_else(unknown, known))
    };
    let all: BTreeSet<_> = addresses.iter().filter_map(address).collect();
    all.into_iter().collect()
}

/// Finds this machine's own address. On a link with a peer the other attribute is the peer's.
fn local(message: &AddressMessage) -> Option<IpAddr> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    find(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    })
    .or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, flags: LinkFlags, attributes: Vec<LinkAttribute>) -> RouteNetlinkMessage {
        let mut message = LinkMessage::default();
        (message.header.index, message.header.flags, message.attributes) = (index, flags, attributes);
        RouteNetlinkMessage::NewLink(message)
    }

    fn address(index: u32, attributes: Vec<AddressAttribute>) -> RouteNetlinkMessage {
        let mut message = AddressMessage::default();
        (message.header.index, message.attributes) = (index, attributes);
        RouteNetlinkMessage::NewAddress(message)
    }

    fn bytes(payload: NetlinkPayload<RouteNetlinkMessage>, flags: u16) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
        message.serialize(&mut bytes);
        bytes
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn local_addresses_holds_loopback() {
        let all = local_addresses().unwrap();
        let found = all.iter().find(|address| address.ip == ip("127.0.0.1")).unwrap();
        assert_eq!((found.interface.as_str(), found.up), ("lo", true));
        assert!(found.mtu > Some(1280), "{found:?}");
    }

    #[test]
    fn joined_says_of_each_address_its_interface() {
        let named = |name: &str, mtu| vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::Mtu(mtu)];
        let links = [
            link(2, LinkFlags::Up | LinkFlags::Running, named("eth1", 9000)),
            link(3, LinkFlags::Up, named("ppp0", 1492)),
        ];
        let addresses = [
            address(
                3,
                vec![AddressAttribute::Address(ip("10.0.0.2")), AddressAttribute::Local(ip("10.0.0.1"))],
            ),
            address(2, vec![AddressAttribute::Address(ip("fd00::1"))]),
            address(9, vec![AddressAttribute::Address(ip("10.0.0.9"))]),
            address(2, vec![]),
        ];
        let said = |ip_text: &str, interface: &str, up, mtu| LocalAddress {
            ip: ip(ip_text),
            interface: interface.to_owned(),
            up,
            mtu,
        };
        let wanted = [
            said("10.0.0.1", "ppp0", false, Some(1492)),
            said("10.0.0.9", "interface 9", true, None),
            said("fd00::1", "eth1", true, Some(9000)),
        ];
        assert_eq!(joined(&links, &addresses), wanted);
    }

    #[test]
    fn listed_ends_with_done_and_notices_what_was_interrupted() {
        let one = link(2, LinkFlags::Up, vec![LinkAttribute::IfName("eth1".to_owned())]);
        let done = || NetlinkPayload::Done(netlink_packet_core::DoneMessage::default());
        for flags in [0, NLM_F_DUMP_INTR] {
            let mut listed = Listed::default();
            assert_eq!(listed.take(&bytes(NetlinkPayload::InnerMessage(one.clone()), flags)), Ok(false));
            let rest = [bytes(NetlinkPayload::InnerMessage(one.clone()), 0), bytes(done(), 0)].concat();
            assert_eq!(listed.take(&rest), Ok(true));
            assert_eq!((listed.messages.len(), listed.interrupted), (2, flags != 0));
        }
    }

    #[test]
    fn listed_refuses_what_is_no_list() {
        let whole = bytes(NetlinkPayload::InnerMessage(address(2, vec![])), 0);
        for wrong in [&whole[..10], &[0; 16], &[255; 32], &whole[..whole.len() - 1]] {
            assert_eq!(Listed::default().take(wrong), Err(Errno::EBADMSG), "{wrong:?}");
        }
        let mut short = whole;
        short[0] = 17;
        assert_eq!(Listed::default().take(&short), Err(Errno::EBADMSG));
        // The name of a link must end within its attribute: this link is left out, the list goes
        // on.
        let mut odd =
            bytes(NetlinkPayload::InnerMessage(link(2, LinkFlags::Up, vec![LinkAttribute::Mtu(1500)])), 0);
        let cut = u16::try_from(odd.len()).unwrap();
        odd[32..34].copy_from_slice(&cut.to_ne_bytes());
        let mut listed = Listed::default();
        assert_eq!((listed.take(&odd), listed.messages.len()), (Ok(false), 0));
    }

    #[test]
    fn listed_gives_the_kernels_refusal() {
        let refusal = || netlink_packet_core::ErrorMessage::default();
        let mut error = refusal();
        error.code = std::num::NonZeroI32::new(-(Errno::EPERM as i32));
        error.header = vec![0; HEAD_BYTES];
        assert_eq!(Listed::default().take(&bytes(NetlinkPayload::Error(error), 0)), Err(Errno::EPERM));
    }
}
