//! Tree: what inspection gives: names and values, as indented text or as JSON.
//!
//! **Invariants**
//! - Text and JSON say the same; fields keep their order in text.
//!
//! **Not here**: what the values mean.

use std::fmt;

/// A value that was found in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// Yes or no.
    Flag(bool),
    /// Words, or bytes made readable.
    Text(String),
    /// Several of a kind.
    List(Vec<Node>),
    /// Named values.
    Map(Vec<(&'static str, Node)>),
}

impl From<u64> for Node {
    fn from(value: u64) -> Self {
        Self::Number(value)
    }
}

impl From<u32> for Node {
    fn from(value: u32) -> Self {
        Self::Number(value.into())
    }
}

impl From<usize> for Node {
    fn from(value: usize) -> Self {
        Self::Number(value as u64)
    }
}

impl From<i64> for Node {
    fn from(value: i64) -> Self {
        Self::Signed(value)
    }
}

impl From<bool> for Node {
    fn from(value: bool) -> Self {
        Self::Flag(value)
    }
}

impl From<&str> for Node {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Node {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl Node {
    /// Stands for items that are not shown.
    pub(super) fn more(count: usize) -> Self {
        Self::Text(format!("and {count} more"))
    }

    /// The first bytes, readable.
    pub(super) fn preview(bytes: &[u8], max: usize) -> Self {
        let head = bytes.get(..max).unwrap_or(bytes);
        let cut = bytes.len() - head.len();
        let mut text = head.escape_ascii().to_string();
        if cut > 0 {
            text.push_str(&format!(" ... {cut} bytes more"));
        }
        Self::Text(text)
    }

    /// The tree as JSON.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value;
        match self {
            Self::Number(value) => (*value).into(),
            Self::Signed(value) => (*value).into(),
            Self::Flag(value) => (*value).into(),
            Self::Text(value) => value.as_str().into(),
            Self::List(items) => items.iter().map(Self::to_json).collect(),
            Self::Map(fields) => {
                let field = |(name, value): &(&str, Self)| ((*name).to_owned(), value.to_json());
                Value::Object(fields.iter().map(field).collect())
            }
        }
    }

    /// The value of a field, by the names on the way to it; numbers count list items.
    #[must_use]
    pub fn get(&self, path: &[&str]) -> Option<&Self> {
        let Some((name, rest)) = path.split_first() else {
            return Some(self);
        };
        let next = match self {
            Self::Map(fields) => fields
                .iter()
                .find(|(field, _)| field == name)
                .map(|(_, value)| value),
            Self::List(items) => items.get(name.parse::<usize>().ok()?),
            _ => None,
        };
        next?.get(rest)
    }

    fn is_leaf(&self) -> bool {
        !matches!(self, Self::List(_) | Self::Map(_))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        let indent = |f: &mut fmt::Formatter<'_>| write!(f, "{:1$}", "", depth * 2);
        match self {
            Self::Number(value) => writeln!(f, "{value}"),
            Self::Signed(value) => writeln!(f, "{value}"),
            Self::Flag(value) => writeln!(f, "{value}"),
            Self::Text(value) => writeln!(f, "{value}"),
            Self::List(items) => items.iter().try_for_each(|item| {
                indent(f)?;
                write!(f, "- ")?;
                match item.is_leaf() {
                    true => item.write(f, depth),
                    false => {
                        writeln!(f)?;
                        item.write(f, depth + 1)
                    }
                }
            }),
            Self::Map(fields) => fields.iter().try_for_each(|(name, value)| {
                indent(f)?;
                write!(f, "{name}:")?;
                match value.is_leaf() {
                    true => {
                        write!(f, " ")?;
                        value.write(f, depth)
                    }
                    false => {
                        writeln!(f)?;
                        value.write(f, depth + 1)
                    }
                }
            }),
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

/// A map, field by field.
macro_rules! fields {
    ($($name:ident: $value:expr),* $(,)?) => {
        $crate::inspect::Node::Map(vec![$((stringify!($name), $value.into())),*])
    };
}
pub(super) use fields;
