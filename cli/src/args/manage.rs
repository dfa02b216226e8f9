//! Arguments of `mooring volume manage`, `manageable` and `unmanage`.
//!
//! What must never happen here: a secret as an argument.

use clap::Args;

use crate::volume_ref::VolumeName;

/// `volume manage`.
#[derive(Debug, Args)]
pub struct ManageArgs {
    /// The logical volume, as GROUP/LV
    #[arg(value_name = "GROUP/LV", value_parser = lv_path)]
    pub lv: String,
    /// The storage node that has it, as named by `mooring host list`
    #[arg(long)]
    pub host: String,
    /// A name for people; without it the LV's name
    #[arg(long)]
    pub name: Option<VolumeName>,
    /// The volume type: its name or id
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// Let servers boot from the volume
    #[arg(long)]
    pub bootable: bool,
}

/// `volume manageable`.
#[derive(Debug, Args)]
pub struct ManageableArgs {
    /// Only LVs of this storage node, as named by `mooring host list`
    #[arg(long)]
    pub host: Option<String>,
}

fn lv_path(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        Some((group, lv)) if !group.is_empty() && !lv.is_empty() && !lv.contains('/') => Ok(text.to_owned()),
        _ => Err("want GROUP/LV, for example vg0/data".to_owned()),
    }
}
