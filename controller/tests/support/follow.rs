//! Streams of reports. What must never happen here: a report after the agent went down.

use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::Fake;

impl Fake {
    pub(super) fn follow<T: Clone + Send + 'static>(
        &self,
        first: Vec<T>,
        mut changes: broadcast::Receiver<T>,
    ) -> ReceiverStream<Result<T, Status>> {
        let (send, receive) = mpsc::channel(64);
        let mut down = self.down.subscribe();
        let is_down = *down.borrow_and_update();
        tokio::spawn(async move {
            if is_down {
                return;
            }
            for item in first {
                if send.send(Ok(item)).await.is_err() {
                    return;
                }
            }
            loop {
                tokio::select! {
                    change = changes.recv() => {
                        let Ok(change) = change else { return };
                        if send.send(Ok(change)).await.is_err() {
                            return;
                        }
                    }
                    // However short the outage is, the follower must notice it.
                    _ = down.changed() => return,
                    () = send.closed() => return,
                }
            }
        });
        ReceiverStream::new(receive)
    }
}
