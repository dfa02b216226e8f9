//! Light storage agents, many in one process: each with its own socket, identity and volumes, on
//! the real wire. They serve the large world and change nothing; every ten seconds each reports an
//! export anew and another free space.
//!
//! A thousand real agents would measure themselves: each keeps a store and looks at a kernel.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use mooring_api::v1;
use mooring_api::v1::agent_server::{Agent, AgentServer};
use mooring_api_bench::world::{self, World};
use tokio::net::UnixListener;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

/// Interval of each agent's reports.
const EVERY: Duration = Duration::from_secs(10);

/// Answers as many storage agents, generated from numbers
#[derive(Debug, Parser)]
struct Args {
    /// The folder of their sockets
    #[arg(long)]
    folder: PathBuf,
    #[command(flatten)]
    world: World,
}

struct Light {
    number: u32,
    world: World,
    asked: AtomicU64,
}

impl Light {
    fn refuse<T>() -> Result<Response<T>, Status> {
        Err(Status::failed_precondition("a light agent changes nothing"))
    }
}

/// Sends the reports of one agent, for ever: one of its exports after the other.
async fn report(world: World, agent: u32, to: tokio::sync::mpsc::Sender<Result<v1::Report, Status>>) {
    use v1::report::What;
    let synced = v1::Report { what: Some(What::Synced(v1::SyncMark {})) };
    if to.send(Ok(synced)).await.is_err() {
        return;
    }
    // Spread over time, as real ones.
    tokio::time::sleep(EVERY * agent / world.agents.max(1)).await;
    let mut ticks = tokio::time::interval(EVERY);
    for commands in 2.. {
        for volume in world.volumes_of(agent) {
            ticks.tick().await;
            let report = v1::Report { what: Some(What::Export(world.export_report(volume, commands))) };
            if to.send(Ok(report)).await.is_err() {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl Agent for Light {
    async fn hello(&self, _: Request<v1::HelloRequest>) -> Result<Response<v1::HelloResponse>, Status> {
        Ok(Response::new(v1::HelloResponse {
            protocol: mooring_api::PROTOCOL_MAX,
            software: "light".to_owned(),
            agent_id: world::agent_id(self.number).to_string(),
            host_name: world::agent_name(self.number),
            cluster_id: String::new(),
            portals: vec![world::PORTAL.to_owned()],
            groups: vec!["vg0".to_owned()],
            initiator: String::new(),
            fresh: false,
            newest_epoch: 0,
        }))
    }

    async fn adopt(&self, _: Request<v1::AdoptRequest>) -> Result<Response<v1::AdoptResponse>, Status> {
        Self::refuse()
    }

    async fn list_jobs(
        &self,
        _: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        Ok(Response::new(v1::ListJobsResponse::default()))
    }

    async fn change_reservations(
        &self,
        _: Request<v1::ChangeReservationsRequest>,
    ) -> Result<Response<v1::ChangeReservationsResponse>, Status> {
        Self::refuse()
    }

    async fn set_job_limit(
        &self,
        _: Request<v1::SetJobLimitRequest>,
    ) -> Result<Response<v1::SetJobLimitResponse>, Status> {
        Self::refuse()
    }

    async fn put_volume(
        &self,
        _: Request<v1::PutVolumeRequest>,
    ) -> Result<Response<v1::PutVolumeResponse>, Status> {
        Self::refuse()
    }

    async fn put_export(
        &self,
        _: Request<v1::PutExportRequest>,
    ) -> Result<Response<v1::PutExportResponse>, Status> {
        Self::refuse()
    }

    async fn get_volume(
        &self,
        _: Request<v1::GetVolumeRequest>,
    ) -> Result<Response<v1::VolumeStatus>, Status> {
        Self::refuse()
    }

    async fn list_volumes(
        &self,
        _: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let volumes = self.world.volumes_of(self.number).map(|volume| self.world.status(volume)).collect();
        Ok(Response::new(v1::ListVolumesResponse { volumes }))
    }

    async fn list_lvs(
        &self,
        _: Request<v1::ListLvsRequest>,
    ) -> Result<Response<v1::ListLvsResponse>, Status> {
        Self::refuse()
    }

    async fn get_capabilities(
        &self,
        _: Request<v1::GetCapabilitiesRequest>,
    ) -> Result<Response<v1::Capabilities>, Status> {
        // Called every ten seconds, with a new answer each time: each is a change to store.
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let pool = v1::Pool {
            name: "vg0".to_owned(),
            total_bytes: 100 << 40,
            free_bytes: (50 << 40) - (asked % 1_000) * (1 << 30),
            extent_bytes: 4 << 20,
            thick: true,
            volumes: self.world.volumes / self.world.agents.max(1),
            provisioned_bytes: 50 << 40,
            ..v1::Pool::default()
        };
        Ok(Response::new(v1::Capabilities {
            agent_id: world::agent_id(self.number).to_string(),
            host_name: world::agent_name(self.number),
            kernel_release: "light".to_owned(),
            multiattach: true,
            pools: vec![pool],
            transports: vec![v1::Transport {
                protocol: "iscsi".to_owned(),
                portals: vec![world::PORTAL.to_owned()],
                ready: true,
                ..v1::Transport::default()
            }],
            access_modes: vec![v1::Mode::ReadOnly.into(), v1::Mode::ReadWrite.into()],
            ..v1::Capabilities::default()
        }))
    }

    async fn plan(&self, _: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        Self::refuse()
    }

    type WatchStream = Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::Report, Status>> + Send>>;

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (to, reports) = tokio::sync::mpsc::channel(4);
        tokio::spawn(report(self.world, self.number, to));
        Ok(Response::new(Box::pin(ReceiverStream::new(reports))))
    }
}

async fn serve(args: Args) -> Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..args.world.agents {
        let path = args.folder.join(world::socket(number));
        let listener = UnixListener::bind(&path).with_context(|| format!("listen on {}", path.display()))?;
        let light = Light { number, world: args.world, asked: AtomicU64::new(0) };
        let service = AgentServer::from_arc(Arc::new(light));
        let server = tonic::transport::Server::builder().add_service(service);
        tasks.spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    }
    println!("ready");
    while let Some(ended) = tasks.join_next().await {
        ended?.context("serve an agent")?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done =
        runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(serve(Args::parse())));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-api-agents: {error:#}");
            ExitCode::FAILURE
        }
    }
}
