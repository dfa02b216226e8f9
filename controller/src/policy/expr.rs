//! The language of policies: a subset of oslo.policy's, parsed once and evaluated often.
//!
//! `role:x` · `rule:x` · `project_id:%(project_id)s` or `project_id:<id>` · `user_id:%(user_id)s`
//! or `user_id:<id>` · `is_admin:True|False` · `is_admin_project:True|False` ·
//! `is_service:True|False` · `@` or nothing (everybody) · `!` (nobody) · `and`, `or`, `not`,
//! parentheses. `not` binds tighter than `and`, `and` tighter than `or`.
//!
//! What must never happen here: a panic, or a deep stack, whatever the text; an unknown word that
//! lets somebody through.

use std::collections::HashMap;

/// The longest expression, in bytes.
const TEXT_BYTES_MAX: usize = 8 * 1024;

/// The deepest nesting of parentheses and `not`, and the longest chain of rules that name each
/// other.
pub(super) const DEPTH_MAX: usize = 32;

/// A parsed policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expr {
    Always,
    Never,
    /// A role, in lower case.
    Role(String),
    Rule(String),
    Project(Whose),
    User(Whose),
    IsAdmin(bool),
    AdminProject(bool),
    /// `true` if a valid service token is required, `false` if none may be there.
    IsService(bool),
    Not(Box<Expr>),
    All(Vec<Expr>),
    Any(Vec<Expr>),
}

/// The value that a project or a user is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Whose {
    /// The target's own value.
    Target,
    /// This fixed value.
    Of(String),
}

/// The caller, as policies see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) project: &'a str,
    pub(super) user: &'a str,
    pub(super) roles: &'a [String],
    pub(super) admin: bool,
    pub(super) admin_project: bool,
    pub(super) service: bool,
}

/// The reason why a text is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at character {column}: {why}")]
pub(super) struct ParseError {
    /// The column, from 1.
    pub(super) column: usize,
    pub(super) why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Open,
    Close,
    Word(&'a str),
}

/// Splits a text into words and parentheses; those of `%(project_id)s` belong to their word.
fn tokens(text: &str) -> Result<Vec<(usize, Token<'_>)>, ParseError> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let at = text.len() - rest.len();
        let column = text.get(..at).unwrap_or_default().chars().count() + 1;
        let Some(first) = rest.chars().next() else { return Ok(tokens) };
        let (token, length) = match first {
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            _ => {
                let length = word_length(rest).ok_or_else(|| ParseError {
                    column,
                    why: "%( is not closed: want %(name)s".to_owned(),
                })?;
                (Token::Word(rest.get(..length).unwrap_or_default()), length)
            }
        };
        tokens.push((column, token));
        rest = rest.get(length..).unwrap_or_default();
    }
}

/// The length of a word; `None` if a `%(` has no end.
fn word_length(text: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(rest) = text.get(at..) {
        let Some(next) = rest.chars().next() else { break };
        if rest.starts_with("%(") {
            at += rest.find(')')? + 1;
        } else if next.is_whitespace() || matches!(next, '(' | ')') {
            break;
        } else {
            at += next.len_utf8();
        }
    }
    Some(at)
}

struct Parser<'a> {
    tokens: Vec<(usize, Token<'a>)>,
    at: usize,
    depth: usize,
    end: usize,
}

