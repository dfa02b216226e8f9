//! Decides how a starting daemon handles each session that it finds: a pure decision from the
//! journal and the kernel's view.
//!
//! What must never happen here: a session with devices in use destroyed although it can be
//! recovered; a healthy one logged in again; one that is not ours touched.

use super::journal::EntryState;
use super::sysfs::{ConnectionAttr, KernelView, SessionAttr, TargetAttr};
use crate::wire::End;

/// Decision on one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The session is healthy: take it over, no login.
    Adopt,
    /// The session was lost: log in again on this kernel session.
    Recover,
    /// The session was never whole, or its devices are gone: destroy it, then make it anew.
    Remake,
    /// There is no session: make it.
    Make,
    /// Go on ending the session.
    End(End),
    /// The session has ended: remove the journal's file.
    Forget,
    /// The session was given up and must not exist: destroy it, keep the file.
    Cut,
    /// The session was given up and is gone: keep the file.
    Keep,
    /// The session is ours and no journal file has it: leave it, and report it.
    Orphan,
    /// The session is ours, was never whole, and no journal file has it: destroy it.
    Destroy,
    /// Do nothing.
    Nothing,
}

/// Health of the kernel's session, for this decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    /// Never logged in, or stopped for good, or without devices for ever.
    Broken,
    /// Was logged in once and can be logged in again.
    Lost,
    /// Logged in.
    Healthy,
}

fn health(view: &KernelView) -> Health {
    // The devices have been taken from the session, and an unbound session never gets any again.
    if view.targets == TargetAttr::Unbound {
        return Health::Broken;
    }
    // A session in recovery is FAILED; after the recovery time it is FREE, and only its devices
    // show that it was ever logged in.
    let lived = matches!(view.session, SessionAttr::LoggedIn | SessionAttr::Failed)
        || view.targets == TargetAttr::Scanned
        || view.devices;
    match view.connection {
        ConnectionAttr::Absent | ConnectionAttr::Down => Health::Broken,
        ConnectionAttr::Up if view.session == SessionAttr::LoggedIn => Health::Healthy,
        ConnectionAttr::Up | ConnectionAttr::Bound | ConnectionAttr::Failed | ConnectionAttr::Unknown => {
            if lived {
                Health::Lost
            } else {
                Health::Broken
            }
        }
    }
}

/// Chooses one of several sessions of one volume: the healthiest, of equals the newest. `None` if
/// there is none.
pub(crate) fn best(views: &[KernelView]) -> Option<&KernelView> {
    views.iter().max_by_key(|view| (health(view), view.sid))
}

