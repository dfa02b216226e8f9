//! The lock that delays a shutdown: taken when work lasts, released when it ends, refused without
//! harm.

use std::time::{Duration, Instant};

use mooring_bus::{Bus, delay_shutdown};
use tokio::sync::watch;

use mooring_bus::fake::{Daemon, Fake, SOON, wait_for};

const WHO: &str = "Mooring agent";

struct Rig {
    work: watch::Sender<Option<String>>,
    closing: watch::Receiver<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Rig {
    fn new(bus: Bus) -> Self {
        let (work, working) = watch::channel(None);
        let (close, closing) = watch::channel(false);
        let task = tokio::spawn(async move { delay_shutdown(bus, WHO, working, close).await });
        Self { work, closing, task }
    }

    fn works(&self, why: Option<&str>) {
        self.work.send_replace(why.map(str::to_owned));
    }

    async fn closes(&mut self, begins: bool) {
        let closing = tokio::time::timeout(SOON, self.closing.wait_for(|closing| *closing == begins)).await;
        closing.expect("it is told soon").unwrap();
    }
}

#[tokio::test]
async fn a_lock_is_held_exactly_while_work_lasts() {
    let daemon = Daemon::started();
    let fake = Fake::serve(&daemon, &[]).await;
    let rig = Rig::new(daemon.bus());
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(fake.locks(), Vec::<String>::new(), "nothing is at work");
    rig.works(Some("it zeroes a volume"));
    wait_for("the lock", || fake.locks() == ["shutdown delay Mooring agent: it zeroes a volume"]).await;
    // Another reason is shown when it has stood for a while.
    rig.works(Some("it zeroes 2 volumes"));
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(fake.locks(), ["shutdown delay Mooring agent: it zeroes a volume"]);
    wait_for("the other reason", || fake.locks() == ["shutdown delay Mooring agent: it zeroes 2 volumes"])
        .await;
    rig.works(None);
    wait_for("its end", || fake.locks().is_empty()).await;
    // What is over in a moment takes none. A busy machine may make it long: then it is tried again.
    let locks = || fake.state().calls.iter().filter(|call| *call == "Inhibit").count();
    assert_eq!(locks(), 2);
    let mut short = false;
    while !short {
        let (before, begun) = (locks(), Instant::now());
        rig.works(Some("it is short"));
        tokio::time::sleep(Duration::from_millis(50)).await;
        rig.works(None);
        short = begun.elapsed() < Duration::from_millis(200);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!short || locks() == before, "a lock for short work");
    }
    drop(rig.work);
    tokio::time::timeout(SOON, rig.task).await.expect("it ends with its work").unwrap();
}

#[tokio::test]
async fn a_shutdown_is_told_and_so_is_its_end() {
    let daemon = Daemon::started();
    let fake = Fake::serve(&daemon, &[]).await;
    let mut rig = Rig::new(daemon.bus());
    rig.works(Some("it copies"));
    wait_for("the lock", || fake.locks().len() == 1).await;
    fake.shutdown(true).await;
    rig.closes(true).await;
    assert_eq!(fake.locks().len(), 1, "the work has not ended");
    rig.works(None);
    wait_for("its end", || fake.locks().is_empty()).await;
    fake.shutdown(false).await;
    rig.closes(false).await;
}

#[tokio::test]
async fn a_refused_lock_is_asked_for_again_with_the_next_work_only() {
    let daemon = Daemon::started();
    let fake = Fake::serve(&daemon, &[]).await;
    let rig = Rig::new(daemon.bus());
    let asked = || fake.state().calls.iter().filter(|call| *call == "Inhibit").count();
    for (number, error) in
        [(1, "org.freedesktop.DBus.Error.AccessDenied"), (2, "org.freedesktop.login1.OperationInProgress")]
    {
        fake.state().refuses = Some(error);
        rig.works(Some("it copies"));
        wait_for("the question", || asked() == number).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!((asked(), fake.locks().len()), (number, 0));
        rig.works(None);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    fake.state().refuses = None;
    rig.works(Some("it copies"));
    wait_for("the lock", || fake.locks().len() == 1).await;
}

#[tokio::test]
async fn a_lock_outlives_the_bus_and_is_released_without_it() {
    let mut daemon = Daemon::started();
    let fake = Fake::serve(&daemon, &[]).await;
    let rig = Rig::new(daemon.bus());
    rig.works(Some("it copies"));
    wait_for("the lock", || fake.locks().len() == 1).await;
    // A lock on its way through the daemon would go with it. The first one goes once the second has
    // come.
    rig.works(Some("it copies more"));
    wait_for("the second lock", || fake.locks() == ["shutdown delay Mooring agent: it copies more"]).await;
    daemon.stop();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(fake.locks().len(), 1, "it is a file, whoever carries the questions");
    rig.works(None);
    wait_for("its end", || fake.locks().is_empty()).await;
}

#[tokio::test]
async fn work_without_a_bus_waits_for_nobody() {
    let rig = Rig::new(Daemon::absent().bus());
    rig.works(Some("it copies"));
    rig.works(None);
    drop(rig.work);
    tokio::time::timeout(SOON, rig.task).await.expect("it ends with its work").unwrap();
}
