//! One volume over all its fabrics: what is wanted of it, what is seen, and one plan for both.
//!
//! Nothing in a Fibre Channel port tells which LUNs are one volume's. So every place that a spec of the volume ever named is
//! remembered (`former`), durable before the spec is, until a plan for a later spec was quiet (decision 22).
//!
//! What must never happen here: a place forgotten while its LUN may stand; a port forgotten on which one may.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mooring_host::Tree;
use mooring_model::{
    BackstoreName, Chain, ExportNames, ExportSpec, FcExportSpec, FcNames, FcPort, FcPortReport, Generation,
    Initiator, Plan, VolumeId, Wwpn,
};
use mooring_targets::fc::{self, Place};
use mooring_targets::{Error, ExportFacts, ExportView, Exports, Op, Wanted, plan_exports};

use super::cell::{Cell, State, Wish};
use super::receipts::OpenReceipt;
use super::{Engine, Refusal, lock};
use crate::store::StoreError;

/// What is wanted of one volume.
#[derive(Debug, Clone)]
pub(crate) struct Wanteds {
    /// Over iSCSI.
    pub(super) iscsi: Wanted,
    /// Over each Fibre Channel port that shows it, or may still; empty for a volume that no port ever showed.
    pub(super) fc: Vec<fc::Wanted>,
    former: BTreeSet<Place>,
}

/// The view of it, in the same order.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(super) iscsi: ExportView,
    pub(super) fc: Vec<fc::View>,
}

/// A Fibre Channel port that serves.
pub(crate) struct PortSeen {
    pub(crate) port: FcPort,
    /// As its adapter says; empty without one.
    pub(crate) state: String,
    /// Why it is no target.
    pub(crate) trouble: Option<String>,
}

impl Wanteds {
    pub(super) fn names(&self) -> &ExportNames {
        self.iscsi.names()
    }

    /// Whether a Fibre Channel port has a part in it.
    pub(super) fn is_over_fc(&self) -> bool {
        !self.fc.is_empty()
    }

    /// The places of its grants.
    pub(super) fn places(&self) -> BTreeSet<Place> {
        self.fc.iter().flat_map(fc::Wanted::places).collect()
    }

    pub(super) fn look(&self, tree: &dyn Tree) -> Result<View, Error> {
        let iscsi = ExportView::read_for(tree, &self.iscsi)?;
        let fc = self.fc.iter().map(|wanted| fc::View::read(tree, wanted, &self.former));
        Ok(View { iscsi, fc: fc.collect::<Result<_, _>>()? })
    }

    pub(super) fn plan(&self, seen: &View) -> Plan<Op> {
        let fc = self.fc.iter().zip(&seen.fc).collect();
        plan_exports(&Exports { iscsi: Some((&self.iscsi, &seen.iscsi)), fc })
    }

    /// What the tree decides of the report, but for what is live; `plan` is the one of this very look.
    pub(super) fn facts(&self, seen: &View, plan: &Plan<Op>) -> (ExportFacts, Vec<FcPortReport>) {
        let mut facts = mooring_targets::report_planned(&self.iscsi, &seen.iscsi, &BTreeMap::new(), plan);
        let mut ports = Vec::new();
        for (wanted, view) in self.fc.iter().zip(&seen.fc) {
            let fc::FcFacts { port, serves, grants, problems, .. } =
                fc::report(wanted, view, &BTreeMap::new(), plan);
            for problem in problems {
                if !facts.problems.contains(&problem) {
                    facts.problems.push(problem);
                }
            }
            if matches!(wanted, fc::Wanted::Present { .. }) {
                ports.push(FcPortReport { port, serves, grants });
            }
        }
        (facts, ports)
    }

    /// What its nexuses over Fibre Channel do now, by port.
    pub(super) fn fc_live(
        &self,
        tree: &dyn Tree,
        before: Option<&BTreeMap<FcPort, BTreeMap<Place, fc::FcLive>>>,
    ) -> Result<BTreeMap<FcPort, BTreeMap<Place, fc::FcLive>>, Error> {
        let none = BTreeMap::new();
        let of_port = |wanted: &fc::Wanted| {
            let port = wanted.names().port;
            let before = before.and_then(|before| before.get(&port)).unwrap_or(&none);
            Ok((port, fc::read_live(tree, wanted, before)?))
        };
        self.fc.iter().map(of_port).collect()
    }

    /// The places whose TPG LUN shows the volume's backstore, by port.
    fn linked(&self, seen: &View) -> BTreeSet<(FcPort, Place)> {
        let ports = self.fc.iter().zip(&seen.fc);
        let of_port = |(wanted, view): (&fc::Wanted, &fc::View)| {
            let names = wanted.names().clone();
            let shown: Vec<_> =
                view.nexuses.keys().filter(|place| !view.has_drained(&names, **place)).copied().collect();
            shown.into_iter().map(move |place| (names.port, place)).collect::<Vec<_>>()
        };
        ports.flat_map(of_port).collect()
    }

