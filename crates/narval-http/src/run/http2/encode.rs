use crate::http1::response_head::has_content;
use crate::http2::response::{block, prepared_block};
use crate::message::body::produced::Produced;
use crate::message::response::{Response, ResponseKind};
use crate::observe::access_log::Watch;
use crate::ws;

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Its header block.
    pub(crate) block: Vec<u8>,
    /// `None` without a body, or with an empty one.
    pub(crate) body: Option<Produced>,
    pub(crate) note: Option<Box<Watch>>,
    /// The stream becomes this WebSocket.
    pub(crate) accepted: Option<ws::Accepted>,
}

/// Encodes a response for a stream. `is_head`: the request is a HEAD.
pub(crate) fn encode(mut response: Response, is_head: bool, note: Option<Box<Watch>>) -> Answer {
    let accepted = ws::Accepted::take(&mut response);
    match response.kind {
        ResponseKind::Prepared(prepared) => {
            let has_body = !is_head && has_content(prepared.status) && !prepared.body.is_empty();
            let body = has_body.then(|| Produced::memory(prepared.body.clone()));
            Answer { status: prepared.status.as_u16(), block: prepared_block(&prepared), body, note, accepted }
        }
        ResponseKind::Plain { status, headers, body } => {
            // What follows the head of an accepted WebSocket is no body.
            let length = body.length().filter(|_| accepted.is_none());
            let block = block(status, &headers, length, is_head);
            let has_body = !is_head && has_content(status) && body.length() != Some(0);
            let body = has_body.then(|| Produced::new(body));
            Answer { status: status.as_u16(), block, body, note, accepted }
        }
    }
}
