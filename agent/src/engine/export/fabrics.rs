//! One volume over all its transports: its specs, its views, and one plan for all.
//!
//! Nothing in a Fibre Channel port shows which LUNs belong to one volume. So the agent remembers
//! every place that a spec of the volume ever named (`former`): durably before the spec, and until
//! a plan for a later spec was quiet (decision 22).
//!
//! What must never happen here: a place forgotten while its LUN may stand; a port forgotten on
//! which such a LUN may stand.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mooring_host::Tree;
use mooring_model::{
    BackstoreName, Chain, ExportNames, ExportSpec, FcExportSpec, FcNames, FcPort, FcPortReport, Generation,
    Initiator, Plan, VolumeId, Wwpn,
};
use mooring_targets::fc::{self, Place};
use mooring_targets::{Error, ExportFacts, ExportView, Exports, Op, Wanted, plan_exports};

use crate::engine::cell::{Cell, KeptSpec, State};
use crate::engine::receipts::OpenReceipt;
use crate::engine::{Engine, Refusal, lock};
use crate::fibre_channel::PortSeen;
use crate::store::StoreError;

/// The specs of one volume for all transports.
#[derive(Debug, Clone)]
pub(crate) struct Wanteds {
    /// The spec over iSCSI.
    pub(in crate::engine) iscsi: Wanted,
    /// One spec for each Fibre Channel port that shows the volume, or may still show it. Empty if
    /// no port ever showed it.
    pub(in crate::engine) fc: Vec<fc::Wanted>,
    former: BTreeSet<Place>,
}

/// The view of one volume, in the order of [`Wanteds`].
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(in crate::engine) iscsi: ExportView,
    pub(in crate::engine) fc: Vec<fc::View>,
}

impl Wanteds {
    pub(in crate::engine) fn names(&self) -> &ExportNames {
        self.iscsi.names()
    }

    /// Says whether a Fibre Channel port has a part in the export.
    pub(in crate::engine) fn is_over_fc(&self) -> bool {
        !self.fc.is_empty()
    }

    /// The places of the grants over Fibre Channel.
    pub(in crate::engine) fn places(&self) -> BTreeSet<Place> {
        self.fc.iter().flat_map(fc::Wanted::places).collect()
    }

    pub(in crate::engine) fn look(&self, tree: &dyn Tree) -> Result<View, Error> {
        let iscsi = ExportView::read_for(tree, &self.iscsi)?;
        let fc = self.fc.iter().map(|wanted| fc::View::read(tree, wanted, &self.former));
        Ok(View { iscsi, fc: fc.collect::<Result<_, _>>()? })
    }

    pub(in crate::engine) fn plan(&self, seen: &View) -> Plan<Op> {
        let fc = self.fc.iter().zip(&seen.fc).collect();
        plan_exports(&Exports { iscsi: Some((&self.iscsi, &seen.iscsi)), fc })
    }

