"""The operations on a list of integers as a whole: its order and shape, numbers and strings from it. Data only."""

from collections.abc import Sequence
from typing import Any

from glyph.tasks.mini.list_elements import FILTERS, MAPS
from glyph.tasks.mini.operations import Operation, Type, count, fold, operation


def _list(name: str, expression: str, phrases: Sequence[str], **more: Any) -> Operation:
    return operation(name, Type.LIST, Type.LIST, expression, phrases, **more)


def _number(name: str, expression: str, phrases: Sequence[str], **more: Any) -> Operation:
    return operation(name, Type.LIST, Type.INTEGER, expression, phrases, **more)


def _string(name: str, expression: str, phrases: Sequence[str], **more: Any) -> Operation:
    return operation(name, Type.LIST, Type.STRING, expression, phrases, **more)


SHAPES = (
    _list("sort_ascending", "sorted({v})", ["sort {it}", "put {it} in ascending order"], out="ordered"),
    _list(
        "sort_descending",
        "sorted({v}, reverse=True)",
        ["sort {it} in descending order", "order {it} from largest to smallest"],
        out="ordered",
    ),
    _list(
        "sort_by_distance",
        "sorted({v}, key=lambda x: abs(x - {k}))",
        ["sort {it} by distance from {k}", "order {it} by how close each number is to {k}"],
        choices={"k": range(1, 16)},
        vague=["sort {it} by distance from a fixed number"],
        out="ordered",
    ),
    _list(
        "sort_by_remainder",
        "sorted({v}, key=lambda x: x % {k})",
        ["sort {it} by remainder modulo {k}", "order {it} by the remainder of each number when divided by {k}"],
        choices={"k": range(3, 11)},
        out="ordered",
    ),
    _list(
        "flip",
        "{v}[::-1]",
        ["reverse {it}", "put {it} in reverse order"],
        loop="{out} = []\nfor x in {v}:\n    {out}.insert(0, x)",
        out="backwards",
    ),
    _list(
        "unique",
        "list(dict.fromkeys({v}))",
        ["remove the duplicates from {it}", "keep only the first copy of each number in {it}"],
        loop="{out} = []\nfor x in {v}:\n    if x not in {out}:\n        {out}.append(x)",
    ),
    _list(
        "take_first",
        "{v}[:{k}]",
        ["take the first {k} elements of {it}", "keep only the first {k} numbers of {it}"],
        choices={"k": range(2, 6)},
        vague=["take the first few elements of {it}"],
        out="first",
    ),
    _list(
        "take_last",
        "{v}[-{k}:]",
        ["take the last {k} elements of {it}", "keep only the last {k} numbers of {it}"],
        choices={"k": range(2, 6)},
        vague=["take the last few elements of {it}"],
        out="last",
    ),
    _list(
        "skip_first",
        "{v}[{k}:]",
        ["skip the first {k} elements of {it}", "drop {k} numbers from the start of {it}"],
        choices={"k": range(2, 5)},
        vague=["skip the first few elements of {it}"],
        out="rest",
    ),
    _list(
        "skip_last",
        "{v}[:-{k}]",
        ["leave out the last {k} elements of {it}", "drop {k} numbers from the end of {it}"],
        choices={"k": range(2, 5)},
        vague=["leave out the last few elements of {it}"],
        out="rest",
    ),
    _list(
        "every_nth",
        "{v}[::{k}]",
        ["take one in {k} elements of {it}, starting with the first", "keep the elements of {it} at steps of {k}"],
        choices={"k": range(2, 5)},
        vague=["take elements of {it} at regular steps"],
        out="picked",
    ),
    _list(
        "rotate",
        "{v}[{k}:] + {v}[:{k}]",
        ["rotate {it} to the left by {k}", "move the first {k} elements of {it} to the end"],
        choices={"k": range(2, 6)},
        vague=["rotate {it} to the left by some places"],
        out="rotated",
    ),
    _list(
        "largest_few",
        "sorted({v}, reverse=True)[:{k}]",
        ["take the {k} largest numbers of {it}, largest first", "find the top {k} numbers of {it}"],
        choices={"k": range(2, 6)},
        vague=["take the few largest numbers of {it}, largest first"],
        out="top",
    ),
    _list(
        "smallest_few",
        "sorted({v})[:{k}]",
        ["take the {k} smallest numbers of {it}, smallest first", "find the lowest {k} numbers of {it}"],
        choices={"k": range(2, 6)},
        vague=["take the few smallest numbers of {it}, smallest first"],
        out="lowest",
    ),
    _list("drop_extremes", "sorted({v})[1:-1]", ["sort {it} without its smallest and largest element"], shortest=3),
    _list(
        "append_value",
        "{v} + [{k}]",
        ["append {k} to {it}", "put {k} at the end of {it}"],
        choices={"k": range(0, 13)},
        vague=["append a fixed number to {it}"],
        out="longer",
    ),
    _list(
        "prepend_value",
        "[{k}] + {v}",
        ["put {k} in front of {it}", "insert {k} at the start of {it}"],
        choices={"k": range(0, 13)},
        vague=["put a fixed number in front of {it}"],
        out="longer",
    ),
    _list(
        "running_sum",
        "[sum({v}[:i + 1]) for i in range(len({v}))]",
        ["compute the running sums of {it}", "replace each number of {it} by the sum up to it"],
        loop="{out} = []\ntotal = 0\nfor x in {v}:\n    total += x\n    {out}.append(total)",
        out="sums",
    ),
    _list(
        "running_maximum",
        "[max({v}[:i + 1]) for i in range(len({v}))]",
        ["compute the running maximum of {it}", "replace each number of {it} by the largest one up to it"],
        loop="{out} = []\nfor x in {v}:\n    {out}.append(max(x, {out}[-1]) if {out} else x)",
        out="highest",
    ),
    _list(
        "differences",
        "[b - a for a, b in zip({v}, {v}[1:])]",
        ["take the differences between neighbours in {it}", "compute each element of {it} minus the one before"],
        loop="{out} = []\nfor i in range(1, len({v})):\n    {out}.append({v}[i] - {v}[i - 1])",
        out="steps",
    ),
    _list(
        "neighbour_sums",
        "[a + b for a, b in zip({v}, {v}[1:])]",
        ["add up each two neighbours in {it}", "take the sums of adjacent elements of {it}"],
        loop="{out} = []\nfor i in range(1, len({v})):\n    {out}.append({v}[i] + {v}[i - 1])",
        out="sums",
    ),
    _list(
        "add_positions",
        "[x + i for i, x in enumerate({v})]",
        ["add its index to each number of {it}", "increase every number of {it} by its position, counted from 0"],
        out="changed",
    ),
    _list(
        "multiply_positions",
        "[x * i for i, x in enumerate({v})]",
        ["multiply each number of {it} by its index", "scale every number of {it} by its position, counted from 0"],
        out="changed",
    ),
    _list(
        "swap_ends",
        "[{v}[-1]] + {v}[1:-1] + [{v}[0]]",
        ["swap the first and the last element of {it}", "exchange the two ends of {it}"],
        shortest=2,
        out="swapped",
    ),
)

