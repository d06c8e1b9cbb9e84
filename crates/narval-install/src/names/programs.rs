//! Which packages have a program: the list that the channels of NixOS have in their expressions, `programs.sqlite` of `nixexprs.tar.xz`.
//!
//! The archive is read as a stream up to that file. What is in the database is copied to a file of lines, once per release: a database that somebody else
//! has made is not opened again.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use narval_cache::CacheFile;
use narval_client::{Client, OwnCodings, Url, escaped};
use narval_files::{TemporaryFile, Work};
use narval_names::{Index, NamesError};
use narval_nix::Compression;
use narval_store::lock_file;
use rusqlite::{Connection, OpenFlags};

use super::channel::{Channel, NamesFolder, TEMPORARY, decoded, fetch_error, file_name, names_error};
use narval_transfer::Error;

/// The archive, and the file in its top folder.
const ARCHIVE: &str = "nixexprs.tar.xz";
const FILE: &str = "programs.sqlite";
/// The most bytes of the archive, decompressed, and of the file in it.
const ARCHIVE_LEN_MAX: u64 = 2 << 30;
const FILE_LEN_MAX: u64 = 256 << 20;
/// The most programs, and the longest name of one, or of a package.
const PROGRAMS_MAX: usize = 5_000_000;
const NAME_LEN_MAX: usize = 512;
/// The most bytes of all lines.
const LINES_LEN_MAX: usize = 256 << 20;
/// A block of an archive.
const BLOCK: usize = 512;

/// The programs of a release.
#[derive(Debug)]
pub struct Programs(PathBuf);

impl NamesFolder {
    fn programs_path(&self, index: &Index) -> PathBuf {
        let fact = |name: &str| index.fact(name).unwrap_or_default();
        self.path().join(format!("{}.programs", file_name(&format!("{}-{}", fact("release"), fact("revision")))))
    }

    /// The programs of the release that an index is of, if they were fetched.
    pub fn programs(&self, index: &Index) -> Option<Programs> {
        Some(Programs(self.programs_path(index))).filter(|programs| programs.0.is_file())
    }

    /// Fetches the programs of a release, unless they are there. A release that has no list of them has none.
    ///
    /// # Errors
    /// If the archive cannot be fetched, or is not what it should be.
    pub fn fetch_programs(
        &self,
        (channel, index): (&Channel, &Index),
        client: &Arc<Client>,
        lock_timeout: Duration,
        work: &Work,
    ) -> Result<Programs, Error> {
        self.create()?;
        let path = self.programs_path(index);
        let _lock = lock_file(&path.with_extension("lock"), lock_timeout)?;
        if path.is_file() {
            return Ok(Programs(path));
        }
        let fail = |source| names_error(channel, source);
        let url = Url::parse(index.fact("release").unwrap_or_default())?.child(ARCHIVE)?;
        let opened = CacheFile::open_coded(client, &url, OwnCodings::default(), false);
        let mut lines = Vec::new();
        if let Some(file) = opened.map_err(|source| fetch_error(channel, ARCHIVE, source))? {
            work.begin("reading the channel's programs", "", 0, file.total_len().unwrap_or_default());
            let temporary = TemporaryFile::create(self.path(), TEMPORARY, 0o600).map_err(|error| fail(error.into()))?;
            let archive = decoded(file, &Compression::Xz, work).map_err(fail)?;
            let found = extract(archive, &mut temporary.file()).map_err(NamesError::from);
            if work.is_stopped() {
                return Err(Error::Interrupted);
            }
            if found.map_err(fail)? {
                lines = read(temporary.path()).map_err(fail)?;
            }
        }
        let temporary = TemporaryFile::create(self.path(), TEMPORARY, 0o644).map_err(|error| fail(error.into()))?;
        let mut out = BufWriter::new(temporary.file());
        let written = lines.iter().try_for_each(|line| out.write_all(line.as_bytes())).and_then(|()| out.flush());
        drop(out);
        written.and_then(|()| temporary.persist(&path)).map_err(|error| Error::file("write", &path, error))?;
        Ok(Programs(path))
    }
}

impl Programs {
    /// The attributes of packages for a system that have a program of this name.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn with(&self, program: &str, system: &str) -> Result<Vec<String>, Error> {
        let failed = |error: io::Error| Error::file("read", &self.0, error);
        let beginning = format!("{program}\t{system}\t");
        let mut found = Vec::new();
        for line in BufReader::new(File::open(&self.0).map_err(failed)?).lines() {
            found.extend(line.map_err(failed)?.strip_prefix(&beginning).map(str::to_owned));
        }
        Ok(found)
    }

    /// Whether the release has a list of programs.
    pub fn are_there(&self) -> bool {
        fs::metadata(&self.0).is_ok_and(|found| found.len() > 0)
    }
}

