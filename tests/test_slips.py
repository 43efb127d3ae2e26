"""Patches that fail, found by hand on small files, and what the traces of both arms make of one."""

from collections import Counter
from dataclasses import replace

import pytest

from glyph.executor import Executor
from glyph.protocol import Arm, Decision, Label, StopReason, Tool
from glyph.records import Verdict
from glyph.tasks.demonstrations import (
    COMPOSITIONS,
    Demonstration,
    Family,
    assistant_turns,
    plan_demonstrations,
    play_turns,
)
from glyph.tasks.prompts import load_wording
from glyph.tasks.slips import Slip, SlipKind, failing_edits
from glyph.workspace import SOLUTION_PATH, Workspace
from tests.scripts import judge
from tests.tiny_tasks import DEMONSTRATIONS, DOUBLE, LARGEST, SLIPPED

A, B = Arm.REACTIVE, Arm.PREDICTIVE
BOTH = "def f(n):\n    m = n - 2\n    return m - 1\n"
FIRST_MENDED = "def f(n):\n    m = n + 2\n    return m - 1\n"
GOLD = "def f(n):\n    m = n + 2\n    return m + 1\n"


def test_edits_that_fail_by_hand() -> None:
    found = list(failing_edits([BOTH, FIRST_MENDED, GOLD]))
    words = [slip for kind, slip in found if kind is SlipKind.WORDS]
    assert words == [Slip(0, "-", "+")]  # twice in the first file, once in the second
    stale = [slip for kind, slip in found if kind is SlipKind.STALE]
    assert stale == [Slip(1, "    m = n - 2\n    return m - 1", "    m = n + 2\n    return m + 1")]
    misquoted = {(slip.step, slip.find) for kind, slip in found if kind is SlipKind.MISQUOTED}
    assert (0, "    m = n - 3") in misquoted
    assert (1, "    return m - 0") in misquoted
    assert not any("return" in find for step, find in misquoted if step == 0)


def test_every_edit_fails_on_the_file_that_it_meets() -> None:
    states = [BOTH, FIRST_MENDED, GOLD]
    for _, slip in failing_edits(states):
        answer = Workspace({SOLUTION_PATH: states[slip.step]}).apply_patch(SOLUTION_PATH, slip.find, slip.replace)
        assert not answer.success
        assert slip.find != slip.replace
    assert list(failing_edits([GOLD])) == []


def test_in_arm_a_the_file_is_read_and_the_right_patch_follows(executor: Executor) -> None:
    shown, wording = SLIPPED["visible"], load_wording()
    messages, record = play_turns(LARGEST, A, assistant_turns(shown, A, wording), wording, executor.run)
    assert [(call.tool, call.success) for call in record.calls] == [
        (Tool.APPLY_PATCH, True),
        (Tool.PYTHON_TEST, False),
        (Tool.APPLY_PATCH, False),
        (Tool.READ_FILE, True),
        (Tool.APPLY_PATCH, True),
        (Tool.PYTHON_TEST, True),
    ]
    assert [call.id for call in record.calls] == ["1", "2", "3", "4", "5", "6"]
    refused = "patch failed: find does not occur in solution.py, it must occur exactly once"
    assert messages[7]["content"] == f"RESULT 3:\nstatus: failed\nstderr:\n{refused}"
    assert record.reward == 1.0


def test_in_a_revise_turn_the_candidate_stays_pending_and_is_predicted_again(executor: Executor) -> None:
    shown, wording = SLIPPED["shadow"], load_wording()
    _, record = play_turns(LARGEST, B, assistant_turns(shown, B, wording), wording, executor.run)
    assert [(t.label, t.decision, t.verified_label) for t in record.targets] == [
        (Label.ASSERTION_FAILURE, Decision.REVISE, Label.ASSERTION_FAILURE),
        (Label.ASSERTION_FAILURE, Decision.REVISE, Label.ASSERTION_FAILURE),
        (Label.PASS, Decision.KEEP, Label.PASS),
    ]
    assert record.targets[0].candidate_sha256 == record.targets[1].candidate_sha256
    assert [call.success for call in record.calls] == [True, False, True, True]
    assert record.shadow_tests == 1  # one candidate, one verdict
    assert record.reward == 1.0


def test_the_longest_trace_spends_the_whole_budget(executor: Executor) -> None:
    wording = load_wording()
    slip = Slip(1, "return min(number)", "return max(numbers)", read=True)
    shown = replace(DEMONSTRATIONS[Family.DEEP_VISIBLE], slip=slip)
    for arm in Arm:
        _, record = play_turns(LARGEST, arm, assistant_turns(shown, arm, wording), wording, executor.run)
        assert (record.calls[-1].id, record.stop_reason, record.reward) == ("8", StopReason.FINAL, 1.0)


def planned(slips: dict[Family, int], counts: dict[Family, int]) -> list[Demonstration]:
    """Demonstrations of copies of one task; only its gold code passes."""
    tasks = [replace(DOUBLE, task_id=str(i)) for i in range(sum(counts.values()))]

    def run(source: str, tests: str) -> Verdict:
        return judge("good" if source == DOUBLE.gold + "\n" else "wrong")

    return list(plan_demonstrations(tasks, run, {**dict.fromkeys(Family, 0), **counts}, slips=slips))


def test_slips_are_given_out_and_half_of_the_visible_ones_read_the_file() -> None:
    counts = {Family.DIRECT: 1, Family.SHADOW: 3, Family.VISIBLE: 5}
    made = planned({Family.SHADOW: 2, Family.VISIBLE: 4}, counts)
    given = [d for d in made if d.slip]
    assert Counter(d.family for d in made) == counts
    assert Counter((d.family, d.slip.read) for d in given if d.slip) == {
        (Family.SHADOW, False): 2,
        (Family.VISIBLE, False): 2,
        (Family.VISIBLE, True): 2,
    }


def test_slips_that_cannot_be_built_are_named() -> None:
    with pytest.raises(ValueError, match=r"no failing patch could be built for \{'direct': 1\}"):
        planned({Family.DIRECT: 1}, {Family.DIRECT: 2})


def test_the_compositions_have_212_traces() -> None:
    for composition in COMPOSITIONS.values():
        assert sum(composition.families.values()) == 212
        assert all(n <= composition.families[family] for family, n in composition.slips.items())
    assert COMPOSITIONS["mbpp"].slips == {}
    assert sum(COMPOSITIONS["mini"].slips.values()) == 32
