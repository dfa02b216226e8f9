//! Holds a logind lock that delays a shutdown exactly while work lasts, and tells when a shutdown
//! begins.
//!
//! What must never happen here: a lock that is held while no work runs; work that waits for a lock,
//! or for logind's answer.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use zbus::OwnedFd;

use crate::link::{At, Bus, Error, Link};

const LOGIND: &str = "org.freedesktop.login1";
const MANAGER: At<'static> =
    At { service: LOGIND, path: "/org/freedesktop/login1", interface: "org.freedesktop.login1.Manager" };

/// Shorter work takes no lock: it ends before a shutdown stops the first unit.
const WORTH: Duration = Duration::from_millis(250);

/// Time that a new reason must stand before a held lock is replaced by one that shows it.
const RENEWED: Duration = Duration::from_secs(5);

/// Pause before logind is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// A held lock and the reason that it shows.
struct Lock {
    why: String,
    /// The lock's descriptor: logind releases the lock when the last copy is closed.
    _file: OwnedFd,
}

/// Delays shutdowns while `work` has a reason, and lets them proceed at once when it has none.
/// `systemd-inhibit --list` shows the reason beside `who`. `closing` is true from logind's signal
/// that a shutdown begins until its signal that it was called off. Ends when the sender of `work`
/// is dropped.
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
        // The lock is its file, and survives the connection.
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

/// Serves until the bus fails. `None`: the sender of `work` was dropped.
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
                    // Assigning drops the previous lock only now that the new one is held.
                    Ok(file) => (*lock, since) = (Some(Lock { why, _file: file }), None),
                    // Polkit refused, there are too many locks, or a shutdown has begun: the work
                    // goes on without a lock.
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
