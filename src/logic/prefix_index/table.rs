//! The blocks that up to eight DP ranks hold, by key: 24 bytes a block in an arena, and a table of 4-byte slots beside it.
//!
//! A key stands for the whole prompt up to its block, so a chain from block 0 needs no tree: its keys are looked up. What a block
//! must know of its neighbours is its parent, and how many blocks name it as theirs, so that leaves can be told from the inside.
//!
//! *How far a rank holds a prompt without a hole* takes about log2(n) lookups as long as no block of the rank lacks its parent:
//! then holding block k means holding all before it, and a binary search is exact. An engine evicts leaves first, so that is the
//! rule. Where an inner block goes, or comes without its parent, the rank is marked as one that may have holes and its prompts
//! are walked block by block, until a count over the whole table, made once per so many changes, finds none.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Ranks that share one table.
pub(super) const LANES: usize = 8;
/// Blocks per piece of the arena.
const CHUNK: usize = 1_024;
/// Bytes that a block takes at most: 24 in the arena, and 5 per bucket of a table that is between 7/16 and 7/8 full.
pub(super) const MAX_BYTES_PER_BLOCK: usize = 36;
/// Changes after which a count for holes is worth its time even in a small table.
const MIN_CHANGES_PER_COUNT: usize = if cfg!(test) { 8 } else { 1_024 };

/// The block starts a prompt.
const ROOT: u32 = u32::MAX;
/// Which block comes before is not known.
const UNKNOWN: u32 = u32::MAX - 1;
/// The slot is free; `num_children` is the next free one.
const FREE: u32 = u32::MAX - 2;
/// Slots are below this.
const MAX_SLOTS: usize = (u32::MAX - 16) as usize;

/// The places at which ranks hold a block: eight bits of lanes for each of four tiers.
type Held = u32;

/// Where a block is, as far as it matters for the time until it can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// In the accelerator's memory: usable at once.
    Device = 0,
    /// In the host's memory.
    Host = 1,
    /// On a disk of the host.
    Disk = 2,
    /// In a store outside the host.
    External = 3,
}

impl Tier {
    /// Every tier, nearest first.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Disk, Self::External];

    fn bits(self, lanes: u8) -> Held {
        Held::from(lanes) << (8 * (self as u32))
    }
}

/// Returns the lanes that hold a block anywhere.
fn lanes_of(held: Held) -> u8 {
    (held | held >> 8 | held >> 16 | held >> 24) as u8
}

#[derive(Debug, Clone, Copy)]
struct Block {
    key: u64,
    held: Held,
    parent: u32,
    /// Blocks that name this one as their parent.
    num_children: u32,
    /// When it was last stored or matched, counted in uses of the table.
    used_at: u32,
}

const FREE_BLOCK: Block = Block { key: 0, held: 0, parent: FREE, num_children: 0, used_at: 0 };

/// How far lanes hold a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Depth {
    /// Blocks from block 0 without a hole.
    pub(super) num_blocks: usize,
    /// The lanes that hold that many.
    pub(super) lanes: u8,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct BlockTable {
    chunks: Vec<Box<[Block]>>,
    slots: HashTable<u32>,
    first_free: Option<u32>,
    max_blocks: usize,
    num_held: [usize; LANES],
    may_have_holes: u8,
    has_lower_tiers: bool,
    num_changes: usize,
    uses: u32,
    num_evicted: u64,
}

impl BlockTable {
    pub(super) fn new(max_blocks: usize) -> Self {
        Self {
            chunks: Vec::new(),
            slots: HashTable::new(),
            first_free: None,
            max_blocks: max_blocks.clamp(CHUNK, MAX_SLOTS),
            num_held: [0; LANES],
            may_have_holes: 0,
            has_lower_tiers: false,
            num_changes: 0,
            uses: 0,
            num_evicted: 0,
        }
    }

    /// Sets how many blocks may be listed. What is listed beyond stays until room is needed.
    pub(super) fn limit(&mut self, max_blocks: usize) {
        self.max_blocks = max_blocks.clamp(CHUNK, MAX_SLOTS);
    }

    /// Returns how many blocks the lane holds.
    pub(super) fn num_held(&self, lane: usize) -> usize {
        self.num_held[lane]
    }

    /// Returns how many blocks are listed, those included that are only known as the parent of another.
    pub(super) fn num_blocks(&self) -> usize {
        self.slots.len()
    }

