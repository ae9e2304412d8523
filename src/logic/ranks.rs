//! Which DP ranks a worker's engine owns, and whether requests are addressed to them.
//!
//! Ranks are indexes from zero everywhere in this crate, as reports and feeds are. An engine that is one node of a larger deployment
//! may number its own ranks from another number on: that number is only added where a rank is named to it.

use crate::logic::endpoint::{FeedDescriptor, MAX_DP_RANKS};
use crate::logic::ids::DpRank;

/// Ranks with numbers that follow each other: at least one, at most [`MAX_DP_RANKS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankRange {
    first: u32,
    count: u32,
    is_configured: bool,
}

impl RankRange {
    /// Returns the range; `None` where it is empty, too long, or beyond 32 bits.
    pub fn new(first: u32, count: u32) -> Option<Self> {
        let is_valid = (1..=MAX_DP_RANKS).contains(&count) && first.checked_add(count).is_some();
        is_valid.then_some(Self { first, count, is_configured: false })
    }

    /// Returns the range that these numbers make up, in any order; `None` where some are missing between them or come twice.
    pub fn of_numbers(numbers: &[u32]) -> Option<Self> {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        let first = sorted.first().copied()?;
        let range = Self::new(first, u32::try_from(sorted.len()).ok()?)?;
        sorted.iter().zip(first..first + range.count).all(|(number, expected)| *number == expected).then_some(range)
    }

    /// Parses `4-7` or `0`.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.trim().parse::<u32>().ok();
        match text.split_once('-') {
            None => Self::new(number(text)?, 1),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                Self::new(first, last.checked_sub(first)?.checked_add(1)?)
            }
        }
    }

    /// Returns the same range as one that the configuration gives, which holds whatever the setting for all workers is.
    #[must_use]
    pub fn configured(self) -> Self {
        Self { is_configured: true, ..self }
    }

    /// Tells whether the configuration gives it.
    pub fn is_configured(self) -> bool {
        self.is_configured
    }

    /// Returns the engine's number of the first rank.
    pub fn first(self) -> u32 {
        self.first
    }

    /// Returns how many ranks there are.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Returns the rank with the engine's number.
    pub fn rank_numbered(self, number: u32) -> Option<DpRank> {
        number.checked_sub(self.first).filter(|index| *index < self.count).map(DpRank::new)
    }

    /// Returns the descriptor of the feeds of these ranks only, from one that counts those of the whole deployment: publishers bind
    /// the port of their own number. `None` where the ports do not exist.
    pub fn narrow(self, descriptor: &FeedDescriptor) -> Option<FeedDescriptor> {
        let shift = u16::try_from(self.first).ok()?;
        let shifted = |base: Option<u16>| match base {
            None => Some(None),
            Some(base) => base.checked_add(shift).map(Some),
        };
        Some(FeedDescriptor {
            dp_size: self.count,
            endpoint_port_base: shifted(descriptor.endpoint_port_base)?,
            load_endpoint_port_base: shifted(descriptor.load_endpoint_port_base)?,
            replay_endpoint_port_base: shifted(descriptor.replay_endpoint_port_base)?,
            ..descriptor.clone()
        })
    }
}

/// What the configuration says of one worker's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankRule {
    /// They are not addressed.
    Off,
    /// It owns these, and they are addressed.
    Owned(RankRange),
}

impl RankRule {
    /// Parses `off` or a range.
    pub fn parse(text: &str) -> Option<Self> {
        if text.trim() == "off" {
            Some(Self::Off)
        } else {
            RankRange::parse(text).map(|range| Self::Owned(range.configured()))
        }
    }
}

/// What an engine says of its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OwnedRanks {
    /// Nothing, or only how many there are in its deployment.
    #[default]
    Unsaid,
    /// These numbers are its own.
    Numbers(Vec<u32>),
}

