"""docs/extending.md: its three files, taken from the page, do in the real commands what the page says of them."""

import collections
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from glyph.cli import build_app
from glyph.codec import codec_of
from glyph.config import ConfigError, load_config
from glyph.credit import Credited, CreditOptions, CreditRule, TrainingSample, UniformGroups
from glyph.episode import Rules
from glyph.evaluation.traces import read_traces
from glyph.executor import Executor
from glyph.local.inference.requests import GenerationError
from glyph.local.inference.sampling import SamplingParams
from glyph.local.rollouts.collector import Assignment, Collector, Played
from glyph.local.rollouts.policy import EnginePolicy
from glyph.local.serving.scripted import ScriptedClient
from glyph.local.training.experience import make_experience
from glyph.protocol import Arm, Label, StopReason
from glyph.tasks.demonstrations import COMPOSITIONS, Composition, Family, proportional
from glyph.tasks.preparation import plan
from glyph.tasks.prompts import load_wording
from glyph.tasks.task_sets import load_task_set
from glyph.tasks.validation import read_folder, validate
from glyph.variants import Variant, parse_variant
from tests.scripted_generator import ScriptedGenerator
from tests.scripts import judge, keep, patch, play, revise, visible
from tests.test_verifiers_run import environment, record_of, run, script
from tests.tiny_model import tiny_tokenizer
from tests.tiny_tasks import DOUBLE

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the page's files; their modules are forgotten afterwards."""
    for name, source in FILES.items():
        (tmp_path / name).write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


def command(*words: str) -> Result:
    return CliRunner().invoke(build_app(), list(words))


def test_the_page_has_three_files_of_thirty_lines_at_most() -> None:
    assert [*FILES] == ["my_credit.py", "my_variants.py", "my_tasks.py"]
    assert all(source.count("\n") + 1 <= 30 for source in FILES.values())


def test_the_commands_of_the_page_name_what_the_files_hold(folder: Path) -> None:
    named = re.findall(r"\bmy_\w+:\w+", "\n".join(COMMANDS))
    assert set(named) == {"my_credit:standardised", "my_variants:REVISE_ONCE", "my_tasks:load"}
    for name in named:
        assert re.search(rf"^(def )?{name.partition(':')[2]}\b", FILES[f"{name.partition(':')[0]}.py"], re.MULTILINE)


# A credit rule.


def sample(label: Label | None = None) -> TrainingSample:
    ce = (0.0, 0.0, 0.1 if label else 0.0)
    return TrainingSample((1, 2, 3), (False, True, True), (0.0, -1.0, -2.0), (1.0,) * 3, ce, label=label)


def rule_of(reference: str) -> CreditRule:
    return load_config("rl", "mini", "b", overrides=[f"rl.credit_rule={reference}"], model="m").credit_rule()


def test_the_rule_divides_by_the_standard_deviation(folder: Path) -> None:
    """Rewards 1, 0, 0, 0: mean 1/4, variance 3/16, so √3 and three times -1/√3. Label samples keep their 0."""
    rule, options = rule_of("my_credit:standardised"), CreditOptions()
    group = [Credited((sample(), sample(Label.PASS))), *[Credited((sample(),))] * 3]
    made = rule(group, [1.0, 0.0, 0.0, 0.0], options)
    advantages = [each.advantage for samples in made for each in samples]
    assert advantages == pytest.approx([3**0.5, 0.0, *[-(3**-0.5)] * 3])
    assert made[0][1].ce_weights == (0.0, 0.0, 0.1)
    assert rule(group, [1.0] * 4, options) == [()] * 4
    kept = rule(group, [1.0] * 4, replace(options, uniform_groups=UniformGroups.KEEP_CE))
    assert [len(samples) for samples in kept] == [2, 1, 1, 1]
    assert not any(any(each.rl_weights) for samples in kept for each in samples)


@pytest.fixture(scope="module")
def played(executor: Executor) -> list[Played]:
    """Two groups of three rollouts: one solved and two given up; three that the environment failed."""
    tokenizer = tiny_tokenizer()
    solved = [patch("1", DOUBLE.gold), visible("2"), "FINAL: done"]

    def say(session: str, turn: int) -> str | Exception:
        number = int(session.rpartition("/")[2])
        return GenerationError("gone") if number > 2 else solved[turn] if number == 0 else "FINAL: no"

    policy = EnginePolicy(ScriptedGenerator(tokenizer, say), tokenizer, SamplingParams())
    rules = Rules(Arm.REACTIVE, max_context_tokens=100_000)
    collector = Collector(policy, executor, rules, load_wording(), "scripted")
    ended = collector.collect([Assignment(DOUBLE, "train", number) for number in range(6)])
    return sorted(ended, key=lambda each: each.assignment.sample)


