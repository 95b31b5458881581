//! The batch frame.
