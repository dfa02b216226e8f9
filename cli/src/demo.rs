//! `mooring demo`: a guided tour of the main job on a real installation. Each step is a command
//! that a user can type, shown and then run. If this machine is the writer, the fate of its reads
//! and writes is shown, too.
//!
//! What must never happen here: a volume touched that the tour has not made; a failed step shown as
//! a success.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Parser;
use mooring_model::{AttachmentId, VolumeId};

use crate::args::{AttachmentCommand, Cli, Command, DemoArgs, TypeCommand, VolumeCommand};
use crate::controller::{Client, attach, attachment, detach, host, kind, volume};
use crate::error::{Exit, Failure};
use crate::output::{print, write_out};
use crate::text::plain;

/// Bytes that the tour writes: one block of any disk.
const BLOCK: usize = 4096;

/// Time limit for a read or write on this machine: after a lost session it waits for the session.
const IO_LIMIT: Duration = Duration::from_mins(1);

/// Pause before a forced detach is asked for again. The controller itself waits for some seconds.
const REPEAT: Duration = Duration::from_secs(1);

/// `demo`.
pub(crate) async fn demo(client: &Client, args: &DemoArgs) -> Result<Exit, Failure> {
    client.begin_again();
    let (writer, reader) = chosen(client, args).await?;
    let word = VolumeId::random().to_string();
    let name = format!("mooring-demo-{}", word.split('-').next().unwrap_or_default());
    let ids = [AttachmentId::random(), AttachmentId::random(), AttachmentId::random()];
    let tour = Tour { client, name, writer, reader, ids: ids.map(|id| id.to_string()) };
    let shown = tour.show().await;
    if args.keep {
        say(&format!(
            "What was made is left, as asked for. It goes with:\n{}",
            tour.leftovers().map(|words| format!("  mooring {}\n", words.join(" "))).concat()
        ))?;
        return shown;
    }
    let left = tour.clean_up(shown.is_ok()).await;
    let exit = shown?;
    if left.is_empty() {
        return Ok(exit);
    }
    let text = format!(
        "the tour is over, and of what it made something is left. Take it away with: {}",
        left.join("; ")
    );
    match exit {
        // What is pending keeps the rest, too: that is no failure of its own.
        Exit::Pending => say(&text).map(|()| exit),
        _ => Err(Failure::Broken(text)),
    }
}

/// Chooses the two hosts of the tour.
async fn chosen(client: &Client, args: &DemoArgs) -> Result<(String, String), Failure> {
    let hosts = host::list(client).await?.answer.hosts;
    let attaches = |host: &&_| {
        let host: &crate::controller::records::HostRecord = host;
        host.up && host.initiator.is_some()
    };
    let names: Vec<&str> =
        hosts.iter().map(|host| &**host).filter(attaches).map(|host| host.name.as_str()).collect();
    let this = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    two(&names, this.as_deref(), args).map_err(Failure::Refused)
}

/// Checks that a requested host is one of these; `None`: none was requested.
fn known<'a>(names: &[&str], asked: Option<&'a str>) -> Result<Option<&'a str>, String> {
    match asked {
        Some(name) if !names.contains(&name) => Err(format!(
            "{name} is no host that attaches volumes and is up; those are: {}. See `mooring host list`",
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        )),
        asked => Ok(asked),
    }
}

/// Chooses the writer and the reader among the hosts that attach.
fn two(names: &[&str], this: Option<&str>, args: &DemoArgs) -> Result<(String, String), String> {
    let (writer, reader) = (known(names, args.writer.as_deref())?, known(names, args.reader.as_deref())?);
    if writer.is_some() && writer == reader {
        return Err("the writer and the reader must be two hosts: one volume on two hosts is what is shown"
            .to_owned());
    }
    let free = |taken: Option<&str>| names.iter().copied().find(|name| Some(*name) != taken);
    let here = this.and_then(|this| {
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        names.iter().copied().find(|name| Some(*name) != reader && short(name) == short(this))
    });
    let writer = writer.or(here).or_else(|| free(reader));
    match (writer, reader.or_else(|| free(writer))) {
        (Some(writer), Some(reader)) => Ok((writer.to_owned(), reader.to_owned())),
        _ => Err(format!(
            "the tour needs two hosts that attach volumes and are up, and there {}: see `mooring host list`",
            if names.is_empty() { "is none" } else { "is one" }
        )),
    }
}

