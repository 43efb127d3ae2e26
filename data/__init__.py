"""Commands on the task data: `python -m data.prepare`, `python -m data.validate`. The logic is in `glyph.tasks`."""
