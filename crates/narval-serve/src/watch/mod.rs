//! What the page's Status shows: the last hour ([`history`]), what is under way ([`under_way`]), and what is wrong ([`problems`]).

pub(crate) mod history;
pub(crate) mod problems;
pub(crate) mod under_way;

pub(crate) use history::{History, Totals};
pub(crate) use under_way::{Gauge, GaugeGuard, Transferring, Transfers};
