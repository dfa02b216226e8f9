//! `mooring volume manageable`, `manage`, `unmanage`: turns existing logical volumes into volumes
//! with their content, and back.
//!
//! What must never happen here: a deletion; a second volume made by a repetition; a storage node
//! left out without a word.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Exit;
use crate::args::ManageArgs;
use crate::controller::Client;
use crate::controller::answers::{Volume, VolumeCreated};
use crate::controller::client::{Call, PAUSE, wrapped};
use crate::controller::records::{Hosts, OneVolume, VolumeRecord};
use crate::controller::volume;
use crate::error::Failure;
use crate::output::Reply;
use crate::table::{NONE, named, or_none, size, table};
use crate::text::one_line;
use crate::volume_ref::{VolumeName, VolumeRef};

/// The metadata key that names the volume's original LV; a repeated command recognises its volume
/// by it.
const ORIGIN: &str = "managed-from";

/// `{"manageable-volumes": […]}`
#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "manageable-volumes")]
    lvs: Vec<LvRecord>,
}

#[derive(Deserialize)]
struct LvRecord {
    reference: Reference,
    size: u64,
    safe_to_manage: bool,
    reason_not_safe: Option<String>,
    cinder_id: Option<String>,
    #[serde(default)]
    extra_info: Extra,
}

#[derive(Deserialize)]
struct Reference {
    #[serde(rename = "source-name")]
    name: String,
}

#[derive(Default, Deserialize)]
struct Extra {
    provisioning: Option<String>,
}

/// A logical volume in a group of a storage node.
#[derive(Debug, Serialize)]
pub(crate) struct Lv {
    host: String,
    /// `GROUP/LV`.
    #[serde(rename = "lv")]
    path: String,
    size_gib: u64,
    /// `thick` or `thin`.
    provisioning: Option<String>,
    /// `true`: it can become a volume now.
    manageable: bool,
    /// The reason why it cannot, and the remedy.
    reason: Option<String>,
    /// The volume that it already is.
    volume_id: Option<String>,
}

/// `volume manageable`.
#[derive(Debug, Serialize)]
pub(crate) struct Lvs {
    lvs: Vec<Lv>,
    /// Storage nodes that are down: their LVs are unknown.
    not_asked: Vec<String>,
}

/// `volume unmanage`.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeUnmanaged {
    done: bool,
    volume_id: String,
    name: Option<String>,
    status: String,
    /// The LV's name in its group from now on.
    lv: String,
}

impl Display for Lvs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.lvs.is_empty() {
            f.write_str("no logical volumes")?;
        } else {
            let row = |lv: &Lv| {
                [
                    lv.host.clone(),
                    lv.path.clone(),
                    size(lv.size_gib << 30),
                    or_none(lv.provisioning.as_deref()),
                    if lv.manageable { "yes" } else { "no" }.to_owned(),
                    match (&lv.volume_id, &lv.reason) {
                        (Some(id), _) => format!("is volume {id}"),
                        (None, reason) => reason.clone().unwrap_or_else(|| NONE.to_owned()),
                    },
                ]
            };
            let heads = ["HOST", "LV", "SIZE", "PROVISIONING", "MANAGEABLE", "WHY NOT"];
            f.write_str(&table(heads, self.lvs.iter().map(row)))?;
        }
        self.not_asked.iter().try_for_each(|host| write!(f, "\nnot asked: {} is down", one_line(host)))
    }
}

impl Display for VolumeUnmanaged {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let volume = named(self.name.as_deref(), &self.volume_id);
        if self.done {
            let lv = one_line(&self.lv);
            return write!(f, "volume {volume} is unmanaged; its data stays in the logical volume {lv}");
        }
        write!(
            f,
            "volume {volume}: accepted, not unmanaged yet ({}); repeat the command to wait for it",
            self.status
        )
    }
}

/// The storage node's name in the Block Storage API.
fn service(host: &str) -> String {
    if host.contains('@') { host.to_owned() } else { format!("{host}@lvm") }
}

async fn lvs_of(client: &Client, host: &str) -> Result<Vec<Lv>, Failure> {
    let service = service(host);
    let mut all: Vec<Lv> = Vec::new();
    loop {
        let mut call =
            Call::get("the list of logical volumes", &["v3", "manageable_volumes", "detail"]).at("3.8");
        call = call.query("host", &service).query("sort", &"reference:asc");
        if let Some(last) = all.last() {
            call = call.query("marker", &last.path);
        }
        let page = client.read::<Listed>(call).await?.lvs;
        let known = all.len();
        all.extend(page.into_iter().map(|lv| Lv {
            host: host.to_owned(),
            path: lv.reference.name,
            size_gib: lv.size,
            provisioning: lv.extra_info.provisioning,
            manageable: lv.safe_to_manage,
            reason: lv.reason_not_safe,
            volume_id: lv.cinder_id,
        }));
        if all.len() == known {
            return Ok(all);
        }
    }
}