def test_experience_is_credited_by_the_rule(folder: Path, played: list[Played]) -> None:
    """Rewards 1, 0, 0: mean 1/3, variance 2/9. The rule is not asked about the group of which nothing is left."""
    codec, rule = codec_of(tiny_tokenizer()), rule_of("my_credit:standardised")
    experience = make_experience(played, 3, codec, CreditOptions(), rule)
    advantages = [samples[0].advantage if samples else None for samples in experience.samples]
    assert advantages == [*map(pytest.approx, (2**0.5, -(2**-0.5), -(2**-0.5))), None, None, None]
    assert experience.left_out == {"fault": 3}
    usual = make_experience(played, 3, codec, CreditOptions(), rule_of("group_mean"))
    assert usual.samples == make_experience(played, 3, codec, CreditOptions()).samples
    assert [s[0].advantage for s in usual.samples[:3]] == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_a_rule_that_does_not_answer_for_each_rollout_is_refused(played: list[Played]) -> None:
    codec = codec_of(tiny_tokenizer())
    with pytest.raises(ValueError, match="samples of 1 rollouts for a group of 3"):
        make_experience(played, 3, codec, CreditOptions(), lambda group, rewards, options: [()])


def test_a_rule_that_is_not_there_is_refused_with_its_key(folder: Path) -> None:
    for name, reason in {
        "mean": "expected group_mean, or module:attribute for one of your own",
        "my_credit:gone": f"'my_credit' ({folder / 'my_credit.py'}) has no 'gone'",
        "my_variants:REVISE_ONCE": "expected a function, got an object of type ReviseAtMost",
    }.items():
        with pytest.raises(ConfigError) as caught:
            rule_of(name)
        assert str(caught.value).startswith(f"rl.credit_rule: credit rule {name!r}: {reason}")


def test_a_run_trains_by_the_rule_and_plays_by_the_variant(folder: Path, tiny_data: Path) -> None:
    """Nobody solves anything here, and the usual rule would train nothing: what trains does so by this rule."""
    (folder / "my_test.py").write_text(
        "from dataclasses import replace\n\n"
        "def praise(group, rewards, options):\n"
        "    return [tuple(replace(s, advantage=1.0) for s in each.samples) for each in group]\n"
    )
    output, variant = folder / "run", "my_variants:REVISE_ONCE"
    settings = ["rl.steps=1", "rl.rollouts_per_step=4", "rl.group_size=4", "evaluation.at_start=false"]
    settings += ["evaluation.num_tasks=1", "rl.credit_rule=my_test:praise", f"environment.variant={variant}"]
    model = ["--model", str(ROOT / "models" / "mini"), "--data", str(tiny_data), "--device", "cpu"]
    done = command("rl", "b", *settings, *model, "--output", str(output))
    assert done.exit_code == 0, done.output
    line = json.loads((output / "metrics.jsonl").read_text().splitlines()[0])
    assert (line["kind"], line["reward_mean"], line["groups_uniform"]) == ("train", 0.0, 1)
    assert line["policy_tokens"] > 0
    (trace,) = read_traces(output / "evaluations" / "step_000001").traces
    assert trace.record is not None
    assert trace.record.variant == variant


# An arm variant.

FOLLOWS = [
    patch("1", "wrong 1"),
    revise("OTHER", "2", "wrong 2", "wrong 1"),
    revise("OTHER", "3", "good", "wrong 2"),  # carried out as KEEP: the patch is dropped, the test of `wrong 2` runs
    patch("4", "good", "wrong 2"),
    keep("PASS", "5"),
    "FINAL: done",
]


