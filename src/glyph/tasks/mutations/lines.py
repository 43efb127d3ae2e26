"""The smallest whole-line edit between two texts: what an agent's patch has to say."""


def line_edit(before: str, after: str) -> tuple[str, str]:
    """(find, replace) of the fewest whole lines such that `find` occurs exactly once in `before` and gives `after`.

    Lines end at LF. Context lines are added, below first, only where the changed lines are none or are not unique.

    Raises:
        ValueError: the texts are equal, or `before` is empty (nothing can be found in it).
    """
    if before == after:
        raise ValueError("before and after are equal: there is nothing to edit")
    if not before:
        raise ValueError("before is empty: no text can be found in it")
    old, new = before.split("\n"), after.split("\n")
    head, tail = _common_ends(old, new)
    for context in range(head + tail + 1):
        for above in range(max(0, context - tail), min(context, head) + 1):
            first, last = head - above, tail - (context - above)
            find = "\n".join(old[first : len(old) - last])
            replace = "\n".join(new[first : len(new) - last])
            if _occurs_once(before, find) and before.replace(find, replace) == after:
                return find, replace
    raise AssertionError("the whole text is always a valid edit")


def _common_ends(old: list[str], new: list[str]) -> tuple[int, int]:
    """How many lines the two have in common at the top and, below those, at the bottom."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail


def _occurs_once(text: str, part: str) -> bool:
    """Whether `part` is not empty and stands in `text` at one place only, overlapping places included."""
    place = text.find(part) if part else -1
    return place >= 0 and text.find(part, place + 1) < 0
