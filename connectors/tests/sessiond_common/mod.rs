//! A fake host, a fake target, and a daemon between them.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use mooring_connectors::client::{Client, SessionEvent, Watch};
use mooring_connectors::sessiond::identity::{FreshInquiry, Identity};
use mooring_connectors::sessiond::steps::{FaultPoint, Steps};
use mooring_connectors::sessiond::{Config, Daemon, Machine, StartError, Timing};
use mooring_connectors::wire::{SessionSpec, SessionState, SessionStatus, WireChap};
use mooring_connectors::{LinkName, LinkSeen, Links, RunLinks};
use mooring_host::fake::initiator::{Acl, Credentials, FakeDisk, FakeHost, FakeTarget};
use mooring_host::fake::own_loopback;
use mooring_host::{Clock, SystemClock, Tree};
use mooring_model::{AttachmentId, Generation, Iqn, Lun, Naa, Portal, VolumeId};

/// Limit of every wait, longer than anything in these tests takes.
pub const PATIENCE: Duration = Duration::from_secs(20);
pub const BOOT: &str = "3d1f5f6e-0000-4000-8000-000000000001";
pub const INITIATOR: &str = "iqn.2026-11.dev.mooring:host.b0000000-1111-4222-8333-444444444444";
pub const USER: &str = "mooring-user";
pub const SECRET: &str = "correct-horse-battery";

/// Attachments of the volume.
const LINKS: [AttachmentId; 2] = [AttachmentId::from_u128(0xa1), AttachmentId::from_u128(0xa2)];

/// Timing of the daemon: short enough for tests, with the rules between the times unchanged.
pub fn timing() -> Timing {
    Timing {
        connect_within: Duration::from_secs(5),
        answer_within: Duration::from_secs(5),
        login_within: Duration::from_secs(10),
        unbind_within: Duration::from_secs(5),
        logout_within: Duration::from_secs(5),
        destroy_within: Duration::from_secs(1),
        check_within: Duration::from_secs(5),
        identity_within: Duration::from_mins(1),
        ordered_within: Duration::from_millis(200),
        recheck: Duration::from_millis(10),
        stale_event: Duration::from_millis(50),
        retry_first: Duration::from_millis(5),
        retry_longest: Duration::from_millis(50),
        refused_for: Duration::from_millis(100),
        look_every: Duration::from_millis(10),
    }
}

#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns everything that this process has logged, at every level.
pub fn log() -> String {
    static LOG: OnceLock<Log> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        log
    });
    let text = log.0.lock().unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

/// Kills the daemon at the n-th fault point after it was armed.
#[derive(Clone)]
pub struct Death {
    host: FakeHost,
    /// Number of fault points that are left; u64::MAX if not armed.
    left: Arc<AtomicU64>,
    /// Fault point at which the daemon dies, whenever it comes by; `None` if there is none.
    at: Arc<Mutex<Option<FaultPoint>>>,
    dead: Arc<AtomicBool>,
    pub passed: Arc<Mutex<Vec<FaultPoint>>>,
}

impl Death {
    pub fn arm(&self, n: u64) {
        self.passed.lock().unwrap().clear();
        self.left.store(n, Ordering::SeqCst);
    }

    pub fn arm_at(&self, point: FaultPoint) {
        *self.at.lock().unwrap() = Some(point);
    }

    pub fn happened(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    pub fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.host.crash();
    }

    fn steps(&self) -> Steps {
        let death = self.clone();
        Steps::listened(move |point| {
            if death.happened() {
                std::panic::resume_unwind(Box::new("dead"));
            }
            let mut passed = death.passed.lock().unwrap();
            if *death.at.lock().unwrap() == Some(point) {
                death.die();
                drop(passed);
                std::panic::resume_unwind(Box::new("dead"));
            }
            let left = death.left.load(Ordering::SeqCst);
            if left == u64::MAX {
                return;
            }
            passed.push(point);
            if left == 0 {
                death.die();
                drop(passed);
                std::panic::resume_unwind(Box::new("dead"));
            }
            death.left.store(left - 1, Ordering::SeqCst);
        })
    }
}

pub struct Running {
    pub daemon: Option<Daemon>,
    pub death: Death,
}

impl Running {
    /// Kills the process: it does nothing more.
    pub fn kill(mut self) {
        self.death.die();
        if let Some(daemon) = self.daemon.take() {
            daemon.stop();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            self.death.die();
            daemon.stop();
        }
    }
}

pub struct Rig {
    pub host: FakeHost,
    pub target: FakeTarget,
    pub disk: FakeDisk,
    pub dir: tempfile::TempDir,
    pub volume: VolumeId,
    pub timing: Timing,
    /// Seconds that I/O waits for a lost session, and for which refusals may pass.
    pub recovery_timeout_s: u32,
    /// Check of the disk's identity. `None`: the real one.
    pub identity: Option<Arc<dyn Identity>>,
    /// Tree at `/sys` as the daemon sees it. `None`: the host's own.
    pub sys: Option<Arc<dyn Tree>>,
    /// Clock of the daemon.
    pub clock: Arc<dyn Clock>,
}

impl Rig {
    pub fn new() -> Self {
        let _ = log();
        let volume = VolumeId::random();
        let target = FakeTarget::start(format!("iqn.2026-11.dev.mooring:{volume}")).unwrap();
        let disk = FakeDisk::new(volume.to_string(), 1 << 30);
        target.set_disk(1, disk.clone());
        let credentials = Credentials::new(USER, SECRET);
        target.allow(INITIATOR, Acl { chap: Some(credentials), ..Acl::default() });
        Self {
            host: FakeHost::new(),
            target,
            disk,
            dir: tempfile::tempdir().unwrap(),
            volume,
            timing: timing(),
            recovery_timeout_s: 120,
            identity: None,
            sys: None,
            clock: Arc::new(SystemClock),
        }
    }

