//! Parameters of a session that are set in the kernel, before and after its login.
//!
//! What must never happen here: a secret among the parameters. The kernel's initiator does not use
//! USERNAME and PASSWORD, and would show them in sysfs.

use mooring_host::IscsiParam;
use mooring_model::{Iqn, Portal};

use super::chap::Authentication;
use super::negotiate::TransferParameters;

/// Seconds without traffic after which the kernel sends a NOP-Out, and seconds that it then waits:
/// a silent peer is noticed after 10 s. Never 0, which leaves it to TCP's retransmissions (15
/// minutes).
const NOP_SECONDS: u32 = 5;
/// Seconds of error handling: abort of one command.
const ABORT_SECONDS: u32 = 15;
/// Seconds of error handling: reset of a LUN or of the target.
const RESET_SECONDS: u32 = 30;

/// Returns the parameters of a session before its login, in the order in which they are set. The
/// interface's name comes first: it marks a session as ours, and one that is left behind half-made
/// must be recognised.
pub fn params_before_login(
    target: &Iqn,
    portal: Portal,
    initiator: &Iqn,
    iface_name: &str,
    recovery_timeout_s: u32,
) -> Vec<(IscsiParam, String)> {
    vec![
        (IscsiParam::IfaceName, iface_name.to_owned()),
        (IscsiParam::TargetName, target.to_string()),
        (IscsiParam::InitiatorName, initiator.to_string()),
        (IscsiParam::PersistentAddress, portal.address().to_string()),
        (IscsiParam::PersistentPort, portal.port().to_string()),
        (IscsiParam::SessRecoveryTmo, recovery_timeout_s.to_string()),
        (IscsiParam::FastAbort, "1".to_owned()),
        (IscsiParam::AbortTmo, ABORT_SECONDS.to_string()),
        (IscsiParam::LuResetTmo, RESET_SECONDS.to_string()),
        (IscsiParam::TgtResetTmo, RESET_SECONDS.to_string()),
        (IscsiParam::PingTmo, NOP_SECONDS.to_string()),
        (IscsiParam::RecvTmo, NOP_SECONDS.to_string()),
    ]
}

/// Result of a login that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Negotiated {
    /// Session number of the target, never 0.
    pub tsih: u16,
    /// Next status number that we expect.
    pub exp_stat_sn: u32,
    /// Target portal group.
    pub tpg: u16,
    /// Sides that have proved themselves.
    pub authentication: Authentication,
    /// Parameters of data transfer.
    pub transfer: TransferParameters,
}

impl Negotiated {
    /// Returns the parameters to set after the login and before the connection is started, in that
    /// order. Digests take effect at once, so none may be set before the last login PDU has come.
    pub fn params(&self) -> Vec<(IscsiParam, String)> {
        let flag = |value: bool| u32::from(value);
        let transfer = &self.transfer;
        [
            (IscsiParam::MaxRecvDlength, transfer.max_recv_segment),
            (IscsiParam::MaxXmitDlength, transfer.max_xmit_segment),
            (IscsiParam::HdrdgstEn, flag(transfer.header_digest)),
            (IscsiParam::DatadgstEn, flag(transfer.data_digest)),
            (IscsiParam::InitialR2tEn, flag(transfer.initial_r2t)),
            (IscsiParam::MaxR2t, transfer.max_outstanding_r2t),
            (IscsiParam::ImmDataEn, flag(transfer.immediate_data)),
            (IscsiParam::FirstBurst, transfer.first_burst),
            (IscsiParam::MaxBurst, transfer.max_burst),
            (IscsiParam::PduInorderEn, flag(transfer.pdu_in_order)),
            (IscsiParam::DataseqInorderEn, flag(transfer.sequence_in_order)),
            (IscsiParam::Erl, transfer.error_recovery_level),
            (IscsiParam::ExpStatsn, self.exp_stat_sn),
            (IscsiParam::Tpgt, u32::from(self.tpg)),
        ]
        .into_iter()
        .map(|(param, value)| (param, value.to_string()))
        .collect()
    }
}
