//! Requests that are answered after their handlers have returned.

use std::sync::Arc;

use crate::message::informational::Informational;
use crate::message::responder::{Awaiting, Later};
use crate::run::answer_context::AnswerContext;
use crate::run::job::{Job, LateCall};
use crate::run::reply::Reply;
use crate::run::server::state::ServerState;

/// Leaves the right to answer with the pending answer; returns the answer if it is already there.
pub(crate) fn wait(
    later: Later,
    reply_to: Reply,
    context: AnswerContext,
    server: &Arc<ServerState>,
) -> Option<LateCall> {
    let waited = later.wait((reply_to, context), |(reply_to, context)| {
        let (departure, informer) = (context.departure.clone(), reply_to.informer());
        let informer = informer.filter(|_| Informational::is_known_to(context.to.version));
        let server = server.clone();
        let answer =
            move |answer| server.pool.push_continued(Job::Late(Box::new(LateCall { reply_to, context, answer })));
        Awaiting { answer: Box::new(answer), departure, informer }
    });
    waited.map(|(answer, (reply_to, context))| LateCall { reply_to, context, answer })
}
