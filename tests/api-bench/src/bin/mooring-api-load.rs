//! The client of `cargo xtask bench api`, in a process of its own so that its cost is separate:
//! attachment cycles as Nova makes them, or reads at random places of the large world. Prints one
//! line of JSON.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use hyper::Method;
use mooring_api_bench::client::{Client, Target};
use mooring_api_bench::cost::{self, Spent, Watched};
use mooring_api_bench::figures::Figures;
use mooring_api_bench::table::Measured;
use mooring_api_bench::world::{self, World};
use serde_json::json;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Measures the Block Storage API
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    target: Target,
    /// Also report the processor time of this process: NAME=PID
    #[arg(long = "watch", value_name = "NAME=PID")]
    watched: Vec<Watched>,
    #[command(subcommand)]
    load: Load,
}

#[derive(Debug, Subcommand)]
enum Load {
    /// Attachments: create, update with a connector, complete, delete; each client makes one after
    /// the other
    Cycles {
        /// The volumes; client N takes the Nth, counted in a circle
        #[arg(long = "volume", required = true)]
        volumes: Vec<String>,
        /// Number of clients at a time, each with its connection
        #[arg(long, default_value_t = 1)]
        clients: usize,
        /// Seconds to measure, after one that is not measured
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Measure this many cycles of each client instead, without a warm-up
        #[arg(long, value_name = "CYCLES", conflicts_with = "seconds")]
        exactly: Option<u64>,
    },
    /// Reads
    Reads {
        #[command(flatten)]
        world: World,
        /// Number of single volumes
        #[arg(long, default_value_t = 2_000)]
        shows: u32,
        /// Number of pages of each kind
        #[arg(long, default_value_t = 100)]
        pages: u32,
    },
}

const STEPS: [&str; 4] = ["create", "update", "complete", "delete"];

type Samples = BTreeMap<&'static str, Vec<u64>>;

async fn timed<T>(
    samples: &mut Samples,
    name: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let began = Instant::now();
    let done = call.await.context(name)?;
    samples.entry(name).or_default().push(u64::try_from(began.elapsed().as_micros())?);
    Ok(done)
}

/// Makes one attachment from its beginning to its end, as the compute service does.
async fn cycle(client: &mut Client, volume: &str, host: usize, samples: &mut Samples) -> Result<()> {
    let instance = Uuid::from_u128(fastrand::u128(..));
    let body =
        json!({ "attachment": { "volume_uuid": volume, "instance_uuid": instance, "connector": null } });
    let id = timed(samples, STEPS[0], async {
        let made = client.ask(Method::POST, "/attachments", Some(&body)).await?.expect(200)?;
        made["attachment"]["id"].as_str().map(str::to_owned).context("the answer has no id")
    })
    .await?;
    let path = format!("/attachments/{id}");
    let connector = json!({
        "platform": "x86_64", "os_type": "linux", "ip": "192.0.2.11", "host": format!("compute{host}"),
        "multipath": false, "initiator": format!("iqn.2026-01.org.example:compute{host}"),
        "do_local_attach": false, "mountpoint": "/dev/vdb", "system uuid": instance,
    });
    let body = json!({ "attachment": { "connector": connector } });
    timed(samples, STEPS[1], async {
        let seen = client.ask(Method::PUT, &path, Some(&body)).await?.expect(200)?;
        let info = &seen["attachment"]["connection_info"];
        ensure!(info["auth_password"].is_string(), "no credentials in {seen}");
        Ok(())
    })
    .await?;
    let action = format!("{path}/action");
    let body = json!({ "os-complete": {} });
    timed(samples, STEPS[2], async {
        client.ask(Method::POST, &action, Some(&body)).await?.expect(204)?;
        Ok(())
    })
    .await?;
    timed(samples, STEPS[3], async {
        client.ask(Method::DELETE, &path, None).await?.expect(200)?;
        Ok(())
    })
    .await
}

/// Processor time of this process and of the watched ones, between two looks.
struct Costs {
    watched: Vec<Watched>,
    before: Vec<Spent>,
    began: Instant,
}

impl Costs {
    fn begin(mut watched: Vec<Watched>) -> Result<Self> {
        watched.push(Watched { name: "client".to_owned(), pid: std::process::id() });
        let before = watched.iter().map(cost::spent).collect::<Result<_>>()?;
        Ok(Self { watched, before, began: Instant::now() })
    }

