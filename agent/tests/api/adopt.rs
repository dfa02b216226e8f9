//! Adoption of exports of targetcli and of Cinder's LVM driver under load: no session ends, and
//! nothing else changes. Adopted exports then behave like any other, and keep their names.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use mooring_agent::adopt::{Candidate, Error, Kept, Only, Verdict, What, apply, run, survey};
use mooring_agent::machine::Machine;
use mooring_agent::store::Store;
use mooring_api::v1;
use mooring_host::fake::{Access, PrOut, Reach, SessionId};
use mooring_host::{SystemClock, Tree, TreePath};
use tonic::Code;

use crate::reservations::{HELD, restart, until};
use crate::rig::*;

const CINDER: &str = include_str!("../../../targets/tests/captured/cinder.txt");
const TARGETCLI: &str = include_str!("../../../targets/tests/captured/targetcli.txt");
const CINDER_ID: &str = "7f3c1e52-0d5b-4f0a-9a55-5d3c2b1a0f9e";
const CINDER_SERIAL: &str = "5a0c1d2e-9b8a-4765-8432-10fedcba9876";
const CINDER_TARGET: &str = "iqn.2010-10.org.openstack:volume-7f3c1e52-0d5b-4f0a-9a55-5d3c2b1a0f9e";
const TARGETCLI_TARGET: &str = "iqn.2003-01.org.linux-iscsi.storage1.x8664:sn.0123456789ab";
const CHAP: (&str, &str) = ("tJ8s5QpTq3vXn2LdRb7k", "Xylophon9dQ2mVwE");

/// A target of somebody else that cannot be adopted, and its LV.
const DEMO: &str = "
mkdir core/iblock_2
mkdir core/iblock_2/demo
write core/iblock_2/demo/control = udev_path=/dev/vg0/demo
write core/iblock_2/demo/enable = 1
write core/iblock_2/demo/wwn/vpd_unit_serial = 99990000
mkdir iscsi/iqn.2003-01.org.linux-iscsi.demo:d
mkdir iscsi/iqn.2003-01.org.linux-iscsi.demo:d/tpgt_1
write iscsi/iqn.2003-01.org.linux-iscsi.demo:d/tpgt_1/attrib/generate_node_acls = 1
mkdir iscsi/iqn.2003-01.org.linux-iscsi.demo:d/tpgt_1/lun/lun_0
link iscsi/iqn.2003-01.org.linux-iscsi.demo:d/tpgt_1/lun/lun_0/x -> core/iblock_2/demo
mkdir iscsi/iqn.2003-01.org.linux-iscsi.demo:d/tpgt_1/np/10.0.0.1:3260
write iscsi/iqn.2003-01.org.linux-iscsi.demo:d/tpgt_1/enable = 1
";

