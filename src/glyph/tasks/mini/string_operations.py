"""The operations that take a string. Data only."""

from collections.abc import Sequence
from typing import Any

from glyph.tasks.mini.operations import (
    Operation,
    Type,
    count_characters,
    each_character,
    keep_characters,
    operation,
)

_LETTERS = tuple("aeiorstnlm")
_MARKS = tuple("-_.*+/")


def _string(name: str, expression: str, phrases: Sequence[str], **more: Any) -> Operation:
    return operation(name, Type.STRING, Type.STRING, expression, phrases, **more)


def _number(name: str, expression: str, phrases: Sequence[str], **more: Any) -> Operation:
    return operation(name, Type.STRING, Type.INTEGER, expression, phrases, **more)


def _list(name: str, expression: str, phrases: Sequence[str], **more: Any) -> Operation:
    return operation(name, Type.STRING, Type.LIST, expression, phrases, **more)


FILTERS = (
    keep_characters("keep_letters", "c.isalpha()", ["keep the letters of {it}", "drop what is no letter from {it}"]),
    keep_characters("keep_digits", "c.isdigit()", ["keep the digits of {it}", "drop what is no digit from {it}"]),
    keep_characters("drop_digits", "not c.isdigit()", ["remove the digits from {it}"]),
    keep_characters("keep_capitals", "c.isupper()", ["keep the capital letters of {it}"]),
    keep_characters(
        "drop_vowels",
        "c.lower() not in 'aeiou'",
        ["remove the vowels from {it}", "keep everything in {it} but the vowels"],
    ),
    keep_characters("keep_vowels", "c.lower() in 'aeiou'", ["keep the vowels of {it}"]),
    keep_characters(
        "drop_character",
        "c != {k}",
        ["remove every {k} from {it}", "drop the letter {k} wherever it stands in {it}"],
        ["remove a certain letter from {it}"],
        k=_LETTERS,
    ),
    keep_characters(
        "keep_after",
        "c > {k}",
        ["keep the characters of {it} that come after {k} in code order"],
        ["keep the characters of {it} that come after a certain letter in code order"],
        k=tuple("cefhiklmnoprs"),
    ),
    _string("drop_spaces", "{v}.replace(' ', '')", ["remove the spaces from {it}", "write {it} without spaces"]),
)

MAPS = (
    _string("to_upper", "{v}.upper()", ["turn {it} into upper case", "capitalise every letter of {it}"], out="loud"),
    _string("to_lower", "{v}.lower()", ["turn {it} into lower case"], out="quiet"),
    _string("swap_case", "{v}.swapcase()", ["swap the case of each letter of {it}"], out="swapped"),
    _string(
        "capitalise",
        "{v}.capitalize()",
        ["make the first letter of {it} a capital and the others small"],
        out="sentence",
    ),
    each_character(
        "double_characters",
        "c * 2",
        ["write each character of {it} twice", "double every character of {it}"],
    ),
    each_character(
        "replace_character",
        "({b} if c == {a} else c)",
        ["replace each {a} in {it} by {b}", "turn every {a} of {it} into {b}"],
        a=_LETTERS,
        b=tuple("xz*#0-"),
    ),
    each_character(
        "mask_digits",
        "({k} if c.isdigit() else c)",
        ["replace each digit of {it} by {k}"],
        ["replace each digit of {it} by a mark"],
        k=tuple("#*x?_"),
    ),
    each_character(
        "mask_vowels",
        "({k} if c.lower() in 'aeiou' else c)",
        ["replace each vowel of {it} by {k}"],
        ["replace each vowel of {it} by a mark"],
        k=tuple("*#-_.o"),
    ),
    each_character(
        "shift_letters",
        "(chr((ord(c) - 97 + {k}) % 26 + 97) if c.islower() else c)",
        ["shift the small letters of {it} by {k} places in the alphabet", "rotate each small letter of {it} by {k}"],
        ["shift the small letters of {it} by a few places in the alphabet"],
        k=range(1, 14),
    ),
)

