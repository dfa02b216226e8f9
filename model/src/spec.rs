//! The spec of one volume and the spec of one volume's export. Specs travel per object.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::limit::{
    CHAP_BYTES_MAX, CHAP_SECRET_BYTES_MIN, GRANTS_PER_EXPORT_MAX, LV_UUID_BYTES_MAX, PORTALS_PER_EXPORT_MAX,
    SERIAL_BYTES_MAX, VOLUME_BYTES_MAX, VOLUME_BYTES_MIN,
};
use crate::{
    AttachmentId, BackstoreName, BarrierId, ByteSize, FcExportSpec, FcPort, ImageSource, Iqn, IqnPrefix,
    LUN_DEFAULT, Lun, LvName, Mode, Naa, Portal, RevertId, Secret, SpecError, TPG_DEFAULT, Tuning, UploadId,
    VgName, VolumeId,
};

/// The way in which a volume gets its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provisioning {
    /// All extents are allocated at creation.
    Thick,
    /// Blocks come from the group's thin pool when they are written; unwritten blocks read as
    /// zeros.
    Thin,
}

/// The place where volumes are created: a group for thick volumes, or a group's thin pool. As text
/// `vg0` and `vg0:thin`; no group has a colon in its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolName {
    /// The group.
    pub group: VgName,
    /// `true`: the group's thin pool.
    pub thin: bool,
}

impl PoolName {
    const THIN: &'static str = ":thin";

    /// The provisioning of its volumes.
    pub const fn provisioning(&self) -> Provisioning {
        if self.thin { Provisioning::Thin } else { Provisioning::Thick }
    }
}

impl FromStr for PoolName {
    type Err = <VgName as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (group, thin) = text.strip_suffix(Self::THIN).map_or((text, false), |group| (group, true));
        Ok(Self { group: group.parse()?, thin })
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.group, if self.thin { Self::THIN } else { "" })
    }
}

/// The kind of an LV that Mooring owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    /// A volume: exported and written to.
    #[default]
    Volume,
    /// A volume's content at one moment. It has no device and is never exported: volumes are made
    /// from it.
    Snapshot,
}

/// The origin of a new LV's content. Both LVs lie in one thin pool: nothing is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The content of this volume at that moment: all writes acknowledged before it, as after a
    /// power cut.
    Volume(VolumeId),
    /// The content of this snapshot. Snapshot ids are of the same type as volume ids, and no id is
    /// used for both.
    Snapshot(VolumeId),
}

impl Source {
    /// The id of the volume or snapshot.
    pub const fn id(self) -> VolumeId {
        match self {
            Self::Volume(id) | Self::Snapshot(id) => id,
        }
    }

    /// The name of the origin's LV.
    pub fn lv(self) -> LvName {
        match self {
            Self::Volume(id) => LvName::of(id),
            Self::Snapshot(id) => LvName::snapshot_of(id),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(id) => write!(f, "volume {id}"),
            Self::Snapshot(id) => write!(f, "snapshot {id}"),
        }
    }
}

/// An LV that someone else made, and that will become a volume with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingLv {
    /// The LV's current name.
    pub name: LvName,
    /// LVM's UUID of it: another LV of that name is not taken.
    pub uuid: String,
}

impl ExistingLv {
    /// Checks what the types alone cannot guarantee.
    fn check(&self) -> Result<(), SpecError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if self.uuid.is_empty() || self.uuid.len() > LV_UUID_BYTES_MAX || !self.uuid.bytes().all(plain) {
            return Err(SpecError::new("takes.uuid", "is not LVM's identity of an LV (lvs -o lv_uuid)"));
        }
        Ok(())
    }
}

/// A volume's one-time return to the content of a snapshot of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revert {
    /// The snapshot, taken of this volume. It is kept.
    pub snapshot: VolumeId,
    /// Identifies this revert: there may be a later one to the same snapshot.
    pub id: RevertId,
}

/// A volume's one-time copy to a new file. Named like the status `uploading` of the Block Storage
/// API: an export is a target here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The file, which does not exist yet, and its format.
    pub image: ImageSource,
    /// Identifies this copy: there may be a later one to a file of the same name.
    pub id: UploadId,
}

