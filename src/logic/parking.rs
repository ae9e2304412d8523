//! Requests that wait because every worker is full: by priority, then by arrival, each until its deadline.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

/// A place in the queue. A request that is taken out and found no room goes back to the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    priority: Reverse<i32>,
    arrival: u64,
    deadline: Instant,
}

/// A bounded queue.
#[derive(Debug)]
pub struct Parking<T> {
    waiting: BTreeMap<Place, T>,
    max_waiting: usize,
    num_arrivals: u64,
}

impl<T> Parking<T> {
    /// Returns an empty queue for at most so many.
    pub fn new(max_waiting: usize) -> Self {
        Self { waiting: BTreeMap::new(), max_waiting, num_arrivals: 0 }
    }

    /// Sets how many may wait. Those that wait already stay.
    pub fn set_max_waiting(&mut self, max_waiting: usize) {
        self.max_waiting = max_waiting;
    }

    /// Returns the number of those that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Tells whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a newcomer in, behind those of its priority.
    ///
    /// # Errors
    /// Gives it back where there is no room.
    pub fn enter(&mut self, item: T, priority: i32, deadline: Instant) -> Result<(), T> {
        if self.waiting.len() >= self.max_waiting {
            return Err(item);
        }
        self.num_arrivals += 1;
        let place = Place { priority: Reverse(priority), arrival: self.num_arrivals, deadline };
        self.waiting.insert(place, item);
        Ok(())
    }

    /// Takes the first out.
    pub fn first(&mut self) -> Option<(Place, T)> {
        self.waiting.pop_first()
    }

    /// Puts one back that was taken out.
    pub fn put_back(&mut self, place: Place, item: T) {
        self.waiting.insert(place, item);
    }

    /// Takes out those whose deadline has passed.
    pub fn expired(&mut self, now: Instant) -> Vec<T> {
        let late: Vec<Place> = self.waiting.keys().filter(|place| place.deadline <= now).copied().collect();
        late.iter().filter_map(|place| self.waiting.remove(place)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Parking;
    use crate::logic::testing::{secs, start};

    #[test]
    fn the_highest_priority_goes_first_and_among_equals_who_came_first() {
        let mut parking = Parking::new(10);
        for (item, priority) in [("a", 0), ("b", 0), ("c", 5), ("d", -1), ("e", 5)] {
            parking.enter(item, priority, start()).unwrap();
        }
        let (place, first) = parking.first().unwrap();
        assert_eq!(first, "c");
        parking.put_back(place, first);
        parking.enter("f", 5, start()).unwrap();
        let order: String = std::iter::from_fn(|| parking.first()).map(|(_, item)| item).collect();
        assert_eq!(order, "cefabd");
    }

    #[test]
    fn nobody_waits_beyond_the_limit_or_its_deadline() {
        let mut parking = Parking::new(2);
        parking.enter("early", 0, start() + secs(1)).unwrap();
        parking.enter("late", 9, start() + secs(2)).unwrap();
        assert_eq!(parking.enter("no room", 99, start() + secs(9)), Err("no room"));
        assert_eq!(parking.expired(start()), [""; 0]);
        assert_eq!(parking.expired(start() + secs(1)), ["early"]);
        assert_eq!((parking.len(), parking.is_empty()), (1, false));
    }
}
