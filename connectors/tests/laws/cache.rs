//! The laws of a connection's page cache: written data reach the target before the path goes, and a
//! new path shows nothing old.

use mooring_connectors::fake::Kill;
use mooring_host::DiskOp;
use mooring_model::{Chain, Cure};

use super::*;

/// Returns the verbs of the changes that a pass makes on the host. A newer spec is also sent to
/// sessiond; that is left out.
fn verbs(site: &Site, want: &Wanted) -> Vec<String> {
    let door = site.world.door(None);
    assert!(make(&door.parts(), want, &mut Memory::default(), &mut ()).left.unwrap().is_quiet());
    let verb = |line: &String| line.split(' ').next().unwrap().to_owned();
    door.log().iter().map(verb).filter(|verb| verb != "ensure").collect()
}

fn cached(counter: u64, attachments: &[Attached]) -> Wanted {
    wanted_spec(counter, spec_of(attachments.iter().copied()))
}

#[test]
fn a_cache_that_is_off_is_dropped_at_each_path_that_comes_or_goes() {
    let site = Site::new();
    let (one, two) = ((1, Mode::ReadWrite, Cache::Off), (2, Mode::ReadWrite, Cache::On));
    assert_eq!(
        verbs(&site, &cached(1, &[one])),
        ["write", "drop", "keep", "read-ahead", "link", "link", "name"]
    );
    assert_eq!(site.world.read_ahead(volume()), Some(0));
    site.world.read_buffered(volume());
    assert_eq!(verbs(&site, &cached(2, &[one, two])), ["drop", "link"], "stricter of the two");
    assert_eq!(site.world.is_cached(volume()), Some(false));
    site.world.read_buffered(volume());
    assert_eq!(verbs(&site, &cached(3, &[one])), ["flush", "unlink"]);
    assert_eq!(site.world.is_cached(volume()), Some(false));
    // Nothing is dropped for users whose paths neither come nor go.
    site.world.read_buffered(volume());
    assert_eq!(verbs(&site, &cached(4, &[one])), Vec::<String>::new());
    assert_eq!(site.report(&cached(4, &[one])).cache, Some(Cache::Off));
    // The last attachment with the cache off goes, and the other stays.
    assert!(site.make(&cached(5, &[one, two])).left.unwrap().is_quiet());
    assert_eq!(verbs(&site, &cached(6, &[two])), ["flush", "unlink", "read-ahead", "forget"]);
    assert_eq!(site.world.read_ahead(volume()), Some(256));
    assert_eq!(site.report(&cached(6, &[two])).cache, Some(Cache::On));
    assert_eq!(verbs(&site, &cached(7, &[two, (3, Mode::ReadOnly, Cache::On)])), ["link"]);
}

#[test]
fn a_cache_is_turned_off_and_on_under_paths_that_stand() {
    let site = Site::new();
    let with = |counter, cache| cached(counter, &[(1, Mode::ReadWrite, cache)]);
    assert!(site.make(&with(1, Cache::On)).left.unwrap().is_quiet());
    // An operator's own value, and a value of 0.
    for (counter, before) in [(2, 4096), (4, 0)] {
        site.world.set_read_ahead(volume(), before);
        site.world.read_buffered(volume());
        assert_eq!(verbs(&site, &with(counter, Cache::Off)), ["drop", "keep", "read-ahead"]);
        assert_eq!((site.world.read_ahead(volume()), site.world.is_cached(volume())), (Some(0), Some(false)));
        let back: &[_] = if before == 0 { &["forget"] } else { &["read-ahead", "forget"] };
        assert_eq!(verbs(&site, &with(counter + 1, Cache::On)), back);
        assert_eq!(site.world.read_ahead(volume()), Some(before));
    }
    // The kernel resets the read-ahead when it reads the disk's limits again (6.11 and newer). The
    // recorded value stays.
    site.world.set_read_ahead(volume(), 2048);
    assert!(site.make(&with(6, Cache::Off)).left.unwrap().is_quiet());
    for counter in [6, 8] {
        site.world.set_read_ahead(volume(), 256);
        assert_eq!(site.report(&with(counter, Cache::Off)).cache, Some(Cache::On), "as it is in force");
        assert_eq!(verbs(&site, &with(counter, Cache::Off)), ["drop", "keep", "read-ahead"]);
        // The read-ahead may have been raised when the flag goes.
        site.world.set_read_ahead(volume(), if counter == 6 { 0 } else { 256 });
        assert_eq!(verbs(&site, &with(counter + 1, Cache::On)), ["read-ahead", "forget"]);
        assert_eq!(site.world.read_ahead(volume()), Some(2048));
        assert!(site.make(&with(counter + 2, Cache::Off)).left.unwrap().is_quiet());
    }
    // Another disk has its own read-ahead.
    site.world.lose_disk(volume());
    assert!(site.make(&with(11, Cache::Off)).left.unwrap().is_quiet());
    assert_eq!(site.report(&with(11, Cache::Off)).cache, Some(Cache::Off));
    // The record of a disk that has gone does not apply to the next one.
    site.world.lose_disk(volume());
    assert_eq!(
        verbs(&site, &with(12, Cache::On)),
        ["unlink", "unlink", "write", "forget", "link", "link", "name"]
    );
    assert_eq!(site.world.read_ahead(volume()), Some(256));
    assert!(site.make(&with(13, Cache::Off)).left.unwrap().is_quiet());
    // The disk goes, and its record goes with it.
    assert!(site.make(&absent(false)).left.unwrap().is_quiet());
    assert_eq!(site.words(), ["disk false read-only None read-ahead None", "session None"]);
}