impl<'a> Parser<'a> {
    fn wrong<T>(&self, why: impl Into<String>) -> Result<T, ParseError> {
        let column = self.tokens.get(self.at).map_or(self.end, |(column, _)| *column);
        Err(ParseError { column, why: why.into() })
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(_, token)| *token)
    }

    fn takes(&mut self, keyword: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(word)) if word.eq_ignore_ascii_case(keyword));
        self.at += usize::from(found);
        found
    }

    /// Reads parts with a keyword between them.
    fn list(
        &mut self,
        keyword: &str,
        part: impl Fn(&mut Self) -> Result<Expr, ParseError>,
        join: fn(Vec<Expr>) -> Expr,
    ) -> Result<Expr, ParseError> {
        let first = part(self)?;
        let mut parts = Vec::new();
        while self.takes(keyword) {
            parts.push(part(self)?);
        }
        if parts.is_empty() {
            return Ok(first);
        }
        parts.insert(0, first);
        Ok(join(parts))
    }

    fn any(&mut self) -> Result<Expr, ParseError> {
        self.list("or", Self::all, Expr::Any)
    }

    fn all(&mut self) -> Result<Expr, ParseError> {
        self.list("and", Self::one, Expr::All)
    }

    fn one(&mut self) -> Result<Expr, ParseError> {
        if self.depth >= DEPTH_MAX {
            return self.wrong(format!("more than {DEPTH_MAX} levels of parentheses and `not`"));
        }
        self.depth += 1;
        let found = self.deeper();
        self.depth -= 1;
        found
    }

    fn deeper(&mut self) -> Result<Expr, ParseError> {
        if self.takes("not") {
            return Ok(Expr::Not(Box::new(self.one()?)));
        }
        match self.peek() {
            Some(Token::Open) => {
                self.at += 1;
                let inside = self.any()?;
                if self.peek() != Some(Token::Close) {
                    return self.wrong("want `and`, `or` or `)`");
                }
                self.at += 1;
                Ok(inside)
            }
            Some(Token::Close) => self.wrong("want a check, and this is `)`"),
            Some(Token::Word(word)) => {
                let found = check(word).or_else(|why| self.wrong(why))?;
                self.at += 1;
                Ok(found)
            }
            None => self.wrong("want a check, and the text ends"),
        }
    }
}

const KNOWN: &str =
    "known are role:, rule:, project_id:, user_id:, is_admin:, is_admin_project:, is_service:, @ and !";

fn check(word: &str) -> Result<Expr, String> {
    match word {
        "@" => return Ok(Expr::Always),
        "!" => return Ok(Expr::Never),
        _ => {}
    }
    let shown: String = word.chars().take(80).collect();
    let Some((kind, value)) = word.split_once(':') else {
        return Err(format!("{shown:?} is no check: {KNOWN}"));
    };
    if value.is_empty() {
        return Err(format!("{shown:?} has nothing behind its colon"));
    }
    let whose = |field: &str| {
        if value == format!("%({field})s") {
            Ok(Whose::Target)
        } else if value.contains('%') {
            Err(format!("{shown:?}: want {field}:%({field})s or {field}:<id>"))
        } else {
            Ok(Whose::Of(value.to_owned()))
        }
    };
    let flag = || match value {
        "True" | "true" => Ok(true),
        "False" | "false" => Ok(false),
        _ => Err(format!("{shown:?}: want {kind}:True or {kind}:False")),
    };
    match kind {
        "role" | "rule" if value.contains('%') => Err(format!("{shown:?}: {kind}: takes a plain name")),
        "role" => Ok(Expr::Role(value.to_lowercase())),
        "rule" => Ok(Expr::Rule(value.to_owned())),
        "project_id" => Ok(Expr::Project(whose("project_id")?)),
        "user_id" => Ok(Expr::User(whose("user_id")?)),
        "is_admin" => Ok(Expr::IsAdmin(flag()?)),
        "is_admin_project" => Ok(Expr::AdminProject(flag()?)),
        "is_service" => Ok(Expr::IsService(flag()?)),
        _ => Err(format!("{shown:?} is no check: {KNOWN}")),
    }
}

impl Expr {
    pub(super) fn parse(text: &str) -> Result<Self, ParseError> {
        if text.len() > TEXT_BYTES_MAX {
            let why = format!("the text has more than {TEXT_BYTES_MAX} bytes");
            return Err(ParseError { column: 1, why });
        }
        let tokens = tokens(text)?;
        if tokens.is_empty() {
            return Ok(Self::Always);
        }
        let end = text.chars().count() + 1;
        let mut parser = Parser { tokens, at: 0, depth: 0, end };
        let found = parser.any()?;
        match parser.peek() {
            None => Ok(found),
            Some(Token::Close) => parser.wrong("this `)` closes nothing"),
            Some(_) => parser.wrong("want `and` or `or` before this"),
        }
    }

