"""The grammar: what parses, what is a breach and of which kind, and that nothing a model says raises."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glyph.protocol import (
    MAX_TURN_CHARACTERS,
    TEST_LINES,
    TOOL_ARGUMENTS,
    Breach,
    BreachKind,
    Call,
    Decision,
    Detail,
    Final,
    Label,
    Prediction,
    Tool,
    parse_prediction_turn,
    parse_turn,
    read_decision,
    read_label,
    read_prediction,
    render_call,
    render_detail,
    render_final,
    render_prediction,
    render_result,
    render_test_result,
)

TEST = 'CALL python_test {"id": "c1", "project_path": "."}'
PATCH = 'CALL apply_patch {"id": "c2", "file_path": "solution.py", "find": "a", "replace": "b"}'
KEEP = f"<PREDICTION>PASS</PREDICTION>\n<DECISION>KEEP</DECISION>\n{TEST}"
REVISE = f"<PREDICTION>TIMEOUT</PREDICTION>\n<DECISION>REVISE</DECISION>\n{PATCH}"

TEST_CALL = Call(Tool.PYTHON_TEST, "c1", {"project_path": "."})
PATCH_CALL = Call(Tool.APPLY_PATCH, "c2", {"file_path": "solution.py", "find": "a", "replace": "b"})


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (TEST, TEST_CALL),
        (PATCH, PATCH_CALL),
        (f"\n  {TEST}\n\n", TEST_CALL),
        (f"{TEST}\r\n", TEST_CALL),
        ('CALL read_file {"file_path": "a.py", "id": "x"}', Call(Tool.READ_FILE, "x", {"file_path": "a.py"})),
        ('CALL read_file {"id": "\u00e9", "file_path": ""}', Call(Tool.READ_FILE, "\u00e9", {"file_path": ""})),
        ('CALL read_file {"id": "1", "file_path": "a\u2028b"}', Call(Tool.READ_FILE, "1", {"file_path": "a\u2028b"})),
        ('CALL read_file {"id": "1", "file_path": "\\u0000"}', Call(Tool.READ_FILE, "1", {"file_path": "\0"})),
        ("FINAL: done", Final("done")),
        ("FINAL:", Final("")),
        ("FINAL:done\u2028really", Final("done\u2028really")),
    ],
)
def test_a_plain_turn_is_a_call_or_a_final(text: str, turn: Call | Final) -> None:
    assert parse_turn(text) == turn


DEEP = '{"id": ' + "[" * 100_000 + "]" * 100_000 + ', "project_path": "."}'
BREACHES = {
    "nothing": ("", BreachKind.NOT_A_TURN),
    "prose": ("I will test.", BreachKind.NOT_A_TURN),
    "prose before": (f"Now: {TEST}", BreachKind.NOT_A_TURN),
    "text after": (f"{TEST} and more", BreachKind.NOT_A_TURN),
    "a line after": (f"{TEST}\nFINAL: done", BreachKind.NOT_A_TURN),
    "two calls": (f"{TEST}\n{TEST}", BreachKind.NOT_A_TURN),
    "two finals": ("FINAL: a\nFINAL: b", BreachKind.NOT_A_TURN),
    "a final on two lines": ("FINAL: a\nb", BreachKind.NOT_A_TURN),
    "CR in a final": ("FINAL: a\rCALL", BreachKind.NOT_A_TURN),
    "CR between arguments": ('CALL python_test {"id": "1",\r"project_path": "."}', BreachKind.NOT_A_TURN),
    "LF between arguments": ('CALL python_test {"id": "1",\n"project_path": "."}', BreachKind.NOT_A_TURN),
    "lower case": (TEST.lower(), BreachKind.NOT_A_TURN),
    "lower case final": ("Final: done", BreachKind.NOT_A_TURN),
    "two spaces": (TEST.replace(" {", "  {"), BreachKind.NOT_A_TURN),
    "no space": (TEST.replace(" {", "{"), BreachKind.NOT_A_TURN),
    "a tab": (TEST.replace("CALL ", "CALL\t"), BreachKind.NOT_A_TURN),
    "a fence": (f"```\n{TEST}\n```", BreachKind.NOT_A_TURN),
    "no object": ("CALL python_test .", BreachKind.NOT_A_TURN),
    "a prediction where none is due": (KEEP, BreachKind.NOT_A_TURN),
    "a result of its own": (render_result("c1", True, "tests passed"), BreachKind.NOT_A_TURN),
    "unknown tool": ('CALL rm {"id": "1"}', BreachKind.UNKNOWN_TOOL),
    "tool in capitals": (TEST.replace("python_test", "PYTHON_TEST"), BreachKind.UNKNOWN_TOOL),
    "not JSON": ("CALL python_test {id: 1}", BreachKind.BAD_JSON),
    "single quotes": ("CALL python_test {'id': '1', 'project_path': '.'}", BreachKind.BAD_JSON),
    "unclosed string": ('CALL python_test {"id": "1}', BreachKind.BAD_JSON),
    "two objects": (f'{TEST}{{"id": "2"}}', BreachKind.BAD_JSON),
    "a key twice": ('CALL python_test {"id": "1", "id": "2", "project_path": "."}', BreachKind.BAD_JSON),
    "a raw NUL in a string": ('CALL python_test {"id": "\0", "project_path": "."}', BreachKind.BAD_JSON),
    "an endless number": ('CALL python_test {"id": ' + "1" * 10_000 + ', "project_path": "."}', BreachKind.BAD_JSON),
    "deep JSON": (f"CALL python_test {DEEP}", BreachKind.BAD_JSON),
    "no arguments": ("CALL python_test {}", BreachKind.BAD_ARGUMENTS),
    "an argument is missing": ('CALL python_test {"id": "1"}', BreachKind.BAD_ARGUMENTS),
    "an argument too many": (TEST.replace("}", ', "x": "y"}'), BreachKind.BAD_ARGUMENTS),
    "a surrogate for a name": (TEST.replace("}", ', "\\ud800": "y"}'), BreachKind.BAD_ARGUMENTS),
    "a number": ('CALL python_test {"id": 1, "project_path": "."}', BreachKind.BAD_ARGUMENTS),
    "null": ('CALL python_test {"id": "1", "project_path": null}', BreachKind.BAD_ARGUMENTS),
    "NaN": ('CALL python_test {"id": "1", "project_path": NaN}', BreachKind.BAD_ARGUMENTS),
    "an empty id": ('CALL python_test {"id": "", "project_path": "."}', BreachKind.BAD_ARGUMENTS),
    "a line end in an id": ('CALL python_test {"id": "a\\nb", "project_path": "."}', BreachKind.BAD_ARGUMENTS),
    "a long id": ('CALL python_test {"id": "' + "a" * 65 + '", "project_path": "."}', BreachKind.BAD_ARGUMENTS),
    "a surrogate": (f"{TEST}\ud800", BreachKind.NOT_TEXT),
    "an escaped surrogate": ('CALL python_test {"id": "1", "project_path": "\\udc00"}', BreachKind.NOT_TEXT),
    "megabytes": ("x" * (MAX_TURN_CHARACTERS + 1), BreachKind.TOO_LONG),
    "megabytes of space": (" " * (MAX_TURN_CHARACTERS + 1), BreachKind.TOO_LONG),
}


@pytest.mark.parametrize("name", BREACHES)
def test_everything_else_is_a_breach_of_its_kind(name: str) -> None:
    text, kind = BREACHES[name]
    breach = parse_turn(text)
    assert isinstance(breach, Breach)
    assert breach.kind is kind
    assert 0 < len(breach.detail.encode()) < 400  # storable, and no copy of the turn


def test_a_prediction_turn_has_exactly_three_lines() -> None:
    assert parse_prediction_turn(KEEP) == Prediction(Label.PASS, Decision.KEEP, TEST_CALL)
    assert parse_prediction_turn(f"\n{REVISE}\n") == Prediction(Label.TIMEOUT, Decision.REVISE, PATCH_CALL)


def test_the_ungated_grammar_has_two_lines_and_always_tests() -> None:
    turn = f"<PREDICTION>OTHER</PREDICTION>\n{TEST}"
    assert parse_prediction_turn(turn, gated=False) == Prediction(Label.OTHER, None, TEST_CALL)
    assert parse_prediction_turn(KEEP, gated=False) == Breach(
        BreachKind.NOT_A_TURN, parse_prediction_turn(KEEP, gated=False).detail, Label.PASS
    )
    wrong = parse_prediction_turn(f"<PREDICTION>OTHER</PREDICTION>\n{PATCH}", gated=False)
    assert isinstance(wrong, Breach)
    assert wrong.kind is BreachKind.WRONG_TOOL


LABEL, KEPT, DROPPED = "<PREDICTION>PASS</PREDICTION>", "<DECISION>KEEP</DECISION>", "<DECISION>REVISE</DECISION>"


@pytest.mark.parametrize(
    ("text", "kind", "label", "decision"),
    [
        (TEST, BreachKind.NOT_A_TURN, None, None),
        ("FINAL: done", BreachKind.NOT_A_TURN, None, None),
        (LABEL, BreachKind.NOT_A_TURN, Label.PASS, None),
        (f"{LABEL}\n{KEPT}", BreachKind.NOT_A_TURN, Label.PASS, Decision.KEEP),
        (f"{LABEL}\n{TEST}", BreachKind.NOT_A_TURN, Label.PASS, None),
        (f"{LABEL}\n{KEPT}\nFINAL: done", BreachKind.NOT_A_TURN, Label.PASS, Decision.KEEP),
        (f"{LABEL}\n{KEPT}\n{TEST}\n{TEST}", BreachKind.NOT_A_TURN, Label.PASS, Decision.KEEP),
        (f"{LABEL}\n\n{KEPT}\n{TEST}", BreachKind.NOT_A_TURN, Label.PASS, None),
        (f"{LABEL} \n{KEPT}\n{TEST}", BreachKind.BAD_LABEL, None, Decision.KEEP),
        (f"{LABEL}\n{KEPT}\n{PATCH}", BreachKind.WRONG_TOOL, Label.PASS, Decision.KEEP),
        (f"{LABEL}\n{DROPPED}\n{TEST}", BreachKind.WRONG_TOOL, Label.PASS, Decision.REVISE),
        (f"{LABEL}\n{DROPPED}\nCALL rm {{}}", BreachKind.UNKNOWN_TOOL, Label.PASS, Decision.REVISE),
        (f"{LABEL}\n<DECISION>keep</DECISION>\n{TEST}", BreachKind.BAD_DECISION, Label.PASS, None),
        (f"<PREDICTION>pass</PREDICTION>\n{KEPT}\n{TEST}", BreachKind.BAD_LABEL, None, Decision.KEEP),
        (f"<PREDICTION>GREAT</PREDICTION>\n{DROPPED}\n{PATCH}", BreachKind.BAD_LABEL, None, Decision.REVISE),
        (KEEP.replace("\n", "\r\n"), BreachKind.BAD_LABEL, None, None),
        (KEEP.replace("\n", "\u2028"), BreachKind.BAD_LABEL, None, None),
        (KEEP + "\ud800", BreachKind.NOT_TEXT, None, None),
    ],
)
def test_a_malformed_prediction_turn_keeps_what_could_be_read(
    text: str, kind: BreachKind, label: Label | None, decision: Decision | None
) -> None:
    breach = parse_prediction_turn(text)
    assert isinstance(breach, Breach)
    assert (breach.kind, breach.label, breach.decision) == (kind, label, decision)


DETAILED = "<PREDICTION>ASSERTION_FAILURE{}</PREDICTION>"


@pytest.mark.parametrize(
    ("said", "level", "detail"),
    [
        ("", None, None),
        ("", Detail.INDEX, None),  # what a prediction does not say is no breach
        (" 2", Detail.INDEX, "2"),
        (" 12", Detail.VALUE, "12"),
        (" 2 [1, 2]", Detail.VALUE, "2 [1, 2]"),
        (" 1 'é '", Detail.VALUE, "1 'é '"),
        (" 1 '</PREDICTION>'", Detail.VALUE, "1 '</PREDICTION>'"),
        (" 3 " + "x" * 60, Detail.VALUE, "3 " + "x" * 60),
    ],
)
def test_a_detail_is_read_at_its_level(said: str, level: Detail | None, detail: str | None) -> None:
    line = DETAILED.format(said)
    assert read_prediction(line, level) == (Label.ASSERTION_FAILURE, detail)
    turn = parse_prediction_turn(f"{line}\n<DECISION>KEEP</DECISION>\n{TEST}", level=level)
    assert turn == Prediction(Label.ASSERTION_FAILURE, Decision.KEEP, TEST_CALL, detail)
    assert render_prediction(turn).split("\n")[0] == line


@pytest.mark.parametrize(
    ("said", "level"),
    [
        (" 2", None),
        (" 2 [1]", Detail.INDEX),
        (" ", Detail.INDEX),
        (" 0", Detail.INDEX),
        (" 02", Detail.INDEX),
        (" ²", Detail.INDEX),
        (" two", Detail.INDEX),
        ("  2", Detail.INDEX),
        (" 2 ", Detail.VALUE),
        (" 2  x", Detail.VALUE),
        (" 2 x ", Detail.VALUE),
        (" 2 a\rb", Detail.VALUE),
        (" 2 a\u2028b", Detail.VALUE),
        (" 2 " + "x" * 61, Detail.VALUE),
    ],
)
def test_what_is_no_detail_of_the_level_is_a_bad_label(said: str, level: Detail | None) -> None:
    line = DETAILED.format(said)
    assert read_prediction(line, level) is None
    breach = parse_prediction_turn(f"{line}\n<DECISION>KEEP</DECISION>\n{TEST}", level=level)
    assert isinstance(breach, Breach)
    assert (breach.kind, breach.label, breach.label_detail) == (BreachKind.BAD_LABEL, None, None)


def test_only_a_failed_assertion_has_details() -> None:
    for label in set(Label) - {Label.ASSERTION_FAILURE}:
        assert read_prediction(f"<PREDICTION>{label.value} 1</PREDICTION>", Detail.VALUE) is None
        assert read_prediction(f"<PREDICTION>{label.value}</PREDICTION>", Detail.VALUE) == (label, None)


def test_a_breach_after_the_prediction_keeps_its_detail() -> None:
    line = DETAILED.format(" 2 7")
    for rest in ("", f"\n{TEST}", f"\n{KEPT}", f"\n{KEPT}\n{PATCH}"):
        breach = parse_prediction_turn(line + rest, level=Detail.VALUE)
        assert isinstance(breach, Breach)
        assert (breach.label, breach.label_detail) == (Label.ASSERTION_FAILURE, "2 7")


def test_what_the_environment_verified_is_a_detail() -> None:
    assert [render_detail(level, 2, "[1]") for level in (None, Detail.INDEX, Detail.VALUE)] == [None, "2", "2 [1]"]
    assert [render_detail(Detail.VALUE, number, None) for number in (2, None)] == ["2", None]


def test_labels_and_decisions_are_read_exactly() -> None:
    assert [read_label(f"<PREDICTION>{label.value}</PREDICTION>") for label in Label] == list(Label)
    assert [read_decision(f"<DECISION>{decision.value}</DECISION>") for decision in Decision] == list(Decision)
    assert read_label("<PREDICTION> PASS</PREDICTION>") is None
    assert read_label("<PREDICTION>PASS</PREDICTION>!") is None
    assert read_decision("<DECISION></DECISION>") is None


def test_a_result_names_its_call_and_says_only_what_it_must() -> None:
    assert render_result("c1", True, "patch applied") == "RESULT c1:\nstatus: success\nstdout:\npatch applied"
    assert render_test_result("c1", Label.PASS) == "RESULT c1:\nstatus: success\nstdout:\ntests passed"
    assert render_test_result("c1", Label.TIMEOUT) == (
        "RESULT c1:\nstatus: failed\ntimed_out: true\nstderr:\ntests failed: time limit reached"
    )
    assert len(set(TEST_LINES.values())) == len(Label)


ANYTHING = st.text() | st.text(alphabet=st.characters(categories=["Cs", "Cc", "Zl", "Ll"]))
SHARDS = ["CALL ", "FINAL:", "\n", "\r", " ", "{", "}", '"', "\\", "\\ud800", "\ud800", "\0", "\u2028", "[" * 2_000]
WHOLES = ["python_test", "apply_patch", '{"id": "1", "project_path": "."}', LABEL, KEPT, DROPPED, TEST, PATCH]
PIECES = st.lists(st.sampled_from(SHARDS + WHOLES)).map("".join)


@given(ANYTHING | PIECES, st.booleans())
@example("\ud800", True)
@example("CALL python_test {" + '"a":{' * 5_000, False)
def test_no_text_raises_and_every_fault_can_be_stored(text: str, gated: bool) -> None:
    for turn in (parse_turn(text), parse_prediction_turn(text, gated)):
        if isinstance(turn, Breach):
            turn.detail.encode()
            assert len(turn.detail) < 400


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200)
IDS = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=64).filter(str.isprintable)


@st.composite
def calls(draw: st.DrawFn, tool: Tool | None = None) -> Call:
    tool = tool or draw(st.sampled_from(list(Tool)))
    return Call(tool, draw(IDS), {name: draw(TEXT) for name in TOOL_ARGUMENTS[tool]})


@given(calls())
def test_a_rendered_call_parses_to_itself(call: Call) -> None:
    rendered = render_call(call)
    assert parse_turn(rendered) == call
    body = json.loads(rendered.split(" ", 2)[2])
    assert body == {"id": call.id, **call.arguments}
    assert parse_turn(f"CALL {call.tool.value} {json.dumps(body, ensure_ascii=True)}") == call  # escaped, the same


@given(calls())
def test_python_escapes_are_no_json(call: Call) -> None:
    """`\\xe9` and `\\U0001f600` are breaches; what JSON knows (`\\u2028`) is read as the character that it names."""
    rendered = render_call(call)
    escaped = rendered.encode("ascii", "backslashreplace").decode()
    foreign = any("\x7f" < c <= "\xff" or c > "\uffff" for c in rendered)
    turn = parse_turn(escaped)
    assert turn.kind is BreachKind.BAD_JSON if isinstance(turn, Breach) else turn == call
    assert isinstance(turn, Breach) == foreign


@given(TEXT.map(lambda text: text.replace("\n", "").replace("\r", "").strip()))
def test_a_rendered_final_parses_to_itself(text: str) -> None:
    assert parse_turn(render_final(text)) == Final(text)


@given(st.sampled_from(list(Label)), st.sampled_from([Decision.KEEP, Decision.REVISE, None]), st.data())
def test_a_rendered_prediction_parses_to_itself(label: Label, decision: Decision | None, data: st.DataObject) -> None:
    call = data.draw(calls(Tool.APPLY_PATCH if decision is Decision.REVISE else Tool.PYTHON_TEST))
    prediction = Prediction(label, decision, call)
    assert parse_prediction_turn(render_prediction(prediction), gated=decision is not None) == prediction
