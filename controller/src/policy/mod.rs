//! Permissions of callers: policies with Cinder's names, their defaults, and the operator's file
//! over them.
//!
//! Everything is read and checked once, at the start. Unknown names, missing rules, rules in a
//! circle and malformed expressions are errors that name their line. A decision is then a walk over
//! a small tree.
//!
//! What must never happen here: a request allowed because a name, a rule or an expression was not
//! understood.

mod expr;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mooring_model::Cure;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_yaml_ng::Value;

use crate::domain::Caller;
use crate::domain::Identity;
use crate::error::Refusal;
use expr::{DEPTH_MAX, Expr, Subject};
use table::{POLICIES, RULES};

/// The documented example, as it is installed.
pub const EXAMPLE: &str = include_str!("../../policy.example.yaml");

/// The permissions of the policy file that are refused: writing by anybody but its owner.
const MODE_REFUSED: u32 = 0o022;

/// The default of `enforce_new_defaults`: a caller without a role in a project neither changes nor
/// sees the project's objects.
pub const ENFORCE_NEW_DEFAULTS: bool = true;

/// The most changed characters between an unknown name and the known name that is suggested.
const NEAR: usize = 12;

/// The object of an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Target<'a> {
    /// The project of the object; `None` if it has none.
    pub project: Option<&'a str>,
    /// The user who created the object.
    pub user: Option<&'a str>,
}

impl<'a> Target<'a> {
    /// An object of the caller's own project: for lists, creates and types.
    pub fn own(caller: &'a Caller) -> Self {
        Self { project: Some(&caller.project), user: Some(&caller.user) }
    }

    /// An object of a project.
    pub const fn of(project: &'a str) -> Self {
        Self { project: Some(project), user: None }
    }
}

/// The policies in force.
#[derive(Debug, Clone)]
pub struct Policies {
    rules: HashMap<String, Expr>,
}

/// The reason why policies cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read the policy file {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// Other users could give themselves rights.
    #[error("the policy file {} has mode {mode:04o}: only its owner may write it: chmod go-w", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The file's permissions.
        mode: u32,
    },
    /// The file is not YAML, or does not map names to expressions.
    #[error("{file}: {why}; want lines as \"volume:multiattach\": \"rule:admin_api\"")]
    Yaml {
        /// The file.
        file: String,
        /// The parser's message, with the place.
        why: String,
    },
    /// A mistake in an entry.
    #[error("{file} line {line}: {name}: {why}")]
    Entry {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The policy or rule.
        name: String,
        /// The fault, and the remedy.
        why: String,
    },
}

impl PolicyError {
    /// The remedy: the keeper of the file has to act.
    pub const fn cure(&self) -> Cure {
        Cure::Operator
    }
}

/// The entries of a file, in their order.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("names with expressions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        from.deserialize_map(Reader)
    }
}

/// A policy file's text, with the name that errors give it.
struct File<'a> {
    name: &'a str,
    text: &'a str,
}

impl File<'_> {
    fn wrong(&self, name: &str, why: impl Into<String>) -> PolicyError {
        let begins = |line: &&str| {
            let line = line.trim_start().trim_start_matches(['"', '\'']);
            line.strip_prefix(name)
                .is_some_and(|rest| rest.trim_start_matches(['"', '\'', ' ']).starts_with(':'))
        };
        // The last one: of two entries with one name, the second is the mistake.
        let line = self.text.lines().enumerate().filter(|(_, line)| begins(line)).last();
        let line = line.map_or(1, |(index, _)| index + 1);
        PolicyError::Entry { file: self.name.to_owned(), line, name: name.to_owned(), why: why.into() }
    }

    fn entries(&self) -> Result<BTreeMap<String, Expr>, PolicyError> {
        let raw: Option<Entries> = serde_yaml_ng::from_str(self.text)
            .map_err(|error| PolicyError::Yaml { file: self.name.to_owned(), why: error.to_string() })?;
        let mut entries = BTreeMap::new();
        for (name, text) in raw.map_or_else(Vec::new, |raw| raw.0) {
            // Refuses also what YAML reads as a number, a boolean or null: none of these grants or
            // denies.
            let Value::String(text) = text else {
                return Err(self.wrong(&name, "want an expression as text, in quotes"));
            };
            let parsed = Expr::parse(&text).map_err(|error| self.wrong(&name, error.to_string()))?;
            if entries.insert(name.clone(), parsed).is_some() {
                return Err(self.wrong(&name, "is listed twice"));
            }
        }
        Ok(entries)
    }

    /// Refuses misspelt names: those that neither the API nor another entry uses.
    fn check_names(&self, entries: &BTreeMap<String, Expr>) -> Result<(), PolicyError> {
        let asked: Vec<_> = entries.values().flat_map(Expr::rules).collect();
        for name in entries.keys() {
            if known().any(|known| known == name) || asked.contains(&name.as_str()) {
                continue;
            }
            let near = known().map(|known| (strsim::osa_distance(known, name), known)).min();
            let why = match near.filter(|(distance, _)| *distance <= NEAR) {
                Some((_, near)) => {
                    format!("no such policy, and no rule that another entry uses: is it {near}?")
                }
                None => "no such policy, and no rule that another entry uses".to_owned(),
            };
            return Err(self.wrong(name, why));
        }
        Ok(())
    }
}

