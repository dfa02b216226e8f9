//! Fibre Channel on a real kernel: the contract's rows on tcm_fc, and the facts behind decisions 22
//! and 23. A write is made late: its command has arrived, and its data are still on their way while
//! the target's tree changes.
//!
//! What must never happen here: a trial counted whose change came after the data.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_rig::{Output, Rig, RigOptions, Vm};

use crate::disk::Disk;
use crate::evidence::{Evidence, check};
use crate::fibre;
use crate::site::{BIN, Programs, TARGET};

/// Delay of a write's data after their command.
const LATE: Duration = Duration::from_millis(1500);

/// Most repetitions of a trial whose change came too late.
const TRIES: usize = 6;

/// Script that runs at the target once it has looked up a command. `$1` is the block that the
/// command writes, `$2` its mark, the rest are changes. Prints `late` if the write landed before
/// the last change was done.
const AT_TARGET: &str = r#"
block=$1; mark=$2; shift 2
count=$MAPPED/statistics/scsi_auth_intr/num_cmds
landed() { [ "$(dd if=$DEVICE bs=512 skip=$block count=1 iflag=direct 2>/dev/null | head -c 1)" = $mark ]; }
was=$(cat $count); echo ready
while [ "$(cat $count)" = "$was" ]; do :; done
for change in "$@"; do case $change in
  shut) echo 1 > $LUN/alua_tg_pt_offline;;
  open) echo 0 > $LUN/alua_tg_pt_offline;;
  protect) echo 1 > $MAPPED/write_protect;;
  unmap) rm $MAPPED/lun;;
esac; done
landed && echo late
case $1 in unmap) rm $LUN/store && { landed && echo drained || echo not drained; };; esac
"#;

/// Writes one block full of `$2` at `$1` of the device `$3`, past the block layer, once.
const AT_HOST: &str = r"
head -c 512 /dev/zero | tr '\0' $2 > /tmp/block
exec sg_raw -t 20 -s 512 -i /tmp/block $3 2a 00 00 00 00 $(printf %02x $1) 00 00 01 00 2>&1
";

pub(super) fn run(programs: &Programs) -> Result<()> {
    let rig = Rig::up(programs.show_in(RigOptions::standard(1).named("fc"))?)?;
    let result = scenes(&rig);
    if result.is_err() {
        let folder = rig.dir().with_file_name("failed-fc");
        if let Err(error) = rig.save_evidence(&folder) {
            eprintln!("cannot save the evidence to {}: {error:#}", folder.display());
        }
    }
    rig.verdict(result)
}

fn scenes(rig: &Rig) -> Result<()> {
    let (storage, host) = (rig.vm("storage")?, rig.vm("host1")?);
    let mut evidence = Evidence::default();
    fibre::prepare(storage, "tcm_fc target_core_iblock dm-mod")?;
    fibre::prepare(host, "sd_mod sg")?;
    contract(storage, &mut evidence)?;
    let target = Target::make(storage, host)?;
    fibre::open_port(storage)?;
    fibre::open_port(host)?;
    let disk = fibre::generic(host, 1)?;
    write(&disk, 1, 'a')?.ok().context("the first write")?;
    evidence.shows("a write over Fibre Channel, to a TPG LUN that is the initiator's own");
    shut_and_open(&target, &disk, &mut evidence)?;
    copies(&target, &disk, &fibre::generic(host, 2)?, &mut evidence)?;
    fibre::delay(host, LATE)?;
    late_writes(&target, &disk, &mut evidence)
}

/// Every row on Fibre Channel, on this kernel.
fn contract(storage: &Vm, evidence: &mut Evidence) -> Result<()> {
    let disks = storage.data_disks();
    let device = disks.first().context("a data disk")?;
    let program = format!("{BIN}/mooring-contract");
    storage.sh("mkdir -p /var/target/pr; truncate -s 1M /var/file")?.ok()?;
    storage
        .sh(&format!(
            "for n in 0 1 2; do echo 0 8192 linear {device} $((n * 8192)) | dmsetup create part$n; done; udevadm settle"
        ))?
        .ok()?;
    let argv =
        [&program, "--fibre-channel", "--device", "/dev/mapper/part1", "--device2", "/dev/mapper/part2"];
    let out =
        storage.command(argv).arg("--regular-file").arg("/var/file").timeout(Duration::from_mins(4)).run()?;
    out.stdout.lines().filter(|line| !line.starts_with("ok ")).for_each(|line| println!("   {line}"));
    let rows = out.ok().context("the contract on Fibre Channel")?.stdout;
    let passed = rows.lines().filter(|line| line.starts_with("ok ")).count();
    check(passed > 40, || format!("few rows were run: {rows}"))?;
    evidence.shows(format!("{passed} rows of the contract on tcm_fc"));
    Ok(())
}

