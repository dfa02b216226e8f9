//! Images on the wire.
//!
//! What must never happen here: a format that was not said.

use mooring_model::{ImageFormat, ImageSource, SpecError};

use crate::convert::parse;
use crate::v1;

/// An image that a volume is to be copied from, checked.
pub(crate) fn from_wire(image: &v1::ImageSource) -> Result<ImageSource, SpecError> {
    let name = parse("source.image.name", &image.name)?;
    let format = match image.format() {
        v1::ImageFormat::Raw => ImageFormat::Raw,
        v1::ImageFormat::Qcow2 => ImageFormat::Qcow2,
        v1::ImageFormat::Unspecified => {
            let why = "want RAW or QCOW2: what a file is, is said and never guessed";
            return Err(SpecError::new("source.image.format", why));
        }
    };
    Ok(ImageSource { name, format })
}

/// The image that a source is. `None`: it is none, or makes no sense.
pub fn image_from_wire(source: &v1::VolumeSource) -> Option<ImageSource> {
    match &source.of {
        Some(v1::volume_source::Of::Image(image)) => from_wire(image).ok(),
        _ => None,
    }
}

/// The same as a source.
pub(crate) fn to_wire(image: &ImageSource) -> v1::VolumeSource {
    let image = v1::ImageSource {
        name: image.name.as_str().to_owned(),
        format: v1::ImageFormat::from(image.format).into(),
    };
    v1::VolumeSource { of: Some(v1::volume_source::Of::Image(image)) }
}

impl From<ImageFormat> for v1::ImageFormat {
    fn from(format: ImageFormat) -> Self {
        match format {
            ImageFormat::Raw => Self::Raw,
            ImageFormat::Qcow2 => Self::Qcow2,
        }
    }
}

#[cfg(test)]
mod tests {
    use mooring_model::VolumeId;

    use super::*;
    use crate::volume_from_wire;

    #[test]
    fn an_image_is_named_and_its_format_is_said() {
        let from = |name: &str, format: v1::ImageFormat| v1::VolumeSpec {
            group: "vg0".to_owned(),
            size_bytes: 4 << 20,
            provisioning: v1::Provisioning::Thick.into(),
            source: Some(v1::VolumeSource {
                of: Some(v1::volume_source::Of::Image(v1::ImageSource {
                    name: name.to_owned(),
                    format: format.into(),
                })),
            }),
            ..Default::default()
        };
        let good = from("debian.qcow2", v1::ImageFormat::Qcow2);
        let spec = volume_from_wire(VolumeId::from_u128(1), &good).unwrap();
        assert_eq!(v1::VolumeSpec::from(&spec), good);
        let snapshot = v1::VolumeSpec {
            kind: v1::VolumeKind::Snapshot.into(),
            provisioning: v1::Provisioning::Thin.into(),
            ..good.clone()
        };
        let taken = v1::VolumeSpec {
            takes: Some(v1::ExistingLv { name: "data".to_owned(), uuid: "x".to_owned() }),
            ..good
        };
        for (bad, field) in [
            (from("debian.qcow2", v1::ImageFormat::Unspecified), "source.image.format"),
            (from("../shadow", v1::ImageFormat::Raw), "source.image.name"),
            (from("", v1::ImageFormat::Raw), "source.image.name"),
            (snapshot, "source.image"),
            (taken, "source.image"),
        ] {
            assert_eq!(volume_from_wire(VolumeId::from_u128(1), &bad).unwrap_err().field, field);
        }
    }
}
