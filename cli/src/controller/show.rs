//! The controller's answers for people.
//!
//! What must never happen here: anything that is not in the JSON; an "unproven" or a "not yet" that looks like success.

use std::fmt::{self, Display, Formatter};

use crate::controller::answers::{
    Attached, AttachmentShown, Detached, Kind, KindCreated, Kinds, Volume, VolumeCreated, VolumeDeleted,
    VolumeShown, Volumes,
};
use crate::controller::records::{Attachments, HostRecord, Hosts, Kept, Live};
use crate::display::{NONE, facts, joined, named, or_none, size, table};

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

fn write_lines(f: &mut Formatter<'_>, kind: &str, lines: &[String]) -> fmt::Result {
    lines.iter().try_for_each(|line| write!(f, "\n{kind}: {line}"))
}

impl Display for Hosts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.hosts.is_empty() {
            return f.write_str("no hosts: enrol one in the controller's configuration");
        }
        let row = |host: &Kept<HostRecord>| {
            let pool = |pool: &crate::controller::records::PoolRecord| {
                format!("{} ({} of {} free)", pool.name, size(pool.free_bytes), size(pool.total_bytes))
            };
            let pools: Vec<_> = host.pools.iter().map(pool).collect();
            [
                host.name.clone(),
                if host.up { "yes" } else { "NO" }.to_owned(),
                or_none(host.address.as_deref()),
                or_none(host.agent_id.as_deref()),
                or_none(host.initiator.as_deref()),
                if pools.is_empty() { NONE.to_owned() } else { pools.join(", ") },
                or_none(host.last_report.as_deref()),
            ]
        };
        let heads = ["HOST", "UP", "ADDRESS", "AGENT", "INITIATOR", "POOLS", "LAST REPORT"];
        f.write_str(&table(heads, self.hosts.iter().map(row)))?;
        for host in &self.hosts {
            let problems = host.why_down.iter().chain(&host.problems);
            let problems: Vec<_> = problems.map(|problem| format!("{}: {problem}", host.name)).collect();
            write_lines(f, "problem", &problems)?;
        }
        Ok(())
    }
}

impl Kind {
    fn specs_text(&self) -> String {
        let spec = |(key, value): (&String, &Option<String>)| {
            format!("{key}={}", value.as_deref().unwrap_or_default())
        };
        let specs: Vec<_> = self.extra_specs.iter().map(spec).collect();
        if specs.is_empty() { NONE.to_owned() } else { specs.join(", ") }
    }
}

impl Display for Kinds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.types.is_empty() {
            return f.write_str("no volume types");
        }
        let row = |kind: &Kind| {
            [
                kind.id.clone(),
                kind.name.clone(),
                yes_no(kind.multiattach),
                kind.specs_text(),
                or_none(kind.description.as_deref().filter(|text| !text.is_empty())),
            ]
        };
        f.write_str(&table(["ID", "NAME", "MULTIATTACH", "SPECS", "DESCRIPTION"], self.types.iter().map(row)))
    }
}

impl Display for KindCreated {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&facts([
            ("ID", self.kind.id.clone()),
            ("NAME", self.kind.name.clone()),
            ("MULTIATTACH", yes_no(self.kind.multiattach)),
            ("SPECS", self.kind.specs_text()),
            ("DESCRIPTION", or_none(self.kind.description.as_deref())),
        ]))
    }
}

impl Display for Volume {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&facts([
            ("ID", self.id.clone()),
            ("NAME", or_none(self.name.as_deref())),
            ("STATUS", self.status.clone()),
            ("SIZE", size(self.size_bytes)),
            ("TYPE", or_none(self.kind.as_deref())),
            ("MULTIATTACH", yes_no(self.multiattach)),
            ("POOL", or_none(self.pool.as_deref())),
            ("CREATED", or_none(self.created_at.as_deref())),
        ]))
    }
}

impl Display for VolumeCreated {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.volume)?;
        if !self.done {
            write!(f, "\naccepted, not there yet; look with `mooring volume show {}`", self.volume.id)?;
        }
        Ok(())
    }
}

impl Display for VolumeDeleted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let volume = named(self.name.as_deref(), &self.volume_id);
        if self.done {
            return write!(f, "volume {volume} is gone");
        }
        write!(
            f,
            "volume {volume}: accepted, not gone yet ({}); repeat the command to wait for it",
            self.status
        )
    }
}

impl Display for Volumes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.volumes.is_empty() {
            return f.write_str("no volumes");
        }
        let row = |volume: &Volume| {
            [
                volume.id.clone(),
                or_none(volume.name.as_deref()),
                size(volume.size_bytes),
                or_none(volume.kind.as_deref()),
                yes_no(volume.multiattach),
                volume.status.clone(),
                volume.attached.len().to_string(),
            ]
        };
        let heads = ["ID", "NAME", "SIZE", "TYPE", "MULTIATTACH", "STATUS", "ATTACHED"];
        f.write_str(&table(heads, self.volumes.iter().map(row)))
    }
}

impl Display for VolumeShown {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n\n", self.volume)?;
        if self.attachments.is_empty() {
            return f.write_str("not attached");
        }
        write_attachments(f, &self.attachments)
    }
}

