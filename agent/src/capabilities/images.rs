//! Formats of images that volumes can be made from: checks the folder, and the program that reads a
//! format.
//!
//! What must never happen here: a format that is claimed and that nothing here can read.

use mooring_api::v1;

use super::health::{Code, Fault, On, Weight};
use crate::images::Images;

/// Returns the folder and the formats that can be read now. The faults concern no existing volume.
pub(super) fn look(images: &Images, faults: &mut Vec<Fault>) -> v1::Images {
    let folder = images.folder().display().to_string();
    let mut formats = Vec::new();
    if images.folder().is_dir() {
        formats.push(v1::ImageFormat::Raw.into());
        match images.missing() {
            None => formats.push(v1::ImageFormat::Qcow2.into()),
            Some((program, package)) => {
                let text = format!(
                    "{program} is not installed, so that only raw images are read: apt-get install {package}"
                );
                faults.push(Fault::new(Code::Noted, Weight::Noted, On::Host, "images", text));
            }
        }
    } else {
        let text =
            format!("{folder} is no folder: make it, or correct images_dir in the agent's configuration");
        faults.push(Fault::new(Code::Noted, Weight::Noted, On::Host, "images", text));
    }
    v1::Images { folder, formats }
}
