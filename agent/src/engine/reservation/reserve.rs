//! Takes persistent reservations away for an operator. The kernel has no attribute for that: only
//! commands of initiators change them. So the agent becomes an initiator for a moment (decision
//! 44). It gives itself a grant that no spec has, with secrets of that moment, and logs in over one
//! of the volume's portals in user space. It sends PERSISTENT RESERVE OUT, and lets the pass take
//! the grant away as any grant without a spec. If it is killed at any step, the next pass does
//! that.
//!
//! What must never happen here: an answer that the kernel does not show; the registration of
//! somebody else taken away by a preempt; APTPL switched off for the others; a session beside a
//! pass of the volume.

use std::sync::Arc;
use std::time::Duration;

use mooring_host::{PrCommand, PrError, PrNexus, PrSession};
use mooring_model::{
    Cause, Chain, Chap, ChapSide, ClusterId, Cure, ExportNames, Generation, Grant, LUN_DEFAULT, Mode, Portal,
    ReservationHolder, ReservationType, Reservations, ReservationsChange, ReservationsChanged, Secret,
    VolumeId,
};
use mooring_targets::{Wanted, reservations};
use tokio::sync::oneshot;

use super::reservations::grant_of;
use crate::clock;
use crate::engine::cell::{Cell, KeptSpec};
use crate::engine::export::fabrics::Wanteds;
use crate::engine::pass::{ExportEnd, Made, PassSpecs};
use crate::engine::{Engine, Refusal};
use crate::links::trouble;
use crate::object::turn::Left;

/// Longest time of a session. A command waits for no disk, but for an abort.
const SESSION_WITHIN: Duration = Duration::from_secs(5);

/// The advice for an operator where the agent cannot do it.
const ELSEWHERE: &str = "detach the host that is in the way, or send the command from a host that is attached \
                         (`sg_persist --out --clear`, `--preempt-abort`)";

/// A change that waits for the volume's pass.
#[derive(Debug)]
pub(in crate::engine) struct Asked {
    change: ReservationsChange,
    reply: oneshot::Sender<Result<ReservationsChanged, Refusal>>,
}

/// The outcome of a change. Its sender gets it once the pass has stored what the kernel shows.
pub(in crate::engine) struct Taken {
    asked: Asked,
    /// The reservations before the change. `None` if there were none.
    outcome: Result<Option<Reservations>, Refusal>,
}

impl Taken {
    pub(in crate::engine) fn tell(self, cell: &Cell) {
        let now = cell.state().held.seen();
        let answer = self.outcome.map(|before| ReservationsChanged { before, now });
        // Nobody waits any more: the change is in the next report.
        drop(self.asked.reply.send(answer));
    }
}

/// The agent as an initiator, for a moment.
struct Own {
    grant: Grant,
    nexus: PrNexus,
    portal: Portal,
    /// Portals to try if the ones before let nobody in.
    others: Vec<Portal>,
    key: u64,
}

fn refused(why: impl Into<String>, cure: Cure) -> Refusal {
    Refusal::precondition(why.into(), cure)
}

/// Random bytes in hexadecimal digits.
fn random_digits(bytes: usize) -> Result<String, Refusal> {
    let mut random = vec![0; bytes];
    let none = |_| refused("this machine gives no random bytes for a secret", Cure::Operator);
    getrandom::fill(&mut random).map_err(none)?;
    Ok(random.iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}")))
}

/// A key that no initiator has registered.
fn random_key(seen: &Reservations, victim: u64) -> Result<u64, Refusal> {
    loop {
        let mut random = [0; 8];
        let none = |_| refused("this machine gives no random bytes for a key", Cure::Operator);
        getrandom::fill(&mut random).map_err(none)?;
        let key = u64::from_be_bytes(random);
        if key != 0 && key != victim && seen.registrations.iter().all(|one| one.key != key) {
            return Ok(key);
        }
    }
}

