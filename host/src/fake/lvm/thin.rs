//! Thin pools, thin volumes, their snapshots and clones. What must never happen: a thin volume that
//! reads as zeros where its pool does not zero; a snapshot that changes with its origin.

use std::collections::BTreeSet;

use super::arguments::{Arguments, PARSING, bytes};
use super::run::{Failure, no_group, one_volume, valid_tag};
use super::{EXTENT, Form, Group, Volume, device_path};
use crate::fake::state::{Device, Machine, Node};

/// Extents that LVM takes for metadata beside a small pool: one, and one in reserve for repairs.
pub(super) const METADATA_EXTENTS: u64 = 2;

/// A new LV.
struct New<'a> {
    vg: &'a str,
    name: &'a str,
    tags: BTreeSet<String>,
    form: Form,
    device: Option<Device>,
    read_only: bool,
}

impl Machine {
    /// Runs `lvcreate --type thin-pool`: the call has to say if the pool zeroes the extents of its
    /// volumes.
    pub(super) fn lvcreate_pool(&mut self, args: &Arguments) -> Result<String, Failure> {
        let (vg, name) = (group_of(args)?, name_of(args)?);
        let zeroes = yes(args, "--zero")?;
        let extents = size_of(args, "--size")?.div_ceil(EXTENT) + METADATA_EXTENTS;
        if self.lvm.groups.get(vg).is_some_and(|group| group.volumes.contains_key(name)) {
            return Err((5, format!("  Logical volume {name} already exists in Volume group {vg}.\n")));
        }
        self.create_volume(vg, name, extents, tags_of(args)?)?;
        self.devices.remove(&device_path(vg, name));
        if let Some(volume) = self.lvm.groups.get_mut(vg).and_then(|group| group.volumes.get_mut(name)) {
            volume.form = Form::Pool { zeroes };
        }
        Ok(format!("  Logical volume \"{name}\" created.\n"))
    }

    /// Runs `lvcreate --type thin`.
    pub(super) fn lvcreate_thin(&mut self, args: &Arguments) -> Result<String, Failure> {
        let (vg, name) = (group_of(args)?, name_of(args)?);
        let pool = args.get("--thinpool").ok_or((3, PARSING.to_owned()))?;
        let group = self.lvm.groups.get(vg).ok_or_else(|| no_group(vg))?;
        if !matches!(group.volumes.get(pool).map(|pool| &pool.form), Some(Form::Pool { .. })) {
            return Err((5, format!("  Pool {pool} not found in Volume group {vg}.\n")));
        }
        let zeroes = group.pool_zeroes(pool);
        let bytes = size_of(args, "--virtualsize")?.div_ceil(EXTENT) * EXTENT;
        let mut device = Device { node: Node::Block, size: bytes, ..Device::default() };
        if zeroes {
            device.mark_zeroed(0, bytes);
        }
        self.add_thin(New {
            vg,
            name,
            tags: tags_of(args)?,
            form: Form::Thin { pool: pool.to_owned(), bytes, skip: false },
            device: Some(device),
            read_only: false,
        })
    }

    /// Runs `lvcreate --snapshot` for a thin LV: it has the origin's blocks of this moment.
    pub(super) fn lvcreate_snapshot(&mut self, args: &Arguments) -> Result<String, Failure> {
        let ((vg, from), name) = (one_volume(args)?, name_of(args)?);
        let group = self.lvm.groups.get(&vg).ok_or_else(|| no_group(&vg))?;
        let missing = || (5, format!("  Snapshot origin LV {from} not found in Volume group {vg}.\n"));
        let volume = group.volumes.get(&from).ok_or_else(missing)?;
        let Form::Thin { pool, bytes, .. } = &volume.form else {
            return Err((3, format!("  Only snapshots of thin volumes are modelled.\n{PARSING}")));
        };
        let skip = yes(args, "--setactivationskip")?;
        let form = Form::Thin { pool: pool.clone(), bytes: *bytes, skip };
        let device = volume.parked.clone().or_else(|| self.devices.get(&device_path(&vg, &from)).cloned());
        let device = device.map(|seen| Device {
            node: Node::Block,
            size: seen.size,
            zeroed: seen.zeroed,
            ..Device::default()
        });
        let read_only = args.get("--permission") == Some("r");
        self.lvm_resumes(&device_path(&vg, &from));
        self.add_thin(New { vg: &vg, name, tags: tags_of(args)?, form, device, read_only })
    }