#[test]
fn a_cache_that_cannot_be_turned_off_fails_the_attach_and_changes_nothing() {
    let site = Site::new();
    let (on, off) = ((1, Mode::ReadWrite, Cache::On), (1, Mode::ReadWrite, Cache::Off));
    assert!(site.make(&cached(1, &[on])).left.unwrap().is_quiet());
    let before = site.words();
    site.world.refuse(Some(DiskOp::SetReadAhead));
    let error = site.make(&cached(2, &[off])).left.unwrap_err();
    assert_eq!(error.cure(), Cure::Operator);
    let text = Chain(&error).to_string();
    assert!(text.contains("stop the read-ahead of /dev/") && text.contains("EACCES"), "{text}");
    assert_eq!(site.report(&cached(2, &[off])).cache, Some(Cache::On));
    // The flag is withdrawn: everything is as before, and nothing is left to restore.
    assert!(site.make(&cached(3, &[on])).left.unwrap().is_quiet());
    assert_eq!(site.words(), before);
}

const ONE: Attached = (1, Mode::ReadWrite, Cache::Off);
const TWO: Attached = (2, Mode::ReadWrite, Cache::Off);

/// True if the path of attachment 2 exists.
fn stands(site: &Site) -> bool {
    site.link(LinkName::Attachment(attachment(2))).symlink_metadata().is_ok()
}

/// A disk with these attachments, and unwritten data in its page cache.
fn written_to(attachments: &[Attached]) -> Site {
    let site = Site::new();
    assert!(site.make(&cached(1, attachments)).left.unwrap().is_quiet());
    site.world.write_buffered(volume());
    site
}

/// Only the flush itself keeps a path: the kernel reports only once that it could not write pages,
/// and has then lost them.
#[test]
fn a_path_whose_pages_cannot_be_written_stays_for_that_pass() {
    let site = written_to(&[ONE, TWO]);
    site.world.refuse(Some(DiskOp::Flush));
    for _ in 0..2 {
        assert!(site.make(&cached(2, &[ONE])).left.is_err());
        assert!(stands(&site));
    }
    site.world.refuse(None);
    site.world.fail_write_back();
    let error = site.make(&cached(2, &[ONE])).left.unwrap_err();
    assert!(Chain(&error).to_string().contains("EIO"), "{error}");
    assert!(stands(&site));
    assert_eq!(verbs(&site, &cached(2, &[ONE])), ["flush", "unlink"]);
    assert!(!stands(&site));
}

#[test]
fn a_path_stays_while_its_pages_cannot_be_written() {
    // The other attachment has the cache off, or only the one that goes had it off.
    for keeps in [Cache::Off, Cache::On] {
        for (what, harm) in [("its session is lost", Harm::Lost), ("does not identify itself", Harm::NoUnit)]
        {
            let stays = (1, Mode::ReadWrite, keeps);
            let site = written_to(&[stays, TWO]);
            harm.befall(&site);
            let door = site.world.door(None);
            let made = make(&door.parts(), &cached(2, &[stays]), &mut Memory::default(), &mut ());
            let left = made.left.unwrap();
            let found = left
                .blocked
                .iter()
                .find(|blocked| blocked.why.contains("a path to it is withdrawn"))
                .unwrap();
            assert_eq!(found.kind, BlockedKind::Missing, "tried again by itself");
            assert!(found.why.contains(what), "{found:?}");
            assert!(stands(&site) && site.world.is_dirty(volume()) == Some(true));
            assert!(!door.log().iter().any(|line| !line.starts_with("ensure")), "{:?}", door.log());
            site.world.lose(volume(), false);
            site.world.target(volume(), |target| target.unit = Some(Unit::of(volume(), SIZE)));
            assert_eq!(verbs(&site, &cached(2, &[stays]))[..2], ["flush", "unlink"]);
            assert!(!stands(&site) && site.world.is_dirty(volume()) == Some(false));
            assert_eq!(site.world.violations(), Vec::<String>::new());
        }
    }
}

