//! Wire: how fields become bytes and back. Spec: server/spec/native-protocol.md §3.
//!
//! **Invariants**
//! - Little-endian, fixed order, nothing between fields, nothing after the last.
//! - A length is held against the bytes that are there before it is acted on.
//!
//! **Not here**: which fields a message has.

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The body ends within a field.
    #[error("message ends within {field}: {needed} bytes needed, {left} left")]
    Short {
        /// Kind of field.
        field: &'static str,
        /// Bytes it takes.
        needed: usize,
        /// Bytes there are.
        left: usize,
    },
    /// Bytes follow the last field.
    #[error("{bytes} bytes after the last field")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A field has a value that means nothing.
    #[error("{field} = {value}")]
    Invalid {
        /// Kind of field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Text that is no UTF-8.
    #[error("text of {bytes} bytes is not UTF-8")]
    Text {
        /// Its length.
        bytes: usize,
    },
    /// No message of that kind.
    #[error("message kind {kind:#04x} is unknown")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// The header announces more, or less, than a message may have.
    #[error("message of {bytes} bytes, {} {limit}", if bytes < limit { "at least" } else { "at most" })]
    Size {
        /// Announced length, header included.
        bytes: u64,
        /// The limit it breaks.
        limit: u64,
    },
}

/// A field: how it is written, and read back.
pub(crate) trait Wire<'a>: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(input: &mut Input<'a>) -> Result<Self, WireError>;
}

/// What is left of a body.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    fn bytes(&mut self, field: &'static str, needed: usize) -> Result<&'a [u8], WireError> {
        let left = self.0.len();
        let short = WireError::Short {
            field,
            needed,
            left,
        };
        let (taken, rest) = self.0.split_at_checked(needed).ok_or(short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(field, N)?);
        Ok(array)
    }

    /// Refuses what is left.
    pub(crate) fn end(self) -> Result<(), WireError> {
        match self.0.len() {
            0 => Ok(()),
            bytes => Err(WireError::Trailing { bytes }),
        }
    }
}

macro_rules! number {
    ($($type:ident),*) => {$(
        impl<'a> Wire<'a> for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
                input.array(stringify!($type)).map(Self::from_le_bytes)
            }
        }
    )*};
}
number!(u8, u16, u32, u64);

impl<'a> Wire<'a> for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(WireError::Invalid {
                field: "flag",
                value: value.into(),
            }),
        }
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        Ok(match bool::take(input)? {
            true => Some(T::take(input)?),
            false => None,
        })
    }
}

impl<'a> Wire<'a> for &'a [u8] {
    fn put(&self, out: &mut Vec<u8>) {
        length(self.len()).put(out);
        out.extend_from_slice(self);
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        let bytes = usize::try_from(u32::take(input)?).unwrap_or(usize::MAX);
        input.bytes("bytes", bytes)
    }
}

impl<'a> Wire<'a> for &'a str {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_bytes().put(out);
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        let bytes = <&[u8]>::take(input)?;
        std::str::from_utf8(bytes).map_err(|_| WireError::Text { bytes: bytes.len() })
    }
}

impl<'a> Wire<'a> for String {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_str().put(out);
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        <&str>::take(input).map(str::to_owned)
    }
}

impl<'a> Wire<'a> for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_slice().put(out);
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        <&[u8]>::take(input).map(<[u8]>::to_vec)
    }
}

impl<'a> Wire<'a> for [u8; 32] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        input.array("digest")
    }
}

/// Entries one after another, counted. Each takes at least a byte, so the count allocates nothing.
pub(crate) fn put_list<'a, T: Wire<'a>>(list: &[T], out: &mut Vec<u8>) {
    length(list.len()).put(out);
    for entry in list {
        entry.put(out);
    }
}

pub(crate) fn take_list<'a, T: Wire<'a>>(input: &mut Input<'a>) -> Result<Vec<T>, WireError> {
    let count = u32::take(input)?;
    let mut list = Vec::new();
    for _ in 0..count {
        list.push(T::take(input)?);
    }
    Ok(list)
}

/// Bytes up to the end of the message: always the last field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rest<'a>(pub &'a [u8]);

impl<'a> Wire<'a> for Rest<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }
    fn take(input: &mut Input<'a>) -> Result<Self, WireError> {
        Ok(Self(std::mem::take(&mut input.0)))
    }
}

