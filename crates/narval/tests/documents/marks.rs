//! Which blocks of the documents are run, and which are not.

use std::io::Write;

use crate::page::{Mark, blocks, read};

/// The pages whose commands are run.
const PAGES: [&str; 22] = [
    "README.md",
    "docs/introduction.md",
    "docs/tutorial.md",
    "docs/team-cache.md",
    "docs/cache.md",
    "docs/pushing.md",
    "docs/installing.md",
    "docs/names.md",
    "docs/serve-a-store.md",
    "docs/operating.md",
    "docs/backup.md",
    "docs/upgrades.md",
    "docs/configuration.md",
    "docs/security.md",
    "docs/tls.md",
    "docs/static.md",
    "docs/scale-out.md",
    "docs/replacing.md",
    "docs/replacing-nix-serve.md",
    "docs/replacing-harmonia.md",
    "docs/replacing-attic.md",
    "docs/replacing-cachix.md",
];

#[test]
fn every_block_is_run_or_says_why_it_is_not() {
    let (mut run, mut marks, mut silent) = (0, Vec::new(), Vec::new());
    for page in PAGES {
        for block in blocks(&read(page)).into_iter().filter(|block| block.has_commands()) {
            let at = format!("{page}:{}", block.line);
            match block.mark {
                Some(Mark::Not(why)) => marks.push(format!("{at}: {why}")),
                Some(Mark::By(test)) => marks.push(format!("{at}: run by {test}")),
                Some(Mark::Needs(program)) => marks.push(format!("{at}: needs {program}")),
                None if block.language == "sh" && block.label.is_some() => run += 1,
                None => silent.push(at),
            }
        }
    }
    assert!(silent.is_empty(), "neither a terminal nor a mark: {silent:#?}");
    // Not captured, as what is printed with println!() is.
    let text = format!("documents: {run} blocks are run, {} have a mark:\n  {}\n", marks.len(), marks.join("\n  "));
    std::io::stderr().write_all(text.as_bytes()).unwrap();
    assert!(run > 40, "only {run} blocks are run");
}
