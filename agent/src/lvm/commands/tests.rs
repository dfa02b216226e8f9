//! Tests of what the agent reads in the reports and messages of LVM.

use super::*;

/// Output of `vgs` beside a device with damaged metadata.
const WITH_A_MESSAGE: &str = "  {\n      \"report\": [\n  Retrying metadata scan.\n          {\n              \
         \"vg\": [\n                  {\"vg_name\":\"vg0\"}\n                  ,\n                  {\"vg_name\":\"vg1\"}\n              \
         ]\n          }\n      ]\n  }\n";

#[test]
fn a_message_between_the_lines_of_a_report_is_left_out() {
    let read = |out: &str| parse::<serde_json::Value>(|| "list".to_owned(), out.as_bytes());
    let report = read(WITH_A_MESSAGE).unwrap();
    assert_eq!(report["report"][0]["vg"][1]["vg_name"], "vg1");
    assert!(serde_json::from_str::<serde_json::Value>(WITH_A_MESSAGE).is_err(), "the control");
    assert!(read("  Retrying metadata scan.\n").is_err(), "no report is not an empty one");
}

// Reports in the form of lvm2 2.03. The scenario `lvm-words` checks the words of its errors on
// the real lvm.
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
    for bad in ["", "null", "[]", "{\"report\":[{\"vg\":[{}]}]}", "{\"report\":[{\"vg\":[{\"vg_name\":\"a\""]
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
            "  Logical volume x already exists in Volume group vg0.\n",
            "cannot create vg0/x: it has changed since it was looked at: Logical volume x already exists in Volume \
                 group vg0.",
        ),
        (
            "  /dev/mapper/control: open failed: No such device\n",
            "cannot create vg0/x: the kernel's device mapper is not there; run modprobe dm_mod",
        ),
        (
            "  WARNING: noise\n  Cannot change VG vg0 while PVs are missing.\n",
            "cannot create vg0/x: LVM says (status 5): Cannot change VG vg0 while PVs are missing.",
        ),
        (
            "  Insufficient free space: 3 extents needed, but only 2 available\n",
            "cannot create vg0/x: it has changed since it was looked at: Insufficient free space: 3 extents needed, \
                 but only 2 available",
        ),
        (
            "  Logical volume x not found in volume group vg0.\n",
            "cannot create vg0/x: it has changed since it was looked at: Logical volume x not found in volume group \
                 vg0.",
        ),
        ("  WARNING: noise\n", "cannot create vg0/x: LVM says (status 5): WARNING: noise"),
        ("", "cannot create vg0/x: LVM says (status 5): nothing"),
    ] {
        assert_eq!(text(stderr), want);
    }
}

#[test]
fn extents_are_read_and_written_as_lvm_does() {
    for (text, count) in
        [("/dev/sdb:0-99", 100), ("/dev/mapper/a-b:7-7", 1), ("/dev/disk/by-path/x:1:2-5", 4)]
    {
        let extents = Extents::parse(text).unwrap();
        assert_eq!((extents.to_string().as_str(), extents.count()), (text, count));
    }
    for bad in [
        "",
        "/dev/sdb",
        "/dev/sdb:0",
        "/dev/sdb:5-4",
        "sdb:0-9",
        "--yes:0-9",
        "/dev/s\u{e9}:0-1",
        "/dev/sdb:-1-4",
    ] {
        assert_eq!(Extents::parse(bad), None, "{bad}");
    }
    let out =
        br#"{"report":[{"seg":[{"seg_pe_ranges":"/dev/loop0:0-1"},{"seg_pe_ranges":"/dev/loop0:4-6"}]}]}"#;
    assert_eq!(parse::<Report<Segments>>(op, out).unwrap().report[0].seg[1].ranges, "/dev/loop0:4-6");
}

#[test]
fn groups_that_are_only_not_there_are_told_from_errors() {
    let missing = "  Volume group \"vg0\" not found\n  Cannot process volume group vg0\n";
    assert!(only_absent(missing) && only_absent(&format!("  WARNING: noise\n{missing}{missing}")));
    assert!(!only_absent("  Cannot process volume group vg0\n"), "LVM cannot read it");
    for other in ["", "  WARNING: noise\n", &format!("{missing}  Failed to read metadata of vg1.\n")] {
        assert!(!only_absent(other), "{other}");
    }
}

#[test]
fn what_is_only_not_there_is_told_from_errors() {
    let missing = "  Failed to find logical volume \"vg0/a\"\n";
    assert!(only_missing(missing) && only_missing(&format!("  WARNING: noise\n{missing}{missing}")));
    for other in
        ["", "  WARNING: noise\n", "  Volume group \"vg0\" not found\n", &format!("{missing}  I/O error\n")]
    {
        assert!(!only_missing(other), "{other}");
    }
}
