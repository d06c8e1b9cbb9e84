//! The rules that the simulation takes out, one at a time.

/// A rule of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A transaction of a collection changes nothing if another process has the lease by now.
    Fence,
    /// An upload waits while the bytes of its NAR are removed.
    Condemned,
    /// A commit looks again, in its transaction, whether its references are there.
    Needed,
    /// A commit looks again, in its transaction, whether the uploads of its NARs are those that it has seen.
    Placed,
    /// A NAR without a narinfo is doomed for a while before its bytes are removed.
    Doomed,
    /// A pin looks, in its transaction, whether its path is there.
    PinPresent,
    /// What another process has begun is left to it for a while.
    Takeover,
    /// A collection removes bytes only in the first half of its lease.
    HalfLease,
    /// Whoever has published a narinfo leaves its pending entry if somebody else changes the same path.
    SettleAlone,
    /// The lease of a collection is not ended while a removal may still take effect.
    Uncertain,
    /// Whoever carries out a pending entry gives it a new number before: others wait until no request for that can take effect.
    Renumbered,
    /// Only a collection with its lease removes NARs from a bucket.
    Leased,
    /// A NAR that seems to be lost is removed from the index only if nobody has stored it meanwhile.
    Doubted,
    /// That a path is pushed again is recorded before that is answered, and the path is there then.
    Unchanged,
    /// A NAR in another encoding leaves the name of the one that it replaces, for a collection to remove its object.
    Replaced,
    /// A NAR in another encoding replaces none that is in use.
    InUse,
    /// Whoever has published a narinfo removes no pending entry of a later change.
    SettleOwn,
    /// A request that was sent again after an attempt without an answer has not succeeded for certain.
    Answered,
    /// The name of an upload that was interrupted is left to a collection if its NAR is stored in another encoding since.
    Encoding,
    /// No NAR is condemned while the bucket may have the narinfo of a removed path.
    Hidden,
    /// A NAR whose bytes are stored before its name is recorded counts as stored only if no collection has begun since; otherwise its object is
    /// looked for.
    Epoch,
    /// Bytes are stored before their name is recorded only if nobody is collecting, and if the index has no row that is in the way.
    Quiet,
    /// An object without a name gets a condemned one before it is removed.
    Stray,
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
    /// A collection removes nothing more once another server answers for the index.
    Server,
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
