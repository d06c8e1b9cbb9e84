//! A list of store paths that is read has each of its lines in the index.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_names::{Builder, Index, read_store_paths};
use narval_nix::StorePath;

fuzz_target!(|list: &[u8]| {
    let mut builder = Builder::default();
    if read_store_paths(list, &mut builder).is_err() {
        return;
    }
    let file = std::env::temp_dir().join(format!("narval-fuzz-paths-{}", std::process::id()));
    builder.write(&mut std::fs::File::create(&file).expect("a temporary file")).expect("written");
    let index = Index::open(&file).expect("what was written is read");
    let lines = list.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    for line in lines.take(100) {
        let base = line.strip_prefix(b"/nix/store/").expect("checked");
        let path = StorePath::parse_bytes(base).expect("checked");
        assert!(index.paths_named(path.name()).expect("read").contains(&path));
    }
});
