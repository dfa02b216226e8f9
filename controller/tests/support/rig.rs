//! A controller with agents in memory, and what tests ask it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mooring_controller::domain::{
    Attachment, AttachmentLive, Caller, NewAttachment, NewConnector, NewVolume, Volume, VolumeStatus,
};
use mooring_controller::service::{AgentEntry, Refusal, Service, ServiceOptions, Wait};
use mooring_model::{AttachmentId, IqnPrefix, Mode, VolumeId};

use super::{Fake, World};

pub(crate) const LONG: Wait = Wait(Duration::from_secs(30));
pub(crate) const SHORT: Wait = Wait(Duration::from_millis(300));

/// A storage agent, some hosts, and a controller.
pub(crate) struct Rig {
    pub(crate) world: Arc<World>,
    pub(crate) storage: Fake,
    pub(crate) hosts: Vec<Fake>,
    pub(crate) service: Service,
    pub(crate) names: Vec<String>,
    dir: tempfile::TempDir,
}

pub(crate) fn member(project: &str) -> Caller {
    Caller {
        project: project.to_owned(),
        user: "u".to_owned(),
        admin: false,
        request: "req-00000000-0000-4000-8000-000000000000".to_owned(),
    }
}

pub(crate) fn admin() -> Caller {
    Caller { admin: true, ..member("p") }
}

impl Rig {
    /// `storage` and `host1…`, all up.
    pub(crate) async fn new(hosts: usize) -> Self {
        let rig = Self::quiet(hosts);
        rig.up().await;
        rig
    }

    /// The same, before anything is dialled.
    pub(crate) fn quiet(hosts: usize) -> Self {
        let world = Arc::new(World::default());
        let dir = tempfile::tempdir().unwrap();
        let storage = Fake::new(0x57, &world);
        storage.state().initiator.clear();
        let hosts: Vec<_> = (1..=hosts).map(|n| Fake::host(n as u128, &world)).collect();
        let mut names = vec!["storage".to_owned()];
        storage.serve(&dir.path().join("storage.sock"));
        for (index, host) in hosts.iter().enumerate() {
            let name = format!("host{}", index + 1);
            host.serve(&dir.path().join(format!("{name}.sock")));
            names.push(name);
        }
        let service = Service::open(options(&dir, &names, "state", false)).unwrap();
        Self { world, storage, hosts, service, names, dir }
    }

    pub(crate) async fn up(&self) {
        self.service.start();
        for name in &self.names {
            self.until_host(name, |host| host.up).await;
        }
    }

    pub(crate) async fn until_host(
        &self,
        name: &str,
        want: impl Fn(&mooring_controller::domain::Host) -> bool,
    ) {
        until(&format!("host {name}"), async || {
            let hosts = self.service.hosts(&admin()).await.unwrap();
            let host = hosts.into_iter().find(|host| host.name == name).unwrap();
            if want(&host) { Ok(()) } else { Err(format!("{host:?}")) }
        })
        .await;
    }

    /// The controller dies, and another starts on the same database, or on another folder.
    pub(crate) async fn restart(&mut self) {
        self.restart_on("state", false).await;
        for name in self.names.clone() {
            self.until_host(&name, |host| host.up).await;
        }
    }

    pub(crate) async fn restart_on(&mut self, state: &str, restored: bool) {
        self.service.stop().await;
        // The old one lets go of its database with its last handle.
        let spare = options(&self.dir, &[], &format!("spare-{}", uuid::Uuid::new_v4()), false);
        self.service = Service::open(spare).unwrap();
        let options = options(&self.dir, &self.names, state, restored);
        // A transaction that nobody waits for any more may still hold the file.
        self.service = until("the database", async || match Service::open(options.clone()) {
            Ok(service) => {
                service.start();
                Ok(service)
            }
            Err(error) => Err(format!("{error:?}")),
        })
        .await;
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) async fn shared_type(&self) -> String {
        let specs = BTreeMap::from([("multiattach".to_owned(), "<is> True".to_owned())]);
        let made = self.service.create_type(&admin(), "shared", None, true, specs).await;
        match made {
            Ok(_) | Err(Refusal::Conflict(_)) => "shared".to_owned(),
            Err(refusal) => panic!("{refusal}"),
        }
    }

