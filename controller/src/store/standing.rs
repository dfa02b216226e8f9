//! Access of an attachment: one grant at its storage agent, and one path at its host.
//!
//! The API's calls move an attachment's status, and agents move its access: both by the moves here
//! alone. Only the combinations of [`LEGAL`] exist; decision 78 has who comes to each of them and
//! who leaves it. Both databases keep the access as one number, and refuse all other combinations.
//!
//! What must never happen here: a grant forgotten that its agent may have; a path kept without a
//! grant; a combination written that is none of [`LEGAL`].

use std::time::SystemTime;

use mooring_model::Generation;

use super::attachments::AttachmentRow;
use crate::domain::AttachmentStatus;

/// Grant of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grant {
    /// No agent has anything of it.
    None,
    /// The spec has it, and no report has shown it yet.
    Wanted,
    /// The spec has it, and a report has shown it once since then. A row made from an agent's store
    /// may start with it.
    InForce,
    /// The spec has it until the host has given its path up.
    HostLetsGo,
    /// The spec no longer has it, and the agent may have it.
    Revoking {
        /// `true`: without asking the host.
        forced: bool,
    },
}

/// Path of an attachment at its native host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// No connection spec ever had it.
    Never,
    /// The spec of the host's connection has it.
    Wanted,
    /// A connection spec had it.
    Left,
}

/// An attachment's grant and its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    grant: Grant,
    path: Path,
}

/// Statuses, and the numbers of the accesses that go with each: ten times the grant, and the path
/// (see [`Access::number`]).
const LEGAL: [(AttachmentStatus, &[u8]); 5] = [
    (AttachmentStatus::Reserved, &[0]),
    (AttachmentStatus::Attaching, &[10, 20, 21]),
    (AttachmentStatus::Attached, &[0, 2, 10, 11, 20, 21, 40, 41]),
    (AttachmentStatus::Detaching, &[32, 40, 42, 50, 51, 52]),
    (AttachmentStatus::ErrorAttaching, &[0, 2, 32, 40, 42]),
];

impl Access {
    /// Neither a grant nor a path.
    pub(crate) const NONE: Self = Self { grant: Grant::None, path: Path::Never };

    /// Access that an agent's store shows. `granted` is `true` if its report shows the grant,
    /// `connected` if the host's spec has the path.
    pub(crate) fn rebuilt(granted: bool, connected: bool) -> Self {
        Self {
            grant: if granted { Grant::InForce } else { Grant::Wanted },
            path: if connected { Path::Wanted } else { Path::Never },
        }
    }

    /// Ten times the grant's number, and the path's. Grants: 0 none, 1 wanted, 2 in force, 3 the
    /// host lets go, 4 revoking, 5 revoking by force. Paths: 0 never, 1 wanted, 2 left.
    pub(super) fn number(self) -> u8 {
        let grant = match self.grant {
            Grant::None => 0,
            Grant::Wanted => 1,
            Grant::InForce => 2,
            Grant::HostLetsGo => 3,
            Grant::Revoking { forced: false } => 4,
            Grant::Revoking { forced: true } => 5,
        };
        let path = match self.path {
            Path::Never => 0,
            Path::Wanted => 1,
            Path::Left => 2,
        };
        10 * grant + path
    }

    /// The access with this number; `None` if there is none.
    pub(super) fn of_number(number: u8) -> Option<Self> {
        let grant = match number / 10 {
            0 => Grant::None,
            1 => Grant::Wanted,
            2 => Grant::InForce,
            3 => Grant::HostLetsGo,
            4 => Grant::Revoking { forced: false },
            5 => Grant::Revoking { forced: true },
            _ => return None,
        };
        let path = match number % 10 {
            0 => Path::Never,
            1 => Path::Wanted,
            2 => Path::Left,
            _ => return None,
        };
        Some(Self { grant, path })
    }

    /// Returns `true` if the spec has the grant.
    fn wants(self) -> bool {
        matches!(self.grant, Grant::Wanted | Grant::InForce | Grant::HostLetsGo)
    }

    fn is_forced(self) -> bool {
        self.grant == Grant::Revoking { forced: true }
    }

    /// Each status with the number of each access that goes with it.
    #[cfg(test)]
    pub(crate) fn legal() -> impl Iterator<Item = (AttachmentStatus, u8)> {
        LEGAL.into_iter().flat_map(|(status, all)| all.iter().map(move |number| (status, *number)))
    }

    /// The access with this number, which must be one.
    #[cfg(test)]
    pub(crate) fn of(number: u8) -> Self {
        Self::of_number(number).unwrap_or(Self::NONE)
    }
}

