//! Looks at volumes for callers that only ask: a storage agent gets one at a time per volume,
//! however many callers ask.
//!
//! What must never happen here: an answer from a look that began before its caller asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mooring_model::VolumeId;
use tokio::time::Instant;

use super::lock;

/// Start of the last look at a volume; locked while one runs.
type Began = Arc<tokio::sync::Mutex<Option<Instant>>>;

/// The running looks, by volume.
#[derive(Default)]
pub(crate) struct Looks(Mutex<HashMap<VolumeId, Began>>);

impl Looks {
    /// Runs `look`, unless another look that begins after this call does. Returns when that look
    /// has ended.
    pub(crate) async fn share(&self, id: VolumeId, look: impl Future<Output = ()>) {
        let asked = Instant::now();
        let turn = Arc::clone(lock(&self.0).entry(id).or_default());
        let mut began = turn.lock().await;
        if began.is_none_or(|began| began < asked) {
            let now = Instant::now();
            look.await;
            *began = Some(now);
        }
        drop(began);
        let mut all = lock(&self.0);
        // Two references: that of the table, and this one.
        if Arc::strong_count(&turn) <= 2 {
            all.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_at_once_share_looks() {
        let (looks, ran) = (Arc::new(Looks::default()), Arc::new(AtomicUsize::new(0)));
        let ask = || {
            let (looks, ran) = (Arc::clone(&looks), Arc::clone(&ran));
            tokio::spawn(async move {
                let before = ran.load(Ordering::SeqCst);
                let look = async {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    ran.fetch_add(1, Ordering::SeqCst);
                };
                looks.share(VolumeId::from_u128(1), look).await;
                assert!(ran.load(Ordering::SeqCst) > before, "a look has ended since");
            })
        };
        let first = ask();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let others: Vec<_> = (0..50).map(|_| ask()).collect();
        for one in others.into_iter().chain([first]) {
            one.await.unwrap();
        }
        // The look that was running began before they asked: they share the next one.
        assert_eq!(ran.load(Ordering::SeqCst), 2);
        assert!(lock(&looks.0).is_empty());
        ask().await.unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 3, "whoever comes later has a look");
    }
}
