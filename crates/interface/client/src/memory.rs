//! The transmit region: who has which block.
//!
//! The allocator is a [`Buddy`] behind a mutex, but a source seldom asks it: it keeps a few blocks of
//! each size that it uses in its [`Account`], where only it puts blocks in. When memory runs out, whoever
//! needs some takes what the accounts of all sources hold, and the blocks whose completions nobody
//! has looked at yet, so that a source that does nothing withholds nothing.
//!
//! Lock order: the allocator before an account's returns.

#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU8, AtomicUsize};
use takt_session::layout::{Completion, RX_REGION, Release};
use takt_shm::{Buddy, CHUNK, Consumer};

use crate::lent::Lent;
use crate::room::Room;

/// Sizes of blocks that an account keeps: 256 bytes to 64 KiB. Larger ones come from the allocator,
/// whose cost is nothing against that of filling them.
const KEPT_ORDERS: usize = 9;
/// Most blocks of one size that an account keeps.
const MOST_KEPT: usize = 32;
/// Bytes of one size that an account keeps, if that are two blocks at least.
const KEPT_BYTES: usize = 64 << 10;
/// No block.
const NONE: u32 = u32::MAX;
/// Completions taken under one lock.
const BATCH: usize = 64;

/// In a mark: the block is emitted and not completed.
const IN_FLIGHT: u8 = 0x80;

const fn kept(order: usize) -> usize {
    let fit = KEPT_BYTES / (CHUNK << order);
    if fit > MOST_KEPT {
        MOST_KEPT
    } else if fit < 2 {
        2
    } else {
        fit
    }
}

/// The order of the smallest block that holds `len` bytes.
fn order_of(len: usize) -> usize {
    len.div_ceil(CHUNK).max(1).next_power_of_two().ilog2() as usize
}

/// A block of the transmit region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) chunk: u32,
    order: u8,
}

impl Block {
    pub(crate) fn bytes(self) -> usize {
        CHUNK << self.order
    }
}

/// What the runtime wrote into a completion ring cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Impossible(pub(crate) String);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here leaves a half-done change when it panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The transmit region of one arena.
#[derive(Debug)]
pub(crate) struct TxMemory {
    /// Per chunk: 0, or 1 + the order of the block of ours that starts there, with [`IN_FLIGHT`].
    marks: Box<[AtomicU8]>,
    /// Per chunk of the receive region: how many messages that started there were forwarded and are not known to be completed. The
    /// runtime puts the next one there before anybody has looked. Made with the first.
    forwarded: OnceLock<Box<[AtomicU32]>>,
    rx_chunks: usize,
    /// Per chunk: how many sinks of other sessions have the block that starts there. Made with the first.
    holders: OnceLock<Box<[AtomicU8]>>,
    /// Bytes that those have, each for itself.
    lent: AtomicUsize,
    shared: Mutex<Shared>,
    /// Who waits for room.
    room: Arc<Room>,
}

fn marks(count: usize) -> Box<[AtomicU8]> {
    std::iter::repeat_with(|| AtomicU8::new(0))
        .take(count)
        .collect()
}

#[derive(Debug)]
struct Shared {
    buddy: Buddy,
    accounts: Vec<Weak<Account>>,
    /// Those of closed sources of which sinks of other sessions still have blocks.
    closed: Vec<Arc<Account>>,
}

impl TxMemory {
    pub(crate) fn new(bytes: usize, rx_bytes: usize, room: Arc<Room>) -> Self {
        Self {
            marks: marks(bytes / CHUNK),
            forwarded: OnceLock::new(),
            rx_chunks: rx_bytes / CHUNK,
            holders: OnceLock::new(),
            lent: AtomicUsize::new(0),
            shared: Mutex::new(Shared {
                buddy: Buddy::new(bytes),
                accounts: Vec::new(),
                closed: Vec::new(),
            }),
            room,
        }
    }

