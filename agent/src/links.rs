//! Addresses of this machine and their links, followed over rtnetlink. The kernel announces each
//! change; between changes a question costs no system call.
//!
//! A notice means "list them again" and nothing else. So one that is lost or not understood costs a
//! list and no truth.
//!
//! What must never happen here: an address that is gone because it could not be listed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mooring_host::{LocalAddress, local_addresses};
use mooring_model::{Cure, Portal, Problem};
use rtnetlink::MulticastGroup;
use tokio::sync::Notify;
use tokio_stream::StreamExt;

/// Multicast groups with the notices of changes of links and addresses.
const GROUPS: [MulticastGroup; 3] =
    [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];

/// Time until the next try when the kernel's notices are not available.
const AGAIN: Duration = Duration::from_secs(10);

/// The addresses of the last list, and whether they are still current.
#[derive(Default)]
pub(crate) struct Links {
    last: Mutex<Vec<LocalAddress>>,
    /// `true` if notices come, and none has come since the list was made.
    stands: AtomicBool,
    followed: AtomicBool,
    changed: Arc<Notify>,
}

impl Links {
    /// Returns the present addresses. If they cannot be listed, returns the last ones.
    pub(crate) fn now(&self) -> Vec<LocalAddress> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Set before the list is made: a notice that comes meanwhile makes the next question list
        // again.
        if !self.stands.swap(self.followed.load(Ordering::Acquire), Ordering::AcqRel) {
            match local_addresses() {
                Ok(now) => *last = now,
                Err(errno) => {
                    self.stands.store(false, Ordering::Release);
                    tracing::warn!(%errno, "cannot list the addresses of this host: they are taken to be as before");
                }
            }
        }
        last.clone()
    }

    /// Returns the notifier of possible changes.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    fn outdate(&self) {
        self.stands.store(false, Ordering::Release);
        self.changed.notify_one();
    }

    /// Follows the notices for ever.
    pub(crate) async fn follow(self: Arc<Self>) {
        loop {
            if let Err(error) = self.follow_once().await {
                tracing::warn!(%error, "cannot follow links and addresses: they are listed at each question");
            }
            self.followed.store(false, Ordering::Release);
            self.outdate();
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Follows the notices until the socket ends.
    async fn follow_once(&self) -> std::io::Result<()> {
        let (connection, handle, mut notices) = rtnetlink::new_multicast_connection(&GROUPS)?;
        // When this task ends, the stream of notices ends.
        let connection = tokio::spawn(connection);
        self.followed.store(true, Ordering::Release);
        self.outdate();
        // Lost notices are announced by one of their own (`Overrun`).
        while notices.next().await.is_some() {
            self.outdate();
        }
        drop(handle);
        connection.abort();
        Err(std::io::Error::other("the kernel's notices have ended"))
    }
}

/// Says whether another machine can reach this address as it is written.
pub(crate) fn reaches(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// Lists the addresses that other hosts may reach, for an error's text.
pub(crate) fn listed(here: &[LocalAddress]) -> String {
    let list: BTreeSet<_> = here.iter().map(|address| address.ip).filter(|ip| reaches(*ip)).collect();
    let list: Vec<_> = list.iter().map(IpAddr::to_string).collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}

/// The reason why nobody reaches a portal. `None` if its address is here and the link is up.
pub(crate) fn trouble(portal: &Portal, here: &[LocalAddress]) -> Option<Problem> {
    let ip = portal.address();
    let text = match here.iter().find(|address| address.ip == ip) {
        None => format!(
            "this host does not have the address {ip} (it has {}): the portal waits for it; bring its interface up, or \
             correct the configuration",
            listed(here)
        ),
        Some(address) if !address.up => format!(
            "the link of {} is down, which has the address {ip}: see `ip link show {0}`",
            address.interface
        ),
        Some(_) => return None,
    };
    Some(Problem { object: format!("portal {portal}"), text, cure: Cure::Operator })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback(addresses: &[LocalAddress]) -> bool {
        addresses.iter().any(|address| address.ip.is_loopback() && address.interface == "lo")
    }

    #[test]
    fn links_are_listed_at_each_question_when_nobody_follows_them() {
        let links = Links::default();
        assert!(loopback(&links.now()));
        links.last.lock().unwrap().clear();
        assert!(loopback(&links.now()), "listed anew");
    }

    #[tokio::test]
    async fn links_are_listed_once_until_the_kernel_tells_of_a_change() {
        let links = Arc::new(Links::default());
        let changed = links.changed();
        let following = tokio::spawn(Arc::clone(&links).follow());
        changed.notified().await;
        assert!(loopback(&links.now()));
        links.last.lock().unwrap().clear();
        assert!(links.now().is_empty(), "what was listed stands");
        links.outdate();
        changed.notified().await;
        assert!(loopback(&links.now()));
        // Without notices no list stays current.
        following.abort();
    }

    fn address(ip: &str, up: bool) -> LocalAddress {
        LocalAddress { ip: ip.parse().unwrap(), interface: "eth1".to_owned(), up, mtu: None }
    }

    #[test]
    fn what_keeps_hosts_from_a_portal() {
        let here = [
            address("10.0.0.1", true),
            address("10.0.1.1", false),
            address("127.0.0.1", true),
            address("fd00::1", true),
            address("fe80::1", true),
        ];
        let of = |portal: &str| trouble(&portal.parse().unwrap(), &here).map(|problem| problem.text);
        assert_eq!((of("10.0.0.1"), of("[fd00::1]")), (None, None));
        let down = of("10.0.1.1").unwrap();
        assert_eq!(down, "the link of eth1 is down, which has the address 10.0.1.1: see `ip link show eth1`");
        let missing = of("[fd00::2]").unwrap();
        let says = "does not have the address fd00::2 (it has 10.0.0.1, 10.0.1.1, fd00::1): the portal waits";
        assert!(missing.contains(says), "{missing}");
        assert!(trouble(&"10.0.0.9".parse().unwrap(), &[]).unwrap().text.contains("(it has none)"));
    }
}
