"""The shapes of the SFT traces, byte for byte: every word that a demonstration and the environment say.

`python -m tests.test_golden_traces` writes `tests/golden/` anew, after a change of the wording or of the protocol
that is meant; read the difference before you keep it.
"""

from pathlib import Path

import pytest

from glyph.executor import Executor
from glyph.protocol import Arm
from glyph.tasks.demonstrations import Demonstration, Family, assistant_turns, play_turns
from glyph.tasks.prompts import load_wording
from tests.tiny_tasks import DEMONSTRATIONS, SLIPPED

GOLDEN = Path(__file__).parent / "golden"
SHAPES = {
    "arm_a_direct": (Arm.REACTIVE, DEMONSTRATIONS[Family.DIRECT]),
    "arm_a_one_step": (Arm.REACTIVE, DEMONSTRATIONS[Family.SHADOW]),
    "arm_a_two_step": (Arm.REACTIVE, DEMONSTRATIONS[Family.DEEP_SHADOW]),
    "arm_a_slip": (Arm.REACTIVE, SLIPPED["visible"]),
    **{f"arm_b_{family.value}": (Arm.PREDICTIVE, DEMONSTRATIONS[family]) for family in Family},
    **{f"arm_b_{family}_slip": (Arm.PREDICTIVE, shown) for family, shown in SLIPPED.items()},
}


def trace_text(arm: Arm, demonstration: Demonstration, executor: Executor) -> str:
    """A conversation as plain text: a line for each role, then its content."""
    wording = load_wording()
    turns = assistant_turns(demonstration, arm, wording)
    messages, record = play_turns(demonstration.task, arm, turns, wording, executor.run)
    assert record.reward == 1.0
    return "".join(f"=== {message['role']}\n{message['content']}\n" for message in messages)


@pytest.mark.parametrize("name", SHAPES)
def test_a_trace_is_the_golden_one(name: str, executor: Executor) -> None:
    arm, demonstration = SHAPES[name]
    assert trace_text(arm, demonstration, executor) == (GOLDEN / f"{name}.txt").read_bytes().decode()


def test_arm_a_shows_the_same_whatever_arm_b_foresees(executor: Executor) -> None:
    for one, other in ((Family.SHADOW, Family.VISIBLE), (Family.DEEP_SHADOW, Family.DEEP_VISIBLE)):
        texts = [trace_text(Arm.REACTIVE, DEMONSTRATIONS[family], executor) for family in (one, other)]
        assert texts[0] == texts[1]


def test_every_golden_file_is_compared() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SHAPES)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    with Executor() as shared:
        for shape, (its_arm, shown) in SHAPES.items():
            text = trace_text(its_arm, shown, shared)
            (GOLDEN / f"{shape}.txt").write_text(text, encoding="utf-8", newline="")
            print(GOLDEN / f"{shape}.txt")
