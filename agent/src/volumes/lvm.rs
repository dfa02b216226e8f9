//! Runs `lvm`: every command line that this agent gives to LVM is made here, and every answer is read here.
//!
//! What must never happen here: an argument that is neither a constant nor a name or number made by the model.

use std::time::Duration;

use mooring_host::{Command, CommandError, Commands};
use mooring_model::{ByteSize, VgName};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};

use super::error::Error;
use super::plan::LvId;

/// One program with subcommands; Debian, Fedora and SUSE all have it there.
const PROGRAM: &str = "/sbin/lvm";

/// LVM waits for udev and for its own locks; an emulated machine needs seconds for what hardware does in 20 ms.
const TIMEOUT: Duration = Duration::from_mins(2);

/// What LVM says is repeated in errors up to here.
const SAID_CHARS_MAX: usize = 400;

const VG_COLUMNS: &str = "vg_name,vg_uuid,vg_size,vg_free,vg_extent_size,vg_attr";
const LV_COLUMNS: &str = "lv_name,lv_uuid,vg_name,lv_size,lv_tags,lv_attr,lv_active,lv_path,lv_device_open";

/// LVM on this machine.
pub(super) struct Lvm<'a>(pub(super) &'a dyn Commands);

/// A group as `vgs` reports it.
#[derive(Debug, Deserialize)]
pub(super) struct RawVg {
    #[serde(rename = "vg_name")]
    pub(super) name: String,
    #[serde(rename = "vg_uuid", default)]
    pub(super) uuid: String,
    #[serde(rename = "vg_size", deserialize_with = "bytes")]
    pub(super) size: u64,
    #[serde(rename = "vg_free", deserialize_with = "bytes")]
    pub(super) free: u64,
    #[serde(rename = "vg_extent_size", deserialize_with = "bytes")]
    pub(super) extent: u64,
    #[serde(rename = "vg_attr", default)]
    pub(super) attr: String,
}

/// An LV as `lvs` reports it.
#[derive(Debug, Deserialize)]
pub(super) struct RawLv {
    #[serde(rename = "lv_name")]
    pub(super) name: String,
    #[serde(rename = "lv_uuid", default)]
    pub(super) uuid: String,
    #[serde(rename = "vg_name")]
    pub(super) group: String,
    #[serde(rename = "lv_size", deserialize_with = "bytes")]
    pub(super) size: u64,
    #[serde(rename = "lv_tags", default)]
    pub(super) tags: String,
    #[serde(rename = "lv_active", default)]
    pub(super) active: String,
    #[serde(rename = "lv_device_open", default)]
    pub(super) open: String,
}

/// Numbers come as text (`--reportformat json`) or as numbers (`json_std`, should a site's lvm.conf force it).
fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }
    match Either::deserialize(from)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => {
            let digits = text.trim().trim_end_matches(['B', 'b']);
            digits
                .parse()
                .map_err(|_| serde::de::Error::custom(format_args!("{text:?} is not a number of bytes")))
        }
    }
}

#[derive(Deserialize)]
struct Report<T> {
    report: Vec<T>,
}

#[derive(Deserialize)]
struct Vgs {
    #[serde(default)]
    vg: Vec<RawVg>,
}

#[derive(Deserialize)]
struct Lvs {
    #[serde(default)]
    lv: Vec<RawLv>,
}

