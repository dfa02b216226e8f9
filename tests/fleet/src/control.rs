//! The controller of a fleet: the real service and its HTTP front on a loopback port. Each start
//! uses the same port and the same database.
//!
//! What must never happen here: an option that the program would not have; two controllers of one
//! fleet at the same time.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mooring_api::TlsFiles;
use mooring_controller::auth::{Auth, Keystone, NewToken, Tokens};
use mooring_controller::http::{self, BODY_TIMEOUT, Options, Serving};
use mooring_controller::quota::{Key, Limit};
use mooring_controller::rebuild::{self, How, RebuildError, Report};
use mooring_controller::service::{AgentEntry, Database, Service, ServiceOptions};
use mooring_host::fake::own_loopback;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::client::Client;
use crate::identity::{Identity, User};
use crate::wait::{PATIENCE, until};
use crate::{CLUSTER, PROJECT_A, PROJECT_B};

/// Authentication of callers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// Every caller needs a token.
    #[default]
    Tokens,
    /// No caller is authenticated.
    NoAuth,
    /// Every caller needs a token of the fleet's own identity service.
    Keystone,
}

/// Changes to the default configuration, as an operator makes them.
pub type Tune = Box<dyn Fn(&mut ServiceOptions) + Send + Sync>;

/// An account with a token.
struct Account {
    name: &'static str,
    project: &'static str,
    role: &'static str,
}

impl Account {
    /// The project's name, for clients of the identity service.
    fn project_name(&self) -> &'static str {
        if self.project == PROJECT_A { "demo" } else { "other" }
    }
}

/// All accounts.
const ACCOUNTS: [Account; 5] = [
    Account { name: "admin", project: PROJECT_A, role: "admin" },
    Account { name: "member", project: PROJECT_A, role: "member" },
    Account { name: "reader", project: PROJECT_A, role: "reader" },
    Account { name: "service", project: PROJECT_A, role: "service" },
    Account { name: "stranger", project: PROJECT_B, role: "member" },
];

