//! Notifications to systemd from a process that has its environment. The test runs itself again,
//! because changing one's own environment is unsafe.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mooring_systemd::notify;

#[test]
fn without_systemd_everything_is_a_no_op() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_the_environment_asks_for", "--nocapture"])
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn systemd_hears_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_the_environment_asks_for", "--nocapture"])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "200000")
        .env_remove("WATCHDOG_PID")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut heard = Vec::new();
    let mut buffer = [0; 256];
    while heard.last().is_none_or(|line| line != "STOPPING=1\n") {
        let length = socket.recv(&mut buffer).unwrap();
        heard.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    assert_eq!(heard.first().unwrap(), "READY=1\n");
    assert_eq!(heard[1], "STATUS=2 volumes READY=1\n", "one line, and no second assignment");
    let lines: Vec<_> = heard[2..].iter().filter(|line| line.starts_with("STATUS=")).collect();
    assert_eq!(lines, ["STATUS=look 1\n", "STATUS=look 2\n"], "at once, and when it has changed");
    let beats = heard.iter().filter(|line| *line == "WATCHDOG=1\n").count();
    assert!((2..=4).contains(&beats), "{heard:?}");
}

/// Runs in a child of the tests above too, with an environment of their choice.
#[test]
fn what_the_environment_asks_for() {
    notify::ready();
    notify::status("2 volumes\nREADY=1");
    let watched = notify::watchdog_interval();
    let asked = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
    let wanted = asked.map(|micros: u64| Duration::from_micros(micros / 2));
    assert_eq!(watched, wanted);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    runtime.block_on(async {
        let looks = AtomicU32::new(0);
        let line = move || format!("look {}", looks.fetch_add(1, Ordering::Relaxed).min(3) / 2 + 1);
        let telling = notify::spawn_status(Duration::from_millis(10), line);
        assert_eq!(telling.is_some(), std::env::var_os("NOTIFY_SOCKET").is_some());
        let beating = notify::spawn_watchdog();
        assert_eq!(beating.is_some(), wanted.is_some());
        tokio::time::sleep(Duration::from_millis(250)).await;
        if let Some(beating) = beating {
            beating.abort();
        }
        if let Some(telling) = telling {
            telling.abort();
        }
    });
    notify::stopping();
}
