//! Tables of commands under the units' sandboxes: each with its exit status and words of its
//! answer, refusals included. A test compares them and the other scenes with the recorded list of
//! all commands.
//!
//! What must never happen here: a command that no scene types, and that no reason excuses.

use std::time::Duration;

use anyhow::Result;

use super::Machine;
use crate::evidence::check;

/// A command, its exit status, and words of its answer. `ID` stands for an attachment.
pub(super) type Row = (&'static str, i32, &'static str);

/// The beginning of each command to the controller.
pub(super) const TO_CONTROLLER: &str = ". /root/env; mooring --token-file /root/token --json";

/// Commands for a volume that this machine has attached.
pub(super) const ATTACHED: &[Row] = &[
    ("attachment list verbs", 0, "\"host\": \"storage1\""),
    ("attachment check ID", 0, "\"problems\": []"),
    ("session list --volume verbs", 0, "\"missing\": false"),
    ("volume rotate-secrets verbs --timeout 120", 0, "\"done\": true"),
    ("volume cut verbs", 4, "every read and write would end with an error"),
    ("host forget storage1", 0, "a host that answers cannot be forgotten"),
    ("host forget storage1 --yes", 4, "a host that answers cannot be forgotten"),
];

/// Commands for a volume with a snapshot that nobody has attached, and for all that is no volume.
pub(super) const DETACHED: &[Row] = &[
    ("volume list", 0, "\"name\": \"verbs\""),
    ("volume set verbs --readonly false --bootable true", 0, "\"name\": \"verbs\""),
    ("volume reset-status verbs error", 0, "\"status\": \"error\""),
    ("volume reset-status verbs available", 0, "\"status\": \"available\""),
    ("volume confirm-review verbs", 0, "\"done\": true"),
    ("snapshot list verbs", 0, "\"name\": \"one\""),
    ("snapshot reset-status one error", 0, "\"status\": \"error\""),
    ("snapshot reset-status one available", 0, "\"status\": \"available\""),
    ("snapshot show one", 0, "\"status\": \"available\""),
    ("receipt list verbs", 0, "\"attachment_id\""),
    ("receipt show ID", 0, "\"forced\": false"),
    ("job list", 0, "\"jobs\": []"),
    ("job show verbs", 3, "no job is at work at volume"),
    ("type create fast --private --spec media=nvme", 0, "\"done\": true"),
    ("type set fast --description quick", 0, "\"description\": \"quick\""),
    ("type show fast", 0, "\"media\": \"nvme\""),
    ("type access fast --add 0123456789abcdef0123456789abcdef", 0, "\"0123456789abcdef0123456789abcdef\""),
    ("type unset fast media", 0, "\"extra_specs\": {}"),
    ("type list", 0, "\"name\": \"fast\""),
    ("type delete fast", 0, "\"done\": true"),
    ("quota set acme volumes=5", 0, "\"limit\": 5"),
    ("quota show acme", 0, "\"limit\": 5"),
    ("quota reset acme", 0, "\"project\": \"acme\""),
    ("pool list", 0, "\"storage1@lvm#"),
    ("epoch raise", 0, "\"epoch\": "),
    ("host disable storage1 --reason repair", 0, "\"disabled_reason\": \"repair\""),
    ("host enable storage1", 0, "\"disabled\": false"),
    ("host drain storage1", 0, "\"drained\": true"),
    ("host undrain storage1", 0, "\"drained\": false"),
    ("host fence storage1 --reason tried --timeout 240", 0, "\"proof\": \"proven\""),
    ("host fences", 0, "\"reason\": \"tried\""),
    ("host unfence storage1", 0, "\"lifted_at\": \"2"),
    ("host show storage1", 0, "\"name\": \"storage1\""),
    ("audit --limit 1", 0, "\"audit\": ["),
];

/// Commands to the agent, for a volume that the controller does not know.
pub(super) const BY_HAND: &[Row] = &[
    ("agent show", 0, "\"modules\": ["),
    ("volume create hand --size 8MiB --group vg0 --timeout 120", 0, "\"done\": true"),
    ("export grant hand --initiator iqn.2026-01.lab:hand --mode ro --timeout 120", 0, "\"done\": true"),
    ("export show hand", 0, "iqn.2026-01.lab:hand"),
    ("plan hand", 0, "\"steps\": []"),
    ("export revoke hand --initiator iqn.2026-01.lab:hand --timeout 120", 0, "\"proven\": true"),
    ("volume delete hand --timeout 120", 0, "\"done\": true"),
];

