"""What the rollouts need: prepared data, the start model, the sandbox, and one rollout of each arm."""

import asyncio
import sys
import tempfile
from pathlib import Path

from glyph.doctor.machine import Machine, Missing
from glyph.protocol import Arm, Label

EVAL_SECONDS = 300


def data(machine: Machine) -> str:
    """The prepared files are there, are well formed, and are those of their manifest."""
    from glyph.tasks.validation import read_folder, require_data

    try:
        read = read_folder(machine.data)
        for arm in Arm:
            require_data(machine.data, arm)
    except ValueError as error:
        raise Missing(str(error), f"python -m data.prepare --output {machine.data}") from error
    tasks = sum(len(rows) for (arm, _), rows in read.tasks.items() if arm is Arm.REACTIVE)
    traces = sum(map(len, read.traces.values()))
    return f"{read.manifest.get('task_set')}: {tasks} tasks, {traces} traces (python -m data.validate executes them)"


def tasks(machine: Machine) -> str:
    """Each environment of the configs finds its tasks; without them PRIME-RL waits for its server forever."""
    from pydantic import ValidationError

    from glyph.taskset import GlyphTaskset, GlyphTasksetConfig

    found = []
    for name, settings in machine.settings.items():
        orchestrator = settings.get("orchestrator", {})
        envs = [*orchestrator.get("train", {}).get("env", []), *orchestrator.get("eval", {}).get("env", [])]
        for taskset in (env["taskset"] for env in envs if env.get("taskset", {}).get("id") == "glyph"):
            try:
                rows = GlyphTaskset(GlyphTasksetConfig(**{**taskset, "data": machine.data})).load()
            except (ValidationError, ValueError) as error:
                raise Missing(
                    f"{name}, split {taskset.get('split')}: {error}", f"mend {name} or {machine.data}"
                ) from error
            found.append(f"{len(rows)} of arm {taskset.get('arm', 'a')}'s {taskset.get('split')}")
    return ", ".join(found) or "no environment of ours in the configs"


def model(machine: Machine) -> str:
    """The start model ends its turns with `<|im_end|>` everywhere, and template, renderer and prompts agree."""
    from glyph.local.base_folder import check_saved

    if machine.model is None:
        raise Missing("no model given", "glyph make-base MODEL OUT; glyph doctor --model OUT")
    try:
        compared = sum(check_saved(machine.model).values())
    except ValueError as error:
        raise Missing(str(error), f"glyph make-base {machine.model} OUT; glyph doctor --model OUT") from error
    return f"{machine.model}: one EOS, our template, {compared} tokens the same on every path"


def executor(machine: Machine) -> str:
    """Candidates are isolated by more than resource limits."""
    from glyph.executor import Executor

    with Executor() as tested:
        level = tested.level
    if level == "process":
        raise Missing(
            "candidates run with resource limits alone", "allow user namespaces, or run as root: docs/sandbox.md"
        )
    return f"isolation level {level}"


def episodes(machine: Machine) -> str:
    """One scripted rollout of each arm through Verifiers' `eval`, in PRIME-RL's environment where it is there."""
    program = machine.program("eval")
    if not program.exists():
        program = Path(sys.executable).parent / "eval"
    for arm in Arm:
        with tempfile.TemporaryDirectory() as folder:
            reward = asyncio.run(_play_gold(program, machine.data, arm, Path(folder)))
        if reward != 1.0:
            raise Missing(f"arm {arm.value}: the gold solution earned {reward}", "python -m data.validate says more")
    return f"both arms solved a task through {program}"


async def _play_gold(program: Path, data: Path, arm: Arm, folder: Path) -> float:
    """The reward of the first validation task, its gold solution played by a scripted endpoint. Raises: Missing."""
    from glyph.evaluation.traces import TraceError, read_traces
    from glyph.local.serving.scripted import from_texts, scripted_server

    async with scripted_server(from_texts(_gold_turns(data, arm))) as url:
        taskset = ["--taskset.arm", arm.value, "--taskset.split", "validation", "--taskset.data", str(data.resolve())]
        endpoint = ["-m", "scripted", "--client.base-url", url, "--client.api-key-var", "GLYPH_ENDPOINT_KEY"]
        command = [str(program), "glyph", "--harness.id", "glyph", *endpoint, *taskset]
        command += ["-n", "1", "--no-push", "--no-rich", "-o", str(folder)]
        pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=both)
        said, _ = await asyncio.wait_for(process.communicate(), EVAL_SECONDS)
    try:
        traces = read_traces(folder).traces
    except TraceError:
        traces = ()
    record = traces[0].scored if traces else None
    if process.returncode or record is None:
        tail = tuple(said.decode(errors="replace").strip().splitlines()[-10:])
        raise Missing(f"arm {arm.value}: {program} failed; its last lines:", "see them", tail)
    return record.reward


def _gold_turns(folder: Path, arm: Arm) -> list[str]:
    from glyph.tasks.demonstrations import Demonstration, Family, State, assistant_turns
    from glyph.tasks.prompts import load_wording
    from glyph.tasks.validation import read_tasks

    try:
        task = read_tasks(folder, arm, "validation")[0]
    except ValueError as error:
        raise Missing(str(error), f"python -m data.prepare --output {folder}") from error
    shown = Demonstration(task, Family.DIRECT, (State(task.gold + "\n", Label.PASS),))
    return assistant_turns(shown, arm, load_wording())