/// A controller, running or not.
pub struct Control {
    state_dir: PathBuf,
    agents: Vec<(String, String)>,
    access: Access,
    tune: Vec<Tune>,
    database: Database,
    /// Names of accounts, with their tokens.
    tokens: Vec<(&'static str, String)>,
    token_file: String,
    /// The identity service; `None` unless callers are authenticated by it.
    identity: Option<Identity>,
    address: SocketAddr,
    running: Mutex<Option<Running>>,
    /// The runtime of the clients; it lives as long as they may call.
    asking: Runtime,
}

struct Running {
    runtime: Runtime,
    service: Service,
    stop: watch::Sender<bool>,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.kill();
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The accounts as users of an identity service.
fn users(tokens: &[(&'static str, String)]) -> Vec<User> {
    let user = |(account, (_, token)): (&Account, &(&'static str, String))| User {
        name: account.name,
        project: account.project,
        project_name: account.project_name(),
        role: account.role,
        token: token.clone(),
    };
    ACCOUNTS.iter().zip(tokens).map(user).collect()
}

impl Control {
    pub(crate) fn new(
        state_dir: PathBuf,
        agents: Vec<(String, String)>,
        access: Access,
        tune: Vec<Tune>,
        database: Option<Database>,
        listen: Option<SocketAddr>,
    ) -> Self {
        let database = database.unwrap_or_else(|| Database::embedded(state_dir.clone()));
        let mut tokens = Vec::new();
        let mut token_file = String::new();
        for account in &ACCOUNTS {
            let made = NewToken::make(account.name, account.project, None, &[account.role]).unwrap();
            tokens.push((account.name, made.token));
            token_file += &made.block;
        }
        // The first start finds a free port; all others use the same one.
        let wanted = listen.unwrap_or_else(|| SocketAddr::from((own_loopback(), 0)));
        let probe = std::net::TcpListener::bind(wanted).unwrap();
        let address = probe.local_addr().unwrap();
        let asking = runtime();
        let identity = (access == Access::Keystone).then(|| {
            let url = format!("http://{address}");
            Identity::start(&asking, users(&tokens), &url, state_dir.with_file_name("identity.password"))
        });
        let running = Mutex::default();
        Self {
            state_dir,
            agents,
            access,
            tune,
            database,
            tokens,
            token_file,
            identity,
            address,
            running,
            asking,
        }
    }

    /// The identity service; `None` unless callers are authenticated by it.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The name of an account's project, for clients of the identity service.
    #[track_caller]
    pub fn project_name(&self, account: &str) -> &'static str {
        ACCOUNTS.iter().find(|known| known.name == account).expect("an account").project_name()
    }

    /// The controller's address, such as `http://127.64.1.2:34567`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Number of enrolled agents.
    pub(crate) fn agents(&self) -> usize {
        self.agents.len()
    }

    /// The folder of the controller's database.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Makes a client with an account's token; without authentication, with its name and project in
    /// place of the token.
    #[track_caller]
    pub fn client(&self, name: &str) -> Client {
        let account = ACCOUNTS.iter().find(|account| account.name == name).expect("an account");
        let token = match self.access {
            Access::NoAuth => format!("{}:{}", account.name, account.project),
            Access::Tokens | Access::Keystone => {
                self.tokens.iter().find(|(known, _)| *known == name).map(|(_, token)| token.clone()).unwrap()
            }
        };
        Client::new(self.asking.handle(), &self.url(), account.project, &token)
    }

    /// Starts the controller on its database, unless it runs.
    pub fn start(&self) {
        self.start_with(false);
    }

    /// Starts the controller on a database that was restored from a backup.
    pub fn start_restored(&self) {
        self.start_with(true);
    }

    fn start_with(&self, restored: bool) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            // An abandoned transaction may still hold the database of a killed controller.
            *running = Some(until("the controller", || self.launch(restored)));
        }
    }

    /// Removes the database for good. The controller must not run.
    pub fn lose_database(&self) {
        std::fs::remove_dir_all(&self.state_dir).expect("the folder of its database");
    }

    /// Does `mooring-controller rebuild --from-agents`. The controller must not run.
    pub fn rebuild(&self, how: &How) -> Result<Report, RebuildError> {
        self.asking.block_on(rebuild::run(self.options(false), self.database.clone(), how))
    }

    fn options(&self, restored: bool) -> ServiceOptions {
        let entry = |(name, address): &(String, String)| AgentEntry {
            name: name.clone(),
            address: address.parse().unwrap(),
            tls: TlsFiles::default(),
            // Plain text, on loopback.
            insecure: address.starts_with("http://"),
            zone: None,
            enrolment: None,
        };
        let mut options = ServiceOptions {
            agents: self.agents.iter().map(entry).collect(),
            cluster: Some(CLUSTER.parse().unwrap()),
            restored,
            // Tests make any number of volumes.
            quotas: [Key::Volumes, Key::Gigabytes].map(|key| (key, Limit::Unlimited)).into(),
            ..ServiceOptions::new(self.state_dir.clone())
        };
        self.tune.iter().for_each(|tune| tune(&mut options));
        options
    }

    fn launch(&self, restored: bool) -> Result<Running, String> {
        let runtime = runtime();
        let options = self.options(restored);
        let policies = Arc::clone(&options.policies);
        let service =
            Service::open_on(options, self.database.clone()).map_err(|error| format!("{error:?}"))?;
        let auth = match (&self.identity, self.access) {
            (Some(identity), _) => Auth::Keystone(Keystone::open(&identity.options()).unwrap()),
            (None, Access::NoAuth) => Auth::NoAuth,
            (None, _) => Auth::Tokens(Tokens::parse(&self.token_file, "tokens.toml").unwrap()),
        };
        let options = Options { auth, policies, public_url: None, tls: false, body_timeout: BODY_TIMEOUT };
        let (stop, stopped) = watch::channel(false);
        let bound = runtime.block_on(http::bind(&[self.address])).map_err(|(_, error)| error.to_string())?;
        let served = service.clone();
        runtime.spawn(async move {
            served.start();
            let router = http::router(served, options);
            // The server ends together with the fleet.
            let _ = http::serve(router, bound, Serving::default(), stopped).await;
        });
        Ok(Running { runtime, service, stop })
    }

    /// Stops the controller in order: requests at work are answered, agents keep their state.
    pub fn stop(&self) {
        if let Some(running) = self.running.lock().unwrap_or_else(PoisonError::into_inner).take() {
            running.stop.send_replace(true);
            running.runtime.block_on(running.service.stop());
            drop(running.service);
            // A task that still runs has the database open, and a rebuild opens it next.
            running.runtime.shutdown_timeout(PATIENCE);
        }
    }

    /// Ends the controller as nearly as a part of a process can be killed: every task ends where it
    /// waits, and no request is answered any more. The database finishes or undoes a transaction
    /// that has begun.
    pub fn kill(&self) {
        if let Some(running) = self.running.lock().unwrap_or_else(PoisonError::into_inner).take() {
            running.runtime.shutdown_background();
        }
    }

    /// Kills the controller, and starts it again on the same database and the same port.
    pub fn restart(&self) {
        self.kill();
        self.start();
    }
}
