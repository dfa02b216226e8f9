//! Conversion of the host's half between wire and model. Arriving data is checked here, once;
//! errors name the field.

use std::time::Duration;

use mooring_model as model;
use mooring_model::{
    AttachmentSpec, ByteSize, Cache, ConnectionPhase, ConnectionReport, ConnectionSpec, FcRoute, Naa,
    SpecError, VolumeId,
};

use crate::convert::{chap_from_wire, chap_to_wire, generation_to_wire, micros, mode_from_wire};
use crate::field::{lun, parse, target};
use crate::v1;

/// Checks an arriving connection's spec.
pub fn connection_from_wire(
    volume: VolumeId,
    spec: &v1::ConnectionSpec,
) -> Result<ConnectionSpec, SpecError> {
    let portals = spec
        .portals
        .iter()
        .enumerate()
        .map(|(i, text)| parse(format_args!("portals[{i}]"), text))
        .collect::<Result<Vec<_>, _>>()?;
    let attachments = spec
        .attachments
        .iter()
        .enumerate()
        .map(|(i, attachment)| {
            Ok(AttachmentSpec {
                id: parse(format_args!("attachments[{i}].attachment_id"), &attachment.attachment_id)?,
                mode: mode_from_wire(format_args!("attachments[{i}].mode"), attachment.mode())?,
                cache: cache_from_wire(attachment.cache_off),
            })
        })
        .collect::<Result<Vec<_>, SpecError>>()?;
    let naa = Naa::from_hex(&spec.naa)
        .ok_or_else(|| SpecError::new("naa", "want 32 hexadecimal digits that begin with 6"))?;
    let fc = spec.fc.as_ref().map(route_from_wire).transpose()?;
    let spec = ConnectionSpec {
        volume,
        initiator: parse("initiator", &spec.initiator)?,
        target: target("target", &spec.target)?,
        tpg: u16::try_from(spec.tpg).map_err(|_| SpecError::new("tpg", "is more than 65535"))?,
        portals,
        lun: lun("lun", spec.lun)?,
        naa,
        serial: spec.serial.clone(),
        size: ByteSize(spec.size_bytes),
        chap: spec.chap.as_ref().map(|chap| chap_from_wire("chap", chap)).transpose()?,
        other_chap: spec.other_chap.as_ref().map(|chap| chap_from_wire("other_chap", chap)).transpose()?,
        attachments,
        fc,
    };
    spec.check()?;
    Ok(spec)
}

/// Converts the wire's flag: `true` is [`Cache::Off`].
pub const fn cache_from_wire(off: bool) -> Cache {
    if off { Cache::Off } else { Cache::On }
}

fn route_from_wire(route: &v1::FcRoute) -> Result<FcRoute, SpecError> {
    let targets = route.target_ports.iter().enumerate();
    let targets = targets.map(|(i, text)| parse(format_args!("fc.target_ports[{i}]"), text));
    Ok(FcRoute { port: parse("fc.port", &route.port)?, targets: targets.collect::<Result<_, _>>()? })
}

/// Converts a connection's spec for the wire, including secrets.
pub fn connection_to_wire(spec: &ConnectionSpec) -> v1::ConnectionSpec {
    v1::ConnectionSpec {
        initiator: spec.initiator.to_string(),
        target: spec.target.to_string(),
        tpg: u32::from(spec.tpg),
        portals: spec.portals.iter().map(ToString::to_string).collect(),
        lun: u32::from(spec.lun.0),
        naa: spec.naa.to_string(),
        serial: spec.serial.clone(),
        size_bytes: spec.size.0,
        chap: spec.chap.as_ref().map(chap_to_wire),
        other_chap: spec.other_chap.as_ref().map(chap_to_wire),
        attachments: spec
            .attachments
            .iter()
            .map(|attachment| v1::AttachmentWish {
                attachment_id: attachment.id.to_string(),
                mode: v1::Mode::from(attachment.mode).into(),
                cache_off: attachment.cache == Cache::Off,
            })
            .collect(),
        fc: spec.fc.as_ref().map(|route| v1::FcRoute {
            port: route.port.to_string(),
            target_ports: route.targets.iter().map(ToString::to_string).collect(),
        }),
    }
}

impl From<ConnectionPhase> for v1::ConnectionPhase {
    fn from(phase: ConnectionPhase) -> Self {
        match phase {
            ConnectionPhase::Connecting => Self::Connecting,
            ConnectionPhase::Ready => Self::Ready,
            ConnectionPhase::Recovering => Self::Recovering,
            ConnectionPhase::Detaching => Self::Detaching,
            ConnectionPhase::Gone => Self::Gone,
            ConnectionPhase::Failed => Self::Failed,
            ConnectionPhase::Forbidden => Self::Forbidden,
        }
    }
}

fn us(took: Option<Duration>) -> u64 {
    took.map_or(0, |took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX))
}