NUMBERS = (
    fold("total", "sum({v})", "0", "{out} += x", ["find the sum of {it}", "add up {it}", "compute the total of {it}"]),
    fold(
        "largest",
        "max({v})",
        "{v}[0]",
        "if x > {out}:\n    {out} = x",
        ["find the largest number of {it}", "take the maximum of {it}"],
        out="best",
        shortest=1,
    ),
    fold(
        "smallest",
        "min({v})",
        "{v}[0]",
        "if x < {out}:\n    {out} = x",
        ["find the smallest number of {it}", "take the minimum of {it}"],
        out="best",
        shortest=1,
    ),
    fold(
        "sum_of_squares",
        "sum(x * x for x in {v})",
        "0",
        "{out} += x * x",
        ["find the sum of the squares of {it}", "square all numbers of {it} and add them up"],
    ),
    _number(
        "alternating_sum",
        "sum({v}[::2]) - sum({v}[1::2])",
        ["find the alternating sum of {it} (first minus second plus third and so on)"],
        loop="{out} = 0\nsign = 1\nfor x in {v}:\n    {out} += sign * x\n    sign = -sign",
        out="total",
    ),
    _number("size", "len({v})", ["count the elements of {it}", "find the length of {it}"], out="count"),
    _number(
        "spread",
        "max({v}) - min({v})",
        ["find the difference between the largest and the smallest number of {it}", "compute the range of {it}"],
        shortest=1,
    ),
    _number("count_distinct", "len(set({v}))", ["count the distinct numbers of {it}"], out="count"),
    _number(
        "average",
        "sum({v}) // len({v})",
        ["find the average of {it}, rounded down", "compute the integer mean of {it}"],
        shortest=1,
    ),
    _number(
        "middle",
        "sorted({v})[len({v}) // 2]",
        ["find the upper median of {it}", "sort {it} and take the element in the middle"],
        shortest=1,
    ),
    _number("first_element", "{v}[0]", ["take the first element of {it}"], shortest=1),
    _number("last_element", "{v}[-1]", ["take the last element of {it}"], shortest=1),
    _number(
        "position_of_largest",
        "{v}.index(max({v}))",
        ["find the index of the largest number of {it}", "find where the maximum of {it} stands first, from 0"],
        shortest=1,
        out="place",
    ),
    _number(
        "position_of_smallest",
        "{v}.index(min({v}))",
        ["find the index of the smallest number of {it}", "find where the minimum of {it} stands first, from 0"],
        shortest=1,
        out="place",
    ),
    _number(
        "element_at",
        "{v}[{k}]",
        ["take the element of {it} at index {k}", "read the number at position {k} of {it}, counted from 0"],
        choices={"k": range(1, 5)},
        vague=["take one particular element of {it}"],
        shortest=5,
    ),
    _number(
        "nth_largest",
        "sorted({v})[-{k}]",
        ["find the number of rank {k} in {it}, counted from the largest"],
        choices={"k": range(2, 5)},
        vague=["find one of the largest numbers of {it}"],
        shortest=4,
    ),
    _number(
        "nth_smallest",
        "sorted({v}, reverse=True)[-{k}]",
        ["find the number of rank {k} in {it}, counted from the smallest"],
        choices={"k": range(2, 5)},
        vague=["find one of the smallest numbers of {it}"],
        shortest=4,
    ),
    _number(
        "weighted_sum",
        "sum(i * x for i, x in enumerate({v}))",
        ["add up each number of {it} times its index", "find the sum of {it} weighted by position, counted from 0"],
        loop="{out} = 0\nfor i in range(len({v})):\n    {out} += i * {v}[i]",
        out="total",
    ),
    _number(
        "rises",
        "sum(1 for a, b in zip({v}, {v}[1:]) if b > a)",
        ["count how often {it} rises from one element to the next", "count the elements of {it} above the one before"],
        loop="{out} = 0\nfor i in range(1, len({v})):\n    if {v}[i] > {v}[i - 1]:\n        {out} += 1",
        out="count",
    ),
    _number(
        "first_greater",
        "next((x for x in {v} if x > {k}), -1)",
        ["find the first number of {it} that is greater than {k}, or -1 if there is none"],
        choices={"k": range(0, 16)},
        vague=["find the first large number of {it}, or -1 if there is none"],
        loop="{out} = -1\nfor x in {v}:\n    if x > {k}:\n        {out} = x\n        break",
        out="found",
    ),
    count(
        "count_greater",
        "x > {k}",
        ["count the numbers of {it} greater than {k}", "find how many numbers of {it} are above {k}"],
        ["count the large numbers of {it}"],
        k=range(-6, 16),
    ),
    count(
        "count_smaller",
        "x < {k}",
        ["count the numbers of {it} smaller than {k}", "find how many numbers of {it} are below {k}"],
        ["count the small numbers of {it}"],
        k=range(-5, 18),
    ),
    count(
        "count_value",
        "x == {k}",
        ["count how often {k} occurs in {it}", "find how many elements of {it} equal {k}"],
        ["count how often a certain number occurs in {it}"],
        k=range(0, 10),
    ),
    count(
        "count_multiples",
        "x % {k} == 0",
        ["count the multiples of {k} in {it}", "find how many numbers of {it} are divisible by {k}"],
        ["count the multiples of a certain number in {it}"],
        k=range(2, 9),
    ),
    count(
        "count_between",
        "{a} <= x <= {b}",
        [
            "count the numbers of {it} from {a} to {b}",
            "find how many numbers of {it} lie between {a} and {b} inclusive",
        ],
        a=range(-6, 5),
        b=range(5, 14),
    ),
)

