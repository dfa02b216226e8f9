//! Follows the states of some units in systemd. A signal only means "look again", so a lost or
//! unknown signal costs a look and never a wrong state.
//!
//! What must never happen here: a look that makes systemd send signals (the object of a unit that
//! is not loaded is not read, because that would load it).

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::time::Duration;

use tokio::sync::watch;
use zbus::{OwnedObjectPath, OwnedVariant};

use crate::link::{At, Bus, Error, Link};

const SYSTEMD: &str = "org.freedesktop.systemd1";
const ROOT: &str = "/org/freedesktop/systemd1";
const MANAGER: At<'static> =
    At { service: SYSTEMD, path: ROOT, interface: "org.freedesktop.systemd1.Manager" };

/// Pause that gathers signals: each job sends several.
const SETTLE: Duration = Duration::from_millis(100);

/// Interval of looks without a signal: the bus may hang.
const LOOK_AGAIN: Duration = Duration::from_mins(10);

/// Pause before the bus is tried again, at first and at most.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_mins(1)];

/// The state of a unit in systemd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unit {
    /// Name of the unit; for an alias, the name of the unit that it stands for.
    pub name: String,
    /// `LoadState`: `loaded`, `masked`, `error`; empty while systemd does not have it in memory.
    pub load: String,
    /// `ActiveState`: `active`, `inactive`, `failed`, `activating`, `deactivating`, `reloading`.
    pub active: String,
    /// `UnitFileState`: `enabled`, `disabled`, `static`, `masked` and more.
    pub file: String,
    /// `Result` of a failed service, such as `exit-code`.
    pub result: String,
    /// `true` if the unit's files have changed since systemd read them.
    pub outdated: bool,
}

impl Unit {
    /// Returns `true` if the unit runs, has run and remains active, or is starting.
    pub fn is_up(&self) -> bool {
        matches!(self.active.as_str(), "active" | "activating" | "reloading" | "refreshing")
    }

    /// Returns `true` if the unit is up or stopping: it is there until it has stopped.
    pub fn is_there(&self) -> bool {
        self.is_up() || self.active == "deactivating"
    }

    /// Returns `true` if the unit's file says that a boot starts it.
    pub fn is_enabled(&self) -> bool {
        matches!(self.file.as_str(), "enabled" | "enabled-runtime")
    }

    /// Returns `true` if the unit cannot be started.
    pub fn is_masked(&self) -> bool {
        self.load == "masked" || self.file.starts_with("masked")
    }

    fn of(name: &str, properties: &HashMap<String, OwnedVariant>) -> Self {
        let text = |key: &str| {
            properties.get(key).and_then(|value| <&str>::try_from(value).ok()).unwrap_or_default()
        };
        let outdated = properties.get("NeedDaemonReload").and_then(|value| bool::try_from(value).ok());
        let id = Some(text("Id")).filter(|id| !id.is_empty()).unwrap_or(name);
        Self {
            name: id.to_owned(),
            load: text("LoadState").to_owned(),
            active: text("ActiveState").to_owned(),
            file: text("UnitFileState").to_owned(),
            result: String::new(),
            outdated: outdated.unwrap_or_default(),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(if self.load == "masked" { "masked" } else { &self.active })?;
        if self.result.is_empty() { Ok(()) } else { write!(to, " ({})", self.result) }
    }
}

/// Units by the names that were asked for. A unit that is not installed is absent.
pub type Units = BTreeMap<String, Unit>;

/// Follows these units until all receivers are dropped. `None`: the states are unknown, because
/// there is no bus or it does not answer. Must be called inside a tokio runtime.
pub fn follow(bus: Bus, names: &[&str]) -> watch::Receiver<Option<Units>> {
    let names: Vec<_> = names.iter().copied().map(str::to_owned).collect();
    let (seen, followed) = watch::channel(None);
    tokio::spawn(async move {
        tokio::select! {
            () = seen.closed() => {}
            () = keep(&bus, &names, &seen) => {}
        }
    });
    followed
}

async fn keep(bus: &Bus, names: &[String], seen: &watch::Sender<Option<Units>>) {
    let [first, last] = AGAIN;
    let (mut wait, mut said) = (first, false);
    loop {
        let mut looked = false;
        let Err(error) = follow_once(bus, names, seen, &mut looked).await;
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        if looked {
            // The last states stand until the next try has failed, too.
            tracing::warn!(%error, source, "systemd is not heard any more over D-Bus; tried again");
            (wait, said) = (first, false);
        } else {
            seen.send_if_modified(|units| units.take().is_some());
            if !std::mem::replace(&mut said, true) {
                tracing::info!(%error, source, "the states of systemd's units are not known: D-Bus is not there");
            }
        }
        tokio::time::sleep(wait).await;
        wait = if looked { first } else { wait.saturating_mul(2).min(last) };
    }
}

async fn follow_once(
    bus: &Bus,
    names: &[String],
    seen: &watch::Sender<Option<Units>>,
    looked: &mut bool,
) -> Result<Infallible, Error> {
    let mut link = Link::open(bus, &rules(names)).await?;
    loop {
        // Subscribe on each look: a restarted systemd has no subscribers.
        match link.call::<_, ()>("subscribe to systemd", MANAGER, "Subscribe", &()).await {
            // systemd answers a second subscription with an error.
            Err(error) if !error.is_refusal() => return Err(error),
            Ok(()) | Err(_) => {}
        }
        // The look covers all signals that came until now.
        link.drain();
        let units = look(&link, names).await?;
        *looked = true;
        seen.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&units);
            *known = Some(units);
            changed
        });
        if let Ok(None) = tokio::time::timeout(LOOK_AGAIN, link.signal()).await {
            return Err(Error::Gone);
        }
        tokio::time::sleep(SETTLE).await;
    }
}

