//! The controller's answers for people.
//!
//! What must never happen here: anything that is not in the JSON; an "unproven" or a "not yet" that
//! looks like success.

use std::fmt::{self, Display, Formatter, Write as _};

use crate::controller::answers::{
    Attached, AttachmentCache, AttachmentMode, AttachmentShown, Detached, EpochRaised, Kind, KindAccess,
    KindCreated, KindDeleted, KindShown, Kinds, Record, Records, ReviewConfirmed, Snapshot, SnapshotCreated,
    SnapshotDeleted, SnapshotShown, Snapshots, Volume, VolumeChanged, VolumeCreated, VolumeDeleted,
    VolumeExtended, VolumeShown, Volumes,
};
use crate::controller::quota::{Quota, Quotas};
use crate::controller::records::{
    Attachments, HostRecord, Hosts, JoinToken, Kept, Live, ModuleRecord, OneHost, PlacePool, PoolRecord,
    Pools, Revoked, TransportRecord,
};
use crate::table::{NONE, facts, joined, named, or_none, size, table};
use crate::text::one_line;

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

pub(super) fn write_lines(f: &mut Formatter<'_>, kind: &str, lines: &[String]) -> fmt::Result {
    lines.iter().try_for_each(|line| write!(f, "\n{kind}: {}", one_line(line)))
}

impl Display for Hosts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.hosts.is_empty() {
            return f.write_str(
                "no hosts: make a token with `mooring host token NAME`, and let one join with it",
            );
        }
        let row = |host: &Kept<HostRecord>| {
            [
                host.name.clone(),
                if host.up { "yes" } else { "NO" }.to_owned(),
                host.health_text(),
                host.placing().to_owned(),
                or_none(host.zone.as_deref()),
                or_none(host.address.as_deref()),
                or_none(host.agent_id.as_deref()),
                or_none(host.initiator.as_deref()),
                host.pools_text(),
                host.certificate_end(),
                or_none(host.last_report.as_deref()),
            ]
        };
        let heads = [
            "HOST",
            "UP",
            "HEALTH",
            "NEW VOLUMES",
            "ZONE",
            "ADDRESS",
            "AGENT",
            "INITIATOR",
            "POOLS",
            "CERTIFICATE UNTIL",
            "LAST REPORT",
        ];
        f.write_str(&table(heads, self.hosts.iter().map(row)))?;
        self.hosts.iter().try_for_each(|host| host.write_problems(f))
    }
}

impl Display for JoinToken {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Type this on {}, as root, before {}. The token is shown once, and is good for one host.\n",
            one_line(&self.name),
            or_none(self.expires_at.as_deref())
        )?;
        write!(f, "  {}", one_line(&self.command))
    }
}

impl Display for Revoked {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is no longer called by the controller, and its certificate is no longer valid. What it serves and attaches \
             goes on until it is taken away there",
            one_line(&self.revoked)
        )
    }
}

impl HostRecord {
    /// End of the certificate that the controller's authority signed. A host of the configuration
    /// has its own.
    fn certificate_end(&self) -> String {
        or_none(self.enrolment.as_ref().and_then(|join| join.expires_at.as_deref()))
    }

    /// The roles with which it joined, and the end of its certificate.
    fn enrolment_text(&self) -> String {
        self.enrolment.as_ref().map_or_else(
            || "no: it stands in the controller's configuration".to_owned(),
            |join| format!("as {}, certificate until {}", join.roles.join(", "), self.certificate_end()),
        )
    }

