//! Fault points: each call of the agent that changes the machine, before it and after it, by
//! number. A build with the feature `faults` dies at the one that `MOORING_AGENT_CRASH_AT` names,
//! as if by kill -9. Each passed point is printed on standard error, so that a test learns how many
//! there are.
//!
//! What must never happen here: a step in a shipped package; a value that is written (it may be a
//! secret) in what is said.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mooring_host::{
    BlockDevices, BlockError, Command, CommandError, CommandOutput, Commands, Entry, Followed, ImageError,
    ImageFile, ImagePart, ImageServers, Mapped, PartFormat, PrCommand, PrError, PrNexus, PrSession,
    PrSessions, ServedImage, Tree, TreeError, TreePath,
};

use super::Machine;

/// Environment variable with the number of the point to die at.
const CRASH_AT: &str = "MOORING_AGENT_CRASH_AT";

/// Commands of LVM, and of dmsetup, that only look.
const LOOKS: [&str; 4] = ["vgs", "lvs", "pvs", "table"];

#[derive(Debug)]
struct Points {
    passed: AtomicU64,
    at: Option<u64>,
}

impl Points {
    /// Runs a call that changes the machine between two points.
    fn around<T>(&self, what: impl Fn() -> String, call: impl FnOnce() -> T) -> T {
        self.pass("before", &what());
        let done = call();
        self.pass("after", &what());
        done
    }

    fn pass(&self, side: &str, what: &str) {
        let number = self.passed.fetch_add(1, Ordering::SeqCst) + 1;
        eprintln!("fault point {number}: {side} {what}");
        if self.at == Some(number) {
            eprintln!("mooring-agent: dies there as asked");
            std::process::abort();
        }
    }
}

/// An interface to the machine, with its points.
struct Faulty<T: ?Sized> {
    inner: Arc<T>,
    points: Arc<Points>,
}

/// Returns the same machine with points.
pub(super) fn with_points(machine: Machine) -> Machine {
    let at = std::env::var(CRASH_AT).ok().and_then(|text| text.parse().ok());
    let points = Arc::new(Points { passed: AtomicU64::new(0), at });
    Machine {
        target: Arc::new(Faulty { inner: machine.target, points: Arc::clone(&points) }),
        commands: Arc::new(Faulty { inner: machine.commands, points: Arc::clone(&points) }),
        images: Arc::new(Faulty { inner: machine.images, points: Arc::clone(&points) }),
        blocks: Arc::new(Faulty { inner: machine.blocks, points: Arc::clone(&points) }),
        pr: Arc::new(Faulty { inner: machine.pr, points }),
        ..machine
    }
}

impl Tree for Faulty<dyn Tree> {
    fn mkdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.points.around(|| format!("mkdir {path}"), || self.inner.mkdir(path))
    }

    fn rmdir(&self, path: &TreePath) -> Result<(), TreeError> {
        self.points.around(|| format!("rmdir {path}"), || self.inner.rmdir(path))
    }

    fn symlink(&self, target: &TreePath, link: &TreePath) -> Result<(), TreeError> {
        self.points.around(|| format!("symlink {link}"), || self.inner.symlink(target, link))
    }

    fn unlink(&self, path: &TreePath) -> Result<(), TreeError> {
        self.points.around(|| format!("unlink {path}"), || self.inner.unlink(path))
    }

    fn write(&self, path: &TreePath, value: &[u8]) -> Result<(), TreeError> {
        self.points.around(|| format!("write {path}"), || self.inner.write(path, value))
    }

    fn read(&self, path: &TreePath) -> Result<Vec<u8>, TreeError> {
        self.inner.read(path)
    }

    fn list(&self, path: &TreePath) -> Result<Vec<Entry>, TreeError> {
        self.inner.list(path)
    }

    fn read_link(&self, path: &TreePath) -> Result<TreePath, TreeError> {
        self.inner.read_link(path)
    }

    fn is_dir(&self, path: &TreePath) -> Result<bool, TreeError> {
        self.inner.is_dir(path)
    }
}

impl Commands for Faulty<dyn Commands> {
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
        if command.args.first().is_some_and(|verb| LOOKS.contains(&verb.as_str())) {
            return self.inner.run(command);
        }
        self.points.around(|| command.args.join(" "), || self.inner.run(command))
    }
}

impl BlockDevices for Faulty<dyn BlockDevices> {
    fn size(&self, path: &Path) -> Result<Option<u64>, BlockError> {
        self.inner.size(path)
    }

    fn discards(&self, path: &Path) -> Result<bool, BlockError> {
        self.inner.discards(path)
    }

    fn mapped(&self, path: &Path) -> Result<Option<Mapped>, BlockError> {
        self.inner.mapped(path)
    }

