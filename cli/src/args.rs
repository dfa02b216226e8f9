//! The command line, as clap parses it. Everything that needs no call is checked here.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use mooring_api::Address;
use mooring_model::limit::{KERNEL_ANSWER_DEADLINE, KERNEL_ANSWER_DEADLINE_MAX};
use mooring_model::{
    AttachmentId, ByteSize, ClusterId, Iqn, Mode, Portal, Provisioning, VolumeId, VolumeSpec,
};

use crate::secret::SecretSource;
use crate::url::ControllerUrl;
use crate::volume_ref::VolumeRef;

mod attach;
mod attachment;
mod audit;
mod create;
mod cut;
mod delete;
mod demo;
mod export_file;
mod extend;
mod hosts;
mod import;
mod jobs;
mod manage;
mod receipts;
mod reservations;
mod revert;
mod rotate;
mod sessions;
mod site;
mod snapshots;

pub(crate) use attach::AttachArgs;
pub(crate) use attachment::{
    AttachmentCacheArgs, AttachmentCheckArgs, AttachmentListArgs, AttachmentModeArgs, AttachmentShowArgs,
};
pub(crate) use audit::AuditArgs;
pub(crate) use create::CreateArgs;
pub(crate) use cut::CutArgs;
pub(crate) use delete::DeleteArgs;
pub(crate) use demo::DemoArgs;
pub(crate) use export_file::VolumeExportArgs;
pub(crate) use extend::ExtendArgs;
pub(crate) use hosts::{ForgetArgs, HostCommand, HostTokenArgs, PoolCommand, RenameArgs};
pub(crate) use import::ImportArgs;
pub(crate) use jobs::{JobCommand, JobShowArgs, JobThrottleArgs};
pub(crate) use manage::{ManageArgs, ManageableArgs};
pub(crate) use receipts::ReceiptCommand;
pub(crate) use reservations::ReservationsArgs;
pub(crate) use revert::RevertArgs;
pub(crate) use rotate::RotateArgs;
pub(crate) use sessions::{SessionCommand, SessionListArgs};
pub(crate) use site::{
    QuotaCommand, QuotaSetArgs, ResetStatusArgs, RetypeArgs, TypeAccessArgs, TypeCommand, TypeSetArgs,
    TypeUnsetArgs, VolumeSetArgs,
};
pub(crate) use snapshots::{SnapshotCommand, SnapshotCreateArgs, SnapshotDeleteArgs, SnapshotResetArgs};

const AFTER: &str = "\
Two sides:
  the controller  knows all hosts and volumes: host, type, quota, volume, snapshot, attach, detach,
                  attachment, job.
                  http://127.0.0.1:8776 unless --controller or MOORING_CONTROLLER says otherwise;
                  its token comes from MOORING_TOKEN or --token-file
  one agent       serves the volumes of one storage node: export, plan, agent, watch, and, where
                  --agent or MOORING_AGENT names it, volume, session, job

Exit codes:
  0  done: the requested state is reached
  1  failed
  2  usage: the request itself is wrong
  3  no such volume, type, host or attachment
  4  refused: precondition, permission, conflict
  5  accepted and durable, but not reached at the deadline; or a receipt that is not proven
  6  the controller or the agent cannot be reached or does not answer
  130  attach was interrupted; the output names what is left of it

Every command is safe to repeat (attach with the same --id). Answers go to standard output, errors
and progress to standard error; with --json answers and errors are JSON.

Examples, with a controller:
  mooring host list
  mooring type create shared --multiattach
  mooring volume create data --size 10GiB --type shared
  mooring snapshot create data before-upgrade
  mooring attach data --host host1
  mooring attach data --host host2 --mode ro
  mooring attachment list data
  mooring detach data --host host2

Examples, with one agent:
  mooring agent show
  mooring --agent unix:/run/mooring/agent.sock volume create data --size 10GiB
  mooring export grant data --initiator iqn.2004-10.com.example:host1 --mode rw
  mooring export show data
  mooring export revoke data --initiator iqn.2004-10.com.example:host1 --force
  mooring --agent https://storage1:7710 --ca ca.pem --cert me.pem --key me.key volume list";

