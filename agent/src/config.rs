//! The agent's configuration: one TOML file, read once at start, checked as a whole before anything
//! is touched.
//!
//! What must never happen here: a key that is ignored; a mistake reported without its line; plain
//! text on a network because of a default; a value that is corrected silently.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mooring_api::Address;
use mooring_model::limit::{KERNEL_ANSWER_DEADLINE, KERNEL_ANSWER_DEADLINE_MAX, PORTALS_PER_EXPORT_MAX};
use mooring_model::{ByteSize, ClusterId, FcPort, IqnPrefix, Portal, VgName, Wwpn};
pub use mooring_systemd::config::ConfigError;
use mooring_systemd::config::{self, File, Hint, Mistakes};
use mooring_systemd::metrics::{self, RawMetrics};
use mooring_systemd::sealing::Origin;
use serde::Deserialize;
use toml::Spanned;

/// Path of the configuration unless the command line names another.
pub const PATH_DEFAULT: &str = "/etc/mooring/agent.toml";

/// The documented example, as it is installed.
pub const EXAMPLE: &str = include_str!("../agent.example.toml");

/// The smallest limit: the smallest piece, once a second.
pub(crate) const LIMIT_MIN: ByteSize = ByteSize(1 << 20);

const HINT: Hint = Hint {
    made_by: "`mooring-agent join`, in the line that `mooring host token NAME` prints,",
    example: "agent.example.toml",
};

/// Longest path of a unix socket in bytes: `sockaddr_un` has 108 with the terminator.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Limits of `resync_seconds`. A view each second is cheap; beyond an hour, a host that lost
/// something would wait too long.
const RESYNC_SECONDS: Range<u32> = 1..3601;
const RESYNC_SECONDS_DEFAULT: u32 = 30;

/// Limits of `recovery_timeout_seconds`. 0 would fail I/O at the first hiccup; beyond an hour
/// nobody waits for a disk. The default is the kernel's own.
const RECOVERY_TIMEOUT_SECONDS: Range<u32> = 1..3601;
const RECOVERY_TIMEOUT_SECONDS_DEFAULT: u32 = 120;

/// Smallest thin pool. Many volumes share one, and LVM keeps its metadata beside it twice, 2 MiB at
/// least each time.
const THIN_POOL_BYTES_MIN: ByteSize = ByteSize(64 << 20);

/// Smallest answer deadline in ms. Below it an answer would never wait for the kernel at all.
const ANSWER_DEADLINE_MS_MIN: u32 = 100;

/// The configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Folder of the store. Survives a reboot.
    pub state_dir: PathBuf,
    /// File of the keys that seal the store's secrets. `None`: the keys that systemd hands over, or
    /// those in `state_dir`.
    pub sealing_key: Option<PathBuf>,
    /// Folder of the socket. Gone after a reboot.
    pub run_dir: PathBuf,
    /// Addresses where the API listens.
    pub listen: Vec<Address>,
    /// Certificates for `https` addresses.
    pub tls: Option<Tls>,
    /// `true` if plain text on a network is allowed.
    pub insecure: bool,
    /// The one cluster whose specs are accepted. `None`: the first cluster that comes is pinned.
    pub cluster: Option<ClusterId>,
    /// Prefix of target names, before `:<volume uuid>`.
    pub iqn_prefix: IqnPrefix,
    /// Portals where targets listen unless a spec names others.
    pub portals: Vec<Portal>,
    /// Set if volumes are shown over Fibre Channel, too.
    pub fibre_channel: Option<FibreChannel>,
    /// Volume groups that may be used. No other group is ever touched.
    pub groups: Vec<Group>,
    /// Seconds between two views of everything.
    pub resync_seconds: u64,
    /// Milliseconds that an answer waits for the kernel unless the caller sets another deadline.
    pub answer_deadline_ms: u32,
    /// Bytes per second that all jobs together may write. `None`: as fast as the disks are.
    pub job_limit: Option<ByteSize>,
    /// Treatment of a host that may only read and has reserved its volume.
    pub ro_reservation: RoReservation,
    /// Folder of the images that volumes may be made from. `None`: there are none.
    pub images_dir: Option<PathBuf>,
    /// LIO's folder in configfs.
    pub configfs: PathBuf,
    /// Set if this host attaches volumes.
    pub host: Option<HostRole>,
    /// Addresses that serve the metrics; empty if none does.
    pub metrics: Vec<SocketAddr>,
    /// Filter of the log, in the syntax of `tracing-subscriber`.
    pub log: String,
}

