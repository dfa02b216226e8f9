//! Notifications to systemd. They never fail: a daemon works whether or not anything listens.
//!
//! What must never happen here: "ready" before the daemon answers; a watchdog that is still fed
//! when the daemon hangs (so the daemon's own runtime feeds it, not a thread of its own).

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// Tells systemd that the daemon answers, so that units ordered after it may start.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// Tells systemd that the daemon is about to end.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Sets the status line of `systemctl status`.
pub fn status(text: &str) {
    // The protocol consists of lines: a newline would start another assignment.
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    send(&[NotifyState::Status(&line)]);
}

/// Interval at which a daemon checks its status line for changes.
pub const STATUS_EVERY: Duration = Duration::from_secs(2);

/// Keeps the status line of `systemctl status` current. Calls `line` at once and at each `every`,
/// on a thread that may block, and tells systemd when the text changes. Abort the handle to stop.
/// `None` if nothing listens. Must be called inside a tokio runtime.
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

/// Tells the watchdog that the daemon is alive.
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// Interval for calls of `alive`: half of the unit's `WatchdogSec=`, as `sd_watchdog_enabled(3)`
/// recommends. `None` if no watchdog is set.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2).filter(|half| !half.is_zero())
}

/// Feeds the watchdog from the current runtime while that runs tasks. Dropping the handle lets it
/// go on, aborting stops it. `None` if no watchdog is set. Must be called inside a tokio runtime.
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

/// Calls [`stopping`] and sends `true` when systemd or a terminal asks this daemon to end. Must be
/// called inside a tokio runtime; signals count from this call on.
pub fn on_stop(stop: watch::Sender<bool>) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopping();
        // If serving has failed there is no receiver, and the process ends anyway.
        let _ = stop.send(true);
    });
    Ok(())
}

fn send(states: &[NotifyState<'_>]) {
    // Without NOTIFY_SOCKET this is a no-op. If nobody reads the socket, systemd's own time limits
    // report it.
    let _ = sd_notify::notify(states);
}
