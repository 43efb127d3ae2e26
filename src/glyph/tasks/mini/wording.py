"""How a program is put into English: frames, joints between the steps, names for what passes between them."""

from random import Random

from glyph.tasks.mini.operations import Type
from glyph.tasks.mini.programs import Program, Step

SUBJECTS = {
    Type.LIST: (
        ("a list of integers", "the list"),
        ("a list of numbers", "the list"),
        ("a list", "the list"),
        ("a given list", "the list"),
    ),
    Type.INTEGER: (("an integer", "the integer"), ("a number", "the number"), ("a given number", "the number")),
    Type.STRING: (("a string", "the string"), ("a given string", "the string"), ("a text", "the text")),
}
"""What comes in, at its first mention and later."""

RESULTS = {
    Type.LIST: ("the result", "the resulting list", "that list"),
    Type.INTEGER: ("the result", "that value", "the value you get"),
    Type.STRING: ("the result", "the resulting string", "that string"),
}

DIRECT_FRAMES = (
    "Write a function to {steps}.",
    "Write a python function to {steps}.",
    "Define a function to {steps}.",
)
"""Frames in which the first step itself mentions what comes in."""

GIVEN_FRAMES = (
    "Given {subject}, {steps}.",
    "Write a function that takes {subject}. It should {steps}.",
    "Write a function for {subject}: {steps}.",
)

JOINTS = {
    1: ("{0}",),
    2: ("{0}, then {1}", "{0} and then {1}", "{0}; after that, {1}"),
    3: ("{0}, then {1}, and finally {2}", "first {0}, then {1}, then {2}", "{0}, after that {1}, and then {2}"),
}


def render_text(program: Program, withheld: int | None, rng: Random) -> str:
    """The wording of a program; the step at place `withheld` is told without its parameter."""
    frame = rng.choice(DIRECT_FRAMES + GIVEN_FRAMES)
    direct = frame in DIRECT_FRAMES
    subjects = SUBJECTS[program.takes]
    subject, mention = rng.choice(subjects if direct else [pair for pair in subjects if "given" not in pair[0]])
    it = subject if direct else mention
    parts = []
    for place, step in enumerate(program.steps):
        parts.append(_phrase(step, it, place == withheld, rng))
        it = rng.choice((*step.operation.leaves, *RESULTS[step.operation.gives]))
    joint = rng.choice(JOINTS[len(parts)])
    return frame.format(subject=subject, steps=joint.format(*parts))


def _phrase(step: Step, it: str, vaguely: bool, rng: Random) -> str:
    phrases = step.operation.vague if vaguely else step.operation.phrases
    return step.fill(rng.choice(phrases), it=it)
