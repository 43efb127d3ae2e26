"""The study's machinery: which runs there are, making them in short visits to a machine, and the tables of results.

    matrix.toml → matrix.py → pieces.py → runner.py → publish.py → RESULTS_PUBLISHED
    RESULTS_PUBLISHED → tables.py, behaviour.py → document.py → docs/results.md, README.md

A user of the `glyph` command and of its readers; nothing in `src/glyph` knows of it. `scripts/study.sh` makes runs,
`scripts/reproduce_tables.sh` makes the tables again.
"""
