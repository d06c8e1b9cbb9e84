//! What is known of how an upstream answers, and what is counted of it. A neighbour is one, too.

pub(in crate::upstream) mod counts;
pub(in crate::upstream) mod failures;
pub(in crate::upstream) mod health;
pub(in crate::upstream) mod listed;
pub(in crate::upstream) mod nearby;
pub(in crate::upstream) mod neighbour_counts;
pub(in crate::upstream) mod presence;
pub(in crate::upstream) mod probe;
