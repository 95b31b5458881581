//! Open: an engine for the length of one verb.
//!
//! **Invariants**
//! - The engine is closed however the verb ends; a failure of the verb counts before one of the close.
//! - Only verbs that make something make a data directory.
//!
//! **Not here**: configuration (`config`).

use futures_lite::future::block_on;
use sealog_engine::{Engine, EngineConfig, MARKER_FILE, ProductionEnv};

use super::exit::CliError;
use super::patience::Patience;

/// What verbs call.
pub(super) type Handle = sealog_engine::Handle<ProductionEnv>;

/// Runs `verb` on the data directory, which is made if `create` says so and it is not there.
pub(super) fn with_engine<F: Future<Output = Result<(), CliError>>>(
    mut config: EngineConfig,
    create: bool,
    patience: &Patience,
    verb: impl FnOnce(Handle) -> F,
) -> Result<(), CliError> {
    if !create {
        check_exists(&config)?;
    }
    if config.data_dir.exists() && !config.data_dir.is_dir() {
        let text = format!(
            "data directory {} is not a directory",
            config.data_dir.display()
        );
        return Err(CliError::unusable(text));
    }
    config.create = create;
    let opening = patience.during(format!(
        "data directory {}: its logs are read, or its bucket is asked",
        config.data_dir.display()
    ));
    let engine = Engine::open(config)?;
    drop(opening);
    patience.ask(engine.handle());
    let done = block_on(verb(engine.handle().clone()));
    let closed = block_on(engine.close());
    done.and(closed.map_err(CliError::from))
}

/// Whether the data directory was made already.
pub(super) fn is_made(config: &EngineConfig) -> bool {
    config.data_dir.join(MARKER_FILE).exists()
}

/// A data directory that is not there is "not found", with what to do about it.
pub(super) fn check_exists(config: &EngineConfig) -> Result<(), CliError> {
    let dir = &config.data_dir;
    let found = dir.try_exists();
    if found.map_err(|error| CliError::file("data directory", dir, &error))? {
        return Ok(());
    }
    let text = format!(
        "data directory {} does not exist: name it with --data-dir, or make it with `sealog append`",
        dir.display()
    );
    Err(CliError::not_found("DataDirNotFound", text))
}