impl Lvm<'_> {
    /// All groups of the machine.
    pub(super) fn groups(&self) -> Result<Vec<RawVg>, Error> {
        let op = || "list the volume groups".to_owned();
        let out = self.run(
            op,
            "",
            &["vgs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", VG_COLUMNS],
        )?;
        Ok(parse::<Report<Vgs>>(op, &out)?.report.into_iter().flat_map(|part| part.vg).collect())
    }

    /// All LVs of the machine that `lvs` shows.
    pub(super) fn lvs(&self) -> Result<Vec<RawLv>, Error> {
        let op = || "list the logical volumes".to_owned();
        let out = self.run(
            op,
            "",
            &["lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", LV_COLUMNS],
        )?;
        Ok(parse::<Report<Lvs>>(op, &out)?.report.into_iter().flat_map(|part| part.lv).collect())
    }

    /// One LV, if it is there.
    pub(super) fn lv(&self, lv: &LvId) -> Result<Option<RawLv>, Error> {
        let op = || format!("look at {lv}");
        let path = lv.to_string();
        let args = ["lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", LV_COLUMNS, &path];
        match self.run(op, lv.group.as_str(), &args) {
            Ok(out) => {
                let lvs = parse::<Report<Lvs>>(op, &out)?.report.into_iter().flat_map(|part| part.lv);
                Ok(lvs.into_iter().find(|raw| raw.name == lv.name.as_str()))
            }
            Err(Error::Changed { .. } | Error::NoGroup { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a thick LV. `--zero n`: not only its first blocks are zeroed, but all of them, by a step of their own.
    pub(super) fn create(&self, lv: &LvId, size: ByteSize, tags: &[&str]) -> Result<(), Error> {
        let size = format!("{}b", size.0);
        let mut args = vec!["lvcreate", "--yes", "--wipesignatures", "n", "--zero", "n", "--size", &size];
        args.extend(["--name", lv.name.as_str()]);
        for tag in tags {
            args.extend(["--addtag", tag]);
        }
        args.push(lv.group.as_str());
        self.run(|| format!("create {lv}"), lv.group.as_str(), &args).map(drop)
    }

    pub(super) fn activate(&self, lv: &LvId) -> Result<(), Error> {
        self.on(lv, "activate", &["lvchange", "--activate", "y"])
    }

    pub(super) fn add_tag(&self, lv: &LvId, tag: &str) -> Result<(), Error> {
        self.on(lv, "tag", &["lvchange", "--addtag", tag])
    }

    pub(super) fn delete_tag(&self, lv: &LvId, tag: &str) -> Result<(), Error> {
        self.on(lv, "untag", &["lvchange", "--deltag", tag])
    }

    /// `--force`: an active LV too. LVM itself refuses one that is open.
    pub(super) fn remove(&self, lv: &LvId) -> Result<(), Error> {
        self.on(lv, "remove", &["lvremove", "--yes", "--force"])
    }

    fn on(&self, lv: &LvId, verb: &str, args: &[&str]) -> Result<(), Error> {
        let path = lv.to_string();
        let args: Vec<&str> = args.iter().copied().chain([path.as_str()]).collect();
        self.run(|| format!("{verb} {lv}"), lv.group.as_str(), &args).map(drop)
    }

    fn run(&self, op: impl Fn() -> String, group: &str, args: &[&str]) -> Result<Vec<u8>, Error> {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let command = Command { program: PROGRAM, args, timeout: TIMEOUT };
        match self.0.run(&command) {
            Ok(out) if out.status == 0 => Ok(out.stdout),
            Ok(out) => Err(meaning(op(), group, out.status, &out.stderr)),
            Err(source @ CommandError::Start { .. }) => Err(Error::NoLvm { op: op(), source }),
            Err(source @ (CommandError::Timeout { .. } | CommandError::Output { .. })) => {
                Err(Error::Hung { op: op(), source })
            }
        }
    }
}

/// LVM has one exit status, 5, for almost everything: its words are all there is.
fn meaning(op: String, group: &str, status: i32, stderr: &str) -> Error {
    let said = shorten(stderr);
    let has = |text: &str| stderr.contains(text);
    if has("/dev/mapper/control") || has("device-mapper driver missing") {
        Error::NoDeviceMapper { op }
    } else if has("Volume group \"") && has("\" not found") || has("Cannot process volume group") {
        Error::NoGroup { op, group: group.to_owned() }
    } else if has("insufficient free space")
        || has("Insufficient free extents")
        || has("Insufficient suitable")
    {
        Error::NoSpace { op, group: group.to_owned(), said }
    } else if has(" in use") || has("is used by another device") || has("Device or resource busy") {
        let object = op.split_once(' ').map_or_else(|| op.clone(), |(_, object)| object.to_owned());
        Error::InUse { op, object }
    } else if has("Failed to find logical volume") || has("already exists in volume group") {
        Error::Changed { op, said }
    } else {
        Error::Lvm { op, status, said }
    }
}

/// LVM's errors on one line; its warnings only when there is nothing else.
fn shorten(stderr: &str) -> String {
    let lines = || stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut said: Vec<_> = lines().filter(|line| !line.starts_with("WARNING")).collect();
    if said.is_empty() {
        said = lines().collect();
    }
    if said.is_empty() {
        return "nothing".to_owned();
    }
    said.join("; ").chars().take(SAID_CHARS_MAX).collect()
}

fn parse<T: DeserializeOwned>(op: impl Fn() -> String, out: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(out).map_err(|error| Error::Report { op: op(), why: error.to_string() })
}

/// A group's name, if it is one that LVM itself would take.
pub(super) fn group_name(text: &str) -> Option<VgName> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // The shape of lvm2 2.03's reports; the words of its errors are checked on the real lvm by the scenario `lvm-words`.
    const VGS: &str = r#"
  {
      "report": [
          {
              "vg": [
                  {"vg_name":"vg0", "vg_uuid":"LlIhCw-6uUF-Aw7u-f1w7-Il0J-LbiF-yTPvnC", "vg_size":"4290772992", "vg_free":"4286578688", "vg_extent_size":"4194304", "vg_attr":"wz--n-"}
              ]
          }
      ]
  }
"#;
    const LVS: &str = r#"{"report":[{"lv":[{"lv_name":"mooring-00000000-0000-0000-0000-000000000001","lv_uuid":"x","vg_name":"vg0","lv_size":"4194304","lv_tags":"mooring,mooring-unzeroed","lv_attr":"-wi-a-----","lv_active":"active","lv_path":"/dev/vg0/x","lv_device_open":"","new":{"a":1}}]}],"log":[]}"#;

    fn op() -> String {
        "list".to_owned()
    }

    #[test]
    fn reports_are_read() {
        let vgs = parse::<Report<Vgs>>(op, VGS.as_bytes()).unwrap();
        assert_eq!((vgs.report[0].vg[0].free, vgs.report[0].vg[0].attr.as_str()), (4_286_578_688, "wz--n-"));
        let lvs = parse::<Report<Lvs>>(op, LVS.as_bytes()).unwrap();
        assert_eq!(lvs.report[0].lv[0].tags, "mooring,mooring-unzeroed");
        let none = parse::<Report<Lvs>>(op, br#"{"report":[{"lv":[]}]}"#).unwrap();
        assert!(none.report[0].lv.is_empty());
    }

    #[test]
    fn bad_reports_are_errors() {
        for bad in
            ["", "null", "[]", "{\"report\":[{\"vg\":[{}]}]}", "{\"report\":[{\"vg\":[{\"vg_name\":\"a\""]
        {
            let error = parse::<Report<Vgs>>(op, bad.as_bytes()).err().unwrap();
            assert!(matches!(&error, Error::Report { .. }), "{bad} {error}");
        }
        let wrong = VGS.replace("4286578688", "4.2g");
        let error = parse::<Report<Vgs>>(op, wrong.as_bytes()).err().unwrap();
        assert!(error.to_string().contains("\"4.2g\" is not a number of bytes"), "{error}");
    }

    #[test]
    fn what_lvm_says_has_a_meaning() {
        let text = |stderr: &str| meaning("create vg0/x".to_owned(), "vg0", 5, stderr).to_string();
        for (stderr, want) in [
            (
                "  Volume group \"vg0\" not found\n  Cannot process volume group vg0\n",
                "cannot create vg0/x: there is no volume group vg0 (any more); see vgs",
            ),
            (
                "  Volume group \"vg0\" has insufficient free space (1020 extents): 2000 required.\n",
                "cannot create vg0/x: vg0 has not enough free space: Volume group \"vg0\" has insufficient free space \
                 (1020 extents): 2000 required.",
            ),
            (
                "  Logical volume vg0/x in use.\n",
                "cannot create vg0/x: vg0/x is in use on this host (mounted, or below another device?); see lsblk and \
                 fuser",
            ),
            (
                "  Logical Volume \"x\" already exists in volume group \"vg0\"\n",
                "cannot create vg0/x: it has changed since it was looked at: Logical Volume \"x\" already exists in \
                 volume group \"vg0\"",
            ),
            (
                "  /dev/mapper/control: open failed: No such device\n",
                "cannot create vg0/x: the kernel's device mapper is not there; run modprobe dm_mod",
            ),
            (
                "  WARNING: noise\n  Cannot change VG vg0 while PVs are missing.\n",
                "cannot create vg0/x: LVM says (status 5): Cannot change VG vg0 while PVs are missing.",
            ),
            ("  WARNING: noise\n", "cannot create vg0/x: LVM says (status 5): WARNING: noise"),
            ("", "cannot create vg0/x: LVM says (status 5): nothing"),
        ] {
            assert_eq!(text(stderr), want);
        }
    }
}
