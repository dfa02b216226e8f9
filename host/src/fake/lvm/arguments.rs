//! Command line of the fake `lvm`. What must never happen: an option accepted that the agent's
//! calls do not have, for then a typing error would pass here and fail on a machine.

/// A parsed command line.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    options: Vec<(String, String)>,
    pub(super) names: Vec<String>,
}

impl Arguments {
    /// Copies the command for one name.
    pub(super) fn with_name(&self, name: &str) -> Self {
        Self { options: self.options.clone(), names: vec![name.to_owned()] }
    }

    /// Parses by the options that the command knows: `valued` take a value, `flags` none.
    pub(super) fn parse(args: &[String], valued: &[&str], flags: &[&str]) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (arg.as_str(), None),
            };
            if !name.starts_with('-') {
                parsed.names.push(arg.clone());
            } else if flags.contains(&name) {
                parsed.options.push((name.to_owned(), String::new()));
            } else if valued.contains(&name) {
                let value = inline
                    .or_else(|| rest.next().cloned())
                    .ok_or_else(|| format!("  lvm: option '{name}' requires an argument\n{PARSING}"))?;
                parsed.options.push((name.to_owned(), value));
            } else {
                return Err(format!("  lvm: unrecognized option '{name}'\n{PARSING}"));
            }
        }
        Ok(parsed)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(option, _)| option == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.options.iter().filter(move |(option, _)| option == name).map(|(_, value)| value.as_str())
    }
}

/// The last line of a refused command line.
pub(super) const PARSING: &str = "  Error during parsing of command line.\n";

/// Parses a size such as `1073741824b`, `4m`, `1g`, into bytes; without a suffix in MiB, as
/// `lvcreate` takes it.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().last()? {
        (at, suffix) if suffix.is_ascii_alphabetic() => (&text[..at], suffix.to_ascii_lowercase()),
        _ => (text, 'm'),
    };
    let shift = match unit {
        'b' => 0,
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
