//! The addresses of this machine.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use nix::errno::Errno;
use nix::sys::socket::SockaddrIn;

/// The IPv4 addresses of this machine's interfaces, loopback included, in order.
pub fn local_addresses() -> Result<Vec<Ipv4Addr>, Errno> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    let addresses: BTreeSet<_> =
        interfaces.filter_map(|interface| interface.address?.as_sockaddr_in().map(SockaddrIn::ip)).collect();
    Ok(addresses.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_an_address_of_this_machine() {
        assert!(local_addresses().unwrap().contains(&Ipv4Addr::LOCALHOST));
    }
}