SHAPES = (
    _string(
        "backwards",
        "{v}[::-1]",
        ["reverse {it}", "write {it} backwards"],
        loop="{out} = ''\nfor c in {v}:\n    {out} = c + {out}",
        out="flipped",
    ),
    _string(
        "first_characters",
        "{v}[:{k}]",
        ["take the first {k} characters of {it}", "cut {it} off after {k} characters"],
        choices={"k": range(2, 9)},
        vague=["take the first few characters of {it}", "cut {it} to a fixed length"],
        out="start",
    ),
    _string(
        "last_characters",
        "{v}[-{k}:]",
        ["take the last {k} characters of {it}"],
        choices={"k": range(2, 9)},
        vague=["take the last few characters of {it}"],
        out="ending",
    ),
    _string(
        "skip_characters",
        "{v}[{k}:]",
        ["skip the first {k} characters of {it}", "drop {k} characters from the start of {it}"],
        choices={"k": range(2, 6)},
        vague=["skip the first few characters of {it}"],
        out="rest",
    ),
    _string(
        "trim_end",
        "{v}[:-{k}]",
        ["leave out the last {k} characters of {it}", "drop {k} characters from the end of {it}"],
        choices={"k": range(2, 6)},
        vague=["leave out the last few characters of {it}"],
        out="rest",
    ),
    _string(
        "every_nth_character",
        "{v}[::{k}]",
        ["take one in {k} characters of {it}, starting with the first"],
        choices={"k": range(2, 5)},
        vague=["take characters of {it} at regular steps"],
        out="picked",
    ),
    _string(
        "rotate_string",
        "{v}[{k}:] + {v}[:{k}]",
        ["move the first {k} characters of {it} to the end", "rotate {it} to the left by {k}"],
        choices={"k": range(2, 7)},
        vague=["move the first few characters of {it} to the end"],
        out="rotated",
    ),
    _string(
        "repeat",
        "{v} * {k}",
        ["repeat {it} {k} times", "write {it} {k} times in a row"],
        choices={"k": range(2, 4)},
        vague=["repeat {it} a few times"],
        out="repeated",
    ),
    _string(
        "add_suffix",
        "{v} + {k}",
        ["append {k} to {it}", "put {k} at the end of {it}"],
        choices={"k": ("!", "?", ".", "ing", "ed", "s", "_old", "...")},
        vague=["append an ending to {it}"],
        out="longer",
    ),
    _string(
        "add_prefix",
        "{k} + {v}",
        ["put {k} in front of {it}", "prefix {it} with {k}"],
        choices={"k": ("re", "un", "> ", "#", "my_", "pre", "* ")},
        vague=["put a prefix in front of {it}"],
        out="longer",
    ),
    _string(
        "pad_left",
        "{v}.rjust({k}, '.')",
        ["pad {it} with dots on the left to {k} characters"],
        choices={"k": range(10, 21)},
        vague=["pad {it} with dots on the left to a fixed width"],
        out="padded",
    ),
    _string(
        "pad_right",
        "{v}.ljust({k}, '.')",
        ["pad {it} with dots on the right to {k} characters"],
        choices={"k": range(10, 21)},
        vague=["pad {it} with dots on the right to a fixed width"],
        out="padded",
    ),
    _string("sort_characters", "''.join(sorted({v}))", ["sort the characters of {it}"], out="ordered"),
    _string(
        "unique_characters",
        "''.join(dict.fromkeys({v}))",
        ["keep the first copy of each character of {it}", "remove repeated characters from {it}"],
        loop="{out} = ''\nfor c in {v}:\n    if c not in {out}:\n        {out} += c",
        out="kept",
    ),
)

WORDS = (
    _string(
        "reverse_words",
        "' '.join({v}.split()[::-1])",
        ["reverse the order of the words of {it}"],
        out="sentence",
    ),
    _string(
        "flip_words",
        "' '.join(w[::-1] for w in {v}.split())",
        ["reverse each word of {it}", "write every word of {it} backwards, in place"],
        out="sentence",
    ),
    _string("title_words", "{v}.title()", ["capitalise each word of {it}", "write {it} in title case"], out="title"),
    _string("initials", "''.join(w[0] for w in {v}.split())", ["take the first letter of each word of {it}"]),
    _string("word_endings", "''.join(w[-1] for w in {v}.split())", ["take the last letter of each word of {it}"]),
    _string("first_word", "{v}.split()[0]", ["take the first word of {it}"], out="word", needs_word=True),
    _string("last_word", "{v}.split()[-1]", ["take the last word of {it}"], out="word", needs_word=True),
    _string(
        "longest_word",
        "max({v}.split(), key=len)",
        ["find the longest word of {it}, the first one if there are several"],
        needs_word=True,
        loop="{out} = ''\nfor w in {v}.split():\n    if len(w) > len({out}):\n        {out} = w",
        out="best",
    ),
    _string("sort_words", "' '.join(sorted({v}.split()))", ["sort the words of {it}"], out="sentence"),
    _string(
        "keep_long_words",
        "' '.join(w for w in {v}.split() if len(w) > {k})",
        ["keep the words of {it} with more than {k} characters", "drop the words of {it} of {k} characters or fewer"],
        choices={"k": range(2, 7)},
        vague=["keep the long words of {it}", "drop the short words of {it}"],
        loop="{out} = ''\nfor w in {v}.split():\n    if len(w) > {k}:\n        {out} += ' ' + w if {out} else w",
        out="kept",
    ),
    _string(
        "keep_short_words",
        "' '.join(w for w in {v}.split() if len(w) < {k})",
        ["keep the words of {it} with fewer than {k} characters"],
        choices={"k": range(4, 8)},
        vague=["keep the short words of {it}", "drop the long words of {it}"],
        loop="{out} = ''\nfor w in {v}.split():\n    if len(w) < {k}:\n        {out} += ' ' + w if {out} else w",
        out="kept",
    ),
    _string(
        "join_words",
        "{k}.join({v}.split())",
        ["replace the spaces between the words of {it} by {k}", "join the words of {it} with {k}"],
        choices={"k": _MARKS},
        vague=["join the words of {it} with a mark"],
        out="joined",
    ),
)

