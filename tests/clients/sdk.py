"""openstacksdk's workflows against a controller with agents on fake hosts."""

import uuid

import openstack
from openstack import exceptions

from harness import Fleet, connector, main, refused, test, until

# Tests of what the controller does not have yet, each with what is missing.
LATER = {}

FLEET = Fleet("tokens")


def storage(who="admin", fleet=FLEET, version="3.60"):
    """The block storage part of a connection that asks no catalogue."""
    endpoint = fleet.endpoint(who)
    cloud = openstack.connect(
        auth_type="admin_token", auth={"endpoint": endpoint, "token": fleet.token(who)},
        block_storage_endpoint_override=endpoint, block_storage_default_microversion=version)
    return cloud.block_storage


def shared_type(api):
    """A type whose volumes may be shared."""
    made = api.create_type(name=f"shared-{uuid.uuid4()}")
    return api.update_type_extra_specs(made, multiattach="<is> True")


def volume(api, kind=None, **more):
    """A volume that is available."""
    made = api.create_volume(size=1, volume_type=kind.id if kind else None, **more)
    return api.wait_for_status(made, status="available", failures=["error"], interval=0.05, wait=30)


@test
def volumes():
    api, name = storage("member"), f"two-{uuid.uuid4()}"
    made = volume(api, name="one", description="first", metadata={"a": "b"})
    assert (made.name, made.size, made.metadata, made.is_multiattach) == ("one", 1, {"a": "b"}, False)
    api.update_volume(made, name=name)
    api.set_volume_metadata(made, c="d")
    api.delete_volume_metadata(made.id, keys=["a"])
    seen = api.get_volume(made.id)
    assert (seen.name, seen.metadata) == (name, {"c": "d"})
    assert api.find_volume(name).id == made.id
    assert made.id in [each.id for each in api.volumes(details=False)]
    refused(exceptions.NotFoundException, lambda: storage("stranger").get_volume(made.id))
    api.delete_volume(made.id)
    api.wait_for_delete(made, interval=0.05, wait=30)


@test
def lists_and_filters():
    api, word = storage("member"), uuid.uuid4().hex
    made = [volume(api, name=f"{word}-{n}").id for n in range(3)]
    assert [each.id for each in api.volumes(name=f"{word}-1")] == made[1:2]
    # In pages of two: the client follows the links.
    assert {each.id for each in api.volumes(limit=2)} >= set(made)
    assert {each.id for each in storage().volumes(all_projects=True, limit=2)} >= set(made)


@test
def types():
    api = storage()
    made = shared_type(api)
    assert api.get_type(made.id).extra_specs == {"multiattach": "<is> True"}
    assert api.find_type(api.get_type(made.id).name).id == made.id
    api.update_type_extra_specs(made, **{"capabilities:x": "y"})
    api.delete_type_extra_specs(made, ["capabilities:x"])
    assert api.get_type(made.id).extra_specs == {"multiattach": "<is> True"}
    mine = [each for each in storage("member").types() if each.id == made.id]
    assert mine[0].extra_specs == {"multiattach": "<is> True"}
    refused(exceptions.ForbiddenException, lambda: storage("member").create_type(name="mine"))
    api.delete_type(made.id)
    refused(exceptions.NotFoundException, lambda: api.get_type(made.id))


@test
def attachments():
    admin, api = storage(), storage("member")
    of, server = volume(api, shared_type(admin)), str(uuid.uuid4())
    made = api.create_attachment(of.id, connector=connector("node1"), instance=server, mode="ro")
    assert made.connection_info["access_mode"] == "ro" and made.instance == server, made
    api.complete_attachment(made.id)
    reserved = api.create_attachment(of.id, connector={}, instance=str(uuid.uuid4()))
    assert reserved.status == "reserved"
    updated = api.update_attachment(reserved.id, connector=connector("node2"))
    assert updated.connection_info["access_mode"] == "rw", updated
    api.complete_attachment(reserved.id)
    assert {each.id for each in api.attachments(volume_id=of.id)} == {made.id, reserved.id}
    assert api.get_attachment(made.id).status == "attached"
    assert api.get_volume(of.id).status == "in-use"
    assert len(api.get_volume(of.id).attachments) == 2
    for each in (made, reserved):
        api.delete_attachment(each.id)
    assert api.get_volume(of.id).status == "available"


@test
def only_shareable_volumes_are_shared():
    api = storage()
    of = volume(api)
    api.create_attachment(of.id, connector=connector("node1"), instance=str(uuid.uuid4()))
    again = lambda: api.create_attachment(of.id, connector=connector("node2"), instance=str(uuid.uuid4()))
    refused(exceptions.BadRequestException, again)


@test
def without_auth():
    fleet = Fleet("noauth")
    cloud = openstack.connect(auth_type="none", auth={"endpoint": fleet.endpoint()},
                              block_storage_endpoint_override=fleet.endpoint())
    made = volume(cloud.block_storage, name="open")
    assert made.id in [each.id for each in cloud.block_storage.volumes()]


@test
def actions():
    api = storage()
    of = volume(api)
    api.set_volume_bootable_status(of, True)
    api.set_volume_readonly(of, True)
    seen = api.get_volume(of.id)
    assert seen.is_bootable and seen.metadata["readonly"] == "True", seen
    api.reset_volume_status(of, "error", None, None)
    assert api.get_volume(of.id).status == "error"
    api.reset_volume_status(of, "available", None, None)
    # The answer to a change of specs has no name.
    name = api.get_type(shared_type(api).id).name
    api.retype_volume(of, name)
    assert (api.get_volume(of.id).volume_type, api.get_volume(of.id).is_multiattach) == (name, True)


@test
def extending():
    api = storage()
    of = volume(api)
    api.extend_volume(of, 2)
    until("the new size", lambda: api.get_volume(of.id).size == 2)
    assert api.get_volume(of.id).status == "available"


@test
def limits():
    seen = storage().get_limits()
    assert seen.absolute.max_total_volumes is not None and seen.absolute.total_volumes_used is not None, seen


@test
def services():
    assert all(each.state == "up" for each in storage().services(binary="cinder-volume"))


@test
def pools_and_capabilities():
    api = storage()
    pools = list(api.backend_pools())
    assert pools and all(pool.capabilities["multiattach"] for pool in pools)
    assert api.get_capabilities(pools[0].name.split("#")[0]).storage_protocol


@test
def quotas():
    api, project = storage(), FLEET.project()
    assert api.get_quota_set(project).volumes is not None
    api.update_quota_set(project, volumes=1000)
    assert api.get_quota_set(project).volumes == 1000
    api.revert_quota_set(project)
    assert api.get_quota_set(project).volumes == api.get_quota_set_defaults(project).volumes


@test
def zones_and_extensions():
    api = storage()
    assert [zone.name for zone in api.availability_zones()] == ["nova"]
    assert isinstance(list(api.extensions()), list)


@test
def type_access():
    api = storage()
    made = api.create_type(name=f"private-{uuid.uuid4()}", is_public=False)
    project = FLEET.project("stranger")
    refused(exceptions.NotFoundException, lambda: storage("stranger").get_type(made.id))
    api.add_type_access(made, project)
    assert storage("stranger").get_type(made.id).id == made.id
    api.remove_type_access(made, project)
    refused(exceptions.NotFoundException, lambda: storage("stranger").get_type(made.id))


main("sdk", LATER)