#[test]
fn a_path_goes_at_once_when_no_page_of_it_can_ever_be_written() {
    for end in [SessionState::Forbidden, SessionState::Failed, SessionState::WrongDisk] {
        let site = written_to(&[ONE, TWO]);
        site.world.end_as(volume(), end, "said by sessiond");
        drop(site.make(&cached(2, &[ONE])));
        assert!(!stands(&site));
    }
    let site = written_to(&[ONE, TWO]);
    site.world.target(volume(), |target| target.unit = Some(Unit::of(VolumeId::from_u128(77), SIZE)));
    drop(site.make(&cached(2, &[ONE])));
    assert!(!stands(&site));
    // With the cache on, the path goes even while the session is lost.
    let site = written_to(&[(1, Mode::ReadWrite, Cache::On), (2, Mode::ReadWrite, Cache::On)]);
    site.world.lose(volume(), true);
    drop(site.make(&cached(2, &[(1, Mode::ReadWrite, Cache::On)])));
    assert!(!stands(&site));
}

/// The first spec, the faults after it, the second spec, and `true` if that one has a larger disk
/// than the target shows.
type Leaving = (Vec<Attached>, Vec<Harm>, Vec<Attached>, bool);

fn some_leaving() -> impl Strategy<Value = Leaving> {
    let some = || some_spec().prop_filter("a tombstone has laws of its own", |spec| !spec.is_empty());
    (some(), prop::collection::vec(Harm::all(), 0..3), some(), any::<bool>())
}

proptest! {
    #![proptest_config(config())]

    /// With the cache off, no path goes while data are unwritten that could be written, whatever
    /// happened to the host, the session and the target. The path goes when all is well again.
    #[test]
    fn pages_are_written_before_their_path_goes((first, harms, second, grown) in some_leaving()) {
        let site = written_to(&first);
        for harm in &harms {
            harm.befall(&site);
        }
        let want = |counter, size| wanted_spec(
            counter,
            ConnectionSpec { size: ByteSize(size), ..spec_of(second.iter().copied()) },
        );
        let now = want(2, if grown { 2 * SIZE } else { SIZE });
        // Nothing is written to a wrong disk.
        let is_other = harms.iter().any(|harm| matches!(harm, Harm::OtherVolume));
        let mut steps = Steps::of(&site, &now, usize::MAX);
        drop(make(&site.world.door(None).parts(), &now, &mut Memory::default(), &mut steps));
        if !is_other {
            prop_assert_eq!(&steps.unwritten, &[]);
        }
        prop_assert_eq!(site.world.violations(), Vec::<String>::new());
        if site.state() == Some(SessionState::Recovering) {
            site.world.lose(volume(), false);
        }
        site.world.hold_open(volume(), &[]);
        site.world.target(volume(), |target| {
            (target.unit, target.reachable, target.granted) = (Some(Unit::of(volume(), SIZE)), true, true);
        });
        let link = site.link(LinkName::Attachment(attachment(1)));
        if link.is_file() && !link.is_symlink() {
            std::fs::remove_file(&link).unwrap();
        }
        let end = want(3, SIZE);
        let mut steps = Steps::of(&site, &end, usize::MAX);
        let made = make(&site.world.door(None).parts(), &end, &mut Memory::default(), &mut steps);
        prop_assert!(made.left.unwrap().is_quiet());
        prop_assert_eq!(&steps.unwritten, &[]);
        prop_assert_eq!(site.report(&end).paths.len(), second.len());
        prop_assert_eq!(site.world.violations(), Vec::<String>::new());
    }
}

