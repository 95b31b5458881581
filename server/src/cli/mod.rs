//! Cli: the verbs of `sealog`, on an engine embedded in this process. Reference: `docs/cli.md`.
//!
//! ```text
//!  arguments -> verb -> input checked -> engine opened -> work -> output flushed -> engine closed
//! ```
//!
//! **Invariants**
//! - Whatever happens, an engine that was opened is closed, so that the next start needs no recovery.
//! - A failure is one line on standard error and a documented exit status.
//! - A reader that leaves early (`| head`) ends the command without a word.
//!
//! **Not here**: what the engine decides.

mod admin;
mod append;
mod args;
mod config;
mod encode;
mod exit;
mod feeds;
mod history;
mod input;
mod lines;
mod ndjson;
mod object;
mod offline;
mod open;
mod output;
mod progress;
mod read;
mod settings;
mod shapes;
mod signals;
mod store;
mod time;
mod usage;

use std::process::ExitCode;

use args::{Cli, Verb};
pub(crate) use args::{LogFormat, ServeArgs};
pub(crate) use exit::CliError;
use exit::Exit;
use output::Output;

/// Runs the command that the process was started with.
pub(crate) fn main() -> ExitCode {
    let cli = match args::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(early) => return early.finish(),
    };
    let json = cli.globals.json;
    match run(cli) {
        Ok(()) => Exit::Ok.into(),
        Err(error) => error.report(json),
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    let mut out = Output::new(cli.globals.json)?;
    if let Verb::Inspect(args) = &cli.verb {
        return offline::inspect(args, &cli.globals, &mut out).and(out.flush());
    }
    let config = config::resolve(&cli.globals)?;
    let standard = !cli.globals.edge && cli.globals.config.is_none();
    let done = match cli.verb {
        Verb::Feed(verb) => feeds::run(config, verb, &mut out),
        Verb::Append(args) => append::run(config, *args, &mut out),
        Verb::Read(args) => read::run(config, &args, &mut out),
        Verb::Streams(args) => history::streams(config, &args, &mut out),
        Verb::Commits(args) => history::commits(config, &args, &mut out),
        Verb::Producers(args) => history::producers(config, &args, &mut out),
        Verb::Seal(args) => history::seal(config, &args, &mut out),
        Verb::Serve(args) => crate::serve::run(config, &args),
        Verb::Usage => usage::run(config, &mut out),
        Verb::Verify => offline::verify(&config, &mut out),
        Verb::Inspect(_) => Ok(()),
        Verb::Admin(verb) => admin::run(config, verb, &mut out),
    };
    done.and(out.flush()).map_err(|error| match standard {
        // The standard profile fits itself; what it may not fit is a directory made otherwise.
        true if error.is_config() => {
            error.and("was the directory made with --edge or --config? give it again")
        }
        _ => error,
    })
}
