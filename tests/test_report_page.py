"""The page as a file: whole, self-contained, escaped, and never a 0 where nothing is defined."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner, Result

from glyph.commands.analysis import register
from glyph.evaluation.traces import Message, read_traces, write_traces
from glyph.report.figures import build_figures
from glyph.report.format import format_metric
from glyph.report.page import embed, render_page
from glyph.report.rollout import printable
from glyph.report.runs import read_run
from glyph.report.training import Content, build_content
from tests.builders import error_trace, trace
from tests.run_folders import annotated, write_lines, write_metrics, write_run

app = typer.Typer()
register(app)
HOSTILE = "</script><img src=x onerror=alert(1)>{{ 7*7 }}\x00\x1b[2J\ud800\u202e<!-- ]]> &amp;"


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of each arm."""
    folder = tmp_path_factory.mktemp("page") / "runs"
    for arm in "ab":
        for seed in (0, 1):
            write_run(folder / f"{arm}{seed}", arm, seed, steps=4, every=2, tasks=6)
    return folder


@pytest.fixture(scope="module")
def content(runs: Path) -> Content:
    return build_content([read_run(folder) for folder in sorted(runs.iterdir())], [], "Runs", {})


@pytest.fixture(scope="module")
def page(content: Content) -> str:
    return render_page(content)


