"""`python -m data.prepare`: the same command as `glyph prepare`."""

import typer

from glyph.commands.task_data import prepare_data

if __name__ == "__main__":
    typer.run(prepare_data)
