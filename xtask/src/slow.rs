//! Scenarios that passed only the second time, because a wait ran out.
//!
//! What must never happen here: slowness that becomes normal. A page lists the slow ones; a listed
//! scenario that is slow again fails, and so do three in one run.

use std::fs;
use std::path::Path;

/// Number of slow scenarios in one run that is a failure.
const TOO_MANY: usize = 3;
/// The page that lists slow scenarios, and the heading of the list.
const PAGE: &str = "docs/contributing/testing.md";
const HEADING: &str = "## Scenarios that were slow";

/// The scenarios that the page lists: lines below the heading that begin with "- `name`".
pub(crate) fn listed(root: &Path) -> Vec<String> {
    list(&fs::read_to_string(root.join(PAGE)).unwrap_or_default())
}

fn list(page: &str) -> Vec<String> {
    let below = page.lines().skip_while(|line| *line != HEADING).skip(1);
    let own = below.take_while(|line| !line.starts_with("## "));
    let names = own.filter_map(|line| line.strip_prefix("- `")?.split_once('`'));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// The reason why the slow scenarios of a run are a failure; `None`: they are not.
pub(crate) fn too_many(slow: &[&str], listed: &[String]) -> Option<String> {
    let again: Vec<_> = slow.iter().filter(|name| listed.iter().any(|one| one == *name)).copied().collect();
    if !again.is_empty() {
        return Some(format!("slow again, as {PAGE} lists them already: {}", again.join(", ")));
    }
    (slow.len() >= TOO_MANY).then(|| format!("{} scenarios were slow: {}", slow.len(), slow.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_slow_scenarios_or_one_that_is_listed_are_a_failure() {
        let listed = list(
            "# x\n- `no`\n## Scenarios that were slow\n\n- `boot` (2026-11-26): LVM\n- none\n## More\n- `no`\n",
        );
        assert_eq!(listed, ["boot"]);
        assert_eq!(too_many(&[], &listed), None);
        assert_eq!(too_many(&["images", "adopt"], &listed), None);
        assert!(too_many(&["images", "adopt", "extend"], &listed).is_some_and(|why| why.contains("adopt")));
        assert!(too_many(&["boot"], &listed).is_some_and(|why| why.contains("boot")));
    }

    #[test]
    fn the_page_has_the_list() {
        let page = fs::read_to_string(mooring_rig::options::workspace_root().join(PAGE)).unwrap();
        assert!(page.lines().any(|line| line == HEADING));
    }
}