def test_the_variant_lets_the_agent_revise_once(folder: Path) -> None:
    variant = parse_variant("my_variants:REVISE_ONCE")
    assert (variant.name, parse_variant(variant.name)) == ("my_variants:REVISE_ONCE", variant)
    record, said, tested = play(Rules(Arm.PREDICTIVE, variant), FOLLOWS)
    assert (record.stop_reason, record.reward, record.variant) == (StopReason.FINAL, 1.0, variant.name)
    assert [target.decision and target.decision.value for target in record.targets] == ["REVISE", "REVISE", "KEEP"]
    assert [t.effective_decision and t.effective_decision.value for t in record.targets] == ["REVISE", "KEEP", "KEEP"]
    assert [target.overridden for target in record.targets] == [False, True, False]
    assert [target.shadow for target in record.targets] == [True, False, False]
    assert [call.id for call in record.calls] == ["1", "2", "3", "4", "5"]
    assert [call.tool.value for call in record.calls][2] == "python_test"
    assert [candidate.source for candidate in record.candidates] == ["wrong 1\n", "wrong 2\n", "good\n"]
    assert said[2] == "RESULT 3:\nstatus: failed\nstderr:\ntests failed: an assertion does not hold"
    assert tested == ["wrong 1\n", "wrong 2\n", "good\n", "good\n"]


def test_the_standard_agent_may_revise_twice() -> None:
    record, _, _ = play(Rules(Arm.PREDICTIVE), [*FOLLOWS[:3], keep("PASS", "4"), "FINAL: done"])
    assert [target.overridden for target in record.targets] == [False, False, False]
    assert record.reward == 1.0


def test_what_a_variant_cannot_be_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="'my_variants:REVISE_ONCE' is about Arm B's predictions"):
        Rules(Arm.REACTIVE, parse_variant("my_variants:REVISE_ONCE"))
    with pytest.raises(ValueError, match="expected an object of type Variant, got the class ReviseAtMost"):
        parse_variant("my_variants:ReviseAtMost")
    with pytest.raises(ValueError, match="expected module:attribute"):
        parse_variant("my_variants:REVISE_ONCE+test_budget")
    source = "from glyph.variants import Gate, Variant\n\nPLAIN, BLIND = Variant(tests=2), Variant(Gate.UNGATED)\n"
    (folder / "my_fields.py").write_text(source)
    assert parse_variant("my_fields:PLAIN") == Variant(tests=2, reference="my_fields:PLAIN")
    Rules(Arm.REACTIVE, parse_variant("my_fields:PLAIN"))
    with pytest.raises(ValueError, match="one of your own must keep the DECISION line"):
        parse_variant("my_fields:BLIND")
    with pytest.raises(ValueError, match="demonstrations are of standard, ungated or detailed_prediction"):
        plan("mini", None, lambda source, tests: judge("good"), variant=parse_variant("my_variants:REVISE_ONCE"))


FIXED, WRONG = "    return 2 * n", "    return n"
THROUGH_VERIFIERS = script(
    patch("1", f"def double(n):\n{WRONG}"),
    revise("ASSERTION_FAILURE", "2", "    return 3 * n", WRONG),
    revise("ASSERTION_FAILURE", "3", FIXED, "    return 3 * n"),
    patch("4", FIXED, "    return 3 * n"),
    keep("PASS", "5"),
    "FINAL: done",
)


async def test_the_resident_program_finds_the_variant_in_the_folder_of_the_command(
    folder: Path, tiny_data: Path
) -> None:
    variant = "my_variants:REVISE_ONCE"
    (trace,) = await run(
        environment(tiny_data, "b", variant, harness={"isolation": "process"}), ScriptedClient(THROUGH_VERIFIERS)
    )
    record = record_of(trace)
    assert (record.variant, record.reward) == (variant, 1.0)
    assert [target.overridden for target in record.targets] == [False, True, False]


@pytest.mark.parametrize("harness", [{"resident": False}, {"ship": True, "python": sys.executable}])
async def test_a_program_that_lacks_the_file_is_an_error_and_not_a_reward_of_0(
    folder: Path, tiny_data: Path, harness: dict[str, object]
) -> None:
    env = environment(tiny_data, "b", "my_variants:REVISE_ONCE", harness={"isolation": "process", **harness})
    (trace,) = await run(env, ScriptedClient(THROUGH_VERIFIERS))
    assert "variant 'my_variants:REVISE_ONCE': cannot import 'my_variants'" in trace.errors[0].message
    assert trace.rewards == {}


# A task set.


