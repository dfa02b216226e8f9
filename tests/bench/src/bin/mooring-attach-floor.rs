//! The floor of an attach: a bare login over NETLINK_ISCSI and the scan of one LUN, in a loop.
//! Every program must spend this.
//!
//! The requests are sessiond's, in the same order, with the same CHAP; then one scan, until the
//! disk can be opened. There is no journal, no other process, no identity check and no path. With
//! `--hold` it logs in once and keeps the session, as a witness. With `--ordinary-port` it makes a
//! session that a distribution's iscsid takes over.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use mooring_bench::Figures;
use mooring_connectors::iscsi::{
    Credentials, Isid, Login, LoginConfig, LoginStep, Negotiated, params_before_login,
};
use mooring_host::{
    IscsiEvent, IscsiEvents, IscsiKernel, KernelIscsi, KernelIscsiEvents, KernelSession, KernelUevents,
    PortId, StopMode, UeventItem, Uevents,
};
use mooring_model::{Iqn, Portal, Secret};
use serde::Serialize;

/// Time limit for each step.
const PATIENCE: Duration = Duration::from_secs(30);

/// Times bare logins and single-LUN scans
#[derive(Debug, Parser)]
struct Args {
    /// Initiator name
    #[arg(long)]
    initiator: Iqn,
    /// The target
    #[arg(long)]
    target: Iqn,
    /// ADDRESS:PORT
    #[arg(long)]
    portal: Portal,
    /// CHAP user
    #[arg(long)]
    user: String,
    /// File with the CHAP secret
    #[arg(long)]
    secret_file: PathBuf,
    /// The LUN
    #[arg(long, default_value_t = 1)]
    lun: u16,
    /// Number of rounds
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// Log in once and keep the session until killed
    #[arg(long)]
    hold: bool,
    /// Use an ordinary netlink port, as other programs do
    #[arg(long)]
    ordinary_port: bool,
}

/// The output.
#[derive(Debug, Serialize)]
struct Floor {
    figures: Vec<Figures>,
}

struct Bare {
    kernel: KernelIscsi,
    events: KernelIscsiEvents,
    uevents: KernelUevents,
    isid: Isid,
    secret: Secret,
}

impl Bare {
    fn open(args: &Args) -> Result<Self> {
        let secret = fs::read_to_string(&args.secret_file).context("read the secret")?;
        let port = if args.ordinary_port { PortId::Ordinary } else { PortId::Kernel };
        Ok(Self {
            events: KernelIscsiEvents::open().context("subscribe to events")?,
            kernel: KernelIscsi::open(port).context("open the kernel's initiator")?,
            uevents: KernelUevents::open().context("subscribe to uevents")?,
            isid: Isid::of(&args.initiator, &args.target, args.portal),
            secret: Secret::new(secret.trim_end()),
        })
    }

    /// Logs in: from the TCP connection to a logged in session.
    fn log_in(&mut self, args: &Args) -> Result<KernelSession> {
        let socket = TcpStream::connect_timeout(&args.portal.socket(), PATIENCE).context("connect")?;
        socket.set_nodelay(true).context("set TCP_NODELAY")?;
        // Default name of the interface of a session that was made without an interface record.
        let iface = if args.ordinary_port { "default" } else { "floor" };
        let session = self.kernel.create_session(128, 32)?;
        let sid = session.sid;
        self.kernel.create_connection(sid)?;
        self.kernel.bind_connection(sid, &socket)?;
        for (param, value) in params_before_login(&args.target, args.portal, &args.initiator, iface, 120) {
            self.kernel.set_param(sid, param, &value)?;
        }
        let negotiated = self.login_pdus(args, sid)?;
        for (param, value) in negotiated.params() {
            self.kernel.set_param(sid, param, &value)?;
        }
        self.kernel.start_connection(sid)?;
        Ok(session)
    }

