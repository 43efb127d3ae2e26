"""The house: data flows one way, the sandbox needs the standard library alone, and each pin stands in one version."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "glyph"

STAGES = (
    ("protocol", "workspace", "files", "plugins"),
    ("records", "variants"),
    ("credit",),
    ("episode_state",),
    ("episode", "executor"),
    ("endpoint",),
    ("program",),
    ("program_server",),
    ("chat", "codec", "versions"),
    ("tasks",),
    ("config",),
    (
        "evaluation",
    ),  # pure functions of records and the reader of traces: the taskset's metrics and the collector use it
    ("taskset", "harness", "local", "prime_rl"),
    ("report", "doctor"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""Packages and modules of `glyph`, earliest first. Those of one stage do not import each other."""
STAGE_OF = {name: number for number, names in enumerate(STAGES) for name in names}
STDLIB_ONLY = {name for names in STAGES[: STAGE_OF["program_server"] + 1] for name in names}
USES_VERIFIERS = {"taskset.py", "harness.py", "local/serving/client.py", "local/serving/scripted.py"}
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def part_of(module: str) -> str:
    """`local/serving/client.py` is part of `local`, `chat.py` is `chat`."""
    return module.removesuffix(".py").partition("/")[0]


def imports(module: str) -> Iterator[str]:
    """The full names that a module imports, at its top or within a function, but for those of type checkers alone."""
    tree = ast.parse((SOURCE / module).read_text())
    checked = {
        node
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for node in ast.walk(test)
    }
    for node in ast.walk(tree):
        if node in checked:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", [module for module in MODULES if module != "__init__.py"])
def test_a_stage_never_imports_a_later_one(module: str) -> None:
    here = part_of(module)
    assert here in STAGE_OF, f"{here}: give it a stage"
    for name in imports(module):
        if name.startswith("glyph."):
            there = name.split(".")[1]
            if there != "__version__":
                assert there == here or STAGE_OF[there] < STAGE_OF[here], f"{module} imports {name}"


@pytest.mark.parametrize("module", [module for module in MODULES if part_of(module) in STDLIB_ONLY])
def test_what_the_sandbox_ships_imports_nothing_third_party(module: str) -> None:
    allowed = {*sys.stdlib_module_names, "glyph"}
    assert [name for name in imports(module) if name.partition(".")[0] not in allowed] == []


def test_only_the_adapters_import_verifiers() -> None:
    users = {module for module in MODULES if any(name.partition(".")[0] == "verifiers" for name in imports(module))}
    assert users == USES_VERIFIERS


def test_prime_rl_is_imported_by_its_adapter_alone() -> None:
    users = {module for module in MODULES if any(name.partition(".")[0] == "prime_rl" for name in imports(module))}
    assert users == {"prime_rl.py"}


def loaded_after(code: str) -> set[str]:
    """The top-level modules that are loaded after some code ran in a fresh interpreter."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


HEAVY = {"verifiers", "pydantic", "numpy", "torch", "transformers", "datasets", "typer", "rich", "aiohttp"}


@pytest.mark.parametrize("code", ["import glyph", "import glyph.executor", "import glyph.program_server"])
def test_exports_are_lazy(code: str) -> None:
    assert not loaded_after(code) & HEAVY


def test_the_command_line_loads_no_framework() -> None:
    assert not loaded_after("import glyph.cli") & {"verifiers", "torch", "transformers", "datasets", "aiohttp"}


def test_the_exports_are_one_taskset_and_one_harness() -> None:
    code = (
        "import glyph, verifiers.v1 as vf\n"
        "assert [issubclass(getattr(glyph, n), vf.Taskset) for n in sorted(glyph.__all__)] == [False, True]\n"
        "assert [issubclass(getattr(glyph, n), vf.Harness) for n in sorted(glyph.__all__)] == [True, False]\n"
        "assert not hasattr(glyph, 'nothing')"
    )
    assert {"verifiers", "glyph"} <= loaded_after(code)


def test_every_pin_stands_in_both_places_alike() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    packages = tomllib.loads((ROOT / "configs" / "versions.toml").read_text())["packages"]
    assert packages
    assert {name: pins.get(name) for name in packages} == packages


def test_the_pins_lie_within_the_ranges_of_the_package() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = tomllib.loads((ROOT / "configs" / "versions.toml").read_text())["packages"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    for requirement in map(Requirement, wanted):
        if requirement.name in packages:
            assert requirement.specifier.contains(packages[requirement.name]), requirement
    assert {"verifiers", "renderers", "transformers", "torch"} <= set(packages)
