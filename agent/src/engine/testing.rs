//! An engine for the tests inside of this crate: on a fake machine, with a store of its own, not started.

use std::path::Path;
use std::sync::Arc;

use mooring_host::fake::FakeMachine;
use mooring_host::{KernelTree, SystemClock};

use super::Engine;
use crate::config::Config;
use crate::machine::Machine;
use crate::store::Store;

/// Everything of it is below `dir`.
pub(crate) fn engine(dir: &Path, fake: &FakeMachine) -> Engine {
    let text = format!(
        "state_dir = \"{0}\"\nrun_dir = \"{0}\"\nportals = [\"10.0.0.1\"]\n[[groups]]\nname = \"vg0\"\n",
        dir.display()
    );
    let machine = Machine {
        target: Arc::new(fake.lio()),
        folders: Some(Arc::new(fake.folders())),
        sys: Arc::new(KernelTree::new(dir)),
        commands: Arc::new(fake.lvm()),
        blocks: Arc::new(fake.blocks()),
        images: Arc::new(fake.images()),
        pr: Arc::new(fake.clone()),
        clock: Arc::new(SystemClock),
        addresses: Arc::new(|| vec![std::net::IpAddr::from([10, 0, 0, 1]).into()]),
        root: dir.to_owned(),
    };
    Engine::new(Config::parse(&text, "agent.toml").unwrap(), machine, Store::open(dir).unwrap()).unwrap()
}
