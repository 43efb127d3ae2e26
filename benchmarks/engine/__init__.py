"""What the embedded engine costs: `python -m benchmarks.engine --help`.

    setting.py      the model, one engine an arm, the sizes of the measures
    steps.py        an RL step: its split, and how it grows with the rollouts
    generation.py   tokens a second beside `model.generate`
    training.py     trainer steps on given rollouts: labels shared, separate, without; a checkpoint's time
    trl_trainer.py  the same step by TRL's GRPO trainer, where that is installed
    context.py      how generation and training grow with the length of a rollout
    tables.py       figures → markdown

Within a measure the ways alternate, so that other work on the machine hits all alike: compare ratios.
"""
