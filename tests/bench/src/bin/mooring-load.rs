//! A client that grants and revokes, and collects the agent's times, from the decoded request until
//! seen in the kernel, with the number of file operations.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use mooring_api::v1;
use mooring_api::v1::agent_client::AgentClient;
use mooring_bench::Figures;
use mooring_bench::spec::{export_spec, volume, volume_spec};
use mooring_model::ClusterId;
use serde::Serialize;

/// Grants and revokes through the agent's API
#[derive(Debug, Parser)]
struct Args {
    /// The agent's socket
    #[arg(long, default_value = "unix:/run/mooring/agent.sock")]
    agent: mooring_api::Address,
    /// The volume group
    #[arg(long, default_value = "vg0")]
    group: String,
    /// Bytes of each volume
    #[arg(long, default_value_t = 4 << 20)]
    size: u64,
    /// Only send the agent the volumes with numbers FROM..TO; they exist as LVs
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"])]
    adopt: Option<Vec<u32>>,
    /// Grant the volumes with numbers FROM..TO, once more each, and revoke that again; make the
    /// first grant read-only, and read-write again; keep it
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"])]
    grant: Option<Vec<u32>>,
}

/// The output.
#[derive(Serialize)]
struct Load {
    figures: Vec<Figures>,
    /// All numbers of file operations in the kernel's tree that a further grant took.
    further_grant_operations: BTreeSet<u64>,
}

struct Client {
    agent: AgentClient<mooring_api::Channel>,
    counter: u64,
}

impl Client {
    fn stamp(&mut self, spec: &impl mooring_api::Message) -> v1::Stamp {
        self.counter += 1;
        let generation = v1::Generation { epoch: 1, counter: self.counter };
        v1::Stamp { generation: Some(generation), digest: mooring_api::digest(spec, &[]).as_bytes().to_vec() }
    }

    fn sender() -> v1::Sender {
        v1::Sender { cluster_id: ClusterId::STANDALONE.to_string() }
    }

    async fn adopt(&mut self, number: u32, group: &str, size: u64) -> Result<()> {
        let spec = volume_spec(group, size);
        let stamp = self.stamp(&spec);
        let request = v1::PutVolumeRequest {
            sender: Some(Self::sender()),
            volume_id: volume(number).to_string(),
            stamp: Some(stamp),
            wish: Some(v1::put_volume_request::Wish::Spec(spec)),
            opaque: Vec::new(),
            deadline_ms: 60_000,
            new: false,
        };
        let answer = self.agent.put_volume(request).await?.into_inner();
        if !answer.done {
            bail!("volume {number}: {answer:?}");
        }
        Ok(())
    }

    /// Grants to hosts 0..hosts. Returns the agent's time until it was seen.
    async fn export(&mut self, number: u32, hosts: usize) -> Result<v1::Timing> {
        self.put(number, export_spec(hosts)).await
    }

    /// Makes the only grant read-only, or read-write again.
    async fn mode(&mut self, number: u32, mode: v1::Mode) -> Result<u64> {
        let mut spec = export_spec(1);
        for grant in &mut spec.grants {
            grant.mode = mode.into();
        }
        Ok(self.put(number, spec).await?.seen_us)
    }

    async fn put(&mut self, number: u32, spec: v1::ExportSpec) -> Result<v1::Timing> {
        let hosts = spec.grants.len();
        let stamp = self.stamp(&spec);
        let request = v1::PutExportRequest {
            sender: Some(Self::sender()),
            volume_id: volume(number).to_string(),
            stamp: Some(stamp),
            wish: Some(v1::put_export_request::Wish::Spec(spec)),
            opaque: Vec::new(),
            deadline_ms: 60_000,
            live_sessions: v1::LiveSessions::Cut.into(),
            reservations_copy: String::new(),
        };
        let answer = self.agent.put_export(request).await?.into_inner();
        let timing = answer.timing.unwrap_or_default();
        if !answer.done || timing.seen_us == 0 {
            bail!("volume {number}, {hosts} hosts: not seen: {:?}", answer.report);
        }
        Ok(timing)
    }
}

async fn run(args: Args) -> Result<Load> {
    let channel = mooring_api::connect(&args.agent, &mooring_api::TlsFiles::default()).await?;
    // Later runs need newer generations than earlier ones: the time of day provides them.
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let mut client = Client { agent: AgentClient::new(channel), counter: u64::try_from(since.as_micros())? };
    let range = |pair: Option<&[u32]>| match pair {
        Some([from, to]) => *from..*to,
        _ => 0..0,
    };
    for number in range(args.adopt.as_deref()) {
        client.adopt(number, &args.group, args.size).await?;
    }
    let (mut first, mut further, mut revoke, mut durable) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut mode = Vec::new();
    let mut operations = BTreeSet::new();
    for number in range(args.grant.as_deref()) {
        first.push(client.export(number, 1).await?.seen_us);
        let timing = client.export(number, 2).await?;
        further.push(timing.seen_us);
        durable.push(timing.durable_us);
        operations.insert(timing.tree_operations);
        revoke.push(client.export(number, 1).await?.seen_us);
        for to in [v1::Mode::ReadOnly, v1::Mode::ReadWrite] {
            mode.push(client.mode(number, to).await?);
        }
    }
    let figures = vec![
        Figures::of("first grant", first),
        Figures::of("further grant", further),
        Figures::of("durable", durable),
        Figures::of("revoke", revoke),
        Figures::of("mode change", mode),
    ];
    Ok(Load { figures, further_grant_operations: operations })
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result =
        runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(run(Args::parse())));
    match result.and_then(|load| Ok(serde_json::to_string(&load)?)) {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mooring-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}
