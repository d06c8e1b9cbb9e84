//! The rules on which the consistency of caches rests, by name: `simulator/rule.rs` says what they are. The simulation takes out one at a time,
//! and has to find what goes wrong without it. Elsewhere, all of them hold.

/// Whether a rule is in force.
#[cfg(test)]
macro_rules! holds {
    ($rule:ident) => {
        $crate::simulator::rule::holds($crate::simulator::rule::Rule::$rule)
    };
}

/// Whether a rule is in force.
#[cfg(not(test))]
macro_rules! holds {
    ($rule:ident) => {
        $crate::rule::HOLDS
    };
}

#[cfg(not(test))]
pub(crate) const HOLDS: bool = true;

pub(crate) use holds;