/// Manage block volumes for many hosts: create, attach, detach and delete them
#[derive(Debug, Parser)]
#[command(name = "mooring", version, after_help = AFTER, max_term_width = 100)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads the command line of this process.
    pub fn read() -> Result<Self, clap::Error> {
        Self::of(&Self::command().try_get_matches()?)
    }

    fn of(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut cli = Self::from_arg_matches(matches)?;
        cli.global.typed = Typed::of(matches);
        // A forced revoke answers at the promised time, proven or not: its user has a host to
        // fence.
        let hasty = matches!(&cli.command, Command::Export(ExportCommand::Revoke(revoke)) if revoke.force);
        // A tour that took a slow disk for a failure would show nothing.
        let patient = matches!(&cli.command, Command::Demo(_));
        let seconds = |limit: Duration| u32::try_from(limit.as_secs()).unwrap_or(u32::MAX);
        match (hasty, patient) {
            _ if is_typed(matches, "timeout") => {}
            (true, _) => cli.global.timeout = seconds(KERNEL_ANSWER_DEADLINE),
            (_, true) => cli.global.timeout = seconds(KERNEL_ANSWER_DEADLINE_MAX),
            _ => {}
        }
        Ok(cli)
    }
}

/// Options that stand on the command line itself, not in the environment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Typed {
    /// `--agent`
    pub agent: bool,
    /// `--controller`
    pub controller: bool,
}

impl Typed {
    /// Reads them from clap's matches.
    pub(crate) fn of(matches: &ArgMatches) -> Self {
        Self { agent: is_typed(matches, "agent"), controller: is_typed(matches, "controller") }
    }
}

fn is_typed(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection and output")]
pub struct Global {
    /// The controller: http://HOST:PORT or https://HOST:PORT [default: http://127.0.0.1:8776]
    #[arg(long, global = true, env = "MOORING_CONTROLLER", hide_env_values = true, value_name = "URL")]
    pub controller: Option<ControllerUrl>,
    /// File with the token for the controller, - for standard input; without it MOORING_TOKEN
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<SecretSource>,
    /// One agent in place of the controller: unix:/PATH, https://HOST:PORT or http://HOST:PORT
    /// [default, for commands that only an agent has: unix:/run/mooring/agent.sock]
    #[arg(long, global = true, env = "MOORING_AGENT", hide_env_values = true, value_name = "ADDRESS")]
    pub agent: Option<Address>,
    /// Options that were typed.
    #[arg(skip)]
    pub typed: Typed,
    /// Certificate of the authority that signed the peer's certificate (https)
    #[arg(long, global = true, env = "MOORING_CA", hide_env_values = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Certificate of this client (https)
    #[arg(long, global = true, env = "MOORING_CERT", hide_env_values = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Key of this client's certificate (https)
    #[arg(long, global = true, env = "MOORING_KEY", hide_env_values = true, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Allow http (to a controller: beyond this machine): anyone on the network path can read and
    /// change everything, including tokens and CHAP secrets
    #[arg(long, global = true)]
    pub insecure: bool,
    /// Act for this cluster, on an agent that belongs to a controller
    #[arg(long, global = true, value_name = "UUID")]
    pub cluster: Option<ClusterId>,
    /// Answer with JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// How long to wait for the requested state
    #[arg(
        long,
        global = true,
        default_value_t = 30,
        allow_negative_numbers = true,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..=i64::try_from(KERNEL_ANSWER_DEADLINE_MAX.as_secs()).unwrap_or(1))
    )]
    pub timeout: u32,
}

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create, list, show and delete volumes (controller, or one agent)
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Take, list, show and delete snapshots of volumes (controller)
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Attach a volume to a host, as a verified disk with a stable path (controller)
    #[command(after_help = "\
