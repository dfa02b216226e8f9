//! Shell completion: names of volumes, snapshots, types, hosts and attachments, from the controller
//! or the named agent. The shells' scripts run this program with `COMPLETE` set and the words typed
//! so far.
//!
//! What must never happen here: an error, a question or a long wait in the middle of a line; a call
//! that the words do not ask for.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory, FromArgMatches};
use clap_complete::{ArgValueCandidates, CompletionCandidate};

use crate::args::{Cli, Global};
use crate::controller::{Client, attachment, host, kind, snapshot, volume};
use crate::error::Failure;
use crate::select;
use crate::session::Session;
use crate::side::{self, Side};
use crate::text::{is_one_line, one_line};

/// Time limit for candidates; beyond it there are none.
const PATIENCE: Duration = Duration::from_secs(2);

/// A kind of object whose names can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Volume,
    Snapshot,
    Type,
    Host,
    Attachment,
}

impl Named {
    /// The kind that a value name of the help stands for: `VOLUME`, `ATTACHMENT|VOLUME`. `None`: no
    /// kind.
    fn of_value(name: &str) -> Option<Self> {
        match name {
            "VOLUME" => Some(Self::Volume),
            "SNAPSHOT" => Some(Self::Snapshot),
            "TYPE" => Some(Self::Type),
            "HOST" => Some(Self::Host),
            "ATTACHMENT" => Some(Self::Attachment),
            _ => None,
        }
    }

    /// The kinds that an argument names. Before the command is built, `id` and `host` of clap's
    /// derive have no value name.
    fn of(arg: &Arg) -> Vec<Self> {
        let names = match arg.get_value_names() {
            Some(names) => names.iter().map(|name| name.as_str().to_owned()).collect(),
            None => vec![arg.get_id().as_str().to_uppercase()],
        };
        names.iter().flat_map(|name| name.split('|')).filter_map(Self::of_value).collect()
    }
}

/// The command line, with candidates for each argument that names an object.
pub fn command() -> Command {
    completing(Cli::command())
}

fn completing(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let named = Named::of(&arg);
        if named.is_empty() { arg } else { arg.add(ArgValueCandidates::new(move || candidates(&named))) }
    });
    command.mut_subcommands(completing)
}

/// The words of the unfinished line: everything after the `--` of the shell's script.
fn typed(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    words.skip_while(|word| word != "--").skip(1).collect()
}

/// Reads the global options and the names of the commands from an unfinished line; `None` if clap
/// cannot parse any of it.
fn global(words: Vec<OsString>) -> Option<(Global, Vec<String>)> {
    let matches = Cli::command().ignore_errors(true).try_get_matches_from(words).ok()?;
    let typed = crate::args::Typed::of(&matches);
    let mut global = Global::from_arg_matches(&matches).ok()?;
    global.typed = typed;
    // Only candidates are printed, and every call is short.
    (global.json, global.timeout) = (true, u32::try_from(PATIENCE.as_secs()).unwrap_or(1));
    let mut path = Vec::new();
    let mut at = matches.subcommand();
    while let Some((name, below)) = at {
        path.push(name.to_owned());
        at = below.subcommand();
    }
    Some((global, path))
}

fn candidates(named: &[Named]) -> Vec<CompletionCandidate> {
    let Some((global, path)) = global(typed(std::env::args_os())) else { return Vec::new() };
    if global.token_file.as_ref().is_some_and(|source| !source.is_silent()) {
        return Vec::new();
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    let all = async {
        let mut all = Vec::new();
        for one in named {
            // If one list fails, the others are still useful.
            all.extend(ask(&global, &path, *one).await.unwrap_or_default());
        }
        all
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, all).await.unwrap_or_default() })
}

/// Finds the side that the command itself would call.
fn side_of(global: &Global, path: &[String]) -> Result<Side, Failure> {
    match path.first().map(String::as_str) {
        Some(word @ ("export" | "plan")) => side::agent(global, word).map(Side::Agent),
        Some("volume" | "session" | "job") => side::either(global),
        _ => side::controller(global, "").map(Side::Controller),
    }
}

