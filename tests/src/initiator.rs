//! A host with stock open-iscsi: a client that we did not write.

use std::time::Duration;

use anyhow::{Context, Result};
use mooring_rig::{Output, Vm};

use crate::disk::Disk;
use crate::evidence::wait_for;
use crate::site::TARGET;

/// CHAP credentials of a host.
#[derive(Debug, Clone, Copy)]
pub struct Credentials<'c> {
    /// The initiator's user.
    pub user: &'c str,
    /// The initiator's secret.
    pub secret: &'c str,
    /// The target's user and secret, for mutual CHAP.
    pub mutual: Option<(&'c str, &'c str)>,
}

/// A host that runs open-iscsi.
pub struct Host<'a> {
    /// The host's VM.
    pub vm: &'a Vm,
    /// The host's initiator name.
    pub iqn: String,
}

impl<'a> Host<'a> {
    /// Starts open-iscsi's daemon under a name of its own.
    pub fn start(vm: &'a Vm) -> Result<Self> {
        let host = Self::configure(vm)?;
        vm.sh("pidof iscsid >/dev/null || iscsid")?.ok().context("start iscsid")?;
        Ok(host)
    }

    /// Gives open-iscsi a name of its own; starts nothing.
    pub fn configure(vm: &'a Vm) -> Result<Self> {
        let iqn = format!("iqn.2026-01.test.mooring:{}", vm.name());
        vm.sh(&format!(
            "mkdir -p /etc/iscsi /run/lock/iscsi; echo InitiatorName={iqn} > /etc/iscsi/initiatorname.iscsi; \
             modprobe -a iscsi_tcp sd_mod sg"
        ))?
        .ok()
        .context("configure open-iscsi")?;
        Ok(Self { vm, iqn })
    }

    /// Finds the target and logs in at one portal. Returns iscsiadm's result: exit 24 is an
    /// authorization failure.
    pub fn login(
        &self,
        target: &str,
        portal: &str,
        chap: Option<Credentials<'_>>,
        replacement_timeout: u32,
    ) -> Result<Output> {
        let node = format!("iscsiadm -m node -T {target} -p {portal}");
        let mut script = format!("{node} -o new >/dev/null\n");
        let mut set =
            |name: &str, value: &str| script.extend([&node, " -o update -n ", name, " -v ", value, "\n"]);
        set("node.session.timeo.replacement_timeout", &replacement_timeout.to_string());
        set("node.session.initial_login_retry_max", "1");
        set("node.conn[0].timeo.login_timeout", "10");
        if let Some(chap) = chap {
            set("node.session.auth.authmethod", "CHAP");
            set("node.session.auth.username", chap.user);
            set("node.session.auth.password", chap.secret);
            if let Some((user, secret)) = chap.mutual {
                set("node.session.auth.username_in", user);
                set("node.session.auth.password_in", secret);
            }
        }
        self.vm.sh(&script)?.ok().context("make the node record")?;
        self.vm.command(["sh", "-c", &format!("{node} --login")]).timeout(Duration::from_mins(1)).run()
    }

    /// Logs out and forgets the target.
    pub fn logout(&self, target: &str) -> Result<()> {
        let script = format!("iscsiadm -m node -T {target} -u; iscsiadm -m node -T {target} -o delete");
        self.vm
            .command(["sh", "-c", &script])
            .timeout(Duration::from_mins(1))
            .run()?
            .ok()
            .context("log out")?;
        Ok(())
    }

    /// Forgets a target, logged in or not, such as one that has refused the host.
    pub fn forget(&self, target: &str) -> Result<()> {
        let script = format!("iscsiadm -m node -T {target} -u; iscsiadm -m node -T {target} -o delete; true");
        self.vm.command(["sh", "-c", &script]).timeout(Duration::from_mins(1)).run()?.ok()?;
        Ok(())
    }

    /// Identifies this host's session in the target's kernel (`storage`); a login makes another
    /// one.
    pub fn session_at(&self, storage: &Vm, target: &str) -> Result<String> {
        let file = format!("{TARGET}/iscsi/{target}/tpgt_1/acls/{}/info", self.iqn);
        let info = storage.sh(&format!("cat {file}"))?.ok()?.stdout;
        let line = info.lines().find(|line| line.contains("TSIH")).with_context(|| info.clone())?;
        Ok(line.trim().to_owned())
    }

    /// The disk of a target of ours, once it exists.
    pub fn disk(&self, target: &str, portal: &str) -> Result<Disk<'a>> {
        self.disk_of(target, portal, 1)
    }

    /// The disk of this LUN of a target, once it exists.
    pub fn disk_of(&self, target: &str, portal: &str, lun: u16) -> Result<Disk<'a>> {
        let link = format!("/dev/disk/by-path/ip-{portal}-iscsi-{target}-lun-{lun}");
        let found = wait_for(&format!("{link} on {}", self.vm.name()), Duration::from_secs(30), || {
            let out = self.vm.run(&["readlink", "-e", &link])?;
            Ok(out.status.success().then(|| out.line().to_owned()))
        })?;
        Ok(Disk::new(self.vm, found))
    }
}