/// The spec of one volume or one snapshot: an LV of this size in this group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpec {
    /// The volume, or the snapshot.
    pub id: VolumeId,
    /// The volume group, which must be listed in the agent's configuration.
    pub group: VgName,
    /// The size in bytes; LVM rounds it up to whole extents.
    pub size: ByteSize,
    /// The provisioning.
    pub provisioning: Provisioning,
    /// The kind: volume or snapshot.
    pub kind: VolumeKind,
    /// The origin of the initial content. `None` for a volume: zeros. `None` for a snapshot: it was
    /// already taken; if it is lost, it is not taken again from the volume's later content.
    pub source: Option<Source>,
    /// The foreign LV that becomes this volume and keeps its content, until it is the volume's own.
    /// `None`: an LV is made.
    pub takes: Option<ExistingLv>,
    /// The image that is copied into it, until the volume was seen to be ready.
    pub image: Option<ImageSource>,
    /// The snapshot whose content replaces the volume's, until that is done.
    pub revert: Option<Revert>,
    /// The file that it is copied to, until that is done.
    pub upload: Option<Upload>,
    /// Time by the sender's clock at which an operator isolated the volume from its disk. Until the
    /// operator ends it, every command fails with an error, and no work is done on the volume.
    /// `None`: not isolated.
    pub cut: Option<SystemTime>,
}

impl VolumeSpec {
    /// Makes the spec of a volume that reads as zeros at first.
    pub const fn new(id: VolumeId, group: VgName, size: ByteSize, provisioning: Provisioning) -> Self {
        Self {
            id,
            group,
            size,
            provisioning,
            kind: VolumeKind::Volume,
            source: None,
            takes: None,
            image: None,
            revert: None,
            upload: None,
            cut: None,
        }
    }

    /// The name of the volume's LV.
    pub fn lv(&self) -> LvName {
        match self.kind {
            VolumeKind::Volume => LvName::of(self.id),
            VolumeKind::Snapshot => LvName::snapshot_of(self.id),
        }
    }

    /// Checks the origin of blocks that it shares.
    fn check_source(&self) -> Result<(), SpecError> {
        let wrong = |field: &str, why: &str| Err(SpecError::new(field, why));
        match (self.kind, self.source) {
            (VolumeKind::Snapshot, Some(Source::Snapshot(_))) => {
                return wrong("source", "the source of a snapshot is a volume: want the volume's id");
            }
            (_, Some(source)) if source.id() == self.id => {
                return wrong("source", "it cannot be made from itself");
            }
            _ => {}
        }
        if self.provisioning == Provisioning::Thick
            && (self.kind == VolumeKind::Snapshot || self.source.is_some())
        {
            return wrong("provisioning", "a thick volume has no snapshots and no source: want THIN");
        }
        Ok(())
    }

    /// Checks what the types alone cannot guarantee.
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_source()?;
        if let Some(takes) = &self.takes {
            takes.check()?;
            if self.kind == VolumeKind::Snapshot || self.source.is_some() {
                return Err(SpecError::new(
                    "takes",
                    "a volume that takes over an LV cannot have a source, and cannot be a snapshot",
                ));
            }
        }
        if self.image.is_some()
            && (self.kind == VolumeKind::Snapshot || self.source.is_some() || self.takes.is_some())
        {
            return Err(SpecError::new(
                "source.image",
                "an image cannot be combined with another source, an LV that is taken over, or a snapshot",
            ));
        }
        if self.revert.is_some_and(|revert| revert.snapshot == self.id)
            || self.revert.is_some()
                && (self.kind == VolumeKind::Snapshot || self.provisioning == Provisioning::Thick)
        {
            return Err(SpecError::new(
                "revert",
                "only a thin volume can be reverted, and only to a snapshot of it",
            ));
        }
        if self.upload.is_some()
            && (self.kind == VolumeKind::Snapshot || self.revert.is_some() || self.image.is_some())
        {
            let why =
                "a snapshot, or a volume that is being reverted or imported, cannot be exported to a file";
            return Err(SpecError::new("upload", why));
        }
        if self.cut.is_some() && (self.kind == VolumeKind::Snapshot || self.revert.is_some()) {
            return Err(SpecError::new(
                "cut_us",
                "a snapshot, or a volume that is being reverted, cannot be isolated",
            ));
        }
        if self.size.0 < VOLUME_BYTES_MIN {
            return Err(SpecError::new(
                "size",
                format!("{} is less than the smallest volume, {}", self.size, ByteSize(VOLUME_BYTES_MIN)),
            ));
        }
        if self.size.0 > VOLUME_BYTES_MAX {
            return Err(SpecError::new("size", format!("{} is more than LVM can hold", self.size)));
        }
        if !self.size.0.is_multiple_of(512) {
            return Err(SpecError::new(
                "size",
                format!("{} bytes is not a whole number of 512-byte blocks", self.size.0),
            ));
        }
        Ok(())
    }
}

