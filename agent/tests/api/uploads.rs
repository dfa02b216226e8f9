//! Image exports (volumes that are copied to files) through the whole agent: killed at every step,
//! only while nobody has a grant, reported as a job, and ended by a spec without it.

use mooring_api::v1;
use mooring_host::BlockDevices;
use mooring_host::fake::FakeImages;
use tonic::Code;

use crate::rig::*;
use crate::switch::{Kill, Switch};

const LARGE: u64 = 64 * MIB;
const FIRST: &str = "0a0a0a0a-0000-4000-8000-000000000001";
const SECOND: &str = "0a0a0a0a-0000-4000-8000-000000000002";

fn node() -> (Node, tempfile::TempDir) {
    let images = tempfile::tempdir().unwrap();
    (Node::with(&format!("images_dir = \"{}\"", images.path().display())), images)
}

fn to(v: &str, counter: u64, name: &str, format: v1::ImageFormat, id: &str) -> v1::PutVolumeRequest {
    let image = v1::ImageSource { name: name.to_owned(), format: format.into() };
    let upload = Some(v1::Upload { image: Some(image), upload_id: id.to_owned() });
    put_volume_spec(v, counter, v1::VolumeSpec { upload, ..volume_spec(LARGE) })
}

/// A volume with data, and with an export without grants.
fn prepared(node: &Node, v: &str) {
    let agent = node.start();
    agent.make(put_volume_spec(v, 1, volume_spec(LARGE)));
    for (offset, byte) in [(0, 3), (48 * MIB, 4)] {
        node.fake.blocks().write(&device(v), offset, &vec![byte; 16 << 20]).unwrap();
    }
    agent.make(put_export(v, 1, &[("host1", RW)]));
    agent.make(put_export(v, 2, &[]));
    agent.crash();
}

fn content() -> Vec<u8> {
    [vec![3; 16 << 20], vec![0; 32 << 20], vec![4; 16 << 20]].concat()
}

fn names(folder: &tempfile::TempDir) -> Vec<String> {
    let all = std::fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn is_whole(folder: &tempfile::TempDir, name: &str, format: v1::ImageFormat) -> bool {
    let bytes = std::fs::read(folder.path().join(name)).unwrap();
    match format {
        v1::ImageFormat::Qcow2 => bytes == FakeImages::qcow2(LARGE, &content()),
        _ => bytes == content(),
    }
}

fn report(agent: &Agent, v: &str) -> v1::VolumeReport {
    agent.get(v).unwrap().volume.unwrap()
}

#[test]
fn both_formats_are_whole_and_the_volume_is_served_afterwards() {
    let ((node, folder), v) = (node(), volume(1));
    prepared(&node, &v);
    let agent = node.start();
    agent.make(to(&v, 2, "a.raw", v1::ImageFormat::Raw, FIRST));
    assert!(is_whole(&folder, "a.raw", v1::ImageFormat::Raw));
    assert_eq!(
        (report(&agent, &v).uploaded_id.as_str(), report(&agent, &v).phase()),
        (FIRST, v1::Phase::Ready)
    );
    // A second image, without a spec between the two.
    agent.make(to(&v, 3, "a.qcow2", v1::ImageFormat::Qcow2, SECOND));
    assert!(is_whole(&folder, "a.qcow2", v1::ImageFormat::Qcow2));
    agent.make(put_volume_spec(&v, 4, volume_spec(LARGE)));
    assert_eq!(report(&agent, &v).uploaded_id, "");
    assert_eq!(names(&folder), ["a.qcow2", "a.raw"], "the second names have gone");
    agent.make(put_export(&v, 3, &[("host1", RW)]));
    node.login(&v, "host1").unwrap();
}

#[test]
fn an_agent_killed_at_every_change_leaves_a_whole_image_or_none() {
    let format = v1::ImageFormat::Raw;
    let mut kills = 0;
    'steps: for at in 1.. {
        for kill in [Kill::Before(at), Kill::After(at)] {
            let ((node, folder), v) = (node(), volume(1));
            prepared(&node, &v);
            let agent = node.start_with(Some(kill));
            let mut alive = agent.is_up();
            if alive {
                let (mut client, mut died) = (agent.client(), agent.switch.died());
                let put = to(&v, 2, "new", format, FIRST);
                alive = agent.wait(async move {
                    tokio::select! {
                        biased;
                        _ = died.wait_for(|died| *died) => false,
                        answer = client.put_volume(put) => answer.unwrap().into_inner().done,
                    }
                });
            }
            if alive {
                assert!(is_whole(&folder, "new", format));
                break 'steps;
            }
            agent.crash();
            let whole = names(&folder).contains(&"new".to_owned());
            assert!(!whole || is_whole(&folder, "new", format), "{kill:?}");
            // The controller asks again. An agent that did not store the request gets it now.
            let agent = node.start();
            agent.make(to(&v, 2, "new", format, FIRST));
            assert!(is_whole(&folder, "new", format), "{kill:?}");
            agent.make(put_volume_spec(&v, 3, volume_spec(LARGE)));
            eventually("only the file is there", || names(&folder) == ["new"]);
            assert_eq!(report(&agent, &v).phase(), v1::Phase::Ready);
        }
        kills += 1;
    }
    // Making the part, four pieces, finishing and naming it; and the start's own changes.
    assert!(kills >= 7, "{kills}");
}

