//! The agent with the real `mooring-sessiond` in the same process, on a fake kernel that logs in to
//! a fake target over real TCP connections.

use std::path::Path;
use std::sync::Arc;

use mooring_agent::config::Config;
use mooring_api::v1;
use mooring_connectors::sessiond::identity::FreshInquiry;
use mooring_connectors::sessiond::{self, Daemon};
use mooring_connectors::{Arrivals, Parts, RunLinks, Sessiond};
use mooring_host::fake::initiator::{Acl, Credentials, FakeDisk, FakeHost, FakeTarget};
use mooring_host::{SystemClock, Tree, TreePath};
use mooring_model::IqnPrefix;
use tonic::Code;

use crate::rig::*;

/// Seconds for which a host that was admitted once is refused before it gives up.
const RECOVERY_S: u32 = 3;

/// A host with a daemon that may die, and the target of volume 1.
struct Whole {
    host: FakeHost,
    target: FakeTarget,
    disk: FakeDisk,
    dir: tempfile::TempDir,
    config: Config,
}

/// A running daemon, which dies when dropped.
struct Keeper {
    daemon: Option<Daemon>,
    process: FakeHost,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.process.crash();
        if let Some(daemon) = self.daemon.take() {
            daemon.stop();
        }
        self.process.uncrash();
    }
}

impl Whole {
    fn new() -> Self {
        let (dir, config) = host_config();
        let id = volume(1);
        let target = FakeTarget::start(IqnPrefix::default().target(id).as_str()).unwrap();
        let disk = FakeDisk::new(id.to_string(), SIZE);
        target.set_disk(1, disk.clone());
        Self { host: FakeHost::new(), target, disk, dir, config }
    }

    fn keeper(&self, boot: u8) -> Keeper {
        let process = self.host.process();
        let mut config = sessiond::Config::new(
            &self.config.run_dir,
            format!("3d1f5f6e-0000-4000-8000-0000000000{boot:02}"),
        );
        config.on_panic = Arc::new(|| {});
        let parts = Arc::new(process.clone());
        let machine = sessiond::Machine {
            kernel: parts.clone(),
            sys: parts.clone(),
            identity: Arc::new(FreshInquiry::new(parts.clone(), parts)),
            clock: Arc::new(SystemClock),
        };
        let daemon = Daemon::start(config, machine, Box::new(process.events())).unwrap();
        Keeper { daemon: Some(daemon), process }
    }

    fn agent(&self) -> Agent {
        let process = self.host.process();
        let host = Arc::new(process.clone());
        let parts = Parts {
            sys: host.clone(),
            disks: host,
            links: Arc::new(RunLinks::new(&self.config.run_dir, "/dev")),
            sessions: Arc::new(Sessiond::new(&self.config.run_dir, "mooring-agent test")),
            arrivals: Arrivals::default(),
            dev: "/dev".into(),
            recovery_timeout_s: RECOVERY_S,
        };
        let agent = start_agent(&self.config, parts, Box::new(process.uevents()), None);
        let credentials = Credentials::new("host", secret());
        self.target.allow(agent.initiator(), Acl { chap: Some(credentials), ..Acl::default() });
        agent
    }

    fn spec(&self, agent: &Agent, attachments: &[(u8, v1::Mode)]) -> v1::ConnectionSpec {
        let portals = vec![self.target.address().to_string()];
        v1::ConnectionSpec { portals, naa: self.disk.naa(), ..agent.spec(1, attachments) }
    }

    fn attach(&self, agent: &Agent, counter: u64, attachments: &[(u8, v1::Mode)]) -> v1::ConnectionReport {
        agent.make(put_spec(1, counter, self.spec(agent, attachments)))
    }

    fn path_of(&self, n: u8) -> Option<String> {
        let to = std::fs::read_link(self.dir.path().join("run/attachments").join(attachment(n))).ok()?;
        Some(to.file_name()?.to_str()?.to_owned())
    }
}