    fn login_pdus(&mut self, args: &Args, sid: u32) -> Result<Negotiated> {
        let credentials = Credentials {
            user: args.user.clone(),
            secret: self.secret.clone(),
            mutual: None,
            other_mutual: None,
        };
        let config = LoginConfig {
            initiator: &args.initiator,
            target: &args.target,
            tpg: 1,
            isid: self.isid,
            chap: Some(credentials),
            alias: None,
        };
        // Predictable challenges are harmless here: only a mutual login would send one.
        let (mut login, mut step) = Login::start(config, 0, &mut |bytes| bytes.fill(7));
        loop {
            match step {
                LoginStep::Send { header, data } => self.kernel.send_pdu(sid, &header, &data)?,
                LoginStep::Done(negotiated) => return Ok(negotiated),
                LoginStep::Redirect { .. } => bail!("redirected"),
            }
            step = match self.event(|event| matches!(event, IscsiEvent::Pdu { sid: s, .. } | IscsiEvent::ConnectionError { sid: s, .. } if *s == sid))? {
                IscsiEvent::Pdu { header, data, .. } => login.receive(&header, &data)?,
                other => bail!("in the middle of the login: {other:?}"),
            };
        }
    }

    fn event(&mut self, wanted: impl Fn(&IscsiEvent) -> bool) -> Result<IscsiEvent> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(event) = self.events.next(PATIENCE)?.filter(&wanted) {
                return Ok(event);
            }
        }
        bail!("waited in vain for an event")
    }

    /// Scans, until the disk can be opened.
    fn scan(&mut self, session: KernelSession, lun: u16) -> Result<()> {
        let host = session.host;
        fs::write(format!("/sys/class/scsi_host/host{host}/scan"), format!("0 0 {lun}")).context("scan")?;
        let block = format!(
            "/sys/class/iscsi_session/session{}/device/target{host}:0:0/{host}:0:0:{lun}/block",
            session.sid
        );
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(name) = only_entry(Path::new(&block)) {
                let device = Path::new("/dev").join(name);
                if fs::File::open(&device).is_ok() {
                    return Ok(());
                }
            }
            match self.uevents.next(Duration::from_secs(1)) {
                Ok(None | Some(UeventItem::Event(_) | UeventItem::Overrun)) => {}
                Err(errno) => bail!("uevents: {errno}"),
            }
        }
        bail!("no disk at {block}")
    }

    /// Logs out; this is not timed.
    fn log_out(&mut self, session: KernelSession) -> Result<()> {
        let sid = session.sid;
        self.kernel.stop_connection(sid, StopMode::Terminate)?;
        self.kernel.destroy_connection(sid)?;
        self.kernel.destroy_session(sid)?;
        self.event(|event| matches!(event, IscsiEvent::Destroyed(gone) if gone.sid == sid)).map(|_| ())
    }
}

fn only_entry(folder: &Path) -> Option<std::ffi::OsString> {
    fs::read_dir(folder).ok()?.next()?.ok().map(|entry| entry.file_name())
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

fn run(args: &Args) -> Result<Floor> {
    let mut bare = Bare::open(args)?;
    if args.hold {
        let session = bare.log_in(args)?;
        bare.scan(session, args.lun)?;
        println!("held as session {}", session.sid);
        loop {
            std::thread::park();
        }
    }
    let (mut login, mut scan, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let began = Instant::now();
        let session = bare.log_in(args)?;
        let logged_in = began.elapsed();
        bare.scan(session, args.lun)?;
        let ready = began.elapsed();
        login.push(micros(logged_in));
        scan.push(micros(ready.saturating_sub(logged_in)));
        whole.push(micros(ready));
        bare.log_out(session)?;
    }
    Ok(Floor {
        figures: vec![Figures::of("login", login), Figures::of("scan", scan), Figures::of("whole", whole)],
    })
}

fn main() -> ExitCode {
    match run(&Args::parse()).and_then(|floor| Ok(serde_json::to_string(&floor)?)) {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mooring-attach-floor: {error:#}");
            ExitCode::FAILURE
        }
    }
}