/// The control: a path that goes without a flush is noticed, whichever attachment had the cache
/// off.
#[test]
fn a_path_that_goes_before_its_pages_is_noticed() {
    let on = (1, Mode::ReadWrite, Cache::On);
    for (first, second) in [([ONE, TWO], ONE), ([on, TWO], on), ([(1, Mode::ReadWrite, Cache::On), TWO], ONE)]
    {
        let site = written_to(&first);
        let mut steps = Steps::of(&site, &cached(2, &[second]), usize::MAX);
        let (mut bad, link) = (mooring_model::Plan::default(), LinkName::Attachment(attachment(2)));
        bad.step(Op::Unlink { volume: volume(), link }, "");
        apply(&bad, &site.world.door(None).parts(), &mut Memory::default(), &mut steps).unwrap();
        assert_eq!(steps.unwritten, [link]);
    }
}

#[test]
fn a_path_of_a_disk_too_small_goes_after_its_pages() {
    let site = written_to(&[ONE, TWO]);
    let spec = ConnectionSpec { size: ByteSize(2 * SIZE), ..spec_of([ONE]) };
    let door = site.world.door(None);
    let made = make(&door.parts(), &wanted_spec(2, spec), &mut Memory::default(), &mut ());
    assert!(made.left.unwrap().blocked[0].why.contains("at least"));
    let verbs: Vec<_> = door.log().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    // The disk is read again, which raises the read-ahead. The path that stays still reads nothing
    // ahead.
    assert_eq!(verbs, ["flush", "unlink", "ensure", "write", "drop", "keep", "read-ahead"]);
    assert!(!stands(&site) && site.world.is_dirty(volume()) == Some(false));
    assert_eq!(site.world.read_ahead(volume()), Some(0));
}

#[test]
fn a_raised_read_ahead_does_not_spare_the_flush() {
    let on = (1, Mode::ReadWrite, Cache::On);
    for raised in [0, 128, 256, 4096] {
        let site = written_to(&[on, TWO]);
        site.world.set_read_ahead(volume(), raised);
        assert_eq!(verbs(&site, &cached(2, &[on]))[..2], ["flush", "unlink"]);
        assert_eq!(site.world.is_dirty(volume()), Some(false));
        assert_eq!(site.world.read_ahead(volume()), Some(256));
        assert!(!site.is_cache_recorded());
    }
}

/// The record is removed after the change. If the agent is killed between the two, the next pass
/// removes the record.
#[test]
fn a_kill_after_any_change_leaves_no_read_ahead_behind() {
    let on = (1, Mode::ReadWrite, Cache::On);
    for before in [256, 2048, 0] {
        for kill in 1..8 {
            for kill in [Kill::Before(kill), Kill::After(kill)] {
                let site = Site::new();
                assert!(site.make(&cached(1, &[on])).left.unwrap().is_quiet());
                site.world.set_read_ahead(volume(), before);
                assert!(site.make(&cached(2, &[on, TWO])).left.unwrap().is_quiet());
                let door = site.world.door(Some(kill));
                drop(make(&door.parts(), &cached(3, &[on]), &mut Memory::default(), &mut ()));
                assert!(site.make(&cached(3, &[on])).left.unwrap().is_quiet());
                assert_eq!(site.world.read_ahead(volume()), Some(before), "{kill:?}");
                assert!(!site.is_cache_recorded(), "{kill:?}");
                // The same holds for a tombstone.
                assert!(site.make(&cached(4, &[TWO])).left.unwrap().is_quiet());
                let door = site.world.door(Some(kill));
                drop(make(&door.parts(), &absent(false), &mut Memory::default(), &mut ()));
                assert!(site.make(&absent(false)).left.unwrap().is_quiet());
                assert_eq!(site.words(), ["disk false read-only None read-ahead None", "session None"]);
                assert_eq!(site.report(&absent(false)).phase, ConnectionPhase::Gone);
            }
        }
    }
}

#[test]
fn a_held_disk_keeps_the_record_of_its_read_ahead() {
    let site = written_to(&[ONE]);
    site.world.hold_open(volume(), &held());
    let left = site.make(&absent(false)).left.unwrap();
    assert_eq!(left.blocked[0].kind, BlockedKind::Held);
    assert!(site.is_cache_recorded());
    // The detach is withdrawn, and then the flag.
    assert!(site.make(&cached(3, &[ONE])).left.unwrap().is_quiet());
    assert!(site.make(&cached(4, &[(1, Mode::ReadWrite, Cache::On)])).left.unwrap().is_quiet());
    assert_eq!(site.world.read_ahead(volume()), Some(256));
    assert!(!site.is_cache_recorded());
}