    /// Returns how many blocks had to go to keep the limit.
    pub(super) fn num_evicted(&self) -> u64 {
        self.num_evicted
    }

    /// Returns the bytes taken.
    pub(super) fn num_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Block>() + self.slots.allocation_size()
    }

    /// Returns the keys that the lane holds, in no order.
    pub(super) fn keys(&self, lane: usize) -> impl Iterator<Item = u64> + '_ {
        let blocks = self.chunks.iter().flatten();
        blocks.filter(move |block| lanes_of(block.held) & (1 << lane) != 0).map(|block| block.key)
    }

    /// Tells whether any lane holds the block.
    pub(super) fn is_held(&self, key: u64) -> bool {
        self.find(key).is_some_and(|slot| self.block(slot).held != 0)
    }

    /// Notes that a lane has stored a chain of blocks that follows `parent`, or starts a prompt.
    pub(super) fn store(&mut self, lane: usize, tier: Tier, parent: Option<u64>, keys: impl Iterator<Item = u64>) {
        self.uses = self.uses.wrapping_add(1);
        self.has_lower_tiers |= tier != Tier::Device;
        let first = match parent {
            None => Some(ROOT),
            Some(key) => self.find_or_insert(key, UNKNOWN),
        };
        let Some(first) = first else { return };
        let mut before = first;
        for key in keys {
            let Some(slot) = self.find_or_insert(key, before) else { break };
            self.adopt(slot, before);
            self.hold(slot, lane, tier);
            before = slot;
        }
        self.free_if_unused(first);
        self.after_change();
    }

    /// Notes that a lane has lost a block: in one tier, or in all.
    pub(super) fn remove(&mut self, lane: usize, tier: Option<Tier>, key: u64) {
        let Some(slot) = self.find(key) else { return };
        let lanes = 1_u8 << lane;
        let lost =
            tier.map_or_else(|| Tier::ALL.iter().fold(0, |bits, tier| bits | tier.bits(lanes)), |t| t.bits(lanes));
        self.release(slot, lost);
        self.after_change();
    }

    /// Forgets all that a lane holds.
    pub(super) fn clear(&mut self, lane: usize) {
        let others: usize = (0..LANES).filter(|other| *other != lane).map(|other| self.num_held[other]).sum();
        if others == 0 {
            let num_evicted = self.num_evicted;
            *self = Self { num_evicted, ..Self::new(self.max_blocks) };
            return;
        }
        let lost = Tier::ALL.iter().fold(0, |bits, tier| bits | tier.bits(1 << lane));
        for slot in 0..self.num_slots() {
            if self.block(slot).held & lost != 0 {
                self.release(slot, lost);
            }
        }
        self.may_have_holes &= !(1 << lane);
    }

    /// Returns how far the best of the lanes holds the prompt in any tier.
    pub(super) fn depth(&mut self, keys: &[u64], mix: u64, lanes: u8) -> Depth {
        let whole = lanes & !self.may_have_holes;
        let mut best = self.search(keys, mix, whole);
        let walked = self.walk(keys, mix, lanes & self.may_have_holes, lanes_of);
        match walked.num_blocks.cmp(&best.num_blocks) {
            std::cmp::Ordering::Greater => best = walked,
            std::cmp::Ordering::Equal if best.num_blocks > 0 => best.lanes |= walked.lanes,
            std::cmp::Ordering::Equal | std::cmp::Ordering::Less => {}
        }
        if best.num_blocks > 0
            && let Some(slot) = self.find(keys[best.num_blocks - 1] ^ mix)
        {
            self.uses = self.uses.wrapping_add(1);
            self.block_mut(slot).used_at = self.uses;
        }
        best
    }

    /// Returns how many blocks of the prompt, of those that are held at all, are on the device of the best of the lanes.
    pub(super) fn device_depth(&self, keys: &[u64], mix: u64, depth: Depth) -> usize {
        if !self.has_lower_tiers {
            return depth.num_blocks;
        }
        self.walk(&keys[..depth.num_blocks], mix, depth.lanes, |held| held as u8).num_blocks
    }

    /// Exact where none of the lanes has a hole: what they hold between them then ends at one place.
    fn search(&self, keys: &[u64], mix: u64, lanes: u8) -> Depth {
        if lanes == 0 || keys.is_empty() {
            return Depth::default();
        }
        let lanes_at = |at: usize| self.find(keys[at] ^ mix).map_or(0, |slot| lanes_of(self.block(slot).held) & lanes);
        let first = lanes_at(0);
        if first == 0 {
            return Depth::default();
        }
        // Held up to `low`, which `found` holds, and not at `high`.
        let (mut low, mut found, mut high, mut step) = (0, first, keys.len(), 1);
        while low + step < high {
            match lanes_at(low + step) {
                0 => high = low + step,
                lanes => (low, found, step) = (low + step, lanes, step * 2),
            }
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match lanes_at(middle) {
                0 => high = middle,
                lanes => (low, found) = (middle, lanes),
            }
        }
        Depth { num_blocks: low + 1, lanes: found }
    }

    fn walk(&self, keys: &[u64], mix: u64, lanes: u8, lanes_in: impl Fn(Held) -> u8) -> Depth {
        let mut depth = Depth { num_blocks: 0, lanes };
        for key in keys {
            let held = self.find(key ^ mix).map_or(0, |slot| self.block(slot).held);
            match depth.lanes & lanes_in(held) {
                0 => break,
                lanes => depth = Depth { num_blocks: depth.num_blocks + 1, lanes },
            }
        }
        if depth.num_blocks == 0 { Depth::default() } else { depth }
    }

    fn hold(&mut self, slot: u32, lane: usize, tier: Tier) {
        let uses = self.uses;
        let block = self.block_mut(slot);
        block.used_at = uses;
        let is_new = lanes_of(block.held) & (1 << lane) == 0;
        block.held |= tier.bits(1 << lane);
        let parent = block.parent;
        self.num_changes += 1;
        if is_new {
            self.num_held[lane] += 1;
            if parent != ROOT && self.lanes_at(parent) & (1 << lane) == 0 {
                self.may_have_holes |= 1 << lane;
            }
        }
    }

    fn release(&mut self, slot: u32, lost: Held) {
        let block = self.block_mut(slot);
        let before = lanes_of(block.held);
        block.held &= !lost;
        let gone = before & !lanes_of(block.held);
        let has_children = block.num_children > 0;
        self.num_changes += 1;
        for lane in (0..LANES).filter(|lane| gone & (1 << lane) != 0) {
            self.num_held[lane] -= 1;
        }
        if has_children {
            self.may_have_holes |= gone;
        }
        self.free_if_unused(slot);
    }

    /// Gives back a block that nobody holds and that has no children, and then its parent if that has become such a block.
    fn free_if_unused(&mut self, slot: u32) {
        let mut next = slot;
        while next < FREE {
            let Block { key, held, num_children, parent, .. } = *self.block(next);
            if held != 0 || num_children > 0 || parent == FREE {
                return;
            }
            let is_it = |candidate: &u32| *candidate == next;
            if let Ok(entry) = self.slots.find_entry(hash_of(key), is_it) {
                entry.remove();
            }
            *self.block_mut(next) = Block { num_children: self.first_free.unwrap_or(FREE), ..FREE_BLOCK };
            self.first_free = Some(next);
            if parent < FREE {
                self.block_mut(parent).num_children -= 1;
            }
            next = parent;
        }
    }

    /// Makes `parent` the parent of a block of which none was known. One that is an ancestor of its parent is left as it is: such
    /// blocks would keep each other for ever.
    fn adopt(&mut self, slot: u32, parent: u32) {
        if self.block(slot).parent != UNKNOWN || self.is_at_or_above(slot, parent) {
            return;
        }
        self.block_mut(slot).parent = parent;
        if parent < FREE {
            self.block_mut(parent).num_children += 1;
        }
    }

    fn is_at_or_above(&self, slot: u32, descendant: u32) -> bool {
        let mut next = descendant;
        while next < FREE {
            if next == slot {
                return true;
            }
            next = self.block(next).parent;
        }
        false
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.slots.find(hash_of(key), |slot| self.block(*slot).key == key).copied()
    }

    /// `None` where there is no room: everything that is listed comes before this block.
    fn find_or_insert(&mut self, key: u64, parent: u32) -> Option<u32> {
        if self.first_free.is_none() {
            if let Some(slot) = self.find(key) {
                return Some(slot);
            }
            self.make_room(parent);
        }
        let slot = self.first_free?;
        let chunks = &self.chunks;
        let key_of = |slot: u32| chunks[slot as usize / CHUNK][slot as usize % CHUNK].key;
        match self.slots.entry(hash_of(key), |other| key_of(*other) == key, |other| hash_of(key_of(*other))) {
            Entry::Occupied(entry) => return Some(*entry.get()),
            Entry::Vacant(entry) => entry.insert(slot),
        };
        let used_at = self.uses;
        let block = self.block_mut(slot);
        let next_free = block.num_children;
        *block = Block { key, held: 0, parent, num_children: 0, used_at };
        self.first_free = (next_free != FREE).then_some(next_free);
        if parent < FREE {
            self.block_mut(parent).num_children += 1;
        }
        Some(slot)
    }

    /// Makes slots free. `keep` is a block that must not be evicted for it.
    fn make_room(&mut self, keep: u32) {
        if self.num_slots() as usize + CHUNK > self.max_blocks && !self.chunks.is_empty() {
            self.evict(keep);
        } else {
            self.add_chunk();
        }
    }

    fn add_chunk(&mut self) {
        let start = self.num_slots();
        let chunk = (0..CHUNK as u32).map(|at| {
            let next = if at + 1 < CHUNK as u32 { start + at + 1 } else { FREE };
            Block { num_children: next, ..FREE_BLOCK }
        });
        self.chunks.push(chunk.collect());
        self.first_free = Some(start);
    }

    /// Gives up an eighth of the blocks, from those leaves upwards that were used least recently, so that what stays has no new
    /// holes.
    fn evict(&mut self, keep: u32) {
        if keep < FREE {
            // One child more than there is keeps it and all before it.
            self.block_mut(keep).num_children += 1;
        }
        let leaves = self.chunks.iter().flatten().filter(|block| block.parent != FREE && block.num_children == 0);
        let mut ages: Vec<u32> = leaves.map(|leaf| self.uses.wrapping_sub(leaf.used_at)).collect();
        let num_before = self.slots.len();
        if !ages.is_empty() {
            let nth_oldest = ages.len() / 8;
            let (_, youngest, _) = ages.select_nth_unstable_by_key(nth_oldest, |age| std::cmp::Reverse(*age));
            let youngest = *youngest;
            let num_kept = num_before - num_before / 8 - 1;
            for slot in 0..self.num_slots() {
                self.evict_upwards(slot, youngest, num_kept);
            }
        }
        self.num_evicted += (num_before - self.slots.len()) as u64;
        if keep < FREE {
            self.block_mut(keep).num_children -= 1;
        }
    }

    fn evict_upwards(&mut self, slot: u32, youngest: u32, num_kept: usize) {
        let mut next = slot;
        while next < FREE && self.slots.len() > num_kept {
            let Block { parent, num_children, used_at, held, .. } = *self.block(next);
            if parent == FREE || num_children > 0 || self.uses.wrapping_sub(used_at) < youngest {
                return;
            }
            for lane in (0..LANES).filter(|lane| lanes_of(held) & (1 << lane) != 0) {
                self.num_held[lane] -= 1;
            }
            self.block_mut(next).held = 0;
            if parent < FREE {
                // A parent was used at the latest when its child was.
                let parent = self.block_mut(parent);
                parent.used_at =
                    if used_at.wrapping_sub(parent.used_at) < u32::MAX / 2 { used_at } else { parent.used_at };
            }
            self.free_if_unused(next);
            next = parent;
        }
    }

    fn after_change(&mut self) {
        if self.may_have_holes != 0 && self.num_changes > MIN_CHANGES_PER_COUNT.max(self.slots.len() / 2) {
            self.num_changes = 0;
            let holes = self.chunks.iter().flatten().filter(|block| block.parent != ROOT && block.parent != FREE);
            self.may_have_holes = holes.fold(0, |lanes, b| lanes | (lanes_of(b.held) & !self.lanes_at(b.parent)));
        }
    }

    fn lanes_at(&self, slot: u32) -> u8 {
        if slot < FREE { lanes_of(self.block(slot).held) } else { 0 }
    }

    fn num_slots(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    fn block(&self, slot: u32) -> &Block {
        &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    fn block_mut(&mut self, slot: u32) -> &mut Block {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }
}

/// Keys are hashes already, or numbers that an engine counts up: one multiplication spreads both.
fn hash_of(key: u64) -> u64 {
    (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
