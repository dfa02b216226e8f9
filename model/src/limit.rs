//! Limits of the values of this crate, and those that several programs must agree on, each with its
//! name and its reason. A limit that one crate keeps alone stands there, beside the code that keeps
//! it.

use std::time::Duration;

/// Longest iSCSI name, in bytes (RFC 7143, 4.2.7.1).
pub const ISCSI_NAME_BYTES_MAX: usize = 223;

/// Longest volume group name that LVM takes, in bytes (lvm(8): 127 together with the LV name in
/// `/dev/mapper`).
pub const VG_NAME_BYTES_MAX: usize = 64;

/// Longest logical volume name that LVM takes, in bytes (lvm(8)).
pub const LV_NAME_BYTES_MAX: usize = 127;

/// Longest LVM UUID that is accepted, in bytes. LVM's own have 38 characters (lvm2 2.03).
pub const LV_UUID_BYTES_MAX: usize = 64;

/// Shortest CHAP secret, in bytes. RFC 7143 (12.1.3) asks for 96 random bits; initiators check for
/// 12 characters.
pub const CHAP_SECRET_BYTES_MIN: usize = 12;

/// Longest CHAP secret or user name, in bytes. LIO keeps 256-byte buffers (`MAX_CHAP_*`) including
/// the terminator; open-iscsi 255.
pub const CHAP_BYTES_MAX: usize = 255;

/// Portals of one export. Each is an `np` directory that a plan may have to make.
pub const PORTALS_PER_EXPORT_MAX: usize = 16;

/// Grants of one export. LIO has no such limit, but messages and plans need one.
pub const GRANTS_PER_EXPORT_MAX: usize = 512;

/// Largest LUN number of a Fibre Channel grant: the end of SAM's peripheral device addressing,
/// which every initiator scans.
pub const FC_LUN_MAX: u16 = 255;

/// Fibre Channel ports of one host: more than any host has; messages need a limit.
pub const FC_PORTS_PER_HOST_MAX: usize = 32;

/// Attachments that share one connection: more than one host needs for one volume; messages need a
/// limit.
pub const ATTACHMENTS_PER_CONNECTION_MAX: usize = 64;

/// Opaque data that a spec carries for the controller, in bytes.
pub const OPAQUE_BYTES_MAX: usize = 64 * 1024;

/// Smallest volume: one LVM extent of the default size.
pub const VOLUME_BYTES_MIN: u64 = 4 * 1024 * 1024;

/// Largest volume, 8 EiB less one extent: LVM and the block layer count bytes in a signed 64-bit
/// number.
pub const VOLUME_BYTES_MAX: u64 = (i64::MAX as u64) - 4 * 1024 * 1024 + 1;

/// Fill level of a thin pool's data from which the pool takes no new volume, snapshot or growth, in
/// parts of 10,000: what is left is for the volumes that are there.
pub const THIN_POOL_DATA_CLOSED: u32 = 9_500;

/// Fill level of a thin pool's metadata from which the pool takes nothing new, in parts of 10,000.
/// A pool whose metadata are full has to be repaired, so it closes earlier.
pub const THIN_POOL_METADATA_CLOSED: u32 = 9_000;

/// Longest unit serial that LIO takes (`INQUIRY_VPD_SERIAL_LEN` 254 including the terminator).
pub const SERIAL_BYTES_MAX: usize = 253;

/// Time that an agent keeps a tombstone. A controller database restored from an old backup learns
/// from it what was revoked.
pub const TOMBSTONE_KEEP: Duration = Duration::from_hours(90 * 24);

/// Time that a call waits for the kernel before it answers with what is known (architecture: a
/// force detach answers within 5 s).
pub const KERNEL_ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// Longest deadline that a caller may ask for.
pub const KERNEL_ANSWER_DEADLINE_MAX: Duration = Duration::from_mins(5);
