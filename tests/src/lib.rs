//! Simulator, golden files, crash and tidy tests of Sealog.
