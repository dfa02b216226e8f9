//! Text of the attributes that LIO derives: labels, counters, session tables. Formats are the
//! kernel's own, to the newline (lio-tree.txt). What must never happen: a number where the kernel
//! answers with an error or an empty file.

use std::fmt::Write as _;

use nix::errno::Errno;

use super::fc::FabricKind;
use super::model::{AclKey, Counters, LunKey, MappedKey, Plugin, StoreKey, TargetKey, TpgKey};
use super::path::{Dir, Owner, lun_name};
use super::tables::{self, Attr};
use crate::fake::session::Session;
use crate::fake::state::Machine;

const MEBIBYTE: u64 = 1 << 20;

/// `attrib` values of a backstore that are 0 until it is enabled.
const UNKNOWN: [&str; 10] = [
    "block_size",
    "hw_block_size",
    "hw_max_sectors",
    "hw_queue_depth",
    "max_unmap_block_desc_count",
    "max_unmap_lba_count",
    "max_write_same_len",
    "optimal_sectors",
    "queue_depth",
    "unmap_granularity",
];

/// Values of these that stay 0 where the device takes no discards.
const UNMAP: [&str; 3] = ["max_unmap_block_desc_count", "max_unmap_lba_count", "unmap_granularity"];

/// Text of a derived attribute; `None` when the attribute is a plain stored one.
type Derived = Option<Result<String, Errno>>;

#[expect(clippy::unnecessary_wraps, reason = "an arm of the matches below")]
fn line(value: impl std::fmt::Display) -> Derived {
    Some(Ok(format!("{value}\n")))
}

#[expect(clippy::unnecessary_wraps, reason = "an arm of the matches below")]
fn text(value: String) -> Derived {
    Some(Ok(value))
}

impl Counters {
    fn show(self, name: &str) -> Derived {
        match name {
            "num_cmds" | "in_cmds" => line(self.commands),
            "read_mbytes" => line(self.read_bytes / MEBIBYTE),
            "write_mbytes" => line(self.written_bytes / MEBIBYTE),
            _ => None,
        }
    }
}

impl Machine {
    pub(super) fn get(&self, dir: &Dir, attr: &'static Attr) -> Result<Vec<u8>, Errno> {
        let derived = match &dir.owner {
            Owner::Root => self.show_root(&dir.part, attr.name),
            Owner::Hba(hba) => self.show_hba(hba, attr.name),
            Owner::Store(key) => self.show_store(key, &dir.part, attr.name),
            Owner::Target(key) => self.show_target(key, &dir.part, attr.name),
            Owner::Tpg(key) => self.show_tpg(key, &dir.part, attr.name),
            Owner::Lun(key) => self.show_lun(key, &dir.part, attr.name),
            Owner::Acl(key) => self.show_acl(key, &dir.part, attr.name),
            Owner::Mapped(key) => self.show_mapped(key, &dir.part, attr.name),
            Owner::Fabric(_) | Owner::Portal(..) => None,
        };
        match derived {
            Some(result) => result.map(String::into_bytes),
            None => Ok(self.lio.values(&dir.owner).ok_or(Errno::ENOENT)?.read(&dir.part, attr)),
        }
    }

    fn show_root(&self, part: &str, name: &str) -> Derived {
        if (part, name) == ("", "version") && self.lio.has_port_ids {
            let later = "Target Engine Core ConfigFS Infrastructure v5.0 on Linux/x86_64 on 6.12.94-amd64";
            return line(later);
        }
        if (part, name) != ("core/alua/lu_gps/default_lu_gp", "members") {
            return None;
        }
        // Backstores join when they are enabled.
        let mut members = String::new();
        for (hba, found) in &self.lio.hbas {
            for name in found.stores.iter().filter(|(_, store)| store.open.is_some()).map(|(name, _)| name) {
                let _ = writeln!(members, "{hba}/{name}");
            }
        }
        text(members)
    }

    fn show_hba(&self, hba: &str, name: &str) -> Derived {
        let hba = self.lio.hbas.get(hba)?;
        let plugin = match hba.plugin {
            Plugin::Iblock => "iblock",
            Plugin::Fileio => "fileio",
            Plugin::Ramdisk => "rd_mcp",
        };
        (name == "hba_info")
            .then(|| line(format!("HBA Index: {} plugin: {plugin} version: v5.0", hba.index)))
            .flatten()
    }

