//! Notifications to systemd from a process that has its environment. The test runs itself again,
//! because changing one's own environment is unsafe.

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

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
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_the_environment_asks_for", "--nocapture"])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "200000")
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut heard: Vec<String> = Vec::new();
    let beats = |heard: &[String]| heard.iter().filter(|line| *line == "WATCHDOG=1\n").count();
    let mut buffer = [0; 256];
    while heard.last().is_none_or(|line| line != "STOPPING=1\n") {
        let length = socket.recv(&mut buffer).unwrap();
        heard.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        if beats(&heard) >= 2 && heard.iter().any(|line| line == "STATUS=look 2\n") {
            // The child ends when nobody holds the other end of its input.
            drop(child.stdin.take());
        }
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(heard.first().unwrap(), "READY=1\n");
    assert_eq!(heard[1], "STATUS=2 volumes READY=1\n", "one line, and no second assignment");
    let lines: Vec<_> = heard[2..].iter().filter(|line| line.starts_with("STATUS=")).collect();
    assert_eq!(lines, ["STATUS=look 1\n", "STATUS=look 2\n"], "at once, and when it has changed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let ran = said.split("beats for ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let ran: usize = ran.parse().unwrap();
    // One at once, and one in each half of the interval.
    assert!((2..=2 + ran / 100).contains(&beats(&heard)), "{ran} ms: {heard:?}");
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
        let began = Instant::now();
        let beating = notify::spawn_watchdog();
        assert_eq!(beating.is_some(), wanted.is_some());
        if let Some(beating) = beating {
            // Whoever listens says when it has heard enough.
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            beating.abort();
            println!("beats for {} ms", began.elapsed().as_millis());
        } else {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        if let Some(telling) = telling {
            telling.abort();
        }
    });
    notify::stopping();
}
