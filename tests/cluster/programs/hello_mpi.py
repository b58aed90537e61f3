"""As programs of MPI begin, without torch: who am I, and is everyone there? By RANK and sockets."""

import os
import socket
import sys
import time

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])


def reach(address):
    while True:
        try:
            return socket.create_connection(address, timeout=600)
        except ConnectionRefusedError:
            time.sleep(0.05)


def main():
    if sys.argv[1:] == ["--fail", str(RANK)]:
        raise ValueError("sample 17 is empty")
    port = int(os.environ["MASTER_PORT"])
    if RANK == 0:
        server = socket.create_server(("", port), family=socket.AF_INET, backlog=SIZE)
        server.settimeout(600)
        names = [(0, socket.gethostname())]
        for _ in range(SIZE - 1):
            with server.accept()[0] as peer, peer.makefile() as text:
                rank, name = text.readline().split()
                names.append((int(rank), name))
        for rank, name in sorted(names):
            print(f"Hello world from process {rank} of {SIZE} on {name}")
    else:
        with reach((os.environ["MASTER_ADDR"], port)) as root:
            root.sendall(f"{RANK} {socket.gethostname()}\n".encode())


if __name__ == "__main__":
    main()
