//! Load that engines tell when they are asked, for those that publish none: SGLang's `/v1/loads` and vLLM's `/metrics`.
//!
//! Both answers cover all ranks of an engine at once, and count only as a whole: a rank that is missing between two others, a value
//! that is missing or that is no count refuses the answer, and nothing of it becomes zero.

pub mod loads_json;
pub mod prometheus;

use crate::logic::endpoint::MAX_DP_RANKS;
use crate::logic::load::RankLoad;

/// Why an answer tells no load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolledLoadError {
    /// It is not in the form that the path has.
    #[error("the answer is not in the form of its path")]
    Malformed,
    /// It tells of no rank.
    #[error("the answer tells of no rank")]
    NoRank,
    /// A value that every rank must have is missing.
    #[error("the answer lacks {0}")]
    Missing(&'static str),
    /// A value is not a count that an engine can have.
    #[error("{0} is not a count")]
    NotACount(&'static str),
    /// The ranks are not numbered from zero without a gap, or there are too many.
    #[error("the ranks are not numbered from zero without a gap")]
    Ranks,
    /// A rank has not been measured yet.
    #[error("a rank has not been measured yet")]
    NotMeasured,
}

impl PolledLoadError {
    /// Returns the reason as a metric label.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NoRank => "no_rank",
            Self::Missing(_) => "missing",
            Self::NotACount(_) => "not_a_count",
            Self::Ranks => "ranks",
            Self::NotMeasured => "not_measured",
        }
    }
}

impl PolledLoadError {
    /// Tells whether the answer is not one of an engine that tells its load at all, rather than a bad one of such an engine.
    pub fn is_foreign(self) -> bool {
        matches!(self, Self::Malformed | Self::NoRank)
    }
}

/// Puts the ranks in order. Their numbers must be those from zero on, each once.
fn in_order(mut ranks: Vec<(u32, RankLoad)>) -> Result<Vec<RankLoad>, PolledLoadError> {
    if ranks.is_empty() {
        return Err(PolledLoadError::NoRank);
    }
    ranks.sort_unstable_by_key(|(rank, _)| *rank);
    let is_gapless = ranks.iter().zip(0_u32..).all(|((rank, _), number)| *rank == number);
    if !is_gapless || ranks.len() > MAX_DP_RANKS as usize {
        return Err(PolledLoadError::Ranks);
    }
    Ok(ranks.into_iter().map(|(_, load)| load).collect())
}
