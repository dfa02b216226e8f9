//! `mooring-controller rotate-authority`: replaces the authority while everything serves.
//!
//! The command changes the authority's files on its machine; each step is the replacement of one
//! file. The serving controller reads them again within seconds. Where controllers share a
//! database, it carries the new authority to the others, with a sealed key; the command runs on
//! each machine. A killed command can be repeated.
//!
//! What must never happen here: a step that shuts somebody out; a private key that others can read.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mooring_systemd::certificates;
use mooring_systemd::folder::{self, Kept};

use crate::authority::rotation::{self, AgentTrust, Stage, Told};
use crate::authority::{self, Authority, AuthorityError};
use crate::config::{Config, Enrolment};
use crate::domain::{ControllerTrust, NextAuthority};
use crate::store::beside::Beside;
use crate::store::{Database, Db, StoreError};

/// A step of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Step {
    /// Make a new authority, trusted beside the old one, which goes on signing
    Begin,
    /// Let the new authority sign, once everybody trusts it: it renews all certificates
    Switch,
    /// Drop the old authority, once nobody has a certificate of it
    Finish,
    /// Show the progress of the rotation, and whom it waits for
    Show,
}

/// A step that was not done.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The controller has no authority of its own.
    #[error("the configuration has no [enrolment]: there is no authority to rotate")]
    NoAuthority,
    /// Another step comes first.
    #[error("{0}")]
    Order(&'static str),
    /// Somebody would be shut out.
    #[error(
        "{} to wait for, nothing was changed:\n  {}\nrun this again once they are ready. A host that never comes back: \
         `mooring host revoke NAME`. A controller that never comes back: this command with `--without NAME`", .0.len(), .0.join("\n  ")
    )]
    Wait(Vec<String>),
    /// A controller to go on without is not off.
    #[error(
        "--without {0}: no controller that is off has this name or id. Nothing was changed: run `mooring-controller rotate-authority show`, \
         which lists whom the next step waits for"
    )]
    NotOff(String),
    /// The authority cannot be loaded or made.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The database cannot be read.
    #[error("cannot see who trusts which authority")]
    Store(#[source] StoreError),
    /// A file cannot be read or written.
    #[error("cannot {verb} {}: run this as root, on the controller's machine", .path.display())]
    File {
        /// The attempt, as a verb.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The report cannot be printed.
    #[error("cannot print what was done")]
    Print(#[source] io::Error),
}

const SWITCH_NEXT: &str = "mooring-controller rotate-authority switch";
const FINISH_NEXT: &str = "mooring-controller rotate-authority finish";

/// The rotation on this machine.
struct Rotation<'a> {
    config: &'a Config,
    files: &'a Enrolment,
    beside: Beside,
    authority: Authority,
    stage: Stage,
    /// The controllers that never come back, by name or id, as the operator says.
    without: &'a [String],
    now: SystemTime,
    out: &'a mut dyn Write,
}

fn failed(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RotateError {
    let path = path.to_owned();
    move |source| RotateError::File { verb, path, source }
}

fn read(path: &Path) -> Result<String, RotateError> {
    fs::read_to_string(path).map_err(failed("read", path))
}

/// The file of the next key, which has not signed yet.
fn waiting(files: &Enrolment) -> PathBuf {
    let mut name = files.authority_key.clone().into_os_string();
    name.push(".next");
    name.into()
}

/// The permissions and the owner of a file, for its replacement or a file beside it.
fn kept_as(path: &Path) -> Result<Kept, RotateError> {
    let found = fs::metadata(path).map_err(failed("look at", path))?;
    Ok(Kept { mode: found.mode() & 0o7777, owner: Some((found.uid(), found.gid())) })
}

/// The certificate among these that belongs to a key.
fn certificate_of(pem: &str, key: &str) -> Option<String> {
    certificates::each(pem).into_iter().find(|one| certificates::fits(one, key))
}

/// Returns `true` if this is the id or the machine's name of a controller.
fn is_called((id, word): &(String, ControllerTrust), name: &str) -> bool {
    id == name || word.host == name
}

/// Runs one step. Prints what it did, and the next step. Does not wait for the controllers in
/// `without`, which are off for good.
pub fn rotate(
    config: &Config,
    database: Database,
    step: Step,
    without: &[String],
    now: SystemTime,
    out: &mut dyn Write,
) -> Result<(), RotateError> {
    if !without.is_empty() && !matches!(step, Step::Switch | Step::Finish) {
        return Err(RotateError::Order("--without is for the steps that wait: `switch` and `finish`"));
    }
    let files = config.enrolment.as_ref().ok_or(RotateError::NoAuthority)?;
    let authority = Authority::load(&files.authority, &files.authority_key)?;
    let beside = Beside::open(database, config.cluster).map_err(RotateError::Store)?;
    let stage = stage_of(files, &authority)?;
    let mut rotation = Rotation { config, files, beside, authority, stage, without, now, out };
    match step {
        Step::Begin => rotation.begin(),
        Step::Switch => rotation.switch(),
        Step::Finish => rotation.finish(),
        Step::Show => rotation.show(),
    }
}

fn stage_of(files: &Enrolment, authority: &Authority) -> Result<Stage, RotateError> {
    let waits = waiting(files);
    let next =
        if waits.exists() { certificate_of(authority.certificate_pem(), &read(&waits)?) } else { None };
    let pin = next.and_then(|pem| certificates::pin(&pem).ok());
    Ok(Stage::of(authority, pin.as_deref()))
}

impl Rotation<'_> {
    fn say(&mut self, text: &str) -> Result<(), RotateError> {
        writeln!(self.out, "{text}").map_err(RotateError::Print)
    }

    /// The next authority: the one that another controller made, or that waits here, or a new one.
    fn next_authority(&self) -> Result<NextAuthority, RotateError> {
        let waits = waiting(self.files);
        let key = if waits.exists() { read(&waits)? } else { authority::make_key()? };
        let certificate = if let Some(kept) = certificate_of(self.authority.certificate_pem(), &key) {
            kept
        } else {
            let name = self.config.public_url.as_deref().unwrap_or_default();
            let host = name.trim_start_matches("https://").split([':', '/']).next().unwrap_or_default();
            authority::self_sign(&key, host, self.now)?
        };
        let own = NextAuthority { certificate, key };
        if !self.beside.is_shared() {
            return Ok(own);
        }
        let offer = move |db: &Db<'_>| Ok(db.offer_next_authority(&own)?);
        self.beside.change("keep the next authority", offer).map_err(RotateError::Store)
    }

    fn begin(&mut self) -> Result<(), RotateError> {
        if let Stage::Switched(_) = self.stage {
            return Err(RotateError::Order(
                "the new authority signs already, and the old one is trusted still: \
                 `mooring-controller rotate-authority finish` comes next",
            ));
        }
        let next = self.next_authority()?;
        let waits = waiting(self.files);
        if certificates::pins(&next.certificate)
            .is_ok_and(|pins| pins.first() == self.authority.pins().first())
        {
            return Err(RotateError::Order(
                "the new authority of this rotation signs here already: the other controllers have to switch, and one of them to finish",
            ));
        }
        // The key comes before the certificate: a certificate without a key could never sign.
        let there = waits.exists() && read(&waits)? == next.key;
        if !there {
            let kept = kept_as(&self.files.authority_key)?;
            folder::write_over(&waits, &next.key, kept).map_err(failed("write", &waits))?;
        }
        if certificate_of(self.authority.certificate_pem(), &next.key).is_none() {
            let both = format!("{}{}", read(&self.files.authority)?.trim_end(), "\n") + &next.certificate;
            let kept = kept_as(&self.files.authority)?;
            folder::write_over(&self.files.authority, &both, kept)
                .map_err(failed("write", &self.files.authority))?;
        }
        let pin = certificates::pin(&next.certificate).unwrap_or_default();
        let crt = self.files.authority.display().to_string();
        self.say(&format!(
            "a new authority is trusted beside the old one, which goes on signing: {pin}\n\nnext:\n  on every other controller of this \
             database: mooring-controller rotate-authority begin\n  copy {crt}, which has both certificates now, to everybody who uses the API \
             with a copy of it (MOORING_CA)\n  {SWITCH_NEXT}"
        ))
    }

    fn switch(&mut self) -> Result<(), RotateError> {
        let new = match &self.stage {
            Stage::Idle => {
                return Err(RotateError::Order(
                    "there is no new authority: `mooring-controller rotate-authority begin` comes first",
                ));
            }
            Stage::Switched(_) => {
                return self.say(&format!("the new authority signs already\n\nnext:\n  {FINISH_NEXT}"));
            }
            Stage::Begun(new) => new.clone(),
        };
        let old = self.authority.pin().to_owned();
        let (agents, controllers) = self.everybody()?;
        let waits_for = rotation::distrust(&agents, &controllers, &old, &new);
        if !waits_for.is_empty() {
            return Err(RotateError::Wait(waits_for));
        }
        // The switch is the replacement of one file: the key that is there signs.
        let (waits, key) = (waiting(self.files), &self.files.authority_key);
        fs::rename(&waits, key).map_err(failed("replace", key))?;
        let parent = key.parent().unwrap_or_else(|| Path::new("/"));
        fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed("sync", parent))?;
        self.give_up()?;
        self.say(&format!(
            "the new authority signs: {new}\ncertificates are renewed by it within seconds; join tokens that were made before are worth nothing: make \
             new ones\n\nnext:\n  on every other controller of this database: {SWITCH_NEXT}\n  {FINISH_NEXT}"
        ))
    }

    fn finish(&mut self) -> Result<(), RotateError> {
        let old = match &self.stage {
            Stage::Idle => {
                return Err(RotateError::Order(
                    "one authority is trusted here, and no rotation is under way",
                ));
            }
            Stage::Begun(_) => {
                return Err(RotateError::Order(
                    "the new authority does not sign yet: `mooring-controller rotate-authority switch` comes first",
                ));
            }
            Stage::Switched(old) => old.clone(),
        };
        let new = self.authority.pin().to_owned();
        let (agents, controllers) = self.everybody()?;
        let mut waits_for = rotation::holders(&agents, &controllers, &old, &new);
        let own = [Some(&self.files.client_cert), self.config.tls.as_ref().map(|tls| &tls.cert)];
        for path in own.into_iter().flatten() {
            if self.authority.signer_of(&read(path)?) == Some(old.as_str()) {
                waits_for.push(format!(
                    "{} is of the old authority: it is renewed within seconds while mooring-controller runs here",
                    path.display()
                ));
            }
        }
        if !waits_for.is_empty() {
            return Err(RotateError::Wait(waits_for));
        }
        if self.beside.is_shared() {
            let forget = |db: &Db<'_>| Ok(db.drop_next_authority()?);
            self.beside.change("forget the next authority", forget).map_err(RotateError::Store)?;
        }
        let key = read(&self.files.authority_key)?;
        let one = certificate_of(self.authority.certificate_pem(), &key).unwrap_or_default();
        let kept = kept_as(&self.files.authority)?;
        folder::write_over(&self.files.authority, &one, kept)
            .map_err(failed("write", &self.files.authority))?;
        self.give_up()?;
        self.say(&format!(
            "the old authority is dropped: agents that are up do not trust it any more within seconds\n\nnext:\n  on every other controller of this \
             database: {FINISH_NEXT}\n  back {} and {} up",
            self.files.authority.display(),
            self.files.authority_key.display()
        ))
    }

    fn show(&mut self) -> Result<(), RotateError> {
        let pin = self.authority.pin().to_owned();
        self.say(&format!("authority in force: {pin}"))?;
        let (agents, controllers) = self.everybody()?;
        let (told, waits_for, next) = match self.stage.clone() {
            Stage::Idle => {
                let former = agents.iter().filter(|agent| {
                    let said = agent.said.as_ref().filter(|_| agent.joined);
                    said.is_some_and(|said| said.trusts.iter().any(|trusted| *trusted != pin))
                });
                let lines = former
                    .map(|agent| format!("host {} trusts another one beside it still", agent.name))
                    .collect();
                ("no rotation is under way".to_owned(), lines, "mooring-controller rotate-authority begin")
            }
            Stage::Begun(new) => {
                let waits_for = rotation::distrust(&agents, &controllers, &pin, &new);
                (format!("trusted beside it, does not sign yet: {new}"), waits_for, SWITCH_NEXT)
            }
            Stage::Switched(old) => {
                let waits_for = rotation::holders(&agents, &controllers, &old, &pin);
                (format!("trusted beside it, signs no more: {old}"), waits_for, FINISH_NEXT)
            }
        };
        self.say(&told)?;
        for line in &waits_for {
            self.say(&format!("  {line}"))?;
        }
        self.say(&format!("next: {next}{}", if waits_for.is_empty() { "" } else { ", once these are ready" }))
    }

    /// Returns `true` if the operator goes on without this controller.
    fn is_given_up(&self, controller: &(String, ControllerTrust)) -> bool {
        self.without.iter().any(|name| is_called(controller, name))
    }

    /// Forgets the controllers to go on without: no later step waits for them.
    fn give_up(&mut self) -> Result<(), RotateError> {
        if self.without.is_empty() {
            return Ok(());
        }
        let look = |db: &Db<'_>| Ok(db.absent_controllers()?);
        let absent = self.beside.look("see which controllers are off", look).map_err(RotateError::Store)?;
        for (id, word) in absent.into_iter().filter(|one| self.is_given_up(one)).collect::<Vec<_>>() {
            let own = word.clone();
            let forget = move |db: &Db<'_>| Ok(db.forget_controller(&own)?);
            self.beside.change("forget a controller that is off", forget).map_err(RotateError::Store)?;
            self.say(&format!(
                "controller {id} on {} is not waited for. If it comes back, agents refuse it: move its controller.toml and its files of \
                 the authority and of controller/ away, and let it join again (`mooring-controller init --join`)",
                word.host
            ))?;
        }
        Ok(())
    }

    /// The agents that are not revoked, and the controllers of a shared database, with their last
    /// reports. A controller that is off counts by its last word.
    fn everybody(&self) -> Result<(Vec<AgentTrust>, Vec<Told>), RotateError> {
        let shared = self.beside.is_shared();
        let look = move |db: &Db<'_>| {
            let (controllers, absent) = if shared {
                (db.controller_trusts()?, db.absent_controllers()?)
            } else {
                (Vec::new(), Vec::new())
            };
            Ok((db.enrolments()?, db.agents()?, controllers, absent))
        };
        let (enrolments, rows, mut controllers, absent) =
            self.beside.look("see who trusts which authority", look).map_err(RotateError::Store)?;
        let unknown = |name: &&String| !absent.iter().any(|controller| is_called(controller, name));
        if let Some(name) = self.without.iter().find(unknown) {
            return Err(RotateError::NotOff(name.clone()));
        }
        let waited_for = absent.into_iter().filter(|one| !self.is_given_up(one));
        controllers.extend(waited_for.map(|(id, word)| (format!("{id} (off: start it)"), Some(word))));
        let said = |name: &str| {
            let row = rows.iter().find(|row| row.name == name);
            row.and_then(|row| row.capabilities.as_ref()?.tls.clone())
        };
        let configured = self.config.agents.iter().map(|entry| AgentTrust {
            name: entry.name.clone(),
            joined: false,
            said: said(&entry.name),
            known_by: entry.tls.ca.as_ref().map_or_else(Vec::new, |path| {
                fs::read_to_string(path)
                    .ok()
                    .and_then(|pem| certificates::pins(&pem).ok())
                    .unwrap_or_default()
            }),
        });
        let named = |name: &str| self.config.agents.iter().any(|entry| entry.name == name);
        let joined = enrolments.iter().filter(|enrolment| !enrolment.revoked && !named(&enrolment.name)).map(
            |enrolment| AgentTrust {
                name: enrolment.name.clone(),
                joined: true,
                said: said(&enrolment.name),
                known_by: Vec::new(),
            },
        );
        Ok((configured.chain(joined).collect(), controllers))
    }
}