    fn end(self) -> Result<(f64, Vec<Spent>)> {
        let took = self.began.elapsed().as_secs_f64();
        let mut spent = Vec::new();
        for (watched, before) in self.watched.iter().zip(self.before) {
            let now = cost::spent(watched)?;
            spent.push(Spent { name: now.name, seconds: now.seconds - before.seconds });
        }
        Ok((took, spent))
    }
}

/// The end of a client's run.
#[derive(Debug, Clone, Copy)]
enum Span {
    /// After this many seconds, and one before that is not measured.
    Seconds(u64),
    /// After this many cycles.
    Exactly(u64),
}

async fn cycles(args: &Args, volumes: &[String], clients: usize, span: Span) -> Result<Measured> {
    let (warm, last, most) = match span {
        Span::Seconds(seconds) => (1, seconds, u64::MAX),
        // The caller notices a run that never ends.
        Span::Exactly(count) => (0, 3_600, count),
    };
    let start = Instant::now() + Duration::from_secs(warm);
    let end = start + Duration::from_secs(last);
    let mut tasks: JoinSet<Result<(u64, Samples)>> = JoinSet::new();
    let volumes: Arc<[String]> = volumes.into();
    for number in 0..clients {
        let mut client = Client::connect(&args.target).await?;
        let volumes = Arc::clone(&volumes);
        tasks.spawn(async move {
            let volume = &volumes[number % volumes.len()];
            while Instant::now() < start {
                cycle(&mut client, volume, number, &mut Samples::new()).await?;
            }
            let mut samples = Samples::new();
            let mut count = 0;
            while Instant::now() < end && count < most {
                cycle(&mut client, volume, number, &mut samples).await?;
                count += 1;
            }
            Ok((count, samples))
        });
    }
    tokio::time::sleep_until(start.into()).await;
    let costs = Costs::begin(args.watched.clone())?;
    let (mut count, mut samples) = (0, Samples::new());
    while let Some(ended) = tasks.join_next().await {
        let (own, times) = ended??;
        count += own;
        for (name, mut times) in times {
            samples.entry(name).or_default().append(&mut times);
        }
    }
    let (took, spent) = costs.end()?;
    let figures = STEPS.iter().map(|name| Figures::of(name, samples.remove(name).unwrap_or_default()));
    Ok(Measured { cycles: count, seconds: took, figures: figures.collect(), spent })
}

async fn reads(args: &Args, world: &World, shows: u32, pages: u32) -> Result<Measured> {
    let mut client = Client::connect(&args.target).await?;
    let costs = Costs::begin(args.watched.clone())?;
    let volume = || world::volume_id(fastrand::u32(..world.volumes)).to_string();
    let attachment = || world::attachment_id(fastrand::u32(..world.attachments)).to_string();
    let page = |path: &str, marker: &str| format!("{path}?limit=1000&marker={marker}");
    let mut figures = Vec::new();
    let kinds: [(&'static str, u32, &dyn Fn() -> String); 6] = [
        ("GET /volumes/{id}", shows, &|| format!("/volumes/{}", volume())),
        ("GET /attachments/{id}", shows, &|| format!("/attachments/{}", attachment())),
        ("GET /volumes, 1000", pages, &|| page("/volumes", &volume())),
        ("GET /volumes/detail, 1000", pages, &|| page("/volumes/detail", &volume())),
        ("GET /attachments, 1000", pages, &|| page("/attachments", &attachment())),
        ("GET /attachments/detail, 1000", pages, &|| page("/attachments/detail", &attachment())),
    ];
    for (name, times, path) in kinds {
        let mut samples = Samples::new();
        for _ in 0..times {
            let path = path();
            timed(&mut samples, name, async {
                let answer = client.ask(Method::GET, &path, None).await?;
                ensure!(answer.status == 200, "{path}: {}", answer.status);
                Ok(())
            })
            .await?;
        }
        figures.push(Figures::of(name, samples.remove(name).unwrap_or_default()));
    }
    let (took, spent) = costs.end()?;
    Ok(Measured { cycles: 0, seconds: took, figures, spent })
}

async fn run(args: Args) -> Result<Measured> {
    match &args.load {
        Load::Cycles { volumes, clients, seconds, exactly } => {
            let span = exactly.map_or(Span::Seconds(*seconds), Span::Exactly);
            cycles(&args, volumes, *clients, span).await
        }
        Load::Reads { world, shows, pages } => reads(&args, world, *shows, *pages).await,
    }
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(run(Args::parse())));
    match done.and_then(|measured| Ok(serde_json::to_string(&measured)?)) {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mooring-api-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}
