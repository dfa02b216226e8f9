"""The calls that Nova makes, with python-cinderclient as Nova uses it: the user's token and its own beside it, no version for
the older calls, 3.44 for attachments, and the newest version that it knows for a volume."""

import uuid

from cinderclient import client, exceptions
from keystoneauth1 import service_token, session, token_endpoint

from harness import Fleet, connector, main, refused, test, until

# Tests of what the controller does not have yet, each with what is missing.
LATER = {}

FLEET = Fleet("tokens")


class Nova:
    """Nova's API and compute services, for one user of a project."""

    def __init__(self, service="service"):
        endpoint = FLEET.endpoint("member")
        user = token_endpoint.Token(endpoint, FLEET.token("member"))
        own = token_endpoint.Token(endpoint, FLEET.token(service))
        both = service_token.ServiceTokenAuthWrapper(user_auth=user, service_auth=own)
        self.session, self.endpoint = session.Session(auth=both), endpoint

    def at(self, version="3.0"):
        """A client as Nova makes one for each call, with the request id of its user."""
        return client.Client(version, session=self.session, endpoint_override=self.endpoint,
                             global_request_id=f"req-{uuid.uuid4()}")

    def volume(self, volume):
        """With the newest version that it knows, after a look at what there is."""
        _, newest = client.get_server_version(self.endpoint)
        assert int(newest.get_string().split(".")[1]) >= 69, newest
        return self.at("3.69").volumes.get(volume)

    def reserve(self, volume, server):
        """The API's part of an attach: the volume is looked at, and promised to the server."""
        self.volume(volume)
        return self.at("3.44").attachments.create(volume, None, server)["id"]

    def connect(self, attachment, host):
        """The compute host's part, up to the connection."""
        updated = self.at("3.44").attachments.update(attachment, connector(host))
        info = updated["connection_info"] if isinstance(updated, dict) else updated.connection_info
        assert info["driver_volume_type"] == "iscsi" and info["attachment_id"] == attachment, info
        assert info["access_mode"] == "rw" and info["auth_password"], info
        return info

    def attach(self, volume, server, host):
        """The whole of it."""
        made = self.reserve(volume, server)
        self.connect(made, host)
        self.at("3.44").attachments.complete(made)
        return made

    def detach(self, volume, attachment):
        """Announced by the API, done by the compute host, which has kept no connector."""
        self.volume(volume)
        self.at().volumes.begin_detaching(volume)
        self.volume(volume)
        self.at("3.44").attachments.delete(attachment)

    def pre_live_migration(self, volume, server, host):
        """The target's part: an attachment that is made with its connector, read again, and completed."""
        made = self.at("3.44").attachments.create(volume, connector(host), server)["id"]
        info = self.at("3.44").attachments.show(made).connection_info
        assert info["target_iqn"] and info["auth_password"], info
        self.at("3.44").attachments.complete(made)
        return made

    def attachments(self, server):
        """Those of a server, as a reboot asks for them."""
        return sorted(each.id for each in self.at("3.44").attachments.list(search_opts={"instance_id": server}))

    def mode(self, attachment):
        """As a swap counts who writes."""
        return self.at("3.44").attachments.show(attachment).attach_mode


def server():
    """A server's id."""
    return str(uuid.uuid4())


def volume(shared=False):
    """A volume that is available."""
    admin = client.Client("3.60", session=session.Session(
        auth=token_endpoint.Token(FLEET.endpoint(), FLEET.token())), endpoint_override=FLEET.endpoint())
    kind = None
    if shared:
        kind = admin.volume_types.create(f"shared-{uuid.uuid4()}")
        kind.set_keys({"multiattach": "<is> True"})
    nova = Nova()
    made = nova.at().volumes.create(size=1, volume_type=kind.name if kind else None).id
    until("an available volume", lambda: nova.volume(made).status == "available")
    return made


@test
def attach_and_detach():
    nova, of, (one, two) = Nova(), volume(shared=True), (server(), server())
    first, second = nova.attach(of, one, "node1"), nova.attach(of, two, "node2")
    seen = nova.volume(of)
    assert (seen.status, seen.multiattach, seen.shared_targets) == ("in-use", True, False), seen
    assert {each["server_id"] for each in seen.attachments} == {one, two}
    nova.detach(of, first)
    assert nova.volume(of).status == "in-use" and nova.attachments(two) == [second]
    # Asked again after an answer that was lost: gone is fine.
    refused(exceptions.NotFound, lambda: nova.at("3.44").attachments.delete(first))
    nova.detach(of, second)
    assert nova.volume(of).status == "available"


@test
def an_attach_that_fails():
    nova, of, one = Nova(), volume(), server()
    made = nova.reserve(of, one)
    # What cannot be reserved is 400: Nova knows no other refusal.
    refused(exceptions.BadRequest, lambda: nova.reserve(of, server()))
    without = connector("node1")
    del without["initiator"]
    refused(exceptions.BadRequest, lambda: nova.at("3.44").attachments.update(made, without))
    nova.at("3.44").attachments.delete(made)
    assert nova.volume(of).status == "available"


