"""`python -m glyph.config > docs/configuration.md`: the reference of every key."""

from glyph.config.reference import reference

if __name__ == "__main__":
    print(reference(), end="")