    fn show_store(&self, key: &StoreKey, part: &str, name: &str) -> Derived {
        let store = self.lio.store(key)?;
        let serial = String::from_utf8_lossy(&store.serial);
        let exported = !self.lio.exports(key).is_empty();
        match (part, name) {
            // Limits of the device, unknown before it is opened.
            ("attrib", name)
                if store.open.is_none()
                    && UNKNOWN.contains(&name)
                    && store.values.get(part, name).is_none() =>
            {
                line(0)
            }
            ("attrib", name)
                if UNMAP.contains(&name) && store.values.get(part, name).is_none() && !self.discards(key) =>
            {
                line(0)
            }
            ("", "enable") => line(u8::from(store.open.is_some())),
            ("", "info") => text(self.store_info(key)?),
            ("wwn", "vpd_unit_serial") => line(format!("T10 VPD Unit Serial Number: {serial}")),
            ("alua/default_tg_pt_gp", "members") => {
                let members = self.lio.exports(key);
                // The kernel copies the NUL of each line, too.
                let member = |lun: &LunKey| {
                    let TargetKey { fabric, name } = &lun.tpg.target;
                    format!("{}/{name}/tpgt_{}/{}\n\0", fabric.name(), lun.tpg.tpg, lun_name(lun.lun))
                };
                text(members.iter().map(member).collect())
            }
            ("pr", name) => self.show_reservations(&store.pr, name).map(Ok),
            ("statistics/scsi_lu", "lu_name") if !store.serial.is_empty() => line(serial),
            ("statistics/scsi_lu", "lu_name") => line("None"),
            ("statistics/scsi_lu", "dev") | ("statistics/scsi_dev" | "statistics/scsi_tgt_dev", "indx") => {
                line(store.index)
            }
            ("statistics/scsi_dev" | "statistics/scsi_lu" | "statistics/scsi_tgt_dev", "inst") => {
                line(self.lio.hbas.get(&key.hba)?.index)
            }
            ("statistics/scsi_dev", "ports") => line(self.lio.exports(key).len()),
            // These count exports, whatever `enable` says.
            ("statistics/scsi_tgt_dev", "status") => {
                text(if exported { "activated" } else { "deactivated" }.to_owned())
            }
            ("statistics/scsi_tgt_dev", "non_access_lus") => line(u8::from(!exported)),
            ("statistics/scsi_lu", "status") => line(if exported { "available" } else { "notavailable" }),
            ("statistics/scsi_lu", name) => store.counters.show(name),
            _ => None,
        }
    }

    fn store_info(&self, key: &StoreKey) -> Option<String> {
        let store = self.lio.store(key)?;
        let path = store.path.clone().unwrap_or_default();
        let readonly = u8::from(store.readonly);
        let plugin = self.lio.hbas.get(&key.hba)?.plugin;
        // "ACTIVATED" means exported, not enabled.
        let status = if self.lio.exports(key).is_empty() { "DEACTIVATED" } else { "ACTIVATED" };
        let (sector, most) = if store.open.is_some() { (512, 4_294_967_288_u32) } else { (0, 0) };
        let mut info = format!(
            "Status: {status}  Max Queue Depth: 0  SectorSize: {sector}  HwMaxSectors: {most}\n        "
        );
        let opened = store.open.as_ref().and_then(|open| open.device.as_ref());
        let device = opened.and_then(|device| self.devices.get(device));
        match (plugin, device) {
            (Plugin::Iblock, Some(device)) => {
                let minor = device.minor;
                let _ = write!(
                    info,
                    "iBlock device: dm-{minor}  UDEV PATH: {path}  readonly: {readonly}\n        Major: 253 Minor: {minor}  CLAIMED: IBLOCK\n"
                );
            }
            (Plugin::Iblock, None) => {
                if !path.is_empty() {
                    let _ = write!(info, "  UDEV PATH: {path}");
                }
                let _ = write!(info, "  readonly: {readonly}\n        Major: 0 Minor: 0\n");
            }
            (Plugin::Fileio, _) => {
                let size = store.file_size.unwrap_or_default();
                let _ = writeln!(
                    info,
                    "TCM FILEIO ID: 0        File: {path}  Size: {size}  Mode: O_DSYNC Async: 0"
                );
            }
            (Plugin::Ramdisk, _) => {
                let pages = store.pages.unwrap_or_default();
                let _ = writeln!(
                    info,
                    "TCM RamDisk ID: 0  RamDisk Makeup: rd_mcp\n        PAGES/PAGE_SIZE: {pages}*4096  SG_table_count: 1  nullio: 0 dummy: 0"
                );
            }
        }
        Some(info)
    }

