//! Images: files that volumes are copied from and to, and the sandbox that reads and writes images
//! of a format.
//!
//! A raw image is read as it is. QEMU's own code, `qemu-nbd`, opens any other one; it has read and
//! mistaken many files before. It runs where a mistake gains nothing: without a network, and with
//! no file but its own program's and the image. It holds the image by the descriptor that was
//! opened here: read-only, and then it can write to nothing; or a new file, and then it can write
//! to nothing else. This process reads or writes its blocks over a socket (NBD), and writes them to
//! the volume: when this process dies, nothing goes on writing.
//!
//! What must never happen here: a file opened that is not the regular one in the folder (a link, a
//! device, a pipe); a path of the machine inside the sandbox; a program that outlives whoever
//! started it.

mod nbd;
mod part;
mod writer;

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

pub use self::part::{ImagePart, PartFormat, has_name, is_zeros, mark_of, part_name, parts};
pub(crate) use self::part::{RawPart, publish, put_mark, remove, remove_mark};
#[cfg(feature = "fake")]
pub(crate) use self::part::{create, reopen};

/// The programs that read images of a format, and Debian's packages of them.
const PROGRAMS: [(&str, &str); 5] = [
    (QEMU_NBD, "qemu-utils"),
    (QEMU_IMG, "qemu-utils"),
    (BWRAP, "bubblewrap"),
    (PRLIMIT, "util-linux"),
    (CHOOM, "util-linux"),
];
const QEMU_NBD: &str = "/usr/bin/qemu-nbd";
const QEMU_IMG: &str = "/usr/bin/qemu-img";
const BWRAP: &str = "/usr/bin/bwrap";
const PRLIMIT: &str = "/usr/bin/prlimit";
const CHOOM: &str = "/usr/bin/choom";

/// Limit of the program's address space in bytes: its libraries, and ten times the size of its
/// caches.
const ADDRESS_SPACE: &str = "--as=1073741824";

/// Time that the program may take until it answers.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// Time that it may take to answer one request: far more than a slow disk needs for 16 MiB.
const ANSWERS_WITHIN: Duration = Duration::from_mins(2);

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Maximum number of bytes of the program's output that an error repeats.
const SAID_BYTES_MAX: u64 = 400;

/// An image that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is no such file.
    #[error("{} is not there", .path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// The object is a link, a folder, a device or a pipe.
    #[error("{} is not a regular file: links, folders, devices and pipes are not opened", .path.display())]
    NotAFile {
        /// Path of the object.
        path: PathBuf,
    },
    /// The file cannot be opened or read.
    #[error("cannot read the image")]
    Read(#[source] io::Error),
    /// Another object has the name of the new file.
    #[error("{} is there already: it is left as it is; say another name, or take it away first", .path.display())]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// There is no room for the file.
    #[error("the file system of {} is full (or a quota is used up): make room, and begin again", .folder.display())]
    Full {
        /// Folder of the file.
        folder: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot write in {} (is it writable for the agent's unit, see ReadWritePaths=?)", .folder.display())]
    Write {
        /// Folder of the file.
        folder: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Waiting for a program's end failed.
    #[error("cannot wait for a program in its sandbox")]
    Program(#[source] io::Error),
    /// A program did not make the file, or did not close it.
    #[error("QEMU does not write the image in its sandbox: {said}")]
    NotWritten {
        /// Output of the program.
        said: String,
    },
    /// The program answers that a part cannot be written.
    #[error("qemu-nbd cannot write {length} bytes of the image at {offset} (errno {errno})")]
    NotPut {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: usize,
        /// Error number in its answer.
        errno: u32,
    },
    /// A program that reads the format is missing.
    #[error("{program} is not installed: install the package {package}")]
    NoProgram {
        /// Path of the program.
        program: &'static str,
        /// Debian's package of it.
        package: &'static str,
    },
    /// The sandbox did not come up, or the program in it ended.
    #[error("qemu-nbd cannot open the image in its sandbox: {said}")]
    NotServed {
        /// Output of the program.
        said: String,
    },
    /// The program gives an answer that no such program gives.
    #[error("qemu-nbd answers with something else than was asked for: {0}")]
    Answer(&'static str),
    /// The program answers that a part cannot be read.
    #[error("qemu-nbd cannot read {length} bytes of the image at {offset} (errno {errno}): is it damaged?")]
    Damaged {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: usize,
        /// Error number in its answer.
        errno: u32,
    },
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct ImageFile {
    file: File,
}

impl ImageFile {
    /// Opens the file of this name in a folder. No link is followed. An object that is not a
    /// regular file is never opened: an open alone can hang (a pipe) or have an effect (a device).
    pub fn open(folder: &Path, name: &str) -> Result<Self, ImageError> {
        let path = folder.join(name);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => ImageError::Missing { path: path.clone() },
            _ if error.raw_os_error() == Some(nix::libc::ELOOP) => {
                ImageError::NotAFile { path: path.clone() }
            }
            _ => ImageError::Read(error),
        };
        let is_file = |meta: std::fs::Metadata| {
            if meta.file_type().is_file() { Ok(()) } else { Err(ImageError::NotAFile { path: path.clone() }) }
        };
        is_file(std::fs::symlink_metadata(&path).map_err(failed)?)?;
        let flags = O_NOFOLLOW | O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path).map_err(failed)?;
        // The file may have been exchanged in between: the opened one counts.
        is_file(file.metadata().map_err(failed)?)?;
        Ok(Self { file })
    }

    /// Returns the file's size in bytes.
    pub fn size(&self) -> Result<u64, ImageError> {
        Ok(self.file.metadata().map_err(ImageError::Read)?.len())
    }

    /// Returns a text of the file's identity and state: it changes when the file is exchanged or
    /// written to.
    pub fn state(&self) -> Result<String, ImageError> {
        let meta = self.file.metadata().map_err(ImageError::Read)?;
        let (changed, nanos) = (meta.mtime(), meta.mtime_nsec());
        Ok(format!("{}:{}:{}:{changed}.{nanos:09}", meta.dev(), meta.ino(), meta.len()))
    }

    /// Reads the bytes that exist from `offset`; the rest of `buffer` becomes zeros.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ImageError> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
            match self.file.read_at(&mut buffer[done..], at) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ImageError::Read(error)),
            }
        }
        buffer[done..].fill(0);
        Ok(())
    }
}

