//! Objects that are stored before their names are recorded.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use narval_nix::Compression;

use crate::NarFileName;
use crate::index::sql::work;
use crate::index::tx::{Arg, LARGE, NOTE, NOTE_LATER, Reading, Row, Tx, TxError, args, statements};
use crate::index::{CacheId, Fence, Index, IndexError, MayStore, NarRecord, NarWriter, WRITER_FRESH_FOR};
use crate::receive::receipt_key::{RECEIPT_KEY_LEN, ReceiptKey};
use crate::rule::holds;

statements! {
    IS_FRESH(Int, Int) = "select 1 from narval.writers where id = $1 and seen > {now} - $2";
    KNOWN(Int) { name: Text, nar_hash: Bytes, compression: Text } = "select r.name from {rows} \
         where exists (select 1 from narval.files f where f.cache = $1 and f.name = r.name) \
         or exists (select 1 from narval.nars n where n.cache = $1 and n.nar_hash = r.nar_hash and n.compression = r.compression)";
    /// Those that were not there for a while may come back.
    HAVE_ROWS(Int) { name: Text } = "select name from narval.files where cache = $1 and name in (select r.name from {rows}) \
         union select file from narval.lost where cache = $1 and file in (select r.name from {rows})";
    BEGIN(Int, Bytes) = "insert into narval.writers (cache, key, begun, seen) values ($1, $2, {now}, {now}) returning id";
    RENEW(Int) = "update narval.writers set seen = {now} where id = $1";
    END(Int) = "delete from narval.writers where id = $1";
    ALL(Int) = "select id, key, greatest(0, {now} - begun), greatest(0, {now} - seen) from narval.writers where cache = $1";
    /// Nothing is known of their contents: NARs of no bytes stand for them, so that they are not counted.
    ADD_NARS(Int) { hash: Bytes, compression: Text } = "insert into narval.nars \
         (cache, nar_hash, compression, nar_size, file_hash, file_size, found) select $1, r.hash, r.compression, 0, r.hash, 0, '' from {rows} \
         where true on conflict (cache, nar_hash, compression) do nothing";
    LOCK(Int) { hash: Bytes, compression: Text } = "select 1 from {rows} join narval.nars n on n.cache = $1 and n.nar_hash = r.hash \
         and n.compression = r.compression order by n.nar_hash, n.compression{lock}";
    ADD_FILES(Int, Int, Int) { name: Text, hash: Bytes, compression: Text } = "insert into narval.files \
         (cache, name, nar, added, used, orphaned, doomed, fence) select $1, r.name, n.id, $2, $2, $2, 0, $3 from {rows} \
         join narval.nars n on n.cache = $1 and n.nar_hash = r.hash and n.compression = r.compression";
}

/// Which of these names below `nar/` have a row, of whatever kind.
fn have_rows(tx: &mut dyn Tx, cache: CacheId, names: &[&str]) -> Result<Vec<bool>, TxError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<Arg<'_>> = names.iter().map(|name| Arg::from(*name)).collect();
    let found = tx.all_of(&HAVE_ROWS, &args![cache], &rows, |row| row.get::<String>(0))?;
    let found: HashSet<&str> = found.iter().map(String::as_str).collect();
    Ok(names.iter().map(|name| found.contains(name)).collect())
}

fn writer(row: &dyn Row) -> Result<NarWriter, TxError> {
    let key: [u8; RECEIPT_KEY_LEN] = row.get(1)?;
    let ago = |column| row.get(column).map(Duration::from_secs);
    Ok(NarWriter { number: row.get(0)?, key: ReceiptKey::new(key), begun: ago(2)?, seen: ago(3)? })
}