/// A length within a message, whose own length fits in 32 bits.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("fields are shorter than a message")
}

/// A struct whose fields go on the wire in the order they are declared in.
macro_rules! wire_struct {
    ($(#[$doc:meta])* pub struct $name:ident $(<$life:lifetime>)? {
        $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name $(<$life>)? {
            $($(#[$field_doc])* pub $field: $type,)*
        }
        $crate::wire::wire_fields!($name $(<$life>)? { $($field: $type,)* });
    };
}

macro_rules! wire_fields {
    ($name:ident { $($field:ident: $type:ty,)* }) => {
        impl<'a> $crate::wire::Wire<'a> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::wire::Wire::put(&self.$field, out);)*
            }
            fn take(input: &mut $crate::wire::Input<'a>) -> Result<Self, $crate::wire::WireError> {
                Ok(Self { $($field: $crate::wire::Wire::take(input)?,)* })
            }
        }
    };
    ($name:ident <$life:lifetime> { $($field:ident: $type:ty,)* }) => {
        impl<$life> $crate::wire::Wire<$life> for $name<$life> {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::wire::Wire::put(&self.$field, out);)*
            }
            fn take(input: &mut $crate::wire::Input<$life>) -> Result<Self, $crate::wire::WireError> {
                Ok(Self { $($field: $crate::wire::Wire::take(input)?,)* })
            }
        }
    };
}

/// An enum that is one byte on the wire.
macro_rules! wire_code {
    ($(#[$doc:meta])* pub enum $name:ident: $repr:ident {
        $($(#[$variant_doc:meta])* $variant:ident = $code:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($repr)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $code,)*
        }
        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];
            /// The number on the wire.
            #[must_use]
            pub const fn code(self) -> $repr {
                match self { $(Self::$variant => $code,)* }
            }
        }
        impl<'a> $crate::wire::Wire<'a> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::wire::Wire::put(&self.code(), out);
            }
            fn take(input: &mut $crate::wire::Input<'a>) -> Result<Self, $crate::wire::WireError> {
                match <$repr as $crate::wire::Wire>::take(input)? {
                    $($code => Ok(Self::$variant),)*
                    value => Err($crate::wire::WireError::Invalid {
                        field: stringify!($name),
                        value: value.into(),
                    }),
                }
            }
        }
    };
}

/// An enum of messages: each variant has a kind and its fields in wire order.
macro_rules! messages {
    ($(#[$doc:meta])* pub enum $name:ident<'a> {
        $($(#[$variant_doc:meta])* $kind:literal $variant:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
        },)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name<'a> {
            $($(#[$variant_doc])* $variant { $($(#[$field_doc])* $field: $type,)* },)*
        }
        impl<'a> $name<'a> {
            /// Every kind there is, with its name.
            pub const KINDS: &'static [(u8, &'static str)] = &[$(($kind, stringify!($variant)),)*];

            /// The kind on the wire.
            #[must_use]
            pub fn kind(&self) -> u8 {
                match self { $(Self::$variant { .. } => $kind,)* }
            }

            fn put_body(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field,)* } => {
                        $($crate::wire::Wire::put($field, out);)*
                        let _ = &out;
                    })*
                }
            }

            /// Reads a body of the given kind, whole.
            ///
            /// # Errors
            /// [`WireError`](crate::WireError): the bytes are no such message.
            pub fn decode(kind: u8, body: &'a [u8]) -> Result<Self, $crate::wire::WireError> {
                let mut input = $crate::wire::Input::new(body);
                let message = match kind {
                    $($kind => Self::$variant {
                        $($field: $crate::wire::Wire::take(&mut input)?,)*
                    },)*
                    kind => return Err($crate::wire::WireError::Kind { kind }),
                };
                input.end()?;
                Ok(message)
            }

            /// Appends the whole message to `out`.
            pub fn encode(&self, request: u64, flags: u8, out: &mut Vec<u8>) {
                let start = out.len();
                $crate::header::MessageHeader::reserve(out);
                self.put_body(out);
                $crate::header::MessageHeader::fill(out, start, self.kind(), flags, request);
            }
        }
    };
}

pub(crate) use {messages, wire_code, wire_fields, wire_struct};
