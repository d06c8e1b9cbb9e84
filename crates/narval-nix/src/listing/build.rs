//! Builds a listing from the events of a NAR.

use std::collections::BTreeMap;

use super::{Listing, ListingError, NODES_MAX, Node};
use crate::nar::{DEPTH_MAX, Decoder, Event};

/// Builds a listing from the events of a [`Decoder`].
#[derive(Debug, Default)]
pub struct ListingBuilder {
    open: Vec<OpenDirectory>,
    root: Option<Node>,
    nodes: usize,
}

#[derive(Debug, Default)]
struct OpenDirectory {
    entries: BTreeMap<Box<[u8]>, Node>,
    /// The name of the entry that is being read.
    name: Box<[u8]>,
}

impl ListingBuilder {
    /// Starts a listing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next event. `offset` is the decoder's [offset](Decoder::offset) after it.
    pub fn push(&mut self, event: &Event<'_>, offset: u64) -> Result<(), ListingError> {
        match *event {
            Event::Regular { executable, size } => {
                self.add(Node::Regular { executable, size, nar_offset: Some(offset) })
            }
            Event::Symlink { target } => self.add(Node::Symlink { target: target.into() }),
            Event::Directory if self.open.len() < DEPTH_MAX => {
                self.open.push(OpenDirectory::default());
                Ok(())
            }
            Event::Directory => Err(ListingError::Sequence),
            Event::Entry { name } => {
                self.open.last_mut().ok_or(ListingError::Sequence)?.name = name.into();
                Ok(())
            }
            Event::EndDirectory => {
                let OpenDirectory { entries, .. } = self.open.pop().ok_or(ListingError::Sequence)?;
                self.add(Node::Directory(entries))
            }
            Event::Contents(_) | Event::EndRegular => Ok(()),
        }
    }

    /// Returns the listing once the root is complete.
    pub fn finish(self) -> Result<Listing, ListingError> {
        self.root.map(|root| Listing { root }).ok_or(ListingError::Sequence)
    }

    fn add(&mut self, node: Node) -> Result<(), ListingError> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(ListingError::TooManyNodes);
        }
        match self.open.last_mut() {
            Some(OpenDirectory { entries, name }) => {
                entries.insert(std::mem::take(name), node);
            }
            None => self.root = Some(node),
        }
        Ok(())
    }
}

impl Listing {
    /// Builds the listing of a NAR in memory.
    pub fn of_nar(nar: &[u8]) -> Result<Self, ListingError> {
        let (mut decoder, mut builder) = (Decoder::new(), ListingBuilder::new());
        let mut rest = nar;
        while let (used, Some(event)) = decoder.next(rest)? {
            rest = &rest[used..];
            builder.push(&event, (nar.len() - rest.len()) as u64)?;
        }
        decoder.finish()?;
        builder.finish()
    }
}
