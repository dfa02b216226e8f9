"""python-cinderclient's workflows against a controller with agents on fake hosts."""

import uuid

from cinderclient import client, exceptions
from cinderclient.contrib import noauth
from keystoneauth1 import session, token_endpoint

from harness import Fleet, connector, main, refused, test, until

# Tests of what the controller does not have yet, each with what is missing.
LATER = {}

FLEET = Fleet("tokens")


def cinder(version="3.60", who="admin"):
    """A client, by a token and the endpoint that a catalogue would have."""
    endpoint = FLEET.endpoint(who)
    auth = token_endpoint.Token(endpoint, FLEET.token(who))
    return client.Client(version, session=session.Session(auth=auth), endpoint_override=endpoint)


def shared_type(api):
    """A type whose volumes may be shared."""
    made = api.volume_types.create(f"shared-{uuid.uuid4()}")
    made.set_keys({"multiattach": "<is> True"})
    return made


def volume(api, kind=None, **more):
    """A volume that is available."""
    made = api.volumes.create(size=1, volume_type=kind.id if kind else None, **more)
    until("an available volume", lambda: api.volumes.get(made.id).status == "available")
    return api.volumes.get(made.id)


def attach(api, of, host, mode=None, server=None):
    """Reserve, connect, complete: as Nova does."""
    made = api.attachments.create(of.id, None, instance_id=server, mode=mode)
    made = made["id"] if isinstance(made, dict) else made.id
    api.attachments.update(made, connector(host))
    api.attachments.complete(made)
    return made


@test
def versions():
    low, high = client.get_server_version(FLEET.endpoint())
    assert low.get_string() == "3.0" and int(high.get_string().split(".")[1]) >= 69, high.get_string()
    assert client.get_highest_client_server_version(FLEET.endpoint())
    refused(exceptions.ClientException, lambda: cinder("3.999").volumes.list())


@test
def types():
    api = cinder()
    made = api.volume_types.create(f"t-{uuid.uuid4()}", "described", is_public=True)
    made.set_keys({"multiattach": "<is> True", "capabilities:x": "y"})
    assert made.get_keys() == {"multiattach": "<is> True", "capabilities:x": "y"}
    made.unset_keys(["capabilities:x"])
    assert api.volume_types.get(made.id).extra_specs == {"multiattach": "<is> True"}
    assert made.id in [kind.id for kind in api.volume_types.list()]
    renamed = f"r-{uuid.uuid4()}"
    api.volume_types.update(made.id, renamed)
    assert api.volume_types.find(name=renamed).id == made.id
    assert api.volume_types.default().name
    refused(exceptions.ClientException, lambda: api.volume_types.create(renamed))
    refused(exceptions.Forbidden, lambda: cinder(who="member").volume_types.create("mine"))
    api.volume_types.delete(made.id)
    refused(exceptions.NotFound, lambda: api.volume_types.get(made.id))


@test
def volumes():
    api = cinder(who="member")
    made = volume(api, name="one", description="first", metadata={"a": "b"})
    assert (made.name, made.size, made.metadata, made.multiattach) == ("one", 1, {"a": "b"}, False)
    api.volumes.update(made.id, name="two")
    api.volumes.set_metadata(made.id, {"c": "d"})
    api.volumes.delete_metadata(made.id, ["a"])
    seen = api.volumes.get(made.id)
    assert (seen.name, seen.metadata) == ("two", {"c": "d"})
    refused(exceptions.NotFound, lambda: cinder(who="stranger").volumes.get(made.id))
    api.volumes.delete(made.id)
    until("the end of the volume", lambda: made.id not in [volume.id for volume in api.volumes.list()])
    refused(exceptions.NotFound, lambda: api.volumes.get(made.id))


@test
def lists_and_filters():
    api, word = cinder(who="member"), uuid.uuid4().hex
    made = [volume(api, name=f"{word}-{n}").id for n in range(3)]
    named = {"name~": word}
    found = api.volumes.list(search_opts=named, sort="name:asc")
    assert [seen.id for seen in found] == made
    page = api.volumes.list(search_opts=named, sort="name:asc", limit=2)
    assert [seen.id for seen in page] == made[:2]
    rest = api.volumes.list(search_opts=named, sort="name:asc", marker=made[1])
    assert [seen.id for seen in rest] == made[2:]
    assert [seen.id for seen in api.volumes.list(search_opts={"name": f"{word}-1"})] == made[1:2]
    assert cinder(who="stranger").volumes.list(search_opts=named) == []
    every = cinder().volumes.list(search_opts={"all_tenants": 1, **named})
    assert len(every) == 3