    /// A word for whether new volumes are placed there.
    fn placing(&self) -> &'static str {
        match (self.pools.is_empty(), self.disabled, self.drained) {
            (_, true, _) => "DISABLED",
            (_, false, true) => "DRAINED",
            (true, false, false) => NONE,
            (false, false, false) => "yes",
        }
    }

    /// The level, and the codes of its reasons.
    fn health_text(&self) -> String {
        let Some(health) = &self.health else { return NONE.to_owned() };
        let mut codes: Vec<_> = health.reasons.iter().map(|reason| reason.code.as_str()).collect();
        codes.dedup();
        match (health.level.as_str(), codes.is_empty()) {
            ("ok", _) => "ok".to_owned(),
            (level, true) => level.to_uppercase(),
            (level, false) => format!("{} ({})", level.to_uppercase(), codes.join(", ")),
        }
    }

    /// The names under which it logs in.
    fn initiators_text(&self) -> String {
        let ports = self.report.as_ref().map_or(&[][..], |report| &report.fc_initiator_ports);
        let all: Vec<_> = self.initiator.iter().chain(ports).cloned().collect();
        if all.is_empty() { NONE.to_owned() } else { all.join(", ") }
    }

    fn transports_text(&self) -> String {
        let Some(report) = &self.report else { return NONE.to_owned() };
        let one = |transport: &TransportRecord| {
            format!("{} {}", transport.protocol, if transport.ready { "ready" } else { "NOT READY" })
        };
        let all: Vec<_> = report.transports.iter().map(one).collect();
        if all.is_empty() { NONE.to_owned() } else { all.join(", ") }
    }

    fn modules_text(&self) -> String {
        let Some(report) = &self.report else { return NONE.to_owned() };
        let missing = report.modules.iter().filter(|module| module.state != "present");
        let one = |module: &ModuleRecord| {
            format!("{} ({}: {})", module.name, module.state, module.remedy.as_deref().unwrap_or(NONE))
        };
        let all: Vec<_> = missing.map(one).collect();
        match (report.modules.is_empty(), all.is_empty()) {
            (true, _) => NONE.to_owned(),
            (false, true) => "all that it needs".to_owned(),
            (false, false) => format!("MISSING: {}", all.join(", ")),
        }
    }

    fn pools_text(&self) -> String {
        let pool = |pool: &PoolRecord| {
            format!("{} ({} of {} free)", pool.name, size(pool.free_bytes), size(pool.total_bytes))
        };
        let pools: Vec<_> = self.pools.iter().map(pool).collect();
        if pools.is_empty() { NONE.to_owned() } else { pools.join(", ") }
    }

    fn write_problems(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let problems = self.why_down.iter().chain(&self.problems);
        let problems: Vec<_> = problems.map(|problem| format!("{}: {problem}", self.name)).collect();
        write_lines(f, "problem", &problems)
    }
}

impl Display for OneHost {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        f.write_str(&facts([
            ("HOST", host.name.clone()),
            ("UP", if host.up { "yes" } else { "NO" }.to_owned()),
            ("HEALTH", host.health_text()),
            ("NEW VOLUMES", host.placing().to_owned()),
            ("REASON", or_none(host.disabled_reason.as_deref())),
            ("ZONE", or_none(host.zone.as_deref())),
            ("ADDRESS", or_none(host.address.as_deref())),
            ("AGENT", or_none(host.agent_id.as_deref())),
            ("INITIATOR", host.initiators_text()),
            ("JOINED", host.enrolment_text()),
            ("KERNEL", or_none(host.report.as_ref().map(|report| report.kernel_release.as_str()))),
            ("TRANSPORTS", host.transports_text()),
            ("MODULES", host.modules_text()),
            ("POOLS", host.pools_text()),
            ("LAST REPORT", or_none(host.last_report.as_deref())),
        ]))?;
        host.write_problems(f)
    }
}

impl Display for Pools {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.pools.is_empty() {
            return f.write_str("no pools: no storage agent has reported one yet (see `mooring host list`)");
        }
        let row = |pool: &Kept<PlacePool>| {
            let text = |key: &str| match pool.capabilities.get(key) {
                None | Some(serde_json::Value::Null) => NONE.to_owned(),
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            [
                pool.name.clone(),
                text("backend_state"),
                text("total_capacity_gb"),
                text("free_capacity_gb"),
                text("allocated_capacity_gb"),
                text("total_volumes"),
                text("mooring_wipe"),
                text("mooring_report_age_seconds"),
            ]
        };
        let heads = ["POOL", "STATE", "TOTAL GIB", "FREE GIB", "OURS GIB", "VOLUMES", "WIPE", "REPORT AGE S"];
        f.write_str(&table(heads, self.pools.iter().map(row)))
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

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&facts([
            ("ID", self.id.clone()),
            ("NAME", self.name.clone()),
            ("PUBLIC", yes_no(self.is_public)),
            ("MULTIATTACH", yes_no(self.multiattach)),
            ("SPECS", self.specs_text()),
            ("DESCRIPTION", or_none(self.description.as_deref())),
        ]))
    }
}

