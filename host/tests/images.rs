//! Tests of the real `qemu-nbd` in its sandbox, where this machine has both. A whole image comes
//! through byte for byte. An image that names another file reveals nothing of that file, although
//! nobody has looked at its header.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::Path;
use std::process::Command;

use mooring_host::{ImageError, ImageFile, ImageServers, PartFormat, QemuServers, part_name};

const SECRET: &[u8] = b"root:the-secret-of-this-node";

fn runs(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// True if this machine can run these tests; otherwise prints the reason.
fn can_serve() -> bool {
    let shut = ["--unshare-all", "--ro-bind", "/", "/", "--ro-bind-fd", "0", "/tmp", "/bin/true"];
    let bwrap = || {
        let root = std::fs::File::open("/tmp").unwrap();
        Command::new("/usr/bin/bwrap")
            .args(shut)
            .stdin(root)
            .output()
            .is_ok_and(|output| output.status.success())
    };
    let can = QemuServers.missing().is_none() && runs("/usr/bin/qemu-img", &["--version"]) && bwrap();
    if !can {
        println!("skipped: qemu-utils and a bubblewrap that may make namespaces are not both here");
    }
    can
}

fn qemu_img(folder: &Path, args: &[&str]) {
    let output = Command::new("/usr/bin/qemu-img").args(args).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn contents(folder: &Path, name: &str) -> Result<Vec<u8>, ImageError> {
    let image = ImageFile::open(folder, name)?;
    let mut served = QemuServers.serve_qcow2(&image, &folder.join("scratch"))?;
    assert_eq!(std::fs::read_dir(folder.join("scratch")).unwrap().count(), 0, "its socket has gone");
    let mut all = vec![1; usize::try_from(served.size()).unwrap()];
    for (index, part) in all.chunks_mut(300_000).enumerate() {
        served.read(index as u64 * 300_000, part)?;
    }
    Ok(all)
}

#[test]
fn a_whole_image_comes_through_byte_for_byte() {
    if !can_serve() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut disk: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    disk.resize(5 << 20, 0);
    std::fs::write(folder.path().join("disk"), &disk).unwrap();
    for compressed in [&["-c"][..], &[]] {
        let words = [&["convert", "-f", "raw", "-O", "qcow2"], compressed, &["disk", "disk.qcow2"]].concat();
        qemu_img(folder.path(), &words);
        assert!(contents(folder.path(), "disk.qcow2").unwrap() == disk);
    }
    let error = contents(folder.path(), "disk").unwrap_err();
    assert!(matches!(&error, ImageError::NotServed { said } if said.contains("qcow2")), "{error}");
}

#[test]
fn nothing_of_another_file_comes_through() {
    if !can_serve() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    let padded = [SECRET, &vec![0; 65536 - SECRET.len()]].concat();
    std::fs::write(&secret, &padded).unwrap();
    qemu_img(
        folder.path(),
        &["create", "-f", "qcow2", "-F", "raw", "-b", secret.to_str().unwrap(), "backed", "64k"],
    );
    let data = format!("data_file={},data_file_raw=on", folder.path().join("data").display());
    qemu_img(folder.path(), &["create", "-f", "qcow2", "-o", &data, "elsewhere", "64k"]);
    std::fs::write(folder.path().join("data"), &padded).unwrap();
    for name in ["backed", "elsewhere"] {
        // The control: without the sandbox, a reader gets the other file.
        qemu_img(folder.path(), &["convert", "-f", "qcow2", "-O", "raw", name, "out"]);
        assert!(std::fs::read(folder.path().join("out")).unwrap().starts_with(SECRET), "{name}");
    }
    assert!(
        contents(folder.path(), "backed").unwrap().iter().all(|byte| *byte == 0),
        "as if it had no backing file"
    );
    let error = contents(folder.path(), "elsewhere").unwrap_err();
    assert!(matches!(&error, ImageError::NotServed { said } if said.contains("No such file")), "{error}");
}

#[test]
fn a_written_image_is_whole_and_sparse_and_only_its_file_is_written() {
    if !can_serve() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (folder, scratch) = (dir.path(), dir.path().join("scratch"));
    let size = 64 << 20;
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut disk = vec![0; size];
    disk[3 << 20..][..bytes.len()].copy_from_slice(&bytes);
    disk[size - 512..].fill(7);
    std::fs::write(folder.join("disk"), &disk).unwrap();
    for format in [PartFormat::Raw, PartFormat::Qcow2] {
        let mut part = QemuServers.make_part((folder, "a"), size as u64, format, &scratch).unwrap();
        for (index, piece) in disk.chunks(16 << 20).enumerate() {
            part.write((index as u64) << 24, piece).unwrap();
        }
        part.finish().unwrap();
        let name = format!("{format:?}");
        QemuServers.publish_part(folder, "a", &name).unwrap();
        QemuServers.remove_part(folder, "a").unwrap();
        let word = name.to_lowercase();
        qemu_img(folder, &["compare", "-f", "raw", "-F", &word, "disk", &name]);
        let used = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(folder.join(&name)).unwrap());
        assert!(used * 512 < 8 << 20, "{name} takes {used} blocks");
    }
    qemu_img(folder, &["check", "-q", "-f", "qcow2", "Qcow2"]);
    assert!(contents(folder, "Qcow2").unwrap() == disk);
    // A dropped part is not whole, and its program has ended.
    drop(QemuServers.make_part((folder, "b"), size as u64, PartFormat::Qcow2, &scratch).unwrap());
    assert!(folder.join(part_name("b")).is_file());
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "its socket has gone");
}

