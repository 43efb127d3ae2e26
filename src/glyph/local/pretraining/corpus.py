"""Documents of the mini world as rows of token ids, packed, the same for any number of workers.

A row holds whole documents, each ended by `<|endoftext|>`, and is filled up with `PADDING`; it begins with the
beginning of a document, as a rollout does. An id with `GIVEN` added belongs to a part that is given, not asked.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from glyph.chat import token_id
from glyph.local.inference.loading import load_tokenizer
from glyph.local.pretraining.tokenizer import DOCUMENT_END
from glyph.tasks.mini.generate import DEFAULT_SEED
from glyph.tasks.mini.pretraining import SAMPLES_PER_CHUNK, Text, write_chunk
from glyph.tasks.mini.pretraining_samples import admission

GIVEN = 1 << 15
"""Added to an id, which is always smaller."""
PADDING = (1 << 16) - 1
CHUNK_SECONDS = 120
"""How long one chunk may take before the whole run is stopped; it takes about a second."""
_OPEN_ROWS = 24

Rows = NDArray[np.uint16]


@dataclass
class Corpus:
    """`rows` is (rows, length). Counts are of documents and of tokens (padding apart) by kind."""

    rows: Rows
    documents: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    too_long: int = 0
    chunks: int = 1

    def facts(self) -> dict[str, object]:
        total = sum(self.tokens.values())
        return {
            "chunks": self.chunks,
            "documents": sum(self.documents.values()),
            "tokens": total,
            "rows": len(self.rows),
            "filled": round(total / max(self.rows.size, 1), 4),
            "left_out_too_long": self.too_long,
            "documents_by_kind": dict(sorted(self.documents.items())),
            "token_share_by_kind": {kind: round(n / max(total, 1), 4) for kind, n in sorted(self.tokens.items())},
        }


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[Text]) -> list[list[int]]:
    """The ids of each document, `GIVEN` added where it is given, with the document's end."""
    parts = [part.text for text in texts for part in text.parts]
    encoded = iter(tokenizer.backend_tokenizer.encode_batch_fast(parts, add_special_tokens=False))
    end = token_id(tokenizer, DOCUMENT_END)
    return [[*(i for part in text.parts for i in _marked(next(encoded).ids, part.asked)), end] for text in texts]


def _marked(ids: list[int], asked: bool) -> list[int]:
    return ids if asked else [i + GIVEN for i in ids]


def pack(documents: Iterable[list[int]], length: int) -> Rows:
    """Whole documents into rows: each into the fullest open row that has room for it."""
    done: list[list[int]] = []
    rows: list[list[int]] = []
    for document in documents:
        fitting = [row for row in rows if len(row) + len(document) <= length]
        if fitting:
            max(fitting, key=len).extend(document)
            continue
        if len(rows) == _OPEN_ROWS:
            rows.sort(key=len)
            done.append(rows.pop())
        rows.append(list(document))
    filled = np.full((len(done) + len(rows), length), PADDING, dtype=np.uint16)
    for place, row in enumerate([*done, *rows]):
        filled[place, : len(row)] = row
    return filled


@dataclass(frozen=True)
class Order:
    """What a worker needs to make chunks: the tokenizer, the row length, and which stream of text."""

    tokenizer: PreTrainedTokenizerFast
    length: int
    seed: int
    name: str
    samples: int = SAMPLES_PER_CHUNK

    def chunk(self, number: int) -> Corpus:
        texts = list(write_chunk(number, self.seed, self.name, self.samples))
        encoded = encode(self.tokenizer, texts)
        fitting = [(text.kind, ids) for text, ids in zip(texts, encoded, strict=True) if len(ids) <= self.length]
        corpus = Corpus(pack([ids for _, ids in fitting], self.length), too_long=len(texts) - len(fitting))
        for kind, ids in fitting:
            corpus.documents[kind] += 1
            corpus.tokens[kind] += len(ids)
        return corpus


_order: Order | None = None


def _set_order(order: Order) -> None:
    global _order
    _order = order


def _make(number: int) -> Corpus:
    assert _order is not None
    return _order.chunk(number)


def build(order: Order, chunks: int, workers: int = 1, seconds: float | None = None) -> Corpus:
    """Chunks 0 to `chunks` - 1, joined in order; past `seconds` no further chunk is waited for.

    Raises:
        multiprocessing.TimeoutError: a chunk took longer than `CHUNK_SECONDS`.
    """
    admission(order.seed, "train"), admission(order.seed, "validation")  # made once, before the workers are forked
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    started, parts = time.monotonic(), []
    with multiprocessing.get_context("fork").Pool(workers, _set_order, (order,)) as pool:
        results = pool.imap(_make, range(chunks))
        for number in range(1, chunks + 1):
            parts.append(results.next(CHUNK_SECONDS))
            elapsed = time.monotonic() - started
            if number % 50 == 0:
                print(f"{number}/{chunks} chunks in {elapsed:.0f} s", flush=True)
            if seconds is not None and elapsed > seconds:
                print(f"stopped after {number} chunks, at the time limit", flush=True)
                break
    joined = Corpus(np.concatenate([part.rows for part in parts]), chunks=len(parts))
    for part in parts:
        joined.documents += part.documents
        joined.tokens += part.tokens
        joined.too_long += part.too_long
    return joined


def main() -> None:
    """Write the corpus of the mini base model: training rows, rows of held-out programs, and facts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--chunks", type=int, default=800)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--samples", type=int, default=SAMPLES_PER_CHUNK, help="a chunk")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-seconds", type=float, default=None)
    arguments = parser.parse_args()
    tokenizer: Any = load_tokenizer(arguments.tokenizer)
    look = (tokenizer, arguments.length, arguments.seed)
    corpus = build(Order(*look, "train", arguments.samples), arguments.chunks, arguments.workers, arguments.max_seconds)
    held_out = build(Order(*look, "evaluation", arguments.samples), 2, arguments.workers)
    facts = {"seed": arguments.seed, "length": arguments.length, **corpus.facts(), "held_out": held_out.facts()}
    np.savez(arguments.out, rows=corpus.rows, held_out=held_out.rows, facts=json.dumps(facts))
    print(json.dumps(facts, indent=1))
    print(f"wrote {arguments.out}; next: python -m glyph.local.pretraining.training_loop {arguments.out} FOLDER")


if __name__ == "__main__":
    main()
