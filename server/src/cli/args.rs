//! Args: the command line of `sealog`.
//!
//! **Invariants**
//! - Global options stand before or after the verb.
//! - An option's value may begin with a dash: what follows the option is its value.
//! - A usage error is one line that ends with where to look.
//!
//! - A variable that is empty is one that is not set.
//!
//! **Not here**: what the verbs do; the record options of append (`input`).

mod admin;
mod feeds;
mod serve;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use admin::{AdminVerb, InspectArgs, SettleArgs};
pub(crate) use feeds::{
    AppendArgs, FeedVerb, Format, ListArgs, MatchSeq, ProducersArgs, ReadArgs, SealArgs,
};
pub(super) use serve::listen;
pub(crate) use serve::{ConfigVerb, Listen, LogFormat, ServeArgs};

use super::exit::{CliError, Exit, one_line};
use super::origins::{Given, GivenOptions};

const EXIT_HELP: &str = "\
Exit status: 0 done, 1 failure, 2 usage, 3 refused, 4 not found, 5 corrupt, 6 storage full,
7 unusable (locked, io_uring forbidden, newer format), 8 done but not printed, 9 a served log
stopped, 129, 130 and 143 ended by a signal, 141 the reader of the output left.";

/// Heading of the global options: they stand below the verb's own.
const EVERY_VERB: &str = "Options of every verb";

