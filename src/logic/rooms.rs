//! Rooms: the numbers by which a prefill engine and a decode engine know that they work on the same request.
//!
//! A room is drawn at random, 63 bits without a sign, and no two that are open are equal. A batch has one for each of its prompts,
//! with numbers that follow each other. An engine with several DP ranks gives a request to the rank that is the room's remainder
//! (SGLang's `follow_bootstrap_room`), so the rank is chosen with the room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::logic::rng::Rng;

/// The most prompts of one request that get rooms.
pub const MAX_ROOMS: u32 = 4_096;

/// The rank that a room's remainder names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoomRank {
    /// The rank.
    pub rank: u32,
    /// How many there are; not zero.
    pub num_ranks: u32,
}

/// The rooms that are open, by first number. Cheap to clone; clones are one.
#[derive(Debug, Clone, Default)]
pub struct OpenRooms {
    ranges: Arc<Mutex<BTreeMap<u64, u64>>>,
}

/// The rooms of one request, open until the drop.
#[derive(Debug)]
pub struct Rooms {
    first: u64,
    count: u64,
    open: OpenRooms,
}

impl OpenRooms {
    /// Opens `count` rooms, at least one, the first of them at the rank. The numbers follow from `rng` and from what is open.
    pub fn open(&self, count: u32, rank: Option<RoomRank>, rng: &mut Rng) -> Rooms {
        let count = u64::from(count.max(1));
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let first = at_rank(rng.next_u64() >> 1, rank);
            let fits = first.checked_add(count).is_some_and(|end| end <= 1 << 63);
            if fits && is_free(&ranges, first, count) {
                ranges.insert(first, count);
                return Rooms { first, count, open: self.clone() };
            }
        }
    }

    /// Returns for how many requests rooms are open.
    pub fn num_requests(&self) -> usize {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

fn at_rank(number: u64, rank: Option<RoomRank>) -> u64 {
    match rank {
        Some(RoomRank { rank, num_ranks }) if num_ranks > 0 => {
            number - number % u64::from(num_ranks) + u64::from(rank % num_ranks)
        }
        Some(_) | None => number,
    }
}

fn is_free(ranges: &BTreeMap<u64, u64>, first: u64, count: u64) -> bool {
    ranges.range(..first + count).next_back().is_none_or(|(start, length)| start + length <= first)
}

impl Rooms {
    /// Returns the first number; the others follow it.
    pub fn first(&self) -> u64 {
        self.first
    }
}

impl Drop for Rooms {
    fn drop(&mut self) {
        let removed = self.open.ranges.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.first);
        debug_assert_eq!(removed, Some(self.count));
    }
}

#[cfg(test)]
mod tests {
    use super::{OpenRooms, RoomRank};
    use crate::logic::rng::Rng;

    #[test]
    fn rooms_have_63_bits_and_follow_from_the_seed() {
        let draw = |seed| OpenRooms::default().open(1, None, &mut Rng::from_seed(seed)).first();
        let drawn: Vec<u64> = (0..1_000).map(draw).collect();
        assert!(drawn.iter().all(|room| i64::try_from(*room).is_ok()));
        assert!(drawn.iter().any(|room| *room > 1 << 62));
        assert_eq!(drawn, (0..1_000).map(draw).collect::<Vec<_>>());
    }

    #[test]
    fn no_two_open_rooms_are_equal_even_where_the_random_numbers_are() {
        let open = OpenRooms::default();
        let rooms: Vec<_> = (0..50).map(|_| open.open(3, None, &mut Rng::from_seed(1))).collect();
        let mut numbers: Vec<u64> = rooms.iter().flat_map(|rooms| rooms.first()..rooms.first() + 3).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!((numbers.len(), open.num_requests()), (150, 50));
        let first = rooms[0].first();
        drop(rooms);
        assert_eq!(open.num_requests(), 0);
        assert_eq!(open.open(3, None, &mut Rng::from_seed(1)).first(), first, "what is closed is free again");
    }

    #[test]
    fn the_remainder_of_a_room_is_its_rank() {
        let (open, mut rng) = (OpenRooms::default(), Rng::from_seed(3));
        for rank in 0..8 {
            let room = open.open(1, Some(RoomRank { rank, num_ranks: 8 }), &mut rng);
            assert_eq!(room.first() % 8, u64::from(rank));
        }
    }
}
