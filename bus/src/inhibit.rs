//! A lock of logind's that delays a shutdown, held while work lasts and no longer, and the news that a shutdown begins.
//!
//! What must never happen here: a lock that is held when nothing is at work; work that waits for a lock, or for logind's answer.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use zbus::OwnedFd;

use crate::link::{At, Bus, Error, Link};

const LOGIND: &str = "org.freedesktop.login1";
const MANAGER: At<'static> =
    At { service: LOGIND, path: "/org/freedesktop/login1", interface: "org.freedesktop.login1.Manager" };

/// Shorter work takes no lock: it is over before a shutdown has stopped the first unit.
const WORTH: Duration = Duration::from_millis(250);

/// How long another reason has to stand before a lock that is held gets it.
const RENEWED: Duration = Duration::from_secs(5);

/// How long to wait before logind is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// A lock that is held, and the reason that it shows.
struct Lock {
    why: String,
    /// Descriptor of the lock: logind releases it when the last copy is closed.
    _file: OwnedFd,
}

/// Delays shutdowns for as long as `work` has a reason, which `systemd-inhibit --list` shows beside `who`, and lets them go on at once
/// when it has none. `closing` is true from the moment at which logind says that a shutdown begins, until it says that it was
/// called off. Ends when the sender of `work` is dropped.
pub async fn delay_shutdown(
    bus: Bus,
    who: &str,
    mut work: watch::Receiver<Option<String>>,
    closing: watch::Sender<bool>,
) {
    let (mut lock, mut said) = (None, false);
    loop {
        let mut heard = false;
        let Err(error) = match serve(&bus, who, &mut work, &closing, &mut lock, &mut heard).await {
            Ok(None) => return,
            Ok(Some(never)) => match never {},
            Err(error) => Err::<Infallible, _>(error),
        };
        said &= !heard;
        if !std::mem::replace(&mut said, true) {
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::info!(%error, source, "logind is not there: a shutdown does not wait for what is at work");
        }
        // The lock is its file, and outlives the connection.
        let again = tokio::time::sleep(AGAIN);
        tokio::pin!(again);
        while !again.is_elapsed() {
            tokio::select! {
                () = &mut again => {}
                changed = work.changed() => match changed {
                    Ok(()) if work.borrow().is_none() => lock = None,
                    Ok(()) => {}
                    Err(_) => return,
                },
            }
        }
    }
}

/// Serves until the bus fails. `None`: nobody will work any more.
async fn serve(
    bus: &Bus,
    who: &str,
    work: &mut watch::Receiver<Option<String>>,
    closing: &watch::Sender<bool>,
    lock: &mut Option<Lock>,
    heard: &mut bool,
) -> Result<Option<Infallible>, Error> {
    let rule = format!(
        "type='signal',sender='{LOGIND}',path='{}',interface='{}',member='PrepareForShutdown'",
        MANAGER.path, MANAGER.interface
    );
    let mut link = Link::open(bus, &[rule]).await?;
    *heard = true;
    let (mut since, mut refused) = (None, false);
    loop {
        let why = work.borrow_and_update().clone();
        match &why {
            None => (*lock, since, refused) = (None, None, false),
            Some(why) if lock.as_ref().is_some_and(|lock| lock.why == *why) => since = None,
            Some(_) => since = since.or_else(|| Some(Instant::now())),
        }
        let wait = if lock.is_some() { RENEWED } else { WORTH };
        let due = since.filter(|_| !refused).map(|since| since + wait);
        tokio::select! {
            signal = link.signal() => {
                let Some(signal) = signal else { return Err(Error::Gone) };
                if let Ok(begins) = signal.body().deserialize::<bool>() {
                    tracing::info!(begins, "logind tells of a shutdown");
                    closing.send_replace(begins);
                }
            }
            changed = work.changed() => {
                if changed.is_err() {
                    return Ok(None);
                }
            }
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let why = why.unwrap_or_default();
                let asked = ("shutdown", who, why.as_str(), "delay");
                match link.call("ask logind for a lock", MANAGER, "Inhibit", &asked).await {
                    // The one before it is let go of when this one is held.
                    Ok(file) => (*lock, since) = (Some(Lock { why, _file: file }), None),
                    // Polkit's no, too many locks, a shutdown that has begun: the work goes on without.
                    Err(error) if error.is_refusal() => {
                        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                        tracing::warn!(%error, source, "a shutdown does not wait for what is at work");
                        refused = true;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
}