/// Says whether nothing is left of what the change takes away.
fn is_gone(seen: &Reservations, change: ReservationsChange) -> bool {
    match change {
        ReservationsChange::Clear => seen.registrations.is_empty() && seen.holder.is_none(),
        ReservationsChange::Preempt { key, .. } => seen.registrations.iter().all(|one| one.key != key),
    }
}

/// Says whether the change has anything to do. Refuses a change that no command could make.
fn is_due(seen: &Reservations, change: ReservationsChange, volume: VolumeId) -> Result<bool, Refusal> {
    let old = seen.holder.as_ref().filter(|holder| holder.ends_with_its_session());
    match change {
        ReservationsChange::Preempt { key: 0, .. } => Err(Refusal::field("key", "no key is 0")),
        ReservationsChange::Preempt { .. } if old.is_some() => {
            let why = format!(
                "{} has reserved volume {volume} by the older RESERVE(6), which has no key: `--clear` cuts its session, which ends it",
                old.map_or_else(String::new, |holder| holder.initiator.to_string())
            );
            Err(refused(why, Cure::FixSpec))
        }
        ReservationsChange::Preempt { key, .. } if is_gone(seen, change) && !seen.truncated => {
            let keys: Vec<_> = seen.registrations.iter().map(|one| format!("0x{:x}", one.key)).collect();
            let keys = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
            let why =
                format!("nobody has registered the key 0x{key:x} with volume {volume} (registered: {keys})");
            Err(refused(why, Cure::FixSpec))
        }
        ReservationsChange::Preempt { .. } => Ok(true),
        ReservationsChange::Clear => Ok(!is_gone(seen, change)),
    }
}

/// Sends the commands of a change. The agent's registration asks for APTPL exactly if the others
/// have it: the kernel applies the last registrant's flag to all.
fn send(
    session: &mut dyn PrSession,
    key: u64,
    seen: &Reservations,
    change: ReservationsChange,
) -> Result<(), PrError> {
    let durable = seen.durable;
    session.send(&PrCommand::Register { key, durable })?;
    match change {
        // The agent's own registration goes with the others.
        ReservationsChange::Clear => session.send(&PrCommand::Clear { key }),
        ReservationsChange::Preempt { key: victim, abort } => {
            // The type counts only if a victim holds the reservation: then the agent holds it until
            // it unregisters.
            let kind = seen.holder.as_ref().and_then(|holder| holder.kind);
            let kind = kind.unwrap_or(ReservationType::WriteExclusiveRegistrantsOnly).code();
            let preempted = session.send(&PrCommand::Preempt { key, victim, kind, abort });
            let unregistered = session.send(&PrCommand::Register { key: 0, durable });
            preempted.and(unregistered)
        }
    }
}