/// Durable streams of records: append, seal into commits, read back.
#[derive(Debug, Parser)]
#[command(name = "sealog", version, after_help = EXIT_HELP)]
pub(crate) struct Cli {
    /// Options that every verb takes.
    #[command(flatten)]
    pub(crate) globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Options that every verb takes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Globals {
    /// Data directory [default: ./sealog-data]
    #[arg(long, global = true, help_heading = EVERY_VERB, env = "SEALOG_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Folder for packs and commits [default: bucket/ in the data directory]
    #[arg(long, global = true, help_heading = EVERY_VERB, value_name = "DIR")]
    pub(crate) bucket_dir: Option<PathBuf>,
    /// Keep packs and commits in an S3-compatible store: s3://NAME or s3://NAME/PREFIX
    #[arg(long, global = true, help_heading = EVERY_VERB, value_name = "URL", conflicts_with = "bucket_dir")]
    pub(crate) bucket: Option<String>,
    /// Region of the store [default: AWS_REGION, else us-east-1]
    #[arg(long, global = true, help_heading = EVERY_VERB, value_name = "NAME")]
    pub(crate) region: Option<String>,
    /// Where the store listens, https:// or http:// [default: AWS_ENDPOINT_URL, else Amazon's own]
    #[arg(long, global = true, help_heading = EVERY_VERB, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Use a store that ignores conditions, although two writers would both win
    #[arg(long, global = true, help_heading = EVERY_VERB)]
    pub(crate) unsafe_no_conditions: bool,
    /// Make the bucket this data directory's although it says that it is another one's
    #[arg(long, global = true, help_heading = EVERY_VERB)]
    pub(crate) take_bucket: bool,
    /// Configuration file, TOML; an unknown key is an error
    #[arg(long, global = true, help_heading = EVERY_VERB, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Profile for small machines: 64 MiB of memory, batches up to 1 MiB
    #[arg(long, global = true, help_heading = EVERY_VERB)]
    pub(crate) edge: bool,
    /// Ask this server instead of opening a data directory
    #[arg(long, global = true, help_heading = EVERY_VERB, env = "SEALOG_SERVER", value_name = "HOST:PORT")]
    pub(crate) server: Option<String>,
    /// File with the bearer token: what `serve` asks for, and other verbs show
    #[arg(long, global = true, help_heading = EVERY_VERB, env = "SEALOG_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Ask the server over TLS, and trust the certificates in this PEM file
    #[arg(long, global = true, help_heading = EVERY_VERB, env = "SEALOG_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// One JSON object per line on standard output, and on standard error for a failure
    #[arg(long, global = true, help_heading = EVERY_VERB)]
    pub(crate) json: bool,
    /// Which options were given, and how.
    #[arg(skip)]
    pub(crate) given: GivenOptions,
}

impl Globals {
    /// A data directory that the command line names goes before a server that only the environment does.
    fn settle_place(&mut self) {
        let by = |option| self.given.of(option);
        if by("data_dir") == Some(Given::Flag) && by("server") == Some(Given::Env) {
            self.server = None;
        }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Serve the data directory on the network until SIGTERM, SIGINT or SIGHUP
    Serve(ServeArgs),
    /// Show the configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Create, list, show or delete feeds
    #[command(subcommand)]
    Feed(FeedVerb),
    /// Append records and seal them into a commit
    #[command(override_usage = "sealog append <FEED> [OPTIONS]")]
    Append(Box<AppendArgs>),
    /// Read records
    #[command(override_usage = "sealog read <FEED> [OPTIONS]")]
    Read(ReadArgs),
    /// List the streams of a feed
    #[command(override_usage = "sealog streams <FEED> [OPTIONS]")]
    Streams(ListArgs),
    /// List the commits of a feed
    #[command(override_usage = "sealog commits <FEED> [OPTIONS]")]
    Commits(ListArgs),
    /// List the idempotent producers of a feed
    #[command(override_usage = "sealog producers <FEED> [OPTIONS]")]
    Producers(ProducersArgs),
    /// Seal the open stream of a feed into a commit
    #[command(override_usage = "sealog seal <FEED> [OPTIONS]")]
    Seal(SealArgs),
    /// Show what the logs hold, what waits for the bucket, and how the bucket is
    Usage,
    /// Read everything kept and prove that it is what was written; changes nothing
    Verify,
    /// Show what is in a file of ours: segment, checkpoint, pack, manifest, commit, key index, frame
    Inspect(InspectArgs),
    /// Settle abandoned streams, finish publication, mend a data directory
    #[command(subcommand)]
    Admin(AdminVerb),
}

/// A command line that ends the command before it began: help, version, or a usage error.
#[derive(Debug)]
pub(crate) enum Early {
    /// Text that was asked for.
    Shown(clap::Error),
    /// A usage error.
    Wrong(CliError, bool),
}

impl Early {
    /// Prints it, and gives the status.
    pub(crate) fn finish(self) -> ExitCode {
        match self {
            Self::Shown(text) => match text.print() {
                Ok(()) => Exit::Ok.into(),
                Err(error) => CliError::stdout(&error).report(false),
            },
            Self::Wrong(error, json) => error.report(json),
        }
    }
}

/// Takes a command line apart.
pub(crate) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Cli, Early> {
    let line: Vec<OsString> = line.into_iter().collect();
    let json = line.iter().any(|word| word == "--json");
    let early = |error: clap::Error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Early::Shown(error),
        _ => Early::Wrong(CliError::usage(usage_line(&error)), json),
    };
    let command = adjusted(Cli::command());
    let matches = command.try_get_matches_from(&line).map_err(early)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(early)?;
    cli.globals.given = GivenOptions::of_matches(&matches);
    cli.globals.settle_place();
    if let Verb::Append(args) = &mut cli.verb {
        let matches = matches.subcommand_matches("append");
        args.records
            .note_order(matches.unwrap_or(&ArgMatches::default()));
    }
    Ok(cli)
}

/// Lets "-1" be the value of an option, so that the option's own rule says what is wrong with it, and does
/// not look at variables that are empty.
fn adjusted(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        let arg = match value.is_some_and(|value| value.is_empty()) {
            true => arg.env(None),
            false => arg,
        };
        match arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        }
    });
    command.mut_subcommands(adjusted)
}

/// What clap says, without its usage block, in one line.
fn usage_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ErrorKind::MissingSubcommand
    {
        return "a verb is missing; see `sealog --help`".to_owned();
    }
    let text = error.render().to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or(&text);
    let text = text
        .split("\n\nFor more information")
        .next()
        .unwrap_or(text);
    let text = one_line(text.trim_start_matches("error: "));
    format!("{text}; see `sealog --help`")
}

#[cfg(test)]
mod tests;