    /// An account for a source with this completion ring of `depth` entries. `outcomes`: those of the
    /// source's former account.
    pub(crate) fn open(&self, ring: Consumer<Completion>, outcomes: Outcomes) -> Arc<Account> {
        let account = Arc::new(Account {
            kept: [const { [const { AtomicU32::new(NONE) }; MOST_KEPT] }; KEPT_ORDERS],
            completed: AtomicU64::new(0),
            remembered: outcomes.0.len() as u64,
            returns: Mutex::new(Returns {
                ring,
                outcomes,
                direct: Vec::new(),
            }),
        });
        let mut shared = lock(&self.shared);
        shared.accounts.retain(|other| other.strong_count() > 0);
        shared.accounts.push(Arc::downgrade(&account));
        account
    }

    /// A block of at least `len` bytes for the source of `account`; `None` when there is none.
    #[inline]
    pub(crate) fn allocate(
        &self,
        account: &Account,
        stock: &mut Stock,
        len: usize,
    ) -> Result<Option<Block>, Impossible> {
        let order = order_of(len);
        if order < KEPT_ORDERS
            && let Some(chunk) = account.pop(stock, order)
        {
            return Ok(Some(Block {
                chunk,
                order: order as u8,
            }));
        }
        self.restock(account, stock, order)
    }

    #[cold]
    fn restock(
        &self,
        account: &Account,
        stock: &mut Stock,
        order: usize,
    ) -> Result<Option<Block>, Impossible> {
        let block = |chunk| Block {
            chunk,
            order: order as u8,
        };
        if std::mem::take(&mut stock.looked)
            && let Some(chunk) = self.take(&mut lock(&self.shared).buddy, order)
        {
            return Ok(Some(block(chunk)));
        }
        self.harvest(account, stock)?;
        if order < KEPT_ORDERS
            && let Some(chunk) = account.pop(stock, order)
        {
            return Ok(Some(block(chunk)));
        }
        let mut shared = lock(&self.shared);
        let mut first = self.take(&mut shared.buddy, order);
        if first.is_none() {
            self.collect(&mut shared)?;
            first = self.take(&mut shared.buddy, order);
        } else if order < KEPT_ORDERS {
            for _ in 1..kept(order) / 2 {
                let Some(chunk) = self.take(&mut shared.buddy, order) else {
                    break;
                };
                if !account.push(stock, order, chunk) {
                    self.give(&mut shared.buddy, chunk);
                }
            }
        }
        Ok(first.map(block))
    }

    fn take(&self, buddy: &mut Buddy, order: usize) -> Option<u32> {
        let chunk = buddy.allocate(CHUNK.checked_shl(order as u32)?)?;
        self.marks
            .get(chunk as usize)?
            .store(order as u8 + 1, Ordering::Relaxed);
        Some(chunk)
    }

    fn give(&self, buddy: &mut Buddy, chunk: u32) {
        if let Some(mark) = self.marks.get(chunk as usize) {
            mark.store(0, Ordering::Relaxed);
        }
        // A block of ours, by its mark.
        let _ = buddy.free(chunk);
    }

    /// Takes back what all accounts hold and what has completed.
    fn collect(&self, shared: &mut Shared) -> Result<(), Impossible> {
        self.collect_all(shared, Self::collect_from)
    }

    /// Takes back what `from` does of each account.
    fn collect_all(
        &self,
        shared: &mut Shared,
        from: fn(&Self, &mut Buddy, &Account) -> Result<(), Impossible>,
    ) -> Result<(), Impossible> {
        let Shared {
            buddy,
            accounts,
            closed,
        } = shared;
        accounts
            .iter()
            .filter_map(Weak::upgrade)
            .try_for_each(|account| from(self, buddy, &account))?;
        closed.retain(|account| account.lends());
        Ok(())
    }

    /// Takes back what sinks of other sessions have returned to any source of this one: a source that does nothing does not
    /// look itself.
    #[cold]
    pub(crate) fn collect_returned(&self) -> Result<(), Impossible> {
        self.collect_all(&mut lock(&self.shared), Self::collect_completed)?;
        self.room.came();
        Ok(())
    }

