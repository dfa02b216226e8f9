//! Results of one run of the client, and their print beside its bar.

use serde::{Deserialize, Serialize};

use crate::conditions;
use crate::cost::Spent;
use crate::figures::Figures;

/// Results of one run of the client.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Number of complete cycles.
    pub cycles: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// The requests, by kind.
    pub figures: Vec<Figures>,
    /// Processor time of each process.
    pub spent: Vec<Spent>,
}

/// The word for whether a bar is met, for a table.
pub const fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "NOT met" }
}

#[allow(clippy::cast_precision_loss, reason = "times of requests, far below 2^52 us")]
fn ms(us: u64) -> f64 {
    us as f64 / 1_000.0
}

impl Measured {
    /// Cycles per second.
    #[allow(clippy::cast_precision_loss, reason = "some thousands of cycles")]
    pub fn rate(&self) -> f64 {
        self.cycles as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// The 99th percentile of a kind of request, in milliseconds.
    pub fn p99_ms(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figures| figures.name == name).map(|figures| ms(figures.p99_us))
    }

    /// Prints the requests, one line each.
    pub fn print_figures(&self) {
        for Figures { name, count, p50_us, p99_us, max_us } in &self.figures {
            println!(
                "  {name:<30} p50 {:>8.2} ms  p99 {:>8.2} ms  max {:>8.2} ms  ({count})",
                ms(*p50_us),
                ms(*p99_us),
                ms(*max_us)
            );
        }
    }

    /// Prints each process's share of one processor and its cost per cycle, and the load of the
    /// machine.
    #[allow(clippy::cast_precision_loss, reason = "some thousands of cycles")]
    pub fn print_spent(&self) {
        let part = |Spent { name, seconds }: &Spent| {
            let each = 1_000.0 * seconds / self.cycles.max(1) as f64;
            let each = if self.cycles > 0 { format!(" ({each:.2} ms per cycle)") } else { String::new() };
            format!("{name} {:.0} %{each}", 100.0 * seconds / self.seconds)
        };
        let parts: Vec<_> = self.spent.iter().map(part).collect();
        println!("  of one processor: {}; load {}", parts.join(", "), conditions::load());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_percentiles() {
        let figures = vec![Figures::of("show", vec![1_000, 2_000, 4_500])];
        let measured = Measured { cycles: 900, seconds: 2.0, figures, spent: Vec::new() };
        assert!((measured.rate() - 450.0).abs() < 1e-9);
        assert_eq!(measured.p99_ms("show"), Some(4.5));
        assert_eq!(measured.p99_ms("list"), None);
        assert_eq!((verdict(true), verdict(false)), ("met", "NOT met"));
    }
}
