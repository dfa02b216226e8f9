//! Looks at the users of connections' disks: by the agent itself, and on request.

use mooring_api::v1::{self, DiskAccess as Access, DiskUserKind as Kind};
use mooring_connectors::{BUFFERED_IO, UNSHARED_FILESYSTEM};
use mooring_host::Holder;
use tonic::Code;

use super::rig::{Agent, RW, Site, eventually, put_spec, volume};

fn attach(agent: &Agent, n: u8, cache_off: bool) {
    let mut spec = agent.spec(n, &[(n, RW)]);
    spec.attachments[0].cache_off = cache_off;
    agent.make(put_spec(n, 1, spec));
}

fn dd() -> Holder {
    Holder::Process { pid: 7, name: "dd".to_owned() }
}

fn objects(agent: &Agent, n: u8) -> Vec<String> {
    agent.report(n).problems.into_iter().map(|problem| problem.object).collect()
}

fn metric(agent: &Agent, problem: &str) -> String {
    let line = format!("mooring_agent_connections_misused{{problem=\"{problem}\"}} ");
    let text = agent.metrics();
    text.lines().find_map(|found| found.strip_prefix(&line)).unwrap_or_default().to_owned()
}

#[test]
fn the_users_of_a_disk_whose_cache_is_off_become_problems_and_go_again() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    for (n, cache_off) in [(1, true), (2, false)] {
        attach(&agent, n, cache_off);
        site.world.hold_open(volume(n), &[dd(), Holder::Mount("/data".into())]);
    }
    // A change of the attachment triggers a look, and so does a question.
    agent.check(1).unwrap();
    eventually("both problems", || objects(&agent, 1) == [BUFFERED_IO, UNSHARED_FILESYSTEM]);
    let report = agent.report(1);
    assert_eq!(report.phase(), v1::ConnectionPhase::Ready);
    assert!(report.problems[0].text.contains("dd (pid 7) has "), "{report:?}");
    assert!(report.problems[1].text.contains("is mounted on /data"), "{report:?}");
    assert_eq!(objects(&agent, 2), Vec::<String>::new(), "its cache is on");
    assert_eq!((metric(&agent, BUFFERED_IO), metric(&agent, UNSHARED_FILESYSTEM)), ("1".into(), "1".into()));
    // A pass reports them, too; here another attachment causes the pass.
    let mut spec = agent.spec(1, &[(1, RW), (3, RW)]);
    spec.attachments.iter_mut().for_each(|path| path.cache_off = true);
    let report = agent.make(put_spec(1, 2, spec.clone()));
    assert_eq!(report.problems.len(), 2, "{report:?}");
    // With the cache on, these users are no problem.
    spec.attachments.iter_mut().for_each(|path| path.cache_off = false);
    let report = agent.make(put_spec(1, 3, spec.clone()));
    assert_eq!(report.problems, []);
    spec.attachments[0].cache_off = true;
    agent.make(put_spec(1, 4, spec));
    site.world.hold_open(volume(1), &[]);
    agent.check(1).unwrap();
    eventually("no problem", || objects(&agent, 1).is_empty());
    assert_eq!(metric(&agent, BUFFERED_IO), "0");
    site.assert_lawful();
}

#[test]
fn a_check_answers_with_all_users() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    let unknown = agent.check(1).unwrap_err();
    assert_eq!(unknown.code(), Code::FailedPrecondition);
    assert!(unknown.message().contains("no connection"), "{unknown:?}");
    attach(&agent, 1, true);
    assert_eq!(agent.check(1).unwrap().users, []);
    site.world.hold_open(volume(1), &[dd(), Holder::Swap, Holder::Device("dm-3".into())]);
    let check = agent.check(1).unwrap();
    let users: Vec<_> =
        check.users.iter().map(|user| (user.kind(), user.name.as_str(), user.pid, user.access())).collect();
    let wanted = [
        (Kind::Process, "dd", 7, Access::Buffered),
        (Kind::Swap, "", 0, Access::Unspecified),
        (Kind::Device, "dm-3", 0, Access::Direct),
    ];
    assert_eq!(users, wanted);
    assert_eq!((check.cache_off, check.disk.is_some(), check.problems.len()), (Some(true), true, 2));
    site.assert_lawful();
}
