//! An engine for the tests in this crate: on a fake machine, with its own store, not started.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mooring_host::fake::{FakeMachine, SessionId};
use mooring_host::{Command, Commands, KernelTree, SystemClock, TreePath};
use mooring_model::{
    ByteSize, Chap, ChapSide, Digest, ExportIdentity, ExportSpec, FcExportSpec, Generation, Grant,
    LUN_DEFAULT, Mode, Provisioning, Secret, Stamp, Tuning, VolumeId, VolumeSpec,
};

use super::Engine;
use super::cell::{Cell, KeptSpec, SpecKind};
use crate::clock;
use crate::config::Config;
use crate::machine::Machine;
use crate::store::{Kind, Store, StoredContent};

/// The fake machine, with its `/` and `/sys` in `dir`.
pub(crate) fn machine(dir: &Path, fake: &FakeMachine) -> Machine {
    Machine {
        target: Arc::new(fake.lio()),
        folders: Some(Arc::new(fake.folders())),
        callers: Some(Arc::new(fake.callers())),
        sys: Arc::new(KernelTree::new(dir)),
        commands: Arc::new(fake.lvm()),
        blocks: Arc::new(fake.blocks()),
        images: Arc::new(fake.images()),
        pr: Arc::new(fake.clone()),
        clock: Arc::new(SystemClock),
        addresses_changed: Arc::default(),
        bus: None,
        addresses: Arc::new(|| vec![std::net::IpAddr::from([10, 0, 0, 1]).into()]),
        root: dir.to_owned(),
    }
}

/// Makes an engine with all its files below `dir`.
pub(crate) fn engine(dir: &Path, fake: &FakeMachine) -> Engine {
    engine_on(dir, machine(dir, fake))
}

/// Like [`engine`], on this machine.
pub(crate) fn engine_on(dir: &Path, machine: Machine) -> Engine {
    let text = format!(
        "state_dir = \"{0}\"\nrun_dir = \"{0}\"\nportals = [\"10.0.0.1\"]\n[[groups]]\nname = \"vg0\"\n",
        dir.display()
    );
    Engine::new(Config::parse(&text, "agent.toml").unwrap(), machine, Store::open(dir).unwrap()).unwrap()
}

/// The host that a [`Node`]'s volume is granted to, and its secret.
pub(crate) const HOST: &str = "iqn.2026-01.lab:host1";
pub(crate) const SECRET: &str = "a secret of 20 bytes";

/// A node with one volume, exported to one host. The engine does nothing by itself.
pub(crate) struct Node {
    pub(crate) fake: FakeMachine,
    pub(crate) engine: Engine,
    pub(crate) cell: Arc<Cell>,
    _dir: tempfile::TempDir,
}

pub(crate) fn eventually(what: &str, is: impl Fn() -> bool) {
    let began = clock::std_instant();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(30), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::with(Mode::ReadOnly)
    }

    /// The host logs in.
    pub(crate) fn log_in(&self) -> SessionId {
        let target = self.engine.config().iqn_prefix.target(self.cell.id);
        self.fake.login("10.0.0.1:3260", target.as_str(), HOST, Some((HOST, SECRET))).unwrap()
    }

    /// The volume's device.
    pub(crate) fn device(&self) -> PathBuf {
        let spec = self.cell.state().volume_spec().cloned().unwrap();
        crate::lvm::device_path("vg0", spec.lv().as_str())
    }

    /// The volume's LV, as LVM's commands name it.
    pub(crate) fn lv(&self) -> String {
        format!("vg0/mooring-{}", self.cell.id)
    }

    /// Somebody runs a command of LVM.
    pub(crate) fn by_hand(&self, args: &[&str]) {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let command = Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) };
        let output = self.fake.lvm().run(&command).unwrap();
        assert_eq!(output.status, 0, "{}", output.stderr);
    }

    /// A path below the portal group of the export.
    pub(crate) fn path(&self, below: &str) -> TreePath {
        let target = self.engine.config().iqn_prefix.target(self.cell.id);
        TreePath::new(&format!("iscsi/{target}/tpgt_1/{below}"))
    }

    /// The file that makes the host's LUN read-only.
    pub(crate) fn protect(&self) -> TreePath {
        self.path(&format!("acls/{HOST}/lun_1/write_protect"))
    }

    /// Gives the host another mode by a newer spec, and wakes no pass.
    pub(crate) fn regrant(&self, mode: Mode) {
        let mut state = self.cell.state();
        let mut kept_spec = state.export().cloned().unwrap();
        kept_spec.stamp.generation = kept_spec.stamp.generation.next();
        if let SpecKind::Spec(spec) = &mut kept_spec.kind {
            spec.grants[0].mode = mode;
        }
        state.replace_export(Some(kept_spec));
    }

    /// Waits until no pass is at work or asked for. The volume may wait for a retry.
    pub(crate) fn rest(&self) {
        eventually("no pass is at work", || self.cell.state().turn.is_idle());
    }

    /// Makes a resync, and waits for its passes. Returns their number.
    pub(crate) fn resync(&self) -> u64 {
        let before = self.cell.state().turn.passes();
        self.engine.sweep();
        self.settle();
        self.cell.state().turn.passes() - before
    }

    pub(crate) fn settle(&self) {
        eventually("the volume is clean", || {
            let state = self.cell.state();
            state.turn.is_idle() && state.export_end().is_done() && state.volume_end().is_done()
        });
    }

    pub(crate) fn with(mode: Mode) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fake = FakeMachine::new();
        fake.set_root(dir.path().to_owned());
        fake.add_vg("vg0", 1 << 30);
        let engine = engine(dir.path(), &fake);
        tokio::spawn(engine.clone().follow_folders());
        let id = VolumeId::from_u128(1);
        let cell = engine.cell(id);
        let stamp = Stamp { generation: Generation::ZERO.next(), digest: Digest::of_sha256([1; 32]) };
        let volume = VolumeSpec::new(id, "vg0".parse().unwrap(), ByteSize(8 << 20), Provisioning::Thick);
        let side = ChapSide { user: HOST.to_owned(), secret: Secret::new(SECRET) };
        let grant = Grant {
            initiator: HOST.parse().unwrap(),
            lun: LUN_DEFAULT,
            mode,
            chap: Some(Chap { initiator: side, mutual: None }),
            attachments: Vec::new(),
            barrier: None,
        };
        let export = ExportSpec {
            volume: id,
            identity: ExportIdentity::Derived,
            portals: Vec::new(),
            grants: vec![grant],
            fc: FcExportSpec::default(),
            tuning: Tuning::default(),
        };
        let kept = StoredContent::Spec(Vec::new());
        engine.store().put_spec(Kind::Volume, id, &stamp, &kept, b"", &[]).unwrap();
        {
            let mut state = cell.state();
            let kind = SpecKind::Spec(volume);
            state.set_volume(KeptSpec { stamp: stamp.clone(), kind, opaque: Vec::new() });
            state.set_export(KeptSpec { stamp, kind: SpecKind::Spec(export), opaque: Vec::new() });
        }
        Self { fake, engine, cell, _dir: dir }
    }
}
