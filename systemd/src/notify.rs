//! What a daemon tells systemd. Nothing here fails: a daemon does its work whether or not somebody listens.
//!
//! What must never happen here: "ready" before the daemon answers; a watchdog that is fed by something which runs on when
//! the daemon hangs (that is why it is fed from the daemon's own runtime and not from a thread of its own).

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// The daemon answers: units that are ordered after it may start.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// The daemon is about to end.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// One line for `systemctl status`.
pub fn status(text: &str) {
    // The protocol is made of lines: a newline would start another assignment.
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    send(&[NotifyState::Status(&line)]);
}

/// How often a daemon looks whether its status line has changed.
pub const STATUS_EVERY: Duration = Duration::from_secs(2);

/// Keeps the line for `systemctl status` as `line` says it, from the current runtime: asks for it at once and each `every`, on a thread
/// that may wait, and tells systemd when it has changed. Abort the handle to stop. `None` where nobody listens. To be called inside a
/// tokio runtime.
pub fn spawn_status(
    every: Duration,
    line: impl Fn() -> String + Send + Sync + 'static,
) -> Option<JoinHandle<()>> {
    std::env::var_os("NOTIFY_SOCKET")?;
    let line = Arc::new(line);
    let mut beat = interval(every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Some(tokio::spawn(async move {
        let mut told = None;
        loop {
            beat.tick().await;
            let asked = Arc::clone(&line);
            let now = tokio::task::spawn_blocking(move || asked()).await.ok();
            if let Some(text) = now.as_ref().filter(|_| now != told) {
                status(text);
                told = now;
            }
        }
    }))
}

/// The daemon is alive.
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// How often `alive` is to be called: half of the unit's `WatchdogSec=`, as `sd_watchdog_enabled(3)` asks for. `None`
/// where no watchdog waits.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2).filter(|half| !half.is_zero())
}

/// Feeds the watchdog from the current runtime for as long as that gets to run tasks. Drop the handle to let it go on,
/// abort it to stop. `None` where no watchdog waits. To be called inside a tokio runtime.
pub fn spawn_watchdog() -> Option<JoinHandle<()>> {
    let mut beat = interval(watchdog_interval()?);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Some(tokio::spawn(async move {
        loop {
            beat.tick().await;
            alive();
        }
    }))
}

/// Says [`stopping`] and sends `true` when systemd or a terminal asks this daemon to end. To be called inside a tokio
/// runtime; the signals count from here on.
pub fn on_stop(stop: watch::Sender<bool>) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopping();
        // Nobody listens any more when serving has failed: then the process ends anyway.
        let _ = stop.send(true);
    });
    Ok(())
}

fn send(states: &[NotifyState<'_>]) {
    // Without NOTIFY_SOCKET this is a no-op. With one that nobody reads, systemd's own time limits say so.
    let _ = sd_notify::notify(states);
}
