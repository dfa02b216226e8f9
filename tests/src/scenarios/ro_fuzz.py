"""Sends commands by SG_IO, one for each line of standard input (number, direction, length, CDB, data), and says how they ended."""

import ctypes
import fcntl
import struct
import sys

SG_IO = 0x2285
WAYS = {"none": -1, "to": -2, "from": -3}
# struct sg_io_hdr (scsi/sg.h).
HEADER = "iiBBHIPPPIIiPBBBBHHiII"

counts = {"good": 0, "checked": 0, "others": 0, "not_sent": 0}
with open(sys.argv[1], "rb+", buffering=0) as disk:
    for line in sys.stdin:
        _, way, length, cdb, data = (line.rstrip("\n") + " ").split(" ")[:5]
        length, cdb = int(length), bytes.fromhex(cdb)
        buffer = ctypes.create_string_buffer(bytes.fromhex(data).ljust(length, b"\0"), length + 1)
        command = ctypes.create_string_buffer(cdb, len(cdb))
        sense = ctypes.create_string_buffer(32)
        if way == "none":
            length = 0
        header = struct.pack(
            HEADER, ord("S"), WAYS[way], len(cdb), 32, 0, length, ctypes.addressof(buffer), ctypes.addressof(command),
            ctypes.addressof(sense), 5000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        )
        header = bytearray(header)
        try:
            fcntl.ioctl(disk, SG_IO, header)
        except OSError:
            counts["not_sent"] += 1
            continue
        status = struct.unpack(HEADER, header)[13]
        counts["good" if status == 0 else "checked" if status == 2 else "others"] += 1
print(counts)