/// Returns the ranks of a worker, from what the configuration says, what its engine lists as its own, and how many publishers or
/// ranks it counts. An engine that lists none owns none, whatever it counts.
pub fn ranks_of(rule: Option<RankRule>, owned: &OwnedRanks, counted: Option<u32>) -> Option<RankRange> {
    match (rule, owned) {
        (Some(RankRule::Off), _) => None,
        (Some(RankRule::Owned(range)), _) => Some(range),
        (None, OwnedRanks::Numbers(numbers)) => RankRange::of_numbers(numbers),
        (None, OwnedRanks::Unsaid) => RankRange::new(0, counted?),
    }
}

#[cfg(test)]
mod tests {
    use super::{OwnedRanks, RankRange, RankRule, ranks_of};
    use crate::logic::ids::DpRank;
    use crate::logic::testing::descriptor;

    fn range(first: u32, count: u32) -> RankRange {
        RankRange::new(first, count).unwrap_or_else(|| panic!("{first} {count}"))
    }

    #[test]
    fn ranges_are_read_as_people_write_them_and_refused_where_they_are_none() {
        for (text, expected) in [("0", (0, 1)), ("4-7", (4, 4)), (" 0 - 1023 ", (0, 1_024)), ("7-7", (7, 1))] {
            assert_eq!(RankRange::parse(text), Some(range(expected.0, expected.1)), "{text}");
        }
        for text in ["", "-", "7-4", "a-b", "0-1024", "-1", "1-2-3", "4294967295-4294967295", "4,5"] {
            assert_eq!(RankRange::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_numbers_without_a_gap_are_a_range() {
        assert_eq!(RankRange::of_numbers(&[6, 4, 7, 5]), Some(range(4, 4)));
        for numbers in [&[][..], &[0, 2], &[1, 1], &[u32::MAX]] {
            assert_eq!(RankRange::of_numbers(numbers), None, "{numbers:?}");
        }
    }

    #[test]
    fn the_engines_number_is_not_the_rank() {
        let range = range(4, 4);
        assert_eq!(range.rank_numbered(4), Some(DpRank::new(0)));
        assert_eq!(range.rank_numbered(7), Some(DpRank::new(3)));
        assert_eq!((range.rank_numbered(3), range.rank_numbered(8)), (None, None));
    }

    #[test]
    fn the_configuration_outranks_what_an_engine_lists_and_that_what_it_counts() {
        let listed = OwnedRanks::Numbers(vec![4, 5]);
        let configured = RankRule::parse("2-3");
        let rows = [
            (None, &OwnedRanks::Unsaid, None, None),
            (None, &OwnedRanks::Unsaid, Some(4), Some(range(0, 4))),
            (None, &listed, Some(8), Some(range(4, 2))),
            (None, &OwnedRanks::Numbers(vec![]), Some(8), None),
            (None, &OwnedRanks::Numbers(vec![0, 2]), Some(8), None),
            (configured, &listed, Some(8), Some(range(2, 2).configured())),
            (Some(RankRule::Off), &listed, Some(8), None),
        ];
        for (rule, owned, counted, expected) in rows {
            assert_eq!(ranks_of(rule, owned, counted), expected, "{rule:?} {owned:?} {counted:?}");
        }
        assert_eq!(RankRule::parse("auto"), None);
    }

    #[test]
    fn the_feeds_of_some_ranks_are_those_at_the_ports_of_their_numbers() {
        let narrowed = range(4, 2).narrow(&descriptor()).unwrap_or_else(|| panic!("ports exist"));
        assert_eq!(
            (narrowed.dp_size, narrowed.endpoint_port_base, narrowed.load_endpoint_port_base),
            (2, Some(5_561), Some(5_661))
        );
        assert_eq!(narrowed.replay_endpoint_port_base, None);
        assert_eq!(range(65_000, 2).narrow(&descriptor()), None);
        assert_eq!(range(70_000, 2).narrow(&descriptor()), None);
    }
}
