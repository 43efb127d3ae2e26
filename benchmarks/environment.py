"""What the environment costs: `python -m benchmarks.environment [--source MBPP] [--output FILE]`.

Rollouts a second with a scripted endpoint of no latency, through the `eval` command line and with the in-process
client, beside the same harness with a program that imports openai in every rollout; milliseconds a test at each
isolation level; seconds of preparation and validation. Everything in one run on one machine: compare ratios.
"""

import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.scripted import gold_policy
from glyph.commands.console import say
from glyph.executor import LEVELS, Executor, ExecutorError
from glyph.protocol import Arm
from glyph.versions import git_commit, versions

SPLIT = "train"
CONCURRENCIES = (2, 4, 16)
PLUGINS = Path(__file__).parent / "plugins"
CANDIDATE, TESTS = "def f(x):\n    return x + 41\n", "assert f(1) == 42\nassert f(2) == 43\nassert f(3) == 44\n"


def main(
    source: Annotated[Path | None, typer.Option(help="a copy of MBPP; without one the mini tasks are used")] = None,
    rollouts: Annotated[int, typer.Option(help="rollouts a measurement; the baseline gets a quarter")] = 192,
    output: Annotated[Path | None, typer.Option(help="also write the figures as JSON")] = None,
) -> None:
    """Measure, print markdown tables, and write the figures."""
    with tempfile.TemporaryDirectory(prefix="glyph-benchmark-") as folder:
        data = Path(folder) / "data"
        commands = measure_commands(data, source)
        figures = {
            "commands_seconds": commands,
            "test_ms": {level: result for level in LEVELS if (result := measure_tests(level))},
            "rollouts_per_second": measure_rollouts(data, rollouts, Path(folder)),
            "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
            "versions": versions(),
            "commit": git_commit(),
        }
    say(render(figures))
    if output:
        output.write_text(json.dumps(figures, indent=2) + "\n")
        say(f"wrote {output}")


def measure_commands(data: Path, source: Path | None) -> dict[str, float]:
    """Seconds of `data.prepare` and `data.validate` as whole processes."""
    tasks = ["--source", str(source)] if source else ["--tasks", "mini"]
    prepare = [sys.executable, "-m", "data.prepare", *tasks, "--output", str(data)]
    return {
        f"prepare ({'mbpp' if source else 'mini'})": timed(prepare),
        f"validate ({'mbpp' if source else 'mini'})": timed([sys.executable, "-m", "data.validate", str(data)]),
    }


def timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return round(time.perf_counter() - started, 1)


def measure_tests(level: str, runs: int = 200) -> dict[str, float] | None:
    """Milliseconds: the first verdict with everything it starts, and each further one on the same zygote."""
    try:
        started = time.perf_counter()
        with Executor(level=level, workers=1) as executor:
            executor.run(CANDIDATE, TESTS)
            first = time.perf_counter() - started
            each = []
            for _ in range(runs):
                started = time.perf_counter()
                executor.run(CANDIDATE, TESTS)
                each.append(time.perf_counter() - started)
    except (ValueError, ExecutorError) as error:
        say(f"level {level}: not measured: {error}")
        return None
    return {
        "first_ms": round(first * 1e3, 1),
        "median_ms": round(statistics.median(each) * 1e3, 2),
        "mean_ms": round(statistics.mean(each) * 1e3, 2),
    }


