"""The pre-training text of the mini world: a seed and a number of chunks go in, documents come out.

Chunk number i of a seed is always the same text, whoever writes it and in whatever order, so any number of workers
makes the same corpus. Each chunk draws programs that may be shown (see `pretraining_samples`) and writes several
documents of different kinds from each, every one in words of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from glyph.tasks.mini import pretraining_documents as documents
from glyph.tasks.mini import pretraining_edits as edits
from glyph.tasks.mini.generate import DEFAULT_SEED
from glyph.tasks.mini.pretraining_documents import Document, Write
from glyph.tasks.mini.pretraining_samples import admission, draw_sample

SAMPLES_PER_CHUNK = 200
DOCUMENTS_PER_SAMPLE = 6

KINDS: dict[str, tuple[float, Write]] = {
    "plain_file": (0.10, documents.plain_file),
    "documented": (0.03, documents.documented),
    "question": (0.12, documents.question),
    "record": (0.17, documents.record),
    "json_line": (0.04, documents.json_line),
    "conversation": (0.16, edits.conversation),
    "repair": (0.08, edits.repair),
    "review": (0.08, edits.review),
    "check": (0.07, documents.check),
    "evaluation": (0.03, documents.evaluation),
    "session": (0.03, documents.session),
    "disclosure": (0.05, documents.disclosure),
    "description": (0.01, documents.description),
    "escaped": (0.02, documents.escaped),
    "restyled": (0.01, documents.restyled),
}
"""Each kind of document with its share of all draws. Kinds that a sample does not lend itself to are drawn again."""


@dataclass(frozen=True)
class Text:
    """A document with its kind and the fingerprint of the program that it shows."""

    kind: str
    parts: Document
    fingerprint: str

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


def write_chunk(
    number: int, seed: int = DEFAULT_SEED, name: str = "train", samples: int = SAMPLES_PER_CHUNK
) -> Iterator[Text]:
    """The documents of one chunk. `name` keeps independent streams apart: train, tokenizer, and evaluation, which
    alone shows programs of the validation share, and no training ones."""
    rng = Random(f"pretraining {name} {seed} {number}")
    admits = admission(seed, "validation" if name == "evaluation" else "train")
    for _ in range(samples):
        sample = draw_sample(admits, rng)
        behaviour = sample.fingerprint
        kinds = list(KINDS)
        for _ in range(DOCUMENTS_PER_SAMPLE):
            kind = rng.choices(kinds, [KINDS[kind][0] for kind in kinds])[0]
            kinds.remove(kind)
            document = KINDS[kind][1](sample.reworded(rng), rng)
            if document:
                yield Text(kind, document, behaviour)
