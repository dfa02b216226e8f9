//! The states of units: they come and go by signals, with the bus, and without one.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use mooring_bus::{Bus, Units, follow};
use tokio::sync::watch;

use mooring_bus::fake::{Daemon, Fake, FakeUnit, SOON, wait_for};

const AGENT: &str = "mooring-agent.service";
const TARGET: &str = "target.service";
const REAL: &str = "rtslib-fb-targetctl.service";

async fn until(
    seen: &mut watch::Receiver<Option<Units>>,
    is: impl FnMut(&Option<Units>) -> bool,
) -> Option<Units> {
    let waited = tokio::time::timeout(SOON, seen.wait_for(is)).await;
    waited.expect("it is told soon").unwrap().clone()
}

fn active(units: Option<&Units>, name: &str) -> Option<String> {
    Some(units?.get(name)?.active.clone())
}

#[tokio::test]
async fn units_come_change_and_go_by_signals_alone() {
    let daemon = Daemon::started();
    let fake = Fake::serve(&daemon, &[(AGENT, FakeUnit::new(AGENT, "active"))]).await;
    let mut seen = follow(daemon.bus(), &[AGENT, TARGET, REAL]);
    let units = until(&mut seen, Option::is_some).await.unwrap();
    assert_eq!(units.keys().collect::<Vec<_>>(), [AGENT]);
    let calls = || fake.state().calls.len();
    let asked = calls();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(calls(), asked, "nobody asks while nothing is told");

    // An alias: its object is that of the unit which it stands for.
    fake.load(TARGET, FakeUnit::new(REAL, "active")).await;
    fake.load(REAL, FakeUnit::new(REAL, "active")).await;
    let units = until(&mut seen, |units| active(units.as_ref(), REAL).is_some()).await;
    assert_eq!(units.unwrap()[TARGET].name, REAL);
    fake.state().units.get_mut(TARGET).unwrap().active = "inactive";
    fake.change(REAL, |unit| unit.active = "inactive").await;
    until(&mut seen, |units| active(units.as_ref(), TARGET).as_deref() == Some("inactive")).await;

    fake.change(AGENT, |unit| (unit.active, unit.outdated) = ("failed", true)).await;
    let units =
        until(&mut seen, |units| active(units.as_ref(), AGENT).as_deref() == Some("failed")).await.unwrap();
    assert_eq!((units[AGENT].to_string(), units[AGENT].outdated), ("failed (exit-code)".to_owned(), true));
}

#[tokio::test]
async fn a_unit_that_is_not_in_memory_is_not_loaded_by_a_look() {
    let daemon = Daemon::started();
    let unit = FakeUnit { loaded: false, file: "disabled", ..FakeUnit::new(TARGET, "?") };
    let fake = Fake::serve(&daemon, &[(TARGET, unit)]).await;
    let mut seen = follow(daemon.bus(), &[TARGET]);
    let units = until(&mut seen, Option::is_some).await.unwrap();
    let unit = &units[TARGET];
    assert_eq!((unit.active.as_str(), unit.file.as_str(), unit.load.as_str()), ("inactive", "disabled", ""));
    assert!(fake.state().calls.iter().all(|call| call != "GetAll"));
}

#[tokio::test]
async fn without_a_bus_nothing_is_known_until_there_is_one() {
    let mut daemon = Daemon::absent();
    let mut seen = follow(daemon.bus(), &[AGENT]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(*seen.borrow(), None);
    daemon.start();
    // A bus without systemd, as in a container.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(*seen.borrow(), None);
    let _fake = Fake::serve(&daemon, &[(AGENT, FakeUnit::new(AGENT, "active"))]).await;
    until(&mut seen, |units| active(units.as_ref(), AGENT).as_deref() == Some("active")).await;
}

#[tokio::test]
async fn a_bus_that_was_restarted_is_found_again_and_one_that_ended_is_unknown() {
    let mut daemon = Daemon::started();
    let fake = Fake::serve(&daemon, &[(AGENT, FakeUnit::new(AGENT, "active"))]).await;
    let mut seen = follow(daemon.bus(), &[AGENT]);
    until(&mut seen, Option::is_some).await;
    drop(fake);
    daemon.stop();
    daemon.start();
    let _fake = Fake::serve(&daemon, &[(AGENT, FakeUnit::new(AGENT, "failed"))]).await;
    let before = seen.borrow_and_update().clone();
    assert!(before.is_some(), "what was seen stands over a restart");
    until(&mut seen, |units| active(units.as_ref(), AGENT).as_deref() == Some("failed")).await;
    daemon.stop();
    until(&mut seen, Option::is_none).await;
}

#[tokio::test]
async fn a_bus_that_hangs_is_given_up_and_heard_again() {
    // One that takes connections and says nothing.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bus");
    let silent = UnixListener::bind(&path).unwrap();
    let bus = Bus::at(format!("unix:path={}", path.display())).answers_within(Duration::from_millis(200));
    let begun = tokio::time::Instant::now();
    let seen = follow(bus, &[AGENT]);
    silent.set_nonblocking(true).unwrap();
    // Kept open: a connection that is closed is no silence.
    let mut tries = Vec::new();
    while tries.len() < 2 {
        tries.extend(silent.accept());
        assert!(begun.elapsed() < SOON, "tried {} times", tries.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(begun.elapsed() > Duration::from_millis(1200), "tried again after {:?}", begun.elapsed());
    assert_eq!(*seen.borrow(), None);

    // One that hangs in the middle of a question.
    let daemon = Daemon::started();
    let fake = Fake::serve(&daemon, &[(AGENT, FakeUnit::new(AGENT, "active"))]).await;
    let mut seen = follow(daemon.bus().answers_within(Duration::from_secs(1)), &[AGENT]);
    until(&mut seen, Option::is_some).await;
    let asked = {
        let mut state = fake.state();
        state.silent = true;
        state.calls.len()
    };
    fake.change(AGENT, |unit| unit.active = "failed").await;
    wait_for("the question", || fake.state().calls.len() > asked).await;
    daemon.hang();
    until(&mut seen, Option::is_none).await;
    fake.state().silent = false;
    daemon.go_on();
    until(&mut seen, |units| active(units.as_ref(), AGENT).as_deref() == Some("failed")).await;
}
