"""A resident program: plays many rollouts in one process, so that none pays for an interpreter start.

Started by the harness (subprocess runtime only) with a control socket. Each message on it carries, in ancillary
data, one end of a private socket; a job with its working folder is read from there, played in a thread by the very
functions of `program.py`, and answered with an exit code. The end of the control socket ends the process.

A rollout that the harness gave up plays on until its next model call, which is refused (its secret is void by then).
"""

import json
import os
import socket
import sys
import threading
import traceback

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from glyph.executor import Executor, ExecutorError
from glyph.program import MAX_MESSAGE, Job, run_job

MAX_TESTS_AT_ONCE = 8


def serve(control: socket.socket, executor: Executor) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        connection = socket.socket(fileno=descriptors[0])
        threading.Thread(target=_answer, args=(connection, executor), daemon=True).start()


def _answer(connection: socket.socket, executor: Executor) -> None:
    try:
        with connection, connection.makefile("rw", encoding="utf-8") as stream:
            request = json.loads(stream.readline())
            try:
                code, message = run_job(Job(**request["job"]), request["folder"], executor)
            except Exception:  # a fault of the program, told to the harness as a crash of program.py would be
                code, message = 1, traceback.format_exc()[-MAX_MESSAGE:]
            stream.write(json.dumps({"exit_code": code, "stderr": message}) + "\n")
    except (OSError, ValueError):
        return  # the harness has given the rollout up


def main() -> int:
    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        executor = Executor(level=sys.argv[2], workers=MAX_TESTS_AT_ONCE)
    except (ExecutorError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    with executor:
        control.send(executor.level.encode().ljust(16))
        serve(control, executor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
