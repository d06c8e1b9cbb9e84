use std::collections::VecDeque;

/// Streams with something to send, in turn. Small and large bodies alternate, so that neither waits for all of the others.
#[derive(Debug, Default)]
pub(super) struct Turns {
    small: VecDeque<u32>,
    large: VecDeque<u32>,
    is_small_next: bool,
}

impl Turns {
    pub(super) fn push(&mut self, stream: u32, is_small: bool) {
        if is_small { self.small.push_back(stream) } else { self.large.push_back(stream) }
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        self.is_small_next = !self.is_small_next;
        let (first, second) = match self.is_small_next {
            true => (&mut self.small, &mut self.large),
            false => (&mut self.large, &mut self.small),
        };
        first.pop_front().or_else(|| second.pop_front())
    }

    pub(super) fn remove(&mut self, stream: u32) {
        self.small.retain(|id| *id != stream);
        self.large.retain(|id| *id != stream);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty()
    }
}
