"""The Verifiers harness: launches the sandbox program for a rollout and waits for it.

In the subprocess runtime a resident program (`program_server.py`) plays the rollouts, so that none pays for an
interpreter start; in every other runtime, or on request, the program is started in the runtime, where the stdlib-only
part of this package is shipped to it as it is. Nothing is downloaded and uv is not needed.
"""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from pydantic import field_validator
from verifiers.v1.runtimes import ProgramResult, Runtime, SubprocessConfig

from glyph.executor import LEVELS
from glyph.executor.levels import python_executable
from glyph.program import JOB_PATH, Job

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parent
SHIPPED = (
    "__init__.py",
    "endpoint.py",
    "episode.py",
    "episode_state.py",
    "plugins.py",
    "program.py",
    "protocol.py",
    "records.py",
    "variants.py",
    "workspace.py",
    "executor/*.py",
)
SHIP_FOLDER = ".glyph/src/glyph"
START_SECONDS = 60


class GlyphHarnessConfig(vf.HarnessConfig):
    """`--harness.*`.

    `isolation` is the executor's level; `resident` plays rollouts in a resident program where the runtime is this
    machine; `ship` copies the program into the runtime even there; `python` starts it in other runtimes.
    """

    isolation: str = "auto"
    resident: bool = True
    ship: bool = False
    python: str = "python3"

    @field_validator("isolation")
    @classmethod
    def _known_level(cls, level: str) -> str:
        if level not in ("auto", *LEVELS):
            raise ValueError(f"isolation level {level!r}: expected auto or one of {', '.join(LEVELS)}")
        return level


class GlyphHarness(vf.Harness[GlyphHarnessConfig]):
    """Runs `program.py` against the rollout's endpoint. Plain chat turns: no MCP tools, no user simulator."""

    APPENDS_SYSTEM_PROMPT = True

    def __init__(self, config: GlyphHarnessConfig) -> None:
        super().__init__(config)
        self._resident: ResidentProgram | None = None
        self._starting = asyncio.Lock()

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
    ) -> ProgramResult:
        job = self._job(ctx, trace, endpoint, secret)
        local = isinstance(self.config.runtime, SubprocessConfig)
        if local and self.config.resident and not self.config.ship:
            return await (await self._resident_program()).play(job, str(runtime.workdir))  # type: ignore[attr-defined]
        await runtime.write(JOB_PATH, b"")
        if local:  # the job holds the secret: other users of this machine must not read it
            (Path(runtime.workdir) / JOB_PATH).chmod(0o600)  # type: ignore[attr-defined]
        await runtime.write(JOB_PATH, json.dumps(asdict(job)).encode())
        if local and not self.config.ship:
            command = [python_executable(), "-I", "-S", str(PACKAGE / "program.py")]
        else:
            command = [self.config.python, "-I", "-S", f"{SHIP_FOLDER}/program.py"]
            await self._ship(runtime)
        return await runtime.run_program(command, self.config.resolved_env)

    def _job(self, ctx: vf.ModelContext, trace: vf.Trace, endpoint: str, secret: str) -> Job:
        data: Any = trace.task.data
        system, prompt = self.resolve_prompt(data)
        return Job(
            endpoint=endpoint,
            secret=secret,
            model=ctx.model,
            task_id=data.task_id,
            arm=data.arm,
            variant=data.variant,
            messages=[{"role": "system", "content": system or ""}, {"role": "user", "content": str(prompt)}],
            tests=data.test_code,
            budget=data.budget,
            max_context_tokens=data.max_context_tokens,
            sampling={},  # Verifiers applies the run's own sampling
            isolation=self.config.isolation,
        )

    async def _ship(self, runtime: Runtime) -> None:
        for pattern in SHIPPED:
            for path in sorted(PACKAGE.glob(pattern)):
                await runtime.write(f"{SHIP_FOLDER}/{path.relative_to(PACKAGE)}", path.read_bytes())

    async def _resident_program(self) -> "ResidentProgram":
        async with self._starting:
            if self._resident is None or not self._resident.alive:
                self._resident = await asyncio.to_thread(ResidentProgram, self.config.isolation)
            return self._resident


class ResidentProgram:
    """A running `program_server.py` and the control socket that keeps it alive.

    Raises:
        RuntimeError: it does not start; says what it said.
    """

    def __init__(self, isolation: str) -> None:
        self._control, theirs = socket.socketpair()
        environment = {k: v for k, v in os.environ.items() if "API_KEY" not in k.upper()}
        with theirs, tempfile.TemporaryFile() as said:
            self.process = subprocess.Popen(
                [python_executable(), "-I", "-S", str(PACKAGE / "program_server.py"), str(theirs.fileno()), isolation],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=environment,
                start_new_session=True,
            )
            theirs.close()
            self._finalizer = weakref.finalize(self, _end, self.process, self._control)
            self._control.settimeout(START_SECONDS)
            self.level = self._control.recv(16).decode().strip()
            said.seek(0)
            message = said.read().decode(errors="replace").strip()
        if not self.level:
            raise RuntimeError(f"the resident program did not start ({sys.executable}): {message[-1000:]}")
        if message:
            logger.warning("%s", message)
        logger.info("candidates run at isolation level %s", self.level)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    async def play(self, job: Job, folder: str) -> ProgramResult:
        """Play one rollout in a working folder."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"J"], [theirs.fileno()])
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            writer.write(json.dumps({"job": asdict(job), "folder": folder}).encode() + b"\n")
            await writer.drain()
            reply = await reader.readline()
        finally:
            writer.close()
        if not reply:
            return ProgramResult(1, "", "the resident program ended during the rollout")
        result = json.loads(reply)
        return ProgramResult(result["exit_code"], "", result["stderr"])

    def close(self) -> None:
        self._finalizer()


def _end(process: subprocess.Popen, control: socket.socket) -> None:
    control.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