    /// The report's facts from the tree, without sessions and counters. `plan` was made for this
    /// view.
    pub(in crate::engine) fn facts(&self, seen: &View, plan: &Plan<Op>) -> (ExportFacts, Vec<FcPortReport>) {
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

    /// Sessions and counters of the nexuses over Fibre Channel, by port.
    pub(in crate::engine) fn fc_live(
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

    /// A copy without the grants of these initiators.
    pub(in crate::engine) fn without(&self, left_out: impl Fn(&Initiator) -> bool) -> Self {
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

    /// Every initiator with a grant.
    pub(in crate::engine) fn initiators(&self) -> BTreeSet<Initiator> {
        let iscsi = self.iscsi.grants().iter().map(|grant| grant.initiator.clone().into());
        let fc = self.fc.iter().flat_map(fc::Wanted::grants).map(|grant| grant.initiator.into());
        iscsi.chain(fc).collect()
    }
}

impl View {
    /// The view of an export over iSCSI alone.
    pub(in crate::engine) fn iscsi(iscsi: ExportView) -> Self {
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
    /// Takes a spec or tombstone that the store has, and adds its places again: a pass that ended
    /// meanwhile may have forgotten them.
    pub(in crate::engine) fn admit_export(&mut self, kept_spec: KeptSpec<ExportSpec>) {
        self.established.add_former(kept_spec.spec().map(places_of).unwrap_or_default());
        self.set_export(kept_spec);
        self.turn.ask_anew();
    }
}

impl Cell {
    /// Notes which places show the volume. Returns a function that says whether an initiator has a
    /// nexus.
    pub(in crate::engine) fn nexuses(&self, wanted: &Wanteds, seen: &View) -> impl Fn(&Initiator) -> bool {
        let linked = wanted.linked(seen);
        self.state().knowledge.learn_linked(&linked);
        move |initiator| match initiator {
            Initiator::Iscsi(iqn) => seen.has_acl(iqn.as_str()),
            Initiator::Fc(wwpn) => linked.iter().any(|(_, place)| place.initiator == *wwpn),
        }
    }

    /// Notes that a TPG LUN has drained. Returns its initiator if that has no nexus on any port any
    /// more.
    pub(in crate::engine) fn drained(&self, drained: fc::Drained) -> Option<Wwpn> {
        self.state().knowledge.drained(drained)
    }

    /// Notes that `wanted` was in force, and nothing else: only its places, those of a spec that
    /// came meanwhile, and those that a port showed meanwhile may show the volume.
    pub(in crate::engine) fn settle_places(&self, wanted: &Wanteds) {
        let mut state = self.state();
        let mut places = wanted.places();
        let newer = state.export_spec();
        places.extend(newer.map(places_of).unwrap_or_default());
        places.extend(state.established.former().difference(&wanted.former));
        state.established.settle_former(places);
    }

    /// A copy of `wanted` without grants whose old nexus stands: revoked, and granted again before
    /// the revoke was carried out. `None` if there are no such grants.
    pub(in crate::engine) fn without_revoked(
        &self,
        wanted: &Wanteds,
        has_nexus: impl Fn(&Initiator) -> bool,
        generation: Generation,
    ) -> Option<Wanteds> {
        let state = self.state();
        let open = |initiator: &Initiator| {
            let of =
                |open: &OpenReceipt| open.is_unproven(generation) && open.receipt.initiator == *initiator;
            state.established.receipts().open().iter().any(of) && has_nexus(initiator)
        };
        wanted.initiators().iter().any(open).then(|| wanted.without(open))
    }

    /// Says whether a grant was revoked up to this generation and is not known to have drained.
    pub(in crate::engine) fn has_unproven(&self, generation: Generation) -> bool {
        self.state().established.receipts().open().iter().any(|open| open.is_unproven(generation))
    }
}

impl Engine {
    /// Adds the specs over Fibre Channel to the one over iSCSI.
    pub(in crate::engine) fn wanted_over(
        &self,
        cell: &Cell,
        iscsi: Wanted,
        spec: Option<&FcExportSpec>,
    ) -> Wanteds {
        let former = cell.state().established.former().clone();
        let spec = spec.filter(|spec| !spec.grants.is_empty());
        if former.is_empty() && spec.is_none() {
            return Wanteds { iscsi, fc: Vec::new(), former };
        }
        let ports = lock(&self.shared.export_memory.ports);
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
    /// Looks for the Fibre Channel ports that serve, and makes each a target: an initiator that
    /// meets a port before that takes it for no target (lio.md, h). Runs at each resync, because a
    /// port may come after the agent's start.
    pub(in crate::engine) fn prepare_ports(&self) {
        let Some(config) = &self.shared.config.fibre_channel else { return };
        let machine = &self.shared.machine;
        let served: Vec<FcPort> = {
            let mut ports = lock(&self.shared.export_memory.ports);
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
        lock(&self.shared.export_memory.ports).troubles = troubles;
    }

    /// The Fibre Channel ports that serve, as the last resync saw them.
    pub(crate) fn fibre_channel_ports(&self) -> Vec<PortSeen> {
        let ports = lock(&self.shared.export_memory.ports);
        let seen = |(port, state): (FcPort, &str)| PortSeen {
            port,
            state: state.to_owned(),
            trouble: ports.troubles.get(&port).cloned(),
        };
        ports.served().map(seen).collect()
    }

    /// Finds by one walk over a port the places that a lost store knew. Changes nothing of them
    /// before a spec says so.
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
            if BackstoreName::of(volume).hba != backstore.parent().name() {
                continue;
            }
            let cell = self.cell(volume);
            // Holds off changes of the volume: each keeps places, too.
            let Some(_turn) = cell.admission.take(Duration::ZERO) else {
                // The next resync writes what the store lacks (`forget_places`).
                cell.state().established.add_former(places);
                continue;
            };
            if let Err(error) = self.keep_places(&cell, &places) {
                tracing::error!(error = %Chain(&error), %volume, "cannot keep Fibre Channel places");
            }
        }
    }

    /// The initiators with a nexus of the volume over Fibre Channel, as the kernel shows them.
    pub(in crate::engine) fn fc_initiators(
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

    /// Keeps the places of a spec before the spec: the agent must find what that makes again.
    pub(in crate::engine) fn remember_places(
        &self,
        cell: &Cell,
        spec: Option<&ExportSpec>,
    ) -> Result<(), Refusal> {
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
        state.established.add_former(places);
        Ok(())
    }

    /// Forgets in the store the places that later specs have taken away.
    pub(in crate::engine) fn forget_places(&self) {
        for cell in self.cells() {
            let is_kept = |state: &State| state.established.are_places_kept();
            // As a rule the store has them of every volume: no turn is taken.
            if is_kept(&cell.state()) {
                continue;
            }
            // Holds off changes of the volume: the write is of its places as they are.
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

#[cfg(test)]
mod tests {
    use mooring_model::ExportIdentity;

    use super::*;
    use crate::engine::testing;

    #[tokio::test]
    async fn places_that_come_during_a_pass_outlive_it() {
        let node = testing::Node::new();
        let place = |lun: u16| Place {
            initiator: "20:00:52:54:00:14:00:0b".parse().unwrap(),
            slot: mooring_model::InitiatorSlot::new(1).unwrap(),
            lun: mooring_model::Lun(lun),
        };
        let names = ExportIdentity::Derived.names(node.cell.id, &node.engine.config().iqn_prefix);
        node.cell.state().established.add_former([place(1)]);
        let wanted = node.engine.wanted_over(&node.cell, Wanted::Absent { names }, None);
        // A walk over the port finds another one while the pass is at work.
        node.cell.state().established.add_former([place(2)]);
        node.cell.settle_places(&wanted);
        assert_eq!(*node.cell.state().established.former(), BTreeSet::from([place(2)]));
    }
}
