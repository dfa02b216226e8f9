//! Holds the commands, flags and arguments of all programs against a recorded list: scripts of
//! operators rely on them.
//!
//! What must never happen here: a change of the list in a commit that does not mean to change what
//! operators type.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

/// Writes one line for an argument: everything that a command line can depend on, and no prose.
fn describe(arg: &Arg) -> String {
    let mut line = String::new();
    match (arg.get_long(), arg.get_short()) {
        (None, None) => write!(line, "<{}>", arg.get_id()).unwrap(),
        (long, short) => {
            let long = long.map(|long| format!("--{long}"));
            let short = short.map(|short| format!("-{short}"));
            let names: Vec<_> = long.into_iter().chain(short).collect();
            line.push_str(&names.join(" "));
        }
    }
    for alias in arg.get_all_aliases().unwrap_or_default() {
        write!(line, " alias={alias}").unwrap();
    }
    if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) {
        write!(line, " values={}", arg.get_num_args().unwrap_or_else(|| 1.into())).unwrap();
    }
    let possible: Vec<_> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !possible.is_empty() {
        write!(line, " possible={}", possible.join("|")).unwrap();
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() {
        write!(line, " default={}", defaults.join(",")).unwrap();
    }
    if let Some(env) = arg.get_env() {
        write!(line, " env={}", env.to_string_lossy()).unwrap();
    }
    for (word, is) in [
        ("repeated", matches!(arg.get_action(), ArgAction::Append | ArgAction::Count)),
        ("required", arg.is_required_set()),
        ("global", arg.is_global_set()),
        ("hidden", arg.is_hide_set()),
    ] {
        if is {
            write!(line, " {word}").unwrap();
        }
    }
    line
}

fn list(command: &Command, path: &str, text: &mut String) {
    let hidden = if command.is_hide_set() { " (hidden)" } else { "" };
    write!(text, "{path}{hidden}").unwrap();
    for alias in command.get_all_aliases() {
        write!(text, " alias={alias}").unwrap();
    }
    text.push('\n');
    let mut arguments: Vec<_> = command
        .get_arguments()
        .filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"))
        // clap repeats a program's global flags at each of its commands.
        .filter(|arg| !(path.contains(' ') && arg.is_global_set()))
        .map(describe)
        .collect();
    // The order of positional arguments counts; that of flags does not.
    let positional = arguments.iter().filter(|line| line.starts_with('<')).cloned().collect::<Vec<_>>();
    arguments.retain(|line| !line.starts_with('<'));
    arguments.sort();
    for line in positional.iter().chain(&arguments) {
        writeln!(text, "    {line}").unwrap();
    }
    let mut below: Vec<_> = command.get_subcommands().filter(|below| below.get_name() != "help").collect();
    below.sort_by_key(|below| below.get_name());
    for below in below {
        list(below, &format!("{path} {}", below.get_name()), text);
    }
}

#[test]
fn commands_and_flags_stay_as_recorded() {
    let mut text = String::new();
    for (mut program, _) in super::programs() {
        program.build();
        let name = program.get_name().to_owned();
        list(&program, &name, &mut text);
    }
    insta::assert_snapshot!(text);
}
