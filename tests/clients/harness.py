"""What the client scripts share: where the fleets are, and tests that are counted.

MOORING_FLEETS is JSON: {"tokens": FLEET, "noauth": FLEET}, each as mooring-fleet-serve prints it. For each test one line is
printed: `ok NAME`, `FAILED NAME`, or `skipped NAME: WHY`. Words on the command line choose the tests whose name contains one.
"""

import json
import os
import sys
import time
import traceback

TESTS = []

FLEETS = json.loads(os.environ.get("MOORING_FLEETS", "{}"))


class Fleet:
    """A controller, and who may call it."""

    def __init__(self, name):
        self.url = FLEETS[name]["url"]
        self.accounts = FLEETS[name]["accounts"]

    def token(self, who="admin"):
        """What somebody proves with who they are."""
        return self.accounts[who]["token"]

    def project(self, who="admin"):
        """Whose volumes somebody sees."""
        return self.accounts[who]["project"]

    def endpoint(self, who="admin"):
        """The address that a service catalogue has for somebody's project."""
        return f"{self.url}/v3/{self.project(who)}"


def test(function):
    """Counts this function as a test; its name is the test's, with the script's before it."""
    TESTS.append(function)
    return function


def connector(host):
    """What os-brick says of a host."""
    return {"initiator": f"iqn.2026-01.org.example:{host}", "host": host, "ip": "192.0.2.11", "multipath": False,
            "os_type": "linux", "platform": "x86_64", "do_local_attach": False, "mountpoint": "/dev/vdb"}


def until(what, look, patience=30):
    """Waits for something that comes by itself."""
    limit = time.monotonic() + patience
    while not look():
        assert time.monotonic() < limit, f"{what} does not come"
        time.sleep(0.02)


def refused(kind, call):
    """The call is refused with this exception."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"not refused with {kind.__name__}")


def main(script, later):
    """Runs the tests. `later`: those that need what the controller does not have yet, and what that is."""
    unknown = set(later) - {function.__name__ for function in TESTS}
    assert not unknown, f"no such tests: {unknown}"
    failed = False
    for function in TESTS:
        name = f"{script}.{function.__name__}"
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        if function.__name__ in later:
            print(f"skipped {name}: {later[function.__name__]}", flush=True)
            continue
        try:
            function()
            print(f"ok {name}", flush=True)
        except Exception:
            failed = True
            traceback.print_exc()
            print(f"FAILED {name}", flush=True)
    sys.exit(failed)
