//! An index file with any contents, also where its checksums are right, is read or is damaged: in bounded time and memory.
//!
//! The first two bytes of the input are the length of a block, which follows; the rest is the directory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_names::Index;

const MAGIC: &[u8; 16] = b"narval-names-01\n";

fn read(bytes: &[u8]) {
    let file = std::env::temp_dir().join(format!("narval-fuzz-index-{}", std::process::id()));
    std::fs::write(&file, bytes).expect("a temporary file");
    let Ok(index) = Index::open(&file) else { return };
    let _ = index.package("a");
    let _ = index.packages(&mut |_| true);
    let _ = index.attributes_named("a");
    let _ = index.versions_of("a");
    let _ = index.with_program("a");
    let _ = index.paths_named("a");
    let _ = index.exact("a");
    let _ = index.search(&["a".to_owned()], 10);
    let _ = index.nearest("a", 5);
}

fuzz_target!(|input: &[u8]| {
    read(input);
    let Some((len, rest)) = input.split_first_chunk::<2>() else { return };
    let Some((block, directory)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len))) else { return };
    let compress = |bytes: &[u8]| zstd::bulk::compress(bytes, 1).expect("compressed");
    let (compressed, directory_compressed) = (compress(block), compress(directory));
    let mut file = [MAGIC.as_slice(), &compressed, &directory_compressed].concat();
    for number in [MAGIC.len() + compressed.len(), directory_compressed.len(), directory.len()] {
        file.extend((number as u64).to_le_bytes());
    }
    file.extend(MAGIC);
    read(&file);
});
