//! Index of enrolled agents: finds an agent by its id or its initiator name, in the same time
//! however many agents there are.
//!
//! What must never happen here: an agent that is not found by its present id or name, or is found
//! by a former one; a lock of an agent's state taken while this index is locked.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use mooring_model::{AgentId, Iqn};

/// Places of agents in the registry's order, by a key that agents report. A key should have one
/// agent. An agent that is dialled under two names, or whose machine was cloned, shares another's
/// key until it is refused.
#[derive(Debug)]
pub(super) struct Places<K>(HashMap<K, BTreeSet<usize>>);

impl<K> Default for Places<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq + Clone> Places<K> {
    /// Returns the lowest place that has this key. `None`: no agent has it.
    pub(super) fn first<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)?.first().copied()
    }

    /// Moves one place from its old key to its new one. `None`: no key.
    pub(super) fn changed(&mut self, place: usize, old: Option<&K>, new: Option<&K>) {
        if old == new {
            return;
        }
        if let Some(places) = old.and_then(|old| self.0.get_mut(old)) {
            places.remove(&place);
        }
        if let Some(old) = old.filter(|old| self.0.get(old).is_some_and(BTreeSet::is_empty)) {
            self.0.remove(old);
        }
        if let Some(new) = new {
            self.0.entry(new.clone()).or_default().insert(place);
        }
    }
}

/// Identities that agents report of themselves.
#[derive(Debug, Default)]
pub(super) struct Roll {
    pub(super) ids: Places<AgentId>,
    pub(super) initiators: Places<Iqn>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// After any sequence of changes, a look-up finds what a search through all agents would.
        #[test]
        fn as_a_look_at_all(changes in prop::collection::vec((0..5_usize, prop::option::of(0..4_u8)), 0..40)) {
            let mut places = Places::default();
            let mut all: [Option<u8>; 5] = [None; 5];
            for (place, new) in changes {
                places.changed(place, all[place].as_ref(), new.as_ref());
                all[place] = new;
                for key in 0..4 {
                    prop_assert_eq!(places.first(&key), all.iter().position(|has| *has == Some(key)));
                }
            }
            prop_assert_eq!(places.0.len(), all.iter().flatten().collect::<BTreeSet<_>>().len());
        }
    }
}
