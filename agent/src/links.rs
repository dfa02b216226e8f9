//! The addresses of this machine and their links, followed by rtnetlink: a change is known when the kernel tells it, and until then a
//! question costs no system call. A notice means "list them again" and nothing else, so that one which is lost or not understood costs
//! a list and no truth.
//!
//! What must never happen here: an address that is gone because it could not be listed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mooring_host::{LocalAddress, local_addresses};
use rtnetlink::MulticastGroup;
use tokio::sync::Notify;
use tokio_stream::StreamExt;

/// Notices of changes of links and addresses.
const GROUPS: [MulticastGroup; 3] =
    [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];

/// How long to wait with another try when the kernel's notices cannot be had.
const AGAIN: Duration = Duration::from_secs(10);

/// The addresses as they were listed last, and whether they still stand.
#[derive(Default)]
pub(crate) struct Links {
    last: Mutex<Vec<LocalAddress>>,
    /// Notices come, and none has come since the list was made.
    stands: AtomicBool,
    followed: AtomicBool,
    changed: Arc<Notify>,
}

impl Links {
    /// The addresses as they are now. Where they cannot be listed, they are as they were.
    pub(crate) fn now(&self) -> Vec<LocalAddress> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the list is made: a notice that comes meanwhile makes the next question list again.
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

    /// Notified when something may have changed.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    fn outdate(&self) {
        self.stands.store(false, Ordering::Release);
        self.changed.notify_one();
    }

    /// Follows them for ever.
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

    /// Follows them until the socket ends.
    async fn follow_once(&self) -> std::io::Result<()> {
        let (connection, handle, mut notices) = rtnetlink::new_multicast_connection(&GROUPS)?;
        // Its end is the end of what it sends.
        let connection = tokio::spawn(connection);
        self.followed.store(true, Ordering::Release);
        self.outdate();
        // Notices that were lost come as one of their own (`Overrun`).
        while notices.next().await.is_some() {
            self.outdate();
        }
        drop(handle);
        connection.abort();
        Err(std::io::Error::other("the kernel's notices have ended"))
    }
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
        // Without notices nothing stands.
        following.abort();
    }
}
