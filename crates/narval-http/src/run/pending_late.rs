use crate::message::responder::Later;
use crate::run::answer_context::AnswerContext;

/// An inline answer that follows later, and its request.
#[derive(Debug)]
pub(crate) struct PendingLate {
    pub(crate) later: Later,
    pub(crate) context: AnswerContext,
}
