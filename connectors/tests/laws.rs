//! The laws of connections, on a world in memory that records what must never happen. Where a law
//! could be empty, a control shows the run that breaks it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use mooring_connectors::fake::{Door, Unit, World};
use mooring_connectors::wire::SessionState;
use mooring_connectors::{
    LinkName, Made, Memory, Names, Observer, Op, Wanted, apply, make, plan, report, view,
};
use mooring_host::Holder;
use mooring_model::{
    AttachmentId, AttachmentSpec, BlockedKind, ByteSize, Cache, ConnectionPhase, ConnectionReport,
    ConnectionSpec, Generation, IqnPrefix, Lun, Mode, Naa, Step, VolumeId,
};
use proptest::prelude::*;

mod cache;

const SIZE: u64 = 64 << 20;

/// An attachment: its number, its mode, its cache flag.
type Attached = (u8, Mode, Cache);

fn volume() -> VolumeId {
    VolumeId::from_u128(0xa0b1_c2d3 << 96)
}

fn attachment(n: u8) -> AttachmentId {
    AttachmentId::from_u128(u128::from(n))
}

/// A spec with these attachments, and the cache on.
fn spec(attachments: &[(u8, Mode)]) -> ConnectionSpec {
    spec_of(attachments.iter().map(|(id, mode)| (*id, *mode, Cache::On)))
}

fn spec_of(attachments: impl IntoIterator<Item = Attached>) -> ConnectionSpec {
    let prefix = IqnPrefix::default();
    ConnectionSpec {
        volume: volume(),
        initiator: prefix.initiator(mooring_model::AgentId::from_u128(1)),
        target: prefix.target(volume()),
        tpg: 1,
        portals: vec!["10.0.0.1:3260".parse().unwrap()],
        lun: Lun(1),
        naa: Naa::of_serial(&volume().to_string()),
        serial: volume().to_string(),
        size: ByteSize(SIZE),
        chap: None,
        other_chap: None,
        attachments: attachments
            .into_iter()
            .map(|(id, mode, cache)| AttachmentSpec { id: attachment(id), mode, cache })
            .collect(),
        fc: None,
    }
}

fn present(counter: u64, attachments: &[(u8, Mode)]) -> Wanted {
    wanted_spec(counter, spec(attachments))
}

fn wanted_spec(counter: u64, spec: ConnectionSpec) -> Wanted {
    Wanted::Present {
        spec: Box::new(spec),
        generation: Generation { epoch: 1, counter },
        recovery_timeout_s: 120,
    }
}

fn absent(revoked: bool) -> Wanted {
    Wanted::Absent { volume: volume(), revoked }
}

struct Site {
    world: World,
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let world = World::new(dir.path());
        world.export(volume(), SIZE, None);
        Self { world, dir }
    }

    fn make(&self, wanted: &Wanted) -> Made {
        make(&self.world.door(None).parts(), wanted, &mut Memory::default(), &mut ())
    }

    fn link(&self, name: LinkName) -> PathBuf {
        self.dir.path().join(name.to_string())
    }

    fn report(&self, wanted: &Wanted) -> ConnectionReport {
        let door = self.world.door(None);
        let seen = view(&door.parts(), wanted, &mut Memory::default()).unwrap();
        let left = !plan(wanted, &seen).is_quiet();
        let spec = spec(&[]);
        let names = Names { initiator: spec.initiator, target: spec.target };
        report(wanted, Generation::ZERO, &seen, left, &door, names)
    }

    fn state(&self) -> Option<SessionState> {
        self.world.session(volume()).map(|status| status.state)
    }

    /// True if the read-ahead that the disk had before its cache was turned off is recorded.
    fn is_cache_recorded(&self) -> bool {
        let file = self.dir.path().join(format!("connections/{}/read-ahead", volume()));
        let record = std::fs::read_to_string(file).unwrap_or_default();
        let sequence = record.split(' ').next().and_then(|word| word.parse().ok());
        sequence.is_some() && sequence == self.world.sequence(volume())
    }

    /// Describes the session's state, the disk, and each link, in words that do not depend on
    /// numbers.
    fn words(&self) -> Vec<String> {
        let disk = self.world.disk_of(volume());
        let mut words = vec![
            format!("session {:?}", self.world.session(volume()).map(|status| status.state)),
            format!(
                "disk {} read-only {:?} read-ahead {:?}",
                disk.is_some(),
                self.world.is_read_only(volume()),
                self.world.read_ahead(volume())
            ),
        ];
        for folder in ["attachments", "volumes", "connections"] {
            let Ok(entries) = std::fs::read_dir(self.dir.path().join(folder)) else { continue };
            for path in entries.map(|entry| entry.unwrap().path()) {
                let what = match std::fs::read_link(&path) {
                    Ok(to) if to.file_name().and_then(|n| n.to_str()) == disk.as_deref() => "the disk".into(),
                    Ok(to) => to.display().to_string(),
                    Err(_) if path.is_dir() => format!("{} entries", path.read_dir().unwrap().count()),
                    Err(_) => "a file".into(),
                };
                // An empty record has no meaning.
                if what != "0 entries" {
                    words.push(format!("{folder}/{} is {what}", path.file_name().unwrap().display()));
                }
            }
        }
        words.sort();
        words
    }
}

