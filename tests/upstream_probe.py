"""A program, run by test_upstream.py in an environment with upstream PRIME-RL: prints what its real pipeline makes of
our label samples, as JSON. One token a byte, so that every count can be made by hand.

    two traces → `credit_rollout` → leaves and weights in the trace → TrainSink → packer → loss
"""

import asyncio
import json
import sys
from types import SimpleNamespace

import verifiers.v1 as vf
from verifiers.v1.graph import MessageNode
from verifiers.v1.types import AssistantMessage, UserMessage

if "loss_weights" not in MessageNode.model_fields:
    print(f"{sys.executable} has another Verifiers than upstream's", file=sys.stderr)
    sys.exit(3)

from prime_rl.configs.algorithm import GRPOAlgoConfig
from prime_rl.configs.trainer import DefaultLossConfig
from prime_rl.orchestrator.algo.grpo import GRPOAlgorithm
from prime_rl.orchestrator.train_sink import TrainSink
from prime_rl.trainer.batch import prepare_batch
from prime_rl.trainer.rl.loss import compute_loss, setup_rl_loss_fn
from torch import float32, full, tensor

from glyph.credit import Codec, Credited, CreditOptions, Segment, credit_rollout
from glyph.protocol import Decision, Label, StopReason
from glyph.records import PredictionTarget, RolloutRecord

LOGPROB = -0.5
TURN = "<PREDICTION>PASS</PREDICTION>\n<DECISION>KEEP</DECISION>\nCALL python_test {}"
CODEC = Codec(lambda token: bytes([token]), lambda text: list(text.encode()))


def trace_of(turn: str, reward: float) -> vf.Trace:
    """A prompt, then one turn of Arm B that foresees PASS."""
    ids = list(turn.encode())
    prompt = MessageNode(message=UserMessage(content="task"), token_ids=list(b"task"), mask=[False] * 4)
    answer = MessageNode(
        parent=0,
        message=AssistantMessage(content=turn),
        sampled=True,
        token_ids=[*b"\n", *ids],
        mask=[False, *(True for _ in ids)],
        logprobs=[LOGPROB] * len(ids),
    )
    task = vf.TraceTask(type="probe", data=vf.WireTaskData(idx=0, prompt="task"))
    return vf.Trace(
        task=task,
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[prompt, answer],
        rewards={"solved": vf.Reward(score=reward)},
        ok=True,
    )


def credit(trace: vf.Trace, said: Label) -> Credited:
    """Our credit for the trace, whose verified outcome is OTHER, of a record that quotes the label `said`."""
    target = PredictionTarget("1", 1, "", Label.OTHER, Label.OTHER, said, Decision.KEEP, Decision.KEEP)
    record = RolloutRecord("probe", "b", "standard", StopReason.FINAL, targets=(target,))
    branches = [
        [Segment(i, tuple(n.token_ids), tuple(n.mask), tuple(n.logprobs)) for i, n in enumerate(branch.nodes)]
        for branch in trace.branches
    ]
    return credit_rollout(branches, record, CODEC, CreditOptions(alpha=0.1))


def annotate(trace: vf.Trace, credited: Credited) -> None:
    """Write credit into the trace: rl weights on its sampled tokens, a leaf for each label, beside the turn's node."""
    branches = trace.branches
    for sample in credited.samples:
        start, parent = 0, None
        for node in branches[sample.branch].nodes:
            end = start + len(node.token_ids)
            if sample.label is None:
                weights = zip(sample.rl_weights[start:end], node.mask, strict=True)
                node.loss_weights = {"rl": [weight if sampled else 0.0 for weight, sampled in weights]}
            elif end > sample.shared:
                break
            start, parent = end, next(i for i, each in enumerate(trace.nodes) if each is node)
        if sample.label is not None:
            ids = list(sample.token_ids[start:])
            trace.nodes.append(
                MessageNode(
                    parent=parent,
                    message=AssistantMessage(content=bytes(ids).decode()),
                    token_ids=ids,
                    mask=[False] * len(ids),
                    loss_weights={"ce": list(sample.ce_weights[start:]), "rl": [0.0] * len(ids)},
                )
            )