impl Display for KindCreated {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl Display for KindShown {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl Display for KindAccess {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.projects.is_empty() {
            return write!(f, "no project has access to the type {}", one_line(&self.name));
        }
        f.write_str(&table(["PROJECT"], self.projects.iter().map(|project| [project.clone()])))
    }
}

impl Display for KindDeleted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "type {} is gone", named(Some(&self.name), &self.type_id))
    }
}

impl Display for VolumeChanged {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.volume.fmt(f)
    }
}

impl Display for Snapshots {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.snapshots.is_empty() {
            return f.write_str("no snapshots");
        }
        let row = |one: &Snapshot| {
            [
                one.id.clone(),
                or_none(one.name.as_deref()),
                one.status.clone(),
                one.volume_id.clone(),
                format!("{} GiB", one.size_gib),
                or_none(one.created_at.as_deref()),
            ]
        };
        let heads = ["ID", "NAME", "STATUS", "VOLUME", "SIZE", "TAKEN"];
        f.write_str(&table(heads, self.snapshots.iter().map(row)))
    }
}

impl Display for Snapshot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&facts([
            ("ID", self.id.clone()),
            ("NAME", or_none(self.name.as_deref())),
            ("DESCRIPTION", or_none(self.description.as_deref())),
            ("STATUS", self.status.clone()),
            ("VOLUME", self.volume_id.clone()),
            ("SIZE", format!("{} GiB", self.size_gib)),
            ("TAKEN", or_none(self.created_at.as_deref())),
        ]))
    }
}

impl Display for SnapshotShown {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.snapshot.fmt(f)
    }
}

impl Display for SnapshotCreated {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Snapshot { id, name, status, .. } = &self.snapshot;
        let snapshot = named(Some(name.as_deref().unwrap_or(NONE)), id);
        if self.done {
            write!(f, "snapshot {snapshot} is there")
        } else {
            write!(f, "snapshot {snapshot} is NOT there yet: its status is {status}")
        }
    }
}

impl Display for SnapshotDeleted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.done {
            write!(f, "snapshot {} is gone", self.snapshot_id)
        } else {
            write!(f, "snapshot {} is NOT gone yet: its status is {}", self.snapshot_id, self.status)
        }
    }
}

impl Display for Quotas {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let limit = |limit: i64| if limit < 0 { "none".to_owned() } else { limit.to_string() };
        let row = |quota: &Quota| [quota.key.clone(), quota.in_use.to_string(), limit(quota.limit)];
        f.write_str(&table(["KEY", "IN USE", "LIMIT"], self.quotas.iter().map(row)))
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
            ("MADE FROM", or_none(self.made_from().as_deref())),
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

impl Display for VolumeExtended {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.volume)?;
        if !self.done && self.cancels {
            write!(
                f,
                "\naccepted, and not cancelled yet; look with `mooring volume show {}`",
                self.volume.id
            )?;
        } else if !self.done {
            write!(f, "\naccepted, and still growing; look with `mooring volume show {}`", self.volume.id)?;
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
        write!(f, "{}", self.volume)?;
        write_lines(f, "fault", self.fault.as_slice())?;
        if self.in_review {
            write!(
                f,
                "\nin review: nothing is sent for it. Where the controller is right, say so with `mooring volume \
                 confirm-review {}`",
                self.volume.id
            )?;
        }
        if let Some(cut) = &self.cut {
            write!(f, "\nit is {cut}: see `mooring volume uncut`")?;
        }
        f.write_str("\n\n")?;
        if self.attachments.is_empty() {
            return f.write_str("not attached");
        }
        write_attachments(f, &self.attachments)
    }
}

impl Display for ReviewConfirmed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "volume {}: its spec is sent now", self.volume_id)
    }
}

impl Display for EpochRaised {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "the epoch is {} now: every later change is newer than all before", self.epoch)
    }
}

