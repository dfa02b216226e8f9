//! Paths on an installed machine. The unit files name the same paths; a test compares them.

/// The agent's program.
pub const AGENT_PROGRAM: &str = "/usr/bin/mooring-agent";
/// The agent's configuration.
pub const AGENT_CONFIG: &str = "/etc/mooring/agent.toml";
/// State that must survive a reboot.
pub const STATE_DIR: &str = "/var/lib/mooring";
/// State that survives a restart but not a reboot.
pub const RUNTIME_DIR: &str = "/run/mooring";
/// The agent's socket.
pub const AGENT_SOCKET: &str = "/run/mooring/agent.sock";
/// The group whose members may open the socket, and so do everything that the agent can.
pub const GROUP: &str = "mooring";
/// The folder where the kernel keeps persistent reservations (LIO's `dbroot` with `pr` in it).
/// Without it every reservation that is to survive a power cut is answered with "not ready".
pub const RESERVATIONS_DIR: &str = "/var/target/pr";
/// Kernel modules that the agent needs. LVM would load the two for thin pools and for snapshots
/// itself, but cannot from inside the unit's sandbox.
pub const MODULES: [&str; 7] = [
    "configfs",
    "dm_mod",
    "dm_thin_pool",
    "dm_snapshot",
    "target_core_mod",
    "target_core_iblock",
    "iscsi_target_mod",
];

/// The session daemon's program.
pub const SESSIOND_PROGRAM: &str = "/usr/bin/mooring-sessiond";
/// The session daemon's folder: its socket, its lock and its journal, which holds secrets.
pub const SESSIOND_DIR: &str = "/run/mooring/sessiond";
/// Kernel modules that the session daemon needs.
pub const SESSIOND_MODULES: [&str; 1] = ["iscsi_tcp"];

/// The controller's program.
pub const CONTROLLER_PROGRAM: &str = "/usr/bin/mooring-controller";
/// The controller's configuration.
pub const CONTROLLER_CONFIG: &str = "/etc/mooring/controller.toml";
/// The controller's database.
pub const CONTROLLER_STATE_DIR: &str = "/var/lib/mooring-controller";
/// The user that the controller runs as. A member of [`GROUP`], for the socket of an agent on the
/// same machine.
pub const CONTROLLER_USER: &str = "mooring-controller";
/// Folder of configurations, keys and the token file.
pub const CONFIG_DIR: &str = "/etc/mooring";

/// The agent's unit.
pub const AGENT_UNIT: &str = include_str!("../units/mooring-agent.service");
/// The session daemon's unit.
pub const SESSIOND_UNIT: &str = include_str!("../units/mooring-sessiond.service");
/// The unit that releases attached disks at a shutdown.
pub const RELEASE_UNIT: &str = include_str!("../units/mooring-release.service");
/// The controller's unit.
pub const CONTROLLER_UNIT: &str = include_str!("../units/mooring-controller.service");
/// `modules-load.d/mooring.conf`.
pub const MODULES_LOAD: &str = include_str!("../modules-load.d/mooring.conf");
/// `sysctl.d/mooring.conf`.
pub const SYSCTL: &str = include_str!("../sysctl.d/mooring.conf");
/// `sysusers.d/mooring.conf`.
pub const SYSUSERS: &str = include_str!("../sysusers.d/mooring.conf");
/// `sysusers.d/mooring-controller.conf`.
pub const CONTROLLER_SYSUSERS: &str = include_str!("../sysusers.d/mooring-controller.conf");
/// `tmpfiles.d/mooring.conf`.
pub const TMPFILES: &str = include_str!("../tmpfiles.d/mooring.conf");
/// `tmpfiles.d/mooring-controller.conf`.
pub const CONTROLLER_TMPFILES: &str = include_str!("../tmpfiles.d/mooring-controller.conf");
