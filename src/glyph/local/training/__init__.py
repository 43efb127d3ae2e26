"""From rollouts and traces to moved weights: samples, packing, losses, the trainer, and the loops of SFT and RL."""