#[test]
fn an_attach_and_a_detach_with_everything_real_but_the_kernel() {
    let whole = Whole::new();
    let _keeper = whole.keeper(1);
    let agent = whole.agent();
    let report = whole.attach(&agent, 1, &[(1, RW)]);
    assert_eq!((report.phase(), report.mode()), (v1::ConnectionPhase::Ready, RW));
    assert_eq!(whole.host.disks(), ["sda"]);
    assert_eq!(whole.path_of(1).as_deref(), Some("sda"));
    assert_eq!(whole.host.scans(), ["0 0 1"], "one LUN, once");
    let sessions = whole.target.sessions();
    assert_eq!((sessions.len(), sessions[0].initiator.as_str()), (1, agent.initiator().as_str()));
    whole.host.write_disk("/dev/sda", 0, &[7; 512]).unwrap();
    assert_eq!(whole.disk.peek(0, 1), [7]);
    assert!(report.login_us > 0 && report.device_us > 0, "{report:?}");

    whole.host.hold_open("/dev/sda", 4711, "qemu-system-x86").unwrap();
    let refused = agent.try_put(tombstone(1, 2, false));
    assert_refused(refused, Code::FailedPrecondition, "operator", &["qemu-system-x86 (pid 4711)"]);
    whole.host.close("/dev/sda").unwrap();
    agent.make(tombstone(1, 2, false));
    assert!(whole.target.wait_for(|target| target.sessions().is_empty()) && whole.host.disks().is_empty());
    assert_eq!((whole.host.sessions(), whole.path_of(1), whole.target.logouts()), (vec![], None, 1));
}

#[test]
fn modes_follow_the_target_and_the_attachments() {
    let whole = Whole::new();
    let _keeper = whole.keeper(1);
    let agent = whole.agent();
    let chap = Some(Credentials::new("host", secret()));
    whole.target.allow(agent.initiator(), Acl { chap: chap.clone(), read_only: true, ..Acl::default() });
    let report = whole.attach(&agent, 1, &[(1, RO)]);
    assert!(report.disk.unwrap().read_only);
    // The target allows writes, and a second attachment is read-write.
    whole.target.allow(agent.initiator(), Acl { chap, ..Acl::default() });
    let report = whole.attach(&agent, 2, &[(1, RO), (2, RW)]);
    assert!(report.mode() == RW && !report.disk.unwrap().read_only);
    whole.host.write_disk("/dev/sda", 0, &[1; 512]).unwrap();
    let report = whole.attach(&agent, 3, &[(1, RO)]);
    assert!(report.mode() == RO && report.disk.unwrap().read_only);
    assert_eq!(whole.target.seen().len(), 1, "one login");
}

#[test]
fn killed_and_started_again_both_find_it_as_it_is() {
    let whole = Whole::new();
    let keeper = whole.keeper(1);
    let agent = whole.agent();
    let before = whole.attach(&agent, 1, &[(1, RW)]).session.unwrap();
    agent.crash();
    drop(keeper);
    let _keeper = whole.keeper(1);
    let agent = whole.agent();
    eventually("it is ready", || agent.report(1).phase() == v1::ConnectionPhase::Ready);
    assert_eq!(agent.report(1).session.unwrap().sid, before.sid);
    assert_eq!((whole.target.seen().len(), whole.host.scans().len()), (1, 1), "adopted, and left as it was");
    // The connection breaks. sessiond restores it, and the agent sees that.
    whole.target.cut_all();
    eventually("it is logged in again", || {
        let report = agent.report(1);
        report.phase() == v1::ConnectionPhase::Ready && report.session.is_some_and(|s| s.relogins == 1)
    });
    assert_eq!(whole.path_of(1).as_deref(), Some("sda"));
    whole.host.write_disk("/dev/sda", 0, &[7; 512]).unwrap();
}

#[test]
fn sessiond_alone_dies_and_comes_back() {
    let whole = Whole::new();
    let keeper = whole.keeper(1);
    let agent = whole.agent();
    whole.attach(&agent, 1, &[(1, RW)]);
    drop(keeper);
    eventually("it is said", || problems(&agent.report(1)).contains("mooring-sessiond"));
    assert_eq!(agent.report(1).phase(), v1::ConnectionPhase::Ready);
    whole.host.write_disk("/dev/sda", 0, &[7; 512]).unwrap();
    let _keeper = whole.keeper(1);
    eventually("all is well", || agent.report(1).problems.is_empty());
    agent.make(tombstone(1, 2, true));
    // The forced end did not wait for the target, which learns of it from the broken connection.
    assert!(whole.target.wait_for(|target| target.sessions().is_empty()) && whole.path_of(1).is_none());
}

