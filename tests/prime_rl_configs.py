"""Arguments of PRIME-RL's programs, parsed and validated by the pinned sources, in a process of their own."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.prime_rl_checkout import ROOT, parts

PARSE = """
import json, sys
from prime_rl.configs.inference import InferenceConfig
from prime_rl.configs.rl import RLConfig
from prime_rl.configs.sft import SFTConfig
from prime_rl.utils.config import cli

CONFIGS = {"sft": SFTConfig, "rl": RLConfig, "inference": InferenceConfig}
for program, *arguments in json.load(sys.stdin):
    try:
        print(cli(CONFIGS[program], args=arguments).model_dump_json())
    except Exception as error:
        print(json.dumps({"refused": str(error)}))
"""


def resolve(patched: Path, commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """The configuration that each command (program, arguments) resolves to, or `refused` with the pin's reason."""
    if importlib.util.find_spec("pydantic_config") is None:
        pytest.skip("no pydantic_config, which parses PRIME-RL's arguments: pip install prime-pydantic-config")
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps([list(command) for command in commands]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*parts(patched), str(ROOT / "src")])},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
