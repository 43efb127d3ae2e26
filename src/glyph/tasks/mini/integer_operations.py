"""The operations that take an integer. Data only."""

from collections.abc import Sequence
from typing import Any

from glyph.tasks.mini.operations import Operation, Type, operation


def _number(name: str, expression: str, phrases: Sequence[str], **more: Any) -> Operation:
    return operation(name, Type.INTEGER, Type.INTEGER, expression, phrases, **more)


def _list(name: str, expression: str, phrases: Sequence[str], **more: Any) -> Operation:
    return operation(name, Type.INTEGER, Type.LIST, expression, phrases, **more)


def _string(name: str, expression: str, phrases: Sequence[str], **more: Any) -> Operation:
    return operation(name, Type.INTEGER, Type.STRING, expression, phrases, **more)


ARITHMETIC = (
    _number(
        "add",
        "{v} + {k}",
        ["add {k} to {it}", "increase {it} by {k}"],
        choices={"k": range(1, 31)},
        vague=["add a fixed amount to {it}", "increase {it}"],
    ),
    _number(
        "subtract",
        "{v} - {k}",
        ["subtract {k} from {it}", "decrease {it} by {k}"],
        choices={"k": range(1, 31)},
        vague=["subtract a fixed amount from {it}", "decrease {it}"],
    ),
    _number(
        "multiply",
        "{v} * {k}",
        ["multiply {it} by {k}", "take {k} times {it}"],
        choices={"k": range(2, 16)},
        vague=["multiply {it} by a constant"],
    ),
    _number(
        "divide",
        "{v} // {k}",
        ["divide {it} by {k}, rounding down", "take the integer quotient of {it} by {k}"],
        choices={"k": range(2, 13)},
        vague=["divide {it} by a constant, rounding down"],
    ),
    _number(
        "remainder",
        "{v} % {k}",
        ["take the remainder of {it} divided by {k}", "compute {it} modulo {k}"],
        choices={"k": range(3, 17)},
        vague=["take the remainder of {it} by a fixed divisor"],
    ),
    _number(
        "linear",
        "{v} * {a} + {b}",
        ["multiply {it} by {a} and add {b}", "compute {a} times {it} plus {b}"],
        choices={"a": range(2, 10), "b": range(1, 13)},
    ),
    _number(
        "cap",
        "min({v}, {k})",
        ["cap {it} at {k}", "take the smaller of {it} and {k}"],
        choices={"k": range(10, 41)},
        vague=["cap {it} at a limit"],
    ),
    _number(
        "at_least",
        "max({v}, {k})",
        ["raise {it} to at least {k}", "take the larger of {it} and {k}"],
        choices={"k": range(5, 31)},
        vague=["raise {it} to a minimum"],
    ),
    _number(
        "distance",
        "abs({v} - {k})",
        ["find the distance of {it} from {k}", "take the absolute difference of {it} and {k}"],
        choices={"k": range(5, 41)},
        vague=["find the distance of {it} from a fixed number"],
    ),
    _number(
        "round_down",
        "{v} // {k} * {k}",
        ["round {it} down to a multiple of {k}", "find the largest multiple of {k} that is not above {it}"],
        choices={"k": range(3, 13)},
        vague=["round {it} down to a multiple of a certain number"],
    ),
    _number(
        "round_up",
        "-(-{v} // {k}) * {k}",
        ["round {it} up to a multiple of {k}", "find the smallest multiple of {k} that is not below {it}"],
        choices={"k": range(3, 13)},
        vague=["round {it} up to a multiple of a certain number"],
    ),
    _number("square", "{v} * {v}", ["square {it}", "multiply {it} by itself"], smallest=-1000, largest=1000),
    _number("absolute", "abs({v})", ["take the absolute value of {it}", "drop the sign of {it}"]),
    _number(
        "triangular",
        "{v} * ({v} + 1) // 2",
        ["add up all integers from 1 to {it}", "find the sum of the numbers up to and including {it}"],
        loop="{out} = 0\ni = 1\nwhile i <= {v}:\n    {out} += i\n    i += 1",
        out="total",
        smallest=0,
        largest=300,
    ),
    _number(
        "sum_of_multiples",
        "sum(range({k}, {v} + 1, {k}))",
        ["add up the multiples of {k} from {k} up to {it}", "find the sum of the positive multiples of {k} up to {it}"],
        choices={"k": range(3, 9)},
        vague=["add up the positive multiples of a certain number up to {it}"],
        loop="{out} = 0\nfor i in range(1, {v} + 1):\n    if i % {k} == 0:\n        {out} += i",
        out="total",
        smallest=0,
        largest=300,
    ),
)

