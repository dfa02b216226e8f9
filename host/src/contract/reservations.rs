//! Rows on persistent reservations that are put back (lio.md, f). The scenario `reservations`
//! covers facts that need an initiator's commands.

use nix::errno::Errno;

use super::script::{HOST, TARGET, control};
use super::{Answer, Row, Script};
use crate::{TreeError, TreePath};

const SERIAL: &str = "11112222-3333-4444-5555-666677778888";

/// Builds a registration of HOST that holds the reservation. Words in `instead` replace those of
/// equal name.
pub(super) fn line(instead: &[(&str, &str)]) -> String {
    let words = [
        ("initiator_fabric", "iSCSI"),
        ("initiator_node", HOST),
        ("initiator_sid", "800123450001"),
        ("sa_res_key", "171"),
        ("res_holder", "1"),
        ("res_type", "5"),
        ("res_scope", "0"),
        ("res_all_tg_pt", "0"),
        ("mapped_lun", "1"),
        ("target_fabric", "iSCSI"),
        ("target_node", TARGET),
        ("tpgt", "1"),
        ("port_rtpi", "7"),
        ("target_lun", "1"),
    ];
    let word = |(name, value): &(&str, &str)| {
        let value = instead.iter().find(|(other, _)| other == name).map_or(*value, |(_, value)| *value);
        format!("{name}={value}")
    };
    words.iter().map(word).collect::<Vec<_>>().join(",")
}

pub(super) fn metadata(store: &TreePath) -> TreePath {
    store.join("pr").join("res_aptpl_metadata")
}

/// Makes a backstore with a device and a serial, not enabled yet.
pub(super) fn disabled(s: &Script<'_>) -> Result<TreePath, TreeError> {
    let store = s.bare_store()?;
    s.write(&store.join("control"), control(&s.env.device))?;
    s.write(&store.join("wwn").join("vpd_unit_serial"), SERIAL)?;
    Ok(store)
}

/// Puts this line back to a backstore that is not enabled yet.
fn put(s: &Script<'_>, line: &str) -> Result<Answer, TreeError> {
    let store = disabled(s)?;
    s.try_write(&metadata(&store), line)
}

/// Puts lines back before `enable`, exports the backstore and maps HOST to it. Returns the
/// backstore.
fn revived(s: &Script<'_>, lines: &[String]) -> Result<TreePath, TreeError> {
    revived_in(s, lines, false)
}

/// Does as [`revived`], with the portal group enabled before if `enabled`.
fn revived_in(s: &Script<'_>, lines: &[String], enabled: bool) -> Result<TreePath, TreeError> {
    let store = disabled(s)?;
    for line in lines {
        s.write(&metadata(&store), line)?;
    }
    s.write(&store.join("enable"), 1)?;
    let tpg = s.tpg()?;
    if enabled {
        s.write(&tpg.join("enable"), 1)?;
    }
    let lun = s.lun(&tpg, &store)?;
    let mapped = s.bare_mapped(&tpg)?;
    s.symlink(&lun, &mapped.join("lun"))?;
    Ok(store)
}

/// Reads a file in `pr/` after that.
fn shows(s: &Script<'_>, lines: &[String], name: &str) -> Result<Answer, TreeError> {
    let store = revived(s, lines)?;
    s.try_read(&store.join("pr").join(name))
}

/// Reads a file in `pr/` after the mapped LUN was unlinked.
fn unmapped(s: &Script<'_>, name: &str) -> Result<Answer, TreeError> {
    let store = revived(s, &[line(&[])])?;
    let tpg = TreePath::new("iscsi").join(TARGET).join("tpgt_1");
    s.unlink(&tpg.join("acls").join(HOST).join("lun_1").join("lun"))?;
    s.try_read(&store.join("pr").join(name))
}

pub(super) const ROWS: &[Row] = &[
    Row::ok("a registration put back before enable", |s| put(s, &line(&[]))),
    Row::fails("a registration put back while exported", Errno::EINVAL, |s| {
        let [store, ..] = s.export()?;
        s.try_write(&metadata(&store), line(&[]))
    }),
    Row::ok("a registration put back after enable", |s| {
        let store = s.store()?;
        s.try_write(&metadata(&store), line(&[]))
    }),
    Row::fails("a registration put back without a key", Errno::EINVAL, |s| {
        put(s, &line(&[("sa_res_key", "0")]))
    }),
    Row::fails("a holder put back without a type", Errno::EINVAL, |s| put(s, &line(&[("res_type", "0")]))),
    Row::fails("a type put back as 08, as the kernel's file has it", Errno::EINVAL, |s| {
        put(s, &line(&[("res_type", "08")]))
    }),
    Row::ok("a type put back as 8", |s| put(s, &line(&[("res_type", "8")]))),
    Row::reads("what was put back, before its initiator is mapped", "SPC-3 PR Registrations:\nNone\n", |s| {
        let store = disabled(s)?;
        s.write(&metadata(&store), line(&[]))?;
        s.write(&store.join("enable"), 1)?;
        s.try_read(&store.join("pr").join("res_pr_registered_i_pts"))
    }),
    Row::reads(
        "what was put back, when its initiator is mapped",
        "SPC-3 PR Registrations:\niSCSI Node: iqn.2026-11.dev.mooring.contract:host1,i,0x800123450001 Key: \
         0x00000000000000ab PRgen: 0x00000000\n",
        |s| shows(s, &[line(&[])], "res_pr_registered_i_pts"),
    ),
    Row::reads(
        "its holder",
        "SPC-3 Reservation: iSCSI Initiator: iqn.2026-11.dev.mooring.contract:host1,i,0x800123450001\n",
        |s| shows(s, &[line(&[])], "res_holder"),
    ),
    Row::reads("its type", "SPC-3 Reservation Type: Write Exclusive Access, Registrants Only\n", |s| {
        shows(s, &[line(&[])], "res_pr_type")
    }),
    Row::reads("that it outlives a loss of power", "APTPL Bit Status: Activated\n", |s| {
        shows(s, &[line(&[])], "res_aptpl_active")
    }),
    Row::reads("the counter moves by one for each that is put back", "0x00000001\n", |s| {
        shows(s, &[line(&[])], "res_pr_generation")
    }),
    Row::reads(
        "its relative port id, in a group that is enabled: the LUN's own, not the one that was put back",
        "SPC-3 Reservation: iSCSI Target Node Endpoint: iqn.2026-11.dev.mooring.contract:a\nSPC-3 Reservation: Relative \
         Port Identifier Tag: 1 iSCSI Portal Group Tag: 1 iSCSI Logical Unit: 1\n",
        // 6.12 gives a group its id when it is enabled, and shows 0 for one that is not.
        |s| {
            let store = revived_in(s, &[line(&[])], true)?;
            s.try_read(&store.join("pr").join("res_pr_holder_tg_port"))
        },
    ),
    Row::reads("one put back for another LUN of the initiator", "SPC-3 PR Registrations:\nNone\n", |s| {
        shows(s, &[line(&[("mapped_lun", "2")])], "res_pr_registered_i_pts")
    }),
    Row::reads("one put back twice", "0x00000002\n", |s| {
        shows(s, &[line(&[]), line(&[])], "res_pr_generation")
    }),
    Row::reads("after its mapped LUN is unlinked", "SPC-3 PR Registrations:\nNone\n", |s| {
        unmapped(s, "res_pr_registered_i_pts")
    }),
    Row::reads("its holder after that", "No SPC-3 Reservation holder\n", |s| unmapped(s, "res_holder")),
    Row::reads("the counter after that", "0x00000001\n", |s| unmapped(s, "res_pr_generation")),
];