@test
def attachments():
    api, member = cinder(), cinder(who="member")
    of, server = volume(member, shared_type(api)), str(uuid.uuid4())
    reserved = member.attachments.create(of.id, None, instance_id=server)
    assert (reserved["status"], reserved["instance"], reserved["connection_info"]) == ("reserved", server, {})
    updated = member.attachments.update(reserved["id"], connector("node1"))
    info = updated["connection_info"] if isinstance(updated, dict) else updated.connection_info
    assert info["driver_volume_type"] == "iscsi" and info["target_lun"] == 1, info
    member.attachments.complete(reserved["id"])
    second = attach(member, of, "node2")
    seen = member.attachments.show(reserved["id"])
    assert (seen.status, seen.attach_mode) == ("attached", "rw")
    listed = member.attachments.list(search_opts={"volume_id": of.id})
    assert sorted(each.id for each in listed) == sorted([reserved["id"], second])
    mine = member.attachments.list(search_opts={"instance_id": server})
    assert [each.id for each in mine] == [reserved["id"]]
    assert member.volumes.get(of.id).status == "in-use"
    refused(exceptions.BadRequest, lambda: member.volumes.delete(of.id))
    member.attachments.delete(reserved["id"])
    member.attachments.delete(second)
    assert member.volumes.get(of.id).status == "available"
    refused(exceptions.NotFound, lambda: member.attachments.show(second))


@test
def modes():
    api = cinder("3.54")
    of = volume(api, shared_type(api))
    reads, writes = attach(api, of, "node1", "ro"), attach(api, of, "node2", "rw")
    modes = [api.attachments.show(each).connection_info["access_mode"] for each in (reads, writes)]
    assert modes == ["ro", "rw"], modes
    assert api.attachments.show(reads).attach_mode == "ro"


@test
def only_shareable_volumes_are_shared():
    api = cinder()
    of = volume(api)
    attach(api, of, "node1")
    refused(exceptions.BadRequest, lambda: api.attachments.create(of.id, None))


@test
def no_auth():
    fleet = Fleet("noauth")
    auth = noauth.CinderNoAuthPlugin("somebody", fleet.project(), endpoint=fleet.endpoint())
    api = client.Client("3.60", session=session.Session(auth=auth), endpoint_override=fleet.endpoint())
    made = volume(api, name="open")
    assert made.id in [seen.id for seen in api.volumes.list()]


@test
def detaching():
    api = cinder()
    of = volume(api)
    attach(api, of, "node1", server=str(uuid.uuid4()))
    api.volumes.begin_detaching(of.id)
    assert api.volumes.get(of.id).status == "detaching"
    api.volumes.roll_detaching(of.id)
    assert api.volumes.get(of.id).status == "in-use"


@test
def reserving():
    api = cinder()
    of = volume(api)
    api.volumes.reserve(of.id)
    assert api.volumes.get(of.id).status == "attaching"
    refused(exceptions.BadRequest, lambda: api.volumes.reserve(of.id))
    api.volumes.unreserve(of.id)
    assert api.volumes.get(of.id).status == "available"


@test
def legacy_attach():
    api = cinder()
    of, server = volume(api), str(uuid.uuid4())
    info = api.volumes.initialize_connection(of.id, connector("node1"))
    assert info["driver_volume_type"] == "iscsi" and info["data"]["target_iqn"], info
    api.volumes.attach(of.id, server, "/dev/vdb", mode="rw")
    assert api.volumes.get(of.id).status == "in-use"
    api.volumes.terminate_connection(of.id, connector("node1"))
    api.volumes.detach(of.id)
    assert api.volumes.get(of.id).status == "available"


@test
def force_detach():
    api = cinder()
    of = volume(api, shared_type(api))
    first, second = attach(api, of, "node1"), attach(api, of, "node2")
    # The client knows the action only without an attachment.
    api.volumes._action("os-force_detach", of.id, {"attachment_id": first})
    until("the cut", lambda: [each.id for each in api.attachments.list(search_opts={"volume_id": of.id})] == [second])


@test
def flags():
    api = cinder()
    of = volume(api)
    api.volumes.set_bootable(of.id, True)
    assert api.volumes.get(of.id).bootable == "true"
    api.volumes.update_readonly_flag(of.id, True)
    assert api.volumes.get(of.id).metadata["readonly"] == "True"
    attached = attach(api, of, "node1")
    assert api.attachments.show(attached).connection_info["access_mode"] == "ro"


@test
def reset_status():
    api = cinder()
    of = volume(api)
    api.volumes.reset_state(of.id, "error")
    assert api.volumes.get(of.id).status == "error"
    api.volumes.reset_state(of.id, "available")
    assert api.volumes.get(of.id).status == "available"


@test
def retype():
    api = cinder()
    of, kind = volume(api), shared_type(api)
    api.volumes.retype(of.id, kind.name, "never")
    until("the new type", lambda: api.volumes.get(of.id).volume_type == kind.name)
    assert api.volumes.get(of.id).multiattach is True
    attach(api, of, "node1")
    refused(exceptions.BadRequest, lambda: api.volumes.retype(of.id, "__DEFAULT__", "never"))