/// Leaves the files of an agent that copied half of the volume while it held other data.
fn leave_half(node: &Node, folder: &tempfile::TempDir, v: &str) {
    let vg: mooring_model::VgName = "vg0".parse().unwrap();
    let lv = lv_uuid(node, &format!("{vg}/mooring-{v}"));
    let file = |ends: &str| folder.path().join(format!(".mooring-{v}-{FIRST}.{ends}"));
    std::fs::write(file("part"), [vec![0xee; 32 << 20], vec![0; 32 << 20]].concat()).unwrap();
    let said = format!("mooring-part-1 raw {LARGE} {lv} {}", 32 * MIB);
    let mut mark = format!("{said} {:08x}", crc32fast::hash(said.as_bytes())).into_bytes();
    mark.resize(512, 0);
    std::fs::write(file("mark"), mark).unwrap();
}

fn lv_uuid(node: &Node, lv: &str) -> String {
    use mooring_host::Commands;
    let args = ["lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", "lv_uuid", lv];
    let args = args.map(str::to_owned).to_vec();
    let command =
        mooring_host::Command { program: "/sbin/lvm", args, timeout: std::time::Duration::from_secs(1) };
    let out: serde_json::Value =
        serde_json::from_slice(&node.fake.lvm().run(&command).unwrap().stdout).unwrap();
    out["report"][0]["lv"][0]["lv_uuid"].as_str().unwrap().to_owned()
}

#[test]
fn a_part_is_resumed_if_its_copy_was_in_the_spec_all_the_time() {
    let raw = v1::ImageFormat::Raw;
    // The spec has the copy, and the agent is killed before it made anything: files that appear
    // then belong to this spec.
    let ((node, folder), v) = (node(), volume(1));
    prepared(&node, &v);
    let agent = node.start();
    agent.switch.pause_before("make part");
    agent.begin_to_pause("it begins", to(&v, 2, "new", raw, FIRST));
    agent.crash();
    leave_half(&node, &folder, &v);
    let switch = Switch::new(&node.fake, None);
    switch.pause_before("write part");
    let agent = node.start_on(switch);
    eventually("it goes on", || agent.switch.paused().is_some());
    let (mut client, asked) = (agent.client(), v1::ListJobsRequest { volume_id: v.clone() });
    let job = agent.wait(async move { client.list_jobs(asked).await }).unwrap().into_inner().jobs.remove(0);
    assert_eq!((job.kind(), job.resumed_bytes, job.done_bytes), (v1::JobKind::Export, 32 * MIB, 32 * MIB));
    let refused = agent.put_export(put_export(&v, 3, &[("host1", RW)]));
    assert_refused(refused, Code::FailedPrecondition, "retry", &["is being copied to a file"]);
    agent.switch.go_on();
    eventually("it is whole", || report(&agent, &v).uploaded_id == FIRST);
    let writes = agent.switch.log().iter().filter(|call| *call == "write part").count();
    assert_eq!(writes, 2, "the second half");
    let bytes = std::fs::read(folder.path().join("new")).unwrap();
    assert!(bytes[..32 << 20].iter().all(|byte| *byte == 0xee) && bytes[32 << 20..] == content()[32 << 20..]);
}

