//! Options of the command line that are keys of the file: from the tables, for clap.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::Path;

use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::error::{ConfigError, ConfigErrors, Origin};
use super::key::{CommandOption, KeyInfo};
use super::section::Table;
use super::section::{Document, Loaded, OptionValues, describe};

/// The maximum size of a configuration file in bytes.
const FILE_LEN_MAX: u64 = 1024 * 1024;

/// The options of a table and of the tables in it, as they were given.
#[derive(Clone, Debug)]
pub struct Options<T> {
    values: OptionValues,
    table: PhantomData<T>,
}

impl<T: Table> Options<T> {
    /// The settings: the options over the file over the defaults.
    ///
    /// # Errors
    /// The file cannot be read, or it or an option is wrong.
    pub fn over(&self, file: Option<&Path>) -> Result<Loaded<T>, ConfigErrors> {
        let text = file.map_or(Ok(String::new()), read)?;
        let name = file.map(|file| file.display().to_string()).unwrap_or_default();
        Document::new(&name, &text, &self.values).read()
    }
}

fn read(path: &Path) -> Result<String, ConfigErrors> {
    let whole = |message: String| {
        let origin = Origin::Line(path.display().to_string().into(), 0);
        ConfigErrors(vec![ConfigError { origin, message }])
    };
    let length = std::fs::metadata(path).map(|meta| meta.len());
    if length.is_ok_and(|length| length > FILE_LEN_MAX) {
        return Err(whole(format!("the file is larger than {FILE_LEN_MAX} bytes")));
    }
    let bytes = std::fs::read(path).map_err(|error| whole(format!("cannot read the configuration: {error}")))?;
    String::from_utf8(bytes).map_err(|error| whole(format!("the file is not UTF-8 text: {error}")))
}

impl<T> Default for Options<T> {
    fn default() -> Self {
        Self { values: Vec::new(), table: PhantomData }
    }
}

impl<T: Table> clap::Args for Options<T> {
    fn augment_args(command: Command) -> Command {
        command.args(describe::<T>().iter().filter_map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table> clap::FromArgMatches for Options<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |key: KeyInfo| {
            let CommandOption { name, value_name, means, .. } = key.option?;
            let is_given = matches.value_source(name)? != ValueSource::DefaultValue;
            let values = || match value_name {
                Some(_) => matches.get_raw(name).into_iter().flatten().map(OsString::from).collect(),
                None => vec![means.into()],
            };
            is_given.then(|| (name, values()))
        };
        let values = describe::<T>().into_iter().filter_map(value).collect();
        Ok(Self { values, table: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The argument of a key, if it has an option.
fn argument(key: &KeyInfo) -> Option<Arg> {
    let option = key.option?;
    let mut argument = Arg::new(option.name).long(option.name);
    if let Some(heading) = key.heading {
        argument = argument.help_heading(heading);
    }
    let Some(value) = option.value_name else { return Some((option.more)(argument.action(ArgAction::SetTrue))) };
    let mut help = key.paragraphs();
    let first = help.first_mut()?;
    if key.repeats {
        *first += ". Repeatable";
    }
    if let Some(default) = key.default.or(key.otherwise) {
        *first += &format!(" [default: {default}]");
    }
    argument = argument.help(first.clone());
    if help.len() > 1 {
        argument = argument.long_help(help.join("\n\n"));
    }
    let words = key.words.iter().map(|(word, meaning)| PossibleValue::new(*word).help(*meaning));
    let parser: ValueParser = match key.words.as_slice() {
        [] => clap::value_parser!(OsString),
        _ => PossibleValuesParser::new(words).into(),
    };
    let action = if key.repeats { ArgAction::Append } else { ArgAction::Set };
    Some((option.more)(argument.value_name(value).value_parser(parser).action(action)))
}
