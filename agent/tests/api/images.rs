//! Volumes from images, through the whole agent.

use std::sync::atomic::{AtomicU8, Ordering};

use mooring_api::v1;
use mooring_host::fake::FakeImages;

use crate::rig::*;
use crate::switch::Switch;

const LARGE: u64 = 64 * MIB;

/// A node with a folder of images, and that folder.
fn node() -> (Node, tempfile::TempDir) {
    let images = tempfile::tempdir().unwrap();
    (Node::with(&format!("images_dir = \"{}\"", images.path().display())), images)
}

fn from(name: &str, format: v1::ImageFormat, size: u64) -> v1::VolumeSpec {
    let image = v1::ImageSource { name: name.to_owned(), format: format.into() };
    let source = Some(v1::VolumeSource { of: Some(v1::volume_source::Of::Image(image)) });
    v1::VolumeSpec { source, ..volume_spec(size) }
}

fn content() -> Vec<u8> {
    static SEED: AtomicU8 = AtomicU8::new(1);
    vec![SEED.fetch_add(1, Ordering::Relaxed); 33 << 20]
}

fn holds(node: &Node, v: &str, content: &[u8]) -> bool {
    let there = node.fake.blocks().contents(device(v));
    there.starts_with(content) && there[content.len()..].iter().all(|byte| *byte == 0)
}

#[test]
fn both_formats_become_volumes_that_are_served() {
    let (node, images) = node();
    let agent = node.start();
    for (n, format) in [(1, v1::ImageFormat::Raw), (2, v1::ImageFormat::Qcow2)] {
        let (v, content) = (volume(n), content());
        let bytes = if n == 1 { content.clone() } else { FakeImages::qcow2(content.len() as u64, &content) };
        std::fs::write(images.path().join("image"), bytes).unwrap();
        agent.make(put_volume_spec(&v, 1, from("image", format, LARGE)));
        assert!(holds(&node, &v, &content));
        // The controller then sends the spec without the image, and the image may go.
        std::fs::remove_file(images.path().join("image")).unwrap();
        agent.make(put_volume_spec(&v, 2, volume_spec(LARGE)));
        agent.make(put_export(&v, 1, &[("host1", RW)]));
        node.login(&v, "host1").unwrap();
        assert!(holds(&node, &v, &content));
    }
    assert!(!node.lvs().contains("importing") && !node.lvs().contains("unzeroed"), "{}", node.lvs());
}

#[test]
fn a_refused_image_leaves_nothing_and_says_why() {
    let (node, images) = node();
    let mut backed = FakeImages::qcow2(MIB, b"");
    (backed[15], backed[19]) = (112, 11);
    std::fs::write(images.path().join("backed"), backed).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", images.path().join("link")).unwrap();
    let agent = node.start();
    for (n, name, why) in
        [(1, "backed", "backing file"), (2, "link", "not a regular file"), (3, "none", "is not there")]
    {
        let v = volume(n);
        let answer =
            agent.put_volume(put_volume_spec(&v, 1, from(name, v1::ImageFormat::Qcow2, LARGE))).unwrap();
        let report = answer.report.unwrap();
        assert_eq!((answer.done, report.phase()), (false, v1::Phase::Failed));
        assert!(report.problems[0].text.contains(why), "{report:?}");
        assert_eq!(report.problems[0].cure(), v1::Cure::Operator);
        // Nobody is let in meanwhile.
        agent.make_not_done(brief(put_export(&v, 1, &[("host1", RW)])));
        node.login(&v, "host1").unwrap_err();
    }
    assert!(!node.lvs().contains("mooring-"), "{}", node.lvs());
    let refused =
        agent.put_volume(put_volume_spec(&volume(4), 1, from("../etc/shadow", v1::ImageFormat::Raw, LARGE)));
    assert_refused(refused, tonic::Code::InvalidArgument, "fix_spec", &["source.image.name", "no path"]);
}

#[test]
fn it_is_told_as_a_job_and_a_deletion_ends_it() {
    let (node, images) = node();
    std::fs::write(images.path().join("image"), content()).unwrap();
    let (agent, v) = (node.start(), volume(1));
    agent.switch.pause_before(&format!("write /dev/vg0/mooring-{v}"));
    agent.begin_to_pause("it copies", put_volume_spec(&v, 1, from("image", v1::ImageFormat::Raw, LARGE)));
    agent.switch.let_one_go();
    let job = || {
        let (mut client, asked) = (agent.client(), v1::ListJobsRequest { volume_id: v.clone() });
        agent.wait(async move { client.list_jobs(asked).await }).unwrap().into_inner().jobs.pop()
    };
    eventually("a piece is copied", || job().is_some_and(|job| job.done_bytes == 16 * MIB));
    let seen = job().unwrap();
    assert_eq!((seen.kind(), seen.total_bytes, seen.limited), (v1::JobKind::Import, LARGE, false));
    let begun = agent.begin(delete_volume(&v, 2));
    agent.assert_not_done(begun);
    agent.switch.go_on();
    eventually("it is gone", || agent.get(&v).unwrap().volume.unwrap().phase() == v1::Phase::Gone);
    let writes = agent.switch.log().iter().filter(|call| call.starts_with("write ")).count();
    assert!(writes <= 2, "{writes} pieces were copied after all");
    assert!(!node.lvs().contains(&v), "{}", node.lvs());
}

