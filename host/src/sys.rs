//! System calls that Rust cannot check: ioctls on block devices, SG_IO, prctl, a thread's own table
//! of files, files that come over a socket. The only `unsafe` of the project.
//!
//! What must never happen: a pointer that outlives its call, or a buffer that differs from the
//! kernel's header.
#![allow(unsafe_code, reason = "ioctls take raw pointers; each is wrapped here in a safe function")]

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

mod raw {
    #![allow(missing_docs, reason = "the macros document themselves")]

    // linux/fs.h: BLKGETSIZE64 = _IOR(0x12, 114, size_t), which fills in a u64 all the same.
    nix::ioctl_read!(block_get_size_64, 0x12, 114, usize);

    // linux/fs.h: BLKZEROOUT = _IO(0x12, 127), which takes a pointer to two u64: start and length
    // in bytes.
    nix::ioctl_write_ptr_bad!(block_zero_out, nix::request_code_none!(0x12, 127), [u64; 2]);

    // linux/fs.h: BLKDISCARD = _IO(0x12, 119) 0x1277, which takes such a pointer, too.
    nix::ioctl_write_ptr_bad!(block_discard, nix::request_code_none!(0x12, 119), [u64; 2]);

    // linux/fs.h: BLKROSET = _IO(0x12, 93) 0x125d and BLKROGET = _IO(0x12, 94) 0x125e, which take a
    // pointer to an int.
    nix::ioctl_write_ptr_bad!(block_set_read_only, nix::request_code_none!(0x12, 93), std::ffi::c_int);
    nix::ioctl_read_bad!(block_get_read_only, nix::request_code_none!(0x12, 94), std::ffi::c_int);

    // linux/fs.h: BLKFLSBUF = _IO(0x12, 97) 0x1261.
    nix::ioctl_none!(block_flush, 0x12, 97);

    // linux/fs.h: BLKRAGET = _IO(0x12, 99) 0x1263, which takes a pointer to a long.
    nix::ioctl_read_bad!(block_get_read_ahead, nix::request_code_none!(0x12, 99), std::ffi::c_long);

    // linux/fs.h: BLKGETDISKSEQ = _IOR(0x12, 128, __u64) 0x80081280.
    nix::ioctl_read!(block_get_sequence, 0x12, 128, u64);

    // scsi/sg.h: SG_IO 0x2285, which takes a pointer to a struct sg_io_hdr.
    nix::ioctl_readwrite_bad!(scsi_generic, 0x2285, super::SgHeader);
}

/// `struct sg_io_hdr` of scsi/sg.h, field by field: 88 bytes where pointers have 64 bits, 64 bytes
/// where they have 32.
#[repr(C)]
pub(crate) struct SgHeader {
    interface_id: c_int,
    direction: c_int,
    command_bytes: u8,
    sense_bytes_max: u8,
    iovec_count: u16,
    data_bytes: c_uint,
    data: *mut c_void,
    command: *const u8,
    sense: *mut u8,
    timeout_ms: c_uint,
    flags: c_uint,
    pack_id: c_int,
    user: *mut c_void,
    status: u8,
    masked_status: u8,
    message_status: u8,
    sense_bytes: u8,
    host_status: u16,
    driver_status: u16,
    residual: c_int,
    duration_ms: c_uint,
    info: c_uint,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<SgHeader>() == 88, "the kernel's struct sg_io_hdr has 88 bytes");

/// SG_DXFER_FROM_DEV.
const FROM_DEVICE: c_int = -3;

/// Result of a SCSI command that reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScsiOutcome {
    /// Number of bytes of the buffer that were filled.
    pub(crate) filled: usize,
    /// The SCSI status; 0 is GOOD.
    pub(crate) status: u8,
    /// Status of the host adapter's driver (DID_…); 0 is OK.
    pub(crate) host_status: u16,
    /// Status of the middle layer, without its hint that there is sense data (0x08).
    pub(crate) driver_status: u16,
    /// Sense data; empty if there are none.
    pub(crate) sense: Vec<u8>,
}

