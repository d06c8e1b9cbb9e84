//! How many names the two files of a channel decide: `measure FOLDER [built]`. The folder has `packages.json.br` and `store-paths.xz`, the right answers
//! (`answers.tsv.xz`: attribute, system, output, path) and what each path refers to (`references.tsv.xz`). With `built`, the paths of `not-built.tsv.xz`
//! are left out. docs/performance.md has the figures.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

use narval_names::{Builder, Decision, Evidence, Index, SystemWalk, join, read_packages, read_store_paths};
use narval_nix::StorePath;
use narval_nix::store_path::StorePathError;

struct Inputs(HashMap<StorePath, Vec<StorePath>>);

impl Evidence for Inputs {
    fn references(&mut self, paths: &[StorePath]) -> Vec<Option<Vec<StorePath>>> {
        // What is not in the list is a source or a builder: it has no inputs.
        paths.iter().map(|path| Some(self.0.get(path).cloned().unwrap_or_default())).collect()
    }

    fn deriver(&mut self, _: &StorePath) -> Option<StorePath> {
        None
    }

    fn c_library(&mut self, path: &StorePath) -> Vec<String> {
        match path.base_name() {
            "g1g31ah55xdia1jdqabv1imf6mcw0nb1-glibc-2.25-49" => vec!["x86_64-linux".to_owned()],
            "d7zs3iz5ingfvvx85nf4gxadfqs7nv7w-glibc-2.25-49" => vec!["i686-linux".to_owned()],
            _ => Vec::new(),
        }
    }
}

fn path(text: &str) -> Result<StorePath, StorePathError> {
    StorePath::parse(text.trim_start_matches("/nix/store/"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("a folder")?;
    let folder = Path::new(&folder);
    let lines = |name: &str| -> Result<_, std::io::Error> {
        Ok(BufReader::new(liblzma::read::XzDecoder::new(File::open(folder.join(format!("{name}.xz")))?)).lines())
    };
    let left_out: HashSet<String> = match args.next() {
        Some(_) => lines("not-built.tsv")?
            .map(|line| line.map(|line| line.split('\t').next().unwrap_or_default().to_owned()))
            .collect::<Result<_, _>>()?,
        None => HashSet::new(),
    };
    let begun = Instant::now();
    let mut builder = Builder::default();
    let packages = File::open(folder.join("packages.json.br"))?;
    read_packages(brotli::Decompressor::new(packages, 64 * 1024), &mut builder)?;
    let kept: String = lines("store-paths")?
        .map_while(Result::ok)
        .filter(|line| !left_out.contains(line))
        .map(|line| line + "\n")
        .collect();
    read_store_paths(kept.as_bytes(), &mut builder)?;
    let file = std::env::temp_dir().join("measured.names");
    builder.write(&mut File::create(&file)?)?;
    println!("index: {} bytes in {:?}", std::fs::metadata(&file)?.len(), begun.elapsed());
    let begun = Instant::now();
    let index = Index::open(&file)?;
    println!("{:?}; opened in {:?}", index.counts(), begun.elapsed());
    let mut inputs = Inputs(HashMap::new());
    for line in lines("references.tsv")? {
        let line = line?;
        let (of, to) = line.split_once('\t').unwrap_or((&line, ""));
        let to: Result<_, _> = to.split(' ').filter(|text| !text.is_empty()).map(path).collect();
        inputs.0.insert(path(of)?, to?);
    }
    let (mut walk, mut counts) = (SystemWalk::default(), BTreeMap::<String, (usize, Vec<String>)>::new());
    let begun = Instant::now();
    for line in lines("answers.tsv")? {
        let line = line?;
        let parts: Vec<_> = line.split('\t').collect();
        let [attribute, system, output, answer] = parts[..] else { continue };
        if system != "x86_64-linux" {
            continue;
        }
        let Some(package) = index.package(attribute)? else {
            counts.entry("no attribute".to_owned()).or_default().0 += 1;
            continue;
        };
        let wanted = package.system.clone();
        let decision = join(&index, &package, (output, &wanted), &mut walk, &mut inputs)?;
        let answer = path(answer)?;
        let mut said = match decision {
            Decision::One(path) if path == answer => "right",
            Decision::One(_) => "WRONG",
            Decision::Several { left, .. } if left.len() == 1 => "one, but twins",
            Decision::Several { .. } => "several",
            Decision::OtherSystems(_) => "other systems",
            Decision::Absent => "absent",
        }
        .to_owned();
        if output == package.output {
            said.push_str(", default output");
        }
        if !package.problems.is_empty() {
            said.push_str(", with problems");
        }
        let (count, examples) = counts.entry(said).or_default();
        *count += 1;
        if examples.len() < 6 {
            examples.push(attribute.to_owned());
        }
    }
    println!("decided in {:?}", begun.elapsed());
    let all: usize = counts.values().map(|(count, _)| count).sum();
    for (said, (count, examples)) in counts {
        println!("{count:6} {:5.2} % {said}: {}", count as f64 * 100.0 / all as f64, examples.join(" "));
    }
    Ok(())
}
