//! Answers for people: plain tables, no colours, identical with and without a terminal.
//!
//! What must never happen here: anything that is not in the JSON (but for hints); an "unproven"
//! that looks like success.

use std::fmt::{self, Display, Formatter};

use crate::capabilities::Capabilities;
use crate::output::{
    Created, Cut, Deleted, Event, EventLine, Export, ExportShown, FcGrant, Grant, Granted, Planned, Receipt,
    Revoked, Session, Stuck, Timing, Volume, VolumeState, Volumes,
};
use crate::problem::{write_inline, write_problems};
use crate::table::{NONE, facts, joined, named, or_none, size, table};
use crate::text::one_line;

/// Microseconds in readable form.
fn duration(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{}.{:03} ms", micros / 1_000, micros % 1_000),
        _ => format!("{}.{:03} s", micros / 1_000_000, micros / 1_000 % 1_000),
    }
}

fn write_stuck(f: &mut Formatter<'_>, stuck: Option<&Stuck>) -> fmt::Result {
    let Some(stuck) = stuck else { return Ok(()) };
    write!(
        f,
        "\nstuck: {} has not returned for {}",
        one_line(&stuck.step),
        duration(stuck.since_ms.saturating_mul(1000))
    )
}

impl Display for Cut {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.state, &self.since) {
            ("in_force", Some(since)) => write!(f, "cut off from its disk (asked for at {since})"),
            ("in_force", None) => f.write_str("still cut off from its disk, although that was ended"),
            (_, Some(since)) => {
                write!(f, "to be cut off from its disk (asked for at {since}), and is not yet")
            }
            (_, None) => f.write_str("to be cut off from its disk, and is not yet"),
        }
    }
}

impl VolumeState {
    fn phase_text(&self) -> String {
        match self.zeroed_bytes {
            // The size comes from LVM, which has none yet.
            Some(zeroed) if self.size_bytes == 0 => format!("{} ({} zeroed)", self.phase, size(zeroed)),
            Some(zeroed) => format!("{} ({} of {} zeroed)", self.phase, size(zeroed), size(self.size_bytes)),
            None => self.phase.to_owned(),
        }
    }

    fn facts(&self, name: Option<&str>) -> String {
        facts([
            ("ID", self.id.clone()),
            ("NAME", or_none(name)),
            ("PHASE", self.phase_text()),
            ("SIZE", size(self.size_bytes)),
            ("GROUP", or_none(self.group.as_deref())),
            ("DEVICE", or_none(self.device.as_deref())),
        ])
    }
}

impl Display for Created {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.volume.facts(Some(&self.name)))?;
        write_problems(f, &self.volume.problems)?;
        if !self.done {
            write!(f, "\naccepted, not there yet; look with `mooring volume show {}`", self.volume.id)?;
        }
        Ok(())
    }
}

impl Display for Deleted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let volume = named(self.name.as_deref(), &self.volume_id);
        if self.done {
            return write!(f, "volume {volume} is gone");
        }
        write!(
            f,
            "volume {volume}: accepted, not gone yet ({}); repeat the command to wait for it",
            self.phase
        )?;
        write_problems(f, &self.problems)
    }
}

impl Display for Volumes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.volumes.is_empty() {
            return f.write_str("no volumes");
        }
        let row = |volume: &Volume| {
            let grants = volume.export.as_ref().map_or(&[][..], |export| &export.grants);
            let live: usize = grants.iter().map(|grant| grant.sessions.len()).sum();
            let problems = volume.state.problems.len()
                + volume.export.as_ref().map_or(0, |export| export.problems.len());
            [
                volume.state.id.clone(),
                or_none(volume.name.as_deref()),
                size(volume.state.size_bytes),
                or_none(volume.state.group.as_deref()),
                volume.state.phase.to_owned(),
                grants.len().to_string(),
                live.to_string(),
                if problems == 0 { NONE.to_owned() } else { problems.to_string() },
            ]
        };
        let heads = ["ID", "NAME", "SIZE", "GROUP", "PHASE", "GRANTS", "SESSIONS", "PROBLEMS"];
        f.write_str(&table(heads, self.volumes.iter().map(row)))
    }
}

