//! Configuration files of the daemons: TOML, read once at start, every mistake reported with its
//! line.
//!
//! A daemon takes its values as text with their place ([`Spanned`]) and checks them with this
//! module, so that errors read alike everywhere.
//!
//! All mistakes of a file are reported together ([`Mistakes`]).
//!
//! What must never happen here: a mistake on a line that is reported without its line; a value that
//! is corrected silently; an error that quotes a value which may be secret (callers report those
//! only through [`File::wrong`]).

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::DeserializeOwned;
use toml::Spanned;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file does not exist.
    #[error(
        "there is no configuration {}: {} makes it; or write one ({} explains every key), or name another with --config",
        .path.display(), .hint.made_by, .hint.example
    )]
    Absent {
        /// Path of the file.
        path: PathBuf,
        /// The remedy: where an operator gets a configuration from.
        hint: Hint,
    },
    /// The file exists and cannot be read.
    #[error("cannot read the configuration {}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A mistake on a line.
    #[error("{file} line {line}: {why}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The fault, and what to write instead.
        why: String,
    },
    /// A missing key or table.
    #[error("{file}: {why}")]
    Missing {
        /// The file.
        file: String,
        /// The text to add.
        why: String,
    },
    /// More than one mistake.
    #[error("{}", lines(.0))]
    Several(Vec<ConfigError>),
}

fn lines(mistakes: &[ConfigError]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// All mistakes of a file.
#[derive(Debug, Default)]
pub struct Mistakes(Vec<ConfigError>);

impl Mistakes {
    /// Returns the value if it is right; otherwise records the mistake and returns `None`.
    pub fn note<T>(&mut self, checked: Result<T, ConfigError>) -> Option<T> {
        checked.map_err(|mistake| self.0.push(mistake)).ok()
    }

    /// Returns the whole, or all mistakes if there are any.
    pub fn end<T>(mut self, whole: impl FnOnce() -> Option<T>) -> Result<T, ConfigError> {
        // In the order of the file.
        self.0.sort_by_key(|mistake| match mistake {
            ConfigError::Line { line, .. } => *line,
            _ => usize::MAX,
        });
        match (self.0.len(), whole()) {
            (0, Some(whole)) => Ok(whole),
            (1, _) => Err(self.0.remove(0)),
            (_, _) => Err(ConfigError::Several(self.0)),
        }
    }
}

/// Source of a daemon's configuration for an operator whose file is missing.
#[derive(Debug, Clone, Copy)]
pub struct Hint {
    /// The command that writes it, and the package of that command.
    pub made_by: &'static str,
    /// Name of the installed example.
    pub example: &'static str,
}

/// Reads a daemon's configuration.
pub fn read(path: &Path, hint: Hint) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ConfigError::Absent { path: path.to_owned(), hint },
        _ => ConfigError::Read { path: path.to_owned(), source },
    })
}

/// A text under check, and the name that its errors use.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    name: &'a str,
    text: &'a str,
}

impl<'a> File<'a> {
    /// Wraps a text; errors call the file `name`.
    pub fn new(name: &'a str, text: &'a str) -> Self {
        Self { name, text }
    }

    /// Parses the whole text. An unknown key is a mistake if the type says `deny_unknown_fields`.
    /// Wrong lines are left out as far as the rest still parses; `None`: it does not.
    pub fn parse<T: DeserializeOwned>(&self, mistakes: &mut Mistakes) -> Option<T> {
        let mut text = self.text.to_owned();
        loop {
            let error = match toml::from_str(&text) {
                Ok(raw) => return Some(raw),
                Err(error) => error,
            };
            mistakes.note(Err::<(), _>(self.of_toml(&error)));
            text = without_line(&text, &error.span()?)?;
        }
    }

    fn of_toml(&self, error: &toml::de::Error) -> ConfigError {
        // serde says "unknown field `x`, expected one of `a`, `b`"; in a file they are keys.
        let why = error.message().trim().replace('\n', "; ");
        let why = match why.strip_prefix("unknown field ") {
            Some(rest) => {
                let known = rest.replacen(", expected one of ", "; known keys: ", 1);
                format!("unknown key {}", known.replacen(", expected ", "; known keys: ", 1))
            }
            None => why,
        };
        match error.span() {
            Some(span) => self.wrong(&span, why),
            None => self.missing(why),
        }
    }

    fn line(&self, span: &Range<usize>) -> usize {
        self.text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1
    }

    /// Makes an error for the line at this place.
    pub fn wrong(&self, span: &Range<usize>, why: impl Into<String>) -> ConfigError {
        ConfigError::Line { file: self.name.to_owned(), line: self.line(span), why: why.into() }
    }

