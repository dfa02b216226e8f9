//! Decides which exports that somebody else made can be taken over as they stand. [`look`] reads
//! them. [`judge`] takes one and returns an offer: its names, and the steps that the planner would
//! still do. Its error is every reason against adoption. Pure but for the look.
//!
//! An export is taken over only if the planner itself sees no difference: the recorded names and
//! the grants as in the view, planned against that very view, leave no step but to tighten
//! attributes that decide on later logins. So adoption itself needs no step in the kernel, and
//! drops no session.
//!
//! What must never happen here: a step; an export offered whose plan would revoke, unmap or rename
//! anything; a secret in a text.

mod look;

use std::path::Path;

use mooring_host::TreePath;
use mooring_model::{
    BackstoreName, Chap, ChapSide, ExportIdentity, ExportNames, ExportSpec, FcExportSpec, Grant, Iqn, Lun,
    Mode, Plan, Portal, Secret, Tuning, VolumeId,
};

pub use look::{SeenLun, SeenStore, SeenTarget, look, look_again};

use crate::layout::{self, SEALS, TPG_ATTRIBS, TPG_PARAMS};
use crate::lv;
use crate::op::{Op, Value};
use crate::plan::{Wanted, plan};
use crate::view::{AclAuth, AclView, Credentials, ExportView, TpgView};

/// Vendor in INQUIRY as the kernel sets it, unless somebody changed it (lio-tree.txt).
const VENDOR: &str = "LIO-ORG";
const PRODUCT: &str = "IBLOCK";
const COMPANY: &str = "0x001405";

/// An export that can be taken over as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Volume group of the LV, from the device path.
    pub group: String,
    /// Names under which the export is kept for ever.
    pub names: ExportNames,
    /// Portals where the target listens.
    pub portals: Vec<Portal>,
    /// Grants, from the ACLs.
    pub grants: Vec<Grant>,
    /// Steps that the agent will run at its start. None of them touches a session.
    pub steps: Plan<Op>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

impl Offer {
    /// Returns the identity to record.
    pub fn identity(&self) -> ExportIdentity {
        let ExportNames { iqn, tpg, lun, serial, lv, backstore, model_alias } = self.names.clone();
        ExportIdentity::Recorded { iqn, tpg, lun, serial, lv, backstore, model_alias }
    }

    /// Returns the spec of the export as the one of this volume.
    pub fn spec(&self, volume: VolumeId) -> ExportSpec {
        ExportSpec {
            volume,
            identity: self.identity(),
            portals: self.portals.clone(),
            grants: self.grants.clone(),
            fc: FcExportSpec::default(),
            tuning: Tuning::default(),
        }
    }
}

/// Decides whether an export can be taken over. The error has every reason against it, each with a
/// remedy.
pub fn judge(seen: &SeenTarget) -> Result<Offer, Vec<String>> {
    let (group, names) = names_of(seen)?;
    let (Some(view), Some(store)) = (&seen.view, &seen.store) else {
        return Err(vec!["it was removed while it was looked at: look again".to_owned()]);
    };
    let Some(tpg) = view.tpg() else {
        return Err(vec!["its portal group was removed while it was looked at: look again".to_owned()]);
    };
    let mut judge = Judge { seen, names: &names, reasons: Vec::new() };
    judge.store(store, view);
    judge.group(tpg);
    let portals = judge.portals(tpg);
    let grants = judge.grants(tpg);
    let mut reasons = judge.reasons;
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let device = Path::new("/dev").join(&group).join(&names.lv);
    let wanted = Wanted::Present {
        names: names.clone(),
        device: device.into(),
        portals: portals.clone(),
        withheld: false,
        grants: grants.clone(),
        // The negotiated parameters of its sessions stay: none is in the spec, so none is written.
        tuning: Tuning::default(),
        // The relative port id stays, too.
        port_id: None,
    };
    let steps = plan(&wanted, view);
    let notes = notes(store, &grants);
    let offer = Offer { group, names, portals, grants, steps, notes };
    // Any id will do: the check does not depend on it.
    if let Err(error) = offer.spec(VolumeId::from_u128(1)).check() {
        reasons.push(error.to_string());
    }
    reasons.extend(offer.steps.blocked.iter().map(|blocked| format!("{}: {}", blocked.object, blocked.why)));
    let harms = offer.steps.steps.iter().filter(|step| !is_harmless(&offer.names, &step.op));
    reasons.extend(
        harms.map(|step| format!("it would need a change that is not harmless: {} ({})", step.op, step.why)),
    );
    if reasons.is_empty() { Ok(offer) } else { Err(reasons) }
}

