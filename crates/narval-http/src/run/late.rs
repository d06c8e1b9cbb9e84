//! Requests whose answers come after their handlers have returned.

use std::io;
use std::sync::Arc;

use crate::message::informational::Informational;
use crate::message::late_answer::LateAnswer;
use crate::message::responder::{AwaitsAnswer, Later};
use crate::run::answer_context::AnswerContext;
use crate::run::connection::TxLease;
use crate::run::job::{Job, LateCall};
use crate::run::server_state::ServerState;

/// A request that waits for one.
#[derive(Debug)]
struct Waiting {
    lease: TxLease,
    context: AnswerContext,
    server: Arc<ServerState>,
}

/// Leaves the right to answer with the answer that is to come, or takes that along if it is there already.
pub(crate) fn wait(
    later: Later,
    lease: TxLease,
    context: AnswerContext,
    server: &Arc<ServerState>,
) -> Option<LateCall> {
    match later.try_take() {
        Ok(answer) => Some(LateCall { lease, context, answer }),
        Err(later) => {
            later.wait(Box::new(Waiting { lease, context, server: server.clone() }));
            None
        }
    }
}

impl AwaitsAnswer for Waiting {
    fn answer(self: Box<Self>, answer: LateAnswer) {
        let Self { lease, context, server } = *self;
        server.pool.push_continued(Job::Late(Box::new(LateCall { lease, context, answer })));
    }

    fn inform(&self, message: &Informational<'_>) -> io::Result<bool> {
        match self.lease.connection() {
            Some(connection) if Informational::is_known_to(self.context.to.version) => {
                connection.send_ahead(message.encode())
            }
            _ => Ok(false),
        }
    }
}
