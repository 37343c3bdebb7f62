"""A web server with workers forked in advance, as gunicorn has them: `server.py WORKERS RUNS_BEFORE_THE_FORK`.

It prints its port. Each `POST /` is a run in one of the workers, and the answer is what the run was billed. SIGTERM to
the parent goes on to the workers, which have no handler of their own, and ends all.
"""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import FrameType

from tests.scripted import Truth
from tests.stack.programs_under_test.common import one_run, tell


class Run(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        truth = Truth()
        one_run(truth)
        answer = {"input": truth.input_tokens, "output": truth.output_tokens, "calls": truth.calls, "runs": 1}
        body = json.dumps({**answer}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def main(workers: int, before: int) -> None:
    truth = Truth()
    for _ in range(before):
        one_run(truth)
    tell(truth)
    server = HTTPServer(("127.0.0.1", 0), Run)
    children = []
    for _ in range(workers):
        child = os.fork()
        if child == 0:
            server.serve_forever()
        children.append(child)

    def stop(number: int, frame: FrameType | None) -> None:
        for child in children:
            os.kill(child, signal.SIGTERM)
        for child in children:
            os.waitpid(child, 0)
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    print(server.server_port, flush=True)
    while True:
        time.sleep(1)  # not `signal.pause()`: a signal that comes just before it would be slept over


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