#[test]
fn what_stands_beside_a_part_of_another_spec_is_not_believed() {
    let raw = v1::ImageFormat::Raw;
    // The same files, and a new spec with this very id: somebody may have written meanwhile.
    for behind in [false, true] {
        let ((node, folder), v) = (node(), volume(1));
        prepared(&node, &v);
        leave_half(&node, &folder, &v);
        let agent = node.start();
        if behind {
            // The part appears after the agent's look at its start.
            eventually("it has looked", || names(&folder).is_empty());
            leave_half(&node, &folder, &v);
        }
        agent.make(to(&v, 2, "new", raw, FIRST));
        assert!(is_whole(&folder, "new", raw));
        agent.make(put_volume_spec(&v, 3, volume_spec(LARGE)));
        assert_eq!(names(&folder), ["new"]);
    }
}

/// Crashes an agent before it writes the first piece of a copy.
fn crashed_at_it(node: &Node, v: &str) {
    let agent = node.start();
    agent.switch.pause_before("write part");
    agent.begin_to_pause("it copies", to(v, 2, "new", v1::ImageFormat::Raw, FIRST));
    agent.crash();
}

#[test]
fn a_spec_that_is_taken_back_at_once_after_a_crash_leaves_nothing() {
    let ((node, folder), v) = (node(), volume(1));
    prepared(&node, &v);
    crashed_at_it(&node, &v);
    assert_eq!(names(&folder).len(), 1, "the control");
    let switch = Switch::new(&node.fake, None);
    switch.pause_before("remove part");
    let agent = node.start_on(switch);
    agent.begin_to_pause("its part is removed", put_volume_spec(&v, 3, volume_spec(LARGE)));
    agent.switch.go_on();
    eventually("nothing is left", || names(&folder).is_empty());
}

#[test]
fn what_an_agent_left_that_nobody_wants_goes_at_the_next_start() {
    let ((node, folder), v) = (node(), volume(1));
    prepared(&node, &v);
    crashed_at_it(&node, &v);
    assert_eq!(names(&folder).len(), 1, "the control: something is left");
    // No spec without the copy can arrive while the agent is down. A foreign file and a part of an
    // unknown copy stand for that case.
    std::fs::write(folder.path().join(".mooring-notes"), b"theirs").unwrap();
    let other = format!(".mooring-{}-{SECOND}.part", volume(9));
    std::fs::write(folder.path().join(&other), b"half").unwrap();
    let agent = node.start();
    eventually("the file of the spec is whole", || report(&agent, &v).uploaded_id == FIRST);
    eventually("what nobody wants is gone", || !names(&folder).contains(&other));
    assert!(is_whole(&folder, "new", v1::ImageFormat::Raw));
    assert!(names(&folder).contains(&".mooring-notes".to_owned()), "what is no part is not ours");
}

#[test]
fn a_taken_name_a_full_disk_and_no_program_are_told_and_leave_nothing() {
    let ((node, folder), v) = (node(), volume(1));
    prepared(&node, &v);
    let agent = node.start();
    std::fs::write(folder.path().join("taken"), b"theirs").unwrap();
    node.fake.images().set_room(Some(20 * MIB));
    let refused = |counter, name: &str, id: &str, format, why: &str| {
        let answer = agent.put_volume(to(&v, counter, name, format, id)).unwrap();
        let report = answer.report.unwrap();
        assert_eq!((answer.done, report.phase(), report.uploaded_id.as_str()), (false, v1::Phase::Ready, ""));
        let problem = &report.problems[0];
        assert!(problem.text.contains(why), "{problem:?}");
        assert_eq!(problem.cure(), v1::Cure::Operator);
        assert_eq!(names(&folder), ["taken"]);
    };
    refused(2, "taken", FIRST, v1::ImageFormat::Raw, "taken exists already");
    refused(3, "new", SECOND, v1::ImageFormat::Raw, "is full");
    // The copy is not tried again by itself.
    node.fake.images().set_room(None);
    refused(4, "new", SECOND, v1::ImageFormat::Raw, "is full");
    node.fake.images().set_missing(true);
    refused(5, "new", FIRST, v1::ImageFormat::Qcow2, "install the package qemu-utils");
    agent.make(put_volume_spec(&v, 6, volume_spec(LARGE)));
    assert_eq!(report(&agent, &v).problems, []);
    agent.make(put_export(&v, 3, &[("host1", RW)]));
    node.login(&v, "host1").unwrap();
    assert_eq!(std::fs::read(folder.path().join("taken")).unwrap(), b"theirs");
    // Without a folder of images.
    let (none, w) = (Node::new(), volume(2));
    let agent = none.start();
    agent.make(put_volume_spec(&w, 1, volume_spec(LARGE)));
    let answer = agent.put_volume(to(&w, 2, "new", v1::ImageFormat::Raw, FIRST)).unwrap();
    assert!(answer.report.unwrap().problems[0].text.contains("images_dir"));
}

