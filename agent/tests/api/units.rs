//! Units with the wrong state in systemd are problems of this host while they are wrong.

use mooring_api::v1::report::What;
use mooring_api::v1::{Capabilities, HealthLevel};
use mooring_bus::fake::{Daemon, Fake, FakeUnit};
use tokio_stream::StreamExt;

use crate::rig::*;

const RESTORER: &str = "rtslib-fb-targetctl.service";

/// Returns the problem of the restorer; `None` if there is none.
fn told(seen: &Capabilities) -> Option<&str> {
    seen.problems.iter().find(|problem| problem.object == RESTORER).map(|problem| problem.text.as_str())
}

#[test]
fn a_unit_that_clears_the_target_is_a_problem_while_it_is_there() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let daemon = Daemon::absent();
    let node = Node { bus: Some(daemon.bus()), ..Node::new() };
    let agent = node.start();
    let before = agent.capabilities();
    assert_eq!(
        (told(&before), before.health.as_ref().unwrap().level()),
        (None, HealthLevel::Ok),
        "no bus is no fault"
    );

    let mut reports = agent.watch();
    let mut until = |is: &dyn Fn(&Capabilities) -> bool| loop {
        let next = agent.wait(async { reports.next().await.unwrap().unwrap().what.unwrap() });
        if let What::Capabilities(seen) = next
            && is(&seen)
        {
            return seen;
        }
    };
    let mut daemon = daemon;
    let _entered = runtime.enter();
    daemon.start();
    let fake = runtime.block_on(Fake::serve(&daemon, &[(RESTORER, FakeUnit::new(RESTORER, "active"))]));
    let seen = until(&|seen| told(seen).is_some());
    let text = told(&seen).unwrap();
    assert!(text.contains(&format!("systemctl mask {RESTORER} && systemctl stop {RESTORER}")), "{text}");
    let health = seen.health.as_ref().unwrap();
    assert_eq!(
        (health.level(), health.reasons[0].code.as_str()),
        (HealthLevel::Degraded, "conflicting_unit")
    );
    runtime.block_on(fake.change(RESTORER, |unit| unit.active = "inactive"));
    assert_eq!(until(&|seen| told(seen).is_none()).health.unwrap().level(), HealthLevel::Ok);
    runtime.block_on(fake.change(RESTORER, |unit| unit.active = "active"));
    until(&|seen| told(seen).is_some());
    // Nobody knows the unit's state any more, so no problem is reported.
    daemon.stop();
    until(&|seen| told(seen).is_none());
}
