//! Random numbers from a seed. The generator (SplitMix64, Steele, Lea and Flood 2014) is written out here because a replayed
//! decision must see the same numbers in every later version of the crate.

/// A small seeded generator, not for secrets.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Returns the generator of the seed.
    pub const fn from_seed(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number, uniform over all 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, zero where `bound` is zero. The bias of the multiply-shift method is below 2^-32 for any
    /// fleet.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_numbers_of_a_seed_never_change() {
        let mut rng = Rng::from_seed(0);
        assert_eq!(
            rng.next_u64(),
            0xE220_A839_7B1D_CDAF,
            "the first number that the generator's authors publish for seed 0"
        );
    }

    #[test]
    fn numbers_below_a_bound_cover_it_and_stay_below_it() {
        let mut rng = Rng::from_seed(7);
        let mut seen = [0_u32; 5];
        for _ in 0..5_000 {
            seen[rng.below(5)] += 1;
        }
        assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }
}
