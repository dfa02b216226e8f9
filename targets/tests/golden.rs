//! Golden folders: `golden/<case>/{before.tree, wanted.txt, plan.txt, after.tree}`. A new case is a
//! new folder with the first two files. See `golden/README.md`.
//! `UPDATE_GOLDEN=1 cargo test -p mooring-targets --test golden` writes the others.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::*;
use mooring_host::{EntryKind, Tree, TreePath};
use mooring_model::{Chap, ExportNames, Grant, Lun, Secret};
use mooring_targets::{Wanted, apply, layout};

/// Short names of our paths, `TPG`, `TARGET`, `BACKSTORE` and `HBA`, with the longest path first.
fn short_names(names: &ExportNames) -> [(&'static str, TreePath); 4] {
    [
        ("TPG", layout::tpg(names)),
        ("TARGET", layout::target(names)),
        ("BACKSTORE", layout::backstore(names)),
        ("HBA", layout::hba(names)),
    ]
}

fn shorten(text: &str) -> String {
    short_names(&names())
        .iter()
        .fold(text.to_owned(), |text, (short, path)| text.replace(path.as_str(), short))
}

fn lengthen(text: &str) -> String {
    let long = |word: &str| {
        for (short, path) in short_names(&names()) {
            if let Some(rest) =
                word.strip_prefix(short).filter(|rest| rest.is_empty() || rest.starts_with('/'))
            {
                return format!("{path}{rest}");
            }
        }
        word.to_owned()
    };
    text.split(' ').map(long).collect::<Vec<_>>().join(" ")
}

/// Parses `grant INITIATOR lun N rw|ro [chap USER SECRET [mutual USER SECRET]]`.
fn grant_line(line: &str) -> Grant {
    let words: Vec<&str> = line.split_whitespace().collect();
    let chap = match words.get(5..).unwrap_or_default() {
        [] => None,
        ["chap", user, secret] => Some(chap(user, secret)),
        ["chap", user, secret, "mutual", other, other_secret] => {
            Some(Chap { mutual: Some(side(other, other_secret)), ..chap(user, secret) })
        }
        other => panic!("not a chap: {other:?}"),
    };
    Grant {
        initiator: words[1].parse().unwrap(),
        lun: Lun(words[3].parse().unwrap()),
        mode: words[4].parse().unwrap(),
        chap,
        attachments: Vec::new(),
        barrier: None,
    }
}

/// Parses lines `absent`, `device PATH`, `portal P`, `grant …`, `tuned KEY VALUE`, `port-id N`,
/// `withheld`.
fn read_spec(text: &str) -> Wanted {
    let (mut device, mut portals, mut grants) = (DEVICE.to_owned(), Vec::new(), Vec::new());
    let (mut said, mut port_id, mut silent) = (Vec::new(), None, false);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("absent", _) => return absent(),
            ("device", path) => path.clone_into(&mut device),
            ("portal", portal) => portals.push(portal),
            ("grant", _) => grants.push(grant_line(line)),
            ("tuned", pair) => said.push(pair.split_once(' ').unwrap()),
            ("withheld", "") => silent = true,
            ("port-id", id) => port_id = Some(id.parse().unwrap()),
            other => panic!("not a line of a spec: {other:?}"),
        }
    }
    let wanted = tuned(present_as(names(), &device, &portals, grants), &said);
    let wanted = if silent { withheld(wanted) } else { wanted };
    port_id.map_or(wanted.clone(), |id| with_port(wanted, id))
}

/// Attributes that a reader wants to see.
const SHOWN: [&str; 20] = [
    "max_write_same_len",
    "emulate_caw",
    "emulate_3pc",
    "enable",
    "rtpi",
    "udev_path",
    "vpd_unit_serial",
    "optimal_sectors",
    "emulate_tpu",
    "generate_node_acls",
    "authentication",
    "prod_mode_write_protect",
    "demo_mode_write_protect",
    "demo_mode_discovery",
    "cache_dynamic_acls",
    "userid",
    "password",
    "userid_mutual",
    "password_mutual",
    "write_protect",
];