/// A command that only its user ends.
pub(super) const ENDLESS: &[Row] = &[("watch", 124, "\"kind\":\"synced\"")];

/// Commands of the daemons' programs, typed while the daemons run.
pub(super) const BESIDE: &[Row] = &[
    ("mooring-agent adopt --plan", 0, "Nothing was changed"),
    (
        "setpriv --reuid mooring-controller --regid mooring-controller --init-groups mooring-controller run --check",
        0,
        "controller.toml: ok",
    ),
    ("mooring-controller token --name ci --project acme", 0, "For the token file"),
    ("mooring-controller backup /root/kept.db --keys /root/kept.key", 0, "the keys of its secrets"),
    ("mooring-controller restore /root/kept.db", 1, "stop that one first"),
    ("mooring-controller rebuild --from-agents --dry-run", 1, "names no agent to rebuild from"),
    ("mooring-controller share /root/second.share", 1, "is SQLite"),
];

impl Machine<'_> {
    /// Runs a table's commands one after the other, each behind this text.
    pub(super) fn rows(&self, before: &str, id: &str, rows: &[Row]) -> Result<()> {
        for (words, status, says) in rows {
            let command = format!("{before} {} 2>&1", words.replace("ID", id));
            let run = self.vm.command(["sh", "-uc", &command]).timeout(Duration::from_mins(5)).run()?;
            check(run.status.code() == Some(*status) && run.stdout.contains(says), || {
                format!("`{words}` should end with {status} and say {says:?}: {run:?}")
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    /// The recorded list of the commands of all programs.
    const RECORDED: &str = include_str!(
        "../../../../packages/src/snapshots/mooring_packages__commands__commands_and_flags_stay_as_recorded.snap"
    );

    /// The scenes of `installed`.
    const SCENES: [&str; 5] = [
        include_str!("../installed.rs"),
        include_str!("rows.rs"),
        include_str!("secrets.rs"),
        include_str!("units.rs"),
        include_str!("verbs.rs"),
    ];

    /// Commands that other scenarios run under the units, with the reason.
    const ELSEWHERE: [(&str, &str); 2] = [
        ("mooring demo", "the tour needs two hosts: `papers` takes it"),
        ("mooring-agent release-mounts", "mooring-release.service runs it at a shutdown: `shutdown`"),
    ];

    /// Commands that have no commands below them.
    fn leaves() -> Vec<&'static str> {
        let lines = RECORDED.lines().filter(|line| line.starts_with("mooring"));
        let all: Vec<_> = lines.filter_map(|line| line.split(" (").next()).collect();
        let is_leaf = |one: &&str| {
            let below = format!("{one} ");
            !all.iter().any(|other| other.starts_with(&below))
        };
        all.iter().copied().filter(is_leaf).collect()
    }

    /// Returns `true` if a line of code types the command.
    fn types(scene: &str, command: &str) -> bool {
        let verb = command.strip_prefix("mooring ");
        let words = verb.unwrap_or(command);
        let starts: &[&str] = if verb.is_some() { &["\"", "mooring ", "/root/token "] } else { &[""] };
        let code = scene.lines().filter(|line| !line.trim_start().starts_with("//"));
        code.flat_map(|line| line.match_indices(words).map(move |(at, _)| line.split_at(at))).any(
            |(before, from)| {
                let next = from.chars().nth(words.len());
                let ends = next.is_none_or(|next| !next.is_ascii_alphanumeric() && next != '-');
                ends && starts.iter().any(|start| before.ends_with(start))
            },
        )
    }

    #[test]
    fn each_command_of_all_programs_is_typed_under_the_units() {
        let scenes = SCENES.map(|scene| scene.split("#[cfg(test)]").next().unwrap_or_default());
        let missing: Vec<_> = leaves()
            .into_iter()
            .filter(|command| !scenes.iter().any(|scene| types(scene, command)))
            .collect();
        assert_eq!(missing, ELSEWHERE.map(|(command, _)| command));
        assert!(leaves().contains(&"mooring volume cut"), "{:?}", leaves());
    }

    #[test]
    fn a_command_in_prose_or_in_a_longer_word_is_not_typed() {
        assert!(types("(\"plan\", 0, \"\"),", "mooring plan"));
        assert!(types("sh(\"mooring-agent join x\")", "mooring-agent join"));
        for other in ["// \"plan\"", "\"planned\"", "\"an empty plan\"", "\"plan-b\""] {
            assert!(!types(other, "mooring plan"), "{other}");
        }
    }
}