fn run_script(tree: &dyn Tree, script: &str) {
    for line in script.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (verb, rest) = line.split_once(' ').unwrap();
        match verb {
            "mkdir" => tree.mkdir(&TreePath::new(rest)),
            "link" => {
                let (link, target) = rest.split_once(" -> ").unwrap();
                tree.symlink(&TreePath::new(target), &TreePath::new(link))
            }
            _ => {
                let (at, value) = rest.split_once(" = ").unwrap();
                tree.write(&TreePath::new(at), value.as_bytes())
            }
        }
        .unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

/// A storage node that others have set up; every initiator with access is logged in.
struct Others {
    node: Node,
    /// Session, LUN, and `true` if the session may write.
    sessions: Vec<(SessionId, u64, bool)>,
}

impl Others {
    fn new() -> Self {
        let node = Node::with_group("[[groups]]\nname = \"cinder-volumes\"\n");
        node.fake.add_vg("cinder-volumes", 1024 * MIB);
        let lvm = node.fake.lvm();
        assert!(lvm.add_volume("cinder-volumes", &format!("volume-{CINDER_ID}"), SIZE, &["site=a"]));
        for lv in ["data0", "demo", "somebody"] {
            assert!(lvm.add_volume("vg0", lv, SIZE, &[]));
        }
        let tree = node.fake.lio();
        tree.mkdir(&TreePath::new("iscsi")).unwrap();
        for script in [CINDER, TARGETCLI, DEMO] {
            run_script(&tree, script);
        }
        let login = |target, host: &str, chap| node.fake.login(PORTAL, target, &iqn(host), chap).unwrap();
        let sessions = vec![
            (login(CINDER_TARGET, "host1", Some(CHAP)), 0, true),
            (login(CINDER_TARGET, "host2", Some(CHAP)), 0, true),
            (login(TARGETCLI_TARGET, "host3", None), 0, true),
            (login(TARGETCLI_TARGET, "host4", None), 3, false),
        ];
        let others = Self { node, sessions };
        others.all_go_on();
        others
    }

    fn machine(&self) -> Machine {
        let fake = self.node.fake.clone();
        Machine {
            target: Arc::new(fake.lio()),
            folders: Some(Arc::new(fake.folders())),
            callers: Some(Arc::new(fake.callers())),
            sys: Arc::new(self.node.sys.clone()),
            commands: Arc::new(fake.lvm()),
            blocks: Arc::new(fake.blocks()),
            images: Arc::new(fake.images()),
            pr: Arc::new(fake.clone()),
            clock: Arc::new(SystemClock),
            addresses_changed: Arc::default(),
            bus: None,
            addresses: Arc::new(move || fake.local_addresses()),
            root: self.node.dir.path().join("root"),
        }
    }

    /// Asserts that every session lives, and can still do what it could do before.
    #[track_caller]
    fn all_go_on(&self) {
        for (session, lun, writes) in &self.sessions {
            assert!(self.node.fake.is_live(*session));
            self.node.fake.read(*session, *lun).unwrap();
            assert_eq!(self.node.fake.write(*session, *lun).is_ok(), *writes);
        }
    }

    fn store(&self) -> Store {
        Store::open(&self.node.config.state_dir).unwrap()
    }

    fn survey(&self, store: &Store) -> Vec<Candidate> {
        let kept = Kept::read(store, &self.node.config).unwrap();
        survey(&self.machine(), &self.node.config, Some(&kept)).unwrap()
    }

    /// Adopts all candidates, and stops before the step of this number.
    fn adopt_until(&self, step: usize) -> Result<(), Error> {
        let store = self.store();
        let mut steps = 0;
        let mut watch = |_: &str| {
            steps += 1;
            if steps > step { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        apply(&self.machine(), &store, &self.survey(&store), &[], &mut watch).map(drop)
    }

    fn adopt(&self) {
        self.adopt_until(usize::MAX).unwrap();
    }

    /// Returns the id under which a target was adopted.
    fn id_of(&self, target: &str) -> String {
        let store = self.store();
        let all = self.survey(&store);
        match &all.iter().find(|candidate| candidate.target == target).unwrap().verdict {
            Verdict::Adopted(id) => id.to_string(),
            other => panic!("{target}: {other:?}"),
        }
    }

    fn said(&self, what: What, only: &[&str], json: bool) -> anyhow_result::Said {
        let only: Vec<_> = only.iter().map(|only| Only((*only).to_owned())).collect();
        let mut out = Vec::new();
        let ended = run(&self.machine(), &self.node.config, what, &only, json, &mut out);
        let text = String::from_utf8(out).unwrap();
        match ended {
            Ok(()) => Ok(text),
            Err(error) => Err(format!("{error:#}")),
        }
    }

    /// Returns the tree without the session numbers, which change.
    fn tree(&self) -> String {
        let moving = |line: &&str| {
            line.contains("/statistics") || line.contains("fabric_statistics") || line.contains("/info")
        };
        self.node.tree().lines().filter(|line| !moving(line)).collect::<Vec<_>>().join("\n")
    }

    /// Returns the lines of the tree that belong to neither of the two adoptable exports.
    fn foreign(&self) -> String {
        let mine =
            |line: &&str| [CINDER_TARGET, TARGETCLI_TARGET, "data0"].iter().any(|name| line.contains(name));
        self.tree().lines().filter(|line| !mine(line)).collect::<Vec<_>>().join("\n")
    }

    /// Returns the access that whoever set up the exports intended. It differs for host4: it is
    /// meant to read only, and the kernel lets it write (lio.md, t).
    fn meant(&self) -> Vec<Reach> {
        let meant = |mut reach: Reach| {
            if reach.initiator == iqn("host4") {
                reach.mode = Access::ReadOnly;
            }
            reach
        };
        self.node.fake.reachable().into_iter().map(meant).collect()
    }

    fn tags(&self, lv: &str) -> BTreeSet<String> {
        let lvs: serde_json::Value = serde_json::from_str(&self.node.lvs()).unwrap();
        let rows = lvs["report"][0]["lv"].as_array().unwrap();
        let row = rows.iter().find(|row| row["lv_name"] == lv).unwrap();
        let tags = row["lv_tags"].as_str().unwrap();
        tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
    }
}

mod anyhow_result {
    /// Output of the program, or the error that ended it.
    pub(super) type Said = Result<String, String>;
}

/// Returns the stored spec of an export, as a sender that knows no secrets would send it.
fn kept_spec(agent: &Agent, id: &str) -> v1::ExportSpec {
    agent.get(id).unwrap().export_spec.unwrap()
}

/// Asserts that two texts are equal, and shows the first lines that differ.
#[track_caller]
fn assert_same(now: &str, before: &str) {
    let differ: Vec<_> =
        now.lines().zip(before.lines()).filter(|(now, before)| now != before).take(5).collect();
    assert!(now == before, "{differ:#?}");
}

#[test]
fn taking_over_changes_two_tags_and_nothing_else() {
    let others = Others::new();
    let (tree, lvs) = (others.tree(), others.node.lvs());
    let plan = others.said(What::Plan, &[], false).unwrap();
    assert!(plan.contains("2 of 3 can be adopted. Nothing was changed."), "{plan}");
    assert!(
        plan.contains("demo:d: cannot be adopted\n  because    it admits initiators without an ACL"),
        "{plan}"
    );
    assert_same(&others.tree(), &tree);
    assert_eq!(others.node.lvs(), lvs);
    assert!(!others.node.config.state_dir.exists(), "a plan makes nothing");
    let done = others.said(What::Apply, &[], false).unwrap();
    assert!(done.contains(&format!("adopted {CINDER_TARGET} as volume {CINDER_ID}")), "{done}");
    assert_same(&others.tree(), &tree);
    let tags = others.tags(&format!("volume-{CINDER_ID}"));
    let expected = ["mooring", &format!("mooring-volume-{CINDER_ID}"), "site=a"].map(str::to_owned);
    assert_eq!(tags, expected.into());
    for lv in ["demo", "somebody"] {
        assert_eq!(others.tags(lv), BTreeSet::new());
    }
    others.all_go_on();
    // A second adoption finds nothing to do.
    let again = others.said(What::Apply, &[], false).unwrap();
    assert!(again.contains("\n0 adopted."), "{again}");
}

/// Pins the words of a plan, as docs/operations.md shows them.
#[test]
fn a_plan_says_what_is_kept_and_what_is_changed() {
    let others = Others::new();
    let plan = others.said(What::Plan, &[], false).unwrap();
    assert_eq!(plan, include_str!("adopt-plan.txt"), "{plan}");
    let json = others.said(What::Plan, &[TARGETCLI_TARGET], true).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let one = &json["candidates"][0];
    assert_eq!((one["state"].as_str(), one["lv"].as_str()), (Some("can be adopted"), Some("vg0/data0")));
    assert_eq!(one["recorded"]["serial"], "1c2b3a49-5867-4768-9788-a9b0c1d2e3f4");
    assert_eq!((&one["grants"][1]["mode"], &one["grants"][1]["sessions"]), (&"ro".into(), &1.into()));
}

#[test]
fn the_agent_serves_them_from_its_start_on_and_no_session_notices() {
    let others = Others::new();
    others.adopt();
    let (foreign, reach) = (others.foreign(), others.meant());
    let data = others.id_of(TARGETCLI_TARGET);
    let agent = others.node.start();
    for id in [CINDER_ID, &data] {
        // The agent looks at the export and at its volume one after the other.
        eventually("in force and ready", || {
            let status = agent.get(id).unwrap();
            let ready = status.volume.is_some_and(|volume| volume.phase() == v1::Phase::Ready);
            ready && status.export.is_some_and(|export| export.in_force)
        });
        let status = agent.get(id).unwrap();
        let volume = status.volume.unwrap();
        assert_eq!((volume.phase(), volume.problems.len()), (v1::Phase::Ready, 0), "{volume:?}");
        assert_eq!(status.export.unwrap().problems, []);
    }
    assert_eq!(agent.plan(""), v1::PlanResponse::default());
    others.all_go_on();
    assert_same(&others.foreign(), &foreign);
    assert_eq!(others.node.fake.reachable(), reach);
    // The agent made no call that could cut off an initiator.
    for call in agent.switch.log() {
        let harmless = ["write ", "mkdir iscsi", "lvm vgs", "lvm lvs", "flush "]
            .iter()
            .any(|verb| call.starts_with(verb));
        let looks =
            ["read", "list", "stat", "is_dir", "size", "discards"].iter().any(|verb| call.starts_with(verb));
        assert!(harmless || looks, "{call}");
        let of_logins = call.contains("/attrib/") || call.ends_with("/param/ImmediateData");
        assert!(!call.starts_with("write ") || of_logins, "{call}");
    }
}

#[test]
fn they_are_exports_like_any_other() {
    let others = Others::new();
    others.adopt();
    let node = &others.node;
    let agent = node.start();
    eventually("served", || agent.get(CINDER_ID).unwrap().export.is_some_and(|export| export.in_force));
    let [(one, ..), (two, ..), ..] = others.sessions[..] else { panic!("sessions") };
    // A change of mode keeps the secrets, which the sender does not know.
    let mut spec = kept_spec(&agent, CINDER_ID);
    let of = |spec: &mut v1::ExportSpec, host: &str| {
        spec.grants.iter().position(|g| g.initiator == iqn(host)).unwrap()
    };
    let at = of(&mut spec, "host2");
    spec.grants[at].set_mode(RO);
    agent.make(put_export_spec(CINDER_ID, 2, spec.clone()));
    assert!(node.fake.write(two, 0).is_err() && node.fake.read(two, 0).is_ok());
    // A new grant gets no LUN 0.
    let mut zero = grant("host5", RW);
    zero.lun = 0;
    let mut with_zero = spec.clone();
    with_zero.grants.push(zero);
    let refused = agent.put_export(put_export_spec(CINDER_ID, 3, with_zero));
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &["host5", "LUN 0", "1 to 65535"]);
    spec.grants.push(grant("host5", RW));
    agent.make(put_export_spec(CINDER_ID, 3, spec.clone()));
    let five =
        node.fake.login(PORTAL, CINDER_TARGET, &iqn("host5"), Some(("host5", &secret_of("host5")))).unwrap();
    node.fake.write(five, 1).unwrap();
    // The volume grows, under the name that it has.
    let size = v1::VolumeSpec { group: "cinder-volumes".to_owned(), ..volume_spec(2 * SIZE) };
    agent.make(put_volume_spec(CINDER_ID, 2, size));
    assert_eq!(node.fake.inquire(one, 0).unwrap().size, 2 * SIZE);
    assert!(!node.lvs().contains("mooring-grow") && !node.lvs().contains(&format!("mooring-{CINDER_ID}")));
    // Force detach.
    let at = of(&mut spec, "host2");
    spec.grants.remove(at);
    let receipts = agent.make(put_export_spec(CINDER_ID, 4, spec.clone()));
    assert!(receipts[0].proven && receipts[0].initiator == iqn("host2"), "{receipts:?}");
    assert!(!node.fake.is_live(two));
    assert!(node.fake.login(PORTAL, CINDER_TARGET, &iqn("host2"), Some(CHAP)).is_err());
    node.fake.write(one, 0).unwrap();
    node.fake.write(five, 1).unwrap();
    // An initiator that once had LUN 0 does not get it back.
    let mut back = grant("host2", RW);
    back.lun = 0;
    let mut with_zero = spec.clone();
    with_zero.grants.push(back);
    let refused = agent.put_export(put_export_spec(CINDER_ID, 5, with_zero));
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &["host2", "LUN 0"]);
    // The volume goes with its LV, and nothing else goes.
    let foreign = others.foreign();
    spec.grants.clear();
    agent.make(put_export_spec(CINDER_ID, 5, spec));
    agent.make(delete_volume(CINDER_ID, 3));
    node.assert_nothing_left(CINDER_ID);
    // Its HBA folder goes, too: nobody else has a backstore in it.
    let rest = |text: &str| {
        text.lines().filter(|line| !line.contains("core/iblock_0")).collect::<Vec<_>>().join("\n")
    };
    assert_same(&rest(&others.foreign()), &rest(&foreign));
    assert!(!others.tree().contains("core/iblock_0"));
    for lv in ["data0", "demo", "somebody"] {
        others.tags(lv);
    }
}

#[test]
fn whoever_is_revoked_behind_a_call_that_hangs_is_shut_out_at_once() {
    let others = Others::new();
    others.adopt();
    let node = &others.node;
    let agent = node.start();
    eventually("served", || agent.get(CINDER_ID).unwrap().export.is_some_and(|export| export.in_force));
    let disk = format!("/dev/cinder-volumes/volume-{CINDER_ID}");
    let reach = || {
        let all = node.fake.reachable();
        all.into_iter().filter(|reach| reach.device == disk).map(|reach| reach.initiator).collect::<Vec<_>>()
    };
    assert_eq!(reach(), [iqn("host1"), iqn("host2")]);
    node.fake.hold(&disk);
    node.fake.start_write(others.sessions[0].0, 0).unwrap();
    let mut spec = kept_spec(&agent, CINDER_ID);
    for (counter, host) in [(2, "host1"), (3, "host2")] {
        spec.grants.retain(|grant| grant.initiator != iqn(host));
        let answer = agent.put_export(brief(put_export_spec(CINDER_ID, counter, spec.clone()))).unwrap();
        assert!(!answer.done && answer.receipts.iter().all(|receipt| !receipt.proven), "{answer:?}");
    }
    eventually("the second is shut out beside the call", || reach().is_empty());
    node.fake.release(&disk);
    eventually("both are proven", || {
        let receipts = agent.get(CINDER_ID).unwrap().receipts;
        receipts.len() == 2 && receipts.iter().all(|receipt| receipt.proven)
    });
}

#[test]
fn they_come_back_after_a_boot_as_they_were() {
    let others = Others::new();
    others.adopt();
    let node = &others.node;
    let identity = |sessions: &[(SessionId, u64, bool)]| -> Vec<_> {
        sessions.iter().map(|(session, lun, _)| node.fake.inquire(*session, *lun).unwrap()).collect()
    };
    let was = identity(&others.sessions);
    let reach: BTreeSet<_> =
        others.meant().into_iter().filter(|reach| !reach.target.contains("demo")).collect();
    drop(node.start());
    // The objects of targetcli and Cinder are not restored; only the agent's specs are.
    node.fake.reboot();
    let agent = node.start();
    let data = others_id(&agent, TARGETCLI_TARGET);
    for id in [CINDER_ID, &data] {
        eventually("in force", || agent.get(id).unwrap().export.is_some_and(|export| export.in_force));
    }
    assert_eq!(node.fake.reachable().into_iter().collect::<BTreeSet<_>>(), reach);
    let login = |target, host: &str, chap| node.fake.login(PORTAL, target, &iqn(host), chap).unwrap();
    let now = [
        (login(CINDER_TARGET, "host1", Some(CHAP)), 0, true),
        (login(CINDER_TARGET, "host2", Some(CHAP)), 0, true),
        (login(TARGETCLI_TARGET, "host3", None), 0, true),
        (login(TARGETCLI_TARGET, "host4", None), 3, false),
    ];
    assert_eq!(identity(&now), was);
    let alias = node.fake.lio().read_text(&TreePath::new("core/iblock_1/data0/attrib/emulate_model_alias"));
    assert_eq!(alias.unwrap(), "1");
}

fn others_id(agent: &Agent, target: &str) -> String {
    let is = |status: &v1::VolumeStatus| {
        use v1::export_identity::Kind;
        let identity = status.export_spec.as_ref().and_then(|spec| spec.identity.as_ref()?.kind.as_ref());
        matches!(identity, Some(Kind::Recorded(recorded)) if recorded.iqn == target)
    };
    agent.list().into_iter().find(is).unwrap().volume_id
}

/// Persistent reservations are the kernel's. The kernel names their file by the recorded serial.
#[test]
fn adopted_reservations_are_recorded_at_once_and_their_file_goes_too() {
    let others = Others::new();
    others.adopt();
    let node = &others.node;
    let agent = node.start();
    eventually("served", || agent.get(CINDER_ID).unwrap().export.is_some_and(|export| export.in_force));
    let [(one, ..), (two, ..), ..] = others.sessions[..] else { panic!("sessions") };
    let reserve = |session, command| node.fake.persistent_reserve(session, 0, command).unwrap();
    reserve(one, PrOut::Register { key: 0, new: 0xa, durable: true });
    reserve(two, PrOut::Register { key: 0, new: 0xb, durable: true });
    reserve(one, PrOut::Reserve { key: 0xa, kind: 5 });
    // No resync runs in this test.
    until(&agent, CINDER_ID, HELD);
    reserve(two, PrOut::Preempt { key: 0xb, victim: 0xa, kind: 5 });
    until(&agent, CINDER_ID, "host2 5: host2=b");
    // After a loss of power, a preempted initiator stays preempted.
    let agent = restart(node, agent);
    until(&agent, CINDER_ID, "host2 5: host2=b");
    let file = node.dir.path().join(format!("root/var/target/pr/aptpl_{CINDER_SERIAL}"));
    assert!(file.exists(), "the control");
    let mut spec = kept_spec(&agent, CINDER_ID);
    spec.grants.clear();
    agent.make(put_export_spec(CINDER_ID, 2, spec));
    agent.make(delete_volume(CINDER_ID, 2));
    assert!(!file.exists(), "the kernel leaves its file behind");
}

/// Stops an adoption before every step, and starts an agent on the result. No initiator notices,
/// nothing is created, and the next adoption finishes the work.
#[test]
fn an_adoption_that_was_cut_short_is_safe_and_is_finished_by_the_next() {
    let mut steps = 0;
    loop {
        let others = Others::new();
        let (foreign, reach) = (others.foreign(), others.meant());
        let cut = others.adopt_until(steps).is_err();
        let lvs = || -> BTreeSet<String> {
            let lvs: serde_json::Value = serde_json::from_str(&others.node.lvs()).unwrap();
            let rows = lvs["report"][0]["lv"].as_array().unwrap();
            rows.iter().map(|row| row["lv_name"].as_str().unwrap().to_owned()).collect()
        };
        let names = lvs();
        let agent = others.node.start();
        for status in agent.list() {
            eventually("settled", || {
                let now = agent.get(&status.volume_id).unwrap();
                now.export_spec.is_none() || now.export.is_some_and(|export| export.in_force)
            });
        }
        agent.stop();
        drop(agent);
        others.all_go_on();
        assert_eq!(lvs(), names, "after {steps} steps");
        let tagged = others.tags("data0");
        others.adopt();
        let (cinder, data) = (others.id_of(CINDER_TARGET), others.id_of(TARGETCLI_TARGET));
        assert_eq!(cinder, CINDER_ID);
        let tags = others.tags("data0");
        // The volume keeps the id that the first adoption gave it.
        assert!(
            tagged.is_subset(&tags) && tags.contains(&format!("mooring-volume-{data}")),
            "{tagged:?} {tags:?}"
        );
        assert_eq!(tags.len(), 2, "{tags:?}");
        let agent = others.node.start();
        for id in [&cinder, &data] {
            eventually("in force", || agent.get(id).unwrap().export.is_some_and(|export| export.in_force));
        }
        others.all_go_on();
        assert_same(&others.foreign(), &foreign);
        assert_eq!(others.node.fake.reachable(), reach);
        if !cut {
            break;
        }
        steps += 1;
    }
    // Three steps (tag, volume, export) for each of two candidates.
    assert_eq!(steps, 6);
}

#[test]
fn only_what_was_chosen_is_taken_over() {
    let others = Others::new();
    let done = others.said(What::Apply, &["vg0/data0"], true).unwrap();
    let done: serde_json::Value = serde_json::from_str(&done).unwrap();
    assert_eq!(done["adopted"][0]["target"], TARGETCLI_TARGET);
    assert_eq!(done["adopted"].as_array().unwrap().len(), 1);
    assert_eq!(others.tags(&format!("volume-{CINDER_ID}")), BTreeSet::from(["site=a".to_owned()]));
    let plan = others.said(What::Plan, &[CINDER_ID], false).unwrap();
    assert!(plan.starts_with(&format!("{CINDER_TARGET}: can be adopted\n")), "{plan}");
    let error =
        others.said(What::Apply, &[CINDER_TARGET, "iqn.2003-01.org.linux-iscsi.demo:d"], false).unwrap_err();
    assert!(error.contains("demo:d cannot be adopted: it admits initiators without an ACL"), "{error}");
    let error = others.said(What::Apply, &["vg0/nothing"], false).unwrap_err();
    assert!(error.contains("vg0/nothing"), "{error}");
    // An adoption that cannot do all of its candidates does none.
    assert_eq!(others.tags(&format!("volume-{CINDER_ID}")), BTreeSet::from(["site=a".to_owned()]));
}

#[test]
fn no_secret_is_shown() {
    let others = Others::new();
    for what in [What::Plan, What::Apply, What::Plan] {
        for json in [false, true] {
            let said = others.said(what, &[], json).unwrap();
            assert!(!said.contains(SECRET_WORD), "{said}");
            assert!(
                what == What::Apply
                    || said.contains("host1")
                    || said.contains("\"adopted\"")
                    || said.contains(": adopted")
            );
        }
    }
    assert!(!logs().contains(CHAP.1));
    let store = others.store();
    assert!(!format!("{:?}", others.survey(&store)).contains(SECRET_WORD));
}

#[test]
fn a_running_agent_keeps_its_store_to_itself() {
    let others = Others::new();
    others.said(What::Apply, &["vg0/data0"], false).unwrap();
    let lock = mooring_host::LockFile::acquire(others.node.config.state_dir.join("agent.lock")).unwrap();
    let error = others.said(What::Apply, &[], false).unwrap_err();
    assert!(error.contains("stop the agent first"), "{error}");
    let plan = others.said(What::Plan, &[], false).unwrap();
    assert!(plan.contains(&format!("{TARGETCLI_TARGET}: adopted\n")), "{plan}");
    assert!(plan.contains(&format!("{CINDER_TARGET}: can be adopted\n")), "{plan}");
    drop(lock);
    others.said(What::Apply, &[], false).unwrap();
}

#[test]
fn what_changes_between_the_look_and_the_deed_is_not_taken_over() {
    let others = Others::new();
    let store = others.store();
    let seen = others.survey(&store);
    let acl = format!("iscsi/{CINDER_TARGET}/tpgt_1/acls/iqn.2026-01.lab.host1/lun_0/write_protect");
    others.node.fake.lio().write(&TreePath::new(&acl), b"1").unwrap();
    let only = [Only(CINDER_TARGET.to_owned())];
    let error =
        apply(&others.machine(), &store, &seen, &only, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(&error, Error::Changed(target) if target == CINDER_TARGET), "{error}");
    assert!(store.specs().unwrap().is_empty());
    // The control: a second look shows the present state, and the adoption succeeds.
    apply(&others.machine(), &store, &others.survey(&store), &only, &mut |_| ControlFlow::Continue(()))
        .unwrap();
}

#[test]
fn lvs_that_cannot_be_volumes_are_refused() {
    let node = Node::new();
    let others = Others { node, sessions: Vec::new() };
    let lvm = others.node.fake.lvm();
    others.node.fake.add_vg("cinder-volumes", 64 * MIB);
    lvm.add_volume("cinder-volumes", &format!("volume-{CINDER_ID}"), SIZE, &[]);
    lvm.add_volume("vg0", "data0", SIZE, &["mooring-unzeroed"]);
    let tree = others.node.fake.lio();
    tree.mkdir(&TreePath::new("iscsi")).unwrap();
    run_script(&tree, CINDER);
    run_script(&tree, TARGETCLI);
    let plan = others.said(What::Plan, &[], false).unwrap();
    assert!(plan.contains("volume group cinder-volumes is not in this agent's configuration"), "{plan}");
    assert!(plan.contains("mooring-unzeroed, which means that its blocks are not zeroed"), "{plan}");
    assert!(plan.contains("0 of 2 can be adopted"), "{plan}");
}

/// Somebody removes the tags of an adopted LV. The agent reports this, goes on serving the LV, and
/// creates nothing in its place.
#[test]
fn an_adopted_lv_that_lost_its_tags_is_not_made_anew() {
    let others = Others::new();
    others.adopt();
    let lv = format!("volume-{CINDER_ID}");
    untag(&others, "cinder-volumes", &lv, &["mooring", &format!("mooring-volume-{CINDER_ID}")]);
    let agent = others.node.start();
    eventually("said", || {
        let volume = agent.get(CINDER_ID).unwrap().volume.unwrap_or_default();
        volume.problems.iter().any(|problem| problem.text.contains("was adopted as cinder-volumes/volume-"))
    });
    assert!(!others.node.lvs().contains(&format!("\"mooring-{CINDER_ID}\"")), "{}", others.node.lvs());
    others.all_go_on();
}

/// The agent's store is lost. The tag says which volume the LV is, and the agent holds the LV as an
/// orphan. When the owner sends the specs again, they find it. The agent creates no empty volume
/// under this id.
#[test]
fn an_adopted_volume_survives_the_loss_of_the_store() {
    let others = Others::new();
    others.adopt();
    let agent = others.node.start();
    let mut spec = kept_spec(&agent, CINDER_ID);
    for grant in &mut spec.grants {
        grant.chap.as_mut().unwrap().initiator.as_mut().unwrap().secret = CHAP.1.to_owned();
    }
    drop(agent);
    std::fs::remove_dir_all(&others.node.config.state_dir).unwrap();
    let agent = others.node.start();
    let volume = agent.get(CINDER_ID).unwrap().volume.unwrap();
    assert_eq!((volume.phase(), volume.size_bytes), (v1::Phase::Orphan, SIZE));
    others.all_go_on();
    // The agent does not destroy the data for a sender that does not say which export serves it.
    let doomed =
        agent.put_volume(v1::PutVolumeRequest { deadline_ms: 3000, ..delete_volume(CINDER_ID, 2) }).unwrap();
    assert!(!doomed.done, "{doomed:?}");
    others.all_go_on();
    let size = v1::VolumeSpec { group: "cinder-volumes".to_owned(), ..volume_spec(SIZE) };
    let refused = agent.put_volume(put_volume_spec(CINDER_ID, 3, size.clone()));
    assert_refused(refused, Code::FailedPrecondition, "retry", &["still being deleted"]);
    drop(agent);
    std::fs::remove_dir_all(&others.node.config.state_dir).unwrap();
    let agent = others.node.start();
    agent.make(put_volume_spec(CINDER_ID, 3, size));
    assert!(!others.node.lvs().contains(&format!("\"mooring-{CINDER_ID}\"")), "{}", others.node.lvs());
    agent.make(put_export_spec(CINDER_ID, 3, spec));
    others.all_go_on();
}

/// A recorded name gives no access to an LV that is not the volume's own.
#[test]
fn a_recorded_name_leads_to_no_lv_of_somebody_else() {
    use v1::export_identity::Kind;
    let (node, v) = (Node::new(), volume(1));
    assert!(node.fake.lvm().add_volume("vg0", "somebody", SIZE, &[]));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let mut spec = export_spec(&[("host1", RW)]);
    let recorded = |lv: &str| v1::RecordedIdentity {
        iqn: "iqn.2003-01.org.other:a".to_owned(),
        tpg: 1,
        serial: "kept".to_owned(),
        lv: lv.to_owned(),
        backstore_hba: "iblock_7".to_owned(),
        backstore_name: "kept".to_owned(),
        ..Default::default()
    };
    spec.identity = Some(v1::ExportIdentity { kind: Some(Kind::Recorded(recorded("somebody"))) });
    agent.make_not_done(brief(put_export_spec(&v, 1, spec.clone())));
    assert_eq!(node.fake.reachable(), []);
    assert!(!node.tree().contains("org.other") && !node.tree().contains("somebody"), "{}", node.tree());
    // The control: with the volume's own LV name, the export is served.
    let node = Node::new();
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    spec.identity =
        Some(v1::ExportIdentity { kind: Some(Kind::Recorded(recorded(&format!("mooring-{v}")))) });
    agent.make(put_export_spec(&v, 1, spec));
    assert_eq!(node.fake.reachable().len(), 1);
}

/// A node that exports a foreign thin LV, whose pool is not Mooring's.
fn with_thin(node: Node) -> Others {
    let others = Others { node, sessions: Vec::new() };
    for args in [
        "lvcreate --yes --type thin-pool --zero y --size 67108864b --name pool vg0",
        "lvcreate --yes --type thin --virtualsize 8388608b --thinpool pool --name data0 vg0",
    ] {
        others.node.lvm(args);
    }
    let tree = others.node.fake.lio();
    tree.mkdir(&TreePath::new("iscsi")).unwrap();
    run_script(&tree, TARGETCLI);
    others
}

/// An adopted thin volume stays in its pool.
#[test]
fn a_thin_volume_of_another_pool_is_taken_over() {
    let others = with_thin(Node::new());
    let three = others.node.fake.login(PORTAL, TARGETCLI_TARGET, &iqn("host3"), None).unwrap();
    let plan = others.said(What::Plan, &[], false).unwrap();
    assert!(plan.contains("8 MiB, thin") && plan.contains("1 of 1 can be adopted"), "{plan}");
    others.adopt();
    let id = others.id_of(TARGETCLI_TARGET);
    let agent = others.node.start();
    eventually("in force", || agent.get(&id).unwrap().export.is_some_and(|export| export.in_force));
    assert_eq!(agent.plan(""), v1::PlanResponse::default());
    others.node.fake.write(three, 0).unwrap();
}

/// Adoption refuses thin LVs that would be served now, but would be missing after a boot or show
/// data of others.
#[test]
fn thin_lvs_that_would_do_harm_later_are_refused_until_that_is_mended() {
    for (harm, why, cure) in [
        (
            "lvchange --setactivationskip y vg0/data0",
            "its LV vg0/data0: LVM skips its activation",
            "lvchange --setactivationskip n vg0/data0",
        ),
        (
            "lvchange --zero n vg0/pool",
            "its LV vg0/data0: its thin pool vg0/pool does not zero the blocks that it gives",
            "lvchange --zero y vg0/pool",
        ),
    ] {
        let others = with_thin(Node::new());
        others.node.lvm(harm);
        let plan = others.said(What::Plan, &[], false).unwrap();
        assert!(plan.contains("0 of 1 can be adopted") && plan.contains(why), "{plan}");
        assert!(plan.contains(&format!("run {cure}")), "{plan}");
        let refused = others.said(What::Apply, &["vg0/data0"], false).unwrap_err();
        assert!(refused.contains(why), "{refused}");
        assert_eq!(others.tags("data0"), BTreeSet::new());
        // The control: after the stated cure, the LV is adopted, and comes back after a boot.
        others.node.lvm(cure);
        others.adopt();
        let id = others.id_of(TARGETCLI_TARGET);
        others.node.fake.reboot();
        let agent = others.node.start();
        eventually("in force", || agent.get(&id).unwrap().export.is_some_and(|export| export.in_force));
        others.node.fake.login(PORTAL, TARGETCLI_TARGET, &iqn("host3"), None).unwrap();
        // Nobody watches this pool: it takes discards of hosts by the group's key only.
        let attrib = TreePath::new("core/iblock_1/data0/attrib/emulate_tpu");
        assert_eq!(others.node.fake.lio().read_text(&attrib).unwrap(), "0");
    }
}

/// The group also has a pool of Mooring's. LVM would grow and copy an adopted thin volume in the
/// volume's own pool.
#[test]
fn a_thin_volume_of_another_pool_takes_no_more_of_it() {
    let (others, ours) = (with_thin(Node::with_group("thin_pool = \"256MiB\"\n")), volume(1));
    others.adopt();
    let id = others.id_of(TARGETCLI_TARGET);
    let agent = others.node.start();
    eventually("in force", || agent.get(&id).unwrap().export.is_some_and(|export| export.in_force));
    let thin = |size| v1::VolumeSpec { provisioning: v1::Provisioning::Thin.into(), ..volume_spec(size) };
    let snapshot = |of: &str| {
        let source = v1::VolumeSource { of: Some(v1::volume_source::Of::VolumeId(of.to_owned())) };
        v1::VolumeSpec { kind: v1::VolumeKind::Snapshot.into(), source: Some(source), ..thin(SIZE) }
    };
    agent.make(put_volume_spec(&ours, 1, thin(SIZE)));
    for (of, spec, may) in [(&id, thin(2 * SIZE), "grow"), (&volume(2), snapshot(&id), "have snapshots")] {
        let refused = agent.put_volume(put_volume_spec(of, 2, spec));
        let words =
            ["vg0/data0 lies in the thin pool vg0/pool", &format!("only volumes in vg0/mooring-pool {may}")];
        assert_refused(refused, Code::FailedPrecondition, "operator", &words);
    }
    let served = agent.get(&id).unwrap().volume.unwrap();
    assert_eq!((served.phase(), served.size_bytes, served.problems.len()), (v1::Phase::Ready, SIZE, 0));
    assert!(!others.node.lvs().contains("mooring-snap"), "{}", others.node.lvs());
    others.node.fake.login(PORTAL, TARGETCLI_TARGET, &iqn("host3"), None).unwrap();
    // The control: a volume in Mooring's pool can grow and be copied.
    agent.make(put_volume_spec(&ours, 2, thin(2 * SIZE)));
    agent.make(put_volume_spec(&volume(2), 2, snapshot(&ours)));
    assert_eq!(agent.get(&ours).unwrap().volume.unwrap().size_bytes, 2 * SIZE);
}

fn untag(others: &Others, group: &str, lv: &str, tags: &[&str]) {
    let tags: Vec<_> = tags.iter().map(|tag| format!("--deltag {tag}")).collect();
    others.node.lvm(&format!("lvchange {} {group}/{lv}", tags.join(" ")));
}
