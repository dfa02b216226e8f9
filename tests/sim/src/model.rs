//! What the run knows by itself: what its clients asked for and what they were told, and the trace of it all.
//!
//! What must never happen here: anything taken from the controller's rows or the agents' reports: those are what is judged.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use mooring_host::fake::SessionId;
use mooring_model::{AttachmentId, Mode, VolumeId};
use tokio::time::Instant;

/// A volume that some client asked for.
#[derive(Debug, Clone)]
pub(crate) struct KnownVolume {
    pub(crate) name: String,
    /// The database was put back to a state from before it, or from before its end.
    pub(crate) lost: bool,
    /// An operator has said what holds, and what does not is still being taken away.
    pub(crate) confirmed: bool,
    /// When it was asked for, in steps of the run.
    pub(crate) born: u64,
    pub(crate) hand: Hand,
}

/// What was done to a volume behind its agent's back.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "notes of a simulation")]
pub(crate) struct Hand {
    /// On which node, and when last; a node that cannot see it stops this clock. `None`: its agent has had the time to put it right.
    pub(crate) touched: Option<(usize, Instant)>,
    /// It is its export that was changed.
    pub(crate) in_tree: bool,
    /// Its LV was renamed.
    pub(crate) away: bool,
    /// Its LV was removed.
    pub(crate) removed: bool,
    /// The agent's store that knew of it was lost: that the volume was whole is known no more.
    pub(crate) unmade: bool,
    /// Its LV was extended.
    pub(crate) extended: bool,
    /// The largest size that its LV was seen with.
    pub(crate) largest: u64,
}

impl Hand {
    /// Whether its agent waits for an operator: its LV is not there, or is larger than it is wished.
    pub(crate) const fn is_apart(&self) -> bool {
        self.away || self.removed || self.extended
    }
}

/// An attachment that some client asked for.
#[derive(Debug, Clone)]
pub(crate) struct KnownAttachment {
    pub(crate) name: String,
    pub(crate) volume: VolumeId,
    pub(crate) node: u8,
    pub(crate) mode: Mode,
    /// Its end was acknowledged at this step.
    pub(crate) gone: Option<u64>,
    /// Where its host is logged in.
    pub(crate) session: Option<(usize, SessionId)>,
}

/// The model and the trace.
pub(crate) struct Model {
    pub(crate) step: u64,
    pub(crate) volumes: BTreeMap<VolumeId, KnownVolume>,
    pub(crate) attachments: BTreeMap<AttachmentId, KnownAttachment>,
    /// What must never be, and was.
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    /// What happened how often.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    hash: DefaultHasher,
    born: Instant,
}

impl Model {
    /// Must be called inside the run's runtime.
    pub(crate) fn new() -> Self {
        Self {
            step: 0,
            volumes: BTreeMap::new(),
            attachments: BTreeMap::new(),
            violations: Vec::new(),
            trace: Vec::new(),
            counts: BTreeMap::new(),
            hash: DefaultHasher::new(),
            born: Instant::now(),
        }
    }

    /// Writes a line of the trace.
    pub(crate) fn say(&mut self, what: impl AsRef<str>) {
        let line = format!("{:>9} ms  {}", self.born.elapsed().as_millis(), what.as_ref());
        line.hash(&mut self.hash);
        self.trace.push(line);
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Somebody has done something to a volume on this node, or to the whole node.
    pub(crate) fn touch(&mut self, at: usize, volume: VolumeId) {
        if let Some(known) = self.volumes.get_mut(&volume) {
            known.hand.touched = Some((at, Instant::now()));
        }
    }

    /// Whether a volume is not what its agent has made it, because somebody else was at it.
    pub(crate) fn is_touched(&self, volume: VolumeId) -> bool {
        self.volumes.get(&volume).is_some_and(|known| known.hand.touched.is_some())
    }

    /// Whether an export is not what its agent has made it.
    pub(crate) fn is_changed_in_tree(&self, volume: VolumeId) -> bool {
        self.is_touched(volume) && self.volumes.get(&volume).is_some_and(|known| known.hand.in_tree)
    }

    /// Something is so that must never be.
    pub(crate) fn violated(&mut self, what: impl AsRef<str>) {
        self.say(format!("VIOLATED: {}", what.as_ref()));
        self.violations.push(what.as_ref().to_owned());
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Names of ours in the place of ids.
    pub(crate) fn name(&self, volume: VolumeId) -> String {
        self.volumes.get(&volume).map_or_else(|| volume.to_string(), |known| known.name.clone())
    }

    /// Another attachment of this volume from the same host may be there, as far as its clients were told.
    pub(crate) fn shares(&self, id: AttachmentId) -> bool {
        let Some(this) = self.attachments.get(&id) else { return false };
        self.attachments.iter().any(|(other, known)| {
            *other != id && known.gone.is_none() && known.volume == this.volume && known.node == this.node
        })
    }
}

/// The initiator name of a stock host.
pub(crate) fn initiator_of(node: u8) -> String {
    format!("iqn.2026-01.org.example:node{node}")
}