The controller drives both agents: the storage node grants access, the host logs in and verifies
the disk. The command waits until the disk can be used, and prints its path. A volume of a type
with --multiattach may be attached to several hosts, each with its own mode; the target enforces
ro. Two attachments on one host share its session: the host may write if any of them may.

The transport is iSCSI, unless the volume's type or --transport requires Fibre Channel: then the
host's only online port is used, and the only port of the storage node that it sees.

Admins and services may attach to every host; members of a project only to the hosts that the
controller's configuration gives to it ([attach.hosts]).

Ctrl-C takes the attachment back and waits for that; a second ctrl-C leaves it to the controller
and prints its id. At the deadline (exit code 5) the controller continues without this program. To
repeat an attach safely after a lost answer, choose the id yourself: the same id with the same
arguments is the same attachment.

Examples:
  mooring attach data --host host1
  mooring attach data --host host2 --mode ro --timeout 60
  mooring attach data --host host1 --transport fc
  mooring attach data --host host1 --id $(uuidgen) --json | jq -r .attachment.device_path")]
    Attach(AttachArgs),
    /// Detach a volume from a host, by force if needed, and get the receipt (controller)
    #[command(after_help = "\
Without --force the host releases the disk first: while it is held open, the command is refused
(exit code 4) and names the holders. With --force the target revokes first, whatever the host does,
and the receipt is printed. `proven` means that the kernel has finished every command, and nothing
of this host reaches the volume any more. `unproven` (exit code 5) names how many commands may
still land, or says `any number` (null with --json) if they cannot be counted.

The target knows hosts, not attachments: if two attachments of one host share its access, --force
detaches one of them only together with the other (--widen).

A volume may be named in place of the attachment if it has only one (on that host). Detaching again
by id succeeds.

Examples:
  mooring detach data
  mooring detach data --host host2
  mooring detach b0c1d2e3-0001-4002-8003-0000000000aa --timeout 120
  mooring detach data --host host1 --force --json
  mooring detach b0c1d2e3-0001-4002-8003-0000000000aa --force --widen")]
    Detach(DetachArgs),
    /// List, show and change the attachments of volumes to hosts (controller)
    #[command(subcommand)]
    Attachment(AttachmentCommand),
    /// List the sessions of attachments, as their targets report them (controller, or one agent)
    #[command(subcommand)]
    Session(SessionCommand),
    /// Show and limit the long work of storage nodes (controller, or one agent)
    #[command(subcommand)]
    Job(JobCommand),
    /// Show the records of detaches: what was revoked, who asked, and the proof (controller)
    #[command(subcommand)]
    Receipt(ReceiptCommand),
    /// Show the audit log: each call's user, origin, operation and answer (controller)
    Audit(AuditArgs),
    /// Start a new epoch: changes from now on override anything an agent has stored (controller)
    #[command(subcommand)]
    Epoch(EpochCommand),
    /// Manage hosts and storage nodes: enrolment, placement of volumes, fences (controller)
    #[command(subcommand)]
    Host(HostCommand),
    /// List the pools that volumes are placed on (controller)
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Create, change, list and delete volume types (controller)
    #[command(subcommand)]
    Type(TypeCommand),
    /// Show and set the limits of projects (controller)
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Grant and revoke access to a volume over iSCSI (one agent)
    #[command(subcommand)]
    Export(ExportCommand),
    /// Take a guided tour: attach one volume to two hosts, and detach one by force (controller)
    #[command(after_help = "\
Makes a type and a volume of 1 GiB, attaches it to two hosts, detaches one by force, and removes
everything again. Each step is a command that you can type, and is shown with its answer. The tour
touches nothing that it has not made. Run it as root on one of the hosts: then it also reads and
writes. Its user must be allowed to make types (by default: an admin).

Examples:
  sudo mooring demo
  mooring demo --writer host1 --reader host2 --keep")]
    Demo(DemoArgs),
    /// Show what the agent would do now, and why, without doing it (one agent)
    #[command(after_help = "\