async fn ask(global: &Global, path: &[String], named: Named) -> Result<Vec<CompletionCandidate>, Failure> {
    let url = match side_of(global, path)? {
        Side::Agent(_) if named != Named::Volume => return Ok(Vec::new()),
        Side::Agent(address) => {
            let volumes = Session::open(global, &address).await?.list().await?;
            return Ok(volumes
                .into_iter()
                .map(|one| candidate(select::name_of(&one.volume_opaque), one.volume_id, ""))
                .collect());
        }
        Side::Controller(url) => url,
    };
    let client = Client::open(global, url)?;
    Ok(match named {
        Named::Volume => {
            let volumes = volume::list(&client).await?.answer.volumes;
            volumes.into_iter().map(|one| candidate(one.name, one.id, &one.status)).collect()
        }
        Named::Snapshot => {
            let snapshots = snapshot::list(&client, None).await?.answer.snapshots;
            snapshots.into_iter().map(|one| candidate(one.name, one.id, &one.status)).collect()
        }
        Named::Type => {
            let types = kind::list(&client).await?.answer.types;
            types
                .into_iter()
                .map(|one| candidate(Some(one.name), one.id, one.description.as_deref().unwrap_or_default()))
                .collect()
        }
        Named::Host => {
            let hosts = host::list(&client).await?.answer.hosts;
            hosts.iter().map(|one| candidate(Some(one.name.clone()), String::new(), "")).collect()
        }
        Named::Attachment => {
            let attachments = attachment::of_volume(&client, None).await?;
            attachments.iter().map(|one| candidate(None, one.id.clone(), &on_host(one))).collect()
        }
    })
}

fn on_host(attachment: &crate::controller::records::Live) -> String {
    let volume = attachment.volume_name.as_deref().unwrap_or(&attachment.volume_id);
    match &attachment.host {
        Some(host) => format!("{volume} on {host}"),
        None => format!("{volume}, reserved"),
    }
}

/// A candidate for one object: its name, or its id if the name is missing or unfit for a terminal.
fn candidate(name: Option<String>, id: String, help: &str) -> CompletionCandidate {
    let shown = |name: &String| !name.is_empty() && is_one_line(name);
    let value = name.filter(shown).unwrap_or(id);
    let help = Some(one_line(help)).filter(|help| !help.is_empty());
    CompletionCandidate::new(value).help(help.map(Into::into))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(Into::into).collect()
    }

    /// Lists every argument below a command that names an object, as `volume show VOLUME`.
    fn completed(command: &Command, path: &str, found: &mut Vec<String>) {
        for arg in command.get_arguments() {
            let has = arg.get::<ArgValueCandidates>().is_some();
            assert_eq!(has, !Named::of(arg).is_empty(), "{path} {}", arg.get_id());
            if has {
                found.push(format!("{path} {}", arg.get_id()));
            }
        }
        for below in command.get_subcommands() {
            completed(below, &format!("{path} {}", below.get_name()), found);
        }
    }

    #[test]
    fn what_names_an_object_is_completed() {
        let mut found = Vec::new();
        completed(&command(), "mooring", &mut found);
        for one in [
            "mooring volume show volume",
            "mooring volume create from",
            "mooring volume create snapshot",
            "mooring volume create kind",
            "mooring volume import host",
            "mooring volume retype type",
            "mooring attach volume",
            "mooring attach host",
            "mooring detach what",
            "mooring detach host",
            "mooring attachment mode id",
            "mooring attachment list volume",
            "mooring receipt show id",
            "mooring session list host",
            "mooring host fence host",
            "mooring job throttle host",
            "mooring snapshot delete snapshot",
            "mooring volume revert to",
            "mooring export grant volume",
            "mooring plan volume",
        ] {
            assert!(found.iter().any(|is| is == one), "{one} is not in {found:#?}");
        }
        // No object has a new volume's name.
        assert!(!found.iter().any(|is| is.ends_with(" name")));
    }

    #[test]
    fn a_candidate_is_one_line_and_draws_nothing() {
        for odd in ["a\nb", "a\u{202e}b", "a\u{200b}b", "a\u{1b}[2Jb", "a\u{2028}b", ""] {
            let made = candidate(Some(odd.to_owned()), "7".to_owned(), odd);
            assert_eq!(made.get_value(), "7", "{odd:?}");
            let help = made.get_help().map(ToString::to_string).unwrap_or_default();
            assert_eq!(help, one_line(odd), "{odd:?}");
        }
        // Control: an ordinary name is the candidate.
        let made = candidate(Some("größe".to_owned()), "7".to_owned(), "in-use");
        assert_eq!(made.get_value(), "größe");
        assert_eq!(made.get_help().map(ToString::to_string).as_deref(), Some("in-use"));
    }

    #[test]
    fn the_options_of_an_unfinished_line_say_whom_to_ask() {
        let line = "mooring --controller https://c1:8776 --token-file /t volume show --json ";
        let (global, path) = global(words(line)).unwrap();
        assert_eq!(path, ["volume", "show"]);
        let side = side_of(&global, &path).unwrap();
        assert!(matches!(side, Side::Controller(url) if url.to_string().starts_with("https://c1:8776")));
        let (global, path) = super::global(words("mooring --agent unix:/run/a export show ")).unwrap();
        assert!(matches!(side_of(&global, &path).unwrap(), Side::Agent(_)));
        assert_eq!(typed(words("mooring -- mooring attach ").into_iter()), words("mooring attach "));
    }
}
