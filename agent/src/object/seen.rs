//! Observations, each with the moment at which the look that made it began.
//!
//! A look takes time: something may happen between its read and its end, and then it has read what
//! is no longer true. So a memory keeps an observation only if nothing that can falsify it has
//! happened since its look began.
//!
//! What must never happen here: an observation that outlives, or is kept after, what can falsify
//! it.

use std::ops::Deref;

/// A moment in the life of one object: counts the looks that have begun, and what has happened that
/// can falsify one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Goes on to the next moment, in which a look begins or something happens. Returns it.
    pub(crate) fn advance(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// An observation, and the moment at which the look that made it began.
#[derive(Debug, Clone)]
pub(crate) struct Seen<T> {
    value: T,
    began: Moment,
}

impl<T> Seen<T> {
    /// Makes the observation of a look that began at this moment.
    pub(crate) fn new(began: Moment, value: T) -> Self {
        Self { value, began }
    }

    /// The moment at which the look began.
    pub(crate) fn began(&self) -> Moment {
        self.began
    }

    /// The observation without its moment.
    pub(crate) fn into_value(self) -> T {
        self.value
    }

    /// Derives another observation from this one, with the same moment. `None` if nothing follows
    /// from this one.
    pub(crate) fn and_then<U>(self, follows: impl FnOnce(T) -> Option<U>) -> Option<Seen<U>> {
        follows(self.value).map(|value| Seen { value, began: self.began })
    }
}

impl<T> Deref for Seen<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// The memory of one observation.
#[derive(Debug)]
pub(crate) struct Memory<T> {
    seen: Option<Seen<T>>,
    /// The last moment in which something happened that can falsify the observation.
    falsified: Moment,
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self { seen: None, falsified: Moment::default() }
    }
}

impl<T> Memory<T> {
    /// Says whether nothing that can falsify the observation has happened since a look began.
    pub(crate) fn holds_since(&self, began: Moment) -> bool {
        self.falsified <= began
    }

    /// Keeps an observation. `false`, and nothing changes, if something that can falsify it has
    /// happened since its look began, or if the observation of a later look is kept.
    pub(crate) fn learn(&mut self, seen: Seen<T>) -> bool {
        let newer = self.seen.as_ref().is_none_or(|kept| kept.began <= seen.began);
        let holds = newer && self.holds_since(seen.began);
        if holds {
            self.seen = Some(seen);
        }
        holds
    }

    /// Forgets the observation and refuses every look at work: in this moment something happened
    /// that can falsify it.
    pub(crate) fn forget(&mut self, at: Moment) {
        self.seen = None;
        self.falsified = at;
    }

    /// Forgets the observation because a look that began at this moment has seen the opposite,
    /// unless the observation of a later look is kept. From now on refuses looks that began before
    /// this moment.
    pub(crate) fn unlearn(&mut self, began: Moment) {
        self.seen.take_if(|kept| kept.began <= began);
        self.falsified = self.falsified.max(began);
    }

    /// Refuses every look at work. The observation stays: what happens in this moment does not make
    /// it untrue.
    pub(crate) fn refuse_looks(&mut self, at: Moment) {
        self.falsified = at;
    }

    /// The observation, and when its look began. `None` if there is none that holds.
    pub(crate) fn seen(&self) -> Option<&Seen<T>> {
        self.seen.as_ref()
    }

    /// The observation. `None` if there is none that holds.
    pub(crate) fn get(&self) -> Option<&T> {
        self.seen.as_deref()
    }

