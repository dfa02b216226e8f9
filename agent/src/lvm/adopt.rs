//! LVs that are not ours yet: reads the facts that a takeover needs, and tags the chosen LV with
//! one command.
//!
//! What must never happen here: a change of anything but the tags of the one LV that was chosen; a
//! takeover of a kind of LV whose later steps would touch somebody else's, that would not come back
//! after a boot, or that may show the data of another volume.

use std::collections::BTreeSet;

use mooring_host::Commands;
use mooring_model::{
    ByteSize, LV_TAG, LV_UNZEROED_TAG, LvName, Provisioning, VgName, VolumeId, lv_volume_tag,
    volume_of_lv_tag,
};

use super::commands::{Lvm, RawLv};
use super::error::Error;
use super::plan::LvId;
use super::view;
use crate::config;

/// An LV of a listed group, whoever owns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnyLv {
    /// Name.
    pub name: LvName,
    /// Volume group.
    pub group: VgName,
    /// Size in bytes.
    pub size: ByteSize,
    /// Tags.
    pub tags: BTreeSet<String>,
    /// How the LV is provisioned. `Err` says why it cannot be a volume.
    pub provisioning: Result<Provisioning, String>,
}

impl AnyLv {
    /// Returns the ids of the volumes that the LV's name and tags claim.
    pub fn ids(&self) -> BTreeSet<VolumeId> {
        let named = LvName::volume(self.name.as_str()).filter(|id| LvName::of(*id) == self.name);
        self.tags.iter().filter_map(|tag| volume_of_lv_tag(tag)).chain(named).collect()
    }

    /// Returns `true` if the LV carries both tags of this volume.
    pub fn is_tagged(&self, volume: VolumeId) -> bool {
        self.tags.contains(LV_TAG) && self.tags.contains(&lv_volume_tag(volume))
    }

    /// Returns the LV's name in the form that commands take.
    pub fn id(&self) -> LvId {
        LvId { group: self.group.clone(), name: self.name.clone() }
    }
}

/// Lists all LVs of the listed groups, with two commands. Fails if LVM cannot read one of them: an
/// export of its LVs could not be told from one of no LV.
pub fn all(commands: &dyn Commands, groups: &[config::Group]) -> Result<Vec<AnyLv>, Error> {
    let lvm = Lvm(commands);
    let seen = view::groups_of(&lvm, groups)?;
    if let Some((_, unread)) = seen.unread_groups().next() {
        return Err(unread.clone().into_error());
    }
    let names: Vec<_> = seen.groups().iter().map(|group| &group.name).collect();
    let lvs = if names.is_empty() { Vec::new() } else { lvm.lvs(&names)? };
    let any = |raw: &RawLv| {
        let group = seen.groups().iter().find(|group| group.name.as_str() == raw.group)?;
        let trouble = group.trouble.clone();
        Some(AnyLv {
            name: LvName::existing(&raw.name).ok()?,
            group: group.name.clone(),
            size: ByteSize(raw.size),
            provisioning: trouble.map_or_else(|| provisioning(raw, &lvs), Err),
            tags: raw.tags(),
        })
    };
    Ok(lvs.iter().filter_map(any).collect())
}

/// Derives how an LV is provisioned from the list of all LVs. The error says why it cannot be a
/// volume, and what to do.
fn provisioning(raw: &RawLv, lvs: &[RawLv]) -> Result<Provisioning, String> {
    if raw.tags.split(',').any(|tag| tag == LV_UNZEROED_TAG) {
        return Err(format!("it has the tag {LV_UNZEROED_TAG}, which means that its blocks are not zeroed"));
    }
    if matches!(raw.attr(0), b'o' | b'O') {
        // Removing the LV would remove its snapshots, too.
        return Err("it has snapshots of LVM's old kind: remove them first".to_owned());
    }
    if raw.attr(1) == b'r' {
        return Err("it is read-only for LVM: run lvchange --permission rw".to_owned());
    }
    if raw.attr(9) == b'k' {
        // The LV has a device now because somebody activated it by hand.
        return Err(format!(
            "LVM skips its activation, so it would have no device after the next boot: run lvchange --setactivationskip n {}/{}",
            raw.group, raw.name
        ));
    }
    match raw.segtype.as_str() {
        "linear" => Ok(Provisioning::Thick),
        "thin" if !raw.pool.is_empty() => zeroed_by_pool(raw, lvs).map(|()| Provisioning::Thin),
        other => Err(format!("it is of type {other}: want linear or thin")),
    }
}

/// Checks that the LV's thin pool zeroes the blocks that it allocates.
///
/// A thin LV takes blocks of its pool whenever a host writes where nobody wrote before. That holds
/// for an LV that never grows, too, and for a pool of any owner.
fn zeroed_by_pool(raw: &RawLv, lvs: &[RawLv]) -> Result<(), String> {
    let pool = format!("{}/{}", raw.group, raw.pool);
    match lvs.iter().find(|lv| lv.group == raw.group && lv.name == raw.pool) {
        Some(seen) if seen.zero == "zero" => Ok(()),
        Some(_) => Err(format!(
            "its thin pool {pool} does not zero the blocks that it gives, which may hold data of others: run lvchange \
             --zero y {pool}"
        )),
        None => Err(format!("LVM does not show its thin pool {pool}: see lvs -a {}", raw.group)),
    }
}

/// Makes an LV a volume's by its tags, in one command. A repeated call changes nothing.
pub fn tag(commands: &dyn Commands, lv: &LvId, volume: VolumeId) -> Result<(), Error> {
    Lvm(commands).add_tags(lv, &[LV_TAG, &lv_volume_tag(volume)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(attr: &str, segtype: &str, pool: &str, tags: &str) -> Result<Provisioning, String> {
        let raw = serde_json::json!({
            "lv_name": "data", "vg_name": "vg0", "lv_size": "4194304", "lv_attr": attr, "segtype": segtype,
            "pool_lv": pool, "lv_tags": tags
        });
        let pool = |name: &str, zero: &str| {
            serde_json::from_value(serde_json::json!({
                "lv_name": name, "vg_name": "vg0", "lv_size": "4194304", "segtype": "thin-pool", "zero": zero
            }))
            .unwrap()
        };
        let raw: RawLv = serde_json::from_value(raw).unwrap();
        provisioning(&raw, &[raw.clone(), pool("pool", "zero"), pool("dirty", "")])
    }

    #[test]
    fn only_lvs_whose_every_later_step_is_known_become_volumes() {
        assert_eq!(of("-wi-ao----", "linear", "", "site=a"), Ok(Provisioning::Thick));
        assert_eq!(of("Vwi-aotz--", "thin", "pool", ""), Ok(Provisioning::Thin));
        for (attr, segtype, pool, tags, why) in [
            ("owi-aos---", "linear", "", "", "snapshots of LVM's old kind"),
            ("-ri-ao----", "linear", "", "", "read-only"),
            ("Vwi-aotz-k", "thin", "pool", "", "run lvchange --setactivationskip n vg0/data"),
            ("Vwi-aot---", "thin", "dirty", "", "run lvchange --zero y vg0/dirty"),
            ("Vwi-aotz--", "thin", "unseen", "", "does not show its thin pool vg0/unseen"),
            ("-wi-ao----", "striped", "", "", "of type striped"),
            ("rwi-aor---", "raid1", "", "", "of type raid1"),
            ("-wi-ao----", "linear", "", "a,mooring-unzeroed", "blocks are not zeroed"),
        ] {
            let refused = of(attr, segtype, pool, tags).unwrap_err();
            assert!(refused.contains(why), "{attr} {segtype}: {refused}");
        }
    }
}