/// Treatment of a host that may only read and has reserved its volume by RESERVE(6): until it
/// releases it, nobody else reads or writes the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoReservation {
    /// The agent ends the host's session, which ends the reservation. The host may log in again.
    #[default]
    Cut,
    /// The agent ends the host's session, and keeps the host out until its grant is removed and
    /// given again.
    Revoke,
    /// The agent names the host as a problem of the export, and does nothing.
    Report,
}

/// Settings of a host that attaches volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRole {
    /// Seconds that the I/O of a disk waits for its lost session before it fails (the kernel's
    /// `recovery_tmo`).
    pub recovery_timeout_seconds: u32,
}

/// Fibre Channel ports that serve.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FibreChannel {
    /// These ports and no others. Empty: every port of software FCoE that is found.
    pub ports: Vec<FcPort>,
    /// Ports that do not serve.
    pub exclude: Vec<Wwpn>,
}

/// PEM files of the API's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Certificate of this agent, with its chain.
    pub cert: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Authority that signs the certificates of those who may call.
    pub client_ca: PathBuf,
}

/// A volume group that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Name.
    pub name: VgName,
    /// Bytes that our volumes leave free.
    pub reserve: ByteSize,
    /// Treatment of a deleted volume's blocks.
    pub wipe: Wipe,
    /// `true` if discards of initiators to thick volumes are passed through.
    pub discard: bool,
    /// Size of the group's thin pool, which is made with the first thin volume. `None`: no pool is
    /// made.
    pub thin_pool: Option<ByteSize>,
}

