//! Token: the bearer token, from a file: what a server asks for and a client shows.
//!
//! **Invariants**
//! - It is never on a command line, in a log or in an error.
//!
//! **Not here**: comparing it (`native`).

use std::path::Path;

use super::exit::CliError;

/// Longest token; it travels in the hello.
const TOKEN_BYTES_MAX: usize = 4096;

/// The token in `path`; blanks around it do not count.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let text = std::fs::read(path).map_err(|error| CliError::file("token file", path, &error))?;
    let token = text.trim_ascii();
    match token.len() {
        1..=TOKEN_BYTES_MAX => Ok(token.to_vec()),
        bytes => Err(CliError::usage(format!(
            "token file {} holds {bytes} bytes, 1 to {TOKEN_BYTES_MAX} are allowed",
            path.display()
        ))),
    }
}