#[test]
fn a_left_part_is_resumed_unless_it_is_damaged_or_written_to() {
    if !can_serve() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (folder, scratch) = (dir.path(), dir.path().join("scratch"));
    let disk: Vec<u8> = (0..16_u32 << 20).flat_map(u32::to_le_bytes).collect();
    let size = disk.len();
    std::fs::write(folder.join("disk"), &disk).unwrap();
    for format in [PartFormat::Raw, PartFormat::Qcow2] {
        let mut part = QemuServers.make_part((folder, "a"), size as u64, format, &scratch).unwrap();
        part.write(0, &disk[..16 << 20]).unwrap();
        part.flush().unwrap();
        QemuServers.mark_part(folder, "a", b"16").unwrap();
        // Later data may be there, or half there.
        part.write(16 << 20, &disk[16 << 20..32 << 20]).unwrap();
        let open = || QemuServers.open_part((folder, "a"), size as u64, format, &scratch).unwrap();
        if format == PartFormat::Qcow2 {
            assert!(open().is_none(), "somebody writes to it still");
        }
        drop(part);
        // The killed program holds its lock for a moment longer.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let mut part = loop {
            match open() {
                Some(part) => break part,
                None if std::time::Instant::now() < until => {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                None => panic!("{format:?}: it is not opened again"),
            }
        };
        assert_eq!(mooring_host::mark_of(folder, "a").unwrap(), b"16");
        for (index, piece) in disk.chunks(16 << 20).enumerate().skip(1) {
            part.write((index as u64) << 24, piece).unwrap();
        }
        part.finish().unwrap();
        let name = format!("{format:?}");
        QemuServers.publish_part(folder, "a", &name).unwrap();
        QemuServers.remove_part(folder, "a").unwrap();
        qemu_img(folder, &["compare", "-f", "raw", "-F", &name.to_lowercase(), "disk", &name]);
    }
    // The image has no leaked clusters.
    qemu_img(folder, &["check", "-q", "-f", "qcow2", "Qcow2"]);
    drop(QemuServers.make_part((folder, "b"), size as u64, PartFormat::Qcow2, &scratch).unwrap());
    let path = folder.join(part_name("b"));
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(70_000).unwrap();
    let opened = QemuServers.open_part((folder, "b"), size as u64, PartFormat::Qcow2, &scratch).unwrap();
    assert!(opened.is_none(), "it is cut off");
}
