"""Which symbol a mutation puts in the place of which. Data only."""

import ast

BINARY: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-", "*")),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("+", "//")),
    ast.Div: ("/", ("//", "*")),
    ast.FloorDiv: ("//", ("/", "%")),
    ast.Mod: ("%", ("//",)),
    ast.Pow: ("**", ("*",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.BitXor: ("^", ("|", "&")),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
}
"""A binary operator: how it is written, and what replaces it (with `=` behind it in an augmented assignment)."""

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}

FUNCTIONS: dict[str, tuple[str, ...]] = {
    "min": ("max",),
    "max": ("min",),
    "any": ("all",),
    "all": ("any",),
    "sum": ("len", "max"),
    "len": ("sum",),
    "sorted": ("list",),
    "abs": ("int",),
    "set": ("list",),
    "tuple": ("list",),
    "list": ("set", "tuple"),
    "int": ("float",),
    "float": ("int",),
    "round": ("int",),
    "ord": ("len",),
    "bin": ("oct",),
    "sqrt": ("int",),
    "isalpha": ("isalnum", "isdigit"),
}
"""Builtins by plain name, read as a variable: sum(x) or map(sum, xs)."""

METHODS: dict[str, tuple[str, ...]] = {
    "upper": ("lower",),
    "lower": ("upper",),
    "islower": ("isupper",),
    "isupper": ("islower",),
    "isalpha": ("isdigit", "isalnum"),
    "isdigit": ("isalpha",),
    "isalnum": ("isalpha",),
    "isspace": ("isalpha",),
    "startswith": ("endswith",),
    "endswith": ("startswith",),
    "title": ("capitalize",),
    "capitalize": ("title", "upper"),
    "swapcase": ("upper",),
    "strip": ("lstrip",),
    "lstrip": ("rstrip",),
    "rstrip": ("lstrip",),
    "ljust": ("rjust",),
    "rjust": ("ljust",),
    "find": ("rfind",),
    "index": ("count",),
    "count": ("index",),
    "split": ("strip",),
    "keys": ("values",),
    "values": ("keys",),
    "append": ("remove",),
    "add": ("discard",),
    "union": ("intersection",),
    "intersection": ("union",),
    "difference": ("union",),
    "ceil": ("floor",),
    "floor": ("ceil",),
    "sin": ("cos",),
    "cos": ("sin",),
    "gcd": ("lcm",),
    "search": ("match",),
    "match": ("search",),
    "findall": ("split",),
    "nlargest": ("nsmallest",),
    "nsmallest": ("nlargest",),
    "combinations": ("permutations",),
    "permutations": ("combinations",),
    "bisect_left": ("bisect_right",),
    "bisect_right": ("bisect_left",),
    "bisect": ("bisect_left",),
    "group": ("groups",),
    "most_common": ("elements",),
}
"""Methods and module functions behind a dot."""

UNWRAPPED = frozenset({"sorted", "set", "list", "tuple", "abs", "reversed", "round", "str", "int", "len", "sum", "map"})
"""Calls that fall away and leave their first argument (map its last)."""

WRONG_ATTRIBUTES = {
    "append": "add",
    "add": "append",
    "sort": "sorted",
    "extend": "append_all",
    "upper": "uppercase",
    "lower": "lowercase",
    "strip": "trim",
    "join": "concat",
    "keys": "key",
    "items": "pairs",
    "replace": "replace_all",
    "startswith": "starts_with",
    "endswith": "ends_with",
    "isdigit": "is_digit",
    "isalpha": "is_alpha",
    "pop": "remove_last",
    "count": "count_of",
    "index": "index_of",
}
"""Attributes as one might misremember them; any other one gains or loses an `s`."""

STRINGS = {"''": "' '", '""': '" "', "' '": "''", '" "': '""'}
"""String literals, as written, and what replaces them."""
