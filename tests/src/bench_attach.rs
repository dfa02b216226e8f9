//! `cargo xtask bench attach`: measures a native attach, beside the floor of a bare login and scan,
//! and beside stock open-iscsi, in one VM run.
//!
//! No number here decides a verdict.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mooring_rig::{RigOptions, VmSpec};
use serde_json::Value;

use crate::clients::Cinder;
use crate::control::{Control, PORT, TOKEN};
use crate::evidence::check;
use crate::initiator::{Credentials, Host};
use crate::native::text;
use crate::site::{BIN, Programs, Site};

const LONG: Duration = Duration::from_mins(30);
const PORTAL: &str = "10.10.0.10:3260";
/// Number of attaches at the same time.
const AT_ONCE: usize = 20;

/// Percentiles: half of the samples, and 95 of 100, were at most this.
#[derive(Debug, Clone, Copy)]
struct Percentiles {
    p50: f64,
    p95: f64,
}

impl Percentiles {
    /// Percentiles of samples in milliseconds.
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let last = samples.len().saturating_sub(1);
            samples.get((samples.len() * percent / 100).min(last)).copied().unwrap_or(f64::NAN)
        };
        Self { p50: at(50), p95: at(95) }
    }

    /// Percentiles from a figure that a program in the VM printed in microseconds.
    fn of_figure(value: &Value) -> Result<Self> {
        let ms = |key: &str| {
            value[key].as_f64().map(|us| us / 1000.0).with_context(|| format!("no {key} in {value}"))
        };
        Ok(Self { p50: ms("p50_us")?, p95: ms("p95_us")? })
    }
}

/// Runs the benchmark and prints its table.
pub fn run(programs: &Programs, rounds: u32) -> Result<()> {
    let mut options = RigOptions::standard(1).named("bench-attach").forward(PORT);
    if let Some(storage) = options.vms.first_mut() {
        let (standard, forward) = (VmSpec::storage(), storage.forward.clone());
        *storage = VmSpec { memory_mib: 2048, disks: vec![64 << 30, 4 << 30], forward, ..standard };
    }
    let site = Site::up(options, programs)?;
    let agent = site.start_agent()?;
    let mut control = Control::prepare(&site)?;
    site.uses(&["mooring-attach-floor"])?;
    control.start()?;
    let ours = ours(&control, rounds)?;
    let at_once = at_once(&control)?;
    let stock = StockVolume::make(&site, &control)?;
    let floor = stock.floor(&site, rounds)?;
    let open_iscsi = stock.open_iscsi(&site, rounds)?;
    print(&site, rounds, &ours, &floor, open_iscsi, at_once);
    agent.kill()?;
    site.rig.check_consoles()
}

