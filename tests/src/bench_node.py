# What rtslib (Debian's python3-rtslib-fb, below targetcli) takes for the same three changes, in one process that stays: no start
# of an interpreter is in it. One JSON object is printed.
import json, os, sys, time
from rtslib_fb import RTSRoot, BlockStorageObject, FabricModule, LUN, MappedLUN, NetworkPortal, NodeACL, TPG, Target

saves, devices = int(sys.argv[1]), sys.argv[2:]
times = {"first grant": [], "further grant": [], "revoke": [], "save": []}
HOST = "iqn.2026-01.bench.rtslib:host%d"


def timed(name, work):
    began = time.monotonic()
    result = work()
    times[name].append(int((time.monotonic() - began) * 1e6))
    return result


def grant(tpg, host):
    acl = NodeACL(tpg, HOST % host)
    MappedLUN(acl, 1, 1, False)
    acl.chap_userid = "user"
    acl.chap_password = "secret-of-twelve"
    return acl


def first(number, device):
    so = BlockStorageObject("rtslib%d" % number, device)
    target = Target(FabricModule("iscsi"), "iqn.2026-11.dev.mooring.rtslib:%d" % number)
    tpg = TPG(target, 1)
    LUN(tpg, 1, so)
    NetworkPortal(tpg, "10.10.0.10", 3262)
    grant(tpg, 0)
    tpg.enable = True
    return so, target, tpg


root = RTSRoot()
for number, device in enumerate(devices):
    so, target, tpg = timed("first grant", lambda: first(number, device))
    acl = timed("further grant", lambda: grant(tpg, 1))
    timed("revoke", acl.delete)
    target.delete()
    so.delete()
for _ in range(saves):
    timed("save", lambda: root.save_to_file("/run/rtslib.json"))


def figures(name, all):
    all = sorted(all)
    at = lambda percent: all[min(len(all) * percent // 100, len(all) - 1)] if all else 0
    return {"name": name, "count": len(all), "p50_us": at(50), "p95_us": at(95)}


print(json.dumps({"figures": [figures(name, all) for name, all in times.items()]}))