#[test]
fn killed_in_the_middle_it_is_copied_again_and_never_shown_before() {
    let (node, images) = node();
    let content = content();
    std::fs::write(images.path().join("image"), FakeImages::qcow2(content.len() as u64, &content)).unwrap();
    let v = volume(1);
    let call = format!("write /dev/vg0/mooring-{v}");
    let agent = node.start();
    agent.switch.pause_before(&call);
    agent.begin_to_pause("it copies", put_volume_spec(&v, 1, from("image", v1::ImageFormat::Qcow2, LARGE)));
    agent.make_not_done(brief(put_export(&v, 1, &[("host1", RW)])));
    agent.switch.let_one_go();
    eventually("a second piece", || agent.switch.paused().is_some());
    node.login(&v, "host1").unwrap_err();
    agent.crash();
    assert!(!holds(&node, &v, &content), "the control: it was in the middle");
    let agent = node.start();
    eventually("it is there", || agent.get(&v).unwrap().volume.unwrap().phase() == v1::Phase::Ready);
    assert!(holds(&node, &v, &content));
    eventually("it is served", || node.login(&v, "host1").is_ok());
    let writes = agent.switch.log().iter().filter(|done| **done == call).count();
    assert_eq!(writes, 3, "from its beginning");
}

#[test]
fn killed_behind_a_mark_it_goes_on_there_and_says_what_that_saved() {
    const GIB: u64 = 1 << 30;
    let (node, images) = node();
    let v = volume(1);
    node.fake.add_vg("vg0", 8 * GIB);
    // The volume's end is data, which shows whether everything before it was copied once.
    let content = content();
    let file = std::fs::File::create(images.path().join("image")).unwrap();
    file.set_len(GIB + 48 * MIB).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &content[..16 << 20], GIB + 32 * MIB).unwrap();
    drop(file);
    let (call, last) = (format!("zero /dev/vg0/mooring-{v}"), format!("write /dev/vg0/mooring-{v}"));
    let agent = node.start();
    agent.switch.pause_before(&last);
    let put = put_volume_spec(&v, 1, from("image", v1::ImageFormat::Raw, GIB + 48 * MIB));
    agent.begin_to_pause("it comes to its data", put);
    assert!(node.lvs().contains("mooring-copied-raw:"), "{}", node.lvs());
    agent.crash();
    let switch = Switch::new(&node.fake, None);
    switch.pause_before(&last);
    let agent = node.start_on(switch);
    eventually("it goes on", || agent.switch.paused().is_some());
    let (mut client, asked) = (agent.client(), v1::ListJobsRequest { volume_id: v.clone() });
    let job = agent.wait(async move { client.list_jobs(asked).await }).unwrap().into_inner().jobs.remove(0);
    assert_eq!((job.kind(), job.resumed_bytes, job.total_bytes), (v1::JobKind::Import, GIB, GIB + 48 * MIB));
    agent.switch.go_on();
    eventually("it is there", || agent.get(&v).unwrap().volume.unwrap().phase() == v1::Phase::Ready);
    let zeroed = agent.switch.log().iter().filter(|done| **done == call).count();
    assert_eq!(zeroed, 2, "what is behind the mark, and no more");
    let zeros = node.fake.blocks().zeroed_ranges(device(&v));
    assert_eq!(zeros, [(0, GIB + 32 * MIB)]);
    assert!(!node.lvs().contains("mooring-copied") && !node.lvs().contains("importing"), "{}", node.lvs());
}

#[test]
fn capabilities_say_what_can_be_read_and_what_is_missing() {
    let none = Node::new();
    assert_eq!(none.start().capabilities().images, None);
    let (node, images) = node();
    let agent = node.start();
    let seen = agent.capabilities();
    let found = seen.images.clone().unwrap();
    assert_eq!(found.folder, images.path().display().to_string());
    assert_eq!(found.formats().collect::<Vec<_>>(), [v1::ImageFormat::Raw, v1::ImageFormat::Qcow2]);
    let health = seen.health.unwrap().level;
    node.fake.images().set_missing(true);
    let seen = agent.capabilities();
    assert_eq!(seen.images.unwrap().formats().collect::<Vec<_>>(), [v1::ImageFormat::Raw]);
    let is = |text: &str| seen.problems.iter().any(|problem| problem.text.contains(text));
    assert!(is("apt-get install qemu-utils"), "{:?}", seen.problems);
    assert_eq!(seen.health.unwrap().level, health, "volumes are served all the same");
    drop(images);
    let seen = agent.capabilities();
    assert_eq!(seen.images.unwrap().formats().count(), 0);
    assert!(seen.problems.iter().any(|problem| problem.text.contains("is no folder")), "{:?}", seen.problems);
}