    /// Makes an error for something that is missing.
    pub fn missing(&self, why: impl Into<String>) -> ConfigError {
        ConfigError::Missing { file: self.name.to_owned(), why: why.into() }
    }

    /// Parses a value whose type explains its own errors.
    pub fn value<T: FromStr>(&self, text: &Spanned<String>, key: &str) -> Result<T, ConfigError>
    where
        T::Err: Display,
    {
        text.get_ref().parse().map_err(|error| self.wrong(&text.span(), format!("{key}: {error}")))
    }

    /// Checks for an absolute path.
    pub fn path(&self, text: &Spanned<String>, key: &str) -> Result<PathBuf, ConfigError> {
        let path = PathBuf::from(text.get_ref());
        if path.is_absolute() {
            return Ok(path);
        }
        let found = text.get_ref();
        Err(self.wrong(&text.span(), format!("{key}: {found:?} is not an absolute path: want /…")))
    }

    /// Checks for an absolute path; `None` if the key is absent.
    pub fn optional_path(
        &self,
        text: Option<&Spanned<String>>,
        key: &str,
    ) -> Result<Option<PathBuf>, ConfigError> {
        text.map(|text| self.path(text, key)).transpose()
    }

    /// Checks for an absolute path; the default if the key is absent.
    pub fn path_or(
        &self,
        text: Option<&Spanned<String>>,
        key: &str,
        default: &str,
    ) -> Result<PathBuf, ConfigError> {
        Ok(self.optional_path(text, key)?.unwrap_or_else(|| PathBuf::from(default)))
    }

    /// Checks for a whole number in a range; the default if the key is absent.
    pub fn number_or(
        &self,
        value: Option<&Spanned<u32>>,
        key: &str,
        default: u32,
        allowed: &Range<u32>,
    ) -> Result<u32, ConfigError> {
        let Some(value) = value else { return Ok(default) };
        let number = *value.get_ref();
        if allowed.contains(&number) {
            return Ok(number);
        }
        let (low, high) = (allowed.start, allowed.end - 1);
        Err(self.wrong(&value.span(), format!("{key}: {number} is not allowed: want {low} to {high}")))
    }

    /// Checks that no item occurs twice; each item comes with its place.
    pub fn unique<T: Ord + Display + Clone>(
        &self,
        items: Vec<(Range<usize>, T)>,
        key: &str,
    ) -> Result<Vec<T>, ConfigError> {
        let mut seen = BTreeSet::new();
        for (span, item) in &items {
            if !seen.insert(item.clone()) {
                return Err(self.wrong(span, format!("{key}: {item} is listed twice")));
            }
        }
        Ok(items.into_iter().map(|(_, item)| item).collect())
    }

    /// Checks a log filter in the syntax of `tracing-subscriber`; `info` if the key is absent.
    /// `example` shows a filter for a part of this daemon.
    pub fn log(&self, text: Option<Spanned<String>>, example: &str) -> Result<String, ConfigError> {
        let Some(text) = text else { return Ok("info".to_owned()) };
        match log_filter(text.get_ref(), example) {
            Ok(_) => Ok(text.into_inner()),
            Err(why) => Err(self.wrong(&text.span(), format!("log: {why}"))),
        }
    }
}

/// Returns the text with a mistake's line blanked out, everything else in its place; `None` if that
/// would change the meaning of the rest.
fn without_line(text: &str, mistake: &Range<usize>) -> Option<String> {
    let start = text.get(..mistake.start)?.rfind('\n').map_or(0, |at| at + 1);
    let end = text.get(mistake.end..)?.find('\n').map_or(text.len(), |at| mistake.end + at);
    let line = text.get(start..end)?.trim();
    // Without a table's head, the keys below it would belong to another table.
    if line.is_empty() || line.starts_with('[') {
        return None;
    }
    let blank = " ".repeat(end - start);
    let rest = [text.get(..start)?, blank.as_str(), text.get(end..)?].concat();
    toml::from_str::<toml::Table>(&rest).is_ok().then_some(rest)
}

