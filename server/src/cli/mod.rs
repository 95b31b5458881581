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

mod access;
mod admin;
mod append;
mod args;
mod closed;
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
mod origins;
mod output;
mod patience;
mod progress;
mod read;
mod remote_errors;
mod serve_settings;
mod settings;
mod shapes;
pub(crate) mod signals;
mod store;
pub(crate) mod time;
pub(crate) mod token;
mod usage;

use std::process::ExitCode;

use access::Place;
use args::{AdminVerb, Cli, ConfigVerb, Globals, Verb};
pub(crate) use args::{Listen, LogFormat};
pub(crate) use exit::CliError;
use exit::Exit;
use output::Output;
pub(crate) use serve_settings::ServeSettings;

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

/// Refuses a server for verbs that work on a data directory only.
fn check_local(globals: &Globals, verb: &Verb) -> Result<(), CliError> {
    let verb = match verb {
        Verb::Verify => "verify",
        Verb::Admin(AdminVerb::Reshard { .. }) => "admin reshard",
        Verb::Admin(AdminVerb::AcceptLoss) => "admin accept-loss",
        _ => return Ok(()),
    };
    match &globals.server {
        Some(server) => Err(CliError::usage(format!(
            "{verb} works on a data directory, not on a server: --server {server} (or SEALOG_SERVER) is given"
        ))),
        None => Ok(()),
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    let mut out = Output::new(cli.globals.json)?;
    if let Verb::Inspect(args) = &cli.verb {
        return offline::inspect(args, &cli.globals, &mut out).and(out.flush());
    }
    let serve = match &cli.verb {
        Verb::Serve(args) | Verb::Config(ConfigVerb::Show(args)) => Some(args),
        _ => None,
    };
    let resolved = config::resolve(&cli.globals, serve)?;
    if let Verb::Config(ConfigVerb::Show(_)) = &cli.verb {
        return origins::show(&resolved.rows(&cli.globals)?, &mut out).and(out.flush());
    }
    let (config, settings) = (resolved.config, resolved.serve);
    let standard = !cli.globals.edge && cli.globals.config.is_none();
    let globals = cli.globals;
    check_local(&globals, &cli.verb)?;
    let place = Place { globals, config };
    let done = match cli.verb {
        Verb::Feed(verb) => feeds::run(place, verb, &mut out),
        Verb::Append(args) => append::run(place, *args, &mut out),
        Verb::Read(args) => read::run(place, &args, &mut out),
        Verb::Streams(args) => history::streams(place, &args, &mut out),
        Verb::Commits(args) => history::commits(place, &args, &mut out),
        Verb::Producers(args) => history::producers(place, &args, &mut out),
        Verb::Seal(args) => history::seal(place, &args, &mut out),
        Verb::Admin(verb) => admin::run(place, verb, &mut out),
        Verb::Serve(_) => crate::serve::run(place.config, &settings),
        Verb::Usage => usage::run(place, &mut out),
        Verb::Verify => offline::verify(&place.config, &mut out),
        Verb::Inspect(_) | Verb::Config(_) => Ok(()),
    };
    done.and(out.flush()).map_err(|error| match standard {
        // The standard profile fits itself; what it may not fit is a directory made otherwise.
        true if error.is_config() => {
            error.and("was the directory made with --edge or --config? give it again")
        }
        _ => error,
    })
}
