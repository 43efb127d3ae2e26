"""scripts/setup.sh in a copy of the checkout, with a small repository in PRIME-RL's place and a uv that only notes."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests import prime_rl_checkout
from tests.checkouts import bare_checkout, entries, environment, script, whole_checkout
from tests.repositories import git, repository

PATCH = "diff --git a/registry.py b/registry.py\n--- a/registry.py\n+++ b/registry.py\n@@ -1 +1 @@\n-grpo\n+{}\n"
NEW_FILE = "diff --git a/new.py b/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+added\n"
SUBMODULES = ("verifiers", "renderers", "pydantic-config")
STATE = ("status", "--porcelain", "--ignored")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository with the submodules that PRIME-RL has, at their pinned commits."""
    made = repository(tmp_path / "source", {"registry.py": "grpo\n", "uv.lock": "lock\n", "pyproject.toml": "\n"})
    for name in SUBMODULES:
        part = repository(tmp_path / "parts" / name, {"part.py": f"{name}\n"})
        git(made, "submodule", "--quiet", "add", "--name", name, str(part), f"deps/{name}")
    git(made, "commit", "--quiet", "-m", "submodules")
    return made


@pytest.fixture
def bare(tmp_path: Path, source: Path) -> Path:
    return pin_to(bare_checkout(tmp_path / "checkout"), source)


def pin_to(checkout: Path, source: Path) -> Path:
    versions = checkout / "configs" / "versions.toml"
    lines = versions.read_text().splitlines()
    pin = f'prime_rl = "{git(source, "rev-parse", "HEAD").strip()}"  # the newest'
    versions.write_text("\n".join(pin if line.startswith("prime_rl = ") else line for line in lines))
    for patch in (checkout / "patches").glob("prime_rl/*.patch"):
        patch.unlink()  # they are for the real PRIME-RL
    give_patch(checkout, "0001-registry.patch", PATCH.format("predict"))
    return checkout


def give_patch(checkout: Path, name: str, text: str) -> None:
    folder = checkout / "patches" / "prime_rl"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)


def setup(checkout: Path, source: Path, *options: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return script("setup", checkout, "--prime-rl", *options, PRIME_RL_SOURCE=str(source), **variables)


def vendored(checkout: Path) -> Path:
    return checkout / ".vendor" / "prime-rl"


def test_the_checkout_is_the_pin_with_its_patches_and_submodules(bare: Path, source: Path) -> None:
    before = git(source, *STATE), git(source, "for-each-ref")
    give_patch(bare, "0002-new.patch", NEW_FILE)
    ran = setup(bare, source, "--no-environment")
    assert ran.returncode == 0, ran.stderr
    assert not re.search("error|warning|fatal", ran.stderr)
    made = vendored(bare)
    assert (made / "registry.py").read_text() == "predict\n"
    assert (made / "new.py").read_text() == "added\n"
    assert [(made / "deps" / name / "part.py").read_text() for name in SUBMODULES] == [f"{n}\n" for n in SUBMODULES]
    assert git(made, "rev-parse", "HEAD") == git(source, "rev-parse", "HEAD")
    assert (git(source, *STATE), git(source, "for-each-ref")) == before
    assert not (bare / ".venv").exists()
    assert sorted(os.listdir(bare / ".vendor")) == [".lock", "prime-rl"]


def test_again_nothing_is_done(bare: Path, source: Path) -> None:
    setup(bare, source, "--no-environment")
    was = {path: path.stat().st_mtime_ns for path in vendored(bare).rglob("*") if path.is_file()}
    again = setup(bare, source, "--no-environment")
    assert again.returncode == 0
    assert "pin and patches are as they should be" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in was if path.name != "index"} == {
        path: time for path, time in was.items() if path.name != "index"
    }


def test_a_changed_patch_takes_the_place_of_the_old_one(bare: Path, source: Path) -> None:
    give_patch(bare, "0002-new.patch", NEW_FILE)
    setup(bare, source, "--no-environment")
    (vendored(bare) / "notes.txt").write_text("mine")
    give_patch(bare, "0001-registry.patch", PATCH.format("echo"))
    (bare / "patches" / "prime_rl" / "0002-new.patch").unlink()
    assert setup(bare, source, "--no-environment").returncode == 0
    assert (vendored(bare) / "registry.py").read_text() == "echo\n"
    assert not (vendored(bare) / "new.py").exists()
    assert (vendored(bare) / "notes.txt").read_text() == "mine"