impl From<&ConnectionReport> for v1::ConnectionReport {
    fn from(report: &ConnectionReport) -> Self {
        Self {
            volume_id: report.volume.to_string(),
            generation: Some(generation_to_wire(report.generation)),
            initiator: report.initiator.to_string(),
            target: report.target.to_string(),
            phase: v1::ConnectionPhase::from(report.phase).into(),
            mode: report.mode.map_or(v1::Mode::Unspecified, Into::into).into(),
            session: report.session.as_ref().map(Into::into),
            disk: report.disk.as_ref().map(Into::into),
            paths: report
                .paths
                .iter()
                .map(|path| v1::AttachmentPath {
                    attachment_id: path.attachment.to_string(),
                    path: path.path.clone(),
                })
                .collect(),
            holders: report.holders.clone(),
            problems: report.problems.iter().map(Into::into).collect(),
            stuck: report.stuck.as_ref().map(Into::into),
            login_us: us(report.login_took),
            device_us: us(report.device_took),
            cache_off: report.cache.map(|cache| cache == Cache::Off),
            unwritten_bytes: report.unwritten.map(|bytes| bytes.0),
            secrets: report.secrets,
        }
    }
}

impl From<&model::HostSession> for v1::HostSession {
    fn from(session: &model::HostSession) -> Self {
        Self {
            portal: session.portal.to_string(),
            sid: session.sid,
            isid: session.isid.clone(),
            logged_in: session.logged_in,
            since_us: session.since.map_or(0, micros),
            relogins: session.relogins,
        }
    }
}

impl From<&model::HostDisk> for v1::HostDisk {
    fn from(disk: &model::HostDisk) -> Self {
        Self {
            path: disk.path.clone(),
            sequence: disk.sequence,
            size_bytes: disk.size.0,
            read_only: disk.read_only,
            naa: disk.naa.to_string(),
        }
    }
}

impl From<&model::DiskUser> for v1::DiskUser {
    fn from(user: &model::DiskUser) -> Self {
        use v1::{DiskAccess, DiskUserKind};
        let kind = match user.kind {
            model::DiskUserKind::Process => DiskUserKind::Process,
            model::DiskUserKind::Mount => DiskUserKind::Mount,
            model::DiskUserKind::Swap => DiskUserKind::Swap,
            model::DiskUserKind::Device => DiskUserKind::Device,
        };
        let access = match user.access {
            None => DiskAccess::Unspecified,
            Some(model::DiskAccess::Direct) => DiskAccess::Direct,
            Some(model::DiskAccess::Buffered) => DiskAccess::Buffered,
            Some(model::DiskAccess::Mapped) => DiskAccess::Mapped,
        };
        Self {
            device: user.device.clone(),
            kind: kind.into(),
            name: user.name.clone(),
            pid: user.pid.unwrap_or(0),
            access: access.into(),
            filesystem: user.filesystem.clone().unwrap_or_default(),
        }
    }
}

impl From<&model::DiskCheck> for v1::CheckConnectionResponse {
    fn from(check: &model::DiskCheck) -> Self {
        Self {
            disk: check.disk.as_ref().map(Into::into),
            cache_off: check.cache.map(|cache| cache == Cache::Off),
            users: check.users.iter().map(Into::into).collect(),
            unseen: check.unseen.clone(),
            problems: check.problems.iter().map(Into::into).collect(),
        }
    }
}

