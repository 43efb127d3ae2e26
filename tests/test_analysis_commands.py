"""The commands as a user meets them: tables, JSON, files, and one clear line for bad input."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from glyph.commands.analysis import register
from glyph.evaluation.traces import Message, read_traces, write_traces
from glyph.protocol import Decision, Label
from glyph.report.data import build_report, choose_example
from glyph.report.markdown import render_markdown
from glyph.report.rollout import render_rollout
from tests.builders import PATCH_TURN, error_trace, target, trace, visible_test

app = typer.Typer()
register(app)


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def arms(tmp_path: Path) -> tuple[Path, Path]:
    """Arm A solves 5 of 10 tasks and Arm B 8 of 10, with one fault each."""
    a = [trace(f"mbpp_{i}", solved=i % 2 == 0, arm="a", targets=()) for i in range(10)] + [error_trace(arm="a")]
    b = [trace(f"mbpp_{i}", solved=i not in (3, 4)) for i in range(10)] + [error_trace()]
    return write_traces(tmp_path / "a.jsonl", a), write_traces(tmp_path / "b.jsonl.gz", b)


def row_of(text: str, title: str) -> str:
    return next(line for line in text.splitlines() if line.lstrip("| ").startswith(title))


def test_report_prints_both_arms_with_n_and_interval(arms: tuple[Path, Path]) -> None:
    text = run("report", *arms).stdout
    row = row_of(text, "pass@1")
    assert "50.0% [23.7, 76.3] n=10" in row
    assert "80.0% [49.0, 94.3] n=10" in row
    assert "errors excluded: 1" in row_of(text, "Arm A:")
    assert "– n=0" in row_of(text, "prediction accuracy")
    assert "0.3750" in row_of(text, "Arm A vs Arm B")  # 1 against 4 discordant: 2 · (1 + 5) / 32
    assert text.splitlines()[-1] == f"next: glyph show {arms[0]} --task mbpp_0"
    assert "\x1b" not in text


def test_report_json_is_complete_and_nothing_else(arms: tuple[Path, Path], tmp_path: Path) -> None:
    result = run("report", *arms, "--json", "--output", tmp_path / "out")
    data = json.loads(result.stdout)
    assert [column["name"] for column in data["columns"]] == ["Arm A", "Arm B"]
    a, b = (column["metrics"] for column in data["columns"])
    assert b["pass_at_1"]["value"] == 0.8
    assert b["pass_at_1"]["interval"]["method"] == "wilson"
    assert a["prediction_accuracy"]["value"] is None
    assert a["prediction_accuracy"]["denominator"] == 0
    assert data["columns"][1]["confusion"]["counts"][1][0] == 2
    assert data["comparisons"][0]["mcnemar"]["only_second"] == 4
    assert f"wrote {tmp_path / 'out' / 'report.md'}" in result.stderr
    assert json.loads((tmp_path / "out/report.json").read_text()) == data


def test_report_writes_a_page_with_a_rollout_of_each_arm(arms: tuple[Path, Path], tmp_path: Path) -> None:
    text = run("report", *arms, "-o", tmp_path / "out", "--title", "Quick | start").stdout
    assert f"wrote {tmp_path / 'out' / 'report.json'}" in text
    page = (tmp_path / "out/report.md").read_text("utf-8")
    assert page.startswith("# Quick | start\n")
    for heading in (
        "Outcome",
        "Stop reasons",
        "Confusion matrix, Arm B",
        "One rollout of Arm A",
        "One rollout of Arm B",
    ):
        assert f"\n## {heading}\n" in page
    assert "80.0% [49.0, 94.3] n=10" in row_of(page, "pass@1")
    assert page.count("```text") == 2


def test_the_page_names_the_manifest_facts(arms: tuple[Path, Path]) -> None:
    report = build_report([read_traces(path) for path in arms], "Run", {"commit": "f08ffd7", "budget": 8})
    page = render_markdown(report)
    assert "- commit: f08ffd7\n" in page
    assert "- budget: 8\n" in page


def test_one_file_with_both_arms_gives_two_columns(tmp_path: Path) -> None:
    both = write_traces(tmp_path / "traces.jsonl", [trace("t1"), trace("t1", solved=False, arm="a", targets=())])
    names = [column["name"] for column in json.loads(run("report", tmp_path, "--json").stdout)["columns"]]
    assert names == ["Arm A", "Arm B"]
    assert "holds Arm A and Arm B; compare needs one arm a file" in run("compare", both, both, code=2).stderr


def test_two_runs_of_one_arm_get_names_of_their_own(tmp_path: Path) -> None:
    paths = [
        write_traces(tmp_path / name / "traces.jsonl", [trace("t1", variant=variant)])
        for name, variant in (("one", "standard"), ("two", "forced_keep"))
    ]
    report = json.loads(run("report", *paths, "--json").stdout)
    assert [column["name"] for column in report["columns"]] == ["Arm B standard", "Arm B forced_keep"]
    assert report["holm_p"] == {"Arm B standard vs Arm B forced_keep": 1.0}
    columns = json.loads(run("report", paths[0], paths[0], "--json").stdout)["columns"]
    assert len({column["name"] for column in columns}) == 2


def test_several_comparisons_are_holm_corrected(tmp_path: Path) -> None:
    paths = []
    for name, solved in (("a", 0), ("b", 6), ("c", 8)):
        traces = [trace(f"t{i}", solved=i < solved, variant=name) for i in range(8)]
        paths.append(write_traces(tmp_path / f"{name}.jsonl", traces))
    report = run("report", *paths)
    # exact p of 0 against 6, 8 and 2 discordant: 2/64, 2/256, 1/2; Holm: 2 · 2/64, 3 · 2/256, 1/2
    assert row_of(report.stdout, "Arm B a vs Arm B b").split()[-3:] == ["0.0312", "0.0412", "0.0625"]
    assert row_of(report.stdout, "Arm B a vs Arm B c").split()[-1] == "0.0234"
    assert row_of(report.stdout, "Arm B b vs Arm B c").split()[-1] == "0.5000"


def test_only_errors_is_a_report_without_values(tmp_path: Path) -> None:
    path = write_traces(tmp_path / "traces.jsonl", [error_trace()])
    text = run("report", path, code=1).stdout
    assert "0 rollouts scored; errors excluded: 1" in text
    assert "– n=0" in row_of(text, "pass@1")


def test_errors_tell_the_commonest_text_and_a_run_of_nothing_else_fails(tmp_path: Path) -> None:
    texts = ["OSError: disk\n full \ud800", "Other: x", "OSError: disk\n full \ud800"]
    errors = [replace(error_trace(f"t{i}"), error=text) for i, text in enumerate(texts)]
    said = "errors excluded: 3, 2 of them: OSError: disk full \\ud800"
    path = write_traces(tmp_path / "traces.jsonl", errors)
    result = run("report", path, "-o", tmp_path / "out", code=1)
    assert f"0 tasks, 0 rollouts scored; {said}\n" in result.stdout
    assert result.stderr == f"error: no rollout was scored; Arm B: {said}\n"
    assert said.replace("\\", "\\\\") in (tmp_path / "out/report.md").read_text("utf-8")
    column = json.loads(run("report", path, "--json", code=1).stdout)["columns"][0]
    assert column["commonest_error"] == {"text": "OSError: disk full \ud800", "count": 2}
    mixed = write_traces(tmp_path / "mixed.jsonl", [trace("t7"), *errors])
    assert f"1 task, 1 rollout scored; {said}" in run("report", mixed).stdout
    assert f"Arm B: 1 scored rollout of 1 task; {said}" in run("passk", mixed).stdout


@pytest.fixture
def played(tmp_path: Path) -> Path:
    """A run folder as `glyph rollouts` writes it without a model."""
    folder = tmp_path / "my run"
    for arm in ("a", "b"):
        rollout = trace("mini-00157", arm=arm, targets=(), solved=arm == "b")
        write_traces(folder / f"arm_{arm}/traces.jsonl", [replace(rollout, model=None)])
    (folder / "manifest.json").write_text('{"plan": {"model": "demonstrations", "shots": 0}}')
    return folder


def test_a_run_folder_stands_for_its_arms_or_names_them(played: Path) -> None:
    text = run("report", played).stdout
    assert "Arm A vs Arm B" in text
    assert text.endswith(f"next: glyph show '{played}/arm_a/traces.jsonl' --task mini-00157\n")
    for words in (["passk", played], ["compare", played, played / "arm_a"], ["show", played, "--task", "157"]):
        assert f"name one of its folders: {played}/arm_a, {played}/arm_b" in run(*words, code=2).stderr


def test_every_command_says_that_no_model_was_run(played: Path) -> None:
    a, b = played / "arm_a", played / "arm_b"
    for words in (["report", played], ["passk", a], ["compare", a, b], ["show", a, "--task", "157"]):
        assert "NOTE: no model was run: a script played demonstrations" in run(*words).stdout
        data = json.loads(run(*words, "--json").stdout)
        assert data["schema_version"] == 1
        assert (data.get("manifest") or data)["note"].startswith("no model was run")
    assert " · model demonstrations · rollout " in run("show", a, "--task", "157").stdout
    (played / "manifest.json").write_text('{"plan": {"model": "org/small"}}')
    data = json.loads(run("show", a, "--task", "157", "--json").stdout)
    assert (data["note"], data["model"]) == (None, "org/small")


def test_demonstrations_say_so_themselves_without_a_manifest(tmp_path: Path) -> None:
    path = write_traces(tmp_path / "t.jsonl", [replace(trace(), model="demonstrations")])
    assert "NOTE: no model was run" in run("passk", path).stdout


def test_demonstrations_in_the_prompt_are_no_turns_of_the_rollout(tmp_path: Path) -> None:
    system, *shown = trace("other").messages
    rollout = trace("t1")
    path = write_traces(tmp_path / "t.jsonl", [replace(rollout, messages=(system, *shown, *rollout.messages[1:]))])
    mark = "demonstration in the prompt, not the model"
    text = run("show", path, "--task", "t1").stdout
    assert text.count(mark) == 1
    line = f"\n── {mark}: 6 messages (glyph show --full shows them)\n\n── 7 user ─"
    assert line in text
    full = run("show", path, "--task", "t1", "--full").stdout
    assert full.count(mark) == 6
    assert f"── 2 assistant · {mark} ─" in full
    assert "── 7 user ─" in full
    run("report", path, "-o", tmp_path)
    assert line in (tmp_path / "report.md").read_text("utf-8")
    data = json.loads(run("show", path, "--task", "t1", "--json").stdout)
    assert data["demonstration_messages"] == [1, 2, 3, 4, 5, 6]


def test_show_compares_numbers_of_tasks_as_numbers(tmp_path: Path) -> None:
    path = write_traces(tmp_path / "t.jsonl", [trace("mini-00157"), trace("mini-1157"), trace("x/7"), trace("y/7")])
    for task in ("157", "0157", "mini-00157"):
        assert run("show", path, "--task", task).stdout.startswith("task mini-00157 ")
    assert "several tasks match '7'; the file has x/7, y/7\n" in run("show", path, "--task", "7", code=2).stderr
    for task in ("57", "", " ", "9" * 5000):
        assert "the file has mini-00157" in run("show", path, "--task", task, code=2).stderr
    assert "--task is empty: give a task id or its number" in run("show", path, "--task", "", code=2).stderr


def test_compare_refuses_a_run_and_itself(arms: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(arms[0])
    assert "both sides are this file" in run("compare", arms[0], tmp_path / "link.jsonl", code=2).stderr


def test_piped_lines_are_whole_and_have_no_trailing_blanks(
    arms: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    long = tmp_path / "/".join(["a folder with a long name"] * 12) / "t.jsonl"
    gap = replace(trace("t1"), messages=(Message("assistant", PATCH_TURN.replace("\\n", "  \\n\\n")),))
    write_traces(long, [gap])
    for words in (["report", *arms, long], ["passk", arms[0]], ["compare", *arms], ["show", long, "--task", "1"]):
        text = run(*words).stdout
        assert [line for line in text.split("\n") if line != line.rstrip()] == []
    assert f"{long} (standard" in run("report", long).stdout


def test_python_m_glyph_is_glyph() -> None:
    done = subprocess.run([sys.executable, "-m", "glyph", "passk", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "python -m glyph passk" in done.stdout


def test_passk(tmp_path: Path) -> None:
    samples = [trace("t1", solved=i < 2, wall_seconds=float(i)) for i in range(4)]
    path = write_traces(tmp_path / "traces.jsonl", samples)
    text = run("passk", path, "--k", "1,2,10").stdout
    assert "50.0%" in row_of(text, "pass@1 ")
    assert "83.3%" in row_of(text, "pass@2 ")
    assert "– n=0" in row_of(text, "pass@10")
    data = json.loads(run("passk", path, "--k", "2", "--json").stdout)
    assert data["pass_at_k"]["Arm B"]["pass_at_2"]["value"] == pytest.approx(5 / 6)


def test_compare_lists_what_it_could_not_pair(tmp_path: Path, arms: tuple[Path, Path]) -> None:
    extra = write_traces(tmp_path / "c.jsonl", [trace("mbpp_1"), trace("mbpp_99", solved=False)])
    text = run("compare", arms[0], extra).stdout
    assert "9 tasks only in first, left out: mbpp_0, mbpp_2" in text
    assert "1 task only in second, left out: mbpp_99" in text
    data = json.loads(run("compare", *arms, "--json").stdout)
    assert data["mcnemar"]["p_exact"] == pytest.approx(0.375)
    assert data["difference"] == pytest.approx(0.3)


def test_compare_explains_why_there_is_no_mcnemar(tmp_path: Path) -> None:
    paths = [
        write_traces(tmp_path / f"{name}.jsonl", [trace("t1", wall_seconds=1.0 + i) for i in range(n)])
        for name, n in (("a", 2), ("b", 1))
    ]
    assert "no McNemar test: 1 of 1 tasks have several samples" in run("compare", *paths).stdout


def test_show_reads_like_a_conversation(arms: tuple[Path, Path]) -> None:
    text = run("show", arms[1], "--task", "3").stdout
    assert text.index("── 1 user") < text.index("── 2 assistant") < text.index("── 3 tool")
    assert "  +     return 2 * n" in text
    assert "candidate 1 (00000000): ASSERTION_FAILURE, tested" in text
    assert "predicted PASS, verified ASSERTION_FAILURE: WRONG; KEEP" in text
    assert "call c2 python_test: ASSERTION_FAILURE, cost 1" in text
    assert "stop final · final check ASSERTION_FAILURE · 2 of 8 spent in 2 calls · 0 shadow tests · reward 0" in text
    assert json.loads(run("show", arms[1], "--task", "mbpp_3", "--json").stdout)["record"]["task_id"] == "mbpp_3"
    assert "error (not scored): SandboxError: no interpreter" in run("show", arms[1], "--task", "t9").stdout


def test_show_picks_samples(tmp_path: Path) -> None:
    path = write_traces(tmp_path / "t.jsonl", [trace("t1"), trace("t1", solved=False)])
    assert "reward 1" in run("show", path, "--task", "t1").stdout
    second = run("show", path, "--task", "t1", "--sample", "1")
    assert "reward 0" in second.stdout
    assert "has 2 rollouts" in run("show", path, "--task", "t1", "--sample", "2", code=2).stderr


BAD_INPUT = [
    (["report", "{}/absent.jsonl"], "absent.jsonl: no such trace file or run folder"),
    (["report", "{}/bad.jsonl"], "bad.jsonl:2: not JSON"),
    (["passk", "{}/good.jsonl", "--k", "0"], "--k: expected positive whole numbers"),
    (["passk", "{}/good.jsonl", "--k", "1,x"], "--k: expected positive whole numbers"),
    (["compare", "{}/good.jsonl", "{}/other.jsonl"], "no task is in both"),
    (["show", "{}/good.jsonl", "--task", "nope"], "no task 'nope'; the file has t1"),
    (["report", "{}/good.jsonl", "--output", "{}/good.jsonl"], "--output must be a folder, {}/good.jsonl is a file"),
]


@pytest.mark.parametrize(("words", "message"), BAD_INPUT, ids=range(len(BAD_INPUT)))
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, words: list[str], message: str) -> None:
    write_traces(tmp_path / "good.jsonl", [trace("t1")])
    write_traces(tmp_path / "other.jsonl", [trace("t2")])
    (tmp_path / "bad.jsonl").write_text((tmp_path / "good.jsonl").read_text() + "{\n")
    result = run(*(word.format(tmp_path) for word in words), code=2)
    assert result.stderr.startswith("error: ")
    assert message.format(tmp_path) in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_lenient_reports_what_it_skipped(tmp_path: Path) -> None:
    path = write_traces(tmp_path / "t.jsonl", [trace("t1")])
    with path.open("a") as file:
        file.write("{\n")
    assert "bad lines skipped: 1 (line 2)" in run("report", path, "--lenient").stdout
    assert "t.jsonl:2: not JSON" in run("passk", path, "--lenient").stderr
    skipped = json.loads(run("report", path, "--lenient", "--json").stdout)["columns"][0]["skipped_lines"]
    assert [bad["line"] for bad in skipped] == [2]


def test_hostile_text_cannot_reach_the_terminal_or_break_the_page(tmp_path: Path) -> None:
    hostile = "FINAL: \x1b[2J\x07 \ud800 ```\n````\n# not a heading | <b>"
    odd = replace(trace("t1"), messages=(Message("assistant", hostile),))
    text = render_rollout(odd)
    assert "\\x1b[2J\\x07 \\ud800" in text
    text.encode("utf-8")
    path = write_traces(tmp_path / "t.jsonl", [odd])
    run("report", path, "-o", tmp_path)
    assert "\n`````text\n" in (tmp_path / "report.md").read_text("utf-8")
    run("show", path, "--task", "t1")


def test_a_revising_turn_and_an_override_are_marked() -> None:
    revise = "<PREDICTION>RUNTIME_ERROR</PREDICTION>\n<DECISION>REVISE</DECISION>\n" + PATCH_TURN
    verified = target(
        Label.RUNTIME_ERROR, Label.RUNTIME_ERROR, Decision.REVISE, overridden=True,
        effective_decision=Decision.KEEP, shadow=False,
    )  # fmt: skip
    original = trace("t1", targets=(verified,))
    messages = (*original.messages[:4], Message("assistant", revise), *original.messages[5:])
    text = render_rollout(replace(original, messages=messages))
    assert "<DECISION>REVISE</DECISION>\nCALL apply_patch c1 solution.py\n  - # todo\n" in text
    assert "predicted RUNTIME_ERROR, verified RUNTIME_ERROR: right; REVISE, overridden: KEEP carried out" in text


def test_the_example_is_the_most_telling_rollout() -> None:
    plain, failed = trace("t1"), trace("t2", solved=False)
    recovered = trace("t3", calls=(visible_test("c1", Label.OTHER), visible_test("c2", Label.PASS)))
    assert choose_example([error_trace(), failed, plain, recovered]) is recovered
    assert choose_example([error_trace(), failed, plain]) is plain
    assert choose_example([]) is None
