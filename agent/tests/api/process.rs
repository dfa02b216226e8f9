//! The program itself: one agent on one state folder, its exit codes and last words, and its end by
//! every signal.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use mooring_agent::store::{Kind, Store, StoredContent};
use mooring_api::v1::agent_client::AgentClient;
use mooring_api::{Message, v1};
use mooring_model::{Digest, Generation, Stamp};

use crate::rig::*;

/// A folder with a configuration whose kernel has no target: its configfs is an empty folder.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { dir: scratch() };
        std::fs::create_dir(site.path("configfs")).unwrap();
        let dir = site.dir.path().display();
        let text = format!(
            "portals = [\"127.0.0.1\"]\nstate_dir = \"{dir}/state\"\nrun_dir = \"{dir}/run\"\nconfigfs = \"{dir}/configfs\"\n\
             [[groups]]\nname = \"mooring-test-no-such-group\"\n"
        );
        site.write(&text);
        site
    }

    /// The configuration of a host that only attaches volumes: it has no group.
    fn of_a_host(&self) -> String {
        let dir = self.dir.path().display();
        format!(
            "state_dir = \"{dir}/state\"\nrun_dir = \"{dir}/run\"\nconfigfs = \"{dir}/configfs\"\n[host]\n"
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, config: &str) {
        std::fs::write(self.path("agent.toml"), config).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mooring-agent"));
        command.arg("--config").arg(self.path("agent.toml")).stderr(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn start(&self) -> Process {
        let process = Process(self.command().spawn().unwrap());
        eventually("the agent answers", || hello(&self.path("run/agent.sock")).is_some());
        process
    }

    /// Runs the program to its end. Returns the exit code and the text on standard error.
    fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.command().args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

/// A child that does not outlive its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    fn end(mut self) -> (Option<i32>, String) {
        let code = self.0.wait().unwrap().code();
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (code, said)
    }
}

fn hello(socket: &Path) -> Option<v1::HelloResponse> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let address = mooring_api::Address::Unix(socket.to_owned());
        let channel = mooring_api::connect(&address, &mooring_api::TlsFiles::default()).await.ok()?;
        let request = v1::HelloRequest { protocol_min: 1, protocol_max: 1, software: String::new() };
        Some(AgentClient::new(channel).hello(request).await.ok()?.into_inner())
    })
}

#[test]
fn a_second_agent_on_one_state_folder_ends_and_names_the_first() {
    let site = Site::new();
    let first = site.start();
    let (code, said) = site.run(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("process {}", first.0.id())) && said.contains("agent.lock"), "{said}");
    assert!(hello(&site.path("run/agent.sock")).is_some(), "the first still has its socket");
    first.signal("-TERM");
    let (code, said) = first.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("exports stay as they are"), "{said}");
}

#[test]
fn a_start_removes_what_a_killed_rotation_of_keys_has_left() {
    let site = Site::new();
    let keys = site.path("sealing.key");
    mooring_systemd::sealing::make(&keys, None).unwrap();
    let text = std::fs::read_to_string(site.path("agent.toml")).unwrap();
    site.write(&format!("sealing_key = \"{}\"\n{text}", keys.display()));
    std::fs::create_dir(site.path("state")).unwrap();
    let left = ["state/.mooring-a1B2c3", ".mooring-Zz09Yy"].map(|name| site.path(name));
    for file in &left {
        std::fs::copy(&keys, file).unwrap();
    }
    let first = site.start();
    assert!(left.iter().all(|file| !file.exists()), "keys of nobody");
    assert!(keys.exists() && site.path("state/agent.lock").exists());
    first.signal("-TERM");
    let (code, said) = first.end();
    assert_eq!((code, said.matches("its writer was killed").count()), (Some(0), 2), "{said}");
}

/// Returns the names of a process's threads that have this file open, according to `/proc`.
fn threads_with(pid: u32, open: &str) -> Vec<String> {
    let mut names = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap().path();
        let files = std::fs::read_dir(task.join("fd")).unwrap();
        let links = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        if links.into_iter().any(|link| link.to_string_lossy() == open) {
            names.push(std::fs::read_to_string(task.join("comm")).unwrap().trim().to_owned());
        }
    }
    names
}

