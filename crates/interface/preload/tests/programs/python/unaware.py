"""What the standard library does with sockets, processes and threads."""

import asyncio
import multiprocessing
import select
import selectors
import socket
import subprocess
import threading


async def echo() -> bytes:
    async def serve(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"line\n")
    line = await reader.readline()
    writer.close()
    server.close()
    process = await asyncio.create_subprocess_exec("echo", "child", stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    return line + output


def square(number: int) -> int:
    return number * number


def main() -> None:
    print(asyncio.run(echo()))
    print(subprocess.run(["sh", "-c", "echo shell; exit 3"], capture_output=True).returncode)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(square, range(10)))
    left, right = socket.socketpair()
    for kind in (selectors.SelectSelector, selectors.PollSelector, selectors.EpollSelector):
        with kind() as selector:
            selector.register(right, selectors.EVENT_READ)
            assert selector.select(0) == []
            left.send(b"x")
            print(kind.__name__, len(selector.select()), right.recv(1))
    socket.send_fds(left, [b"fd"], [0])
    print(len(socket.recv_fds(right, 2, 1)[1]))
    datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    datagrams.bind(("::1", 0))
    threads = [threading.Thread(target=datagrams.sendto, args=(b"d", datagrams.getsockname())) for _ in range(20)]
    for thread in threads:
        thread.start()
    print(sum(len(datagrams.recv(10)) for _ in threads))
    try:
        datagrams.recv(1, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    except BlockingIOError:
        print("no errors")
    try:
        control = [(socket.SOL_SOCKET, 61, bytes(8))]
        datagrams.sendmsg([b"x"], control, 0, datagrams.getsockname())
    except OSError as error:
        print(error)
    print(select.select([left], [left], [], 0)[1] == [left])


main()
