//! Network between the controller and one agent: streams in memory that can be cut, or that can
//! swallow everything.
//!
//! What must never happen here: a byte that arrives on a stream that was cut, or out of order.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mooring_api::Channel;
use mooring_controller::service::Dialled;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;
use tonic::transport::server::Connected;
use tonic::transport::{Endpoint, Uri};

use crate::lock;

/// Bytes that can be under way in one direction.
const WINDOW: usize = 64 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// State of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Weather {
    /// Everything arrives.
    #[default]
    Fair,
    /// Every connection ends, and none can be made.
    Cut,
    /// Nothing arrives, and nobody is told.
    Hole,
}

#[derive(Debug, Default)]
struct Flow {
    cut: bool,
    hole: bool,
    wakers: Vec<Waker>,
}

impl Flow {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

#[derive(Debug, Default)]
struct State {
    weather: Weather,
    /// Receiver of new connections; `None` if no agent listens.
    listener: Option<mpsc::UnboundedSender<Pipe>>,
    flows: Vec<Weak<Mutex<Flow>>>,
}

/// Network to one agent; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wire(Arc<Mutex<State>>);

impl Wire {
    /// Starts to listen as an agent.
    pub(crate) fn listen(&self) -> mpsc::UnboundedReceiver<Pipe> {
        let (send, receive) = mpsc::unbounded_channel();
        lock(&self.0).listener = Some(send);
        receive
    }

    /// Stops listening: the agent is gone, and its connections end.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.0);
        state.listener = None;
        state.each(|flow| flow.cut = true);
    }

    pub(crate) fn set(&self, weather: Weather) {
        let mut state = lock(&self.0);
        state.weather = weather;
        state.each(|flow| {
            flow.hole = weather == Weather::Hole;
            flow.cut |= weather == Weather::Cut;
        });
    }

    fn connect(&self) -> io::Result<Option<Pipe>> {
        let mut state = lock(&self.0);
        if state.weather == Weather::Hole {
            return Ok(None);
        }
        let listener = state.listener.clone().filter(|_| state.weather == Weather::Fair);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let flow = Arc::default();
        let (ours, theirs) = tokio::io::duplex(WINDOW);
        let theirs = Pipe { stream: theirs, flow: Arc::clone(&flow) };
        listener.ok_or_else(refused)?.send(theirs).map_err(|_| refused())?;
        state.flows.retain(|flow| flow.strong_count() > 0);
        state.flows.push(Arc::downgrade(&flow));
        Ok(Some(Pipe { stream: ours, flow }))
    }

    /// Dials the agent. The channel reconnects by itself, as over a real network.
    pub(crate) fn dial(&self) -> Dialled {
        let wire = self.clone();
        Box::pin(async move {
            let connector = tower::service_fn(move |_: Uri| {
                let wire = wire.clone();
                async move {
                    match wire.connect()? {
                        Some(pipe) => Ok(hyper_util::rt::TokioIo::new(pipe)),
                        None => std::future::pending::<io::Result<_>>().await,
                    }
                }
            });
            let endpoint = Endpoint::from_static("http://agent.invalid").connect_timeout(CONNECT_TIMEOUT);
            let channel: Result<Channel, _> = endpoint.connect_with_connector(connector).await;
            channel.map_err(|error| error.to_string())
        })
    }
}

impl State {
    fn each(&self, change: impl Fn(&mut Flow)) {
        for flow in self.flows.iter().filter_map(Weak::upgrade) {
            let mut flow = lock(&flow);
            change(&mut flow);
            flow.wake();
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Pipe {
    stream: DuplexStream,
    flow: Arc<Mutex<Flow>>,
}

impl Pipe {
    /// Ready if the network carries bytes now. The task is woken when that changes.
    fn carries(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut flow = lock(&self.flow);
        if flow.cut {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if flow.wakers.iter().all(|waker| !waker.will_wake(context.waker())) {
            flow.wakers.push(context.waker().clone());
        }
        if flow.hole { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

macro_rules! carried {
    ($pipe:expr, $context:expr) => {
        match $pipe.carries($context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
    };
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        carried!(self, context);
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        carried!(self, context);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        carried!(self, context);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Pipe {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}
