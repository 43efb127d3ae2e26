"""The live table of a training run, on a terminal and without one."""

import io
from typing import Any

import pytest
from rich.console import Console

from glyph.commands import live
from glyph.commands.live import TrainingProgress


def line(step: int, **fields: Any) -> dict[str, Any]:
    seconds = {"generation": 1.9, "environment": 0.4, "training": 0.8, "total": 3.12}
    return {"kind": "train", "step": step, "reward_mean": 0.25, "policy_loss": -0.0123, "grad_norm": 0.5,
            "label_loss": None, "tokens_per_second": 912.4, "seconds": seconds, **fields}  # fmt: skip


EVALUATION = {"kind": "evaluation", "step": 4, "n": 200, "metrics": {"pass_at_1": {"value": 0.425}}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(live, "monotonic", lambda: now[0])
    return now


def plain_console() -> Console:
    return Console(file=io.StringIO(), highlight=False, width=60)


def said(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_without_a_terminal_a_plain_line_a_step(clock: list[float]) -> None:
    console = plain_console()
    with TrainingProgress("RL of arm B", 6, console) as progress:
        progress.update(EVALUATION)
        clock[0] += 3
        progress.update(line(1))
        progress.waiting_for("rollouts of step 2:\n12 of 64 (30 s)")
        clock[0] += 5
        progress.update(line(2, label_loss=1.5))
    lines = said(console)
    assert lines[0] == "RL of arm B: 6 steps"
    assert lines[1] == "evaluation after step 4: pass@1 42.5% n=200"
    assert lines[2] == (
        "step 1 of 6: reward 0.250, policy loss -0.0123, grad norm 0.5, tokens/s 912, "
        "seconds 3.12 (g 1.9, e 0.4, t 0.8), 0:15 left"
    )
    assert lines[3] == "waiting for rollouts of step 2: 12 of 64 (30 s)"
    assert "label loss 1.5000" in lines[4]
    assert lines[4].endswith("0:16 left")  # the median of 3 and 5 seconds, four times
    assert len(lines) == 5


def test_the_time_of_an_evaluation_is_no_time_of_a_step(clock: list[float]) -> None:
    progress = TrainingProgress("x", 11, plain_console())
    assert progress.eta_seconds() is None
    clock[0] += 2
    progress.update(line(1))
    clock[0] += 500
    progress.update(EVALUATION)
    clock[0] += 4
    progress.update(line(2))
    assert progress.eta_seconds() == 27  # 9 · (2 + 4) / 2


def shown(progress: TrainingProgress) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    console.print(progress.render())
    return "\n".join(said(console))


def test_the_table_has_the_last_steps_and_what_is_waited_for(clock: list[float]) -> None:
    progress = TrainingProgress("RL", 100, plain_console())
    for step in range(1, 21):
        clock[0] += 60
        progress.update(line(step))
    progress.update(EVALUATION)
    progress.waiting_for("the checkpoint of step 20 (31 s)")
    text = shown(progress)
    assert "RL · step 20 of 100 · 1:20:00 left · pass@1 42.5% at step 4" in text
    steps = [row.split()[0] for row in text.splitlines() if row.split() and row.split()[0].isdigit()]
    assert steps == [str(step) for step in range(9, 21)]
    assert "label loss" not in text  # Arm A has none
    assert text.rstrip().endswith("waiting for the checkpoint of step 20 (31 s)")
    progress.update(line(21, reward_mean=None))
    assert "waiting" not in shown(progress)
    assert "–" in shown(progress)


def test_sft_lines_and_hostile_text() -> None:
    progress = TrainingProgress("SFT \x1b[2J[red]", 2, plain_console())
    progress.update({"kind": "train", "step": 1, "loss": 2.5, "seconds": 0.4})
    progress.update({"kind": "evaluation", "step": 1, "n": 0, "metrics": {"pass_at_1": {"value": None}}})
    progress.waiting_for("\x1b[31m[bold]model")
    text = shown(progress)
    assert "\x1b" not in text
    assert "[red]" in text
    assert "[bold]model" in text
    assert "2.5000" in text
    assert "pass@1 – at step 1" in text


def test_on_a_terminal_the_table_is_redrawn_and_stays() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, _environ={"TERM": "xterm"})
    with TrainingProgress("RL", 1, console) as progress:
        progress.update(line(1))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b[?25l" in text  # the cursor is hidden while it is drawn,
    assert "\x1b[?25h" in text  # and shown again
    assert "done" in text
