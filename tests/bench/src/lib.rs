//! Shared code of the programs that benchmarks and scenarios run inside a VM: figures and their
//! percentiles, raw commands.

pub mod floor;
pub mod gun;
pub mod shots;
pub mod spec;

use serde::{Deserialize, Serialize};

/// Times of one kind of operation, in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Figures {
    /// The operation.
    pub name: String,
    /// Number of samples.
    pub count: usize,
    /// Half of them took at most this.
    pub p50_us: u64,
    /// 95 of 100 took at most this.
    pub p95_us: u64,
}

impl Figures {
    /// Makes the figures of these samples.
    pub fn of(name: &str, mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| {
            samples
                .get((samples.len() * percent / 100).min(samples.len().saturating_sub(1)))
                .copied()
                .unwrap_or(0)
        };
        Self { name: name.to_owned(), count: samples.len(), p50_us: at(50), p95_us: at(95) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let figures = Figures::of("x", (1..=100).rev().collect());
        assert_eq!((figures.count, figures.p50_us, figures.p95_us), (100, 51, 96));
        assert_eq!(Figures::of("none", Vec::new()).p95_us, 0);
    }
}
