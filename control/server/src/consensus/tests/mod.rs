//! Tests of the parts that only this module sees.
