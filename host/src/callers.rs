//! Follows TCP connections to ports of this machine: which have come, and which have gone.
//!
//! The kernel reports no connection that it accepted itself, as LIO's are. It counts opened and
//! existing connections, for all ports together, and lists the existing ones. The counts are one
//! short file. The list costs more with every connection of the machine; it is read only when the
//! counts have moved.
//!
//! What must never happen here: a list taken for one moment's truth. It is read again until it is
//! equal twice.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use procfs::net::{TcpNetEntry, TcpState};
use procfs::{ProcError, ProcResult};

/// Changes between two looks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallerChanges {
    /// Peers of new connections.
    pub come: BTreeSet<IpAddr>,
    /// Peers of connections that have ended. A peer with several connections may be in both sets.
    pub gone: BTreeSet<IpAddr>,
    /// Number of existing connections.
    pub standing: usize,
}

/// Follows the connections to some ports.
pub trait Callers: Debug + Send + Sync {
    /// Returns the changes after the last call, which may have been an error. At the first call all
    /// existing connections are new. `ports` is called only if the connections are listed. After an
    /// error another try is worth it.
    fn changes(&self, ports: &dyn Fn() -> BTreeSet<u16>) -> io::Result<CallerChanges>;
}

/// A connection: our address and the peer's.
pub(crate) type Connection = (SocketAddr, SocketAddr);

/// Connections at the last look.
#[derive(Debug, Default)]
pub(crate) struct Standing(BTreeSet<Connection>);

impl Standing {
    /// Replaces the connections by the present ones. Returns the changes.
    pub(crate) fn becomes(&mut self, now: BTreeSet<Connection>) -> CallerChanges {
        let before = std::mem::replace(&mut self.0, now);
        // An IPv4 peer of a socket for both families counts as one.
        let others = |all: &BTreeSet<Connection>, but: &BTreeSet<Connection>| {
            all.difference(but).map(|(_, other)| other.ip().to_canonical()).collect()
        };
        CallerChanges {
            come: others(&self.0, &before),
            gone: others(&before, &self.0),
            standing: self.0.len(),
        }
    }
}

/// File of the kernel's TCP counts.
const COUNTS: &str = "/proc/net/snmp";

/// First size of the buffer for that file, in bytes. As a rule the file fits: it has half of that,
/// as of 6.12.
const COUNTS_BYTES: usize = 4096;

/// Names of the counts: opened by others, opened by this machine, and existing. Every connection
/// that comes or goes moves one of them.
const NUMBERS: [&str; 3] = ["PassiveOpens", "ActiveOpens", "CurrEstab"];

type Numbers = [u64; NUMBERS.len()];

/// Connections of this process's network namespace, from `/proc/net` (`snmp`, `tcp` and `tcp6`;
/// proc_pid_net(5)).
#[derive(Debug, Default)]
pub struct KernelCallers(Mutex<Followed>);

#[derive(Debug, Default)]
struct Followed {
    standing: Standing,
    /// Counts before the last list. `None`: the list has to be read again.
    numbers: Option<Numbers>,
    /// The file of the kernel's counts. It stays open: finding it costs more than reading it, and
    /// it is read each second.
    counts: Option<File>,
}

impl Followed {
    /// Reads the kernel's counts.
    fn counts(&mut self) -> io::Result<String> {
        let file = match self.counts.take() {
            Some(open) => open,
            None => File::open(COUNTS)?,
        };
        // The file has no size to ask for.
        let (mut text, mut read) = (vec![0; COUNTS_BYTES], 0);
        loop {
            match file.read_at(&mut text[read..], u64::try_from(read).map_err(io::Error::other)?)? {
                0 => break,
                more => read += more,
            }
            if read == text.len() {
                text.resize(read * 2, 0);
            }
        }
        text.truncate(read);
        // Only a readable file is kept.
        self.counts = Some(file);
        String::from_utf8(text).map_err(io::Error::other)
    }
}

impl Callers for KernelCallers {
    fn changes(&self, ports: &dyn Fn() -> BTreeSet<u16>) -> io::Result<CallerChanges> {
        let mut followed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = followed.numbers.take();
        let numbers = numbers(&followed.counts()?).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{COUNTS} has no {NUMBERS:?}"))
        })?;
        if before == Some(numbers) {
            followed.numbers = before;
            return Ok(CallerChanges { standing: followed.standing.0.len(), ..CallerChanges::default() });
        }
        let ports = ports();
        let callers = followed.standing.becomes(established(&ports).map_err(io::Error::other)?);
        // A connection that comes or goes during the reading may be missing in a list, or be in it
        // twice.
        followed.numbers = (callers.come.is_empty() && callers.gone.is_empty()).then_some(numbers);
        Ok(callers)
    }
}