    /// The observation, to be changed by what is known to have happened since. Looks at work may
    /// not have read that: whoever changes it refuses them, unless they lose nothing by it.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.seen.as_mut().map(|seen| &mut seen.value)
    }

    /// Takes the observation, to put back what follows from it.
    pub(crate) fn take(&mut self) -> Option<Seen<T>> {
        self.seen.take()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Event {
        /// A look begins.
        Begin,
        /// A look reads the truth.
        Read(usize),
        /// A look ends, and what it has read is learnt.
        End(usize),
        /// The truth changes, and its changer tells the memory in the same moment.
        Change,
        /// Something happens that could have changed the truth, but has not.
        Doubt,
        /// The observation is taken, follows a known change of the truth, and is put back.
        Follow,
    }

    fn event() -> impl Strategy<Value = Event> {
        let which = 0_usize..3;
        prop_oneof![
            3 => Just(Event::Begin),
            4 => which.clone().prop_map(Event::Read),
            4 => which.prop_map(Event::End),
            2 => Just(Event::Change),
            1 => Just(Event::Doubt),
            1 => Just(Event::Follow),
        ]
    }

    /// A look at work.
    struct Look {
        began: Moment,
        read: Option<u32>,
    }

    proptest! {
        /// Law: for any interleaving of looks and of what can falsify them, the observation is what
        /// a fresh look would show, or there is none.
        #[test]
        fn an_observation_is_the_truth_or_is_refused(events in prop::collection::vec(event(), 1..80)) {
            let (mut now, mut memory) = (Moment::default(), Memory::default());
            let (mut truth, mut looks) = (0_u32, Vec::new());
            for event in events {
                match event {
                    Event::Begin => looks.push(Look { began: now.advance(), read: None }),
                    Event::Read(which) => {
                        if let Some(look) = looks.get_mut(which) {
                            look.read = Some(truth);
                        }
                    }
                    Event::End(which) if which < looks.len() => {
                        let look = looks.remove(which);
                        // Every fifth value stands for a look that shows the opposite.
                        if look.read.is_some_and(|read| read % 5 == 4) {
                            memory.unlearn(look.began);
                        } else if let Some(read) = look.read {
                            let learnt = memory.learn(Seen::new(look.began, read));
                            prop_assert!(!learnt || read == truth, "{read} for {truth}");
                        }
                    }
                    Event::End(_) => {}
                    Event::Change => {
                        truth += 1;
                        memory.forget(now.advance());
                    }
                    Event::Doubt => memory.forget(now.advance()),
                    Event::Follow => {
                        let taken = memory.take();
                        truth += 1;
                        // Looks at work have not seen the change.
                        looks.clear();
                        if let Some(seen) = taken.and_then(|seen| seen.and_then(|value| value.checked_add(1))) {
                            prop_assert!(memory.learn(seen), "nothing has happened to it");
                        }
                    }
                }
                prop_assert!(memory.get().is_none_or(|value| *value == truth), "{event:?}");
            }
        }
    }

    #[test]
    fn of_two_looks_the_one_that_began_later_counts() {
        let mut now = Moment::default();
        let looks = [(); 4].map(|()| now.advance());
        for last in 0..looks.len() {
            // No event tells that the observation is false: only a look finds it out.
            let mut memory = Memory::default();
            memory.learn(Seen::new(looks[1], ()));
            memory.unlearn(looks[last]);
            assert_eq!(memory.get().is_some(), last < 1, "a later look has seen the opposite");
            for (at, began) in looks.into_iter().enumerate() {
                memory.learn(Seen::new(began, ()));
                let holds = memory.seen().is_some_and(|seen| seen.began() == began);
                assert_eq!(holds, at >= last.max(usize::from(last < 1)), "{at} behind {last}");
            }
        }
        let mut memory = Memory::default();
        memory.learn(Seen::new(looks[1], ()));
        memory.refuse_looks(looks[3]);
        assert!(!memory.learn(Seen::new(looks[2], ())) && memory.get().is_some());
    }

    #[test]
    fn a_look_that_nothing_happened_to_is_kept() {
        // The control of the law: a memory that refuses everything would satisfy the law, too.
        let (mut now, mut memory) = (Moment::default(), Memory::default());
        let early = now;
        memory.forget(now.advance());
        let (late, other) = (now, now);
        assert!(memory.learn(Seen::new(late, "late")));
        assert!(!memory.learn(Seen::new(early, "early")), "something happened to it");
        assert_eq!(memory.get(), Some(&"late"));
        assert!(memory.learn(Seen::new(other, "as late")), "whoever ends last has read last, or the same");
        let mut another = Moment::default();
        another.advance();
        another.advance();
        assert!(memory.learn(Seen::new(another, "later")));
        assert!(!memory.learn(Seen::new(late, "late")), "a later look is kept");
        assert_eq!(memory.get(), Some(&"later"));
    }
}
