//! A timer wheel for deadlines that are mostly postponed before they are due.
//!
//! Each connection has at most one entry: when to check it. Postponing a deadline does not move the entry, so serving a
//! request costs only a comparison; a connection that is checked too early is put back. An earlier deadline moves the
//! entry.

use crate::io::clock::Millis;
use crate::io::driver::Token;

/// Resolution. A deadline is noticed at most this much late.
const TICK: Millis = 64;
/// Ticks in one rotation (65 s); later deadlines are checked once per rotation.
const TICKS: usize = 1024;

/// Connections to check, by time.
pub(crate) struct TimerWheel {
    buckets: Vec<Vec<Token>>,
    /// Where each connection has its entry, by the index of its token.
    entries: Vec<Entry>,
    /// One bit per bucket that is not empty.
    occupied: [u64; TICKS / 64],
    /// The tick up to which everything has been taken out.
    tick: u64,
    /// The cached result of [`next_due`](Self::next_due).
    next: Option<Option<Millis>>,
}

/// A place in a bucket.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// 0 if there is none.
    tick: u64,
    at: u32,
}

impl TimerWheel {
    pub(crate) fn new(now: Millis) -> Self {
        Self {
            buckets: vec![Vec::new(); TICKS],
            entries: Vec::new(),
            occupied: [0; TICKS / 64],
            tick: now / TICK,
            next: None,
        }
    }

    /// Schedules a check of `token` at `deadline` or earlier.
    #[inline(always)]
    pub(crate) fn set(&mut self, token: Token, deadline: Millis) {
        if let Some(entry) = self.entries.get(token.index as usize)
            && entry.tick > 0
            && entry.tick * TICK <= deadline
        {
            return;
        }
        self.move_nearer(token, deadline);
    }

    #[inline(never)]
    fn move_nearer(&mut self, token: Token, deadline: Millis) {
        let tick = deadline.div_ceil(TICK).clamp(self.tick + 1, self.tick + TICKS as u64 - 1);
        let index = token.index as usize;
        if self.entries.len() <= index {
            self.entries.resize(index + 1, Entry::default());
        }
        if self.entries.get(index).is_some_and(|entry| entry.tick > 0 && entry.tick <= tick) {
            return;
        }
        self.remove(token);
        let bucket = (tick % TICKS as u64) as usize;
        if let (Some(tokens), Some(bits), Some(entry)) =
            (self.buckets.get_mut(bucket), self.occupied.get_mut(bucket / 64), self.entries.get_mut(index))
        {
            *entry = Entry { tick, at: tokens.len() as u32 };
            tokens.push(token);
            *bits |= 1 << (bucket % 64);
        }
        self.next = self.next.map(|next| Some(next.map_or(tick * TICK, |next| next.min(tick * TICK))));
    }

    /// Removes a connection.
    pub(crate) fn remove(&mut self, token: Token) {
        let Some(entry) = self.entries.get_mut(token.index as usize).map(std::mem::take) else { return };
        let bucket = (entry.tick % TICKS as u64) as usize;
        let Some(tokens) = self.buckets.get_mut(bucket).filter(|_| entry.tick > 0) else { return };
        if (entry.at as usize) < tokens.len() {
            tokens.swap_remove(entry.at as usize);
        }
        if let Some(moved) = tokens.get(entry.at as usize)
            && let Some(place) = self.entries.get_mut(moved.index as usize)
        {
            place.at = entry.at;
        }
        if tokens.is_empty()
            && let Some(bits) = self.occupied.get_mut(bucket / 64)
        {
            *bits &= !(1 << (bucket % 64));
            if self.next.is_some_and(|next| next == Some(entry.tick * TICK)) {
                self.next = None;
            }
        }
    }

    /// Whether something may be due.
    #[inline]
    pub(crate) fn is_behind(&self, now: Millis) -> bool {
        now / TICK > self.tick
    }

    /// Takes out everything that is due.
    #[inline]
    pub(crate) fn take_due(&mut self, now: Millis, due: &mut Vec<Token>) {
        let target = now / TICK;
        if target <= self.tick {
            return;
        }
        self.next = None;
        let steps = (target.saturating_sub(self.tick)).min(TICKS as u64);
        for step in 1..=steps {
            let at = ((self.tick + step) % TICKS as u64) as usize;
            if let (Some(bucket), Some(bits)) = (self.buckets.get_mut(at), self.occupied.get_mut(at / 64))
                && *bits & (1 << (at % 64)) != 0
            {
                *bits &= !(1 << (at % 64));
                for token in bucket.iter() {
                    if let Some(entry) = self.entries.get_mut(token.index as usize) {
                        *entry = Entry::default();
                    }
                }
                due.append(bucket);
                if bucket.capacity() > 64 {
                    *bucket = Vec::new();
                }
            }
        }
        self.tick = target;
    }

    /// When to call [`take_due`](Self::take_due) next; `None` if nothing is scheduled.
    pub(crate) fn next_due(&mut self) -> Option<Millis> {
        match self.next {
            Some(next) => next,
            None => *self.next.insert(self.find_next()),
        }
    }

    /// The number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.buckets.iter().map(Vec::len).sum()
    }

    fn find_next(&self) -> Option<Millis> {
        let start = (self.tick + 1) % TICKS as u64;
        let mut ahead = 0;
        while ahead < TICKS as u64 {
            let at = ((start + ahead) % TICKS as u64) as usize;
            let bits = self.occupied.get(at / 64).copied().unwrap_or(0) >> (at % 64);
            if bits != 0 {
                return Some((self.tick + 1 + ahead + u64::from(bits.trailing_zeros())) * TICK);
            }
            ahead += 64 - (at % 64) as u64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(wheel: &mut TimerWheel, now: Millis) -> Vec<Token> {
        let mut due = Vec::new();
        wheel.take_due(now, &mut due);
        due
    }

    #[test]
    fn a_token_is_due_at_its_time_and_not_before() {
        let mut wheel = TimerWheel::new(1000);
        let token = Token::new(3, 1);
        wheel.set(token, 5000);
        let next = wheel.next_due().unwrap();
        assert!((5000..5000 + TICK).contains(&next), "{next}");
        assert!(due(&mut wheel, 4999).is_empty());
        assert_eq!(due(&mut wheel, next), [token]);
        assert_eq!(wheel.next_due(), None);
    }

    #[test]
    fn what_lies_beyond_one_turn_comes_early_and_never_late() {
        let mut wheel = TimerWheel::new(0);
        wheel.set(Token::new(1, 1), 1_000_000);
        let next = wheel.next_due().unwrap();
        assert!(next <= 1_000_000 && next > 60_000, "{next}");
        assert_eq!(due(&mut wheel, next).len(), 1);
    }

    #[test]
    fn the_past_is_due_at_the_next_tick() {
        let mut wheel = TimerWheel::new(10_000);
        wheel.set(Token::new(1, 1), 5);
        assert!(wheel.next_due().unwrap() <= 10_000 + TICK);
        assert_eq!(due(&mut wheel, 10_000 + TICK).len(), 1);
    }

    #[test]
    fn next_due_agrees_with_take_due_over_many_turns() {
        let mut wheel = TimerWheel::new(0);
        let mut now = 0;
        for round in 0..3000u64 {
            let at = now + round * 37 % 50_000;
            wheel.set(Token::new(round as u32, 0), at);
            let next = wheel.next_due().unwrap();
            assert!(next <= at.max(now) + TICK, "{next} for {at}");
            assert!(due(&mut wheel, next - 1).is_empty());
            assert_eq!(due(&mut wheel, next), [Token::new(round as u32, 0)]);
            now = next;
        }
    }
}
