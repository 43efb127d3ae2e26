"""The command functions of `glyph`, one module a topic; each has `register(app)`."""
