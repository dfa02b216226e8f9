//! Writes the small initramfs: a cpio archive in the "newc" format, uncompressed.
//!
//! What must never happen here: a field that is truncated because it does not fit; the kernel would
//! misread the rest.

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const TRAILER: &str = "TRAILER!!!";

/// An archive in memory.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    /// Adds a folder; its parents must have been added before.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        self.entry(path, DIRECTORY | 0o755, &[])
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entry(path, REGULAR | (mode & 0o7777), content)
    }

    /// Ends the archive and returns it.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        self.entry(TRAILER, 0, &[])?;
        Ok(self.bytes)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.inode += 1;
        let size = u32::try_from(content.len())
            .with_context(|| format!("{path} is too large for a cpio archive"))?;
        let name = u32::try_from(path.len() + 1).with_context(|| format!("the name {path} is too long"))?;
        let links = if mode & DIRECTORY == 0 { 1 } else { 2 };
        // inode, mode, uid, gid, nlink, mtime, filesize, device (2), special device (2), namesize,
        // check
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_headers_padding_and_a_trailer() {
        let mut archive = Archive::default();
        archive.directory("dir").unwrap();
        archive.file("dir/file", 0o755, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 3);
        assert!(text.starts_with("07070100000001000041ED"));
        assert!(text.contains("000081ED"), "mode of a program");
        assert!(text.contains("dir/file\0"));
        assert!(text.contains("hello\0\0\0"));
        assert!(text.contains("TRAILER!!!\0"));
    }
}
