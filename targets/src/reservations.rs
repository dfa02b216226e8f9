//! Persistent reservations of a backstore: the kernel's view of them, the file that it writes, and
//! the lines that give a new backstore its reservations back.
//!
//! The kernel keeps them in memory. At every change it writes them to `<dbroot>/pr/aptpl_<serial>`,
//! if the initiator has asked for that (APTPL), and never reads that file back. To put them back,
//! one line for each registration is written to `pr/res_aptpl_metadata` of a backstore that is not
//! exported; each comes alive when its initiator is mapped (lio.md, f).
//!
//! What must never happen here: a registration put back that its initiator no longer has (a revoke
//! takes it away, and the kernel's file still has it); a line that the kernel takes for something
//! else.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use mooring_host::{Tree, TreePath};
use mooring_model::{ExportNames, Initiator, Registration, ReservationHolder, ReservationType, Reservations};

use crate::error::maybe;
use crate::{Error, layout};

/// The attribute that accepts a registration to put back.
pub(crate) const METADATA: &str = "res_aptpl_metadata";

/// Length from which a listing may lack registrations: it comes close to a page (4 KiB), and one
/// registration takes up to 350 bytes.
const LISTING_FULL: usize = 4096 - 352;

/// Prefix of `res_holder` where RESERVE(6) or RESERVE(10) holds a backstore.
const OLD: &str = "SPC-2";

/// Name of the kernel's file for a backstore, in [`pr_folder`](crate::pr_folder).
pub fn file_name(serial: &str) -> String {
    format!("aptpl_{serial}")
}

/// One registration, with everything that is needed to put it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The initiator with its session and key.
    pub registration: Registration,
    /// The transport, in the kernel's word.
    pub fabric: String,
    /// Type of the reservation that this registration holds; `None` if it holds none.
    pub holds: Option<ReservationType>,
    /// The registration was made for all ports of the target.
    pub all_ports: bool,
    /// LUN as its initiator numbers it.
    pub mapped_lun: u64,
    /// Transport of the target port.
    pub target_fabric: String,
    /// Name of the target port.
    pub target: String,
    /// Portal group of the target port.
    pub tpg: u16,
    /// Relative port id at the time of the registration. The kernel takes the LUN's own id when the
    /// registration is put back.
    pub rtpi: u16,
    /// LUN in the portal group.
    pub target_lun: u64,
    /// The registration was put back, or should have stayed, and the kernel does not have it.
    pub lost: bool,
}

impl Kept {
    /// Returns `true` if this is a registration of that initiator port, whatever its key.
    pub fn is_of(&self, registration: &Registration) -> bool {
        self.registration.initiator == registration.initiator && self.registration.isid == registration.isid
    }
}

/// The line for `pr/res_aptpl_metadata`. Numbers are decimal without leading zeros: the kernel
/// reads `08` as a wrong octal number.
impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Registration { initiator, isid, key } = &self.registration;
        write!(f, "initiator_fabric={},initiator_node={initiator}", self.fabric)?;
        if let Some(isid) = isid {
            write!(f, ",initiator_sid={isid}")?;
        }
        let kind = self.holds.map_or(0, ReservationType::code);
        write!(
            f,
            ",sa_res_key={key},res_holder={},res_type={kind},res_scope=0",
            u8::from(self.holds.is_some())
        )?;
        write!(f, ",res_all_tg_pt={},mapped_lun={}", u8::from(self.all_ports), self.mapped_lun)?;
        write!(f, ",target_fabric={},target_node={}", self.target_fabric, self.target)?;
        write!(f, ",tpgt={},port_rtpi={},target_lun={}", self.tpg, self.rtpi, self.target_lun)
    }
}

/// Formats registrations for the agent's store, one a line.
pub fn format_kept(kept: &[Kept]) -> String {
    let mut text = String::new();
    for one in kept {
        let lost = if one.lost { ",lost=1" } else { "" };
        let _ = writeln!(text, "{one}{lost}");
    }
    text
}

/// Parses that form. `None` if the text is not ours.
pub fn parse_kept(text: &str) -> Option<Vec<Kept>> {
    text.lines().map(|line| kept_of(line.split(','))).collect()
}

/// Reads the kernel's file. Incomplete registrations, and those of initiators with an impossible
/// name, are left out.
pub fn parse_file(text: &str) -> Vec<Kept> {
    let mut all = Vec::new();
    let mut block: Option<Vec<&str>> = None;
    for line in text.lines().map(|line| line.trim_matches(['\0', ' '])) {
        if line.starts_with("PR_REG_START") {
            block = Some(Vec::new());
        } else if line.starts_with("PR_REG_END") {
            all.extend(block.take().and_then(|block| kept_of(block.into_iter())));
        } else if let Some(block) = &mut block {
            block.push(line);
        }
    }
    all
}