struct Tour<'a> {
    client: &'a Client,
    /// The name of the volume, and of its type.
    name: String,
    writer: String,
    reader: String,
    /// Ids of the attachments: the writer's, the reader's, and the writer's second one.
    ids: [String; 3],
}

impl Tour<'_> {
    async fn show(&self) -> Result<Exit, Failure> {
        let (name, writer, reader) = (self.name.as_str(), self.writer.as_str(), self.reader.as_str());
        let [first, second, third] = self.ids.each_ref().map(String::as_str);
        say(&format!(
            "One volume on two hosts: {writer} writes, {reader} reads; then {writer} is cut off by force, and {reader} notices nothing."
        ))?;
        self.step(
            "A type whose volumes several hosts may attach at once.",
            &["type", "create", name, "--multiattach"],
        )
        .await?;
        let made = self
            .step("A volume of it.", &["volume", "create", name, "--size", "1GiB", "--type", name])
            .await?;
        if made != Exit::Ok {
            return Err(Failure::Broken(
                "the tour ends here: the volume takes longer than --timeout".to_owned(),
            ));
        }
        let attaches = format!("{writer} attaches it, to read and write.");
        let disk = self.attach(&attaches, &["attach", name, "--host", writer, "--id", first]).await?;
        let disk = local(disk, writer)?;
        self.attach(
            &format!("{reader} attaches the same volume, read-only: the target refuses its writes."),
            &["attach", name, "--host", reader, "--mode", "ro", "--id", second],
        )
        .await?;
        let open = match &disk {
            Some(path) => writes(path)?,
            None => None,
        };
        self.step(
            "Each attachment is an object of its own, with its own mode.",
            &["attachment", "list", name],
        )
        .await?;
        let cuts = format!(
            "{writer} is cut off by force, whatever it is doing. The receipt says whether anything of it may still land."
        );
        let exit = self.cut_off(&cuts, &["detach", first, "--force"]).await?;
        if exit != Exit::Ok {
            say("The tour ends here: nothing proves within --timeout that the host is cut off.")?;
            return Ok(exit);
        }
        if let Some(file) = &open {
            is_cut_off(file)?;
        }
        self.step(&format!("{reader} has its disk as before."), &["attachment", "show", second]).await?;
        let back = format!("{writer} comes back, to read only.");
        let words = ["attach", name, "--host", writer, "--mode", "ro", "--id", third];
        let disk = self.attach(&back, &words).await?;
        let disk = local(disk, writer)?;
        if let (Some(path), true) = (&disk, open.is_some()) {
            reads_only(path)?;
        }
        Ok(exit)
    }

    /// The commands that remove everything that the tour made, in order.
    fn leftovers(&self) -> [Vec<&str>; 5] {
        let [first, second, third] = self.ids.each_ref().map(String::as_str);
        [
            vec!["detach", first],
            vec!["detach", third],
            vec!["detach", second],
            vec!["volume", "delete", &self.name],
            vec!["type", "delete", &self.name],
        ]
    }

    /// Removes everything. Returns the commands that failed.
    async fn clean_up(&self, tell: bool) -> Vec<String> {
        let mut left = Vec::new();
        for words in self.leftovers() {
            // An object that was never made, or is gone, counts as removed.
            let done = match self.run(&words, false).await {
                Ok(exit) => exit == Exit::Ok,
                Err(Failure::NotFound(_)) => true,
                Err(_) => false,
            };
            if !done {
                left.push(format!("mooring {}", words.join(" ")));
            }
        }
        if tell && left.is_empty() {
            // The tour is over whether or not this line can be written.
            let _ = say("Everything that the tour made is gone again.");
        }
        left
    }

    /// Announces a step, shows its command, and runs it.
    async fn step(&self, what: &str, words: &[&str]) -> Result<Exit, Failure> {
        say(&format!("{what}\n\n  $ mooring {}\n", words.join(" ")))?;
        self.run(words, true).await
    }

    /// Like [`Self::step`], for an attach. Returns the disk's path on its host.
    async fn attach(&self, what: &str, words: &[&str]) -> Result<Option<String>, Failure> {
        say(&format!("{what}\n\n  $ mooring {}\n", words.join(" ")))?;
        let Command::Attach(args) = parsed(words)? else { return Ok(None) };
        self.client.begin_again();
        let reply = attach::attach(self.client, &args, false).await?;
        let path = reply.answer.attachment.device_path.clone();
        if print(false, &reply)? != Exit::Ok {
            return Err(Failure::Broken(
                "the tour ends here: the attach takes longer than --timeout".to_owned(),
            ));
        }
        Ok(path)
    }

    /// Like [`Self::step`], for a forced detach. A receipt that is not proven yet is asked for
    /// again, until --timeout: what is shown from here on needs the proof.
    async fn cut_off(&self, what: &str, words: &[&str]) -> Result<Exit, Failure> {
        let began = Instant::now();
        let mut exit = self.step(what, words).await?;
        while exit == Exit::Pending && began.elapsed().as_secs() < self.client.seconds() {
            self.client.pause(REPEAT).await;
            exit = self.step("Not proven yet. The same command again waits for the proof.", words).await?;
        }
        Ok(exit)
    }

    async fn run(&self, words: &[&str], show: bool) -> Result<Exit, Failure> {
        let client = self.client;
        client.begin_again();
        macro_rules! done {
            ($reply:expr) => {{
                let reply = $reply?;
                if show { print(false, &reply) } else { Ok(reply.exit) }
            }};
        }
        match parsed(words)? {
            Command::Type(TypeCommand::Create(args)) => done!(kind::create(client, &args).await),
            Command::Type(TypeCommand::Delete(args)) => done!(kind::delete(client, &args.kind).await),
            Command::Volume(VolumeCommand::Create(args)) => done!(volume::create(client, &args).await),
            Command::Volume(VolumeCommand::Delete(args)) => done!(volume::delete(client, &args).await),
            Command::Attachment(AttachmentCommand::List(args)) => {
                done!(attachment::list(client, args.volume.as_ref()).await)
            }
            Command::Attachment(AttachmentCommand::Show(args)) => {
                done!(attachment::show(client, args.id).await)
            }
            Command::Detach(args) => done!(detach::detach(client, &args).await),
            other => Err(Failure::Usage(format!("no step of the tour: {other:?}"))),
        }
    }
}