    fn follow(&self, path: &Path) -> Result<Box<dyn Followed>, BlockError> {
        self.inner.follow(path)
    }

    fn zero(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        self.points.around(|| format!("zero {}", path.display()), || self.inner.zero(path, offset, length))
    }

    fn discard(&self, path: &Path, offset: u64, length: u64) -> Result<(), BlockError> {
        self.points
            .around(|| format!("discard {}", path.display()), || self.inner.discard(path, offset, length))
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        self.points
            .around(|| format!("write to {}", path.display()), || self.inner.write(path, offset, bytes))
    }

    fn flush(&self, path: &Path) -> Result<(), BlockError> {
        self.inner.flush(path)
    }

    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<(), BlockError> {
        self.inner.read(path, offset, buffer)
    }
}

impl ImageServers for Faulty<dyn ImageServers> {
    fn missing(&self) -> Option<(&'static str, &'static str)> {
        self.inner.missing()
    }

    fn serve_qcow2(&self, image: &ImageFile, scratch: &Path) -> Result<Box<dyn ServedImage>, ImageError> {
        self.inner.serve_qcow2(image, scratch)
    }

    fn make_part(
        &self,
        place: (&Path, &str),
        size: u64,
        format: PartFormat,
        scratch: &Path,
    ) -> Result<Box<dyn ImagePart>, ImageError> {
        let what = || format!("make the part {}", place.1);
        let part = self.points.around(what, || self.inner.make_part(place, size, format, scratch))?;
        Ok(Box::new(FaultyPart { inner: part, points: Arc::clone(&self.points) }))
    }

    fn open_part(
        &self,
        place: (&Path, &str),
        size: u64,
        format: PartFormat,
        scratch: &Path,
    ) -> Result<Option<Box<dyn ImagePart>>, ImageError> {
        let what = || format!("open the part {}", place.1);
        let part = self.points.around(what, || self.inner.open_part(place, size, format, scratch))?;
        let faulty = |inner| FaultyPart { inner, points: Arc::clone(&self.points) };
        Ok(part.map(|part| Box::new(faulty(part)) as Box<dyn ImagePart>))
    }

    fn mark_part(&self, folder: &Path, of: &str, mark: &[u8]) -> Result<(), ImageError> {
        self.points.around(|| format!("mark the part {of}"), || self.inner.mark_part(folder, of, mark))
    }

    fn unmark_part(&self, folder: &Path, of: &str) -> Result<(), ImageError> {
        self.points.around(|| format!("unmark the part {of}"), || self.inner.unmark_part(folder, of))
    }

    fn publish_part(&self, folder: &Path, of: &str, name: &str) -> Result<(), ImageError> {
        self.points.around(|| format!("name {name}"), || self.inner.publish_part(folder, of, name))
    }

    fn remove_part(&self, folder: &Path, of: &str) -> Result<(), ImageError> {
        self.points.around(|| format!("remove the part {of}"), || self.inner.remove_part(folder, of))
    }
}

/// A file in the making, with its points.
struct FaultyPart {
    inner: Box<dyn ImagePart>,
    points: Arc<Points>,
}

impl ImagePart for FaultyPart {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ImageError> {
        let Self { inner, points } = self;
        points.around(|| "write to a part".to_owned(), || inner.write(offset, bytes))
    }

    fn flush(&mut self) -> Result<(), ImageError> {
        let Self { inner, points } = self;
        points.around(|| "flush a part".to_owned(), || inner.flush())
    }

    fn finish(&mut self) -> Result<(), ImageError> {
        let Self { inner, points } = self;
        points.around(|| "finish a part".to_owned(), || inner.finish())
    }
}

impl PrSessions for Faulty<dyn PrSessions> {
    fn knock(&self, portal: SocketAddr, until: Instant) -> io::Result<()> {
        self.inner.knock(portal, until)
    }

    fn open(&self, nexus: &PrNexus, until: Instant) -> Result<Box<dyn PrSession>, PrError> {
        let session =
            self.points.around(|| format!("log in as {nexus:?}"), || self.inner.open(nexus, until))?;
        Ok(Box::new(FaultySession { inner: session, points: Arc::clone(&self.points) }))
    }
}

struct FaultySession {
    inner: Box<dyn PrSession>,
    points: Arc<Points>,
}

impl PrSession for FaultySession {
    fn send(&mut self, command: &PrCommand) -> Result<(), PrError> {
        self.points.around(|| format!("send {command:?}"), || self.inner.send(command))
    }

    fn close(self: Box<Self>) -> Result<(), PrError> {
        let Self { inner, points } = *self;
        points.around(|| "log out".to_owned(), || inner.close())
    }
}
