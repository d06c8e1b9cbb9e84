//! Checks the index against the files.

use std::collections::HashMap;
use std::io::{self, Read};

use narval_nix::HashPart;

use crate::cache::Cache;
use crate::data::Data;
use crate::records::paths::PathRecord;
use crate::rejection::Rejection;
use crate::retention::nar_of;
use crate::shared::Finder;
use crate::storage::{Below, StoredFile};
use narval_files::Work;
use narval_store::hash_of;

/// Options of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsckOptions {
    /// Whether to read every NAR's file and compare its hash; otherwise only the lengths are compared.
    pub contents: bool,
    /// Whether to remove lost paths from the index, restore what can be restored, and delete stray files.
    pub repair: bool,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FsckReport {
    /// The number of checked paths.
    pub paths: usize,
    /// The number of checked NAR files.
    pub files: usize,
    /// The problems, one line each.
    pub problems: Vec<String>,
    /// Whether it was stopped before its end.
    pub is_stopped: bool,
}

impl Data {
    /// Checks all caches.
    ///
    /// # Errors
    /// If the index or a folder cannot be read.
    pub fn fsck(&self, options: FsckOptions, work: &Work) -> Result<FsckReport, Rejection> {
        let mut report = FsckReport::default();
        match self.fsck_all(options, work, &mut report) {
            Err(_) if work.is_stopped() => report.is_stopped = true,
            result => result?,
        }
        Ok(report)
    }

    fn fsck_all(&self, options: FsckOptions, work: &Work, report: &mut FsckReport) -> Result<(), Rejection> {
        self.caches().map_err(Rejection::failed)?.iter().try_for_each(|cache| cache.fsck_into(options, work, report))
    }
}

impl Cache {
    /// Checks this cache.
    ///
    /// # Errors
    /// If the index or a folder cannot be read.
    pub fn fsck(&self, options: FsckOptions, work: &Work) -> Result<FsckReport, Rejection> {
        let mut report = FsckReport::default();
        match self.fsck_into(options, work, &mut report) {
            Err(_) if work.is_stopped() => report.is_stopped = true,
            result => result?,
        }
        Ok(report)
    }

    fn fsck_into(&self, options: FsckOptions, work: &Work, report: &mut FsckReport) -> Result<(), Rejection> {
        if options.repair {
            self.restore_lost()?;
        }
        self.fsck_nars(options, work, report)?;
        self.fsck_paths(options, work, report)?;
        self.fsck_strays(options, work, report)
    }

    /// The name of a file of this cache, for messages.
    pub(crate) fn named(&self, name: &str) -> String {
        self.files().place().join(name).display().to_string()
    }

    fn fsck_nars(&self, options: FsckOptions, work: &Work, report: &mut FsckReport) -> Result<(), Rejection> {
        let fail = |error: io::Error| Rejection::of_file("list", self.files().place().display(), &error);
        let stored = self.files().list(Below::Folder("nar")).map_err(fail)?;
        let stored: HashMap<String, u64> = stored.into_iter().map(|file| (file.name, file.len)).collect();
        let files = self.index().files(self.id())?;
        let bytes = files.iter().map(|(_, nar)| nar.file_size).sum();
        work.begin("checking", "NARs", files.len() as u64, if options.contents { bytes } else { 0 });
        for (name, nar) in files {
            report.files += 1;
            work.count(1);
            let stored_name = format!("nar/{name}");
            let named = self.named(&stored_name);
            let fail = |error: io::Error| Rejection::of_file("read", &named, &error);
            work.check().map_err(fail)?;
            let has_length = stored.get(&stored_name) == Some(&nar.file_size);
            let is_read = has_length && options.contents;
            let is_fine = match is_read {
                true => match self.files().read(&stored_name).map_err(fail)? {
                    Some(file) => hash_of(&mut work.reading(file)).map_err(fail)? == nar.file_hash,
                    None => false,
                },
                false => has_length,
            };
            if is_fine {
                continue;
            }
            let exists = self.files().check_nar(&name, &nar).map_err(fail)?;
            // One that was stored after the files were listed was not read. And it may have been removed: the row goes first.
            if (exists && !is_read) || !self.has_row(&name, &nar)? {
                continue;
            }
            let problem = if exists { "damaged" } else { "missing or truncated" };
            report.problems.push(format!("'{named}' is {problem}"));
            if options.repair {
                self.lost(&name, &nar, Finder::Fsck { is_damaged: exists })?;
            }
        }
        Ok(())
    }

