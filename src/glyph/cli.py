"""The `glyph` command: one module of `commands/` a topic."""

import typer

from glyph.commands import analysis, doctor, environment, evaluation, make_base, rollouts, task_data, training


def build_app() -> typer.Typer:
    app = typer.Typer(
        help="PREDICT: reactive and predictive coding agents.", no_args_is_help=True, pretty_exceptions_enable=False
    )
    for topic in (task_data, doctor, make_base, rollouts, training, evaluation, analysis, environment):
        topic.register(app)
    return app


def main() -> None:
    build_app()()


if __name__ == "__main__":
    main()