impl Live {
    /// Whether its session is really there.
    fn session_text(&self) -> String {
        match self.session {
            Some(true) => "logged in",
            Some(false) => "NOT logged in",
            None => "unknown",
        }
        .to_owned()
    }

    fn volume_text(&self) -> String {
        named(self.volume_name.as_deref(), &self.volume_id)
    }

    fn steps_text(&self) -> String {
        let steps: Vec<_> = self.steps().map(|(word, ms)| format!("{word} {ms} ms")).collect();
        if steps.is_empty() { NONE.to_owned() } else { steps.join(", ") }
    }

    fn facts(&self) -> String {
        let host = if self.native { "" } else { " (logs in by itself)" };
        facts([
            ("ID", self.id.clone()),
            ("VOLUME", self.volume_text()),
            ("HOST", format!("{}{host}", or_none(self.host.as_deref()))),
            ("STATUS", self.status.clone()),
            ("MODE", self.mode_text()),
            ("DEVICE", or_none(self.device_path.as_deref())),
            ("DISK", or_none(self.disk.as_deref())),
            ("ON HOST", or_none(self.host_phase.as_deref())),
            ("SESSION", format!("{}  {}", self.session_text(), joined(&self.session_addresses))),
            ("INITIATOR", or_none(self.initiator.as_deref())),
            ("STEPS", self.steps_text()),
            ("CREATED", or_none(self.created_at.as_deref())),
            ("ATTACHED", or_none(self.attached_at.as_deref())),
        ])
    }

    /// What was asked for, and what the target enforces.
    fn mode_text(&self) -> String {
        let mode = or_none(self.mode.as_deref());
        match self.effective_mode.as_deref() {
            Some(effective) => format!("{mode} (effective: {effective})"),
            None => format!("{mode} (nothing is granted)"),
        }
    }

    fn write_trouble(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(fault) = &self.fault {
            write!(f, "\nfault: {fault}")?;
        }
        write_lines(f, "problem", &self.problems)
    }
}

fn write_attachments(f: &mut Formatter<'_>, attachments: &[Kept<Live>]) -> fmt::Result {
    let row = |live: &Kept<Live>| {
        let problems = live.problems.len() + usize::from(live.fault.is_some());
        [
            live.id.clone(),
            live.volume_name.clone().unwrap_or_else(|| live.volume_id.clone()),
            or_none(live.host.as_deref()),
            or_none(live.mode.as_deref()),
            or_none(live.effective_mode.as_deref()),
            live.status.clone(),
            live.session_text(),
            or_none(live.device_path.as_deref()),
            if problems == 0 { NONE.to_owned() } else { problems.to_string() },
        ]
    };
    let heads = ["ID", "VOLUME", "HOST", "MODE", "EFFECTIVE", "STATUS", "SESSION", "DEVICE", "PROBLEMS"];
    f.write_str(&table(heads, attachments.iter().map(row)))
}

impl Display for Attachments {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.attachments.is_empty() {
            return f.write_str("no attachments");
        }
        write_attachments(f, &self.attachments)
    }
}

impl Display for AttachmentShown {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live { attachment, receipt } => {
                f.write_str(&attachment.facts())?;
                attachment.write_trouble(f)?;
                receipt.iter().try_for_each(|proof| write!(f, "\n\n{}", proof.receipt))
            }
            Self::Gone { id, receipt, .. } => write!(f, "attachment {id} is gone\n\n{}", receipt.receipt),
        }
    }
}

impl Display for Attached {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let live = &self.attachment;
        let host = or_none(live.host.as_deref());
        if self.done {
            writeln!(f, "volume {} is attached to {host}", live.volume_text())?;
        } else {
            writeln!(
                f,
                "volume {} on {host}: accepted, NOT attached yet; the controller goes on",
                live.volume_text()
            )?;
        }
        f.write_str(&facts([
            ("ATTACHMENT", live.id.clone()),
            ("DEVICE", or_none(live.device_path.as_deref())),
            ("DISK", or_none(live.disk.as_deref())),
            ("MODE", live.mode_text()),
            ("SESSION", format!("{}  {}", live.session_text(), joined(&live.session_addresses))),
            ("STEPS", live.steps_text()),
        ]))?;
        live.write_trouble(f)?;
        if self.done {
            return Ok(());
        }
        write!(
            f,
            "\nlook with `mooring attachment show {}`; take it back with `mooring detach {}`",
            live.id, live.id
        )
    }
}

impl Display for Detached {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let id = &self.attachment_id;
        match (self.receipt.as_ref().map(|proof| &proof.receipt), &self.waits_for) {
            (_, Some(why)) => {
                write!(
                    f,
                    "attachment {id}: accepted, NOT detached yet ({why}); repeat the command to wait for it"
                )
            }
            (None, None) if !self.known => {
                write!(f, "attachment {id} is gone: there was nothing to detach")
            }
            (None, None) => write!(f, "attachment {id} is detached: nothing was granted to it any more"),
            (Some(receipt), None) if !receipt.proven => write!(
                f,
                "attachment {id}: the detach is durable and NOT PROVEN yet; repeat the command to see it proven\n{receipt}"
            ),
            (Some(receipt), None) if self.full => {
                write!(f, "attachment {id} is detached: nothing of it reaches the volume any more\n{receipt}")
            }
            (Some(_), None) => write!(f, "attachment {id} is detached (receipt: proven)"),
        }
    }
}
