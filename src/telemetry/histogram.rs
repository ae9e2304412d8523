//! Histograms of durations that cost two atomic additions per observation and no lock, so that each chunk of each stream can be one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Upper bounds in microseconds from a request's arrival to the first byte of its answer.
pub(super) const FIRST_BYTE: &[u64] = &[
    2_000,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    120_000_000,
];
/// The same to the first chunk of a stream: from a warm cache on a small model to a long prompt behind a queue.
pub(super) const FIRST_TOKEN: &[u64] = &[
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    30_000,
    50_000,
    75_000,
    100_000,
    150_000,
    250_000,
    400_000,
    600_000,
    1_000_000,
    1_500_000,
    2_500_000,
    4_000_000,
    6_000_000,
    10_000_000,
    20_000_000,
    40_000_000,
    80_000_000,
    160_000_000,
];
/// The same between two chunks of a stream: decode steps take 5 to 100 ms; what is longer is a stall.
pub(super) const CHUNK_GAP: &[u64] = &[
    1_000, 2_000, 4_000, 6_000, 8_000, 10_000, 15_000, 20_000, 30_000, 40_000, 60_000, 80_000, 100_000, 150_000,
    250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000,
];
/// The same of a whole request.
pub(super) const WHOLE_REQUEST: &[u64] = &[
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    20_000_000,
    40_000_000,
    80_000_000,
    160_000_000,
    320_000_000,
    640_000_000,
];
/// The same of a wait for room.
pub(super) const QUEUE_WAIT: &[u64] = &[
    1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];
/// The same of a decision, its round of questions included.
pub(super) const DECISION: &[u64] =
    &[25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000];

/// A histogram of durations. Cheap to clone; clones count into the same one.
#[derive(Clone)]
pub struct DurationHistogram {
    inner: Arc<Inner>,
}

struct Inner {
    bounds_us: &'static [u64],
    /// One more than there are bounds: the last one has none.
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

impl fmt::Debug for DurationHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurationHistogram").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl DurationHistogram {
    /// Returns an empty histogram with these upper bounds, ascending, in microseconds.
    pub(super) fn new(bounds_us: &'static [u64]) -> Self {
        let counts = (0..=bounds_us.len()).map(|_| AtomicU64::new(0)).collect();
        Self { inner: Arc::new(Inner { bounds_us, counts, sum_us: AtomicU64::new(0) }) }
    }

    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = self.inner.bounds_us.partition_point(|bound| *bound < micros);
        self.inner.counts[bucket].fetch_add(1, Ordering::Relaxed);
        // Microseconds: the sum over ten thousand concurrent requests lasts for decades.
        self.inner.sum_us.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns the upper bounds in microseconds.
    pub fn bounds_us(&self) -> &'static [u64] {
        self.inner.bounds_us
    }

    /// Returns how many durations each bucket has, not accumulated; the last one is that of the longest, without a bound.
    pub fn counts(&self) -> Vec<u64> {
        self.inner.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

impl EncodeMetric for DurationHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let bounds = self.inner.bounds_us.iter().map(|micros| *micros as f64 / 1e6).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.counts()).collect();
        // The count is that of the buckets just read: one of its own could disagree with them.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.inner.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CHUNK_GAP, DECISION, DurationHistogram, FIRST_BYTE, FIRST_TOKEN, QUEUE_WAIT, WHOLE_REQUEST};

    #[test]
    fn bounds_ascend_and_a_bound_belongs_to_its_own_bucket() {
        for bounds in [CHUNK_GAP, DECISION, FIRST_BYTE, FIRST_TOKEN, QUEUE_WAIT, WHOLE_REQUEST] {
            assert!(bounds.is_sorted(), "{bounds:?}");
            let histogram = DurationHistogram::new(bounds);
            for bound in bounds {
                histogram.observe(Duration::from_micros(*bound));
            }
            histogram.observe(Duration::MAX);
            assert_eq!(histogram.counts(), vec![1; bounds.len() + 1]);
        }
    }
}
