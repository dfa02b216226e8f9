//! The system calls that Rust cannot check: ioctls on block devices. The only `unsafe` of the project.
//!
//! What must never happen: a pointer that outlives its call, or a buffer that is not what the kernel's header says.
#![allow(unsafe_code, reason = "ioctls take raw pointers; each is wrapped here in a safe function")]

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

mod raw {
    #![allow(missing_docs, reason = "the macros document themselves")]

    // linux/fs.h: BLKGETSIZE64 = _IOR(0x12, 114, size_t), which fills in a u64 all the same.
    nix::ioctl_read!(block_get_size_64, 0x12, 114, usize);

    // linux/fs.h: BLKZEROOUT = _IO(0x12, 127), which takes a pointer to two u64: start and length in bytes.
    nix::ioctl_write_ptr_bad!(block_zero_out, nix::request_code_none!(0x12, 127), [u64; 2]);
}

/// A block device's size in bytes. ENOTTY when the file is none.
pub(crate) fn block_size(file: &File) -> Result<u64, Errno> {
    let mut size = 0_u64;
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel writes one u64 (on every architecture,
    // whatever the request's name says) to a live u64, and keeps no pointer.
    unsafe { raw::block_get_size_64(file.as_raw_fd(), (&raw mut size).cast()) }?;
    Ok(size)
}

/// Makes a byte range of a block device read as zeros. EINVAL for a range beyond the end or not in whole logical blocks,
/// EBADF for a file that is not open for writing.
pub(crate) fn zero_out(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    let range = [offset, length];
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel reads two u64 from a live array, and
    // keeps no pointer.
    unsafe { raw::block_zero_out(file.as_raw_fd(), &raw const range) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_block_device() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(block_size(&file), Err(Errno::ENOTTY));
        assert_eq!(zero_out(&file, 0, 512), Err(Errno::ENOTTY));
    }
}
