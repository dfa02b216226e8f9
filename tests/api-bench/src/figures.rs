//! Times and their percentiles.

use serde::{Deserialize, Serialize};

/// Times of one kind of request, in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Figures {
    /// The kind of request.
    pub name: String,
    /// Number of samples.
    pub count: usize,
    /// Half of them took at most this.
    pub p50_us: u64,
    /// 99 of 100 took at most this.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Figures {
    /// Makes the figures of these samples.
    pub fn of(name: &str, mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        // The smallest sample that at least this percentage does not exceed.
        let at = |percent: usize| {
            let rank = (samples.len() * percent).div_ceil(100);
            samples.get(rank.saturating_sub(1)).copied().unwrap_or(0)
        };
        Self { name: name.to_owned(), count: samples.len(), p50_us: at(50), p99_us: at(99), max_us: at(100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let figures = Figures::of("x", (1..=200).rev().collect());
        assert_eq!((figures.count, figures.p50_us, figures.p99_us, figures.max_us), (200, 100, 198, 200));
        assert_eq!(Figures::of("one", vec![7]).p99_us, 7);
        assert_eq!(Figures::of("none", Vec::new()).p99_us, 0);
    }
}
