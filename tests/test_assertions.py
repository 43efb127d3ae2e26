"""Test code: what of it goes to the candidate's process, and what the parent works out by itself."""

import math
from fractions import Fraction
from typing import Any

import pytest

from glyph.executor.assertions import Evaluator, TestCodeError, TestFailure, parse_tests
from glyph.executor.values import OPAQUE, encode


class Candidate:
    """Answers for a candidate's process: by source, a value; remembers what it was asked."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, []

    def ask(self, source: str) -> Any:
        self.asked.append(source)
        return encode(self.answers[source])


def holds(assertion: str, known: dict[str, Any] | None = None, **answers: Any) -> bool:
    """Whether an assertion about f holds; `answers` are the values of f(1), f(2), … by the names f1, f2, …"""
    candidate = Candidate({f"f({name[1:]})": value for name, value in answers.items()})
    (step,) = parse_tests(f"assert {assertion}")
    assert step.condition
    clean = {source: encode(value) for source, value in (known or {}).items()}
    for source in clean:
        candidate.answers.setdefault(source, "what the candidate says of it")
    return Evaluator(candidate.ask, clean).holds(step.condition)


TRUE: list[tuple[str, dict[str, Any]]] = [
    ("f(1) == 7", {"f1": 7}),
    ("7 == f(1)", {"f1": 7}),
    ("f(1) != 7", {"f1": 8}),
    ("f(1)", {"f1": [0]}),
    ("not f(1)", {"f1": {}}),
    ("not not f(1)", {"f1": 1}),
    ("f(1) == -7.5", {"f1": -7.5}),
    ("f(1) == {'a': [1, (2,)]}", {"f1": {"a": [1, (2,)]}}),
    ("f(1) == set()", {"f1": set()}),
    ("f(1) is None", {"f1": None}),
    ("f(1) is True", {"f1": True}),
    ("f(1) is not None", {"f1": 0}),
    ("f(1) is not None", {"f1": object()}),
    ("f(1) is 42", {"f1": 42}),
    ("f(1) in [6, 7]", {"f1": 7}),
    ("f(1) not in (6, 7)", {"f1": 8}),
    ("f(1) in 'abc'", {"f1": "bc"}),
    ("f(1) in {7: 'a'}", {"f1": 7}),
    ("f(1) in {7}", {"f1": 7.0}),
    ("f(1) in b'abc'", {"f1": b"b"}),
    ("7 in f(1)", {"f1": range(10**15)}),
    ("7.0 in f(1)", {"f1": range(10**15)}),
    ("7 in f(1)", {"f1": {7: 0}.keys()}),
    ("0 < f(1) <= 7", {"f1": 7}),
    ("'a' < f(1)", {"f1": "b"}),
    ("[1] < f(1)", {"f1": [1, 2]}),
    ("f(1) == 1 and f(2) == 2", {"f1": 1, "f2": 2}),
    ("f(1) == 1 or f(2) == 2", {"f1": 1}),
    ("(f(1) or 5) == 5", {"f1": 0}),
    ("(f(1) and 5) == 0", {"f1": 0}),
    ("(f(1) == 1) == True", {"f1": 1}),
    ("(not f(1)) == True", {"f1": 0}),
    ("bool(f(1)) == True", {"f1": {1}}),
    ("int(f(1)) == 7", {"f1": "7"}),
    ("int(f(1)) == 7", {"f1": Fraction(15, 2)}),
    ("float(f(1)) == 0.5", {"f1": Fraction(1, 2)}),
    ("abs(f(1) - 0.3) < 1e-9", {"f1": 0.1 + 0.2}),
    ("abs(f(1) - f(2)) <= 1", {"f1": 1, "f2": 2}),
    ("f(1) - 1 < 7", {"f1": 7}),
    ("round(f(1), 2) == 0.33", {"f1": 1 / 3}),
    ("round(f(1), ndigits=2) == 0.33", {"f1": 1 / 3}),
    ("math.isclose(f(1), 0.3)", {"f1": 0.1 + 0.2}),
    ("math.isclose(f(1), 100, rel_tol=0.1)", {"f1": 95}),
]
FALSE: list[tuple[str, dict[str, Any]]] = [
    ("f(1) == 7", {"f1": 8}),
    ("f(1) == 7", {"f1": object()}),
    ("f(1) != 7", {"f1": object()}),
    ("f(1)", {"f1": object()}),
    ("not f(1)", {"f1": object()}),
    ("f(1) < 7", {"f1": math.nan}),
    ("f(1) is None", {"f1": object()}),
    ("f(1) is True", {"f1": 1}),
    ("f(1) in [6, 7]", {"f1": object()}),
    ("2.5 in f(1)", {"f1": range(10**15)}),
    ("0 < f(1) <= 7 < f(1)", {"f1": 7}),
    ("f(1) == 1 and f(2) == 2", {"f1": 2}),
    ("abs(f(1) - 0.3) < 1e-9", {"f1": math.nan}),
    ("math.isclose(f(1), 0.3)", {"f1": 0.31}),
]


@pytest.mark.filterwarnings("ignore:.is. with a literal")
@pytest.mark.parametrize(("assertion", "answers"), TRUE, ids=lambda part: part if isinstance(part, str) else "")
def test_holds(assertion: str, answers: dict[str, Any]) -> None:
    assert holds(assertion, **answers)


@pytest.mark.parametrize(("assertion", "answers"), FALSE, ids=lambda part: part if isinstance(part, str) else "")
def test_does_not_hold(assertion: str, answers: dict[str, Any]) -> None:
    assert not holds(assertion, **answers)


@pytest.mark.parametrize(
    ("assertion", "value", "exception"),
    [
        ("f(1) < 7", "7", "TypeError"),
        ("abs(f(1) - 1) < 7", "7", "TypeError"),
        ("int(f(1)) == 7", "seven", "ValueError"),
        ("int(f(1)) == 7", "7" * 5000, "ValueError"),
        ("int(f(1)) == 7", math.inf, "OverflowError"),
        ("7 in f(1)", 7, "TypeError"),
        ("7 in f(1)", "seven", "TypeError"),
    ],
)
def test_an_operation_of_the_test_raises_as_in_the_test(assertion: str, value: Any, exception: str) -> None:
    with pytest.raises(TestFailure) as caught:
        holds(assertion, f1=value)
    assert caught.value.exception_type == exception


def test_literals_and_comparisons_stay_here() -> None:
    candidate = Candidate({"f(3)": 9, "g(x=[1])": 2})
    step = parse_tests("x = 1\nassert 8 < f(3) < 10 and abs(g(x=[1]) - 2.25) < 0.5, 'a message'")[1]
    assert step.condition
    assert Evaluator(candidate.ask, {}).holds(step.condition)
    assert candidate.asked == ["f(3)", "g(x=[1])"]


def test_only_what_is_needed_is_asked() -> None:
    candidate = Candidate({"f(1)": 0})
    (step,) = parse_tests("assert f(1) and f(2)")
    assert step.condition
    assert not Evaluator(candidate.ask, {}).holds(step.condition)
    assert candidate.asked == ["f(1)"]


def test_a_known_value_counts_whatever_the_candidate_says() -> None:
    assert holds("f(1) == math.pi", {"math.pi": math.pi}, f1=math.pi)
    assert not holds("f(1) == math.pi", {"math.pi": math.pi}, f1="what the candidate says of it")


def test_steps() -> None:
    steps = parse_tests("import sys\nassert f((1,)) == sys.getsizeof(())\nclass A:\n    b = 1\nassert f(A)\n")
    assert [(step.index, step.condition is None, step.leaves()) for step in steps] == [
        (0, True, []),
        (1, False, ["f((1,))", "sys.getsizeof(())"]),
        (2, True, []),
        (3, False, ["f(A)"]),
    ]


def test_a_lambda_in_an_argument_is_part_of_the_question() -> None:
    (step,) = parse_tests("assert f(lambda x: x > 2 and not x % 3, [1, 3]) == [3]")
    assert step.leaves() == ["f(lambda x: x > 2 and (not x % 3), [1, 3])"]


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("assert f(1) ==", "SyntaxError"),
        ("", "no assertion"),
        ("f(1)", "no assertion"),
        ("return f(1)", "SyntaxError"),
        ("assert await f(1)", "SyntaxError"),
        ("assert f(1) == '\ud800'", "Unicode"),
        ("assert f(1) == 1\0", "null byte"),
        ("assert (" + "[" * 500 + "]" * 500 + ")", "too many nested"),
        ("for x in [1]:\n    assert f(x) == x\n", "top level"),
        ("def check(f):\n    assert f(1) == 1\ncheck(f)\n", "top level"),
        ("try:\n    assert f(1) == 1\nexcept ValueError:\n    pass\n", "top level"),
        ("if f(1) == 1:\n    pass\nelse:\n    assert False\nassert f(1)", "top level"),
    ],
)
def test_unusable_test_code(tests: str, why: str) -> None:
    with pytest.raises(TestCodeError, match=why):
        parse_tests(tests)


@pytest.mark.filterwarnings("ignore:assertion is always true")
def test_an_asserted_tuple_is_a_mistake() -> None:
    with pytest.raises(TestCodeError, match="always holds"):
        parse_tests("assert (f(1) == 1, 'message')")


def test_an_opaque_answer_stays_opaque_through_arithmetic() -> None:
    assert Evaluator(lambda source: OPAQUE, {}).holds(parse_tests("assert abs(f(1) - 1) < 9")[0].condition) is False  # type: ignore[arg-type]