impl Display for Volume {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.state.facts(self.name.as_deref()))?;
        if let Some(cut) = &self.state.cut {
            write!(f, "\nit is {cut}: see `mooring volume uncut`")?;
        }
        write_problems(f, &self.state.problems)?;
        match &self.export {
            Some(export) => write!(f, "\n\n{export}")?,
            None => f.write_str("\n\nnot exported")?,
        }
        write_receipts(f, &self.receipts)
    }
}

impl Grant {
    fn seen_text(&self) -> String {
        or_none(self.seen)
    }

    fn chap_text(&self) -> String {
        match &self.chap {
            None => NONE.to_owned(),
            Some(chap) => match &chap.mutual_user {
                None => chap.user.clone(),
                Some(mutual) => format!("{} (mutual {mutual})", chap.user),
            },
        }
    }
}

/// Text on sessions that the kernel does not list.
pub(crate) fn unlisted(sessions: u32) -> String {
    let word = if sessions == 1 { "session" } else { "sessions" };
    format!("{sessions} more {word} that the kernel does not list")
}

fn sessions_table<'a>(sessions: impl IntoIterator<Item = &'a Session>) -> String {
    let row = |session: &Session| {
        [
            session.initiator.clone(),
            joined(&session.addresses),
            session.isid.clone(),
            or_none(session.state.as_deref()),
            session.in_flight.to_string(),
        ]
    };
    table(["SESSION OF", "ADDRESS", "ISID", "STATE", "IN FLIGHT"], sessions.into_iter().map(row))
}

impl Export {
    fn state(&self) -> String {
        let state = if self.in_force { "in force" } else { "NOT in force yet" };
        format!("{state} (generation {})", or_none(self.generation.as_deref()))
    }

    /// A line on the tuning of its sessions; `None`: nothing is set.
    fn tuned(&self) -> Option<(&'static str, String)> {
        let said: Vec<_> = self.tuning.iter().map(|(name, value)| format!("{name}={value}")).collect();
        (!said.is_empty()).then(|| ("TUNED", said.join(" ")))
    }
}

impl Display for Export {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rows = [
            ("TARGET", or_none(self.target.as_deref())),
            ("NAA", or_none(self.naa.as_deref())),
            ("PORTALS", joined(&self.portals)),
            ("STATE", self.state()),
        ];
        f.write_str(&facts(rows.into_iter().chain(self.tuned())))?;
        if self.grants.is_empty() && self.fibre_channel.is_empty() {
            f.write_str("\n\ngranted to nobody")?;
        }
        if !self.grants.is_empty() {
            let row = |grant: &Grant| {
                [
                    grant.initiator.clone(),
                    grant.lun.to_string(),
                    or_none(grant.wanted),
                    grant.seen_text(),
                    grant.chap_text(),
                    grant.sessions.len().to_string(),
                    grant.commands.to_string(),
                    grant.read_mib.to_string(),
                    grant.written_mib.to_string(),
                ]
            };
            let heads = [
                "INITIATOR",
                "LUN",
                "WANTED",
                "SEEN",
                "CHAP",
                "SESSIONS",
                "COMMANDS",
                "READ MiB",
                "WRITTEN MiB",
            ];
            write!(f, "\n\n{}", table(heads, self.grants.iter().map(row)))?;
        }
        if !self.fibre_channel.is_empty() {
            let row = |grant: &FcGrant| {
                [
                    grant.initiator.clone(),
                    grant.port.clone(),
                    grant.lun.to_string(),
                    or_none(grant.wanted),
                    or_none(grant.seen),
                    if grant.logged_in { "yes" } else { "no" }.to_owned(),
                    grant.commands.to_string(),
                    grant.read_mib.to_string(),
                    grant.written_mib.to_string(),
                ]
            };
            let heads = [
                "INITIATOR",
                "PORT",
                "LUN",
                "WANTED",
                "SEEN",
                "LOGIN",
                "COMMANDS",
                "READ MiB",
                "WRITTEN MiB",
            ];
            write!(f, "\n\n{}", table(heads, self.fibre_channel.iter().map(row)))?;
        }
        self.write_sessions(f)?;
        write_problems(f, &self.problems)?;
        write_stuck(f, self.stuck.as_ref())
    }
}