    /// The same wish without these initiators.
    pub(super) fn without(&self, left_out: impl Fn(&Initiator) -> bool) -> Self {
        let mut all = self.clone();
        if let Wanted::Present { grants, .. } = &mut all.iscsi {
            grants.retain(|grant| !left_out(&grant.initiator.clone().into()));
        }
        for wanted in &mut all.fc {
            if let fc::Wanted::Present { grants, .. } = wanted {
                grants.retain(|grant| !left_out(&grant.initiator.into()));
            }
        }
        all
    }

    /// Every initiator that it is granted to.
    pub(super) fn initiators(&self) -> BTreeSet<Initiator> {
        let iscsi = self.iscsi.grants().iter().map(|grant| grant.initiator.clone().into());
        let fc = self.fc.iter().flat_map(fc::Wanted::grants).map(|grant| grant.initiator.into());
        iscsi.chain(fc).collect()
    }
}

impl View {
    /// An export over iSCSI alone.
    pub(super) fn iscsi(iscsi: ExportView) -> Self {
        Self { iscsi, fc: Vec::new() }
    }

    fn has_acl(&self, initiator: &str) -> bool {
        self.iscsi.tpg().is_some_and(|tpg| tpg.acls.contains_key(initiator))
    }
}

/// The places of a spec.
fn places_of(spec: &ExportSpec) -> BTreeSet<Place> {
    spec.fc.grants.iter().map(Place::of).collect()
}

impl State {
    /// A wish is durable. A pass that ended meanwhile may have forgotten its places.
    pub(super) fn admit_export(&mut self, wish: Wish<ExportSpec>) {
        self.established.add_former(wish.spec().map(places_of).unwrap_or_default());
        self.set_export(wish);
        self.turn.ask_anew();
    }
}

impl Cell {
    /// Takes note of which places show the volume, and says of an initiator whether it has a nexus.
    pub(super) fn nexuses(&self, wanted: &Wanteds, seen: &View) -> impl Fn(&Initiator) -> bool {
        let linked = wanted.linked(seen);
        self.state().knowledge.learn_linked(&linked);
        move |initiator| match initiator {
            Initiator::Iscsi(iqn) => seen.has_acl(iqn.as_str()),
            Initiator::Fc(wwpn) => linked.iter().any(|(_, place)| place.initiator == *wwpn),
        }
    }

    /// A TPG LUN has drained. The initiator that has no nexus on any port any more.
    pub(super) fn drained(&self, drained: fc::Drained) -> Option<Wwpn> {
        self.state().knowledge.drained(drained)
    }

    /// `wanted` was in force, and nothing else: only its places, and those of a wish that came meanwhile, may show the volume.
    pub(super) fn settle_places(&self, wanted: &Wanteds) {
        let mut state = self.state();
        let mut places = wanted.places();
        let newer = state.export_spec();
        places.extend(newer.map(places_of).unwrap_or_default());
        state.established.settle_former(places);
    }

    /// `wanted` without the grants that were revoked, granted again since, and never cut: `None` when there are none.
    pub(super) fn without_revoked(
        &self,
        wanted: &Wanteds,
        has_nexus: impl Fn(&Initiator) -> bool,
        generation: Generation,
    ) -> Option<Wanteds> {
        let state = self.state();
        let open = |initiator: &Initiator| {
            let of =
                |open: &OpenReceipt| open.is_unproven(generation) && open.receipt.initiator == *initiator;
            state.receipts.open().iter().any(of) && has_nexus(initiator)
        };
        wanted.initiators().iter().any(open).then(|| wanted.without(open))
    }
}

impl Engine {
    /// What is wanted over Fibre Channel, beside what is wanted over iSCSI.
    pub(super) fn wanted_over(&self, cell: &Cell, iscsi: Wanted, spec: Option<&FcExportSpec>) -> Wanteds {
        let former = cell.state().established.former().clone();
        let spec = spec.filter(|spec| !spec.grants.is_empty());
        if former.is_empty() && spec.is_none() {
            return Wanteds { iscsi, fc: Vec::new(), former };
        }
        let ports = lock(&self.shared.ports);
        let of_port = |port: &FcPort| {
            let names = FcNames { export: iscsi.names().clone(), port: *port };
            let spec = spec.filter(|spec| ports.serves(spec, *port));
            match (&iscsi, spec) {
                (Wanted::Present { device, .. }, Some(spec)) => {
                    fc::Wanted::Present { names, device: device.clone(), grants: spec.grants.clone() }
                }
                _ => fc::Wanted::Absent { names },
            }
        };
        let fc = ports.known().map(of_port).collect();
        drop(ports);
        Wanteds { iscsi, fc, former }
    }
}