/// Returns the volume group of its LV, and the names of the export. The error has every reason why
/// its shape cannot be recorded.
pub fn names_of(seen: &SeenTarget) -> Result<(String, ExportNames), Vec<String>> {
    let one = |text: String| Err(vec![text]);
    let [tpg] = seen.groups.as_slice() else {
        return one(format!("it has {} portal groups: want one", seen.groups.len()));
    };
    let lun = match seen.luns.as_slice() {
        [lun] => lun,
        luns => return one(format!("it has {} LUNs: want one target for each volume", luns.len())),
    };
    let Some(path) = &lun.backstore else { return one(format!("its {} shows no backstore", lun.name)) };
    let hba = path.parent().name().to_owned();
    if !hba.starts_with("iblock_") {
        let kind = hba.split('_').next().unwrap_or_default().to_owned();
        return one(format!(
            "its backstore {path} is of kind {kind}: only block devices (iblock) can be volumes"
        ));
    }
    if lun.shown > 1 {
        return one(format!("its backstore {path} is shown by {} LUNs: want one", lun.shown));
    }
    let Some(store) = &seen.store else {
        return one(format!("its backstore {path} was removed meanwhile: look again"));
    };
    let mut reasons = Vec::new();
    let iqn = Iqn::of_target(&seen.iqn).map_err(|error| reasons.push(error.to_string()));
    let number =
        |name: &str, prefix| name.strip_prefix(prefix).and_then(|digits: &str| digits.parse::<u16>().ok());
    let (tpg_number, lun_number) = (number(tpg, "tpgt_"), number(&lun.name, "lun_"));
    if tpg_number.is_none() || lun_number.is_none() {
        reasons.push(format!("the number of its {tpg} or {} cannot be recorded", lun.name));
    }
    let device = store.device.as_deref().unwrap_or("no device");
    let lv = lv::of_path(Path::new(device));
    if lv.is_none() {
        reasons.push(format!(
            "its backstore was given {device}, which does not name a logical volume (/dev/GROUP/LV, or the same below \
             /dev/mapper)"
        ));
    }
    match (iqn, tpg_number, lun_number, lv) {
        (Ok(iqn), Some(tpg), Some(lun), Some((group, lv))) => {
            let backstore = BackstoreName { hba, name: path.name().to_owned() };
            let (serial, model_alias) = (store.serial.clone(), store.model_alias);
            Ok((group, ExportNames { iqn, tpg, lun: Lun(lun), serial, lv, backstore, model_alias }))
        }
        _ => Err(reasons),
    }
}

struct Judge<'a> {
    seen: &'a SeenTarget,
    names: &'a ExportNames,
    reasons: Vec<String>,
}

