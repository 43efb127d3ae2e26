"""From files and overrides to a checked configuration, and to TOML and back.

Every value remembers where it was given, so that a fault names the file or the override, the key, what it got and
what was expected.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from pydantic import ValidationError

from glyph.config.keys import flatten, is_text, leaves, sections, type_text
from glyph.config.schema import Config, RlConfig, SftConfig, Stage
from glyph.protocol import Arm
from glyph.versions import CONFIGS

ROOTS: dict[str, type[SftConfig] | type[RlConfig]] = {"sft": SftConfig, "rl": RlConfig}
IDENTITY = ("stage", "scale", "arm")
"""The keys that the command chooses; a file may repeat them but not change them."""
PAPER_SCALE = (
    "The paper scale (Qwen3-4B on two large GPUs) is trained by PRIME-RL, with configs/paper: bash"
    " scripts/train_sft.sh and train_rl.sh with --scale paper; the scales of the embedded engine are mini and small"
)
NO_MODEL = "model is missing: give --model a folder or a hub id; RL starts from the arm's SFT checkpoint"


class ConfigError(ValueError):
    """A configuration is refused; the message says what, where, got and expected, one fault a line."""


@dataclass(frozen=True)
class _Given:
    value: Any
    origin: str  # a file, an override as it was written, or the command line


def scales() -> list[str]:
    """The scales that have settings."""
    return sorted(path.parent.name for path in CONFIGS.glob("*/sft.toml"))


@overload
def load_config(
    stage: Literal["sft"],
    scale: str,
    arm: Arm | str,
    overlays: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    **fields: Any,
) -> SftConfig: ...


@overload
def load_config(
    stage: Literal["rl"],
    scale: str,
    arm: Arm | str,
    overlays: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    **fields: Any,
) -> RlConfig: ...


def load_config(
    stage: Stage,
    scale: str,
    arm: Arm | str,
    overlays: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    **fields: Any,
) -> SftConfig | RlConfig:
    """Defaults, then the scale's file, the overlays in order, the overrides in order, then `fields` that are not None.

    An override is `key=value` with a dotted key; the value is TOML, or plain text where it is not. `fields` are keys
    outside the tables (`model`, `data`, `seed`, …), for options of a command.

    Raises:
        ConfigError: an unknown scale or key, a wrong type or value, a contradiction; all that were found.
        OSError: an overlay cannot be read.
    """
    root = ROOTS[stage]
    given: dict[str, _Given] = {}
    given |= _from_tree(root, _parse(_scale_file(scale, stage)), f"configs/{scale}/{stage}.toml")
    for path in overlays:
        given |= _from_tree(root, _parse(path), str(path))
    for text in overrides:
        given |= _from_override(root, text)
    given |= _from_tree(root, {k: v for k, v in fields.items() if v is not None}, "the command line")
    for name, value in zip(IDENTITY, (stage, scale, getattr(arm, "value", arm)), strict=True):
        if name in given and given[name].value != value:
            raise ConfigError(f"{given[name].origin}: {name} is {given[name].value!r}, but the command chose {value!r}")
        given[name] = _Given(value, "the command line")
    return _build(root, given)


def read_config(path: Path) -> SftConfig | RlConfig:
    """Read a resolved configuration: a run's folder or its config.toml.

    Raises:
        ConfigError: it is not one that `dump_config` wrote, or no longer valid.
        OSError: there is none.
    """
    file = path / "config.toml" if path.is_dir() else path
    tree = _parse(file)
    if (stage := tree.get("stage")) not in ROOTS:
        raise ConfigError(f'{file}: stage: expected "sft" or "rl", got {stage!r}; this is no resolved configuration')
    root = ROOTS[stage]
    return _build(root, _from_tree(root, tree, str(file)))


def dump_config(config: Config) -> str:
    """The configuration as TOML, every key written but those that are none; `read_config` reads an equal one."""
    tree = config.model_dump(mode="json", exclude_none=True)
    tables = {name: value for name, value in tree.items() if isinstance(value, dict)}
    lines = [f"{name} = {toml_value(value)}" for name, value in tree.items() if name not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: bool | int | float | str | list[Any]) -> str:
    """One value as TOML. JSON's strings are TOML's, but for DEL, which TOML wants escaped."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _scale_file(scale: str, stage: Stage) -> Path:
    path = CONFIGS / scale / f"{stage}.toml"
    if scale in scales() and path.is_file():
        return path
    if scale == "paper":
        raise ConfigError(PAPER_SCALE)
    raise ConfigError(f"unknown scale {scale!r}: expected one of {', '.join(scales())}{_nearest(scale, scales())}")


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _from_tree(root: type[Config], tree: dict[str, Any], origin: str) -> dict[str, _Given]:
    known, tables = leaves(root), sections(root)
    faults, given = [], {}
    for key, value in flatten(tree, tables):
        if key in tables:
            faults.append(f"{origin}: {key}: expected a table, got {value!r}")
        elif key not in known:
            faults.append(_unknown(root, key, origin))
        given[key] = _Given(value, origin)
    if faults:
        raise ConfigError("\n".join(faults))
    return given