    fn show_target(&self, key: &TargetKey, part: &str, attr: &str) -> Derived {
        let target = self.lio.target(key)?;
        let failed = target.authenticate_fails + target.authorize_fails + target.negotiate_fails;
        match (part.strip_prefix("fabric_statistics/")?, attr) {
            ("iscsi_instance", "sessions") => {
                line(self.sessions.values().filter(|session| session.tpg.target == *key).count())
            }
            ("iscsi_instance", "nodes") => line(target.tpgs.len()),
            ("iscsi_instance", "portals") => {
                line(target.tpgs.values().map(|tpg| tpg.portals.len()).sum::<usize>())
            }
            ("iscsi_login_stats", "accepts") => line(target.accepts),
            ("iscsi_login_stats", "authenticate_fails") => line(target.authenticate_fails),
            ("iscsi_login_stats", "authorize_fails") => line(target.authorize_fails),
            ("iscsi_login_stats", "negotiate_fails") => line(target.negotiate_fails),
            ("iscsi_logout_stats", "normal_logouts") => line(target.normal_logouts),
            ("iscsi_tgt_attr", "login_fails") => line(failed),
            ("iscsi_tgt_attr", "fail_intr_name") => line(target.last_failed.as_deref().unwrap_or("None")),
            ("iscsi_tgt_attr", "fail_intr_addr") if target.last_failed.is_some() => line("10.10.0.11"),
            _ => None,
        }
    }

    fn show_tpg(&self, key: &TpgKey, part: &str, name: &str) -> Derived {
        match (part, name) {
            ("", "enable") => line(u8::from(self.lio.tpg(key)?.enabled)),
            ("", "rtpi") => line(format_args!("{:#x}", self.lio.tpg(key)?.port_id)),
            ("", "dynamic_sessions") => {
                let dynamic = self.sessions.values().filter(|session| session.tpg == *key && session.dynamic);
                text(dynamic.fold(String::new(), |all, session| all + &session.initiator + "\n"))
            }
            _ => None,
        }
    }

    fn show_lun(&self, key: &LunKey, part: &str, name: &str) -> Derived {
        let lun = self.lio.lun(key)?;
        let Some(store) = self.lio.store_of(key) else {
            return Some(Err(Errno::ENODEV));
        };
        let TargetKey { fabric, name: target } = &key.tpg.target;
        match (part, name) {
            ("", "alua_tg_pt_gp") => line(
                "TG Port Alias: default_tg_pt_gp\nTG Port Group ID: 0\nTG Port Primary Access State: Active/Optimized\nTG Port Primary Access Status: None\nTG Port Secondary Access State: None\nTG Port Secondary Access Status: None",
            ),
            ("statistics/scsi_port" | "statistics/scsi_tgt_port", "dev") => line(store.index),
            ("statistics/scsi_port", "role") => line(format!("Device{}", store.index)),
            ("statistics/scsi_port" | "statistics/scsi_tgt_port", "indx") => line(lun.index),
            ("statistics/scsi_tgt_port", "name") => line(format!("{}Port#{}", fabric.name(), lun.index)),
            ("statistics/scsi_tgt_port", "port_index") => line(format!("{target}+t+{}", key.tpg.tpg)),
            ("statistics/scsi_tgt_port", name) => lun.counters.show(name),
            ("statistics/scsi_transport", "device") => line(format!("scsiTransport{}", fabric.name())),
            ("statistics/scsi_transport", "proto_id") => line(fabric.protocol()),
            ("statistics/scsi_transport", "dev_name") => {
                let serial = String::from_utf8_lossy(&store.serial);
                line(format!("{target}+{}", if serial.is_empty() { "LIO-ORG".into() } else { serial }))
            }
            _ => None,
        }
    }

