//! Tests of all statements.

pub(in crate::index) mod plans;