DIGITS = (
    _number(
        "digit_sum",
        "sum(int(d) for d in str(abs({v})))",
        ["find the sum of the digits of {it}", "add up the digits of {it}"],
        loop="{out} = 0\nleft = abs({v})\nwhile left > 0:\n    {out} += left % 10\n    left //= 10",
        out="total",
    ),
    _number(
        "digit_count",
        "len(str(abs({v})))",
        ["count the digits of {it}", "find how many digits {it} has"],
        loop="{out} = 1\nleft = abs({v})\nwhile left >= 10:\n    {out} += 1\n    left //= 10",
        out="count",
    ),
    _number(
        "reverse_digits",
        "int(str(abs({v}))[::-1])",
        ["reverse the digits of {it}", "read the digits of {it} backwards as a number"],
        loop="{out} = 0\nleft = abs({v})\nwhile left > 0:\n    {out} = {out} * 10 + left % 10\n    left //= 10",
        out="backwards",
    ),
    _number(
        "largest_digit",
        "max(int(d) for d in str(abs({v})))",
        ["find the largest digit of {it}"],
        loop="{out} = 0\nleft = abs({v})\nwhile left > 0:\n    {out} = max({out}, left % 10)\n    left //= 10",
        out="best",
    ),
    _number("smallest_digit", "min(int(d) for d in str(abs({v})))", ["find the smallest digit of {it}"]),
    _number(
        "count_digit",
        "str(abs({v})).count('{k}')",
        ["count how often the digit {k} occurs in {it}", "find how many digits of {it} are {k}"],
        choices={"k": range(1, 10)},
        loop="{out} = 0\nfor d in str(abs({v})):\n    if d == '{k}':\n        {out} += 1",
        out="count",
    ),
    _number(
        "bit_count",
        "bin({v}).count('1')",
        ["count the ones in the binary form of {it}"],
        loop="{out} = 0\nleft = {v}\nwhile left > 0:\n    {out} += left % 2\n    left //= 2",
        out="count",
        smallest=0,
    ),
)