/// Reads one registration from its `name=value` words. `None` if it is incomplete.
fn kept_of<'a>(words: impl Iterator<Item = &'a str>) -> Option<Kept> {
    let values: BTreeMap<&str, &str> = words.map(|word| word.split_once('=')).collect::<Option<_>>()?;
    let text = |name: &str| values.get(name).copied();
    let number = |name: &str| text(name).map(str::parse::<u64>).transpose().ok();
    let flag = |name: &str| number(name).map(|value| value == Some(1));
    // The file has the type as two hexadecimal digits; all types are one digit in both bases.
    let kind = number("res_type")?.and_then(|code| ReservationType::of_code(u8::try_from(code).ok()?));
    let isid = text("initiator_sid");
    if isid.is_some_and(|isid| isid.len() != 12 || !isid.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        return None;
    }
    let fabric = |name: &str| text(name).filter(|word| is_word(word)).map(str::to_owned);
    Some(Kept {
        registration: Registration {
            initiator: text("initiator_node")?.parse().ok()?,
            isid: isid.map(str::to_owned),
            key: number("sa_res_key")?.filter(|key| *key != 0)?,
        },
        fabric: fabric("initiator_fabric")?,
        holds: if flag("res_holder")? { Some(kind?) } else { None },
        all_ports: flag("res_all_tg_pt")?,
        mapped_lun: number("mapped_lun")??,
        target_fabric: fabric("target_fabric")?,
        target: fabric("target_node")?,
        tpg: u16::try_from(number("tpgt")??).ok()?,
        rtpi: u16::try_from(number("port_rtpi")?.unwrap_or_default()).ok()?,
        target_lun: number("target_lun")??,
        lost: flag("lost")?,
    })
}

/// Returns `true` if the text is one option for `res_aptpl_metadata`, not two.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

/// Reads a backstore's reservations from the kernel. Two operations when nobody has registered, six
/// else. `None` if there is no such backstore.
pub fn read_reservations(tree: &dyn Tree, names: &ExportNames) -> Result<Option<Reservations>, Error> {
    let dir = layout::backstore(names).join("pr");
    let look = |source| Error::View { source };
    let read = |name: &str| maybe(tree.read_text(&dir.join(name))).map_err(look);
    let Some(listed) = read("res_pr_registered_i_pts")? else { return Ok(None) };
    let holder = read("res_holder")?.unwrap_or_default();
    let registrations: Vec<_> = listed.lines().filter_map(registration_of).collect();
    let mut seen = Reservations {
        truncated: listed.len() >= LISTING_FULL,
        holder: holder_of(&holder),
        registrations,
        ..Reservations::default()
    };
    if seen.registrations.is_empty() && seen.holder.is_none() {
        return Ok(Some(seen));
    }
    if let Some(holder) = seen.holder.as_mut().filter(|_| !holder.starts_with(OLD)) {
        holder.kind = read("res_pr_type")?.as_deref().and_then(kind_of);
    }
    seen.generation = read("res_pr_generation")?.as_deref().and_then(parse_generation).unwrap_or_default();
    seen.durable = read("res_aptpl_active")?.unwrap_or_default().contains("Activated");
    Ok(Some(seen))
}

/// Reads PRGENERATION alone, in one operation. `None` if there is no such backstore.
pub fn read_generation(tree: &dyn Tree, names: &ExportNames) -> Result<Option<u32>, Error> {
    let path = layout::backstore(names).join("pr").join("res_pr_generation");
    let text = maybe(tree.read_text(&path)).map_err(|source| Error::View { source })?;
    Ok(text.as_deref().and_then(parse_generation))
}

