use std::sync::Arc;

use crate::http1::response_head::AnswerTo;
use crate::message::body::pipe::BodyPipe;
use crate::message::departure::{Departure, Here};
use crate::message::responder::Later;
use crate::observe::access_log::Watch;

/// What a job needs besides the request itself in order to answer it.
#[derive(Debug)]
pub(crate) struct AnswerContext {
    /// How to encode the response.
    pub(crate) to: AnswerTo,
    /// The request body, if it is streamed.
    pub(crate) body: Option<Arc<BodyPipe>>,
    /// What to record at its end.
    pub(crate) watch: Option<Box<Watch>>,
    /// Whether its client has left.
    pub(crate) departure: Departure,
    /// Kept until the answer is sent. `None` on a stream of an HTTP/2 connection, which has it itself.
    pub(crate) here: Option<Here>,
}

impl AnswerContext {
    pub(crate) fn new(to: AnswerTo, body: Option<Arc<BodyPipe>>) -> Self {
        Self { to, body, watch: None, departure: Departure::default(), here: None }
    }

    /// Whoever works for the answer is told when the client leaves.
    pub(crate) fn with(self, here: Here) -> Self {
        Self { departure: here.departure().clone(), here: Some(here), ..self }
    }
}

/// An inline answer that follows later, and its request.
#[derive(Debug)]
pub(crate) struct PendingLate {
    pub(crate) later: Later,
    pub(crate) context: AnswerContext,
}
