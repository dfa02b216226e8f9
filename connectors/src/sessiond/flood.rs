//! Counts the messages that a target sends without being asked, and bounds what they cause. Pure.
//!
//! What must never happen here: a target that sets the pace of checks, of logins, or of the lines
//! of the log.

use std::time::{Duration, Instant};

/// Time over which messages are counted.
const SPAN: Duration = Duration::from_secs(1);
/// Number of messages "the LUNs have changed" in a span that are answered by a check each; more of
/// them are a flood.
pub(crate) const LUNS_CHANGED_MAX: u32 = 10;
/// Number of logins that a target may cause in a span without a pause, by an order or by the end of
/// the connection.
const ORDERS_MAX: u32 = 10;
/// Number of messages in a span that are logged.
const LINES_MAX: u32 = 10;
/// Shortest time between two logins because of a flood.
const RECONNECT_EVERY: Duration = Duration::from_mins(1);

/// Answer to a message that the LUNs have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Check the disk's identity.
    Check,
    /// Check it after a pause, together with what comes until then: the session was logged in anew
    /// a short time ago, and the flood goes on.
    Later,
    /// Log out and in: what the flood was about is known after that.
    Reconnect,
}

/// Number of messages in the present span.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    /// Begin of the span; `None`: no message has come.
    since: Option<Instant>,
    count: u32,
}

impl Window {
    /// Counts a message. Returns the number of those in its span.
    fn count(&mut self, now: Instant) -> u32 {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= SPAN) {
            *self = Self { since: Some(now), count: 0 };
        }
        self.count = self.count.saturating_add(1);
        self.count
    }
}

/// Counts of one session.
#[derive(Debug, Default)]
pub(crate) struct Flood {
    changes: Window,
    /// Time of the last login because of a flood; `None`: there was none.
    reconnected: Option<Instant>,
    orders: Window,
    lines: Window,
    /// Number of messages since the last line of the log.
    unsaid: u64,
}

impl Flood {
    /// Counts a message that the LUNs have changed, and decides.
    pub(crate) fn luns_changed(&mut self, now: Instant) -> Reaction {
        if self.changes.count(now) <= LUNS_CHANGED_MAX {
            return Reaction::Check;
        }
        if self.reconnected.is_some_and(|at| now.saturating_duration_since(at) < RECONNECT_EVERY) {
            return Reaction::Later;
        }
        self.reconnected = Some(now);
        self.changes = Window::default();
        Reaction::Reconnect
    }

    /// Counts an order to log in anew. Returns `true` if the login has to wait: there were too
    /// many.
    pub(crate) fn ordered(&mut self, now: Instant) -> bool {
        self.orders.count(now) > ORDERS_MAX
    }

    /// Counts a message for the log. Returns the number of those that were left out before it;
    /// `None`: this one is left out, too.
    pub(crate) fn line(&mut self, now: Instant) -> Option<u64> {
        if self.lines.count(now) > LINES_MAX {
            self.unsaid = self.unsaid.saturating_add(1);
            return None;
        }
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_changes_are_checked_and_a_flood_costs_one_login() {
        let now = Instant::now();
        let mut flood = Flood::default();
        let many: Vec<_> = (0..10_000).map(|_| flood.luns_changed(now)).collect();
        let of = |wanted: Reaction| many.iter().filter(|reaction| **reaction == wanted).count();
        assert_eq!(of(Reaction::Reconnect), 1);
        assert_eq!(of(Reaction::Check), 20, "ten before the login, and ten after it");
        // The control: as many messages, slowly, are no flood.
        let mut flood = Flood::default();
        for second in 0..10_000_u32 {
            assert_eq!(flood.luns_changed(now + SPAN * second), Reaction::Check);
        }
    }

    #[test]
    fn logins_that_are_ordered_wait_when_they_are_many() {
        let now = Instant::now();
        let mut flood = Flood::default();
        let waits: Vec<_> = (0..12).map(|_| flood.ordered(now)).collect();
        assert_eq!(waits.iter().position(|waits| *waits), Some(10));
        assert!(!flood.ordered(now + SPAN), "the next span");
    }

    #[test]
    fn the_log_says_what_it_left_out() {
        let now = Instant::now();
        let mut flood = Flood::default();
        let said: Vec<_> = (0..10_000).filter_map(|_| flood.line(now)).collect();
        assert_eq!(said, [0; 10]);
        assert_eq!(flood.line(now + SPAN), Some(9990));
        assert_eq!(flood.line(now + SPAN), Some(0));
    }

    proptest! {
        #[test]
        fn logins_and_checks_are_bounded(pauses in prop::collection::vec(0u64..150, 1..2000)) {
            let (mut flood, begin) = (Flood::default(), Instant::now());
            let (mut now, mut logins, mut checks) = (begin, Vec::new(), 0u64);
            for millis in pauses {
                now += Duration::from_millis(millis);
                match flood.luns_changed(now) {
                    Reaction::Reconnect => logins.push(now),
                    Reaction::Check => checks += 1,
                    Reaction::Later => {}
                }
            }
            for two in logins.windows(2) {
                prop_assert!(two[1] - two[0] >= RECONNECT_EVERY);
            }
            // A login begins a span of its own.
            let spans = (now - begin).as_secs() + 1 + logins.len() as u64;
            prop_assert!(checks <= spans * u64::from(LUNS_CHANGED_MAX));
        }
    }
}
