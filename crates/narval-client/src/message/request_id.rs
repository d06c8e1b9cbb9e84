//! What a thread's requests carry: an id (`X-Request-Id`), so that the logs of a server and of those it asks can be joined, and the context of a trace.

use std::cell::RefCell;
use std::sync::Arc;

use super::context::Context;

thread_local! {
    static CURRENT: RefCell<Carried> = const { RefCell::new(Carried { id: None, trace: None }) };
}

/// What requests carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    id: Option<Arc<str>>,
    trace: Option<Context>,
}

impl Carried {
    /// Only letters, digits, `.`, `_` and `-` are allowed in an id; requests carry no other ids.
    pub fn new(id: Option<Arc<str>>, trace: Option<Context>) -> Self {
        // It becomes a field line.
        let is_plain = |id: &Arc<str>| {
            !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        Self { id: id.filter(is_plain), trace }
    }

    /// The id.
    pub const fn id(&self) -> Option<&Arc<str>> {
        self.id.as_ref()
    }

    /// The context of the trace.
    pub const fn trace(&self) -> Option<Context> {
        self.trace
    }
}

/// What this thread's requests carry. Pass it on to threads that work for the same request.
pub fn current() -> Carried {
    CURRENT.with_borrow(Clone::clone)
}

/// Makes this thread's requests carry this until the result is dropped.
///
/// ```
/// use narval_client::request_id::{self, Carried};
///
/// let entered = request_id::enter(Carried::new(Some("4bf92f3577b34da6".into()), None));
/// assert_eq!(request_id::current().id().map(|id| &**id), Some("4bf92f3577b34da6"));
/// drop(entered);
/// assert_eq!(request_id::current(), Carried::default());
/// ```
pub fn enter(carried: Carried) -> Entered {
    Entered(CURRENT.replace(carried))
}

/// Restores what the thread's requests carried before.
#[derive(Debug)]
pub struct Entered(Carried);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(std::mem::take(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_cannot_end_its_line() {
        let id = || current().id().map(ToString::to_string);
        let _outer = enter(Carried::new(Some("a-1".into()), None));
        for hostile in ["", "a\r\nX: y", "a b"] {
            let _inner = enter(Carried::new(Some(hostile.into()), None));
            assert_eq!(id(), None, "{hostile:?}");
        }
        assert_eq!(id().as_deref(), Some("a-1"));
    }
}