    fn show_acl(&self, key: &AclKey, part: &str, name: &str) -> Derived {
        let session = self.session_of(key);
        if key.tpg.target.fabric != FabricKind::Iscsi {
            return (part.is_empty() && name == "port_name").then(|| line(&key.initiator)).flatten();
        }
        match (part, name) {
            ("", "cmdsn_depth") => line(self.lio.acl(key)?.depth),
            ("", "info") => text(self.acl_info(key)?),
            ("fabric_statistics/iscsi_sess_stats", name) => match (session, name) {
                (None, "inst") => line(0),
                (None, _) => text(String::new()),
                (Some((_, session)), "cmd_pdus" | "rsp_pdus") => line(session.commands),
                (Some((_, session)), "txdata_octs") => line(session.read_bytes),
                (Some(_), "node") => line(key.tpg.tpg),
                (Some(_), _) => line(0),
            },
            ("param", name) => {
                let (_, session) = session?;
                if let Some(agreed) = session.agreed.get(name) {
                    return line(agreed);
                }
                line(tables::ACL_PARAM_LIVE.iter().find(|(known, _)| *known == name)?.1)
            }
            _ => None,
        }
    }

    /// Returns the ACL's newest session: the kernel shows no other. `None` if it has none.
    fn session_of(&self, key: &AclKey) -> Option<(u64, &Session)> {
        self.sessions
            .iter()
            .rev()
            .find(|(_, session)| session.is_of_acl(key))
            .map(|(id, session)| (*id, session))
    }

    fn acl_info(&self, key: &AclKey) -> Option<String> {
        let depth = u64::from(self.lio.acl(key)?.depth);
        let Some((id, session)) = self.session_of(key) else {
            return Some(format!("No active iSCSI Session for Initiator Endpoint: {}\n", key.initiator));
        };
        let outstanding = self.in_flight.iter().filter(|command| command.session == id).count() as u64;
        let expected = session.commands + 1;
        let most = (expected + depth).saturating_sub(1 + outstanding);
        let window = (most + 1).saturating_sub(expected);
        let alias = key.initiator.rsplit(':').next().unwrap_or_default();
        Some(format!(
            "InitiatorName: {initiator}\nInitiatorAlias: {alias}\nLIO Session ID: {id}   ISID: 0x{isid}  TSIH: {id}  \
             SessionType: Normal\nSession State: TARG_SESS_STATE_LOGGED_IN\n\
             ---------------------[iSCSI Session Values]-----------------------\n  \
             CmdSN/WR  :  CmdSN/WC  :  ExpCmdSN  :  MaxCmdSN  :     ITT    :     TTT\n \
             0x{depth:08x}   0x{window:08x}   0x{expected:08x}   0x{most:08x}   0x0000003f   0x000000ab\n\
             ----------------------[iSCSI Connections]-------------------------\n\
             CID: 0  Connection State: TARG_CONN_STATE_LOGGED_IN\n   Address {address} TCP  StatSN: 0x{expected:08x}\n",
            initiator = key.initiator,
            isid = session.isid_text(" "),
            address = session.address(),
        ))
    }

    fn show_mapped(&self, key: &MappedKey, part: &str, name: &str) -> Derived {
        let mapped = self.lio.mapped(key)?;
        let store = mapped.live.as_ref().and_then(|lun| self.lio.store_of(lun));
        let Some(store) = store else {
            return Some(if part.is_empty() { Ok(String::new()) } else { Err(Errno::ENODEV) });
        };
        match (part, name) {
            ("", "write_protect") => line(u8::from(mapped.write_protect)),
            ("statistics/scsi_att_intr_port" | "statistics/scsi_auth_intr", "dev") => line(store.index),
            ("statistics/scsi_att_intr_port", "port_auth_indx") | ("statistics/scsi_auth_intr", "indx") => {
                line(mapped.index)
            }
            ("statistics/scsi_att_intr_port", "indx" | "port_ident") => match self.session_of(&key.acl) {
                None => Some(Err(Errno::ENODEV)),
                Some((id, _)) if name == "indx" => line(id),
                Some((_, session)) => line(format!("{}+i+{}", key.acl.initiator, session.isid_text(""))),
            },
            ("statistics/scsi_auth_intr", "att_count") => line(1),
            ("statistics/scsi_auth_intr", "intr_name") => line(&key.acl.initiator),
            ("statistics/scsi_auth_intr", name) => mapped.counters.show(name),
            _ => None,
        }
    }
}
