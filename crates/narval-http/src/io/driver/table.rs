use super::Token;

/// What a driver keeps of each connection.
pub(super) struct Table<E> {
    /// The generation of each place, and what is there.
    places: Vec<(u32, Option<E>)>,
}

impl<E> Table<E> {
    pub(super) fn new() -> Self {
        Self { places: Vec::new() }
    }

    /// Registers a connection.
    pub(super) fn insert(&mut self, token: Token, entry: E) {
        let index = token.index as usize;
        if self.places.len() <= index {
            self.places.resize_with(index + 1, || (0, None));
        }
        if let Some(place) = self.places.get_mut(index) {
            *place = (token.generation, Some(entry));
        }
    }

    /// `None` if another connection, or none, is registered there now.
    pub(super) fn get(&self, token: Token) -> Option<&E> {
        let (generation, entry) = self.places.get(token.index as usize)?;
        if *generation == token.generation { entry.as_ref() } else { None }
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut E> {
        let (generation, entry) = self.places.get_mut(token.index as usize)?;
        if *generation == token.generation { entry.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<E> {
        let (generation, entry) = self.places.get_mut(token.index as usize)?;
        if *generation == token.generation { entry.take() } else { None }
    }
}