impl Record {
    fn proof_text(&self) -> String {
        match (&self.receipt, self.detached_at()) {
            (Some(receipt), _) if receipt.proven => "proven".to_owned(),
            (Some(receipt), _) if receipt.is_forgotten() => "NEVER PROVEN".to_owned(),
            (Some(_), _) => "NOT PROVEN".to_owned(),
            (None, Some(_)) => "nothing was granted".to_owned(),
            (None, None) => "not there yet".to_owned(),
        }
    }

    fn by_text(&self) -> String {
        let user = or_none(self.raw.user_id.as_deref());
        self.raw.request_id.as_deref().map_or(user.clone(), |request| format!("{user} ({request})"))
    }
}

impl Display for Records {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.receipts.is_empty() {
            return f.write_str("no detaches are recorded");
        }
        let row = |record: &Record| {
            [
                record.raw.attachment_id.clone(),
                record.raw.volume_id.clone(),
                or_none(record.raw.host.as_deref()),
                yes_no(record.raw.forced),
                record.proof_text(),
                or_none(record.detached_at()),
                record.by_text(),
            ]
        };
        let heads = ["ATTACHMENT", "VOLUME", "HOST", "FORCED", "PROOF", "DETACHED", "ASKED BY"];
        f.write_str(&table(heads, self.receipts.iter().map(row)))
    }
}

impl Display for Record {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let raw = &self.raw;
        f.write_str(&facts([
            ("ATTACHMENT", raw.attachment_id.clone()),
            ("VOLUME", raw.volume_id.clone()),
            ("HOST", or_none(raw.host.as_deref())),
            ("INSTANCE", or_none(raw.instance.as_deref())),
            ("INITIATOR", or_none(raw.initiator.as_deref())),
            ("MODE", or_none(raw.mode.as_deref())),
            ("FORCED", yes_no(raw.forced)),
            ("ASKED BY", self.by_text()),
            ("ASKED", or_none(raw.asked_at.as_deref())),
            ("DETACHED", or_none(self.detached_at())),
            ("NOT WRITTEN", or_none(raw.unwritten_bytes.map(size).as_deref())),
        ]))?;
        match &self.receipt {
            Some(receipt) => write!(f, "\n\n{receipt}"),
            None => write!(f, "\n\nreceipt: {}", self.proof_text()),
        }
    }
}

impl Live {
    /// A word for whether its session exists.
    fn session_text(&self) -> String {
        match self.session {
            Some(true) => "logged in",
            Some(false) if self.session_missing => "MISSING",
            Some(false) => "NOT logged in",
            None => "unknown",
        }
        .to_owned()
    }

    /// As [`Self::session_text`], with the sessions for users who may see them.
    fn sessions_text(&self) -> String {
        let mut text = self.session_text();
        if self.sessions.is_empty() && !self.session_addresses.is_empty() {
            let _ = write!(text, "  {}", joined(&self.session_addresses));
        }
        for session in &self.sessions {
            let since = session.since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
            let _ = write!(text, "  {} (ISID {}{since})", joined(&session.addresses), session.isid);
        }
        if let Some(storage) = &self.storage_host {
            let _ = write!(text, "  at {storage}");
        }
        text
    }

