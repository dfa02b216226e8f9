//! Reads the kernel's `info` texts: of an ACL (its live sessions) and of an iblock backstore. Pure.
//!
//! What must never happen here: a panic, or a session made up from a text that names none. The
//! texts are made for people and differ between kernels; parts that this module does not understand
//! are left out.

use std::str::FromStr;

use mooring_model::{Iqn, SessionReport};

/// One session as `info` of an ACL shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionInfo {
    /// `InitiatorName`
    pub initiator: String,
    /// `LIO Session ID`
    pub id: u64,
    /// `ISID` as 12 hexadecimal digits.
    pub isid: String,
    /// `Session State`, without `TARG_SESS_STATE_`.
    pub state: String,
    /// Addresses, one per connection.
    pub addresses: Vec<String>,
    /// The command window: how many commands the session may have open (`CmdSN/WR`, the ACL's
    /// `cmdsn_depth` at login).
    pub window: u32,
    /// The next command number expected.
    pub exp_cmd_sn: u32,
    /// The highest command number that the initiator may send.
    pub max_cmd_sn: u32,
}

impl SessionInfo {
    /// Counts the commands that were taken and not answered yet. `ExpCmdSN` moves when a command
    /// arrives, `MaxCmdSN` when one is answered; an idle session has them `window - 1` apart. Both
    /// wrap (RFC 7143, 4.2.2.1), and the kernel reads them one after the other: a difference below
    /// zero counts as 0.
    pub fn in_flight(&self) -> u32 {
        let open = self.exp_cmd_sn.wrapping_sub(1).wrapping_add(self.window).wrapping_sub(self.max_cmd_sn);
        if open > u32::MAX / 2 { 0 } else { open }
    }

    /// Returns the session for a report; `None` if the initiator's name is malformed.
    pub fn report(&self) -> Option<SessionReport> {
        Some(SessionReport {
            initiator: Iqn::from_str(&self.initiator).ok()?,
            isid: self.isid.clone(),
            id: self.id,
            addresses: self.addresses.clone(),
            state: self.state.clone(),
            in_flight: self.in_flight(),
            since: None,
        })
    }
}

/// Returns the text after `label` in `line`, up to the next run of two blanks. `None` without the
/// label.
fn field<'a>(line: &'a str, label: &str) -> Option<&'a str> {
    let rest = line.split_once(label)?.1.trim_start();
    Some(rest.split("  ").next().unwrap_or(rest).trim())
}

/// Reads an ACL's `info`: no session, one, or several.
pub fn parse_sessions(text: &str) -> Vec<SessionInfo> {
    let mut sessions: Vec<SessionInfo> = Vec::new();
    let mut numbers_next = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("InitiatorName:") {
            sessions.push(SessionInfo { initiator: name.trim().to_owned(), ..SessionInfo::default() });
            continue;
        }
        let Some(session) = sessions.last_mut() else { continue };
        if numbers_next {
            numbers_next = false;
            let numbers: Vec<u32> = line.split_whitespace().map_while(hex).collect();
            if let [window, _, exp, max, ..] = numbers[..] {
                (session.window, session.exp_cmd_sn, session.max_cmd_sn) = (window, exp, max);
            }
        } else if line.starts_with("LIO Session ID:") {
            session.id = field(line, "LIO Session ID:").and_then(|id| id.parse().ok()).unwrap_or_default();
            session.isid = field(line, "ISID:").map(isid).unwrap_or_default();
        } else if let Some(state) = field(line, "Session State:") {
            state.strip_prefix("TARG_SESS_STATE_").unwrap_or(state).clone_into(&mut session.state);
        } else if line.starts_with("CmdSN/WR") {
            numbers_next = true;
        } else if let Some(rest) = line.strip_prefix("Address ") {
            session.addresses.extend(rest.split_whitespace().next().map(str::to_owned));
        }
    }
    sessions
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// `0x00 02 3d 00 00 10` → `00023d000010`.
fn isid(text: &str) -> String {
    let text = text.strip_prefix("0x").unwrap_or(text);
    text.chars().filter(char::is_ascii_hexdigit).take(12).map(|c| c.to_ascii_lowercase()).collect()
}

/// The facts that `info` of an iblock backstore tells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackstoreInfo {
    /// The backstore is a LUN somewhere. The kernel prints `ACTIVATED` when its export count is
    /// above 0, whatever `enable` is.
    pub exported: bool,
    /// The path that `control` was given.
    pub device: Option<String>,
    /// `control` was given `readonly=1`.
    pub readonly: bool,
    /// Major and minor number of the open device.
    pub number: Option<(u32, u32)>,
}