An empty plan means that everything is as requested. `blocked` lists the obstacles that the agent
leaves alone, and who can remove them.

Examples:
  mooring plan
  mooring plan data --json")]
    Plan(PlanArgs),
    /// Show the agent itself (one agent)
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Print reports as they arrive: first the state of everything, then changes (one agent)
    #[command(after_help = "\
Runs until it is interrupted or the agent ends the stream (exit code 6). With --json each line
is one JSON object with `at` and `kind`: volume, export, receipt, agent, synced (from there on,
changes).

Examples:
  mooring watch
  mooring watch --json | jq -c 'select(.kind == \"receipt\")'")]
    Watch,
}

/// Volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume
    #[command(after_help = "\
The volume is a logical volume of its full size, zeroed before any host reaches it. LVM rounds the
size up to whole extents. To repeat a create safely after a lost answer, give it a --request-key and
repeat it with the same one; at an agent, choose the --id: the same id with the same arguments
succeeds again. The controller's volumes are whole GiB, on a storage node that it chooses; the type
says whether a volume may be attached to several hosts.

Examples:
  mooring volume create data --size 10GiB
  mooring volume create data --size 10GiB --type shared
  mooring volume create copy --snapshot before-upgrade
  mooring volume create clone --from data --size 20GiB
  mooring --agent unix:/run/mooring/agent.sock volume create data --size 10GiB --group vg0 \\
      --id $(uuidgen)")]
    Create(CreateArgs),
    /// List volumes
    #[command(after_help = "\
Examples:
  mooring volume list
  mooring volume list --json | jq -r '.volumes[] | select(.multiattach) | .id'
  mooring --agent unix:/run/mooring/agent.sock volume list --json |
      jq -r '.volumes[] | select(.problems != []) | .id'")]
    List,
    /// Show one volume: its place, its access, its problems
    #[command(after_help = "\
Examples:
  mooring volume show data
  mooring volume show b0c1d2e3-0001-4002-8003-00000000000a --json")]
    Show(VolumeArg),
    /// Confirm the controller's knowledge of a volume that is in review (controller)
    #[command(after_help = "\
A volume is in review when its agents store something newer than the controller's database, for
example after a restore: nothing is sent for it. Compare both sides first. Confirming makes the
controller's spec the newest, and ends access that the controller does not know of.

Examples:
  mooring volume confirm-review data
  mooring volume confirm-review b0c1d2e3-0001-4002-8003-00000000000a --json")]
    ConfirmReview(VolumeArg),
    /// Extend a volume, also while it is attached
    #[command(after_help = extend::HELP)]
    Extend(ExtendArgs),
    /// Wipe and delete a volume; its data is lost
    #[command(after_help = delete::HELP)]
    Delete(DeleteArgs),
    /// Change the type of a volume in place (controller)
    #[command(after_help = "\
Whether a volume may be attached to several hosts can change only while it is available. A type
that the volume's pool cannot serve is refused: volumes are not moved.

Examples:
  mooring volume retype data shared")]
    Retype(RetypeArgs),
    /// Set the status of a volume to error, or clear that (controller)
    #[command(after_help = "\
Holds until the next event of its attachments. This command never ends attachments: use
`mooring detach --force` for that.

Examples:
  mooring volume reset-status data error")]
    ResetStatus(ResetStatusArgs),
    /// Show, clear or preempt a volume's SCSI-3 persistent reservations in the storage node's
    /// kernel
    #[command(after_help = "\
--preempt removes the registrations with this key, and the reservation if one of them holds it; all
others stay. The storage node sends the command itself, to its own target: no host needs to be up.
It cannot do so for Fibre Channel alone, or against RESERVE(6): detach the host instead.

Examples:
  mooring volume reservations data
  mooring volume reservations data --json | jq -r .holder.initiator
  mooring volume reservations data --preempt 0x3abe0001 --abort
  mooring volume reservations data --clear")]
    Reservations(ReservationsArgs),
    /// Turn an existing logical volume into a volume, with its data (controller)
    #[command(after_help = "\