/// `volume manageable`: asks one storage node, or all that are up.
pub(crate) async fn list(client: &Client, host: Option<&str>) -> Result<Reply<Lvs>, Failure> {
    if let Some(host) = host {
        return Ok(Reply::ok(Lvs { lvs: lvs_of(client, host).await?, not_asked: Vec::new() }));
    }
    let call = Call::get("the list of hosts", &["mooring", "v1", "hosts"]);
    let mut hosts = client.read::<Hosts>(call).await?.hosts;
    hosts.sort_by(|a, b| a.name.cmp(&b.name));
    let (mut lvs, mut not_asked) = (Vec::new(), Vec::new());
    for host in hosts.iter().filter(|host| !host.pools.is_empty()) {
        if host.up {
            lvs.extend(lvs_of(client, &host.name).await?);
        } else {
            not_asked.push(host.name.clone());
        }
    }
    Ok(Reply::ok(Lvs { lvs, not_asked }))
}

/// The volume that an earlier run of the same command made; `None`: there is none.
async fn known(client: &Client, name: &VolumeName, origin: &str) -> Result<Option<VolumeRecord>, Failure> {
    let mut same = volume::named(client, name).await?;
    let is = |volume: &VolumeRecord| volume.metadata.get(ORIGIN).is_some_and(|of| of == origin);
    if let Some(other) = same.iter().find(|volume| !is(volume)) {
        return Err(Failure::Refused(format!(
            "a volume named {:?} exists: {}. Choose another name with --name",
            name.to_string(),
            other.id
        )));
    }
    Ok(same.pop())
}

/// Takes the LV, unless an earlier run of the same command did. A request whose answer is lost is
/// not repeated blindly.
async fn take(client: &Client, args: &ManageArgs, name: &VolumeName) -> Result<VolumeRecord, Failure> {
    let origin = format!("{}:{}", args.host, args.lv);
    let mut pause = PAUSE.0;
    loop {
        if let Some(known) = known(client, name, &origin).await? {
            return Ok(known);
        }
        let mut body = json!({
            "host": service(&args.host), "ref": { "source-name": args.lv }, "name": name.to_string(),
            "bootable": args.bootable, "metadata": { ORIGIN: origin },
        });
        if let Some(kind) = &args.kind {
            body["volume_type"] = json!(kind);
        }
        let call =
            Call::add("the new volume", &["v3", "manageable_volumes"], wrapped("volume", body)).at("3.8");
        match client.read::<OneVolume>(call).await {
            Err(fault) if client.again(&fault, &mut pause).await => {}
            sent => return Ok(sent?.volume),
        }
    }
}

/// `volume manage`.
pub(crate) async fn manage(client: &Client, args: &ManageArgs) -> Result<Reply<VolumeCreated>, Failure> {
    let own = args.lv.split_once('/').map_or("", |(_, lv)| lv);
    let name = match &args.name {
        Some(name) => name.clone(),
        None => own.parse().map_err(|error| {
            Failure::Usage(format!("{own} cannot be the volume's name, too ({error}): say one with --name"))
        })?,
    };
    let volume = take(client, args, &name).await?;
    let Some(volume) = volume::settled(client, volume, "managing").await? else {
        return Err(Failure::Refused("the volume was deleted while it was being made".to_owned()));
    };
    if volume.status.starts_with("error") {
        return Err(Failure::Broken(format!(
            "{} did not become volume {}: its status is {}. `mooring volume show {}` says why, and `mooring volume delete {}` gives \
             up: its data stays",
            args.lv, volume.id, volume.status, volume.id, volume.id
        )));
    }
    let done = volume.status != "managing";
    Ok(Reply::when(done, VolumeCreated { done, name: name.to_string(), volume: Volume::of_record(volume) }))
}

/// `volume unmanage`. Ids are never reused: a volume that the controller does not know is already
/// unmanaged.
pub(crate) async fn unmanage(client: &Client, of: &VolumeRef) -> Result<Reply<VolumeUnmanaged>, Failure> {
    let answer = |id: String, name: Option<String>, status: &str| {
        let (done, lv) = (status == "gone", format!("mooring-{id}"));
        Reply::when(done, VolumeUnmanaged { done, volume_id: id, name, status: status.to_owned(), lv })
    };
    let found = match (volume::find(client, of).await, of) {
        (Ok(found), _) => found,
        (Err(failure), VolumeRef::Id(id)) if failure.exit() == Exit::NotFound => {
            return Ok(answer(id.to_string(), None, "gone"));
        }
        (Err(failure), _) => return Err(failure),
    };
    let (id, name) = (found.id.clone(), found.name.clone());
    if found.status != "unmanaging" {
        let body = wrapped("os-unmanage", json!({}));
        match client.done(Call::make("the unmanaging", &["v3", "volumes", &id, "action"], body)).await {
            Err(fault) if fault.status() == Some(404) => return Ok(answer(id, name, "gone")),
            sent => sent?,
        }
    }
    let leaving = VolumeRecord { status: "unmanaging".to_owned(), ..found };
    match volume::settled(client, leaving, "unmanaging").await? {
        None => Ok(answer(id, name, "gone")),
        Some(now) if now.status == "unmanaging" => Ok(answer(id, name, "unmanaging")),
        Some(now) => Err(Failure::Broken(format!(
            "volume {id} is not unmanaged: its status is {}. `mooring volume show {id}` says why; repeat the command once its \
             storage node is well",
            now.status
        ))),
    }
}
