//! The rules that the simulation takes out, one at a time.

/// A rule of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A transaction of a collection changes nothing if another process has the lease by now.
    Fence,
    /// A commit looks again, in its transaction, whether its references are there.
    Needed,
    /// A commit looks, in its transaction, whether its NARs are there.
    Stored,
    /// That somebody was told that a NAR without a path is here is recorded before.
    Promised,
    /// A NAR is recorded once its bytes are stored.
    Follows,
    /// The name of a NAR is never used again.
    Unique,
    /// The bytes of NARs are removed some time after their rows.
    Waits,
    /// Only what is days old and has no row is nobody's.
    Old,
    /// A pin looks, in its transaction, whether its path is there.
    PinPresent,
    /// What another process has begun is left to it for a while.
    Takeover,
    /// Whoever has published a narinfo leaves its pending entry if somebody else changes the same path.
    SettleAlone,
    /// Whoever carries out a pending entry gives it a new number before: others wait until no request for that can take effect.
    Renumbered,
    /// That a path is pushed again is recorded before that is answered, and the path is there then.
    Unchanged,
    /// Whoever has published a narinfo removes no pending entry of a later change.
    SettleOwn,
    /// A request that was sent again after an attempt without an answer has not succeeded for certain.
    Answered,
    /// No bytes of a NAR are removed while the bucket may have the narinfo of a removed path.
    Hidden,
    /// An object that the store does not have is absent only if the store has the id of the index.
    Control,
    /// The clocks that leases are measured by also run while the machine is suspended.
    Boottime,
    /// Paths are kept and collected by the time of the index, not by that of the node's machine.
    DatabaseTime,
    /// A request for a release that is sent again records none.
    Requested,
    /// A release pins its paths, in the same transaction.
    Held,
    /// A request that removes or replaces something is valid for a short time.
    Valid,
}

thread_local! {
    /// The rules that are not in force on this thread.
    pub(crate) static WITHOUT: std::cell::Cell<&'static [Rule]> = const { std::cell::Cell::new(&[]) };
}

/// Whether a rule is in force.
pub(crate) fn holds(rule: Rule) -> bool {
    !WITHOUT.get().contains(&rule)
}
