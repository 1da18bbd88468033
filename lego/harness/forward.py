"""Runs inside the sandbox: a TCP port before the proxy's unix socket, then the harness itself.

    forward.py PORT SOCKET COMMAND…

The port is listening before the command starts. The command takes this process's place, so that its exit is the
sandbox's exit; the forwarder lives in a child until the sandbox ends. Standard library only, started with -S -I.
"""

import contextlib
import os
import socket
import sys
import threading


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy one direction until it ends, and pass the end on."""
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        # A reset on one side must reach the other at once: it is how the proxy learns that the harness hung up.
        end(source, socket.SHUT_RDWR)
        end(sink, socket.SHUT_RDWR)
    else:
        end(sink, socket.SHUT_WR)


def end(connection: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(how)


def serve(listener: socket.socket, path: str) -> None:
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(path)
        except OSError:
            client.close()
            continue
        threading.Thread(target=pump, args=(client, upstream), daemon=True).start()
        threading.Thread(target=pump, args=(upstream, client), daemon=True).start()


def main(port: str, path: str, *command: str) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(port)))
    listener.listen(64)
    if os.fork() == 0:
        os.setsid()
        # The container's output must end with the harness, not with the forwarder.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        serve(listener, path)
    listener.close()
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
