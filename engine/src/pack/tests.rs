//! Tests of packs: builder, index, blocks and verifier together.
