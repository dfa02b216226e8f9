//! HBAs and backstores: `core/…`. What must never happen: a device opened twice, or closed while it
//! is a LUN.

use std::path::PathBuf;

use nix::errno::Errno;

use super::model::{Hba, Lio, Opened, Plugin, Store, StoreKey};
use crate::fake::state::{Machine, Node};

/// Longest HBA name, and longest serial in bytes (`TARGET_CORE_NAME_MAX_LEN`,
/// `INQUIRY_VPD_SERIAL_LEN`).
const HBA_NAME_MAX: usize = 63;
const SERIAL_MAX: usize = 254;

/// Returns the NAA name, 32 hex digits, that LIO builds from a unit serial: `6001405`, then the
/// serial's first 25 hex digits, other characters skipped, filled up with zeros (lio.md, e).
pub fn naa(serial: &str) -> String {
    let digits = serial.chars().filter(char::is_ascii_hexdigit).take(25);
    format!("{:0<32}", "6001405".chars().chain(digits).collect::<String>().to_ascii_lowercase())
}

impl Lio {
    pub(super) fn make_hba(&mut self, name: &str) -> Result<(), Errno> {
        if name.len() > HBA_NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let (driver, id) = match name.strip_prefix("rd_mcp_") {
            Some(id) => ("rd_mcp", id),
            None => name.split_once('_').ok_or(Errno::EINVAL)?,
        };
        let plugin = match driver {
            "iblock" => Plugin::Iblock,
            "fileio" => Plugin::Fileio,
            "rd_mcp" => Plugin::Ramdisk,
            _ => return Err(Errno::EINVAL),
        };
        super::number(id.as_bytes()).map_err(|_| Errno::EINVAL)?;
        let index = self.index();
        self.hbas.insert(name.to_owned(), Hba { plugin, index, ..Hba::default() });
        Ok(())
    }

    pub(super) fn make_store(&mut self, hba: &str, name: &str) -> Result<(), Errno> {
        let index = self.index();
        let hba = self.hbas.get_mut(hba).ok_or(Errno::ENOENT)?;
        let mut store = Store { index, ..Store::default() };
        let product = match hba.plugin {
            Plugin::Iblock => "IBLOCK",
            Plugin::Fileio => "FILEIO",
            Plugin::Ramdisk => "RAMDISK-MCP",
        };
        store.values.set("wwn", "product_id", product);
        hba.stores.insert(name.to_owned(), store);
        Ok(())
    }

    pub(super) fn put_root(&mut self, part: &str, name: &str, value: &[u8]) -> Result<(), Errno> {
        // Only before a backstore or a fabric has registered (lio.md, a).
        if name != "dbroot" || !self.fabrics.is_empty() || !self.hbas.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.values.set(part, name, value.strip_suffix(b"\n").unwrap_or(value));
        Ok(())
    }
}

impl Machine {
    /// A device has another name now. Whoever has it open goes on with it.
    pub(in crate::fake) fn device_renamed(&mut self, from: &PathBuf, to: &PathBuf) {
        let stores = self.lio.hbas.values_mut().flat_map(|hba| hba.stores.values_mut());
        let opened = stores.filter_map(|store| store.open.as_mut()?.device.as_mut());
        let in_flight = self.in_flight.iter_mut().map(|command| &mut command.device);
        for path in opened.chain(in_flight).filter(|path| *path == from) {
            path.clone_from(to);
        }
    }

    pub(super) fn remove_store(&mut self, key: &StoreKey) {
        let open = self.lio.store(key).and_then(|store| store.open.clone());
        if let Some(path) = open.and_then(|open| open.device)
            && let Some(device) = self.devices.get_mut(&path)
        {
            device.claimed = false;
        }
        if let Some(hba) = self.lio.hbas.get_mut(&key.hba) {
            hba.stores.remove(&key.name);
        }
    }

    pub(super) fn put_store(
        &mut self,
        key: &StoreKey,
        part: &str,
        name: &str,
        value: &[u8],
    ) -> Result<(), Errno> {
        match (part, name) {
            ("", "control") => self.control(key, value),
            ("", "enable") => self.enable_store(key, value),
            ("wwn", "vpd_unit_serial") => {
                if value.len() > SERIAL_MAX {
                    return Err(Errno::EOVERFLOW);
                }
                if !self.lio.exports(key).is_empty() {
                    return Err(Errno::EINVAL);
                }
                let store = self.lio.store_mut(key).ok_or(Errno::ENOENT)?;
                store.serial = value.trim_ascii().to_vec();
                Ok(())
            }
            ("pr", "res_aptpl_metadata") if self.lio.exports(key).is_empty() => {
                self.lio.store_mut(key).ok_or(Errno::ENOENT)?.pr.put_back(value)
            }
            ("attrib", "emulate_tpu" | "emulate_tpws") => self.put_provisioning(key, name, value),
            ("attrib", "emulate_rest_reord") => match super::number(value)? {
                0 => Ok(()),
                1 => Err(Errno::ENOSYS),
                _ => Err(Errno::EINVAL),
            },
            _ => Err(Errno::EINVAL),
        }
    }