/// Sends a SCSI command that reads into `data`, past every cache, and waits for its end. ENOTTY or
/// EINVAL if the file is no SCSI device.
pub(crate) fn scsi_read(
    file: &File,
    command: &[u8],
    data: &mut [u8],
    timeout: Duration,
) -> Result<ScsiOutcome, Errno> {
    let mut sense = [0_u8; 64];
    let length = |bytes: usize| u8::try_from(bytes).map_err(|_| Errno::EINVAL);
    let mut header = SgHeader {
        interface_id: c_int::from(b'S'),
        direction: FROM_DEVICE,
        command_bytes: length(command.len())?,
        sense_bytes_max: length(sense.len())?,
        iovec_count: 0,
        data_bytes: c_uint::try_from(data.len()).map_err(|_| Errno::EINVAL)?,
        data: data.as_mut_ptr().cast(),
        command: command.as_ptr(),
        sense: sense.as_mut_ptr(),
        timeout_ms: c_uint::try_from(timeout.as_millis()).unwrap_or(c_uint::MAX),
        flags: 0,
        pack_id: 0,
        user: ptr::null_mut(),
        status: 0,
        masked_status: 0,
        message_status: 0,
        sense_bytes: 0,
        host_status: 0,
        driver_status: 0,
        residual: 0,
        duration_ms: 0,
        info: 0,
    };
    // SAFETY: the descriptor is open as long as `file` is borrowed. The header is the kernel's
    // struct, and its pointers are to live buffers of exactly the lengths that stand beside them:
    // `data` and `sense` are exclusively ours until the end of this function, `command` is only
    // read. Without SG_FLAG_DIRECT_IO the kernel copies, and with this ioctl on a block device it
    // waits for the command's end: it keeps no pointer.
    unsafe { raw::scsi_generic(file.as_raw_fd(), &raw mut header) }?;
    let missing = usize::try_from(header.residual).unwrap_or(0);
    Ok(ScsiOutcome {
        filled: data.len().saturating_sub(missing),
        status: header.status,
        host_status: header.host_status,
        driver_status: header.driver_status & !0x08,
        sense: sense.get(..usize::from(header.sense_bytes)).unwrap_or(&sense).to_vec(),
    })
}

/// Returns `true` if the host refuses writes to a block device.
pub(crate) fn read_only(file: &File) -> Result<bool, Errno> {
    let mut flag: c_int = 0;
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel writes one int to a
    // live int, and keeps no pointer.
    unsafe { raw::block_get_read_only(file.as_raw_fd(), &raw mut flag) }?;
    Ok(flag != 0)
}

/// Makes the host refuse writes to a block device, or accept them again. EACCES without
/// CAP_SYS_ADMIN.
pub(crate) fn set_read_only(file: &File, read_only: bool) -> Result<(), Errno> {
    let flag = c_int::from(read_only);
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel reads one int from a
    // live int, and keeps no pointer.
    unsafe { raw::block_set_read_only(file.as_raw_fd(), &raw const flag) }?;
    Ok(())
}

/// Writes out and drops the pages of a block device in the page cache. EACCES without
/// CAP_SYS_ADMIN.
pub(crate) fn flush_buffers(file: &File) -> Result<(), Errno> {
    // SAFETY: the descriptor is open as long as `file` is borrowed; the request takes no pointer.
    unsafe { raw::block_flush(file.as_raw_fd()) }?;
    Ok(())
}

/// linux/fs.h: BLKRASET = _IO(0x12, 98), which takes an unsigned long itself.
const SET_READ_AHEAD: u32 = 0x1262;

/// Sets the read-ahead of a block device's page cache, in sectors of 512 bytes; the kernel rounds
/// it down to pages. EACCES without CAP_SYS_ADMIN.
pub(crate) fn set_read_ahead(file: &File, sectors: u32) -> Result<(), Errno> {
    let number = c_ulong::from(sectors);
    // SAFETY: the descriptor is open as long as `file` is borrowed; the request takes a number and
    // no pointer.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), SET_READ_AHEAD.into(), number) })?;
    Ok(())
}