/// Match rules for the signals that may mean a change of these units.
fn rules(names: &[String]) -> Vec<String> {
    let from = format!("type='signal',sender='{SYSTEMD}'");
    let manager = format!("{from},path='{ROOT}',interface='{}'", MANAGER.interface);
    let mut rules = vec![
        format!("type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{SYSTEMD}'"),
        format!("{manager},member='UnitFilesChanged'"),
        format!("{manager},member='Reloading'"),
    ];
    for name in names {
        rules.push(format!("{manager},member='UnitNew',arg0='{name}'"));
        rules.push(format!("{manager},member='UnitRemoved',arg0='{name}'"));
        rules.push(format!("{from},member='PropertiesChanged',path='{}'", path_of(name)));
    }
    rules
}

/// D-Bus path of a unit's object, by the rules of `sd_bus_path_encode(3)`.
fn path_of(name: &str) -> String {
    let mut path = format!("{ROOT}/unit/");
    for (index, byte) in name.bytes().enumerate() {
        if byte.is_ascii_alphabetic() || (index > 0 && byte.is_ascii_digit()) {
            path.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _written = write!(path, "_{byte:02x}");
        }
    }
    path
}

async fn look(link: &Link, names: &[String]) -> Result<Units, Error> {
    let mut units = Units::new();
    for name in names {
        if let Some(unit) = look_at(link, name).await?.filter(|unit| unit.load != "not-found") {
            units.insert(name.clone(), unit);
        }
    }
    Ok(units)
}

/// Reads one unit; `None`: systemd knows none with this name.
async fn look_at(link: &Link, name: &str) -> Result<Option<Unit>, Error> {
    let path =
        match link.call::<_, OwnedObjectPath>("ask systemd for a unit", MANAGER, "GetUnit", &name).await {
            Ok(path) => path,
            Err(error) if error.is_refusal() => {
                // The unit is not in memory, so it is inactive. `GetUnitFileState` reads its file
                // without loading it.
                let file =
                    link.call("ask systemd for a unit's file", MANAGER, "GetUnitFileState", &name).await;
                return match file {
                    Ok(file) => Ok(Some(Unit {
                        name: name.to_owned(),
                        active: "inactive".to_owned(),
                        file,
                        ..Unit::default()
                    })),
                    Err(error) if error.is_refusal() => Ok(None),
                    Err(error) => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
    let properties =
        At { service: SYSTEMD, path: path.as_str(), interface: "org.freedesktop.DBus.Properties" };
    let all = link.call("read a unit", properties, "GetAll", &"org.freedesktop.systemd1.Unit").await;
    let all: HashMap<String, OwnedVariant> = match all {
        Ok(all) => all,
        // The unit has gone meanwhile: a signal says so.
        Err(error) if error.is_refusal() => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut unit = Unit::of(name, &all);
    if unit.active == "failed" {
        let result = ("org.freedesktop.systemd1.Service", "Result");
        match link.call::<_, OwnedVariant>("read a unit's result", properties, "Get", &result).await {
            Ok(value) => unit.result = String::try_from(value).unwrap_or_default(),
            // The unit is no service.
            Err(error) if error.is_refusal() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_units_object_is_named_as_systemd_names_it() {
        for (name, path) in [
            ("mooring-agent.service", "/org/freedesktop/systemd1/unit/mooring_2dagent_2eservice"),
            ("target.service", "/org/freedesktop/systemd1/unit/target_2eservice"),
            ("0a_b@1.service", "/org/freedesktop/systemd1/unit/_30a_5fb_401_2eservice"),
        ] {
            assert_eq!(path_of(name), path);
        }
    }

    #[test]
    fn a_unit_says_whether_it_runs_starts_or_cannot() {
        let unit = |load: &str, active: &str, file: &str| Unit {
            load: load.to_owned(),
            active: active.to_owned(),
            file: file.to_owned(),
            ..Unit::default()
        };
        let said = |unit: &Unit| [unit.is_up(), unit.is_there(), unit.is_enabled(), unit.is_masked()];
        for (unit, is) in [
            (unit("loaded", "active", "enabled"), [true, true, true, false]),
            (unit("loaded", "activating", "static"), [true, true, false, false]),
            (unit("loaded", "deactivating", "disabled"), [false, true, false, false]),
            (unit("", "inactive", "enabled-runtime"), [false, false, true, false]),
            (unit("masked", "inactive", ""), [false, false, false, true]),
            (unit("", "inactive", "masked-runtime"), [false, false, false, true]),
        ] {
            assert_eq!(said(&unit), is, "{unit:?}");
        }
        let failed = Unit { result: "exit-code".to_owned(), ..unit("loaded", "failed", "enabled") };
        assert_eq!((failed.to_string(), failed.is_there()), ("failed (exit-code)".to_owned(), false));
        assert_eq!(unit("masked", "inactive", "").to_string(), "masked");
    }
}
