"""The comparison: the same harness with a program that imports the openai package in every rollout.

A Verifiers plugin (`--harness.id openai_baseline`, with this folder on PYTHONPATH): each rollout starts an interpreter,
imports openai, and plays the same episode with the same executor through an openai client, as the published
environment does.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    from openai import OpenAI

    from glyph import program
    from glyph.episode import Message, ModelTurn
    from glyph.executor import Executor

    class OpenAIEndpoint:
        """Asks through the openai client; stands in for `glyph.endpoint.Endpoint`."""

        def __init__(self, url: str, secret: str, model: str, sampling: dict) -> None:
            self._client, self._model = OpenAI(base_url=url, api_key=secret), model

        def ask(self, messages: list[Message]) -> ModelTurn:
            wire: list[Any] = [
                {**m, "tool_call_id": m["content"].partition(":")[0][7:]} if m["role"] == "tool" else m
                for m in messages
            ]
            reply = self._client.chat.completions.create(model=self._model, messages=wire)
            usage = reply.usage
            tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else (None, None)
            return ModelTurn(reply.choices[0].message.content or "", reply.choices[0].finish_reason, *tokens)

        def close(self) -> None:
            self._client.close()

    program.Endpoint = OpenAIEndpoint  # type: ignore[misc, assignment]
    job = program.Job(**json.loads(Path(program.JOB_PATH).read_text()))
    with Executor(level=job.isolation, workers=1) as executor:
        code, message = program.run_job(job, ".", executor)
    print(message, file=sys.stderr)
    sys.exit(code)

from verifiers.v1.runtimes import ProgramResult, Runtime

from glyph.harness import GlyphHarness, GlyphHarnessConfig
from glyph.program import JOB_PATH

__all__ = ["OpenAIBaselineHarness"]


class OpenAIBaselineConfig(GlyphHarnessConfig):
    pass


class OpenAIBaselineHarness(GlyphHarness):
    """Starts this file in every rollout."""

    def __init__(self, config: OpenAIBaselineConfig) -> None:
        super().__init__(config)

    async def launch(self, ctx, trace, runtime: Runtime, endpoint, secret, mcp_urls) -> ProgramResult:
        job = self._job(ctx, trace, endpoint, secret)
        await runtime.write(JOB_PATH, json.dumps(asdict(job)).encode())
        return await runtime.run_program([sys.executable, __file__], self.config.resolved_env)