/// An image of a format that can be read as long as this value lives.
pub trait ServedImage: Send {
    /// Returns the size of the disk in the image, in bytes.
    fn size(&self) -> u64;

    /// Fills the buffer with the disk's bytes from `offset`, within its size; 16 MiB at most.
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), ImageError>;
}

/// Reads images of a format.
pub trait ImageServers: Send + Sync {
    /// Returns the first needed program that is missing, with its package; `None` if all are there.
    fn missing(&self) -> Option<(&'static str, &'static str)>;

    /// Begins to read this qcow2 image. `scratch` is a folder of our own, which this call makes.
    fn serve_qcow2(&self, image: &ImageFile, scratch: &Path) -> Result<Box<dyn ServedImage>, ImageError>;

    /// Makes the part of a new file of this format and disk size. `place` is the folder and the
    /// owner of the part, see [`part_name`].
    fn make_part(
        &self,
        place: (&Path, &str),
        size: u64,
        format: PartFormat,
        scratch: &Path,
    ) -> Result<Box<dyn ImagePart>, ImageError>;

    /// Opens a part that an earlier process has left, to go on with it. `None`: the part is not in
    /// such a state, and has to be made anew.
    fn open_part(
        &self,
        place: (&Path, &str),
        size: u64,
        format: PartFormat,
        scratch: &Path,
    ) -> Result<Option<Box<dyn ImagePart>>, ImageError>;

    /// Records beside a part, durably, its progress, for [`mark_of`]. All writes so far were
    /// flushed. `mark` is a line of less than 512 bytes.
    fn mark_part(&self, folder: &Path, of: &str, mark: &[u8]) -> Result<(), ImageError> {
        put_mark(folder, of, mark)
    }

    /// Removes the record beside a part, durably.
    fn unmark_part(&self, folder: &Path, of: &str) -> Result<(), ImageError> {
        remove_mark(folder, of)
    }

    /// Gives a finished part its name as well, durably. If the name is taken:
    /// [`ImageError::Exists`].
    fn publish_part(&self, folder: &Path, of: &str, name: &str) -> Result<(), ImageError> {
        publish(folder, of, name)
    }

    /// Removes a part, durably; a file that has its name as well keeps that.
    fn remove_part(&self, folder: &Path, of: &str) -> Result<(), ImageError> {
        remove(folder, of)
    }
}

/// `qemu-nbd` of this machine, in a sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub struct QemuServers;

/// A folder for one socket, which exists only until both ends have the socket.
struct Scratch(PathBuf);

impl Scratch {
    fn make(parent: &Path) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{}-{number}", std::process::id()));
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::create_dir_all(&path)?,
        }
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, folder = %self.0.display(), "cannot remove the folder of a socket");
        }
    }
}

/// View of the file that a program gets.
#[derive(Debug, Clone, Copy)]
enum Sees {
    ToRead,
    /// Maximum length of the file in bytes.
    ToWrite {
        most: u64,
    },
}

/// The program in its sandbox. A drop kills it.
struct Sandboxed(Child);

