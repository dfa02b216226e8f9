//! Single fields of arriving data, checked. An error names the field.

use std::fmt::Display;
use std::str::FromStr;

use mooring_model::{Iqn, Lun, SpecError};

/// Parses the text of a field.
pub(crate) fn parse<T: FromStr>(field: impl Display, text: &str) -> Result<T, SpecError>
where
    T::Err: Display,
{
    text.parse().map_err(|error: T::Err| SpecError::new(field.to_string(), error.to_string()))
}

/// Parses the name of a target.
pub(crate) fn target(field: impl Display, name: &str) -> Result<Iqn, SpecError> {
    Iqn::of_target(name).map_err(|error| SpecError::new(field.to_string(), error.to_string()))
}

/// Narrows the number of a LUN.
pub(crate) fn lun(field: impl Display, number: u32) -> Result<Lun, SpecError> {
    u16::try_from(number)
        .map(Lun)
        .map_err(|_| SpecError::new(field.to_string(), format!("LUN {number} is more than 65535")))
}
