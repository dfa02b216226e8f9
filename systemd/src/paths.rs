//! Where things are on an installed machine. The unit files name the same places; a test compares them.

/// The agent's program.
pub const AGENT_PROGRAM: &str = "/usr/bin/mooring-agent";
/// The agent's configuration.
pub const AGENT_CONFIG: &str = "/etc/mooring/agent.toml";
/// What must survive a reboot.
pub const STATE_DIR: &str = "/var/lib/mooring";
/// What must not, but survives a restart.
pub const RUNTIME_DIR: &str = "/run/mooring";
/// Where the agent listens.
pub const AGENT_SOCKET: &str = "/run/mooring/agent.sock";
/// Who is in this group may open the socket, and with that do everything that the agent can.
pub const GROUP: &str = "mooring";
/// Where the kernel keeps persistent reservations (LIO's `dbroot` with `pr` in it). Without this folder every reservation
/// that is to survive a power cut is answered with "not ready".
pub const RESERVATIONS_DIR: &str = "/var/target/pr";
/// Kernel modules that the agent needs.
pub const MODULES: [&str; 5] =
    ["configfs", "dm_mod", "target_core_mod", "target_core_iblock", "iscsi_target_mod"];

/// The agent's unit.
pub const AGENT_UNIT: &str = include_str!("../units/mooring-agent.service");
/// `modules-load.d/mooring.conf`.
pub const MODULES_LOAD: &str = include_str!("../modules-load.d/mooring.conf");
/// `sysusers.d/mooring.conf`.
pub const SYSUSERS: &str = include_str!("../sysusers.d/mooring.conf");
/// `tmpfiles.d/mooring.conf`.
pub const TMPFILES: &str = include_str!("../tmpfiles.d/mooring.conf");
