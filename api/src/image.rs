//! Conversion of images between wire and model.
//!
//! What must never happen here: a format that was not stated.

use mooring_model::{ImageFormat, ImageSource, SpecError, Upload};

use crate::field::parse;
use crate::v1;

/// Checks the image that a volume is copied from.
pub(crate) fn from_wire(image: &v1::ImageSource) -> Result<ImageSource, SpecError> {
    checked(image, "source.image")
}

/// Checks an image; `field` is its place in the message, for errors.
fn checked(image: &v1::ImageSource, field: &str) -> Result<ImageSource, SpecError> {
    let name = parse(format_args!("{field}.name"), &image.name)?;
    let format = match image.format() {
        v1::ImageFormat::Raw => ImageFormat::Raw,
        v1::ImageFormat::Qcow2 => ImageFormat::Qcow2,
        v1::ImageFormat::Unspecified => {
            let why = "name the format, RAW or QCOW2: it is never guessed";
            return Err(SpecError::new(format!("{field}.format"), why));
        }
    };
    Ok(ImageSource { name, format })
}

/// Checks an image export (a copy of a volume to a file).
pub(crate) fn upload_from_wire(upload: &v1::Upload) -> Result<Upload, SpecError> {
    let image = upload.image.as_ref().ok_or_else(|| SpecError::new("upload.image", "is missing"))?;
    Ok(Upload { image: checked(image, "upload.image")?, id: parse("upload.upload_id", &upload.upload_id)? })
}

/// Converts an image export for the wire.
pub(crate) fn upload_to_wire(upload: &Upload) -> v1::Upload {
    v1::Upload { image: Some(said(&upload.image)), upload_id: upload.id.to_string() }
}

/// The image that a source names. `None`: the source is no image, or is invalid.
pub fn image_from_wire(source: &v1::VolumeSource) -> Option<ImageSource> {
    match &source.of {
        Some(v1::volume_source::Of::Image(image)) => from_wire(image).ok(),
        _ => None,
    }
}

/// Converts an image to a volume's source.
pub(crate) fn to_wire(image: &ImageSource) -> v1::VolumeSource {
    v1::VolumeSource { of: Some(v1::volume_source::Of::Image(said(image))) }
}

fn said(image: &ImageSource) -> v1::ImageSource {
    v1::ImageSource {
        name: image.name.as_str().to_owned(),
        format: v1::ImageFormat::from(image.format).into(),
    }
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

    #[test]
    fn a_copy_to_a_file_is_of_a_whole_volume() {
        let image = |name: &str, format: v1::ImageFormat| {
            Some(v1::ImageSource { name: name.to_owned(), format: format.into() })
        };
        let id = mooring_model::UploadId::from_u128(7).to_string();
        let to = |image| v1::VolumeSpec {
            group: "vg0".to_owned(),
            size_bytes: 4 << 20,
            provisioning: v1::Provisioning::Thin.into(),
            upload: Some(v1::Upload { image, upload_id: id.clone() }),
            ..Default::default()
        };
        let raw = v1::ImageFormat::Raw;
        let good = to(image("new.raw", raw));
        let spec = volume_from_wire(VolumeId::from_u128(1), &good).unwrap();
        assert_eq!(v1::VolumeSpec::from(&spec), good);
        let of = v1::volume_source::Of::Image(image("old.raw", raw).unwrap());
        let coming = v1::VolumeSpec { source: Some(v1::VolumeSource { of: Some(of) }), ..good.clone() };
        let snapshot = v1::VolumeSpec { kind: v1::VolumeKind::Snapshot.into(), ..good.clone() };
        let mut nameless = good;
        nameless.upload =
            Some(v1::Upload { upload_id: "x".to_owned(), ..nameless.upload.unwrap_or_default() });
        for (bad, field) in [
            (to(None), "upload.image"),
            (to(image(".new.raw", raw)), "upload.image.name"),
            (to(image("a/b", raw)), "upload.image.name"),
            (to(image("new", v1::ImageFormat::Unspecified)), "upload.image.format"),
            (nameless, "upload.upload_id"),
            (coming, "upload"),
            (snapshot, "upload"),
        ] {
            assert_eq!(volume_from_wire(VolumeId::from_u128(1), &bad).unwrap_err().field, field);
        }
    }
}