    fn counters_text(&self) -> String {
        let Some(done) = self.counters else { return NONE.to_owned() };
        let last = self.last_activity.as_ref().map(|last| format!(", last {last}")).unwrap_or_default();
        format!(
            "{} commands, {} MiB read, {} MiB written{last}",
            done.commands, done.read_mib, done.written_mib
        )
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
            ("STATUS", self.status_text()),
            ("MODE", self.mode_text()),
            ("CACHE", self.cache_text()),
            ("DEVICE", or_none(self.device_path.as_deref())),
            ("DISK", or_none(self.disk.as_deref())),
            ("ON HOST", or_none(self.host_phase.as_deref())),
            ("SESSION", self.sessions_text()),
            ("DONE", self.counters_text()),
            ("INITIATOR", or_none(self.initiator.as_deref())),
            ("SECRET", self.secret_text()),
            ("STEPS", self.steps_text()),
            ("CREATED", or_none(self.created_at.as_deref())),
            ("ATTACHED", or_none(self.attached_at.as_deref())),
        ])
    }

    /// The requested mode, and the mode that the target enforces.
    fn mode_text(&self) -> String {
        let mode = or_none(self.mode.as_deref());
        match self.effective_mode.as_deref() {
            Some(effective) => format!("{mode} (effective: {effective})"),
            // The storage agent does not say: the grant may well exist.
            None if self.session.is_none() => format!("{mode} (not known whether it is granted)"),
            None => format!("{mode} (nothing is granted)"),
        }
    }

    /// The requested flag, and the flag in force on the disk that attachments of one host share.
    fn cache_text(&self) -> String {
        let cache = or_none(self.cache.as_deref());
        match self.cache_in_force.as_deref() {
            _ if self.cache.is_none() => cache,
            Some(in_force) => format!("{cache} (in force: {in_force})"),
            None => format!("{cache} (not known what is in force)"),
        }
    }

    /// The requested flag, and the one in force if it differs or is unknown.
    fn cache_word(&self) -> String {
        let in_force = self.cache_in_force.as_deref();
        match self.cache.as_deref() {
            Some(cache) if in_force != Some(cache) => format!("{cache} ({})", or_none(in_force)),
            cache => or_none(cache),
        }
    }

    fn write_trouble(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_lines(f, "fault", self.fault.as_slice())?;
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
            live.cache_word(),
            live.status_text(),
            live.session_text(),
            or_none(live.device_path.as_deref()),
            if problems == 0 { NONE.to_owned() } else { problems.to_string() },
        ]
    };
    let heads =
        ["ID", "VOLUME", "HOST", "MODE", "EFFECTIVE", "CACHE", "STATUS", "SESSION", "DEVICE", "PROBLEMS"];
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

impl Display for AttachmentMode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let live = &self.attachment;
        let host = or_none(live.host.as_deref());
        writeln!(
            f,
            "attachment {} of volume {} to {host}: {}",
            live.id,
            live.volume_text(),
            live.mode_text()
        )?;
        if live.mode.as_deref() == Some("ro") && !self.barrier {
            writeln!(f, "writes that were on their way may still land")?;
        }
        if self.barrier {
            writeln!(f, "nothing that was on its way lands any more")?;
        }
        f.write_str(&facts([("SESSION", live.session_text())]))?;
        live.write_trouble(f)
    }
}

impl Display for AttachmentCache {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let live = &self.attachment;
        let host = or_none(live.host.as_deref());
        write!(
            f,
            "attachment {} of volume {} to {host}: cache {}",
            live.id,
            live.volume_text(),
            live.cache_text()
        )?;
        live.write_trouble(f)
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
        // By its id, because a volume and a host no longer name an attachment that has gone.
        let again = format!("`mooring detach {id}{}`", if self.full { " --force" } else { "" });
        match (self.receipt.as_ref().map(|proof| &proof.receipt), &self.waits_for) {
            (_, Some(why)) => {
                write!(
                    f,
                    "attachment {id}: accepted, NOT detached yet ({}); {again} waits for it",
                    one_line(why)
                )
            }
            (None, None) if !self.known => {
                write!(f, "attachment {id} is gone: there was nothing to detach")
            }
            (None, None) => write!(f, "attachment {id} is detached: nothing was granted to it any more"),
            (Some(receipt), None) if !receipt.proven => write!(
                f,
                "attachment {id}: the detach is durable and NOT PROVEN yet; {again} shows it proven later\n{receipt}"
            ),
            (Some(receipt), None) if self.full => {
                write!(f, "attachment {id} is detached: nothing of it reaches the volume any more\n{receipt}")
            }
            (Some(_), None) => write!(f, "attachment {id} is detached (receipt: proven)"),
        }?;
        // A receipt that is shown in full contains it already.
        let shown = self.receipt.as_ref().map(|proof| &proof.receipt).filter(|of| self.full || !of.proven);
        if shown.is_some_and(|receipt| receipt.held_reservation.is_some()) {
            return Ok(());
        }
        write_lines(f, "note", &self.warnings)
    }
}
