"""Health check of the container image: exit code 0 while the exporter answers ``/-/healthy`` with 200.

Plain sockets and no import beside them: it runs every few seconds and must not cost what it watches.
``VLLMETER_HEALTH`` = HOST:PORT/PATH of another address (default 127.0.0.1:9877/-/healthy), for containers that run
another command of the image, such as ``replay``.
"""

import os
import socket
import sys


def main() -> int:
    """0 when the answer is 200; otherwise 1, and why on standard output."""
    address, _, path = os.environ.get("VLLMETER_HEALTH", "127.0.0.1:9877/-/healthy").partition("/")
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=3) as connection:
            connection.sendall(f"GET /{path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
            answer = b""
            while len(answer) < 4096 and (piece := connection.recv(4096)):
                answer += piece
    except (OSError, ValueError) as error:
        sys.stdout.write(f"{address}: {error}\n")
        return 1
    words = answer.split(None, 2)
    if words[1:2] == [b"200"]:
        return 0
    said = answer.partition(b"\r\n\r\n")[2].decode("utf-8", "replace").strip()
    sys.stdout.write(said or f"{address}: no HTTP answer")
    return 1


if __name__ == "__main__":
    sys.exit(main())
