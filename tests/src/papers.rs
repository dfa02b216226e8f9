//! Fenced blocks of the pages that a new operator reads. The scenario `papers` runs each block
//! whose fence says `sh run MACHINE`. `cargo xtask package --test` runs each block whose fence says
//! `sh apt STEP`, on Debian 12 and 13. Any other block has, on the line before it, the reason why
//! it is not run: `<!-- not run: REASON -->`.
//!
//! What must never happen here: a block that is neither.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Pages whose blocks are checked, in reading order.
pub const PAGES: [&str; 6] = [
    "docs/install.md",
    "README.md",
    "docs/upgrade.md",
    "docs/backup.md",
    "docs/security.md",
    "vagrant/README.md",
];

const FENCE: &str = "```";
/// Words behind the fence of a block that is run, before the place where it is.
const MARKS: [(&str, Typist); 2] = [(RUN, Typist::Scenario), ("sh apt ", Typist::Apt)];
const RUN: &str = "sh run ";
const REASON: (&str, &str) = ("<!-- not run: ", " -->");

/// Tests that type blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Typist {
    /// The scenario `papers`, in VMs.
    Scenario,
    /// `cargo xtask package --test`, where apt has a folder of packages.
    Apt,
}

/// A block that is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// `PAGE:LINE` of its fence.
    pub place: String,
    /// The test that types it.
    pub typist: Typist,
    /// The machine of the scenario on which it is typed, or the step of apt's trial.
    pub at: String,
    /// Lines to type.
    pub text: String,
}

/// The blocks of a page that are run. An error names each block that has neither a mark nor a
/// reason.
pub fn blocks_of(page: &str, text: &str) -> Result<Vec<Block>> {
    let (mut blocks, mut wrong) = (Vec::new(), Vec::new());
    let mut before = "";
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix(FENCE) else {
            if !line.trim().is_empty() {
                before = line.trim();
            }
            continue;
        };
        let place = format!("{page}:{}", index + 1);
        let indent = line.len() - line.trim_start().len();
        let body: Vec<&str> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| line.trim() != FENCE)
            .map(|line| line.get(indent..).unwrap_or_default())
            .collect();
        let marked = MARKS.iter().find_map(|(mark, typist)| Some((info.strip_prefix(*mark)?, *typist)));
        if let Some((at, typist)) = marked {
            blocks.push(Block { place, typist, at: at.trim().to_owned(), text: body.join("\n") });
        } else {
            let reason = before.strip_prefix(REASON.0).and_then(|rest| rest.strip_suffix(REASON.1));
            if reason.is_none_or(|reason| reason.trim().len() < 10) {
                wrong.push(place);
            }
        }
        before = "";
    }
    if !wrong.is_empty() {
        bail!(
            "blocks that nothing runs, without a reason: {}. Write `{FENCE}{RUN}MACHINE` where a block can be run, or `{}REASON{}` before it",
            wrong.join(", "),
            REASON.0,
            REASON.1
        );
    }
    Ok(blocks)
}

/// The blocks of all pages that this test types.
pub fn blocks(root: &Path, typist: Typist) -> Result<Vec<Block>> {
    let mut all = Vec::new();
    for page in PAGES {
        let path = root.join(page);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        all.extend(blocks_of(page, &text)?.into_iter().filter(|block| block.typist == typist));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use mooring_rig::options::workspace_root;

    use super::*;

    /// Most commands that a role takes, from nothing to its part in an attached disk.
    const COMMANDS_MAX: usize = 5;

    /// The commands in the fenced blocks below a heading, up to the next one, without what the page
    /// says beside them. A line that joins two has two.
    fn commands<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
        let (mut here, mut fenced, mut found) = (false, false, Vec::new());
        for line in page.lines() {
            if line.trim_start().starts_with(FENCE) {
                fenced = !fenced;
            } else if !fenced && line.starts_with('#') {
                here = line == heading;
            } else if fenced && here {
                let typed = line.split(" #").next().unwrap_or_default();
                let each = ["&&", ";", "|"].iter().fold(vec![typed], |parts, sign| {
                    parts.into_iter().flat_map(|part| part.split(*sign)).collect()
                });
                found.extend(
                    each.into_iter().map(str::trim).filter(|one| !one.is_empty() && !one.starts_with('#')),
                );
            }
        }
        found
    }

    fn page(path: &str) -> String {
        fs::read_to_string(workspace_root().join(path)).unwrap()
    }

    #[test]
    fn each_block_of_the_pages_is_run_or_has_its_reason() {
        for (typist, places, least) in [
            (Typist::Scenario, &["controller", "storage1", "host1", "host2"][..], 5),
            (Typist::Apt, &["install", "upgrade"][..], 4),
        ] {
            let blocks = blocks(&workspace_root(), typist).unwrap();
            assert!(blocks.len() >= least, "{blocks:?}");
            for block in blocks {
                assert!(places.contains(&block.at.as_str()), "{block:?}");
                assert!(!block.text.contains('…'), "{block:?} has a word that the reader fills in");
            }
        }
    }

    #[test]
    fn a_block_with_neither_is_named() {
        let page = "a\n\n```\nlost\n```\n<!-- not run: short -->\n```\nlost\n```\n<!-- not run: it is an example of output -->\n\n```\nfine\n```\n\
                    1. b\n\n   ```sh run host1\n   one\n     two\n   ```\n\n```sh\nlost\n```\n";
        let error = blocks_of("p.md", page).unwrap_err().to_string();
        assert!(error.contains("p.md:3, p.md:7, p.md:22."), "{error}");
        let block = |place: &str, typist, at: &str, text: &str| Block {
            place: place.to_owned(),
            typist,
            at: at.to_owned(),
            text: text.to_owned(),
        };
        let fine = "```sh run host1\none\n  two\n```\n```sh apt install\nthree\n```\n";
        let two = [
            block("p.md:1", Typist::Scenario, "host1", "one\n  two"),
            block("p.md:5", Typist::Apt, "install", "three"),
        ];
        assert_eq!(blocks_of("p.md", fine).unwrap(), two);
    }

    #[test]
    fn each_role_is_installed_by_at_most_five_commands() {
        let install = page("docs/install.md");
        for role in ["### The controller", "### A storage node", "### A host that attaches"] {
            let commands = commands(&install, role);
            assert!((3..=COMMANDS_MAX).contains(&commands.len()), "{role}: {commands:?}");
            assert!(commands.iter().any(|one| one.contains("apt-get install")), "{role}: {commands:?}");
        }
    }

    #[test]
    fn the_readme_has_the_install_pages_commands() {
        let (readme, install) = (page("README.md"), page("docs/install.md"));
        let short = commands(&readme, "## Run it for real");
        assert!((COMMANDS_MAX..=8).contains(&short.len()), "{short:?}");
        for one in short {
            // What the reader fills in is longer there.
            let known = one.split('…').next().unwrap_or_default();
            assert!(install.lines().any(|line| line.starts_with(known)), "{one:?} is not in docs/install.md");
        }
    }

    #[test]
    fn commands_are_counted_however_they_are_joined() {
        let page = "## a\n```\nno\n```\n## b\n\ntext\n```sh run x\none   # and; a word\n# none\n\ntwo && three; four | five\n```\n\
                    ```\nsix\n```\n### c\n```\nno\n```\n";
        assert_eq!(commands(page, "## b"), ["one", "two", "three", "four", "five", "six"]);
    }
}
