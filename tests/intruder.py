"""A process of somebody else on the same machine, and all that it can get of a running command.

It runs from its text, with nothing but Python's own library, and prints one JSON object: bytes that it was given, by
where it got them, in base64. Its arguments are JSON: the processes, their ports, and folders to look into. With ports it
speaks Spark's protocol: frames of a length, a kind and a body; a block is asked for by OpenBlocks and then chunk by chunk.
"""

import base64
import json
import os
import socket
import struct
import sys

SECONDS, SILENCE = 1.5, b"timed out"
CHUNK, CHUNK_IS, REQUEST, ANSWER = 0, 1, 3, 4
BLOCKS = [f"broadcast_{n}{part}" for n in range(8) for part in ("_piece0", "")] + ["taskresult_0", "rdd_0_0"]
# An endpoint's address and name, as Spark's RPC has them before a serialized object; the object is no object.
CALL = (
    b"\x00"
    + b"\x01"
    + b"\x00\x09127.0.0.1"
    + struct.pack("!i", 1)
    + b"\x00\x10MapOutputTracker"
    + b"no object"
)


def text(word):
    return struct.pack("!i", len(word)) + word.encode()


def request(body):
    """One RPC of Spark's transport."""
    message = struct.pack("!bqi", REQUEST, 7, len(body)) + body
    return struct.pack("!q", 8 + len(message)) + message


def frame(link):
    size = struct.unpack("!q", exactly(link, 8))[0] - 8
    return exactly(link, size) if 0 < size < 1 << 27 else b""


def exactly(link, size):
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def asked(port, word):
    """What a port answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), SECONDS) as link:
            link.sendall(word)
            return link.recv(1 << 20)
    except OSError as error:
        return str(error).encode()


def block(port, name):
    """A block of Spark's, by the way that an executor fetches it."""
    said = b""
    try:
        with socket.create_connection(("127.0.0.1", port), SECONDS) as link:
            link.sendall(request(b"\x00" + text("app") + text("0") + struct.pack("!i", 1) + text(name)))
            answer = frame(link)
            said += answer
            if answer[:1] == bytes([ANSWER]):
                stream = struct.unpack("!q", answer[14:22])[0]
                link.sendall(struct.pack("!qbqi", 21, CHUNK, stream, 0))
                chunk = frame(link)
                said += chunk
                if chunk[:1] == bytes([CHUNK_IS]):
                    return b"FETCHED " + chunk
    except (OSError, EOFError, struct.error) as error:
        said += str(error).encode()
    return said


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read(1 << 22)
    except OSError:
        return None


def main(processes, ports, folders):
    found = {}
    for port in ports:
        found[f"{port} HTTP"] = asked(port, b"GET /environment/ HTTP/1.0\r\n\r\n")
        found[f"{port} Py4J"] = asked(port, b"c\nz:java.lang.System\ngetenv\ne\n")
        found[f"{port} call"] = asked(port, request(CALL))
        for name in BLOCKS:
            found[f"{port} {name}"] = said = block(port, name)
            if said == SILENCE:
                break  # not a port of Spark's
    for process in processes:
        for name in ("cmdline", "environ", "maps"):
            found[f"/proc/{process}/{name}"] = read(f"/proc/{process}/{name}")
        for number in range(64):
            link = f"/proc/{process}/fd/{number}"
            if os.path.isfile(link):
                found[link] = read(link)
    for folder in folders:
        for place, _, names in os.walk(folder):
            found |= {os.path.join(place, name): read(os.path.join(place, name)) for name in names}
    return {place: base64.b64encode(data).decode() for place, data in found.items() if data}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
