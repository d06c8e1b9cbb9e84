use std::sync::Arc;

use crate::http1::response_head::AnswerTo;
use crate::message::body_pipe::BodyPipe;
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
}