/// Steps of our attaches in order: name and milliseconds since the request arrived.
type Steps = Vec<(&'static str, Percentiles)>;

fn ours(control: &Control<'_>, rounds: u32) -> Result<Steps> {
    let volume = control.volume("bench", None)?;
    let names = ["granted", "logged_in", "device_ready", "done"];
    let mut samples: [Vec<f64>; 4] = Default::default();
    for _ in 0..rounds {
        let live = control.attach(&volume, "host1", "rw")?;
        for (name, samples) in names.iter().zip(&mut samples) {
            let ms = live["steps_ms"][name].as_f64();
            samples.push(ms.with_context(|| format!("no step {name} in {live}"))?);
        }
        control.json(&["detach", text(&live, "id")?])?;
    }
    Ok(names.into_iter().zip(samples.map(Percentiles::of)).collect())
}

/// Milliseconds from the first request to the last device of 20 volumes.
fn at_once(control: &Control<'_>) -> Result<f64> {
    let volumes =
        (0..AT_ONCE).map(|n| control.volume(&format!("many{n}"), None)).collect::<Result<Vec<_>>>()?;
    let storage = control.site.storage()?;
    let began = Instant::now();
    let running = volumes
        .iter()
        .map(|volume| {
            let words = Control::words(&["--json", "attach", volume, "--host", "host1", "--timeout", "120"]);
            storage.command(words).timeout(LONG).spawn()
        })
        .collect::<Result<Vec<_>>>()?;
    let answers = running
        .into_iter()
        .map(|attach| Ok(serde_json::from_str(&attach.wait()?.ok()?.stdout)?))
        .collect::<Result<Vec<Value>>>()?;
    let took = began.elapsed();
    for answer in &answers {
        let live = if answer["attachment"].is_object() { &answer["attachment"] } else { answer };
        check(live["host_phase"] == "ready", || format!("{live}"))?;
        control.json(&["detach", text(live, "id")?])?;
    }
    Ok(took.as_secs_f64() * 1000.0)
}

/// A volume that a client of the Block Storage API has attached for a stock initiator on host1.
struct StockVolume {
    target: String,
    user: String,
    secret: String,
    iqn: String,
}

impl StockVolume {
    fn make(site: &Site, control: &Control<'_>) -> Result<Self> {
        let host = Host::configure(site.rig.vm("host1")?)?;
        let volume = control.volume("stock", None)?;
        let url = format!("http://{}/v3", site.storage()?.forwarded(PORT)?);
        let made = Cinder::new(&url, TOKEN)?.call(&["create", &volume, &host.iqn, "host1-stock", "rw"])?;
        let info = &made["connection_info"];
        let own = |key: &str| text(info, key).map(str::to_owned);
        Ok(Self {
            target: own("target_iqn")?,
            user: own("auth_username")?,
            secret: own("auth_password")?,
            iqn: host.iqn,
        })
    }

    /// Measures the bare login and scan.
    fn floor(&self, site: &Site, rounds: u32) -> Result<Value> {
        let vm = site.rig.vm("host1")?;
        vm.write("/run/secret", self.secret.as_bytes(), 0o600)?;
        let out = vm
            .command(["sh", "-c"].map(str::to_owned).into_iter().chain([format!(
                "{BIN}/mooring-attach-floor --initiator {} --target {} --portal {PORTAL} --user {} --secret-file /run/secret \
                 --rounds {rounds} --ordinary-port",
                self.iqn, self.target, self.user
            )]))
            .timeout(LONG)
            .run()?
            .ok()?;
        serde_json::from_str(out.stdout.trim()).with_context(|| out.stdout.clone())
    }

    /// Measures `iscsiadm --login` (which scans) with the wait for the disk's link; the logout
    /// after it is not timed.
    fn open_iscsi(&self, site: &Site, rounds: u32) -> Result<Percentiles> {
        let host = Host::start(site.rig.vm("host1")?)?;
        let chap = Credentials { user: &self.user, secret: &self.secret, mutual: None };
        host.login(&self.target, PORTAL, Some(chap), 20)?.ok()?;
        let node = format!("iscsiadm -m node -T {} -p {PORTAL}", self.target);
        let link = format!("/dev/disk/by-path/ip-{PORTAL}-iscsi-{}-lun-1", self.target);
        let script = format!(
            "{node} --logout >/dev/null; for i in $(seq {rounds}); do while [ -e {link} ]; do sleep 0.05; done; \
             a=$(date +%s%N); {node} --login >/dev/null; while ! [ -e {link} ]; do sleep 0.01; done; b=$(date +%s%N); \
             echo $(( (b - a) / 1000 )); {node} --logout >/dev/null; done"
        );
        let out = host.vm.command(["sh", "-euc", &script]).timeout(LONG).run()?.ok()?;
        let samples =
            out.stdout.lines().map(|line| Ok(line.trim().parse::<f64>()? / 1000.0)).collect::<Result<_>>()?;
        Ok(Percentiles::of(samples))
    }
}

fn print(site: &Site, rounds: u32, ours: &Steps, floor: &Value, stock: Percentiles, at_once: f64) {
    println!(
        "kernel {}, {:?}, {rounds} rounds each; times in ms since the request came",
        site.rig.kernel(),
        site.rig.accel()
    );
    println!("{:<34} {:>9} {:>9}", "", "p50", "p95");
    for (name, times) in ours {
        println!(
            "{:<34} {:>9.1} {:>9.1}",
            format!("mooring: {}", name.replace('_', " ")),
            times.p50,
            times.p95
        );
    }
    let figures: Vec<(String, Percentiles)> = floor["figures"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|figure| {
            Some((figure["name"].as_str()?.to_owned(), Percentiles::of_figure(figure).ok()?))
        })
        .collect();
    for (name, times) in &figures {
        println!("{:<34} {:>9.1} {:>9.1}", format!("floor: {name}"), times.p50, times.p95);
    }
    println!("{:<34} {:>9.1} {:>9.1}", "open-iscsi: login, scan, wait", stock.p50, stock.p95);
    let whole = ours.last().map_or(f64::NAN, |(_, times)| times.p50);
    let granted = ours.first().map_or(f64::NAN, |(_, times)| times.p50);
    if let Some((_, bare)) = figures.iter().find(|(name, _)| name == "whole") {
        println!(
            "whole attach / floor: {:.2} (bar 1.5); without the grant, which the floor has not: {:.2}",
            whole / bare.p50,
            (whole - granted) / bare.p50
        );
    }
    println!("open-iscsi / whole attach: {:.2}", stock.p50 / whole);
    println!(
        "{AT_ONCE} attaches at once, first request to last device, command line included: {at_once:.0} ms"
    );
}