/// Parses PRGENERATION, `0x0000002a`.
fn parse_generation(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Parses `NAME,i,0xISID`, or a name alone.
fn port_of(text: &str) -> Option<(Initiator, Option<String>)> {
    let (name, isid) = match text.split_once(",i,0x") {
        Some((name, isid)) => (name, Some(isid.to_owned())),
        None => (text, None),
    };
    Some((name.parse().ok()?, isid))
}

/// Parses `iSCSI Node: iqn.2026-01.lab:a,i,0x00023d000001 Key: 0x00000000000000ab PRgen:
/// 0x00000000`.
fn registration_of(line: &str) -> Option<Registration> {
    let (_, rest) = line.split_once(" Node: ")?;
    let (port, rest) = rest.split_once(" Key: 0x")?;
    let (initiator, isid) = port_of(port)?;
    let key = u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()?;
    Some(Registration { initiator, isid, key })
}

/// Parses `SPC-3 Reservation: iSCSI Initiator: iqn.2026-01.lab:a,i,0x00023d000001`, such a line
/// with SPC-2, or the line that there is none.
fn holder_of(text: &str) -> Option<ReservationHolder> {
    let (_, port) = text.trim().split_once(" Initiator: ")?;
    let (initiator, isid) = port_of(port)?;
    Some(ReservationHolder { initiator, isid, kind: None, since: None })
}

/// Returns `true` if the reservation has another holder than in `before`, or another type. One
/// operation.
pub fn has_another_holder(
    tree: &dyn Tree,
    names: &ExportNames,
    before: Option<&ReservationHolder>,
) -> Result<bool, Error> {
    let path = layout::backstore(names).join("pr").join("res_holder");
    let Some(text) = maybe(tree.read_text(&path)).map_err(|source| Error::View { source })? else {
        return Ok(false);
    };
    let way = |holder: &ReservationHolder, old| (holder.initiator.clone(), holder.isid.clone(), old);
    let now = holder_of(&text).map(|holder| way(&holder, text.starts_with(OLD)));
    Ok(now != before.map(|holder| way(holder, holder.ends_with_its_session())))
}

/// Parses `SPC-3 Reservation Type: Write Exclusive Access, Registrants Only`.
fn kind_of(text: &str) -> Option<ReservationType> {
    let (_, words) = text.trim().split_once("Reservation Type: ")?;
    Some(match words {
        "Write Exclusive Access" => ReservationType::WriteExclusive,
        "Exclusive Access" => ReservationType::ExclusiveAccess,
        "Write Exclusive Access, Registrants Only" => ReservationType::WriteExclusiveRegistrantsOnly,
        "Exclusive Access, Registrants Only" => ReservationType::ExclusiveAccessRegistrantsOnly,
        "Write Exclusive Access, All Registrants" => ReservationType::WriteExclusiveAllRegistrants,
        "Exclusive Access, All Registrants" => ReservationType::ExclusiveAccessAllRegistrants,
        _ => return None,
    })
}

/// Registrations that were kept before, and PRGENERATION of the look behind them.
#[derive(Debug, Clone, Copy)]
pub struct Before<'a> {
    /// The registrations.
    pub kept: &'a [Kept],
    /// PRGENERATION at that look. `None` if the backstore was made, or this agent was started,
    /// after it.
    pub generation: Option<u32>,
}

/// Computes the registrations to keep from now on. `file` is the kernel's file, `None` where it
/// cannot be read. `granted` says who may reach the volume, `in_force` that all of them are mapped.
///
/// A live registration is kept as it lives, if it was asked to outlive a loss of power. One that
/// does not live is kept while its initiator is granted and may not be mapped yet: it comes alive
/// then. After that either a command took it away, or it is lost. Commands move PRGENERATION, but
/// for one that unregisters, and all of them write the file. A revoke takes it away as well, and
/// then the initiator is not granted.
pub fn keep(
    before: Before<'_>,
    seen: &Reservations,
    file: Option<&[Kept]>,
    granted: impl Fn(&Initiator) -> bool,
    in_force: bool,
) -> Vec<Kept> {
    let lives = |kept: &Kept| seen.registrations.iter().any(|live| kept.is_of(live));
    // Only if it is of this backstore's life: after a loss of power the file may be older than the
    // kept registrations.
    let written = file.filter(|_| before.generation.is_some());
    let unlisted =
        |kept: &Kept| written.is_some_and(|file| !file.iter().any(|one| one.is_of(&kept.registration)));
    let mut now = Vec::new();
    if seen.durable {
        let file = file.unwrap_or_default();
        for live in &seen.registrations {
            let same = |kept: &&Kept| kept.registration == *live;
            let Some(found) = file.iter().find(same).or_else(|| before.kept.iter().find(same)) else {
                continue;
            };
            let holder = seen
                .holder
                .as_ref()
                .filter(|holder| holder.initiator == live.initiator && holder.isid == live.isid);
            now.push(Kept { holds: holder.and_then(|holder| holder.kind), lost: false, ..found.clone() });
        }
        if seen.truncated {
            now.extend(
                file.iter().filter(|kept| !lives(kept) && granted(&kept.registration.initiator)).cloned(),
            );
        }
    }
    let commanded = match before.generation {
        Some(generation) => generation != seen.generation,
        // Each registration that was put back has moved it by one.
        None => usize::try_from(seen.generation).is_ok_and(|moved| moved >= before.kept.len()),
    };
    for kept in before.kept {
        let known = now.iter().any(|one| one.is_of(&kept.registration));
        if known || lives(kept) || !granted(&kept.registration.initiator) {
            continue;
        }
        if !in_force {
            now.push(kept.clone());
        } else if kept.lost || !(commanded || unlisted(kept)) {
            now.push(Kept { lost: true, ..kept.clone() });
        }
    }
    now
}

/// Path to which a registration is written to put it back.
pub(crate) fn metadata(names: &ExportNames) -> TreePath {
    layout::backstore(names).join("pr").join(METADATA)
}