/// Reads a backstore's `info`.
pub fn parse_backstore(text: &str) -> BackstoreInfo {
    let mut info = BackstoreInfo::default();
    for line in text.lines() {
        if let Some(status) = field(line, "Status:") {
            info.exported = status == "ACTIVATED";
        }
        if let Some((_, rest)) = line.split_once("UDEV PATH: ") {
            // The path may hold blanks; the text behind it may not.
            let path = rest.rsplit_once("  readonly: ").map_or(rest, |(path, _)| path);
            info.device = Some(path.to_owned()).filter(|path| !path.is_empty());
        }
        if let Some((_, flag)) = line.rsplit_once("readonly: ") {
            info.readonly = flag.trim() == "1";
        }
        if line.contains("CLAIMED") {
            let number = |label| field(line, label)?.split_whitespace().next()?.parse().ok();
            info.number = number("Major:").zip(number("Minor:"));
        }
    }
    info
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Captured (lio-tree.txt).
    const ONE: &str = "InitiatorName: iqn.2026-01.lab:host1\nInitiatorAlias: host1\nLIO Session ID: 1   ISID: 0x00 02 3d 00 00 10  TSIH: 4  SessionType: Normal\nSession State: TARG_SESS_STATE_LOGGED_IN\n---------------------[iSCSI Session Values]-----------------------\n  CmdSN/WR  :  CmdSN/WC  :  ExpCmdSN  :  MaxCmdSN  :     ITT    :     TTT\n 0x00000040   0x00000040   0x000000be   0x000000fd   0x0000003f   0x000000ab\n----------------------[iSCSI Connections]-------------------------\nCID: 0  Connection State: TARG_CONN_STATE_LOGGED_IN\n   Address 10.10.0.11 TCP  StatSN: 0xec0ae290\n";

    #[test]
    fn a_captured_session() {
        let sessions = parse_sessions(ONE);
        let report = sessions[0].report().unwrap();
        assert_eq!(sessions.len(), 1);
        assert_eq!(report.initiator.as_str(), "iqn.2026-01.lab:host1");
        assert_eq!((report.id, report.isid.as_str()), (1, "00023d000010"));
        assert_eq!((report.state.as_str(), report.in_flight), ("LOGGED_IN", 0));
        assert_eq!(report.addresses, ["10.10.0.11"]);
    }

    #[test]
    fn two_connections_and_two_sessions() {
        let text = format!(
            "{ONE}CID: 1  Connection State: TARG_CONN_STATE_LOGGED_IN\n   Address 10.20.0.11 TCP  StatSN: 0x1\n{}",
            ONE.replace("Session ID: 1 ", "Session ID: 7 ").replace("0x000000be", "0x000000c6")
        );
        let sessions = parse_sessions(&text);
        assert_eq!(sessions[0].addresses, ["10.10.0.11", "10.20.0.11"]);
        assert_eq!((sessions[1].id, sessions[1].in_flight()), (7, 8));
    }

    #[test]
    fn no_session_is_no_session() {
        assert!(
            parse_sessions("No active iSCSI Session for Initiator Endpoint: iqn.2026-01.lab:host2\n")
                .is_empty()
        );
        assert!(parse_sessions("").is_empty());
    }

    #[test]
    fn in_flight_in_serial_arithmetic() {
        let open = |exp, max| {
            SessionInfo { window: 64, exp_cmd_sn: exp, max_cmd_sn: max, ..Default::default() }.in_flight()
        };
        assert_eq!(open(0xbe, 0xfd), 0, "idle");
        assert_eq!(open(0xbe + 8, 0xfd), 8, "eight arrived, none answered");
        assert_eq!(open(5, 60), 8, "both small");
        assert_eq!(open(5, 5u32.wrapping_add(63).wrapping_sub(8)), 8);
        assert_eq!(open(3, 58), 8);
        assert_eq!(open(u32::MAX, 54), 8, "MaxCmdSN has wrapped, ExpCmdSN has not");
        assert_eq!(open(10, 80), 0, "an answer between the two readings");
    }

    #[test]
    fn captured_backstores() {
        let on = "Status: ACTIVATED  Max Queue Depth: 0  SectorSize: 512  HwMaxSectors: 4294967288\n        iBlock device: dm-0  UDEV PATH: /dev/vg0/lv0  readonly: 0\n        Major: 253 Minor: 0  CLAIMED: IBLOCK\n";
        assert_eq!(
            parse_backstore(on),
            BackstoreInfo {
                exported: true,
                device: Some("/dev/vg0/lv0".to_owned()),
                readonly: false,
                number: Some((253, 0))
            }
        );
        let half = "Status: DEACTIVATED  Max Queue Depth: 0  SectorSize: 0  HwMaxSectors: 0\n          UDEV PATH: /dev/a b  readonly: 1\n        Major: 0 Minor: 0\n";
        assert_eq!(
            parse_backstore(half),
            BackstoreInfo {
                exported: false,
                device: Some("/dev/a b".to_owned()),
                readonly: true,
                number: None
            }
        );
        assert_eq!(parse_backstore(""), BackstoreInfo::default());
    }

    proptest! {
        /// Law: any text is read without a panic, and a session needs an `InitiatorName:` line
        /// each.
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0..ONE.len()) {
            let text = String::from_utf8_lossy(&bytes);
            for text in [text.to_string(), format!("{}{text}", &ONE[..cut]), format!("{text}\n{ONE}")] {
                let names = text.lines().filter(|line| line.trim().starts_with("InitiatorName:")).count();
                prop_assert_eq!(parse_sessions(&text).len(), names);
                parse_backstore(&text);
            }
        }

        /// Law: whatever the numbers, `n` commands taken and not answered are counted as `n`.
        #[test]
        fn in_flight_counts(start in any::<u32>(), window in 1u32..=512, taken in 0u32..512) {
            let taken = taken.min(window);
            let max_cmd_sn = start.wrapping_add(window).wrapping_sub(1);
            let session = SessionInfo { window, exp_cmd_sn: start.wrapping_add(taken), max_cmd_sn, ..Default::default() };
            prop_assert_eq!(session.in_flight(), taken);
        }
    }
}
