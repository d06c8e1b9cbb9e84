//! Names of packages: what `git`, `python3Packages.numpy` or `nodejs@22` means in a channel of nixpkgs.
//!
//! A channel publishes `packages.json` (attributes without store paths) and `store-paths` (paths without attributes). [`Builder`] turns both, or
//! an evaluation, which has both, into one index file; [`Index`] answers from it. There is no network here: streams come in, an index file goes
//! out.
//!
//! - [`read_packages`], [`read_store_paths`], [`read_evaluation`]: the files, streamed, with a limit on everything.
//! - [`Selector`]: a name as users write it. [`Index::search`], [`Index::nearest`]: names that are looked for.
//! - [`join`]: which path an attribute means, by names, C libraries and twins alone. It does not guess: see [`Decision`].
//!
//! ```
//! use narval_names::{Builder, Index, read_packages, read_store_paths};
//!
//! let packages = br#"{"version":"2","packages":{"hello":{"name":"hello-2.12","pname":"hello","version":"2.12",
//!     "system":"x86_64-linux","outputName":"out","outputs":{"out":null},"meta":{"description":"A greeting"}}}}"#;
//! let mut builder = Builder::default();
//! read_packages(&packages[..], &mut builder)?;
//! read_store_paths(&b"/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-hello-2.12\n"[..], &mut builder)?;
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("index");
//! builder.write(&mut std::fs::File::create(&path)?)?;
//!
//! let index = Index::open(&path)?;
//! let hello = index.package("hello")?.ok_or("absent")?;
//! assert_eq!(hello.description, "A greeting");
//! assert_eq!(index.paths_named("hello-2.12")?.len(), 1);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod bounded;
mod builder;
mod error;
mod evaluation;
mod fields;
mod index;
mod join;
mod package;
mod packages;
mod search;
mod selector;
mod store_paths;
mod table;

pub use bounded::{
    ATTRIBUTE_LEN_MAX, ATTRIBUTES_MAX, ENTRY_LEN_MAX, LINE_LEN_MAX, OUTPUTS_MAX, PACKAGES_LEN_MAX, STORE_PATHS_LEN_MAX,
    STORE_PATHS_MAX, TABLES_LEN_MAX, TEXT_LEN_MAX,
};
pub use builder::{Builder, PackedIndex};
pub use error::NamesError;
pub use evaluation::read_evaluation;
pub use index::{Counts, Exact, Index};
pub use join::{Decision, Evidence, SystemWalk, Systems, join};
pub use package::{Package, Problem};
pub use packages::read_packages;
pub use search::{Rank, SearchHit};
pub use selector::{Selector, SelectorError};
pub use store_paths::read_store_paths;