impl dyn Index + '_ {
    /// Whether these NARs may be stored under their names before those are recorded, by the writer with this number.
    pub(crate) fn may_store(
        &self,
        cache: CacheId,
        writer: i64,
        objects: &[(String, NarRecord)],
    ) -> Result<MayStore, IndexError> {
        let object = |(name, nar): &'_ (String, NarRecord)| (name.clone(), nar.nar_hash, nar.compression.name());
        let objects: Vec<_> = objects.iter().map(object).collect();
        self.read(Reading::Some, |tx| {
            // First: a collection that begins later has another number. A lease that was ended is over; one that has run out may be renewed.
            let (epoch, is_collecting) = work::state(tx)?;
            let is_quiet = !is_collecting || !holds!(Quiet);
            let has_writer = tx.is_there(&IS_FRESH, &args![writer, WRITER_FRESH_FOR])?;
            let rows: Vec<Arg<'_>> =
                objects.iter().flat_map(|(name, hash, compression)| args![name, hash, *compression]).collect();
            let known = match rows.is_empty() || !holds!(Quiet) {
                true => HashSet::new(),
                false => HashSet::from_iter(tx.all_of(&KNOWN, &args![cache], &rows, |row| row.get::<String>(0))?),
            };
            let are_new = objects.iter().map(|(name, ..)| !known.contains(name)).collect();
            Ok(MayStore { epoch: is_quiet.then_some(epoch), has_writer, are_new })
        })
    }

    /// Which of these names below `nar/` have a row, of whatever kind.
    pub(crate) fn have_rows(&self, cache: CacheId, names: &[&str]) -> Result<Vec<bool>, IndexError> {
        self.read(Reading::Some, |tx| have_rows(tx, cache, names))
    }

    /// Notes, durably, that this process stores objects before it records their names. Returns its number.
    pub(crate) fn begin_writer(&self, cache: CacheId, key: &ReceiptKey) -> Result<i64, IndexError> {
        let key = key.clone();
        self.write(NOTE, move |tx| tx.one(&BEGIN, &args![cache, &key.bytes()[..]], |row| row.get(0)))
    }

    /// Notes that a writer is alive. Returns `false` if it is not known any more.
    pub(crate) fn renew_writer(&self, number: i64) -> Result<bool, IndexError> {
        self.write(NOTE, move |tx| Ok(tx.execute(&RENEW, &args![number])? > 0))
    }

    /// Forgets a writer: all names of its objects are recorded.
    pub(crate) fn end_writer(&self, number: i64) -> Result<(), IndexError> {
        // Its end does not wait long.
        let how = crate::index::tx::How { deadline: Duration::from_secs(2), ..NOTE_LATER };
        self.write(how, move |tx| tx.execute(&END, &args![number]).map(drop))
    }

    /// The writers of a cache.
    pub(crate) fn writers(&self, cache: CacheId) -> Result<Vec<NarWriter>, IndexError> {
        self.read(Reading::Some, |tx| tx.all(&ALL, &args![cache], writer))
    }

    /// Condemns names below `nar/` that have no row. Returns them. They can be removed then, as those of [`condemn`](Self::condemn).
    pub(crate) fn condemn_strays(
        &self,
        fence: Fence,
        cache: CacheId,
        strays: &[NarFileName],
        now: u64,
    ) -> Result<Vec<String>, IndexError> {
        // Once each, and in one order.
        let compression = |stray: &NarFileName| stray.compression().unwrap_or(Compression::None).name();
        let strays: BTreeMap<String, (_, &str)> =
            strays.iter().map(|stray| (stray.to_string(), (*stray.file_hash(), compression(stray)))).collect();
        self.write_fenced(LARGE, fence, move |tx| {
            let names: Vec<&str> = strays.keys().map(String::as_str).collect();
            let known = have_rows(tx, cache, &names)?;
            let strays: Vec<_> =
                strays.iter().zip(known).filter(|(_, is_known)| !is_known).map(|(one, _)| one).collect();
            let nars: Vec<Arg<'_>> = strays.iter().flat_map(|(_, (hash, form))| args![hash, *form]).collect();
            tx.execute_all(&ADD_NARS, &args![cache], &nars)?;
            if nars.is_empty() {
                return Ok(Vec::new());
            }
            tx.all_of(&LOCK, &args![cache], &nars, |_| Ok(()))?;
            let files: Vec<Arg<'_>> =
                strays.iter().flat_map(|(name, (hash, form))| args![*name, hash, *form]).collect();
            // If somebody records one of them meanwhile, both names collide, and this is done again.
            tx.execute_all(&ADD_FILES, &args![cache, now, fence.0], &files)?;
            Ok(strays.iter().map(|(name, _)| (*name).clone()).collect())
        })
    }
}