/// One nexus on the storage node, made by hand.
struct Target<'a> {
    vm: &'a Vm,
    lun: String,
    mapped: String,
}

impl<'a> Target<'a> {
    const DEVICE: &'static str = "/dev/mapper/part0";
    const STORE: &'static str = "core/iblock_0/fc";
    const SECOND: &'static str = "/dev/mapper/part1";

    fn make(vm: &'a Vm, host: &Vm) -> Result<Self> {
        let port = format!("{TARGET}/fc/{}", fibre::port_name(vm)?);
        let lun = format!("{port}/tpgt_1/lun/lun_257");
        let acl = format!("{port}/tpgt_1/acls/{}", fibre::port_name(host)?);
        let target = Self { vm, mapped: format!("{acl}/lun_1"), lun };
        let (device, store) = (Self::DEVICE, Self::STORE);
        vm.sh(&format!(
            "set -e; mkdir -p {TARGET}/{store}; echo udev_path={device} > {TARGET}/{store}/control; \
             echo 5ca1ab1e-0001 > {TARGET}/{store}/wwn/vpd_unit_serial; echo 1 > {TARGET}/{store}/enable; [ -d {TARGET}/fc ] || mkdir {TARGET}/fc; mkdir {port}; mkdir {port}/tpgt_1; \
             mkdir {} {acl}; mkdir {}",
            target.lun, target.mapped
        ))?
        .ok()
        .context("make the port's portal group")?;
        target.link()?;
        target.second(&port, &acl)?;
        Ok(target)
    }

    /// Adds another volume, as LUN 2 of the same host: read-only.
    fn second(&self, port: &str, acl: &str) -> Result<()> {
        let (device, store, lun) =
            (Self::SECOND, "core/iblock_0/second", format!("{port}/tpgt_1/lun/lun_258"));
        self.vm
            .sh(&format!(
                "set -e; mkdir {TARGET}/{store}; echo udev_path={device} > {TARGET}/{store}/control; \
                 echo 5ca1ab1e-0002 > {TARGET}/{store}/wwn/vpd_unit_serial; echo 1 > {TARGET}/{store}/enable; mkdir {lun}; ln -s {TARGET}/{store} {lun}/store; \
                 mkdir {acl}/lun_2; ln -s {lun} {acl}/lun_2/lun; echo 1 > {acl}/lun_2/write_protect"
            ))?
            .ok()
            .context("map the second LUN")?;
        Ok(())
    }

    /// Shows the backstore, without write protection, and maps it.
    fn link(&self) -> Result<()> {
        let Self { lun, mapped, .. } = self;
        let store = Self::STORE;
        self.vm
            .sh(&format!(
                "set -e; [ -e {lun}/store ] || ln -s {TARGET}/{store} {lun}/store; echo 0 > {lun}/alua_tg_pt_offline; \
                 [ -e {mapped}/lun ] || ln -s {lun} {mapped}/lun; echo 0 > {mapped}/write_protect"
            ))?
            .ok()
            .context("map the LUN")?;
        Ok(())
    }

    fn shut(&self, shut: bool) -> Result<()> {
        self.vm.sh(&format!("echo {} > {}/alua_tg_pt_offline", u8::from(shut), self.lun))?.ok()?;
        Ok(())
    }

    /// The first byte of a block, from the device itself.
    fn mark(&self, block: u8) -> Result<String> {
        self.mark_of(Self::DEVICE, block)
    }

    fn mark_of(&self, device: &str, block: u8) -> Result<String> {
        let read = format!(
            "dd if={device} bs=512 skip={block} count=1 iflag=direct 2>/dev/null | head -c 1 | tr '\\0' ."
        );
        Ok(self.vm.sh(&read)?.ok()?.line().to_owned())
    }

    /// Makes a write whose data come after these changes. Returns the host's result and the
    /// target's output. Repeats it on another block while the changes come too late.
    fn late_write(
        &self,
        disk: &Disk<'_>,
        blocks: &mut impl Iterator<Item = u8>,
        changes: &[&str],
    ) -> Result<Trial> {
        for _ in 0..TRIES {
            self.link()?;
            let block = blocks.next().context("a block for the next trial")?;
            let (device, mark) = (Self::DEVICE, "x");
            let script = format!("DEVICE={device}; LUN={}; MAPPED={};\n{AT_TARGET}", self.lun, self.mapped);
            let mut argv = vec!["sh".to_owned(), "-c".to_owned(), script, "trial".to_owned()];
            argv.extend([block.to_string(), mark.to_owned()]);
            argv.extend(changes.iter().map(|&change| change.to_owned()));
            let at_target = self.vm.command(argv).timeout(Duration::from_mins(4)).spawn()?;
            crate::evidence::wait_for("the target to watch", Duration::from_secs(30), || {
                Ok(at_target.stdout_so_far().contains("ready").then_some(()))
            })?;
            let said = write(disk, block, 'x')?;
            let seen = at_target.wait()?.ok()?.stdout;
            if !seen.lines().any(|line| line == "late") {
                return Ok(Trial { said, seen, landed: self.mark(block)? == mark });
            }
        }
        bail!("{changes:?}: the target's changes came after the data {TRIES} times")
    }
}

