//! Identifiers. Each is a type of its own, so that a rank cannot be passed where a worker is meant.

use std::fmt;

/// Identifies one incarnation of one worker within this process.
///
/// Never reused: a worker that is removed and added again, or replaced after a crash, gets a new id, and so nothing that was
/// recorded under the old one can reach the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u64);

impl WorkerId {
    /// Returns the id with the given number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number behind the id.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

/// A data-parallel rank of one worker, counted from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DpRank(u32);

impl DpRank {
    /// Returns the rank with the given number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number of the rank.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the rank as an index into per-rank tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for DpRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies one routing decision; shown to clients as sixteen hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionId(u64);

impl DecisionId {
    /// Returns the id with the given number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number behind the id.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