def measure_rollouts(data: Path, count: int, folder: Path) -> dict[str, dict[str, float]]:
    """Rollouts a second by way, arm and concurrency; the ways alternate, so that noise hits all alike."""
    results: dict[str, dict[str, float]] = {}
    with endpoint(data) as url:
        for arm in Arm:
            for at_once in CONCURRENCIES:
                evaluate = partial(by_eval, data, url, arm, at_once, folder)
                ways: dict[str, Callable[[], float]] = {
                    "openai in every rollout, eval": partial(evaluate, "openai_baseline", max(2 * at_once, count // 4)),
                    "glyph, eval": partial(evaluate, "glyph", count),
                    "glyph, in-process client": partial(_in_process, data, arm, at_once, count),
                }
                for way, run in ways.items():
                    rate = round(run(), 2)
                    results.setdefault(way, {})[f"{arm.value}@{at_once}"] = rate
                    say(f"{way}, arm {arm.value}, {at_once} at once: {rate} rollouts/s")
    return results


@contextmanager
def endpoint(data: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.scripted", str(data), SPLIT], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def by_eval(data: Path, url: str, arm: Arm, at_once: int, folder: Path, harness: str, count: int) -> float:
    """Through the command line; the rate is that of the rollouts, without the command's start."""
    output = folder / f"{harness}-{arm.value}-{at_once}"
    command = [
        str(Path(sys.executable).with_name("eval")), "glyph", "--harness.id", harness, "-m", "scripted",
        "--client.base-url", url, "--client.api-key-var", "GLYPH_ENDPOINT_KEY", "--taskset.arm", arm.value,
        "--taskset.split", SPLIT, "--taskset.data", str(data), "-n", str(count), "-c", str(at_once),
        "--no-push", "--no-rich", "-o", str(output),
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, check=True, capture_output=True, env={**environment, "PYTHONPATH": str(PLUGINS)})
    traces = [json.loads(line) for line in (output / "traces.jsonl").read_text().splitlines()]
    return rate([(t["rewards"], t["timing"]["setup"]["start"], t["timing"]["scoring"]["end"]) for t in traces], count)


def _in_process(data: Path, arm: Arm, at_once: int, count: int) -> float:
    return asyncio.run(in_process(data, arm, at_once, count))


async def in_process(data: Path, arm: Arm, at_once: int, count: int) -> float:
    """Verifiers' own environment with a client in this process: no HTTP to a server, no command line."""
    import verifiers.v1 as vf

    from glyph.local.serving.scripted import ScriptedClient

    taskset = {"id": "glyph", "arm": arm.value, "split": SPLIT, "data": str(data)}
    environment = vf.Environment(vf.EnvConfig(taskset=taskset, harness={"id": "glyph"}))  # type: ignore[arg-type]
    ctx = vf.ModelContext(model="scripted", client=ScriptedClient(gold_policy(data, SPLIT)), sampling=vf.Sampling())
    room = asyncio.Semaphore(at_once)
    async with environment.serving():
        episodes = [environment.episode(task, ctx, 1) for task in environment.taskset.load()[:count]]
        finished = await asyncio.gather(*(episode.run(room) for episode in episodes))
    traces = [trace for traces in finished for trace in traces]
    return rate([(t.rewards, t.timing.setup.start, t.timing.scoring.end) for t in traces], count)


def rate(rollouts: list[tuple[dict[str, float], float, float]], count: int) -> float:
    """Rollouts a second from the first start to the last end, the start of a resident program included.

    Raises:
        RuntimeError: a rollout is missing or was not solved: then the figure would mean nothing.
    """
    if len(rollouts) != count or any(rewards != {"solved": 1.0} for rewards, _, _ in rollouts):
        raise RuntimeError(f"{len(rollouts)} of {count} rollouts, not all solved")
    return count / (max(end for _, _, end in rollouts) - min(start for _, start, _ in rollouts))


def render(figures: dict) -> str:
    rates = figures["rollouts_per_second"]
    columns = list(next(iter(rates.values())))
    lines = ["", f"| rollouts/s | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    lines += [f"| {way} | {' | '.join(f'{row[c]:.1f}' for c in columns)} |" for way, row in rates.items()]
    baseline = rates["openai in every rollout, eval"]
    for way, row in list(rates.items())[1:]:
        lines.append(f"| {way}: ratio | {' | '.join(f'{row[c] / baseline[c]:.1f}×' for c in columns)} |")
    lines += ["", "| isolation level | first verdict, ms | further ones, median ms | mean ms |", "|---|---:|---:|---:|"]
    lines += [
        f"| {level} | {row['first_ms']} | {row['median_ms']} | {row['mean_ms']} |"
        for level, row in figures["test_ms"].items()
    ]
    lines += ["", "| command | seconds |", "|---|---:|"]
    lines += [f"| {name} | {seconds} |" for name, seconds in figures["commands_seconds"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
