"""From a task to the conversation's first two messages, with a wording that is data (`configs/prompts.toml`)."""

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from glyph.protocol import Arm
from glyph.tasks.task import CodeTask
from glyph.variants import Gate, Variant
from glyph.versions import CONFIGS
from glyph.workspace import PLACEHOLDER

DEFAULT_PROMPTS = CONFIGS / "prompts.toml"
DETAIL_PROMPTS = CONFIGS / "prompts_detail.toml"
_SHAPE = {
    "system": ("a", "b", "b_ungated"),
    "variant": ("test_budget", "revise_feedback", "random_gate"),
    "task": ("user",),
    "demonstration": ("call_id", "final"),
    "detail": ("index", "value"),
}


@dataclass(frozen=True)
class Wording:
    """The texts of the prompts by section and name, and the SHA-256 of the file that they come from.

    The section `detail` comes from `prompts_detail.toml` where the file has none.
    """

    texts: dict[str, dict[str, str]]
    digest: str

    def system(self, arm: Arm, variant: Variant, budget: int) -> str:
        """The system prompt of an arm, in the grammar and with the extra sentences of its variant."""
        name = "b_ungated" if arm is Arm.PREDICTIVE and not variant.gated else arm.value
        parts = [self.texts["system"][name].strip()]
        extra = self.texts["variant"]
        if variant.tests is not None:
            parts.append(_fill(extra["test_budget"], tests=variant.tests, test_cost=variant.test_cost))
        if variant.revise_feedback:
            parts.append(extra["revise_feedback"])
        if variant.gate is Gate.RANDOM:
            parts.append(extra["random_gate"])
        if variant.detail is not None:
            parts.append(self.texts["detail"][variant.detail.value])
        return _fill(" ".join(parts), budget=budget)

    def user(self, task: CodeTask) -> str:
        """The task prompt: wording, the assertions verbatim, and what the file holds."""
        text = self.texts["task"]["user"].strip()
        return _fill(text, text=task.text, tests=task.test_code.strip(), placeholder=PLACEHOLDER.strip())

    def call_id(self, n: int) -> str:
        return _fill(self.texts["demonstration"]["call_id"], n=n)


@lru_cache(maxsize=8)
def load_wording(path: Path = DEFAULT_PROMPTS) -> Wording:
    """Read a wording.

    Raises:
        ValueError: the file is missing, no TOML, or lacks or adds a text; says which.
    """
    try:
        raw = path.read_bytes()
        texts: dict[str, Any] = {**tomllib.loads(DETAIL_PROMPTS.read_text("utf-8")), **tomllib.loads(raw.decode())}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot read the prompts: {error}; see configs/prompts.toml for the form") from error
    for section, names in _SHAPE.items():
        got = texts.get(section)
        if not isinstance(got, dict) or set(got) != set(names) or not all(isinstance(t, str) for t in got.values()):
            raise ValueError(f"{path}: [{section}] must hold exactly the texts {', '.join(names)}")
    return Wording(texts, hashlib.sha256(raw).hexdigest())


def opening(
    task: CodeTask,
    arm: Arm,
    variant: Variant,
    wording: Wording,
    budget: int = 8,
    shots: Sequence[Sequence[dict[str, str]]] = (),
) -> list[dict[str, str]]:
    """The messages that open a rollout: system, demonstrations as `shots` (none in the study), the task."""
    return [
        {"role": "system", "content": wording.system(arm, variant, budget)},
        *(dict(message) for shot in shots for message in shot),
        {"role": "user", "content": wording.user(task)},
    ]


def _fill(text: str, /, **values: object) -> str:
    """Replace `{name}` marks in one pass; other braces (JSON in the prompts) stay, inserted text is not searched."""
    pieces, rest = [], text
    while rest:
        positions = [(rest.find("{" + name + "}"), name) for name in values if "{" + name + "}" in rest]
        if not positions:
            break
        at, name = min(positions)
        pieces += [rest[:at], str(values[name])]
        rest = rest[at + len(name) + 2 :]
    return "".join([*pieces, rest])