The logical volume must be linear, or thin in its group's mooring-pool, have a size in whole GiB,
and be unused: `mooring volume manageable` shows that for each. It is renamed to mooring-ID; its
data is neither zeroed nor wiped. Without --name the volume gets the LV's name.

Examples:
  mooring volume manage vg0/data --host storage1
  mooring volume manage vg0/lv1 --host storage1 --name data --type shared")]
    Manage(ManageArgs),
    /// Create a volume from an image on a storage node (controller)
    #[command(after_help = "\
The image is a regular file in the storage node's image folder (images_dir in its configuration):
copy it there first. --format states its format, which is never guessed. A qcow2 image must be
complete: one with a backing file or a data file is refused. If you trust it, complete it with
`qemu-img convert -O qcow2`. The volume reads as zeros beyond the image.

No host reaches the volume before the whole image is copied. `mooring job list` shows the progress,
`mooring volume delete` ends it. Repeating an import with the same arguments succeeds.

Examples:
  mooring volume import root --image debian-12.qcow2 --format qcow2 --size 10GiB --host storage1
  mooring volume import data --image data.raw --format raw --size 2GiB --host storage1 --type shared")]
    Import(ImportArgs),
    /// Copy a volume to a new image file on its storage node (controller)
    #[command(after_help = "\
The file is made in the storage node's image folder (images_dir in its configuration). It gets its
name only once all of it is on the disk; an existing file is never overwritten. A raw file has
holes where the volume reads as zeros; a qcow2 file has what QEMU writes.

No host may be attached meanwhile: detach it, or export a volume that is made from a snapshot.
`mooring job list` shows the progress, --cancel ends it. If the node runs out of space, no partial
file is left; if its agent is killed, the export starts again.

Examples:
  mooring volume export data --image data.raw --format raw
  mooring volume export data --image data-2026-11-22.qcow2 --format qcow2 --timeout 3600
  mooring volume export data --cancel")]
    Export(VolumeExportArgs),
    /// List the logical volumes of storage nodes, and whether each can become a volume (controller)
    #[command(after_help = "\
Examples:
  mooring volume manageable
  mooring volume manageable --host storage1 --json | jq -r '.lvs[] | select(.manageable) | .lv'")]
    Manageable(ManageableArgs),
    /// Unmanage a volume; the logical volume and its data are kept (controller)
    #[command(after_help = "\
Refused while the volume is attached or has snapshots. From then on its LV is called mooring-ID, and
Mooring leaves it alone. Repeating an unmanage succeeds.

Examples:
  mooring volume unmanage data
  mooring volume unmanage b0c1d2e3-0001-4002-8003-00000000000a --timeout 300")]
    Unmanage(VolumeArg),
    /// Return a volume to the content of its newest snapshot (controller)
    #[command(after_help = "\
Everything written to the volume since the snapshot is lost. The volume keeps its size and its
names; all snapshots are kept. No host may be attached meanwhile: it would have parts of the volume
in memory. Only the newest snapshot can be used: delete newer ones first, or create a volume from
an older one.

Examples:
  mooring volume revert data --to before-upgrade
  mooring volume revert data --to b0c1d2e3-0001-4002-8003-0000000000aa --timeout 60")]
    Revert(RevertArgs),
    /// Isolate a volume from its disk: every read and write of a host fails at once
    #[command(after_help = "\
For a volume whose disk does not answer, and whose hosts hang. The storage node replaces the table
of its logical volume by errors; `mooring volume uncut` restores LVM's own, with the data unchanged.
Commands that were sent to the disk before may still land: until they return, the cut is pending.
Until `uncut` the volume is not extended, reverted, copied or deleted.

Examples:
  mooring volume cut data
  mooring volume cut data --force --timeout 60")]
    Cut(CutArgs),
    /// End the isolation of a volume from its disk
    #[command(after_help = "\