/// Converts an agent's report on a disk's user; `None` for a kind that this release does not know.
pub fn disk_user_from_wire(user: &v1::DiskUser) -> Option<model::DiskUser> {
    use v1::{DiskAccess, DiskUserKind};
    let kind = match user.kind() {
        DiskUserKind::Process => model::DiskUserKind::Process,
        DiskUserKind::Mount => model::DiskUserKind::Mount,
        DiskUserKind::Swap => model::DiskUserKind::Swap,
        DiskUserKind::Device => model::DiskUserKind::Device,
        DiskUserKind::Unspecified => return None,
    };
    let access = match user.access() {
        DiskAccess::Unspecified => None,
        DiskAccess::Direct => Some(model::DiskAccess::Direct),
        DiskAccess::Buffered => Some(model::DiskAccess::Buffered),
        DiskAccess::Mapped => Some(model::DiskAccess::Mapped),
    };
    Some(model::DiskUser {
        device: user.device.clone(),
        kind,
        name: user.name.clone(),
        pid: Some(user.pid).filter(|pid| *pid != 0),
        access,
        filesystem: Some(user.filesystem.clone()).filter(|kind| !kind.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use mooring_model::{Chap, ChapSide, Lun, Mode, Secret};

    use super::*;

    fn volume() -> VolumeId {
        VolumeId::from_u128(7)
    }

    fn connection() -> ConnectionSpec {
        ConnectionSpec {
            volume: volume(),
            initiator: "iqn.2026-11.dev.mooring:host.1".parse().unwrap(),
            target: "iqn.2026-11.dev.mooring:vol".parse().unwrap(),
            tpg: 1,
            portals: vec!["10.0.0.1:3260".parse().unwrap()],
            lun: Lun(1),
            naa: Naa::of_serial(&volume().to_string()),
            serial: volume().to_string(),
            size: ByteSize(64 << 20),
            chap: Some(Chap {
                initiator: ChapSide { user: "u".into(), secret: Secret::new("secret-of-twelve") },
                mutual: Some(ChapSide { user: "m".into(), secret: Secret::new("another-of-twelve") }),
            }),
            other_chap: Some(Chap {
                initiator: ChapSide { user: "u".into(), secret: Secret::new("secret-that-comes") },
                mutual: Some(ChapSide { user: "m".into(), secret: Secret::new("another-that-comes") }),
            }),
            attachments: vec![AttachmentSpec {
                id: model::AttachmentId::from_u128(9),
                mode: Mode::ReadOnly,
                cache: Cache::Off,
            }],
            fc: None,
        }
    }

    fn over_fc() -> ConnectionSpec {
        let [port, target] = [0xb, 0xa].map(|n| model::Wwpn::from_u64(0x2000_5254_0014_0000 | n).unwrap());
        let fc = Some(FcRoute { port, targets: vec![target] });
        ConnectionSpec { portals: Vec::new(), chap: None, other_chap: None, lun: Lun(7), fc, ..connection() }
    }

    #[test]
    fn a_connection_survives_the_wire() {
        for spec in [connection(), over_fc()] {
            assert_eq!(connection_from_wire(volume(), &connection_to_wire(&spec)).unwrap(), spec);
        }
        // A spec without the field, from a controller of an earlier release.
        let mut old = connection_to_wire(&connection());
        old.attachments[0].cache_off = false;
        assert_eq!(connection_from_wire(volume(), &old).unwrap().cache(), Cache::On);
    }

    #[test]
    fn a_way_over_fibre_channel_is_whole() {
        let check = |change: fn(&mut v1::ConnectionSpec), field: &str| {
            let mut spec = connection_to_wire(&over_fc());
            change(&mut spec);
            assert_eq!(connection_from_wire(volume(), &spec).unwrap_err().field, field);
        };
        check(|s| s.fc.as_mut().unwrap().port.clear(), "fc.port");
        check(|s| s.fc.as_mut().unwrap().target_ports.clear(), "fc.target_ports");
        check(|s| s.fc.as_mut().unwrap().target_ports[0].clear(), "fc.target_ports[0]");
        check(
            |s| s.fc.as_mut().unwrap().target_ports.push("20:00:52:54:00:14:00:0a".into()),
            "fc.target_ports",
        );
        check(|s| s.portals = connection_to_wire(&connection()).portals, "portals");
        check(|s| s.chap = connection_to_wire(&connection()).chap, "chap");
        check(|s| s.other_chap = connection_to_wire(&connection()).chap, "other_chap");
        // An agent of an earlier release reads it so, and refuses it.
        check(|s| s.fc = None, "portals");
    }

    #[test]
    fn errors_say_which_field() {
        let check = |change: fn(&mut v1::ConnectionSpec), field: &str| {
            let mut spec = connection_to_wire(&connection());
            change(&mut spec);
            assert_eq!(connection_from_wire(volume(), &spec).unwrap_err().field, field);
        };
        check(|s| s.initiator = "host1".into(), "initiator");
        check(|s| s.target = "eui.200052540014000b".into(), "target");
        check(|s| s.target.clear(), "target");
        check(|s| s.tpg = 70_000, "tpg");
        check(|s| s.portals.clear(), "portals");
        check(|s| s.portals = vec!["10.0.0.1:0".into()], "portals[0]");
        check(|s| s.portals.push("10.0.0.1:3260".into()), "portals");
        check(|s| s.lun = 0, "lun");
        check(|s| s.lun = 256, "lun");
        check(|s| s.naa = "5".repeat(32), "naa");
        check(|s| s.serial.clear(), "serial");
        check(|s| s.attachments.clear(), "attachments");
        check(|s| s.attachments[0].mode = 0, "attachments[0].mode");
        check(|s| s.attachments.push(s.attachments[0].clone()), "attachments");
        check(|s| s.chap.as_mut().unwrap().initiator = None, "chap.initiator");
        check(|s| s.chap = None, "other_chap");
        check(|s| s.other_chap.as_mut().unwrap().initiator = None, "other_chap.initiator");
        check(|s| s.other_chap.as_mut().unwrap().mutual = None, "other_chap.mutual");
        check(|s| s.chap.as_mut().unwrap().mutual = None, "other_chap.mutual");
        // A secret that proves one direction must not prove the other.
        check(
            |s| {
                let other = s.other_chap.as_mut().unwrap().mutual.as_mut().unwrap();
                other.secret = "secret-of-twelve".into();
            },
            "other_chap",
        );
        check(
            |s| s.chap.as_mut().unwrap().mutual.as_mut().unwrap().secret = "secret-of-twelve".into(),
            "chap.mutual.secret",
        );
    }
}