/// Questions about an attachment's access.
impl AttachmentRow {
    /// Returns `true` if status, grant and path go together.
    pub(super) fn is_legal(&self) -> bool {
        let number = self.access.number();
        let listed = LEGAL.iter().any(|(status, all)| *status == self.status && all.contains(&number));
        let named = self.initiator.is_some() || matches!(number, 0 | 50);
        listed && named && (self.native.is_some() || self.access.path == Path::Never)
    }

    /// Returns `true` if the attachment is being attached, or its grant is on its way to the agent
    /// or from it.
    pub(super) fn is_moving(&self) -> bool {
        let settled = matches!(self.access.grant, Grant::None | Grant::InForce);
        self.status == AttachmentStatus::Attaching || !settled
    }

    /// Returns `true` if the spec has the attachment's grant.
    pub(crate) fn wants_grant(&self) -> bool {
        self.access.wants()
    }

    /// Returns `true` if a report has shown the attachment's grant, and the attachment stays.
    pub(crate) fn is_granted(&self) -> bool {
        self.access.grant == Grant::InForce
    }

    /// Returns `true` if the agent may have the attachment's grant, or is about to get it.
    pub(crate) fn has_grant(&self) -> bool {
        self.access.grant != Grant::None
    }

    /// Returns `true` if the attachment's grant is in the spec, and not known to be in the kernel.
    pub(crate) fn is_coming(&self) -> bool {
        self.access.grant == Grant::Wanted
    }

    /// Returns `true` if the agent may have the attachment's grant, and its spec no longer has it.
    pub(crate) fn is_revoking(&self) -> bool {
        matches!(self.access.grant, Grant::Revoking { .. })
    }

    /// Returns `true` if the attachment's grant is revoked without asking its host.
    pub(crate) fn is_forced(&self) -> bool {
        self.access.is_forced()
    }

    /// Returns `true` if the attachment is on its way out and its host must still be asked.
    pub(crate) fn host_lets_go(&self) -> bool {
        self.access.grant == Grant::HostLetsGo
    }

    /// Returns `true` if the spec of the host's connection has the attachment.
    pub(crate) fn wants_path(&self) -> bool {
        self.access.path == Path::Wanted
    }

    /// Returns `true` if a spec of the host's connection has, or had, the attachment.
    pub(crate) fn had_path(&self) -> bool {
        self.access.path != Path::Never
    }

    /// Returns `true` if the attach failed and no agent has any part of the attachment any more: it
    /// holds up nothing, and goes with its volume.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.status == AttachmentStatus::ErrorAttaching && !self.has_grant()
    }

    /// Returns `true` if the attachment is ending: no new spec is made for it.
    pub(crate) fn is_going(&self) -> bool {
        matches!(self.status, AttachmentStatus::Detaching | AttachmentStatus::ErrorAttaching)
    }
}

/// Moves of an attachment.
impl AttachmentRow {
    /// Begins an attach. The status stays until the client, or the native host, has the device, the
    /// attach fails, or a detach begins.
    pub(crate) fn attaching(&mut self) {
        self.status = AttachmentStatus::Attaching;
        self.attached_at = None;
    }

    /// Notes that the client, or the native host, has the device.
    pub(crate) fn attached(&mut self, now: SystemTime) {
        self.status = AttachmentStatus::Attached;
        self.attached_at = Some(now);
    }

    /// Wants a grant from now on. The host gets a path only once the grant is in force.
    pub(crate) fn connected(&mut self) {
        self.access = Access { grant: Grant::Wanted, path: Path::Never };
        self.in_spec_since = Generation::ZERO;
        self.fault = None;
    }

    /// Notes that the grant is in the kernel, `ms` milliseconds after the request.
    pub(crate) fn saw_grant(&mut self, ms: u64) {
        self.access.grant = Grant::InForce;
        self.fault = None;
        self.steps.push(("granted".to_owned(), ms));
    }

    /// Notes a grant that `os-attach` found in a report. It keeps the fault and adds no step: the
    /// answer to the call that connected has both.
    pub(crate) fn shown_at_attach(&mut self) {
        if self.is_coming() {
            self.access.grant = Grant::InForce;
        }
    }

    /// Puts the attachment into the spec of its host's connection.
    pub(crate) fn path_wanted(&mut self) {
        self.access.path = Path::Wanted;
    }

