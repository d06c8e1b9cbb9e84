//! The dynamic table of a decoder (RFC 7541 §2.3.2 and §4).

use std::collections::VecDeque;

use super::FIELD_OVERHEAD;

/// The most recent fields, up to a size in octets.
///
/// The octets are in one buffer, oldest first, which has at most twice the octets of the table: evicted ones are
/// removed when there are as many of them as live ones. Nothing is allocated before the first insertion.
pub(super) struct DynamicTable {
    octets: Vec<u8>,
    /// The newest entry is the first.
    entries: VecDeque<Entry>,
    /// Names and values of all entries, and [`FIELD_OVERHEAD`] for each.
    size: usize,
    size_max: usize,
}

/// The name and then the value in `octets`.
#[derive(Clone, Copy)]
struct Entry {
    start: usize,
    name_len: usize,
    value_len: usize,
}

impl Entry {
    fn octets(self) -> usize {
        self.name_len + self.value_len
    }

    fn size(self) -> usize {
        self.octets() + FIELD_OVERHEAD
    }
}

impl DynamicTable {
    pub(super) fn new(size_max: usize) -> Self {
        Self { octets: Vec::new(), entries: VecDeque::new(), size: 0, size_max }
    }

    /// The name and value of an entry; the newest one has the index 0.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(index)?;
        self.octets.get(entry.start..entry.start + entry.octets())?.split_at_checked(entry.name_len)
    }

    /// Adds an entry and evicts the oldest ones that no longer fit. An entry larger than the table empties it.
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let (name_len, value_len) = (name.len(), value.len());
        let size = name_len + value_len + FIELD_OVERHEAD;
        if size > self.size_max {
            self.evict_to(0);
            return;
        }
        self.evict_to(self.size_max - size);
        self.compact();
        let start = self.octets.len();
        self.octets.extend_from_slice(name);
        self.octets.extend_from_slice(value);
        self.entries.push_front(Entry { start, name_len, value_len });
        self.size += size;
    }

    pub(super) fn set_size_max(&mut self, size_max: usize) {
        self.size_max = size_max;
        self.evict_to(size_max);
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size();
        }
        if self.entries.is_empty() {
            self.octets.clear();
        }
    }

    /// Removes the evicted octets in front of the oldest entry, once they are as many as `size_max`.
    fn compact(&mut self) {
        let evicted = self.entries.back().map_or(0, |oldest| oldest.start);
        if evicted >= self.size_max {
            self.octets.drain(..evicted);
            for entry in &mut self.entries {
                entry.start -= evicted;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the table with a list of whole entries.
        #[test]
        fn as_a_plain_list(
            fields in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..60), 0..40_usize), 0..200),
            size_max in 0..400_usize,
            resize_at in 0..200_usize,
            resize_to in 0..400_usize,
        ) {
            let (mut table, mut list, mut limit) = (DynamicTable::new(size_max), VecDeque::new(), size_max);
            for (position, (field, split)) in fields.iter().enumerate() {
                if position == resize_at {
                    limit = resize_to;
                    table.set_size_max(limit);
                }
                let (name, value) = field.split_at(field.len().min(*split));
                table.insert(name, value);
                list.push_front((name, value));
                while list.iter().map(|(name, value)| name.len() + value.len() + FIELD_OVERHEAD).sum::<usize>() > limit {
                    list.pop_back();
                }
                for index in 0..=list.len() {
                    prop_assert_eq!(table.get(index), list.get(index).copied());
                }
                prop_assert!(table.octets.len() <= 2 * size_max.max(resize_to));
            }
        }
    }
}