/// Returns the inode of a listening socket, from a table in `/proc/net`.
fn listening(pid: u32, table: &str, is: impl Fn(&[&str]) -> bool, column: usize) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap();
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found: Vec<_> = rows.filter(|row| is(row)).map(|row| format!("socket:[{}]", row[column])).collect();
    assert_eq!(found.len(), 1, "{table}: {text}");
    found[0].clone()
}

#[test]
fn a_thread_that_hangs_in_the_kernel_has_neither_the_lock_nor_a_port() {
    // The kernel closes a killed process's files with the last thread that has them, and a thread
    // that hangs stays.
    let site = Site::new();
    let free = std::net::TcpListener::bind((own_loopback(), 0)).unwrap().local_addr().unwrap();
    let text = std::fs::read_to_string(site.path("agent.toml")).unwrap();
    site.write(&text.replace("[[groups]]", &format!("[metrics]\nlisten = [\"{free}\"]\n[[groups]]")));
    let process = site.start();
    let pid = process.0.id();
    // The kernel's table has the bytes of an address in the machine's order.
    let address = u32::from_ne_bytes(own_loopback().octets());
    let address = format!("{address:08X}:{:04X}", free.port());
    let path = site.path("run/agent.sock").display().to_string();
    let unix = listening(pid, "unix", |row| row.last() == Some(&&*path) && row[3] == "00010000", 6);
    let tcp = listening(pid, "tcp", |row| row[1] == address && row[3] == "0A", 9);
    let lock = site.path("state/agent.lock").display().to_string();
    for file in [unix, tcp, lock] {
        assert_eq!(threads_with(pid, &file), ["front"], "{file}");
    }
    let store = site.path("state/mooring-agent.db").display().to_string();
    let others = threads_with(pid, &store);
    assert!(others.iter().any(|name| name.starts_with("kernel-")), "the control: {others:?}");
    assert!(!others.iter().any(|name| name == "front"), "{others:?}");
}

#[test]
fn an_agent_with_a_watcher_ends_at_once_when_it_is_told_to() {
    let site = Site::new();
    let process = site.start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let address = mooring_api::Address::Unix(site.path("run/agent.sock"));
    let _reports = runtime.block_on(async {
        let channel = mooring_api::connect(&address, &mooring_api::TlsFiles::default()).await.unwrap();
        AgentClient::new(channel).watch(v1::WatchRequest {}).await.unwrap().into_inner()
    });
    process.signal("-INT");
    assert_eq!(process.end().0, Some(0));
}

#[test]
fn killed_it_starts_again_on_its_stale_socket_with_the_same_id() {
    let site = Site::new();
    let first = site.start();
    let id = hello(&site.path("run/agent.sock")).unwrap().agent_id;
    first.signal("-KILL");
    assert_eq!(first.end().0, None, "by the signal");
    assert!(site.path("run/agent.sock").exists(), "the stale socket");
    let _second = site.start();
    assert_eq!(hello(&site.path("run/agent.sock")).unwrap().agent_id, id);
}

#[test]
fn a_damaged_store_ends_it_with_what_to_do_and_what_it_says_helps() {
    let site = Site::new();
    let process = site.start();
    process.signal("-TERM");
    assert_eq!(process.end().0, Some(0));
    let file = site.path("state").join(mooring_agent::store::FILE_NAME);
    let conn = rusqlite::Connection::open(&file).unwrap();
    conn.execute_batch("UPDATE meta SET value = replace(value, '-4', '-5') WHERE key = 'agent_id'").unwrap();
    drop(conn);
    let (code, said) = site.run(&[]);
    assert_eq!(code, Some(1), "{said}");
    for words in
        [file.to_str().unwrap(), "is damaged (in the table meta, the row of key \"agent_id\"", "aside"]
    {
        assert!(said.contains(words), "{words:?} is not in {said:?}");
    }
    std::fs::rename(&file, site.path("aside.db")).unwrap();
    let process = site.start();
    process.signal("-TERM");
    assert_eq!(process.end().0, Some(0));
}