def test_edits_of_ones_own_are_refused_and_kept(bare: Path, source: Path) -> None:
    setup(bare, source, "--no-environment")
    (vendored(bare) / "registry.py").write_text("mine\n")
    give_patch(bare, "0001-registry.patch", PATCH.format("echo"))
    ran = setup(bare, source, "--no-environment")
    assert ran.returncode == 1
    assert "has been edited, and edits are not overwritten: registry.py" in ran.stderr
    assert (vendored(bare) / "registry.py").read_text() == "mine\n"


def test_a_file_in_the_way_of_a_new_one_is_refused_and_kept(bare: Path, source: Path) -> None:
    setup(bare, source, "--no-environment")
    (vendored(bare) / "new.py").write_text("mine\n")
    give_patch(bare, "0001-registry.patch", PATCH.format("echo"))
    give_patch(bare, "0002-new.patch", NEW_FILE)
    ran = setup(bare, source, "--no-environment")
    assert ran.returncode == 1
    assert "failed: updating the files" in ran.stderr
    assert (vendored(bare) / "new.py").read_text() == "mine\n"
    assert (vendored(bare) / "registry.py").read_text() == "predict\n"


@pytest.mark.parametrize("made_before", [False, True])
def test_a_patch_that_does_not_apply_changes_nothing(bare: Path, source: Path, made_before: bool) -> None:
    if made_before:
        setup(bare, source, "--no-environment")
    give_patch(bare, "0002-bad.patch", PATCH.format("predict"))
    ran = setup(bare, source, "--no-environment")
    assert ran.returncode == 1
    assert "patches/prime_rl/0002-bad.patch does not apply" in ran.stderr
    assert sorted(os.listdir(bare / ".vendor")) == [".lock", *(["prime-rl"] if made_before else [])]
    if made_before:
        assert (vendored(bare) / "registry.py").read_text() == "predict\n"


def test_what_a_killed_setup_left_is_replaced(bare: Path, source: Path) -> None:
    (bare / ".vendor" / "prime-rl.partial" / ".git").mkdir(parents=True)
    assert setup(bare, source, "--no-environment").returncode == 0
    assert sorted(os.listdir(bare / ".vendor")) == [".lock", "prime-rl"]


def test_a_checkout_that_is_not_ours_is_left_alone(bare: Path, source: Path) -> None:
    repository(vendored(bare), {"registry.py": "mine\n"})
    ran = setup(bare, source, "--no-environment")
    assert ran.returncode == 1
    assert "was not made by this script" in ran.stderr


def test_another_pin_is_refused(bare: Path, source: Path) -> None:
    setup(bare, source, "--no-environment")
    git(source, "commit", "--quiet", "--allow-empty", "-m", "newer")
    pin_to(bare, source)
    ran = setup(bare, source, "--no-environment")
    assert ran.returncode == 1
    assert "configs/versions.toml pins" in ran.stderr


def test_a_source_without_the_pinned_commit_is_refused(bare: Path, tmp_path: Path) -> None:
    other = repository(tmp_path / "other", {"x": "y"})
    ran = setup(bare, other, "--no-environment")
    assert ran.returncode == 1
    assert "does not hold the pinned commit" in ran.stderr
    assert os.listdir(bare / ".vendor") == [".lock"]


def test_submodules_that_the_source_lacks_are_named(bare: Path, source: Path) -> None:
    git(source, "submodule", "deinit", "--force", "deps/renderers")
    ran = setup(bare, source, "--no-environment")
    assert ran.returncode == 0
    assert f"as {source} lacks them: the submodules deps/renderers" in ran.stdout
    assert setup(bare, source, "--no-environment").returncode == 0
    assert setup(bare, source, "--check", "--no-environment").returncode == 0
    ran = setup(bare, source, "--check")
    assert ran.returncode == 1
    assert "lacks the submodule deps/renderers, which the environment needs" in ran.stderr