    /// Sets if initiators may unmap: only possible on a device that takes discards.
    fn put_provisioning(&mut self, key: &StoreKey, name: &str, value: &[u8]) -> Result<(), Errno> {
        let on = super::flag(value)?;
        if on && !self.discards(key) {
            return Err(Errno::ENOSYS);
        }
        let store = self.lio.store_mut(key).ok_or(Errno::ENOENT)?;
        store.values.set("attrib", name, if on { "1" } else { "0" });
        Ok(())
    }

    /// Returns `true` if the open device of a backstore takes discards.
    pub(super) fn discards(&self, key: &StoreKey) -> bool {
        let open = self.lio.store(key).and_then(|store| store.open.as_ref());
        let device = open.and_then(|open| self.devices.get(open.device.as_ref()?));
        device.is_some_and(|device| device.discards)
    }

    /// Writes `control`: comma-separated `key=value`; unknown keys are accepted and ignored.
    fn control(&mut self, key: &StoreKey, value: &[u8]) -> Result<(), Errno> {
        let plugin = self.lio.hbas.get(&key.hba).ok_or(Errno::ENOENT)?.plugin;
        let store = self.lio.store_mut(key).ok_or(Errno::ENOENT)?;
        let text = String::from_utf8_lossy(value).into_owned();
        for option in text.split([',', '\n']).filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match (plugin, name) {
                (Plugin::Iblock, "udev_path") | (Plugin::Fileio, "fd_dev_name") => {
                    if store.open.is_some() {
                        return Err(Errno::EEXIST);
                    }
                    store.path = Some(value.trim().to_owned());
                }
                (Plugin::Iblock, "readonly") => store.readonly = super::number(value.as_bytes())? == 1,
                (Plugin::Fileio, "fd_dev_size") => store.file_size = Some(super::number(value.as_bytes())?),
                (Plugin::Ramdisk, "rd_pages") => store.pages = Some(super::number(value.as_bytes())?),
                _ => {}
            }
        }
        Ok(())
    }

    fn enable_store(&mut self, key: &StoreKey, value: &[u8]) -> Result<(), Errno> {
        if !value.contains(&b'1') {
            return Err(Errno::EINVAL);
        }
        let plugin = self.lio.hbas.get(&key.hba).ok_or(Errno::ENOENT)?.plugin;
        let store = self.lio.store(key).ok_or(Errno::ENOENT)?;
        if store.open.is_some() {
            return Err(Errno::EEXIST);
        }
        let (path, readonly, file_size, pages) =
            (store.path.clone(), store.readonly, store.file_size, store.pages);
        let open = match plugin {
            Plugin::Iblock => self.open_block(path.ok_or(Errno::EINVAL)?.into(), readonly)?,
            Plugin::Fileio => self.open_file(path.ok_or(Errno::EINVAL)?.into(), file_size)?,
            Plugin::Ramdisk => {
                pages.ok_or(Errno::EINVAL)?;
                Opened { device: None, read_only: false }
            }
        };
        let store = self.lio.store_mut(key).ok_or(Errno::ENOENT)?;
        store.open = Some(open);
        // The value becomes the device's own limit.
        store.values.unset("attrib", "max_write_same_len");
        Ok(())
    }

    fn open_block(&mut self, path: PathBuf, readonly: bool) -> Result<Opened, Errno> {
        let device = self.devices.get_mut(&path).ok_or(Errno::ENOENT)?;
        if device.node == Node::File {
            return Err(Errno::ENOTBLK);
        }
        if device.read_only && !readonly {
            return Err(Errno::EACCES);
        }
        if device.in_use() {
            return Err(Errno::EBUSY);
        }
        device.claimed = true;
        Ok(Opened { device: Some(path), read_only: readonly })
    }

    /// Opens a file for fileio, which does not exclude other openers and creates a missing file.
    fn open_file(&mut self, path: PathBuf, size: Option<u64>) -> Result<Opened, Errno> {
        if !self.devices.contains_key(&path) {
            let size = size.ok_or(Errno::EINVAL)?;
            self.add_device(&path, Node::File, size);
        }
        if size.is_none() && self.devices.get(&path).is_some_and(|file| file.node == Node::File) {
            return Err(Errno::EINVAL);
        }
        Ok(Opened { device: Some(path), read_only: false })
    }
}
