use std::sync::Arc;

use crate::http1::response_head::AnswerTo;
use crate::message::body_pipe::BodyPipe;
use crate::observe::access_log::Watch;

/// What a job needs to know about a request in order to answer it, beside the request itself.
#[derive(Debug)]
pub(crate) struct AnswerContext {
    /// The form of the answer.
    pub(crate) to: AnswerTo,
    /// The body, where it is streamed.
    pub(crate) body: Option<Arc<BodyPipe>>,
    /// What is to be noted at its end.
    pub(crate) watch: Option<Box<Watch>>,
}
