"""Runs inside the sandbox: a TCP port before the proxy's unix socket, then the harness itself.

    forward.py PORT SOCKET COMMAND…

The port is listening before the command starts. The command takes this process's place, so that its exit is the
sandbox's exit; the forwarder lives in a child until the sandbox ends. Standard library only, started with -S -I.

Which program opened each connection is told to the proxy: it is the name that our end of the socket is bound to.
"""

import contextlib
import os
import socket
import sys
import threading

SAYS = b"\0lego "
"""How the name begins that a connection to the proxy is bound to; a number of its own and the program's path follow."""
_LONGEST = 108
"""Bytes of such a name."""


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


def socket_of(port: int, other: int) -> str:
    """The inode of the socket at `port` of a connection between two ports of this sandbox; "" if it is gone."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            for line in lines:
                fields = line.split()
                if fields[1].endswith(f":{port:04X}") and fields[2].endswith(f":{other:04X}"):
                    return fields[9]
    return ""


def program_of(inode: str) -> str:
    """The program of a process that holds a socket; "" if none can be seen."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(f"/proc/{process}/fd/{number}") == f"socket:[{inode}]":
                        return os.readlink(f"/proc/{process}/exe")
    return ""


def lead(client: socket.socket, port: int, path: str) -> None:
    """Connect a client with the proxy."""
    upstream = socket.socket(socket.AF_UNIX)
    # Without a name it is still connected, and the proxy knows no program.
    with contextlib.suppress(OSError):
        program = program_of(socket_of(client.getpeername()[1], port))
        if program:
            number = os.urandom(6).hex().encode()
            upstream.bind((SAYS + number + b" " + os.fsencode(program))[:_LONGEST])
    try:
        upstream.connect(path)
    except OSError:
        client.close()
        return
    threading.Thread(target=pump, args=(client, upstream), daemon=True).start()
    pump(upstream, client)


def serve(listener: socket.socket, path: str) -> None:
    port = listener.getsockname()[1]
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=lead, args=(client, port, path), daemon=True).start()


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