impl Engine {
    /// Looks for the Fibre Channel ports that serve, and makes each a target: an initiator that meets it before takes it for
    /// none (lio.md, h). Each time, because a port may come after the agent was started.
    pub(super) fn prepare_ports(&self) {
        let Some(config) = &self.shared.config.fibre_channel else { return };
        let machine = &self.shared.machine;
        let served: Vec<FcPort> = {
            let mut ports = lock(&self.shared.ports);
            ports.refresh(&*machine.sys, config, |known| {
                let kept = self.shared.store.keep_fc_ports(known);
                kept.inspect_err(
                    |error| tracing::error!(error = %Chain(error), "cannot keep a new Fibre Channel port"),
                )
                .is_ok()
            });
            ports.served().map(|(port, _)| port).collect()
        };
        let mut troubles = BTreeMap::new();
        for port in served {
            if let Err(error) = fc::prepare(&*machine.target, port) {
                tracing::error!(%port, error = %Chain(&error), "a Fibre Channel port is not ready");
                troubles.insert(port, Chain(&error).to_string());
            } else {
                self.find_places(port);
            }
        }
        lock(&self.shared.ports).troubles = troubles;
    }

    /// The Fibre Channel ports that serve, as they were seen at the last resync.
    pub(crate) fn fibre_channel_ports(&self) -> Vec<PortSeen> {
        let ports = lock(&self.shared.ports);
        let seen = |(port, state): (FcPort, &str)| PortSeen {
            port,
            state: state.to_owned(),
            trouble: ports.troubles.get(&port).cloned(),
        };
        ports.served().map(seen).collect()
    }

    /// What a store that was lost had known of a port, by one walk over it. Nothing that is found is touched before a spec
    /// says so.
    fn find_places(&self, port: FcPort) {
        if !self.shared.store.is_fresh() {
            return;
        }
        let index = match fc::read_port(&*self.shared.machine.target, port) {
            Ok(index) => index,
            Err(error) => return tracing::error!(%port, error = %Chain(&error), "cannot look through a port"),
        };
        for (backstore, places) in index.exports {
            let Ok(volume) = backstore.name().parse::<VolumeId>() else { continue };
            if BackstoreName::of(volume).hba == backstore.parent().name()
                && let Err(error) = self.keep_places(&self.cell(volume), &places)
            {
                tracing::error!(error = %Chain(&error), %volume, "cannot keep Fibre Channel places");
            }
        }
    }

    /// Who has a nexus of the volume over Fibre Channel, as the kernel shows it.
    pub(super) fn fc_initiators(
        &self,
        cell: &Cell,
        names: &ExportNames,
    ) -> Result<BTreeSet<Initiator>, Error> {
        let gone = self.wanted_over(cell, Wanted::Absent { names: names.clone() }, None);
        let tree = &*self.shared.machine.target;
        let mut initiators = BTreeSet::new();
        for wanted in &gone.fc {
            let view = fc::View::read(tree, wanted, &gone.former)?;
            let linked = view.nexuses.keys().filter(|place| !view.has_drained(wanted.names(), **place));
            initiators.extend(linked.map(|place| Initiator::from(place.initiator)));
        }
        Ok(initiators)
    }

    /// Remembers the places of a spec, before the spec is kept: what it makes must be found again, whatever happens.
    pub(super) fn remember_places(&self, cell: &Cell, spec: Option<&ExportSpec>) -> Result<(), Refusal> {
        match spec.map(places_of).filter(|places| !places.is_empty()) {
            Some(places) => self.keep_places(cell, &places).map_err(Refusal::Store),
            None => Ok(()),
        }
    }

    fn keep_places(&self, cell: &Cell, more: &BTreeSet<Place>) -> Result<(), StoreError> {
        let (places, kept) = {
            let state = cell.state();
            (state.established.former() | more, state.established.kept_places().clone())
        };
        if !places.is_subset(&kept) {
            self.shared.store.keep_fc_places(cell.id, &places)?;
        }
        let mut state = cell.state();
        if !places.is_subset(&kept) {
            state.established.keep_places(places.clone());
        }
        state.established.settle_former(places);
        Ok(())
    }

    /// Forgets in the store what later specs have taken away.
    pub(super) fn forget_places(&self) {
        for cell in self.cells() {
            let is_kept = |state: &State| state.established.are_places_kept();
            // As a rule, of every volume: no turn is waited for.
            if is_kept(&cell.state()) {
                continue;
            }
            // Changes of the volume wait: what is written here is what it has.
            let Some(_turn) = cell.admission.take(Duration::ZERO) else { continue };
            let former = {
                let state = cell.state();
                if is_kept(&state) {
                    continue;
                }
                state.established.former().clone()
            };
            match self.shared.store.keep_fc_places(cell.id, &former) {
                Ok(()) => cell.state().established.keep_places(former),
                Err(error) => {
                    tracing::error!(error = %Chain(&error), volume = %cell.id, "cannot forget Fibre Channel places");
                }
            }
        }
    }
}
