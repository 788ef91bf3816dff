#!/usr/bin/env python3
"""What `coppice serve` costs around a model: streams of meaningless tokens (--null), read as fast as they come.

Starts the server on a free port, opens --streams connections, and sends each a streaming completion of --tokens tokens at the same moment.
Tokens are counted as the `data:` lines that came, less [DONE]. Prints tokens a second, CPU time a token of the server (its user
and system time, from /proc) and of this client, and the time to the first token.
"""

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coppice", default="build/release/coppice")
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()

    command = [args.coppice, "serve", "--null", "--model", args.model, "--port", "0", "--max-running", str(args.streams)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": args.tokens, "ignore_eos": True, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        selector = selectors.DefaultSelector()
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(args.streams)]
        cpu = cpu_seconds(server.pid), time.process_time()
        begin = time.monotonic()
        events, first, sent = 0, [], {}
        for connection in connections:
            sent[connection] = time.monotonic()
            connection.sendall(head.encode() + body)
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = key.fileobj.recv(1 << 16)
                count = data.count(b"data: ")
                if count and key.fileobj in sent:
                    first.append(time.monotonic() - sent.pop(key.fileobj))
                events += count
                if not data:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
        seconds = time.monotonic() - begin
        server_cpu, client_cpu = cpu_seconds(server.pid) - cpu[0], time.process_time() - cpu[1]
        server.terminate()
    tokens = args.streams * args.tokens
    if sent or events < tokens // 2:
        sys.exit(f"server_overhead: {len(sent)} streams brought nothing, {events} events came for {tokens} tokens")
    print(
        f"{args.streams} streams of {args.tokens} tokens: {tokens / seconds:,.0f} tokens/s in {seconds:.2f} s, {events:,} events;"
        f" CPU a token: server {1e6 * server_cpu / tokens:.1f} us, client {1e6 * client_cpu / tokens:.1f} us;"
        f" first token after {1e3 * statistics.median(first):.1f} ms at the median"
    )


if __name__ == "__main__":
    main()