    fn collect_completed(&self, buddy: &mut Buddy, account: &Account) -> Result<(), Impossible> {
        loop {
            let (blocks, count) = self.completions(account)?;
            for block in blocks.iter().flatten() {
                self.give(buddy, block.chunk);
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    fn collect_from(&self, buddy: &mut Buddy, account: &Account) -> Result<(), Impossible> {
        self.collect_completed(buddy, account)?;
        for place in account.kept.as_flattened() {
            let chunk = place.swap(NONE, Ordering::Acquire); // Partner: `Account::push`.
            if chunk != NONE {
                self.give(buddy, chunk);
            }
        }
        Ok(())
    }

    /// What was emitted or forwarded from there is not under way any more: the block that is ours again, if one is. `None`: nothing
    /// was.
    fn complete(&self, chunk: u32) -> Option<Option<Block>> {
        if chunk & RX_REGION != 0 {
            let under_way = self.forwarded.get()?.get((chunk & !RX_REGION) as usize)?;
            let less = |count: u32| count.checked_sub(1);
            let known = under_way.try_update(Ordering::Relaxed, Ordering::Relaxed, less);
            return known.ok().map(|_| None);
        }
        let mark = self.marks.get(chunk as usize)?;
        let order = mark.load(Ordering::Relaxed);
        if order & IN_FLIGHT == 0 {
            return None;
        }
        let order = order & !IN_FLIGHT;
        mark.store(order, Ordering::Relaxed);
        let lent = self.holders_of(chunk) > 0;
        Some((order.checked_sub(1).filter(|_| !lent)).map(|order| Block { chunk, order }))
    }

    /// Takes completions of an account, a batch at most: the blocks that are ours again, and how many it took. What was
    /// forwarded is the runtime's.
    fn completions(
        &self,
        account: &Account,
    ) -> Result<([Option<Block>; BATCH], usize), Impossible> {
        let mut blocks = [None; BATCH];
        let mut count = 0;
        let mut returns = lock(&account.returns);
        let Returns {
            ring,
            outcomes,
            direct,
        } = &mut *returns;
        let mut completed = 0;
        for place in &mut blocks {
            let Some(completion) = ring
                .pop()
                .map_err(|e| Impossible(format!("completion ring: {e}")))?
            else {
                break;
            };
            *place = self.complete(completion.chunk).ok_or_else(|| {
                Impossible(format!(
                    "chunk {} completed, which is not under way",
                    completion.chunk
                ))
            })?;
            outcomes.record(&completion);
            completed += 1;
        }
        if completed > 0 {
            ring.release();
            let completed = completed as u64;
            account.completed.fetch_add(completed, Ordering::Release);
        }
        count += completed;
        for of in direct.iter_mut() {
            while count < BATCH && !of.lent.broken.load(Ordering::Relaxed) {
                let returned = of.ring.pop().map(|chunk| {
                    let Some(chunk) = chunk else {
                        return Some(None);
                    };
                    // Before it counts as back: its sink gets another in its place, and must find room to return that.
                    of.ring.release();
                    self.returned(&of.lent, chunk).map(Some)
                });
                match returned {
                    Ok(Some(None)) => break,
                    Ok(Some(Some(block))) => blocks[count] = block,
                    // It gives back what it does not have, or shows an index that cannot be.
                    Ok(None) | Err(_) => of.lent.broken.store(true, Ordering::Relaxed),
                }
                count += 1;
            }
        }
        Ok((blocks, count))
    }

    /// Takes all completions of the source's own account.
    pub(crate) fn harvest(&self, account: &Account, stock: &mut Stock) -> Result<(), Impossible> {
        loop {
            let (blocks, count) = self.completions(account)?;
            let mut rest = None;
            let mut came = false;
            for block in blocks.iter().flatten() {
                came = true;
                if !account.push(stock, usize::from(block.order), block.chunk) {
                    let shared = rest.get_or_insert_with(|| lock(&self.shared));
                    self.give(&mut shared.buddy, block.chunk);
                }
            }
            drop(rest);
            if came {
                // Who looked meanwhile has found them neither in the ring nor here.
                self.room.came();
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// A sink gives back the block that starts at this chunk: `Some` if it had it, with the block if it is free now.
    fn returned(&self, lent: &Lent, chunk: u32) -> Option<Option<Block>> {
        let place = self.marks.get(chunk as usize)?;
        let mut mark = 0;
        let bytes = lent.take_back(chunk, || {
            // Not before: a sink may give back what it is about to get, and be looked at by another thread than the source's.
            mark = place.load(Ordering::Relaxed);
            CHUNK << (mark & !IN_FLIGHT).saturating_sub(1)
        })?;
        let order = (mark & !IN_FLIGHT).checked_sub(1)?;
        let block = Block { chunk, order };
        self.lent.fetch_sub(bytes, Ordering::Relaxed);
        let holders = self.holders.get()?.get(chunk as usize)?;
        let last = holders.fetch_sub(1, Ordering::AcqRel) == 1;
        Some((last && mark & IN_FLIGHT == 0).then_some(block))
    }

    fn holders_of(&self, chunk: u32) -> u8 {
        let holders = self.holders.get();
        let holders = holders.and_then(|holders| holders.get(chunk as usize));
        holders.map_or(0, |holders| holders.load(Ordering::Relaxed))
    }

    /// Chunks of the region.
    pub(crate) fn chunks(&self) -> usize {
        self.marks.len()
    }

    /// Bytes that sinks of other sessions have.
    #[inline]
    pub(crate) fn lent(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    /// So many sinks get a block: before the first of them does.
    #[inline]
    pub(crate) fn lend(&self, block: Block, sinks: u8) {
        let holders = self.holders.get_or_init(|| marks(self.marks.len()));
        if let Some(holders) = holders.get(block.chunk as usize) {
            holders.store(sinks, Ordering::Relaxed);
        }
    }

    /// One of them gets it.
    #[inline]
    pub(crate) fn lend_to(&self, lent: &Lent, block: Block) {
        // Counted before it can come back: the reader thread may take back all that a sink has at this very moment.
        self.lent.fetch_add(block.bytes(), Ordering::Relaxed);
        lent.lend(block.chunk, block.bytes());
    }

    /// One of them does not get it after all.
    #[cold]
    pub(crate) fn not_lent(&self, account: &Account, stock: &mut Stock, lent: &Lent, chunk: u32) {
        let returns = lock(&account.returns);
        let free = self.returned(lent, chunk);
        drop(returns);
        if let Some(Some(block)) = free {
            self.free(account, stock, block);
        }
    }

    /// The sink of a ring has none of its blocks any more.
    #[cold]
    pub(crate) fn free_ring(&self, ring: u32) {
        let mut shared = lock(&self.shared);
        let Shared {
            buddy,
            accounts,
            closed,
        } = &mut *shared;
        for account in accounts.iter().filter_map(Weak::upgrade) {
            let mut returns = lock(&account.returns);
            for of in returns.direct.extract_if(.., |of| of.lent.ring == ring) {
                for chunk in of.lent.all() {
                    if let Some(Some(block)) = self.returned(&of.lent, chunk) {
                        self.give(buddy, block.chunk);
                    }
                }
            }
        }
        closed.retain(|account| account.lends());
        drop(shared);
        self.room.came();
    }

    /// The sink of a ring has none of its blocks any more, also of what it has been given since
    /// [`free_ring`](Self::free_ring). Called by the source's own thread.
    #[cold]
    pub(crate) fn free_lent(&self, account: &Account, stock: &mut Stock, lent: &Lent) {
        for chunk in lent.all() {
            self.not_lent(account, stock, lent, chunk);
        }
    }

    /// The source of a ring is about to close. What its sink is known to have comes back as it gives it back or is gone; if
    /// it is gone already, now.
    #[cold]
    pub(crate) fn leave(&self, account: &Account, stock: &mut Stock, lent: &Lent) {
        let returns = lock(&account.returns);
        let known = returns.direct.iter().any(|of| of.lent.ring == lent.ring);
        drop(returns);
        if !known {
            self.free_lent(account, stock, lent);
        }
    }

    /// A source is closed: what sinks of other sessions have comes back all the same.
    pub(crate) fn close(&self, account: &Arc<Account>) {
        if account.lends() {
            lock(&self.shared).closed.push(account.clone());
        }
    }

    /// The block is emitted from now on.
    #[inline]
    pub(crate) fn emitted(&self, block: Block) {
        if let Some(mark) = self.marks.get(block.chunk as usize) {
            mark.store((block.order + 1) | IN_FLIGHT, Ordering::Relaxed);
        }
    }

    /// The block was not emitted after all.
    pub(crate) fn not_emitted(&self, block: Block) {
        if let Some(mark) = self.marks.get(block.chunk as usize) {
            mark.store(block.order + 1, Ordering::Relaxed);
        }
    }

    /// The received message that starts there is forwarded from now on, or, if `false`, was not after all.
    pub(crate) fn forwarded(&self, chunk: u32, is: bool) {
        let none = || (0..self.rx_chunks).map(|_| AtomicU32::new(0)).collect();
        if let Some(under_way) = self.forwarded.get_or_init(none).get(chunk as usize) {
            match is {
                true => under_way.fetch_add(1, Ordering::Relaxed),
                false => under_way.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }

    /// Gives an unused block back to its source.
    pub(crate) fn free(&self, account: &Account, stock: &mut Stock, block: Block) {
        if !account.push(stock, usize::from(block.order), block.chunk) {
            self.give(&mut lock(&self.shared).buddy, block.chunk);
        }
        self.room.came();
    }

    /// Takes back what an account holds and what has completed.
    pub(crate) fn settle(&self, account: &Account) -> Result<(), Impossible> {
        self.collect_from(&mut lock(&self.shared).buddy, account)
    }
}

/// How many blocks of each size a source believes its account to hold: others may have taken some.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    counts: [u8; KEPT_ORDERS],
    /// It has just looked what has come back.
    pub(crate) looked: bool,
}

/// A source's blocks and completions, where others can reach them.
#[derive(Debug)]
pub(crate) struct Account {
    kept: [[AtomicU32; MOST_KEPT]; KEPT_ORDERS],
    completed: AtomicU64,
    remembered: u64,
    returns: Mutex<Returns>,
}

#[derive(Debug)]
struct Returns {
    ring: Consumer<Completion>,
    outcomes: Outcomes,
    direct: Vec<DirectReturns>,
}

/// What comes back from a sink of another session.
#[derive(Debug)]
struct DirectReturns {
    ring: Consumer<Release>,
    lent: Arc<Lent>,
}

impl Account {
    #[inline]
    fn pop(&self, stock: &mut Stock, order: usize) -> Option<u32> {
        let (places, count) = (self.kept.get(order)?, stock.counts.get_mut(order)?);
        while *count > 0 {
            *count -= 1;
            // Acquire: whoever filled the block before has given it back.
            let chunk = places
                .get(usize::from(*count))?
                .swap(NONE, Ordering::Acquire);
            if chunk != NONE {
                return Some(chunk);
            }
        }
        None
    }

    /// False: it keeps no more of that size. Only the source's own thread pushes.
    #[inline]
    fn push(&self, stock: &mut Stock, order: usize, chunk: u32) -> bool {
        let (Some(places), Some(count)) = (self.kept.get(order), stock.counts.get_mut(order))
        else {
            return false;
        };
        if usize::from(*count) >= kept(order) {
            return false;
        }
        let Some(place) = places.get(usize::from(*count)) else {
            return false;
        };
        place.store(chunk, Ordering::Release); // Partner: the swaps in `pop` and `collect`.
        *count += 1;
        true
    }

    /// A sink of another session may get blocks, and gives them back there.
    pub(crate) fn add_ring(&self, ring: Consumer<Release>, lent: Arc<Lent>) {
        lock(&self.returns)
            .direct
            .push(DirectReturns { ring, lent });
    }

    /// Nothing more is given to the sink of a ring. It is forgotten with the last block that comes back.
    pub(crate) fn end_ring(&self, ring: u32) {
        let mut returns = lock(&self.returns);
        returns
            .direct
            .retain(|of| of.lent.ring != ring || of.lent.count() > 0);
    }

    /// Bytes of its blocks that sinks of other sessions have.
    #[cold]
    pub(crate) fn lent(&self) -> usize {
        let returns = lock(&self.returns);
        returns.direct.iter().map(|of| of.lent.bytes()).sum()
    }

    /// Whether sinks of other sessions have some of its blocks.
    fn lends(&self) -> bool {
        let mut returns = lock(&self.returns);
        returns.direct.retain(|of| of.lent.count() > 0);
        !returns.direct.is_empty()
    }

    /// Messages completed so far.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire) // Partner: `completions`.
    }

    /// What is recorded about a token, by its low 32 bits.
    pub(crate) fn outcome(&self, token: u32) -> Option<Known> {
        lock(&self.returns).outcomes.get(token)
    }

    /// Latest messages whose outcomes are remembered.
    pub(crate) fn remembered(&self) -> u64 {
        self.remembered
    }

    /// Hands the record of outcomes on to the source's next account.
    pub(crate) fn take_outcomes(&self) -> Outcomes {
        std::mem::take(&mut lock(&self.returns).outcomes)
    }
}

/// The outcomes of a source's latest messages, by token.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(Box<[Option<Known>]>);

/// What is known of a completed message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    token: u32,
    /// As in [`Completion`].
    pub(crate) departed_ns_low: u32,
    /// A number of [`takt_session::layout::Outcome`], cut at 255.
    pub(crate) outcome: u8,
}

impl Outcomes {
    /// Outcomes are remembered until so many tokens, a power of two, have followed.
    pub(crate) fn new(remembered: usize) -> Self {
        Self(vec![None; remembered].into())
    }

    fn place(&mut self, token: u32) -> Option<&mut Option<Known>> {
        let mask = self.0.len().checked_sub(1)?;
        self.0.get_mut(token as usize & mask)
    }

    fn record(&mut self, completion: &Completion) {
        let token = completion.token;
        if let Some(place) = self.place(token) {
            // A message that a sink held for long must not efface a later one.
            if place.is_none_or(|known| (token.wrapping_sub(known.token) as i32) >= 0) {
                *place = Some(Known {
                    token,
                    departed_ns_low: completion.departed_ns_low,
                    outcome: u8::try_from(completion.outcome).unwrap_or(u8::MAX),
                });
            }
        }
    }

    fn get(&self, token: u32) -> Option<Known> {
        let mask = self.0.len().checked_sub(1)?;
        let known = (*self.0.get(token as usize & mask)?)?;
        (known.token == token).then_some(known)
    }
}

/// Run by `RUSTFLAGS="--cfg loom" cargo test -p takt --lib loom_model`.
#[cfg(all(loom, test))]
mod loom_model {
    use super::*;

    /// The sink has written the return of a block before it has the block, and a thread that needs memory finds it at any
    /// moment while the source gives the block to the lane and to the sink.
    #[test]
    fn a_block_that_a_sink_gives_back_before_it_has_it_stays_with_the_lane() {
        loom::model(|| {
            let memory = loom::sync::Arc::new(TxMemory::new(4 * CHUNK, 0, Arc::default()));
            let lent = loom::sync::Arc::new(Lent::new(1, memory.chunks()));
            let chunk = memory.take(&mut lock(&memory.shared).buddy, 1);
            let block = Block {
                chunk: chunk.expect("memory"),
                order: 1,
            };
            let other = loom::thread::spawn({
                let (memory, lent) = (memory.clone(), lent.clone());
                move || memory.returned(&lent, block.chunk)
            });
            memory.emitted(block);
            memory.lend(block, 1);
            memory.lend_to(&lent, block);
            let returned = other.join().expect("no panic");
            assert!(
                matches!(returned, None | Some(None)),
                "the lane still sends {returned:?}"
            );
            let left = returned.map_or(block.bytes(), |_| 0);
            assert_eq!((memory.lent(), lent.bytes()), (left, left));
        });
    }
}
