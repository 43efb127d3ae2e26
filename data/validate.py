"""`python -m data.validate`: the same command as `glyph validate`."""

import typer

from glyph.commands.task_data import validate_data

if __name__ == "__main__":
    typer.run(validate_data)
