//! Limits on strangers: a number of places in all, and from one address.
//!
//! A connection, or a question about a token, costs something before its sender is known.
//!
//! What must never happen here: more taken than there are places; an address that keeps all others
//! out.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places that are counted together. Clones count as one.
#[derive(Debug, Clone)]
pub struct Places(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: usize,
    of_one: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    addresses: HashMap<IpAddr, usize>,
}

/// A taken place; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    address: Option<IpAddr>,
}

/// Returns the key under which an address is counted. For IPv6 that is the network, in which a host
/// has any number of addresses.
fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Places {
    /// Makes `all` places, of which one address may take `of_one`.
    pub fn new(all: usize, of_one: usize) -> Self {
        Self(Arc::new(Inner { all, of_one, taken: Mutex::default() }))
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place. `None` as the address: it counts for no address. `None` as the answer: no
    /// place is left.
    pub fn take(&self, address: Option<IpAddr>) -> Option<Place> {
        let address = address.map(counted);
        let mut taken = self.taken();
        let of_one = address.and_then(|address| taken.addresses.get(&address).copied()).unwrap_or(0);
        if taken.all >= self.0.all || of_one >= self.0.of_one {
            return None;
        }
        taken.all += 1;
        if let Some(address) = address {
            taken.addresses.insert(address, of_one + 1);
        }
        Some(Place { places: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        let Some(address) = self.address else { return };
        if let Some(count) = taken.addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                taken.addresses.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Places, address: &str) -> Option<Place> {
        places.take(Some(address.parse().unwrap()))
    }

    #[test]
    fn one_address_leaves_places_for_others() {
        let places = Places::new(5, 2);
        let mut held: Vec<_> = [take(&places, "192.0.2.1"), take(&places, "::ffff:192.0.2.1")].into();
        assert!(held.iter().all(Option::is_some));
        assert!(take(&places, "192.0.2.1").is_none(), "one address, however it is written");
        held.extend([take(&places, "2001:db8::1"), take(&places, "2001:db8::2")]);
        assert!(take(&places, "2001:db8::3").is_none(), "one network");
        held.push(take(&places, "2001:db8:0:1::1"));
        assert!(held.iter().all(Option::is_some));
        assert!(take(&places, "192.0.2.2").is_none() && places.take(None).is_none(), "all are taken");
        held.clear();
        assert!(
            places.taken().all == 0 && places.taken().addresses.is_empty(),
            "nothing is kept of who has gone"
        );
        let uncounted: Vec<_> = (0..5).map(|_| places.take(None)).collect();
        assert!(uncounted.iter().all(Option::is_some) && places.take(None).is_none());
    }
}