impl Judge<'_> {
    fn refuse(&mut self, why: impl Into<String>) {
        self.reasons.push(why.into());
    }

    /// Checks the identity by which initiators know the disk, and finds everything that would
    /// differ after a boot.
    fn store(&mut self, store: &SeenStore, view: &ExportView) {
        if view.backstore.as_ref().is_none_or(|backstore| !backstore.enabled) {
            self.refuse("its backstore is not enabled");
        }
        if store.serial.is_empty() {
            self.refuse("its backstore has no unit serial");
        }
        if view.backstore.as_ref().is_some_and(|backstore| backstore.readonly) {
            self.refuse("its backstore was made read-only, which no volume is: let it be written to, and map it read-only");
        }
        for (what, found, wanted) in
            [("vendor_id", &store.vendor, VENDOR), ("company_id", &store.company, COMPANY)]
        {
            if found.as_deref().is_some_and(|found| found != wanted) {
                let found = found.as_deref().unwrap_or_default();
                self.refuse(format!("its {what} is {found}, want {wanted}: initiators know the disk by it"));
            }
        }
        if !store.model_alias && store.product.as_deref().is_some_and(|found| found != PRODUCT) {
            let found = store.product.as_deref().unwrap_or_default();
            self.refuse(format!("its product_id is {found}, want {PRODUCT}: initiators know the disk by it"));
        }
        if store.protected {
            self.refuse("it has protection information (pi_prot_type), which Mooring does not set up again after a boot");
        }
        if let Some(group) = store.alua.first() {
            self.refuse(format!(
                "it has an ALUA group of its own, {group}, which Mooring does not set up again after a boot"
            ));
        }
    }

    /// Checks whom the portal group admits without an ACL.
    fn group(&mut self, tpg: &TpgView) {
        if !tpg.enabled {
            self.refuse("its portal group is not enabled");
        }
        if tpg.attrib("generate_node_acls") != Some("0") {
            self.refuse(
                "it admits initiators without an ACL (generate_node_acls=1), whose sessions Mooring would have to cut: make an ACL \
                 for each of them (the kernel takes a live session over), then set it to 0",
            );
        } else if !self.seen.dynamic.is_empty() {
            let dynamic = self.seen.dynamic.join(", ");
            self.refuse(format!(
                "initiators without an ACL are logged in ({dynamic}): make an ACL for each of them"
            ));
        }
    }

    fn portals(&mut self, tpg: &TpgView) -> Vec<Portal> {
        if tpg.portals.is_empty() {
            self.refuse("it listens nowhere");
        }
        let mut portals = Vec::new();
        for name in &tpg.portals {
            match name.parse::<Portal>() {
                // The name has to be the folder's, or the portal would be made a second time.
                Ok(portal) if portal.to_string() == *name => portals.push(portal),
                Ok(_) | Err(_) => self.refuse(format!(
                    "its portal {name} is not one address of this host and a port: take it away and make one for each address \
                     (sessions go on without their portal; meanwhile nobody new logs in)"
                )),
            }
        }
        for portal in &self.seen.iser {
            self.refuse(format!(
                "its portal {portal} is for iSER, which Mooring does not set up again after a boot"
            ));
        }
        portals.sort_unstable();
        portals
    }

    fn grants(&mut self, tpg: &TpgView) -> Vec<Grant> {
        let asks = tpg.attrib("authentication") != Some("0");
        let grants = tpg.acls.iter().filter_map(|(initiator, acl)| match grant(initiator, acl, asks) {
            Ok(grant) => Some(grant),
            Err(why) => {
                self.reasons.push(format!("the ACL of {initiator} {why}"));
                None
            }
        });
        let grants = grants.collect();
        for (initiator, acl) in &tpg.acls {
            let elsewhere = |link: &TreePath| *link != layout::lun(self.names);
            if acl.luns.values().filter_map(|mapped| mapped.link.as_ref()).any(|link| elsewhere(&link.target))
            {
                self.reasons.push(format!("the ACL of {initiator} maps another LUN than its own"));
            }
        }
        grants
    }
}

/// Derives the grant from an ACL. `asks`: its portal group asks for CHAP.
fn grant(initiator: &str, acl: &AclView, asks: bool) -> Result<Grant, String> {
    let name: Iqn = initiator.parse().map_err(|error| format!("cannot be kept: {error}"))?;
    let (lun, mapped) = match acl.luns.iter().collect::<Vec<_>>().as_slice() {
        [(lun, mapped)] => (*lun, *mapped),
        luns => return Err(format!("maps {} LUNs: want one", luns.len())),
    };
    let number = lun.strip_prefix("lun_").and_then(|digits| digits.parse().ok());
    let number = number.ok_or_else(|| format!("maps {lun}, whose number cannot be recorded"))?;
    if mapped.link.is_none() {
        return Err(format!("has a {lun} that maps nothing: map it or remove it"));
    }
    let protected = mapped.write_protect.ok_or_else(|| {
        format!("has a {lun} whose link is stale (its LUN lost its backstore once): make it anew")
    })?;
    let chap = match acl.auth {
        AclAuth::Off => None,
        AclAuth::Required => Some(chap(acl.credentials.as_ref())?),
        AclAuth::Inherits if asks => Some(chap(acl.credentials.as_ref())?),
        AclAuth::Inherits => {
            if acl.credentials.as_ref().is_some_and(|known| *known != Credentials::default()) {
                return Err(
                    "has CHAP credentials, and its portal group demands none (authentication=0): set authentication=1, or take \
                     them away"
                        .to_owned(),
                );
            }
            None
        }
    };
    let mode = if protected { Mode::ReadOnly } else { Mode::ReadWrite };
    Ok(Grant { initiator: name, lun: Lun(number), mode, chap, attachments: Vec::new(), barrier: None })
}