/// Writes objects, links and the attributes that matter. A folder that comes with its object is
/// written only if something is in it.
fn tree_text(tree: &dyn Tree, folder: &TreePath, text: &mut String) {
    const HIDDEN: [&str; 4] = ["statistics", "fabric_statistics", "discovery_auth", "alua"];
    const FIXED: [&str; 9] = ["action", "attrib", "auth", "param", "pr", "wwn", "acls", "lun", "np"];
    for entry in tree.list(folder).unwrap_or_default() {
        let path = folder.join(&entry.name);
        match entry.kind {
            EntryKind::Dir if HIDDEN.contains(&entry.name.as_str()) => {}
            // A portal group's own credentials are for demo mode, which is off.
            EntryKind::Dir if entry.name == "auth" && folder.name().starts_with("tpgt_") => {}
            EntryKind::Dir => {
                if !FIXED.contains(&entry.name.as_str()) {
                    writeln!(text, "{path}/").unwrap();
                }
                tree_text(tree, &path, text);
            }
            EntryKind::Link => writeln!(text, "{path} -> {}", tree.read_link(&path).unwrap()).unwrap(),
            EntryKind::File if SHOWN.contains(&entry.name.as_str()) => {
                let value = String::from_utf8_lossy(&tree.read(&path).unwrap()).into_owned();
                let value = value.strip_suffix('\n').unwrap_or(&value).replace('\n', "\\n");
                writeln!(text, "{path} = {value}").unwrap();
            }
            EntryKind::File => {}
        }
    }
}

fn compare(file: &Path, now: &str) -> Result<(), String> {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(file, now).unwrap();
        return Ok(());
    }
    let golden = fs::read_to_string(file).unwrap_or_default();
    if golden == now {
        return Ok(());
    }
    let first = golden.lines().zip(now.lines()).position(|(a, b)| a != b);
    let line = first.unwrap_or(golden.lines().count().min(now.lines().count()));
    Err(format!(
        "{}:{}: golden {:?}, now {:?} (UPDATE_GOLDEN=1 accepts it)",
        file.display(),
        line + 1,
        golden.lines().nth(line).unwrap_or_default(),
        now.lines().nth(line).unwrap_or_default()
    ))
}

fn run(case: &Path) -> Result<(), String> {
    let before = fs::read_to_string(case.join("before.tree")).unwrap();
    let wanted = read_spec(&fs::read_to_string(case.join("wanted.txt")).unwrap());
    let machine = machine();
    machine.add_device(FOREIGN_DEVICE, 1 << 30);
    // Only a later kernel has port ids.
    machine.set_port_ids(wanted.port_id().is_some());
    let tree = machine.lio();
    let was: String = before
        .lines()
        .filter_map(|line| line.strip_prefix("was "))
        .fold(String::new(), |all, line| all + line + "\n");
    if !was.is_empty() {
        settle(&machine, &read_spec(&was));
    }
    let script: String = before
        .lines()
        .filter(|line| !line.starts_with("was "))
        .fold(String::new(), |all, line| all + &lengthen(line) + "\n");
    run_script(&tree, &script);

    let plan = plan_now(&tree, &wanted);
    apply(&plan, &tree, &mut ()).map_err(|error| format!("{}: {error}", case.display()))?;
    let mut after = String::new();
    tree_text(&tree, &TreePath::root(), &mut after);
    let again = plan_now(&tree, &wanted);
    if !again.steps.is_empty() || again.blocked.is_empty() != plan.blocked.is_empty() {
        return Err(format!("{}: not done after one pass:\n{}", case.display(), text(&again)));
    }
    compare(&case.join("plan.txt"), &shorten(&text(&plan)))?;
    compare(&case.join("after.tree"), &shorten(&after))
}

#[test]
fn golden_folders() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut cases: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    cases.sort();
    assert!(cases.len() >= 20, "only {} cases: wrong folder?", cases.len());
    let failed: Vec<String> = cases.iter().filter_map(|case| run(case).err()).collect();
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// Plans in the golden folders are texts for people: no plan contains a secret of its spec.
#[test]
fn no_plan_text_holds_a_secret() {
    let spec =
        read_spec("portal 10.10.0.10\ngrant iqn.2026-01.lab:host1 lun 1 rw chap user1 secret-of-host1");
    let secret = spec.grants()[0].chap.as_ref().map(|chap| chap.initiator.secret.clone());
    assert_eq!(secret, Some(Secret::new("secret-of-host1")));
    let text = text(&plan_now(&machine().lio(), &spec));
    assert!(text.contains("auth/password = ***") && !text.contains("secret-of"), "{text}");
}