/// Stops before a step. After each step that makes a path, the disk must be read-only if the mode
/// says so. With the cache off, the disk must also have no pages in the cache, and no read-ahead. A
/// path that goes leaves nothing unwritten in the cache.
struct Steps<'a> {
    site: &'a Site,
    left: usize,
    done: usize,
    reads_only: bool,
    cache_off: bool,
    /// Paths that were removed while data was unwritten.
    unwritten: Vec<LinkName>,
}

impl<'a> Steps<'a> {
    fn of(site: &'a Site, wanted: &Wanted, left: usize) -> Self {
        let Wanted::Present { spec, .. } = wanted else {
            return Self { site, left, done: 0, reads_only: false, cache_off: false, unwritten: Vec::new() };
        };
        let (reads_only, cache_off) = (spec.mode() == Mode::ReadOnly, spec.cache() == Cache::Off);
        Self { site, left, done: 0, reads_only, cache_off, unwritten: Vec::new() }
    }
}

impl Observer for Steps<'_> {
    fn before(&mut self, _: usize, _: &Step<Op>) -> ControlFlow<()> {
        if self.left == 0 {
            return ControlFlow::Break(());
        }
        self.left -= 1;
        ControlFlow::Continue(())
    }

    fn after(&mut self, _: usize, step: &Step<Op>) {
        self.done += 1;
        if self.reads_only && matches!(step.op, Op::Link { .. }) {
            assert_eq!(self.site.world.is_read_only(volume()), Some(true), "a path before the flag");
        }
        if self.cache_off && matches!(step.op, Op::Link { .. }) {
            assert_eq!(self.site.world.is_cached(volume()), Some(false), "a path to old pages");
            assert_eq!(self.site.world.read_ahead(volume()), Some(0), "a path that reads ahead");
        }
        let off = self.cache_off || self.site.is_cache_recorded();
        if let Op::Unlink { link, .. } = step.op
            && off
            && self.site.world.is_dirty(volume()) == Some(true)
        {
            self.unwritten.push(link);
        }
    }
}

fn some_spec() -> impl Strategy<Value = Vec<Attached>> {
    let mode = prop_oneof![Just(Mode::ReadOnly), Just(Mode::ReadWrite)];
    let one = (mode, prop_oneof![Just(Cache::On), Just(Cache::Off)]);
    (prop::option::of(one.clone()), prop::option::of(one)).prop_map(|(one, two)| {
        let of = |id, what: Option<(Mode, Cache)>| what.map(|(mode, cache)| (id, mode, cache));
        [of(1, one), of(2, two)].into_iter().flatten().collect()
    })
}

/// Faults that the world, other people and crashes cause.
#[derive(Debug, Clone, Copy)]
enum Harm {
    Nothing,
    OtherVolume,
    NoUnit,
    Unreachable,
    Forbidden,
    Protected,
    Lost,
    Ended(SessionState),
    DiskDeleted,
    Held,
    LinkElsewhere,
    LinkGone,
    FileAtLink,
    Reboot,
    /// Somebody reads through the page cache.
    Cached,
    /// The kernel or somebody else sets the read-ahead.
    ReadAhead(u32),
}