    pub(crate) async fn volume(&self, shared: bool) -> VolumeId {
        let volume_type = if shared { Some(self.shared_type().await) } else { None };
        let made = self.service.create_volume(&admin(), NewVolume { volume_type, ..new_volume() }).await;
        let id = made.unwrap().id;
        self.until_volume(id, VolumeStatus::Available).await;
        id
    }

    pub(crate) async fn until_volume(&self, id: VolumeId, want: VolumeStatus) -> Volume {
        until("the volume", async || {
            let volume = self.service.volume(&admin(), id).await.unwrap();
            if volume.status == want { Ok(volume) } else { Err(format!("{volume:?}")) }
        })
        .await
    }

    pub(crate) async fn attach(&self, volume: VolumeId, host: &str, mode: Mode) -> AttachmentLive {
        let made = self.service.create_attachment(&admin(), native(volume, host, mode), LONG).await.unwrap();
        self.until_attached(made.id).await
    }

    pub(crate) async fn until_attached(&self, id: AttachmentId) -> AttachmentLive {
        self.until_live(id, |live| {
            live.attachment.status == mooring_controller::domain::AttachmentStatus::Attached
        })
        .await
    }

    pub(crate) async fn until_live(
        &self,
        id: AttachmentId,
        want: impl Fn(&AttachmentLive) -> bool,
    ) -> AttachmentLive {
        let mut live = self.service.live(&admin(), id, None, LONG).await.unwrap();
        let limit = tokio::time::Instant::now() + LONG.0;
        while !want(&live) {
            assert!(tokio::time::Instant::now() < limit, "{live:?}");
            let wait = Wait(Duration::from_secs(5));
            live = self.service.live(&admin(), id, Some(live.revision), wait).await.unwrap();
        }
        live
    }

    pub(crate) async fn until_gone(&self, id: AttachmentId) {
        until("the end of the attachment", async || match self.service.attachment(&admin(), id).await {
            Err(Refusal::NotFound { .. }) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
}

fn options(dir: &tempfile::TempDir, names: &[String], state: &str, restored: bool) -> ServiceOptions {
    let entry = |name: &String| AgentEntry {
        name: name.clone(),
        address: format!("unix:{}", dir.path().join(format!("{name}.sock")).display()).parse().unwrap(),
        tls: mooring_api::TlsFiles::default(),
        insecure: false,
    };
    ServiceOptions {
        state_dir: dir.path().join(state),
        agents: names.iter().map(entry).collect(),
        cluster: Some(mooring_model::ClusterId::from_u128(0xc1)),
        iqn_prefix: IqnPrefix::default(),
        restored,
    }
}

pub(crate) fn new_volume() -> NewVolume {
    NewVolume {
        id: None,
        name: Some("v".to_owned()),
        description: None,
        size_gib: 1,
        volume_type: None,
        metadata: BTreeMap::new(),
    }
}

pub(crate) fn native(volume: VolumeId, host: &str, mode: Mode) -> NewAttachment {
    NewAttachment {
        id: None,
        volume,
        instance: None,
        mode: Some(mode),
        connector: NewConnector::Native(host.to_owned()),
    }
}

pub(crate) fn connector(number: u32) -> serde_json::Map<String, serde_json::Value> {
    let value = serde_json::json!({
        "host": format!("node{number}"), "initiator": format!("iqn.2026-01.org.example:node{number}"),
        "ip": "192.0.2.11", "multipath": false, "mountpoint": "/dev/vdb",
    });
    value.as_object().unwrap().clone()
}

pub(crate) fn client(volume: VolumeId, number: u32) -> NewAttachment {
    NewAttachment {
        connector: NewConnector::Client(connector(number)),
        mode: None,
        ..native(volume, "", Mode::ReadWrite)
    }
}

pub(crate) fn reserve(volume: VolumeId) -> NewAttachment {
    NewAttachment { connector: NewConnector::None, ..client(volume, 0) }
}

/// Waits for something that comes by itself. What is asked for has no signal of its own: it is looked at often, and the
/// limit is only for a test that hangs.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFn() -> Result<T, String>) -> T {
    let limit = tokio::time::Instant::now() + LONG.0;
    loop {
        match look().await {
            Ok(value) => return value,
            Err(seen) => assert!(tokio::time::Instant::now() < limit, "{what} does not come: {seen}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn connection_info(attachment: &Attachment) -> &serde_json::Map<String, serde_json::Value> {
    attachment.connection_info.as_ref().unwrap()
}
