"""The agent loop in the sandbox: a thin driver of `Episode` over HTTP. Stdlib only.

Reads a job (`.glyph/job.json` in the working folder, removed at once, since it holds the secret and the tests),
loads the project into memory, plays the rollout, writes the changed files back and the record to
`.glyph/record.json`, each by an atomic replace. Exit code 0 when the rollout was played, however it ended; 1 with a
message on stderr when the environment failed.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

if __name__ == "__main__":  # started by path: find the package beside us
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from glyph.endpoint import Endpoint, EndpointError
from glyph.episode import Episode, Rules, drive
from glyph.executor import Executor, ExecutorError, Limits
from glyph.protocol import Arm
from glyph.records import RolloutRecord
from glyph.variants import parse_variant
from glyph.workspace import Workspace

JOB_PATH = ".glyph/job.json"
RECORD_PATH = ".glyph/record.json"
PROJECT_FOLDER = "project"
MAX_MESSAGE = 4_000


@dataclass(frozen=True)
class Job:
    """What a rollout needs to know. It travels as JSON in a file or over a socket, never in argv."""

    endpoint: str
    secret: str
    model: str
    task_id: str
    arm: str
    variant: str
    messages: list[dict[str, str]]
    tests: str
    budget: int
    max_context_tokens: int
    sampling: dict[str, Any]
    isolation: str = "auto"


def play(job: Job, folder: str, executor: Executor) -> RolloutRecord:
    """Play one rollout in a working folder and return its record.

    Raises:
        EndpointError, ExecutorError, OSError: a fault of the environment.
    """
    started = time.monotonic()
    project = os.path.join(folder, PROJECT_FOLDER)
    found = load_project(project)
    rules = Rules(Arm(job.arm), parse_variant(job.variant), job.budget, job.max_context_tokens)
    episode = Episode(rules, job.task_id, [dict(message) for message in job.messages], Workspace(dict(found)))
    endpoint = Endpoint(job.endpoint, job.secret, job.model, job.sampling)
    try:
        drive(episode, endpoint.ask, lambda source: executor.run(source, job.tests))
    finally:
        endpoint.close()
    for path, text in episode.workspace.files.items():
        if found.get(path) != text:
            write_atomically(os.path.join(project, path), text)
    return episode.record(round(time.monotonic() - started, 4), executor.facts())


def run_job(job: Job, folder: str, executor: Executor) -> tuple[int, str]:
    """Play a job and write its record; returns an exit code and what went wrong."""
    try:
        record = play(job, folder, executor)
        write_atomically(os.path.join(folder, RECORD_PATH), json.dumps(record.to_dict(), ensure_ascii=False))
    except (EndpointError, ExecutorError, OSError, ValueError) as error:
        return 1, f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
    return 0, ""


def load_project(folder: str) -> dict[str, str]:
    """The project's text files by relative path."""
    files = {}
    for home, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(home, name)
            with open(path, encoding="utf-8", newline="") as file:
                files[os.path.relpath(path, folder)] = file.read()
    if not files:
        raise FileNotFoundError(f"{folder}: no project here; the taskset's setup writes it")
    return files


def write_atomically(path: str, text: str) -> None:
    """Write a file whole or not at all. Its folder may be new; the one above must be there.

    A rollout that was given up (a time-out) has lost its working folder: nothing may grow again there. What is no
    text (a lone surrogate in a hostile candidate's report) becomes "?", so that every reader can store it again.
    """
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        os.mkdir(folder)
    partial = f"{path}.partial"
    with open(partial, "w", encoding="utf-8", errors="replace", newline="") as file:
        file.write(text)
    os.replace(partial, path)


def main() -> int:
    with open(JOB_PATH, encoding="utf-8") as file:
        job = Job(**json.load(file))
    os.unlink(JOB_PATH)  # before any candidate runs
    try:
        with Executor(Limits(), level=job.isolation, workers=1) as executor:
            code, message = run_job(job, os.getcwd(), executor)
    except (ExecutorError, ValueError) as error:  # no such isolation level here
        code, message = 1, f"{type(error).__name__}: {error}"
    if message:
        print(message, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
