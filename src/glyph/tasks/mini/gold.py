"""The gold code of a program, in one of several styles: nested expressions, named steps, or plain loops."""

import ast
from enum import Enum

from glyph.tasks.mini.operations import Operation, Type
from glyph.tasks.mini.programs import Program

ARGUMENTS = {
    Type.LIST: ("numbers", "values", "xs", "items", "nums"),
    Type.INTEGER: ("n", "number", "value", "m"),
    Type.STRING: ("s", "text", "string", "sentence"),
}
_NESTED_CHARACTERS = 64
_ATOMS = (ast.Name, ast.Call, ast.Subscript, ast.ListComp, ast.List)
_SPARE_NAMES = ("result", "answer", "output", "outcome")


class Style(str, Enum):
    NESTED = "nested"  # one expression as far as it stays readable
    STEPS = "steps"  # an expression a step, each with a name of its own
    REASSIGN = "reassign"  # as STEPS, but the argument is overwritten while the type stays
    LOOP = "loop"  # loops wherever an operation has one


def function_name(program: Program) -> str:
    return "_".join(step.operation.name for step in program.steps)


def render_gold(program: Program, argument: str, style: Style) -> str:
    """The source of a function that does what the program does."""
    body = _nested(program, argument) if style is Style.NESTED else _steps(program, argument, style)
    return f"def {function_name(program)}({argument}):\n" + "\n".join(f"    {line}" for line in body)


def _nested(program: Program, argument: str) -> list[str]:
    lines: list[str] = []
    value = argument
    names = _Names(argument)
    for place, step in enumerate(program.steps):
        template = step.operation.expression
        if place and (template.count("{v}") > 1 or len(template) + len(value) > _NESTED_CHARACTERS):
            name = names.take(program.steps[place - 1].operation)
            lines.append(f"{name} = {value}")
            value = name
        value = step.fill(template, v=_operand(value, template))
    return [*lines, f"return {value}"]


def _steps(program: Program, argument: str, style: Style) -> list[str]:
    lines: list[str] = []
    value = argument
    names = _Names(argument)
    for place, step in enumerate(program.steps):
        last = place == len(program.steps) - 1
        if style is Style.LOOP and step.operation.loop:
            name = names.take(step.operation)
            lines += step.fill(step.operation.loop, v=value, out=name).split("\n")
            lines += [f"return {name}"] * last
        elif last:
            lines.append(f"return {step.fill(step.operation.expression, v=value)}")
            continue
        else:
            overwrite = style is Style.REASSIGN and step.operation.gives is program.takes
            name = argument if overwrite else names.take(step.operation)
            lines.append(f"{name} = {step.fill(step.operation.expression, v=value)}")
        value = name
    return lines


class _Names:
    """Variable names that have not been used yet."""

    def __init__(self, argument: str) -> None:
        self.used = {argument}

    def take(self, operation: Operation) -> str:
        name = next(name for name in (operation.out, *_SPARE_NAMES) if name not in self.used)
        self.used.add(name)
        return name


def _operand(value: str, template: str) -> str:
    """The value in brackets, unless it is an atom or the template already has it in brackets of its own."""
    before, after = template.split("{v}")[0], template.split("{v}")[1]
    enclosed = before.endswith("(") and after.startswith((")", ","))
    if enclosed or isinstance(ast.parse(value, mode="eval").body, _ATOMS):
        return value
    return f"({value})"
