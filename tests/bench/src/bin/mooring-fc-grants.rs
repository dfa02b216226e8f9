//! Sends an agent the Fibre Channel grants of a volume, as a controller would: the kept export with
//! these grants in place of its Fibre Channel ones. Prints the answer as JSON.
//!
//! What must never happen here: a change of a grant over iSCSI.

use std::str::FromStr;

use anyhow::{Context, Result};
use clap::Parser;
use mooring_api::v1;
use mooring_api::v1::agent_client::AgentClient;
use mooring_model::{ClusterId, InitiatorSlot, Lun, Mode, VolumeId, Wwpn};
use serde_json::json;

#[derive(Debug, Parser)]
#[command(name = "mooring-fc-grants", about, version)]
struct Args {
    /// The agent's address
    #[arg(long, default_value = "unix:/run/mooring/agent.sock")]
    agent: mooring_api::Address,
    /// Milliseconds that the answer may wait for the kernel
    #[arg(long, default_value_t = 240_000)]
    deadline_ms: u32,
    /// The volume's id
    volume: VolumeId,
    /// WWPN,SLOT,LUN,rw|ro; without any, the volume has no Fibre Channel grant
    grants: Vec<Grant>,
}

#[derive(Debug, Clone)]
struct Grant {
    initiator: Wwpn,
    slot: InitiatorSlot,
    lun: Lun,
    mode: Mode,
}

impl FromStr for Grant {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split(',').collect();
        let [initiator, slot, lun, mode] = parts.as_slice() else {
            anyhow::bail!("want WWPN,SLOT,LUN,rw|ro")
        };
        Ok(Self {
            initiator: initiator.parse()?,
            slot: InitiatorSlot::new(slot.parse()?).context("slot 0")?,
            lun: Lun(lun.parse()?),
            mode: mode.parse()?,
        })
    }
}

impl From<&Grant> for v1::FcGrant {
    fn from(grant: &Grant) -> Self {
        Self {
            initiator: grant.initiator.to_string(),
            slot: u32::from(grant.slot.get()),
            lun: u32::from(grant.lun.0),
            mode: v1::Mode::from(grant.mode).into(),
            attachment_ids: Vec::new(),
        }
    }
}

async fn run(args: Args) -> Result<()> {
    let channel = mooring_api::connect(&args.agent, &mooring_api::TlsFiles::default()).await?;
    let mut agent = AgentClient::new(channel);
    let volume_id = args.volume.to_string();
    let status = agent.get_volume(v1::GetVolumeRequest { volume_id: volume_id.clone() }).await?.into_inner();
    let mut spec = status.export_spec.unwrap_or_default();
    let derived = v1::export_identity::Kind::Derived(v1::DerivedIdentity {});
    spec.identity.get_or_insert(v1::ExportIdentity { kind: Some(derived) });
    let fc = v1::FcExport { ports: Vec::new(), grants: args.grants.iter().map(Into::into).collect() };
    spec.fc = Some(fc).filter(|fc| !fc.grants.is_empty());
    let mut generation = status.export_stamp.and_then(|stamp| stamp.generation).unwrap_or_default();
    generation.counter += 1;
    let digest = mooring_api::digest(&spec, &status.export_opaque).as_bytes().to_vec();
    let request = v1::PutExportRequest {
        sender: Some(v1::Sender { cluster_id: ClusterId::STANDALONE.to_string() }),
        volume_id,
        stamp: Some(v1::Stamp { generation: Some(generation), digest }),
        wish: Some(v1::put_export_request::Wish::Spec(spec)),
        opaque: status.export_opaque,
        deadline_ms: args.deadline_ms,
        live_sessions: v1::LiveSessions::Cut.into(),
        reservations_copy: String::new(),
    };
    let answer = agent.put_export(request).await?.into_inner();
    let receipt = |receipt: &v1::Receipt| {
        json!({
            "initiator": receipt.initiator,
            "proven": receipt.proven,
            "nexus_removed": receipt.nexus_removed,
            "took_us": receipt.ended_us - receipt.began_us,
        })
    };
    let receipts: Vec<_> = answer.receipts.iter().map(receipt).collect();
    let seen_us = answer.timing.map(|timing| timing.seen_us);
    println!("{}", json!({ "done": answer.done, "seen_us": seen_us, "receipts": receipts }));
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(args))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
        let volume = "a0000000-1111-4222-8333-444444444444";
        let parse = |grant: &str| Args::try_parse_from(["mooring-fc-grants", volume, grant]);
        assert!(parse("20:00:52:54:00:14:00:0b,1,255,ro").is_ok());
        for bad in
            ["", "iqn.2026-01.lab:h,1,1,ro", "20:00:52:54:00:14:00:0b,0,1,ro", "20:00:52:54:00:14:00:0b,1,1"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
