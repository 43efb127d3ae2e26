"""What training made of a rollout's tokens, for the trace viewer: their text and their role, and the label branches.

Roles: `context` (not sampled), `rl` (policy gradient), `masked` (sampled, but without credit by rule: a label, a
decision that a variant overrode), `untrained` (sampled, but the rollout or its group trains nothing). In a label
branch: `ce` (cross-entropy), `shared` (no loss).
"""

from collections.abc import Sequence
from typing import Any

from glyph.credit import Codec, Credited, TrainingSample
from glyph.local.rollouts.collector import Played


def annotate(
    played: Played, credited: Credited | None, samples: Sequence[TrainingSample], codec: Codec
) -> dict[str, Any]:
    """`advantage` (None where the rollout does not train by RL), `tokens` and `targets` of the first branch."""
    if credited is None or not credited.samples:
        return {"advantage": None, "tokens": _unscored(played, codec), "targets": []}
    trunk = credited.samples[0]
    final = next((sample for sample in samples if sample.label is None), None)
    trains = final is not None and any(w and m for w, m in zip(final.rl_weights, final.mask, strict=True))
    weights = final.rl_weights if final and trains else trunk.rl_weights
    roles = [_role(m, w, trains) for m, w in zip(trunk.mask, weights, strict=True)]
    text = _pieces(trunk.token_ids, codec)
    return {
        "advantage": final.advantage if final and trains else None,
        "tokens": [list(pair) for pair in zip(text, roles, strict=True)],
        "targets": [_branch(s, codec) for s in samples if s.label is not None and s.branch == 0],
    }


def _role(sampled: bool, weight: float, trains: bool) -> str:
    if not sampled:
        return "context"
    if not weight:
        return "masked"
    return "rl" if trains else "untrained"


def _branch(sample: TrainingSample, codec: Codec) -> dict[str, Any]:
    own = range(sample.shared, len(sample.token_ids))
    roles = ["ce" if sample.ce_weights[i] else "shared" for i in own]
    text = _pieces(sample.token_ids[sample.shared :], codec)
    assert sample.label is not None
    pairs = [list(pair) for pair in zip(text, roles, strict=True)]
    return {"at": sample.shared, "label": sample.label.value, "tokens": pairs}


def _unscored(played: Played, codec: Codec) -> list[list[str]]:
    segments = [segment for branch in played.branches[:1] for segment in branch]
    ids = [i for segment in segments for i in segment.token_ids]
    roles = ["untrained" if mine else "context" for segment in segments for mine in segment.sampled]
    return [list(pair) for pair in zip(_pieces(ids, codec), roles, strict=True)]


def _pieces(token_ids: Sequence[int], codec: Codec) -> list[str]:
    """The text of each token; one that ends within a character shows nothing, the next one the whole character."""
    pieces: list[str] = []
    rest = b""
    for token_id in token_ids:
        rest += codec.token_bytes(token_id)
        try:
            pieces.append(rest.decode("utf-8"))
            rest = b""
        except UnicodeDecodeError as error:
            whole = len(rest) - error.start <= 3 and error.reason == "unexpected end of data"
            pieces.append(rest[: error.start].decode("utf-8") if whole else rest.decode("utf-8", "replace"))
            rest = rest[error.start :] if whole else b""
    return pieces