/// One direction of CHAP: a name and its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChapSide {
    /// The user name.
    pub user: String,
    /// The secret.
    pub secret: Secret,
}

/// CHAP of one initiator: it proves itself to the target, and with `mutual` also the target to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chap {
    /// The initiator's credentials.
    pub initiator: ChapSide,
    /// The target's credentials; `None`: only the initiator proves itself.
    pub mutual: Option<ChapSide>,
}

impl Chap {
    pub(crate) fn check(&self, field: &str) -> Result<(), SpecError> {
        self.initiator.check(field)?;
        let Some(mutual) = &self.mutual else { return Ok(()) };
        mutual.check(&format!("{field}.mutual"))?;
        // RFC 7143, 9.2.1: an attacker could reflect the challenge if both directions shared a
        // secret.
        if mutual.secret == self.initiator.secret {
            return Err(SpecError::new(
                format!("{field}.mutual.secret"),
                "must differ from the initiator's secret",
            ));
        }
        Ok(())
    }
}

impl ChapSide {
    fn check(&self, field: &str) -> Result<(), SpecError> {
        // configfs keeps a newline as part of the credential, and then every login fails (lio.md,
        // a).
        let printable = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        if self.user.is_empty() || self.user.len() > CHAP_BYTES_MAX || !printable(&self.user) {
            return Err(SpecError::new(
                format!("{field}.user"),
                "want 1 to 255 printable ASCII characters without blanks",
            ));
        }
        // LIO compares only the first four bytes with "NULL", and treats such a value as "not set".
        if self.user.starts_with("NULL") || self.secret.expose().starts_with("NULL") {
            return Err(SpecError::new(field, "the kernel takes what begins with NULL as 'no credential'"));
        }
        let secret = self.secret.expose();
        if !(CHAP_SECRET_BYTES_MIN..=CHAP_BYTES_MAX).contains(&secret.len()) || !printable(secret) {
            return Err(SpecError::new(
                format!("{field}.secret"),
                format!(
                    "want {CHAP_SECRET_BYTES_MIN} to {CHAP_BYTES_MAX} printable ASCII characters without blanks"
                ),
            ));
        }
        Ok(())
    }
}

/// The spec of one initiator's access to the volume. The nexus is the unit of enforcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The initiator.
    pub initiator: Iqn,
    /// The LUN number that the initiator sees.
    pub lun: Lun,
    /// The access it allows.
    pub mode: Mode,
    /// CHAP credentials. `None`: the ACL's name alone admits the initiator.
    pub chap: Option<Chap>,
    /// The attachments that share this nexus.
    pub attachments: Vec<AttachmentId>,
    /// A barrier for a read-only grant. The report names it once every command that was in flight
    /// at the request has landed. The initiator's sessions are dropped for it once, and return by
    /// themselves.
    pub barrier: Option<BarrierId>,
}

/// The source of an export's identity on disks and wires.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ExportIdentity {
    /// Every name is a function of the volume's id.
    #[default]
    Derived,
    /// Names adopted from an existing export, kept unchanged for ever.
    Recorded {
        /// The target's name.
        iqn: Iqn,
        /// Portal group.
        tpg: u16,
        /// The TPG's LUN.
        lun: Lun,
        /// Unit serial.
        serial: String,
        /// The LV's name in its group.
        lv: String,
        /// The backstore's HBA folder and name.
        backstore: BackstoreName,
        /// INQUIRY shows the backstore's name as the model.
        model_alias: bool,
    },
}

/// An export's identity with every name resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportNames {
    /// The target's name.
    pub iqn: Iqn,
    /// Portal group.
    pub tpg: u16,
    /// The TPG's LUN.
    pub lun: Lun,
    /// Unit serial.
    pub serial: String,
    /// The LV's name in its group.
    pub lv: String,
    /// The backstore's HBA folder and name.
    pub backstore: BackstoreName,
    /// INQUIRY shows the backstore's name as the model, as `targetcli` sets it: initiators name
    /// disks by it.
    pub model_alias: bool,
}

