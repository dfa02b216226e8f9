//! Measures the cost of one grant and one revoke in the agent: the real engine, store and gRPC on a
//! unix socket, on a fake host.
//!
//! A cycle is one `PutExport` with one more grant, and one without it. Each is answered when it is
//! seen, the second with its proven receipt. Each case prints cycles per second, CPU per cycle (of
//! the whole process, and without the caller's thread) and commits per cycle (each is one sync of
//! the store's log).
//!
//! Run it with `cargo bench -p mooring-agent --bench cycle -- [seconds per case] [folder of the
//! store] [cycles]`. The folder must be on a real disk: in memory a sync costs nothing. With a
//! number of cycles there is one case of one caller that makes so many. Under `valgrind
//! --tool=callgrind` the difference of two such runs is the exact cost of cycles in instructions.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mooring_agent::config::Config;
use mooring_agent::engine::Engine;
use mooring_agent::machine::Machine;
use mooring_agent::rpc::listen;
use mooring_agent::store::Store;
use mooring_api::v1::agent_client::AgentClient;
use mooring_api::{Channel, TlsFiles, v1};
use mooring_host::fake::FakeMachine;
use mooring_host::{KernelTree, SystemClock};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tokio::sync::Mutex;

/// The allocator of the real agent.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const CLUSTER: &str = "6a1f1dbe-2f5c-4a8e-9d57-0f3c1a7b9e11";
const ANSWER_MS: u32 = 20_000;
const CALLERS: usize = 8;

/// An agent on a fake host, with volumes that are each granted to one host.
struct Rig {
    client: AgentClient<Channel>,
    engine: Engine,
    volumes: Vec<Arc<Volume>>,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

struct Volume {
    id: String,
    state: Mutex<Granted>,
}

/// The grants as a controller has them: it sends one spec of a volume at a time.
struct Granted {
    counter: u64,
    grants: Vec<v1::Grant>,
}

/// CPU time of the process, and of this thread.
#[derive(Clone, Copy)]
struct Cpu {
    all: Duration,
    caller: Duration,
}

impl Cpu {
    fn now() -> Result<Self> {
        let of = |who| -> Result<Duration> {
            let usage = getrusage(who)?;
            let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
            Ok(Duration::from_micros(micros.try_into()?))
        };
        Ok(Self { all: of(UsageWho::RUSAGE_SELF)?, caller: of(UsageWho::RUSAGE_THREAD)? })
    }
}

fn volume_id(n: usize) -> String {
    // Ids differ in the digits that make an NAA and an HBA's number.
    format!("{n:08x}-d3e4-4f50-8a61-{n:012x}")
}

fn grant(caller: usize) -> v1::Grant {
    let side = v1::ChapSide { user: format!("host{caller}"), secret: format!("secret-of-host-{caller:04}") };
    v1::Grant {
        initiator: format!("iqn.2026-01.lab.host{caller}"),
        lun: 1,
        mode: v1::Mode::ReadWrite.into(),
        chap: Some(v1::Chap { initiator: Some(side), mutual: None }),
        attachment_ids: vec![volume_id(caller)],
        barrier: String::new(),
    }
}

fn stamp(counter: u64, kept_spec: &impl mooring_api::Message) -> v1::Stamp {
    let digest = mooring_api::digest(kept_spec, b"opaque").as_bytes().to_vec();
    v1::Stamp { generation: Some(v1::Generation { epoch: 1, counter }), digest }
}

fn sender() -> v1::Sender {
    v1::Sender { cluster_id: CLUSTER.to_owned() }
}

impl Volume {
    /// Makes the volume, with one grant that stays.
    async fn make(client: &mut AgentClient<Channel>, n: usize) -> Result<Arc<Self>> {
        let id = volume_id(n);
        let spec = v1::VolumeSpec {
            group: "vg0".to_owned(),
            size_bytes: 4 << 20,
            provisioning: v1::Provisioning::Thick.into(),
            ..Default::default()
        };
        let put = v1::PutVolumeRequest {
            sender: Some(sender()),
            volume_id: id.clone(),
            stamp: Some(stamp(1, &spec)),
            wish: Some(v1::put_volume_request::Wish::Spec(spec)),
            opaque: b"opaque".to_vec(),
            deadline_ms: ANSWER_MS,
            new: false,
        };
        ensure!(client.put_volume(put).await?.into_inner().done, "volume {id} was not made");
        let volume = Self { id, state: Mutex::new(Granted { counter: 0, grants: Vec::new() }) };
        volume.put(client, |grants| grants.push(grant(9999))).await?;
        Ok(Arc::new(volume))
    }

    async fn put(
        &self,
        client: &mut AgentClient<Channel>,
        change: impl FnOnce(&mut Vec<v1::Grant>),
    ) -> Result<v1::PutExportResponse> {
        let mut state = self.state.lock().await;
        change(&mut state.grants);
        state.counter += 1;
        let derived = v1::export_identity::Kind::Derived(v1::DerivedIdentity {});
        let spec = v1::ExportSpec {
            identity: Some(v1::ExportIdentity { kind: Some(derived) }),
            portals: Vec::new(),
            grants: state.grants.clone(),
            fc: None,
            tuning: Vec::new(),
        };
        let put = v1::PutExportRequest {
            sender: Some(sender()),
            volume_id: self.id.clone(),
            stamp: Some(stamp(state.counter, &spec)),
            wish: Some(v1::put_export_request::Wish::Spec(spec)),
            opaque: b"opaque".to_vec(),
            deadline_ms: ANSWER_MS,
            live_sessions: v1::LiveSessions::Cut.into(),
            reservations_copy: String::new(),
        };
        let answer = client.put_export(put).await?.into_inner();
        ensure!(answer.done, "not done: {answer:?}");
        Ok(answer)
    }