    /// Begins a detach without force. A host that has, or had, a path gives it up first. The parts
    /// of an attachment that is going already, or that failed, are on their way.
    pub(crate) fn leave(&mut self) {
        if !self.is_going() {
            if self.native.is_some() && self.had_path() {
                self.let_go();
            } else {
                self.take_back();
            }
        }
        self.status = AttachmentStatus::Detaching;
    }

    fn let_go(&mut self) {
        self.access.path = Path::Left;
        if self.wants_grant() {
            self.access.grant = Grant::HostLetsGo;
        }
    }

    /// Gives an attach up: its host lets go, then its grant goes.
    pub(crate) fn failed(&mut self) {
        self.status = AttachmentStatus::ErrorAttaching;
        self.access = Access { grant: Grant::HostLetsGo, path: Path::Left };
    }

    /// Notes that the host has given its path up: now the grant is revoked.
    pub(crate) fn host_let_go(&mut self) {
        self.access.grant = Grant::Revoking { forced: false };
        self.in_spec_since = Generation::ZERO;
    }

    /// Notes that the host keeps its disk: the attachment stays attached. A host that holds the
    /// disk open has its grant.
    pub(crate) fn host_refused(&mut self) {
        self.status = AttachmentStatus::Attached;
        self.access = Access { grant: Grant::InForce, path: Path::Wanted };
    }

    /// Gives a grant back that the agent did not revoke: the host is asked once more to let go.
    pub(crate) fn given_back(&mut self) {
        self.access.grant = if self.is_going() { Grant::HostLetsGo } else { Grant::Wanted };
        self.in_spec_since = Generation::ZERO;
    }

    /// Notes that the agent does not take the grant: it is withdrawn.
    pub(crate) fn refused(&mut self) {
        self.take_back();
        if self.status == AttachmentStatus::Attaching {
            self.status = AttachmentStatus::ErrorAttaching;
        }
    }

    /// Withdraws the grant.
    pub(crate) fn take_back(&mut self) {
        if self.wants_grant() {
            self.host_let_go();
        }
    }

    /// Begins a detach by force: the grant is revoked without asking the host.
    pub(crate) fn force(&mut self) {
        self.take_back();
        self.status = AttachmentStatus::Detaching;
        self.access.grant = Grant::Revoking { forced: true };
        self.fault = None;
    }

