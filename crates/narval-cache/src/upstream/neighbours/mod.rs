//! Neighbours: near caches on the same network, which are upstreams that come and go.
//!
//! A neighbour is a `Remote` without keys of its own. What it costs and gives is limited:
//!
//! - All are asked at once, whether one has a NAR, or fetches it already. Nobody waits for longer than 50 ms, or a multiple of what they usually
//!   take where machines are busy: who has not answered by then
//!   is not asked again before it has, and forgotten if it does not.
//! - Machines that want the same NAR at the same moment ask each other first. The one that ranks highest for it fetches it from its upstream, and
//!   the others follow, also while it is silent, if it has kept a promise before. Those that give up ask each other again: so the line that
//!   they share carries a NAR once more, and not once for each of them.
//! - A NAR that a neighbour sends is not passed on before all of it is verified against the narinfo, which a trusted key has signed. If it is wrong, the
//!   neighbours that sent it are forgotten, and it is fetched again from its start.
//! - Narinfos are asked of upstreams. Only if none answers, neighbours are asked, and a key of an upstream must have signed what they say.
//! - Who is forgotten is not asked for five seconds, and twice as long each time.
//!
//! Who they are is in `shared/neighbours.rs`.

pub(in crate::upstream) mod asking;
pub(in crate::upstream) mod offers;
