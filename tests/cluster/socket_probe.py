"""Ranks of `cluster run --launcher torch` over plain sockets: nothing crosses the network but what is said here.

usage: socket_probe.py where                 every rank prints what it was told and where it is
       socket_probe.py to_first BYTES R..    ranks R.. each send BYTES to rank 0 at once, which prints how long that took
       socket_probe.py from_first BYTES R..  the other way
"""

import json
import os
import socket
import sys
import threading
import time

NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "EXTRA"]
ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def where():
    told = {name: os.environ.get(name) for name in NAMES}
    # One write: lines of ranks must not mix.
    os.write(1, (json.dumps({"host": socket.gethostname(), "tmpdir_is_empty": os.listdir(os.environ["TMPDIR"]) == [],
                             **told}) + "\n").encode())


def connected():
    for _ in range(1000):
        try:
            return socket.create_connection(ADDRESS)
        except ConnectionRefusedError:  # rank 0 is not there yet
            time.sleep(0.01)
    raise TimeoutError(f"nobody listens at {ADDRESS}")


def receive(peer, count):
    while count > 0:
        got = len(peer.recv(min(count, 1 << 16)))
        if got == 0:
            raise EOFError(f"{count} bytes have not come")
        count -= got


def exchange(peer, count, sends):
    """One end sends `count` bytes and waits for the answer that all are there."""
    if sends:
        peer.sendall(bytes(count))
        receive(peer, 1)
    else:
        receive(peer, count)
        peer.sendall(b"!")


def first(count, num_peers, sends):
    with socket.create_server(ADDRESS) as server:
        peers = [server.accept()[0] for _ in range(num_peers)]
    algorithm = peers[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
    # At once, each in its thread: one after the other would never fill a link twice.
    threads = [threading.Thread(target=exchange, args=(peer, count, sends)) for peer in peers]
    begin = time.monotonic()
    for peer in peers:
        peer.sendall(b"?")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"seconds": time.monotonic() - begin, "congestion_control": algorithm}))


def other(count, sends):
    with connected() as peer:
        receive(peer, 1)
        exchange(peer, count, sends)


if __name__ == "__main__":
    mode, *numbers = sys.argv[1:]
    if mode == "where":
        where()
    else:
        count, *others = [int(number) for number in numbers]
        rank = int(os.environ["RANK"])
        if rank == 0:
            first(count, len(others), sends=mode == "from_first")
        elif rank in others:
            other(count, sends=mode == "to_first")