/// The end of a late write.
struct Trial {
    said: Output,
    seen: String,
    landed: bool,
}

impl Trial {
    fn check(&self, landed: bool, word: &str) -> Result<()> {
        check(self.landed == landed && self.said.stdout.contains(word), || {
            format!("landed: {}, wanted {landed}, and {word:?} in: {}", self.landed, self.said.stdout)
        })
    }
}

/// Writes one block past the block layer, once.
fn write(disk: &Disk<'_>, block: u8, mark: char) -> Result<Output> {
    let argv = ["sh", "-c", AT_HOST, "write", &block.to_string(), &mark.to_string(), &disk.path];
    disk.vm.command(argv).timeout(Duration::from_mins(4)).run()
}

fn shut_and_open(target: &Target<'_>, disk: &Disk<'_>, evidence: &mut Evidence) -> Result<()> {
    target.shut(true)?;
    let refused = write(disk, 1, 'b')?;
    check(refused.stdout.contains("Not Ready") && target.mark(1)? == "a", || {
        format!("a write to a shut LUN: {}", refused.stdout)
    })?;
    target.shut(false)?;
    write(disk, 1, 'c')?.ok()?;
    check(target.mark(1)? == "c", || "the control: a write to the LUN that is open again".to_owned())?;
    evidence
        .shows("a shut LUN executes nothing (NOT READY); once open it executes again, without a new login");
    Ok(())
}

/// Sends EXTENDED COPY from a writable LUN to a read-only one, both of the same host.
fn copies(target: &Target<'_>, from: &Disk<'_>, to: &Disk<'_>, evidence: &mut Evidence) -> Result<()> {
    let refused = write(to, 1, 'd')?;
    check(refused.stdout.contains("Data Protect"), || {
        format!("a write to the second LUN: {}", refused.stdout)
    })?;
    // `1` is the kernel's default, `0` ours. Returns whether the block has landed, and the host's
    // result.
    let copy = |takes: &str, block: u8| -> Result<(bool, String)> {
        target.vm.sh(&format!("echo {takes} > {TARGET}/{}/attrib/emulate_3pc", Target::STORE))?.ok()?;
        let (source, sink) = (&from.path, &to.path);
        let copy =
            format!("sg_xcopy -v --on_src if={source} of={sink} bs=512 count=1 skip=1 seek={block} 2>&1");
        let said = from.vm.sh(&copy)?.stdout;
        Ok((target.mark_of(Target::SECOND, block)? == target.mark(1)?, said))
    };
    let (landed, said) = copy("1", 2)?;
    check(landed, || format!("the control: the kernel did not copy to the protected LUN: {said}"))?;
    evidence
        .shows("the control: EXTENDED COPY writes to a LUN that refuses a WRITE, from one of the same ACL");
    let (landed, said) = copy("0", 3)?;
    check(!landed, || format!("emulate_3pc=0 did not keep a copy from landing: {said}"))?;
    evidence.shows("with emulate_3pc=0 on the LUN that is asked it is refused, and nothing lands");
    Ok(())
}

fn late_writes(target: &Target<'_>, disk: &Disk<'_>, evidence: &mut Evidence) -> Result<()> {
    let mut blocks = 2..;
    target.late_write(disk, &mut blocks, &["shut"])?.check(false, "Not Ready")?;
    evidence.shows(
        "a write that was looked up before and whose data come after the shutting: refused, not on the disk",
    );
    target.late_write(disk, &mut blocks, &["protect"])?.check(true, "Good")?;
    evidence.shows("the control: write_protect alone lets such a write land");
    target.late_write(disk, &mut blocks, &["shut", "protect", "open"])?.check(true, "Good")?;
    evidence.shows("the control: so does a LUN that was shut, protected and opened; num_cmds told of it");
    let drained = target.late_write(disk, &mut blocks, &["unmap"])?;
    drained.check(true, "Good")?;
    check(drained.seen.lines().any(|line| line == "drained"), || {
        format!("unlinking the TPG LUN did not wait for the write: {}", drained.seen)
    })?;
    evidence
        .shows("unmapped, a late write lands all the same: the unlink of the TPG LUN returned only after it");
    let refused = write(disk, 1, 'd')?;
    check(refused.status.code() != Some(0) && target.mark(1)? == "c", || {
        format!("a write after the drain: {}", refused.stdout)
    })?;
    evidence.shows("after it nothing lands");
    Ok(())
}