    fn fsck_paths(&self, options: FsckOptions, work: &Work, report: &mut FsckReport) -> Result<(), Rejection> {
        work.begin("checking", "narinfos", self.index().usage(self.id())?.paths, 0);
        self.each_path(|listed| {
            report.paths += 1;
            work.count(1);
            let name = format!("{}.narinfo", listed.hash_part);
            let fail = |error: io::Error| Rejection::of_file("write", self.named(&name), &error);
            work.check().map_err(fail)?;
            let is_same = |record: &PathRecord| self.text(&name).is_ok_and(|text| text == record.narinfo);
            if self.index().path(self.id(), &listed.hash_part)?.is_none_or(|record| is_same(&record)) {
                return Ok(());
            }
            let _alone = self.alone()?;
            if let Some(record) = self.index().path(self.id(), &listed.hash_part)?.filter(|record| !is_same(record)) {
                report.problems.push(format!("'{}' does not match the index", self.named(&name)));
                if options.repair {
                    self.repair_narinfo(record.hash_part, &name)?;
                }
            }
            Ok(())
        })
    }

    fn repair_narinfo(&self, part: HashPart, name: &str) -> Result<(), Rejection> {
        let failed = |error| Rejection::failed(format_args!("'{}': {error}", self.named(name)));
        self.publish_again(part).map_err(failed)
    }

    /// The contents of a small file; empty if there is none.
    pub(crate) fn text(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        if let Some((mut file, _)) = self.files().open(name)? {
            file.read_to_end(&mut text)?;
        }
        Ok(text)
    }

    /// The cache's narinfos and listings, and its NARs.
    pub(crate) fn named_files(&self) -> Result<Vec<StoredFile>, Rejection> {
        let fail = |error: io::Error| Rejection::of_file("list", self.files().place().display(), &error);
        let mut files = self.files().list(Below::Root).map_err(fail)?;
        files.extend(self.files().list(Below::Folder("nar")).map_err(fail)?);
        Ok(files)
    }

    /// Narinfos, listings and NARs among the cache's files that the index does not have.
    fn fsck_strays(&self, options: FsckOptions, work: &Work, report: &mut FsckReport) -> Result<(), Rejection> {
        let mut stray_nars = Vec::new();
        let files = self.named_files()?;
        work.begin("looking for strays among", "files", files.len() as u64, 0);
        for StoredFile { name, modified, .. } in files {
            work.count(1);
            work.check().map_err(|error| Rejection::of_file("look at", self.named(&name), &error))?;
            // Whether they have rows is asked for many at once. A listing belongs to the NAR before its extension.
            if let Some(nar) = nar_of(&name) {
                stray_nars.push((nar.to_owned(), modified));
                continue;
            }
            let part = name.strip_suffix(".narinfo").or_else(|| name.strip_suffix(".ls"));
            let part = part.and_then(|part| part.parse::<HashPart>().ok());
            let Some(part) = part else { continue };
            let is_stray = || self.index().path(self.id(), &part).map(|path| path.is_none());
            if !is_stray()? {
                continue;
            }
            let _alone = self.alone()?;
            if is_stray()? {
                report.problems.push(format!("'{}' is a file that the index does not have", self.named(&name)));
                if options.repair {
                    // Somebody may push the path, and publish its narinfo.
                    self.repair_narinfo(part, &name)?;
                }
            }
        }
        stray_nars.sort_unstable();
        stray_nars.dedup_by(|(one, _), (other, _)| one == other);
        let stray_nars = self.strays_of_nobody(stray_nars)?;
        let problem =
            |stray| format!("'{}' is a file that the index does not have", self.named(&format!("nar/{stray}")));
        report.problems.extend(stray_nars.iter().map(problem));
        if options.repair && !stray_nars.is_empty() {
            self.remove_strays(&stray_nars)?;
        }
        Ok(())
    }
}
