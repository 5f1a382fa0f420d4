# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

"""Serves a cluster of fakepve (https://github.com/qisback/fakepve) until its input ends.

It prints its address and the SHA-256 of its certificate. Arguments: the user of the API token, its
secret, and the privileges of the token, each as PATH=NAME,NAME.
"""

import asyncio
import hashlib
import sys
import tempfile

from fakepve import FakePve
from fakepve.certs import make_cert

GIB = 1024**3


async def main(user, secret, *privileges):
    pve = FakePve(host="127.0.0.1", port=0)
    # A hundredth of a second for each second.
    pve.time_scale = 0.01
    pve.add_node("pve2")
    pve.add_ceph_storage("ceph")
    disks = pve.storages["ceph"].setdefault("volumes", {})
    for vmid, node in (9000, "pve1"), (9001, "pve2"):
        disk = f"base-{vmid}-disk-0"
        disks[disk] = {"content": "images", "format": "raw", "size": 4 * GIB, "vmid": vmid}
        pve.add_vm(vmid, "debian", node=node, template=True, config={
            "template": 1, "memory": "512", "boot": "order=scsi0", "tags": "golden", "scsi0": f"ceph:{disk},size=4G",
        })
    pve.apitokens[user] = secret
    for privilege in privileges:
        path, names = privilege.split("=")
        pve.grant(user, path, *names.split(","))
    with tempfile.TemporaryDirectory() as folder:
        certificate, key, der = make_cert(folder)
        await pve.start(certificate, key)
    print(pve.url, hashlib.sha256(der).hexdigest(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await pve.stop()


asyncio.run(main(*sys.argv[1:]))