/// The names of all policies.
#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|policy| policy.name)
}

fn known() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|(name, _)| *name).chain(POLICIES.iter().map(|policy| policy.name))
}

/// Parses a text of the table. A malformed one would let nobody through; a test parses them all.
fn built_in(text: &str) -> Expr {
    Expr::parse(text).unwrap_or(Expr::Never)
}

/// The first rule below `name` that is missing or part of a circle; `None` if all are sound.
fn unsound(rules: &HashMap<String, Expr>, name: &str, above: &mut Vec<String>) -> Option<String> {
    if above.iter().any(|one| one == name) {
        return Some(format!("rule:{name} leads back to itself"));
    }
    if above.len() >= DEPTH_MAX {
        return Some(format!("more than {DEPTH_MAX} rules that name each other"));
    }
    let Some(expr) = rules.get(name) else { return Some(format!("rule:{name} does not exist")) };
    above.push(name.to_owned());
    let found = expr.rules().into_iter().find_map(|next| unsound(rules, next, above));
    above.pop();
    found
}

impl Default for Policies {
    /// The defaults of an installation without a policy file, which need roles.
    fn default() -> Self {
        Self::with(BTreeMap::new(), ENFORCE_NEW_DEFAULTS)
    }
}

impl Policies {
    /// The defaults, with the file over them if there is one. With `enforce_new_defaults`, leaves
    /// out the old defaults, which needed no role.
    pub fn load(path: Option<&Path>, enforce_new_defaults: bool) -> Result<Self, PolicyError> {
        let Some(path) = path else { return Ok(Self::with(BTreeMap::new(), enforce_new_defaults)) };
        let read = |source| PolicyError::Read { path: path.to_owned(), source };
        let mode = std::fs::metadata(path).map_err(read)?.permissions().mode() & 0o777;
        if mode & MODE_REFUSED != 0 {
            return Err(PolicyError::Open { path: path.to_owned(), mode });
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        Self::parse(&text, &path.display().to_string(), enforce_new_defaults)
    }

    /// The defaults with a text over them; `name` is the file's name in errors.
    pub fn parse(text: &str, name: &str, enforce_new_defaults: bool) -> Result<Self, PolicyError> {
        let file = File { name, text };
        let entries = file.entries()?;
        file.check_names(&entries)?;
        let names: Vec<_> = entries.keys().cloned().collect();
        let policies = Self::with(entries, enforce_new_defaults);
        for name in names {
            if let Some(why) = unsound(&policies.rules, &name, &mut Vec::new()) {
                return Err(file.wrong(&name, why));
            }
        }
        Ok(policies)
    }

    fn with(entries: BTreeMap<String, Expr>, enforce_new_defaults: bool) -> Self {
        let mut rules: HashMap<_, _> =
            RULES.iter().map(|(name, text)| ((*name).to_owned(), built_in(text))).collect();
        for policy in POLICIES {
            let mut expr = built_in(policy.default);
            if let Some(old) = policy.old.filter(|_| !enforce_new_defaults) {
                expr = Expr::Any(vec![expr, built_in(old)]);
            }
            rules.insert(policy.name.to_owned(), expr);
        }
        rules.extend(entries);
        Self { rules }
    }

    /// Returns `true` if a caller may do this.
    pub fn allows(&self, name: &'static str, caller: &Caller, target: &Target<'_>) -> bool {
        debug_assert!(known().any(|known| known == name), "no such policy: {name}");
        let subject = Subject {
            project: &caller.project,
            user: &caller.user,
            roles: &caller.roles,
            admin: caller.admin,
            // Decided when the caller was identified: only the result is left.
            admin_project: caller.admin,
            service: caller.service,
        };
        self.rules.get(name).is_some_and(|rule| rule.holds(&self.rules, &subject, target))
    }

    /// Refuses an act that the policy denies the caller.
    pub fn check(&self, name: &'static str, caller: &Caller, target: &Target<'_>) -> Result<(), Refusal> {
        if self.allows(name, caller, target) {
            Ok(())
        } else {
            Err(Refusal::Forbidden(format!("Policy doesn't allow {name} to be performed.")))
        }
    }

    /// Returns `true` if `context_is_admin` holds for a caller with these roles, whose project is
    /// unknown.
    pub fn is_admin(&self, roles: &[String]) -> bool {
        self.admin_rule(&Subject {
            project: "",
            user: "",
            roles,
            admin: false,
            admin_project: true,
            service: false,
        })
    }

    /// Returns `true` if `context_is_admin` holds for the sender of a request.
    pub(crate) fn makes_admin(&self, identity: &Identity) -> bool {
        self.admin_rule(&Subject {
            project: identity.project.as_deref().unwrap_or_default(),
            user: &identity.user,
            roles: &identity.roles,
            admin: false,
            admin_project: identity.admin_project,
            service: identity.service,
        })
    }

    fn admin_rule(&self, subject: &Subject<'_>) -> bool {
        let rule = self.rules.get("context_is_admin");
        rule.is_some_and(|rule| rule.holds(&self.rules, subject, &Target::default()))
    }
}