impl Engine {
    /// Takes registrations and reservations of a volume away. Answers when the kernel shows that
    /// and the store has it, or at the deadline. Then the outcome is unknown, and a new request
    /// finds out.
    pub async fn change_reservations(
        &self,
        sender: ClusterId,
        volume: VolumeId,
        change: ReservationsChange,
        deadline: Duration,
    ) -> Result<ReservationsChanged, Refusal> {
        let known = self.known_cell(volume).filter(|_| self.knows(volume));
        let cell = known.ok_or(Refusal::UnknownVolume(volume))?;
        let (reply, answer) = oneshot::channel();
        let (engine, at) = (self.clone(), Arc::clone(&cell));
        self.shared.workers.submit_awaited(move || engine.ask(&at, sender, Asked { change, reply }));
        match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Refusal::busy(volume, cell.state().stuck())),
            Err(_) => {
                let stuck =
                    cell.state().stuck().map_or_else(String::new, |stuck| format!(" ({})", stuck.step));
                let why = format!(
                    "the reservations of volume {volume} were not changed in time{stuck}: it is not known whether they will \
                     be; look at them, and ask again"
                );
                Err(refused(why, Cure::Retry))
            }
        }
    }

    /// Leaves the change to the volume's next pass, which runs here and now unless another pass is
    /// at work.
    fn ask(&self, cell: &Arc<Cell>, sender: ClusterId, asked: Asked) {
        if let Err(refusal) = self.check_sender(sender) {
            return drop(asked.reply.send(Err(refusal)));
        }
        {
            let mut state = cell.state();
            if state.asked().is_some_and(|other| !other.reply.is_closed()) {
                drop(state);
                let why = "somebody else changes its reservations at this moment".to_owned();
                return drop(asked.reply.send(Err(Refusal::Busy { volume: cell.id, why })));
            }
            state.ask(asked);
            state.turn.ask_anew();
        }
        self.run(cell);
    }

    /// Makes the change in a pass whose export half has ended. Then the export half runs again, and
    /// takes the agent's grant away.
    pub(in crate::engine) fn take_away(
        &self,
        cell: &Arc<Cell>,
        specs: &PassSpecs,
        usable: bool,
        end: &mut ExportEnd,
        asked: Asked,
    ) -> Taken {
        // The sender was told that the outcome is unknown: nothing begins for it now.
        if asked.reply.is_closed() {
            return Taken { asked, outcome: Ok(None) };
        }
        let outcome = self.try_take_away(cell, specs, usable, end, asked.change);
        Taken { asked, outcome }
    }

    fn try_take_away(
        &self,
        cell: &Arc<Cell>,
        specs: &PassSpecs,
        usable: bool,
        end: &mut ExportEnd,
        change: ReservationsChange,
    ) -> Result<Option<Reservations>, Refusal> {
        let export = specs.export.as_ref();
        let Some(spec) = export.and_then(KeptSpec::spec) else {
            let why = format!("volume {} is not exported: nobody can reserve it", cell.id);
            return Err(refused(why, Cure::FixSpec));
        };
        if end.left != Left::Nothing {
            let first = end
                .problems
                .first()
                .map_or_else(|| "it has steps left to do".to_owned(), |one| one.text.clone());
            return Err(refused(
                format!("the export of volume {} is not in force: {first}", cell.id),
                Cure::Retry,
            ));
        }
        let names = spec.identity.names(cell.id, &self.shared.config.iqn_prefix);
        let mut seen = self.read_reservations(cell, &names)?;
        if let Some(holder) = &mut seen.holder {
            holder.since = cell.state().held.since(holder);
        }
        let old = seen.holder.as_ref().filter(|holder| holder.ends_with_its_session());
        match (is_due(&seen, change, cell.id)?, old) {
            (false, _) => {}
            (true, Some(holder)) => self.revoke_holder(cell, specs, usable, end, holder)?,
            (true, None) => self.take_by_command(cell, specs, usable, end, &seen, change)?,
        }
        self.forget_lost(cell, change);
        Ok(Some(seen).filter(|seen| !seen.is_empty()))
    }

    /// Takes registrations away by commands in a session of the agent's own.
    fn take_by_command(
        &self,
        cell: &Arc<Cell>,
        specs: &PassSpecs,
        usable: bool,
        end: &mut ExportEnd,
        seen: &Reservations,
        change: ReservationsChange,
    ) -> Result<(), Refusal> {
        let export = specs.export.as_ref();
        let Some((kept_spec, spec)) = export.and_then(|kept_spec| Some((kept_spec, kept_spec.spec()?)))
        else {
            return Err(Refusal::busy(cell.id, None));
        };
        let names = spec.identity.names(cell.id, &self.shared.config.iqn_prefix);
        let portals = self.portals_of(spec).to_vec();
        let own = self.own(&names, &portals, seen, change)?;
        let wanted = self.wanted_export(cell, specs.volume.as_ref(), export);
        let wanted = wanted.ok_or_else(|| Refusal::busy(cell.id, None))?;
        let sent =
            self.send_as_initiator(cell, wanted, kept_spec.stamp.generation, usable, &own, seen, change);
        // Whatever the outcome: the agent's grant goes, and with it its registration.
        *end = self.export_half(cell, specs, usable);
        let now = self.read_reservations(cell, &names)?;
        match sent {
            // Registrations beyond the page are invisible, before and after: there only the
            // target's answer counts.
            Err(refusal) if !is_gone(&now, change) || seen.truncated => return Err(refusal),
            Err(refusal) => {
                let error = Chain(&refusal);
                tracing::warn!(volume = %cell.id, %error, "reservations have changed, but not as requested");
            }
            Ok(()) if !is_gone(&now, change) => {
                let why = format!(
                    "the kernel still shows what was to be taken away of volume {}: ask again",
                    cell.id
                );
                return Err(refused(why, Cure::Retry));
            }
            Ok(()) => {}
        }
        tracing::info!(volume = %cell.id, ?change, "reservations taken away");
        Ok(())
    }

    /// Ends the session of a host that has reserved the volume by RESERVE(6). No other host's
    /// command ends that but a reset, which would abort the commands in flight of all.
    fn revoke_holder(
        &self,
        cell: &Arc<Cell>,
        specs: &PassSpecs,
        usable: bool,
        end: &mut ExportEnd,
        holder: &ReservationHolder,
    ) -> Result<(), Refusal> {
        let Some((kept_spec, spec)) =
            specs.export.as_ref().and_then(|kept_spec| Some((kept_spec, kept_spec.spec()?)))
        else {
            return Err(Refusal::busy(cell.id, None));
        };
        let who = &holder.initiator;
        if grant_of(spec, who).is_none() {
            let why = format!(
                "{who} has reserved volume {} by the older RESERVE(6) and has no grant that could be cut: log it out there",
                cell.id
            );
            return Err(refused(why, Cure::Operator));
        }
        self.begin_nexus_revoke(cell, spec, kept_spec.stamp.generation, holder, Cause::Reservation)
            .map_err(Refusal::Store)?;
        *end = self.export_half(cell, specs, usable);
        let names = spec.identity.names(cell.id, &self.shared.config.iqn_prefix);
        let now = self.read_reservations(cell, &names)?;
        if now.holder.as_ref().is_some_and(|now| now.is_same(holder)) {
            let why = format!("the kernel still shows that {who} has reserved volume {}: ask again", cell.id);
            return Err(refused(why, Cure::Retry));
        }
        tracing::info!(volume = %cell.id, initiator = %who, "its reservation has ended with its session");
        Ok(())
    }

    fn read_reservations(&self, cell: &Cell, names: &ExportNames) -> Result<Reservations, Refusal> {
        let read = reservations::read_reservations(&*self.shared.machine.target, names);
        let read = read.map_err(|source| Refusal::Target { volume: cell.id, source: Box::new(source) })?;
        read.ok_or_else(|| refused(format!("volume {} is not exported", cell.id), Cure::Retry))
    }

    /// The agent's own grant and nexus, under a name and with secrets that nobody else has.
    fn own(
        &self,
        names: &ExportNames,
        portals: &[Portal],
        seen: &Reservations,
        change: ReservationsChange,
    ) -> Result<Own, Refusal> {
        if portals.is_empty() {
            let why = format!(
                "{} is served over no portal, and the agent is no initiator over Fibre Channel: {ELSEWHERE}",
                names.iqn
            );
            return Err(refused(why, Cure::Operator));
        }
        let here = (self.shared.machine.addresses)();
        let troubles: Vec<_> = portals.iter().map(|portal| (portal, trouble(portal, &here))).collect();
        let open: Vec<_> =
            troubles.iter().filter(|(_, no)| no.is_none()).map(|(portal, _)| **portal).collect();
        let Some((first, others)) = open.split_first() else {
            let why: Vec<_> = troubles
                .iter()
                .filter_map(|(_, no)| no.as_ref())
                .map(|no| format!("{}: {}", no.object, no.text))
                .collect();
            return Err(refused(
                format!("the agent reaches {} over no portal ({}): {ELSEWHERE}", names.iqn, why.join("; ")),
                Cure::Operator,
            ));
        };
        let victim = match change {
            ReservationsChange::Clear => 0,
            ReservationsChange::Preempt { key, .. } => key,
        };
        let side = |user: &str| -> Result<ChapSide, Refusal> {
            Ok(ChapSide { user: user.to_owned(), secret: Secret::new(random_digits(24)?) })
        };
        let (initiator, target) = (side("agent")?, side("target")?);
        let name = self.shared.config.iqn_prefix.reserver(self.agent_id());
        let plain = |side: &ChapSide| (side.user.clone(), side.secret.expose().to_owned());
        let nexus = PrNexus {
            portal: first.socket(),
            target: names.iqn.to_string(),
            tpg: names.tpg,
            initiator: name.to_string(),
            chap: plain(&initiator),
            mutual: plain(&target),
            lun: 1,
        };
        let grant = Grant {
            initiator: name,
            lun: LUN_DEFAULT,
            // The kernel refuses PERSISTENT RESERVE OUT over a read-only grant.
            mode: Mode::ReadWrite,
            chap: Some(Chap { initiator, mutual: Some(target) }),
            attachments: Vec::new(),
            barrier: None,
        };
        Ok(Own { grant, nexus, portal: *first, others: others.to_vec(), key: random_key(seen, victim)? })
    }

    /// Lets the agent in, and sends the commands.
    #[allow(clippy::too_many_arguments, reason = "one step of one caller")]
    fn send_as_initiator(
        &self,
        cell: &Arc<Cell>,
        mut wanted: Wanteds,
        generation: Generation,
        usable: bool,
        own: &Own,
        seen: &Reservations,
        change: ReservationsChange,
    ) -> Result<(), Refusal> {
        if let Wanted::Present { grants, .. } = &mut wanted.iscsi {
            grants.push(own.grant.clone());
        }
        let made = self.make_export(cell, &wanted, generation, usable);
        match made {
            Made { left: Ok(plan), .. } if plan.is_quiet() => {}
            Made { left: Ok(plan), .. } => {
                let first = plan
                    .blocked
                    .first()
                    .map_or_else(|| "it has steps left to do".to_owned(), |one| one.why.clone());
                return Err(refused(
                    format!("the agent cannot grant itself access to volume {}: {first}", cell.id),
                    Cure::Retry,
                ));
            }
            Made { left: Err(source), .. } => {
                return Err(Refusal::Target { volume: cell.id, source: Box::new(source) });
            }
        }
        cell.begin(format!("change the reservations of {}", own.nexus.target));
        let sent = self.session(own, seen, change);
        cell.end();
        sent.map_err(|error| {
            let why = format!("the reservations of volume {} were not changed: {}", cell.id, Chain(&error));
            // The answer to a preempt of a key that nobody has registered.
            let cure = if matches!(error, PrError::Conflict) { Cure::FixSpec } else { Cure::Retry };
            refused(why, cure)
        })
    }

    /// Opens a session over the first portal that lets the agent in, and sends the commands.
    fn session(&self, own: &Own, seen: &Reservations, change: ReservationsChange) -> Result<(), PrError> {
        let until = clock::std_instant() + SESSION_WITHIN;
        let open = |portal: &Portal| {
            let nexus = PrNexus { portal: portal.socket(), ..own.nexus.clone() };
            self.shared.machine.pr.open(&nexus, until)
        };
        let mut opened = open(&own.portal);
        for portal in &own.others {
            // There is no session, so no command was sent.
            opened = opened.or_else(|_| open(portal));
        }
        let mut session = opened?;
        send(&mut *session, own.key, seen, change)?;
        if let Err(error) = session.close() {
            tracing::debug!(error = %Chain(&error), "the session was ended without a logout");
        }
        Ok(())
    }

    /// Forgets lost registrations that the operator has now taken away.
    fn forget_lost(&self, cell: &Cell, change: ReservationsChange) {
        let meant = |registration: &mooring_model::Registration| match change {
            ReservationsChange::Clear => true,
            ReservationsChange::Preempt { key, .. } => registration.key == key,
        };
        let Some(kept) = cell.state().held.without_lost(meant) else { return };
        match self.shared.store.keep_reservations(cell.id, &kept) {
            Ok(()) => cell.state().held.has_kept(kept),
            Err(error) => {
                tracing::warn!(volume = %cell.id, error = %Chain(&error), "cannot forget registrations that the kernel has lost");
            }
        }
    }
}