fn chap(known: Option<&Credentials>) -> Result<Chap, String> {
    let side = |user: Option<&String>, secret: Option<&Secret>| match (user, secret) {
        (Some(user), Some(secret)) => Ok(Some(ChapSide { user: user.clone(), secret: secret.clone() })),
        (None, None) => Ok(None),
        _ => Err("has half of a pair of CHAP credentials: set both, or none".to_owned()),
    };
    let Some(known) = known else { return Err("has no CHAP credentials".to_owned()) };
    let initiator = side(known.user.as_ref(), known.secret.as_ref())?.ok_or_else(|| {
        "has no CHAP credentials and its portal group asks for them, so that nobody can log in by it: set them, or \
         remove it"
            .to_owned()
    })?;
    let mutual = side(known.mutual_user.as_ref(), known.mutual_secret.as_ref())?;
    Ok(Chap { initiator, mutual })
}

/// Returns `true` if a step leaves every session, every mapping and every credential as it is. Such
/// a step writes an attribute that decides on later logins. Or it takes away commands which hosts
/// do without, or lets an ACL go on admitting its initiator by name alone.
fn is_harmless(names: &ExportNames, op: &Op) -> bool {
    let Op::Write { path, value } = op else { return false };
    let (group, store) = (layout::tpg(names), layout::backstore(names).join("attrib"));
    let attribs = TPG_ATTRIBS.iter().map(|(name, ..)| group.join("attrib").join(name));
    let params = TPG_PARAMS.iter().map(|(name, ..)| group.join("param").join(name));
    let seals = SEALS.iter().map(|(name, ..)| store.join(name));
    if attribs.chain(params).chain(seals).any(|harmless| *path == harmless) {
        return true;
    }
    let of_acl = path.parent().parent().parent() == layout::acls(names) && path.parent().name() == "attrib";
    of_acl && path.name() == "authentication" && *value == Value::from("0")
}

fn notes(store: &SeenStore, grants: &[Grant]) -> Vec<String> {
    let mut notes = Vec::new();
    let list = |which: &dyn Fn(&&Grant) -> bool| {
        let names: Vec<_> = grants.iter().filter(which).map(|grant| grant.initiator.as_str()).collect();
        names.join(", ")
    };
    let at_zero = list(&|grant| grant.lun.0 == 0);
    if !at_zero.is_empty() {
        notes.push(format!(
            "{at_zero} keeps LUN 0. For an unmapped LUN 0 the kernel answers with a small virtual disk: while such a host is \
             being revoked it may read zeros where it should get errors, until its session is cut. New grants get LUN 1"
        ));
    }
    let open = list(&|grant| grant.chap.is_none());
    if !open.is_empty() {
        notes.push(format!(
            "{open} is admitted by name alone, without CHAP, and stays so until it is granted anew"
        ));
    }
    if store.discards {
        notes.push(
            "hosts may discard blocks (emulate_tpu=1). From the next boot of this host on that is so only with discard = true \
             under [[groups]]"
                .to_owned(),
        );
    }
    if let Some(holder) = &store.holder {
        notes.push(format!("a persistent reservation is held ({holder}): it stays; one with APTPL outlives a boot from here on"));
    }
    notes
}
