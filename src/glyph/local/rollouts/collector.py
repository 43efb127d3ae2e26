"""The local collector: many rollouts at once in this process, the same `Episode` as in the sandbox program.

Tasks and a policy go in; stored traces and, from a policy that samples, tokens come out. One loop drives all: the
policy works one step, turns that are ready move their rollouts on, and verdicts of tests are taken up. A test runs
beside the policy's steps and its verdict is used `test_delay` steps after it began (or when nothing else is left to
do), waiting for it if need be: so what happens is ordered by steps and never by time, and a run repeats exactly
where its policy does. A fault of the environment is a trace with an error, never a reward of 0.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from glyph.credit import Branch
from glyph.episode import Action, AskModel, Episode, ModelTurn, Rules
from glyph.evaluation.traces import Message, Trace
from glyph.executor import Executor, ExecutorError
from glyph.local.inference.requests import GenerationError
from glyph.local.rollouts.policy import Policy
from glyph.records import RolloutRecord, Verdict
from glyph.tasks.prompts import Wording, opening
from glyph.tasks.task import CodeTask
from glyph.workspace import Workspace


@dataclass(frozen=True)
class Assignment:
    """One rollout to play: the `sample`-th of a task."""

    task: CodeTask
    split: str
    sample: int = 0

    def session(self, rules: Rules) -> str:
        """The rollout's name: the same for the same assignment, arm and variant."""
        return f"{rules.arm.value}/{rules.variant.name}/{self.split}/{self.task.task_id}/{self.sample}"


@dataclass(frozen=True)
class Played:
    """A finished rollout. `branches` holds its tokens by message: one branch, none without tokens or with an error."""

    assignment: Assignment
    trace: Trace
    branches: tuple[Branch, ...] = ()


@dataclass
class _Live:
    assignment: Assignment
    session: str
    episode: Episode
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class _Test:
    """A test that runs, and the step at which its verdict is used."""

    due: int
    rollout: _Live
    verdict: "Future[Verdict]"


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
        test_delay: int = 2,
    ) -> None:
        self._policy, self._executor, self._rules = policy, executor, rules
        self._wording, self._model, self._concurrency, self._shots = wording, model, concurrency, shots
        self._test_delay = test_delay
        self._live: dict[str, _Live] = {}
        self._tests: deque[_Test] = deque()
        self._steps = 0
        self.policy_seconds = self.test_seconds = 0.0
        """Seconds spent in the policy, and seconds spent waiting for tests."""

    def collect(self, assignments: Sequence[Assignment]) -> Iterator[Played]:
        """Play all; rollouts start in the given order and are yielded as they end."""
        waiting = deque(assignments)
        with ThreadPoolExecutor(self._executor.workers, thread_name_prefix="glyph-tests") as threads:
            try:
                while waiting or self._live:
                    while waiting and len(self._live) < self._concurrency:
                        yield from self._start(waiting.popleft(), threads)
                    yield from self._work(threads)
            finally:
                for test in self._tests:
                    test.verdict.cancel()

    def status(self) -> str:
        """What is being waited for, in words."""
        tests = len(self._tests)
        return f"{len(self._live) - tests} rollouts in generation, {tests} in a test"

    def _start(self, assignment: Assignment, threads: ThreadPoolExecutor) -> Iterator[Played]:
        rules = self._rules
        messages = opening(assignment.task, rules.arm, rules.variant, self._wording, rules.budget, self._shots)
        episode = Episode(rules, assignment.task.task_id, messages, Workspace())
        rollout = _Live(assignment, assignment.session(rules), episode)
        assert rollout.session not in self._live, f"two rollouts are called {rollout.session}"
        self._live[rollout.session] = rollout
        yield from self._act(rollout, episode.start(), threads)

    def _work(self, threads: ThreadPoolExecutor) -> Iterator[Played]:
        """One step: what the policy has ready, then the verdicts that are due."""
        started = time.monotonic()
        replies = self._policy.poll()
        self.policy_seconds += time.monotonic() - started
        self._steps += 1
        for session, reply in replies:
            rollout = self._live[session]
            if isinstance(reply, ModelTurn):
                yield from self._act(rollout, rollout.episode.send(reply), threads)
            else:
                yield self._finish(rollout, reply)
        while self._tests and (self._tests[0].due <= self._steps or not self._policy.busy):
            yield from self._take_verdict(self._tests.popleft(), threads)

    def _take_verdict(self, test: _Test, threads: ThreadPoolExecutor) -> Iterator[Played]:
        started = time.monotonic()
        fault = test.verdict.exception()
        self.test_seconds += time.monotonic() - started
        if isinstance(fault, ExecutorError | OSError):
            yield self._finish(test.rollout, fault)
        else:
            yield from self._act(test.rollout, test.rollout.episode.send(test.verdict.result()), threads)

    def _act(self, rollout: _Live, action: Action | None, threads: ThreadPoolExecutor) -> Iterator[Played]:
        if action is None:
            yield self._finish(rollout)
        elif isinstance(action, AskModel):
            try:
                self._policy.ask(rollout.episode.messages, rollout.session)
            except GenerationError as fault:
                yield self._finish(rollout, fault)
        else:
            test = threads.submit(self._executor.run, action.source, rollout.assignment.task.test_code)
            self._tests.append(_Test(self._steps + self._test_delay, rollout, test))

    def _finish(self, rollout: _Live, fault: Exception | None = None) -> Played:
        del self._live[rollout.session]
        branches = self._policy.end(rollout.session)
        episode, task = rollout.episode, rollout.assignment.task
        record: RolloutRecord | None = None
        if fault is None:
            record = episode.record(round(time.monotonic() - rollout.started, 4), self._executor.facts())
        trace = Trace(
            id=rollout.session,
            task_id=task.task_id,
            arm=self._rules.arm.value,
            split=rollout.assignment.split,
            messages=tuple(Message(m["role"], m["content"]) for m in episode.messages),
            record=record,
            test_code=task.test_code,
            error=f"{type(fault).__name__}: {fault}" if fault else None,
            model=self._model,
        )
        return Played(rollout.assignment, trace, branches if fault is None else ())