/// The disk's path if it is on this machine and this user may open it; otherwise `None`.
fn local(path: Option<String>, host: &str) -> Result<Option<String>, Failure> {
    let Some(path) = path else { return Ok(None) };
    match File::open(&path) {
        Ok(_) => Ok(Some(path)),
        Err(error) => {
            let why = match error.kind() {
                ErrorKind::NotFound => format!("run the tour on {host} to see what it reads and writes"),
                ErrorKind::PermissionDenied => {
                    "run the tour as root to see what it reads and writes".to_owned()
                }
                _ => format!("{path} cannot be opened: {error}"),
            };
            say(&format!("({why})")).map(|()| None)
        }
    }
}

/// Writes a block on this machine. Returns the disk, still open.
fn writes(path: &str) -> Result<Option<File>, Failure> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.map_err(|error| Failure::Broken(format!("{path} cannot be opened to write: {error}")))?;
    match within(&file, write) {
        Ok(()) => {
            say(&format!("This machine writes {BLOCK} bytes to {path}, and keeps it open: done."))?;
            Ok(Some(file))
        }
        Err(error) => Err(Failure::Broken(format!("{path} cannot be written to: {error}"))),
    }
}

fn is_cut_off(file: &File) -> Result<(), Failure> {
    match within(file, write) {
        Ok(()) => Err(Failure::Broken(
            "this machine was cut off, and its write still went through: that must never be".to_owned(),
        )),
        Err(error) => say(&format!(
            "This machine writes once more to the disk that it has open, which is gone: the write fails ({error})."
        )),
    }
}

