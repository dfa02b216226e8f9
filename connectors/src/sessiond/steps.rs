//! Fault points: every step that changes the kernel or the journal announces its begin and its end.
//! Tests kill the daemon there, and check that the next process takes up what is left.
//!
//! In a shipped binary nobody listens, and a step costs one branch. A build with the feature
//! `faults` aborts at the step that `MOORING_SESSIOND_CRASH_AT` names.
//!
//! What must never happen here: a request to the kernel that passes by without its step (that is
//! why the steps wrap the kernel itself).

use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;

use mooring_host::{HEADER_BYTES, IscsiError, IscsiKernel, IscsiParam, KernelSession, StopMode};

macro_rules! steps {
    ($($step:ident => $name:literal),* $(,)?) => {
        /// A step of the daemon that changes the kernel or its journal.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names say it")]
        pub enum Step {
            $($step),*
        }

        impl Step {
            /// All steps.
            pub const ALL: &'static [Self] = &[$(Self::$step),*];

            /// Name of the step, as in `MOORING_SESSIOND_CRASH_AT` and in logs.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$step => $name),*
                }
            }
        }
    };
}

steps! {
    JournalWrite => "journal_write",
    JournalRemove => "journal_remove",
    CreateSession => "create_session",
    CreateConnection => "create_connection",
    BindConnection => "bind_connection",
    SetParam => "set_param",
    SendPdu => "send_pdu",
    StartConnection => "start_connection",
    StopConnection => "stop_connection",
    DestroyConnection => "destroy_connection",
    UnbindSession => "unbind_session",
    DestroySession => "destroy_session",
    DeviceState => "device_state",
}

/// Side of a step: before or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The step has not been done.
    Before,
    /// The step has been done, and nobody knows yet.
    After,
}

/// A place where the daemon may die. Prints as `before create_session`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FaultPoint {
    /// Side of the step.
    pub side: Side,
    /// The step.
    pub step: Step,
}

impl FaultPoint {
    /// Iterates over all fault points: `number - 1` is the index that `--print-steps` shows.
    pub fn all() -> impl Iterator<Item = Self> {
        Step::ALL.iter().flat_map(|step| [Side::Before, Side::After].map(|side| Self { side, step: *step }))
    }
}

impl fmt::Display for FaultPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Before => "before",
            Side::After => "after",
        };
        write!(f, "{side} {}", self.step.name())
    }
}

type Hook = dyn Fn(FaultPoint) + Send + Sync;

/// Listener at the steps; clones share one.
#[derive(Clone, Default)]
pub struct Steps(Option<Arc<Hook>>);

impl Steps {
    /// Makes a listener that does nothing.
    pub fn silent() -> Self {
        Self::default()
    }

    /// Calls this hook at every fault point, on the thread that is there. The hook may not return.
    pub fn listened(hook: impl Fn(FaultPoint) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    /// Runs one step between its two fault points.
    pub fn step<T>(&self, step: Step, does: impl FnOnce() -> T) -> T {
        let Some(hook) = &self.0 else { return does() };
        hook(FaultPoint { side: Side::Before, step });
        let done = does();
        hook(FaultPoint { side: Side::After, step });
        done
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Steps").field(&self.0.is_some()).finish()
    }
}

/// Fault point to die at: `before create_session` (the first time), `before create_session#3` (the
/// third time), or `N` (the N-th fault point of the list that `--print-steps` shows, the first
/// time).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashAt {
    /// The fault point.
    pub point: FaultPoint,
    /// Number of the passage at which to die, from 1.
    pub time: u64,
}

impl std::str::FromStr for CrashAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no fault point: want a number or a name that --print-steps shows");
        let (name, time) = match text.split_once('#') {
            Some((name, time)) => (name, time.parse().map_err(|_| wrong())?),
            None => (text, 1),
        };
        let point = match name.parse::<usize>() {
            Ok(number) => number.checked_sub(1).and_then(|index| FaultPoint::all().nth(index)),
            Err(_) => FaultPoint::all().find(|point| point.to_string() == name),
        };
        match point {
            Some(point) if time > 0 => Ok(Self { point, time }),
            _ => Err(wrong()),
        }
    }
}