impl Export {
    fn write_sessions(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut sessions = self.grants.iter().flat_map(|grant| &grant.sessions).peekable();
        if sessions.peek().is_some() {
            write!(f, "\n\n{}", sessions_table(sessions))?;
        }
        match self.unlisted_sessions {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "\n{}", unlisted(more)),
        }
    }
}

fn write_receipts(f: &mut Formatter<'_>, receipts: &[Receipt]) -> fmt::Result {
    if receipts.is_empty() {
        return Ok(());
    }
    let row = |receipt: &Receipt| {
        [
            receipt.initiator.clone(),
            receipt.proof_text(),
            receipt.sessions_cut.len().to_string(),
            or_none(receipt.generation.as_deref()),
            or_none(receipt.began.as_deref()),
            receipt.took_text(),
        ]
    };
    let heads = ["REVOKED", "PROOF", "SESSIONS CUT", "GENERATION", "BEGAN", "TOOK"];
    write!(f, "\n\n{}", table(heads, receipts.iter().map(row)))
}

impl Display for ExportShown {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "volume {}\n\n", named(self.name.as_deref(), &self.volume_id))?;
        match &self.export {
            Some(export) => write!(f, "{export}")?,
            None => f.write_str("not exported")?,
        }
        write_receipts(f, &self.receipts)
    }
}

/// A number of commands, or `any number` if it is unknown.
pub(crate) fn commands(count: Option<u32>) -> String {
    match count {
        None => "any number of commands".to_owned(),
        Some(1) => "1 command".to_owned(),
        Some(count) => format!("{count} commands"),
    }
}

impl Receipt {
    fn proof_text(&self) -> String {
        let open = commands(self.may_still_land);
        match (self.proven, self.is_forgotten()) {
            (true, _) => "proven".to_owned(),
            (false, true) => {
                format!("NEVER PROVEN: its storage node was forgotten, and {open} may still land")
            }
            (false, false) => format!("UNPROVEN: {open} may still land"),
        }
    }

    fn took_text(&self) -> String {
        self.took_us.map_or_else(|| NONE.to_owned(), |took| duration(u64::try_from(took).unwrap_or(0)))
    }
}

impl Display for Receipt {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let removed = match self.nexus_removed {
            None if self.is_forgotten() => "nobody knows",
            None => "not yet",
            Some(true) => "the nexus was removed from the kernel",
            Some(false) => "there was nothing in the kernel to remove",
        };
        f.write_str(&facts([
            ("RECEIPT", self.proof_text()),
            ("REMOVED", removed.to_owned()),
            ("SESSIONS CUT", self.sessions_cut.len().to_string()),
            ("GENERATION", or_none(self.generation.as_deref())),
            ("BEGAN", or_none(self.began.as_deref())),
            ("ENDED", or_none(self.ended.as_deref())),
            ("TOOK", self.took_text()),
        ]))?;
        if let Some(held) = &self.held_reservation {
            write!(
                f,
                "\n\nnote: it held the volume's reservation ({}), and has lost it with its access",
                one_line(held)
            )?;
        }
        if !self.sessions_cut.is_empty() {
            write!(f, "\n\n{}", sessions_table(&self.sessions_cut))?;
        }
        Ok(())
    }
}

impl Display for Granted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let grant = &self.grant;
        let volume = named(self.name.as_deref(), &self.volume_id);
        let (initiator, mode) = (one_line(&grant.initiator), grant.wanted.unwrap_or(NONE));
        if self.done {
            writeln!(f, "{initiator} reaches volume {volume}: {mode}")?;
        } else {
            writeln!(
                f,
                "{initiator} will reach volume {volume}: {mode}; accepted, NOT seen in the kernel yet"
            )?;
        }
        f.write_str(&facts([
            ("TARGET", or_none(self.target.as_deref())),
            ("PORTALS", joined(&self.portals)),
            ("LUN", grant.lun.to_string()),
            ("NAA", or_none(self.naa.as_deref())),
            ("CHAP", grant.chap_text()),
            ("TOOK", or_none(self.timing.as_ref().and_then(Timing::text).as_deref())),
        ]))?;
        write_problems(f, &self.problems)?;
        write_stuck(f, self.stuck.as_ref())?;
        self.write_hint(f)
    }
}