#[test]
fn every_command_finds_the_key_that_the_configuration_names() {
    let site = Site::new();
    let good = std::fs::read_to_string(site.path("agent.toml")).unwrap();
    let own = site.path("state/sealing.key");
    assert!(site.run(&["--check"]).0 == Some(0) && !site.path("state").exists(), "a check makes no key");
    let store = Store::open(&site.path("state")).unwrap();
    let (v, digest) = (volume(1), Digest::new([1; 32]).unwrap());
    let stamp = Stamp { generation: Generation { epoch: 1, counter: 1 }, digest };
    let spec = StoredContent::Spec(export_spec(&[("host1", RW)]).encode_to_vec());
    store.put_spec(Kind::Export, v.parse().unwrap(), &stamp, &spec, b"", &[]).unwrap();
    drop(store);
    let named = site.path("named.key");
    std::fs::rename(&own, &named).unwrap();
    let commands = [&[][..], &["adopt", "--plan"], &["adopt", "--apply"]];
    for args in commands {
        let (code, said) = site.run(args);
        assert!(code == Some(1) && said.contains("(1 of them)"), "{args:?}: {said}");
        assert!(said.contains(own.to_str().unwrap()) && !said.contains(SECRET_WORD), "{said}");
    }
    assert!(!own.exists(), "no other key is made");
    site.write(&format!("sealing_key = {named:?}\n{good}"));
    assert_eq!(site.run(&["--check"]).0, Some(0));
    for args in &commands[1..] {
        let (_, said) = site.run(args);
        assert!(!said.contains("sealed"), "{args:?}: {said}");
    }
    let process = site.start();
    process.signal("-TERM");
    assert_eq!(process.end().0, Some(0));
    std::fs::set_permissions(&named, std::fs::Permissions::from_mode(0o640)).unwrap();
    for args in [&["--check"], commands[0]] {
        let (code, said) = site.run(args);
        assert!(code == Some(1) && said.contains("chmod 600") && said.contains("named.key"), "{said}");
    }
}

/// Returns the lines of keys in a complete file.
fn keys_in(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// A kill at any moment leaves the file as it was, or with one more key in front.
#[test]
fn a_new_sealing_key_is_made_whole_or_not_at_all() {
    let site = Site::new();
    let (code, said) = site.run(&["rotate-sealing-key"]);
    assert!(code == Some(1) && said.contains("cannot read the sealing keys"), "{said}");
    let stop = |process: Process| {
        process.signal("-TERM");
        process.end()
    };
    assert_eq!(stop(site.start()).0, Some(0));
    let path = site.path("state/sealing.key");
    let mut known = keys_in(&path);
    let began = std::time::Instant::now();
    assert_eq!(site.run(&["rotate-sealing-key"]).0, Some(0));
    let takes = began.elapsed();
    assert!(keys_in(&path).ends_with(&known) && keys_in(&path).len() == 2);
    known = keys_in(&path);
    for part in 0..24 {
        let mut rotating = Process(site.command().arg("rotate-sealing-key").spawn().unwrap());
        std::thread::sleep(takes * part / 16);
        rotating.0.kill().unwrap();
        rotating.0.wait().unwrap();
        let now = keys_in(&path);
        assert!(
            now.ends_with(&known) && now.len() <= known.len() + 1,
            "a key is gone, or there are too many"
        );
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        known = now;
    }
    let said = stop(site.start()).1;
    assert!(said.contains("nothing is sealed by") && !known.iter().any(|key| said.contains(key)), "{said}");
}

#[test]
fn mistakes_in_the_configuration_end_it_with_their_line() {
    let site = Site::new();
    let good = std::fs::read_to_string(site.path("agent.toml")).unwrap();
    assert_eq!(site.run(&["--check"]).0, Some(0));
    site.write(&format!("prot = 1\n{good}"));
    for args in [&[][..], &["--check"]] {
        let (code, said) = site.run(args);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("agent.toml line 1: unknown key `prot`"), "{said}");
    }
    // All mistakes are reported at once.
    site.write(&format!("prot = 1\nresync_seconds = 0\nlog = \"loud\"\n{good}"));
    let said = site.run(&["--check"]).1;
    for mistake in ["line 1: unknown key `prot`", "line 2: resync_seconds: 0", "line 3: log: \"loud\""] {
        assert!(said.contains(mistake), "{mistake} is not in {said}");
    }
    site.write(&format!("listen = [\"http://127.0.0.1:1\"]\n{good}"));
    assert!(site.run(&[]).1.contains("plain text"));
    std::fs::remove_file(site.path("agent.toml")).unwrap();
    let (code, said) = site.run(&[]);
    assert!(
        code == Some(1) && said.contains("there is no configuration") && said.contains("mooring-agent join"),
        "{said}"
    );
    assert!(!site.path("state").exists(), "nothing was made");
}