    /// Makes a rig with the shortest recovery time: refusals count after a second.
    pub fn impatient() -> Self {
        Self { recovery_timeout_s: 1, ..Self::new() }
    }

    pub fn portal(&self) -> Portal {
        self.target.address().to_string().parse().unwrap()
    }

    pub fn spec(&self) -> SessionSpec {
        SessionSpec {
            volume: self.volume,
            generation: Generation { epoch: 1, counter: 1 },
            initiator: INITIATOR.parse::<Iqn>().unwrap(),
            target: self.target.name().parse().unwrap(),
            tpg: 1,
            portals: vec![self.portal()],
            lun: Lun(1),
            naa: Naa::from_hex(&self.disk.naa()).unwrap(),
            serial: Some(self.volume.to_string()),
            chap: Some(WireChap { user: USER.into(), secret: SECRET.into(), mutual: None }),
            other_chap: None,
            recovery_timeout_s: self.recovery_timeout_s,
            fc: None,
        }
    }

    pub fn try_start(&self) -> Result<Running, StartError> {
        let death = Death {
            host: self.host.clone(),
            left: Arc::new(AtomicU64::new(u64::MAX)),
            at: Arc::default(),
            dead: Arc::default(),
            passed: Arc::default(),
        };
        let mut config = Config::new(self.dir.path(), BOOT);
        config.timing = self.timing;
        config.steps = death.steps();
        config.on_panic = Arc::new(|| {});
        let host = Arc::new(self.host.clone());
        let real = || Arc::new(FreshInquiry::new(host.clone(), host.clone())) as Arc<dyn Identity>;
        let machine = Machine {
            kernel: host.clone(),
            sys: self.sys.clone().unwrap_or_else(|| host.clone()),
            identity: self.identity.clone().unwrap_or_else(real),
            clock: self.clock.clone(),
        };
        let daemon = Daemon::start(config, machine, Box::new(self.host.events()))?;
        Ok(Running { daemon: Some(daemon), death })
    }

    pub fn start(&self) -> Running {
        self.try_start().unwrap()
    }

    /// Starts a daemon after the death of another one.
    pub fn restart(&self) -> Running {
        self.host.uncrash();
        self.start()
    }

    pub fn client(&self) -> Client {
        Client::connect(self.dir.path(), "test").unwrap()
    }

    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("sessiond")
    }

    /// Returns the names of the journal's files.
    pub fn journal(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.folder()).unwrap().map(|file| file.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| name.contains(".json"));
        names.sort();
        names
    }

    /// Returns the journal's entry of the volume, or "" if there is none.
    pub fn entry(&self) -> String {
        std::fs::read_to_string(self.folder().join(format!("{}.json", self.volume))).unwrap_or_default()
    }

    pub fn attach(&self) -> SessionStatus {
        let status = self.client().ensure(&self.spec(), PATIENCE).unwrap();
        assert_eq!(status.state, SessionState::LoggedIn, "{status:?}");
        status
    }

    /// Makes the disk appear, as an agent does.
    pub fn scan(&self, status: &SessionStatus) -> PathBuf {
        use mooring_host::TreePath;
        let host = status.host.unwrap();
        self.host.write(&TreePath::new(&format!("class/scsi_host/host{host}/scan")), b"0 0 1").unwrap();
        assert!(self.host.wait_for(|host| !host.disks().is_empty()));
        PathBuf::from("/dev").join(&self.host.disks()[0])
    }

    /// Makes the paths for users, as an agent does after it has verified the disk.
    pub fn link(&self, device: &std::path::Path) {
        let links = RunLinks::new(self.dir.path(), "/dev");
        for name in LINKS.map(LinkName::Attachment).into_iter().chain([LinkName::Volume(self.volume)]) {
            links.make(self.volume, name, device).unwrap();
        }
    }

    /// Returns the existing paths for users.
    pub fn links(&self) -> Vec<LinkName> {
        let links = RunLinks::new(self.dir.path(), "/dev");
        assert!(links.recorded(self.volume).unwrap().iter().all(|id| LINKS.contains(id)));
        let names = LINKS.map(LinkName::Attachment).into_iter().chain([LinkName::Volume(self.volume)]);
        names.filter(|name| links.look(*name).unwrap() != LinkSeen::Absent).collect()
    }

    /// Waits until the session's status satisfies `holds`.
    pub fn until(&self, what: &str, holds: impl Fn(&SessionStatus) -> bool) -> SessionStatus {
        let mut watch = self.client().watch().unwrap();
        let until = Instant::now() + PATIENCE;
        let mut last = None;
        while Instant::now() < until {
            if let Some(SessionEvent::Session(status)) = watch.next(Duration::from_millis(100)).unwrap() {
                if status.volume == self.volume && holds(&status) {
                    return *status;
                }
                last = Some(status);
            }
        }
        panic!("{what}: {last:?}");
    }

    pub fn until_state(&self, state: SessionState) -> SessionStatus {
        self.until(&format!("{state:?}"), |status| status.state == state)
    }
}

/// Waits for the next event that satisfies `holds`.
pub fn next_event(watch: &mut Watch, holds: impl Fn(&SessionEvent) -> bool) -> SessionEvent {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(event) = watch.next(Duration::from_millis(100)).unwrap()
            && holds(&event)
        {
            return event;
        }
    }
    panic!("no such event");
}

/// Returns a portal that refuses connections.
pub fn refusing_portal() -> Portal {
    let listener = TcpListener::bind((own_loopback(), 0)).unwrap();
    listener.local_addr().unwrap().to_string().parse().unwrap()
}