/// Decides on a session by its journal entry and the kernel's view of it; each is `None` if it does
/// not exist.
pub fn decide(entry: Option<EntryState>, view: Option<&KernelView>) -> Action {
    let Some(view) = view else {
        return match entry {
            Some(EntryState::Wanted) => Action::Make,
            Some(EntryState::Ending(_)) => Action::Forget,
            Some(EntryState::Forbidden | EntryState::Failed | EntryState::WrongDisk) => Action::Keep,
            None => Action::Nothing,
        };
    };
    match entry {
        Some(EntryState::Wanted) => match health(view) {
            Health::Healthy => Action::Adopt,
            Health::Lost => Action::Recover,
            Health::Broken => Action::Remake,
        },
        Some(EntryState::Ending(how)) => Action::End(how),
        Some(EntryState::Forbidden | EntryState::Failed | EntryState::WrongDisk) => Action::Cut,
        // A program may use the session's disk: a person decides.
        None if health(view) > Health::Broken || view.devices => Action::Orphan,
        None if view.volume.is_some() || view.unnamed => Action::Destroy,
        None => Action::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    const SESSIONS: [SessionAttr; 4] =
        [SessionAttr::LoggedIn, SessionAttr::Failed, SessionAttr::Free, SessionAttr::Unknown];
    const CONNECTIONS: [ConnectionAttr; 6] = [
        ConnectionAttr::Absent,
        ConnectionAttr::Down,
        ConnectionAttr::Bound,
        ConnectionAttr::Up,
        ConnectionAttr::Failed,
        ConnectionAttr::Unknown,
    ];
    const TARGETS: [TargetAttr; 3] = [TargetAttr::Allocated, TargetAttr::Scanned, TargetAttr::Unbound];
    const ENTRIES: [Option<EntryState>; 7] = [
        None,
        Some(EntryState::Wanted),
        Some(EntryState::Ending(End::Logout)),
        Some(EntryState::Ending(End::Cut)),
        Some(EntryState::Forbidden),
        Some(EntryState::Failed),
        Some(EntryState::WrongDisk),
    ];

    fn view(
        sid: u32,
        session: SessionAttr,
        connection: ConnectionAttr,
        targets: TargetAttr,
        devices: bool,
    ) -> KernelView {
        KernelView {
            sid,
            host: 3,
            volume: Some("a0000000-1111-4222-8333-444444444444".parse().unwrap()),
            unnamed: false,
            target: Some("iqn.2026-11.dev.mooring:v".to_owned()),
            portal: None,
            session,
            connection,
            targets,
            devices,
        }
    }

    fn all() -> Vec<KernelView> {
        let mut views = Vec::new();
        for session in SESSIONS {
            for connection in CONNECTIONS {
                for targets in TARGETS {
                    for devices in [false, true] {
                        views.push(view(1, session, connection, targets, devices));
                    }
                }
            }
        }
        views
    }

    /// Covers every state of the kernel with every state of the journal. A changed line is a
    /// changed decision: look at it.
    #[test]
    fn the_whole_table() {
        let mut table =
            String::from("session connection targets disks: none | wanted | logout | cut | given up\n");
        for view in all() {
            let actions = [ENTRIES[0], ENTRIES[1], ENTRIES[2], ENTRIES[3], ENTRIES[4]]
                .map(|entry| decide(entry, Some(&view)));
            let [none, wanted, logout, cut, given_up] = actions.map(|action| format!("{action:?}"));
            writeln!(
                table,
                "{:?} {:?} {:?} {}: {none} | {wanted} | {logout} | {cut} | {given_up}",
                view.session,
                view.connection,
                view.targets,
                if view.devices { "disks" } else { "-" },
            )
            .unwrap();
        }
        let without = ENTRIES.map(|entry| format!("{entry:?} {:?}", decide(entry, None)));
        writeln!(table, "no session: {}", without.join(" | ")).unwrap();
        insta::assert_snapshot!("decisions", table);
    }

    #[test]
    fn laws_of_the_table() {
        for view in all() {
            for entry in ENTRIES {
                let action = decide(entry, Some(&view));
                // No session with disks is destroyed unless the journal says that it ends or was
                // given up, or it can never have disks again.
                let destroys = matches!(action, Action::Remake | Action::Destroy);
                let hopeless = view.targets == TargetAttr::Unbound
                    || matches!(view.connection, ConnectionAttr::Absent | ConnectionAttr::Down);
                assert!(!(destroys && view.devices && !hopeless), "{view:?} {entry:?} {action:?}");
                // Only a session that is up and logged in is taken over without a login.
                if action == Action::Adopt {
                    assert_eq!((view.session, view.connection), (SessionAttr::LoggedIn, ConnectionAttr::Up));
                }
                if entry.is_none() {
                    assert!(matches!(action, Action::Orphan | Action::Destroy), "{view:?} {action:?}");
                }
                assert_eq!(
                    matches!(action, Action::End(_)),
                    matches!(entry, Some(EntryState::Ending(_))),
                    "{view:?} {entry:?}"
                );
            }
            // A foreign session belongs to no journal entry.
            let foreign = KernelView { volume: None, unnamed: false, devices: false, ..view };
            let action = decide(None, Some(&foreign));
            assert!(matches!(action, Action::Nothing | Action::Orphan), "{foreign:?} {action:?}");
        }
    }

    #[test]
    fn of_two_the_healthier_then_the_newer() {
        let healthy = |sid| view(sid, SessionAttr::LoggedIn, ConnectionAttr::Up, TargetAttr::Scanned, true);
        let lost = |sid| view(sid, SessionAttr::Failed, ConnectionAttr::Failed, TargetAttr::Scanned, true);
        let new = |sid| view(sid, SessionAttr::Free, ConnectionAttr::Down, TargetAttr::Allocated, false);
        let sid = |views: &[KernelView]| best(views).map(|view| view.sid);
        assert_eq!(sid(&[healthy(1), new(2), lost(3)]), Some(1));
        assert_eq!(sid(&[new(1), lost(2), new(3)]), Some(2));
        assert_eq!(sid(&[healthy(4), healthy(5)]), Some(5));
        assert_eq!(sid(&[]), None);
    }
}
