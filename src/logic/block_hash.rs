//! Tokens to block keys: SGLang's hash, and one of our own for engines whose hash cannot be computed.
//!
//! *SGLang* (0.5.16 to 0.5.23, equal to what running engines publish): SHA-256 of the whole digest of the block before, if there
//! is one, followed by each token as 32 bits little-endian; the published id is the first 64 bits, big-endian. Models of the
//! EAGLE family hash overlapping pairs of tokens, and then a block is `block_size` pairs. A cache salt takes the place of the
//! digest before the first block: SHA-256 of `sglang-cache-salt-v1`, a zero byte and the salt.
//!
//! *Ours*: XXH3-64 of the block's tokens in the same bytes, seeded with the key of the block before. Unlike SGLang's, a chain can be
//! continued from a key.
//!
//! In both a key stands for the whole prompt up to the end of its block, and only full blocks have one.

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::logic::prompt_keys::{HashMode, HashVariant};

/// What the salt's own hash begins with (SGLang 0.5.18 to 0.5.23).
const SALT_PREFIX: &[u8] = b"sglang-cache-salt-v1\0";
/// Where our own chains start. Any number will do, as long as it stays the same within a process.
const ROOT_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Tokens as a cache stores them.
#[derive(Debug, Clone, Copy)]
pub enum Units<'a> {
    /// One token each.
    Tokens(&'a [u32]),
    /// Pairs as an event brings them.
    Pairs(&'a [[u32; 2]]),
    /// The overlapping pairs of a prompt's tokens.
    Overlapping(&'a [u32]),
}

impl<'a> Units<'a> {
    /// Returns a prompt's tokens as the units that a mode hashes.
    pub fn of_prompt(tokens: &'a [u32], is_bigram: bool) -> Self {
        if is_bigram { Self::Overlapping(tokens) } else { Self::Tokens(tokens) }
    }

    /// Returns how many there are.
    pub fn len(self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Pairs(pairs) => pairs.len(),
            Self::Overlapping(tokens) => tokens.len().saturating_sub(1),
        }
    }

    /// Tells whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the number of full blocks.
    pub fn num_blocks(self, block_size: u32) -> usize {
        self.len() / (block_size.max(1) as usize)
    }

    /// Writes the bytes of one block in place of what the buffer holds. The block must be a full one.
    fn block_into(self, block: usize, block_size: usize, bytes: &mut Vec<u8>) {
        let range = block * block_size..(block + 1) * block_size;
        bytes.clear();
        match self {
            Self::Tokens(tokens) => bytes.extend(tokens[range].iter().flat_map(|token| token.to_le_bytes())),
            Self::Pairs(pairs) => {
                bytes.extend(pairs[range].iter().flatten().flat_map(|token| token.to_le_bytes()));
            }
            Self::Overlapping(tokens) => {
                let pairs = tokens[range.start..=range.end].windows(2);
                bytes.extend(pairs.flatten().flat_map(|token| token.to_le_bytes()));
            }
        }
    }
}

/// Returns SGLang's ids of the full blocks of a prompt, or of a stored chain that starts one.
pub fn engine_keys(units: Units<'_>, block_size: u32, cache_salt: Option<&str>) -> Vec<u64> {
    let num_blocks = units.num_blocks(block_size);
    let mut keys = Vec::with_capacity(num_blocks);
    let mut bytes = Vec::new();
    let mut digest = cache_salt.map(|salt| Sha256::new().chain_update(SALT_PREFIX).chain_update(salt).finalize());
    for block in 0..num_blocks {
        units.block_into(block, block_size as usize, &mut bytes);
        let mut hasher = Sha256::new();
        if let Some(before) = digest {
            hasher.update(before);
        }
        let own = hasher.chain_update(&bytes).finalize();
        keys.push(first_word(&own));
        digest = Some(own);
    }
    keys
}

fn first_word(digest: &[u8]) -> u64 {
    digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

/// Returns the key before the first block of a prompt, for chains of our own.
pub fn own_root(cache_salt: Option<&str>) -> u64 {
    cache_salt.map_or(ROOT_SEED, |salt| xxh3_64_with_seed(salt.as_bytes(), ROOT_SEED))
}

/// Appends our own keys of the full blocks that follow the block with the key `before`.
pub fn own_keys_into(units: Units<'_>, block_size: u32, before: u64, keys: &mut Vec<u64>) {
    let mut bytes = Vec::new();
    let mut key = before;
    for block in 0..units.num_blocks(block_size) {
        units.block_into(block, block_size as usize, &mut bytes);
        key = xxh3_64_with_seed(&bytes, key);
        keys.push(key);
    }
}

/// Returns the keys of a prompt's full blocks as a worker of this variant keys them.
pub fn prompt_keys(tokens: &[u32], variant: HashVariant, cache_salt: Option<&str>) -> Vec<u64> {
    match variant.mode {
        HashMode::Engine { is_bigram } => {
            engine_keys(Units::of_prompt(tokens, is_bigram), variant.block_size, cache_salt)
        }
        HashMode::Rehash { is_bigram } => {
            let mut keys = Vec::new();
            let units = Units::of_prompt(tokens, is_bigram);
            own_keys_into(units, variant.block_size, own_root(cache_salt), &mut keys);
            keys
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Units, engine_keys, own_keys_into, own_root, prompt_keys};
    use crate::logic::prompt_keys::{HashMode, HashVariant};

    fn signed(keys: Vec<u64>) -> Vec<i64> {
        keys.into_iter().map(u64::cast_signed).collect()
    }

    #[test]
    fn engine_keys_are_those_that_are_known() {
        let range = |last| (1..=last).collect::<Vec<u32>>();
        let tens: Vec<u32> = (1..=8).map(|token| token * 10).collect();
        let plain = |tokens: &[u32], size| signed(engine_keys(Units::Tokens(tokens), size, None));
        let bigram = |tokens: &[u32], size| signed(engine_keys(Units::Overlapping(tokens), size, None));
        assert_eq!(plain(&range(4), 4), [-3_488_128_144_981_237_669]);
        assert_eq!(plain(&range(5), 4), [-3_488_128_144_981_237_669], "a short last block has no key");
        assert_eq!(plain(&range(8), 4), [-3_488_128_144_981_237_669, 5_674_439_469_042_975_057]);
        assert_eq!(
            plain(&tens, 2),
            [978_178_666_101_069_530, -895_308_556_211_281_782, -8_033_692_805_846_017_938, 835_415_944_263_129_316]
        );
        assert_eq!(bigram(&tens[..5], 2), [-8_847_804_484_166_691_499, 4_989_791_362_144_317_498]);
        assert_eq!(bigram(&(5..=13).collect::<Vec<_>>(), 4), [-2_900_568_514_773_989_563, -322_435_596_280_658_912]);
        assert_eq!(bigram(&tens[..4], 4), [0_i64; 0], "three pairs fill no block of four");
        assert_eq!(bigram(&[1], 1), [0_i64; 0], "one token makes no pair");
    }

    #[test]
    fn a_salt_seeds_the_chain() {
        let tokens: Vec<u32> = (1..=8).collect();
        let salted = signed(engine_keys(Units::Tokens(&tokens), 4, Some("tenant-a")));
        assert_eq!(salted, [3_718_046_898_735_569_995, 3_308_615_664_605_479_373]);
        let variant = HashVariant { block_size: 4, mode: HashMode::Rehash { is_bigram: false } };
        let own = |salt| prompt_keys(&tokens, variant, salt);
        assert_ne!(own(None)[0], own(Some(""))[0], "an empty salt is one");
        assert_ne!(own(Some("a"))[1], own(Some("b"))[1]);
    }

    #[test]
    fn pairs_of_an_event_and_of_a_prompt_have_the_same_keys() {
        let tokens: Vec<u32> = (0..33).map(|token| token * 7 % 31).collect();
        let pairs: Vec<[u32; 2]> = tokens.windows(2).map(|pair| [pair[0], pair[1]]).collect();
        let from_event = engine_keys(Units::Pairs(&pairs), 8, None);
        assert_eq!(from_event.len(), 4);
        assert_eq!(from_event, engine_keys(Units::Overlapping(&tokens), 8, None));
    }

    #[test]
    fn own_keys_can_be_continued_from_any_block() {
        let tokens: Vec<u32> = (100..164).collect();
        let variant = HashVariant { block_size: 16, mode: HashMode::Rehash { is_bigram: false } };
        let whole = prompt_keys(&tokens, variant, None);
        assert_eq!(whole.len(), 4);
        let mut parts = Vec::new();
        own_keys_into(Units::Tokens(&tokens[..32]), 16, own_root(None), &mut parts);
        own_keys_into(Units::Tokens(&tokens[32..]), 16, parts[1], &mut parts);
        assert_eq!(parts, whole);
    }

    #[test]
    fn a_block_size_of_nothing_or_of_everything_makes_no_blocks() {
        assert!(engine_keys(Units::Tokens(&[1, 2]), u32::MAX, None).is_empty());
        assert_eq!(Units::Tokens(&[1, 2]).num_blocks(0), 2, "zero is taken for one rather than divided by");
        assert_eq!(engine_keys(Units::Tokens(&[]), 1, None), [0_u64; 0]);
    }
}
