use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::limits::QUEUE_SHARE_MIN;

/// What waits for a thread, by client: clients take turns, and one alone cannot take all places.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    waiting: HashMap<Option<IpAddr>, VecDeque<T>>,
    /// The clients of `waiting`.
    turns: VecDeque<Option<IpAddr>>,
    len: usize,
    len_max: usize,
    /// Memory of a client that waits no longer.
    spare: VecDeque<T>,
}

impl<T> Queue<T> {
    pub(crate) fn new(len_max: usize) -> Self {
        Self { waiting: HashMap::new(), turns: VecDeque::new(), len: 0, len_max, spare: VecDeque::new() }
    }

    /// Adds an item, unless the queue is full or its client has no fewer items than there are free places: so one client
    /// has at most half of them, two have a third each, and there is always room for another one. `None` stands for many
    /// clients, and has no share.
    pub(crate) fn push(&mut self, client: Option<IpAddr>, item: T) -> Result<(), T> {
        let free = self.len_max.saturating_sub(self.len);
        let share = if client.is_some() { free.max(QUEUE_SHARE_MIN) } else { usize::MAX };
        let has = self.waiting.get(&client).map_or(0, VecDeque::len);
        if free == 0 || has >= share {
            return Err(item);
        }
        let items = self.waiting.entry(client).or_insert_with(|| std::mem::take(&mut self.spare));
        items.push_back(item);
        if has == 0 {
            self.turns.push_back(client);
        }
        self.len += 1;
        Ok(())
    }

    /// The oldest item of the client whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let client = self.turns.pop_front()?;
        let items = self.waiting.get_mut(&client)?;
        let item = items.pop_front()?;
        self.len -= 1;
        if items.is_empty() {
            self.spare = self.waiting.remove(&client)?;
        } else {
            self.turns.push_back(client);
        }
        Some(item)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> Option<IpAddr> {
        Some([192, 0, 2, number].into())
    }

    #[test]
    fn clients_take_turns() {
        let mut queue = Queue::new(100);
        for (of, item) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (3, 31)] {
            assert_eq!(queue.push(client(of), item), Ok(()));
        }
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!((order, queue.len()), (vec![10, 20, 30, 11, 31, 12], 0));
        assert!(queue.waiting.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn there_is_room_for_another_client() {
        let mut queue = Queue::new(1000);
        let mut taken = |of| (0..2000).take_while(|item| queue.push(of, *item).is_ok()).count();
        assert_eq!([1, 2, 3, 4].map(|of| taken(client(of))), [500, 250, 125, 63]);
        assert_eq!(taken(None), 62, "many clients have no share");
        assert_eq!(taken(client(5)), 0);
        // A small queue needs no shares.
        let mut queue = Queue::new(QUEUE_SHARE_MIN);
        assert_eq!((0..100).filter(|item| queue.push(client(1), *item).is_ok()).count(), QUEUE_SHARE_MIN);
    }
}
