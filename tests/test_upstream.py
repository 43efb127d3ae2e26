"""The patch to upstream PRIME-RL: our label samples through its real train sink, packer and loss, with it and without.

PRIME_RL_UPSTREAM names a git checkout that has the patch's base commit; PRIME_RL_UPSTREAM_PYTHON the interpreter of an
environment with the Verifiers of that commit (docs/upstream.md says how to make one), where it is not this one.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.prime_rl_checkout import ROOT, parts
from tests.repositories import git

PATCH = ROOT / "patches" / "upstream" / "0001-ship-cross-entropy-only-branches.patch"
PROBE = Path(__file__).parent / "upstream_probe.py"
BASE = re.findall(r"^Base: ([0-9a-f]{40})$", PATCH.read_text(), re.MULTILINE)
SECOND = 8  # the second trace of a group is so many tokens longer

Cases = dict[str, Any]


def test_the_page_names_the_commit_that_the_patch_is_for() -> None:
    [base] = BASE
    assert base in (ROOT / "docs" / "upstream.md").read_text()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = os.environ.get("PRIME_RL_UPSTREAM")
    if not source:
        pytest.skip("no checkout of upstream PRIME-RL: set PRIME_RL_UPSTREAM")
    folder = tmp_path_factory.mktemp("upstream") / "prime-rl"
    git(ROOT, "clone", "--quiet", "--no-checkout", "--shared", source, str(folder))
    git(folder, "checkout", "--quiet", "--detach", BASE[0])
    return folder


@pytest.fixture(scope="module")
def without(checkout: Path) -> Cases:
    return probe(checkout)


@pytest.fixture(scope="module")
def patched(checkout: Path, without: Cases) -> Cases:
    git(checkout, "apply", str(PATCH))
    return probe(checkout)


def probe(checkout: Path) -> Cases:
    """What the probe prints with these sources; an empty module stands in for wandb, which no call reaches."""
    stand_in = checkout.parent / "stand_in"
    stand_in.mkdir(exist_ok=True)
    (stand_in / "wandb.py").touch()
    sources = [str(ROOT / "src"), *parts(checkout), str(stand_in)]
    done = subprocess.run(
        [os.environ.get("PRIME_RL_UPSTREAM_PYTHON") or sys.executable, str(PROBE)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sources), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    if done.returncode == 3:
        pytest.skip(f"{done.stderr.strip()}: set PRIME_RL_UPSTREAM_PYTHON")
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def shipped(case: Cases) -> list[tuple[int, str]]:
    """Sampled tokens and the text under cross-entropy of each sample."""
    return [(sample["sampled"], sample["ce"]) for sample in case["samples"]]


def tokens_of(case: Cases) -> int:
    """Sampled tokens of the group's first trace: its sampled label has four of them."""
    sampled: int = case["samples"][0]["sampled"]
    return sampled


def test_a_branch_with_cross_entropy_alone_ships(patched: Cases) -> None:
    case = patched["mixed"]
    first = tokens_of(case)
    assert shipped(case) == [(first, ""), (0, "OTHER"), (first + SECOND, ""), (0, "OTHER")]
    assert case["samples"][1]["text"] == "task\n<PREDICTION>OTHER</PREDICTION>"
    # Advantages ±1/2, ratios 1: what is left of the RL part is the second trace's extra tokens. Labels: alpha × NLL.
    members = 2 * first + SECOND - 2 * len("PASS")
    assert case["loss"] == pytest.approx(0.5 * SECOND / members + 0.1 * 0.5)
    assert all("<PREDICTION></PREDICTION>" in case["samples"][i]["rl"] for i in (0, 2))


def test_without_the_patch_no_label_ships(without: Cases) -> None:
    case = without["mixed"]
    first = tokens_of(case)
    assert shipped(case) == [(first, ""), (first + SECOND, "")]
    assert case["loss"] == pytest.approx(0.5 * SECOND / (2 * first + SECOND - 2 * len("PASS")))


def test_labels_of_a_uniform_group_survive_its_rollouts(without: Cases, patched: Cases) -> None:
    """Upstream prunes tokens without advantage, no more whole rollouts: our `keep_ce` is what it does by itself."""
    assert shipped(patched["uniform"]) == [(0, "OTHER"), (0, "OTHER")]
    assert patched["uniform"]["loss"] == pytest.approx(0.1 * 0.5)
    assert without["uniform"] == {"samples": [], "loss": None}


def test_an_explicit_rl_stream_of_zeros_survives(without: Cases, patched: Cases) -> None:
    """A turn whose label cannot be found earns no RL credit at all; an absent stream would train every token of it."""
    assert [sample["rl"] for sample in patched["hidden"]["samples"]] == ["", ""]
    assert patched["hidden"]["loss"] == 0.0
    assert [sample["rl"] for sample in without["hidden"]["samples"]] == [None, None]
    assert without["hidden"]["loss"] == pytest.approx(0.5 * SECOND / (2 * tokens_of(without["hidden"]) + SECOND))