fn reads_only(path: &str) -> Result<(), Failure> {
    let broken = |what: &str, error: &io::Error| Failure::Broken(format!("{path} cannot be {what}: {error}"));
    let file = File::open(path).map_err(|error| broken("opened", &error))?;
    match within(&file, read) {
        Ok(true) => {}
        Ok(false) => {
            return Err(Failure::Broken(format!(
                "{path} does not hold what was written: that must never be"
            )));
        }
        Err(error) => return Err(broken("read", &error)),
    }
    let written = OpenOptions::new().write(true).open(path).and_then(|file| within(&file, write));
    match written {
        Ok(()) => {
            Err(Failure::Broken(format!("{path} is read-only, and was written to: that must never be")))
        }
        Err(error) => say(&format!(
            "This machine reads back what it wrote, from {path}. It tries to write: that fails ({error})."
        )),
    }
}

fn say(text: &str) -> Result<(), Failure> {
    write_out(&plain(&format!("\n{}\n", text.trim_end()))).map(drop)
}

/// Parses the words of a step.
fn parsed(words: &[&str]) -> Result<Command, Failure> {
    let cli = Cli::try_parse_from(std::iter::once("mooring").chain(words.iter().copied()));
    cli.map(|cli| cli.command).map_err(|error| Failure::Usage(error.to_string()))
}

/// The block that the tour writes.
fn block() -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    for (to, from) in block.iter_mut().zip(b"mooring demo: one volume, two hosts\n".iter().cycle()) {
        *to = *from;
    }
    block
}

fn write(file: &File) -> io::Result<()> {
    file.write_all_at(&block(), 0)?;
    file.sync_all()
}

fn read(file: &File) -> io::Result<bool> {
    let mut found = [0; BLOCK];
    file.read_exact_at(&mut found, 0)?;
    Ok(found == block())
}

/// Runs an operation on a thread of its own: a disk whose session is lost may answer late, or
/// never.
fn within<T: Send + 'static>(file: &File, work: fn(&File) -> io::Result<T>) -> io::Result<T> {
    let file = file.try_clone()?;
    let (done, result) = mpsc::channel();
    drop(std::thread::spawn(move || done.send(work(&file))));
    result.recv_timeout(IO_LIMIT).unwrap_or_else(|_| {
        Err(io::Error::new(ErrorKind::TimedOut, format!("no answer within {} s", IO_LIMIT.as_secs())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(writer: Option<&str>, reader: Option<&str>) -> DemoArgs {
        DemoArgs { writer: writer.map(str::to_owned), reader: reader.map(str::to_owned), keep: false }
    }

    #[test]
    fn two_takes_this_machine_for_the_writer() {
        let names = ["host1", "host2", "host3"];
        let two = |this, writer, reader| two(&names, this, &args(writer, reader));
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(two(None, None, None), pair("host1", "host2"));
        assert_eq!(two(Some("host2.lab"), None, None), pair("host2", "host1"));
        assert_eq!(two(Some("host2"), None, Some("host2")), pair("host1", "host2"));
        assert_eq!(two(Some("host2"), Some("host3"), None), pair("host3", "host1"));
        assert_eq!(two(Some("elsewhere"), None, Some("host1")), pair("host2", "host1"));
        for (writer, reader) in [(Some("host9"), None), (None, Some("host9")), (Some("host1"), Some("host1"))]
        {
            assert!(two(None, writer, reader).is_err(), "{writer:?} {reader:?}");
        }
    }

    #[test]
    fn two_says_what_is_missing() {
        assert!(two(&[], None, &args(None, None)).unwrap_err().contains("there is none"));
        assert!(two(&["host1"], None, &args(None, None)).unwrap_err().contains("there is one"));
        assert!(two(&[], None, &args(Some("host1"), None)).unwrap_err().contains("those are: none"));
    }

    #[test]
    fn a_block_is_written_and_read_back() {
        let file = tempfile::tempfile().unwrap();
        within(&file, write).unwrap();
        assert!(within(&file, read).unwrap());
        file.write_all_at(b"x", 7).unwrap();
        assert!(!within(&file, read).unwrap());
    }
}
