"""The commands of python-openstackclient against a controller with agents on fake hosts. They run in this process, which saves
a second for each; what they do is what the program does."""

import contextlib
import http.server
import io
import json
import os
import tempfile
import threading
import uuid

from openstackclient import shell
from osc_lib import clientmanager

from harness import Fleet, main, test, until

# Tests of what the controller does not have yet, each with what is missing.
LATER = {}

FLEET = Fleet("tokens")


class Others(http.server.BaseHTTPRequestHandler):
    """As much of a compute and an identity service as the commands ask for: every server and every project exists."""

    def do_GET(self):
        path = self.path.split("?")[0].rstrip("/").removeprefix("/v2.1")
        if path in ("/servers", "/servers/detail"):
            body = {"servers": []}
        elif path.startswith("/servers/"):
            name = path.removeprefix("/servers/")
            body = {"server": {"id": name, "name": name}}
        elif path.startswith("/v3/projects/"):
            name = path.removeprefix("/v3/projects/")
            body = {"project": {"id": name, "name": name}}
        elif path == "/limits":
            body = {"limits": {"rate": [], "absolute": {}}}
        else:
            body = {"version": {"id": "v2.1", "status": "CURRENT", "version": "2.90", "min_version": "2.1",
                                "links": [{"rel": "self", "href": f"http://{self.headers['Host']}/v2.1/"}]}}
        answer = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        """Says nothing."""


def configure():
    """Writes down the clouds, as a user would, and has the commands read it."""
    others = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Others)
    threading.Thread(target=others.serve_forever, daemon=True).start()
    at = f"http://127.0.0.1:{others.server_address[1]}"
    free = Fleet("noauth")
    accounts = {who: ("admin_token", {"endpoint": FLEET.endpoint(who), "token": FLEET.token(who)})
                for who in ("admin", "member", "stranger")}
    accounts["nobody"] = ("none", {"endpoint": free.endpoint()})
    clouds = {name: {"auth_type": kind, "auth": auth, "compute_endpoint_override": f"{at}/v2.1",
                     "identity_endpoint_override": f"{at}/v3", "identity_api_version": "3",
                     "block_storage_endpoint_override": auth["endpoint"], "volume_api_version": "3.60"}
              for name, (kind, auth) in accounts.items()}
    file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
    json.dump({"clouds": clouds}, file)
    file.flush()
    os.environ["OS_CLIENT_CONFIG_FILE"] = file.name
    return file


def forget():
    """The clients of the last command, which this process would use for the next one, whoever calls."""
    for kept in vars(clientmanager.ClientManager).values():
        if isinstance(kept, clientmanager.ClientCache):
            kept._handle = None


def run(*words, who="admin", fails=False):
    """One command; its answer."""
    forget()
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        code = shell.OpenStackShell().run(["--os-cloud", who, *words])
    assert (code != 0) == fails, f"{words} ended with {code}: {said.getvalue()}{complained.getvalue()}"
    return said.getvalue()


def show(*words, **more):
    """The same for a command that prints an object or a list."""
    return json.loads(run(*words, "-f", "json", **more))


def volume(*words):
    """A volume that is available."""
    made = show("volume", "create", "--size", "1", *words, f"v-{uuid.uuid4()}")
    until("an available volume", lambda: show("volume", "show", made["id"])["status"] == "available")
    return made


def shared_type():
    """A type whose volumes may be shared."""
    return show("volume", "type", "create", "--multiattach", f"shared-{uuid.uuid4()}")["name"]


@test
def volumes():
    made = volume("--description", "first", "--property", "a=b")
    name = f"renamed-{uuid.uuid4()}"
    run("volume", "set", "--name", name, "--property", "c=d", made["id"])
    seen = show("volume", "show", made["id"])
    assert (seen["name"], seen["properties"]) == (name, {"a": "b", "c": "d"}), seen
    run("volume", "set", "--size", "2", made["id"])
    until("the new size", lambda: show("volume", "show", made["id"])["size"] == 2)
    run("volume", "unset", "--property", "a", made["id"])
    assert show("volume", "show", made["id"])["properties"] == {"c": "d"}
    assert made["id"] in [each["ID"] for each in show("volume", "list", "--long")]
    assert [each["ID"] for each in show("volume", "list", "--name", name)] == [made["id"]]
    run("volume", "delete", made["id"])
    until("the end of the volume", lambda: made["id"] not in [each["ID"] for each in show("volume", "list")])