impl ExportIdentity {
    /// Resolves the names of this volume's export.
    pub fn names(&self, volume: VolumeId, prefix: &IqnPrefix) -> ExportNames {
        match self.clone() {
            Self::Derived => ExportNames {
                iqn: prefix.target(volume),
                tpg: TPG_DEFAULT,
                lun: LUN_DEFAULT,
                serial: volume.to_string(),
                lv: LvName::of(volume).as_str().to_owned(),
                backstore: BackstoreName::of(volume),
                model_alias: false,
            },
            Self::Recorded { iqn, tpg, lun, serial, lv, backstore, model_alias } => {
                ExportNames { iqn, tpg, lun, serial, lv, backstore, model_alias }
            }
        }
    }
}

impl ExportNames {
    /// The identity that initiators see.
    pub fn naa(&self) -> Naa {
        Naa::of_serial(&self.serial)
    }
}

/// The configfs names of one volume's export at one port: the backstore's, which all transports
/// share, and the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FcNames {
    /// Names of backstore and serial; the iSCSI names in it are unused here.
    pub export: ExportNames,
    /// The target port.
    pub port: FcPort,
}

/// The export of one volume: its initiators, addresses and names. A grant that is absent here is
/// revoked; a whole export ends only by a tombstone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportSpec {
    /// The volume.
    pub volume: VolumeId,
    /// The export's names on disks and wires.
    pub identity: ExportIdentity,
    /// Addresses where the target listens. Empty: the portals of the agent's configuration.
    pub portals: Vec<Portal>,
    /// Grants over iSCSI.
    pub grants: Vec<Grant>,
    /// Grants over Fibre Channel.
    pub fc: FcExportSpec,
    /// Negotiation of its iSCSI sessions.
    pub tuning: Tuning,
}

impl ExportSpec {
    /// Checks what the types alone cannot guarantee.
    pub fn check(&self) -> Result<(), SpecError> {
        if self.portals.len() > PORTALS_PER_EXPORT_MAX {
            return Err(SpecError::new("portals", format!("more than {PORTALS_PER_EXPORT_MAX}")));
        }
        if self.portals.iter().collect::<BTreeSet<_>>().len() != self.portals.len() {
            return Err(SpecError::new("portals", "one portal is listed twice"));
        }
        if self.grants.len() > GRANTS_PER_EXPORT_MAX {
            return Err(SpecError::new("grants", format!("more than {GRANTS_PER_EXPORT_MAX}")));
        }
        let mut seen = BTreeSet::new();
        for (index, grant) in self.grants.iter().enumerate() {
            if !seen.insert(&grant.initiator) {
                return Err(SpecError::new(
                    format!("grants[{index}].initiator"),
                    format!(
                        "{} is listed twice; attachments of one initiator share one grant",
                        grant.initiator
                    ),
                ));
            }
            if grant.lun.0 == 0 && self.identity == ExportIdentity::Derived {
                // For an unmapped LUN 0 the kernel answers with a virtual disk: a revoked host
                // would read zeros (lio.md, d). An adopted export keeps its LUN 0.
                return Err(SpecError::new(
                    format!("grants[{index}].lun"),
                    "LUN 0 is not allowed: want 1 to 65535",
                ));
            }
            if grant.barrier.is_some() && grant.mode == Mode::ReadWrite {
                return Err(SpecError::new(
                    format!("grants[{index}].barrier"),
                    "a barrier needs the mode READ_ONLY: an initiator that may write always has commands in flight",
                ));
            }
            if let Some(chap) = &grant.chap {
                chap.check(&format!("grants[{index}].chap"))?;
            }
        }
        self.fc.check()?;
        self.tuning.check().map_err(|(key, why)| SpecError::new(format!("tuning.{key}"), why))?;
        if let ExportIdentity::Recorded { serial, backstore, tpg, lv, .. } = &self.identity {
            let plain = |text: &str| {
                !text.is_empty()
                    && text.len() <= SERIAL_BYTES_MAX
                    && !matches!(text, "." | "..")
                    && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
            };
            let hba_ok = backstore.hba.strip_prefix("iblock_").is_some_and(|n| n.parse::<u32>().is_ok());
            let lv_ok = LvName::existing(lv).is_ok();
            if !plain(serial) || !plain(&backstore.name) || !lv_ok || !hba_ok || *tpg == 0 {
                return Err(SpecError::new(
                    "identity",
                    "a recorded name is empty, too long, has a '/' or names no iblock HBA",
                ));
            }
        }
        Ok(())
    }

    /// The grant of one initiator; `None` if it has none.
    pub fn grant(&self, initiator: &Iqn) -> Option<&Grant> {
        self.grants.iter().find(|grant| &grant.initiator == initiator)
    }
}
