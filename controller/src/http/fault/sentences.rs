//! Sentences of the Block Storage API for the rules that a request breaks.
//!
//! What must never happen here: a sentence that clients know, changed.

use mooring_model::limit::{FC_LUN_MAX, FC_PORTS_PER_HOST_MAX};
use mooring_model::{AttachmentId, TuningKey};

use crate::domain::{
    AttachViolation, ConnectorViolation, FcFault, QuotaViolation, Resource, RetypeViolation, RuleViolation,
    STORAGE_PROTOCOL, SpecViolation, Transport, TuningFault,
};
use crate::error::{Refusal, RuleAnswer, announced_attachments};
use crate::rules::cache::CACHE;
use crate::rules::tuning::spec_of;
use crate::rules::types::{MIXED_MODES, SIZE_MAX, SIZE_MIN};

/// The message of an answer to a request that breaks a rule.
fn message(answer: RuleAnswer, violation: &RuleViolation) -> String {
    let prefix = match answer {
        RuleAnswer::Invalid | RuleAnswer::Conflict | RuleAnswer::Exceeded => "",
        RuleAnswer::InvalidVolume => "Invalid volume: ",
        RuleAnswer::Unimplemented => "Mooring does not implement it yet: ",
    };
    format!("{prefix}{}", sentence(violation))
}

/// Puts the sentence in the place of a broken rule. Another refusal stays as it is.
pub fn in_words(refusal: Refusal) -> Refusal {
    let Refusal::Rule(answer, violation) = refusal else { return refusal };
    let text = message(answer, &violation);
    match answer {
        RuleAnswer::Invalid | RuleAnswer::InvalidVolume => Refusal::Invalid(text),
        RuleAnswer::Conflict => Refusal::Conflict(text),
        RuleAnswer::Exceeded => Refusal::Exceeded(text),
        RuleAnswer::Unimplemented => Refusal::Unimplemented(text),
    }
}

/// The sentence for a broken rule, as clients know it.
pub fn sentence(violation: &RuleViolation) -> String {
    match violation {
        RuleViolation::Spec(violation) => of_specs(violation),
        RuleViolation::Attach(violation) => of_attachment(violation),
        RuleViolation::Connector(violation) => {
            format!("Invalid input received: {}", of_connector(violation))
        }
        RuleViolation::Retype(violation) => of_retype(violation),
        RuleViolation::Quota(violation) => of_quota(violation),
    }
}

fn of_specs(violation: &SpecViolation) -> String {
    let text = match violation {
        SpecViolation::EncryptedAndShared => {
            return "encryption and multiattach cannot be used together.".to_owned();
        }
        SpecViolation::TooSmall { size_gib, least, type_name } => {
            return format!(
                "Invalid input received: Specified volume size of '{size_gib}' is less than the minimum required size of \
                 '{least}' for volume type '{type_name}'."
            );
        }
        SpecViolation::TooLarge { size_gib, most, type_name } => {
            return format!(
                "Invalid input received: Specified volume size of '{size_gib}' is greater than the maximum allowable size \
                 of '{most}' for volume type '{type_name}'."
            );
        }
        SpecViolation::TypeEncryptedAndShared => {
            "encryption and multiattach cannot be used together.".to_owned()
        }
        SpecViolation::NoBoolean { key, value } => {
            format!("{key} is {value:?}: want '<is> True' or '<is> False'.")
        }
        SpecViolation::NoSize { key, value } => {
            format!("{key} is {value:?}: want a whole number of gigabytes.")
        }
        SpecViolation::NoCacheFlag { value } => format!("{CACHE} is {value:?}: want 'on' or 'off'."),
        SpecViolation::Unknown { key } => {
            let known: Vec<_> = TuningKey::ALL.iter().map(|key| spec_of(*key)).collect();
            format!("there is no extra spec {key:?}: want {MIXED_MODES}, {CACHE}, {}.", known.join(", "))
        }
        SpecViolation::BadTuning { key, value, why } => {
            let wanted = match why {
                TuningFault::NoFlag => "want '<is> True' or '<is> False'".to_owned(),
                TuningFault::NotAllowed(wanted) => wanted.to_string(),
            };
            format!("{} is {value:?}: {wanted}.", spec_of(*key))
        }
        SpecViolation::TuningContradicts { key, why } => format!("{}: {why}.", spec_of(*key)),
        SpecViolation::CacheableAndShared => "cacheable and multiattach cannot be set together.".to_owned(),
        SpecViolation::SizesCrossed { least, most } => {
            format!("{SIZE_MIN} ({least}) is greater than {SIZE_MAX} ({most}).")
        }
    };
    format!("Invalid volume type: {text}")
}

