"""The local collector: many rollouts at once in this process, the same `Episode` as in the sandbox program.

Tasks and a policy go in, stored traces come out in the order in which rollouts end. A fault of the environment is a
trace with an error, never a reward of 0.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from glyph.episode import AskModel, Episode, Rules
from glyph.evaluation.traces import Message, Trace
from glyph.executor import Executor, ExecutorError
from glyph.local.policy import Policy
from glyph.local.requests import GenerationError
from glyph.records import RolloutRecord
from glyph.tasks.prompts import Wording, opening
from glyph.tasks.task import CodeTask
from glyph.workspace import Workspace

TEST_THREADS = 8


@dataclass(frozen=True)
class Assignment:
    """One rollout to play: the `sample`-th of a task."""

    task: CodeTask
    split: str
    sample: int = 0

    def session(self, rules: Rules) -> str:
        """The rollout's name: the same for the same assignment, arm and variant."""
        return f"{rules.arm.value}/{rules.variant.name}/{self.split}/{self.task.task_id}/{self.sample}"


class Collector:
    """Plays assignments with one policy and one executor, at most `concurrency` at once."""

    def __init__(
        self,
        policy: Policy,
        executor: Executor,
        rules: Rules,
        wording: Wording,
        model: str,
        concurrency: int = 16,
        shots: Sequence[Sequence[dict[str, str]]] = (),
    ) -> None:
        self._policy, self._executor, self._rules = policy, executor, rules
        self._wording, self._model, self._concurrency, self._shots = wording, model, concurrency, shots

    async def collect(self, assignments: Sequence[Assignment]) -> AsyncIterator[Trace]:
        """Play all; rollouts start in the given order and are yielded as they end."""
        room = asyncio.Semaphore(self._concurrency)
        with ThreadPoolExecutor(TEST_THREADS, thread_name_prefix="glyph-tests") as threads:
            running = [asyncio.create_task(self._in_turn(room, each, threads)) for each in assignments]
            try:
                for finished in asyncio.as_completed(running):
                    yield await finished
            finally:
                for task in running:
                    task.cancel()

    async def _in_turn(self, room: asyncio.Semaphore, assignment: Assignment, threads: ThreadPoolExecutor) -> Trace:
        async with room:
            return await self._rollout(assignment, threads)

    async def _rollout(self, assignment: Assignment, threads: ThreadPoolExecutor) -> Trace:
        task, session = assignment.task, assignment.session(self._rules)
        rules = self._rules
        messages = opening(task, rules.arm, rules.variant, self._wording, rules.budget, self._shots)
        episode = Episode(self._rules, task.task_id, messages, Workspace())
        record: RolloutRecord | None = None
        error: str | None = None
        try:
            record = await self._play(episode, task, session, threads)
        except (ExecutorError, GenerationError, OSError) as fault:
            error = f"{type(fault).__name__}: {fault}"
        finally:
            self._policy.end(session)
        return Trace(
            id=session,
            task_id=task.task_id,
            arm=self._rules.arm.value,
            split=assignment.split,
            messages=tuple(Message(m["role"], m["content"]) for m in episode.messages),
            record=record,
            test_code=task.test_code,
            error=error,
            model=self._model,
        )

    async def _play(self, episode: Episode, task: CodeTask, session: str, threads: ThreadPoolExecutor) -> RolloutRecord:
        loop, started = asyncio.get_running_loop(), time.monotonic()
        action = episode.start()
        while action is not None:
            if isinstance(action, AskModel):
                action = episode.send(await self._policy.turn(episode.messages, session))
            else:
                test = loop.run_in_executor(threads, self._executor.run, action.source, task.test_code)
                action = episode.send(await test)
        return episode.record(round(time.monotonic() - started, 4), self._executor.facts())