class Elements(HTMLParser):
    """The page's elements with their attributes, and its text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._within: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._within):
            self.text.append(data)


def test_the_page_asks_for_nothing_and_its_policy_forbids_it(page: str) -> None:
    elements = Elements(page).found
    links = [value for _, attributes in elements for name, value in attributes.items() if name in ("src", "href")]
    assert links
    assert [link for link in links if link and not link.startswith(("#", "data:,"))] == []
    assert "@import" not in page
    assert "url(" not in page
    policy = next(a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a)
    assert policy
    assert policy.startswith("default-src 'none'")
    script = page[page.rindex("<script>") + 8 : page.rindex("</script>")]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy


def test_every_section_stands_with_its_figures_tables_and_names(page: str, content: Content) -> None:
    figures = build_figures(content)
    names = [figure.name for figure in figures]
    assert len(set(names)) == len(names)
    assert {
        "evaluation_pass_at_1", "evaluation_first_patch", "evaluation_recovery", "train_reward_mean", "confusion",
        "precision_recall", "revised_split", "tool_calls", "stop_reasons", "paired", "step_time", "train_label_loss",
    } <= set(names)  # fmt: skip
    elements = Elements(page).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {f"figure-{name}" for name in names} <= set(ids)
    links = {a["href"][1:] for tag, a in elements if tag == "a" and a.get("href")}
    assert links <= set(ids)
    assert sum(tag == "table" for tag, _ in elements) == sum(tag == "caption" for tag, _ in elements) > len(figures)
    assert all(a.get("role") == "img" for tag, a in elements if tag == "svg")
    assert len(page) < 3_000_000


def test_the_tables_tell_the_numbers_of_evaluation(page: str, content: Content) -> None:
    for column in content.report.columns:
        assert format_metric(column.metrics["pass_at_1"]) in page
    assert "0123456789abcdef0123456789abcdef01234567" in page
    assert "alpha = 0.1" in page


def test_what_is_undefined_is_a_dash_with_its_n(page: str) -> None:
    """Arm A predicts nothing."""
    row = re.search(r'<th scope="row">prediction accuracy</th>(.*?)</tr>', page)
    assert row
    cells = re.findall("<td>(.*?)</td>", row[1])
    assert cells[:2] == ["– n=0", "– n=0"]
    assert cells[2] != "– n=0"


def test_the_command_writes_the_page_beside_the_runs(runs: Path, tmp_path: Path) -> None:
    text = run("report", runs).stdout
    out = runs / "report"
    assert f"wrote {out}/report.html" in text
    assert {"report.html", "report.md", "report.json", "figures"} == {path.name for path in out.iterdir()}
    for path in (out / "figures").iterdir():
        ElementTree.parse(path)
    data = json.loads((out / "report.json").read_text())
    assert [group["seeds"] for group in data["training"]["groups"]] == [[0, 1], [0, 1]]
    assert len(data["training"]["curves"]["rl/evaluation/validation/pass_at_1"]) == 2
    before = (out / "report.html").read_bytes()
    run("report", runs, "--json")
    assert (out / "report.html").read_bytes() == before  # the same input, the same page
    run("report", runs / "a0", "-o", tmp_path / "one", "--title", HOSTILE)
    assert (tmp_path / "one/report.html").is_file()
    assert not (runs / "a0/report").exists()
    write_run(tmp_path / "b9", "b", 9, steps=1, tasks=2)
    assert "different folders; say where" in run("report", runs / "a0", tmp_path / "b9", code=2).stderr


def test_a_run_that_has_not_evaluated_yet_gets_its_curves(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "sft", "a", 0, stage="sft", steps=3, tasks=2)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    write_metrics(folder, [line for line in lines if line["kind"] == "train"])
    run("report", folder)
    assert {path.name for path in (folder / "report/figures").iterdir()} == {
        "train_loss.svg", "train_grad_norm.svg", "step_time.svg",
    }  # fmt: skip


def test_trace_files_have_a_page_without_curves_only_where_one_is_asked_for(tmp_path: Path) -> None:
    path = write_traces(tmp_path / "t.jsonl", [trace("t1"), trace("t2", solved=False), error_trace()])
    run("report", path)
    assert not list(tmp_path.rglob("*.html"))
    run("report", path, "-o", tmp_path / "out")
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert 'id="learning"' not in page
    assert 'id="figure-outcome"' in page
    assert "trained by RL" in page  # the script; there are no tokens to colour


def exhibits(page: str) -> list[dict]:  # type: ignore[type-arg]
    return json.loads(page.partition('id="exhibits">')[2].partition("</script>")[0])


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """In tokens, labels, task ids, messages, models, errors, folders, manifests, configs and the title."""
    folder = write_run(tmp_path / "b<img src=x>0", "b", 0, steps=2, every=1, tasks=3)
    odd = replace(trace("t1"), messages=(Message("assistant", HOSTILE),), model=HOSTILE)
    line = annotated(trace("t1"), 0.5)
    line["tokens"] = [[HOSTILE, "rl"]]
    line["targets"] = [{"at": 0, "label": HOSTILE, "tokens": [[HOSTILE, "ce"]]}]
    write_lines(folder / "traces/step_000001.jsonl.gz", [line])
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "model": HOSTILE, "hardware": {"<b>": HOSTILE}}))
    with (folder / "config.toml").open("a") as file:
        file.write('odd = "</script><img src=x onerror=alert(1)>"\n')
    plain = write_traces(tmp_path / "t.jsonl", [odd, replace(error_trace(), error=HOSTILE)])
    made = build_content([read_run(folder)], [read_traces(plain)], HOSTILE, {HOSTILE: HOSTILE})
    page = render_page(made)
    page.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", page)
    elements = Elements(page)
    assert "img" not in [tag for tag, _ in elements.found]
    assert page.count("</script>") == 2
    assert "{{ 7*7 }}" in "".join(elements.text)
    assert "onerror" in "".join(elements.text)
    shown = exhibits(page)
    assert shown[0]["tokens"] == [printable(HOSTILE)]
    assert "{{ 7*7 }}\\x00\\x1b[2J\\ud800\\u202e<!--" in shown[0]["tokens"][0]
    assert any("</script>" in each.get("text", "") for each in shown)
    for figure in build_figures(made):
        ElementTree.fromstring(figure.canvas.render(figure.name, True).encode("utf-8"))


def test_embedded_json_comes_back_as_it_was() -> None:
    data = [HOSTILE, {"a": [1.5, None, "\u2028"]}]
    text = embed(data)
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text) == data