/// Parses a log filter in the syntax of `tracing-subscriber`; the error says what is wrong. A bare
/// word must be a level: the syntax would take another word for a part's name, and log all of that
/// part and nothing else.
pub fn log_filter(text: &str, example: &str) -> Result<EnvFilter, String> {
    let is_level = |word: &str| word.contains(['=', '[']) || word.parse::<LevelFilter>().is_ok();
    let stranger = text.split(',').map(str::trim).find(|word| !word.is_empty() && !is_level(word));
    let why = match (EnvFilter::try_new(text), stranger) {
        (Ok(filter), None) => return Ok(filter),
        (Ok(_), Some(word)) => format!("{word} is no level"),
        (Err(error), _) => error.to_string(),
    };
    Err(format!(
        "{text:?} is not a filter ({why}): want error, warn, info, debug or trace, also per part as info,{example}=debug"
    ))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Raw {
        path: Option<Spanned<String>>,
        number: Option<Spanned<u32>>,
        log: Option<Spanned<String>>,
    }

    /// The errors that a wrong text gives.
    fn said(text: &str) -> String {
        let file = File::new("x.toml", text);
        let mut mistakes = Mistakes::default();
        let raw = file.parse::<Raw>(&mut mistakes);
        if let Some(raw) = raw {
            mistakes.note(file.path_or(raw.path.as_ref(), "path", "/default"));
            mistakes.note(file.number_or(raw.number.as_ref(), "number", 3, &(1..11)));
            mistakes.note(file.log(raw.log, "mooring_x"));
        }
        mistakes.end(|| Some(())).unwrap_err().to_string()
    }

    #[test]
    fn all_mistakes_are_said_at_once() {
        let text = "pathh = 1\nnumber = \"x\"\nlog = \"loud\"\n\npath = \"a\"\nother = 1";
        let said = said(text);
        let lines: Vec<_> = said.lines().collect();
        for (line, want) in [
            (1, "unknown key `pathh`"),
            (2, "invalid type: string"),
            (3, "loud is no level"),
            (5, "not an absolute path"),
            (6, "unknown key `other`"),
        ] {
            let of_line = |said: &&&str| said.starts_with(&format!("x.toml line {line}: "));
            let of_it: Vec<_> = lines.iter().filter(of_line).collect();
            assert!(of_it.len() == 1 && of_it[0].contains(want), "{lines:?}");
        }
        assert_eq!(lines.len(), 5, "{lines:?}");
    }

    #[test]
    fn what_a_mistake_has_spoilt_is_not_called_one() {
        for text in ["[nosuch]\nnumber = true", "pathh = [\n 1,\n]\nnumber = 3", "number = \nlog = \"loud"] {
            assert_eq!(said(text).lines().count(), 1, "{text:?}: {}", said(text));
        }
    }

    #[test]
    fn every_mistake_has_its_line() {
        for (text, want) in [
            ("\npath = \"a\"", "x.toml line 2: path: \"a\" is not an absolute path: want /…"),
            ("number = 11", "x.toml line 1: number: 11 is not allowed: want 1 to 10"),
            ("\n\nnumbr = 1", "x.toml line 3: unknown key `numbr`; known keys: `path`, `number`, `log`"),
            ("number = true", "x.toml line 1: invalid type: boolean `true`, expected u32"),
            (
                "log = \"=,=\"",
                "want error, warn, info, debug or trace, also per part as info,mooring_x=debug",
            ),
            ("log = \"loud\"", "loud is no level): want error, warn, info, debug or trace"),
            ("log = \"info,mooring_x\"", "mooring_x is no level"),
            ("log = \"mooring_x=loud\"", "want error, warn, info, debug or trace"),
            ("path = ", "x.toml line 1: "),
        ] {
            assert!(said(text).contains(want), "{text:?}: {}", said(text));
        }
    }

    #[test]
    fn what_is_not_said_is_the_default() {
        let file = File::new("x.toml", "");
        let raw: Raw = file.parse(&mut Mistakes::default()).unwrap();
        assert_eq!(file.path_or(raw.path.as_ref(), "path", "/default").unwrap(), Path::new("/default"));
        assert_eq!(file.optional_path(raw.path.as_ref(), "path").unwrap(), None);
        assert_eq!(file.number_or(raw.number.as_ref(), "number", 3, &(1..11)).unwrap(), 3);
        assert_eq!(file.log(raw.log, "mooring_x").unwrap(), "info");
        for right in
            ["warn", "INFO", "off", "info,mooring_x=debug", "mooring_x=trace, warn", "info,[span]=debug"]
        {
            assert!(log_filter(right, "mooring_x").is_ok(), "{right}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_says_what_to_do() {
        let hint = Hint { made_by: "`x init`", example: "x.example.toml" };
        let absent = read(Path::new("/nosuch/x.toml"), hint).unwrap_err().to_string();
        for part in
            ["there is no configuration /nosuch/x.toml: `x init` makes it", "x.example.toml", "--config"]
        {
            assert!(absent.contains(part), "{absent}");
        }
        // A folder is there, and no configuration.
        let unreadable = read(Path::new("/"), hint).unwrap_err();
        assert_eq!(unreadable.to_string(), "cannot read the configuration /");
        assert!(std::error::Error::source(&unreadable).is_some());
    }
}