Examples:
  mooring volume uncut data")]
    Uncut(VolumeArg),
    /// Give a volume's attachments new secrets while they are in use (controller)
    #[command(after_help = "\
Sessions continue; a host that logs in again meanwhile gets in. Attachments of clients that log in
by themselves are refused. With --force such a client is shut out at its next login until it gets
the new secret.

Examples:
  mooring volume rotate-secrets data
  mooring volume rotate-secrets data --attachment 4ac58d31-ecf8-4efe-9938-88201d6952ef")]
    RotateSecrets(RotateArgs),
    /// Set the flags of a volume (controller)
    #[command(after_help = "\
Examples:
  mooring volume set data --readonly true
  mooring volume set data --bootable true")]
    Set(VolumeSetArgs),
}

/// Exports.
#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// Grant one initiator access to a volume, read-write or read-only
    #[command(after_help = "\
Other grants of the volume stay as they are. Repeating the command with another --mode changes the
mode of a grant; its credentials stay unless new ones are given. --portal sets the addresses of the
whole volume.

Secrets come from files or standard input, never from the command line: 12 to 255 printable ASCII
characters without blanks; one newline at the end is ignored.

Examples:
  mooring export grant data --initiator iqn.2004-10.com.example:host1 --mode rw
  mooring export grant data --initiator iqn.2004-10.com.example:host2 --mode ro
  mooring export grant data --initiator iqn.2004-10.com.example:host1 --mode rw \\
      --chap-user host1 --chap-secret-file /root/host1.secret
  pass show san/host1 | mooring export grant data --mode rw --portal 10.10.0.10:3260 \\
      --initiator iqn.2004-10.com.example:host1 --chap-user host1 --chap-secret-file -")]
    Grant(GrantArgs),
    /// Revoke one initiator's access to a volume, and get the receipt
    #[command(after_help = "\
Without --force the command is refused while the initiator is logged in: log out on the host first.
With --force its sessions are ended. The receipt says `proven` once the kernel has finished every
command: after that nothing of this initiator reaches the volume. `unproven` (exit code 5) names
how many commands may still land, or says `any number` (null with --json) if they cannot be
counted; repeat the command to see it proven. With --force the answer comes within 5 s, unless
--timeout says otherwise. Revoking a grant that does not exist succeeds.

Examples:
  mooring export revoke data --initiator iqn.2004-10.com.example:host2
  mooring export revoke data --initiator iqn.2004-10.com.example:host1 --force --json")]
    Revoke(RevokeArgs),
    /// Show the grants of a volume: requested and enforced modes, live sessions, counters, receipts
    #[command(after_help = "\
Examples:
  mooring export show data
  mooring export show data --json | jq '.export.grants[] | {initiator, seen}'")]
    Show(VolumeArg),
}

