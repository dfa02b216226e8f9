//! Performs a whole login by hand, for tests of the time after it: it makes the kernel's requests
//! in their order, without CHAP.
//!
//! What must never happen here: its use for anything but tests; it neither recovers nor cleans up.

use std::net::TcpStream;
use std::time::Duration;

use super::pdu::{Pdu, opcode, text};
use super::{FakeHost, FakeTarget};
use crate::{IscsiError, IscsiEvent, IscsiEvents, IscsiKernel, IscsiParam, KernelSession};

/// Longest wait for one answer.
const ANSWER: Duration = Duration::from_secs(20);

/// Failure of a login by hand.
#[derive(Debug, thiserror::Error)]
pub enum HandError {
    /// The TCP connection failed.
    #[error("connect")]
    Connect(#[from] std::io::Error),
    /// A request to the kernel failed.
    #[error(transparent)]
    Kernel(#[from] IscsiError),
    /// The target refused with this status class and detail.
    #[error("status {0:02x}{1:02x}")]
    Refused(u8, u8),
    /// The connection broke, or no answer came.
    #[error("no answer")]
    Lost,
}

impl FakeHost {
    /// Logs in, straight into the operational stage.
    pub fn log_in(
        &self,
        target: &FakeTarget,
        initiator: &str,
        interface: &str,
        isid: [u8; 6],
    ) -> Result<KernelSession, HandError> {
        let mut events = self.events();
        let socket = TcpStream::connect(target.address())?;
        let session = self.create_session(128, 32)?;
        self.create_connection(session.sid)?;
        self.log_in_on(session.sid, &socket, &mut events, target, (initiator, interface, isid))?;
        Ok(session)
    }

    /// Logs in a session that has a connection without a socket, as [`FakeHost::log_in`] does.
    fn log_in_on(
        &self,
        sid: u32,
        socket: &TcpStream,
        events: &mut impl IscsiEvents,
        target: &FakeTarget,
        (initiator, interface, isid): (&str, &str, [u8; 6]),
    ) -> Result<(), HandError> {
        self.bind_connection(sid, socket)?;
        let address = target.address();
        for (param, value) in [
            (IscsiParam::IfaceName, interface),
            (IscsiParam::TargetName, &target.name()),
            (IscsiParam::InitiatorName, initiator),
            (IscsiParam::PersistentAddress, &address.ip().to_string()),
            (IscsiParam::PersistentPort, &address.port().to_string()),
        ] {
            self.set_param(sid, param, value)?;
        }
        let mut request = Pdu::new(0x40 | opcode::LOGIN);
        request.header[1] = 0x87;
        request.set(8, &isid);
        let keys = [
            ("InitiatorName", initiator),
            ("TargetName", &target.name()),
            ("SessionType", "Normal"),
            ("InitialR2T", "No"),
            ("ImmediateData", "Yes"),
        ];
        request.data = text(&keys.map(|(key, value)| (key.to_owned(), value.to_owned())));
        self.send_pdu(sid, &request.header, &request.data)?;
        loop {
            match events.next(ANSWER)? {
                Some(IscsiEvent::Pdu { sid: of, header, .. }) if of == sid => {
                    if header[36] != 0 {
                        return Err(HandError::Refused(header[36], header[37]));
                    }
                    break;
                }
                Some(IscsiEvent::ConnectionError { sid: of, .. }) if of != sid => {}
                Some(IscsiEvent::ConnectionError { .. } | IscsiEvent::Overrun) | None => {
                    return Err(HandError::Lost);
                }
                Some(_) => {}
            }
        }
        self.start_connection(sid)?;
        Ok(())
    }
}
