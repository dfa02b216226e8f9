//! A connection to a bus: calls with a deadline, and the signals that match its rules.
//!
//! What must never happen here: unread signals that keep answers from being read (a task of its own
//! reads them).

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use zbus::export::serde::Serialize;
use zbus::message::Type;
use zbus::wire::DynamicDeserialize;
use zbus::{Connection, DynamicType, Message, MessageStream, fdo};

/// The system bus. The units' sandboxes let it through like any unix socket.
const SYSTEM: &str = "unix:path=/run/dbus/system_bus_socket";

/// Time limit for connecting to a bus and for a service's answer: libdbus's own default. systemd
/// answers nobody while it reloads its units, which takes seconds on a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(25);

/// The address of a bus, and the time limit for its answers.
#[derive(Debug, Clone)]
pub struct Bus {
    address: String,
    within: Duration,
}

impl Bus {
    /// The system bus.
    pub fn system() -> Self {
        Self::at(SYSTEM)
    }

    /// The bus at this D-Bus address.
    pub fn at(address: impl Into<String>) -> Self {
        Self { address: address.into(), within: ANSWER_WITHIN }
    }

    /// Sets the time limit for each answer.
    #[must_use]
    pub fn answers_within(self, within: Duration) -> Self {
        Self { within, ..self }
    }
}

/// The reason why a call on the bus failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bus, or a service on it, answered with an error, or could not be reached.
    #[error("{what}")]
    Bus {
        /// The call.
        what: &'static str,
        /// The cause.
        #[source]
        source: zbus::Error,
    },
    /// No answer came in time; the next try may get one.
    #[error("{what}: no answer within {} ms", within.as_millis())]
    Silent {
        /// The call.
        what: &'static str,
        /// The time limit.
        within: Duration,
    },
    /// The connection to the bus has ended.
    #[error("the bus has closed the connection")]
    Gone,
}

impl Error {
    /// Returns `true` if the service is there and refused; another try would not change that.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Bus { source: zbus::Error::MethodError(..), .. } => true,
            Self::Bus { source: zbus::Error::FDO(error), .. } => matches!(
                **error,
                fdo::Error::Failed(_)
                    | fdo::Error::AccessDenied(_)
                    | fdo::Error::LimitsExceeded(_)
                    | fdo::Error::InvalidArgs(_)
                    | fdo::Error::FileNotFound(_)
                    | fdo::Error::UnknownMethod(_)
                    | fdo::Error::UnknownObject(_)
                    | fdo::Error::UnknownInterface(_)
                    | fdo::Error::UnknownProperty(_)
            ),
            _ => false,
        }
    }
}

/// A connection to a bus.
pub(crate) struct Link {
    connection: Connection,
    signals: mpsc::UnboundedReceiver<Message>,
    reader: JoinHandle<()>,
    within: Duration,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// One object of a service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) service: &'static str,
    pub(crate) path: &'a str,
    pub(crate) interface: &'static str,
}

const DBUS: At<'static> =
    At { service: "org.freedesktop.DBus", path: "/org/freedesktop/DBus", interface: "org.freedesktop.DBus" };

impl Link {
    /// Connects, and subscribes to the signals of these match rules.
    pub(crate) async fn open(bus: &Bus, rules: &[String]) -> Result<Self, Error> {
        const WHAT: &str = "connect to the bus";
        let failed = |source| Error::Bus { what: WHAT, source };
        let connecting = zbus::connection::Builder::address(bus.address.as_str()).build();
        let connection = tokio::time::timeout(bus.within, connecting)
            .await
            .map_err(|_| Error::Silent { what: WHAT, within: bus.within })?
            .map_err(failed)?;
        let (send, signals) = mpsc::unbounded_channel();
        let mut messages = MessageStream::from(&connection);
        let reader = tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                if message.message_type() == Type::Signal && send.send(message).is_err() {
                    return;
                }
            }
        });
        let link = Self { connection, signals, reader, within: bus.within };
        for rule in rules {
            link.call::<_, ()>("ask for signals", DBUS, "AddMatch", &rule.as_str()).await?;
        }
        Ok(link)
    }

    /// Calls a method, and waits for its answer.
    pub(crate) async fn call<B, R>(
        &self,
        what: &'static str,
        at: At<'_>,
        method: &str,
        body: &B,
    ) -> Result<R, Error>
    where
        B: Serialize + DynamicType,
        R: for<'a> DynamicDeserialize<'a>,
    {
        let failed = |source| Error::Bus { what, source };
        let call = self.connection.call_method(Some(at.service), at.path, Some(at.interface), method, body);
        let answer = tokio::time::timeout(self.within, call)
            .await
            .map_err(|_| Error::Silent { what, within: self.within })?
            .map_err(failed)?;
        answer.body().deserialize().map_err(failed)
    }

    /// Returns the next signal; `None`: the connection to the bus has ended.
    pub(crate) async fn signal(&mut self) -> Option<Message> {
        self.signals.recv().await
    }

    /// Discards the signals that have arrived.
    pub(crate) fn drain(&mut self) {
        while self.signals.try_recv().is_ok() {}
    }
}
