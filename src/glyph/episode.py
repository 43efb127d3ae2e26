"""An arm as a pure state machine: assistant text goes in, the next action comes out.

An `Episode` owns the conversation, the workspace, the budget and the record of one rollout. It runs no model and
no test itself: it yields `AskModel` and `RunTest`, and whoever drives it (the sandbox program over HTTP, the local
collector in process) sends back a `ModelTurn` or a `Verdict`. Both drive the same object.
"""

import hashlib
from collections.abc import Callable, Generator
from dataclasses import replace

from glyph.episode_state import (
    Action,
    AskModel,
    Candidate,
    Choice,
    EpisodeState,
    Message,
    ModelTurn,
    Play,
    Rules,
    RunTest,
)
from glyph.protocol import (
    TEST_LINES,
    Arm,
    Breach,
    BreachKind,
    Call,
    Decision,
    Final,
    Label,
    Prediction,
    StopReason,
    Tool,
    parse_prediction_turn,
    parse_turn,
    render_detail,
    render_result,
    render_test_result,
)
from glyph.records import (
    CallRecord,
    CandidateRecord,
    PredictionTarget,
    ProtocolError,
    RolloutRecord,
    TurnUsage,
    Verdict,
)
from glyph.workspace import PROJECT_PATH, Answer, Workspace, normalise_path

__all__ = ["AskModel", "Episode", "Message", "ModelTurn", "Rules", "RunTest", "drive"]

BUDGET_EXHAUSTED = "test budget exhausted"
PATCH_OWED = "test withheld: answer with one apply_patch call"