impl Harm {
    fn all() -> impl Strategy<Value = Self> {
        prop::sample::select(vec![
            Self::Nothing,
            Self::OtherVolume,
            Self::NoUnit,
            Self::Unreachable,
            Self::Forbidden,
            Self::Protected,
            Self::Lost,
            Self::Ended(SessionState::Forbidden),
            Self::Ended(SessionState::Failed),
            Self::Ended(SessionState::WrongDisk),
            Self::DiskDeleted,
            Self::Held,
            Self::LinkElsewhere,
            Self::LinkGone,
            Self::FileAtLink,
            Self::Reboot,
            Self::Cached,
            Self::ReadAhead(0),
            Self::ReadAhead(4096),
        ])
    }

    /// True if no spec meets an obstacle after this fault.
    fn is_mended(self) -> bool {
        matches!(
            self,
            Self::Nothing
                | Self::DiskDeleted
                | Self::LinkElsewhere
                | Self::LinkGone
                | Self::Reboot
                | Self::Cached
                | Self::ReadAhead(_)
        )
    }

    fn befall(self, site: &Site) {
        let world = &site.world;
        let link = site.link(LinkName::Attachment(attachment(1)));
        match self {
            Self::Nothing => {}
            Self::OtherVolume => {
                world.target(volume(), |target| target.unit = Some(Unit::of(VolumeId::from_u128(77), SIZE)));
            }
            Self::NoUnit => world.target(volume(), |target| target.unit = None),
            Self::Unreachable => world.target(volume(), |target| target.reachable = false),
            Self::Forbidden => world.target(volume(), |target| target.granted = false),
            Self::Protected => world.target(volume(), |target| {
                if let Some(unit) = &mut target.unit {
                    unit.protected = true;
                }
            }),
            // A session that has ended cannot be lost.
            Self::Lost if site.state() != Some(SessionState::LoggedIn) => {}
            Self::Lost => world.lose(volume(), true),
            Self::Ended(state) => world.end_as(volume(), state, "ended by the test"),
            Self::DiskDeleted => world.lose_disk(volume()),
            Self::Held => world.hold_open(volume(), &[Holder::Process { pid: 4711, name: "qemu".into() }]),
            Self::LinkElsewhere if link.symlink_metadata().is_ok() => {
                std::fs::remove_file(&link).unwrap();
                std::os::unix::fs::symlink("/dev/sdzz", &link).unwrap();
            }
            Self::LinkGone | Self::LinkElsewhere => drop(std::fs::remove_file(&link)),
            Self::FileAtLink => {
                drop(std::fs::remove_file(&link));
                drop(std::fs::create_dir_all(link.parent().unwrap()));
                std::fs::write(&link, "mine").unwrap();
            }
            Self::Reboot => world.reboot(),
            Self::Cached => world.read_buffered(volume()),
            Self::ReadAhead(sectors) => world.set_read_ahead(volume(), sectors),
        }
    }
}

/// A spec with attachments, or a tombstone.
fn some_wanted() -> impl Strategy<Value = (Vec<Attached>, bool)> {
    (prop_oneof![2 => some_spec(), 1 => Just(Vec::new())], any::<bool>())
}