@test
def a_detach_that_fails():
    nova, of, one = Nova(), volume(), server()
    made = nova.attach(of, one, "node1")
    nova.at().volumes.begin_detaching(of)
    assert nova.volume(of).status == "detaching"
    nova.at().volumes.roll_detaching(of)
    assert nova.volume(of).status == "in-use"
    nova.detach(of, made)


@test
def live_migration():
    nova, of, one = Nova(), volume(), server()
    source = nova.attach(of, one, "node1")
    target = nova.pre_live_migration(of, one, "node2")
    assert nova.attachments(one) == sorted([source, target])
    assert nova.mode(target) == "rw", "both write: the guest switches somewhere in between"
    seen = nova.volume(of)
    assert seen.status == "in-use" and [each["server_id"] for each in seen.attachments] == [one, one]
    nova.at("3.44").attachments.delete(source)
    assert nova.attachments(one) == [target] and nova.volume(of).status == "in-use"
    nova.detach(of, target)


@test
def live_migration_rolled_back():
    nova, of, one = Nova(), volume(shared=True), server()
    source, other = nova.attach(of, one, "node1"), nova.attach(of, server(), "node3")
    target = nova.pre_live_migration(of, one, "node2")
    nova.at("3.44").attachments.delete(target)
    assert nova.attachments(one) == [source]
    # The source's connection is what it was, and so is the other server's.
    for each in (source, other):
        seen = nova.at("3.44").attachments.show(each)
        assert (seen.status, bool(seen.connection_info)) == ("attached", True), seen


@test
def moved_while_it_is_off():
    # Cold migration, resize, evacuation and rebuild: reserved first, then the old one goes.
    nova, of, one = Nova(), volume(), server()
    for source, target in [("node1", "node2"), ("node2", "node2")]:
        old = nova.attach(of, one, source)
        new = nova.reserve(of, one)
        nova.at("3.44").attachments.delete(old)
        assert nova.volume(of).status == "reserved"
        refused(exceptions.BadRequest, lambda: nova.reserve(of, server()))
        nova.connect(new, target)
        nova.at("3.44").attachments.complete(new)
        assert nova.attachments(one) == [new]
        nova.detach(of, new)


@test
def a_server_without_a_host():
    # Shelved and offloaded: reserved, and completed without ever having had a connector.
    nova, of, one = Nova(), volume(), server()
    made = nova.reserve(of, one)
    nova.at("3.44").attachments.complete(made)
    assert nova.volume(of).status == "in-use"
    nova.at("3.44").attachments.delete(made)
    assert nova.volume(of).status == "available"


@test
def swap():
    nova, of, one = Nova(), volume(shared=True), server()
    first, second = nova.attach(of, one, "node1"), nova.attach(of, server(), "node2")
    nova.at().volumes.begin_detaching(of)
    assert [nova.mode(each) for each in (first, second)] == ["rw", "rw"], "so Nova refuses"
    refused(exceptions.BadRequest, lambda: nova.reserve(of, server()))
    nova.at().volumes.roll_detaching(of)
    third = nova.reserve(of, server())
    nova.at("3.44").attachments.delete(third)


@test
def boot_from_volume():
    nova, of, one = Nova(), volume(), server()
    nova.at().volumes.set_bootable(of, True)
    made = nova.attach(of, one, "node1")
    assert nova.at().limits.get() and nova.at().volume_types.list()
    assert isinstance(nova.at().volume_snapshots.list(), list)
    # The server is deleted, and its volume with it.
    nova.at("3.44").attachments.delete(made)
    nova.at().volumes.delete(of)
    until("the end of the volume", lambda: of not in [each.id for each in nova.at().volumes.list()])


@test
def the_older_calls():
    nova, of, one = Nova(), volume(), server()
    api = nova.at()
    api.volumes.reserve(of)
    info = api.volumes.initialize_connection(of, connector("node1"))
    assert info["data"]["access_mode"] == "rw", info
    api.volumes.attach(of, one, "/dev/vdb")
    api.volumes.begin_detaching(of)
    api.volumes.terminate_connection(of, connector("node1"))
    api.volumes.detach(of, nova.attachments(one)[0])
    assert nova.volume(of).status == "available"


@test
def not_by_a_forged_token():
    of, one = volume(), server()
    made = Nova().attach(of, one, "node1")
    # A member's token in the place of a service's opens nothing: the secret stays hidden.
    forged = Nova(service="member")
    assert "auth_password" not in forged.at("3.44").attachments.show(made).connection_info
    assert Nova().at("3.44").attachments.show(made).connection_info["auth_password"]
    Nova().detach(of, made)


main("nova", LATER)