def test_a_submodule_that_cannot_be_cloned_leaves_no_checkout(bare: Path, source: Path) -> None:
    """The source's renderers lack the commit that the pin names."""
    git(source, "submodule", "deinit", "--force", "deps/renderers")
    (source / "deps" / "renderers").rmdir()
    empty = repository(source / "deps" / "renderers", {"other.py": "other\n"})
    ran = setup(bare, source, "--no-environment")
    assert ran.returncode == 1
    assert f"setup: failed: cloning deps/renderers from {source}" in ran.stderr
    assert f"git -C {source} submodule update --init -- deps/renderers" in ran.stderr
    assert os.listdir(bare / ".vendor") == [".lock"]
    shutil.rmtree(empty)
    git(source, "submodule", "update", "--init", "deps/renderers")
    assert setup(bare, source, "--no-environment").returncode == 0
    assert (vendored(bare) / "deps" / "renderers" / "part.py").read_text() == "renderers\n"


def test_a_submodule_at_a_commit_of_ones_own_is_refused_and_kept(bare: Path, source: Path) -> None:
    setup(bare, source, "--no-environment")
    part = vendored(bare) / "deps" / "verifiers"
    git(part, "commit", "--quiet", "--allow-empty", "-m", "mine")
    mine = git(part, "rev-parse", "HEAD")
    ran = setup(bare, source, "--no-environment")
    assert ran.returncode == 1
    assert ".vendor/prime-rl/deps/verifiers is not at the commit that the pin names" in ran.stderr
    assert git(part, "rev-parse", "HEAD") == mine


BAD = {
    "an unknown option": (["--fast"], {}, "setup: unknown argument --fast"),
    "no environment of what": (["--no-environment"], {}, "setup: --no-environment goes with --prime-rl"),
    "check of what": (["--check"], {}, "setup: --check goes with --prime-rl"),
    "no checkout": (["--prime-rl"], {"PRIME_RL_SOURCE": "/nowhere"}, "PRIME_RL_SOURCE=/nowhere is no git checkout"),
}


