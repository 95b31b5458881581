//! Admin: the command line of `admin` and `inspect`.
//!
//! **Invariants**
//! - Numbers that no directory could have are refused here.
//!
//! **Not here**: what operators do with them (`admin`, `offline`).

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What an operator can do.
#[derive(Debug, Subcommand)]
pub(crate) enum AdminVerb {
    /// Seal an unsealed stream as it stands; a writer that comes back is fenced
    Resume(SettleArgs),
    /// Discard an unsealed stream: its range becomes a recorded gap
    Discard(SettleArgs),
    /// Finish publication that was interrupted
    Repair {
        /// Name of the feed
        feed: String,
    },
    /// Change the number of logs of a cleanly closed data directory
    Reshard {
        /// Number of logs to have: 1 to 65535
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        logs: u16,
    },
    /// Make a damaged data directory open again, without what the damage took
    AcceptLoss,
}

/// `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The file; it may be in use. Or an object of a store: s3://NAME/KEY
    pub(crate) file: PathBuf,
    /// Of everything that repeats, show so many
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) items: usize,
    /// Bytes shown of a payload, key or message
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) preview_bytes: usize,
}

/// `admin resume` and `admin discard`.
#[derive(Debug, Args)]
pub(crate) struct SettleArgs {
    /// Name of the feed
    pub(crate) feed: String,
    /// Which stream [default: the oldest unsealed one]
    #[arg(long, value_name = "ID")]
    pub(crate) stream: Option<u64>,
    /// Message of the commit
    #[arg(
        long,
        short,
        value_name = "TEXT",
        default_value = "",
        allow_hyphen_values = true
    )]
    pub(crate) message: String,
}
