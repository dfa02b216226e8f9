//! Own knowledge of the run: requests of its clients, their answers, and the trace.
//!
//! What must never happen here: anything taken from the controller's rows or the agents' reports:
//! those are what is judged.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use mooring_host::fake::SessionId;
use mooring_model::{AttachmentId, Mode, VolumeId};
use tokio::time::Instant;

/// A volume that some client asked for.
#[derive(Debug, Clone)]
pub(crate) struct KnownVolume {
    pub(crate) name: String,
    /// `true` if the database was restored to a state from before the volume, or from before its
    /// end.
    pub(crate) lost: bool,
    /// `true` if an operator has decided the review, and what contradicts the decision is still
    /// being removed.
    pub(crate) confirmed: bool,
    /// Step of the run in which the volume was asked for.
    pub(crate) born: u64,
    pub(crate) hand: Hand,
}

/// Changes of a volume behind its agent's back.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "notes of a simulation")]
pub(crate) struct Hand {
    /// Node and time of the last change. A node that cannot see the change restarts this clock.
    /// `None` if the agent has had time to correct it.
    pub(crate) touched: Option<(usize, Instant)>,
    /// `true` if the export was changed.
    pub(crate) in_tree: bool,
    /// `true` if the LV was renamed.
    pub(crate) away: bool,
    /// `true` if the LV was removed.
    pub(crate) removed: bool,
    /// `true` if the agent has lost its store: nothing records any more that the volume was whole.
    pub(crate) unmade: bool,
    /// `true` if the LV was extended.
    pub(crate) extended: bool,
    /// Largest size of the LV that was seen.
    pub(crate) largest: u64,
}

impl Hand {
    /// True if the agent waits for an operator: the LV is missing, or larger than its spec.
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
    /// Step in which the end was acknowledged; `None` before.
    pub(crate) gone: Option<u64>,
    /// Node and session of the host's login; `None` if it has not logged in.
    pub(crate) session: Option<(usize, SessionId)>,
}

/// The model and the trace.
pub(crate) struct Model {
    pub(crate) step: u64,
    pub(crate) volumes: BTreeMap<VolumeId, KnownVolume>,
    pub(crate) attachments: BTreeMap<AttachmentId, KnownAttachment>,
    /// Violations of what must never happen.
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    /// Number of occurrences of each kind of event.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    hash: DefaultHasher,
    born: Instant,
}

impl Model {
    /// Creates an empty model; must be called inside the run's runtime.
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

    /// Records a foreign change of a volume on this node, or of the whole node.
    pub(crate) fn touch(&mut self, at: usize, volume: VolumeId) {
        if let Some(known) = self.volumes.get_mut(&volume) {
            known.hand.touched = Some((at, Instant::now()));
        }
    }

    /// True if a volume may differ from what its agent made, because somebody else changed it.
    pub(crate) fn is_touched(&self, volume: VolumeId) -> bool {
        self.volumes.get(&volume).is_some_and(|known| known.hand.touched.is_some())
    }

    /// True if an export may differ from what its agent made.
    pub(crate) fn is_changed_in_tree(&self, volume: VolumeId) -> bool {
        self.is_touched(volume) && self.volumes.get(&volume).is_some_and(|known| known.hand.in_tree)
    }

    /// Records a violation of what must never happen.
    pub(crate) fn violated(&mut self, what: impl AsRef<str>) {
        self.say(format!("VIOLATED: {}", what.as_ref()));
        self.violations.push(what.as_ref().to_owned());
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Returns the run's own name of a volume instead of the id.
    pub(crate) fn name(&self, volume: VolumeId) -> String {
        self.volumes.get(&volume).map_or_else(|| volume.to_string(), |known| known.name.clone())
    }

    /// True if another attachment of this volume from the same host may exist, as far as its
    /// clients were told.
    pub(crate) fn shares(&self, id: AttachmentId) -> bool {
        let Some(this) = self.attachments.get(&id) else { return false };
        self.attachments.iter().any(|(other, known)| {
            *other != id && known.gone.is_none() && known.volume == this.volume && known.node == this.node
        })
    }
}

/// Initiator name of a stock host.
pub(crate) fn initiator_of(node: u8) -> String {
    format!("iqn.2026-01.org.example:node{node}")
}
