//! Values of a type from the pairs of a query or form.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::MapDeserializer;
use serde::de::{DeserializeOwned, Deserializer, EnumAccess, Error, IntoDeserializer, Visitor};

use crate::http1::path::query_pairs;

/// Reads `text`, pairs of names and values, into a struct with one field for each name. A field that is an `Option`, or has
/// `#[serde(default)]`, may be missing.
///
/// # Errors
/// What is wrong, and with which name: `limit: invalid digit found in string`.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let pairs = query_pairs(text).map(|(name, value)| (name.clone(), Value { name, value }));
    T::deserialize(MapDeserializer::new(pairs)).map_err(|error: Wrong| error.0)
}

#[derive(Debug)]
struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

impl Error for Wrong {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// One value, which remembers its name for errors.
struct Value<'a> {
    name: Cow<'a, str>,
    value: Cow<'a, str>,
}

impl<'de> IntoDeserializer<'de, Wrong> for Value<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl Value<'_> {
    fn named<T>(name: &str, result: Result<T, impl fmt::Display>) -> Result<T, Wrong> {
        result.map_err(|error| Wrong(format!("{name}: {error}")))
    }
}

/// Numbers and booleans are parsed, as `FromStr` does.
macro_rules! parsed {
    ($($deserialize:ident => $visit:ident)*) => { $(
        fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
            let value = Self::named(&self.name, self.value.parse())?;
            Self::named(&self.name, visitor.$visit::<Wrong>(value))
        }
    )* };
}

impl<'de> Deserializer<'de> for Value<'_> {
    type Error = Wrong;

    parsed! {
        deserialize_bool => visit_bool
        deserialize_i8 => visit_i8 deserialize_i16 => visit_i16 deserialize_i32 => visit_i32 deserialize_i64 => visit_i64
        deserialize_i128 => visit_i128 deserialize_u8 => visit_u8 deserialize_u16 => visit_u16
        deserialize_u32 => visit_u32 deserialize_u64 => visit_u64 deserialize_u128 => visit_u128
        deserialize_f32 => visit_f32 deserialize_f64 => visit_f64 deserialize_char => visit_char
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        Self::named(&self.name, visitor.visit_string::<Wrong>(self.value.into_owned()))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        Self::named(&self.name, visitor.visit_enum(Variant(self.value)))
    }

    serde::forward_to_deserialize_any! {
        str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The name of a variant.
struct Variant<'a>(Cow<'a, str>);

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = Wrong;
    type Variant = <serde::de::value::StringDeserializer<Wrong> as EnumAccess<'de>>::Variant;

    fn variant_seed<V: serde::de::DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self::Variant), Wrong> {
        IntoDeserializer::<Wrong>::into_deserializer(self.0.into_owned()).variant_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Order {
        Up,
        Down,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Word(String);

    #[derive(Debug, Deserialize, PartialEq)]
    struct Page {
        limit: Option<u32>,
        #[serde(default)]
        all: bool,
        order: Order,
        word: Word,
    }

    #[test]
    fn pairs_become_fields() {
        let page = Page { limit: Some(3), all: false, order: Order::Up, word: Word("a b".into()) };
        assert_eq!(parse("limit=3&order=up&word=a+b&unknown=x"), Ok(page));
        let page = Page { limit: None, all: true, order: Order::Down, word: Word(String::new()) };
        assert_eq!(parse("word=&all=true&order=down"), Ok(page));
    }

    #[test]
    fn errors_name_the_pair() {
        let error = |query| parse::<Page>(query).expect_err("refused");
        assert_eq!(error("limit=x&order=up&word="), "limit: invalid digit found in string");
        assert_eq!(error("limit=-1&order=up&word="), "limit: invalid digit found in string");
        assert_eq!(error("order=up"), "missing field `word`");
        assert_eq!(error("word=a&order=left"), "order: unknown variant `left`, expected `up` or `down`");
        assert_eq!(error("word=a&order=up&word=b"), "duplicate field `word`");
    }
}
