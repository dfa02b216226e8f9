//! Builds one export as this project makes it, and compares two trees that hold it: the fake's and
//! a kernel's.
//!
//! What must never happen: a difference hidden because an attribute is thought to be volatile but
//! is not; each mask says why.

use std::collections::BTreeMap;

use super::Env;
use super::script::{HBA, PORTAL, Script, TARGET};
use crate::{Tree, TreeError, TreePath, dump_below};

/// Attributes whose values belong to the machine or the moment: ids that the kernel hands out,
/// counters, times, limits of the device below, versions.
const VOLATILE: &[&str] = &[
    "cpus_allowed_list",
    "creation_time",
    "dbroot",
    "dev",
    "hba_info",
    "hw_block_size",
    "hw_max_sectors",
    "hw_queue_depth",
    "indx",
    "inst",
    "is_nonrot",
    "lio_version",
    "last_fail_time",
    "max_unmap_block_desc_count",
    "max_unmap_lba_count",
    "max_write_same_len",
    "name",
    "num_cmds",
    "optimal_sectors",
    "port_auth_indx",
    "queue_depth",
    "role",
    "unmap_granularity",
    "unmap_granularity_alignment",
    "version",
];

/// Attributes by which Linux 6.12 differs from 6.1, which the fake models: five new ones, one that
/// went. Nothing of this project reads them.
const LATER: &[&str] = &[
    "default_submit_type",
    "direct_submit_supported",
    "emulate_rsoc",
    "netif_timeout",
    "rtpi",
    "submit_type",
];

/// Builds a complete export (backstore, target, group, LUN, portal, ACL with credentials, mapped
/// LUN, enabled), dumps these objects and no others, and removes them again. Returns the dump and
/// the objects that could not be removed.
pub fn standard_dump(tree: &dyn Tree, env: &Env) -> Result<(String, Vec<TreeError>), TreeError> {
    let script = Script::new(tree, env);
    let built = build(&script).map(|()| {
        let target = TreePath::new("iscsi").join(TARGET);
        [TreePath::new(HBA), TreePath::new("iscsi/discovery_auth"), target]
            .iter()
            .map(|folder| dump_below(tree, folder))
            .collect()
    });
    let left = script.clean_up();
    Ok((built?, left))
}

fn build(script: &Script<'_>) -> Result<(), TreeError> {
    let [_, tpg, _, mapped] = script.export()?;
    let auth = mapped.parent().join("auth");
    for (name, value) in [("userid", "user1"), ("password", "secret123456")] {
        script.write(&auth.join(name), value)?;
    }
    script.write(&mapped.join("write_protect"), 1)?;
    script.write(&tpg.join("attrib").join("demo_mode_discovery"), 0)?;
    script.mkdir(&tpg.join("np").join(PORTAL))?;
    script.write(&tpg.join("enable"), 1)
}

/// Masks the volatile values of a dump. It also leaves out objects that only some kernels have, and
/// NULs (the kernel copies those of its own strings in `members`).
pub fn masked(dump: &str) -> String {
    let mut text = String::new();
    for line in dump.lines() {
        let (object, value) =
            line.split_once(" = ").map_or((line, None), |(object, value)| (object, Some(value)));
        let name = object.rsplit(['/', ' ']).next().unwrap_or(object);
        if LATER.contains(&name) {
            continue;
        }
        text += object;
        if let Some(value) = value {
            text += " = ";
            text += if is_volatile(object, name) { "(volatile)" } else { value };
        }
        text.push('\n');
    }
    text.replace("\\0", "")
}

/// Returns `true` if this file's value is volatile. `file core/…/info` names the device; the `info`
/// of an ACL is compared.
fn is_volatile(object: &str, name: &str) -> bool {
    VOLATILE.contains(&name) || (name == "info" && !object.contains("/acls/"))
}

/// Returns the lines in which two masked dumps differ: `-` only in the first, `+` only in the
/// second.
pub fn differences(first: &str, second: &str) -> Vec<String> {
    let (first, second) = (masked(first), masked(second));
    let mut count: BTreeMap<&str, i32> = BTreeMap::new();
    for line in first.lines() {
        *count.entry(line).or_default() += 1;
    }
    for line in second.lines() {
        *count.entry(line).or_default() -= 1;
    }
    count
        .into_iter()
        .filter(|(_, n)| *n != 0)
        .map(|(line, n)| format!("{} {line}", if n > 0 { '-' } else { '+' }))
        .collect()
}
