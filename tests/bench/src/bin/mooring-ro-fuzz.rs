//! Sends SCSI commands with false claims from a read-only host, over an iSCSI session of its own.
//! The storage node checks the effect on the disk.
//!
//! What must never happen here: a run that cannot be repeated from its seed.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, Parser, Subcommand};
use mooring_api::v1;
use mooring_api::v1::agent_client::AgentClient;
use mooring_bench::gun::{Door, Gun};
use mooring_bench::shots::{Aim, HONEST, Kind, Shot, UNMAP};
use mooring_bench::spec::volume_spec;
use mooring_model::{ClusterId, Iqn, VolumeId};

#[derive(Debug, Parser)]
#[command(name = "mooring-ro-fuzz", about, version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Send these commands, and print their results
    Shoot {
        #[command(flatten)]
        shots: Shots,
        #[command(flatten)]
        at: At,
        /// Repeat until this file exists
        #[arg(long)]
        until: Option<PathBuf>,
    },
    /// Print these commands, one a line: number, claimed direction, expected length, CDB, data
    List {
        #[command(flatten)]
        shots: Shots,
    },
    /// Write with every command that a host uses which may write; each kind has its own eight
    /// blocks, from eight times its number
    Write {
        #[command(flatten)]
        at: At,
        /// Also unmap a MiB from the first block
        #[arg(long)]
        unmap: bool,
    },
    /// Make a volume, on a storage node
    Make {
        /// The volume's id
        volume: VolumeId,
        /// The volume's size
        bytes: u64,
        /// Make it in the thin pool
        #[arg(long)]
        thin: bool,
    },
}

#[derive(Debug, ClapArgs)]
struct Shots {
    /// The seed
    #[arg(long)]
    seed: u64,
    /// Number of the first command
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Number of commands
    #[arg(long)]
    count: u64,
    /// Number of the disk's blocks of 512 bytes
    #[arg(long)]
    blocks: u64,
    /// The disk's NAA, 32 hexadecimal digits
    #[arg(long, value_parser = parse_naa)]
    naa: [u8; 16],
}

#[derive(Debug, Clone, ClapArgs)]
struct At {
    #[arg(long)]
    portal: SocketAddr,
    #[arg(long)]
    target: Iqn,
    #[arg(long)]
    initiator: Iqn,
    #[arg(long, default_value_t = 1)]
    lun: u8,
}

fn parse_naa(text: &str) -> Result<[u8; 16], String> {
    u128::from_str_radix(text, 16).map(u128::to_be_bytes).map_err(|error| error.to_string())
}

impl Shots {
    fn all(&self) -> impl Iterator<Item = (u64, Shot)> {
        let aim = Aim { blocks: self.blocks, naa: self.naa };
        (self.from..self.from + self.count).map(move |number| (number, Shot::of(self.seed, number, &aim)))
    }
}

impl From<At> for Door {
    fn from(at: At) -> Self {
        Self { portal: at.portal, target: at.target, initiator: at.initiator, lun: at.lun }
    }
}

fn shoot(shots: &Shots, at: At, until: Option<&Path>) -> Result<()> {
    let mut gun = Gun::load(at.into())?;
    // This takes what was pending for a new session, so that the first command does not.
    gun.reads()?;
    loop {
        // A writing host can put the disk on standby for all, itself included: the other commands
        // would then do nothing.
        let all = shots.all().filter(|(_, shot)| until.is_none() || !shot.sets_port_groups());
        for (number, shot) in all {
            gun.shoot(&shot).with_context(|| format!("command {number}: {shot}"))?;
        }
        gun.reads()?;
        if until.is_none_or(Path::exists) {
            break;
        }
    }
    println!("{}", serde_json::to_string(&gun.tally)?);
    Ok(())
}

fn write(at: At, unmap: bool) -> Result<()> {
    let mut gun = Gun::load(at.into())?;
    gun.reads()?;
    let mut one = |kind: &Kind, lba, blocks| {
        let before = gun.tally.good;
        let aim = Aim { blocks: u64::MAX, naa: [0; 16] };
        gun.shoot(&Shot::honest(kind, &aim, lba, blocks))?;
        gun.rest()?;
        if gun.tally.good == before {
            bail!("{} of a host that may write was refused: {:?}", kind.name, gun.tally);
        }
        println!("{}", kind.name);
        Ok(())
    };
    for (number, kind) in (1..).zip(HONEST) {
        one(kind, 8 * number, 8)?;
    }
    if unmap {
        one(&UNMAP, 2048, 2048)?;
    }
    Ok(())
}

async fn make(volume: VolumeId, bytes: u64, thin: bool) -> Result<()> {
    let address = "unix:/run/mooring/agent.sock".parse()?;
    let mut agent =
        AgentClient::new(mooring_api::connect(&address, &mooring_api::TlsFiles::default()).await?);
    let mut spec = volume_spec("vg0", bytes);
    if thin {
        spec.provisioning = v1::Provisioning::Thin.into();
    }
    let generation = v1::Generation { epoch: 1, counter: 1 };
    let digest = mooring_api::digest(&spec, &[]).as_bytes().to_vec();
    let request = v1::PutVolumeRequest {
        sender: Some(v1::Sender { cluster_id: ClusterId::STANDALONE.to_string() }),
        volume_id: volume.to_string(),
        stamp: Some(v1::Stamp { generation: Some(generation), digest }),
        wish: Some(v1::put_volume_request::Wish::Spec(spec)),
        opaque: Vec::new(),
        deadline_ms: 100_000,
        new: false,
    };
    let answer = agent.put_volume(request).await?.into_inner();
    if !answer.done {
        bail!("the volume is not there: {answer:?}");
    }
    Ok(())
}

fn list(shots: &Shots) {
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    for (number, shot) in shots.all() {
        let way = match (shot.reads, shot.writes) {
            (true, _) => "from",
            (false, true) => "to",
            (false, false) => "none",
        };
        let data = &shot.content[..shot.content.len().min(shot.expected as usize)];
        println!("{number} {way} {} {} {}", shot.expected, hex(&shot.cdb), hex(data));
    }
}

fn main() -> Result<()> {
    match Args::parse().what {
        What::Shoot { shots, at, until } => shoot(&shots, at, until.as_deref()),
        What::List { shots } => {
            list(&shots);
            Ok(())
        }
        What::Write { at, unmap } => write(at, unmap),
        What::Make { volume, bytes, thin } => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(make(volume, bytes, thin)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
        assert_eq!(parse_naa("60014051111222233334444555566667").unwrap()[..2], [0x60, 0x01]);
        assert!(parse_naa("").is_err());
    }
}