    /// The rules that the expression names.
    pub(super) fn rules(&self) -> Vec<&str> {
        match self {
            Self::Rule(name) => vec![name.as_str()],
            Self::Not(inside) => inside.rules(),
            Self::All(parts) | Self::Any(parts) => parts.iter().flat_map(Self::rules).collect(),
            Self::Always
            | Self::Never
            | Self::Role(_)
            | Self::Project(_)
            | Self::User(_)
            | Self::IsAdmin(_)
            | Self::AdminProject(_)
            | Self::IsService(_) => Vec::new(),
        }
    }

    /// Returns `true` if the expression holds. `rules` has every named rule, and no circle: the
    /// loader ensures both.
    pub(super) fn holds(
        &self,
        rules: &HashMap<String, Self>,
        subject: &Subject<'_>,
        target: &super::Target<'_>,
    ) -> bool {
        let is = |whose: &Whose, own: &str, of_target: Option<&str>| match whose {
            Whose::Target => of_target == Some(own),
            Whose::Of(one) => one == own,
        };
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Role(role) => subject.roles.contains(role),
            Self::Rule(name) => rules.get(name).is_some_and(|rule| rule.holds(rules, subject, target)),
            Self::Project(whose) => !subject.project.is_empty() && is(whose, subject.project, target.project),
            Self::User(whose) => is(whose, subject.user, target.user),
            Self::IsAdmin(wanted) => subject.admin == *wanted,
            Self::AdminProject(wanted) => subject.admin_project == *wanted,
            Self::IsService(wanted) => subject.service == *wanted,
            Self::Not(inside) => !inside.holds(rules, subject, target),
            Self::All(parts) => parts.iter().all(|part| part.holds(rules, subject, target)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(rules, subject, target)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Target;
    use super::*;

    fn holds(text: &str, roles: &[&str], admin: bool) -> bool {
        let roles: Vec<_> = roles.iter().map(|role| (*role).to_owned()).collect();
        let subject =
            Subject { project: "p", user: "u", roles: &roles, admin, admin_project: false, service: false };
        let target = Target { project: Some("p"), user: Some("v") };
        Expr::parse(text).unwrap().holds(&HashMap::new(), &subject, &target)
    }

    #[test]
    fn words_mean_what_they_say() {
        for (text, roles, admin, wanted) in [
            ("", &[][..], false, true),
            ("  ", &[], false, true),
            ("@", &[], false, true),
            ("!", &["admin"], true, false),
            ("role:Member", &["member"], false, true),
            ("role:member", &["reader"], false, false),
            ("project_id:%(project_id)s", &[], false, true),
            ("project_id:p", &[], false, true),
            ("project_id:q", &[], false, false),
            ("user_id:%(user_id)s", &[], false, false),
            ("user_id:u", &[], false, true),
            ("is_admin:True", &["admin"], false, false),
            ("is_admin:True", &[], true, true),
            ("is_admin:False", &[], true, false),
            ("is_admin_project:True", &[], true, false),
            ("is_service:True", &["service"], true, false),
            ("is_service:False", &[], false, true),
            // `and` binds tighter than `or`, `not` tighter than both; keywords may be in any case.
            ("@ or ! and !", &[], false, true),
            ("(@ or !) and !", &[], false, false),
            ("not ! AND @", &[], false, true),
            ("not (! Or @)", &[], false, false),
            ("not not role:a", &["a"], false, true),
            ("(role:a and (project_id:%(project_id)s))", &["a"], false, true),
            // An unknown rule lets nobody through.
            ("rule:nosuch", &["admin"], true, false),
        ] {
            assert_eq!(holds(text, roles, admin), wanted, "{text:?} {roles:?} {admin}");
        }
    }

    #[test]
    fn an_object_without_a_project_is_nobodys() {
        let none = Target { project: None, user: None };
        let subject = |project| Subject {
            project,
            user: "",
            roles: &[],
            admin: false,
            admin_project: false,
            service: false,
        };
        let own = Expr::parse("project_id:%(project_id)s or user_id:%(user_id)s").unwrap();
        assert!(!own.holds(&HashMap::new(), &subject("p"), &none));
        // Nor does a caller without a project own a target with an empty one.
        let empty = Target { project: Some(""), user: None };
        assert!(!own.holds(&HashMap::new(), &subject(""), &empty));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, column, word) in [
            ("role:a role:b", 8, "`and` or `or`"),
            ("role:a and", 11, "the text ends"),
            ("and role:a", 1, "no check"),
            ("(role:a", 8, "`)`"),
            ("role:a)", 7, "closes nothing"),
            ("()", 2, "want a check"),
            ("not", 4, "the text ends"),
            ("role", 1, "no check"),
            ("role:", 1, "nothing behind"),
            ("role:a or http://x", 11, "no check"),
            ("project_id:%(user_id)s", 1, "project_id:%(project_id)s"),
            ("ä or project_id:%(project_id", 6, "not closed"),
            ("is_admin:yes", 1, "is_admin:True"),
            ("role:%(role)s", 1, "plain name"),
            ("role:a && role:b", 8, "`and` or `or`"),
        ] {
            let error = Expr::parse(text).unwrap_err();
            assert!(error.why.contains(word) && error.column == column, "{text}: {error}");
        }
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let nested = |depth: usize| format!("{}@{}", "(".repeat(depth), ")".repeat(depth));
        assert!(Expr::parse(&nested(DEPTH_MAX - 1)).is_ok());
        assert!(Expr::parse(&nested(DEPTH_MAX)).unwrap_err().why.contains("levels"));
        assert!(Expr::parse(&"not ".repeat(2_000)).unwrap_err().why.contains("levels"));
        assert!(Expr::parse(&" ".repeat(TEXT_BYTES_MAX + 1)).unwrap_err().why.contains("bytes"));
    }

    fn written(expr: &Expr) -> String {
        let whose = |field: &str, whose: &Whose| match whose {
            Whose::Target => format!("{field}:%({field})s"),
            Whose::Of(one) => format!("{field}:{one}"),
        };
        let joined = |parts: &[Expr], with: &str| {
            let parts: Vec<_> = parts.iter().map(|part| format!("({})", written(part))).collect();
            parts.join(with)
        };
        match expr {
            Expr::Always => "@".to_owned(),
            Expr::Never => "!".to_owned(),
            Expr::Role(role) => format!("role:{role}"),
            Expr::Rule(rule) => format!("rule:{rule}"),
            Expr::Project(of) => whose("project_id", of),
            Expr::User(of) => whose("user_id", of),
            Expr::IsAdmin(flag) => format!("is_admin:{}", if *flag { "True" } else { "False" }),
            Expr::AdminProject(flag) => format!("is_admin_project:{}", if *flag { "True" } else { "False" }),
            Expr::IsService(flag) => format!("is_service:{}", if *flag { "True" } else { "False" }),
            Expr::Not(inside) => format!("not ({})", written(inside)),
            Expr::All(parts) => joined(parts, " and "),
            Expr::Any(parts) => joined(parts, " or "),
        }
    }

    fn expressions() -> impl Strategy<Value = Expr> {
        let whose = || prop_oneof![Just(Whose::Target), "[a-f0-9]{1,4}".prop_map(Whose::Of)];
        let leaf = prop_oneof![
            Just(Expr::Always),
            Just(Expr::Never),
            "[a-z_]{1,6}".prop_map(Expr::Role),
            "[a-z_:]{1,6}".prop_map(Expr::Rule),
            whose().prop_map(Expr::Project),
            whose().prop_map(Expr::User),
            any::<bool>().prop_map(Expr::IsAdmin),
            any::<bool>().prop_map(Expr::AdminProject),
        ];
        leaf.prop_recursive(4, 24, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(|inside| Expr::Not(Box::new(inside))),
                prop::collection::vec(inner.clone(), 2..4).prop_map(Expr::All),
                prop::collection::vec(inner, 2..4).prop_map(Expr::Any),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = Expr::parse(&text);
        }

        #[test]
        fn nor_does_almost_a_policy(parts in prop::collection::vec(prop::sample::select(vec![
            "(", ")", " ", "and", "or", "not", "role:", "role:a", "%(", "%(project_id)s", "project_id:", ":", "@", "!", "é",
        ]), 0..60)) {
            let _ = Expr::parse(&parts.concat());
        }

        #[test]
        fn what_is_written_is_read(expr in expressions()) {
            prop_assert_eq!(Expr::parse(&written(&expr)).unwrap(), expr);
        }
    }
}