def _from_override(root: type[Config], text: str) -> dict[str, _Given]:
    origin, known, tables = f"override {text!r}", leaves(root), sections(root)
    key, equals, raw = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise ConfigError(f"{origin}: expected key=value, such as rl.steps=5")
    if key in tables:
        example = next(name for name in known if name.startswith(f"{key}."))
        raise ConfigError(f"{origin}: {key} is a table; override its keys one by one, such as {example}=…")
    if key not in known:
        raise ConfigError(_unknown(root, key, origin))
    value = _override_value(raw)
    if is_text(known[key]) and not isinstance(value, str):
        value = raw
    return {key: _Given(value, origin)}


def _override_value(raw: str) -> Any:
    """TOML where it is TOML, else the text as it stands."""
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    return parsed["value"] if len(parsed) == 1 else raw


def _unknown(root: type[Config], key: str, origin: str) -> str:
    for stage, other in ROOTS.items():
        if other is not root and (key in leaves(other) or key in sections(other)):
            return f"{origin}: {key!r} belongs to the {stage} stage, not to this one"
    known = leaves(root)
    same_name = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    near = same_name[:1] or difflib.get_close_matches(key, known, 1)
    if not near:
        table = key.partition(".")[0]
        names = [name for name in known if name.startswith(f"{table}.")] or [*sections(root)]
        return f"{origin}: unknown key {key!r}; known are {', '.join(names)}"
    return f"{origin}: unknown key {key!r}; did you mean {near[0]!r} ({type_text(known[near[0]])})?"


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _build(root: type[SftConfig] | type[RlConfig], given: dict[str, _Given]) -> SftConfig | RlConfig:
    tree: dict[str, Any] = {}
    for key, each in given.items():
        if isinstance(each.value, str) and each.value != each.value.encode("utf-8", "replace").decode():
            raise ConfigError(f"{each.origin}: {key}: expected text that is UTF-8, got {each.value!r}")
        table, _, name = key.rpartition(".")
        (tree.setdefault(table, {}) if table else tree)[name] = each.value
    # by way of JSON, because its strict mode takes texts for enums and paths, but not "5" for 5 or 1 for true
    try:
        return root.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        faults = [fault for each in error.errors() for fault in _faults(root, each, given)]
        raise ConfigError("\n".join(faults)) from error


def _faults(root: type[Config], error: Any, given: dict[str, _Given]) -> Iterator[str]:
    """One error of pydantic as lines: of a key, or of the configuration as a whole (a contradiction)."""
    known, key = leaves(root), ".".join(str(part) for part in error["loc"])
    leaf = next((name for name in known if key == name or key.startswith(f"{name}.")), None)
    if leaf is None:
        yield from (f"{fault}{_sources(fault, given)}" for fault in str(error["ctx"]["error"]).splitlines())
    elif leaf not in given:
        yield NO_MODEL if leaf == "model" else f"{leaf} is missing"
    else:
        reason = f" ({error['ctx']['error']})" if error["type"] == "value_error" else ""
        yield f"{given[leaf].origin}: {leaf}: expected {type_text(known[leaf])}, got {given[leaf].value!r}{reason}"


def _sources(fault: str, given: dict[str, _Given]) -> str:
    """Where the keys that a contradiction names were given."""
    named = [key for key in dict.fromkeys(re.findall(r"[a-z]+\.[a-z_]+", fault)) if key in given]
    return f" [{'; '.join(f'{key}: {given[key].origin}' for key in named)}]" if named else ""