@pytest.mark.parametrize(("arguments", "variables", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused_before_anything_is_made(
    bare: Path, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    ran = script("setup", bare, *arguments, **variables)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert not (bare / ".vendor").exists()
    assert not (bare / ".venv").exists()


NOTING_UV = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
case "$1" in
  --version) echo "uv {version}" ;;
  sync)
    [ ! -e "$(dirname "$0")/broken" ] || {{ echo "no route to the wheels" >&2; exit 1; }}
    mkdir -p "$3/.venv/bin"
    cp "$(dirname "$0")/python" "$3/.venv/bin/python"
    ;;
esac
"""
NOTING_PYTHON = '#!/bin/sh\necho "$2" > %s; [ ! -e %s ] || { echo "no module named typer" >&2; exit 1; }\n'


class Uv:
    """A program in uv's place that notes how it was called."""

    def __init__(self, folder: Path, version: str = "0.11.1") -> None:
        folder.mkdir()
        self.folder = folder
        python = NOTING_PYTHON % (folder / "imported", folder / "lacking")
        for name, text in (("uv", NOTING_UV.format(version=version)), ("python", python)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def calls(self) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if line != "--version"]


@pytest.fixture
def uv(tmp_path: Path) -> Uv:
    return Uv(tmp_path / "uv")


@pytest.fixture
def whole(tmp_path: Path, source: Path) -> Path:
    return pin_to(whole_checkout(tmp_path / "checkout"), source)


def test_the_environment_is_the_pins_own_with_this_package_in_it(whole: Path, source: Path, uv: Uv) -> None:
    ran = setup(whole, source, UV=str(uv.folder / "uv"))
    assert ran.returncode == 0, ran.stderr
    python = ".vendor/prime-rl/.venv/bin/python"
    assert uv.calls() == [
        "sync --project .vendor/prime-rl --frozen --no-dev --extra flash-attn --python 3.12",
        f"pip install --quiet --python {python} --no-deps --editable .",
    ]
    assert "glyph doctor" in ran.stdout
    assert setup(whole, source, UV=str(uv.folder / "uv")).returncode == 0
    assert len(uv.calls()) == 2


def test_every_requirement_of_this_package_is_imported_there(whole: Path, source: Path, uv: Uv) -> None:
    (uv.folder / "lacking").touch()
    ran = setup(whole, source, UV=str(uv.folder / "uv"))
    assert ran.returncode == 1
    assert "setup: failed: importing it and its requirements there" in ran.stderr
    imported = (uv.folder / "imported").read_text().replace(",", " ").split()
    project = tomllib.loads((whole / "pyproject.toml").read_text())["project"]
    assert {re.split("[<>=]", each)[0] for each in project["dependencies"]} <= set(imported)


def test_every_requirement_of_this_package_is_in_the_pins_lock_file(patched_prime_rl: Path) -> None:
    locked = tomllib.loads((patched_prime_rl / "uv.lock").read_text())["package"]
    project = tomllib.loads((prime_rl_checkout.ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split("[<>=]", each)[0].replace("_", "-") for each in project["dependencies"]}
    assert names <= {each["name"] for each in locked}


def test_check_says_what_is_not_as_it_should_be_and_changes_nothing(whole: Path, source: Path, uv: Uv) -> None:
    def check() -> tuple[int, str]:
        before = entries(whole)
        ran = setup(whole, source, "--check")
        assert entries(whole) == before
        return ran.returncode, ran.stdout + ran.stderr

    assert check() == (1, "setup: no checkout in .vendor/prime-rl\n       bash scripts/setup.sh --prime-rl\n")
    setup(whole, source, "--no-environment")
    assert check()[1].startswith("setup: .vendor/prime-rl has no environment")
    setup(whole, source, UV=str(uv.folder / "uv"))
    assert check() == (0, f".vendor/prime-rl is PRIME-RL {git(source, 'rev-parse', 'HEAD')[:12]} with our patches\n")
    (vendored(whole) / "registry.py").write_text("mine\n")
    assert "has been edited, and edits are not overwritten: registry.py" in check()[1]
    (vendored(whole) / "registry.py").write_text("predict\n")
    give_patch(whole, "0002-new.patch", NEW_FILE)
    assert "has not the patches of patches/prime_rl as they are now" in check()[1]
    assert not (vendored(whole) / "new.py").exists()


def test_an_environment_that_failed_is_taken_up_again(whole: Path, source: Path, uv: Uv) -> None:
    (uv.folder / "broken").touch()
    ran = setup(whole, source, UV=str(uv.folder / "uv"))
    assert ran.returncode == 1
    assert "setup: failed: installing PRIME-RL with Python 3.12" in ran.stderr
    assert "sync --project .vendor/prime-rl --frozen" in ran.stderr
    assert "to start over: rm -r .vendor/prime-rl/.venv" in ran.stderr
    (uv.folder / "broken").unlink()
    assert setup(whole, source, UV=str(uv.folder / "uv")).returncode == 0


def test_the_environment_needs_the_submodules(whole: Path, source: Path, uv: Uv) -> None:
    git(source, "submodule", "deinit", "--force", "deps/verifiers")
    ran = setup(whole, source, UV=str(uv.folder / "uv"))
    assert ran.returncode == 1
    assert "lacks the submodules deps/verifiers, which the environment needs" in ran.stderr
    assert os.listdir(whole / ".vendor") == [".lock"]
    assert not (uv.folder / "calls").exists()


def test_a_uv_that_is_too_old_is_refused(whole: Path, source: Path, tmp_path: Path) -> None:
    old = Uv(tmp_path / "old", version="0.9.30")
    ran = setup(whole, source, UV=str(old.folder / "uv"))
    assert ran.returncode == 1
    assert "is no uv of at least 0.11.1" in ran.stderr


def test_without_options_it_makes_our_own_environment(tmp_path: Path) -> None:
    ran = script("setup", whole_checkout(tmp_path / "checkout"))
    assert ran.returncode == 0, ran.stderr
    assert ".venv is ready" in ran.stdout
    assert not (tmp_path / "checkout" / ".vendor").exists()


def test_two_at_once_do_not_meet(bare: Path, source: Path) -> None:
    (bare / ".vendor").mkdir()
    command = ["flock", ".vendor/.lock", "bash", "scripts/setup.sh", "--prime-rl", "--no-environment"]
    variables = environment(bare, PRIME_RL_SOURCE=str(source))
    ran = subprocess.run(command, cwd=bare, env=variables, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "another setup.sh is at work" in ran.stderr


def test_the_real_prime_rl_takes_our_patches(tmp_path: Path) -> None:
    real = prime_rl_checkout.source()
    checkout = bare_checkout(tmp_path / "checkout")
    ran = setup(checkout, real, "--no-environment")
    assert ran.returncode == 0, ran.stderr
    for patch in sorted((checkout / "patches" / "prime_rl").glob("*.patch"), reverse=True):
        git(vendored(checkout), "apply", "--reverse", str(patch))
    assert git(vendored(checkout), "diff", "--name-only", "--ignore-submodules=all", "HEAD") == ""
