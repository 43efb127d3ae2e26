"""The prose for people: every relative link and anchor leads somewhere, whatever renders the markdown."""

import re
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
INLINE_LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
HTML_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text("utf-8"))


def links(page: Path) -> list[str]:
    text = CODE.sub("`", prose(page))
    return INLINE_LINK.findall(text) + REFERENCE.findall(text)


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading: lower case, no punctuation, a hyphen for each space."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    kept = (c for c in text if c in "-_ " or unicodedata.category(c)[0] in "LN")
    return "".join(kept).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text, found = prose(page), set()
    for name in map(slug, HEADING.findall(text)):
        number = 0
        while (unique := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(unique)
    return found | set(HTML_ANCHOR.findall(text))


def broken(page: Path, root: Path = ROOT) -> list[str]:
    faults = []
    for link in links(page):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or not path.is_relative_to(root.resolve()):
            faults.append(f"{page.name}: {link}: no such file")
        elif anchor and (path.suffix != ".md" or anchor not in anchors(path)):
            faults.append(f"{page.name}: {link}: no such heading")
    return faults


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_and_anchor_resolves(page: str) -> None:
    assert broken(ROOT / page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One `two`: three & four\n## Twice\n## Twice\n```\n# no heading\n```\n")
    good = "[a](b.md) [b](b.md#one-two-three--four) [c](b.md#twice-1) [d](https://x.org/#y) [e](#here) `[f](nowhere)`"
    (tmp_path / "a.md").write_text(f"# Here\n{good}\n```\n[g](nowhere)\n```\n[h]: b.md#twice\n")
    assert broken(tmp_path / "a.md", tmp_path) == []
    bad = ["c.md", "b.md#no-heading", "b.md#Twice", "#there", "../../etc"]
    (tmp_path / "a.md").write_text("# Here\n" + "\n".join(f"[x]({link})" for link in bad) + "\n[y]: gone.md\n")
    assert [fault.split(": ")[1] for fault in broken(tmp_path / "a.md", tmp_path)] == [*bad, "gone.md"]


def test_the_documents_are_named_in_the_readme() -> None:
    """Whoever reads the README finds every page of docs/."""
    text = (ROOT / "README.md").read_text("utf-8")
    pages = {Path(page).stem for page in PAGES if page != "README.md"}
    assert {page for page in pages if page not in text} == set()