fn of_attachment(violation: &AttachViolation) -> String {
    match violation {
        AttachViolation::ReadOnlyVolume => {
            "Invalid volume: the volume is read only (its readonly flag is set): it can \
                                            be attached with mode ro only."
                .to_owned()
        }
        AttachViolation::MixedModes { other, other_mode, initiator, mode } => format!(
            "attachment {other} has mode {other_mode} from {initiator}, and the volume's type ({MIXED_MODES} is <is> False) \
             does not allow {mode} beside it on one host: use mode {other_mode}, another host, or detach that one first"
        ),
        AttachViolation::NotAttachable { volume, multiattach, status, announced } => {
            let allowed =
                if *multiattach { "available or in-use or downloading" } else { "available or downloading" };
            format!(
                "Invalid volume: Volume {volume} status must be {allowed} to reserve, but the current status is {status}.{}",
                announced_attachments(*announced)
            )
        }
        AttachViolation::DetachAnnounced { volume } => format!(
            "Invalid volume: Volume {volume} is held by os-begin_detaching: no further server can be attached until one \
             attachment is deleted or os-roll_detaching is called."
        ),
        AttachViolation::AccessGoing { initiator, other } => {
            format!(
                "the access of {initiator} is being taken away for attachment {other}: try again when that is done"
            )
        }
        AttachViolation::DuplicateConnector { other, host } => {
            format!("attachment {other} already connects this server on host {host}: duplicate connectors")
        }
        AttachViolation::SharedAccess { id, other, status, initiator } => format!(
            "attachment {other} ({status}) shares the access of {initiator} to this volume: force cuts both; detach that \
             one first, or cut every attachment of the host to it, with widen=host (mooring detach {id} --force --widen)"
        ),
        AttachViolation::ServerUsesIt { instance, sessions_known } => {
            let unknown = " (its storage agent does not say whether a session is live)";
            let unknown = if *sessions_known { "" } else { unknown };
            format!("Detach volume from instance {instance} using the Compute API{unknown}")
        }
        AttachViolation::LunTaken { volume, lun, port, other } => format!(
            "the host sees volume {volume} as LUN {lun} at another port, and at {port} that is volume {other}: detach it \
             from this host's other ports first"
        ),
        AttachViolation::LunsDiffer { volume } => format!(
            "the host's ports see volume {volume} under different LUNs: detach it from this host's other ports first"
        ),
        AttachViolation::NoLunLeft => {
            format!(
                "the host has {FC_LUN_MAX} volumes over Fibre Channel there, and no more can be told apart"
            )
        }
    }
}

fn listed(transports: &[Transport]) -> String {
    let names: Vec<_> = transports.iter().map(|one| one.spellings()[0]).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" and ") }
}

/// The reason why a host offers no Fibre Channel.
fn of_fibre_channel(fault: &FcFault) -> String {
    match fault {
        FcFault::NoPort { host } => format!(
            "host {host} reports no port for Fibre Channel that is online (its agent is asked each 10 s, and one of an earlier \
             release reports none): see the adapter's driver and cable, then `mooring host show {host}`"
        ),
        FcFault::SeveralPorts { host, count } => format!(
            "host {host} has {count} ports for Fibre Channel that are online, and a native attachment uses one path: leave one \
             of them online, or attach it as a client of the Block Storage API with multipath"
        ),
    }
}

