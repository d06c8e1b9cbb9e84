//! A listing to JSON and from it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::{LISTING_LEN_MAX, Listing, ListingError, ListingWriter, NODES_MAX, Node};
use crate::nar::{DEPTH_MAX, FILE_SIZE_MAX, check_name, check_target};

/// The only version that exists.
const VERSION: u64 = 1;

impl Listing {
    /// The JSON, without a newline.
    pub fn to_json(&self) -> Result<String, ListingError> {
        let mut out = b"{\"root\":".to_vec();
        let mut writer = ListingWriter::new();
        writer.node(&self.root, &mut out)?;
        writer.finish(&mut out);
        text(out)
    }

    /// Parses the JSON. Names, targets, depth and sizes must be those of a NAR; unknown keys are ignored.
    pub fn parse(json: &[u8]) -> Result<Self, ListingError> {
        if json.len() > LISTING_LEN_MAX {
            return Err(ListingError::TooLong);
        }
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        // A node at depth 63 is nested 128 objects deep, which exceeds serde_json's limit; NodeSeed enforces ours.
        deserializer.disable_recursion_limit();
        let mut nodes = 0;
        let listing = deserializer.deserialize_map(ListingVisitor { nodes: &mut nodes });
        let listing = listing.and_then(|listing| deserializer.end().map(|()| listing));
        listing.map_err(|error| ListingError::Json(error.to_string()))
    }
}

impl Node {
    /// The JSON of this node alone, as `nix store ls --json --recursive` prints it.
    pub fn to_json(&self) -> Result<String, ListingError> {
        let mut out = Vec::new();
        ListingWriter::new().node(self, &mut out)?;
        text(out)
    }
}

fn text(json: Vec<u8>) -> Result<String, ListingError> {
    String::from_utf8(json).map_err(|error| ListingError::Json(error.to_string()))
}

struct ListingVisitor<'n> {
    nodes: &'n mut usize,
}

impl<'de> Visitor<'de> for ListingVisitor<'_> {
    type Value = Listing;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with 'version' and 'root'")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Listing, A::Error> {
        let (mut version, mut root) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "version" => once(&mut version, "version", map.next_value()?)?,
                "root" => once(&mut root, "root", map.next_value_seed(NodeSeed { depth: 0, nodes: self.nodes })?)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match version {
            Some(VERSION) => {}
            Some(other) => return Err(A::Error::custom(format_args!("version {other}, expected {VERSION}"))),
            None => return Err(A::Error::missing_field("version")),
        }
        root.map(|root| Listing { root }).ok_or_else(|| A::Error::missing_field("root"))
    }
}

struct NodeSeed<'n> {
    depth: usize,
    nodes: &'n mut usize,
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        *self.nodes += 1;
        if *self.nodes > NODES_MAX {
            return Err(D::Error::custom(format_args!("more than {NODES_MAX} nodes")));
        }
        if self.depth >= DEPTH_MAX {
            return Err(D::Error::custom(format_args!("nodes are nested at most {DEPTH_MAX} deep")));
        }
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a 'type'")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = NodeFields::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "type" => once(&mut fields.kind, "type", map.next_value()?)?,
                "executable" => once(&mut fields.executable, "executable", map.next_value()?)?,
                "size" => once(&mut fields.size, "size", map.next_value()?)?,
                "narOffset" => once(&mut fields.nar_offset, "narOffset", map.next_value()?)?,
                "target" => once(&mut fields.target, "target", map.next_value()?)?,
                "entries" => {
                    let seed = EntriesSeed { depth: self.depth + 1, nodes: &mut *self.nodes };
                    once(&mut fields.entries, "entries", map.next_value_seed(seed)?)?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        fields.node()
    }
}

/// The fields of any type of node: `type` need not come first, and Nix writes it last.
#[derive(Default)]
struct NodeFields {
    kind: Option<String>,
    executable: Option<bool>,
    size: Option<u64>,
    nar_offset: Option<u64>,
    target: Option<String>,
    entries: Option<BTreeMap<Box<[u8]>, Node>>,
}

impl NodeFields {
    fn node<E: Error>(self) -> Result<Node, E> {
        match self.kind.as_deref() {
            Some("regular") => {
                let size = self.size.ok_or_else(|| E::missing_field("size"))?;
                if size > FILE_SIZE_MAX {
                    return Err(E::custom(format_args!("a file has at most {FILE_SIZE_MAX} bytes")));
                }
                let executable = self.executable.unwrap_or_default();
                Ok(Node::Regular { executable, size, nar_offset: self.nar_offset })
            }
            Some("symlink") => {
                let target = self.target.ok_or_else(|| E::missing_field("target"))?;
                check_target(target.as_bytes()).map_err(E::custom)?;
                Ok(Node::Symlink { target: target.into_bytes().into() })
            }
            Some("directory") => self.entries.map(Node::Directory).ok_or_else(|| E::missing_field("entries")),
            Some(_) => Err(E::custom("'type' is 'regular', 'symlink' or 'directory'")),
            None => Err(E::missing_field("type")),
        }
    }
}

struct EntriesSeed<'n> {
    depth: usize,
    nodes: &'n mut usize,
}

impl<'de> DeserializeSeed<'de> for EntriesSeed<'_> {
    type Value = BTreeMap<Box<[u8]>, Node>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntriesSeed<'_> {
    type Value = BTreeMap<Box<[u8]>, Node>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of names and nodes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            check_name(name.as_bytes(), b"").map_err(A::Error::custom)?;
            let node = map.next_value_seed(NodeSeed { depth: self.depth, nodes: &mut *self.nodes })?;
            if entries.insert(name.into_bytes().into_boxed_slice(), node).is_some() {
                return Err(A::Error::custom("the same name twice in a directory"));
            }
        }
        Ok(entries)
    }
}

/// Sets a field that may occur once.
fn once<T, E: Error>(field: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(name)),
    }
}
