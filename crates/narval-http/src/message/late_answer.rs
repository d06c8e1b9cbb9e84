use http::StatusCode;

use crate::Response;

/// A late answer that is ready to send.
#[derive(Debug)]
pub(crate) struct LateAnswer {
    pub(crate) response: Response,
    pub(crate) changes: Changes,
}

impl LateAnswer {
    /// The answer if there is none.
    pub(crate) fn failed() -> Self {
        Self { response: Response::new(StatusCode::INTERNAL_SERVER_ERROR), changes: Changes::default() }
    }

    /// Worker: applies the recorded changes, and returns the response to send. The changes may panic, as handlers may.
    pub(crate) fn take(self) -> Response {
        self.changes.0.into_iter().fold(self.response, |answer, change| change(answer))
    }
}

/// Changes to a late answer, in this order.
#[derive(Default)]
pub(crate) struct Changes(pub(crate) Vec<Box<dyn FnOnce(Response) -> Response + Send>>);

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Changes({})", self.0.len())
    }
}