LOOPS = (
    _number(
        "halvings",
        "{v}.bit_length() - 1",
        ["count how often {it} can be halved, rounding down, before it reaches 1"],
        loop="{out} = 0\nleft = {v}\nwhile left > 1:\n    left //= 2\n    {out} += 1",
        out="count",
        smallest=1,
    ),
    _number(
        "strip_factor",
        "next({v} // {k} ** i for i in range(30) if {v} // {k} ** i % {k} != 0)",
        ["divide {it} by {k} for as long as it is divisible", "remove every factor {k} from {it}"],
        choices={"k": range(2, 7)},
        vague=["divide {it} by a certain number for as long as it is divisible"],
        loop="{out} = {v}\nwhile {out} % {k} == 0:\n    {out} //= {k}",
        out="left",
        smallest=1,
    ),
    _number(
        "count_factor",
        "next(i for i in range(30) if {v} // {k} ** i % {k} != 0)",
        ["count how many times {it} can be divided by {k} without a remainder"],
        choices={"k": range(2, 6)},
        loop="{out} = 0\nleft = {v}\nwhile left % {k} == 0:\n    left //= {k}\n    {out} += 1",
        out="count",
        smallest=1,
    ),
    _number(
        "largest_power",
        "max({k} ** i for i in range(20) if {k} ** i <= {v})",
        ["find the largest power of {k} that is not above {it}"],
        choices={"k": range(2, 8)},
        vague=["find the largest power of a certain base that is not above {it}"],
        loop="{out} = 1\nwhile {out} * {k} <= {v}:\n    {out} *= {k}",
        out="power",
        smallest=1,
    ),
    _number(
        "count_divisors",
        "sum(1 for i in range(1, {v} + 1) if {v} % i == 0)",
        ["count the divisors of {it}", "find how many positive integers divide {it}"],
        loop="{out} = 0\nfor i in range(1, {v} + 1):\n    if {v} % i == 0:\n        {out} += 1",
        out="count",
        smallest=1,
        largest=200,
    ),
    _list(
        "count_up",
        "list(range(1, {v} + 1))",
        ["list the integers from 1 to {it}", "make a list that counts up from 1 to {it}"],
        loop="{out} = []\ni = 1\nwhile i <= {v}:\n    {out}.append(i)\n    i += 1",
        out="numbers",
        smallest=1,
        largest=12,
    ),
    _list(
        "count_down",
        "list(range({v}, 0, -1))",
        ["list the integers from {it} down to 1", "make a list that counts down from {it} to 1"],
        loop="{out} = []\nleft = {v}\nwhile left > 0:\n    {out}.append(left)\n    left -= 1",
        out="numbers",
        smallest=1,
        largest=12,
    ),
    _list(
        "divisors",
        "[i for i in range(1, {v} + 1) if {v} % i == 0]",
        ["list the divisors of {it}", "find all positive integers that divide {it}"],
        loop="{out} = []\nfor i in range(1, {v} + 1):\n    if {v} % i == 0:\n        {out}.append(i)",
        out="found",
        smallest=1,
        largest=100,
    ),
    _list(
        "list_digits",
        "[int(d) for d in str(abs({v}))]",
        ["list the digits of {it}", "split {it} into its digits"],
        loop="{out} = []\nfor d in str(abs({v})):\n    {out}.append(int(d))",
        out="digits",
    ),
    _list(
        "multiples",
        "[{v} * (i + 1) for i in range({k})]",
        ["list the first {k} multiples of {it}", "list the products of {it} with the numbers from 1 to {k}"],
        choices={"k": range(3, 8)},
        vague=["list the first few multiples of {it}"],
        loop="{out} = []\nfor i in range({k}):\n    {out}.append({v} * (i + 1))",
        out="multiples",
    ),
    _list(
        "steps_below",
        "list(range(0, {v}, {k}))",
        [
            "list the numbers 0, {k}, and so on in steps of {k}, below {it}",
            "list the multiples of {k} from 0 below {it}",
        ],
        choices={"k": range(3, 12)},
        vague=["list the numbers from 0 in equal steps, below {it}"],
        loop="{out} = []\ni = 0\nwhile i < {v}:\n    {out}.append(i)\n    i += {k}",
        out="numbers",
        smallest=1,
        largest=60,
    ),
    _list(
        "halving_chain",
        "[{v} >> i for i in range({v}.bit_length())]",
        ["list {it} and its successive halves, rounding down, until 1"],
        loop="{out} = []\nleft = {v}\nwhile left > 0:\n    {out}.append(left)\n    left //= 2",
        out="chain",
        smallest=1,
        largest=4000,
    ),
    _list(
        "around",
        "[{v} - {k}, {v}, {v} + {k}]",
        ["list three numbers for {it}: {k} less, the same, and {k} more"],
        choices={"k": range(1, 13)},
        out="numbers",
    ),
)

STRINGS = (
    _string("decimal", "str({v})", ["write {it} as a string", "turn {it} into a string"], out="text"),
    _string("binary", "bin({v})[2:]", ["write {it} in binary", "find the binary form of {it}"], smallest=0),
    _string(
        "pad_zeros",
        "str({v}).zfill({k})",
        ["write {it} with leading zeros to a width of {k}", "pad {it} with zeros on the left to {k} characters"],
        choices={"k": range(4, 10)},
        vague=["write {it} with leading zeros to a fixed width"],
        out="text",
    ),
    _string(
        "repeat_letter",
        "{k} * {v}",
        ["build a string of {it} times the letter {k}", "repeat the letter {k} as often as {it} says"],
        choices={"k": tuple("abcxyz*#")},
        vague=["repeat a certain character as often as {it} says"],
        smallest=1,
        largest=12,
        out="text",
    ),
    _string(
        "name_parity",
        "'even' if {v} % 2 == 0 else 'odd'",
        ["give 'even' or 'odd' for {it}", "say whether {it} is 'even' or 'odd'"],
        out="word",
    ),
    _string(
        "compare_name",
        "'big' if {v} > {k} else 'small'",
        ["give 'big' if {it} is greater than {k} and 'small' otherwise"],
        choices={"k": range(5, 61)},
        vague=["say whether {it} is 'big' or 'small'"],
        out="word",
    ),
)

INTEGER_OPERATIONS = ARITHMETIC + DIGITS + LOOPS + STRINGS