fn of_connector(violation: &ConnectorViolation) -> String {
    let or = |why: &Option<String>, wanted: &str| why.clone().unwrap_or_else(|| wanted.to_owned());
    match violation {
        ConnectorViolation::Mode { why } => format!("connector mode: {}", or(why, "want rw or ro")),
        ConnectorViolation::NoInitiator => {
            "the connector has no initiator: iSCSI needs the host's initiator name, Fibre \
                                            Channel its wwpns and wwnns"
                .to_owned()
        }
        ConnectorViolation::Transport => format!("connector {STORAGE_PROTOCOL}: want iSCSI or FC"),
        ConnectorViolation::Initiator { why } => format!("connector initiator: {}", or(why, "want a text")),
        ConnectorViolation::TooManyNames { key } => {
            format!("connector {key}: more than {FC_PORTS_PER_HOST_MAX} names")
        }
        ConnectorViolation::Name { key, why } => format!("connector {key}: {}", or(why, "want texts")),
        ConnectorViolation::HalfFibreChannel { has, lacks } => {
            format!("the connector has {has} and no {lacks}: Fibre Channel needs both")
        }
        ConnectorViolation::NoCommonTransport { offered, agent, served, asked, typed, without_fc } => {
            let asked = asked.map(|asked| format!(", and {} is asked for", asked.spellings()[0]));
            let typed =
                typed.as_ref().map(|spec| format!(", and the volume's type wants {STORAGE_PROTOCOL} {spec}"));
            let without = without_fc.as_ref().map(|why| format!(". {}", of_fibre_channel(why)));
            format!(
                "no common transport: the connector offers {}, storage agent {agent} serves {}{}{}{}",
                listed(offered),
                listed(served),
                asked.unwrap_or_default(),
                typed.unwrap_or_default(),
                without.unwrap_or_default(),
            )
        }
    }
}

/// The sentence that names the attachment for which a retype is refused, with a space before it.
fn in_the_way_of_retype(attachment: Option<AttachmentId>) -> String {
    attachment
        .map(|id| format!(" Attachment {id} is in the way: detach it, and try again."))
        .unwrap_or_default()
}

fn of_retype(violation: &RetypeViolation) -> String {
    match violation {
        RetypeViolation::Encrypted => {
            "Invalid input received: Retype requested both encryption and multi-attach, which is not supported."
                .to_owned()
        }
        RetypeViolation::State { in_the_way, announced } => format!(
            "Invalid volume: Retype needs volume to be in available or in-use state, not be part of \
             an active migration or a consistency group, requested type has to be different that \
             the one from the volume, and for in-use volumes front-end qos specs cannot change.{}{}",
            in_the_way_of_retype(*in_the_way),
            announced_attachments(*announced)
        ),
        RetypeViolation::Shares { status, in_the_way } => format!(
            "Invalid input received: Invalid volume_type passed, retypes affecting multiattach are only allowed on \
             available volumes, the specified volume however currently has a status of: {status}.{}",
            in_the_way_of_retype(*in_the_way)
        ),
        RetypeViolation::Tunes { status, in_the_way } => format!(
            "Invalid input received: Invalid volume_type passed, retypes affecting how iSCSI sessions are negotiated \
             (digests, queue depth, bursts) are only allowed on available volumes, the specified volume however currently \
             has a status of: {status}.{}",
            in_the_way_of_retype(*in_the_way)
        ),
        RetypeViolation::PoolCannotServe { type_name, why, may_move: false } => format!(
            "Invalid volume: the volume's pool cannot serve the type {type_name}, and migration_policy is never: {why}"
        ),
        RetypeViolation::PoolCannotServe { type_name, why, may_move: true } => format!(
            "the volume's pool cannot serve the type {type_name}, and volumes cannot be moved to another pool yet: {why}"
        ),
    }
}

fn of_quota(violation: &QuotaViolation) -> String {
    let (resource, key, more, most, used) = match violation {
        QuotaViolation::LimitBelowUsage { key, used, limit } => {
            return format!(
                "Quota {key} limit must be equal or greater than existing resources. Current usage is {used} and the \
                 requested limit is {limit}."
            );
        }
        QuotaViolation::VolumeTooLarge { size_gib, most } => {
            return format!(
                "VolumeSizeExceedsLimit: Requested volume size {size_gib}G is larger than maximum allowed limit {most}G."
            );
        }
        QuotaViolation::Exceeded { resource, key, more, most, used } => (resource, key, more, most, used),
    };
    let number = |what: &str| format!("Maximum number of {what} allowed ({most}) exceeded");
    match resource {
        Resource::Volumes => format!("VolumeLimitExceeded: {} for quota '{key}'.", number("volumes")),
        Resource::Snapshots => format!("SnapshotLimitExceeded: {}", number("snapshots")),
        Resource::Backups => format!("BackupLimitExceeded: {}", number("backups")),
        Resource::Groups => format!("GroupLimitExceeded: {}", number("groups")),
        Resource::BackupGigabytes => format!(
            "VolumeBackupSizeExceedsAvailableQuota: Requested backup exceeds allowed Backup gigabytes quota. Requested \
             {more}G, quota is {most}G and {used}G has been consumed."
        ),
        Resource::Gigabytes => format!(
            "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed {key} quota. Requested {more}G, \
             quota is {most}G and {used}G has been consumed."
        ),
    }
}
