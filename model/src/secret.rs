//! A text that must not be printed.

use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

/// A secret text (a CHAP password). `Debug` and `Display` print `***`; there is no `Serialize`; the
/// memory is wiped on drop.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Secret(String);

impl Secret {
    /// Keeps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself. Review every caller: the secret may go to the kernel or the wire, never
    /// to a log, an error or a command line.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_nothing_of_itself() {
        let secret = Secret::new("correct horse battery");
        assert_eq!(format!("{secret} {secret:?} {:#?}", Some(&secret)).matches("horse").count(), 0);
    }
}