STRINGS = (
    _string(
        "join_with",
        "{k}.join(str(x) for x in {v})",
        ["join {it} into a string with {k} between the numbers", "write {it} as one string, separated by {k}"],
        choices={"k": ("-", ",", " ", "+", ":", "/")},
        vague=["join {it} into a string with a separator"],
        out="joined",
    ),
    _string(
        "signs",
        "''.join('-' if x < 0 else '+' for x in {v})",
        ["write the sign of each number of {it} as '+' or '-' (zero is '+')"],
        loop="{out} = ''\nfor x in {v}:\n    {out} += '-' if x < 0 else '+'",
        out="line",
    ),
    _string(
        "parities",
        "''.join('e' if x % 2 == 0 else 'o' for x in {v})",
        ["write 'e' for each even and 'o' for each odd number of {it}"],
        loop="{out} = ''\nfor x in {v}:\n    {out} += 'e' if x % 2 == 0 else 'o'",
        out="line",
    ),
    _string(
        "letters",
        "''.join(chr(97 + x % 26) for x in {v})",
        ["turn each number of {it} into a letter, with 0 as 'a', wrapping after 25"],
        loop="{out} = ''\nfor x in {v}:\n    {out} += chr(97 + x % 26)",
        out="line",
    ),
)

LIST_OPERATIONS = FILTERS + MAPS + SHAPES + NUMBERS + STRINGS
