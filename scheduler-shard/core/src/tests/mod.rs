//! Tests of the scheduler's core.
