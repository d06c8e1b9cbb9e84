//! The audit log, where it is in the database: only in PostgreSQL.

use crate::index::tx::{Arg, DEADLINE_LARGE, How, NOTE_LATER, Reading, Row, TxError, args, statements};
use crate::index::{Index, IndexError};
use crate::records::audit::AuditLine;

statements! {
    ADD() {
        time: Int, token: Text, label: Text, peer: Text, cache: Text, action: Text, subject: Text, result: Text, detail: Text
    } = "insert into narval.audit (time, token, label, peer, cache, action, subject, result, detail) select * from {rows}";
    AFTER(Int, Int, Int) = "select id, time, token, label, peer, cache, action, subject, result, detail from narval.audit \
         where id > $1 and time >= $2 order by id limit $3";
    FORGET(Int) = "delete from narval.audit where time < $1";
}

/// A text that PostgreSQL can store: without NUL.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn line(row: &dyn Row) -> Result<(i64, AuditLine), TxError> {
    let line = AuditLine {
        time: row.get(1)?,
        token: row.get(2)?,
        label: row.get(3)?,
        peer: row.get(4)?,
        cache: row.get(5)?,
        action: row.get(6)?,
        subject: row.get(7)?,
        result: row.get(8)?,
        detail: row.get(9)?,
    };
    Ok((row.get(0)?, line))
}

impl dyn Index + '_ {
    /// Adds lines to the audit log, in their order.
    pub(crate) fn add_audit(&self, lines: &[AuditLine]) -> Result<(), IndexError> {
        let texts = |line: &AuditLine| {
            let AuditLine { time, token, label, peer, cache, action, subject, result, detail } = line;
            let (peer, cache) = (peer.as_deref(), cache.as_deref());
            let texts =
                [Some(&**token), Some(label), peer, cache, Some(action), Some(subject), Some(result), Some(detail)];
            (*time, texts.map(|text| text.map(storable)))
        };
        let lines: Vec<(u64, [Option<String>; 8])> = lines.iter().map(texts).collect();
        self.write(NOTE_LATER, move |tx| {
            let mut rows: Vec<Arg<'_>> = Vec::new();
            for (time, texts) in &lines {
                rows.push((*time).into());
                rows.extend(texts.iter().map(|text| Arg::from(text.as_deref())));
            }
            tx.query(&ADD, &[], &rows, &mut |_| Ok(())).map(drop)
        })
    }

    /// At most this many lines of the audit log with their numbers, in their order, after this number and not before this time.
    pub(crate) fn audit(&self, after: i64, since: u64, max: usize) -> Result<Vec<(i64, AuditLine)>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&AFTER, &args![after, since, max], line))
    }

    /// Removes the lines of the audit log before this time.
    pub(crate) fn forget_audit(&self, before: u64) -> Result<(), IndexError> {
        let how = How { deadline: DEADLINE_LARGE, ..NOTE_LATER };
        self.write(how, move |tx| tx.execute(&FORGET, &args![before]).map(drop))
    }
}