fn wanted(counter: u64, (attachments, revoked): &(Vec<Attached>, bool)) -> Wanted {
    if attachments.is_empty() {
        return absent(*revoked);
    }
    wanted_spec(counter, spec_of(attachments.iter().copied()))
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

type Story = ((Vec<Attached>, bool), Harm, (Vec<Attached>, bool));

/// A world in progress: a first spec was applied, and then a fault occurred.
fn begun((first, harm, _): &Story) -> Site {
    let site = Site::new();
    drop(site.make(&wanted(1, first)));
    harm.befall(&site);
    site
}

proptest! {
    #![proptest_config(config())]

    /// From any state, the plan ends, and the world records no violation. Without an obstacle, the
    /// spec is reached, and the next plan is quiet.
    #[test]
    fn it_converges_and_is_quiet(first in some_wanted(), harm in Harm::all(), second in some_wanted()) {
        let story = (first, harm, second);
        let site = begun(&story);
        let want = wanted(2, &story.2);
        let mut steps = Steps::of(&site, &want, usize::MAX);
        let door = site.world.door(None);
        let made = make(&door.parts(), &want, &mut Memory::default(), &mut steps);
        let left = made.left.unwrap();
        prop_assert_eq!(site.world.violations(), Vec::<String>::new());
        prop_assert!(left.steps.is_empty());
        let phase = site.report(&want).phase;
        if harm.is_mended() {
            prop_assert!(left.is_quiet(), "{:?}", left);
            let end = if story.2.0.is_empty() { ConnectionPhase::Gone } else { ConnectionPhase::Ready };
            prop_assert_eq!(phase, end, "{:?}", site.words());
            // Another process changes nothing.
            let again = site.world.door(None);
            let made = make(&again.parts(), &want, &mut Memory::default(), &mut ());
            prop_assert!(made.left.unwrap().is_quiet());
            prop_assert_eq!(again.changes(), 0, "{:?}", again.log());
        }
    }

    /// A run that stops after any number of steps, and is repeated by another process, ends in the
    /// same state.
    #[test]
    fn any_prefix_then_replan_ends_the_same(
        first in some_wanted(),
        harm in Harm::all(),
        second in some_wanted(),
        stop in 0usize..12,
    ) {
        let story = (first, harm, second);
        let want = wanted(2, &story.2);
        let whole = begun(&story);
        drop(whole.make(&want));
        let cut = begun(&story);
        let mut steps = Steps::of(&cut, &want, stop);
        let door = cut.world.door(None);
        drop(make(&door.parts(), &want, &mut Memory::default(), &mut steps));
        drop(cut.make(&want));
        prop_assert_eq!(cut.words(), whole.words());
        prop_assert_eq!(cut.world.violations(), Vec::<String>::new());
    }
}

#[test]
fn an_attach_takes_few_calls() {
    let site = Site::new();
    let door = site.world.door(None);
    let want = present(1, &[(1, Mode::ReadWrite)]);
    assert!(make(&door.parts(), &want, &mut Memory::default(), &mut ()).left.unwrap().is_quiet());
    // Changes: ensure, scan, two links, and the name for udev. The looks around them cost the same
    // for any number of other volumes.
    assert_eq!(door.changes(), 5, "{:?}", door.log());
    let calls = door.calls();
    assert!(calls <= 39, "{calls} calls");
    for n in 2..40_u128 {
        let other = VolumeId::from_u128(n << 96);
        site.world.export(other, SIZE, None);
        let prefix = IqnPrefix::default();
        let spec = ConnectionSpec {
            volume: other,
            target: prefix.target(other),
            naa: Naa::of_serial(&other.to_string()),
            serial: other.to_string(),
            attachments: vec![AttachmentSpec {
                id: AttachmentId::from_u128(1000 + n),
                mode: Mode::ReadWrite,
                cache: Cache::On,
            }],
            ..spec(&[])
        };
        let want = Wanted::Present {
            spec: Box::new(spec),
            generation: Generation { epoch: 1, counter: 1 },
            recovery_timeout_s: 120,
        };
        let door = site.world.door(None);
        assert!(make(&door.parts(), &want, &mut Memory::default(), &mut ()).left.unwrap().is_quiet());
        assert_eq!((door.changes(), door.calls()), (5, calls), "the cost does not grow");
    }
    println!("an attach: 5 changes, {calls} calls in all");
}

fn held() -> Vec<Holder> {
    vec![Holder::Process { pid: 4711, name: "qemu-system-x86".into() }]
}

#[test]
fn a_held_disk_stays_and_its_holder_is_named() {
    let site = Site::new();
    assert!(site.make(&present(1, &[(1, Mode::ReadWrite)])).left.unwrap().is_quiet());
    site.world.hold_open(volume(), &held());
    let left = site.make(&absent(false)).left.unwrap();
    assert_eq!(left.blocked[0].kind, BlockedKind::Held);
    assert!(left.blocked[0].why.contains("qemu-system-x86 (pid 4711)"), "{left:?}");
    assert!(site.world.disk_of(volume()).is_some() && site.world.session(volume()).is_some());
    assert_eq!(site.report(&absent(false)).holders, ["qemu-system-x86 (pid 4711)"]);
    // The target has revoked the host, so the disk goes in spite of its holder.
    assert!(site.make(&absent(true)).left.unwrap().is_quiet());
    assert_eq!(site.report(&absent(true)).phase, ConnectionPhase::Gone);
    assert_eq!(site.world.violations(), Vec::<String>::new());
}

#[test]
fn a_detach_flushes_deletes_and_logs_out_and_leaves_nothing() {
    let site = Site::new();
    assert!(site.make(&present(1, &[(1, Mode::ReadWrite), (2, Mode::ReadOnly)])).left.unwrap().is_quiet());
    let door = site.world.door(None);
    assert!(make(&door.parts(), &absent(false), &mut Memory::default(), &mut ()).left.unwrap().is_quiet());
    let verbs: Vec<String> =
        door.log().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(verbs, ["unlink", "unlink", "unlink", "flush", "write", "end"]);
    assert_eq!(site.words(), ["disk false read-only None read-ahead None", "session None"]);
}

#[test]
fn the_wrong_disk_is_deleted_once_and_never_linked() {
    let site = Site::new();
    let other = Unit::of(VolumeId::from_u128(77), SIZE);
    site.world.target(volume(), |target| target.unit = Some(other.clone()));
    let door = site.world.door(None);
    let want = present(1, &[(1, Mode::ReadWrite)]);
    let left = make(&door.parts(), &want, &mut Memory::default(), &mut ()).left.unwrap();
    assert_eq!(left.blocked[0].kind, BlockedKind::Foreign);
    assert!(left.blocked[0].why.contains(other.naa.as_str()), "{left:?}");
    assert_eq!(door.log().iter().filter(|line| line.contains("/delete")).count(), 1);
    assert_eq!(site.report(&want).phase, ConnectionPhase::Failed);
    // The host has a stale disk. The target shows the right one now, and a scan alone would not
    // find it.
    site.world.target(volume(), |target| target.unit = Some(Unit::of(volume(), SIZE)));
    assert!(site.make(&want).left.unwrap().is_quiet());
    // The disk is exchanged under a path: the path goes. The disk is held, so it stays.
    site.world.hold_open(volume(), &held());
    site.world.target(volume(), |target| target.unit = Some(other));
    let left = site.make(&want).left.unwrap();
    assert_eq!(left.blocked[0].kind, BlockedKind::Held, "{left:?}");
    assert!(site.words().iter().all(|word| !word.contains("the disk")), "{:?}", site.words());
    assert_eq!(site.world.violations(), Vec::<String>::new());
}

#[test]
fn a_disk_too_small_is_read_again_and_not_handed_over() {
    let site = Site::new();
    site.world.target(volume(), |target| target.unit = Some(Unit::of(volume(), SIZE - 512)));
    let door = site.world.door(None);
    let want = present(1, &[(1, Mode::ReadWrite)]);
    let left = make(&door.parts(), &want, &mut Memory::default(), &mut ()).left.unwrap();
    assert!(left.blocked[0].why.contains("at least"), "{left:?}");
    assert_eq!(door.log().iter().filter(|line| line.contains("/rescan")).count(), 1, "{:?}", door.log());
    assert!(!door.log().iter().any(|line| line.starts_with("link") || line.contains("/delete")));
    assert_eq!(site.report(&want).phase, ConnectionPhase::Connecting);
    site.world.target(volume(), |target| target.unit = Some(Unit::of(volume(), SIZE)));
    assert!(site.make(&want).left.unwrap().is_quiet());
}

#[test]
fn a_volume_that_grew_is_read_again_under_its_paths() {
    let site = Site::new();
    let attachments = [(1, Mode::ReadWrite), (2, Mode::ReadOnly)];
    assert!(site.make(&present(1, &attachments)).left.unwrap().is_quiet());
    site.world.hold_open(volume(), &held());
    let (words, logins) = (site.words(), site.world.logins());
    let larger = |counter| {
        let spec = ConnectionSpec { size: ByteSize(2 * SIZE), ..spec(&attachments) };
        let generation = Generation { epoch: 1, counter };
        Wanted::Present { spec: Box::new(spec), generation, recovery_timeout_s: 120 }
    };
    // The new size comes before the target shows it: the paths stay, and the report says so.
    let left = site.make(&larger(2)).left.unwrap();
    assert!(left.blocked[0].why.contains("the target shows no more of it"), "{left:?}");
    assert_eq!(site.words(), words);
    site.world.target(volume(), |target| target.unit = Some(Unit::of(volume(), 2 * SIZE)));
    let door = site.world.door(None);
    let made = make(&door.parts(), &larger(2), &mut Memory::default(), &mut ());
    assert!(made.left.unwrap().is_quiet());
    let changes: Vec<_> = door.log().into_iter().filter(|line| line.starts_with("write")).collect();
    assert!(changes.len() == 1 && changes[0].contains("/rescan = 1"), "{:?}", door.log());
    assert_eq!((site.words(), site.world.logins()), (words, logins), "neither a path nor a session moved");
    let report = site.report(&larger(2));
    assert_eq!((report.phase, report.disk.unwrap().size), (ConnectionPhase::Ready, ByteSize(2 * SIZE)));
    // A larger disk satisfies the older size: a host whose spec grows later reads its size then.
    assert!(site.make(&present(3, &attachments)).left.unwrap().is_quiet());
    assert_eq!(site.world.violations(), Vec::<String>::new());
}

#[test]
fn the_effective_mode_follows_the_attachments() {
    let site = Site::new();
    for (counter, attachments, read_only) in [
        (1, &[(1, Mode::ReadOnly)][..], true),
        (2, &[(1, Mode::ReadOnly), (2, Mode::ReadWrite)], false),
        (3, &[(1, Mode::ReadOnly)], true),
        (4, &[(1, Mode::ReadWrite)], false),
    ] {
        let want = present(counter, attachments);
        assert!(site.make(&want).left.unwrap().is_quiet());
        assert_eq!(site.world.is_read_only(volume()), Some(read_only));
        let report = site.report(&want);
        assert_eq!(report.mode == Some(Mode::ReadOnly), read_only);
        assert_eq!(report.paths.len(), attachments.len());
    }
    assert_eq!(site.world.logins(), 1, "a newer spec does not log in again");
    // The target's own protection is read again once, and then reported.
    site.world.target(volume(), |target| target.unit.as_mut().unwrap().protected = true);
    site.world.lose_disk(volume());
    let left = site.make(&present(5, &[(1, Mode::ReadWrite)])).left.unwrap();
    assert!(left.blocked[0].why.contains("the target still protects it"), "{left:?}");
    site.world.target(volume(), |target| target.unit.as_mut().unwrap().protected = false);
    assert!(site.make(&present(5, &[(1, Mode::ReadWrite)])).left.unwrap().is_quiet());
}

#[test]
fn what_has_ended_is_tried_again_for_a_newer_spec_only() {
    for state in [SessionState::Forbidden, SessionState::Failed, SessionState::WrongDisk] {
        let site = Site::new();
        let want = present(1, &[(1, Mode::ReadWrite)]);
        let seen = view(&site.world.door(None).parts(), &want, &mut Memory::default()).unwrap();
        let first = plan(&want, &seen);
        assert!(matches!(&first.steps[..], [Step { op: Op::Login { .. }, .. }]), "{first:?}");
        assert!(site.make(&want).left.unwrap().is_quiet());
        site.world.end_as(volume(), state, "said by sessiond");
        let door = site.world.door(None);
        let left = make(&door.parts(), &want, &mut Memory::default(), &mut ()).left.unwrap();
        assert!(left.blocked[0].why.contains("said by sessiond"), "{left:?}");
        assert!(door.log().iter().all(|line| line.starts_with("unlink")), "{:?}", door.log());
        // The same spec is asked for once more. The sessions ignore it, too, as the daemon does.
        let left = site.make(&want).left.unwrap();
        assert!(left.blocked[0].why.contains("until a newer spec asks for it"), "{left:?}");
        apply(&first, &door.parts(), &mut Memory::default(), &mut ()).unwrap();
        assert_eq!((site.state(), site.world.logins()), (Some(state), 1));
        assert!(site.make(&present(2, &[(1, Mode::ReadWrite)])).left.unwrap().is_quiet());
        assert_eq!(site.world.logins(), 2);
        assert_eq!(site.world.violations(), Vec::<String>::new());
    }
}

#[test]
fn a_lost_session_is_waited_for() {
    let site = Site::new();
    let want = present(1, &[(1, Mode::ReadWrite)]);
    assert!(site.make(&want).left.unwrap().is_quiet());
    let before = site.words();
    site.world.lose(volume(), true);
    let door = site.world.door(None);
    assert!(make(&door.parts(), &want, &mut Memory::default(), &mut ()).left.unwrap().is_quiet());
    assert_eq!(door.changes(), 0);
    assert_eq!(site.report(&want).phase, ConnectionPhase::Recovering);
    site.world.lose(volume(), false);
    assert_eq!(site.words(), before);
    // The session is given up meanwhile. Nobody holds the disk, so nothing is unwritten, and no
    // flush waits for the target.
    site.world.lose(volume(), true);
    assert!(site.make(&absent(false)).left.unwrap().is_quiet());
    assert_eq!(site.world.violations(), Vec::<String>::new());
}

/// The control of the law that no process asks a disk after learning that its session is lost. A
/// question before that answer breaks nothing; a question after it does.
#[test]
fn a_question_to_a_lost_disk_is_noted_of_one_who_could_know() {
    let site = Site::new();
    assert!(site.make(&present(1, &[(1, Mode::ReadWrite)])).left.unwrap().is_quiet());
    let parts = site.world.door(None).parts();
    let device = Path::new("/dev").join(site.world.disk_of(volume()).unwrap());
    let state = || parts.sessions.get(volume()).unwrap().unwrap().state;
    assert_eq!(state(), SessionState::LoggedIn);
    site.world.lose(volume(), true);
    parts.disks.inquiry(&device, 0x83).unwrap();
    assert_eq!(site.world.violations(), Vec::<String>::new());
    assert_eq!(state(), SessionState::Recovering);
    parts.disks.inquiry(&device, 0x83).unwrap();
    parts.disks.flush(&device).unwrap();
    let found = site.world.violations();
    assert!(
        found.len() == 2 && found.iter().all(|what| what.contains("while its session is lost")),
        "{found:?}"
    );
}

#[test]
fn a_disk_that_does_not_appear_is_said_with_what_is_there() {
    let site = Site::new();
    site.world.hold_blocks(true);
    let door = site.world.door(None);
    let (want, mut memory) = (present(1, &[(1, Mode::ReadWrite)]), Memory::default());
    let left = make(&door.parts(), &want, &mut memory, &mut ()).left.unwrap();
    assert!(left.blocked[0].why.contains("(running), its block device is not"), "{left:?}");
    site.world.hold_blocks(false);
    assert!(make(&door.parts(), &want, &mut memory, &mut ()).left.unwrap().is_quiet());
    assert!(memory.device_took.is_none(), "the login was not of this pass");
    let site = Site::new();
    site.world.target(volume(), |target| target.unit = None);
    let left = site.make(&want).left.unwrap();
    assert!(left.blocked[0].why.contains("shows no LUN 1"), "{left:?}");
}

/// Controls: the world notices a path to another disk, a disk deleted before its paths, and a disk
/// deleted while held.
#[test]
fn the_world_sees_what_must_never_happen() {
    let site = Site::new();
    let want = present(1, &[(1, Mode::ReadWrite)]);
    let door: Door = site.world.door(None);
    let parts = door.parts();
    assert!(make(&parts, &want, &mut Memory::default(), &mut ()).left.unwrap().is_quiet());
    site.world.hold_open(volume(), &held());
    let seen = view(&parts, &want, &mut Memory::default()).unwrap();
    let (disk, block) = seen.right().unwrap();
    site.world.target(volume(), |target| target.unit = Some(Unit::of(VolumeId::from_u128(77), SIZE)));
    let link = LinkName::Attachment(attachment(2));
    let mut bad = mooring_model::Plan::default();
    bad.step(Op::Link { volume: volume(), link, disk: disk.reference(block) }, "");
    bad.step(Op::DeleteDisk { unit: disk.unit }, "");
    apply(&bad, &parts, &mut Memory::default(), &mut ()).unwrap();
    let violations = site.world.violations();
    assert_eq!(violations.len(), 5, "{violations:?}");
    assert!(Path::new(&site.link(link)).symlink_metadata().is_ok());
}
