//! Status line of `systemctl status mooring-agent`: what the agent does now, or what it holds.
//!
//! What must never happen here: a look at the kernel, a call of LVM, or a read of the store: the
//! line is made of what is in memory; a name, which may be a tenant's.

use std::fmt;

/// State of an agent at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Number of exports made so far, and of all that are made together, as after a boot. `None` if
    /// no such work is going on.
    pub restored: Option<(usize, usize)>,
    /// Number of exports that have a spec.
    pub exports: usize,
    /// Number of exports that differ in the kernel from their spec.
    pub waiting: usize,
    /// Number of connections that have a spec, and of those that have a verified disk. `None` if
    /// this host attaches nothing.
    pub connections: Option<(usize, usize)>,
    /// Number of problems of volumes, exports, connections and of the host.
    pub problems: usize,
}

/// Writes a number with its noun: `1 export`, `2 exports`.
fn number(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

impl fmt::Display for Standing {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { restored: Some((made, of)), .. } => write!(to, "restoring {made} of {of} exports")?,
            Self { exports, waiting: 0, .. } => to.write_str(&number(exports, "export"))?,
            Self { exports, waiting, .. } => write!(to, "{} ({waiting} waiting)", number(exports, "export"))?,
        }
        match self.connections {
            None => {}
            Some((specified, ready)) if specified == ready => write!(to, ", {ready} attached")?,
            Some((specified, ready)) => write!(to, ", {ready} of {specified} attached")?,
        }
        if self.problems > 0 {
            write!(to, ", {}", number(self.problems, "problem"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_done_and_what_is_there() {
        let idle = Standing::default();
        for (standing, line) in [
            (idle, "0 exports"),
            (Standing { connections: Some((0, 0)), ..idle }, "0 exports, 0 attached"),
            (
                Standing { exports: 12, connections: Some((3, 3)), problems: 1, ..idle },
                "12 exports, 3 attached, 1 problem",
            ),
            (Standing { exports: 1, waiting: 1, problems: 2, ..idle }, "1 export (1 waiting), 2 problems"),
            (
                Standing { restored: Some((120, 1000)), exports: 1000, waiting: 880, ..idle },
                "restoring 120 of 1000 exports",
            ),
            (Standing { exports: 1, connections: Some((4, 3)), ..idle }, "1 export, 3 of 4 attached"),
        ] {
            assert_eq!(standing.to_string(), line);
        }
    }
}