class Episode:
    """One rollout. Call `start`, then `send` until it returns None; then `record`.

    Args:
        rules: arm, variant and budgets.
        task_id: goes into the record.
        messages: the conversation so far (system and user turns); extended in place.
        workspace: the project as the agent finds it.
    """

    def __init__(self, rules: Rules, task_id: str, messages: list[Message], workspace: Workspace) -> None:
        self.rules, self.task_id, self.messages, self.workspace = rules, task_id, messages, workspace
        self._state = EpisodeState()
        self._play = self._rollout()

    def start(self) -> Action | None:
        return next(self._play)

    def send(self, reply: ModelTurn | Verdict) -> Action | None:
        """Give the reply to the last action; returns the next action, None when the rollout is over."""
        try:
            return self._play.send(reply)
        except StopIteration:
            return None

    def record(self, wall_seconds: float = 0.0, environment: dict[str, str] | None = None) -> RolloutRecord:
        """The record of a finished rollout.

        Raises:
            RuntimeError: the rollout is not over.
        """
        state = self._state
        if state.stop is None or state.final_verdict is None:
            raise RuntimeError("the rollout is not over: drive it until send() returns None")
        return RolloutRecord(
            task_id=self.task_id,
            arm=self.rules.arm.value,
            variant=self.rules.variant.name,
            stop_reason=state.stop,
            calls=tuple(state.calls),
            candidates=tuple(
                CandidateRecord(c.call_id, c.sha256, c.source, state.verdicts[c.sha256], c.tested, c.shadow)
                for c in state.candidates
            ),
            targets=tuple(state.targets),
            usage=tuple(state.usage),
            protocol_error=state.error,
            final_verdict=state.final_verdict,
            final_text=state.final_text,
            budget=self.rules.budget,
            shadow_tests=state.shadow_tests,
            wall_seconds=wall_seconds,
            environment=dict(environment or {}),
        )

    # The loop.

    def _rollout(self) -> Play:
        state = self._state
        while state.stop is None:
            turn = yield AskModel()
            assert isinstance(turn, ModelTurn)
            state.stop = self._take(turn)
            if state.stop is not None:
                break
            if state.patch_owed:
                self._owed_patch(turn.text)
            elif state.pending is not None:
                yield from self._prediction_turn(turn.text, state.pending)
            else:
                yield from self._plain_turn(turn.text)
        yield from self._verify_the_rest()

    def _take(self, turn: ModelTurn) -> StopReason | None:
        """Append the turn to the conversation; a reason to stop when it was cut."""
        if turn.overflow:
            return StopReason.CONTEXT
        self.messages.append({"role": "assistant", "content": turn.text})
        self._state.usage.append(TurnUsage(turn.prompt_tokens, turn.completion_tokens))
        cut = turn.finish_reason == "length"
        if turn.prompt_tokens is not None and turn.completion_tokens is not None:
            total, limit = turn.prompt_tokens + turn.completion_tokens, self.rules.max_context_tokens
            if total > limit or (cut and total == limit):
                return StopReason.CONTEXT
        return StopReason.LENGTH if cut else None

    def _plain_turn(self, text: str) -> Play:
        turn = self._parse_turn(text)
        if isinstance(turn, Breach):
            self._breach(turn)
        elif isinstance(turn, Final):
            self._state.stop, self._state.final_text = StopReason.FINAL, turn.text
        elif turn.tool is Tool.PYTHON_TEST and self.rules.arm is Arm.PREDICTIVE:
            self._breach(Breach(BreachKind.WRONG_TURN, "python_test needs a pending candidate and its prediction"))
        elif not self._affordable(turn.tool):
            self._state.stop = StopReason.BUDGET
        elif turn.tool is Tool.PYTHON_TEST:
            yield from self._visible_test(turn.id)
        else:
            self._edit(turn)

    def _prediction_turn(self, text: str, pending: Candidate) -> Play:
        """parse → record → shadow-test unless it is a KEEP that will be tested → act."""
        state, variant = self._state, self.rules.variant
        turn = self._parse_prediction_turn(text)
        if isinstance(turn, Breach):
            yield from self._shadow_target(pending, Choice(turn.label, turn.decision, detail=turn.label_detail))
            self._breach(turn)
            return
        imposed = variant.decide(turn.decision, self._conversation())
        overridden = turn.decision is not None and imposed is not turn.decision
        affordable = self._affordable(Tool.PYTHON_TEST if imposed is Decision.KEEP else Tool.APPLY_PATCH)
        choice = Choice(turn.label, turn.decision, imposed if affordable else None, overridden, turn.detail)
        if imposed is Decision.KEEP and affordable and not self._tests_exhausted():
            yield from self._visible_test(turn.call.id, overridden)
            self._add_target(pending, choice, shadow=False)
            state.pending = None
            return
        yield from self._shadow_target(pending, choice)
        if not affordable:
            state.stop = StopReason.BUDGET
        elif imposed is Decision.KEEP:
            yield from self._visible_test(turn.call.id, overridden)
            state.pending = None
        elif overridden:
            state.used_ids.add(turn.call.id)
            state.patch_owed = True
            self._say(render_result(turn.call.id, False, stderr=PATCH_OWED))
        else:
            self._edit(turn.call, rejected=pending)

    def _owed_patch(self, text: str) -> None:
        """The continuation turn of `random_gate`: exactly one apply_patch call, no prediction."""
        turn = self._parse_turn(text)
        if isinstance(turn, Call) and turn.tool is not Tool.APPLY_PATCH:
            turn = Breach(BreachKind.WRONG_TOOL, f"a continuation turn must call apply_patch, got {turn.tool.value}")
        elif isinstance(turn, Final):
            turn = Breach(BreachKind.WRONG_TURN, "a continuation turn must call apply_patch, got FINAL")
        self._state.patch_owed = False
        if not isinstance(turn, Call):
            self._breach(turn)
        else:  # it can be paid: that was checked before the test was withheld
            self._edit(turn, rejected=self._state.pending)

    # What a turn does.

    def _parse_turn(self, text: str) -> Call | Final | Breach:
        turn = parse_turn(text)
        return self._call_breach(turn) or turn if isinstance(turn, Call) else turn

    def _parse_prediction_turn(self, text: str) -> Prediction | Breach:
        turn = parse_prediction_turn(text, self.rules.variant.gated, self.rules.variant.detail)
        if isinstance(turn, Breach):
            return turn
        breach = self._call_breach(turn.call)
        return replace(breach, label=turn.label, decision=turn.decision, label_detail=turn.detail) if breach else turn

    def _call_breach(self, call: Call) -> Breach | None:
        """Check a call against the rollout: the id is new, the paths stay in the workspace."""
        if call.id in self._state.used_ids:
            return Breach(BreachKind.DUPLICATE_ID, f"the id {call.id!r} was used before")
        if call.tool is Tool.PYTHON_TEST:
            inside = normalise_path(call.arguments["project_path"]) == PROJECT_PATH
            return None if inside else Breach(BreachKind.BAD_PATH, f"project_path must be {PROJECT_PATH!r}")
        path = normalise_path(call.arguments["file_path"])
        if path is None:
            return Breach(BreachKind.BAD_PATH, "file_path is no path inside the workspace")
        is_folder = path == PROJECT_PATH or any(name.startswith(f"{path}/") for name in self.workspace.files)
        return Breach(BreachKind.BAD_PATH, "file_path is a directory") if is_folder else None

    def _affordable(self, tool: Tool) -> bool:
        return self._state.spent + self._cost(tool) <= self.rules.budget

    def _cost(self, tool: Tool) -> int:
        return self.rules.variant.test_cost if tool is Tool.PYTHON_TEST and not self._tests_exhausted() else 1

    def _tests_exhausted(self) -> bool:
        return self.rules.variant.tests is not None and self._state.tests_run >= self.rules.variant.tests

    def _edit(self, call: Call, rejected: Candidate | None = None) -> None:
        """read_file or apply_patch; a patch that applies makes a candidate, which Arm B must predict next."""
        path = normalise_path(call.arguments["file_path"]) or ""
        if call.tool is Tool.READ_FILE:
            answer = self.workspace.read_file(path)
        else:
            answer = self.workspace.apply_patch(path, call.arguments["find"], call.arguments["replace"])
        if call.tool is Tool.APPLY_PATCH and answer.success:
            source = self.workspace.solution
            candidate = Candidate(call.id, hashlib.sha256(source.encode()).hexdigest(), source)
            self._state.candidates.append(candidate)
            self._state.pending = candidate if self.rules.arm is Arm.PREDICTIVE else None
            if rejected and self.rules.variant.revise_feedback:
                outcome = TEST_LINES[self._state.verdicts[rejected.sha256].label]
                answer = Answer(True, f"{answer.text}\nprevious candidate: {outcome}")
        self._spend(CallRecord(call.id, call.tool, self._here(), answer.success))
        out, err = (answer.text, "") if answer.success else ("", answer.text)
        self._say(render_result(call.id, answer.success, stdout=out, stderr=err))

    def _visible_test(self, call_id: str, overridden: bool = False) -> Play:
        state = self._state
        if self._tests_exhausted():
            self._spend(CallRecord(call_id, Tool.PYTHON_TEST, self._here(), False, overridden=overridden))
            self._say(render_result(call_id, False, stderr=BUDGET_EXHAUSTED))
            return
        cost, source = self._cost(Tool.PYTHON_TEST), self.workspace.solution
        label = (yield from self._verdict(source)).label
        state.tests_run += 1
        if state.candidates:
            state.candidates[-1].tested = True
        passed, timed_out = label is Label.PASS, label is Label.TIMEOUT
        self._spend(CallRecord(call_id, Tool.PYTHON_TEST, self._here(), passed, cost, label, timed_out, overridden))
        self._say(render_test_result(call_id, label))

    def _shadow_target(self, pending: Candidate, choice: Choice) -> Play:
        if pending.sha256 not in self._state.verdicts:
            self._state.shadow_tests += 1
        pending.shadow = True
        yield from self._verdict(pending.source)
        self._add_target(pending, choice, shadow=True)

    def _add_target(self, pending: Candidate, choice: Choice, shadow: bool) -> None:
        verdict = self._state.verdicts[pending.sha256]
        target = PredictionTarget(
            call_id=pending.call_id,
            message_index=self._here(),
            candidate_sha256=pending.sha256,
            verified_label=verdict.label,
            published_label=verdict.published_label,
            label=choice.label,
            decision=choice.decision,
            effective_decision=choice.carried_out,
            overridden=choice.overridden,
            shadow=shadow,
            failed_step=verdict.failed_step,
            detail=choice.detail,
            verified_detail=render_detail(self.rules.variant.detail, verdict.failed_assertion, verdict.observed),
        )
        self._state.targets.append(target)

    def _verify_the_rest(self) -> Play:
        """Verify every candidate for the metrics, then the hidden final check: the tests once more, uncached."""
        for candidate in self._state.candidates:
            candidate.shadow = candidate.shadow or not candidate.tested
            if candidate.sha256 not in self._state.verdicts:
                self._state.shadow_tests += 1
                yield from self._verdict(candidate.source)
        verdict = yield RunTest(self.workspace.solution)
        assert isinstance(verdict, Verdict)
        self._state.final_verdict = verdict

    def _verdict(self, source: str) -> Generator[Action, ModelTurn | Verdict, Verdict]:
        """The verdict on a source, run once for each digest."""
        digest = hashlib.sha256(source.encode()).hexdigest()
        if digest not in self._state.verdicts:
            verdict = yield RunTest(source)
            assert isinstance(verdict, Verdict)
            self._state.verdicts[digest] = verdict
        return self._state.verdicts[digest]

    # Small bookkeeping.

    def _here(self) -> int:
        """The index of the last assistant message: the one being acted on."""
        return max(i for i, message in enumerate(self.messages) if message["role"] == "assistant")

    def _spend(self, call: CallRecord) -> None:
        self._state.spent += call.cost
        self._state.used_ids.add(call.id)
        self._state.calls.append(call)

    def _say(self, text: str) -> None:
        self.messages.append({"role": "tool", "content": text})

    def _breach(self, breach: Breach) -> None:
        self._state.stop = StopReason.PROTOCOL
        self._state.error = ProtocolError(breach.kind, breach.detail, self._here())

    def _conversation(self) -> str:
        return "\0".join(message["content"] for message in self.messages)


def drive(episode: Episode, ask: Callable[[list[Message]], ModelTurn], run: Callable[[str], Verdict]) -> None:
    """Play an episode to its end: `ask` samples a turn for a conversation, `run` tests a source."""
    action = episode.start()
    while action is not None:
        action = episode.send(ask(episode.messages) if isinstance(action, AskModel) else run(action.source))