/// Reads the read-ahead of a block device's page cache, in sectors of 512 bytes. A number beyond
/// `u32` becomes `u32::MAX`.
pub(crate) fn read_ahead(file: &File) -> Result<u32, Errno> {
    let mut sectors: c_long = 0;
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel writes one long into
    // a live long, and keeps no pointer.
    unsafe { raw::block_get_read_ahead(file.as_raw_fd(), &raw mut sectors) }?;
    Ok(saturated(sectors))
}

/// Limits a number of sectors. The kernel takes any number: 2 TiB and more are as good as all.
fn saturated(sectors: c_long) -> u32 {
    u32::try_from(sectors.max(0)).unwrap_or(u32::MAX)
}

/// Reads the kernel's sequence number of a disk. ENOTTY before 5.15.
pub(crate) fn disk_sequence(file: &File) -> Result<u64, Errno> {
    let mut sequence = 0_u64;
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel writes one u64 to a
    // live u64, and keeps no pointer.
    unsafe { raw::block_get_sequence(file.as_raw_fd(), &raw mut sequence) }?;
    Ok(sequence)
}

/// linux/prctl.h: PR_SET_IO_FLUSHER.
const SET_IO_FLUSHER: c_int = 57;

/// Marks this process as one that writes to disks depend on: the kernel never waits for such a
/// write to get memory for it (PR_SET_IO_FLUSHER, 5.6 and newer). EPERM without CAP_SYS_RESOURCE.
pub(crate) fn set_io_flusher() -> Result<(), Errno> {
    let (one, zero): (c_ulong, c_ulong) = (1, 0);
    // SAFETY: this request takes numbers only; the unused arguments have to be 0.
    let result = unsafe { libc::prctl(SET_IO_FLUSHER, one, zero, zero, zero) };
    Errno::result(result).map(|_| ())
}