/// Attachments.
#[derive(Debug, Subcommand)]
pub enum AttachmentCommand {
    /// List attachments: of one volume, or all
    #[command(after_help = "\
SESSION shows whether the host is really logged in at the target, as the storage node reports it.

Examples:
  mooring attachment list
  mooring attachment list data --json | jq -r '.attachments[] | select(.session == false) | .host'")]
    List(AttachmentListArgs),
    /// Show one attachment: modes, host, device, session, problems of both agents, receipt
    #[command(after_help = "\
During a detach the receipt is shown, too. Of a detached attachment only the receipt is left, and
the exit code is 3.

Examples:
  mooring attachment show b0c1d2e3-0001-4002-8003-0000000000aa
  mooring attachment show b0c1d2e3-0001-4002-8003-0000000000aa --json | jq .steps_ms")]
    Show(AttachmentShowArgs),
    /// Change an attachment's mode in place: no host is detached, other hosts notice nothing
    #[command(after_help = "\
When the command returns, the target enforces the mode, and the host's disk shows it. After a change
to ro, writes that were in flight may still land. With --barrier the command returns once none can
land any more: it drops the host's iSCSI session, which returns by itself. --barrier is refused over
Fibre Channel, through multipath, and while the host has a persistent reservation registered.

A file system that is mounted rw on a disk that becomes ro gets errors: remount it first.

Examples:
  mooring attachment mode b0c1d2e3-0001-4002-8003-0000000000aa ro
  mooring attachment mode b0c1d2e3-0001-4002-8003-0000000000aa ro --barrier
  mooring attachment mode b0c1d2e3-0001-4002-8003-0000000000aa rw --timeout 60")]
    Mode(AttachmentModeArgs),
    /// Turn the page cache of an attachment's disk off or on while it is attached
    #[command(after_help = "\
With the cache off the host drops the disk's page cache whenever it hands out or withdraws a path,
and reads nothing ahead. Attachments of one volume on one host share the disk: its cache is off if
any of them requires that. Programs should still open a shared disk with O_DIRECT (QEMU: cache=none,
io=native): a program that keeps the disk open and reads buffered may see old data, and pages that
it has mapped stay.

A client of the Block Storage API opens the disk by itself: its flag is only stored and shown.

Examples:
  mooring attachment cache b0c1d2e3-0001-4002-8003-0000000000aa off
  mooring attachment cache b0c1d2e3-0001-4002-8003-0000000000aa on --timeout 60")]
    Cache(AttachmentCacheArgs),
    #[command(about = attachment::CHECK, after_help = attachment::CHECK_MORE)]
    Check(AttachmentCheckArgs),
}

/// The epoch.
#[derive(Debug, Subcommand)]
pub enum EpochCommand {
    /// Raise the epoch, after a controller's database was restored by hand
    #[command(after_help = "\
A controller that is started with --restored does this by itself.

Examples:
  mooring epoch raise
  mooring epoch raise --json | jq .epoch")]
    Raise,
}

/// The agent.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Show the agent's identity, its pools and portals, and what its host lacks
    #[command(after_help = "\
Examples:
  mooring agent show
  mooring agent show --json | jq '.pools[] | {name, free_bytes}'")]
    Show,
}

/// One volume.
#[derive(Debug, Args)]
pub struct VolumeArg {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
}

/// `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Only this volume
    pub volume: Option<VolumeRef>,
}

/// `detach`.
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// The attachment's id; or the volume, by id or unique name, if it has only one
    #[arg(value_name = "ATTACHMENT|VOLUME")]
    pub what: VolumeRef,
    /// The attachment on this host
    #[arg(long, value_name = "HOST", value_parser = NonEmptyStringValueParser::new())]
    pub host: Option<String>,
    /// Revoke the host's access at the target first, whatever the host does
    #[arg(long)]
    pub force: bool,
    /// With --force: detach every attachment of that host to this volume
    #[arg(long, requires = "force")]
    pub widen: bool,
}

/// `type create`.
#[derive(Debug, Args)]
pub struct TypeCreateArgs {
    /// The type's name; no two types share it
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub name: String,
    /// Allow a volume to be attached to several hosts at once
    #[arg(long)]
    pub multiattach: bool,
    /// Show the type only to projects with access (`mooring type access`)
    #[arg(long)]
    pub private: bool,
    /// An extra spec; may be given several times
    #[arg(long = "spec", value_name = "KEY=VALUE")]
    pub specs: Vec<ExtraSpec>,
    /// A description for people
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
}

/// One extra spec of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraSpec {
    /// The key.
    pub key: String,
    /// The required value.
    pub value: String,
}

impl FromStr for ExtraSpec {
    type Err = String;

