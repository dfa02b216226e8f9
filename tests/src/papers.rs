//! Fenced blocks of the pages that a new operator reads. The scenario `papers` runs each block
//! whose fence says `sh run MACHINE`. Any other block has, on the line before it, the reason why it
//! is not run: `<!-- not run: REASON -->`.
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
const RUN: &str = "sh run ";
const REASON: (&str, &str) = ("<!-- not run: ", " -->");

/// A block that is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// `PAGE:LINE` of its fence.
    pub place: String,
    /// The machine on which a reader types it.
    pub machine: String,
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
        if let Some(machine) = info.strip_prefix(RUN) {
            blocks.push(Block { place, machine: machine.trim().to_owned(), text: body.join("\n") });
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

/// The blocks of all pages that are run.
pub fn blocks(root: &Path) -> Result<Vec<Block>> {
    let mut all = Vec::new();
    for page in PAGES {
        let path = root.join(page);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        all.extend(blocks_of(page, &text)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use mooring_rig::options::workspace_root;

    use super::*;

    #[test]
    fn each_block_of_the_pages_is_run_or_has_its_reason() {
        let blocks = blocks(&workspace_root()).unwrap();
        assert!(blocks.len() >= 5, "{blocks:?}");
        for block in blocks {
            assert!(
                ["controller", "storage1", "host1", "host2"].contains(&block.machine.as_str()),
                "{block:?}"
            );
            assert!(!block.text.contains('…'), "{block:?} has a word that the reader fills in");
        }
    }

    #[test]
    fn a_block_with_neither_is_named() {
        let page = "a\n\n```\nlost\n```\n<!-- not run: short -->\n```\nlost\n```\n<!-- not run: it is an example of output -->\n\n```\nfine\n```\n\
                    1. b\n\n   ```sh run host1\n   one\n     two\n   ```\n\n```sh\nlost\n```\n";
        let error = blocks_of("p.md", page).unwrap_err().to_string();
        assert!(error.contains("p.md:3, p.md:7, p.md:22."), "{error}");
        let fine = "```sh run host1\none\n  two\n```\n";
        let one =
            Block { place: "p.md:1".to_owned(), machine: "host1".to_owned(), text: "one\n  two".to_owned() };
        assert_eq!(blocks_of("p.md", fine).unwrap(), [one]);
    }
}