/// Reads a block device's size in bytes. ENOTTY when the file is none.
pub(crate) fn block_size(file: &File) -> Result<u64, Errno> {
    let mut size = 0_u64;
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel writes one u64 (on
    // every architecture, whatever the request's name says) to a live u64, and keeps no pointer.
    unsafe { raw::block_get_size_64(file.as_raw_fd(), (&raw mut size).cast()) }?;
    Ok(size)
}

/// Makes a byte range of a block device read as zeros. EINVAL for a range beyond the end or not in
/// whole logical blocks, EBADF for a file that is not open for writing.
pub(crate) fn zero_out(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    let range = [offset, length];
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel reads two u64 from a
    // live array, and keeps no pointer.
    unsafe { raw::block_zero_out(file.as_raw_fd(), &raw const range) }?;
    Ok(())
}

/// Tells a block device that nobody needs a byte range any more: its contents afterwards are not
/// defined. EOPNOTSUPP for a device that takes no discards, EINVAL and EBADF as [`zero_out`].
pub(crate) fn discard(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    let range = [offset, length];
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel reads two u64 from a
    // live array, and keeps no pointer.
    unsafe { raw::block_discard(file.as_raw_fd(), &raw const range) }?;
    Ok(())
}

/// linux/close_range.h: CLOSE_RANGE_UNSHARE.
const OWN_TABLE: c_int = 1 << 1;

/// Lowest descriptor above the standard streams.
const FIRST: c_uint = 3;

/// Gives the calling thread a table of files of its own. It holds the standard streams and the file
/// with this number. That file was opened in the table that the thread has shared so far, and stays
/// open there. Call it on a new thread that owns no file yet. ENOSYS before 5.9.
pub(crate) fn own_files(kept: RawFd) -> Result<OwnedFd, Errno> {
    let number = c_uint::try_from(kept).ok().filter(|number| *number >= FIRST).ok_or(Errno::EBADF)?;
    let close = |first: c_uint, last: c_uint, flags: c_int| {
        // SAFETY: the call takes numbers only. The first one makes the table this thread's own, so
        // that no other thread's file is closed; what is closed is nobody's: a new thread owns no
        // file.
        Errno::result(unsafe { libc::close_range(first, last, flags) })
    };
    close(number + 1, c_uint::MAX, OWN_TABLE)?;
    if number > FIRST {
        close(FIRST, number - 1, 0)?;
    }
    // SAFETY: the call takes numbers only.
    Errno::result(unsafe { libc::fcntl(kept, libc::F_GETFD) })?;
    // SAFETY: the number is open in this thread's table, and whoever owns it in the other one
    // cannot close it here.
    Ok(unsafe { OwnedFd::from_raw_fd(kept) })
}

/// Returns the next byte that another thread has sent over a socket, and the file with it; `None`
/// when the other end is closed. EAGAIN: none is there yet. EMFILE: the file was lost, there was no
/// place for it.
pub(crate) fn receive_file(socket: BorrowedFd<'_>) -> Result<Option<(u8, OwnedFd)>, Errno> {
    let mut byte = [0];
    let mut space = nix::cmsg_space!(RawFd);
    let mut buffers = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut space), flags)?;
    if message.bytes == 0 {
        return Ok(None);
    }
    let sent = message.cmsgs()?.find_map(|sent| match sent {
        ControlMessageOwned::ScmRights(files) => files.first().copied(),
        _ => None,
    });
    let number = sent.ok_or(Errno::EMFILE)?;
    // SAFETY: the kernel has opened it for this call, and nobody else knows of it.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    Ok(Some((byte[0], file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_block_device() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(block_size(&file), Err(Errno::ENOTTY));
        assert_eq!(zero_out(&file, 0, 512), Err(Errno::ENOTTY));
        assert_eq!(discard(&file, 0, 512), Err(Errno::ENOTTY));
        assert_eq!(read_only(&file), Err(Errno::ENOTTY));
        assert_eq!(set_read_only(&file, true), Err(Errno::ENOTTY));
        assert_eq!(flush_buffers(&file), Err(Errno::ENOTTY));
        assert_eq!(disk_sequence(&file), Err(Errno::ENOTTY));
        let mut data = [7; 8];
        assert_eq!(scsi_read(&file, &[0x12; 6], &mut data, Duration::from_secs(1)), Err(Errno::ENOTTY));
        assert_eq!(data, [7; 8]);
        assert_eq!(scsi_read(&file, &[0; 256], &mut data, Duration::from_secs(1)), Err(Errno::EINVAL));
    }

    #[test]
    fn a_read_ahead_of_any_size_is_a_number() {
        let most = c_long::from(i32::MAX);
        for (sectors, read) in [(0, 0), (256, 256), (most, i32::MAX as u32), (c_long::MAX, u32::MAX), (-8, 0)]
        {
            assert_eq!(saturated(sectors), read);
        }
    }

    #[test]
    fn the_requests_are_the_kernels_numbers() {
        assert_eq!(nix::request_code_none!(0x12, 119), 0x1277);
        assert_eq!(nix::request_code_none!(0x12, 93), 0x125d);
        assert_eq!(nix::request_code_none!(0x12, 94), 0x125e);
        assert_eq!(nix::request_code_none!(0x12, 97), 0x1261);
        assert_eq!(nix::request_code_read!(0x12, 128, size_of::<u64>()), 0x8008_1280);
    }

    #[cfg(target_pointer_width = "64")]
    #[test]
    fn the_sg_header_is_the_kernels() {
        use std::mem::offset_of;
        // The offsets of scsi/sg.h as a C compiler lays them out on 64 bits.
        let at = [
            offset_of!(SgHeader, data_bytes),
            offset_of!(SgHeader, data),
            offset_of!(SgHeader, command),
            offset_of!(SgHeader, sense),
            offset_of!(SgHeader, timeout_ms),
            offset_of!(SgHeader, user),
            offset_of!(SgHeader, status),
            offset_of!(SgHeader, host_status),
            offset_of!(SgHeader, residual),
            offset_of!(SgHeader, info),
        ];
        assert_eq!(at, [12, 16, 24, 32, 40, 56, 64, 68, 72, 80]);
    }
}
