"""What the harness may never let slip: the secret in a file that others read, API keys in a program's environment."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

from glyph import GlyphHarness
from glyph.harness import GlyphHarnessConfig, ResidentProgram
from glyph.local.serving.scripted import ScriptedClient, from_texts
from glyph.program import JOB_PATH
from glyph.taskset import GlyphTaskset, GlyphTasksetConfig

SECRET = "s3cret-4711"


class WatchedRuntime:
    """A runtime on a folder that notes the mode of the job's file whenever it holds the secret; it runs nothing."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.modes: list[int] = []
        self.commands: list[list[str]] = []

    async def write(self, path: str, data: bytes) -> None:
        target = self.workdir / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if SECRET.encode() in data:  # the secret must not stand in a file that is closed to others only afterwards
            target.touch()
            self.modes.append(target.stat().st_mode & 0o777)
        target.write_bytes(data)

    async def run_program(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        target = self.workdir / JOB_PATH
        assert SECRET in target.read_text()
        self.modes.append(target.stat().st_mode & 0o777)
        self.commands.append(argv)
        return ProgramResult(0, "", "")


OPTIONS = {"started": {"resident": False}, "shipped": {"ship": True, "python": sys.executable}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_the_job_file_is_its_owner_s_alone(tiny_data: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    task = GlyphTaskset(GlyphTasksetConfig(id="glyph", data=tiny_data)).load()[0]
    trace = vf.Trace(task=vf.TraceTask(type="GlyphTask", data=task.data))
    context = vf.ModelContext(client=ScriptedClient(from_texts(["x"])), model="m", sampling=vf.SamplingConfig())
    harness, runtime = GlyphHarness(GlyphHarnessConfig(id="glyph", **options)), WatchedRuntime(tmp_path)
    umask = os.umask(0o022)
    try:
        done = await harness.launch(context, trace, runtime, "http://127.0.0.1:9/v1", SECRET, {})  # type: ignore[arg-type]
    finally:
        os.umask(umask)
    assert done.exit_code == 0
    assert [oct(mode) for mode in runtime.modes] == ["0o600", "0o600"]
    assert not any(SECRET in word for argv in runtime.commands for word in argv)


def test_the_resident_program_inherits_no_api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "my_api_key_2", "PRIME_API_KEYS"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("GLYPH_TEST_HARMLESS", "kept")
    program = ResidentProgram("process")
    try:
        environ = Path(f"/proc/{program.process.pid}/environ").read_bytes().split(b"\0")
    finally:
        program.close()
    told = dict(entry.decode(errors="replace").partition("=")[::2] for entry in environ if entry)
    assert told["GLYPH_TEST_HARMLESS"] == "kept"
    assert [name for name, value in told.items() if "API_KEY" in name.upper() or SECRET in value] == []
