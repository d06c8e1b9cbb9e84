//! The id that a thread's requests carry (`X-Request-Id`), so that the logs of a server and of those it asks can be joined.

use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static CURRENT: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// The id of this thread's requests, if they carry one. Pass it on to threads that work for the same request.
pub fn current() -> Option<Arc<str>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Makes this thread's requests carry an id until the result is dropped. Only letters, digits, `.`, `_` and `-` are allowed;
/// requests carry no other ids.
///
/// ```
/// use narval_client::request_id;
///
/// let entered = request_id::enter(Some("4bf92f3577b34da6".into()));
/// assert_eq!(request_id::current().as_deref(), Some("4bf92f3577b34da6"));
/// drop(entered);
/// assert_eq!(request_id::current(), None);
/// ```
pub fn enter(id: Option<Arc<str>>) -> Entered {
    // It becomes a field line.
    let is_plain =
        |id: &Arc<str>| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    Entered(CURRENT.replace(id.filter(is_plain)))
}

/// Restores the thread's id from before.
#[derive(Debug)]
pub struct Entered(Option<Arc<str>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_cannot_end_its_line() {
        let _outer = enter(Some("a-1".into()));
        for hostile in ["", "a\r\nX: y", "a b"] {
            let _inner = enter(Some(hostile.into()));
            assert_eq!(current(), None, "{hostile:?}");
        }
        assert_eq!(current().as_deref(), Some("a-1"));
    }
}
