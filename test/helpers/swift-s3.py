"""
A server that speaks S3 in earnest: OpenStack Swift with its s3api (Debian: python3-swift), all four of its servers in this
process. Arguments: an empty folder, the address to listen on, an access key, a secret key. Prints its port, and runs until its
standard input ends.
"""
import os
import sys

import eventlet
import eventlet.tpool
import eventlet.wsgi

eventlet.monkey_patch()

from swift.common import storage_policy, utils  # noqa: E402
from swift.common.ring import RingBuilder  # noqa: E402

folder, host, access, secret = sys.argv[1:]


def write(name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    return path


swift_conf = write(
    "swift.conf",
    "[swift-hash]\nswift_hash_path_suffix = of-tests\nswift_hash_path_prefix = of-tests\n[storage-policy:0]\nname = all\ndefault = yes\n",
)
utils.SWIFT_CONF_FILE = swift_conf
storage_policy.SWIFT_CONF_FILE = swift_conf
utils.validate_hash_conf()
storage_policy.reload_storage_policies()

os.makedirs(os.path.join(folder, "devices", "d1"))
kinds = ("account", "container", "object")
listeners = {kind: eventlet.listen(("127.0.0.1", 0)) for kind in kinds}
for kind, listener in listeners.items():
    builder = RingBuilder(2, 1, 0)
    place = {"ip": "127.0.0.1", "port": listener.getsockname()[1], "device": "d1"}
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "weight": 1, "meta": "", **place})
    builder.rebalance()
    builder.get_ring().save(os.path.join(folder, f"{kind}.ring.gz"))

from swift.account.server import AccountController  # noqa: E402
from swift.common.wsgi import loadapp  # noqa: E402
from swift.container.server import ContainerController  # noqa: E402
from swift.obj.server import ObjectController  # noqa: E402

storage = {"devices": os.path.join(folder, "devices"), "mount_check": "false", "swift_dir": folder}
servers = {"account": AccountController, "container": ContainerController, "object": ObjectController}
for kind, server in servers.items():
    eventlet.spawn(eventlet.wsgi.server, listeners[kind], server(storage), open(os.devnull, "w"))

# Account and user: "skein:tests" is user_skein_tests.
user = access.replace(":", "_")
proxy = write(
    "proxy-server.conf",
    f"""[DEFAULT]
swift_dir = {folder}
[pipeline:main]
pipeline = catch_errors cache s3api tempauth proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_{user} = {secret} .admin
""",
)
listener = eventlet.listen((host, 0))
app = loadapp(proxy, global_conf={"log_name": "swift"})
eventlet.spawn(eventlet.wsgi.server, listener, app, open(os.devnull, "w"))
print(listener.getsockname()[1], flush=True)
eventlet.tpool.execute(sys.__stdin__.buffer.raw.read)
os._exit(0)