#[cfg(feature = "faults")]
impl Steps {
    /// Makes a listener for the step that the environment names, which aborts the process there.
    pub fn from_environment() -> Result<Self, String> {
        use std::sync::atomic::{AtomicU64, Ordering};

        let Ok(text) = std::env::var("MOORING_SESSIOND_CRASH_AT") else { return Ok(Self::silent()) };
        let at: CrashAt = text.parse()?;
        let times = AtomicU64::new(0);
        Ok(Self::listened(move |point| {
            if point == at.point && times.fetch_add(1, Ordering::Relaxed) + 1 == at.time {
                eprintln!("mooring-sessiond: dies {point} as asked");
                std::process::abort();
            }
        }))
    }
}

/// The kernel with each request as a step.
pub(crate) struct SteppedKernel {
    kernel: Arc<dyn IscsiKernel>,
    steps: Steps,
}

impl SteppedKernel {
    pub(crate) fn new(kernel: Arc<dyn IscsiKernel>, steps: Steps) -> Self {
        Self { kernel, steps }
    }
}

impl IscsiKernel for SteppedKernel {
    fn create_session(&self, commands_max: u16, queue_depth: u16) -> Result<KernelSession, IscsiError> {
        self.steps.step(Step::CreateSession, || self.kernel.create_session(commands_max, queue_depth))
    }

    fn create_connection(&self, sid: u32) -> Result<(), IscsiError> {
        self.steps.step(Step::CreateConnection, || self.kernel.create_connection(sid))
    }

    fn bind_connection(&self, sid: u32, socket: &TcpStream) -> Result<(), IscsiError> {
        self.steps.step(Step::BindConnection, || self.kernel.bind_connection(sid, socket))
    }

    fn set_param(&self, sid: u32, param: IscsiParam, value: &str) -> Result<(), IscsiError> {
        self.steps.step(Step::SetParam, || self.kernel.set_param(sid, param, value))
    }

    fn send_pdu(&self, sid: u32, header: &[u8; HEADER_BYTES], data: &[u8]) -> Result<(), IscsiError> {
        self.steps.step(Step::SendPdu, || self.kernel.send_pdu(sid, header, data))
    }

    fn start_connection(&self, sid: u32) -> Result<(), IscsiError> {
        self.steps.step(Step::StartConnection, || self.kernel.start_connection(sid))
    }

    fn stop_connection(&self, sid: u32, mode: StopMode) -> Result<(), IscsiError> {
        self.steps.step(Step::StopConnection, || self.kernel.stop_connection(sid, mode))
    }

    fn destroy_connection(&self, sid: u32) -> Result<(), IscsiError> {
        self.steps.step(Step::DestroyConnection, || self.kernel.destroy_connection(sid))
    }

    fn unbind_session(&self, sid: u32) -> Result<(), IscsiError> {
        self.steps.step(Step::UnbindSession, || self.kernel.unbind_session(sid))
    }

    fn destroy_session(&self, sid: u32) -> Result<(), IscsiError> {
        self.steps.step(Step::DestroySession, || self.kernel.destroy_session(sid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_die_is_named_or_numbered() {
        for (index, point) in FaultPoint::all().enumerate() {
            let want = CrashAt { point, time: 1 };
            assert_eq!(point.to_string().parse(), Ok(want));
            assert_eq!((index + 1).to_string().parse(), Ok(want));
            assert_eq!(format!("{point}#7").parse(), Ok(CrashAt { point, time: 7 }));
        }
        let beyond = (FaultPoint::all().count() + 1).to_string();
        for wrong in ["", "0", &beyond, "create_session", "before create_session#", "1#0", "before#1", "-1"] {
            assert!(wrong.parse::<CrashAt>().unwrap_err().contains("--print-steps"), "{wrong:?}");
        }
    }

    #[test]
    fn both_sides_are_told() {
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let listener = told.clone();
        let steps = Steps::listened(move |point| listener.lock().unwrap().push(point.to_string()));
        assert_eq!(steps.step(Step::JournalWrite, || 7), 7);
        assert_eq!(*told.lock().unwrap(), ["before journal_write", "after journal_write"]);
    }
}
