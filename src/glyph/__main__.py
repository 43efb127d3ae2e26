"""`python -m glyph` is `glyph`."""

from glyph.cli import main

if __name__ == "__main__":
    main()