#[test]
fn after_a_reboot_it_is_attached_again() {
    let whole = Whole::new();
    let keeper = whole.keeper(1);
    let agent = whole.agent();
    whole.attach(&agent, 1, &[(1, RW), (2, RO)]);
    agent.crash();
    drop(keeper);
    whole.host.reboot();
    std::fs::remove_dir_all(&whole.config.run_dir).unwrap();
    let agent = whole.agent();
    let _keeper = whole.keeper(2);
    eventually("it is ready", || agent.report(1).phase() == v1::ConnectionPhase::Ready);
    assert_eq!(whole.path_of(1), whole.host.disks().first().cloned());
    assert_eq!(whole.path_of(2), whole.path_of(1));
}

#[test]
fn logins_that_fail_say_where_and_what() {
    let whole = Whole::new();
    let _keeper = whole.keeper(1);
    let agent = whole.agent();
    let portal = whole.target.address().to_string();
    let mut spec = whole.spec(&agent, &[(1, RW)]);
    spec.chap.as_mut().unwrap().initiator.as_mut().unwrap().secret = format!("{SECRET_WORD}-wrong");
    let report = agent.make_not_done(put_spec(1, 1, spec));
    assert_eq!(report.phase(), v1::ConnectionPhase::Failed);
    let said = problems(&report);
    assert!(said.contains(&portal) && !said.contains(SECRET_WORD), "{said}");
    assert!(whole.host.sessions().is_empty(), "nothing is left of it");

    whole.target.stop_listening();
    let put =
        v1::PutConnectionRequest { deadline_ms: 2000, ..put_spec(1, 2, whole.spec(&agent, &[(1, RW)])) };
    let report = agent.make_not_done(put);
    assert_eq!(report.phase(), v1::ConnectionPhase::Connecting);
    assert!(problems(&report).contains(&portal), "{report:?}");
    whole.target.listen().unwrap();
    eventually("it is ready", || agent.report(1).phase() == v1::ConnectionPhase::Ready);
}

#[test]
fn a_late_disk_is_waited_for_and_a_swapped_one_refused() {
    let whole = Whole::new();
    let _keeper = whole.keeper(1);
    let agent = whole.agent();
    let other = FakeDisk::new("99999999-8888-4777-8666-555555555555", SIZE);
    whole.target.set_disk(1, other.clone());
    whole.host.hold_probes(true);
    agent.make_not_done(brief(put_spec(1, 1, whole.spec(&agent, &[(1, RW)]))));
    eventually("it says what is there", || problems(&agent.report(1)).contains("has not appeared"));
    whole.host.hold_probes(false);
    eventually("it is refused", || agent.report(1).phase() == v1::ConnectionPhase::Failed);
    let said = problems(&agent.report(1));
    assert!(said.contains("wrong disk") && said.contains(&other.naa()), "{said}");
    assert_eq!(whole.path_of(1), None);
    whole.target.set_disk(1, whole.disk.clone());
    eventually("it is ready", || agent.report(1).phase() == v1::ConnectionPhase::Ready);
    assert_eq!(whole.path_of(1), whole.host.disks().first().cloned());
}

#[test]
fn a_revoke_at_the_target_takes_the_path_away() {
    let whole = Whole::new();
    let _keeper = whole.keeper(1);
    let agent = whole.agent();
    whole.attach(&agent, 1, &[(1, RW)]);
    whole.target.revoke(&agent.initiator());
    eventually("it is forbidden", || agent.report(1).phase() == v1::ConnectionPhase::Forbidden);
    eventually("nothing is left", || whole.path_of(1).is_none() && whole.host.disks().is_empty());
    agent.make(tombstone(1, 2, true));
    assert!(whole.host.sessions().is_empty());
}

#[test]
fn the_fake_kernel_has_what_the_agent_reads() {
    // The control for the paths in sysfs: the fake has them where a kernel has them, and where the
    // agent looks.
    let whole = Whole::new();
    let _keeper = whole.keeper(1);
    let agent = whole.agent();
    let session = whole.attach(&agent, 1, &[(1, RW)]).session.unwrap();
    let host = 0..64;
    let found = host.into_iter().any(|host| {
        let path = format!(
            "devices/platform/host{host}/session{0}/target{host}:0:0/{host}:0:0:1/block/sda",
            session.sid
        );
        whole.host.is_dir(&TreePath::new(&path)).unwrap()
    });
    assert!(found && Path::new(&whole.config.run_dir).join("sessiond").is_dir());
}
