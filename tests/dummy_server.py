"""A server that is slow to start and to stop, with a family that does not notice its end.

A child in its process group and a grandchild in a session of its own ignore SIGTERM and inherit
every descriptor. It answers each request with its server id, and imports little to start soon.
"""

import argparse
import os
import signal
import socket
import sys
import time


def _family() -> None:
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
        while True:
            time.sleep(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--start-s", type=float, default=1.0)
    parser.add_argument("--stop-s", type=float, default=0.5)
    parser.add_argument("--exit-code", type=int, help="end with this code instead of starting")
    parser.add_argument("--deaf", action="store_true", help="never listen")
    parser.add_argument("--status", default="200 OK", help="status of each answer")
    arguments = parser.parse_args()

    def stop(*_: object) -> None:
        print("dummy: asked to stop", flush=True)
        time.sleep(arguments.stop_s)
        print("dummy: stopped", flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    _family()
    print("dummy: loading", flush=True)
    time.sleep(arguments.start_s)
    if arguments.exit_code is not None:
        print("dummy: I do not feel well", flush=True)
        sys.exit(arguments.exit_code)
    if arguments.deaf:
        signal.pause()
    body = os.environ.get("LEVERBENCH_SERVER", "").rpartition("/")[2]
    with socket.create_server(("127.0.0.1", arguments.port)) as listener:
        print("dummy: ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                head = f"HTTP/1.0 {arguments.status}\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall((head + body).encode())


if __name__ == "__main__":
    main()