/// Parses the two lines about TCP, names and values. This runs each second, and nobody here needs
/// the other hundred numbers of the file.
fn numbers(counts: &str) -> Option<Numbers> {
    let mut lines = counts.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut numbers = [None; NUMBERS.len()];
    for (name, value) in names.split_ascii_whitespace().zip(values.split_ascii_whitespace()) {
        if let Some(at) = NUMBERS.iter().position(|wanted| *wanted == name) {
            numbers[at] = value.parse().ok();
        }
    }
    let [Some(passive), Some(active), Some(standing)] = numbers else { return None };
    Some([passive, active, standing])
}

/// Returns `true` for a test of a portal by this machine itself: from loopback to another of its
/// own addresses ([`dial_here`](crate::dial_here)). That is no host.
fn is_knock(own: SocketAddr, other: SocketAddr) -> bool {
    other.ip().to_canonical().is_loopback() && !own.ip().to_canonical().is_loopback()
}

fn established(ports: &BTreeSet<u16>) -> ProcResult<BTreeSet<Connection>> {
    // A kernel without IPv6 has no such list.
    let v6 = match procfs::net::tcp6() {
        Err(ProcError::NotFound(_)) => Vec::new(),
        other => other?,
    };
    let ours = |entry: &TcpNetEntry| {
        entry.state == TcpState::Established
            && ports.contains(&entry.local_address.port())
            && !is_knock(entry.local_address, entry.remote_address)
    };
    let all = procfs::net::tcp()?.into_iter().chain(v6);
    Ok(all.filter(ours).map(|entry| (entry.local_address, entry.remote_address)).collect())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    fn connection(port: u16, ip: impl Into<IpAddr>) -> Connection {
        ((Ipv4Addr::LOCALHOST, 3260).into(), (ip.into(), port).into())
    }

    #[test]
    fn who_comes_and_who_goes_is_told_once() {
        let (one, two) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mut standing = Standing::default();
        let first = standing.becomes([connection(1, one), connection(2, one)].into());
        assert_eq!((first.come, first.gone, first.standing), ([one.into()].into(), BTreeSet::new(), 2));
        // One of them begins anew, the other one comes, by a socket of both families.
        let mapped = connection(4, two.to_ipv6_mapped());
        let next = standing.becomes([connection(2, one), connection(3, one), mapped].into());
        assert_eq!((next.come, next.gone), ([one.into(), two.into()].into(), [one.into()].into()));
        let same = standing.becomes([connection(2, one), connection(3, one), mapped].into());
        assert_eq!(same, CallerChanges { standing: 3, ..CallerChanges::default() });
    }

    #[test]
    fn who_knocks_from_loopback_is_no_caller() {
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 3260);
        assert!(is_knock(at("10.0.0.1"), at("127.0.0.1")) && is_knock(at("fd00::1"), at("::1")));
        assert!(is_knock(at("::ffff:10.0.0.1"), at("::ffff:127.0.0.1")));
        assert!(!is_knock(at("10.0.0.1"), at("10.0.0.1")), "a host that attaches what it serves");
        assert!(!is_knock(at("127.0.0.1"), at("127.0.0.1")), "a portal on loopback");
        assert!(!is_knock(at("10.0.0.1"), at("10.0.0.2")));
    }

    #[test]
    fn the_counts_are_found_by_their_names() {
        let text = "Ip: A B\nIp: 1 2\nTcp: RtoMin ActiveOpens PassiveOpens CurrEstab\nTcp: -1 5 7 3\nUdp: CurrEstab\nUdp: 9\n";
        assert_eq!(numbers(text), Some([7, 5, 3]));
        for broken in ["", "Tcp: ActiveOpens\n", "Tcp: ActiveOpens PassiveOpens CurrEstab\nTcp: 1 2\n"] {
            assert_eq!(numbers(broken), None, "{broken:?}");
        }
        assert_eq!(numbers(&text.replace("5 7", "x 7")), None);
        assert!(numbers(&std::fs::read_to_string(COUNTS).unwrap()).is_some());
    }

    /// Looks until something has changed.
    fn change(of: &KernelCallers, port: u16) -> CallerChanges {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let callers = of.changes(&|| [port].into()).unwrap();
            if !callers.come.is_empty() || !callers.gone.is_empty() {
                return callers;
            }
            assert!(Instant::now() < until, "nobody has come or gone");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn connections_to_a_port_are_followed_and_others_are_not() {
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let Ok(listener) = TcpListener::bind((ip, 0)) else { continue };
            let (other, port) = (TcpListener::bind((ip, 0)).unwrap(), listener.local_addr().unwrap().port());
            let connections = KernelCallers::default();
            assert_eq!(connections.changes(&|| [port].into()).unwrap(), CallerChanges::default());
            let _other = TcpStream::connect(other.local_addr().unwrap()).unwrap();
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let accepted = listener.accept().unwrap();
            let come = change(&connections, port);
            assert_eq!(come, CallerChanges { come: [ip].into(), standing: 1, ..CallerChanges::default() });
            drop((one, accepted));
            assert_eq!(
                change(&connections, port),
                CallerChanges { gone: [ip].into(), ..CallerChanges::default() }
            );
        }
    }
}