/// Copies the database out of an archive (POSIX ustar, as `tar` of GNU writes it). Returns whether it has one.
fn extract(mut archive: impl Read, to: &mut impl Write) -> io::Result<bool> {
    let invalid = |why: &str| io::Error::new(ErrorKind::InvalidData, format!("{ARCHIVE}: {why}"));
    let mut left = ARCHIVE_LEN_MAX;
    let mut block = [0_u8; BLOCK];
    loop {
        match archive.read_exact(&mut block) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(invalid("it ends too early")),
            read => read?,
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(false);
        }
        let field = |from: usize, to: usize| block.get(from..to).unwrap_or_default();
        let number = |from: usize, to: usize| {
            let text = field(from, to).iter().copied().filter(u8::is_ascii_digit).map(char::from).collect::<String>();
            u64::from_str_radix(&text, 8).ok()
        };
        let sum: u64 =
            (0..).zip(&block).map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) }).sum();
        let len =
            number(124, 136).filter(|_| number(148, 156) == Some(sum)).ok_or_else(|| invalid("a header is wrong"))?;
        let padded = len.checked_next_multiple_of(BLOCK as u64).ok_or_else(|| invalid("a header is wrong"))?;
        left = left
            .checked_sub(padded + BLOCK as u64)
            .ok_or_else(|| invalid(&format!("it has more than {ARCHIVE_LEN_MAX} bytes")))?;
        let name = field(0, 100).split(|byte| *byte == 0).next().unwrap_or_default();
        let is_it = name.strip_prefix(b"./").unwrap_or(name).split(|byte| *byte == b'/').skip(1).eq([FILE.as_bytes()]);
        if is_it && [0, b'0'].contains(&block[156]) {
            if len > FILE_LEN_MAX {
                return Err(invalid(&format!("{FILE} has more than {FILE_LEN_MAX} bytes")));
            }
            return match io::copy(&mut archive.take(len), to)? == len {
                true => Ok(true),
                false => Err(invalid("it ends too early")),
            };
        }
        if io::copy(&mut (&mut archive).take(padded), &mut io::sink())? != padded {
            return Err(invalid("it ends too early"));
        }
    }
}

/// The programs of a database, as sorted lines of program, system and package. Whoever made it is not trusted: only a plain table is read.
fn read(path: &Path) -> Result<Vec<String>, NamesError> {
    let invalid = |reason: String| NamesError::Invalid { what: FILE.to_owned(), reason };
    let failed = |error: rusqlite::Error| invalid(error.to_string().chars().filter(|c| !c.is_control()).collect());
    let path = path.to_str().ok_or_else(|| invalid("the name of the folder of names is not UTF-8".to_owned()))?;
    // Without a journal beside it, or locks.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let database = Connection::open_with_flags(format!("file:{}?immutable=1", escaped(path)), flags).map_err(failed)?;
    database
        .execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0")
        .map_err(failed)?;
    let count = |sql: &str| database.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(failed);
    let tables = count(
        "SELECT count(*) FROM sqlite_master WHERE name = 'Programs' AND type = 'table' AND sql LIKE 'CREATE TABLE %'",
    )?;
    // Generated columns run whatever their author wants.
    if tables != 1 || count("SELECT count(*) FROM pragma_table_xinfo('Programs') WHERE hidden <> 0")? != 0 {
        return Err(invalid("it has no plain table 'Programs'".to_owned()));
    }
    let mut statement = database.prepare("SELECT name, system, package FROM Programs").map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    let (mut lines, mut len) = (Vec::new(), 0);
    while let Some(row) = rows.next().map_err(failed)? {
        let mut line = String::new();
        for (column, end) in [(0, '\t'), (1, '\t'), (2, '\n')] {
            let value = row.get_ref(column).map_err(failed)?;
            let text = value.as_str().map_err(|error| invalid(error.to_string()))?;
            let is_name = !text.is_empty() && text.len() <= NAME_LEN_MAX && !text.contains('/');
            if !is_name || text.chars().any(char::is_control) {
                return Err(invalid("a name has a '/', a control character, or is too long or empty".to_owned()));
            }
            line.push_str(text);
            line.push(end);
        }
        len += line.len();
        lines.push(line);
        if lines.len() > PROGRAMS_MAX || len > LINES_LEN_MAX {
            return Err(NamesError::Limit { what: FILE, limit: PROGRAMS_MAX as u64, unit: "programs" });
        }
    }
    lines.sort();
    Ok(lines)
}
