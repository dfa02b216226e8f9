//! Every scenario.

use super::{
    Scenario, Tier, adopt, agent_killed, attach_faults, beside_iscsid, boot, cache, contract, discard,
    extend, faults, fc, fc_agent, fc_main_job, fc_trials, hung_device, images, installed, lvm, papers,
    port_ids, portals, power_cuts, reservations, restored, ro_fuzz, sessiond_killed, shutdown, snapshots,
    stuck, upgrade_skew, vagrant_scripts, volumes,
};
use mooring_rig::Kernel;

use crate::demo;

/// All scenarios.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "contract-stable",
        shows: "every errno row, the calls on disks, and the fake's tree, on the release's kernel",
        tier: Tier::Rotation { subject: &["targets/src", "tests/contract"] },
        usual: 15,
        run: contract::stable,
    },
    Scenario {
        name: "contract-backports",
        shows: "the same on the newest kernel that Debian offers for the release",
        tier: Tier::Rotation { subject: &["targets/src", "tests/contract"] },
        usual: 15,
        run: contract::backports,
    },
    Scenario {
        name: "installed",
        shows: "the packages under systemd: the units' sandboxes, certificates and an image in them; restarts, an upgrade, a removal and a purge while a host writes; a unit that would clear the target, and a shutdown during a job",
        tier: Tier::Rotation {
            subject: &[
                "bus",
                "packages",
                "systemd",
                "tests/src/packages.rs",
                "agent/src/main.rs",
                "agent/src/run.rs",
                "agent/src/config.rs",
                "agent/src/listen.rs",
                "agent/src/door.rs",
                "agent/src/images",
                "controller/src/main.rs",
                "controller/src/renewal.rs",
                "controller/src/config.rs",
                "connectors/src/sessiond/program.rs",
            ],
        },
        usual: 260,
        run: installed::run,
    },
    Scenario {
        name: "shutdown",
        shows: "a host turned off by systemd while services write to attached disks without fsync: every byte is there, also by fstab; with the control that loses",
        tier: Tier::Rotation {
            subject: &[
                "systemd",
                "connectors/src/release.rs",
                "connectors/src/release",
                "connectors/src/named.rs",
            ],
        },
        usual: 110,
        run: shutdown::run,
    },
    Scenario {
        name: "vagrant-scripts",
        shows: "what `vagrant up` runs, twice, under systemd: packages by apt, a controller, a storage node and a host that attaches natively; made anew, it joins again",
        tier: Tier::Rotation {
            subject: &[
                "vagrant",
                "packages",
                "systemd",
                "agent/src/join",
                "agent/src/join.rs",
                "controller/src/init",
            ],
        },
        usual: 110,
        run: vagrant_scripts::run,
    },
    Scenario {
        name: "papers",
        shows: "README and the pages of docs/ that are marked, typed as they stand there: from packages to an attached disk, a force detach, a backup and a restore",
        tier: Tier::Rotation {
            subject: &[
                "README.md",
                "docs/install.md",
                "docs/backup.md",
                "docs/upgrade.md",
                "docs/security.md",
                "packages",
                "agent/src/join",
                "agent/src/join.rs",
                "controller/src/init",
                "cli/src/demo.rs",
            ],
        },
        usual: 200,
        run: papers::run,
    },
    Scenario {
        name: "upgrade-skew",
        shows: "packages of an earlier commit upgraded while a host writes: a new agent beside the old controller, the new controller over old agents, then all; secrets in clear are sealed",
        tier: Tier::Full,
        usual: 330,
        run: upgrade_skew::run,
    },
    Scenario {
        name: "fc",
        shows: "Fibre Channel on tcm_fc: the contract's rows, a shut LUN, writes whose data come late, the drain of one nexus",
        tier: Tier::Rotation { subject: &["targets/src/fc", "tests/contract"] },
        usual: 25,
        run: fc::run,
    },
    Scenario {
        name: "cache",
        shows: "a page cache that is off is dropped at each attach and detach, over recoveries and restarts; with the control that reads old blocks; who uses the disk otherwise is named",
        tier: Tier::Core,
        usual: 65,
        run: cache::run,
    },
    Scenario {
        name: "cache-backports",
        shows: "the same on the newest kernel that Debian offers for the release, which sets the read-ahead anew by itself",
        tier: Tier::Rotation {
            subject: &["connectors/src/plan.rs", "tests/src/scenarios/cache.rs", "tests/src/scenarios/cache"],
        },
        usual: 100,
        run: cache::backports,
    },
    Scenario {
        name: "agent-fc",
        shows: "the agent over Fibre Channel and iSCSI at once: one volume, ro enforced, a force detach with its stamps and control",
        tier: Tier::Core,
        usual: 40,
        run: fc_agent::run,
    },
    Scenario {
        name: "fc-main-job",
        shows: "the controller over Fibre Channel: two hosts by cinderclient rw and ro, iSCSI beside them, force detach with its control",
        tier: Tier::Rotation {
            subject: &[
                "targets/src/fc",
                "agent/src/fibre_channel.rs",
                "agent/src/engine/fabrics.rs",
                "connectors/src/fabric",
                "controller/src/rules/transport.rs",
                "controller/src/store/fibre_channel.rs",
            ],
        },
        usual: 80,
        run: fc_main_job::run,
    },
    Scenario {
        name: "trials-fc",
        shows: "the trials of a force detach and of a fence over Fibre Channel: port logged in, network cut, power cut; nothing lands after the receipt",
        tier: Tier::Rotation {
            subject: &[
                "targets/src/fc",
                "targets/src/live.rs",
                "agent/src/engine/shut_out.rs",
                "agent/src/engine/narrow.rs",
                "agent/src/engine/fabrics.rs",
                "controller/src/service/fence.rs",
            ],
        },
        usual: 145,
        run: fc_trials::in_ci,
    },
    Scenario {
        name: "lvm-words",
        shows: "the messages by which the agent tells LVM's errors apart, from the real lvm",
        tier: Tier::Rotation { subject: &["agent/src/volumes/lvm.rs", "agent/src/volumes/error.rs"] },
        usual: 10,
        run: lvm::run,
    },
    Scenario {
        name: "main-job",
        shows: "one volume, two hosts, native attach rw and ro, force detach with its control, crashes, power cut, cinderclient",
        tier: Tier::Core,
        usual: 90,
        run: |programs| demo::run(programs, None),
    },
    Scenario {
        name: "main-job-cloud",
        shows: "the same on the release's kernel for clouds",
        tier: Tier::Rotation { subject: &["tests/rig/src/kernel.rs"] },
        usual: 110,
        run: |programs| demo::on(programs, None, Kernel::Cloud),
    },
    Scenario {
        name: "trials",
        shows: "a writing host taken off by force, alive, without network, without power, on a slow and a fast backend: nothing lands after the receipt",
        tier: Tier::Core,
        usual: 110,
        run: |programs| demo::trials::run(programs, demo::trials::Size::IN_CI),
    },
    Scenario {
        name: "attach-faults",
        shows: "native attach when something is wrong: bounded, clear, nothing lost; relogin, revoked secrets, wrong disks",
        tier: Tier::Rotation { subject: &["connectors/src", "agent/src/connections"] },
        usual: 90,
        run: attach_faults::run,
    },
    Scenario {
        name: "sessiond-killed",
        shows: "sessiond killed before and after each of its steps, in attach, takeover, recovery under I/O and detach: converges",
        tier: Tier::Rotation {
            subject: &["connectors/src/sessiond", "connectors/src/wire.rs", "connectors/src/client.rs"],
        },
        usual: 85,
        run: sessiond_killed::run,
    },
    Scenario {
        name: "agent-killed",
        shows: "the storage agent killed before and after its calls, in grants, a force detach under I/O and a deletion: converges",
        tier: Tier::Rotation { subject: &["agent/src/engine", "agent/src/store", "targets/src"] },
        usual: 85,
        run: |programs| agent_killed::run(programs, agent_killed::DEATHS_IN_CI),
    },
    Scenario {
        name: "beside-iscsid",
        shows: "a distribution's iscsid and iscsiadm beside our sessions under I/O, with the control that is stolen",
        tier: Tier::Rotation {
            subject: &["connectors/src/iscsi", "connectors/src/sessiond", "connectors/src/sessions.rs"],
        },
        usual: 70,
        run: beside_iscsid::run,
    },
    Scenario {
        name: "bad-input",
        shows: "wrong requests, foreign objects, full disks and missing modules on a real kernel: clear errors, nothing lost",
        tier: Tier::Rotation {
            subject: &[
                "agent/src/engine",
                "agent/src/store",
                "agent/src/capabilities",
                "agent/src/volumes",
                "cli/src",
            ],
        },
        usual: 120,
        run: faults::run,
    },
    Scenario {
        name: "extend",
        shows: "a volume grows while two hosts have it: the new size on both, zeros behind the old end, with the control that sees old data",
        tier: Tier::Rotation {
            subject: &[
                "agent/src/volumes",
                "agent/src/engine/shorter.rs",
                "agent/src/engine/kept_look.rs",
                "agent/src/engine/admit.rs",
                "controller/src/flow/growth.rs",
                "connectors/src/device.rs",
            ],
        },
        usual: 75,
        run: extend::run,
    },
    Scenario {
        name: "discard",
        shows: "discards of a host reach the disk where the operator vouched for it, and a deletion discards; with the control that does neither",
        tier: Tier::Rotation {
            subject: &["agent/src/volumes", "agent/src/engine/disks.rs", "targets/src/plan/backstore.rs"],
        },
        usual: 50,
        run: discard::run,
    },
    Scenario {
        name: "volumes",
        shows: "a zeroing seen, slowed and gone on after kill -9; an LV taken over with its data and let go; sessions as their type says",
        tier: Tier::Rotation {
            subject: &["agent/src/volumes", "agent/src/engine/jobs.rs", "targets/src/tuning.rs"],
        },
        usual: 110,
        run: volumes::run,
    },
    Scenario {
        name: "snapshots",
        shows: "thin volumes: nothing old in them, snapshots under I/O, volumes from them, all there after a power cut",
        tier: Tier::Rotation { subject: &["agent/src/volumes", "controller/src/service/snapshots.rs"] },
        usual: 90,
        run: snapshots::run,
    },
    Scenario {
        name: "images",
        shows: "volumes from raw and qcow2 images, byte for byte, also past a kill -9; images that name other files are refused, with the control that leaks",
        tier: Tier::Rotation {
            subject: &[
                "agent/src/images",
                "agent/src/volumes/import.rs",
                "agent/src/volumes/upload.rs",
                "agent/src/engine/upload.rs",
            ],
        },
        usual: 100,
        run: images::run,
    },
    Scenario {
        name: "adopt",
        shows: "an export that rtslib made is taken over under I/O: the same session, the same disk, also after a power cut; others untouched",
        tier: Tier::Rotation { subject: &["agent/src/adopt", "targets/src/adopt"] },
        usual: 35,
        run: adopt::run,
    },
    Scenario {
        name: "boot",
        shows: "many exports after a power cut, from the agent's own store; killed in the middle; a group that is late holds up nobody",
        tier: Tier::Core,
        usual: 45,
        run: boot::run,
    },
    Scenario {
        name: "power-cuts",
        shows: "the storage node's power cut at random moments while volumes are made, granted, revoked and deleted and a host writes: what was answered holds",
        tier: Tier::Rotation { subject: &["agent/src/store", "agent/src/volumes", "agent/src/engine"] },
        usual: 50,
        run: |programs| power_cuts::run(programs, power_cuts::CUTS_IN_CI),
    },
    Scenario {
        name: "portals",
        shows: "portals of IPv6 and IPv4 whose addresses come and go under I/O, sessions and counters as they are seen, a host without power is missing, a link that is down is named",
        tier: Tier::Rotation {
            subject: &[
                "agent/src/engine/addresses.rs",
                "agent/src/links.rs",
                "host/src/addresses.rs",
                "agent/src/engine/pulse.rs",
                "agent/src/engine/counts.rs",
                "targets/src/live.rs",
            ],
        },
        usual: 95,
        run: portals::run,
    },
    Scenario {
        name: "restored",
        shows: "a controller's backup beside writers, its total loss, and the restore: nothing that changed since is undone, no write fails",
        tier: Tier::Rotation {
            subject: &[
                "controller/src/backup.rs",
                "controller/src/store/backup.rs",
                "controller/src/flow/review.rs",
                "controller/src/store/reviews.rs",
            ],
        },
        usual: 60,
        run: restored::run,
    },
    Scenario {
        name: "port-ids",
        shows: "a kernel with rtpi: an export's relative port id, and what registrations say of it, outlive a power cut",
        tier: Tier::Rotation {
            subject: &["agent/src/engine/port_ids.rs", "targets/src/port.rs", "targets/src/reservations.rs"],
        },
        usual: 25,
        run: port_ids::run,
    },
    Scenario {
        name: "reservations",
        shows: "SCSI-3 persistent reservations: a fenced host stays fenced over kill -9 and a power cut, with the control that writes; what a read-only host reserves ends with its session; libiscsi's tests as at a bare target",
        tier: Tier::Rotation {
            subject: &[
                "agent/src/engine/reservations.rs",
                "agent/src/engine/reserve.rs",
                "agent/src/engine/reserved.rs",
                "targets/src/reservations.rs",
            ],
        },
        usual: 95,
        run: reservations::run,
    },
    Scenario {
        name: "stuck-backend",
        shows: "a backing device that does not answer: an unproven receipt in time, other volumes go on, proven afterwards",
        tier: Tier::Rotation {
            subject: &[
                "agent/src/workers.rs",
                "agent/src/turn.rs",
                "agent/src/engine/pass.rs",
                "agent/src/engine/shut_out.rs",
                "agent/src/engine/cut.rs",
            ],
        },
        usual: 45,
        run: stuck::run,
    },
    Scenario {
        name: "hung-device",
        shows: "a device hangs, its host's connection dies and it reboots: another host logs in to another volume all the while; with the control",
        tier: Tier::Rotation {
            subject: &["agent/src/engine", "connectors/src/sessiond", "host/src/flow.rs", "targets/src"],
        },
        usual: 165,
        run: hung_device::run,
    },
    Scenario {
        name: "ro-fuzz",
        shows: "10,500 commands of a host that may only read, in every claimed direction, over iSCSI and Fibre Channel: no byte changes; with the control that zeroes",
        tier: Tier::Core,
        usual: 100,
        run: ro_fuzz::stable,
    },
    Scenario {
        name: "ro-fuzz-backports",
        shows: "2,000 of them on the newest kernel that Debian offers for the release",
        tier: Tier::Rotation { subject: &["targets/src", "tests/src/scenarios/ro_fuzz.rs"] },
        usual: 50,
        run: ro_fuzz::backports,
    },
];
