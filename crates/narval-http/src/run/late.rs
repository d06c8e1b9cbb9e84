//! Requests that are answered after their handlers have returned.

use std::io;
use std::sync::Arc;

use crate::message::informational::Informational;
use crate::message::late_answer::LateAnswer;
use crate::message::responder::{AwaitsAnswer, Later};
use crate::run::answer_context::AnswerContext;
use crate::run::job::{Job, LateCall};
use crate::run::reply::Reply;
use crate::run::server::state::ServerState;

/// A request that waits for its answer.
#[derive(Debug)]
struct Waiting {
    reply_to: Reply,
    context: AnswerContext,
    server: Arc<ServerState>,
}

/// Leaves the right to answer with the pending answer; returns the answer if it is already there.
pub(crate) fn wait(
    later: Later,
    reply_to: Reply,
    context: AnswerContext,
    server: &Arc<ServerState>,
) -> Option<LateCall> {
    let (answer, waiting) = later.wait(Waiting { reply_to, context, server: server.clone() })?;
    Some(LateCall { reply_to: waiting.reply_to, context: waiting.context, answer })
}

impl AwaitsAnswer for Waiting {
    fn answer(self: Box<Self>, answer: LateAnswer) {
        let Self { reply_to, context, server } = *self;
        server.pool.push_continued(Job::Late(Box::new(LateCall { reply_to, context, answer })));
    }

    fn is_gone(&self) -> bool {
        self.context.departure.is_gone()
    }

    fn inform(&self, message: &Informational<'_>) -> io::Result<bool> {
        if Informational::is_known_to(self.context.to.version) { self.reply_to.inform(message) } else { Ok(false) }
    }
}