class Predict(GRPOAlgorithm):
    """What the adapter would be: advantages as in GRPO, then credit written into the traces of the group."""

    def __init__(self, said: Label) -> None:
        super().__init__(GRPOAlgoConfig(), SimpleNamespace())
        self.said = said

    async def score_group(self, episodes: list[vf.Episode]) -> None:
        await super().score_group(episodes)
        for trace in (trace for episode in episodes for trace in episode.traces):
            annotate(trace, credit(trace, self.said))


async def samples_of(traces: list[vf.Trace], said: Label) -> list:
    """What the train sink ships of a group of these traces."""
    env = SimpleNamespace(
        config=SimpleNamespace(group_size=len(traces)), algorithm=Predict(said), sampling_args={"temperature": 1.0}
    )
    sink = TrainSink(
        SimpleNamespace(max_off_policy_steps=8, train=SimpleNamespace(filter_zero_advantages=True)),
        tokenizer=None,
        train_envs=SimpleNamespace(get=lambda name: env),
        mm_token_type_ids_mapping=None,
        progress=SimpleNamespace(step=1),
        batch_size=len(traces),
        token_batch_size=None,
    )
    batch = None
    for trace in traces:
        batch = await sink.add(
            vf.Episode(
                env=vf.EnvInfo(name="glyph"),
                group=vf.GroupInfo(id="group"),
                task=trace.task,
                traces=[trace],
                ok=True,
                run=vf.TrainRunInfo(id="run", work=vf.TrainWorkInfo(step=1, policy=vf.PolicySpan(start=0, end=0))),
            )
        )
    return batch.samples


def loss_of(samples: list) -> float | None:
    """The trainer's loss of these samples in one micro-batch, each token's log-prob being what it was when sampled."""
    if not samples:
        return None
    [[batch]] = prepare_batch(samples, seq_len=4096, num_train_workers=1, bin_cost=sum)
    lengths = batch.sequence_lengths

    def split(stream: list | None, dtype=float32) -> list | None:
        return None if stream is None else list(tensor(stream, dtype=dtype).split(lengths))

    mask = tensor(batch.loss_mask)
    rl_members = mask if batch.rl_weights is None else mask & (tensor(batch.rl_weights) != 0)
    ce_members = tensor(batch.ce_weights or [0.0]) != 0
    loss, _ = compute_loss(
        trainer_logprobs=list(full((sum(lengths),), LOGPROB).split(lengths)),
        inference_logprobs=split(batch.inference_logprobs),
        ref_logprobs=None,
        advantages=split(batch.advantages),
        loss_mask=list(mask.split(lengths)),
        rl_weights=split(batch.rl_weights),
        ce_weights=split(batch.ce_weights),
        ref_kl_weights=None,
        rl_loss_fn=setup_rl_loss_fn(DefaultLossConfig()),
        rl_scale=max(int(rl_members.sum()), 1),
        ce_scale=max(int(ce_members.sum()), 1),
        ref_kl_scale=1,
    )
    return loss.item()


def shown(sample) -> dict:
    """The texts that train, None for an absent stream of rl weights."""

    def text(kept: list[bool]) -> str:
        return bytes(i for i, keep in zip(sample.token_ids, kept, strict=True) if keep).decode()

    return {
        "text": bytes(sample.token_ids).decode(),
        "rl": None if sample.rl_weights is None else text([bool(w) for w in sample.rl_weights]),
        "ce": text([bool(w) for w in sample.ce_weights or [0.0] * len(sample.token_ids)]),
        "sampled": sum(sample.mask),
    }


def outcome(rewards: tuple[float, float], said: Label = Label.PASS) -> dict:
    traces = [trace_of(TURN, rewards[0]), trace_of(TURN + "!" * 8, rewards[1])]
    samples = asyncio.run(samples_of(traces, said))
    return {"samples": [shown(sample) for sample in samples], "loss": loss_of(samples)}


def main() -> None:
    cases = {"mixed": outcome((1.0, 0.0)), "uniform": outcome((1.0, 1.0)), "hidden": outcome((1.0, 0.0), Label.TIMEOUT)}
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