#[test]
fn a_check_looks_at_certificates_and_keys() {
    let site = Site::new();
    let good = std::fs::read_to_string(site.path("agent.toml")).unwrap();
    let (crt, key) = (site.path("agent.crt"), site.path("agent.key"));
    let tls = format!("[tls]\ncert = {crt:?}\nkey = {key:?}\nclient_ca = {crt:?}\n");
    site.write(&format!("{good}\n{tls}"));
    let pair = || rcgen::generate_simple_self_signed(vec!["storage1".to_owned()]).unwrap();
    let (own, other) = (pair(), pair());
    let refused = |words: &str| {
        let (code, said) = site.run(&["--check"]);
        assert!(code == Some(1) && said.contains(words), "{said}");
    };
    refused("agent.crt");
    std::fs::write(&crt, own.cert.pem()).unwrap();
    std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
    refused("is not that of the certificate");
    std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
    site.write(&format!("{}{tls}", site.of_a_host()));
    let set = |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    for mode in [0o644, 0o620] {
        set(mode);
        let (code, said) = site.run(&["--check"]);
        let (path, name) = (key.display(), format!("mode {mode:04o}"));
        assert!(code == Some(0) && said.contains(&format!("chmod 0640 {path}")), "{said}");
        assert!(said.contains(&name) && said.lines().count() == 1, "{said}");
    }
    // The control: nobody else can use the key.
    for mode in [0o600, 0o640] {
        set(mode);
        assert_eq!(site.run(&["--check"]), (Some(0), String::new()));
    }
}

/// On a machine without LVM, or for a user who may not ask it, that is said in place of the group.
#[test]
fn a_check_names_a_volume_group_that_is_not_there() {
    let site = Site::new();
    let (code, said) = site.run(&["--check"]);
    assert!(code == Some(0) && said.contains("mooring-test-no-such-group"), "{said}");
    site.write(&site.of_a_host());
    assert_eq!(site.run(&["--check"]), (Some(0), String::new()), "the control");
}

#[test]
fn a_port_that_is_taken_ends_it_before_anything_is_done() {
    let site = Site::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", taken.local_addr().unwrap());
    let good = std::fs::read_to_string(site.path("agent.toml")).unwrap();
    site.write(&format!("insecure = true\nlisten = [\"{address}\"]\n{good}"));
    let (code, said) = site.run(&[]);
    assert!(code == Some(1) && said.contains(&address) && said.contains("in use"), "{said}");
    assert_eq!(std::fs::read_dir(site.path("configfs")).unwrap().count(), 0);
}

#[test]
fn metrics_are_where_the_configuration_says() {
    let site = Site::new();
    let good = std::fs::read_to_string(site.path("agent.toml")).unwrap();
    let with = |listen: &str| site.write(&format!("{good}[metrics]\nlisten = [\"{listen}\"]\n"));
    with("0.0.0.0:9180");
    let (code, said) = site.run(&["--check"]);
    assert!(
        code == Some(1) && said.contains("line 8: metrics.listen: 0.0.0.0:9180 is not loopback"),
        "{said}"
    );
    let taken = std::net::TcpListener::bind((own_loopback(), 0)).unwrap();
    let address = taken.local_addr().unwrap();
    with(&address.to_string());
    assert_eq!(site.run(&["--check"]).0, Some(0));
    let (code, said) = site.run(&[]);
    assert!(code == Some(1) && said.contains(&format!("{address} for metrics")), "{said}");
    drop(taken);
    let process = site.start();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("mooring_agent_build_info{version=") && answer.ends_with("# EOF\n"), "{answer}");
    process.signal("-TERM");
    assert_eq!(process.end().0, Some(0));
}

#[test]
fn something_else_where_the_socket_should_be_is_not_removed() {
    let site = Site::new();
    std::fs::create_dir_all(site.path("run")).unwrap();
    std::fs::write(site.path("run/agent.sock"), "mine").unwrap();
    let (code, said) = site.run(&[]);
    assert!(code == Some(1) && said.contains("no socket is in the way"), "{said}");
    assert_eq!(std::fs::read_to_string(site.path("run/agent.sock")).unwrap(), "mine");
}