impl Granted {
    /// Writes how a stock open-iscsi host gets the disk, if that would succeed.
    fn write_hint(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (true, Some(target), Some(portal)) = (self.done, &self.target, self.portals.first()) else {
            return Ok(());
        };
        if !self.grant.sessions.is_empty() {
            return Ok(());
        }
        f.write_str("\nhint, on the host: ")?;
        if self.grant.chap.is_some() {
            f.write_str("set node.session.auth.* in /etc/iscsi/iscsid.conf, then ")?;
        }
        let (target, portal) = (one_line(target), one_line(portal));
        write!(
            f,
            "iscsiadm -m discovery -t st -p {portal} && iscsiadm -m node -T {target} -p {portal} --login"
        )
    }
}

impl Timing {
    fn text(&self) -> Option<String> {
        Some(format!("{} (durable after {})", duration(self.seen_us?), duration(self.durable_us)))
    }
}

impl Display for Revoked {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let volume = named(self.name.as_deref(), &self.volume_id);
        let initiator = one_line(&self.initiator);
        match (self.was_granted, &self.receipt) {
            (false, None) => {
                write!(f, "{initiator} is not granted on volume {volume}: nothing to revoke")?;
            }
            (false, Some(receipt)) => {
                write!(
                    f,
                    "{initiator} is not granted on volume {volume} any more; its last receipt:\n{receipt}"
                )?;
            }
            (true, Some(receipt)) if receipt.proven => {
                write!(
                    f,
                    "{initiator} is revoked: nothing of it reaches volume {volume} any more\n{receipt}"
                )?;
            }
            (true, Some(receipt)) => {
                write!(
                    f,
                    "{initiator} on volume {volume}: the revoke is durable and NOT PROVEN yet; repeat the command to see it proven\n{receipt}"
                )?;
            }
            (true, None) => {
                write!(
                    f,
                    "{initiator} on volume {volume}: the revoke is durable, there is NO RECEIPT yet; repeat the command"
                )?;
            }
        }
        write_problems(f, &self.problems)?;
        write_stuck(f, self.stuck.as_ref())
    }
}

impl Display for Planned {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            f.write_str("nothing to do")?;
            if self.blocked.is_empty() {
                f.write_str(": all is as its spec says")?;
            }
        } else {
            let row = |step: &crate::output::PlannedStep| {
                [step.volume_id.clone(), step.step.clone(), step.why.clone()]
            };
            f.write_str(&table(["VOLUME", "STEP", "WHY"], self.steps.iter().map(row)))?;
        }
        self.blocked.iter().try_for_each(|problem| write!(f, "\nblocked: {problem}"))
    }
}

impl Display for EventLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.at, one_line(&self.event.to_string()))
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume { volume } => {
                write!(f, "volume {} {} {}", volume.id, volume.phase_text(), size(volume.size_bytes))?;
                write_inline(f, &volume.problems)
            }
            Self::Export { export } => {
                let state = if export.in_force { "in force" } else { "NOT in force" };
                write!(f, "export {} {state}", export.volume_id)?;
                for grant in &export.grants {
                    let live = grant.sessions.len();
                    write!(f, "; {} {} ({live} live)", grant.initiator, grant.seen_text())?;
                }
                write_inline(f, &export.problems)
            }
            Self::Receipt { receipt } => {
                write!(f, "receipt {} {} {}", receipt.volume_id, receipt.initiator, receipt.proof_text())
            }
            Self::Agent { agent } => write_agent_line(f, agent),
            Self::Synced => f.write_str("synced: what follows are changes"),
        }
    }
}

fn write_agent_line(f: &mut Formatter<'_>, agent: &Capabilities) -> fmt::Result {
    write!(f, "agent {} {}", agent.agent_id, agent.host_name)?;
    for pool in &agent.pools {
        write!(f, "; {} {} free", pool.name, size(pool.free_bytes))?;
    }
    write_inline(f, &agent.problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_exact() {
        for (micros, text) in [(0, "0 µs"), (999, "999 µs"), (1_234, "1.234 ms"), (61_002_003, "61.002 s")]
        {
            assert_eq!(duration(micros), text);
        }
    }
}