/// Treatment of a deleted volume's blocks, before its LV is removed. In any case, the next volume
/// on them is zeroed before its first export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wipe {
    /// None: the blocks lie on the disk until somebody writes there.
    None,
    /// The blocks are zeroed.
    #[default]
    Zero,
    /// The blocks are discarded; they are zeroed where the disk takes no discards.
    Discard,
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = config::read(path, HINT)?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Checks a text. `name` is the name of the file in errors.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        let file = File::new(name, text);
        let mut wrong = Mistakes::default();
        let Some(raw) = file.parse::<RawConfig>(&mut wrong) else { return wrong.end(|| None) };

        let state_dir = wrong.note(file.path_or(raw.state_dir.as_ref(), "state_dir", "/var/lib/mooring"));
        let sealing_key = wrong.note(file.optional_path(raw.sealing_key.as_ref(), "sealing_key"));
        let run_dir = wrong.note(file.path_or(raw.run_dir.as_ref(), "run_dir", "/run/mooring"));
        let has_tls = raw.tls.is_some();
        let tls = wrong.note(raw.tls.map(|raw| tls(&file, &raw)).transpose());
        let listen = match &raw.listen {
            None => run_dir.as_ref().map(|run_dir| vec![Address::Unix(run_dir.join("agent.sock"))]),
            Some(list) => wrong.note(listen(&file, list, raw.insecure, has_tls)),
        };
        let cluster = wrong.note(raw.cluster.map(|text| file.value(&text, "cluster")).transpose());
        let iqn_prefix = wrong.note(
            raw.iqn_prefix.map_or_else(|| Ok(IqnPrefix::default()), |text| file.value(&text, "iqn_prefix")),
        );
        // A host that only attaches volumes has no group, and serves on no portal.
        let attaches_only = raw.host.is_some() && raw.groups.is_empty() && raw.portals.is_none();
        let host = wrong.note(raw.host.map(|raw| host(&file, &raw)).transpose());
        let (portals, groups) = if attaches_only {
            (Some(Vec::new()), Some(Vec::new()))
        } else {
            let portals = wrong.note(portals(&file, raw.portals.as_ref()));
            (portals, groups(&file, &raw.groups, &mut wrong))
        };
        let fibre_channel = match raw.fibre_channel {
            Some(raw) if attaches_only => {
                let why = "fibre_channel: a host that only attaches volumes has none to show: say portals and groups, too";
                wrong.note(Err(file.wrong(&raw.span(), why)))
            }
            raw => wrong.note(raw.map(|raw| fibre_channel(&file, &raw)).transpose()),
        };
        let resync_seconds = wrong.note(resync_seconds(&file, raw.resync_seconds.as_ref()));
        let answer_deadline_ms = wrong.note(file.number_or(
            raw.answer_deadline_ms.as_ref(),
            "answer_deadline_ms",
            millis(KERNEL_ANSWER_DEADLINE),
            &(ANSWER_DEADLINE_MS_MIN..millis(KERNEL_ANSWER_DEADLINE_MAX) + 1),
        ));
        let job_limit = wrong.note(raw.job_limit.map(|text| job_limit(&file, &text)).transpose());
        let images_dir = wrong.note(images_dir(&file, raw.images_dir));
        let configfs =
            wrong.note(file.path_or(raw.configfs.as_ref(), "configfs", "/sys/kernel/config/target"));
        let metrics =
            wrong.note(raw.metrics.map_or_else(|| Ok(Vec::new()), |raw| metrics::listen(&file, &raw)));
        let log = wrong.note(file.log(raw.log, "mooring_targets"));
        wrong.end(|| {
            Some(Self {
                state_dir: state_dir?,
                sealing_key: sealing_key?,
                run_dir: run_dir?,
                listen: listen?,
                tls: tls?,
                insecure: raw.insecure,
                cluster: cluster?,
                iqn_prefix: iqn_prefix?,
                portals: portals?,
                fibre_channel: fibre_channel?,
                groups: groups?,
                resync_seconds: u64::from(resync_seconds?),
                answer_deadline_ms: answer_deadline_ms?,
                job_limit: job_limit?,
                ro_reservation: raw.ro_reservation.unwrap_or_default(),
                images_dir: images_dir?,
                configfs: configfs?,
                host: host?,
                metrics: metrics?,
                log: log?,
            })
        })
    }

    /// Returns the place of the keys that seal the store's secrets.
    pub fn sealing_keys(&self) -> Origin {
        Origin::find(self.sealing_key.as_deref()).unwrap_or_else(|| Origin::own(&self.state_dir))
    }

    /// Returns the configured group of this name. `None` if the configuration does not list it.
    pub fn group(&self, name: &VgName) -> Option<&Group> {
        self.groups.iter().find(|group| &group.name == name)
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX - 1)
}