def at_a_prompt(folder: Path, line: str) -> str:
    """The output of a command of the page. `-P`: Python by itself does not look into the folder, as for `glyph`."""
    words = [sys.executable, "-P", "-m", *line.split()]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_task_set_is_prepared_validated_and_played(folder: Path) -> None:
    prepare, check, rollouts, sft = [line for line in COMMANDS if "data/mine" in line]
    assert "next: python -m data.validate data/mine" in at_a_prompt(folder, prepare)
    said = at_a_prompt(folder, check)
    assert re.search(r"ok +gold solutions pass: 128\n", said)
    assert re.search(r"ok +traces replay through the environment: 48\n", said)
    manifest = json.loads((folder / "data/mine/manifest.json").read_text())
    assert (manifest["task_set"], manifest["licence"]) == ("my_tasks:load", "MIT")
    assert manifest["counts"] == {"sft": 24, "train": 64, "validation": 16, "test": 24}
    shown = {"direct": 18, "shadow": 2, "visible": 2, "deep_shadow": 1, "deep_visible": 1}
    assert manifest["families"] == shown
    assert "of 24: 2 shadow, 2 visible, 1 deep shadow, 1 deep visible, the rest direct" in PAGE
    for rows in read_folder(folder / "data/mine").traces.values():
        assert collections.Counter(row["family"] for row in rows) == shown
    at_a_prompt(folder, rollouts)
    for arm in "ab":
        traces = read_traces(folder / "runs/demonstrations" / f"arm_{arm}").traces
        assert [trace.scored and trace.scored.reward for trace in traces] == [1.0] * 24
    sft_run = [*sft.split()[1:], "sft.steps=1", "optimiser.warmup_steps=0", "--model", str(ROOT / "models" / "mini")]
    done = command(*sft_run, "--device", "cpu")
    assert done.exit_code == 0, done.output


def test_a_trace_too_few_is_found_in_a_set_of_ones_own(folder: Path, executor: Executor) -> None:
    at_a_prompt(folder, "glyph prepare --tasks my_tasks:load --output data")
    data = read_folder(folder / "data")
    data.traces[Arm.PREDICTIVE].pop()
    checks = {
        each.name: each.faults for each in validate(data, load_wording(), executor.run, lambda items, *_: items, 2)
    }
    (fault,) = checks["composition of the SFT traces"]
    assert re.match(r"arm b: .*, expected \{.*'direct': 18", fault)


def test_a_set_may_give_its_own_composition(folder: Path, executor: Executor) -> None:
    (folder / "my_mix.py").write_text(
        "from dataclasses import replace\n"
        "from glyph.tasks.demonstrations import Composition, Family\n"
        "import my_tasks\n\n"
        "def load(source):\n"
        "    assert source.name == 'tasks.json'\n"
        "    mix = Composition({Family.DIRECT: 20, Family.VISIBLE: 4}, slips={Family.VISIBLE: 1})\n"
        "    return replace(my_tasks.load(source), composition=mix, seed=7, source={'name': source.name})\n"
    )
    prepared = plan("my_mix:load", Path("tasks.json"), executor.run)
    shown = collections.Counter(each.family for each in prepared.demonstrations)
    assert shown == {Family.DIRECT: 20, Family.VISIBLE: 4}
    assert sum(each.slip is not None for each in prepared.demonstrations) == 1
    assert (prepared.seed, prepared.source, prepared.licence) == (7, {"name": "tasks.json"}, "MIT")


def test_a_set_that_gives_something_else_is_refused(folder: Path) -> None:
    (folder / "my_list.py").write_text("def load(source):\n    return []\n")
    with pytest.raises(ValueError, match="task set 'my_list:load': must return a TaskSet, got an object of type list"):
        load_task_set("my_list:load", None)
    done = command("prepare", "--tasks", "my_gone:load", "--output", str(folder / "data"))
    assert done.exit_code == 2
    assert "data.prepare: task set 'my_gone:load': cannot import 'my_gone'" in done.output


def test_the_published_copy_of_mbpp_is_of_mbpp_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MBPP_SOURCE", str(folder / "mbpp.jsonl"))
    (folder / "my_picky.py").write_text("def load(source):\n    raise ValueError(f'source is {source}')\n")
    said = command("prepare", "--tasks", "my_picky:load", "--output", str(folder / "data")).output
    assert "data.prepare: source is None" in said
    said = command("prepare", "--tasks", "mini", "--source", "x", "--output", str(folder / "data")).output
    assert "--source is a copy of MBPP" in said


def test_the_proportions_are_the_published_ones() -> None:
    assert proportional(212) == COMPOSITIONS["mbpp"]
    few = {Family.DIRECT: 7, Family.SHADOW: 0, Family.VISIBLE: 0, Family.DEEP_SHADOW: 0, Family.DEEP_VISIBLE: 0}
    assert proportional(7) == Composition(few)
    assert all(sum(proportional(n).families.values()) == n for n in range(500))
