//! Rows on HBAs and backstores.

use nix::errno::Errno;

use super::script::control;
use super::{Answer, Row, Script};
use crate::{TreeError, TreePath};

fn core(name: &str) -> TreePath {
    TreePath::new("core").join(name)
}

const BARE_INFO: &str = "Status: DEACTIVATED  Max Queue Depth: 0  SectorSize: 0  HwMaxSectors: 0\n          readonly: 0\n        Major: 0 Minor: 0\n";

/// Reads the word after `Status:` in a backstore's `info`.
fn status(s: &Script<'_>, store: &TreePath) -> Result<Answer, TreeError> {
    let info = s.read(&store.join("info"))?;
    Ok(Ok(info.split_whitespace().nth(1).unwrap_or_default().to_owned()))
}

/// Makes a backstore that has opened a device which takes no discards.
fn without_discards(s: &Script<'_>) -> Result<TreePath, TreeError> {
    let store = s.bare_store()?;
    let device = s.env.no_discards_device.as_deref().unwrap_or(&s.env.device);
    s.write(&store.join("control"), control(device))?;
    s.write(&store.join("enable"), 1)?;
    Ok(store)
}

/// Writes 0 to an attribute of a backstore under its LUN.
fn seals(s: &Script<'_>, attribute: &str) -> Result<Answer, TreeError> {
    let [store, ..] = s.export()?;
    s.write_read(&store.join("attrib").join(attribute), 0)
}

