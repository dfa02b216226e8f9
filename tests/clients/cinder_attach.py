"""One call of python-cinderclient against a controller, for the tests: prints its answer as JSON.

    cinder_attach.py URL TOKEN create VOLUME INITIATOR HOST MODE [SERVER]   reserve, connect, complete: as Nova does
    cinder_attach.py URL TOKEN connect VOLUME CONNECTOR MODE       the same with a whole connector, as JSON
    cinder_attach.py URL TOKEN retype VOLUME TYPE
    cinder_attach.py URL TOKEN delete ATTACHMENT
    cinder_attach.py URL TOKEN release ATTACHMENT                  the same as a service, which may do it under a session
    cinder_attach.py URL TOKEN show VOLUME
"""

import json
import sys

from cinderclient import client
from keystoneauth1 import session, token_endpoint

# 3.54 brought the mode of an attachment.
MICROVERSION = "3.54"


def create(cinder, volume, initiator, host, mode, server=None):
    connector = {"initiator": initiator, "host": host, "ip": "10.10.0.12", "multipath": False,
                 "os_type": "linux", "platform": "x86_64", "mountpoint": "/dev/vdb"}
    return connect(cinder, volume, json.dumps(connector), mode, server)


def connect(cinder, volume, connector, mode, server=None):
    """Reserves, gives the connector, completes; the connection info is what a host logs in with."""
    made = cinder.attachments.create(volume, None, server, mode=mode)
    made = made["id"] if isinstance(made, dict) else made.id
    cinder.attachments.update(made, json.loads(connector))
    cinder.attachments.complete(made)
    return cinder.attachments.show(made).to_dict()


def main():
    url, token, what, *rest = sys.argv[1:]
    auth = token_endpoint.Token(url, token)
    headers = {"X-Service-Token": token} if what == "release" else {}
    own = session.Session(auth=auth, additional_headers=headers)
    cinder = client.Client(MICROVERSION, session=own, endpoint_override=url)
    if what == "create":
        answer = create(cinder, *rest)
    elif what == "connect":
        answer = connect(cinder, *rest)
    elif what == "retype":
        cinder.volumes.retype(rest[0], rest[1], "never")
        answer = {}
    elif what in ("delete", "release"):
        cinder.attachments.delete(rest[0])
        answer = {}
    else:
        answer = cinder.volumes.get(rest[0]).to_dict()
    json.dump(answer, sys.stdout, default=str)
    print()


main()