NUMBERS = (
    _number("length", "len({v})", ["find the length of {it}", "count the characters of {it}"], out="count"),
    count_characters(
        "count_character",
        "c == {k}",
        ["count how often {k} occurs in {it}", "find how many times the letter {k} stands in {it}"],
        ["count how often a certain letter occurs in {it}"],
        k=_LETTERS,
    ),
    count_characters("count_vowels", "c.lower() in 'aeiou'", ["count the vowels of {it}"]),
    count_characters("count_capitals", "c.isupper()", ["count the capital letters of {it}"]),
    count_characters("count_digits", "c.isdigit()", ["count the digits of {it}"]),
    count_characters("count_letters", "c.isalpha()", ["count the letters of {it}"]),
    _number("count_words", "len({v}.split())", ["count the words of {it}"], out="count"),
    _number("count_different", "len(set({v}))", ["count the different characters of {it}"], out="count"),
    _number(
        "position",
        "{v}.find({k})",
        ["find the index of the first {k} in {it}, or -1 if there is none"],
        choices={"k": _LETTERS},
        vague=["find the index of the first copy of a certain letter in {it}, or -1"],
        out="place",
    ),
    _number(
        "longest_word_length",
        "max(len(w) for w in {v}.split())",
        ["find the length of the longest word of {it}"],
        needs_word=True,
        loop="{out} = 0\nfor w in {v}.split():\n    if len(w) > {out}:\n        {out} = len(w)",
        out="best",
    ),
    _number(
        "count_long_words",
        "sum(1 for w in {v}.split() if len(w) > {k})",
        ["count the words of {it} with more than {k} characters"],
        choices={"k": range(2, 7)},
        vague=["count the long words of {it}"],
        loop="{out} = 0\nfor w in {v}.split():\n    if len(w) > {k}:\n        {out} += 1",
        out="count",
    ),
    _number(
        "sum_of_digits",
        "sum(int(c) for c in {v} if c.isdigit())",
        ["add up the digits in {it}"],
        loop="{out} = 0\nfor c in {v}:\n    if c.isdigit():\n        {out} += int(c)",
        out="total",
    ),
)

LISTS = (
    _list(
        "word_lengths",
        "[len(w) for w in {v}.split()]",
        ["list the lengths of the words of {it}"],
        loop="{out} = []\nfor w in {v}.split():\n    {out}.append(len(w))",
        out="lengths",
    ),
    _list(
        "letter_numbers",
        "[ord(c) - 96 for c in {v} if c.islower()]",
        ["list the places in the alphabet of the small letters of {it}, with 1 for 'a'"],
        loop="{out} = []\nfor c in {v}:\n    if c.islower():\n        {out}.append(ord(c) - 96)",
        out="numbers",
    ),
    _list(
        "digit_values",
        "[int(c) for c in {v} if c.isdigit()]",
        ["list the digits in {it} as numbers"],
        loop="{out} = []\nfor c in {v}:\n    if c.isdigit():\n        {out}.append(int(c))",
        out="digits",
    ),
    _list(
        "positions",
        "[i for i, c in enumerate({v}) if c == {k}]",
        ["list the indices at which {k} stands in {it}", "find all positions of {k} in {it}, counted from 0"],
        choices={"k": _LETTERS},
        vague=["list the indices at which a certain letter stands in {it}"],
        loop="{out} = []\nfor i in range(len({v})):\n    if {v}[i] == {k}:\n        {out}.append(i)",
        out="places",
    ),
    _list(
        "word_vowels",
        "[sum(1 for c in w if c in 'aeiou') for w in {v}.split()]",
        ["list how many small vowels each word of {it} has"],
        out="counts",
    ),
)

STRING_OPERATIONS = FILTERS + MAPS + SHAPES + WORDS + NUMBERS + LISTS
