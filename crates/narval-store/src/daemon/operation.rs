//! What is asked of the daemon.

/// The supported operations and their numbers (`worker-protocol.hh`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Greeting,
    IsValidPath,
    QueryReferrers,
    AddTempRoot,
    AddIndirectRoot,
    SetOptions,
    QueryAllValidPaths,
    QueryPathInfo,
    QueryPathFromHashPart,
    QueryValidPaths,
    CollectGarbage,
    AddToStoreNar,
    AddMultipleToStore,
}

impl Operation {
    pub(super) const fn code(self) -> u64 {
        match self {
            Self::Greeting => 0,
            Self::IsValidPath => 1,
            Self::QueryReferrers => 6,
            Self::AddTempRoot => 11,
            Self::AddIndirectRoot => 12,
            Self::SetOptions => 19,
            Self::QueryAllValidPaths => 23,
            Self::QueryPathInfo => 26,
            Self::QueryPathFromHashPart => 29,
            Self::CollectGarbage => 20,
            Self::QueryValidPaths => 31,
            Self::AddToStoreNar => 39,
            Self::AddMultipleToStore => 44,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Greeting => "the greeting",
            Self::IsValidPath => "IsValidPath",
            Self::QueryReferrers => "QueryReferrers",
            Self::AddTempRoot => "AddTempRoot",
            Self::AddIndirectRoot => "AddIndirectRoot",
            Self::SetOptions => "SetOptions",
            Self::QueryAllValidPaths => "QueryAllValidPaths",
            Self::QueryPathInfo => "QueryPathInfo",
            Self::QueryPathFromHashPart => "QueryPathFromHashPart",
            Self::CollectGarbage => "CollectGarbage",
            Self::QueryValidPaths => "QueryValidPaths",
            Self::AddToStoreNar => "AddToStoreNar",
            Self::AddMultipleToStore => "AddMultipleToStore",
        }
    }
}