    /// Applies the API's own rule for keys.
    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("want KEY=VALUE")?;
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_:. ".contains(c);
        if key.is_empty() || key.len() > 255 || !key.chars().all(fits) {
            return Err("a key has 1 to 255 letters, digits, blanks and - _ : .".to_owned());
        }
        if value.chars().count() > 255 || value.chars().any(char::is_control) {
            return Err("a value has at most 255 characters, and no control characters".to_owned());
        }
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

/// `export grant`.
#[derive(Debug, Args)]
pub struct GrantArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// The host's iSCSI name (/etc/iscsi/initiatorname.iscsi)
    #[arg(long, value_name = "IQN")]
    pub initiator: Iqn,
    /// rw: reads and writes; ro: reads only, enforced by the target
    #[arg(long, value_name = "rw|ro")]
    pub mode: Mode,
    /// CHAP: the name with which the host authenticates
    #[arg(long, value_name = "USER", requires = "chap_secret_file")]
    pub chap_user: Option<String>,
    /// CHAP: the file with the host's secret, - for standard input
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    pub chap_secret_file: Option<SecretSource>,
    /// Mutual CHAP: the name with which the target authenticates
    #[arg(long, value_name = "USER", requires_all = ["mutual_secret_file", "chap_user"])]
    pub mutual_user: Option<String>,
    /// Mutual CHAP: the file with the target's secret, - for standard input
    #[arg(long, value_name = "FILE", requires = "mutual_user")]
    pub mutual_secret_file: Option<SecretSource>,
    /// Remove the grant's credentials: the host's iSCSI name alone admits it
    #[arg(long, conflicts_with = "chap_user")]
    pub no_chap: bool,
    /// The volume's address, ADDRESS or ADDRESS:PORT; may be given several times [default:
    /// unchanged, at first the agent's portals]
    #[arg(long = "portal", value_name = "ADDRESS:PORT")]
    pub portals: Vec<Portal>,
    /// An attachment that this grant serves
    #[arg(long, value_name = "UUID")]
    pub attachment: Option<AttachmentId>,
}

/// `export revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The volume: its id, or its name where that is unique
    pub volume: VolumeRef,
    /// The host's iSCSI name
    #[arg(long, value_name = "IQN")]
    pub initiator: Iqn,
    /// End the initiator's live sessions
    #[arg(long)]
    pub force: bool,
}

/// Parses a volume's size by the model's rule, before any call.
fn volume_size(text: &str) -> Result<ByteSize, String> {
    let size = ByteSize::from_str(text).map_err(|error| error.to_string())?;
    let group = "any".parse().map_err(|error: mooring_model::NameError| error.to_string())?;
    let any = VolumeSpec::new(VolumeId::from_u128(0), group, size, Provisioning::Thick);
    any.check().map_err(|error| error.why)?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_full_grant_is_read() {
        let words = "mooring export grant data --initiator iqn.2004-10.com.example:host1 --mode rw --chap-user u \
                     --chap-secret-file - --mutual-user m --mutual-secret-file /s --portal 10.0.0.1 --portal 10.0.1.1:3261 \
                     --attachment b0c1d2e3-0001-4002-8003-00000000000a --timeout 60 --json";
        let cli = Cli::try_parse_from(words.split_whitespace()).unwrap();
        assert!(cli.global.json && cli.global.timeout == 60);
        let Command::Export(ExportCommand::Grant(grant)) = cli.command else { panic!("{:?}", cli.command) };
        assert_eq!(grant.volume, VolumeRef::Name("data".parse().unwrap()));
        assert_eq!(grant.mode, Mode::ReadWrite);
        assert_eq!(grant.portals, ["10.0.0.1:3260".parse().unwrap(), "10.0.1.1:3261".parse().unwrap()]);
        assert_eq!(grant.chap_secret_file, Some(SecretSource::Stdin));
    }

    #[test]
    fn a_revoke_by_force_is_answered_soon_unless_somebody_says_otherwise() {
        let force = "export revoke data --force --initiator iqn.2004-10.com.example:host1";
        for (words, seconds) in [
            (force.replace("--force ", ""), 30),
            (force.to_owned(), 5),
            (format!("{force} --timeout 30"), 30),
            (format!("--timeout 9 {force}"), 9),
        ] {
            let words = ["mooring"].into_iter().chain(words.split_whitespace());
            let matches = Cli::command().try_get_matches_from(words).unwrap();
            assert_eq!(Cli::of(&matches).unwrap().global.timeout, seconds);
        }
    }
}
