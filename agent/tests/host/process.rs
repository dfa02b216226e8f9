//! The program itself on a host that only attaches: it needs neither LVM nor a target, and says
//! what is missing.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use mooring_api::v1;
use mooring_api::v1::agent_client::AgentClient;
use mooring_api::v1::host_client::HostClient;

use crate::rig::*;

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path) -> Process {
    let text = format!(
        "state_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\nconfigfs = \"{0}/configfs\"\n[host]\n",
        dir.display()
    );
    std::fs::write(dir.join("agent.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooring-agent"));
    command.arg("--config").arg(dir.join("agent.toml")).stderr(Stdio::null()).stdout(Stdio::null());
    Process(command.spawn().unwrap())
}

#[test]
fn a_host_without_sessiond_says_so_and_keeps_what_it_is_told() {
    let (dir, _) = host_config();
    let socket = dir.path().join("run/agent.sock");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let connect = || {
        eventually("it listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        let address = mooring_api::Address::Unix(socket.clone());
        runtime.block_on(mooring_api::connect(&address, &mooring_api::TlsFiles::default())).unwrap()
    };
    let first = start(dir.path());
    let channel = connect();
    let (mut agent, mut host) = (AgentClient::new(channel.clone()), HostClient::new(channel));
    let hello = v1::HelloRequest { protocol_min: 1, protocol_max: 1, software: String::new() };
    let initiator = runtime.block_on(agent.hello(hello)).unwrap().into_inner().initiator;
    assert!(initiator.contains(":host."), "{initiator}");
    let capabilities =
        runtime.block_on(agent.get_capabilities(v1::GetCapabilitiesRequest {})).unwrap().into_inner();
    assert!(
        capabilities.problems.iter().any(|problem| problem.object == "mooring-sessiond"),
        "{capabilities:?}"
    );
    assert!(capabilities.problems.iter().all(|problem| problem.object != "LVM"), "{capabilities:?}");

    let id = volume(1).to_string();
    let spec = v1::ConnectionSpec {
        initiator,
        target: format!("iqn.2026-11.dev.mooring:{id}"),
        tpg: 1,
        portals: vec![PORTAL.to_owned()],
        lun: 1,
        naa: mooring_model::Naa::of_serial(&id).to_string(),
        serial: id.clone(),
        size_bytes: SIZE,
        chap: None,
        other_chap: None,
        attachments: vec![v1::AttachmentWish {
            attachment_id: attachment(1),
            mode: RW.into(),
            cache_off: false,
        }],
        fc: None,
    };
    let put = brief(put_spec(1, 1, spec));
    let answer = runtime.block_on(host.put_connection(put)).unwrap().into_inner();
    assert!(!answer.done, "{answer:?}");
    assert!(problems(&answer.report.unwrap()).contains("mooring-sessiond does not answer"));
    drop(first);

    // An agent that was killed and started again still has it.
    let _second = start(dir.path());
    let mut host = HostClient::new(connect());
    let status = runtime.block_on(host.get_connection(v1::GetConnectionRequest { volume_id: id.clone() }));
    assert_eq!(status.unwrap().into_inner().spec.unwrap().serial, id);
}
