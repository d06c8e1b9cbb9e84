//! A `packages.json` or an evaluation that is read becomes an index that has the same attributes: without control characters, and each found by its name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_names::{Builder, Index, read_evaluation, read_packages};

fn check(builder: Builder) {
    let (attributes, _) = builder.counts();
    let file = std::env::temp_dir().join(format!("narval-fuzz-packages-{}", std::process::id()));
    builder.write(&mut std::fs::File::create(&file).expect("a temporary file")).expect("written");
    let index = Index::open(&file).expect("what was written is read");
    assert!(index.counts().attributes <= attributes as u64);
    let mut packages = Vec::new();
    index.packages(&mut |package| {
        packages.push(package);
        packages.len() < 100
    }).expect("read");
    for package in packages {
        let texts = [&package.attribute, &package.name, &package.version, &package.description, &package.homepage];
        assert!(!texts.iter().any(|text| text.chars().any(char::is_control)));
        assert!(package.outputs.contains(&package.output) && !package.default_outputs().is_empty());
        assert!(package.path_names("out").iter().all(|name| !name.contains('/')));
        assert!(index.attributes_named(&package.name).expect("read").contains(&package.attribute));
        assert_eq!(index.package(&package.attribute).expect("read"), Some(package));
    }
}

fuzz_target!(|json: &[u8]| {
    let mut builder = Builder::default();
    if read_packages(json, &mut builder).is_ok() {
        check(builder);
    }
    let mut builder = Builder::default();
    if read_evaluation(json, &mut builder).is_ok() {
        check(builder);
    }
});
