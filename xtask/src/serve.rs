//! `cargo xtask serve`: a control plane to try clients against, by `mooring-fleet-serve`.
//!
//! What must never happen here: a listener beyond loopback.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Error, Result};
use clap::Args;

use crate::stages::{cargo, one, target};

const PROGRAM: &str = "mooring-fleet-serve";

/// Options of `cargo xtask serve`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Builds and runs one program: the real controller with SQLite, and real agents, each on a host that is faked in memory. It needs
no root and no kernel target, and listens on loopback only. The first build takes some minutes, since it is optimised.

What works: both APIs, all of volumes, types, snapshots and attachments, force detaches with receipts, fences, policies. Storage
nodes have LVM and a target in memory; hosts h1, h2, … log in over iSCSI, and fh1, fh2, … find their disks over Fibre Channel.
What does not: no data is behind a disk, and nothing listens on the portals in a connection info. `cargo xtask demo --keep` has
real kernels.

It prints its address, the tokens of an admin, a member and a reader, and the first lines for mooring, curl, openstack and
python-cinderclient. `mooring` itself is built beside it (target/release/mooring). Ctrl-C ends everything.

Examples:
  cargo xtask serve                             storage nodes s1, s2, t1 (thin) and f1 (Fibre Channel), four hosts, tokens
  cargo xtask serve --keystone                  clients log in with a password, and find the API in a catalogue
  cargo xtask serve --no-auth --listen 127.0.0.1:8776
                                                everybody is an admin, at the address where `mooring` looks by itself
  cargo xtask serve --storages 1 --hosts 0 --fc-hosts 0 --thin 0
                                                one storage node alone, for clients that log in by themselves

More: docs/contributing/testing.md")]
pub(crate) struct ServeArgs {
    /// Storage nodes s1, s2, …, each with one pool
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=50))]
    storages: u8,
    /// GiB of each pool
    #[arg(long, default_value_t = 100)]
    gib: u64,
    /// GiB of the thin pool of one further storage node, t1; 0: there is none
    #[arg(long, default_value_t = 50)]
    thin: u64,
    /// Hosts h1, h2, … that attach natively over iSCSI
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=50))]
    hosts: u8,
    /// Hosts fh1, fh2, … that attach natively over Fibre Channel, to one further storage node, f1;
    /// 0: there is none
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=50))]
    fc_hosts: u8,
    /// Authenticate nobody: everybody is an admin
    #[arg(long)]
    no_auth: bool,
    /// Authenticate by an identity service that is a part of the program, as Keystone is one
    #[arg(long, conflicts_with = "no_auth")]
    keystone: bool,
    /// Address of the controller, on loopback [default: a free port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Build without optimisation: faster to build after a change, slower to answer
    #[arg(long)]
    debug: bool,
}

impl ServeArgs {
    /// The flags of the program.
    fn flags(&self) -> Vec<String> {
        let numbers = [
            ("--storages", u64::from(self.storages)),
            ("--gib", self.gib),
            ("--thin", self.thin),
            ("--hosts", u64::from(self.hosts)),
            ("--fc-hosts", u64::from(self.fc_hosts)),
        ];
        let mut flags = vec!["--guide".to_owned()];
        flags.extend(numbers.iter().flat_map(|(flag, number)| [(*flag).to_owned(), number.to_string()]));
        flags.extend(self.no_auth.then(|| "--no-auth".to_owned()));
        flags.extend(self.keystone.then(|| "--keystone".to_owned()));
        if let Some(address) = self.listen {
            flags.extend(["--listen".to_owned(), address.to_string()]);
        }
        flags
    }
}

/// Builds the programs, and becomes the one that serves: Ctrl-C reaches it alone, and its end is
/// the end of this command.
pub(crate) fn run(args: &ServeArgs, root: &Path) -> Result<Infallible> {
    for (package, program) in [("mooring-cli", "mooring"), ("mooring-fleet", PROGRAM)] {
        let mut build = cargo(root, &["build", "-p", package, "--bin", program]);
        build.args((!args.debug).then_some("--release"));
        one(build)?;
    }
    let profile = if args.debug { "debug" } else { "release" };
    let program = target(root).join(profile).join(PROGRAM);
    let error = Command::new(&program).args(args.flags()).exec();
    Err(Error::new(error).context(format!("start {}", program.display())))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{Chore, Cli};

    /// The program's flags for these words after `cargo xtask serve`; an error has clap's text.
    fn flags(words: &str) -> Result<String, String> {
        let all = ["cargo xtask", "serve"].into_iter().chain(words.split_whitespace());
        match Cli::try_parse_from(all).map_err(|error| error.to_string())?.chore {
            Chore::Serve(args) => Ok(args.flags().join(" ")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn everything_is_served_unless_the_caller_wants_less() {
        let usual = "--guide --storages 2 --gib 100 --thin 50 --hosts 2 --fc-hosts 2";
        assert_eq!(flags("").unwrap(), usual);
        assert_eq!(flags("--debug").unwrap(), usual);
        assert_eq!(flags("--keystone").unwrap(), format!("{usual} --keystone"));
        let less = "--storages 1 --gib 5 --thin 0 --hosts 0 --fc-hosts 0 --no-auth --listen 127.0.0.1:8776";
        assert_eq!(flags(less).unwrap(), format!("--guide {less}"));
    }

    #[test]
    fn what_cannot_be_served_is_refused_before_a_build() {
        for (words, why) in [
            ("--storages 0", "0 is not in 1..=50"),
            ("--hosts 51", "51 is not in 0..=50"),
            ("--no-auth --keystone", "cannot be used with"),
            ("--listen 8776", "invalid socket address syntax"),
        ] {
            let error = flags(words).unwrap_err();
            assert!(error.contains(why), "{words}: {error}");
        }
    }
}