#[test]
fn a_copied_volume_takes_no_grants_and_its_job_ends_with_its_spec() {
    let ((node, folder), v) = (node(), volume(1));
    prepared(&node, &v);
    let agent = node.start();
    // The first pass proves what was revoked before the start.
    eventually("nothing may land", || agent.get(&v).unwrap().receipts.iter().all(|one| one.proven));
    agent.make(put_export(&v, 3, &[("host1", RW)]));
    let refused = agent.put_volume(to(&v, 2, "new", v1::ImageFormat::Raw, FIRST));
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &["revoke them first"]);
    agent.make(put_export(&v, 4, &[]));
    agent.switch.pause_before("write part");
    agent.begin_to_pause("it copies", to(&v, 2, "new", v1::ImageFormat::Raw, FIRST));
    let refused = agent.put_export(put_export(&v, 5, &[("host1", RW)]));
    assert_refused(refused, Code::FailedPrecondition, "retry", &["is being copied to a file"]);
    agent.switch.let_one_go();
    let job = || {
        let (mut client, asked) = (agent.client(), v1::ListJobsRequest { volume_id: v.clone() });
        agent.wait(async move { client.list_jobs(asked).await }).unwrap().into_inner().jobs.pop()
    };
    eventually("a piece is copied", || job().is_some_and(|job| job.done_bytes == 16 * MIB));
    let seen = job().unwrap();
    assert_eq!((seen.kind(), seen.total_bytes), (v1::JobKind::Export, LARGE));
    assert_eq!(report(&agent, &v).phase(), v1::Phase::Ready, "it is there all the while");
    // A newer spec with this copy does not end it: the copy goes on where it was.
    let named =
        v1::PutVolumeRequest { opaque: b"named".to_vec(), ..to(&v, 3, "new", v1::ImageFormat::Raw, FIRST) };
    let spec = match &named.wish {
        Some(v1::put_volume_request::Wish::Spec(spec)) => spec.clone(),
        _ => unreachable!(),
    };
    let mut stamp = stamp(1, 3, &spec);
    stamp.digest = mooring_api::digest(&spec, b"named").as_bytes().to_vec();
    let begun = agent.begin(v1::PutVolumeRequest { stamp: Some(stamp), ..named });
    agent.assert_not_done(begun);
    agent.switch.let_one_go();
    eventually("the second piece", || job().is_some_and(|job| job.done_bytes == 32 * MIB));
    // A spec without the copy ends it, and nothing of it is left.
    let begun = agent.begin(put_volume_spec(&v, 4, volume_spec(LARGE)));
    agent.assert_not_done(begun);
    agent.switch.go_on();
    agent.make(put_volume_spec(&v, 4, volume_spec(LARGE)));
    eventually("nothing is left", || names(&folder).is_empty());
    let writes = agent.switch.log().iter().filter(|call| *call == "write part").count();
    assert_eq!(writes, 3, "no piece twice, and none after the end");
    agent.make(put_export(&v, 5, &[("host1", RW)]));
    node.login(&v, "host1").unwrap();
}

#[test]
fn a_deletion_ends_it() {
    let ((node, folder), v) = (node(), volume(1));
    prepared(&node, &v);
    let agent = node.start();
    agent.switch.pause_before("write part");
    agent.begin_to_pause("it copies", to(&v, 2, "new", v1::ImageFormat::Qcow2, FIRST));
    let begun = agent.begin(delete_volume(&v, 3));
    agent.assert_not_done(begun);
    agent.switch.go_on();
    eventually("it is gone", || report(&agent, &v).phase() == v1::Phase::Gone);
    assert_eq!(names(&folder), Vec::<String>::new());
}
