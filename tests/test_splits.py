"""The study's splits: the order key computed by hand, and the published ids."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from glyph.tasks.mbpp import CONTENT_DIGEST, content_digest, load_mbpp, normalise
from glyph.tasks.splits import OFFICIAL, order_key, split_mbpp
from glyph.tasks.task import CodeTask

PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "splits.json"
FAKE = [CodeTask(str(i), f"task {i}", "assert True\n", "") for i in range(11, 975)]


def ids(tasks: tuple[CodeTask, ...]) -> list[int]:
    return [int(task.task_id) for task in tasks]


def test_the_order_key_is_a_hash_of_seed_id_and_text() -> None:
    assert order_key(CodeTask("601", "Add.", "", "")) == (hashlib.sha256(b"42\x00601\x00Add.").hexdigest(), 601)


def test_the_sizes_and_where_tasks_come_from() -> None:
    splits = split_mbpp(FAKE)
    assert [len(tasks) for _, tasks in splits.items()] == [212, 212, 40, 500]
    pool, validation = {*ids(splits.sft), *ids(splits.train)}, set(ids(splits.validation))
    assert set(OFFICIAL["train"]) < pool
    assert len(pool & set(OFFICIAL["validation"])) == 50
    assert validation == set(OFFICIAL["validation"]) - pool
    assert ids(splits.test) == list(range(11, 511))
    assert ids(splits.validation) == sorted(validation)
    assert sum(len(tasks) for _, tasks in splits.items()) == len(pool | validation | set(ids(splits.test))) == 964


def test_the_pool_is_in_key_order_and_depends_on_the_seed() -> None:
    splits = split_mbpp(list(reversed(FAKE)))
    keys = [order_key(task) for task in (*splits.sft, *splits.train)]
    assert keys == sorted(keys)
    assert ids(split_mbpp(FAKE).sft) == ids(splits.sft) != ids(split_mbpp(FAKE, seed=43).sft)


@pytest.mark.parametrize("tasks", [FAKE[1:], [*FAKE, FAKE[0]], [*FAKE[1:], FAKE[1]], []])
def test_missing_and_repeated_tasks_are_refused(tasks: list[CodeTask]) -> None:
    with pytest.raises(ValueError, match="each id from 11 to 974 once"):
        split_mbpp(tasks)


def test_the_splits_are_the_published_ones(mbpp_source: Path) -> None:
    if not PUBLISHED.exists():
        pytest.skip("the published ids are not beside the checkout")
    published, splits = json.loads(PUBLISHED.read_text()), split_mbpp(load_mbpp(mbpp_source)[0])
    first, last = published["test"]
    assert ids(splits.test) == list(range(first, last + 1))
    assert sorted(ids(splits.validation)) == sorted(published["validation"])
    assert {name: sorted(ids(tasks)) for name, tasks in (("sft", splits.sft), ("rl", splits.train))} == {
        name: sorted(published[name]) for name in ("sft", "rl")
    }


def test_only_the_pinned_mbpp_is_taken(mbpp_source: Path, tmp_path: Path) -> None:
    tasks, origin = load_mbpp(mbpp_source)
    assert (len(tasks), content_digest(tasks)) == (964, CONTENT_DIGEST)
    assert list(origin.files) == [mbpp_source.name]
    assert content_digest([replace(tasks[0], gold="pass"), *tasks[1:]]) != CONTENT_DIGEST
    changed = tmp_path / "mbpp.jsonl"
    changed.write_bytes(mbpp_source.read_bytes().replace(b"assert", b"assert not", 200))
    with pytest.raises(ValueError, match="these are not the pinned MBPP tasks"):
        load_mbpp(changed)


def rows(path: Path, *found: object) -> Path:
    path.write_text("".join(f"{json.dumps(row) if isinstance(row, dict) else row}\n" for row in found))
    return path


ROW = {"task_id": 11, "text": "x\u2028y", "code": "a\r\nb", "test_list": ["assert 1"], "test_setup_code": ""}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([ROW], "digest of 1 tasks"),
        ([{**ROW, "task_id": 3}], "digest of 0 tasks"),
        ([{**ROW, "task_id": "eleven"}], "a row is no MBPP task"),
        ([{**ROW, "test_list": None}], "a row is no MBPP task"),
        ([{}], "KeyError"),
        ([ROW, "{"], ":2: not JSON"),
        ([], "digest of 0 tasks"),
    ],
)
def test_a_bad_copy_is_named(tmp_path: Path, found: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_mbpp(rows(tmp_path / "copy.jsonl", *found))


def test_a_missing_copy_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing.jsonl"):
        with pytest.raises(ValueError, match="no such file"):
            load_mbpp(path)


def test_fields_are_normalised() -> None:
    assert normalise("\r\n a\r\nb\rc \t\n") == "a\nb\nc"


def test_parquet_files_hold_the_same_tasks(mbpp_source: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    found = [json.loads(line) for line in mbpp_source.read_text().splitlines()]
    for name, part in (("train", found[:500]), ("test", found[500:])):
        parquet.write_table(pyarrow.Table.from_pylist(part), tmp_path / f"{name}.parquet")
    assert load_mbpp(tmp_path)[0] == load_mbpp(mbpp_source)[0]
    (tmp_path / "test.parquet").write_bytes(b"not parquet")
    with pytest.raises(ValueError, match="not a parquet file"):
        load_mbpp(tmp_path)
