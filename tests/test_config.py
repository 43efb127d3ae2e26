"""The configuration: order of its sources, what is refused and how that reads, the round trip, the shipped files."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glyph.config import ConfigError, RlConfig, SftConfig, check_device, dump_config, load_config, read_config, scales
from glyph.config.keys import leaves
from glyph.config.loading import PAPER_SCALE
from glyph.config.reference import reference
from glyph.credit import CeNormalisation, CreditOptions, LabelCredit, UniformGroups
from glyph.episode import Rules
from glyph.local.training.losses import PolicyLossOptions
from glyph.protocol import Arm
from glyph.tasks.prompts import load_wording
from glyph.variants import parse_variant

ROOT = Path(__file__).parents[1]


def rl(*overrides: str, arm: str = "b", scale: str = "mini", **given: Any) -> RlConfig:
    return load_config("rl", scale, arm, overrides=overrides, model="somewhere", **given)


def refusal(*overrides: str, **given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        rl(*overrides, **given)
    return str(caught.value)


@pytest.mark.parametrize("scale", scales())
@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_the_arms_of_a_scale_differ_in_the_arm_alone(scale: str, stage: Any) -> None:
    a, b = (load_config(stage, scale, arm, model="m") for arm in Arm)
    assert (a.arm, b.arm) == (Arm.REACTIVE, Arm.PREDICTIVE)
    assert a.model_dump(exclude={"arm"}) == b.model_dump(exclude={"arm"})
    assert (a.stage, a.scale) == (stage, scale)


def test_the_scales_of_the_embedded_engine() -> None:
    assert scales() == ["mini", "small"]


def test_the_published_values_are_the_defaults() -> None:
    """The table of the study: SFT, RL, and what both share."""
    sft = SftConfig(scale="x", arm=Arm.PREDICTIVE, model="m")
    assert (sft.sft.steps, sft.sft.batch_size, sft.sft.sequence_length) == (60, 32, 1280)
    assert (sft.optimiser.learning_rate, sft.optimiser.schedule, sft.optimiser.warmup_steps) == (2e-5, "linear", 2)
    run = RlConfig(scale="x", arm=Arm.PREDICTIVE, model="m")
    assert (run.rl.steps, run.rl.rollouts_per_step, run.rl.group_size) == (100, 64, 16)
    assert (run.optimiser.learning_rate, run.optimiser.schedule, run.optimiser.weight_decay) == (1e-6, "constant", 0.01)
    assert (run.sampling.temperature, run.sampling.top_k, run.sampling.max_completion_tokens) == (0.8, 20, 512)
    assert (run.evaluation.every, run.evaluation.temperature, run.checkpoints.every, run.seed) == (25, 0.0, 25, 42)
    assert run.rules() == Rules(Arm.PREDICTIVE)


def test_credit_and_loss_have_the_fields_and_defaults_of_their_options() -> None:
    run = RlConfig(scale="x", arm=Arm.REACTIVE, model="m")
    assert run.credit.options() == CreditOptions()
    assert PolicyLossOptions(**dict(run.loss)) == PolicyLossOptions()
    assert [*dict(run.credit)] == [field.name for field in fields(CreditOptions)]
    assert [*dict(run.loss)] == [field.name for field in fields(PolicyLossOptions)]


def test_the_small_model_is_the_pinned_one() -> None:
    models = tomllib.loads((ROOT / "configs" / "versions.toml").read_text())["models"]
    assert load_config("sft", "small", "a").model == models["small"]


def test_later_sources_win(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("seed = 1\n[rl]\nsteps = 11\n[credit]\nalpha = 0.5\n")
    second.write_text('[rl]\nsteps = 12\n[credit]\nnormalisation = "class"\n')
    assert rl().rl.steps == 60
    assert rl(overlays=[first]).rl.steps == 11
    both = rl(overlays=[first, second])
    assert (both.rl.steps, both.rl.group_size, both.seed) == (12, 8, 1)
    assert both.credit.options() == CreditOptions(alpha=0.5, normalisation=CeNormalisation.CLASS)
    assert rl("rl.steps=13", "rl.steps=14", overlays=[second, first]).rl.steps == 14
    assert rl("seed=2", overlays=[first], seed=3).seed == 3
    assert rl("seed=2", overlays=[first], seed=None).seed == 2


def test_the_value_of_an_override_is_toml_or_plain_text() -> None:
    run = rl(
        "optimiser.betas=[0.8, 0.95]",
        "credit.alpha = 1",
        "credit.label_credit=rl",
        'tracking.project="a # b"',
        "environment.variant=test_budget(n=1,cost=4)",
        "tracking.wandb=true",
        "data=1979",
        "prompts=my wording.toml",
    )
    assert run.optimiser.betas == (0.8, 0.95)
    assert (run.credit.alpha, run.credit.label_credit) == (1.0, LabelCredit.RL)
    assert (run.tracking.project, run.tracking.wandb) == ("a # b", True)
    assert run.rules().variant == parse_variant("test_budget(n=1,cost=4)")
    assert (run.data, run.prompts) == (Path("1979"), Path("my wording.toml"))
    assert rl("prompts=some.toml", "prompts=").prompts is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.stepz=5", "override 'rl.stepz=5': unknown key 'rl.stepz'; did you mean 'rl.steps' (int ≥ 1)?"),
        ("steps=5", "override 'steps=5': unknown key 'steps'; did you mean 'rl.steps' (int ≥ 1)?"),
        ("sft.steps=5", "override 'sft.steps=5': 'sft.steps' belongs to the sft stage, not to this one"),
        ("rl=5", "override 'rl=5': rl is a table; override its keys one by one, such as rl.steps=…"),
        (
            "rl={steps = 5}",
            "override 'rl={steps = 5}': rl is a table; override its keys one by one, such as rl.steps=…",
        ),
        ("rl.steps", "override 'rl.steps': expected key=value, such as rl.steps=5"),
        ("rl.steps=many", "override 'rl.steps=many': rl.steps: expected int ≥ 1, got 'many'"),
        ("rl.steps=0", "override 'rl.steps=0': rl.steps: expected int ≥ 1, got 0"),
        ("rl.steps=5.0", "override 'rl.steps=5.0': rl.steps: expected int ≥ 1, got 5.0"),
        ("rl.steps=true", "override 'rl.steps=true': rl.steps: expected int ≥ 1, got True"),
        ('rl.steps="5"', "override 'rl.steps=\"5\"': rl.steps: expected int ≥ 1, got '5'"),
        ("tracking.wandb=1", "override 'tracking.wandb=1': tracking.wandb: expected bool, got 1"),
        ("rl.off_policy_steps=2", "expected int ≥ 0 and ≤ 1, got 2"),
        ("optimiser.learning_rate=inf", "expected float > 0, got inf"),
        ("optimiser.betas=[0.9]", "optimiser.betas: expected [float ≥ 0 and < 1, float ≥ 0 and < 1], got [0.9]"),
        ("credit.normalisation=klass", 'expected "token", "label" or "class", got \'klass\''),
        ("device=mps", "mps is not supported: it has no float64"),
        ("seed=1\nrl.steps=2", "seed: expected int ≥ 0 and < 4294967296, got '1\\nrl.steps=2'"),
        ("arm=a", "override 'arm=a': arm is 'a', but the command chose 'b'"),
        ("tracking.project=\ud800", "tracking.project: expected text that is UTF-8"),
    ],
)
def test_a_bad_override_is_named_with_what_was_expected(override: str, said: str) -> None:
    assert said in refusal(override)


def test_a_bad_file_is_named_with_all_its_unknown_keys(tmp_path: Path) -> None:
    overlay = tmp_path / "mine.toml"
    overlay.write_text("credit = 3\nnothing_like_it = 1\n[sampling]\ntempreature = 1.0\n")
    lines = refusal(overlays=[overlay]).splitlines()
    assert lines[0] == f"{overlay}: credit: expected a table, got 3"
    assert lines[1].startswith(f"{overlay}: unknown key 'nothing_like_it'; known are optimiser, memory,")
    assert lines[2].endswith("unknown key 'sampling.tempreature'; did you mean 'sampling.temperature' (float > 0)?")
    overlay.write_text("[sampling\n")
    assert refusal(overlays=[overlay]).startswith(f"{overlay}: not TOML: ")
    overlay.write_text("[sampling]\ntop_p = 2\nmax_completion_tokens = 0\n")
    assert refusal(overlays=[overlay]).splitlines() == [
        f"{overlay}: sampling.top_p: expected float > 0 and ≤ 1, got 2",
        f"{overlay}: sampling.max_completion_tokens: expected int ≥ 1, got 0",
    ]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rl.group_size=7"], "rl.rollouts_per_step must be a multiple of rl.group_size: got 64 and 7"),
        (["rl.group_size=1"], "rl.group_size = 1 trains nothing"),
        (["sampling.top_k=1"], "sampling.top_k = 1 makes the rollouts of a group alike"),
        (["sampling.max_completion_tokens=768"], "must be less than environment.max_context_tokens"),
        (["memory.tokens_per_micro_batch=767"], "(environment.max_context_tokens): got 767, need 768"),
        (["environment.variant=forced"], "variant 'forced': expected one of standard, forced_keep"),
        (["environment.budget=3", "environment.variant=test_budget(n=1,cost=4)"], "more than the whole budget of 3"),
        (["generation.backend=vllm", "device=cpu"], "generation.backend 'vllm' needs a CUDA GPU, got device 'cpu'"),
    ],
)
def test_contradictions_are_refused(overrides: list[str], said: str) -> None:
    assert said in refusal(*overrides)


def test_a_contradiction_says_where_its_keys_come_from() -> None:
    said = refusal("rl.group_size=7")
    assert said.endswith("[rl.rollouts_per_step: configs/mini/rl.toml; rl.group_size: override 'rl.group_size=7']")
    assert len(refusal("rl.group_size=7", "sampling.top_k=1").splitlines()) == 2


def test_labels_alone_can_train_arm_b_in_groups_of_one() -> None:
    alone = ("rl.group_size=1", "credit.uniform_groups=keep_ce")
    assert rl(*alone).credit.uniform_groups is UniformGroups.KEEP_CE
    assert "trains nothing" in refusal(*alone, arm="a")
    assert "trains nothing" in refusal(*alone, "credit.alpha=0")


def test_a_variant_of_decisions_is_refused_in_arm_a() -> None:
    assert rl("environment.variant=forced_keep").rules().variant == parse_variant("forced_keep")
    assert "Arm A knows test_budget only" in refusal("environment.variant=forced_keep", arm="a")
    assert rl("environment.variant=test_budget(n=1)", arm="a").rules().variant.tests == 1


def test_sft_needs_room_for_its_longest_conversation() -> None:
    with pytest.raises(ConfigError, match=r"\(sft.sequence_length\): got 2048, need 4097"):
        load_config("sft", "mini", "a", overrides=["sft.sequence_length=4097"])


def test_a_falling_schedule_needs_its_warm_up_within_the_run() -> None:
    with pytest.raises(ConfigError, match=r"optimiser.warmup_steps must be at most sft.steps.*got 5 and 4"):
        load_config("sft", "mini", "a", overrides=["sft.steps=4"])
    assert load_config("sft", "mini", "a", overrides=["sft.steps=5"]).sft.steps == 5
    assert rl("rl.steps=4").optimiser.warmup_steps == 5  # a constant schedule has no end to reach


@pytest.mark.parametrize("scale", scales())
@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_the_wording_of_a_scale_is_there(scale: str, stage: Any) -> None:
    """The prompts of `mini` are its own; their path is that from a checkout."""
    prompts = load_config(stage, scale, "a", model="m").prompts
    assert prompts is None or load_wording(ROOT / prompts).digest != load_wording().digest


def test_the_small_scale_is_refused_off_a_gpu_with_the_reason() -> None:
    assert "one step of 64 rollouts is in the order of an hour" in refusal(scale="small", device="cpu")
    auto = rl(scale="small", device="auto")
    check_device(auto, "cuda")
    for device in ("cpu", "mps"):
        with pytest.raises(ValueError, match=f"scale 'small' needs a CUDA GPU, got device '{device}'"):
            check_device(auto, device)
    check_device(rl(), "cpu")
    with pytest.raises(ValueError, match="no float64"):
        check_device(rl(), "mps")
    with pytest.raises(ValueError, match="vllm"):
        check_device(rl("generation.backend=vllm"), "cpu")


def test_unknown_scales_and_the_paper_scale_are_answered() -> None:
    assert refusal(scale="paper") == PAPER_SCALE
    assert refusal(scale="smal") == "unknown scale 'smal': expected one of mini, small; did you mean 'small'?"
    assert "unknown scale '../mini'" in refusal(scale="../mini")


def test_rl_names_no_model_by_itself() -> None:
    with pytest.raises(ConfigError, match="model is missing: give --model"):
        load_config("rl", "mini", "a")


def test_an_unknown_arm_or_field_is_refused() -> None:
    assert refusal(arm="c") == 'the command line: arm: expected "a" or "b", got \'c\''
    assert refusal(modle="x").startswith("the command line: unknown key 'modle'; did you mean 'model'")


TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
CONFIGS = st.builds(
    RlConfig,
    scale=TEXT,
    arm=st.sampled_from(Arm),
    seed=st.integers(0, 2**32 - 1),
    model=TEXT,
    data=TEXT.map(Path),
    prompts=st.none() | TEXT.map(Path),
    optimiser=st.fixed_dictionaries(
        {"learning_rate": POSITIVE, "betas": st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2)}
    ),
    credit=st.fixed_dictionaries({"alpha": POSITIVE, "uniform_groups": st.sampled_from(UniformGroups)}),
    tracking=st.fixed_dictionaries({"project": TEXT, "wandb": st.booleans()}),
)


@given(CONFIGS)
def test_a_dumped_configuration_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, config: RlConfig) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.toml").write_bytes(dump_config(config).encode())
    assert read_config(folder) == config
    assert read_config(folder / "config.toml") == config


def test_a_dump_names_every_key(tmp_path: Path) -> None:
    config = load_config("sft", "small", "b")
    tree = tomllib.loads(dump_config(config))
    names = {f"{k}.{inner}" for k, v in tree.items() if isinstance(v, dict) for inner in v}
    names |= {k for k, v in tree.items() if not isinstance(v, dict)}
    assert names | {"prompts"} == set(leaves(SftConfig))


def test_a_resolved_configuration_is_an_overlay_for_the_same_arm(tmp_path: Path) -> None:
    resolved = tmp_path / "config.toml"
    resolved.write_text(dump_config(rl("rl.steps=3")))
    assert rl(overlays=[resolved]) == rl("rl.steps=3")
    assert f"{resolved}: arm is 'b', but the command chose 'a'" == refusal(overlays=[resolved], arm="a")


def test_what_is_no_resolved_configuration_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[rl]\nsteps = 3\n")
    with pytest.raises(ConfigError, match="this is no resolved configuration"):
        read_config(tmp_path)
    file.write_text(dump_config(rl()).replace("group_size = 8", "group_size = 7"))
    with pytest.raises(
        ConfigError, match=r"must be a multiple of rl.group_size: got 64 and 7 \[rl.rollouts_per_step: "
    ):
        read_config(tmp_path)


def test_a_configuration_cannot_be_changed() -> None:
    config = rl()
    with pytest.raises(ValueError, match="frozen"):
        config.rl.steps = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="extra"):
        RlConfig(scale="mini", arm=Arm.REACTIVE, model="m", stepz=3)  # type: ignore[call-arg]


def test_every_key_says_what_it_means() -> None:
    assert [key for root in (SftConfig, RlConfig) for key, field in leaves(root).items() if not field.description] == []


def test_the_reference_is_up_to_date() -> None:
    """Made by: python -m glyph.config > docs/configuration.md"""
    assert (ROOT / "docs" / "configuration.md").read_text("utf-8") == reference()