#[test]
fn a_disk_that_takes_writes_again_gets_its_paths_with_the_cache_off() {
    let (reads, writes) = ((1, Mode::ReadOnly, Cache::Off), (2, Mode::ReadWrite, Cache::Off));
    let site = Site::new();
    assert!(site.make(&cached(1, &[reads])).left.unwrap().is_quiet());
    // Reading the write protection again raises the read-ahead, so it is checked before the path
    // comes.
    let want = cached(2, &[reads, writes]);
    let mut steps = Steps::of(&site, &want, usize::MAX);
    let door = site.world.door(None);
    assert!(make(&door.parts(), &want, &mut Memory::default(), &mut steps).left.unwrap().is_quiet());
    assert_eq!(site.report(&want).cache, Some(Cache::Off));
    // The target still protects the disk: no path comes, and the existing one reads nothing ahead.
    let site = Site::new();
    site.world.target(volume(), |target| target.unit.as_mut().unwrap().protected = true);
    assert!(site.make(&cached(1, &[reads])).left.unwrap().is_quiet());
    let left = site.make(&want).left.unwrap();
    assert!(left.blocked[0].why.contains("the target still protects it"), "{left:?}");
    assert!(!stands(&site));
    assert_eq!(site.world.read_ahead(volume()), Some(0));
}

/// Runs a pass. Returns the phase, and the amount of unwritten data that it reports.
fn unwritten_after(site: &Site, memory: &mut Memory, want: &Wanted) -> (ConnectionPhase, Option<ByteSize>) {
    let door = site.world.door(None);
    let made = make(&door.parts(), want, memory, &mut ());
    let spec = spec(&[]);
    let names = Names { initiator: spec.initiator, target: spec.target };
    let left = !made.left.unwrap().is_quiet();
    let said = report(want, Generation::ZERO, &made.view.unwrap(), left, &door, names);
    (said.phase, said.unwritten)
}

#[test]
fn a_revoked_host_says_what_it_had_not_written() {
    for before in [None, Some(ByteSize(8192))] {
        let (site, mut memory) = (Site::new(), Memory::default());
        let want = present(1, &[(1, Mode::ReadWrite)]);
        site.world.set_unwritten(Some(8192));
        assert_eq!(unwritten_after(&site, &mut memory, &want), (ConnectionPhase::Ready, None));
        site.world.set_unwritten(before.map(|bytes| bytes.0));
        assert_eq!(unwritten_after(&site, &mut memory, &absent(true)), (ConnectionPhase::Gone, before));
        // A later question gets the same answer.
        assert_eq!(unwritten_after(&site, &mut memory, &absent(true)), (ConnectionPhase::Gone, before));
        // A new attach does not inherit it.
        assert_eq!(unwritten_after(&site, &mut memory, &want), (ConnectionPhase::Ready, None));
        assert_eq!(site.world.violations(), Vec::<String>::new());
    }
}

#[test]
fn the_most_that_was_not_written_is_kept_until_the_session_is_there_again() {
    let (site, mut memory) = (Site::new(), Memory::default());
    let want = present(1, &[(1, Mode::ReadWrite)]);
    assert_eq!(unwritten_after(&site, &mut memory, &want), (ConnectionPhase::Ready, None));
    site.world.lose(volume(), true);
    // The kernel gives up, and forgets what it could not write.
    for (now, most) in
        [(None, None), (Some(4096), 4096.into()), (Some(8192), 8192.into()), (Some(0), 8192.into())]
    {
        site.world.set_unwritten(now);
        let said = unwritten_after(&site, &mut memory, &want);
        assert_eq!(said, (ConnectionPhase::Recovering, most.map(ByteSize)));
    }
    let mut revoked = memory.clone();
    site.world.lose(volume(), false);
    site.world.set_unwritten(Some(4096));
    assert_eq!(unwritten_after(&site, &mut memory, &want), (ConnectionPhase::Ready, None));
    // After a second loss, the count begins anew.
    site.world.lose(volume(), true);
    assert_eq!(unwritten_after(&site, &mut memory, &want).1, Some(ByteSize(4096)));
    // The host is revoked instead: the largest amount is reported to the end.
    let gone = unwritten_after(&site, &mut revoked, &absent(true));
    assert_eq!(gone, (ConnectionPhase::Gone, Some(ByteSize(8192))));
}
