//! Extracts the uncompressed kernel from a Debian `vmlinuz`.
//!
//! QEMU enters an uncompressed `vmlinux` directly (PVH), so the guest spends no seconds under
//! emulation on unpacking itself. The header fields are those of the x86 boot protocol.
//!
//! What must never happen here: bad input read beyond its end; something that is no kernel handed
//! to QEMU.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

const SETUP_SECTS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const VERSION: usize = 0x206;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// Compression of the payload, and the Debian tool that undoes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// gzip
    Gzip,
    /// xz
    Xz,
    /// zstd
    Zstd,
    /// lz4, legacy frames
    Lz4,
}

impl Compression {
    fn of(payload: &[u8]) -> Option<Self> {
        let magics: [(&[u8], Self); 4] = [
            (&[0x1f, 0x8b], Self::Gzip),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Self::Xz),
            (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
            (&[0x02, 0x21, 0x4c, 0x18], Self::Lz4),
        ];
        magics.into_iter().find(|(magic, _)| payload.starts_with(magic)).map(|(_, kind)| kind)
    }

    fn program(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        }
    }
}

fn bytes_at<const N: usize>(image: &[u8], at: usize) -> Result<[u8; N]> {
    let slice = at.checked_add(N).and_then(|end| image.get(at..end));
    let slice = slice.with_context(|| {
        format!("the kernel image ends at byte {}, before its field at {at:#x}", image.len())
    })?;
    Ok(slice.try_into()?)
}

/// The compressed payload and its compression.
pub fn payload(image: &[u8]) -> Result<(&[u8], Compression)> {
    if &bytes_at::<4>(image, MAGIC)? != b"HdrS" {
        bail!("the kernel image has no boot header (HdrS): it is no bzImage");
    }
    let version = u16::from_le_bytes(bytes_at(image, VERSION)?);
    if version < 0x208 {
        bail!(
            "the kernel image speaks boot protocol {version:#x}, the payload is only described from 0x208 on"
        );
    }
    let sectors = match bytes_at::<1>(image, SETUP_SECTS)? {
        [0] => 4, // the protocol's default, from the days of floppy disks
        [n] => usize::from(n),
    };
    let offset = u32::from_le_bytes(bytes_at(image, PAYLOAD_OFFSET)?) as usize;
    let length = u32::from_le_bytes(bytes_at(image, PAYLOAD_LENGTH)?) as usize;
    let start = (sectors + 1) * 512 + offset;
    // The kernel's build appends the unpacked size in four bytes, which are no part of the stream.
    let end = start + length.saturating_sub(4);
    let payload = image.get(start..end).filter(|p| !p.is_empty()).with_context(|| {
        format!("the kernel image says its payload is at {start}..{end}, but it has {} bytes", image.len())
    })?;
    let kind = Compression::of(payload)
        .context("the kernel's payload is compressed in a way that is not known here")?;
    Ok((payload, kind))
}

/// Decompresses the kernel.
pub fn vmlinux(image: &[u8]) -> Result<Vec<u8>> {
    let (payload, kind) = payload(image)?;
    let program = kind.program();
    let mut child = Command::new(program)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {program} to unpack the kernel"))?;
    let stdin = child.stdin.take();
    let out = std::thread::scope(|scope| {
        // Write in a thread of its own, because the tool writes before it has read everything.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(payload)));
        child.wait_with_output()
    })
    .with_context(|| format!("unpack the kernel with {program}"))?;
    if !out.status.success() {
        bail!("{program} could not unpack the kernel ({})", out.status);
    }
    if !out.stdout.starts_with(b"\x7fELF") {
        bail!("the kernel's payload unpacks to something that is no ELF file");
    }
    Ok(out.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload: &[u8], length: u32) -> Vec<u8> {
        let mut image = vec![0u8; 1024];
        image[SETUP_SECTS] = 1;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[VERSION..VERSION + 2].copy_from_slice(&0x20fu16.to_le_bytes());
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    #[test]
    fn a_payload_is_found_and_its_size_field_cut_off() {
        let bytes = [0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3, 4, 5, 6];
        let image = image(&bytes, 10);
        assert_eq!(payload(&image).unwrap(), (&bytes[..6], Compression::Zstd));
    }

    #[test]
    fn bad_images_are_refused_with_a_reason() {
        let cases: [(Vec<u8>, &str); 6] = [
            (Vec::new(), "ends at byte 0"),
            (vec![0u8; 0x203], "ends at byte"),
            (vec![0u8; 4096], "no bzImage"),
            (image(&[0x1f, 0x8b, 0, 0, 0, 0], 4000), "it has 1030 bytes"),
            (image(&[0x1f, 0x8b, 0, 0, 0, 0], 3), "payload is at"),
            (image(b"neither of them", 10), "not known here"),
        ];
        for (image, reason) in cases {
            let err = payload(&image).unwrap_err().to_string();
            assert!(err.contains(reason), "{err} does not say {reason}");
        }
    }

    #[test]
    fn an_old_boot_protocol_is_refused() {
        let mut old = image(&[0x1f, 0x8b, 0, 0, 0, 0], 6);
        old[VERSION] = 0x07;
        assert!(payload(&old).unwrap_err().to_string().contains("0x207"));
    }

    #[test]
    fn every_cut_of_an_image_is_an_error_or_a_payload_and_never_a_panic() {
        let whole = image(&[0xfd, b'7', b'z', b'X', b'Z', 0, 1, 2, 3, 4], 10);
        for cut in 0..whole.len() {
            let _ = payload(&whole[..cut]);
        }
    }

    #[test]
    fn a_damaged_payload_is_an_error() {
        let image = image(&[0x1f, 0x8b, 0, 0, 0, 0, 0, 0, 0, 0], 10);
        assert!(vmlinux(&image).is_err());
    }
}