    fn add_thin(&mut self, new: New<'_>) -> Result<String, Failure> {
        let New { vg, name, tags, form, device, read_only } = new;
        let uuid = self.lvm.uuid();
        let group = self.lvm.groups.get_mut(vg).ok_or_else(|| no_group(vg))?;
        if group.volumes.contains_key(name) {
            let text = format!("  Logical Volume \"{name}\" already exists in volume group \"{vg}\"\n");
            return Err((5, text));
        }
        let volume = Volume {
            uuid,
            extents: Vec::new(),
            tags,
            flushed: None,
            active: false,
            read_only,
            parked: device,
            form,
        };
        group.volumes.insert(name.to_owned(), volume);
        self.set_active(vg, name, true);
        Ok(format!("  Logical volume \"{name}\" created.\n"))
    }

    /// Runs `lvextend --size`: a thin LV reads as zeros where it is new, if its pool zeroes.
    pub(super) fn lvextend_thin(&mut self, args: &Arguments) -> Result<String, Failure> {
        let (vg, lv) = one_volume(args)?;
        let pool = match &self.volume(&vg, &lv)?.form {
            Form::Thin { pool, .. } => pool.clone(),
            _ => String::new(),
        };
        let wanted = size_of(args, "--size")?.div_ceil(EXTENT) * EXTENT;
        let device = self.devices.get_mut(&device_path(&vg, &lv));
        let group = self.lvm.groups.get_mut(&vg).ok_or_else(|| no_group(&vg))?;
        let zeroes = group.pool_zeroes(&pool);
        let Some(volume) = group.volumes.get_mut(&lv) else { return Err(no_group(&vg)) };
        let Form::Thin { bytes, .. } = &mut volume.form else {
            return Err((3, format!("  Only thin volumes are extended by their size here.\n{PARSING}")));
        };
        if wanted <= *bytes {
            let text = "  New size given is not larger than existing size.\n";
            return Err((5, text.to_owned()));
        }
        let before = std::mem::replace(bytes, wanted);
        if let Some(device) = device.or(volume.parked.as_mut()) {
            device.size = wanted;
            if zeroes {
                device.mark_zeroed(before, wanted);
            }
        }
        self.lvm_resumes(&device_path(&vg, &lv));
        Ok(format!("  Logical volume {vg}/{lv} successfully resized.\n"))
    }

    /// Runs `lvchange --zero` for a pool, `lvchange --setactivationskip` for a thin LV: a device
    /// stays, and its contents too.
    pub(super) fn lvchange_thin(&mut self, args: &Arguments, vg: &str, lv: &str) -> Result<String, Failure> {
        let volume = self.lvm.groups.get_mut(vg).and_then(|group| group.volumes.get_mut(lv));
        match volume.map(|volume| &mut volume.form) {
            Some(Form::Pool { zeroes }) if args.get("--zero").is_some() => *zeroes = yes(args, "--zero")?,
            Some(Form::Thin { skip, .. }) if args.get("--zero").is_none() => {
                *skip = yes(args, "--setactivationskip")?;
            }
            _ => return Err((5, format!("  Operation not permitted on LV {vg}/{lv}.\n"))),
        }
        Ok(format!("  Logical volume {vg}/{lv} changed.\n"))
    }
}

impl Group {
    /// Returns `true` if the thin pool of this name zeroes the extents of its volumes.
    pub(super) fn pool_zeroes(&self, pool: &str) -> bool {
        matches!(self.volumes.get(pool).map(|pool| &pool.form), Some(Form::Pool { zeroes: true }))
    }
}

fn yes(args: &Arguments, option: &str) -> Result<bool, Failure> {
    match args.get(option) {
        Some("y") => Ok(true),
        Some("n") => Ok(false),
        _ => Err((3, PARSING.to_owned())),
    }
}

fn group_of(args: &Arguments) -> Result<&str, Failure> {
    match args.names.as_slice() {
        [vg] => Ok(vg),
        _ => Err((3, format!("  Please provide a volume group name\n{PARSING}"))),
    }
}

fn name_of(args: &Arguments) -> Result<&str, Failure> {
    args.get("--name").ok_or((3, PARSING.to_owned()))
}

fn size_of(args: &Arguments, option: &str) -> Result<u64, Failure> {
    let text = args.get(option).unwrap_or_default();
    let wrong = || (3, format!("  Invalid argument for {option}: {text}\n{PARSING}"));
    bytes(text).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

fn tags_of(args: &Arguments) -> Result<BTreeSet<String>, Failure> {
    let tags: BTreeSet<String> = args.all("--addtag").map(str::to_owned).collect();
    match tags.iter().find(|tag| !valid_tag(tag)) {
        Some(tag) => Err((3, format!("  Invalid argument for --addtag: {tag}\n{PARSING}"))),
        None => Ok(tags),
    }
}
