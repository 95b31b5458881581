//! Sealog, the command: hands its arguments to the CLI and its status to the system.
//!
//! **Invariants**
//! - The exit status is one that `docs/cli.md` documents.
//!
//! **Not here**: everything else (`cli`).

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