    /// Notes that no agent has anything of the attachment any more.
    pub(crate) fn gone(&mut self) {
        let path = if self.had_path() { Path::Left } else { Path::Never };
        self.access = Access { grant: Grant::None, path };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mooring_model::{AgentId, AttachmentId, VolumeId};

    use super::*;

    const HOST: AgentId = AgentId::from_u128(3);

    fn reserved() -> AttachmentRow {
        let (id, volume) = (AttachmentId::from_u128(1), VolumeId::from_u128(2));
        AttachmentRow::reserved(id, volume, "p", SystemTime::UNIX_EPOCH)
    }

    fn row(status: AttachmentStatus, number: u8, native: bool) -> AttachmentRow {
        AttachmentRow {
            status,
            access: Access::of(number),
            initiator: "iqn.2026-01.lab:a".parse().ok(),
            native: native.then_some(HOST),
            ..reserved()
        }
    }

    type Key = (&'static str, u8, bool);

    fn key(row: &AttachmentRow) -> Key {
        (row.status.as_str(), row.access.number(), row.native.is_some())
    }

    #[test]
    fn of_all_statuses_and_accesses_23_are_legal() {
        let mut legal = 0;
        for status in AttachmentStatus::ALL.iter().copied() {
            for number in 0..100 {
                let access = Access::of_number(number);
                assert_eq!(access.map(Access::number), (number < 60 && number % 10 < 3).then_some(number));
                legal += usize::from(access.is_some() && row(status, number, true).is_legal());
            }
        }
        assert_eq!((legal, Access::legal().count()), (23, 23));
        assert!(!row(AttachmentStatus::Attached, 21, false).is_legal(), "a path without a host");
        let nameless = AttachmentRow { initiator: None, ..row(AttachmentStatus::Attaching, 10, true) };
        assert!(reserved().is_legal() && !nameless.is_legal());
    }

    /// The constraint of both databases, made from the table.
    fn constraint() -> String {
        let words = |(status, number): (AttachmentStatus, u8)| {
            let moving = u8::from(row(status, number, true).is_moving());
            format!("{}.{number}.{moving} ", status.as_str())
        };
        let all: String = Access::legal().map(words).collect();
        format!(
            "CHECK (' {all}' LIKE ('% ' || status || '.' || CAST(access AS TEXT) || '.' || CAST(moving AS TEXT) || ' %') \
             AND (initiator IS NOT NULL OR access IN (0, 50)) AND (native IS NOT NULL OR access % 10 = 0))"
        )
    }

    #[test]
    fn both_schemas_have_the_constraint_of_the_table() {
        for schema in [include_str!("schema/16.sql"), include_str!("schema/pg/15.sql")] {
            let words: Vec<_> = schema.split_whitespace().collect();
            assert!(words.join(" ").contains(&constraint()), "{}", constraint());
        }
    }

    /// A host that keeps its disk has the grant, also if no report has shown it: the next report
    /// does not clear the reason that a waiting detach reads.
    #[test]
    fn a_host_that_refuses_to_let_go_has_its_grant() {
        let mut row = row(AttachmentStatus::Attached, 11, true);
        row.leave();
        assert!(row.host_lets_go());
        row.host_refused();
        assert!(row.is_granted() && !row.is_coming() && row.wants_path());
    }

    /// Moves from this row, each under the condition under which the controller makes it.
    fn moves(row: &AttachmentRow) -> Vec<AttachmentRow> {
        use AttachmentStatus::{Attached, Attaching, Detaching, Reserved};
        let mut next = Vec::new();
        let mut can = |may: bool, go: &dyn Fn(&mut AttachmentRow)| {
            if may {
                let mut new = row.clone();
                go(&mut new);
                next.push(new);
            }
        };
        let (status, client) = (row.status, row.native.is_none());
        let connect = |row: &mut AttachmentRow, native: bool| {
            row.native = native.then_some(HOST);
            row.initiator = "iqn.2026-01.lab:a".parse().ok();
            row.connected();
        };
        let free = matches!(status, Reserved | Attached) && !row.has_grant();
        can(status == Reserved, &|row| {
            connect(row, true);
            row.attaching();
        });
        can(free, &|row| {
            connect(row, false);
            row.attaching();
        });
        can(free && status == Attached, &|row| connect(row, false));
        can(row.is_coming() && client, &|row| row.saw_grant(1));
        can(row.is_coming() && client, &AttachmentRow::shown_at_attach);
        can(row.is_coming() && !client, &|row| {
            row.saw_grant(1);
            row.path_wanted();
        });
        let granted = row.initiator.is_none() || row.is_granted();
        let complete = matches!(status, Reserved | Attaching) && client && granted;
        let device = status == Attaching && row.wants_path();
        can(complete || device, &|row| row.attached(SystemTime::UNIX_EPOCH));
        can(device, &AttachmentRow::failed);
        can(row.is_coming(), &AttachmentRow::refused);
        can(status == Attached && client && row.has_grant(), &AttachmentRow::take_back);
        can(row.has_grant(), &AttachmentRow::leave);
        can(row.host_lets_go(), &AttachmentRow::host_let_go);
        can(row.host_lets_go() && status == Detaching, &AttachmentRow::host_refused);
        can(row.is_revoking() && !row.is_forced() && row.had_path(), &AttachmentRow::given_back);
        can(row.is_revoking() && status != Detaching, &AttachmentRow::gone);
        can(true, &AttachmentRow::force);
        next
    }

    /// From the rows that a call or a rebuild makes, the moves reach the whole table and nothing
    /// else, and nothing but force makes a forced row.
    #[test]
    fn moves_reach_each_legal_row_and_no_other() {
        let rebuilt = [(10, false), (20, false), (11, true), (21, true)];
        let rebuilt = rebuilt.map(|(number, native)| row(AttachmentStatus::Attached, number, native));
        let mut todo = vec![reserved(), row(AttachmentStatus::Attaching, 10, true)];
        todo.extend(rebuilt);
        let mut seen: BTreeSet<(Key, bool)> = BTreeSet::new();
        while let Some(row) = todo.pop() {
            assert!(row.is_legal(), "{:?}", key(&row));
            if seen.insert((key(&row), row.initiator.is_some())) {
                let next = moves(&row);
                let forced = next.iter().filter(|next| next.is_forced()).count();
                // A repeated detach leaves a forced row as it is.
                assert_eq!(forced, 1 + usize::from(row.is_forced()), "{:?}", key(&row));
                todo.extend(next);
            }
        }
        let seen: BTreeSet<_> = seen.iter().map(|((status, number, _), _)| (*status, *number)).collect();
        let all: BTreeSet<_> = Access::legal().map(|(status, number)| (status.as_str(), number)).collect();
        assert_eq!(seen, all);
    }
}
