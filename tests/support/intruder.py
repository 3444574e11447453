"""Another user's process on the same machine, and everything that it can get out of a running command.

It runs from its source text with only the standard library, and prints one JSON object: the bytes that it got, in
base64, by where it got them. Its arguments are JSON: the processes, their ports, and folders to search. It talks to
ports in Spark's protocol: frames of a length, a kind and a body; a block is requested with OpenBlocks, then by chunk.
"""

import base64
import json
import os
import socket
import struct
import sys
from collections.abc import Sequence

SECONDS, SILENCE = 1.5, b"timed out"
CHUNK, CHUNK_IS, REQUEST, ANSWER = 0, 1, 3, 4
BLOCKS = [f"broadcast_{n}{part}" for n in range(8) for part in ("_piece0", "")] + ["taskresult_0", "rdd_0_0"]
# An endpoint's address and name, which Spark's RPC puts before a serialized object; here garbage follows.
CALL = (
    b"\x00"
    + b"\x01"
    + b"\x00\x09127.0.0.1"
    + struct.pack("!i", 1)
    + b"\x00\x10MapOutputTracker"
    + b"no object"
)


def text(word: str) -> bytes:
    return struct.pack("!i", len(word)) + word.encode()


def request(body: bytes) -> bytes:
    """One RPC in Spark's transport."""
    message = struct.pack("!bqi", REQUEST, 7, len(body)) + body
    return struct.pack("!q", 8 + len(message)) + message


def frame(link: socket.socket) -> bytes:
    size = struct.unpack("!q", exactly(link, 8))[0] - 8
    return exactly(link, size) if 0 < size < 1 << 27 else b""


def exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def asked(port: int, word: bytes) -> bytes:
    """What a port answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), SECONDS) as link:
            link.sendall(word)
            return link.recv(1 << 20)
    except OSError as error:
        return str(error).encode()


def block(port: int, name: str) -> bytes:
    """Fetch a Spark block the way an executor does."""
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


def read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 22)
    except OSError:
        return None


def main(processes: Sequence[int], ports: Sequence[int], folders: Sequence[str]) -> dict[str, str]:
    found: dict[str, bytes | None] = {}
    for port in ports:
        found[f"{port} HTTP"] = asked(port, b"GET /environment/ HTTP/1.0\r\n\r\n")
        found[f"{port} Py4J"] = asked(port, b"c\nz:java.lang.System\ngetenv\ne\n")
        found[f"{port} call"] = asked(port, request(CALL))
        for name in BLOCKS:
            found[f"{port} {name}"] = said = block(port, name)
            if said == SILENCE:
                break  # not one of Spark's ports
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