// Values are read as text with their place, and parsed below, so that every error knows its line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    state_dir: Option<Spanned<String>>,
    sealing_key: Option<Spanned<String>>,
    run_dir: Option<Spanned<String>>,
    listen: Option<Spanned<Vec<Spanned<String>>>>,
    tls: Option<Spanned<RawTls>>,
    #[serde(default)]
    insecure: bool,
    cluster: Option<Spanned<String>>,
    iqn_prefix: Option<Spanned<String>>,
    portals: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    groups: Vec<Spanned<RawGroup>>,
    resync_seconds: Option<Spanned<u32>>,
    answer_deadline_ms: Option<Spanned<u32>>,
    job_limit: Option<Spanned<String>>,
    ro_reservation: Option<RoReservation>,
    images_dir: Option<Spanned<String>>,
    configfs: Option<Spanned<String>>,
    log: Option<Spanned<String>>,
    host: Option<Spanned<RawHost>>,
    fibre_channel: Option<Spanned<RawFibreChannel>>,
    metrics: Option<Spanned<RawMetrics>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFibreChannel {
    #[serde(default)]
    ports: Vec<Spanned<String>>,
    #[serde(default)]
    exclude: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHost {
    recovery_timeout_seconds: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTls {
    cert: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    client_ca: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    name: Option<Spanned<String>>,
    reserve: Option<Spanned<String>>,
    wipe: Option<Wipe>,
    #[serde(default)]
    discard: bool,
    thin_pool: Option<Spanned<String>>,
}

fn resync_seconds(file: &File<'_>, number: Option<&Spanned<u32>>) -> Result<u32, ConfigError> {
    file.number_or(number, "resync_seconds", RESYNC_SECONDS_DEFAULT, &RESYNC_SECONDS)
}

fn images_dir(file: &File<'_>, text: Option<Spanned<String>>) -> Result<Option<PathBuf>, ConfigError> {
    text.map(|text| file.path(&text, "images_dir")).transpose()
}

fn job_limit(file: &File<'_>, text: &Spanned<String>) -> Result<ByteSize, ConfigError> {
    let limit: ByteSize = file.value(text, "job_limit")?;
    if limit < LIMIT_MIN {
        let why = format!("job_limit: {limit} a second is too little: want {LIMIT_MIN} or more");
        return Err(file.wrong(&text.span(), why));
    }
    Ok(limit)
}

fn tls(file: &File<'_>, tls: &Spanned<RawTls>) -> Result<Tls, ConfigError> {
    let raw = tls.get_ref();
    let pem = |value: &Option<Spanned<String>>, key: &str| match value {
        Some(text) => file.path(text, key),
        None => Err(file.wrong(
            &tls.span(),
            format!("{key} is missing: TLS wants all three of cert, key and client_ca, or no [tls] at all"),
        )),
    };
    Ok(Tls {
        cert: pem(&raw.cert, "tls.cert")?,
        key: pem(&raw.key, "tls.key")?,
        client_ca: pem(&raw.client_ca, "tls.client_ca")?,
    })
}

fn host(file: &File<'_>, host: &Spanned<RawHost>) -> Result<HostRole, ConfigError> {
    let recovery_timeout_seconds = file.number_or(
        host.get_ref().recovery_timeout_seconds.as_ref(),
        "host.recovery_timeout_seconds",
        RECOVERY_TIMEOUT_SECONDS_DEFAULT,
        &RECOVERY_TIMEOUT_SECONDS,
    )?;
    Ok(HostRole { recovery_timeout_seconds })
}

fn fibre_channel(file: &File<'_>, fc: &Spanned<RawFibreChannel>) -> Result<FibreChannel, ConfigError> {
    let raw = fc.get_ref();
    let mut ports: Vec<FcPort> = Vec::new();
    for text in &raw.ports {
        let port: FcPort = file.value(text, "fibre_channel.ports")?;
        if ports.iter().any(|other| other.wwpn == port.wwpn) {
            let why = format!("fibre_channel.ports: {} is listed twice", port.wwpn);
            return Err(file.wrong(&text.span(), why));
        }
        ports.push(port);
    }
    let mut exclude = Vec::new();
    for text in &raw.exclude {
        let port = Wwpn::of_port(text.get_ref());
        let wrong = |error| file.wrong(&text.span(), format!("fibre_channel.exclude: {error}"));
        exclude.push(port.map_err(wrong)?);
    }
    Ok(FibreChannel { ports, exclude })
}

fn listen(
    file: &File<'_>,
    list: &Spanned<Vec<Spanned<String>>>,
    insecure: bool,
    has_tls: bool,
) -> Result<Vec<Address>, ConfigError> {
    if list.get_ref().is_empty() {
        return Err(file.wrong(&list.span(), "listen: no address: nobody could reach this agent"));
    }
    let mut addresses = Vec::new();
    for text in list.get_ref() {
        let address: Address = file.value(text, "listen")?;
        if addresses.contains(&address) {
            return Err(file.wrong(&text.span(), format!("listen: {address} is listed twice")));
        }
        match &address {
            Address::Unix(path) if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX => {
                let why = format!("listen: a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes");
                return Err(file.wrong(&text.span(), why));
            }
            Address::Plain(_) if !insecure => {
                let why = format!(
                    "listen: {address} is plain text, and CHAP secrets would cross the network readable: \
                     use https://… with [tls], or say insecure = true"
                );
                return Err(file.wrong(&text.span(), why));
            }
            Address::Tls(_) if !has_tls => {
                let why =
                    format!("listen: {address} needs [tls] with cert, key and client_ca; there is none");
                return Err(file.wrong(&text.span(), why));
            }
            Address::Unix(_) | Address::Plain(_) | Address::Tls(_) => addresses.push(address),
        }
    }
    Ok(addresses)
}

fn portals(
    file: &File<'_>,
    list: Option<&Spanned<Vec<Spanned<String>>>>,
) -> Result<Vec<Portal>, ConfigError> {
    const WANT: &str = "no portal: say where targets listen, as portals = [\"10.0.0.1:3260\"]";
    let list = list.ok_or_else(|| file.missing(WANT))?;
    if list.get_ref().is_empty() {
        return Err(file.wrong(&list.span(), format!("portals: {WANT}")));
    }
    if list.get_ref().len() > PORTALS_PER_EXPORT_MAX {
        let why = format!("portals: more than {PORTALS_PER_EXPORT_MAX}");
        return Err(file.wrong(&list.span(), why));
    }
    let portals = list
        .get_ref()
        .iter()
        .map(|text| Ok((text.span(), file.value(text, "portals")?)))
        .collect::<Result<Vec<_>, _>>()?;
    file.unique(portals, "portals")
}

fn groups(file: &File<'_>, list: &[Spanned<RawGroup>], wrong: &mut Mistakes) -> Option<Vec<Group>> {
    if list.is_empty() {
        let why =
            "no volume group: list those that the agent may use, each as [[groups]] with name = \"vg0\"";
        return wrong.note(Err(file.missing(why)));
    }
    let (mut names, mut groups) = (Vec::new(), Vec::new());
    for entry in list {
        if let Some((place, group)) = wrong.note(group(file, entry)) {
            names.push((place, group.name.clone()));
            groups.push(group);
        }
    }
    wrong.note(file.unique(names, "groups.name"))?;
    Some(groups)
}

/// Checks one group. Returns it with the place of its name.
fn group(file: &File<'_>, entry: &Spanned<RawGroup>) -> Result<(Range<usize>, Group), ConfigError> {
    let raw = entry.get_ref();
    let text = raw.name.as_ref().ok_or_else(|| {
        file.wrong(&entry.span(), "groups.name is missing: want the name of a volume group")
    })?;
    let name: VgName = file.value(text, "groups.name")?;
    let reserve = match &raw.reserve {
        None => ByteSize(0),
        Some(text) => file.value(text, "groups.reserve")?,
    };
    let thin_pool = match &raw.thin_pool {
        None => None,
        Some(text) => {
            let size: ByteSize = file.value(text, "groups.thin_pool")?;
            if size < THIN_POOL_BYTES_MIN {
                let why =
                    format!("groups.thin_pool: {size} is too small: want {THIN_POOL_BYTES_MIN} or more");
                return Err(file.wrong(&text.span(), why));
            }
            Some(size)
        }
    };
    let (wipe, discard) = (raw.wipe.unwrap_or_default(), raw.discard);
    Ok((text.span(), Group { name, reserve, wipe, discard, thin_pool }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"vg0\"\n";

    #[test]
    fn the_example_parses_and_says_the_defaults() {
        let example = Config::parse(EXAMPLE, "agent.example.toml").unwrap();
        let smallest = Config::parse(SMALLEST, "agent.toml").unwrap();
        // The example has the default for everything but the site's own values.
        let same = Config { portals: smallest.portals.clone(), groups: smallest.groups.clone(), ..example };
        assert_eq!(same, smallest);
    }

    #[test]
    fn every_key_of_the_example_is_a_key() {
        // The commented-out lines must not rot: with the marks removed, they parse too.
        let on = |line: &'static str| {
            let bare = line.strip_prefix("# ").unwrap_or(line);
            let is_name = |key: &str| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            let is_key = bare.starts_with('[') || bare.split_once(" = ").is_some_and(|(key, _)| is_name(key));
            if is_key { bare } else { line }
        };
        let on = EXAMPLE.lines().map(on).collect::<Vec<_>>().join("\n");
        let config = Config::parse(&on, "agent.example.toml").unwrap();
        assert!(config.tls.is_some() && config.cluster.is_some(), "{config:?}");
        assert_eq!(config.host, Some(HostRole { recovery_timeout_seconds: 120 }), "the default stands there");
        assert_eq!(config.metrics, ["127.0.0.1:9180".parse().unwrap()]);
    }

    #[test]
    fn defaults() {
        let config = Config::parse(SMALLEST, "agent.toml").unwrap();
        assert_eq!(config.listen, ["unix:/run/mooring/agent.sock".parse().unwrap()]);
        assert_eq!(config.answer_deadline_ms, 5000);
        let group = Group {
            name: "vg0".parse().unwrap(),
            reserve: ByteSize(0),
            wipe: Wipe::Zero,
            discard: false,
            thin_pool: None,
        };
        assert_eq!(config.groups, [group]);
        let moved = Config::parse(&format!("run_dir = \"/tmp/a\"\n{SMALLEST}"), "agent.toml").unwrap();
        assert_eq!(moved.listen, ["unix:/tmp/a/agent.sock".parse().unwrap()]);
    }

    #[test]
    fn network_addresses() {
        let tls = "[tls]\ncert = \"/c\"\nkey = \"/k\"\nclient_ca = \"/ca\"\n";
        let config =
            Config::parse(&format!("listen = [\"https://h:1\"]\n{SMALLEST}{tls}"), "agent.toml").unwrap();
        assert_eq!(config.tls.unwrap().client_ca, Path::new("/ca"));
        let config =
            Config::parse(&format!("insecure = true\nlisten = [\"http://h:1\"]\n{SMALLEST}"), "agent.toml");
        assert!(config.unwrap().insecure);
    }

    /// Puts the line in front of the smallest configuration, and returns the error.
    fn message(line: &str) -> String {
        Config::parse(&format!("# first\n{line}\n{SMALLEST}"), "agent.toml").unwrap_err().to_string()
    }

    #[test]
    fn each_mistake_has_its_line() {
        let long = format!("listen = [\"unix:/{}\"]", "x".repeat(107));
        for (line, want) in [
            ("listen = [\"unix:/a\"", "agent.toml line "),
            ("insecure = 1", "agent.toml line 2: invalid type: integer `1`, expected a boolean"),
            ("state_dir = \"var\"", "agent.toml line 2: state_dir: \"var\" is not an absolute path: want /…"),
            ("sealing_key = \"k\"", "agent.toml line 2: sealing_key: \"k\" is not an absolute path: want /…"),
            ("configfs = \"\"", "agent.toml line 2: configfs: \"\" is not an absolute path: want /…"),
            ("listen = []", "agent.toml line 2: listen: no address: nobody could reach this agent"),
            (
                "listen = [\"storage1\"]",
                "agent.toml line 2: listen: \"storage1\" is not an agent's address: want unix:/PATH, \
                 https://HOST:PORT or http://HOST:PORT",
            ),
            ("listen = [\n\"unix:/a\",\n\"unix:/a\"]", "agent.toml line 4: listen: unix:/a is listed twice"),
            (&long, "agent.toml line 2: listen: a socket's path has at most 107 bytes"),
            (
                "listen = [\"http://h:1\"]",
                "agent.toml line 2: listen: http://h:1 is plain text, and CHAP secrets would cross the network \
                 readable: use https://… with [tls], or say insecure = true",
            ),
            (
                "listen = [\"https://h:1\"]",
                "agent.toml line 2: listen: https://h:1 needs [tls] with cert, key and client_ca; there is none",
            ),
            (
                "cluster = \"x\"",
                "agent.toml line 2: cluster: cluster id \"x\" is not a UUID (want 8-4-4-4-12 hexadecimal digits)",
            ),
            (
                "iqn_prefix = \"iqn.2026-01.lab:x\"",
                "agent.toml line 2: iqn_prefix: \"iqn.2026-01.lab:x\" is not an IQN prefix: the part after ':' is \
                 the volume's id",
            ),
            ("resync_seconds = 0", "agent.toml line 2: resync_seconds: 0 is not allowed: want 1 to 3600"),
            (
                "job_limit = \"1023KiB\"",
                "agent.toml line 2: job_limit: 1023 KiB a second is too little: want 1 MiB or more",
            ),
            (
                "answer_deadline_ms = 300001",
                "agent.toml line 2: answer_deadline_ms: 300001 is not allowed: want 100 to 300000",
            ),
            ("log = \"info,a=loud\"", "agent.toml line 2: log: \"info,a=loud\" is not a filter"),
        ] {
            let message = message(line);
            assert!(message.starts_with(want), "{line}\n{message}\n{want}");
        }
    }

    #[test]
    fn unknown_keys_are_refused_with_the_known_ones() {
        assert_eq!(
            message("prot = 1"),
            "agent.toml line 2: unknown key `prot`; known keys: `state_dir`, `sealing_key`, `run_dir`, `listen`, \
             `tls`, `insecure`, `cluster`, `iqn_prefix`, `portals`, `groups`, `resync_seconds`, `answer_deadline_ms`, \
             `job_limit`, `ro_reservation`, `images_dir`, `configfs`, `log`, `host`, `fibre_channel`, `metrics`"
        );
        let text = format!("{SMALLEST}resrve = \"1GiB\"\n");
        assert_eq!(
            Config::parse(&text, "agent.toml").unwrap_err().to_string(),
            "agent.toml line 4: unknown key `resrve`; known keys: `name`, `reserve`, `wipe`, `discard`, `thin_pool`"
        );
    }

    #[test]
    fn portals_groups_and_tls() {
        let whole = |text: &str| Config::parse(text, "agent.toml").unwrap_err().to_string();
        for (text, want) in [
            ("", "agent.toml: no portal: say where targets listen, as portals = [\"10.0.0.1:3260\"]"),
            (
                "portals = []",
                "agent.toml line 1: portals: no portal: say where targets listen, as portals = [\"10.0.0.1:3260\"]",
            ),
            (
                "portals = [\"0.0.0.0\"]",
                "agent.toml line 1: portals: \"0.0.0.0\" is not a portal: want one address of this machine, \
                 not a wildcard or group address",
            ),
            (
                "portals = [\"10.0.0.1\",\n \"10.0.0.1:3260\"]",
                "agent.toml line 2: portals: 10.0.0.1:3260 is listed twice",
            ),
            (
                "portals = [\"10.0.0.1\"]",
                "agent.toml: no volume group: list those that the agent may use, each as [[groups]] with name = \
                 \"vg0\"",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nreserve = \"1GiB\"",
                "agent.toml line 2: groups.name is missing: want the name of a volume group",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a/b\"",
                "agent.toml line 3: groups.name: \"a/b\" is not a volume group name: only letters, digits, '+', '_', \
                 '.' and '-' are allowed",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a\"\nreserve = \"some\"",
                "agent.toml line 4: groups.reserve: \"some\" is not a size: want a whole number with B, KiB, MiB, GiB \
                 or TiB, for example 10GiB",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a\"\nwipe = \"shred\"",
                "agent.toml line 4: unknown variant `shred`, expected one of `none`, `zero`, `discard`",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a\"\n[[groups]]\nname = \"a\"",
                "agent.toml line 5: groups.name: a is listed twice",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a\"\n[tls]\ncert = \"/c\"\nkey = \"/k\"",
                "agent.toml line 4: tls.client_ca is missing: TLS wants all three of cert, key and client_ca, or no \
                 [tls] at all",
            ),
            (
                "portals = [\"10.0.0.1\"]\n[[groups]]\nname = \"a\"\n[tls]\ncert = \"c\"",
                "agent.toml line 5: tls.cert: \"c\" is not an absolute path: want /…",
            ),
        ] {
            // Whatever else is missing in so short a text comes after it.
            assert_eq!(whole(text).lines().next(), Some(want), "{text}");
        }
    }

    #[test]
    fn each_group_says_what_a_deletion_does() {
        let text = format!(
            "{SMALLEST}wipe = \"none\"\n[[groups]]\nname = \"b\"\nwipe = \"discard\"\n[[groups]]\nname = \"c\""
        );
        let groups = Config::parse(&text, "agent.toml").unwrap().groups;
        assert_eq!(
            groups.iter().map(|group| group.wipe).collect::<Vec<_>>(),
            [Wipe::None, Wipe::Discard, Wipe::Zero]
        );
    }

    #[test]
    fn discards_are_passed_through_only_by_choice() {
        let of = |line: &str| {
            Config::parse(&format!("{SMALLEST}{line}"), "agent.toml").map(|config| config.groups[0].discard)
        };
        assert_eq!(
            (of("").unwrap(), of("discard = false").unwrap(), of("discard = true").unwrap()),
            (false, false, true)
        );
        let error = of("discard = \"yes\"").unwrap_err().to_string();
        assert_eq!(error, "agent.toml line 4: invalid type: string \"yes\", expected a boolean");
    }

    #[test]
    fn a_host_that_attaches() {
        let parse = |text: &str| Config::parse(text, "agent.toml").map_err(|error| error.to_string());
        let only = parse("[host]").unwrap();
        assert_eq!(only.host, Some(HostRole { recovery_timeout_seconds: 120 }));
        assert!(only.groups.is_empty() && only.portals.is_empty());
        let both = parse(&format!("{SMALLEST}[host]\nrecovery_timeout_seconds = 30\n")).unwrap();
        assert_eq!((both.groups.len(), both.host.unwrap().recovery_timeout_seconds), (1, 30));
        // Half of the other role is a mistake here, too.
        assert!(parse("portals = [\"10.0.0.1\"]\n[host]").unwrap_err().contains("no volume group"));
        assert!(parse("[host]\n[[groups]]\nname = \"vg0\"").unwrap_err().contains("no portal"));
        assert_eq!(
            parse("[host]\nrecovery_timeout_seconds = 0").unwrap_err(),
            "agent.toml line 2: host.recovery_timeout_seconds: 0 is not allowed: want 1 to 3600"
        );
        assert_eq!(
            parse("[host]\nsessiond = 1").unwrap_err(),
            "agent.toml line 2: unknown key `sessiond`; known keys: `recovery_timeout_seconds`"
        );
    }

    #[test]
    fn ports_of_fibre_channel() {
        let parse = |lines: &str| {
            Config::parse(&format!("{SMALLEST}[fibre_channel]\n{lines}"), "agent.toml")
                .map_err(|error| error.to_string())
        };
        assert_eq!(parse("").unwrap().fibre_channel, Some(FibreChannel::default()));
        let both =
            parse("ports = [\"qla2xxx/21000024FF000001\"]\nexclude = [\"0x200052540014000a\"]").unwrap();
        let both = both.fibre_channel.unwrap();
        assert_eq!(both.ports[0].to_string(), "qla2xxx/21:00:00:24:ff:00:00:01");
        assert_eq!(both.exclude[0].to_string(), "20:00:52:54:00:14:00:0a");
        let rtslibs = parse("ports = [\"efct/naa.21000024ff000001\"]\nexclude = [\"naa.200052540014000a\"]");
        let rtslibs = rtslibs.unwrap().fibre_channel.unwrap();
        assert_eq!(rtslibs.ports[0].to_string(), "efct/21:00:00:24:ff:00:00:01");
        assert_eq!(rtslibs.exclude, both.exclude);
        for (lines, want) in [
            ("ports = [\"21:00:00:24:ff:00:00:01\"]", "fibre_channel.ports: \"21:00:00:24:ff:00:00:01\""),
            ("ports = [\"lpfc/21:00:00:24:ff:00:00:01\"]", "want fc, qla2xxx or efct"),
            (
                "ports = [\"fc/21:00:00:24:ff:00:00:01\", \"efct/21:00:00:24:ff:00:00:01\"]",
                "fibre_channel.ports: 21:00:00:24:ff:00:00:01 is listed twice",
            ),
            ("exclude = [\"eth1\"]", "fibre_channel.exclude: \"eth1\""),
            ("port = []", "unknown key `port`; known keys: `ports` or `exclude`"),
        ] {
            let error = parse(lines).unwrap_err();
            assert!(error.starts_with("agent.toml line 5: ") && error.contains(want), "{lines}: {error}");
        }
        let alone = Config::parse("[host]\n[fibre_channel]", "agent.toml").unwrap_err().to_string();
        assert!(alone.starts_with("agent.toml line 2: fibre_channel: a host that only attaches"), "{alone}");
    }

    #[test]
    fn a_file_that_is_not_there() {
        let error = Config::load(Path::new("/nonexistent/agent.toml")).unwrap_err();
        let said = "there is no configuration /nonexistent/agent.toml: `mooring-agent join`, ";
        assert!(error.to_string().starts_with(said), "{error}");
    }
}
