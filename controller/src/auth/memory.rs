//! A memory of verified tokens: keyed by a MAC of the token, so that memory holds no token, and
//! nobody can choose tokens whose keys collide.
//!
//! What must never happen here: growth without a bound; an answer after its end.

use std::collections::HashMap;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::time::Instant;

/// The key that stands for a token.
pub(super) type Print = [u8; 32];

/// Makes prints with a key that only this process has.
#[derive(Clone)]
pub(super) struct Printer(Hmac<Sha256>);

impl fmt::Debug for Printer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Printer")
    }
}

impl Printer {
    pub(super) fn new() -> Result<Self, getrandom::Error> {
        let mut key = [0; 64];
        getrandom::fill(&mut key)?;
        Ok(Self(Hmac::new(&key.into())))
    }

    /// The print of a token. `kind` separates different questions about one token.
    pub(super) fn print(&self, kind: u8, token: &[u8]) -> Print {
        self.0.clone().chain_update([kind]).chain_update(token).finalize().into_bytes().into()
    }
}

/// A bounded memory whose entries expire. When its young half is full, it forgets the old half, so
/// it never searches for an entry to drop.
#[derive(Debug)]
pub(super) struct Memory<V> {
    half: usize,
    young: HashMap<Print, (Instant, V)>,
    old: HashMap<Print, (Instant, V)>,
}

impl<V: Clone> Memory<V> {
    pub(super) fn new(most: usize) -> Self {
        Self { half: (most / 2).max(1), young: HashMap::new(), old: HashMap::new() }
    }

    /// The value of a print; `None` if it is unknown or has expired.
    pub(super) fn get(&self, print: &Print, now: Instant) -> Option<V> {
        let (ends, value) = self.young.get(print).or_else(|| self.old.get(print))?;
        (now < *ends).then(|| value.clone())
    }

    pub(super) fn put(&mut self, print: Print, value: V, ends: Instant) {
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(print, (ends, value));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn prints_differ_by_key_kind_and_token() {
        let (one, other) = (Printer::new().unwrap(), Printer::new().unwrap());
        assert_eq!(one.print(0, b"t"), one.clone().print(0, b"t"));
        let all = [one.print(0, b"t"), other.print(0, b"t"), one.print(1, b"t"), one.print(0, b"u")];
        for (index, print) in all.iter().enumerate() {
            assert!(!all[..index].contains(print));
        }
        assert_eq!(format!("{one:?}"), "Printer");
    }

    #[test]
    fn it_is_bounded_and_ends() {
        let mut memory = Memory::new(10);
        let print = |number: usize| {
            let mut print = [0; 32];
            print[..8].copy_from_slice(&number.to_be_bytes());
            print
        };
        let now = Instant::now();
        let ends = now + Duration::from_secs(5);
        for number in 0..1_000 {
            memory.put(print(number), number, ends);
            assert!(memory.young.len() + memory.old.len() <= 10);
            assert_eq!(memory.get(&print(number), now), Some(number));
        }
        // The last half is never dropped for lack of room.
        assert!((995..1_000).all(|number| memory.get(&print(number), now).is_some()));
        assert_eq!(memory.get(&print(1), now), None);
        assert!(memory.get(&print(999), ends.checked_sub(Duration::from_nanos(1)).unwrap()).is_some());
        assert_eq!(memory.get(&print(999), ends), None);
    }
}