@test
def types():
    name = shared_type()
    assert show("volume", "type", "show", name)["properties"] == {"multiattach": "<is> True"}
    run("volume", "type", "set", "--property", "capabilities:x=y", "--description", "words", name)
    run("volume", "type", "unset", "--property", "capabilities:x", name)
    seen = [each for each in show("volume", "type", "list", "--long") if each["Name"] == name]
    assert seen[0]["Properties"] == {"multiattach": "<is> True"} and seen[0]["Description"] == "words", seen
    run("volume", "type", "delete", name)


@test
def attachments():
    of, server = volume("--type", shared_type())["id"], str(uuid.uuid4())
    made = show("volume", "attachment", "create", of, "--server", server, "--connect", "--host", "node1",
                "--initiator", "iqn.2026-01.org.example:node1", "--ip", "192.0.2.11", "--mode", "ro",
                "--mountpoint", "/dev/vdb")
    assert made["Attach Mode"] == "ro" and made["Properties"]["access_mode"] == "ro", made
    run("volume", "attachment", "complete", made["ID"])
    other = show("volume", "attachment", "create", of, "--server", str(uuid.uuid4()))
    assert other["Status"] == "reserved", other
    run("volume", "attachment", "set", other["ID"], "--host", "node2", "--initiator",
        "iqn.2026-01.org.example:node2")
    run("volume", "attachment", "complete", other["ID"])
    assert show("volume", "attachment", "show", made["ID"])["Status"] == "attached"
    listed = show("volume", "attachment", "list", "--volume-id", of)
    assert {each["ID"] for each in listed} == {made["ID"], other["ID"]}
    assert show("volume", "show", of)["status"] == "in-use"
    run("volume", "delete", of, fails=True)
    for each in (made, other):
        run("volume", "attachment", "delete", each["ID"])
    assert show("volume", "show", of)["status"] == "available"


@test
def without_auth():
    made = show("volume", "create", "--size", "1", "open", who="nobody")
    assert made["id"] in [each["ID"] for each in show("volume", "list", who="nobody")]


@test
def services():
    seen = show("volume", "service", "list", "--service", "cinder-volume")
    assert seen and all(each["State"] == "up" for each in seen), seen
    host = seen[0]["Host"]
    run("volume", "service", "set", "--disable", "--disable-reason", "for a test", host, "cinder-volume")
    run("volume", "service", "set", "--enable", host, "cinder-volume")


@test
def pools_and_capabilities():
    pools = show("volume", "backend", "pool", "list", "--long")
    assert pools, pools
    assert show("volume", "backend", "capability", "show", pools[0]["Name"].split("#")[0]) is not None


@test
def volume_set():
    made = volume()["id"]
    run("volume", "set", "--bootable", "--read-only", made)
    run("volume", "set", "--state", "error", made)
    assert show("volume", "show", made)["status"] == "error"
    run("volume", "set", "--state", "available", made)
    name = shared_type()
    run("volume", "set", "--type", name, "--retype-policy", "never", made)
    until("the new type", lambda: show("volume", "show", made)["type"] == name)


@test
def quotas():
    project = FLEET.project("stranger")
    words = ("quota", "show", "--volume", project)

    def limit():
        return {each["Resource"]: each["Limit"] for each in show(*words)}["volumes"]
    before = limit()
    run("quota", "set", "--volumes", "77", project)
    assert limit() == 77
    run("quota", "delete", "--volume", project)
    assert limit() == before


@test
def limits():
    seen = show("limits", "show", "--absolute")
    seen = {each["Name"]: each["Value"] for each in seen} if isinstance(seen, list) else seen
    assert all(seen[key] is not None for key in ("max_total_volumes", "total_volumes_used")), seen


@test
def type_access():
    name, project = f"private-{uuid.uuid4()}", FLEET.project("stranger")
    run("volume", "type", "create", "--private", name)
    run("volume", "type", "show", name, who="stranger", fails=True)
    run("volume", "type", "set", "--project", project, name)
    assert show("volume", "type", "show", name, who="stranger")["name"] == name
    run("volume", "type", "unset", "--project", project, name)
    run("volume", "type", "show", name, who="stranger", fails=True)


with configure():
    main("osc", LATER)