impl Sandboxed {
    fn start(file: &File, sees: Sees, socket: Option<&Path>, program: &[&str]) -> Result<Self, ImageError> {
        let stdin = file.try_clone().map_err(ImageError::Read)?;
        let (bind, most) = match sees {
            Sees::ToRead => ("--ro-bind-fd", 0),
            Sees::ToWrite { most } => ("--bind-fd", most),
        };
        let mut command = std::process::Command::new(CHOOM);
        command
            // The agent is the last to be killed when memory is short. This program is not.
            .args([
                "-n",
                "500",
                "--",
                PRLIMIT,
                ADDRESS_SPACE,
                &format!("--fsize={most}"),
                "--core=0",
                "--nofile=64",
                "--",
                BWRAP,
            ])
            .args([
                "--unshare-user-try",
                "--unshare-ipc",
                "--unshare-pid",
                "--unshare-net",
                "--die-with-parent",
                "--cap-drop",
                "ALL",
                "--clearenv",
                "--ro-bind",
                "/usr",
                "/usr",
            ])
            .args([
                "--symlink",
                "usr/bin",
                "/bin",
                "--symlink",
                "usr/lib",
                "/lib",
                "--symlink",
                "usr/lib64",
                "/lib64",
            ])
            // The file that was opened and checked, not the one that has its name by then.
            .args([bind, "0", "/image"]);
        if let Some(scratch) = socket {
            command.arg("--bind").arg(scratch).arg("/socket");
        }
        let child = command
            .args(["--chdir", "/", "--"])
            .args(program)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| ImageError::NotServed { said: format!("{CHOOM}: {error}") })?;
        Ok(Self(child))
    }

    /// Kills the program and its group, unless it was waited for: its number may be another
    /// process's by then. What is left in the sandbox dies with it (`--die-with-parent`).
    fn kill(&mut self) {
        if let (Ok(None), Ok(pid)) = (self.0.try_wait(), i32::try_from(self.0.id())) {
            // ESRCH: the group has gone already.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    /// Returns the program's output, after it has ended or was ended here.
    fn said(&mut self) -> String {
        self.kill();
        let mut said = Vec::new();
        if let Some(stderr) = self.0.stderr.take() {
            let _ = stderr.take(SAID_BYTES_MAX).read_to_end(&mut said);
        }
        let said: Vec<_> = said
            .split(|byte| *byte == b'\n')
            .map(|line| String::from_utf8_lossy(line).trim().to_owned())
            .collect();
        let said: Vec<_> = said.into_iter().filter(|line| !line.is_empty()).collect();
        if said.is_empty() { "it says nothing".to_owned() } else { said.join("; ") }
    }

    /// Connects as soon as the program listens.
    fn connect(&mut self, socket: &Path) -> Result<UnixStream, ImageError> {
        let until = Instant::now() + STARTS_WITHIN;
        loop {
            if let Ok(stream) = UnixStream::connect(socket) {
                return Ok(stream);
            }
            let ended = self.0.try_wait().map_err(ImageError::Program)?.is_some();
            if ended || Instant::now() >= until {
                return Err(ImageError::NotServed { said: self.said() });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Sandboxed {
    fn drop(&mut self) {
        self.kill();
        let _ = self.0.wait();
    }
}

/// An image that the program serves.
struct Served {
    client: nbd::Client<UnixStream>,
    program: Sandboxed,
}

impl Served {
    fn start(file: &File, sees: Sees, scratch: &Path) -> Result<Self, ImageError> {
        // The graph is given in full, so no reference in the image to other files is followed. A
        // writer holds QEMU's lock: a part is not continued while a program whose agent was killed
        // still has it.
        let (program, graph) = match sees {
            Sees::ToRead => (
                &[QEMU_NBD, "--shared=1", "--socket=/socket/nbd", "--read-only"][..],
                r#"json:{"driver":"qcow2","read-only":true,"backing":null,"file":{"driver":"file","filename":"/image","locking":"off","read-only":true}}"#,
            ),
            Sees::ToWrite { .. } => (
                &[QEMU_NBD, "--shared=1", "--socket=/socket/nbd"][..],
                r#"json:{"driver":"qcow2","backing":null,"file":{"driver":"file","filename":"/image","locking":"auto"}}"#,
            ),
        };
        // Removed as soon as the connection exists: from then on the sandbox has nowhere to make a
        // file in.
        let scratch = Scratch::make(scratch).map_err(ImageError::Read)?;
        let program = [program, &[graph]].concat();
        let mut program = Sandboxed::start(file, sees, Some(&scratch.0), &program)?;
        let stream = program.connect(&scratch.0.join("nbd"))?;
        drop(scratch);
        let within = |time| stream.set_read_timeout(time).and_then(|()| stream.set_write_timeout(time));
        within(Some(ANSWERS_WITHIN)).map_err(ImageError::Read)?;
        match nbd::Client::connect(stream) {
            Ok(client) => Ok(Self { client, program }),
            Err(ImageError::Read(_)) => Err(ImageError::NotServed { said: program.said() }),
            Err(error) => Err(error),
        }
    }
}

impl ServedImage for Served {
    fn size(&self) -> u64 {
        self.client.size()
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), ImageError> {
        self.client.read(offset, buffer)
    }
}

impl ImageServers for QemuServers {
    fn missing(&self) -> Option<(&'static str, &'static str)> {
        PROGRAMS.into_iter().find(|(program, _)| !Path::new(program).is_file())
    }

    fn serve_qcow2(&self, image: &ImageFile, scratch: &Path) -> Result<Box<dyn ServedImage>, ImageError> {
        if let Some((program, package)) = self.missing() {
            return Err(ImageError::NoProgram { program, package });
        }
        Ok(Box::new(Served::start(&image.file, Sees::ToRead, scratch)?))
    }

    fn make_part(
        &self,
        (folder, of): (&Path, &str),
        size: u64,
        format: PartFormat,
        scratch: &Path,
    ) -> Result<Box<dyn ImagePart>, ImageError> {
        if format == PartFormat::Raw {
            return Ok(Box::new(RawPart::make(folder, of, size)?));
        }
        if let Some((program, package)) = self.missing() {
            return Err(ImageError::NoProgram { program, package });
        }
        Ok(Box::new(writer::Qcow2Part::make(folder, of, size, scratch)?))
    }

    fn open_part(
        &self,
        (folder, of): (&Path, &str),
        size: u64,
        format: PartFormat,
        scratch: &Path,
    ) -> Result<Option<Box<dyn ImagePart>>, ImageError> {
        if format == PartFormat::Raw {
            return Ok(RawPart::open(folder, of, size)?.map(|part| Box::new(part) as Box<dyn ImagePart>));
        }
        if let Some((program, package)) = self.missing() {
            return Err(ImageError::NoProgram { program, package });
        }
        let part = writer::Qcow2Part::open(folder, of, size, scratch)?;
        Ok(part.map(|part| Box::new(part) as Box<dyn ImagePart>))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_regular_file_is_read_and_zeros_follow_its_end() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), b"abc").unwrap();
        let image = ImageFile::open(folder.path(), "a").unwrap();
        let mut buffer = [7; 4];
        image.read(1, &mut buffer).unwrap();
        assert_eq!((buffer, image.size().unwrap()), (*b"bc\0\0", 3));
        image.read(9, &mut buffer).unwrap();
        assert_eq!(buffer, [0; 4]);
        let before = image.state().unwrap();
        assert_eq!(image.state().unwrap(), before);
        std::fs::write(folder.path().join("a"), b"abcd").unwrap();
        assert_ne!(image.state().unwrap(), before);
    }

    /// The number of a process that was waited for may be another one's. Here a member of its group
    /// has outlived it, and tells whether a signal came.
    #[test]
    fn a_program_that_was_waited_for_gets_no_signal() {
        let start = |script: &str| {
            let mut command = std::process::Command::new("/bin/sh");
            command.args(["-c", script]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
            Sandboxed(command.stderr(Stdio::piped()).spawn().unwrap())
        };
        let member = "exec 3<&0; { read line <&3; echo alive; } 2>/dev/null &";
        for (ends, told) in [(true, "alive\n"), (false, "")] {
            let script = format!("echo why >&2; {member} {}", if ends { "" } else { "wait" });
            let mut program = start(&script);
            let (mut stdin, mut stdout) = (program.0.stdin.take().unwrap(), program.0.stdout.take().unwrap());
            if ends {
                assert!(program.0.wait().unwrap().success());
                assert_eq!(program.said(), "why");
            }
            drop(program);
            // A killed member reads nothing: EPIPE.
            let _ = stdin.write_all(b"go\n");
            let mut said = String::new();
            stdout.read_to_string(&mut said).unwrap();
            assert_eq!(said, told, "the program had ended: {ends}");
        }
    }

    #[test]
    fn nothing_but_a_regular_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), b"abc").unwrap();
        symlink("a", folder.path().join("link")).unwrap();
        symlink("/dev/null", folder.path().join("null")).unwrap();
        symlink("nowhere", folder.path().join("dangling")).unwrap();
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        // An open would hang: nobody writes to the pipe.
        nix::unistd::mkfifo(&folder.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for name in ["link", "null", "dangling", "folder", "pipe"] {
            let error = ImageFile::open(folder.path(), name).unwrap_err();
            assert!(matches!(error, ImageError::NotAFile { .. }), "{name}: {error}");
        }
        let error = ImageFile::open(Path::new("/dev"), "null").unwrap_err();
        assert!(matches!(error, ImageError::NotAFile { .. }), "{error}");
        assert!(matches!(ImageFile::open(folder.path(), "b").unwrap_err(), ImageError::Missing { .. }));
    }
}