@test
def limits():
    absolute = {each.name: each.value for each in cinder().limits.get().absolute}
    assert {"maxTotalVolumes", "totalVolumesUsed", "maxTotalVolumeGigabytes"} <= set(absolute), absolute


@test
def services():
    api = cinder()
    seen = api.services.list(binary="cinder-volume")
    assert seen and all(each.state == "up" for each in seen)
    host = seen[0].host
    api.services.disable_log_reason(host, "cinder-volume", "for a test")
    assert api.services.list(host=host)[0].disabled_reason == "for a test"
    api.services.enable(host, "cinder-volume")
    assert api.services.list(host=host)[0].status == "enabled"


@test
def pools():
    api = cinder()
    seen = api.pools.list(detailed=True)
    assert seen and all(each.multiattach for each in seen)
    assert api.capabilities.get(seen[0].name.split("#")[0]).storage_protocol


@test
def quotas():
    api = cinder()
    assert api.quotas.get(FLEET.project(), usage=True).volumes["in_use"] >= 0
    api.quotas.update(FLEET.project(), volumes=1000)
    assert api.quotas.get(FLEET.project()).volumes == 1000
    api.quotas.delete(FLEET.project())
    assert api.quotas.get(FLEET.project()).volumes == api.quotas.defaults(FLEET.project()).volumes


@test
def messages():
    assert isinstance(cinder().messages.list(), list)


@test
def zones():
    api = cinder()
    assert [zone.zoneName for zone in api.availability_zones.list()] == ["nova"]


@test
def type_access():
    api = cinder()
    made = api.volume_types.create(f"private-{uuid.uuid4()}", is_public=False)
    member = cinder(who="stranger")
    refused(exceptions.NotFound, lambda: member.volume_types.get(made.id))
    project = FLEET.project("stranger")
    api.volume_type_access.add_project_access(made.id, project)
    assert member.volume_types.get(made.id).id == made.id
    assert [each.project_id for each in api.volume_type_access.list(made.id)] == [project]
    api.volume_type_access.remove_project_access(made.id, project)
    refused(exceptions.NotFound, lambda: member.volume_types.get(made.id))


@test
def summary():
    seen = cinder().volumes.summary(all_tenants=True)
    assert seen["volume-summary"]["total_count"] >= 0


@test
def extending():
    api = cinder("3.69")
    of = volume(api)
    api.volumes.extend(of.id, 2)
    until("the new size", lambda: api.volumes.get(of.id).size == 2)
    assert api.volumes.get(of.id).status == "available"
    refused(exceptions.BadRequest, lambda: api.volumes.extend(of.id, 2))


@test
def snapshots_and_what_is_made_from_them():
    api = cinder("3.66")
    kind = api.volume_types.create(f"thin-{uuid.uuid4()}")
    kind.set_keys({"provisioning:type": "thin"})
    of = volume(api, kind)
    taken = api.volume_snapshots.create(of.id, name="before", metadata={"a": "b"})
    until("a snapshot", lambda: api.volume_snapshots.get(taken.id).status == "available")
    shown = api.volume_snapshots.list(search_opts={"volume_id": of.id})
    assert [(one.id, one.name, one.size, one.metadata) for one in shown] == [(taken.id, "before", 1, {"a": "b"})]
    copy = volume(api, snapshot_id=taken.id)
    clone = volume(api, source_volid=of.id)
    assert (copy.snapshot_id, clone.source_volid) == (taken.id, of.id), (copy, clone)
    assert copy.volume_type == of.volume_type == clone.volume_type, copy.volume_type
    refused(exceptions.BadRequest, lambda: api.volumes.delete(of.id))
    api.volume_snapshots.update(taken.id, name="other")
    assert api.volume_snapshots.get(taken.id).name == "other"
    api.volume_snapshots.delete(taken.id)
    until("its end", lambda: not api.volume_snapshots.list(search_opts={"volume_id": of.id}))
    thick = api.volume_types.create(f"thick-{uuid.uuid4()}")
    thick.set_keys({"provisioning:type": "thick"})
    solid = volume(api, thick)
    refused(exceptions.BadRequest, lambda: api.volume_snapshots.create(solid.id))
    for one in (of, copy, clone, solid):
        api.volumes.delete(one.id)


@test
def what_is_not_there_says_so():
    api = cinder("3.69")
    of = volume(api)
    for call in [
        lambda: api.volumes.upload_to_image(of.id, False, "i", "bare", "raw", "private", False),
        lambda: api.volumes.migrate_volume(of.id, "s2@lvm#vg0", False, False),
        lambda: api.transfers.create(of.id),
        lambda: api.backups.create(of.id),
        lambda: api.qos_specs.create("q", {}),
        lambda: api.groups.create("g", "t"),
    ]:
        try:
            call()
        except exceptions.ClientException as refusal:
            assert refusal.code == 501, refusal
        else:
            raise AssertionError("something was pretended")
    assert api.volumes.get(of.id).status == "available"


main("cinder", LATER)