    /// Makes one grant, and revokes it.
    async fn cycle(&self, client: &mut AgentClient<Channel>, caller: usize) -> Result<()> {
        let name = grant(caller).initiator;
        self.put(client, |grants| grants.push(grant(caller))).await?;
        let revoked = self.put(client, |grants| grants.retain(|grant| grant.initiator != name)).await?;
        ensure!(
            revoked.receipts.len() == 1 && revoked.receipts[0].proven,
            "no receipt: {:?}",
            revoked.receipts
        );
        Ok(())
    }
}

impl Rig {
    /// Starts an agent with its own runtime, as in its process: the caller's thread only calls.
    async fn start(folder: &std::path::Path) -> Result<Self> {
        let dir = tempfile::tempdir_in(folder)?;
        let text = format!(
            "state_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\nportals = [\"10.0.0.1:3260\"]\nresync_seconds = 3600\n\
             [[groups]]\nname = \"vg0\"\n",
            dir.path().display()
        );
        let config = Config::parse(&text, "agent.toml")?;
        let fake = FakeMachine::new();
        fake.add_vg("vg0", 1 << 40);
        fake.set_addresses(["10.0.0.1".parse()?]);
        let machine = Machine {
            target: Arc::new(fake.lio()),
            sys: Arc::new(KernelTree::new(dir.path().join("sys"))),
            commands: Arc::new(fake.lvm()),
            blocks: Arc::new(fake.blocks()),
            images: Arc::new(fake.images()),
            pr: Arc::new(fake.clone()),
            clock: Arc::new(SystemClock),
            folders: None,
            callers: None,
            addresses_changed: Arc::default(),
            bus: None,
            addresses: Arc::new(|| vec![IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)).into()]),
            root: dir.path().join("root"),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let store = Store::open(&config.state_dir)?;
        let address = config.listen[0].clone();
        let served = runtime.spawn(async move {
            let bound = listen::bind(&mooring_host::Front::new()?, &config)?;
            let engine = Engine::new(config, machine, store)?;
            engine.start().await;
            let (stop, stopped) = tokio::sync::watch::channel(false);
            let serving = engine.clone();
            tokio::spawn(async move {
                let _stop = stop;
                listen::serve(&serving, bound, stopped).await
            });
            anyhow::Ok(engine)
        });
        let engine = served.await??;
        let channel = mooring_api::connect(&address, &TlsFiles::default()).await?;
        Ok(Self { client: AgentClient::new(channel), engine, volumes: Vec::new(), runtime, _dir: dir })
    }

    async fn fill(&mut self, count: usize) -> Result<()> {
        let began = Instant::now();
        for n in self.volumes.len()..count {
            self.volumes.push(Volume::make(&mut self.client, n + 1).await?);
        }
        println!("{count} volumes after {:.1} s", began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Makes this many cycles of one caller, and nothing else.
    async fn count(&self, cycles: u32) -> Result<()> {
        let mut client = self.client.clone();
        for _ in 0..cycles {
            self.volumes[0].cycle(&mut client, 0).await?;
        }
        Ok(())
    }

    async fn measure(&self, what: &str, callers: usize, same: bool, limit: Duration) -> Result<()> {
        let cycles = Arc::new(AtomicU64::new(0));
        let (commits, cpu, began) = (self.engine.store().commits(), Cpu::now()?, Instant::now());
        let mut tasks = tokio::task::JoinSet::new();
        for caller in 0..callers {
            let volume = Arc::clone(&self.volumes[if same { 0 } else { caller }]);
            let (mut client, cycles) = (self.client.clone(), Arc::clone(&cycles));
            tasks.spawn(async move {
                while began.elapsed() < limit {
                    volume.cycle(&mut client, caller).await?;
                    cycles.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        let (time, now) = (began.elapsed(), Cpu::now()?);
        let commits = self.engine.store().commits() - commits;
        let cycles = u32::try_from(cycles.load(Ordering::Relaxed)).context("too many cycles")?;
        let each = |total: f64| total / f64::from(cycles);
        let (all, caller) = (now.all.saturating_sub(cpu.all), now.caller.saturating_sub(cpu.caller));
        println!(
            "{what:<34} {:>7.0}/s  {:>6.3} ms CPU/cycle, {:>6.3} without the caller  {:>5.2} commits/cycle",
            f64::from(cycles) / time.as_secs_f64(),
            each(all.as_secs_f64() * 1e3),
            each(all.saturating_sub(caller).as_secs_f64() * 1e3),
            each(u32::try_from(commits)?.into()),
        );
        Ok(())
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let seconds = args.first().map_or(Ok(3.0), |text| text.parse()).context("seconds per case")?;
    let folder = args.get(1).map_or_else(std::env::temp_dir, PathBuf::from);
    // The log is formatted as the agent does by default.
    let log = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    tracing_subscriber::fmt().with_env_filter("info").with_ansi(false).with_writer(log).init();
    let caller = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    caller.block_on(async {
        let limit = Duration::from_secs_f64(seconds);
        let mut rig = Rig::start(&folder).await?;
        if let Some(cycles) = args.get(2) {
            rig.fill(1).await?;
            rig.count(cycles.parse().context("cycles")?).await?;
            rig.runtime.shutdown_background();
            return Ok(());
        }
        for count in [CALLERS, 1000] {
            rig.fill(count).await?;
            rig.measure("1 caller", 1, false, limit).await?;
            rig.measure("8 callers, a volume each", CALLERS, false, limit).await?;
            rig.measure("8 callers, one volume", CALLERS, true, limit).await?;
        }
        // A runtime must not be dropped on another runtime's thread.
        rig.runtime.shutdown_background();
        Ok(())
    })
}
