//! What an index has about an attribute.

use crate::bounded::TEXT_LEN_MAX;
use crate::error::NamesError;
use crate::fields::{Fields, put, put_number};

/// An attribute of a package set: what `packages.json` says about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Package {
    /// The attribute path, quoted as Nix quotes it: `python3Packages.numpy`, `"2bwm"`.
    pub attribute: String,
    /// The name of the derivation: `git-2.51.0`.
    pub name: String,
    /// The name without its version.
    pub pname: String,
    /// The version; may be empty.
    pub version: String,
    /// The system that it is built for.
    pub system: String,
    /// The default output.
    pub output: String,
    /// All outputs, the default one first.
    pub outputs: Vec<String>,
    /// The outputs that an install takes.
    pub to_install: Vec<String>,
    /// One line about it.
    pub description: String,
    /// The address of its page.
    pub homepage: String,
    /// Its licences, separated by commas.
    pub licence: String,
    /// Its main program, if the package names it.
    pub program: String,
    /// Where it is defined: the file and the line.
    pub position: String,
    /// Why it is not installed without being told to.
    pub problems: Vec<Problem>,
    /// What is known to be insecure about it.
    pub vulnerabilities: Vec<String>,
}

/// Why a package is not installed without a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// Marked as broken.
    Broken,
    /// Known vulnerabilities.
    Insecure,
    /// The licence is not free.
    Unfree,
    /// Not meant for this platform.
    Unsupported,
}

impl Problem {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Broken, Self::Insecure, Self::Unfree, Self::Unsupported];

    /// What Nix says about it.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Broken => "is marked as broken",
            Self::Insecure => "is marked as insecure",
            Self::Unfree => "has an unfree licence",
            Self::Unsupported => "is not available on this platform",
        }
    }

    /// The environment variable of nixpkgs that allows it.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Broken => "NIXPKGS_ALLOW_BROKEN",
            Self::Insecure => "NIXPKGS_ALLOW_INSECURE",
            Self::Unfree => "NIXPKGS_ALLOW_UNFREE",
            Self::Unsupported => "NIXPKGS_ALLOW_UNSUPPORTED_SYSTEM",
        }
    }

    /// One word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Insecure => "insecure",
            Self::Unfree => "unfree",
            Self::Unsupported => "unsupported",
        }
    }
}

impl Package {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        for text in self.texts() {
            put(&mut out, text.as_bytes());
        }
        for list in [&self.outputs, &self.to_install, &self.vulnerabilities] {
            put_number(&mut out, list.len() as u64);
            for text in list {
                put(&mut out, text.as_bytes());
            }
        }
        let bits = Problem::ALL.iter().enumerate().filter(|(_, problem)| self.problems.contains(problem));
        put_number(&mut out, bits.map(|(at, _)| 1 << at).sum());
        out
    }

    const fn texts(&self) -> [&String; 10] {
        [
            &self.name,
            &self.pname,
            &self.version,
            &self.system,
            &self.output,
            &self.description,
            &self.homepage,
            &self.licence,
            &self.program,
            &self.position,
        ]
    }

    pub(crate) fn decode(attribute: &str, value: &[u8]) -> Result<Self, NamesError> {
        let mut fields = Fields(value);
        let mut package = Self { attribute: attribute.to_owned(), ..Self::default() };
        for text in [
            &mut package.name,
            &mut package.pname,
            &mut package.version,
            &mut package.system,
            &mut package.output,
            &mut package.description,
            &mut package.homepage,
            &mut package.licence,
            &mut package.program,
            &mut package.position,
        ] {
            *text = fields.text()?;
        }
        package.outputs = fields.texts()?;
        package.to_install = fields.texts()?;
        package.vulnerabilities = fields.texts()?;
        let bits = fields.number()?;
        package.problems =
            Problem::ALL.into_iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0).map(|(_, it)| it).collect();
        Ok(package)
    }

    /// The names that the store path of an output may have, in the order in which they are looked for: `name` names most of them, but some
    /// attributes are renamed after their derivation was made (`git` says `git-minimal`), and `pname`-`version` finds those.
    pub fn path_names(&self, output: &str) -> Vec<String> {
        let suffix = if output == "out" { String::new() } else { format!("-{output}") };
        let mut names = vec![format!("{}{suffix}", self.name)];
        if let Some(other) = self.pname_version().filter(|other| *other != self.name) {
            names.push(format!("{other}{suffix}"));
        }
        names
    }

    /// `pname`-`version`.
    pub(crate) fn pname_version(&self) -> Option<String> {
        (!self.pname.is_empty() && !self.version.is_empty()).then(|| format!("{}-{}", self.pname, self.version))
    }

    /// Whether an attribute with the same name may be another derivation: what differs between aliases of one derivation is not in here. If this one
    /// is not built because of its problems, the path that there is belongs to the other one.
    pub(crate) fn may_differ(&self, other: &Self) -> bool {
        let is_same = |part: fn(&Self) -> &str| part(self) == part(other);
        !(is_same(|package| &package.pname)
            && is_same(|package| &package.version)
            && is_same(|package| &package.position)
            && is_same(|package| &package.description)
            && (self.problems.is_empty() || self.problems == other.problems))
    }

    /// The outputs that are installed if none are named.
    pub fn default_outputs(&self) -> Vec<String> {
        match (self.to_install.is_empty(), self.output.is_empty()) {
            (false, _) => self.to_install.clone(),
            (true, false) => vec![self.output.clone()],
            (true, true) => vec!["out".to_owned()],
        }
    }
}

/// Characters that change the order in which a terminal shows the others.
const DIRECTIONS: [char; 11] = [
    '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}',
    '\u{2068}', '\u{2069}',
];

/// A text for an index: one line, without control characters, and of limited length.
pub(crate) fn line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(TEXT_LEN_MAX));
    let is_left_out = |c: char| c.is_whitespace() || c.is_control() || DIRECTIONS.contains(&c);
    for word in text.split(is_left_out).filter(|word| !word.is_empty()) {
        if line.len() + word.len() >= TEXT_LEN_MAX {
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}