pub(super) const ROWS: &[Row] = &[
    Row::fails("mkdir core/nosuch_0", Errno::EINVAL, |s| s.try_mkdir(&core("nosuch_0"))),
    Row::fails("mkdir core/iblock", Errno::EINVAL, |s| s.try_mkdir(&core("iblock"))),
    Row::fails("mkdir core/iblock_x", Errno::EINVAL, |s| s.try_mkdir(&core("iblock_x"))),
    Row::ok("mkdir core/iblock_99001", |s| s.try_mkdir(&core("iblock_99001"))),
    Row::fails("mkdir of an HBA that exists", Errno::EEXIST, |s| s.try_mkdir(&s.hba()?)),
    Row::fails("mkdir of a backstore that exists", Errno::EEXIST, |s| s.try_mkdir(&s.bare_store()?)),
    Row::fails("mkdir below an object that is missing", Errno::ENOENT, |s| {
        s.try_mkdir(&core("iblock_99002").join("vol"))
    }),
    Row::fails("rmdir of an object that is missing", Errno::ENOENT, |s| s.try_rmdir(&core("iblock_99002"))),
    Row::fails("rmdir core", Errno::EPERM, |s| s.try_rmdir(&TreePath::new("core"))),
    Row::fails("rmdir of an HBA with backstores", Errno::ENOTEMPTY, |s| {
        s.try_rmdir(&s.bare_store()?.parent())
    }),
    Row::fails("rmdir of a backstore's attrib folder", Errno::EPERM, |s| {
        s.try_rmdir(&s.bare_store()?.join("attrib"))
    }),
    Row::fails("mkdir in a folder that takes none", Errno::EPERM, |s| {
        s.try_mkdir(&s.bare_store()?.join("attrib").join("x"))
    }),
    Row::ok("backstore name with blanks", |s| s.try_mkdir(&s.hba()?.join("a name with blanks"))),
    Row::ok("backstore name of 200 characters", |s| s.try_mkdir(&s.hba()?.join("n".repeat(200)))),
    Row::fails("a name of 256 characters", Errno::ENAMETOOLONG, |s| {
        s.try_mkdir(&s.hba()?.join("n".repeat(256)))
    }),
    Row::fails("enable before control", Errno::EINVAL, |s| s.try_write(&s.bare_store()?.join("enable"), 1)),
    Row::ok("control to a device that is missing", |s| {
        s.try_write(&s.bare_store()?.join("control"), "udev_path=/dev/mooring-contract-missing")
    }),
    Row::fails("enable on a device that is missing", Errno::ENOENT, |s| {
        let store = s.bare_store()?;
        s.write(&store.join("control"), "udev_path=/dev/mooring-contract-missing")?;
        s.try_write(&store.join("enable"), 1)
    }),
    Row::ok("control with an unknown key", |s| s.try_write(&s.bare_store()?.join("control"), "bogus=1")),
    Row::fails("enable on a regular file", Errno::ENOTBLK, |s| {
        let store = s.bare_store()?;
        s.write(&store.join("control"), control(&s.env.regular_file))?;
        s.try_write(&store.join("enable"), 1)
    }),
    Row::fails("read control", Errno::EACCES, |s| s.try_read(&s.bare_store()?.join("control"))),
    Row::ok("fileio makes a missing file", |s| {
        let hba = core("fileio_99001");
        s.mkdir(&hba)?;
        s.mkdir(&hba.join("vol"))?;
        let control = format!("fd_dev_name={},fd_dev_size=1048576", s.env.new_file.display());
        s.write(&hba.join("vol").join("control"), control)?;
        s.file_was_made(&s.env.new_file);
        s.try_write(&hba.join("vol").join("enable"), 1)
    }),
    Row::fails("fileio without a size", Errno::EINVAL, |s| {
        let hba = core("fileio_99001");
        s.mkdir(&hba)?;
        s.mkdir(&hba.join("vol"))?;
        s.write(&hba.join("vol").join("control"), format!("fd_dev_name={}-none", s.env.new_file.display()))?;
        s.try_write(&hba.join("vol").join("enable"), 1)
    }),
    Row::ok("enable", |s| s.try_read(&s.store()?.join("enable"))),
    Row::reads("an enabled backstore's enable", "1\n", |s| s.try_read(&s.store()?.join("enable"))),
    Row::fails("second backstore on one device", Errno::EBUSY, |s| {
        let second = s.store()?.parent().join("second");
        s.mkdir(&second)?;
        s.write(&second.join("control"), control(&s.env.device))?;
        s.try_write(&second.join("enable"), 1)
    }),
    Row::ok("second backstore on another device, same HBA", |s| {
        let second = s.store()?.parent().join("second");
        s.mkdir(&second)?;
        s.write(&second.join("control"), control(&s.env.device2))?;
        s.try_write(&second.join("enable"), 1)
    }),
    Row::fails("enable=0 on an enabled backstore", Errno::EINVAL, |s| {
        s.try_write(&s.store()?.join("enable"), 0)
    }),
    Row::fails("enable=1 twice", Errno::EEXIST, |s| s.try_write(&s.store()?.join("enable"), 1)),
    Row::fails("control udev_path after enable", Errno::EEXIST, |s| {
        s.try_write(&s.store()?.join("control"), control(&s.env.device2))
    }),
    Row::reads("control readonly=1 shows in info", "readonly: 1", |s| {
        let store = s.bare_store()?;
        s.write(&store.join("control"), format!("{},readonly=1", control(&s.env.device)))?;
        s.write(&store.join("enable"), 1)?;
        let info = s.read(&store.join("info"))?;
        Ok(Ok(info
            .lines()
            .find_map(|line| line.find("readonly:").map(|at| line[at..].to_owned()))
            .unwrap_or(info)))
    }),
    Row::reads("an empty serial reads as its label", "T10 VPD Unit Serial Number: \n", |s| {
        s.try_read(&s.bare_store()?.join("wwn").join("vpd_unit_serial"))
    }),
    Row::reads("a serial reads with its label", "T10 VPD Unit Serial Number: abc-1\n", |s| {
        s.write_read(&s.bare_store()?.join("wwn").join("vpd_unit_serial"), "abc-1")
    }),
    Row::reads("a serial's newline is dropped", "T10 VPD Unit Serial Number: abc-1\n", |s| {
        s.write_read(&s.bare_store()?.join("wwn").join("vpd_unit_serial"), "abc-1\n")
    }),
    Row::ok("serial of an enabled backstore", |s| {
        s.try_write(&s.store()?.join("wwn").join("vpd_unit_serial"), "abc-2")
    }),
    Row::fails("serial while exported", Errno::EINVAL, |s| {
        let [store, ..] = s.export()?;
        s.try_write(&store.join("wwn").join("vpd_unit_serial"), "abc-2")
    }),
    Row::fails("rmdir of a backstore that is a LUN", Errno::EBUSY, |s| {
        let [store, ..] = s.export()?;
        s.try_rmdir(&store)
    }),
    Row::reads("udev_path is free text", "/dev/anything\n", |s| {
        s.write_read(&s.bare_store()?.join("udev_path"), "/dev/anything")
    }),
    Row::fails("emulate_write_cache=1 on iblock", Errno::EINVAL, |s| {
        s.try_write(&s.store()?.join("attrib").join("emulate_write_cache"), 1)
    }),
    Row::fails("rmdir of an attribute", Errno::ENOTDIR, |s| s.try_rmdir(&s.bare_store()?.join("info"))),
    Row::ok("is_nonrot=1 while exported", |s| {
        let [store, ..] = s.export()?;
        s.try_write(&store.join("attrib").join("is_nonrot"), 1)
    }),
    Row::fails("emulate_model_alias=1 while exported", Errno::EINVAL, |s| {
        let [store, ..] = s.export()?;
        s.try_write(&store.join("attrib").join("emulate_model_alias"), 1)
    }),
    Row::fails("optimal_sectors while exported", Errno::EINVAL, |s| {
        let [store, ..] = s.export()?;
        s.try_write(&store.join("attrib").join("optimal_sectors"), 2048)
    }),
    Row::reads("optimal_sectors before export", "2048\n", |s| {
        s.write_read(&s.store()?.join("attrib").join("optimal_sectors"), 2048)
    }),
    Row::fails("block_size=513", Errno::EINVAL, |s| {
        s.try_write(&s.store()?.join("attrib").join("block_size"), 513)
    }),
    Row::fails("queue_depth=0", Errno::EINVAL, |s| {
        s.try_write(&s.store()?.join("attrib").join("queue_depth"), 0)
    }),
    Row::fails("pi_prot_type", Errno::ENOSYS, |s| {
        s.try_write(&s.store()?.join("attrib").join("pi_prot_type"), 1)
    }),
    Row::fails("write of a read-only attribute", Errno::EACCES, |s| {
        s.try_write(&s.store()?.join("attrib").join("hw_block_size"), 512)
    }),
    Row::reads("an alias that was never written", "", |s| s.try_read(&s.bare_store()?.join("alias"))),
    Row::fails("write of an attribute that is missing", Errno::ENOENT, |s| {
        s.try_write(&s.store()?.join("attrib").join("nosuch"), 1)
    }),
    Row::fails("a write of no bytes", Errno::EFAULT, |s| s.try_write(&s.bare_store()?.join("enable"), "")),
    Row::fails("a write of 5000 bytes is judged by its first 4095", Errno::EINVAL, |s| {
        s.try_write(&s.bare_store()?.join("enable"), "2".repeat(5000))
    }),
    Row::reads("info of a new backstore", BARE_INFO, |s| s.try_read(&s.bare_store()?.join("info"))),
    Row::reads("status of an enabled backstore that is not exported", "DEACTIVATED", |s| {
        status(s, &s.store()?)
    }),
    Row::reads("status of an exported backstore", "ACTIVATED", |s| {
        let [store, ..] = s.export()?;
        status(s, &store)
    }),
    Row::reads("block_size of a new backstore", "0\n", |s| {
        s.try_read(&s.bare_store()?.join("attrib").join("block_size"))
    }),
    Row::reads("a device's flag is judged by its first character", "0\n", |s| {
        s.write_read(&s.store()?.join("attrib").join("emulate_tpu"), "0x1")
    }),
    Row::reads("a device's flag may be y", "1\n", |s| {
        s.write_read(&s.store()?.join("attrib").join("emulate_tpu"), "y")
    }),
    Row::fails("a device's flag with a blank before it", Errno::EINVAL, |s| {
        s.try_write(&s.store()?.join("attrib").join("emulate_tpu"), " 1")
    }),
    Row::reads("emulate_tpu=1 before export", "1\n", |s| {
        s.write_read(&s.store()?.join("attrib").join("emulate_tpu"), 1)
    }),
    Row::ok("emulate_tpu=1 while exported", |s| {
        let [store, ..] = s.export()?;
        s.try_write(&store.join("attrib").join("emulate_tpu"), 1)
    }),
    Row::reads("emulate_tpu makes nothing of emulate_tpws", "0\n", |s| {
        let attrib = s.store()?.join("attrib");
        s.write(&attrib.join("emulate_tpu"), 1)?;
        s.try_read(&attrib.join("emulate_tpws"))
    }),
    Row::reads("unmap_zeroes_data of an enabled backstore", "0\n", |s| {
        s.try_read(&s.store()?.join("attrib").join("unmap_zeroes_data"))
    }),
    Row::fails("unmap_zeroes_data=1 while exported", Errno::EINVAL, |s| {
        let [store, ..] = s.export()?;
        s.try_write(&store.join("attrib").join("unmap_zeroes_data"), 1)
    }),
    Row::fails("emulate_tpu=1 on a device without discards", Errno::ENOSYS, |s| {
        s.try_write(&without_discards(s)?.join("attrib").join("emulate_tpu"), 1)
    })
    .on_device_without_discards(),
    Row::fails("emulate_tpws=1 on a device without discards", Errno::ENOSYS, |s| {
        s.try_write(&without_discards(s)?.join("attrib").join("emulate_tpws"), 1)
    })
    .on_device_without_discards(),
    Row::reads("emulate_tpu=0 on a device without discards", "0\n", |s| {
        s.write_read(&without_discards(s)?.join("attrib").join("emulate_tpu"), 0)
    })
    .on_device_without_discards(),
    Row::reads("enable sets max_write_same_len anew", "not 0", |s| {
        let store = s.bare_store()?;
        let limit = store.join("attrib").join("max_write_same_len");
        s.write(&limit, 0)?;
        s.write(&store.join("control"), control(&s.env.device))?;
        s.write(&store.join("enable"), 1)?;
        Ok(Ok(if s.read(&limit)?.trim() == "0" { "0" } else { "not 0" }.to_owned()))
    }),
    Row::reads("max_write_same_len=0 while exported", "0\n", |s| seals(s, "max_write_same_len")),
    Row::reads("emulate_caw=0 while exported", "0\n", |s| seals(s, "emulate_caw")),
    Row::reads("emulate_3pc=0 while exported", "0\n", |s| seals(s, "emulate_3pc")),
    Row::fails("enable on a read-only device", Errno::EACCES, |s| {
        let store = s.bare_store()?;
        s.write(&store.join("control"), control(s.env.read_only_device.as_deref().unwrap_or(&s.env.device)))?;
        s.try_write(&store.join("enable"), 1)
    })
    .on_read_only_device(),
    Row::reads("a mapped LUN of a read-only backstore is protected", "1\n", |s| {
        let store = s.bare_store()?;
        let device = s.env.read_only_device.as_deref().unwrap_or(&s.env.device);
        s.write(&store.join("control"), format!("{},readonly=1", control(device)))?;
        s.write(&store.join("enable"), 1)?;
        let tpg = s.tpg()?;
        let lun = s.lun(&tpg, &store)?;
        let mapped = s.bare_mapped(&tpg)?;
        s.symlink(&lun, &mapped.join("lun"))?;
        s.try_read(&mapped.join("write_protect"))
    })
    .on_read_only_device(),
];
