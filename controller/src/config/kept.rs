//! `[audit]`, `[records]` and `[attachments]`: times for which lines of the audit log, old records
//! and reserved attachments are kept.

use std::time::Duration;

use mooring_model::limit::TOMBSTONE_KEEP;
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, File};
use crate::service::{KEEP_AUDIT_DEFAULT, KEEP_RECORDS_DEFAULT};

/// The longest time for which lines of the audit log and old records are kept, if not for ever: a
/// hundred years, in days.
const KEEP_DAYS_MAX: u64 = 36_500;

/// The shortest time for which old records are kept, in days: as long as agents keep tombstones.
const KEEP_RECORDS_MIN: u64 = TOMBSTONE_KEEP.as_secs() / (24 * 60 * 60);

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawAudit {
    keep_days: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawRecords {
    keep_days: Option<Spanned<i64>>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawAttachments {
    expire_reserved_days: Option<Spanned<i64>>,
}

/// Reads an age in days, of at least `least`; `None` for 0, which means never. `wrong` says what is
/// wanted in the place of another number.
fn days(
    file: &File<'_>,
    given: Option<&Spanned<i64>>,
    default: Option<Duration>,
    least: u64,
    wrong: impl FnOnce(i64) -> String,
) -> Result<Option<Duration>, ConfigError> {
    let Some(given) = given else { return Ok(default) };
    match u64::try_from(*given.get_ref()) {
        Ok(0) => Ok(None),
        Ok(number) if (least..=KEEP_DAYS_MAX).contains(&number) => {
            Ok(Some(Duration::from_hours(number * 24)))
        }
        _ => Err(file.wrong(&given.span(), wrong(*given.get_ref()))),
    }
}

/// Reads the days after which a reserved attachment ends; never by default.
fn expire_reserved(file: &File<'_>, given: Option<&Spanned<i64>>) -> Result<Option<Duration>, ConfigError> {
    days(file, given, None, 1, |days| {
        format!(
            "attachments.expire_reserved_days: {days} is not 0 (never) to {KEEP_DAYS_MAX}: want after how many days a reserved \
             attachment without a connector ends"
        )
    })
}

/// Reads the days for which lines of the audit log are kept.
fn keep_audit(file: &File<'_>, given: Option<&Spanned<i64>>) -> Result<Option<Duration>, ConfigError> {
    days(file, given, Some(KEEP_AUDIT_DEFAULT), 1, |days| {
        format!(
            "audit.keep_days: {days} is not 0 (for ever) to {KEEP_DAYS_MAX}: want how many days a line of the audit log is kept"
        )
    })
}

/// Reads the days for which old records are kept.
fn keep_records(file: &File<'_>, given: Option<&Spanned<i64>>) -> Result<Option<Duration>, ConfigError> {
    days(file, given, Some(KEEP_RECORDS_DEFAULT), KEEP_RECORDS_MIN, |days| {
        format!(
            "records.keep_days: {days} is not 0 (for ever), nor {KEEP_RECORDS_MIN} (as long as agents know what is gone) to \
             {KEEP_DAYS_MAX}: want how many days records of what has ended are kept"
        )
    })
}

/// Ages from which on things are deleted; `None` for never.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ages {
    /// Age of lines of the audit log.
    pub(super) keep_audit: Option<Duration>,
    /// Age of records of what has ended.
    pub(super) keep_records: Option<Duration>,
    /// Age of reserved attachments without a connector.
    pub(super) expire_reserved: Option<Duration>,
}

/// Reads all ages.
pub(super) fn ages(
    file: &File<'_>,
    audit: &RawAudit,
    records: &RawRecords,
    attachments: &RawAttachments,
) -> Result<Ages, ConfigError> {
    Ok(Ages {
        keep_audit: keep_audit(file, audit.keep_days.as_ref())?,
        keep_records: keep_records(file, records.keep_days.as_ref())?,
        expire_reserved: expire_reserved(file, attachments.expire_reserved_days.as_ref())?,
    })
}
